"""Lines of server logs: SGLang 0.5.23's own, its neighbours', and what is no such line."""

import io
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statetap_producer.diagnosing.sglang_log import (
    AbortCalled,
    ChunkSettled,
    PrefillBatch,
    RequestDropped,
    RequestFinished,
    RequestReceived,
    Retraction,
    ServerReady,
    ServerStarted,
    log_lines,
    parse_line,
)

DATA = Path(__file__).parent / "data"
REAL_LINES = [
    line
    for name in ("sglang_0_5_23.log", "sglang_0_5_23_dp_json.log")
    for line in (DATA / name).read_text().splitlines()
]

AT = datetime(2026, 11, 30, 3, 25, 8)  # noqa: DTZ001  logs do not tell the zone
TAIL = "token usage: 0.32, #running-req: 2, #queue-req: 5, #pending-token: 344, cpu graph: False"
PREFILL = f"Prefill batch, #new-seq: 3, #new-token: 256, #cached-token: 7, {TAIL}"
SHUFFLED = (
    "Prefill batch, #queue-req: 5, #pending-token: 344, #running-req: 2, #cached-token: 7, "
    "#new-token: 256, #new-seq: 3"
)


def test_a_prefill_line() -> None:
    """The line of 0.5.23, every figure in its place."""
    assert parse_line(f"[2026-11-30 03:25:08] {PREFILL}\n") == PrefillBatch(
        AT, "", num_prompts=3, num_tokens=256, num_cached_tokens=7, num_decoding=2,
        num_pending_tokens=344,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (f"[2026-11-30 03:25:08.123] {PREFILL}", ""),
        (f"[2026-11-30 03:25:08,123 TP0] {PREFILL}", "TP0"),
        (f"[2026-11-30 03:25:08 DP1 TP2] {PREFILL}", "DP1 TP2"),
        (f"[2026-11-30 03:25:08.123 DP0 ATTN_CP0 TP0] {PREFILL}", "DP0 ATTN_CP0 TP0"),
        (f"\x1b[32m[2026-11-30 03:25:08 TP0]\x1b[0m \x1b[1m{PREFILL}\x1b[0m", "TP0"),
        (f"server-1  | 2026-11-30T04:25:09Z stderr F [2026-11-30 03:25:08 TP0] {PREFILL}", "TP0"),
        (f"loading: 100%|####| 1/1\r[2026-11-30 03:25:08] {PREFILL}", ""),
        (f"[2026-11-30 03:25:08] {PREFILL.replace('batch,', 'batch.')}", ""),
        (f"[2026-11-30 03:25:08] {PREFILL.replace('batch,', 'batch [871],')}", ""),
        (f"[2026-11-30 03:25:08] {SHUFFLED}", ""),
    ],
)  # fmt: skip
def test_neighbours_of_the_format(line: str, rank: str) -> None:
    """Milliseconds, tags, colours, what collectors put before it, and any order of fields."""
    assert parse_line(line) == PrefillBatch(AT, rank, 3, 256, 7, 2, 344)


def test_missing_fields_are_none() -> None:
    """Neither zero nor a reason to leave the line out."""
    line = "[2025-01-01 00:00:00 TP0] Prefill batch. #new-seq: 1, #new-token: 7, token usage: 0.0"
    batch = parse_line(line)
    assert isinstance(batch, PrefillBatch)
    assert (batch.num_prompts, batch.num_tokens) == (1, 7)
    assert (batch.num_cached_tokens, batch.num_decoding, batch.num_pending_tokens) == (None,) * 3


def test_times_that_are_none() -> None:
    """A line without a time, or with an impossible one, still counts."""
    for head in ("", "[2026-13-41 03:25:08] ", "[03:25:08] ", "INFO:sglang: "):
        batch = parse_line(head + PREFILL)
        assert isinstance(batch, PrefillBatch)
        assert (batch.at, batch.num_tokens) == (None, 256)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[2026-11-30 03:25:08] Decode batch, #running-req: 1, #token: 53, #queue-req: 0",
        "[2026-11-30 03:25:08] Prefill batch",
        "[2026-11-30 03:25:08] Prefill batch, #new-seq: many, #new-token: -3",
        f"[2026-11-30 03:25:08] Receive OpenAI: obj={{'content': '[{AT}] {PREFILL}'}}",
        f'[2026-11-30 03:25:08] {{"log": "{PREFILL}"}}',
        f"{'x' * 5000} {PREFILL}",
    ],
)  # fmt: skip
def test_lines_that_are_none(line: str) -> None:
    """Other lines, lines without figures, and figures that somebody sent as a prompt."""
    assert parse_line(line) is None


