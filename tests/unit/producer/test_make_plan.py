"""From dataset to run folder: what is planned, left out and refused."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from statetap_contract import ModelFolder, StatetapError
from statetap_producer.planning.make_plan import PlanOutcome, PlanRequest, make_plan
from statetap_producer.planning.settle_spec import SpecWish
from statetap_producer.run.run_folder import RunFolder

from .conftest import CHATML_WITH_BLOCK, ModelMaker, row
from .test_handshake import CAPTURE, InfoServer, info_server

__all__ = ["info_server"]


def plan(
    dataset: Path,
    run: Path,
    model: Path,
    *,
    server: str | None = None,
    layers: tuple[int, ...] | None = None,
    dtype: str | None = None,
    norm: str | None = None,
    **options: Any,
) -> PlanOutcome:
    wish = SpecWish(server, layers, dtype, norm)
    request = PlanRequest(dataset, RunFolder(run), model, wish, **options)
    return make_plan(request, lambda *_: None)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dataset_becomes_a_plan(dataset: Path, model: Path, tmp_path: Path) -> None:
    """Each conversation is planned once, in order, and counted."""
    outcome = plan(dataset, tmp_path / "runs" / "demo", model)
    counts = outcome.record.counts
    rows = pq.read_table(tmp_path / "runs" / "demo" / "plan.parquet").to_pylist()
    assert [(r["source_line"], r["source_id"]) for r in rows] == [(1, "first"), (2, None)]
    lengths = sorted(len(r["token_ids"]) for r in rows)
    assert outcome.is_new
    assert (counts.num_read, counts.num_planned, counts.num_duplicates) == (3, 2, 1)
    assert (counts.min_tokens, counts.median_tokens) == (lengths[0], lengths[0])
    assert (counts.max_tokens, counts.num_tokens) == (lengths[1], sum(lengths))
    assert counts.num_loss_tokens == sum(
        end - start for r in rows for start, end in [r["loss_spans"]]
    )


def test_the_spec_is_the_models_own(dataset: Path, model: Path, tmp_path: Path) -> None:
    """Without further wishes: EAGLE-3's layers and the checkpoint's dtype."""
    spec = plan(dataset, tmp_path / "demo", model).record.inputs.spec
    assert (spec.layers, spec.dtype, spec.hidden_size) == ((2, 4, 5), "bfloat16", 64)
    wanted = plan(dataset, tmp_path / "other", model, layers=(5, 1), dtype="float32")
    assert (wanted.record.inputs.spec.layers, wanted.record.inputs.spec.dtype) == (
        (1, 5),
        "float32",
    )


def test_the_same_input_gives_the_same_bytes(dataset: Path, model: Path, tmp_path: Path) -> None:
    """Two plans of one dataset under one name are equal, file by file."""
    plan(dataset, tmp_path / "a" / "demo", model)
    plan(dataset, tmp_path / "b" / "demo", model)
    assert files_in(tmp_path / "a" / "demo") == files_in(tmp_path / "b" / "demo")


def test_planning_again_changes_nothing(dataset: Path, model: Path, tmp_path: Path) -> None:
    """The same request again finds the plan and leaves it alone."""
    first = plan(dataset, tmp_path / "demo", model)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").iterdir()}
    again = plan(dataset, tmp_path / "demo", model)
    assert (again.is_new, again.record) == (False, first.record)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").iterdir()} == before


def test_a_plan_is_never_replaced(
    dataset: Path, model: Path, tmp_path: Path, make_model: ModelMaker
) -> None:
    """A run keeps its dataset, spec, template and limit; the sentence names what differs."""
    run = tmp_path / "demo"
    plan(dataset, run, model)
    before = files_in(run)
    longer = tmp_path / "longer.jsonl"
    longer.write_text(dataset.read_text() + row(("user", "x"), ("assistant", "y")) + "\n")
    blocked = make_model("blocked", CHATML_WITH_BLOCK)
    others: dict[str, Callable[[], PlanOutcome]] = {
        "another dataset": lambda: plan(longer, run, model),
        "another capture spec": lambda: plan(dataset, run, model, layers=(1, 2)),
        "another --max-tokens": lambda: plan(dataset, run, model, max_tokens=99),
        "another --cut": lambda: plan(dataset, run, model, is_cut=True),
        "another --allow-empty-mask": lambda: plan(dataset, run, model, allows_empty_mask=True),
        "another --allow-full-mask": lambda: plan(dataset, run, model, allows_full_mask=True),
        "another chat template": lambda: plan(dataset, run, blocked),
    }
    for words, plan_otherwise in others.items():
        with pytest.raises(StatetapError, match=words) as caught:
            plan_otherwise()
        assert (caught.value.kind, caught.value.exit_code) == ("run-differs", 2)
    assert files_in(tmp_path / "demo") == before


def test_an_unfinished_plan_is_made_anew(dataset: Path, model: Path, tmp_path: Path) -> None:
    """A crash between plan and run record leaves no run, and planning starts over."""
    plan(dataset, tmp_path / "demo", model)
    before = files_in(tmp_path / "demo")
    (tmp_path / "demo" / "run.json").unlink()
    (tmp_path / "demo" / "plan.parquet").write_bytes(b"half")
    assert plan(dataset, tmp_path / "demo", model).is_new
    assert files_in(tmp_path / "demo") == before


MIXED = [
    row(("user", "Hello"), ("assistant", "Fine.")),
    "not json",
    row(("user", "Hello")),
    "{",
    row(("user", "Hello"), ("assistant", "word " * 300)),
]


@pytest.mark.parametrize("kept", [None, 0, 100, -1])
def test_a_plan_that_is_gone_is_made_again(
    dataset: Path, model: Path, tmp_path: Path, kept: int | None
) -> None:
    """Deleted or cut, the same request restores it, byte for byte, and says that it was made."""
    plan(dataset, tmp_path / "demo", model)
    before = files_in(tmp_path / "demo")
    if kept is None:
        (tmp_path / "demo" / "plan.parquet").unlink()
    else:
        (tmp_path / "demo" / "plan.parquet").write_bytes(before["plan.parquet"][:kept])
    assert plan(dataset, tmp_path / "demo", model).is_new
    assert files_in(tmp_path / "demo") == before


def test_faults_are_written_whatever_the_locale(
    model: Path, tmp_path: Path, repository: Path
) -> None:
    """In an ASCII locale, a row's own words still reach the file, as UTF-8."""
    dataset = tmp_path / "odd.jsonl"
    odd = '{"messages": [{"role": "\u30e6", "content": "x"}]}'
    dataset.write_text(odd + "\n" + row(("user", "Hi"), ("assistant", "Ho")), encoding="utf-8")
    start = "from statetap_producer.cli import main; main()"
    command = [sys.executable, "-c", start, "plan", str(dataset)]
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run(
        [*command, "--run", str(tmp_path / "demo"), "--model", str(model)],
        env=os.environ | ascii_only,
        cwd=repository,
        check=True,
        capture_output=True,
    )
    assert "\u30e6" in (tmp_path / "demo" / "left-out.jsonl").read_text(encoding="utf-8")


