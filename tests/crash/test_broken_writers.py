"""The crash states find what is wrong with a writer that breaks a rule."""

import re

import pytest

from .crashes import Crashes
from .trace import MakeTracer

NUM_SAMPLES = 100
NUM_STATES = 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "found"),
    [("no-fdatasync", "lost"), ("no-folder-sync", "lost"), ("no-payload-check", "wrong")],
)
def test_a_broken_rule_is_found_out(fault: str, found: str, make_tracer: MakeTracer) -> None:
    """Without a sync acknowledged samples get lost, without a checksum wrong ones are stored."""
    with Crashes(make_tracer(), 1, NUM_SAMPLES, fault) as crashes:
        verdict = crashes.play("power", range(NUM_STATES))
    assert getattr(verdict, f"num_{found}") > 0, verdict.summary()


@pytest.mark.timeout(120)
def test_a_state_can_be_played_alone(make_tracer: MakeTracer) -> None:
    """A fault is found again by its seed and number, in another run."""
    with Crashes(make_tracer(), 1, NUM_SAMPLES, "no-fdatasync") as crashes:
        faults = crashes.play("power", range(NUM_STATES)).faults
    fault = next(fault for fault in faults if fault.endswith("is lost"))
    number = int(re.findall(r"\d+", fault)[0])
    with Crashes(make_tracer(), 1, NUM_SAMPLES, "no-fdatasync") as crashes:
        alone = crashes.play("power", [number])
    assert fault in alone.faults