def test_numbers_too_long_to_be_counts() -> None:
    """A figure of thousands of digits is no figure."""
    batch = parse_line(f"Prefill batch, #new-seq: 1, #new-token: {'9' * 9000}")
    assert batch == PrefillBatch(None, "", 1, None, None, None, None)


def test_settings_of_this_version_and_of_earlier_ones() -> None:
    """0.5.23 writes a dict, earlier ones a ServerArgs; page_size is not hicache's."""
    now = "server_args={'hicache_page_size': 9, 'chunked_prefill_size': 256, 'page_size': 16, "
    assert parse_line(f"[{AT}] {now}'enable_mixed_chunk': True}}") == ServerStarted(256, 16, True)
    then = "server_args=ServerArgs(model_path='m', chunked_prefill_size=-1, page_size=1, "
    assert parse_line(f"[{AT}] {then}enable_mixed_chunk=False)") == ServerStarted(-1, 1, False)
    assert parse_line(f"[{AT}] server_args=ServerArgs(chunked_prefill_size=None)") == (
        ServerStarted(None, None, None)
    )
    assert parse_line(
        f"[{AT} DP1] max_total_num_tokens=2000, chunked_prefill_size=128, context_len=4096"
    ) == ChunkSettled(128)


def test_events_between_the_batches() -> None:
    """Retractions as the wheel and its predecessors word them, aborts, the end of the warm-up."""
    ratio = "#new_token_ratio: 0.0045 -> 0.5812"
    for words in (
        "KV cache pool is full. Retract requests. #retracted_reqs: 4, #mamba_num_gained: 2",
        f"Decode out of memory happened. #retracted_reqs: 4, {ratio}",
        "Testing retraction. #retracted_reqs: 4, #new_tokens_gained: 172",
    ):  # fmt: skip
        assert parse_line(f"[{AT} TP0] {words}") == Retraction(AT, 4)
    assert parse_line(
        f"[{AT}] [http_server] Error: Request is disconnected from the client side (type 1). "
        "Abort request obj.rid='gone-0'"
    ) == RequestDropped("gone-0")
    call = '127.0.0.1:44864 - "POST /abort_request HTTP/1.1" 200 OK'
    assert parse_line(f"[{AT}] INFO:     {call}") == AbortCalled(AT)
    assert parse_line(f"[{AT}] The server is fired up and ready to roll!") == ServerReady()


def test_requests_as_text() -> None:
    """One request, several in one call, an aborted one, one of which little is told."""
    head = f"[{AT}] "
    assert parse_line(f"{head}Receive: obj=GenerateReqInput(rid='a b', text='x')") == (
        RequestReceived(("a b",))
    )
    assert parse_line(f"{head}Receive: obj=GenerateReqInput(text='x', rid=['a', \"b'c\"])") == (
        RequestReceived(("a", "b'c"))
    )
    assert parse_line(f"{head}Receive: obj=GenerateReqInput(rid=None)") is None
    meta = (
        "'meta_info': {'id': 'a', 'finish_reason': {'type': 'abort', 'message': 'Aborted'}, "
        "'prompt_tokens': 15, 'num_retractions': 2, 'cached_tokens': 3, 'e2e_latency': 0.25}"
    )
    finish = f"{head}Finish: obj=GenerateReqInput(rid='a')"
    assert parse_line(f"{finish}, out={{{meta}}}") == (
        RequestFinished(AT, "a", 15, 3, 2, 0.25, is_aborted=True)
    )
    assert parse_line(f"{finish}, out={{}}") == (
        RequestFinished(AT, "a", None, None, None, None, is_aborted=False)
    )


def test_what_a_prompt_says_is_not_what_the_server_says() -> None:
    """A text that imitates meta_info stands before the real one, and is passed over."""
    imitation = "\"'meta_info': {'id': 'b', 'prompt_tokens': 1, 'cached_tokens': 1}\""
    line = (
        f"Finish: obj=GenerateReqInput(rid='a', text={imitation}), out={{'text': {imitation}, "
        "'meta_info': {'id': 'a', 'prompt_tokens': 40, 'cached_tokens': 0}}"
    )
    assert parse_line(line) == RequestFinished(None, "a", 40, 0, None, None, is_aborted=False)