def test_what_is_left_out_is_counted_and_named(model: Path, tmp_path: Path) -> None:
    """Every reason has its count, its first line and its words; each row stands in a file."""
    dataset = tmp_path / "mixed.jsonl"
    dataset.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(MIXED).encode())
    record = plan(dataset, tmp_path / "demo", model).record
    assert [(r.kind, r.num_rows, r.first_file, r.first_line) for r in record.left_out] == [
        ("row-not-json", 2, "mixed.jsonl", 2),
        ("no-loss-tokens", 1, "mixed.jsonl", 3),
        ("too-long", 1, "mixed.jsonl", 5),
    ]
    counts = record.counts
    assert counts.num_read == 5 == counts.num_planned + counts.num_duplicates + 4
    lines = (tmp_path / "demo" / "left-out.jsonl").read_text().splitlines()
    assert [(fault["line"], fault["kind"]) for fault in map(json.loads, lines)] == [
        (2, "row-not-json"),
        (3, "no-loss-tokens"),
        (4, "row-not-json"),
        (5, "too-long"),
    ]


def test_strict_stops_at_the_first(model: Path, tmp_path: Path) -> None:
    """With --strict the first bad row is the error, by file and line, and no run is left."""
    dataset = tmp_path / "mixed.jsonl"
    dataset.write_text("\n".join(MIXED))
    with pytest.raises(StatetapError, match=r"mixed\.jsonl:2: .*not JSON; mend") as caught:
        plan(dataset, tmp_path / "runs" / "demo", model, is_strict=True)
    assert (caught.value.kind, caught.value.exit_code) == ("row-refused", 1)
    assert not (tmp_path / "runs").exists()


