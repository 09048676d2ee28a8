"""What an SGLang server's scheduler did to dumps that are taken by directory scan.

A script that sends a prompt and picks up whatever the server dumped last is right only where a
forward pass held one prompt, whole, and nothing else. The server's log tells which passes did not.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from statetap_contract import MissingError, UsageError

from statetap_producer.diagnosing.request_overlap import RequestOverlap
from statetap_producer.diagnosing.sglang_log import (
    AbortCalled,
    ChunkSettled,
    LogRecord,
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

#: Stands for standard input.
STDIN: Final = Path("-")

#: Requests listed. The others are counted.
MOST_REQUESTS: Final = 20

#: SGLang's own probes, which carry no prompt.
_HEALTH_CHECK: Final = "HEALTH_CHECK"


class Kind(StrEnum):
    """Why the dump of a prefill batch is not one prompt's. A batch can be of several kinds."""

    SEVERAL_PROMPTS = "several-prompts"
    CHUNKED = "chunked"
    CACHED = "cached"
    BESIDE_DECODING = "beside-decoding"
    #: Warm-up, or a single token that no prefix was cached for: a health check.
    NO_PROMPT = "no-prompt"


@dataclass(slots=True)
class Tally:
    """Prefill batches counted. Tokens are those that were computed."""

    num_batches: int = 0
    num_tokens: int = 0
    #: Of at least one kind.
    num_wrong_batches: int = 0
    num_wrong_tokens: int = 0
    batches_by_kind: Counter[Kind] = field(default_factory=Counter)
    tokens_by_kind: Counter[Kind] = field(default_factory=Counter)

    def add(self, num_tokens: int, kinds: frozenset[Kind]) -> None:
        self.num_batches += 1
        self.num_tokens += num_tokens
        if kinds:
            self.num_wrong_batches += 1
            self.num_wrong_tokens += num_tokens
        for kind in kinds:
            self.batches_by_kind[kind] += 1
            self.tokens_by_kind[kind] += num_tokens

    def merge(self, other: "Tally") -> None:
        self.num_batches += other.num_batches
        self.num_tokens += other.num_tokens
        self.num_wrong_batches += other.num_wrong_batches
        self.num_wrong_tokens += other.num_wrong_tokens
        self.batches_by_kind.update(other.batches_by_kind)
        self.tokens_by_kind.update(other.tokens_by_kind)


@dataclass(frozen=True, slots=True)
class AffectedRequest:
    """A request whose dump a directory scan would have got wrong."""

    finished: RequestFinished
    #: Other requests were under way at some time between its start and end.
    is_beside_others: bool
    #: Dumps that its rows are in, at least; None where the log does not tell.
    num_dumps: int | None


@dataclass(slots=True)
class Findings:
    """What a log tells."""

    #: Settings of the server that ran last; None where the log does not tell.
    chunk_tokens: int | None = None
    is_mixed: bool | None = None
    total: Tally = field(default_factory=Tally)
    #: By the minute; None holds batches whose line has no time.
    minutes: dict[datetime | None, Tally] = field(default_factory=dict)
    #: Tokens of prompts that were not computed, over all batches.
    num_cached_tokens: int = 0
    #: Requests that were generating, summed over the batches.
    num_decoding: int = 0
    #: Batches before which the log did not tell the chunk size.
    num_unknown_chunk: int = 0
    #: Batches whose line lacks a field that this rests on.
    num_incomplete: int = 0
    num_retracted_requests: int = 0
    num_aborted_requests: int = 0
    #: Requests whose end is logged, probes left out.
    num_finished_requests: int = 0
    num_affected_requests: int = 0
    #: The first ones.
    affected_requests: list[AffectedRequest] = field(default_factory=list)


def diagnose_log(path: Path, on_progress: Callable[[int], None]) -> Findings:
    """Reads a log once, line by line; what is kept grows by a tally for each minute only.

    Args:
        path: the log, or ``-`` for standard input.
        on_progress: called with the bytes read so far.

    Raises:
        MissingError: kind ``log-missing``: not a file that can be read.
        UsageError: kind ``log-empty`` or ``log-without-prefill``.
    """
    has_lines = False

    def records() -> Iterable[LogRecord]:
        nonlocal has_lines
        source = nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")
        with source as stream:
            for line in log_lines(stream, on_progress):
                has_lines = True
                if (record := parse_line(line)) is not None:
                    yield record

    name = "standard input" if path == STDIN else str(path)
    try:
        findings = diagnose(records())
    except OSError as error:
        raise MissingError(
            "log-missing",
            f"cannot read {name}: {error.strerror or error}; give a log of an SGLang server",
        ) from error
    if not has_lines:
        raise UsageError("log-empty", f"{name} is empty; give a log of an SGLang server")
    if not findings.total.num_batches:
        raise UsageError(
            "log-without-prefill",
            f"{name} has no line of a prefill batch; give the output of an SGLang server, as plain "
            "text, with log level info",
        )
    return findings


def diagnose(records: Iterable[LogRecord]) -> Findings:
    """Judges what a log tells, in its order."""
    course = _Course()
    for record in records:
        course.take(record)
    return course.end()


