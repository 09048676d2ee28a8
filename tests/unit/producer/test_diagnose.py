"""Findings from logs: two of real servers whose traffic is known, and logs made to measure."""

import io
import itertools
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from statetap_contract import MissingError, StatetapError, UsageError
from statetap_producer.diagnosing.diagnose import Findings, Kind, diagnose, diagnose_log
from statetap_producer.diagnosing.diagnose_view import findings_json, findings_view
from statetap_producer.diagnosing.sglang_log import (
    LogRecord,
    RequestFinished,
    RequestReceived,
    log_lines,
    parse_line,
)

DATA = Path(__file__).parent / "data"
#: One scheduler, chunks of 256 tokens, mixed chunks, a pool of 1,600 tokens, requests logged as
#: text. Of the request lines but the first, the fields that nobody set were cut out.
TEXT_LOG = DATA / "sglang_0_5_23.log"
#: Two schedulers, chunks of 256 tokens, no mixed chunks; some requests, logged as JSON.
JSON_LOG = DATA / "sglang_0_5_23_dp_json.log"

START = "server_args={'chunked_prefill_size': 256, 'page_size': 1, 'enable_mixed_chunk': False}"
READY = "The server is fired up and ready to roll!"


def findings_of(*messages: str, start: str = START) -> Findings:
    """Findings of a log whose messages all have the same time; the server has warmed up."""
    lines = [start, READY, *messages]
    return diagnose(records_of(f"[2026-11-30 03:25:08] {line}" for line in lines))


def records_of(lines: Iterator[str]) -> Iterator[LogRecord]:
    return (record for line in lines if (record := parse_line(line)) is not None)


def prefill(
    num_tokens: int, *, seqs: int = 1, cached: int = 0, running: int = 0, pending: int = 0
) -> str:
    return (
        f"Prefill batch, #new-seq: {seqs}, #new-token: {num_tokens}, #cached-token: {cached}, "
        f"token usage: 0.10, #running-req: {running}, #queue-req: 0, #pending-token: {pending}, "
    )


def read(path: Path) -> Findings:
    return diagnose_log(path, lambda _: None)


def test_a_real_server_whose_traffic_is_known() -> None:
    """Counts from the list of what was sent, not from the log.

    Sent: warm-up 8 tokens, a health check; alone 40, 50, 60, 100; 120 of which 100 were known; the
    100 again; 600; 256; 257; two health checks; 4 times 30 at once; 10 generating 400, beside it
    70 and 300; 15, aborted; 6 times 60, each beside those before, 3 of them retracted after 172,
    225 and 320 tokens of their answers; 25, dropped; 105.
    """
    findings = read(TEXT_LOG)
    again = (60 + 172, 60 + 225, 60 + 320)
    assert findings.total.num_tokens == (
        8 + 1 + 40 + 50 + 60 + 100 + 20 + 1 + 600 + 256 + 257 + 2 + 4 * 30
        + 10 + 70 + 300 + 15 + 6 * 60 + sum(again) + 25 + 105
    )  # fmt: skip
    # 600 in 3, 257 in 2, 300 in 2 beside one, 285 and 380 in 2 each beside two.
    assert findings.total.num_batches == 2 + 4 + 2 + 3 + 1 + 2 + 2 + 1 + 2 + 2 + 1 + 6 + 5 + 2
    assert findings.total.batches_by_kind == {
        Kind.SEVERAL_PROMPTS: 1,
        Kind.CHUNKED: 3 + 2 + 2 + 2 + 2,
        Kind.CACHED: 2,
        Kind.BESIDE_DECODING: 1 + 2 + 5 + 5,
        Kind.NO_PROMPT: 4,
    }
    assert findings.total.tokens_by_kind == {
        Kind.SEVERAL_PROMPTS: 4 * 30,
        Kind.CHUNKED: 600 + 257 + 300 + again[1] + again[2],
        Kind.CACHED: 20 + 1,
        Kind.BESIDE_DECODING: 70 + 300 + 5 * 60 + sum(again),
        Kind.NO_PROMPT: 8 + 3,
    }
    clean = (40, 50, 60, 100, 256, 10, 15, 60, 25, 105)
    assert findings.total.num_batches - findings.total.num_wrong_batches == len(clean)
    assert findings.total.num_tokens - findings.total.num_wrong_tokens == sum(clean)
    assert findings.num_cached_tokens == 100 + 99
    assert findings.num_decoding == 1 + 2 * 1 + (1 + 2 + 3 + 4 + 5) + 5 * 2
    assert findings.num_retracted_requests == len(again)
    assert findings.num_aborted_requests == 2
    assert (findings.chunk_tokens, findings.is_mixed) == (256, True)
    assert (findings.num_unknown_chunk, findings.num_incomplete) == (0, 0)
    assert list(findings.minutes) == [datetime(2026, 11, 30, 3, 25)]  # noqa: DTZ001


