"""Known faults in the states of tiny models: each is found, and called by its name."""

import io
import json
import math
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from statetap_contract import CaptureSpec, ModelFolder, Prompt, sample_key
from statetap_local.models import tiny_deepseek_v3, tiny_llama, tiny_qwen3, tiny_qwen3_moe
from statetap_producer.proving import crosscheck as module
from statetap_producer.proving.causes.cause import ADVICE
from statetap_producer.proving.causes.find_causes import MOST_EXAMINED
from statetap_producer.proving.crosscheck import (
    CrosscheckOutcome,
    CrosscheckRequest,
    crosscheck,
)
from statetap_producer.proving.crosscheck_view import outcome_json, outcome_view
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.proving.row_bounds import RowBounds, RowErrors, bounds_of
from statetap_store import Provenance, ShardSet

from .injected_faults import FAULTS, LAYERS, Injected, World, token_ids

DTYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module", autouse=True)
def load_once() -> object:
    """The real reference, read from the disk once for each spec."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ReferenceModel", lru_cache(ReferenceModel))
        yield


@pytest.fixture(scope="module")
def worlds(tiny_model: Path) -> Callable[[str, str], World]:
    return lru_cache(lambda dtype, norm: World(tiny_model, dtype, norm))


def spec_of(model: Path, world: World) -> CaptureSpec:
    return ModelFolder.read(model).spec(LAYERS, str(world.dtype)[6:], world.norm)


def store(folder: Path, model: Path, world: World, slots: list[list[torch.Tensor]]) -> list[str]:
    """Stores samples as a worker does, and returns their keys."""
    spec = spec_of(model, world)
    keys = []
    provenance = Provenance("demo", "w0", "here", "0.5.23", "0.1.0", (1, 3, 4))
    with ShardSet(folder, "w0", 1 << 20, spec, provenance) as shards:
        for ids, rows in zip(world.prompts, slots, strict=True):
            mask = np.ones(len(ids), np.uint8)
            prompt = Prompt(array("i", ids), ((0, len(ids)),))
            keys.append(sample_key(spec.digest, prompt))
            raw = torch.cat(rows, dim=1).contiguous().view(torch.uint8).numpy()
            shards.append(keys[-1], np.array(ids, np.int32), mask, raw)
        shards.commit()
    return keys


def compare(folder: Path, model: Path, bound: float | None = None) -> CrosscheckOutcome:
    return crosscheck(CrosscheckRequest(folder, model, 8, 0, bound), lambda *_: None)


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        pytest.param(fault, dtype, id=f"{fault.what}, {dtype}")
        for fault in FAULTS
        for dtype in fault.dtypes
    ],
)
def test_each_fault_is_named(
    worlds: Callable[[str, str], World],
    tiny_model: Path,
    tmp_path: Path,
    fault: Injected,
    dtype: str,
) -> None:
    """The first cause is the right one, in just the slots that have it."""
    world = worlds(dtype, fault.norm)
    store(tmp_path, tiny_model, world, fault.make(world))
    outcome = compare(tmp_path, tiny_model)
    assert not outcome.is_good
    causes = outcome.causes
    found = {(cause.kind, slot) for cause in causes for slot in cause.slots}
    assert found == {(fault.kind, slot) for slot in fault.slots.split()}, causes
    assert all(fault.word in cause.text for cause in causes), causes


def test_all_kinds_are_injected() -> None:
    """No cause is named that no test has seen."""
    assert {fault.kind for fault in FAULTS} | {"bound-strict"} == set(ADVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3, tiny_qwen3_moe, tiny_deepseek_v3])
def test_right_states_pass(
    repository: Path, tmp_path: Path, make: Callable[[Path], Path], dtype: str
) -> None:
    """What transformers computes in the dtype itself is right, and no cause is named.

    All positions 7 further on are right too: RoPE knows distances alone.
    """
    model = make(repository / ".cache" / "models")
    world = World(model, dtype)
    for first in (0, 7):
        slots = [
            world.slots(world.boundaries(ids, [first + place for place in range(len(ids))]))
            for ids in world.prompts
        ]
        store(tmp_path / str(first), model, world, slots)
        outcome = compare(tmp_path / str(first), model)
        assert (outcome.is_good, outcome.bad_keys, outcome.causes) == (True, (), ())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("what", ["rows of the token before", "the next layer", "no final norm"])
def test_a_model_with_experts_has_wider_bounds_and_names_causes_too(
    repository: Path, tmp_path: Path, what: str, dtype: str
) -> None:
    """Routers that rounding tips over leave enough to tell right from wrong by the middle row."""
    model = tiny_qwen3_moe(repository / ".cache" / "models")
    world = World(model, dtype)
    (fault,) = (fault for fault in FAULTS if fault.what == what)
    store(tmp_path, model, world, fault.make(world))
    outcome = compare(tmp_path, model)
    assert outcome.bounds == bounds_of(dtype, has_experts=True)
    assert [(cause.kind, " ".join(cause.slots)) for cause in outcome.causes] == [
        (fault.kind, fault.slots)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_sample_among_right_ones_is_named(
    worlds: Callable[[str, str], World], tiny_model: Path, tmp_path: Path, dtype: str
) -> None:
    """By its key; the rows of one slot alone are enough, and so is a single row."""
    world = worlds(dtype, "post")
    slots = [world.right(ids) for ids in world.prompts]
    slots[2][1] = slots[2][1].roll(1, 0)
    slots[4][3] = slots[4][3].clone()
    slots[4][3][33] = slots[4][3][12]
    keys = store(tmp_path, tiny_model, world, slots)
    outcome = compare(tmp_path, tiny_model)
    assert set(outcome.bad_keys) == {keys[2], keys[4]}
    assert {(cause.kind, cause.slots, cause.keys) for cause in outcome.causes} == {
        ("rows-shifted", ("h4",), (keys[2],)),
        ("rows-repeated", ("last",), (keys[4],)),
    }
    assert [slot.num_beyond for slot in outcome.slots] == [0, 1, 0, 1]


def test_different_faults_of_one_sample_are_told_apart(
    worlds: Callable[[str, str], World], tiny_model: Path, tmp_path: Path
) -> None:
    """Each slot has its own cause; that of most slots and samples comes first."""
    world = worlds("bfloat16", "post")
    slots = []
    for ids in world.prompts:
        found = world.boundaries(ids)
        slots.append([found[2] * 2, found[4].roll(1, 0), found[5].roll(1, 0), found[8]])
    keys = store(tmp_path, tiny_model, world, slots)
    outcome = compare(tmp_path, tiny_model)
    assert [(cause.kind, cause.slots) for cause in outcome.causes] == [
        ("rows-shifted", ("h4", "h5")),
        ("scaled", ("h2",)),
        ("norm-missing", ("last",)),
    ]
    assert all(set(cause.keys) == set(keys) for cause in outcome.causes)
    assert len(keys) <= MOST_EXAMINED


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shortest_prompts(tiny_model: Path, tmp_path: Path, dtype: str) -> None:
    """One token and two are compared like any others, and wrong rows of theirs are found."""
    world = World(tiny_model, dtype)
    world.prompts = [[9], [9, 5]]
    right = [world.right(ids) for ids in world.prompts]
    store(tmp_path / "right", tiny_model, world, right)
    assert compare(tmp_path / "right", tiny_model).is_good
    store(tmp_path / "swapped", tiny_model, world, [rows[::-1] for rows in right])
    (cause,) = compare(tmp_path / "swapped", tiny_model).causes
    assert (cause.kind, cause.slots) == ("slots-swapped", ("h2", "h4", "h5", "last"))
    torch.manual_seed(0)
    noise = [[torch.randn_like(rows) for rows in slots] for slots in right]
    keys = store(tmp_path / "noise", tiny_model, world, noise)
    outcome = compare(tmp_path / "noise", tiny_model)
    assert set(outcome.bad_keys) == set(keys)
    assert not any(cause.is_proven for cause in outcome.causes)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([9, 2, 7, 4, 5, 6, 3, 8, 1, 10], RowErrors(5, 9, 10)),
        (range(1, 101), RowErrors(50, 90, 100)),
        ([3, 1], RowErrors(1, 3, 3)),
        ([3], RowErrors(3, 3, 3)),
        ([1, math.inf], RowErrors(1, math.inf, math.inf)),
    ],
)
def test_how_errors_are_spread(errors: Sequence[float], expected: RowErrors) -> None:
    """Half of the rows, nine of ten and all of them are off by no more."""
    assert RowErrors.of(torch.tensor(errors, dtype=torch.float64)) == expected


def test_what_is_not_a_number_keeps_no_bound() -> None:
    """However loose it is, and wherever it comes among others."""
    errors = torch.tensor([0.0, math.nan, 0.0])
    assert not RowBounds.same("any", math.inf).are_kept_by(errors)
    worse = RowErrors.of(errors).or_worse(RowErrors(1, 2, 3)).or_worse(RowErrors(1, 2, 3))
    assert math.isnan(worse.worst)


def test_one_bit_of_a_large_element_is_within() -> None:
    """In float32, beside elements that are small and may not be off by as much."""
    bounds = bounds_of("float32", has_experts=False)
    reference = torch.ones(2, 64)
    reference[0, 0] = 16384
    ours = reference.clone()
    ours[0, 0] = torch.nextafter(ours[0, 0], torch.tensor(math.inf))
    assert bounds.are_kept_by(bounds.errors(ours, reference))
    ours[1, 3] += 2e-4
    assert not bounds.are_kept_by(bounds.errors(ours, reference))


def test_not_all_of_many_wrong_samples_are_examined(tiny_model: Path, tmp_path: Path) -> None:
    """All are named; the cause is looked for in the first few."""
    world = World(tiny_model, "float32")
    world.prompts = token_ids(MOST_EXAMINED + 2)
    slots = [[rows * 2 for rows in world.right(ids)] for ids in world.prompts]
    keys = store(tmp_path, tiny_model, world, slots)
    outcome = crosscheck(CrosscheckRequest(tmp_path, tiny_model, 99, 0, None), lambda *_: None)
    assert set(outcome.bad_keys) == set(keys)
    assert [cause.kind for cause in outcome.causes] == ["scaled"]
    assert outcome.causes[0].keys == outcome.bad_keys[:MOST_EXAMINED]


def test_a_bound_of_ones_own_is_no_fault_of_the_states(
    worlds: Callable[[str, str], World], tiny_model: Path, tmp_path: Path
) -> None:
    """Right states beyond it are called right; wrong ones within it pass."""
    world = worlds("bfloat16", "post")
    store(tmp_path / "right", tiny_model, world, [world.right(ids) for ids in world.prompts])
    strict = compare(tmp_path / "right", tiny_model, bound=1e-6)
    assert [cause.kind for cause in strict.causes] == ["bound-strict"]
    wrong = [[rows.roll(1, 0) for rows in world.right(ids)] for ids in world.prompts]
    store(tmp_path / "wrong", tiny_model, world, wrong)
    assert compare(tmp_path / "wrong", tiny_model, bound=100).is_good


def test_the_cause_is_shown_and_in_the_json(
    worlds: Callable[[str, str], World], tiny_model: Path, tmp_path: Path
) -> None:
    """One line for the cause, one for what to do, keys, and the bounds; JSON has all of it."""
    world = worlds("bfloat16", "post")
    slots = [world.right(ids) for ids in world.prompts]
    for rows in slots:
        rows[3] = torch.full_like(rows[3], torch.nan)
    keys = store(tmp_path, tiny_model, world, slots)
    outcome = compare(tmp_path, tiny_model)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(outcome_view(outcome))
    shown = " ".join(console.export_text().split())
    assert "likely cause (not-finite): last: all rows with elements" in shown
    assert f"what to do: {ADVICE['not-finite']}" in shown
    assert "and 1 more; --json lists all" in shown
    assert "middle row 0.0625, of 9 rows in 10 0.125, of the worst 0.5" in shown
    document = json.loads(json.dumps(outcome_json(outcome), allow_nan=False))
    assert document["slots"][3]["max_relative"] is None
    assert document["causes"][0]["kind"] == "not-finite"
    assert sorted(document["causes"][0]["keys"]) == sorted(document["bad_keys"]) == sorted(keys)
