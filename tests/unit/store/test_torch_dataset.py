"""Samples and batches as torch tensors, in every way a DataLoader can be run."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from statetap_contract import CaptureSpec, CheckError
from statetap_store import Provenance, SampleTable, ShardSet, ShardWriter
from statetap_store.torch_collate import TensorBatch, collate
from statetap_store.torch_dataset import ShardDataset, TensorSample
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, RandomSampler

from .conftest import num_open_in

Sampler = Callable[..., tuple[str, Any, Any, Any]]

SCRIPT = str(Path(__file__).with_name("endless_writer.py"))


@pytest.fixture
def folder(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> Path:
    """A run folder with the samples 0 to 29 in several shards."""
    run = tmp_path / "demo-run" / "runs" / "example"
    run.mkdir(parents=True)
    with ShardSet(run / "shards", "w0", 60 * 53, spec, provenance) as shards:
        for number in range(30):
            shards.append(*numbered_sample(number))
    assert len(list((run / "shards").glob("*.h5"))) > 2
    return run


@pytest.fixture
def dataset(folder: Path) -> ShardDataset:
    return ShardDataset(SampleTable.scan(folder))


def bfloat16(bits: Any) -> torch.Tensor:
    """A bfloat16 is the upper half of a float32."""
    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32)).bfloat16()


def test_items(dataset: ShardDataset, numbered_sample: Sampler) -> None:
    """What was appended comes back as tensors, split into aux layers and last state."""
    assert len(dataset) == 30
    for place in range(30):
        key, token_ids, loss_mask, states = numbered_sample(place)
        item = dataset[place]
        assert item["key"] == key
        assert item["input_ids"].dtype == item["loss_mask"].dtype == torch.int64
        assert item["input_ids"].tolist() == token_ids.tolist()
        assert item["loss_mask"].tolist() == loss_mask.tolist()
        assert item["aux_states"].dtype == item["last_states"].dtype == torch.bfloat16
        assert torch.equal(item["aux_states"], bfloat16(states[:, :16]))
        assert torch.equal(item["last_states"], bfloat16(states[:, 16:]))


def test_states_are_not_copied(dataset: ShardDataset) -> None:
    """Aux and last states are views of the rows that were read, which each item has to itself."""
    item, other = dataset[7], dataset[7]
    aux, last = item["aux_states"], item["last_states"]
    assert aux.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    assert last.data_ptr() - aux.data_ptr() == 2 * 16
    assert aux.stride() == last.stride() == (24, 1)
    aux.zero_()
    assert other["aux_states"].all()
    assert item["last_states"].all()


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float16", torch.float16), ("float32", torch.float32)]
)
def test_other_dtypes(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, dtype: str, stored: torch.dtype
) -> None:
    """States keep the dtype of the capture spec, in items and in batches."""
    spec = replace(spec, dtype=dtype)
    states = torch.arange(2 * 24, dtype=stored).reshape(2, 24)
    with ShardWriter.create(tmp_path / "a.h5", spec, provenance, 10000) as writer:
        tokens = np.arange(2, dtype=np.int32)
        writer.append("0" * 32, tokens, tokens.astype(np.uint8), states.numpy())
    item = ShardDataset(SampleTable.scan(tmp_path))[0]
    assert torch.equal(item["aux_states"], states[:, :16])
    batch = collate([item, item])
    assert torch.equal(batch["last_states"], states[:, 16:].repeat(2, 1, 1))
    assert batch["last_states"].dtype == stored


def test_batch(dataset: ShardDataset) -> None:
    """Samples are padded on the right with zeros, and the masks say where that is."""
    items = [dataset[place] for place in (3, 12, 0, 5)]
    batch = collate(items)
    assert batch["keys"] == [f"{number:032x}" for number in (3, 12, 0, 5)]
    assert batch["num_tokens"].tolist() == [4, 13, 1, 6]
    assert batch["attention_mask"].tolist() == [[1] * n + [0] * (13 - n) for n in (4, 13, 1, 6)]
    assert batch["attention_mask"].dtype == batch["num_tokens"].dtype == torch.int64
    columns: list[tuple[torch.Tensor, list[torch.Tensor]]] = [
        (batch["input_ids"], [item["input_ids"] for item in items]),
        (batch["loss_mask"], [item["loss_mask"] for item in items]),
        (batch["aux_states"], [item["aux_states"] for item in items]),
        (batch["last_states"], [item["last_states"] for item in items]),
    ]
    for found, parts in columns:
        expected = pad_sequence(parts, batch_first=True)
        assert found.dtype == expected.dtype
        assert found.is_contiguous()
        assert torch.equal(found, expected)


def test_batch_of_one(dataset: ShardDataset) -> None:
    """One sample is a batch without padding, of its own memory."""
    item = dataset[9]
    batch = collate([item])
    assert batch["attention_mask"].tolist() == [[1] * 10]
    assert torch.equal(batch["aux_states"][0], item["aux_states"])
    item["aux_states"].zero_()
    assert batch["aux_states"].all()


def by_key(batch: TensorBatch) -> dict[str, list[Any]]:
    """Each sample of a batch without its padding."""
    return {
        key: [
            part[row, :num_tokens].tolist()
            for part in (
                batch["input_ids"],
                batch["loss_mask"],
                batch["aux_states"],
                batch["last_states"],
            )
        ]
        for row, (key, num_tokens) in enumerate(
            zip(batch["keys"], batch["num_tokens"].tolist(), strict=True)
        )
    }


@pytest.mark.parametrize(("num_workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
def test_data_loader(
    folder: Path,
    dataset: ShardDataset,
    numbered_sample: Sampler,
    num_workers: int,
    start: str | None,
) -> None:
    """Forked, spawned or none: the same seed gives the same batches, epoch after epoch."""
    loader: DataLoader[TensorSample] = DataLoader(
        dataset,
        batch_size=4,
        sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(5)),
        num_workers=num_workers,
        multiprocessing_context=start,
        persistent_workers=num_workers > 0,
        collate_fn=collate,
    )
    epochs: list[list[str]] = []
    for _ in range(2):
        order: list[str] = []
        for batch in loader:
            for key, (ids, mask, aux, last) in by_key(batch).items():
                _, token_ids, loss_mask, states = numbered_sample(int(key, 16))
                assert (ids, mask) == (token_ids.tolist(), loss_mask.tolist())
                assert aux == bfloat16(states[:, :16]).tolist()
                assert last == bfloat16(states[:, 16:]).tolist()
                order.append(key)
        epochs.append(order)
        assert sorted(order) == [f"{number:032x}" for number in range(30)]
    shuffled = RandomSampler(range(30), generator=torch.Generator().manual_seed(5))
    assert epochs == [[f"{number:032x}" for number in shuffled] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert num_workers == 0 or num_open_in(folder) == 0, "the parent reads nothing itself"


def test_batches_are_made_in_shared_memory(dataset: ShardDataset) -> None:
    """A worker process makes a batch where the trainer reads it, so it is copied no second time."""

    def are_shared(samples: list[TensorSample]) -> list[bool]:
        batch = collate(samples)
        return [
            batch["aux_states"].is_shared(),  # type: ignore[no-untyped-call]
            batch["last_states"].is_shared(),  # type: ignore[no-untyped-call]
        ]

    for num_workers, expected in ((0, [False, False]), (1, [True, True])):
        loader: DataLoader[TensorSample] = DataLoader(
            dataset,
            batch_size=30,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
            collate_fn=are_shared,
        )
        assert list(loader) == [expected]


def test_workers_hand_out_single_samples(dataset: ShardDataset) -> None:
    """Without batches, what a worker process sends is what the dataset has."""
    loader: DataLoader[TensorSample] = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for place, item in enumerate(loader):
        assert item["key"] == dataset[place]["key"]
        assert torch.equal(item["aux_states"], dataset[place]["aux_states"])
        assert torch.equal(item["last_states"], dataset[place]["last_states"])


def damage(dataset: ShardDataset, place: int) -> str:
    """Flips a bit in the states of a sample; what its error must say."""
    entry = dataset.table[place]
    with h5py.File(entry.path) as hdf5:
        position = hdf5["states"].id.get_offset() + 48 * entry.token_offset
    with entry.path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    return f"sample {entry.key} in {re.escape(str(entry.path))} has states that fail their checksum"


def test_damaged_sample_is_an_error(dataset: ShardDataset) -> None:
    """It is named, no other takes its place, and whoever wants no checks gets it as it is."""
    sentence = damage(dataset, 11)
    with pytest.raises(CheckError, match=sentence) as error:
        dataset[11]
    assert error.value.kind == "payload-corrupt"
    assert [dataset[place]["key"] for place in (10, 12)] == [f"{10:032x}", f"{12:032x}"]
    unchecked = ShardDataset(dataset.table, check=False)
    assert unchecked[11]["key"] == f"{11:032x}"


def test_damaged_sample_in_a_worker_process(dataset: ShardDataset) -> None:
    """The sentence reaches the trainer, though torch makes a RuntimeError of it."""
    sentence = damage(dataset, 11)
    loader: DataLoader[TensorSample] = DataLoader(
        dataset, batch_size=6, num_workers=1, multiprocessing_context="fork", collate_fn=collate
    )
    batches = iter(loader)
    assert next(batches)["keys"] == [f"{number:032x}" for number in range(6)]
    with pytest.raises(RuntimeError, match=sentence):
        next(batches)


def test_no_such_item(dataset: ShardDataset) -> None:
    """Past the end is an IndexError."""
    with pytest.raises(IndexError):
        dataset[30]


def test_nothing_is_open_before_the_first_item(folder: Path) -> None:
    """Making, pickling and unpickling a dataset opens no shard."""
    dataset = ShardDataset(SampleTable.scan(folder))
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 our own
    assert num_open_in(folder) == 0
    assert copy[3]["key"] == dataset[3]["key"]
    assert list(copy.table) == list(dataset.table)


#: Reads a dataset in the process that made it and in its child, at the same time.
FORK = """
import os, random, runpy, sys
import torch
from statetap_store import SampleTable
from statetap_store.torch_dataset import ShardDataset
numbered_sample = runpy.run_path(sys.argv[2])["numbered_sample"]
dataset = ShardDataset(SampleTable.scan(sys.argv[1]))