def test_the_requests_of_a_real_server() -> None:
    """Each affected prompt with its figures, in the order of their ends; probes are left out."""
    findings = read(TEXT_LOG)
    assert findings.num_finished_requests == 3 + 2 + 1 + 1 + 2 + 4 + 3 + 1 + 6 + 1
    shown = {
        request.finished.rid: (
            request.finished.num_prompt_tokens,
            request.finished.num_cached_tokens,
            request.num_dumps,
            request.is_beside_others,
        )
        for request in findings.affected_requests
    }
    assert shown == {
        "prefix-1": (120, 100, 1, False),
        "again-0": (100, 99, 1, False),
        "long-0": (600, 0, 3, False),
        "exact-1": (257, 0, 2, False),
        **{f"batch-{k}": (30, 0, 1, True) for k in range(4)},
        "beside-0": (70, 0, 1, True),
        "beside-1": (300, 0, 2, True),
        "decoder-0": (10, 0, 1, True),
        "aborted-0": (15, 0, 1, False),
        **{f"crowd-{k}": (60, 0, 1, True) for k in range(6)},
    }
    assert findings.num_affected_requests == len(shown)
    retracted = [
        request.finished.rid
        for request in findings.affected_requests
        if request.finished.num_retractions
    ]
    assert retracted == ["crowd-3", "crowd-4", "crowd-5"]
    assert [request.finished.is_aborted for request in findings.affected_requests].count(True) == 1


def test_two_schedulers_and_json() -> None:
    """Chunks are followed per scheduler; a prompt that imitates a log line is a prompt."""
    findings = read(JSON_LOG)
    assert findings.total.batches_by_kind == {
        Kind.SEVERAL_PROMPTS: 2 + 1 + 1,  # 4 times 30 on two schedulers; 2 and 3 of the six
        Kind.CHUNKED: 3 + 2 + 2,  # 600, 257, 300
        Kind.CACHED: 3,
        Kind.BESIDE_DECODING: 2 + 4,  # 300 in two; four batches of the six
        Kind.NO_PROMPT: 2 + 3,  # two warm-ups, three health checks
    }
    assert findings.total.tokens_by_kind[Kind.CHUNKED] == 600 + 257 + 300
    assert findings.num_aborted_requests == 2
    assert findings.is_mixed is False
    assert [tally.num_batches for tally in findings.minutes.values()] == [30, 1]
    by_rid = {request.finished.rid: request for request in findings.affected_requests}
    assert by_rid["again-0"].finished.num_cached_tokens == 99
    assert by_rid["long-0"].num_dumps == 3
    assert [rid for rid, request in by_rid.items() if request.is_beside_others] == [
        "beside-0", "beside-1", "decoder-0",
    ]  # fmt: skip


def kinds_of(*messages: str, start: str = START) -> dict[Kind, int]:
    return dict(findings_of(*messages, start=start).total.batches_by_kind)


def test_one_prompt_alone_is_right() -> None:
    """Also one that fills its batch exactly, and one of a single token less."""
    findings = findings_of(prefill(256), prefill(255), prefill(2))
    assert (findings.total.num_batches, findings.total.num_wrong_batches) == (3, 0)


def test_a_chunk_is_full_and_leaves_something() -> None:
    """A batch that waits for room, not for its chunk, is none, though tokens are pending."""
    assert kinds_of(prefill(256, pending=1), prefill(1)) == {Kind.CHUNKED: 2}
    assert kinds_of(prefill(180, pending=76), prefill(76)) == {}


def test_the_end_of_one_prompt_beside_the_start_of_the_next() -> None:
    """A batch is counted in each of its kinds, and once in all."""
    findings = findings_of(prefill(256, pending=44), prefill(256, seqs=2, pending=10), prefill(10))
    assert findings.total.batches_by_kind == {Kind.CHUNKED: 3, Kind.SEVERAL_PROMPTS: 1}
    assert findings.total.num_wrong_batches == 3


def test_generating_requests_take_room_only_when_mixed() -> None:
    """254 of 256 tokens beside two are a full batch with mixed chunks, and none without."""
    messages = (prefill(254, running=2, pending=9), prefill(9, running=2))
    assert kinds_of(*messages, start=START.replace("False", "True"))[Kind.CHUNKED] == 2
    assert Kind.CHUNKED not in kinds_of(*messages)


