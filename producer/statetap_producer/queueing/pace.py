"""How fast a run goes, in all and by worker and server, and where that leads."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statetap_store.run_scanner import RECENT_S, ShardTally
from statetap_store.shard_names import writer_of

from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.run_state import RunNumbers, RunState
from statetap_producer.run.run_folder import RunFolder

_NS: Final = 1_000_000_000

#: Samples written within less time say nothing of a rate.
_SHORTEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SourcePace:
    """What one writer, or one server, has contributed to the shards that can be seen."""

    #: The writer's name, which is its worker's with a number; or the server's host.
    name: str
    num_samples: int
    num_tokens: int
    #: Over the last half minute.
    tokens_per_s: float
    #: Seconds since its last sample was written; None without any.
    last_sample_s: float | None


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates by the times that stand beside the samples, hence by the clocks of the workers."""

    #: Over the last half minute. None at the first look at a run of which samples lie on disks
    #: that cannot be seen from here.
    tokens_per_s: float | None
    bytes_per_s: float | None
    #: From the first sample to the last, pauses included. None for one sample, and for a run of
    #: which samples lie on disks that cannot be seen from here.
    overall_tokens_per_s: float | None
    overall_bytes_per_s: float | None
    #: Seconds until nothing is pending, at the present rate or, where that is 0, at the overall.
    left_s: float | None
    #: Bytes free on the disk of the run.
    free_bytes: int
    #: Seconds until that disk is full, at the rate of the samples that can be seen there; None
    #: where the run ends before.
    disk_full_s: float | None
    writers: tuple[SourcePace, ...]
    servers: tuple[SourcePace, ...]


class PaceMeter:
    """Measures a run at each look at it.

    Args:
        run: the run.
        clock: seconds since 1970.
    """

    def __init__(self, run: RunFolder, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._clock = clock
        #: When how many tokens were announced that files do not show, and by whom.
        self._announced: list[tuple[float, int]] = []
        self._announcers: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, state: RunState, numbers: RunNumbers) -> Pace:
        """The pace as of the state's last look."""
        now_s = self._clock()
        tallies = state.settled.scanner.tallies()
        announced = state.settled.announcements
        num_announced = announced.num_tokens if announced else 0
        in_files = _recent(tallies.values(), now_s)
        elsewhere = self._growth(announced, now_s) if announced else 0.0
        now = None if elsewhere is None else in_files + elsewhere
        overall_in_files = _overall(tallies.values())
        overall = None if num_announced else overall_in_files
        rate = now or overall
        num_left = _tokens_left(numbers)
        left_s = num_left / rate if rate else None
        free_bytes = shutil.disk_usage(_existing(self._run.shards)).free
        return Pace(
            tokens_per_s=now,
            bytes_per_s=None if now is None else now * state.sample_bytes,
            overall_tokens_per_s=overall,
            overall_bytes_per_s=None if overall is None else overall * state.sample_bytes,
            left_s=left_s,
            free_bytes=free_bytes,
            disk_full_s=_disk_full_s(
                free_bytes,
                num_left * state.sample_bytes,
                (in_files or overall_in_files or 0.0) * state.sample_bytes,
                left_s,
            ),
            writers=_sources(
                ((writer_of(path.name), tally) for path, tally in tallies.items()), now_s
            ),
            servers=_sources(((tally.host, tally) for tally in tallies.values()), now_s),
        )

    def _growth(self, announced: Announcements, now_s: float) -> float | None:
        """Tokens a second that were announced; None while too little time was looked at.

        Announcements have no times: their growth between looks has. It says nothing of a rate when
        a worker comes or goes with all that it holds, or when its shards are brought here.
        """
        announcers = frozenset((worker.name, worker.host) for worker in announced.workers)
        has_fallen = bool(self._announced) and announced.num_tokens < self._announced[-1][1]
        if has_fallen or announcers != self._announcers:
            self._announced.clear()
        self._announcers = announcers
        self._announced.append((now_s, announced.num_tokens))
        while now_s - self._announced[0][0] > RECENT_S:
            self._announced.pop(0)
        begun_s, first = self._announced[0]
        if not announced.num_tokens:
            return 0.0
        if now_s - begun_s < _SHORTEST_S:
            return None
        return (announced.num_tokens - first) / (now_s - begun_s)


def _recent(tallies: Iterable[ShardTally], now_s: float) -> float:
    tallies = list(tallies)
    since_s = _window_s(min((t.first_ns for t in tallies if t.first_ns), default=0), now_s)
    return sum(tally.num_recent_tokens for tally in tallies) / since_s


def _disk_full_s(
    free_bytes: int, bytes_left: float, bytes_per_s: float, left_s: float | None
) -> float | None:
    """Seconds until a disk is full that gets some of what is left, or all of it."""
    if not bytes_per_s or bytes_left <= free_bytes:
        return None
    full_s = free_bytes / bytes_per_s
    return full_s if left_s is None or full_s < left_s else None


def _window_s(first_ns: int, now_s: float) -> float:
    """Seconds that recent samples were written in: a run that has just begun has fewer."""
    return min(max(now_s - first_ns / _NS, _SHORTEST_S), RECENT_S)


def _overall(tallies: Iterable[ShardTally]) -> float | None:
    written = [tally for tally in tallies if tally.num_samples]
    first_ns = min((tally.first_ns for tally in written), default=0)
    last_ns = max((tally.last_ns for tally in written), default=0)
    seconds = (last_ns - first_ns) / _NS
    if seconds < _SHORTEST_S:
        return None
    return sum(tally.num_tokens for tally in written) / seconds


def _tokens_left(numbers: RunNumbers) -> float:
    """Tokens of pending prompts, where dead ones count as prompts of the mean length."""
    if not numbers.pending:
        return 0.0
    num_dead = numbers.dead * numbers.planned_tokens / numbers.planned
    return max(0.0, numbers.planned_tokens - numbers.stored_tokens - num_dead)


def _sources(named: Iterable[tuple[str, ShardTally]], now_s: float) -> tuple[SourcePace, ...]:
    by_name: defaultdict[str, list[ShardTally]] = defaultdict(list)
    for name, tally in named:
        by_name[name].append(tally)
    return tuple(_source(name, by_name[name], now_s) for name in sorted(by_name))


def _source(name: str, tallies: list[ShardTally], now_s: float) -> SourcePace:
    last_ns = max(tally.last_ns for tally in tallies)
    first_ns = min((tally.first_ns for tally in tallies if tally.first_ns), default=0)
    num_recent = sum(tally.num_recent_tokens for tally in tallies)
    return SourcePace(
        name,
        sum(tally.num_samples for tally in tallies),
        sum(tally.num_tokens for tally in tallies),
        num_recent / _window_s(first_ns, now_s),
        max(0.0, now_s - last_ns / _NS) if last_ns else None,
    )


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else folder.parent
