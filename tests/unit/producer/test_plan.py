"""The plan as a file."""

from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.plan import Plan, PlannedPrompt, PlanWriter


def planned(number: int) -> PlannedPrompt:
    ids = array("i", range(number % 5 + 4))
    spans = ((0, 1), (2, len(ids))) if number % 2 else ((1, 3),)
    return PlannedPrompt(f"{number:032x}", Prompt(ids, spans), number + 1, None)


def write(path: Path, rows: list[PlannedPrompt]) -> None:
    with PlanWriter(path) as writer:
        for row in rows:
            writer.append(row)


@pytest.mark.parametrize("num_rows", [1, 1023, 1024, 1025, 2050])
def test_rows_come_back_in_order(tmp_path: Path, num_rows: int) -> None:
    """Whatever the number of row groups, each prompt comes back as it went in."""
    rows = [planned(number) for number in range(num_rows)]
    write(tmp_path / "plan.parquet", rows)
    plan = Plan(tmp_path / "plan.parquet", num_rows)
    assert list(plan.rows()) == rows
    assert plan.keys() == {row.key for row in rows}


def test_another_reader_finds_plain_columns(tmp_path: Path) -> None:
    """The file is ordinary Parquet: ids, flat spans, counts and the source of each prompt."""
    row = PlannedPrompt("ab" * 16, Prompt(array("i", [5, 6, 7, 8]), ((0, 1), (2, 4))), 9, "x")
    write(tmp_path / "plan.parquet", [row])
    assert pq.read_table(tmp_path / "plan.parquet").to_pylist() == [
        {
            "key": "ab" * 16,
            "token_ids": [5, 6, 7, 8],
            "loss_spans": [0, 1, 2, 4],
            "num_tokens": 4,
            "source_line": 9,
            "source_id": "x",
        }
    ]


def test_a_plan_that_is_gone_says_what_to_do(tmp_path: Path) -> None:
    """Without the file there is no plan, whatever run.json says."""
    with pytest.raises(StatetapError, match="plan again") as caught:
        Plan(tmp_path / "plan.parquet", 1)
    assert (caught.value.kind, caught.value.exit_code) == ("plan-missing", 3)


def test_a_plan_of_another_size_is_refused(tmp_path: Path) -> None:
    """Plan and run record must be of one making."""
    write(tmp_path / "plan.parquet", [planned(0)])
    with pytest.raises(StatetapError, match=r"does not fit the run\.json") as caught:
        Plan(tmp_path / "plan.parquet", 2)
    assert (caught.value.kind, caught.value.exit_code) == ("plan-damaged", 1)


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_cut_plan_is_refused(tmp_path: Path, kept: int) -> None:
    """A file that lost its end, or all of it, is no plan."""
    path = tmp_path / "plan.parquet"
    write(path, [planned(number) for number in range(100)])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StatetapError) as caught:
        Plan(path, 100)
    assert caught.value.kind == "plan-damaged"


def test_damage_inside_is_found_on_reading(tmp_path: Path) -> None:
    """Data pages that do not decompress are a sentence, not a traceback."""
    path = tmp_path / "plan.parquet"
    write(path, [planned(number) for number in range(2000)])
    data = bytearray(path.read_bytes())
    data[200:2000] = bytes(1800)
    path.write_bytes(data)
    with pytest.raises(StatetapError) as caught:
        list(Plan(path, 2000).rows())
    assert caught.value.kind == "plan-damaged"
