"""The canary: which prompt, how far is too far, and what is waited for."""

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from statetap_contract import (
    KEY_FORM,
    Job,
    MissingError,
    Receipt,
    RejectError,
    StopError,
    TransientError,
    dump_name,
)
from statetap_worker.asking.server import Server
from statetap_worker.proving.canary import Canary, canary_prompt
from statetap_worker.settings import WorkerSettings

from .conftest import CAPTURE, JOB, SPEC, DumpBuilder, good_states


class FakeServer(Server):
    """Computes the same states every time, after it has failed as it was told."""

    def __init__(self, dumps: DumpBuilder) -> None:
        super().__init__("http://a-server")
        self.dumps = dumps
        self.states = good_states(32)
        self.failures: list[Exception] = []
        #: What is wrong with its next dumps.
        self.faults: list[dict[str, Any]] = []
        self.asked: list[Job] = []
        #: Dumps that were there when it was asked.
        self.found: list[str] = []

    def capture(self, job: Job, timeout_s: float = 900.0) -> Receipt:
        # With two such waits and an answer of 900 s the message must not be given to another.
        assert timeout_s <= 300
        self.asked.append(job)
        self.found += [file.name for file in self.dumps.folder.iterdir()]
        if self.failures:
            raise self.failures.pop(0)
        fault = self.faults.pop(0) if self.faults else {}
        return self.dumps.write(job=job, states=self.states, **fault)


@pytest.fixture
def server(dumps: DumpBuilder) -> FakeServer:
    return FakeServer(dumps)


@pytest.fixture
def settings(dumps: DumpBuilder, tmp_path: Path) -> WorkerSettings:
    runs = tmp_path / "runs"
    runs.mkdir()
    return WorkerSettings("http://a-server", "redis://x", dumps.folder, runs, "w", 2, 1 << 30)


@pytest.fixture
def canary(settings: WorkerSettings) -> Canary:
    return Canary(settings, CAPTURE, "w-00")


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits; the seconds are written down."""
    seconds: list[float] = []
    monkeypatch.setattr("statetap_worker.proving.canary.time.sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(
    ("vocab_size", "context_length", "ids"),
    [
        (512, 4096, list(range(64, 320, 8))),
        (163_840, 4096, list(range(20_480, 102_400, 2_560))),
        (512, 5, [64, 128, 192, 256]),
        (32, 4096, list(range(4, 20))),
        (1, 2, [0]),
    ],
)
def test_the_prompt_lies_in_the_middle_of_the_vocabulary(
    vocab_size: int, context_length: int, ids: list[int]
) -> None:
    """Up to 32 different ids between an eighth and five eighths of it; the context has room."""
    capture = replace(CAPTURE, vocab_size=vocab_size, context_length=context_length)
    assert canary_prompt(capture).token_ids == array("i", ids)


def as_bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Bit patterns of numbers that bfloat16 has exactly."""
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2")


def test_the_first_states_are_recorded_and_the_same_ones_pass(
    canary: Canary, server: FakeServer, settings: WorkerSettings
) -> None:
    """Nothing stays in the dump folder."""
    canary.wait_until_reproduced(server, 10)
    canary.wait_until_reproduced(server, 10)
    assert list(settings.dumps.iterdir()) == []
    assert (settings.runs / ".canaries" / dump_name(SPEC.digest)).is_file()


def moved(scale: float) -> npt.NDArray[np.uint16]:
    """``good_states`` with one slot, h3, scaled: its relative row errors are ``scale``."""
    values = (good_states(32).astype("<u4") << 16).view("<f4").copy()
    values[:, 8:16] *= 1 + scale
    return as_bfloat16(values)


def test_other_states_are_a_drift(
    canary: Canary, server: FakeServer, settings: WorkerSettings
) -> None:
    """The sentence names slot, figure, bound, record, its origin, and the way out."""
    canary.wait_until_reproduced(server, 10)
    server.states = moved(0.25)
    with pytest.raises(StopError) as caught:
        canary.wait_until_reproduced(server, 10)
    assert caught.value.kind == "canary-drift"
    assert caught.value.exit_code == 3
    record = settings.runs / ".canaries" / dump_name(SPEC.digest)
    for part in ("http://a-server", "slot h3", "0.25", str(record), "server-host", "0.5.23"):
        assert part in caught.value.message
    assert list(settings.dumps.iterdir()) == []
    record.unlink()
    canary.wait_until_reproduced(server, 10)


def test_rounding_is_no_drift(canary: Canary, server: FakeServer) -> None:
    """A bfloat16 that is off by one in its last place, in all elements: 2^-8 to 2^-7."""
    canary.wait_until_reproduced(server, 10)
    server.states = good_states(32) + np.uint16(1)
    canary.wait_until_reproduced(server, 10)


def test_half_precision_has_a_bound_of_its_own(canary: Canary, server: FakeServer) -> None:
    """16 unit roundoffs of bfloat16, 0.0625: above what batches do, below other weights."""
    canary.wait_until_reproduced(server, 10)
    server.states = moved(0.05)
    canary.wait_until_reproduced(server, 10)
    server.states = moved(0.08)
    with pytest.raises(StopError, match=r"off by 0\.07"):
        canary.wait_until_reproduced(server, 10)


