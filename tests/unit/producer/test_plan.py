"""The plan as a file."""

import errno
import tempfile
from array import array
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.run.plan import Order, Plan, PlannedPrompt, PlanWriter, plan_batch


def planned(number: int) -> PlannedPrompt:
    ids = array("i", range(number % 5 + 4))
    spans = ((0, 1), (2, len(ids))) if number % 2 else ((1, 3),)
    return PlannedPrompt(f"{number:032x}", Prompt(ids, spans), "chats.jsonl", number + 1, None)


def write(path: Path, rows: list[PlannedPrompt], *, batch_rows: int = 256) -> None:
    with PlanWriter(path) as writer:
        for start in range(0, len(rows), batch_rows):
            writer.append(plan_batch(rows[start : start + batch_rows]))


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
    prompt = Prompt(array("i", [5, 6, 7, 8]), ((0, 1), (2, 4)))
    row = PlannedPrompt("ab" * 16, prompt, "a/b.jsonl", 9, "x", is_cut=True)
    write(tmp_path / "plan.parquet", [row])
    assert pq.read_table(tmp_path / "plan.parquet").to_pylist() == [
        {
            "key": "ab" * 16,
            "token_ids": [5, 6, 7, 8],
            "loss_spans": [0, 1, 2, 4],
            "num_tokens": 4,
            "is_cut": True,
            "source_file": "a/b.jsonl",
            "source_line": 9,
            "source_id": "x",
        }
    ]


@pytest.mark.parametrize("batch_rows", [1, 7, 1024, 2050])
def test_batches_leave_no_trace(tmp_path: Path, batch_rows: int) -> None:
    """The file is the same, byte for byte, however its rows came."""
    rows = [planned(number) for number in range(2050)]
    write(tmp_path / "plan.parquet", rows)
    write(tmp_path / "other.parquet", rows, batch_rows=batch_rows)
    assert (tmp_path / "plan.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()


@pytest.mark.parametrize("num_rows", [1, 1024, 2050])
def test_loss_tokens_are_those_of_the_masks(tmp_path: Path, num_rows: int) -> None:
    """Counted from spans, for each prompt in turn; one without any has none."""
    nothing = PlannedPrompt("f" * 32, Prompt(array("i", [1, 2]), ()), "chats.jsonl", 1, None)
    rows = [nothing, *(planned(number) for number in range(num_rows - 1))]
    write(tmp_path / "plan.parquet", rows)
    counts = Plan(tmp_path / "plan.parquet", num_rows).loss_tokens()
    assert counts.tolist() == [sum(row.prompt.loss_mask()) for row in rows]


@pytest.mark.parametrize(("order", "sign"), [("longest", -1), ("shortest", 1)])
def test_rows_come_by_length(tmp_path: Path, order: Order, sign: int) -> None:
    """Sorted by tokens, the plan's order among equals, and nothing is left beside the plan."""
    rows = [planned(number) for number in range(2050)]
    write(tmp_path / "plan.parquet", rows)
    by_length = sorted(rows, key=lambda row: sign * row.prompt.num_tokens)
    assert list(Plan(tmp_path / "plan.parquet", 2050).rows(order)) == by_length
    assert [path.name for path in tmp_path.iterdir()] == ["plan.parquet"]


@pytest.mark.parametrize("numbers", [[], [0], [5, 1023, 1024, 2049], list(range(2050))])
def test_some_rows_are_found_by_key(tmp_path: Path, numbers: list[int]) -> None:
    """In the plan's order, from whichever row groups hold them; an unknown key is nobody's."""
    write(tmp_path / "plan.parquet", [planned(number) for number in range(2050)])
    keys = {planned(number).key for number in numbers} | {"f" * 32}
    found = Plan(tmp_path / "plan.parquet", 2050).rows_of(keys)
    assert list(found) == [planned(number) for number in numbers]


@pytest.mark.parametrize(("most", "numbers"), [(1, [0]), (3, [0, 1024, 2049]), (9999, range(2050))])
def test_a_sample_is_spread_over_the_plan(
    tmp_path: Path, most: int, numbers: list[int] | range
) -> None:
    """First, last and what lies evenly between them; all of a plan that is smaller."""
    write(tmp_path / "plan.parquet", [planned(number) for number in range(2050)])
    sample = Plan(tmp_path / "plan.parquet", 2050).sample(most)
    assert sample == [planned(number) for number in numbers]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("key", "zz" * 16),
        ("loss_spans", [0]),
        ("loss_spans", [0, 99]),
        ("token_ids", [-1]),
        ("token_ids", []),
    ],
)
def test_a_plan_changed_by_hand_is_refused(tmp_path: Path, column: str, value: object) -> None:
    """Well-formed Parquet that holds no prompt is a sentence, whichever way it is read."""
    path = tmp_path / "plan.parquet"
    write(path, [planned(number) for number in range(3)])
    rows = pq.read_table(path).to_pylist()
    rows[1][column] = value
    schema = pq.read_schema(path)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    plan = Plan(path, 3)
    for read in (plan.rows, lambda: plan.rows("longest"), lambda: plan.sample(9)):
        with pytest.raises(StatetapError, match="plan again") as caught:
            list(read())
        assert caught.value.kind == "plan-damaged"


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """A plan's keys are all different, or it is none."""
    path = tmp_path / "plan.parquet"
    write(path, [planned(0), planned(0)])
    with pytest.raises(StatetapError, match="twice"):
        Plan(path, 2).keys()


def test_no_room_to_sort_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which nothing can be written still gives the plan's own order."""
    write(tmp_path / "plan.parquet", [planned(0)])

    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    plan = Plan(tmp_path / "plan.parquet", 1)
    with pytest.raises(StatetapError, match=r"No space left .* own order") as caught:
        list(plan.rows("longest"))
    assert (caught.value.kind, caught.value.exit_code) == ("no-room-to-sort", 3)
    assert list(plan.rows()) == [planned(0)]


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    """A wrong bit in the ids' page is an error, not another prompt."""
    path = tmp_path / "plan.parquet"
    write(path, [planned(number) for number in range(1000)])
    column = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StatetapError) as caught:
        list(Plan(path, 1000).rows())
    assert caught.value.kind == "plan-damaged"


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
