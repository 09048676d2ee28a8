"""The command ``export``: what it refuses, what it says, and which bytes it ends with."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from statetap_contract import ModelFolder, UsageError
from statetap_producer.exporting import export as export_module
from statetap_producer.exporting.checksum_list import ChecksumList
from statetap_producer.exporting.export_plan import ExportRequest, plan_export
from statetap_producer.exporting.formats import FORMATS
from statetap_producer.exporting.split import is_held_out
from statetap_producer.exporting.vocabulary import VocabularyMapping
from statetap_producer.exporting.write_samples import sample_batches
from statetap_store import RunReader, SampleTable, ShardWriter, seal
from typer.testing import Result

from . import export_stage
from .conftest import Invoke
from .export_stage import (
    PROVENANCE,
    VOCAB,
    make_folder,
    spec_of,
    store_samples,
    stored_samples,
    tree,
)

LENGTHS = [1, 7, 3, 90, 2, 5, 11, 4, 1, 33, 8, 6]

Exporter = Callable[..., Result]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on shared memory, where a sync waits for no disk."""
    with tempfile.TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


@pytest.fixture
def shards(model: Path, tmp_path: Path) -> Path:
    store_samples(tmp_path / "shards", spec_of(model), LENGTHS)
    return tmp_path / "shards"


@pytest.fixture
def export(statetap: Invoke, shards: Path, tmp_path: Path) -> Exporter:
    """Exports for SpecForge into ``out``, unless told otherwise."""

    def call(*options: object, out: str = "out", to: str = "specforge") -> Result:
        return statetap("export", shards, "--to", to, "--out", tmp_path / out, *options)

    return call


def check_refused(result: Result, exit_code: int, *words: str) -> None:
    """One sentence on stderr, nothing on stdout."""
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith("statetap: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_each_mistake_is_a_sentence(
    statetap: Invoke, export: Exporter, model: Path, tmp_path: Path
) -> None:
    """And nothing is written for any of them."""
    out = tmp_path / "out"
    arguments = ("--to", "specforge", "--out", out)
    check_refused(statetap("export", tmp_path / "no.h5", *arguments), 3, "no.h5")
    (tmp_path / "empty").mkdir()
    assert statetap("export", tmp_path / "empty", *arguments).exit_code == 3
    unknown = export(to="eagle9")
    assert unknown.exit_code == 2
    assert "angelslim" in unknown.stderr
    for fraction in (1, -0.1, 7, "nan"):
        check_refused(export("--val-fraction", fraction), 2, "--val-fraction", "such as 0.05")
    check_refused(export("--val-fraction", 1e-9), 2, "none of 12 samples for validation")
    check_refused(export("--val-fraction", 1 - 1e-9), 2, "none of 12 samples for training")
    check_refused(export("--draft-vocab-size", 5), 2, "give it with --model")
    for size in (0, -3, VOCAB + 1):
        check_refused(export("--draft-vocab-size", size, "--model", model), 2, "1 and 50")
    check_refused(export("--model", tmp_path / "no"), 3, "no")
    other = make_folder(tmp_path / "other", "MistralForCausalLM")
    check_refused(export("--model", other), 2, "give the folder that the server loaded")
    assert not out.exists()
    out.write_text("")
    check_refused(export(), 2, "is no folder")
    out.unlink()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    check_refused(export(), 2, "notes.txt")
    assert tree(out) == {"notes.txt": b"mine"}


def test_no_samples(statetap: Invoke, model: Path, tmp_path: Path) -> None:
    """A shard without any is a failed check."""
    path = tmp_path / "w0-00001.h5"
    ShardWriter.create(path, spec_of(model), PROVENANCE, 1 << 16).close()
    result = statetap("export", path, "--to", "specforge", "--out", tmp_path / "out")
    check_refused(result, 1, "holds no samples")