def test_chunks_end_on_pages() -> None:
    """With pages of 64 tokens, 192 of 250 are as full as it gets."""
    start = START.replace("256", "250").replace("'page_size': 1", "'page_size': 64")
    assert kinds_of(prefill(192, pending=9), prefill(9), start=start) == {Kind.CHUNKED: 2}


def test_without_chunks() -> None:
    """A size of -1 cuts nothing, whatever the batch holds."""
    assert kinds_of(prefill(9000, pending=9), start=START.replace("256", "-1")) == {}


def test_single_tokens() -> None:
    """A health check is one; the rest of a prompt and a prompt that is cached are none."""
    assert kinds_of(prefill(1)) == {Kind.NO_PROMPT: 1}
    assert kinds_of(prefill(1, cached=99)) == {Kind.CACHED: 1}


def test_schedulers_do_not_finish_each_others_prompts() -> None:
    """A prompt that DP0 began goes on in DP0's next batch, whatever DP1 does between."""
    lines = (
        f"[2026-11-30 03:25:08 {rank}] {message}"
        for rank, message in (
            ("DP0", START), ("DP0", READY), ("DP0 TP0", prefill(256, pending=9)),
            ("DP1 TP0", prefill(50)), ("DP0 TP0", prefill(9)),
        )
    )  # fmt: skip
    total = diagnose(records_of(lines)).total
    assert (total.num_batches, total.batches_by_kind) == (3, {Kind.CHUNKED: 2})


def test_pipeline_stages_are_counted_once() -> None:
    """Each stage logs the batch; the first one's line counts."""
    lines = (f"[2026-11-30 03:25:08 PP{stage} TP0] {prefill(50)}" for stage in range(4))
    assert diagnose(records_of(lines)).total.num_batches == 1


def test_a_server_started_again_in_the_same_log() -> None:
    """Its settings count from there, its warm-up too, and nothing is left of the first."""
    second = START.replace("256", "128")
    findings = findings_of(
        prefill(256, pending=9), second, prefill(8), READY, prefill(128, pending=9), prefill(9)
    )
    assert findings.chunk_tokens == 128
    assert findings.total.batches_by_kind == {Kind.CHUNKED: 3, Kind.NO_PROMPT: 1}


def test_a_log_without_its_beginning() -> None:
    """The chunk size is unknown: that is counted, and nothing is made up."""
    findings = diagnose(records_of(iter([prefill(8192, pending=99), prefill(99)])))
    assert findings.num_unknown_chunk == 2
    assert findings.total.num_wrong_batches == 0
    assert "begin with the server's start" in shown(findings, 200)


def test_lines_that_lack_fields_are_counted() -> None:
    """A verdict that rests on too little says so."""
    findings = findings_of("Prefill batch. #new-seq: 1, #new-token: 7", prefill(7))
    assert findings.num_incomplete == 1
    assert "1 line of a batch without one of" in shown(findings, 200)


def test_aborts_are_counted_once() -> None:
    """By their requests where these are logged, by the calls where they are not."""
    call = 'INFO:     127.0.0.1:1 - "POST /abort_request HTTP/1.1" 200 OK'
    ends = "Finish: obj=G(rid='a'), out={'meta_info': {'id': 'a', 'finish_reason': {'type': 'abort'"
    dropped = "Request is disconnected from the client side (type 1). Abort request obj.rid='b'"
    assert findings_of(prefill(7), call, call).num_aborted_requests == 2
    assert findings_of(prefill(7), call, ends, dropped).num_aborted_requests == 2


Event = tuple[str, int]


@st.composite
def courses(draw: st.DrawFn) -> list[Event]:
    """Requests that begin and mostly end, in an order that can happen."""
    course: list[Event] = []
    under_way: list[int] = []
    for number in range(draw(st.integers(1, 9))):
        course.append(("begin", number))
        under_way.append(number)
        for _ in range(draw(st.integers(0, len(under_way)))):
            ended = under_way.pop(draw(st.integers(0, len(under_way) - 1)))
            course.append((draw(st.sampled_from(["finish", "finish", "drop"])), ended))
    return course


@given(courses())
def test_who_was_beside_whom(course: list[Event]) -> None:
    """As a comparison of all pairs says, of requests that ended; refused ones never do."""
    line_of: dict[str, Callable[[int], str]] = {
        "begin": lambda number: f"Receive: obj=G(rid='{number}')",
        "finish": lambda number: f"Finish: obj=G(rid='{number}')",
        "drop": lambda number: f"Abort request obj.rid='{number}'",
    }
    findings = findings_of(*(line_of[event](number) for event, number in course))
    begins = {number: at for at, (event, number) in enumerate(course) if event == "begin"}
    ends = {number: at for at, (event, number) in enumerate(course) if event != "begin"}
    beside = {
        number
        for number, other in itertools.permutations(ends, 2)
        if begins[number] < ends[other] and begins[other] < ends[number]
    }
    finished = [number for event, number in course if event == "finish"]
    assert findings.num_finished_requests == len(finished)
    assert [int(request.finished.rid) for request in findings.affected_requests] == [
        number for number in finished if number in beside
    ]


