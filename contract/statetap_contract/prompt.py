"""A prompt, and the sample key computed from it."""

import hashlib
import re
import sys
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

#: The only form a sample key has. Anything else never becomes part of a path.
KEY_FORM: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and loss mask of one conversation.

    Raises:
        ValueError: no tokens, an id that is no int32 or negative, or spans that are empty,
            unordered, touching or out of range.
    """

    #: int32 ids, one per token.
    token_ids: "array[int]"
    #: Half-open token ranges the loss is taken over, ascending, not touching.
    loss_spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if self.token_ids.typecode != "i":
            raise ValueError("token ids must be an array of int32 (typecode 'i')")
        if not self.token_ids:
            raise ValueError("the prompt is empty")
        # An id is negative when its highest bit is set, hence when its highest byte is not ASCII.
        if not self.token_bytes()[3::4].isascii():
            raise ValueError(f"token id {min(self.token_ids)} is negative")
        bounds = [bound for span in self.loss_spans for bound in span]
        if bounds and (bounds[0] < 0 or bounds[-1] > len(self.token_ids)):
            raise ValueError(f"loss spans reach beyond the prompt's {len(self.token_ids)} tokens")
        if any(left >= right for left, right in pairwise(bounds)):
            raise ValueError("loss spans must be ascending and must not touch")

    @property
    def num_tokens(self) -> int:
        """Tokens in the prompt, hence rows in its states."""
        return len(self.token_ids)

    def token_bytes(self) -> bytes:
        """The ids as little-endian int32, 4 bytes a token: the form that is digested."""
        if sys.byteorder == "little":
            return self.token_ids.tobytes()
        swapped = array("i", self.token_ids)
        swapped.byteswap()
        return swapped.tobytes()

    def loss_mask(self) -> bytes:
        """One byte a token: 1 where the loss is taken, else 0."""
        mask = bytearray(self.num_tokens)
        for start, end in self.loss_spans:
            mask[start:end] = b"\1" * (end - start)
        return bytes(mask)

    def token_digest(self) -> str:
        """32 hex digits that stand for the ids alone."""
        return hashlib.blake2b(self.token_bytes(), digest_size=16).hexdigest()


def sample_key(spec_digest: str, prompt: Prompt) -> str:
    """The idempotency key: 32 hex digits over capture spec, token ids and loss mask.

    The ids have a fixed width and their count is part of the digest, so no two different
    prompts feed it the same bytes.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"statetap-key-v1")
    digest.update(spec_digest.encode())
    digest.update(prompt.num_tokens.to_bytes(8, "little"))
    digest.update(prompt.token_bytes())
    digest.update(prompt.loss_mask())
    return digest.hexdigest()
