"""What failed on the way to a run's samples: tries, and dead letters."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from statetap_contract import FailedTry

from statetap_producer.queueing.run_state import RunState
from statetap_producer.reporting.report_facts import DeadKind, Failures, TriedKind

_MOST_EXAMPLES: Final = 3


def failures(state: RunState, tries: Path) -> Failures:
    """Counts what the run's files tell.

    A line of ``tries`` that is cut short or not one of these is counted apart: workers pass over
    it too.

    Args:
        state: the run.
        tries: the folder of its failed tries.
    """
    num_tries: Counter[str] = Counter()
    by_server: Counter[str] = Counter()
    keys_of: defaultdict[str, set[str]] = defaultdict(set)
    num_unreadable = 0
    for failed in _failed_tries(tries):
        if failed is None:
            num_unreadable += 1
            continue
        num_tries[failed.kind] += 1
        by_server[failed.server] += 1
        keys_of[failed.kind].add(failed.key)
    return Failures(
        tried=tuple(
            _tried(kind, number, keys_of[kind], state) for kind, number in num_tries.most_common()
        ),
        dead=tuple(_dead(state)),
        tries_by_server=tuple(by_server.most_common()),
        num_rerun=len(state.planned & state.settled.pardons.read().keys()),
        num_unreadable=num_unreadable,
    )


def _tried(kind: str, num_tries: int, keys: set[str], state: RunState) -> TriedKind:
    num_stored, num_dead = len(keys & state.stored), len(keys & state.dead)
    num_pending = len(keys & state.planned) - num_stored - num_dead
    return TriedKind(kind, num_tries, num_stored, num_dead, num_pending)


def _dead(state: RunState) -> Iterator[DeadKind]:
    """Letters that count, by reason, the most frequent first."""
    letters = [state.settled.letters[key] for key in state.dead]
    by_kind = Counter(letter.kind for letter in letters)
    for kind, number in sorted(by_kind.items(), key=lambda item: (-item[1], item[0])):
        of_kind = [letter for letter in letters if letter.kind == kind]
        first = sorted(of_kind, key=lambda letter: (letter.time, letter.key))
        yield DeadKind(kind, number, tuple(first[:_MOST_EXAMPLES]))


def _failed_tries(folder: Path) -> Iterator[FailedTry | None]:
    """The lines of all workers; None for one that cannot be read."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open("rb") as lines:
            for line in lines:
                try:
                    yield FailedTry.from_json(json.loads(line))
                except (ValueError, RecursionError):
                    yield None
