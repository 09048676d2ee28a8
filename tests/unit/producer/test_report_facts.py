"""What a report says, against runs of which everything is known."""

import dataclasses
import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from statetap_contract import StatetapError
from statetap_contract.announcement import pack_samples
from statetap_local.services import LocalRedis
from statetap_producer.queueing.broker import Broker
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.reporting.gather import gather
from statetap_producer.reporting.report_facts import DroppedKind, RunReport, TriedKind, report_json
from statetap_producer.reporting.row_norms import row_norms
from statetap_producer.reporting.stored_samples import stored_samples
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import LeftOut
from statetap_worker.announcing.notice_board import NoticeBoard, Speaker

from .conftest import give_up, prompts_of
from .report_runs import (
    ROW,
    SPEC,
    START_S,
    TOKEN_BYTES,
    Moment,
    change_record,
    fail,
    planned_run,
    prompt,
    put,
)


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    return Moment(monkeypatch)


@pytest.fixture
def five(tmp_path: Path) -> RunFolder:
    """Prompts of 4, 10, 10, 20 and 30 tokens, with loss on 2, 10, 0, 1 and 15 of them."""
    return planned_run(
        tmp_path / "five",
        (
            prompt(0, 4, (1, 3)),
            prompt(1, 10, (0, 10)),
            prompt(2, 10, (3, 4)),
            prompt(3, 20, (5, 6)),
            prompt(4, 30, (0, 5), (10, 20)),
        ),
    )


def report_of(run: RunFolder, num_samples: int = 8, seed: int = 0) -> RunReport:
    return gather(run, None, num_samples=num_samples, seed=seed, on_progress=lambda _: None)


def test_a_run_under_way(five: RunFolder, moment: Moment) -> None:
    """Counts, bytes and times of three samples stored, one given up and one pending."""
    rows = prompts_of(five)
    put(five, rows[0])
    moment.second = 10
    put(five, rows[1])
    moment.second = 70
    put(five, rows[2], worker="w-01", host="gpu-2")
    give_up(five, rows[3].key, "too-long-for-server")
    report = report_of(five)
    numbers = report.numbers
    assert (numbers.planned, numbers.stored, numbers.dead, numbers.pending) == (5, 3, 1, 1)
    holdings = report.holdings
    assert (holdings.num_samples, holdings.num_tokens) == (3, 24)
    assert holdings.num_bytes == 24 * TOKEN_BYTES
    assert holdings.first_ns == START_S * 1_000_000_000
    assert holdings.seconds == 70
    assert report.times is not None
    assert report.times.interval_s == 1
    assert {k: v for k, v in enumerate(report.times.tokens) if v} == {0: 4, 10: 10, 70: 10}
    assert [(s.name, s.num_samples, s.num_tokens, s.tokens_per_s) for s in report.servers] == [
        ("gpu-1", 2, 14, 1.0),
        ("gpu-2", 1, 10, None),
    ]
    assert [source.name for source in report.workers] == ["w-00", "w-01"]
    assert {k: v for k, v in enumerate(report.workers[1].tokens) if v} == {70: 10}
    assert [(shard.name, shard.num_samples, shard.num_tokens) for shard in report.shards] == [
        ("w-00-00001.h5", 2, 14),
        ("w-01-00001.h5", 1, 10),
    ]
    assert (report.faults, report.unseen) == ((), ())
    json.dumps(report_json(report), allow_nan=False)


def test_a_host_has_the_samples_of_all_its_shards(five: RunFolder, moment: Moment) -> None:
    """Wherever these stand among the shards of others, with their own times."""
    rows = prompts_of(five)
    for number, host in enumerate(("gpu-1", "gpu-2", "gpu-1", "gpu-2")):
        moment.second = 10 * number
        put(five, rows[number], worker=f"w-{number:02d}", host=host)
    report = report_of(five)
    assert [(s.name, s.num_samples, s.num_tokens, s.tokens_per_s) for s in report.servers] == [
        ("gpu-2", 2, 30, 1.0),
        ("gpu-1", 2, 14, 0.5),
    ]
    assert [{k: v for k, v in enumerate(each.tokens) if v} for each in report.servers] == [
        {10: 10, 30: 20},
        {0: 4, 20: 10},
    ]


