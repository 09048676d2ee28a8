"""Exported files against what plain h5py reads from the shards, by each format's own library."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import safetensors.torch
import torch

from .conftest import Invoke
from .export_stage import (
    HIDDEN,
    VOCAB,
    Stored,
    make_folder,
    same,
    spec_of,
    store_samples,
    stored_samples,
)

#: One token, usual ones, a long one; enough that numbers get a second digit.
LENGTHS = [1, 7, 3, 90, 2, 5, 11, 4, 1, 33, 8, 6]
DTYPES = ("bfloat16", "float16", "float32")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def shards(model: Path, tmp_path: Path, dtype: str = "bfloat16", norm: str = "post") -> Path:
    store_samples(tmp_path / "shards", spec_of(model, dtype, norm), LENGTHS)
    return tmp_path / "shards"


def load(path: Path) -> Any:
    """As the trainers do, mapped and without code in the file."""
    return torch.load(path, weights_only=True, mmap=True)


def record_of_export(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "export.json").read_text())
    return record


@pytest.mark.parametrize("dtype", DTYPES)
def test_specforge(statetap: Invoke, model: Path, tmp_path: Path, dtype: str) -> None:
    """Sorted as strings the files are the samples in the store's order, bit for bit."""
    path, out = shards(model, tmp_path, dtype), tmp_path / "out"
    result = statetap("export", path, "--to", "specforge", "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    files = sorted(str(file) for file in out.rglob("*.ckpt"))
    assert files[10].endswith("/train/rows_000000000-000002000/data_000000010.ckpt")
    for file, stored in zip(files, stored_samples(path), strict=True):
        content = load(Path(file))
        assert set(content) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        assert same(content["input_ids"], stored.ids)
        assert same(content["loss_mask"], stored.mask)
        assert same(content["hidden_state"], stored.last[None])
        assert same(content["aux_hidden_state"], stored.aux[None])
        # A view would have been saved with the whole row.
        assert Path(file).stat().st_size < len(stored.ids) * (4 * HIDDEN * 4 + 16) + 4_000
    record = record_of_export(out)
    assert record["states_dtype"] == {"captured": dtype, "written": dtype}
    assert record["last_hidden_states"]["conversion"] == "none"


def test_angelslim(statetap: Invoke, model: Path, tmp_path: Path) -> None:
    """A batch axis everywhere, its names for the states, and the mapping where it looks for it."""
    path, out = shards(model, tmp_path), tmp_path / "out"
    arguments = ("export", path, "--to", "angelslim", "--out", out)
    assert "--draft-vocab-size" in statetap(*arguments).stderr
    result = statetap(*arguments, "--model", model, "--draft-vocab-size", VOCAB)
    assert (result.exit_code, result.stderr) == (0, "")
    for file, stored in zip(sorted(out.rglob("*.ckpt")), stored_samples(path), strict=True):
        content = load(file)
        assert set(content) == {"input_ids", "loss_mask", "hidden_states", "target_hiddens"}
        assert same(content["input_ids"], stored.ids[None])
        assert same(content["loss_mask"], stored.mask[None])
        assert same(content["hidden_states"], stored.aux[None])
        assert same(content["target_hiddens"], stored.last[None])
    mapping = load(out / "train" / "vocab_mapping.pt")
    assert same(mapping["d2t"], torch.zeros(VOCAB, dtype=torch.int64))
    assert same(mapping["t2d"], torch.ones(VOCAB, dtype=torch.bool))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_modelopt(statetap: Invoke, model: Path, tmp_path: Path, norm: str) -> None:
    """Both kinds of last states go as they are, and each file says which it has."""
    path, out = shards(model, tmp_path, norm=norm), tmp_path / "out"
    result = statetap(
        *("export", path, "--to", "modelopt", "--out", out),
        *("--model", model, "--draft-vocab-size", 9),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    for file, stored in zip(
        sorted((out / "train").rglob("*.pt")), stored_samples(path), strict=True
    ):
        content = load(file)
        assert content.pop("hidden_states_prenorm") is (norm == "pre")
        assert content.pop("conversation_id") == stored.key
        assert set(content) == {"input_ids", "loss_mask", "hidden_states", "aux_hidden_states"}
        assert same(content["input_ids"], stored.ids)
        assert same(content["loss_mask"], stored.mask)
        assert same(content["hidden_states"], stored.last)
        assert same(content["aux_hidden_states"], stored.aux)
    d2t = load(out / "d2t.pt")
    assert (d2t.dtype, d2t.shape) == (torch.int64, (9,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_speculators(statetap: Invoke, model: Path, tmp_path: Path, dtype: str) -> None:
    """Every file is what the safetensors library itself would write, the rows a datasets folder."""
    path, out = shards(model, tmp_path, dtype, norm="pre"), tmp_path / "out"
    result = statetap("export", path, "--to", "speculators", "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    samples = list(stored_samples(path))
    rows = datasets.load_from_disk(out)
    assert len(rows) == len(samples) == len(list((out / "hidden_states").iterdir()))
    for number, stored in enumerate(samples):
        num_tokens = len(stored.ids)
        assert same(rows[number]["input_ids"], stored.ids)
        assert same(rows[number]["loss_mask"], stored.mask)
        assert int(rows[number]["seq_len"]) == num_tokens
        states = torch.cat([stored.aux, stored.last], 1).reshape(num_tokens, 4, HIDDEN)
        expected = safetensors.torch.save({"hidden_states": states, "token_ids": stored.ids})
        written = (out / "hidden_states" / f"hs_{number}.safetensors").read_bytes()
        assert written == expected
    frequencies = load(out / "token_freq.pt")
    assert frequencies == loss_counts(samples)
    assert "train_data_ratio" not in record_of_export(out)


def loss_counts(samples: list[Stored]) -> Counter[int]:
    return Counter(token for stored in samples for token in stored.ids[stored.mask == 1].tolist())


def test_a_split_is_in_folders(statetap: Invoke, model: Path, tmp_path: Path) -> None:
    """Each sample is on one side, and both sides keep the store's order."""
    path, out = shards(model, tmp_path), tmp_path / "out"
    options = ("--val-fraction", 0.3, "--model", model, "--draft-vocab-size", 9)
    result = statetap("export", path, "--to", "specforge", "--out", out, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    samples = {stored.key: stored for stored in stored_samples(path)}
    listed = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert {line["key"] for line in listed} == set(samples)
    sides: dict[str, list[str]] = {"train": [], "val": []}
    for line in listed:
        side = line["file"].split("/")[0]
        sides[side].append(line["key"])
        assert same(load(out / line["file"])["input_ids"], samples[line["key"]].ids)
    order = list(samples)
    assert all(keys == sorted(keys, key=order.index) for keys in sides.values())
    counts = record_of_export(out)["samples"]
    assert (counts["num_train"], counts["num_val"]) == (len(sides["train"]), len(sides["val"]))
    assert len(sides["val"]) > 0
    # What is validated on has no part in the choice of the vocabulary.
    chosen = loss_counts([samples[key] for key in sides["train"]])
    ranked = sorted(range(VOCAB), key=lambda token: (-chosen[token], token))
    mapping = load(out / "vocab_mapping" / "vocab_mapping.pt")
    targets = mapping["d2t"] + torch.arange(9)
    assert targets.tolist() == sorted(ranked[:9])
    assert mapping["t2d"].nonzero().flatten().tolist() == targets.tolist()


def test_a_split_for_speculators_is_a_ratio(statetap: Invoke, model: Path, tmp_path: Path) -> None:
    """Training samples come first, and the ratio that is told cuts there."""
    path, out = shards(model, tmp_path, norm="pre"), tmp_path / "out"
    options = ("--val-fraction", 0.3, "--model", model, "--draft-vocab-size", 9)
    result = statetap("export", path, "--to", "speculators", "--out", out, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    record = record_of_export(out)
    num_train = record["samples"]["num_train"]
    assert 0 < num_train < len(LENGTHS)
    assert int(len(LENGTHS) * record["train_data_ratio"]) == num_train
    assert str(record["train_data_ratio"]) in result.stdout
    rows = datasets.load_from_disk(out)
    listed = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    samples = {stored.key: stored for stored in stored_samples(path)}
    ordered = [samples[line["key"]] for line in listed]
    assert all(
        same(row["input_ids"], stored.ids) for row, stored in zip(rows, ordered, strict=True)
    )
    assert load(out / "token_freq.pt") == loss_counts(ordered[:num_train])
    d2t, t2d = np.load(out / "d2t-9.npy"), np.load(out / "t2d-9.npy")
    assert (d2t.dtype, t2d.dtype, t2d.shape) == (np.int64, np.bool_, (VOCAB,))
    assert (np.flatnonzero(t2d) == d2t + np.arange(9)).all()