def test_a_refused_request_is_nobodys_neighbour() -> None:
    """It is logged as received and never again; those after it are still judged, each alone."""
    after = [
        f"{line}: obj=G(rid='{number}')" for number in range(50) for line in ("Receive", "Finish")
    ]
    findings = findings_of("Receive: obj=G(rid='too long')", *after)
    assert (findings.num_finished_requests, findings.num_affected_requests) == (50, 0)


def test_only_the_first_requests_are_kept() -> None:
    """All are counted."""
    findings = findings_of(
        prefill(7),
        *(
            f"Finish: obj=G(rid='{number}'), out={{'meta_info': {{'id': '{number}', "
            "'prompt_tokens': 9, 'cached_tokens': 4}}"
            for number in range(1000)
        ),
    )
    assert findings.num_affected_requests == 1000
    assert [request.finished.rid for request in findings.affected_requests] == [
        str(number) for number in range(20)
    ]
    assert "1,000 of 1,000 logged, the first 20" in shown(findings, 100)


def shown(findings: Findings, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(findings_view(findings))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("log", [TEXT_LOG, JSON_LOG])
def test_nothing_is_lost_in_a_terminal(log: Path, width: int) -> None:
    """Lines fit, no heading is cut, ids stay whole where they can, and the verdict is last."""
    text = shown(read(log), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for heading in ("batches", "tokens", "several", "chunked", "cached", "decoding", "no prompt"):
        assert heading in text
    if log == JSON_LOG:
        assert "bb691b0d8eeb4637b39c7cc6c37e0dd6 " in text
        assert " ".join(text.split()).count("in 2 dumps, beside others") == 1
    last = " ".join(text.split("\n\n")[-1].split())
    assert last == (
        "A directory scan picks up 25 of 35 prefill batches wrongly: 71%, 2,576 of 3,297 tokens."
        if log == TEXT_LOG
        else "A directory scan picks up 20 of 31 prefill batches wrongly: 65%, 1,820 of 2,626 "
        "tokens."
    )


def test_a_log_without_fault() -> None:
    """Kinds that do not occur have no line, and the verdict claims no more than it can."""
    text = shown(findings_of(prefill(40)), 100)
    assert "several prompts" not in text
    assert text.endswith(
        "A directory scan picks up none of 1 prefill batch wrongly, as far as the log tells.\n"
    )


@pytest.mark.parametrize(
    ("num_minutes", "title", "num_lines"),
    [(20, "per minute", 20), (21, "per 5 minutes", 5), (300, "per 15 minutes", 20)],
)
def test_long_runs_are_shown_in_longer_periods(
    num_minutes: int, title: str, num_lines: int
) -> None:
    """At most 20 lines; the JSON has every minute."""
    lines = (
        f"[2026-11-30 {number // 60:02}:{number % 60:02}:30] {prefill(10)}"
        for number in range(num_minutes)
    )
    findings = diagnose(records_of(lines))
    text = shown(findings, 100)
    assert title in text
    assert text.count("2026-11-30 ") == num_lines
    minutes = findings_json(findings)["minutes"]
    assert isinstance(minutes, list)
    assert len(minutes) == num_minutes


def test_periods_begin_at_round_times() -> None:
    """Minutes 0 to 20 fall into five periods, the first of 5 batches and the last of 1."""
    lines = (f"[2026-11-30 03:{number:02}:00] {prefill(10)}" for number in range(21))
    rows = shown(diagnose(records_of(lines)), 100).splitlines()
    counts = {row.split()[1]: row.split()[2] for row in rows if row.startswith("2026")}
    assert counts == {"03:00": "5", "03:05": "5", "03:10": "5", "03:15": "5", "03:20": "1"}


def test_a_run_of_months_is_cut() -> None:
    """Where even days are too many, the rest is counted."""
    days = (f"{month:02}-{day:02}" for month in (1, 2) for day in range(1, 29))
    lines = (f"[2026-{day} 03:25:08] {prefill(10)}" for day in days)
    text = shown(diagnose(records_of(lines)), 100)
    assert "per day" in text
    assert "36 more in --json" in text


REAL = [*TEXT_LOG.read_text().splitlines(), *JSON_LOG.read_text().splitlines()]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(REAL), st.integers(0, 400), st.integers(0, 400), st.text(max_size=20)
        ),
        max_size=12,
    )
)
def test_a_damaged_log_is_diagnosed_all_the_same(
    pieces: list[tuple[str, int, int, str]],
) -> None:
    """In any order, cut and overwritten: the parts still make up the whole, and it can be shown."""
    lines = (line[:start] + patch + line[end:] for line, start, end, patch in pieces)
    findings = diagnose(records_of(lines))
    total, minutes = findings.total, findings.minutes.values()
    assert total.num_batches == sum(tally.num_batches for tally in minutes)
    assert total.num_wrong_tokens == sum(tally.num_wrong_tokens for tally in minutes)
    assert total.num_wrong_batches <= total.num_batches
    assert max(total.batches_by_kind.values(), default=0) <= total.num_wrong_batches
    if total.num_batches:
        shown(findings, 80)


