"""Copied into the tiny Kimi's folder: the code that SGLang asks of every Kimi-K2.5 checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer, ProcessorMixin


class TinyKimiProcessor(ProcessorMixin):  # type: ignore[misc]  # transformers has no types here
    """Tokenises, and answers SGLang's questions about images, of which it never sees one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.image_processor = None
        self.chat_template = tokenizer.chat_template
        self.media_processor = SimpleNamespace(
            media_proc_cfg={
                "patch_size": 14,
                "merge_kernel_size": 2,
                "in_patch_limit": 64,
                "patch_limit_on_one_side": 8,
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            }
        )

    @classmethod
    def from_pretrained(cls, folder: Path, *_: Any, **__: Any) -> "TinyKimiProcessor":
        return cls(AutoTokenizer.from_pretrained(folder))
