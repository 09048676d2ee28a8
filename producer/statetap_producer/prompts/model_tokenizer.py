"""The tokenizer of a model folder, bare: it adds nothing, cuts nothing and pads nothing."""

import hashlib
from pathlib import Path
from typing import Any, Final

from statetap_contract import MissingError, UsageError
from transformers import AutoTokenizer

from statetap_producer.prompts.chat_template import ChatTemplate

#: Files whose names start so make up a tokenizer.
_TOKENIZER_FILES: Final = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges")


class ModelTokenizer:
    """Loads the tokenizer; nothing is fetched from a hub.

    Args:
        folder: the model.

    Raises:
        MissingError: kind ``tokenizer-missing``.
        UsageError: kind ``tokenizer-slow``.
    """

    def __init__(self, folder: Path) -> None:
        tokenizer = _load(folder)
        added = tokenizer.added_tokens_decoder
        #: Texts of the special tokens.
        self.special_tokens = tuple(token.content for token in added.values() if token.special)
        self._added_ids = frozenset(added)
        #: Largest id that a text can be given.
        self.largest_id = max(tokenizer.get_vocab().values(), default=0)
        #: The chat template, None where the folder has none.
        self.template = _template_of(tokenizer, has_tools=False)
        #: The one for conversations with tools, which may be another.
        self.tool_template = _template_of(tokenizer, has_tools=True)
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        #: Ids that the tokenizer itself puts before and after plain text.
        self.opening, self.closing = _surroundings(self._backend)
        # The post-processor adds a BOS beside the one that the template writes, and offsets that
        # step over blanks.
        self._backend.post_processor = None

    def encode(self, texts: list[str]) -> list[Any]:
        """The library's encodings of texts."""
        encodings: list[Any] = self._backend.encode_batch(texts, add_special_tokens=False)
        return encodings

    def is_added(self, token_id: int) -> bool:
        """Whether an id was added to the vocabulary, as special tokens are."""
        return token_id in self._added_ids


def files_digest(folder: Path) -> str:
    """Digest of the tokenizer's files, "" where there are none."""
    digest = hashlib.blake2b(digest_size=16)
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.name.startswith(_TOKENIZER_FILES) and file.is_file()
    ]
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest() if files else ""


def _load(folder: Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the Rust tokenizer raises bare Exception
        raise MissingError(
            "tokenizer-missing",
            f"no tokenizer can be loaded from {folder} ({_first_line(error)}); copy the model's "
            "tokenizer files there",
        ) from error
    if not tokenizer.is_fast:
        raise UsageError(
            "tokenizer-slow",
            f"the tokenizer in {folder} cannot say which text a token stands for; convert it to "
            "a tokenizer.json",
        )
    return tokenizer


def _template_of(tokenizer: Any, *, has_tools: bool) -> ChatTemplate | None:
    try:
        source = str(tokenizer.get_chat_template(tools=[] if has_tools else None))
    except ValueError:
        return None
    return ChatTemplate(source, tokenizer.special_tokens_map)


def _surroundings(backend: Any) -> tuple[list[int], list[int]]:
    whole = backend.encode("a")
    own = [at for at, is_special in enumerate(whole.special_tokens_mask) if not is_special]
    if not own:
        return [], []
    return whole.ids[: own[0]], whole.ids[own[-1] + 1 :]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
