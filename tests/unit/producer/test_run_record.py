"""The run record as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from statetap_contract import CaptureSpec
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.run.run_record import LeftOut, PlanCounts, PlanInputs, RunRecord

RECORD = RunRecord(
    name="demo",
    inputs=PlanInputs(
        spec=CaptureSpec("tiny", "ab" * 16, (2, 4, 5), "post", 64, "bfloat16"),
        dataset="chats.jsonl",
        dataset_digest="cd" * 16,
        tokenizer_digest="ef" * 16,
        template_digest="01" * 16,
        rules=PromptRules(255, is_cut=True),
    ),
    counts=PlanCounts(10, 7, 1, 2, 700, 300, 50, 100, 150, (0, 0, 0, 0, 0, 1, 5, 1)),
    left_out=(LeftOut("row-not-json", 2, "chats.jsonl", 3, "the row is not JSON"),),
)


def test_a_record_survives_json() -> None:
    """What is written is what is read."""
    assert RunRecord.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def test_room_needed_counts_rows_ids_and_mask() -> None:
    """A token takes four slots of 64 bfloat16 elements, an int32 id and a mask byte."""
    assert RECORD.shard_bytes == 700 * (4 * 64 * 2 + 4 + 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("spec"),
        lambda record: record.update(extra=1),
        lambda record: record.update(version=1),
        lambda record: record["rules"].update(max_tokens="255"),
        lambda record: record["dataset"].pop("digest"),
        lambda record: record["dataset"].update(extra=1),
        lambda record: record["rules"].pop("is_cut"),
        lambda record: record["counts"].update(extra=1),
        lambda record: record["counts"].update(histogram=["1"]),
        lambda record: record["left_out"].append(None),
        lambda record: record["left_out"][0].update(extra=1),
    ],
)
def test_any_other_object_is_refused(damage: Callable[[Any], None]) -> None:
    """A missing, unknown or wrongly typed field, at any depth, is an error."""
    record = json.loads(json.dumps(RECORD.to_json()))
    damage(record)
    with pytest.raises(ValueError, match=r"."):
        RunRecord.from_json(record)
