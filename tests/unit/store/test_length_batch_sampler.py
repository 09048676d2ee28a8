"""Batches of similar lengths: every sample once, little padding, the same for seed and epoch."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import CaptureSpec, CheckError, UsageError
from statetap_store import LengthBatchSampler, Provenance, SampleTable, ShardWriter
from statetap_store.torch_collate import collate
from statetap_store.torch_dataset import ShardDataset, TensorSample
from torch.utils.data import DataLoader

#: Gives a table of samples of these lengths, in this order.
TableOf = Callable[[Sequence[int]], SampleTable]


@pytest.fixture
def table_of(
    tmp_path: Path,
    spec: CaptureSpec,
    provenance: Provenance,
    numbered_sample: Callable[..., tuple[str, Any, Any, Any]],
) -> TableOf:
    def make(lengths: Sequence[int]) -> SampleTable:
        path = tmp_path / "w0-00001.h5"
        with ShardWriter.create(path, spec, provenance, 1 << 23) as writer:
            for number, num_tokens in enumerate(lengths):
                writer.append(*numbered_sample(number, num_tokens))
        return SampleTable.scan(path)

    return make


def chat_lengths(num_samples: int, seed: int = 1) -> list[int]:
    """Lengths as chats have them: most are short, a few are twenty times as long."""
    chance = random.Random(seed)
    return [min(400, 4 + int(chance.lognormvariate(3.3, 0.9))) for _ in range(num_samples)]


def padded(lengths: Sequence[int], batch: Sequence[int]) -> int:
    return len(batch) * max(lengths[place] for place in batch)


@pytest.mark.parametrize("max_tokens", [400, 1000, 4096])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_once_and_no_batch_too_large(
    table_of: TableOf, max_tokens: int, *, shuffle: bool
) -> None:
    """In any epoch, whatever the bound; the number of batches stays the same."""
    lengths = chat_lengths(500)
    sampler = LengthBatchSampler(table_of(lengths), max_tokens, seed=3, shuffle=shuffle)
    for epoch in range(20):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(chain(*batches)) == list(range(500))
        assert max(padded(lengths, batch) for batch in batches) <= max_tokens


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    all_tokens = sum(padded(lengths, batch) for batch in batches)
    return 1 - sum(lengths) / all_tokens


def test_there_is_little_padding(table_of: TableOf) -> None:
    """A few percent of the tokens, where batches of samples drawn at random are half padding.

    Batches are not much smaller for it: there are at most a fifth more than the tokens alone need.
    """
    lengths = chat_lengths(2000)
    sampler = LengthBatchSampler(table_of(lengths), 1600, seed=1)
    batches = list(sampler)
    places = list(range(2000))
    random.Random(1).shuffle(places)
    size = 2000 // len(batches)
    at_random = [places[begin : begin + size] for begin in range(0, 2000, size)]
    assert padding_share(lengths, at_random) > 0.5
    assert padding_share(lengths, batches) < 0.08
    assert len(batches) <= 1.2 * sum(lengths) / 1600


def test_samples_meet_others_in_each_epoch(table_of: TableOf) -> None:
    """Neither the batches nor their order are those of the epoch before."""
    lengths = chat_lengths(500)
    sampler = LengthBatchSampler(table_of(lengths), 1000, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    seen = {frozenset(batch) for batch in first}
    assert sum(frozenset(batch) in seen for batch in second) < len(second) / 4
    # Lengths come in no order: an epoch that goes from short to long would be a course of its own.
    longest = [max(lengths[place] for place in batch) for batch in first]
    assert sum(a < b for a, b in pairwise(longest)) < 0.8 * len(first)


#: Prints the batches of an epoch.
SCRIPT = """
import sys
from statetap_store import LengthBatchSampler, SampleTable
sampler = LengthBatchSampler(SampleTable.scan(sys.argv[1]), 1000, seed=7)
sampler.set_epoch(5)
print(list(sampler))
print("torch" in sys.modules)
"""


def test_seed_and_epoch_alone_decide(table_of: TableOf) -> None:
    """Another process, which begins with a later epoch, gets the batches of that epoch."""
    table = table_of(chat_lengths(300))
    sampler = LengthBatchSampler(table, 1000, seed=7)
    epochs = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    command = [sys.executable, "-c", SCRIPT, str(table.shards[0])]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [str(epochs[5]), "False"]
    assert len({str(epoch) for epoch in epochs}) == 6
    other = LengthBatchSampler(table, 1000, seed=8)
    assert list(other) != epochs[0]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]
    assert list(sampler) == epochs[0], "without set_epoch the same epoch comes again"


def test_unshuffled_batches_go_from_short_to_long(table_of: TableOf) -> None:
    """By hand: equal lengths in the table's order, as many as fit."""
    table = table_of([5, 2, 9, 2, 3, 5])
    assert list(LengthBatchSampler(table, 10, shuffle=False)) == [[1, 3, 4], [0, 5], [2]]
    assert list(LengthBatchSampler(table, 9, shuffle=False)) == [[1, 3, 4], [0], [5], [2]]