def check(seed):
    for place in random.Random(seed).choices(range(30), k=300):
        states = torch.from_numpy(numbered_sample(place)[3].astype("int16")).view(torch.bfloat16)
        assert torch.equal(dataset[place]["last_states"], states[:, 16:])

check(1)
child = os.fork()
check(2 if child else 3)
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
print(status)
"""


def test_across_a_fork(folder: Path) -> None:
    """A dataset that was read before a fork gives the right items on both sides of it."""
    command = [sys.executable, "-c", FORK, str(folder), SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("0\n", "")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """Items and batches are forgotten with their last user: hundreds take the memory of a few."""
    with ShardWriter.create(tmp_path / "a.h5", spec, provenance, 1 << 24) as writer:
        for number in range(8):
            writer.append(*numbered_sample(number, 20_000))
    dataset = ShardDataset(SampleTable.scan(tmp_path))

    def read(num_batches: int) -> None:
        for number in range(num_batches):
            collate([dataset[(number + place) % 8] for place in range(4)])

    read(10)
    before = resident_bytes()
    read(50)
    assert resident_bytes() - before < 50e6, "what was read has 200 MB, and so have the batches"


def test_the_readmes_trainer(folder: Path, repository: Path) -> None:
    """The script of the README reads a run in batches."""
    text = (repository / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (script,) = [block for block in blocks if "ShardDataset" in block]
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    (line,) = result.stdout.splitlines()
    assert "[30, 13, 16]" in line, "30 samples of up to 13 tokens are one batch"
