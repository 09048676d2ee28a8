"""planned = stored + dead + pending."""

import dataclasses
from array import array

import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder

from .conftest import give_up, prompts_of, store


def split(state: RunState) -> tuple[int, int, int, int]:
    numbers = state.numbers()
    return numbers.planned, numbers.stored, numbers.dead, numbers.pending


def test_prompts_move_from_pending_to_stored_or_dead(run: RunFolder) -> None:
    """Every refresh sees what workers did since, and the parts always add up."""
    first, second = prompts_of(run)
    state = RunState(run)
    assert split(state) == (2, 0, 0, 2)
    store(run, first)
    state.refresh()
    assert split(state) == (2, 1, 0, 1)
    give_up(run, second.key, "too-long-for-server")
    state.refresh()
    assert split(state) == (2, 1, 1, 0)
    assert state.numbers().dead_by_kind == {"too-long-for-server": 1}


def test_sizes_are_those_of_the_samples(run: RunFolder) -> None:
    """Tokens as planned; bytes are rows of four float32 slots of 64, ids and mask."""
    first, second = prompts_of(run)
    store(run, first)
    numbers = RunState(run).numbers()
    num_tokens = first.prompt.num_tokens
    assert numbers.planned_tokens == num_tokens + second.prompt.num_tokens
    assert numbers.stored_tokens == num_tokens
    assert numbers.stored_bytes == num_tokens * (4 * 64 * 4 + 4 + 1)


def test_a_stored_sample_is_not_dead(run: RunFolder) -> None:
    """A sample that was given up on and later stored counts once, as stored."""
    first, second = prompts_of(run)
    for row in (first, second):
        give_up(run, row.key)
    store(run, first)
    assert split(RunState(run)) == (2, 1, 1, 0)


def test_what_was_not_planned_is_told_apart(run: RunFolder) -> None:
    """Samples and dead letters of other prompts change none of the run's counts."""
    prompt = Prompt(array("i", [1, 2, 3]), ((1, 2),))
    stranger = dataclasses.replace(prompts_of(run)[0], key="ab" * 16, prompt=prompt)
    store(run, stranger)
    give_up(run, "cd" * 16)
    state = RunState(run)
    assert split(state) == (2, 0, 0, 2)
    assert state.unplanned == {"ab" * 16}


def test_a_shard_that_cannot_be_read_is_named(run: RunFolder) -> None:
    """Its samples count as pending, and the reason comes along."""
    run.shards.mkdir()
    (run.shards / "w0-00001.h5").write_bytes(b"not a shard")
    numbers = RunState(run).numbers()
    assert numbers.pending == 2
    assert ["w0-00001.h5" in sentence for sentence in numbers.unreadable_shards] == [True]


def test_a_run_that_is_not_planned_has_no_state(run: RunFolder) -> None:
    """Plan and run record are both needed."""
    run.plan_file.unlink()
    with pytest.raises(StatetapError) as caught:
        RunState(run)
    assert caught.value.kind == "plan-missing"