class _Course:
    """A server's course along its log: what has to be remembered from line to line."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._page_tokens = 1
        self._is_warming_up = False
        #: Schedulers whose last batch left the rest of a prompt to the next.
        self._unfinished: set[str] = set()
        self._requests = RequestOverlap()
        self._num_abort_calls = 0
        self._num_aborts_seen = 0

    def take(self, record: LogRecord) -> None:
        match record:
            case PrefillBatch():
                self._take_batch(record)
            case RequestReceived():
                self._take_received(record)
            case RequestFinished():
                self._take_finished(record)
            case RequestDropped():
                self._requests.drop(record.rid)
                self._count_abort()
            case AbortCalled():
                self._num_abort_calls += 1
                self._settle_aborts()
            case Retraction():
                self.findings.num_retracted_requests += record.num_requests
            case ServerStarted():
                self._start(record)
            case ChunkSettled():
                self.findings.chunk_tokens = record.chunk_tokens
            case ServerReady():
                self._is_warming_up = False

    def end(self) -> Findings:
        """What was found, when no record is left."""
        self._judge_requests(is_over=True)
        return self.findings

    def _start(self, server: ServerStarted) -> None:
        self._judge_requests(is_over=True)
        self.findings.chunk_tokens = server.chunk_tokens
        self.findings.is_mixed = server.is_mixed
        self._page_tokens = server.page_tokens or 1
        self._is_warming_up = True
        self._unfinished.clear()

    def _take_batch(self, batch: PrefillBatch) -> None:
        if any(tag.startswith("PP") and tag != "PP0" for tag in batch.rank.split()):
            return  # a later pipeline stage of a batch that was counted
        findings = self.findings
        num_tokens = batch.num_tokens or 0
        kinds = self._kinds_of(batch)
        minute = batch.at.replace(second=0) if batch.at else None
        findings.total.add(num_tokens, kinds)
        findings.minutes.setdefault(minute, Tally()).add(num_tokens, kinds)
        findings.num_cached_tokens += batch.num_cached_tokens or 0
        findings.num_decoding += batch.num_decoding or 0
        findings.num_unknown_chunk += findings.chunk_tokens is None
        findings.num_incomplete += None in (
            batch.num_prompts,
            batch.num_tokens,
            batch.num_cached_tokens,
            batch.num_decoding,
        )

    def _kinds_of(self, batch: PrefillBatch) -> frozenset[Kind]:
        num_prompts = batch.num_prompts or 1
        is_continued = batch.rank in self._unfinished
        is_left_unfinished = self._leaves_a_rest(batch)
        if is_left_unfinished:
            self._unfinished.add(batch.rank)
        else:
            self._unfinished.discard(batch.rank)
        is_chunked = is_continued or is_left_unfinished
        is_probe = (
            batch.num_tokens == 1
            and num_prompts == 1
            and not batch.num_cached_tokens
            and not is_chunked
        )
        judged = {
            Kind.SEVERAL_PROMPTS: num_prompts > 1,
            Kind.CHUNKED: is_chunked,
            Kind.CACHED: bool(batch.num_cached_tokens),
            Kind.BESIDE_DECODING: bool(batch.num_decoding),
            Kind.NO_PROMPT: self._is_warming_up or is_probe,
        }
        return frozenset(kind for kind, is_so in judged.items() if is_so)

    def _leaves_a_rest(self, batch: PrefillBatch) -> bool:
        """Whether the batch ends within a prompt.

        The line does not say so. SGLang cuts a prompt where the batch is full: at the chunk size,
        less a token for each generating request that shares the pass, on a page boundary. A batch
        that is full by chance leaves nothing pending.
        """
        chunk_tokens = self.findings.chunk_tokens
        if chunk_tokens is None or chunk_tokens <= 0 or batch.num_pending_tokens == 0:
            return False
        num_shared = (batch.num_decoding or 0) if self.findings.is_mixed else 0
        fullest = max(chunk_tokens - num_shared, 1)
        return (batch.num_tokens or 0) > fullest - self._page_tokens

    def _take_received(self, received: RequestReceived) -> None:
        if self._is_warming_up:
            return
        for rid in received.rids:
            if not rid.startswith(_HEALTH_CHECK):
                self._requests.begin(rid)

    def _take_finished(self, finished: RequestFinished) -> None:
        if self._is_warming_up or finished.rid.startswith(_HEALTH_CHECK):
            return
        self.findings.num_finished_requests += 1
        if finished.is_aborted:
            self._count_abort()
        self._requests.finish(finished)
        self._judge_requests()

    def _judge_requests(self, *, is_over: bool = False) -> None:
        findings = self.findings
        for finished, is_beside_others in self._requests.judged(is_over=is_over):
            num_dumps = self._num_dumps(finished)
            if (
                is_beside_others
                or finished.is_aborted
                or finished.num_cached_tokens
                or finished.num_retractions
                or (num_dumps or 1) > 1
            ):
                findings.num_affected_requests += 1
                if len(findings.affected_requests) < MOST_REQUESTS:
                    request = AffectedRequest(finished, is_beside_others, num_dumps)
                    findings.affected_requests.append(request)

    def _num_dumps(self, finished: RequestFinished) -> int | None:
        """Chunks that the prompt fills when it has every batch for itself."""
        chunk_tokens = self.findings.chunk_tokens
        if chunk_tokens is None or finished.num_prompt_tokens is None:
            return None
        num_computed = finished.num_prompt_tokens - (finished.num_cached_tokens or 0)
        return -(-num_computed // chunk_tokens) if 0 < chunk_tokens < num_computed else 1

    def _count_abort(self) -> None:
        self._num_aborts_seen += 1
        self._settle_aborts()

    def _settle_aborts(self) -> None:
        # Without logged requests, the calls are all there is to see; with them, both are logged.
        self.findings.num_aborted_requests = max(self._num_aborts_seen, self._num_abort_calls)
