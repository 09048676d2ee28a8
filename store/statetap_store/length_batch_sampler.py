"""LengthBatchSampler: batches of similar lengths, the same ones for a seed and an epoch."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CheckError, UsageError

from statetap_store.sample_table import SampleTable

#: How much longer than it is a sample may count when an epoch's batches are made: samples whose
#: lengths differ by less than this meet each other in other batches with every epoch.
_SPREAD: Final = 0.1


class LengthBatchSampler:
    """Lists of places in a table, for ``DataLoader(batch_sampler=…)``.

    A batch is padded to its longest sample. Samples of similar length share one, so there is
    little padding, and no batch has more than ``max_tokens`` tokens with it. Each sample is in
    exactly one batch of an epoch. Seed and epoch alone decide the batches, whatever the process,
    so that a training that was stopped goes on with ``set_epoch``, which must be called before
    each epoch: without it the same batches come again.

    For DistributedDataParallel every process makes one with its own ``rank``. Together they get
    every sample exactly once, and all get the same number of batches: where the batches do not
    divide by the ranks, those of most samples are halved until they do.

    Args:
        samples: the samples; the DataLoader's dataset must have the same table.
        max_tokens: the most tokens of a batch, padding included.
        seed: not negative.
        shuffle: without, batches are those of the sorted samples, short ones first.
        rank: which part of each epoch to give, from 0.
        num_ranks: parts of each epoch.

    Raises:
        CheckError: kind ``no-samples``.
        UsageError: kind ``sample-too-long``: a sample alone is more than ``max_tokens``. Kind
            ``too-few-samples``: not even batches of one sample divide by the ranks.
        ValueError: there is no such rank, or the seed is negative.
    """

    def __init__(
        self,
        samples: SampleTable,
        max_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank {rank} is none of {num_ranks}: ranks count from 0")
        if seed < 0:
            raise ValueError(f"seed {seed} is negative")
        self._lengths = samples.num_tokens
        self._seed = seed
        self._is_shuffled = shuffle
        self._rank = rank
        self._num_ranks = num_ranks
        self._epoch = 0
        longest = _longest_possible(self._lengths, max_tokens, _SPREAD if shuffle else 0.0)
        self._sizes = _divided(_batch_sizes(longest.tolist(), max_tokens), num_ranks)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration gives. Raises ValueError when negative."""
        if epoch < 0:
            raise ValueError(f"epoch {epoch} is negative")
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of this rank, the same in every epoch."""
        return len(self._sizes) // self._num_ranks

    def __iter__(self) -> Iterator[list[int]]:
        # All at once: who sets the next epoch while a DataLoader prefetches changes nothing here.
        return iter(self._batches()[self._rank :: self._num_ranks])

    def _batches(self) -> list[list[int]]:
        """The batches of all ranks."""
        ends = np.cumsum(self._sizes)[:-1]
        if not self._is_shuffled:
            order = np.argsort(self._lengths, kind="stable")
            return [batch.tolist() for batch in np.split(order, ends)]
        # Of NumPy's generators only the bits are promised to stay the same in later versions.
        bits = np.random.PCG64(np.random.SeedSequence((self._seed, self._epoch)))
        chance = bits.random_raw(len(self._lengths)) / 2.0**64
        order = np.argsort(self._lengths * (1 + _SPREAD * chance), kind="stable")
        batches = np.split(order, ends)
        turns = np.argsort(bits.random_raw(len(batches)), kind="stable")
        return [batches[turn].tolist() for turn in turns]


def _longest_possible(
    lengths: npt.NDArray[np.int64], max_tokens: int, spread: float
) -> npt.NDArray[np.int64]:
    """The most tokens that each place of an epoch's order can have, ascending.

    With every length taken by up to ``spread`` too long, the i-th sample in their order is by no
    more than that longer than the i-th of the sorted ones.
    """
    if not len(lengths):
        raise CheckError("no-samples", "there are no samples to make batches of")
    ordered = np.sort(lengths)
    if ordered[-1] > max_tokens:
        raise UsageError(
            "sample-too-long",
            f"a sample has {ordered[-1]} tokens and a batch may have {max_tokens}: give a "
            f"max_tokens of at least {ordered[-1]}",
        )
    longer = np.floor(ordered * (1 + spread)).astype(np.int64)
    longest: npt.NDArray[np.int64] = np.minimum(longer, ordered[-1])
    return longest


def _batch_sizes(longest: list[int], max_tokens: int) -> list[int]:
    """How many samples each batch has, when as many as fit are taken from the front."""
    sizes = []
    size = 0
    for num_tokens in longest:
        if (size + 1) * num_tokens > max_tokens:
            sizes.append(size)
            size = 0
        size += 1
    return [*sizes, size]


def _divided(sizes: list[int], num_ranks: int) -> list[int]:
    """The batches, with some of them halved, so that all ranks get the same number."""
    num_samples = sum(sizes)
    while len(sizes) % num_ranks:
        fullest = max(range(len(sizes)), key=sizes.__getitem__)
        size = sizes[fullest]
        if size == 1:
            raise UsageError(
                "too-few-samples",
                f"{num_samples} samples do not divide into batches for {num_ranks} ranks, all with "
                "the same number of them: use fewer ranks, or a larger max_tokens",
            )
        sizes[fullest : fullest + 1] = [size // 2, size - size // 2]
    return sizes
