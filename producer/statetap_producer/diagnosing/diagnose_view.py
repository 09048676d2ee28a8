"""How the findings of a log look in a terminal."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from statetap_producer.diagnosing.diagnose import AffectedRequest, Findings, Kind, Tally
from statetap_producer.terminal.counted import counted

#: Lines of the table over time, which is made coarser until they suffice.
_MOST_PERIODS: Final = 20
_PERIODS: Final = {
    1: "minute",
    5: "5 minutes",
    15: "15 minutes",
    60: "hour",
    240: "4 hours",
    1440: "day",
}

#: Characters of a request id that stay on one line.
_WHOLE_RID: Final = 32

_LABELS: Final = {
    Kind.SEVERAL_PROMPTS: "several prompts",
    Kind.CHUNKED: "chunked",
    Kind.CACHED: "partly cached",
    Kind.BESIDE_DECODING: "beside decoding",
    Kind.NO_PROMPT: "no prompt",
}

#: The same, for the heads of columns.
_SHORT_LABELS: Final = {
    Kind.SEVERAL_PROMPTS: "several",
    Kind.CHUNKED: "chunked",
    Kind.CACHED: "cached",
    Kind.BESIDE_DECODING: "decoding",
    Kind.NO_PROMPT: "no prompt",
}


def findings_view(findings: Findings) -> RenderableType:
    """What each kind of batch means for a dump, when it happened, to whom; the verdict last."""
    parts: list[RenderableType] = [
        _kinds_table(findings),
        *_event_lines(findings),
        Text(),
        *_periods_view(findings),
        Text(),
    ]
    if findings.affected_requests:
        parts += [_requests_title(findings), _requests_table(findings), Text()]
    return Group(*parts, *_note_lines(findings), _verdict(findings))


def findings_json(findings: Findings) -> dict[str, object]:
    """The findings as a JSON object; of the affected requests it holds the first ones."""
    return {
        "chunked_prefill_size": findings.chunk_tokens,
        "is_mixed_chunk": findings.is_mixed,
        **_tally_json(findings.total),
        "num_cached_tokens": findings.num_cached_tokens,
        "num_decoding_requests": findings.num_decoding,
        "num_retracted_requests": findings.num_retracted_requests,
        "num_aborted_requests": findings.num_aborted_requests,
        "num_batches_of_unknown_chunk_size": findings.num_unknown_chunk,
        "num_incomplete_lines": findings.num_incomplete,
        "minutes": [
            {"begin": minute.isoformat() if minute else None, **_tally_json(tally)}
            for minute, tally in _in_order(findings.minutes)
        ],
        "num_finished_requests": findings.num_finished_requests,
        "num_affected_requests": findings.num_affected_requests,
        "affected_requests": [_request_json(request) for request in findings.affected_requests],
    }


def _tally_json(tally: Tally) -> dict[str, object]:
    return {
        "num_batches": tally.num_batches,
        "num_tokens": tally.num_tokens,
        "num_wrong_batches": tally.num_wrong_batches,
        "num_wrong_tokens": tally.num_wrong_tokens,
        "kinds": {
            kind.value: {
                "num_batches": tally.batches_by_kind[kind],
                "num_tokens": tally.tokens_by_kind[kind],
            }
            for kind in Kind
        },
    }


def _request_json(request: AffectedRequest) -> dict[str, object]:
    finished = request.finished
    return {
        "rid": finished.rid,
        "ended": finished.at.isoformat() if finished.at else None,
        "num_prompt_tokens": finished.num_prompt_tokens,
        "num_cached_tokens": finished.num_cached_tokens,
        "num_retractions": finished.num_retractions,
        "duration_s": finished.duration_s,
        "num_dumps": request.num_dumps,
        "is_beside_others": request.is_beside_others,
        "is_aborted": finished.is_aborted,
    }


def _kinds_table(findings: Findings) -> Table:
    total = findings.total
    table = _table("kind")
    for name in ("batches", "tokens"):
        table.add_column(name, justify="right")
    table.add_column("what that means for a dump", overflow="fold")
    meanings = _meanings(findings)
    for kind, label in _LABELS.items():
        if num_batches := total.batches_by_kind[kind]:
            tokens = f"{total.tokens_by_kind[kind]:,}"
            table.add_row(label, f"{num_batches:,}", tokens, meanings[kind])
    num_clean = total.num_batches - total.num_wrong_batches
    table.add_row(
        "none of these",
        f"{num_clean:,}",
        f"{total.num_tokens - total.num_wrong_tokens:,}",
        "one prompt, whole, in one dump" if num_clean else "",
    )
    return table


def _meanings(findings: Findings) -> dict[Kind, str]:
    decoding = counted(findings.num_decoding, "row")
    return {
        Kind.SEVERAL_PROMPTS: "rows of several prompts lie in one dump",
        Kind.CHUNKED: "a prompt's rows are spread over several dumps",
        Kind.CACHED: f"{counted(findings.num_cached_tokens, 'row')} missing: the prefix cache had "
        "them",
        Kind.BESIDE_DECODING: {
            True: f"{decoding} of tokens that others generate lie in the same dumps",
            False: "dumps of tokens that others generate come in between",
            None: "rows, or dumps, of tokens that others generate come in between",
        }[findings.is_mixed],
        Kind.NO_PROMPT: "warm-up and health checks: dumps that belong to no prompt",
    }


def _event_lines(findings: Findings) -> Iterable[Text]:
    if num_retracted := findings.num_retracted_requests:
        yield Text(
            f"{counted(num_retracted, 'time')} a request was retracted: it is computed again with "
            "what it had generated, a second dump, with more rows than the prompt has"
        )
    if num_aborted := findings.num_aborted_requests:
        yield Text(
            f"{counted(num_aborted, 'request')} aborted: a dump may be there that nobody waits "
            "for, and the next script picks it up"
        )


def _periods_view(findings: Findings) -> tuple[Text, Table]:
    minutes, periods = _periods(findings.minutes)
    table = _table("from")
    for name in (
        "batches",
        "tokens",
        "wrong",
        "several",
        "chunked",
        "cached",
        "decoding",
        "no prompt",
    ):
        table.add_column(name, justify="right")
    shown = list(periods.items())[:_MOST_PERIODS]
    for begin, tally in shown:
        table.add_row(
            f"{begin:%Y-%m-%d %H:%M}" if begin else "no time",
            *(f"{number:,}" for number in (tally.num_batches, tally.num_tokens)),
            f"{tally.num_wrong_batches / tally.num_batches:.0%}",
            *(f"{tally.batches_by_kind[kind]:,}" for kind in _SHORT_LABELS),
        )
    if num_left := len(periods) - len(shown):
        table.add_row(f"{num_left:,} more in --json")
    return Text(f"per {_PERIODS[minutes]}", "italic"), table


def _periods(
    minutes: dict[datetime | None, Tally],
) -> tuple[int, dict[datetime | None, Tally]]:
    """The shortest period that gives few enough lines, its minutes, and its tallies in order."""
    for width in _PERIODS:
        periods: dict[datetime | None, Tally] = {}
        for minute, tally in minutes.items():
            periods.setdefault(_begin(minute, width), Tally()).merge(tally)
        if len(periods) <= _MOST_PERIODS:
            break
    return width, dict(_in_order(periods))


def _in_order(tallies: dict[datetime | None, Tally]) -> list[tuple[datetime | None, Tally]]:
    return sorted(tallies.items(), key=lambda item: (item[0] is None, str(item[0])))


def _begin(minute: datetime | None, width: int) -> datetime | None:
    if minute is None:
        return None
    since_midnight = (minute.hour * 60 + minute.minute) // width * width
    return minute.replace(hour=since_midnight // 60, minute=since_midnight % 60)


def _requests_title(findings: Findings) -> Text:
    num_shown, num_affected = len(findings.affected_requests), findings.num_affected_requests
    first = "" if num_shown == num_affected else f", the first {num_shown}"
    return Text(
        f"requests affected: {num_affected:,} of {findings.num_finished_requests:,} logged{first}",
        "italic",
    )


def _requests_table(findings: Findings) -> Table:
    shown = findings.affected_requests
    table = _table("rid", "ended")
    # Ids are copied and searched for: better the reasons are wrapped.
    table.columns[0].no_wrap = all(len(request.finished.rid) <= _WHOLE_RID for request in shown)
    for name in ("prompt", "cached", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("why", overflow="fold")
    for request in shown:
        finished = request.finished
        duration = "?" if finished.duration_s is None else f"{finished.duration_s:.2f}"
        table.add_row(
            Text(finished.rid),
            f"{finished.at:%H:%M:%S}" if finished.at else "?",
            *(
                "?" if number is None else f"{number:,}"
                for number in (finished.num_prompt_tokens, finished.num_cached_tokens)
            ),
            duration,
            ", ".join(_reasons(request)),
        )
    return table


def _reasons(request: AffectedRequest) -> Iterable[str]:
    finished = request.finished
    if num_cached := finished.num_cached_tokens:
        yield f"{counted(num_cached, 'row')} missing"
    if (num_dumps := request.num_dumps or 1) > 1:
        yield f"in {num_dumps:,} dumps"
    if request.is_beside_others:
        yield "beside others"
    if finished.num_retractions:
        yield "retracted"
    if finished.is_aborted:
        yield "aborted"


def _note_lines(findings: Findings) -> Iterable[Text]:
    if num_unknown := findings.num_unknown_chunk:
        yield Text(
            f"Chunked batches are not told among {num_unknown:,}: the log does not begin with the "
            "server's start, which says the chunk size.",
            "yellow",
        )
    if num_incomplete := findings.num_incomplete:
        yield Text(
            f"{counted(num_incomplete, 'line')} of a batch without one of #new-seq, #new-token, "
            "#cached-token and #running-req; what is missing is taken as none.",
            "yellow",
        )


def _verdict(findings: Findings) -> Text:
    total = findings.total
    batches = f"{total.num_batches:,} prefill {'batch' if total.num_batches == 1 else 'batches'}"
    if not total.num_wrong_batches:
        return Text(
            f"A directory scan picks up none of {batches} wrongly, as far as the log tells.",
            "bold green",
        )
    return Text(
        f"A directory scan picks up {total.num_wrong_batches:,} of {batches} wrongly: "
        f"{total.num_wrong_batches / total.num_batches:.0%}, {total.num_wrong_tokens:,} of "
        f"{total.num_tokens:,} tokens.",
        "bold red",
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="cyan")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
