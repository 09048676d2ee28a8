"""What the benchmarks say of SGLang's own way, on a small scale."""

from array import array
from collections.abc import Callable
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