def test_few_rows_may_be_far_off(canary: Canary, server: FakeServer) -> None:
    """A router of experts that tips over for some tokens is no drift."""
    canary.wait_until_reproduced(server, 10)
    server.states = good_states(32)
    server.states[:15, 8:16] = moved(9)[:15, 8:16]
    canary.wait_until_reproduced(server, 10)


def test_a_server_that_is_not_ready_is_waited_for(
    canary: Canary, server: FakeServer, slept: list[float]
) -> None:
    """Whatever the reason, as long as it asks for."""
    kinds = ("server-unreachable", "server-timeout", "server-error", "key-in-flight")
    server.failures = [TransientError(kind, "no") for kind in kinds]
    server.failures += [TransientError("dumps-full", "no", wait_s) for wait_s in (7.0, 1e6)]
    canary.wait_until_reproduced(server, 10)
    assert slept == [1, 1, 1, 1, 7, 60]


def test_a_server_that_stays_away_is_given_up(canary: Canary, server: FakeServer) -> None:
    """After the time that a handshake may take."""
    server.failures = [TransientError("server-busy", "full")] * 2
    with pytest.raises(MissingError, match="full") as caught:
        canary.wait_until_reproduced(server, 0)
    assert caught.value.kind == "server-not-ready"


def test_a_single_mismatch_is_asked_again(canary: Canary, server: FakeServer) -> None:
    """Twice, then the server is right."""
    server.faults = [{"checksum": "0" * 16}, {"spec_digest": "0" * 32}]
    canary.wait_until_reproduced(server, 10)
    assert len(server.asked) == 3


def test_a_server_of_wrong_receipts_gets_no_work(
    canary: Canary, server: FakeServer, settings: WorkerSettings
) -> None:
    """After three of them, with the last reason; nothing is recorded."""
    server.states[3] = 0
    with pytest.raises(StopError, match=r"http://a-server .* 3 times: .* all zero") as caught:
        canary.wait_until_reproduced(server, 10)
    assert caught.value.kind == "canary-mismatch"
    assert len(server.asked) == 3
    assert not (settings.runs / ".canaries").exists()
    assert list(settings.dumps.iterdir()) == []


def test_a_dump_folder_that_is_another_is_noticed(
    settings: WorkerSettings, server: FakeServer, tmp_path: Path
) -> None:
    """The commonest mistake of a first installation: seconds, not ten minutes."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    canary = Canary(replace(settings, dumps=elsewhere), CAPTURE, "w-00")
    with pytest.raises(StopError, match="same folder") as caught:
        canary.wait_until_reproduced(server, 10)
    assert caught.value.kind == "canary-mismatch"


def test_a_refused_canary_stops_the_worker(canary: Canary, server: FakeServer) -> None:
    """Such a server would refuse everything."""
    server.failures = [RejectError("request-refused", "the server captures another spec")]
    with pytest.raises(StopError, match="another spec") as caught:
        canary.wait_until_reproduced(server, 10)
    assert caught.value.kind == "canary-refused"


def test_a_dump_that_was_left_is_not_believed(canary: Canary, server: FakeServer) -> None:
    """A server hands out the dump that is there: one of before an outage would hide a drift."""
    canary.wait_until_reproduced(server, 10)
    server.dumps.write(job=server.asked[0], states=good_states(32))
    canary.wait_until_reproduced(server, 10)
    assert len(server.asked) == 2
    assert server.found == []


def test_a_dump_of_a_killed_process_is_removed_by_its_successor(
    settings: WorkerSettings, dumps: DumpBuilder, server: FakeServer
) -> None:
    """At its start; those of others, and of samples, stay."""
    for process in ("w-00", "w-01"):
        Canary(settings, CAPTURE, process).wait_until_reproduced(server, 10)
    for job in (JOB, *server.asked):
        dumps.write(job=job, states=good_states(job.prompt.num_tokens))
    Canary(settings, CAPTURE, "w-00")
    left = {file.name for file in settings.dumps.iterdir()}
    assert left == {dump_name(JOB.key), dump_name(server.asked[1].key)}


def test_each_process_has_a_request_id_of_its_own(
    settings: WorkerSettings, server: FakeServer
) -> None:
    """Of the form of a sample key; other for another process, folder of runs, or spec."""
    other_runs = settings.runs.with_name("more")
    other_runs.mkdir()
    for one in (settings, replace(settings, runs=other_runs)):
        for process in ("w-00", "w-01", "w-parent"):
            Canary(one, CAPTURE, process).wait_until_reproduced(server, 10)
    keys = [job.key for job in server.asked]
    assert len(set(keys)) == len(keys) == 6
    assert all(KEY_FORM.fullmatch(key) for key in keys)
    assert Job.of("r", SPEC.digest, server.asked[0].prompt).key not in keys
