"""Crashes of a writer at random calls, played through; ``make crash`` plays 2,000 of each kind."""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from .crashes import KINDS, Crashes
from .trace import MakeTracer

#: Samples of the traced run: enough for about seven shards.
_NUM_SAMPLES: Final = 400


@pytest.fixture(scope="module")
def crashes(make_tracer: MakeTracer, pytestconfig: pytest.Config) -> Iterator[Crashes]:
    """A run that appends, rolls over, seals, and is killed and continued several times."""
    with Crashes(make_tracer(), pytestconfig.getoption("--crash-seed"), _NUM_SAMPLES) as played:
        yield played


def wanted_numbers(kind: str, config: pytest.Config) -> range:
    """Numbers of the crashes of one kind that the options ask for."""
    only: str | None = config.getoption("--crash-only")
    if only is None:
        return range(config.getoption("--crash-states"))
    match = re.fullmatch(rf"({'|'.join(KINDS)})-(\d+)", only)
    if match is None:
        message = f"--crash-only={only} is no crash: give one such as power-17"
        pytest.fail(message, pytrace=False)
    if match[1] != kind:
        pytest.skip(f"only {only} was asked for")
    return range(int(match[2]), int(match[2]) + 1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_harms_what_was_acknowledged(
    kind: str,
    crashes: Crashes,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After recovery all files open, all acknowledged samples are there, none is wrong."""
    numbers = wanted_numbers(kind, pytestconfig)
    verdict = crashes.play(kind, numbers)
    with capsys.disabled():
        print(f"\n{verdict.summary()}\nverdict: {verdict}")  # noqa: T201  the seed, in every run
    if verdict.faults:
        some = "\n".join(verdict.faults[:20])
        message = (
            f"{len(verdict.faults)} faults, such as these; a state is played alone with "
            f"--crash-seed={verdict.seed} --crash-only=STATE\n{some}"
        )
        pytest.fail(message, pytrace=False)
    if len(numbers) >= 100:
        assert verdict.num_repaired
        assert verdict.num_crashed_again