@pytest.mark.parametrize(
    ("num_samples", "num_ranks"), [(500, 3), (500, 2), (7, 3), (12, 4), (9, 9)]
)
def test_ranks_share_an_epoch(table_of: TableOf, num_samples: int, num_ranks: int) -> None:
    """All get the same number of batches; together they get every sample exactly once."""
    lengths = chat_lengths(num_samples)
    table = table_of(lengths)
    samplers = [
        LengthBatchSampler(table, 4000, seed=2, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    alone = LengthBatchSampler(table, 4000, seed=2)
    assert 0 <= num_ranks * len(samplers[0]) - len(alone) < num_ranks
    for epoch in range(5):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        parts = [list(sampler) for sampler in samplers]
        assert {len(part) for part in parts} == {len(samplers[0])}
        batches = list(chain(*parts))
        assert Counter(chain(*batches)) == Counter(range(num_samples))
        assert all(batches), "no batch is empty"
        assert max(padded(lengths, batch) for batch in batches) <= 4000


@pytest.mark.parametrize(("num_workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
def test_data_loader_prefetches_the_same_batches(
    table_of: TableOf, num_workers: int, start: str | None
) -> None:
    """Forked, spawned or none, in order; to set the next epoch early changes nothing."""
    table = table_of(chat_lengths(120))
    sampler = LengthBatchSampler(table, 700, seed=4)
    loader: DataLoader[TensorSample] = DataLoader(
        ShardDataset(table),
        batch_sampler=sampler,
        num_workers=num_workers,
        prefetch_factor=3 if num_workers else None,
        multiprocessing_context=start,
        persistent_workers=num_workers > 0,
        collate_fn=collate,
    )
    expected = LengthBatchSampler(table, 700, seed=4)
    for epoch in range(3):
        expected.set_epoch(epoch)
        places = list(expected)
        assert len(loader) == len(places) > 6
        batches = iter(loader)
        sampler.set_epoch(epoch + 1)
        keys = [batch["keys"] for batch in batches]
        assert keys == [[table[place].key for place in batch] for batch in places]


def test_bad_input(table_of: TableOf) -> None:
    """One sentence with the value and what to do."""
    table = table_of([5, 40, 7])
    with pytest.raises(UsageError, match="a sample has 40 tokens and a batch may have 39: give a"):
        LengthBatchSampler(table, 39)
    with pytest.raises(UsageError, match="3 samples do not divide into batches for 4 ranks"):
        LengthBatchSampler(table, 100, num_ranks=4)
    with pytest.raises(CheckError, match="there are no samples") as error:
        LengthBatchSampler(replace(table, records=table.records[:0]), 100)
    assert error.value.kind == "no-samples"
    for rank, num_ranks in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(ValueError, match=f"rank {rank} is none of {num_ranks}"):
            LengthBatchSampler(table, 100, rank=rank, num_ranks=num_ranks)
    with pytest.raises(ValueError, match="seed -1 is negative"):
        LengthBatchSampler(table, 100, seed=-1)
    with pytest.raises(ValueError, match="epoch -2 is negative"):
        LengthBatchSampler(table, 100).set_epoch(-2)