def test_lengths_and_masks(five: RunFolder) -> None:
    """Each prompt is in the bin that its tokens and its loss put it in."""
    rows = prompts_of(five)
    put(five, rows[1])
    report = report_of(five)
    lengths = report.lengths
    assert (lengths.step, lengths.is_open) == (1, False)
    assert {k + 1: v for k, v in enumerate(lengths.planned) if v} == {4: 1, 10: 2, 20: 1, 30: 1}
    assert {k + 1: v for k, v in enumerate(lengths.stored) if v} == {10: 1}
    assert lengths.quantiles == (10, 10, 10, 10, 10)
    # 50%, 100%, 10%, 5% and 50%: bins end at the share that they are named after.
    assert {k: v for k, v in enumerate(report.mask.bins) if v} == {0: 1, 1: 1, 9: 2, 19: 1}
    assert (report.mask.num_empty, report.mask.num_full) == (0, 1)
    assert (report.mask.num_loss_tokens, report.mask.num_tokens) == (2 + 10 + 1 + 1 + 15, 74)


def test_one_long_prompt_does_not_press_the_others_together(tmp_path: Path) -> None:
    """It is counted in a last bin without an end."""
    run = planned_run(
        tmp_path / "long", (prompt(n, 10_000 if n == 0 else 40 + n % 40) for n in range(200))
    )
    lengths = report_of(run).lengths
    assert (lengths.step, lengths.is_open) == (2, True)
    assert sum(lengths.planned) == 200
    assert lengths.planned[-1] == 1
    assert len(lengths.planned) <= 41


def test_norms_are_those_that_were_stored(five: RunFolder) -> None:
    """Medians to the last digit, and the rows that stand out, with key, place and token."""
    rows = prompts_of(five)
    states = np.tile(np.array(ROW, np.float32), (30, 1))
    states[0, :4] = 300, 400, 0, 0
    states[7, 4:8] = 0, 0, 0.6, 0.8
    put(five, rows[4], states)
    put(five, rows[3])
    norms = report_of(five).norms
    assert norms is not None
    assert (norms.num_samples, norms.num_rows) == (2, 50)
    by_slot = {slot.slot: slot for slot in norms.slots}
    assert [by_slot[name].quantiles[3] for name in ("h1", "h3", "last")] == [5, 10, 1]
    assert (by_slot["h1"].quantiles[0], by_slot["h1"].quantiles[6]) == (5, 500)
    h1, h3, last = norms.slots
    assert (h1.num_large, h1.num_small, h1.num_first_rows) == (1, 0, 1)
    assert (h3.num_large, h3.num_small, h3.num_first_rows) == (0, 1, 0)
    assert (last.num_large, last.num_small) == (0, 0)
    first, small = norms.outliers
    assert (first.slot, first.key, first.row, first.token_id) == ("h1", rows[4].key, 0, 4)
    assert (first.norm, first.factor) == (500, 100)
    assert (small.slot, small.row, small.token_id) == ("h3", 7, 7)
    assert small.factor == pytest.approx(0.1)
    assert norms.num_bad_rows == 0


def test_rows_that_no_model_computed_are_named(five: RunFolder) -> None:
    """Not a number, infinity and a slot of zeros are no outliers and spoil no quantile."""
    row = prompts_of(five)[4]
    states = np.tile(np.array(ROW, np.float32), (30, 1))
    states[3, 2] = np.nan
    states[5, 5] = np.inf
    states[9, 8:] = 0
    put(five, row, states)
    report = report_of(five)
    assert report.norms is not None
    assert report.norms.bad_rows == (
        f"slot h1 of row 3 holds NaN or infinity of sample {row.key}",
        f"slot h3 of row 5 holds NaN or infinity of sample {row.key}",
        f"slot last of row 9 is all zero of sample {row.key}",
    )
    assert [slot.quantiles[3] for slot in report.norms.slots] == [5, 10, 1]
    assert [(row.slot, row.row) for row in report.norms.outliers] == [("last", 9)]
    json.dumps(report_json(report), allow_nan=False)


