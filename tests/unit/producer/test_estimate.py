"""What a run will take."""

import dataclasses
import io
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from statetap_contract import Prompt, StatetapError
from statetap_local.made_runs import made_run
from statetap_producer.planning import estimate as module
from statetap_producer.planning.estimate import estimate, refuse_small_disk
from statetap_producer.planning.plan_view import plan_json, plan_table
from statetap_producer.planning.prefill_rate import PrefillRate
from statetap_producer.run.run_folder import RunFolder

from .test_handshake import CAPTURE

_usage = namedtuple("_usage", "total used free")  # noqa: PYI024 - as shutil has it

RATE = PrefillRate(tokens_per_s=10.0, num_prompts=2, num_tokens=60, seconds=6.0)


def shown(table: Table) -> str:
    """The words on the screen, with single blanks between."""
    stream = io.StringIO()
    Console(file=stream, width=200).print(table)
    return " ".join(stream.getvalue().split())


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_prefill", lambda *_, **__: RATE)


def test_bytes_follow_from_tokens_and_widths(run: RunFolder) -> None:
    """Float32 with four slots of 64: a token takes 1,024 bytes, 9 more in a shard or dump."""
    record = run.read_record()
    needs = estimate(run, record, None, None)
    counts = record.counts
    assert needs.shard_bytes == counts.num_tokens * (4 * 64 * 4 + 4 + 1)
    assert needs.dump_bytes == 4096 + counts.max_tokens * (4 * 64 * 4 + 4)
    assert needs.server is None


def test_a_server_here_has_its_shared_memory_looked_at(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free bytes of its dump folder if that is on this machine, else none are claimed."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: _usage(0, 0, 12_345))
    record = run.read_record()
    here = dataclasses.replace(CAPTURE, host=socket.gethostname(), dumps=str(tmp_path))
    elsewhere = dataclasses.replace(here, host="another")
    gone = dataclasses.replace(here, dumps=str(tmp_path / "gone"))
    for capture, free_bytes in ((here, 12_345), (elsewhere, None), (gone, None)):
        server = estimate(run, record, "http://server", capture).server
        assert server is not None
        assert (server.free_bytes, server.host, server.rate) == (free_bytes, capture.host, RATE)


def test_the_rate_is_not_that_of_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sorted plan, what a slow server gets to see is a fair part of it."""
    asked: list[int] = []

    def measure(url: str, prompts: list[Prompt], vocab_size: int) -> PrefillRate:
        del url, vocab_size
        asked.extend(prompt.num_tokens for prompt in prompts)
        return RATE

    monkeypatch.setattr(module, "measure_prefill", measure)
    run = made_run(tmp_path / "demo", *range(1, 601))
    estimate(run, run.read_record(), "http://server", CAPTURE)
    assert len(asked) == 512
    assert 0.8 < sum(asked[:64]) / 64 / 300 < 1.2


def test_a_disk_that_is_just_large_enough_is_taken(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is the bytes of all samples, to the byte."""
    record = run.read_record()
    monkeypatch.setattr("shutil.disk_usage", lambda _: _usage(0, 0, record.shard_bytes))
    refuse_small_disk(run, record)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _usage(0, 0, record.shard_bytes - 1))
    with pytest.raises(StatetapError, match="--elsewhere") as caught:
        refuse_small_disk(run, record)
    assert (caught.value.kind, caught.value.exit_code) == ("disk-too-small", 3)


def test_the_table_says_what_it_takes(run: RunFolder) -> None:
    """Time from the measured rate, room for so many prompts, bars by powers of two."""
    record = run.read_record()
    record = dataclasses.replace(
        record, counts=dataclasses.replace(record.counts, num_tokens=720_000, histogram=(0, 5, 10))
    )
    capture = dataclasses.replace(CAPTURE, host="node-3", dumps="/dev/shm/dumps")
    needs = estimate(run, record, "http://server", capture)
    words = shown(plan_table(record, needs))
    assert "20 h on one such server, which computed 2 prompts at 10 tokens/s just now" in words
    assert "for each prompt in flight, in /dev/shm/dumps on node-3" in words
    assert f"2 to 3 {'█' * 12} 5" in words
    assert f"4 to 7 {'█' * 24} 10" in words
    assert "1 to 1" not in words
    assert needs.server is not None
    roomy = dataclasses.replace(
        needs, server=dataclasses.replace(needs.server, free_bytes=7 * needs.dump_bytes)
    )
    assert "room for 7 such prompts" in shown(plan_table(record, roomy))
    bare = estimate(run, record, None, None)
    assert "time unknown; give --server" in shown(plan_table(record, bare))


def test_scripts_get_all_of_it(run: RunFolder) -> None:
    """The record's own object and what it takes, in bytes and seconds."""
    record = run.read_record()
    value = plan_json(record, estimate(run, record, "http://server", CAPTURE))
    needs = value.pop("estimate")
    assert value == record.to_json()
    assert isinstance(needs, dict)
    assert needs["shard_bytes"] == record.shard_bytes
    assert needs["server"]["seconds"] == record.counts.num_tokens / 10
    assert needs["server"]["prefill"] == dataclasses.asdict(RATE)
