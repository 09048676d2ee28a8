"""What becomes of a hook that fails: nothing, for SGLang."""

import logging
from typing import Any, NoReturn

import pytest
from statetap_patch.guard import Guard


@pytest.fixture
def guard() -> Guard:
    return Guard()


def fail(*_: Any) -> NoReturn:
    raise KeyError("a bug of ours")


def test_a_failing_hook_beside_its_target_is_logged_and_counted(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang takes None for: nothing to change."""
    with caplog.at_level(logging.ERROR):
        assert guard.beside(fail)("any", "arguments") is None
    assert guard.num_errors == 1
    assert "the hook fail failed" in caplog.text
    assert "a bug of ours" in caplog.text


def test_a_hook_that_fails_before_its_target_runs_is_passed_by(guard: Guard) -> None:
    """The target runs as if there were no hook, with SGLang's own arguments."""
    assert guard.around(fail)(max, 3, 5) == 5
    assert guard.num_errors == 1


def test_a_hook_that_fails_after_its_target_ran_keeps_the_result(guard: Guard) -> None:
    """The target never runs twice."""
    calls: list[int] = []

    def target(value: int) -> int:
        calls.append(value)
        return value + 1

    def hook(original: Any, value: int) -> NoReturn:
        original(10 * value)
        raise KeyError("a bug of ours")

    assert guard.around(hook)(target, 4) == 41
    assert calls == [40]
    assert guard.num_errors == 1


def test_what_the_target_raises_is_sglangs_own(guard: Guard) -> None:
    """It passes, and is no error of the patch."""

    def hook(original: Any) -> Any:
        return original()

    with pytest.raises(KeyError, match="a bug of ours"):
        guard.around(hook)(fail)
    assert guard.num_errors == 0


def test_a_hook_may_still_end_the_server_on_purpose(guard: Guard) -> None:
    """SystemExit is how a server that cannot capture refuses to start."""

    def refuse() -> NoReturn:
        raise SystemExit("no")

    with pytest.raises(SystemExit):
        guard.beside(refuse)()


def test_a_hook_that_works_is_not_in_the_way(guard: Guard) -> None:
    """Result and name are the hook's own."""

    def hook(original: Any, value: int) -> int:
        return int(original(value)) * 2

    guarded = guard.around(hook)
    assert guarded(abs, -4) == 8
    assert guarded.__name__ == "hook"
    assert guard.num_errors == 0
