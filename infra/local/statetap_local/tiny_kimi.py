"""A tiny Kimi-K2.5: SGLang's multimodal wrapper with the tiny DeepSeek-V3 in it."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file, save_file

from statetap_local.models import made_once, tiny_deepseek_v3

#: SGLang builds the image tower though no image will come; as small as it can be.
_VISION: Final[dict[str, Any]] = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 32,
    "vt_hidden_size": 32,
    "mm_hidden_size": 32,
    "intermediate_size": 32,
    "text_hidden_size": 64,
    "init_pos_emb_height": 8,
    "init_pos_emb_width": 8,
}

_PROCESSOR: Final = Path(__file__).with_name("tiny_kimi_processor.py")


def tiny_kimi_k25(cache: Path) -> Path:
    """``tiny_deepseek_v3`` as the language model of a Kimi-K2.5; for text only.

    Its states are those of ``tiny_deepseek_v3``. The image tower has no weights in the checkpoint.
    SGLang serves it with ``--trust-remote-code``, as it does the real one.
    """
    language_model = tiny_deepseek_v3(cache)

    def build(folder: Path) -> None:
        text_config = json.loads((language_model / "config.json").read_text())
        config = {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "auto_map": {"AutoProcessor": f"{_PROCESSOR.stem}.TinyKimiProcessor"},
            "dtype": text_config["dtype"],
            "bos_token_id": text_config["bos_token_id"],
            "eos_token_id": text_config["eos_token_id"],
            "media_placeholder_token_id": text_config["vocab_size"] - 1,
            "text_config": text_config,
            "vision_config": _VISION,
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        shutil.copy(_PROCESSOR, folder)
        for file in language_model.glob("tokenizer*"):
            shutil.copy(file, folder)
        shutil.copy(language_model / "chat_template.jinja", folder)
        weights = load_file(language_model / "model.safetensors")
        renamed = {f"language_model.{name}": tensor for name, tensor in weights.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})

    return made_once(cache / "tiny-kimi-k25", build)
