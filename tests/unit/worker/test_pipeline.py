"""From a job to a stored sample, with a stand-in server and real shards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from statetap_contract import (
    FIELD,
    MismatchError,
    Receipt,
    StopError,
)
from statetap_store import Provenance, RunScanner, ShardReader, ShardSet
from statetap_worker.asking.exchange import Peer, WholeAnswer
from statetap_worker.asking.server import Server
from statetap_worker.failing.recall import Recall
from statetap_worker.pipeline import Pipeline

from .conftest import CAPTURE, JOB, SPEC, DumpBuilder, good_states

RECALL = Recall(lambda: None)


class FakePeer(Peer):
    """Gives the same kind of answer to whatever it is asked."""

    def __init__(self, respond: Callable[[], WholeAnswer]) -> None:
        super().__init__("http://s")
        self.respond = respond

    def exchange(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float
    ) -> WholeAnswer:
        del method, path, body, timeout_s
        return self.respond()


class Bench:
    """A pipeline over a server that answers as told."""

    def __init__(self, tmp_path: Path, dumps: DumpBuilder, answer: Callable[[], Receipt]) -> None:
        self.num_asked = 0
        self.shards_folder = tmp_path / "shards"
        self.shards_folder.mkdir()
        self.shards = ShardSet(
            self.shards_folder,
            "w-00",
            1 << 20,
            SPEC,
            Provenance("a-run", "w-00", "h", "0.5.23", "0.1.0", (0, 2)),
        )

        def respond() -> WholeAnswer:
            self.num_asked += 1
            body = json.dumps({"meta_info": {FIELD: [answer().to_json()]}})
            return WholeAnswer(200, body.encode())

        server = Server("http://s", FakePeer(respond))
        self.pipeline = Pipeline(server, CAPTURE, dumps.folder, lambda _run: self.shards, RECALL)

    def num_stored(self) -> int:
        scanner = RunScanner(self.shards_folder)
        scanner.refresh()
        return int(scanner.num_samples)


def test_a_prompt_becomes_a_sample_and_its_dump_goes(
    tmp_path: Path, dumps: DumpBuilder, dump_path: Path
) -> None:
    """Ids, mask and states are stored bit for bit, with the server's checksum."""
    bench = Bench(tmp_path, dumps, dumps.write)
    outcome = bench.pipeline.extract(JOB)
    assert (outcome.key, outcome.num_tokens, outcome.is_new) == (JOB.key, 5, True)
    assert not dump_path.exists()
    bench.shards.close()
    with ShardReader(next(bench.shards_folder.glob("*.h5"))) as reader:
        (entry,) = reader.samples
        sample = reader.read(entry)
    assert sample.key == JOB.key
    assert sample.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert sample.loss_mask.tolist() == [0, 0, 1, 1, 1]
    assert sample.states.tobytes() == good_states().tobytes()


def test_a_second_delivery_is_a_no_op(tmp_path: Path, dumps: DumpBuilder, dump_path: Path) -> None:
    """The server is not even asked, and a dump that was left behind goes."""
    bench = Bench(tmp_path, dumps, dumps.write)
    bench.pipeline.extract(JOB)
    dumps.write()
    assert bench.pipeline.extract(JOB).is_new is False
    assert (bench.num_asked, bench.num_stored()) == (1, 1)
    assert not dump_path.exists()


def test_a_mismatch_stores_nothing_and_frees_the_key(
    tmp_path: Path, dumps: DumpBuilder, dump_path: Path
) -> None:
    """Were the dump left, the server would answer the retry with the same wrong one."""
    bench = Bench(tmp_path, dumps, lambda: dumps.write(token_ids=[5, 7, 8, 9, 9]))
    with pytest.raises(MismatchError):
        bench.pipeline.extract(JOB)
    assert not dump_path.exists()
    assert bench.num_stored() == 0


def test_states_that_fail_their_proof_are_stored_nowhere(
    tmp_path: Path, dumps: DumpBuilder, dump_path: Path
) -> None:
    """They are on their way to the disk by then; the next sample takes their place."""
    bad, good = good_states(), good_states()
    bad[3, 17] = 0x7FC0
    answers = iter([bad, good])
    bench = Bench(tmp_path, dumps, lambda: dumps.write(states=next(answers)))
    with pytest.raises(MismatchError) as caught:
        bench.pipeline.extract(JOB)
    assert caught.value.kind == "states-not-finite"
    assert not dump_path.exists()
    assert bench.num_stored() == 0
    assert bench.pipeline.extract(JOB).is_new
    bench.shards.close()
    with ShardReader(next(bench.shards_folder.glob("*.h5"))) as reader:
        (entry,) = reader.samples
        assert entry.token_offset == 0
        assert reader.read(entry).states.tobytes() == good.tobytes()


def test_a_job_of_another_spec_stops_the_worker(tmp_path: Path, dumps: DumpBuilder) -> None:
    """It came through a wrong queue; nothing is asked of the server."""
    bench = Bench(tmp_path, dumps, dumps.write)
    with pytest.raises(StopError) as caught:
        bench.pipeline.extract(replace(JOB, spec_digest="0" * 32))
    assert caught.value.kind == "spec-differs"
    assert bench.num_asked == 0