def test_long_prompts_are_cut_when_asked(model: Path, tmp_path: Path) -> None:
    """The first tokens of the long one are planned and it is marked; the short one is whole."""
    dataset = tmp_path / "mixed.jsonl"
    dataset.write_text("\n".join(MIXED))
    whole = plan(dataset, tmp_path / "whole", model).record
    record = plan(dataset, tmp_path / "demo", model, is_cut=True, max_tokens=40).record
    rows = pq.read_table(tmp_path / "demo" / "plan.parquet").to_pylist()
    assert [(r["source_line"], r["is_cut"]) for r in rows] == [(1, False), (5, True)]
    assert (rows[1]["num_tokens"], rows[1]["loss_spans"][-1]) == (40, 40)
    assert (record.counts.num_cut, whole.counts.num_cut) == (1, 0)
    assert record.inputs.rules.is_cut


def test_masks_without_choice_are_taken_when_asked(model: Path, tmp_path: Path) -> None:
    """A question alone has an empty mask, a text a full one; each is planned if allowed."""
    dataset = tmp_path / "odd.jsonl"
    dataset.write_text(row(("user", "Hello")) + '\n{"text": "Hello there."}\n')
    for name, option, spans in (
        ("empty", "allows_empty_mask", [[]]),
        ("full", "allows_full_mask", [[0, "all"]]),
    ):
        options: dict[str, Any] = {option: True}
        plan(dataset, tmp_path / name, model, **options)
        rows = pq.read_table(tmp_path / name / "plan.parquet").to_pylist()
        shown = [["all" if b == r["num_tokens"] else b for b in r["loss_spans"]] for r in rows]
        assert shown == spans


def test_the_histogram_counts_by_powers_of_two(model: Path, tmp_path: Path) -> None:
    """Lengths of 1, 3, 4 and 7 tokens: one of 1, one of 2 to 3, two of 4 to 7."""
    dataset = tmp_path / "ids.jsonl"
    ids = [{"input_ids": [9] * num, "loss_mask": [1] * num} for num in (1, 3, 4, 7)]
    dataset.write_text("\n".join(map(json.dumps, ids)))
    counts = plan(dataset, tmp_path / "demo", model, allows_full_mask=True).record.counts
    assert counts.histogram == (1, 1, 2)
    assert (counts.num_tokens, counts.num_loss_tokens, counts.median_tokens) == (15, 15, 3)