def test_a_disk_without_room(
    export: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is refused before anything is written, and told what it would take."""
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil has it
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 20_000))
    check_refused(export(), 3, "needs", "20.0 kB free", "choose another disk")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["specforge", "speculators"])
def test_a_disk_that_fills_up(
    export: Exporter, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Whoever was writing, it is one sentence, leaves nothing half-made, and is gone on with."""
    options = ("--model", model, "--draft-vocab-size", 9)
    real, left = os.pwrite, 0

    def full(fd: int, data: bytes, offset: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    result = None
    for number in range(40):
        left = number * 23
        with monkeypatch.context() as patch:
            patch.setattr("statetap_producer.exporting.write_samples._BATCH_FILES", 3)
            patch.setattr(os, "pwrite", full)
            result = export(*options, to=to)
        assert not list((tmp_path / "out").rglob(".*"))
        if result.exit_code == 0:
            break
        assert result.exit_code == 3
        assert result.stderr.startswith("statetap: no room to ")
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "out" / "export.json").exists()
    assert result is not None
    assert result.exit_code == 0
    assert number > 2
    assert export(*options, to=to, out="whole").exit_code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_what_is_said(export: Exporter, model: Path, tmp_path: Path) -> None:
    """The size comes first, then what was done; as JSON nothing but that."""
    shown = " ".join(export().stdout.split())
    for words in ("samples 12", "tokens 171", "size ", " free", "bfloat16, as captured"):
        assert words in shown
    assert shown.endswith(f"12 files in {tmp_path / 'out'}")
    size = sum(len(data) for name, data in tree(tmp_path / "out").items() if "ckpt" in name)
    told = json.loads(export("--json").stdout)
    assert (told["num_files"], told["num_proven"], told["num_damaged"]) == (12, 12, 0)
    assert told["num_bytes"] == pytest.approx(size, rel=0.05)
    options = ("--model", model, "--draft-vocab-size", 9, "--json", "--val-fraction", 0.3)
    told = json.loads(export(*options, out="other").stdout)
    assert told["draft_vocabulary"]["size"] == 9
    assert told["samples"]["num_train"] + told["samples"]["num_val"] == 12
    assert told["num_files"] == 13


def test_the_same_bytes_by_any_number_of_processes(
    export: Exporter, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every file, whoever wrote it."""
    options = ("--model", model, "--draft-vocab-size", 9, "--val-fraction", 0.3)
    assert export(*options, to="speculators").exit_code == 0
    monkeypatch.setattr(export_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr("statetap_producer.exporting.write_samples._BATCH_FILES", 2)
    assert export(*options, "--processes", 2, to="speculators", out="again").exit_code == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_what_is_damaged_is_written_anew(export: Exporter, tmp_path: Path) -> None:
    """A flipped bit, a cut file, a lost one and a foreign one are all found by reading."""
    assert export("--val-fraction", 0.3).exit_code == 0
    out = tmp_path / "out"
    before = tree(out)
    assert "12 files there already" in export("--val-fraction", 0.3).stdout
    assert tree(out) == before
    flipped, cut, lost, foreign = sorted(out.rglob("*.ckpt"))[:4]
    data = bytearray(flipped.read_bytes())
    data[-100] ^= 4
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    lost.unlink()
    foreign.write_bytes(b"something else")
    shown = export("--val-fraction", 0.3).stdout
    assert "8 files there already" in shown
    assert "4 files damaged or gone" in shown
    assert tree(out) == before


@pytest.mark.parametrize("name", ["token_freq.pt", "state.json", "data-00000-of-00001.arrow"])
def test_other_files_are_proven_too(
    export: Exporter, model: Path, tmp_path: Path, name: str
) -> None:
    """Not the samples' alone."""
    assert export("--model", model, to="speculators").exit_code == 0
    before = tree(tmp_path / "out")
    (tmp_path / "out" / name).write_bytes(b"")
    assert "1 file damaged" in export("--model", model, to="speculators").stdout
    assert tree(tmp_path / "out") == before


def test_a_file_that_is_not_listed_does_not_count(export: Exporter, tmp_path: Path) -> None:
    """Without its line, or with a line that is half there, a file is written once more."""
    assert export().exit_code == 0
    out = tmp_path / "out"
    before = tree(out)
    (out / "export.json").rename(out / "export.unfinished.json")
    listed = out / "checksums.xxh128"
    lines = listed.read_bytes().splitlines(keepends=True)
    victim = out / lines[6].decode().split()[1]
    for rest in (b"", lines[6][:-1], b"\0" * 60, lines[8]):
        listed.write_bytes(b"".join(lines[:6]) + rest)
        victim.write_bytes(b"half")
        assert "6 files there already" in export().stdout
        assert tree(out) == before


def test_another_version_of_a_library(export: Exporter, tmp_path: Path) -> None:
    """Where the bytes of a damaged file come out otherwise than they were, the list says so."""
    assert export().exit_code == 0
    out = tmp_path / "out"
    before = tree(out)
    listed = out / "checksums.xxh128"
    lines = listed.read_bytes().splitlines(keepends=True)
    lines[3] = b"0" * 32 + lines[3][32:]
    listed.write_bytes(b"".join(lines))
    assert "1 file damaged" in export().stdout
    assert tree(out) == before


def test_another_export_is_refused(
    export: Exporter, statetap: Invoke, model: Path, tmp_path: Path
) -> None:
    """A folder is for one format, one split, one vocabulary and one dataset."""
    assert export("--val-fraction", 0.3).exit_code == 0
    before = tree(tmp_path / "out")
    check_refused(export(), 2, "differs in its", "val fraction")
    check_refused(export("--val-fraction", 0.3, to="modelopt"), 2, "differs in its format")
    options = ("--val-fraction", 0.3, "--model", model, "--draft-vocab-size", 9)
    check_refused(export(*options), 2, "differs in its draft vocabulary")
    arguments = ("--to", "specforge", "--out", tmp_path / "out", "--val-fraction", 0.3)
    store_samples(tmp_path / "less", spec_of(model), LENGTHS[:9])
    check_refused(statetap("export", tmp_path / "less", *arguments), 2, "3 samples", "not stored")
    store_samples(tmp_path / "wide", spec_of(model, "float32"), LENGTHS)
    check_refused(statetap("export", tmp_path / "wide", *arguments), 2, "another capture spec")
    assert tree(tmp_path / "out") == before
    for content in (b"", b"[]", b"{"):
        (tmp_path / "out" / "export.json").write_bytes(content)
        check_refused(export("--val-fraction", 0.3), 1, "delete", "export anew")


def test_a_file_that_the_trainer_would_take_for_a_sample(export: Exporter, tmp_path: Path) -> None:
    """Is named, and no file of the export is touched."""
    assert export().exit_code == 0
    stranger = tmp_path / "out" / "train" / "rows_000000000-000002000" / "data_000000012.ckpt"
    stranger.write_bytes(b"")
    check_refused(export(), 2, str(stranger), "move it away")
    # SpecForge reads packed files too.
    packed = stranger.with_name("data_000000003.ckpt.gz")
    stranger.rename(packed)
    check_refused(export(), 2, str(packed), "move it away")
    packed.rename(stranger.with_suffix(".txt"))
    assert export().exit_code == 0


@pytest.mark.parametrize("trainer", ["specforge", "angelslim"])
def test_layers_that_a_trainer_cannot_read(
    statetap: Invoke, model: Path, tmp_path: Path, trainer: str
) -> None:
    """Three are what their drafters are built for; that is said before anything is written."""
    spec = ModelFolder.read(model).spec((2, 5), "bfloat16", "post")
    with ShardWriter.create(tmp_path / "two.h5", spec, PROVENANCE, 1 << 21) as writer:
        states = np.ones((3, spec.row_width), np.uint16)
        writer.append("a" * 32, np.arange(3, dtype="<i4"), np.ones(3, "u1"), states)
        writer.commit()
    options = ("--to", trainer, "--out", tmp_path / "out", "--model", model)
    result = statetap("export", tmp_path / "two.h5", *options, "--draft-vocab-size", 9)
    check_refused(result, 2, "3 aux layers", "have 2")
    assert not (tmp_path / "out").exists()


def test_a_file_system_without_locks(
    export: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two exports could mix there, so that there is none."""

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    result = export()
    assert result.exit_code == 3
    assert f"{tmp_path / 'out'} lies on a file system that has no locks" in result.stderr


def test_a_folder_that_cannot_be(export: Exporter, tmp_path: Path) -> None:
    """A file on the way, or a link to nothing, is the person's mistake and not the disk's."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    check_refused(export(out="file/out"), 2, f"{tmp_path / 'file'} is no folder")
    check_refused(export(out="link"), 2, f"{tmp_path / 'link'} is no folder")


def test_a_model_whose_norm_was_changed_in_place(
    statetap: Invoke, shards: Path, model: Path, tmp_path: Path
) -> None:
    """It has the same revision: larger weights are found out, and no export has two norms."""
    command = ("export", shards, "--to", "speculators", "--model", model, "--out")
    assert statetap(*command, tmp_path / "out").exit_code == 0
    before = tree(tmp_path / "out")
    weights = model / "model.safetensors"
    norm = load_file(weights)["model.norm.weight"]
    save_file({"model.norm.weight": norm * 1.5}, weights)
    check_refused(statetap(*command, tmp_path / "out"), 2, "differs in its last hidden states")
    assert tree(tmp_path / "out") == before
    result = statetap(*command, tmp_path / "new")
    assert result.exit_code == 1
    assert "do not fit the model's final norm" in result.stderr
    assert "below 1" in result.stderr


def test_states_that_are_not_finite_are_not_converted(
    statetap: Invoke, model: Path, tmp_path: Path
) -> None:
    """The sentence names the sample and what to do, and does not blame the model."""
    spec = spec_of(model)
    with ShardWriter.create(tmp_path / "nan.h5", spec, PROVENANCE, 1 << 21) as writer:
        states = np.full((3, spec.row_width), 0x7FC0, np.uint16)
        writer.append("a" * 32, np.arange(3, dtype="<i4"), np.ones(3, "u1"), states)
        writer.commit()
    options = ("--to", "speculators", "--model", model, "--out", tmp_path / "out")
    result = statetap("export", tmp_path / "nan.h5", *options)
    assert result.exit_code == 1
    assert f"sample {'a' * 32} hold a value that is not finite" in result.stderr


def store_one(path: Path, model: Path, last_id: int, mask: int) -> None:
    """A sample of three tokens, the last of them given, with one mask for all."""
    spec = spec_of(model)
    with ShardWriter.create(path, spec, PROVENANCE, 1 << 21) as writer:
        states = np.ones((3, spec.row_width), np.uint16)
        ids, loss_mask = np.array([1, 2, last_id], "<i4"), np.full(3, mask, "u1")
        writer.append("a" * 32, ids, loss_mask, states)
        writer.commit()


def test_a_token_that_the_model_does_not_have(
    statetap: Invoke, model: Path, tmp_path: Path
) -> None:
    """It is found outside the loss too, with a mapping and without; the last id is no fault."""
    options = ("--to", "specforge", "--model", model)
    store_one(tmp_path / "last.h5", model, VOCAB - 1, 1)
    written = statetap("export", tmp_path / "last.h5", *options, "--out", tmp_path / "last")
    assert (written.exit_code, written.stderr) == (0, "")
    for mask in (0, 1):
        path, out = tmp_path / f"beyond{mask}.h5", tmp_path / f"out{mask}"
        store_one(path, model, VOCAB, mask)
        for size in ((), ("--draft-vocab-size", 9)):
            result = statetap("export", path, *options, "--out", out, *size)
            assert result.exit_code == 1
            assert f"sample {'a' * 32} has token 50 and the model's vocabulary" in result.stderr
            assert not list(out.rglob("*.ckpt"))
            shutil.rmtree(out, ignore_errors=True)


def test_no_token_in_the_loss(statetap: Invoke, model: Path, tmp_path: Path) -> None:
    """There is nothing to choose a vocabulary by."""
    store_one(tmp_path / "none.h5", model, 3, 0)
    options = ("--to", "specforge", "--model", model, "--draft-vocab-size", 9)
    result = statetap("export", tmp_path / "none.h5", *options, "--out", tmp_path / "out")
    check_refused(result, 1, "no token of 1 training sample", "that have answers")


def test_a_batch_takes_its_own_shards_alone(model: Path, shards: Path, tmp_path: Path) -> None:
    """And reads the same samples from them."""
    request = ExportRequest(shards, FORMATS["specforge"], tmp_path / "out", model, 0.0, None)
    plan = plan_export(request, lambda *_: None)
    assert len(plan.table.shards) == 3
    (batch,) = sample_batches(plan, [6, 7, 11])
    assert batch.table.shards == plan.table.shards[1:]
    with RunReader(batch.table) as some, RunReader(plan.table) as whole:
        for number, place in enumerate((6, 7, 11)):
            assert batch.table[number].key == plan.table[place].key
            for ours, theirs in zip(
                some.read_prompt(number), whole.read_prompt(place), strict=True
            ):
                np.testing.assert_array_equal(ours, theirs)


def test_samples_stored_later(export: Exporter, model: Path, shards: Path, tmp_path: Path) -> None:
    """An export keeps the samples that it began with, wherever the new ones stand in the order."""
    assert export("--val-fraction", 0.3).exit_code == 0
    before = tree(tmp_path / "out")
    store_samples(tmp_path / "more", spec_of(model), [9, 9], first=100)
    for path in (tmp_path / "more").glob("*.h5"):
        path.rename(shards / f"a{path.name}")
    shown = export("--val-fraction", 0.3).stdout
    assert "2 samples stored since" in shown
    assert tree(tmp_path / "out") == before
    assert "14 files in" in export(out="new").stdout
    assert next(stored_samples(shards)).key not in before["samples.jsonl"].decode()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_sample_ends_it(
    export: Exporter, shards: Path, tmp_path: Path, *, is_sealed: bool
) -> None:
    """By its key; nothing takes its place, also where readers would pass over it."""
    path = sorted(shards.glob("*.h5"))[1]
    if is_sealed:
        seal(path)
    with h5py.File(path) as shard:
        place = shard["states"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[place + 9] ^= 1
    path.write_bytes(data)
    key = list(stored_samples(shards))[5].key
    result = export()
    assert result.exit_code == 1
    assert f"sample {key} in {path} " in result.stderr
    assert ("fail their checksum" in result.stderr) is is_sealed
    assert not (tmp_path / "out" / "export.json").exists()
    assert not list((tmp_path / "out").rglob(".*"))


def test_two_at_once(export: Exporter, tmp_path: Path) -> None:
    """The second one is told to wait, and does no harm."""
    assert export().exit_code == 0
    with ChecksumList(tmp_path / "out" / "checksums.xxh128"):
        result = export()
    assert result.exit_code == 2
    assert "another process is exporting" in result.stderr
    assert export().exit_code == 0


#: Exports in children that kill themselves at the n-th call that changes a file, until one gets
#: through; whenever one was killed another one finishes the job, in a copy of the folder.
KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from statetap_producer.cli import app
import torch
from statetap_producer.exporting import formats, write_samples, export, export_plan
write_samples._BATCH_FILES = 5
torch.set_num_threads(1)
copies, step = Path(sys.argv[1]), int(sys.argv[2])
arguments = sys.argv[3:]

def run(folder, limit):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    made = 0
    for name in ("pwrite", "fsync", "open", "rename", "replace", "mkdir"):
        def call(*args, real=getattr(os, name), **kwargs):
            nonlocal made
            if made == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            made += 1
            return real(*args, **kwargs)
        setattr(os, name, call)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        app([*arguments, "--out", str(folder)])
    except SystemExit as ended:
        os._exit(ended.code or 0)
    finally:
        os._exit(70)

number = 0
while True:
    folder = copies / str(number)
    code = run(folder, number * step)
    if code == 0:
        break
    assert code == -signal.SIGKILL, code
    assert run(folder, -1) == 0, number
    number += 1
print(number)
"""


@pytest.mark.parametrize(("to", "step"), [("specforge", 37), ("speculators", 11)])
def test_killed_anywhere_and_run_again(
    export: Exporter, shards: Path, model: Path, tmp_path: Path, memory: Path, to: str, step: int
) -> None:
    """It ends with the bytes of an undisturbed export, and nothing beside them."""
    options = ("--val-fraction", 0.3, "--model", model, "--draft-vocab-size", 9)
    assert export(*options, to=to).exit_code == 0
    expected = tree(tmp_path / "out")
    command = [sys.executable, "-c", KILLER, memory, step, "export", shards]
    command += ["--to", to, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    num_kills = int(ended.stdout)
    assert num_kills > 10
    for number in range(num_kills + 1):
        found = tree(memory / str(number))
        assert set(found) == set(expected), number
        assert [name for name in expected if found[name] != expected[name]] == [], number


def test_told_to_end(export: Exporter, shards: Path, tmp_path: Path) -> None:
    """SIGTERM leaves no hidden files, and the next export goes on."""
    script = (
        "import os, signal\n"
        "from statetap_producer.cli import main\n"
        "from statetap_producer.exporting import write_samples\n"
        "write_samples.publish = lambda _: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "export", str(shards), "--to", "specforge"]
    command += ["--out", str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in ended.stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    assert "12 files in" in export().stdout


def test_a_sample_stays_on_its_side() -> None:
    """Its key alone decides, as ``b2sum`` computes it; more held out is never others held out."""
    keys = [f"{number:032x}" for number in range(2000)]
    for key in keys[:5]:
        told = subprocess.run(
            ["b2sum", "-l", "64"], input=key, capture_output=True, text=True, check=True
        )
        share = int(told.stdout.split()[0], 16) / 2**64
        assert not is_held_out(key, share - 1e-9)
        assert is_held_out(key, share + 1e-9)
    held_out = [{key for key in keys if is_held_out(key, share)} for share in (0, 0.1, 0.4)]
    assert held_out[0] == set()
    assert held_out[1] < held_out[2]
    assert len(held_out[1]) == pytest.approx(200, abs=50)


def test_a_vocabulary_by_hand() -> None:
    """The most frequent tokens; of equals the lower id; unused ones only to fill up."""
    counts = np.array([0, 5, 2, 0, 5, 2, 9], np.int64)
    three = VocabularyMapping.choose(counts, 3)
    assert three.d2t.tolist() == [1 - 0, 4 - 1, 6 - 2]
    assert three.t2d.tolist() == [False, True, False, False, True, False, True]
    assert three.coverage == 19 / 23
    four = VocabularyMapping.choose(counts, 4)
    assert (four.d2t + np.arange(4)).tolist() == [1, 2, 4, 6]
    six = VocabularyMapping.choose(counts, 6)
    assert (six.d2t + np.arange(6)).tolist() == [0, 1, 2, 4, 5, 6]
    assert VocabularyMapping.choose(counts, 7).d2t.tolist() == [0] * 7
    for size in (0, 8):
        with pytest.raises(UsageError, match="between 1 and 7"):
            VocabularyMapping.choose(counts, size)


#: Exports so many samples, and prints by how much the peak of its memory grew meanwhile, in bytes.
MEASURER = """
import resource, sys
from pathlib import Path
from statetap_producer.exporting.export import export
from statetap_producer.exporting.export_plan import ExportRequest, plan_export
from statetap_producer.exporting.formats import FORMATS

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def run(path, out):
    request = ExportRequest(Path(path), FORMATS[sys.argv[4]], Path(out))
    plan = plan_export(request, lambda *_: None)
    export(plan, num_processes=1, on_progress=lambda *_: None)

run(sys.argv[1], sys.argv[2] + "/few")
before = peak()
run(sys.argv[3], sys.argv[2] + "/many")
print(peak() - before)
"""


@pytest.mark.parametrize(("trainer", "norm"), [("speculators", "pre"), ("specforge", "post")])
def test_memory_is_flat(model: Path, tmp_path: Path, memory: Path, trainer: str, norm: str) -> None:
    """Ten times the samples take no more memory than their list: 400 bytes each at most."""
    few, many = 400, 4_000
    for number in (few, many):
        store_samples(
            tmp_path / str(number), spec_of(model, norm=norm), [3] * number, samples_a_shard=number
        )
    paths = [tmp_path / str(few), memory, tmp_path / str(many)]
    command = [sys.executable, "-c", MEASURER, *paths, trainer]
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=True
    )
    assert int(ended.stdout) < (many - few) * 400


def test_a_disk_that_holds_what_is_missing(
    export: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is not there yet has to fit, whichever file that is."""
    assert export().exit_code == 0
    out = tmp_path / "out"
    before = tree(out)
    (out / "export.json").rename(out / "export.unfinished.json")
    min(path for path in out.rglob("*") if path.suffix in {".ckpt", ".pt"}).unlink()
    largest = max(map(len, before.values()))
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil has it
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, largest))
    result = export()
    assert result.exit_code == 0, result.output
    assert tree(out) == before


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_same_samples_with_other_states(
    export: Exporter,
    model: Path,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_finished: bool,
) -> None:
    """Keys do not tell states apart: an export is of one source, or is refused."""
    assert export().exit_code == 0
    out = tmp_path / "out"
    if not is_finished:
        (out / "export.json").rename(out / "export.unfinished.json")
    before = tree(out)
    keys = [sample.key for sample in stored_samples(shards)]
    shutil.rmtree(shards)
    real = export_stage.post_states
    monkeypatch.setattr(export_stage, "post_states", lambda *given: real(*given) * 2)
    store_samples(shards, spec_of(model), LENGTHS)
    assert [sample.key for sample in stored_samples(shards)] == keys
    check_refused(export(), 2, "differs in its samples", "another folder")
    assert tree(out) == before


def test_proving_does_not_sum_all_tokens_for_each_file(
    export: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work on a file does not grow with the number of files."""
    assert export().exit_code == 0
    real, num_sums = SampleTable.num_tokens, 0

    def counted(table: SampleTable) -> object:
        nonlocal num_sums
        num_sums += 1
        return real.fget(table)  # type: ignore[attr-defined]

    monkeypatch.setattr(SampleTable, "num_tokens", property(counted))
    assert export().exit_code == 0
    assert 0 < num_sums < len(LENGTHS)
