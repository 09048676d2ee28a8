"""Errors cross process boundaries."""

import pickle

import pytest
from statetap_contract import (
    CheckError,
    MismatchError,
    MissingError,
    RejectError,
    StatetapError,
    StopError,
    TransientError,
    UsageError,
)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("a-kind", "a sentence"),
        MissingError("a-kind", "a sentence"),
        CheckError("a-kind", "a sentence"),
        MismatchError("a-kind", "a sentence"),
        RejectError("a-kind", "a sentence"),
        StopError("a-kind", "a sentence"),
        TransientError("a-kind", "a sentence", 2.5),
    ],
)
def test_errors_survive_pickling(error: StatetapError) -> None:
    """Celery pickles exceptions between child and parent; nothing may be lost on the way."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    assert type(copy) is type(error)
    assert (copy.kind, copy.message, str(copy)) == ("a-kind", "a sentence", "a sentence")
    assert vars(copy) == vars(error)


def test_exit_codes_are_the_documented_ones() -> None:
    """1 the check failed, 2 wrong use, 3 something needed is not there."""
    assert [kind.exit_code for kind in (CheckError, UsageError, MissingError)] == [1, 2, 3]