class _LongLog(io.RawIOBase):
    """A log of many rounds of the same traffic, made while it is read."""

    def __init__(self, num_rounds: int) -> None:
        round_of_lines = [
            START,
            READY,
            prefill(256, pending=44),
            prefill(44, running=1),
            *(f"Receive: obj=G(rid='{{0}}-{k}', text='{'x' * 500}')" for k in range(8)),
            prefill(240, seqs=8),
            *(f"Finish: obj=G(rid='{{0}}-{k}', text='{'x' * 500}')" for k in range(8)),
        ]
        text = "".join(f"[2026-11-30 03:25:08] {line}\n" for line in round_of_lines[2:])
        self._rounds = iter(text.replace("{0}", str(k)).encode() for k in range(num_rounds))
        self._rest = "".join(f"[x] {line}\n" for line in round_of_lines[:2]).encode()
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        self._rest = self._rest or next(self._rounds, b"")
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        self.num_bytes += size
        return size


def _peak_bytes(num_rounds: int) -> tuple[Findings, int, int]:
    """Findings of a long log, the memory that took, and its size."""
    log = _LongLog(num_rounds)
    with io.BufferedReader(log) as stream:
        tracemalloc.start()
        findings = diagnose(records_of(log_lines(stream, lambda _: None)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return findings, peak, log.num_bytes


def test_a_long_log_takes_no_more_memory_than_a_short_one() -> None:
    """Ten times the log, read once from end to end, in the same memory."""
    short, short_peak, short_size = _peak_bytes(100)
    long, long_peak, long_size = _peak_bytes(1000)
    assert long_size > 9 * short_size
    assert long_size > 8 << 20
    for findings, num_rounds in ((short, 100), (long, 1000)):
        assert findings.total.num_batches == 3 * num_rounds
        assert findings.total.num_wrong_batches == 3 * num_rounds
        assert findings.num_affected_requests == 8 * num_rounds
    assert long_peak < short_peak + (64 << 10)
    assert long_peak < 1 << 20


@pytest.mark.parametrize("refused_each", [1, 40_000])
def test_refused_requests_take_bounded_memory(refused_each: int) -> None:
    """Whether all or only the first never end: they are forgotten, and the others are judged."""

    def requests(num: int) -> Iterator[LogRecord]:
        for number in range(num):
            if number % refused_each == 0:
                yield RequestReceived((f"no-{number}",))
            yield RequestReceived((str(number),))
            yield RequestFinished(None, str(number), 9, 0, 0, 0.1, is_aborted=False)

    tracemalloc.start()
    findings = diagnose(requests(40_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (findings.num_finished_requests, findings.num_affected_requests) == (40_000, 0)
    assert peak < 6 << 20


def _error_of(log: Path) -> StatetapError:
    with pytest.raises(StatetapError) as caught:
        read(log)
    return caught.value


def test_what_cannot_be_diagnosed(tmp_path: Path) -> None:
    """Not there, a folder, empty, or no log of a server: one kind and one sentence each."""
    empty, other = tmp_path / "empty.log", tmp_path / "other.log"
    empty.touch()
    other.write_bytes(b"\x1f\x8b\x00\xff" * 1000)
    cases: Sequence[tuple[Path, type[StatetapError], str]] = (
        (tmp_path / "no.log", MissingError, "log-missing"),
        (tmp_path, MissingError, "log-missing"),
        (empty, UsageError, "log-empty"),
        (other, UsageError, "log-without-prefill"),
    )
    for log, kind_of_error, kind in cases:
        error = _error_of(log)
        assert (type(error), error.kind) == (kind_of_error, kind)
        assert str(log) in error.message
