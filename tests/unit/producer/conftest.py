"""A small real tokenizer and model folder, datasets, and a real Redis."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from statetap_contract import CaptureSpec, DeadLetter
from statetap_local.services import LocalRedis
from statetap_producer.planning.make_plan import PlanRequest, make_plan
from statetap_producer.planning.settle_spec import SpecWish
from statetap_producer.run.plan import Plan, PlannedPrompt
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, ShardSet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

#: Like SmolLM2's: no generation block, and a system message of its own where none is given.
CHATML = """\
{% for message in messages %}\
{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}\
{% endif %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

#: The same text, with the assistant's part marked by the template's author.
CHATML_WITH_BLOCK = """\
{% for message in messages %}\
{% if loop.first and message['role'] != 'system' %}\
{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}\
{% endif %}\
{{ '<|im_start|>' + message['role'] + '\\n' }}\
{% if message['role'] == 'assistant' %}\
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}\
{% else %}\
{{ message['content'] + '<|im_end|>' }}\
{% endif %}\
{{ '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

DEFAULT_SYSTEM = "<|im_start|>system\nYou are helpful.<|im_end|>\n"

#: A safetensors file without a tensor in it.
NO_WEIGHTS = b"\2\0\0\0\0\0\0\0{}"

_SENTENCES = (
    "You are helpful. Be brief.",
    "What is the capital of France? The capital of France is Paris.",
    "Hello there, how are you today? I am fine, thank you.",
    "assistant user system",
)


def byte_level_bpe() -> Tokenizer:
    """A tokenizer that sabotages careless callers.

    It adds a BOS, cuts at 8 tokens, pads, and leaves blanks out of the offsets it gives.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _SENTENCES,
        trainers.BpeTrainer(
            vocab_size=380,
            show_progress=False,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    with_bos = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=True), with_bos]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=300, pad_token="<|endoftext|>")  # noqa: S106 - no secret
    return tokenizer


@dataclass(frozen=True)
class ModelMaker:
    """Makes model folders without real weights: planning reads none."""

    root: Path

    def __call__(
        self,
        name: str = "tiny",
        template: str | None = CHATML,
        *,
        context_length: int = 256,
        vocab_size: int = 380,
    ) -> Path:
        folder = self.root / name
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=byte_level_bpe(),
            eos_token="<|im_end|>",  # noqa: S106 - no secret
            chat_template=template,
        )
        tokenizer.save_pretrained(folder)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 8,
            "hidden_size": 64,
            "vocab_size": vocab_size,
            "max_position_embeddings": context_length,
            "dtype": "bfloat16",
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
        return folder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    return ModelMaker(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def model(make_model: ModelMaker) -> Path:
    """A folder with tokenizer, ChatML template without generation block, and config."""
    return make_model()


def row(*turns: tuple[str, str], **fields: object) -> str:
    """One dataset line in the usual shape."""
    conversations = [{"role": role, "content": content} for role, content in turns]
    return json.dumps({"conversations": conversations} | fields)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three usable conversations, the last one a duplicate of the first."""
    rows = [
        row(("user", "Hello"), ("assistant", "Hello there."), id="first"),
        row(("system", "Be brief."), ("user", "Capital of France?"), ("assistant", "Paris.")),
        row(("user", "Hello"), ("assistant", "Hello there."), id="again"),
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def run(dataset: Path, model: Path, tmp_path: Path) -> RunFolder:
    """A planned run of two prompts, in float32."""
    folder = RunFolder(tmp_path / "demo")
    wish = SpecWish(dtype="float32")
    make_plan(PlanRequest(dataset, folder, model, wish), lambda *_: None)
    return folder


def prompts_of(run: RunFolder) -> list[PlannedPrompt]:
    """The run's plan, read at once."""
    return list(Plan(run.plan_file, run.read_record().counts.num_planned).rows())


def store(
    run: RunFolder, *prompts: PlannedPrompt, worker: str = "w0", spec: CaptureSpec | None = None
) -> None:
    """Stores samples as a worker does, with states that are all different."""
    spec = spec or run.read_record().inputs.spec
    provenance = Provenance(run.name, worker, "here", "0.5.23", "0.1.0", (1, 3, 4))
    with ShardSet(run.shards, worker, 1 << 20, spec, provenance) as shards:
        for row in prompts:
            shape = (row.prompt.num_tokens, spec.row_width)
            states = np.arange(1, 1 + shape[0] * shape[1], dtype=np.float32).reshape(shape)
            mask = np.frombuffer(row.prompt.loss_mask(), np.uint8)
            shards.append(row.key, np.array(row.prompt.token_ids, np.int32), mask, states)
        shards.commit()


def give_up(run: RunFolder, key: str, kind: str = "mismatch") -> None:
    """Writes a dead letter as a worker does."""
    letter = DeadLetter(key, kind, "why", 6, "http://127.0.0.1:30000", "2026-01-01T00:00:00Z")
    run.ledger.mkdir(exist_ok=True)
    with (run.ledger / "w0.jsonl").open("a") as stream:
        stream.write(json.dumps(letter.to_json()) + "\n")


Invoke = Callable[..., Result]


@pytest.fixture
def statetap(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs the command in this process; anything but an exit is raised as it is."""
    from statetap_producer.cli import app  # noqa: PLC0415 - most tests need no command

    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)

    return invoke


@pytest.fixture
def redis_server(local_redis: LocalRedis) -> LocalRedis:
    """An empty Redis."""
    with local_redis.client() as client:
        client.flushall()
    return local_redis