def test_all_cores_give_the_same_plan(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over processes, the files are the same, byte for byte, duplicates and faults too."""
    dataset = tmp_path / "many.jsonl"
    rows = [row(("user", f"{n % 900}?"), ("assistant", "word " * (n % 9))) for n in range(2000)]
    dataset.write_text("\n".join([*rows, "broken"]))
    alone = plan(dataset, tmp_path / "a" / "demo", model).record
    monkeypatch.setattr("statetap_producer.planning.make_plan._WORTH_PROCESSES", 1)
    plan(dataset, tmp_path / "b" / "demo", model)
    assert files_in(tmp_path / "a" / "demo") == files_in(tmp_path / "b" / "demo")
    assert (alone.counts.num_planned, alone.counts.num_duplicates) == (900, 1100)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "dataset-empty", "is empty"),
        (b"\xef\xbb\xbf\r\n \n", "dataset-empty", "is empty"),
        (b"\x00\xff\n\xfe", "dataset-not-json", "no row of"),
        (
            b'{"texts": "x"}\n{"texts": "y"}\nx',
            "no-usable-row",
            "holds 3 rows and none that can be planned",
        ),
    ],
)
def test_a_useless_dataset_is_refused_without_a_trace(
    content: bytes, kind: str, words: str, model: Path, tmp_path: Path
) -> None:
    """Nothing to plan means no run folder, and a sentence that says why."""
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(StatetapError, match=words) as caught:
        plan(tmp_path / "bad.jsonl", tmp_path / "runs" / "demo", model)
    assert (caught.value.kind, caught.value.exit_code) == (kind, 2)
    assert not (tmp_path / "runs").exists()


def test_a_missing_dataset_leaves_an_old_folder_alone(model: Path, tmp_path: Path) -> None:
    """A folder that was there before the failure stays, with what is in it."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    with pytest.raises(StatetapError) as caught:
        plan(tmp_path / "absent.jsonl", tmp_path / "demo", model)
    assert (caught.value.kind, caught.value.exit_code) == ("dataset-missing", 3)
    assert files_in(tmp_path / "demo") == {"notes.txt": b"mine"}


def test_a_disk_that_is_too_small_is_refused(
    dataset: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte too few free, and the run is not even begun; enough, and it is."""
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil has it
    needed = plan(dataset, tmp_path / "first", model).record.shard_bytes
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, needed - 1))
    with pytest.raises(StatetapError, match="choose another disk") as caught:
        plan(dataset, tmp_path / "demo", model)
    assert (caught.value.kind, caught.value.exit_code) == ("disk-too-small", 3)
    assert not (tmp_path / "demo").exists()
    assert plan(dataset, tmp_path / "elsewhere", model, is_elsewhere=True).is_new
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, needed))
    assert plan(dataset, tmp_path / "demo", model).is_new


def test_a_folder_that_cannot_be_made_is_named(dataset: Path, model: Path, tmp_path: Path) -> None:
    """A file in the way is a sentence."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StatetapError, match="cannot make the folder") as caught:
        plan(dataset, tmp_path / "file" / "demo", model)
    assert (caught.value.kind, caught.value.exit_code) == ("run-folder", 2)


@pytest.mark.parametrize("max_tokens", [0, -1, 256])
def test_a_limit_that_the_model_does_not_have_is_refused(
    dataset: Path, model: Path, tmp_path: Path, max_tokens: int
) -> None:
    """A context of 256 takes prompts of 1 to 255 tokens."""
    with pytest.raises(StatetapError, match="between 1 and 255") as caught:
        plan(dataset, tmp_path / "demo", model, max_tokens=max_tokens)
    assert caught.value.kind == "max-tokens-impossible"


def test_a_servers_spec_is_taken(
    dataset: Path, model: Path, tmp_path: Path, info_server: InfoServer
) -> None:
    """With a server, its layers, its dtype and its shorter context count."""
    spec = ModelFolder.read(model).spec((1, 3), "float16")
    info_server.show(dataclasses.replace(CAPTURE, spec=spec, context_length=100))
    inputs = plan(dataset, tmp_path / "demo", model, server=info_server.url).record.inputs
    assert (inputs.spec, inputs.rules.max_tokens) == (spec, 99)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("model-differs", {}),
        ("layers-differ", {"layers": (1, 2)}),
        ("dtype-differs", {"dtype": "float32"}),
        ("norm-differs", {"norm": "pre"}),
    ],
)
def test_a_server_that_captures_other_things_is_refused(
    dataset: Path,
    model: Path,
    tmp_path: Path,
    info_server: InfoServer,
    kind: str,
    options: dict[str, Any],
) -> None:
    """Server, model folder and wishes must agree before anything is planned."""
    spec = ModelFolder.read(model).spec((1, 3), "float16")
    if kind == "model-differs":
        spec = dataclasses.replace(spec, revision="00" * 16)
    info_server.show(dataclasses.replace(CAPTURE, spec=spec))
    with pytest.raises(StatetapError, match=info_server.url) as caught:
        plan(dataset, tmp_path / "demo", model, server=info_server.url, **options)
    assert (caught.value.kind, caught.value.exit_code) == (kind, 2)
    assert not (tmp_path / "demo").exists()


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["messages", "conversations", "role", "content", "prompt", "response"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": st.text()}
)
_lines = (
    st.binary()
    | _json_values.map(lambda value: json.dumps(value).encode())
    | st.lists(_turns, max_size=4).map(lambda turns: json.dumps({"messages": turns}).encode())
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(_lines, max_size=6))
def test_no_bytes_break_planning(
    lines: list[bytes], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any bytes are planned or refused with a sentence, and a plan holds what it counts."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "any.jsonl").write_bytes(b"\n".join(lines))
    planned = refused = None
    try:
        planned = plan(folder / "any.jsonl", folder / "demo", model)
    except StatetapError as error:
        refused = error
    if planned is None:
        assert "\n" not in str(refused)
        assert not (folder / "demo").exists()
    else:
        num_rows = pq.read_metadata(folder / "demo" / "plan.parquet").num_rows
        assert num_rows == planned.record.counts.num_planned
