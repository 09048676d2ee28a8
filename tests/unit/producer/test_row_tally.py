"""Counts of a plan under way."""

from array import array

from statetap_contract import Prompt
from statetap_producer.planning.row_tally import RowTally
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.run.plan import PlannedPrompt, plan_batch


def test_loss_tokens_and_cuts_are_summed() -> None:
    """Spans of any number a prompt, over batches and over slices of them."""
    prompt = Prompt(array("i", range(10)), ((0, 2), (4, 9)))
    bare = Prompt(array("i", range(3)), ())
    rows = [
        PlannedPrompt("0" * 32, prompt, "a", 1, None, is_cut=True),
        PlannedPrompt("1" * 32, bare, "a", 2, None),
        PlannedPrompt("2" * 32, prompt, "a", 3, None),
    ]
    tally = RowTally()
    tally.plan(plan_batch(rows))
    tally.plan(plan_batch(rows).slice(1, 2))
    tally.plan(plan_batch([]))
    counts = tally.counts()
    assert (counts.num_loss_tokens, counts.num_cut, counts.num_tokens) == (3 * 7, 1, 36)


def test_reasons_stand_by_frequency() -> None:
    """The most frequent first, each with the first row that had it."""
    tally = RowTally()
    for line, kind in enumerate(["b", "a", "a"], 1):
        tally.leave_out(RowFault("f", line, kind, f"why {line}"))
    assert [(r.kind, r.num_rows, r.first_line, r.first_message) for r in tally.left_out()] == [
        ("a", 2, 2, "why 2"),
        ("b", 1, 1, "why 1"),
    ]
