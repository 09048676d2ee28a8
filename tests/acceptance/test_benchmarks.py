"""The benchmarks that need a server, on a small scale: of times only what is far off is told."""

from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from statetap_contract import Prompt


@pytest.fixture
def builtin_rows(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("builtin_rows")


def test_builtin_loses_rows_behind_a_shared_system_prompt_and_ours_none(
    builtin_rows: ModuleType,
) -> None:
    """All but the first prompts in flight hit the prefix cache, and no error says so."""
    num_prompts = 40
    tallies = builtin_rows.measure(num_prompts, seed=0)
    builtin = tallies["built-in", "shared"]
    num_hits = num_prompts - builtin_rows.NUM_IN_FLIGHT
    assert builtin.num_short >= num_hits
    assert builtin.num_rows_missing >= num_hits * builtin_rows.NUM_SYSTEM_TOKENS
    assert builtin.num_errors == 0
    for system in ("none", "shared"):
        ours = tallies["statetap", system]
        assert (ours.num_short, ours.num_rows_missing, ours.num_errors) == (0, 0, 0)


def test_rows_missing_and_requests_that_failed_are_counted(builtin_rows: ModuleType) -> None:
    """Of prompts of 3, 4 and 5 tokens, one is whole, one lacks a row, one fails."""

    def count_rows(prompt: Prompt) -> int:
        if prompt.num_tokens == 5:
            raise httpx.ReadTimeout("no answer")
        return 3

    prompts = [Prompt(array("i", range(length)), ()) for length in (3, 4, 5)]
    tally = builtin_rows.tally_rows(count_rows, prompts)
    assert (tally.num_prompts, tally.num_rows_expected) == (3, 12)
    assert (tally.num_short, tally.num_rows_missing, tally.num_errors) == (2, 6, 1)


def test_servers_with_other_settings_are_not_compared(builtin_rows: ModuleType) -> None:
    """The port may differ, the chunk size may not."""
    builtin = {"port": 1, "chunked_prefill_size": 4096}
    builtin_rows.check_settings(builtin, builtin | {"port": 2})
    with pytest.raises(SystemExit, match="chunked_prefill_size 4096, the patched one 256"):
        builtin_rows.check_settings(builtin, builtin | {"chunked_prefill_size": 256})


def test_a_worker_takes_milliseconds_a_sample(
    benchmark_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    """The wait for the answer and the worker's own time are parts of a message's."""
    script = benchmark_script("worker_overhead")
    (a_round,) = script.measure(num_rounds=1, num_samples=20, seed=0, folder=tmp_path)
    assert a_round.bare_ms > 0
    assert a_round.acknowledgement_ms > 0
    assert 0 < a_round.answer_ms < a_round.message_ms
    # Of each message, not only of the medians: the next is sent after this one's answer.
    assert a_round.answer_ms < a_round.cycle_ms
    # Seconds would be another class.
    assert 0 < a_round.own_ms < 1000


def test_the_worker_s_own_time_is_what_is_left_of_a_message(
    benchmark_script: Callable[[str], ModuleType],
) -> None:
    """Of 20 ms, 17.5 of them the answer's, it is 2.5."""
    assert benchmark_script("worker_overhead").Handled(20.0, 17.5, 0.5).own_ms == 2.5


def test_the_whole_way_keeps_up_with_a_bare_client(
    benchmark_script: Callable[[str], ModuleType], tiny_model: Path, tmp_path: Path
) -> None:
    """Far from a twentieth of its rate; the tiny model shows the cost of everything else."""
    script = benchmark_script("end_to_end")
    [(ours, bare)] = script.measure(
        tiny_model, num_threads=1, num_rounds=1, num_prompts=24, seed=0, folder=tmp_path
    )
    assert ours / bare > 1 / 20


def test_what_a_worker_asks_of_redis_is_counted(
    benchmark_script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    """Some commands a sample, a connection at least for parent and children, some memory."""
    script = benchmark_script("redis_load")
    load = script.measure(2, 40, idle_s=3.0, folder=tmp_path)
    assert load.num_connections >= 3
    # It is taken, leased, given back and acknowledged; hundreds would be another class.
    assert 4 < load.commands_sample < 200
    assert 0 < load.idle_commands_s < 100
    # Three Python processes; what they share is counted once.
    assert 30e6 < load.memory_bytes < 3e9


def test_a_benchmark_fails_when_its_bound_is_missed(
    benchmark_script: Callable[[str], ModuleType],
) -> None:
    """By the median of the rounds: one that was disturbed does not count."""
    overhead = benchmark_script("worker_overhead")
    rounds = [overhead.Round(99.0, 20.0, own_ms, 0.5, 99.0, 20.0) for own_ms in (2.0, 2.5, 70.0)]
    assert overhead.show(rounds, seed=0) == 0
    assert overhead.show([overhead.Round(23.5, 20.0, 3.5, 0.5, 25.0, 20.0)], seed=0) == 1
    end_to_end = benchmark_script("end_to_end")
    assert end_to_end.show([(95.0, 100.0), (96.0, 100.0), (10.0, 100.0)], seed=0) == 0
    assert end_to_end.show([(89.0, 100.0)], seed=0) == 1
