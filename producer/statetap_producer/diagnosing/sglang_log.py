"""The log of an SGLang server: its lines, and what a line tells of the server's work.

Written from SGLang 0.5.23. Its neighbours differ in punctuation, in the order of fields and in
which fields they have; so fields are found by name, and each may be missing.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final

#: Bytes kept of one line. Logged requests hold whole prompts.
_MOST_LINE_BYTES: Final = 4 << 20

#: Characters before a message: time, ranks, and what a log collector puts in front of them.
_MOST_HEAD: Final = 200

#: Characters kept of a request id.
_MOST_RID: Final = 128

#: Bytes between two reports of progress.
_PROGRESS_BYTES: Final = 1 << 20

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEAD: Final = re.compile(
    r"\[(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<rank>(?: [A-Z_]+\d+)*)\]", re.ASCII
)
_COUNT: Final = r"(\d{1,15})(?!\d)"
_FIELD: Final = re.compile(
    rf"#(new-seq|new-token|cached-token|running-req|pending-token): {_COUNT}", re.ASCII
)
_RETRACTED: Final = re.compile(rf"#retracted_reqs: {_COUNT}", re.ASCII)
_CHUNK_TOKENS: Final = re.compile(rf"\bchunked_prefill_size'?[=:] ?(?:(-1)|{_COUNT})", re.ASCII)
_PAGE_TOKENS: Final = re.compile(rf"\bpage_size'?[=:] ?{_COUNT}", re.ASCII)
_MIXED: Final = re.compile(r"\benable_mixed_chunk'?[=:] ?(True|False)")
_QUOTED: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_RID: Final = re.compile(r"\brid=(\[[^\]]*\]|'[^']*'|\"[^\"]*\")")

# Within a finished request's meta_info, as Python writes a dict.
_META_ID: Final = re.compile(r"'id': ('[^']*'|\"[^\"]*\")")
_META_COUNT: Final = re.compile(
    rf"'(prompt_tokens|cached_tokens|num_retractions)': {_COUNT}", re.ASCII
)
_META_LATENCY: Final = re.compile(r"'e2e_latency': (\d{1,9}(?:\.\d{1,20})?)", re.ASCII)
_META_ABORT: Final = re.compile(r"'finish_reason': \{'type': 'abort'")


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """One forward pass over new tokens. None is what its line does not tell."""

    at: datetime | None
    #: Tags of the scheduler that ran it, as in ``DP0 TP0``; empty with one scheduler.
    rank: str
    #: Prompts that have rows in it, a prompt's later chunks included.
    num_prompts: int | None
    num_tokens: int | None
    #: Tokens of these prompts that were not computed, because the prefix cache had them.
    num_cached_tokens: int | None
    #: Requests that were generating when it began.
    num_decoding: int | None
    #: Prompt tokens still to be computed after it.
    num_pending_tokens: int | None


@dataclass(frozen=True, slots=True)
class Retraction:
    """Requests that were put back into the queue, to be computed again."""

    at: datetime | None
    num_requests: int


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Requests that came in one call."""

    rids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request's end. None is what its line does not tell."""

    at: datetime | None
    rid: str
    num_prompt_tokens: int | None
    num_cached_tokens: int | None
    num_retractions: int | None
    duration_s: float | None
    is_aborted: bool


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """A request whose client went away; it gets no line of its end."""

    rid: str


@dataclass(frozen=True, slots=True)
class AbortCalled:
    """A call of the server's abort endpoint."""

    at: datetime | None


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """A server's settings. None is what the line does not tell."""

    #: Tokens of one prefill batch; -1 where prompts are never cut.
    chunk_tokens: int | None
    page_tokens: int | None
    #: Whether requests that are generating share the forward pass.
    is_mixed: bool | None


@dataclass(frozen=True, slots=True)
class ChunkSettled:
    """The chunk size that a scheduler ended up with."""

    chunk_tokens: int


@dataclass(frozen=True, slots=True)
class ServerReady:
    """The server has warmed up."""


LogRecord = (
    PrefillBatch
    | Retraction
    | RequestReceived
    | RequestFinished
    | RequestDropped
    | AbortCalled
    | ServerStarted
    | ChunkSettled
    | ServerReady
)


def log_lines(stream: BinaryIO, on_progress: Callable[[int], None]) -> Iterator[str]:
    """The lines of a log, at most 4 MiB of each; what is not UTF-8 is replaced.

    Args:
        stream: the log.
        on_progress: called with the bytes read so far.
    """
    num_bytes = 0
    next_report = _PROGRESS_BYTES
    is_rest = False
    while piece := stream.readline(_MOST_LINE_BYTES):
        if not is_rest:
            yield piece.decode(errors="replace")
        is_rest = not piece.endswith(b"\n")
        num_bytes += len(piece)
        if num_bytes >= next_report:
            on_progress(num_bytes)
            next_report = num_bytes + _PROGRESS_BYTES


