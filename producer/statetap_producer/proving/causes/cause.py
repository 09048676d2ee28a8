"""Causes: what may be wrong with states, by stable kinds, and what to do about each."""

from dataclasses import dataclass
from typing import Final

#: What to do about each kind of cause.
ADVICE: Final = {
    "not-finite": (
        "float16 overflows where bfloat16 does not: capture in that; in another dtype, look at the "
        "server's kernels"
    ),
    "zero-rows": (
        "nothing was written there: look at what writes them, and extract the samples again"
    ),
    "rows-repeated": (
        "one buffer was written several times: look at what writes the rows, and extract the "
        "samples again"
    ),
    "rows-shifted": (
        "a row is the state after its own token, and trainers do the shifting: extract the "
        "samples again, unshifted"
    ),
    "rows-reordered": (
        "the batch was taken apart in another order than it was put together: extract the "
        "samples again with the patched server"
    ),
    "layout-differs": (
        "a row is slot after slot, hidden_size elements each: write them so, and extract the "
        "samples again"
    ),
    "slots-swapped": (
        "slots stand in ascending order of their layers: write them so, and extract the samples"
        " again"
    ),
    "layer-off-by-one": (
        "boundary index k is hidden_states[k] of HF transformers, the input of layer k: start "
        "the server with these --layers, and make a new run"
    ),
    "other-layer": "start the server with the layers that the run wants, and make a new run",
    "norm-missing": (
        "the state before the final norm is --norm pre: make a new run with it, or start the "
        "server without it"
    ),
    "norm-applied": (
        "the state after the final norm is the last one of --norm post, and aux layers have had"
        " none: start the server as the run wants it, and make a new run"
    ),
    "norm-twice": "whoever applied the norm must leave it to the model: extract the samples again",
    "norm-unweighted": (
        "the final norm lost its weight: check how the server loads it, and extract the samples"
        " again"
    ),
    "scaled": "something multiplied the states: take it out, and extract the samples again",
    "misread-dtype": "make a new run with the dtype that the server computes in",
    "byte-swapped": "the bytes were written in the other order: extract the samples again",
    "rounded": "make a new run with that dtype, or have the server compute and copy in float32",
    "bos-added": (
        "the server put a token in front by itself: send ids, not text, and extract the samples"
        " again"
    ),
    "bos-missing": "the server left the first token out: extract the samples again",
    "prefix-missing": (
        "a cache had the first rows, and nobody computed them: extract the samples again with "
        "the patched server"
    ),
    "chunks-alone": (
        "each of these chunks was computed as a prompt of its own: extract the samples again "
        "with the patched server"
    ),
    "positions-missing": (
        "all tokens were taken for the first: check how the server numbers positions, and "
        "extract the samples again"
    ),
    "positions-restarted": (
        "positions began again in mid-prompt: check how the server numbers them after a chunk "
        "or a cached prefix, and extract the samples again"
    ),
    "other-sample": (
        "answers of requests that ran side by side were exchanged: extract the samples again "
        "with the patched server"
    ),
    "prefix-wrong": "cached rows of another prompt may be there: extract the samples again",
    "tail-wrong": (
        "other token ids from there on, a chunk without its cache, or rows that were "
        "overwritten: extract the samples again"
    ),
    "rows-wrong": "rows may have been overwritten: extract the samples again, and check the disk",
    "attention-differs": (
        "check RoPE settings, positions and attention mask of the server against the model's config"
    ),
    "input-differs": (
        "check that these token ids were computed, and that embedding and first layers are this"
        " model's"
    ),
    "layers-differ": "check that all weight files are of this revision and none is quantised",
    "other-weights": (
        "check that the server loaded this folder: another revision, a fine-tune or a quantised"
        " checkpoint gives such states"
    ),
    "unexplained": (
        "slightly other weights or other arithmetic may add up to it: compare the server's "
        "versions, kernels and weight files with those of a server that is right"
    ),
    "bound-strict": "leave --bound away, or raise it",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What one slot, or several, may suffer from."""

    #: One of ``ADVICE``.
    kind: str
    #: What is the case, to follow the names of slots and a colon.
    text: str

    def __post_init__(self) -> None:
        assert self.kind in ADVICE, self.kind  # noqa: S101 - ours, or it is a bug

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]