def test_a_slot_of_nothing_but_zeros_is_told(five: RunFolder) -> None:
    """As of a layer that was never captured: each row is named, nothing is divided by zero."""
    row = prompts_of(five)[0]
    states = np.tile(np.array(ROW, np.float32), (4, 1))
    states[:, 4:8] = 0
    put(five, row, states)
    report = report_of(five)
    assert report.norms is not None
    assert report.norms.num_bad_rows == 4
    assert set(report.norms.slots[1].quantiles) == {0}
    json.dumps(report_json(report), allow_nan=False)


def test_the_same_seed_reads_the_same_samples(tmp_path: Path) -> None:
    """Norms tell which samples were read: of twenty all different ones, the same three."""
    run = planned_run(tmp_path / "twenty", (prompt(n, 4) for n in range(20)))
    for number, row in enumerate(prompts_of(run), 1):
        put(run, row, np.full((4, 12), number, np.float32))
    first, again, other = (report_of(run, 3, seed).norms for seed in (1, 1, 2))
    assert first is not None
    assert first == again
    assert first.num_samples == 3
    assert other is not None
    assert other.slots != first.slots


def test_reading_ends_when_enough_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are bounded whatever samples were asked for, and the report says how many there were."""
    run = planned_run(tmp_path / "many", (prompt(n, 10) for n in range(20)))
    for row in prompts_of(run):
        put(run, row)
    monkeypatch.setattr("statetap_producer.reporting.row_norms._MOST_ROWS", 45)
    norms = report_of(run, 20).norms
    assert norms is not None
    assert (norms.num_samples, norms.num_rows) == (5, 50)


def test_failures_by_reason(five: RunFolder) -> None:
    """Tries, and what became of their prompts: stored after all, dead, or still to come."""
    rows = prompts_of(five)
    put(five, rows[0])
    for key in (rows[0].key, rows[0].key, rows[1].key, rows[2].key):
        fail(five, key, "mismatch")
    fail(five, rows[2].key, "server-lost", "http://b:30000")
    give_up(five, rows[1].key, "mismatch")
    (five.tries / "w-01.jsonl").write_text('{"key": \n[]\n')
    report = report_of(five)
    assert report.failures.tried == (
        TriedKind("mismatch", 4, num_stored=1, num_dead=1, num_pending=1),
        TriedKind("server-lost", 1, num_stored=0, num_dead=0, num_pending=1),
    )
    assert report.failures.tries_by_server == (("http://a:30000", 4), ("http://b:30000", 1))
    assert [(dead.kind, dead.num_letters) for dead in report.failures.dead] == [("mismatch", 1)]
    assert report.failures.dead[0].examples[0].key == rows[1].key
    assert report.failures.num_unreadable == 2
    assert report.faults == ("2 lines in tries cannot be read",)


def test_dropped_rows_have_examples(five: RunFolder) -> None:
    """Up to three a reason from the file; where that is gone, the first one from the record."""
    reasons = (
        LeftOut("row-not-json", 4, "chats.jsonl", 2, "the row is not JSON"),
        LeftOut("too-long", 1, "chats.jsonl", 9, "it has 9,000 tokens"),
    )
    change_record(five, num_duplicates=2, left_out=reasons)
    faults = [RowFault("chats.jsonl", line, "row-not-json", "no JSON") for line in (2, 3, 4, 5)]
    faults.append(RowFault("chats.jsonl", 9, "too-long", "it has 9,000 tokens"))
    lines = [json.dumps(dataclasses.asdict(fault)) for fault in faults]
    five.left_out_file.write_text("\n".join(["{torn", *lines]) + "\n")
    report = report_of(five)
    assert report.dropped == (
        DroppedKind("row-not-json", 4, tuple(faults[:3])),
        DroppedKind("too-long", 1, (faults[4],)),
    )
    assert report.record.counts.num_duplicates == 2
    five.left_out_file.unlink()
    assert [kind.examples[0].line for kind in report_of(five).dropped] == [2, 9]


def test_a_run_with_nothing_stored(five: RunFolder) -> None:
    """All that is planned is told, and what cannot be known is left out."""
    report = report_of(five)
    assert (report.numbers.pending, report.holdings.num_samples) == (5, 0)
    assert (report.times, report.norms, report.servers, report.shards) == (None, None, (), ())
    assert report.lengths.quantiles is None
    assert report.unseen == (
        "Redis was not asked: what workers store on other disks is not counted",
    )


def test_a_damaged_shard_hides_no_other(five: RunFolder) -> None:
    """One that is no shard, one of another spec and one that is cut are named; the rest is told."""
    first, second = prompts_of(five)[:2]
    put(five, first)
    put(five, second, worker="w-01")
    (five.shards / "w-02-00001.h5").write_bytes(b"not a shard")
    cut = five.shards / "w-01-00001.h5"
    with cut.open("r+b") as file:
        file.truncate(2 << 20)
    other = planned_run(
        five.path.parent / "other", [prompt(0, 4)], dataclasses.replace(SPEC, revision="r2")
    )
    put(other, prompts_of(other)[0], worker="w-03")
    (five.shards / "w-03-00001.h5").write_bytes(other.shard_files()[0].read_bytes())
    report = report_of(five)
    assert report.holdings.num_samples == 1
    assert [shard.name for shard in report.shards] == ["w-00-00001.h5"]
    not_planned = "1 sample in shards: not planned"
    assert [fault.split()[0] for fault in report.faults if fault != not_planned] == [
        f"shards/w-0{number}-00001.h5" for number in (1, 2, 3)
    ]
    assert str(five.path) not in "".join(report.faults)


def test_a_damaged_sample_is_named_and_passed_over(five: RunFolder) -> None:
    """A flipped byte of states fails its checksum; the norms are those of the others."""
    first, second = prompts_of(five)[:2]
    put(five, first)
    put(five, second, worker="w-01")
    samples = stored_samples(five.shard_files(), SPEC)
    layout = samples.table.layouts[1]
    with samples.table.shards[1].open("r+b") as file:
        file.seek(layout.states_offset + 5)
        file.write(b"\xff")
    norms, faults = row_norms(samples.table, 8, 0, lambda _: None)
    assert norms is not None
    assert (norms.num_samples, norms.num_rows) == (1, 4)
    (fault,) = faults
    assert second.key in fault
    assert "checksum" in fault


def test_a_sample_that_stands_in_two_shards_counts_once(five: RunFolder) -> None:
    """And the report says that there is another."""
    first = prompts_of(five)[0]
    put(five, first)
    copy = five.shards / "w-09-00001.h5"
    copy.write_bytes(five.shard_files()[0].read_bytes())
    report = report_of(five)
    assert (report.holdings.num_samples, report.holdings.num_repeated) == (1, 1)
    assert [shard.num_samples for shard in report.shards] == [1, 0]


def test_a_damaged_ledger_is_an_error_that_names_the_line(five: RunFolder) -> None:
    """As for ``status``: without it nobody knows what is dead."""
    five.ledger.mkdir()
    (five.ledger / "w-00.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(StatetapError) as caught:
        report_of(five)
    assert caught.value.kind == "ledger-damaged"
    assert "w-00.jsonl:1" in caught.value.message


def test_samples_on_other_disks_count_when_they_are_announced(
    five: RunFolder, redis_server: LocalRedis
) -> None:
    """As stored, and it is said what is not known of them; without Redis that they are missed."""
    rows = prompts_of(five)
    put(five, rows[0])
    with redis_server.client() as client:
        board = NoticeBoard(client, "place", Speaker("far", "gpu-9", "/runs"))
        blank = board.blank("e1")
        assert blank is not None
        samples = pack_samples(rows[4].key, array("I", [30]))
        board.add(five.name, blank, [samples], [], 1, is_complete=True)
    broker = Broker(redis_server.url)
    report = gather(five, broker, num_samples=8, seed=0, on_progress=lambda _: None)
    assert (report.numbers.stored, report.numbers.stored_tokens) == (2, 34)
    assert report.holdings.num_samples == 1
    (sentence,) = report.unseen
    assert sentence.startswith("1 sample stored on disks that cannot be seen from here:")
    alone = report_of(five)
    assert alone.numbers.stored == 1
    (sentence,) = alone.unseen
    assert sentence.startswith("Worker far@gpu-9:/runs holds samples or dead letters")