def parse_line(line: str) -> LogRecord | None:
    """What a line tells, None when it tells nothing of interest. Takes any text."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    for marker, parse in _MESSAGES:
        position = line.find(marker, 0, _MOST_HEAD + len(marker))
        # A quote before it: the marker stands in what somebody sent.
        if position >= 0 and not any(quote in line[:position] for quote in "'\"{"):
            return parse(line[:position], line[position:])
    return None


def _prefill_batch(head: str, message: str) -> PrefillBatch | None:
    fields = {name: int(number) for name, number in _FIELD.findall(message)}
    if "new-seq" not in fields and "new-token" not in fields:
        return None
    at, rank = _time_and_rank(head)
    return PrefillBatch(
        at,
        rank,
        fields.get("new-seq"),
        fields.get("new-token"),
        fields.get("cached-token"),
        fields.get("running-req"),
        fields.get("pending-token"),
    )


def _retraction(head: str, message: str) -> Retraction | None:
    found = _RETRACTED.match(message)
    return Retraction(_time_and_rank(head)[0], int(found[1])) if found else None


def _received(_: str, message: str) -> RequestReceived | None:
    found = _RID.search(message)
    return RequestReceived(_unquoted(found[1])) if found else None


def _finished(head: str, message: str) -> RequestFinished | None:
    # The last one: a prompt's text, which stands before it, can hold anything.
    start = message.rfind("'meta_info': {")
    meta = message[start:] if start >= 0 else ""
    found = _META_ID.search(meta) or _RID.search(message)
    if not found or not (rids := _unquoted(found[1])):
        return None
    counts = {name: int(number) for name, number in _META_COUNT.findall(meta)}
    latency = _META_LATENCY.search(meta)
    return RequestFinished(
        _time_and_rank(head)[0],
        rids[0],
        counts.get("prompt_tokens"),
        counts.get("cached_tokens"),
        counts.get("num_retractions"),
        float(latency[1]) if latency else None,
        _META_ABORT.search(meta) is not None,
    )


def _json_event(head: str, message: str) -> RequestReceived | RequestFinished | None:
    try:
        event, _ = json.JSONDecoder().raw_decode(message)
    except (ValueError, RecursionError):
        return None  # cut, or no event of SGLang's
    rid = event.get("rid")
    rids = tuple(_shown(str(one)) for one in (rid if isinstance(rid, list) else [rid]))
    if event.get("event") == "request.received":
        return RequestReceived(rids)
    if event.get("event") != "request.finished":
        return None
    meta = _dict_in(_dict_in(event, "out"), "meta_info")
    return RequestFinished(
        _time_and_rank(head)[0],
        _shown(str(meta.get("id", rid))),
        _count_in(meta, "prompt_tokens"),
        _count_in(meta, "cached_tokens"),
        _count_in(meta, "num_retractions"),
        _seconds_in(meta, "e2e_latency"),
        _dict_in(meta, "finish_reason").get("type") == "abort",
    )


def _dropped(_: str, message: str) -> RequestDropped | None:
    found = _RID.search(message)
    rids = _unquoted(found[1]) if found else ()
    return RequestDropped(rids[0]) if rids else None


def _abort_called(head: str, _: str) -> AbortCalled:
    return AbortCalled(_time_and_rank(head)[0])


def _started(_: str, message: str) -> ServerStarted:
    page, mixed = _PAGE_TOKENS.search(message), _MIXED.search(message)
    return ServerStarted(
        _chunk_tokens(message),
        int(page[1]) if page else None,
        mixed[1] == "True" if mixed else None,
    )


def _chunk_settled(_: str, message: str) -> ChunkSettled | None:
    tokens = _chunk_tokens(message)
    return None if tokens is None else ChunkSettled(tokens)


def _ready(_: str, __: str) -> ServerReady:
    return ServerReady()


#: How a message begins, and what reads it.
_MESSAGES: Final[tuple[tuple[str, Callable[[str, str], LogRecord | None]], ...]] = (
    ("Prefill batch", _prefill_batch),
    ("Receive: obj=", _received),
    ("Finish: obj=", _finished),
    ('{"timestamp": ', _json_event),
    ("#retracted_reqs: ", _retraction),
    ("Abort request obj.rid=", _dropped),
    ('"POST /abort_request', _abort_called),
    ("server_args=", _started),
    ("max_total_num_tokens=", _chunk_settled),
    ("The server is fired up", _ready),
)


def _time_and_rank(head: str) -> tuple[datetime | None, str]:
    found = _HEAD.search(head)
    if not found:
        return None, ""
    try:
        return datetime.fromisoformat(found["at"]), found["rank"].strip()
    except ValueError:
        return None, found["rank"].strip()


def _chunk_tokens(message: str) -> int | None:
    found = _CHUNK_TOKENS.search(message)
    return int(found[1] or found[2]) if found else None


def _unquoted(text: str) -> tuple[str, ...]:
    """The strings of a Python literal: one, or a list of them."""
    return tuple(_shown(single or double) for single, double in _QUOTED.findall(text))


def _shown(rid: str) -> str:
    """A request id as it can be shown: clients choose it, control characters included."""
    return "".join(char if char.isprintable() else "?" for char in rid[:_MOST_RID])


def _dict_in(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _count_in(parent: dict[str, Any], name: str) -> int | None:
    value = parent.get(name)
    return value if isinstance(value, int) and 0 <= value < 10**15 else None


def _seconds_in(parent: dict[str, Any], name: str) -> float | None:
    value = parent.get(name)
    # Also what JSON should not hold: neither NaN nor infinity is below a bound.
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 10**9 else None
