"""The vocabulary of a drafter: the target's tokens that are most often in the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from statetap_contract import CheckError, UsageError
from statetap_store import RunReader
from statetap_store.layout import LOSS_MASK_BYTES, TOKEN_ID_BYTES

from statetap_producer.terminal.counted import counted

#: What is read of each token.
_TOKEN_BYTES: Final = TOKEN_ID_BYTES + LOSS_MASK_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyMapping:
    """Which of the target's token ids a drafter has, and under which ids of its own."""

    #: int64 [draft vocabulary]: what is to be added to a drafter's id to get the target's.
    d2t: npt.NDArray[np.int64]
    #: bool [target vocabulary]: whether the drafter has it.
    t2d: npt.NDArray[np.bool_]
    #: Share of the tokens in the loss that the drafter has.
    coverage: float

    @classmethod
    def choose(cls, counts: npt.NDArray[np.int64], size: int) -> Self:
        """The ``size`` most frequent tokens, ascending; of equally frequent ones the lowest ids.

        Tokens that never occur fill up what is left, so a special token that answers contain is in
        it and one that they do not is not.

        Args:
            counts: [target vocabulary], see ``count_tokens``.
            size: tokens of the drafter.

        Raises:
            UsageError: kind ``draft-vocab-size``: fewer than one, or more than the target has.
        """
        if not 1 <= size <= len(counts):
            raise UsageError(
                "draft-vocab-size",
                f"--draft-vocab-size {size:,} is not between 1 and {len(counts):,}, the vocabulary "
                "of the model",
            )
        chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
        is_chosen = np.zeros(len(counts), np.bool_)
        is_chosen[chosen] = True
        coverage = float(counts[chosen].sum() / counts.sum())
        return cls(chosen - np.arange(size), is_chosen, coverage)


def count_tokens(
    reader: RunReader,
    num_samples: int,
    vocab_size: int | None,
    on_progress: Callable[[int, int], None],
) -> npt.NDArray[np.int64]:
    """How often each token id is in the loss of the first samples of a reader's table.

    Args:
        reader: of the samples, which are read without their states.
        num_samples: how many of them to count.
        vocab_size: of the model; None for up to the largest id in the loss.
        on_progress: called with the bytes of ids and masks read, and those to read.

    Returns:
        [vocabulary], by token id.

    Raises:
        CheckError: kind ``token-outside``: an id that the model does not have; ``no-loss``: the
            loss is taken over no token at all; ``payload-corrupt`` as ``RunReader.read``.
    """
    counts = np.zeros(vocab_size or 0, np.int64)
    num_read, total = 0, int(reader.table.num_tokens[:num_samples].sum()) * _TOKEN_BYTES
    for place in range(num_samples):
        token_ids, loss_mask = reader.read_prompt(place)
        check_tokens(reader.table[place].key, token_ids, vocab_size)
        found = np.bincount(token_ids[loss_mask == 1])
        if len(found) > len(counts):
            counts.resize(len(found), refcheck=False)
        counts[: len(found)] += found
        num_read += len(token_ids) * _TOKEN_BYTES
        on_progress(num_read, total)
    if not counts.any():
        raise CheckError(
            "no-loss",
            f"the loss is taken over no token of {counted(num_samples, 'training sample')}: "
            "extract conversations that have answers",
        )
    return counts


def check_tokens(key: str, token_ids: npt.NDArray[np.int32], vocab_size: int | None) -> None:
    """Raises CheckError, kind ``token-outside``, for ids that the model does not have.

    Args:
        key: the sample's.
        token_ids: [n], at least one.
        vocab_size: of the model, None where that is not known.
    """
    if vocab_size is not None and (largest := int(token_ids.max())) >= vocab_size:
        raise CheckError(
            "token-outside",
            f"sample {key} has token {largest:,} and the model's vocabulary ends at "
            f"{vocab_size - 1:,}: give the folder of the model that it was made for",
        )