def test_requests_as_json() -> None:
    """The same, in the form of --log-requests-format json."""
    head = f'[{AT}] {{"timestamp": "2026-11-30T03:25:08.5", "event": '
    assert parse_line(f'{head}"request.received", "rid": ["a", "b"]}}') == (
        RequestReceived(("a", "b"))
    )
    meta = (
        '{"id": "a", "finish_reason": {"type": "length"}, "prompt_tokens": 100, '
        '"cached_tokens": 99, "num_retractions": 0, "e2e_latency": 0.5}'
    )
    finish = f'{head}"request.finished", "rid": "a", "out": '
    expected = RequestFinished(AT, "a", 100, 99, 0, 0.5, is_aborted=False)
    assert parse_line(f'{finish}{{"meta_info": {meta}}}}}') == expected
    assert parse_line(f'{head}"scheduler.status", "running_rids": []}}') is None
    assert parse_line(f'{finish}{{"meta_info": {{"prompt_tok') is None


@pytest.mark.parametrize(
    "meta",
    [
        '{"prompt_tokens": -1, "cached_tokens": 1e400, "e2e_latency": NaN}',
        '{"prompt_tokens": "7", "cached_tokens": null, "e2e_latency": Infinity}',
        '{"finish_reason": 5, "num_retractions": [], "e2e_latency": -1}',
        "7",
    ],
)
def test_json_figures_that_are_none(meta: str) -> None:
    """What is no figure is not taken for one."""
    line = (
        '{"timestamp": "", "event": "request.finished", "rid": "a", "out": {"meta_info": '
        f"{meta}}}}}"
    )
    assert parse_line(line) == RequestFinished(None, "a", None, None, None, None, is_aborted=False)


def test_json_that_is_nested_too_deep() -> None:
    """Brackets without end are no event, and no crash."""
    assert parse_line('{"timestamp": ' + "[" * 200_000) is None


def test_request_ids_cannot_command_the_terminal() -> None:
    """Control characters and halves of characters are shown as question marks."""
    received = parse_line(
        '{"timestamp": "", "event": "request.received", "rid": "\\u001b[2J\\ud800"}'
    )
    assert received == RequestReceived(("?[2J?",))  # fmt: skip


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    """Whatever a line holds, reading it does not fail."""
    parse_line(text)


@given(
    st.sampled_from(REAL_LINES), st.integers(0, 3000), st.integers(0, 3000), st.text(max_size=40)
)
def test_no_damage_is_too_great(line: str, start: int, end: int, patch: str) -> None:
    """A real line with any part of it lost or overwritten is read, or passed over."""
    parse_line(line[:start] + patch + line[end:])


def test_lines_are_cut_and_mended() -> None:
    """Bytes that are no UTF-8, a last line without an end, and CRLF."""
    stream = io.BytesIO(b"one\r\n\xff\xfe two\nthree")
    assert list(log_lines(stream, lambda _: None)) == ["one\r\n", "\ufffd\ufffd two\n", "three"]


def test_a_line_without_end_takes_bounded_memory() -> None:
    """64 MiB without a newline are one line of 4 MiB; the line after it is whole."""
    length = 64 << 20
    stream = io.BufferedReader(_Zeros(length))
    tracemalloc.start()
    lines = [len(line) for line in log_lines(stream, lambda _: None)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lines == [4 << 20, 5]
    assert peak < 24 << 20


class _Zeros(io.RawIOBase):
    """Zero bytes, then a newline and a short line."""

    def __init__(self, length: int) -> None:
        self._left = length
        self._tail = b"\nlast\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._left:
            size = min(len(view), self._left)
            view[:size] = bytes(size)
            self._left -= size
            return size
        size, self._tail, tail = len(self._tail), b"", self._tail
        view[:size] = tail
        return size


def test_progress_is_told_by_the_byte() -> None:
    """It grows, and does not pass the size."""
    told: list[int] = []
    list(log_lines(io.BytesIO(b"x" * 99 + b"\n" + b"y" * (5 << 20)), told.append))
    assert told == sorted(told)
    assert 100 + (4 << 20) <= told[-1] <= 100 + (5 << 20)
