"""Shards, and runs against their plans."""

import dataclasses
from array import array
from pathlib import Path

import numpy as np
import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.proving.verify import Verdict, verify
from statetap_producer.run.plan import PlanWriter, plan_batch
from statetap_producer.run.run_folder import RunFolder
from statetap_store import seal

from .conftest import give_up, prompts_of, store


def check(*paths: Path, quick: bool = False) -> Verdict:
    return verify(paths, quick=quick, num_processes=1, on_progress=lambda *_: None)


def kinds(verdict: Verdict) -> list[str]:
    return [fault.kind for fault in verdict.faults]


def test_a_finished_run_is_good(run: RunFolder) -> None:
    """Every prompt stored or dead, every sample as planned: no fault."""
    first, second = prompts_of(run)
    store(run, first)
    give_up(run, second.key)
    for quick in (False, True):
        verdict = check(run.path, quick=quick)
        assert (verdict.is_good, kinds(verdict)) == (True, [])
        assert [report.num_samples for report in verdict.reports] == [1]


def test_shards_can_be_checked_alone(run: RunFolder) -> None:
    """A shard given by its path is checked without its run."""
    store(run, prompts_of(run)[0])
    verdict = check(*run.shard_files())
    assert (verdict.is_good, len(verdict.reports)) == (True, 1)


def test_a_folder_of_shards_is_checked_without_a_plan(run: RunFolder) -> None:
    """The shards' own folder, or a copy of it, stands for the shards in it."""
    store(run, prompts_of(run)[0])
    verdict = check(run.shards)
    assert verdict.is_good
    assert [report.path for report in verdict.reports] == run.shard_files()
    again = check(run.shards, *run.shard_files())
    assert [report.path for report in again.reports] == run.shard_files(), "once each"


def test_an_unfinished_run_is_faulty(run: RunFolder) -> None:
    """A planned prompt that is neither stored nor dead is missed, and the command is named."""
    store(run, prompts_of(run)[0])
    verdict = check(run.path, quick=True)
    assert kinds(verdict) == ["sample-missing"]
    assert "1 planned prompt is" in verdict.faults[0].message
    assert verdict.faults[0].key == prompts_of(run)[1].key


def test_a_run_without_shards_is_not_good(run: RunFolder) -> None:
    """Nothing to check is no proof, even where every prompt is dead."""
    for row in prompts_of(run):
        give_up(run, row.key)
    assert kinds(check(run.path)) == ["no-shards"]


def test_nothing_given_is_not_good() -> None:
    """A verdict over nothing is no verdict."""
    assert not check().is_good


def test_a_sample_that_was_not_planned_is_found(run: RunFolder) -> None:
    """Another run's sample in this run's folder is a fault."""
    first, second = prompts_of(run)
    prompt = Prompt(array("i", [1, 2, 3]), ((1, 2),))
    store(run, first, second, dataclasses.replace(first, key="ab" * 16, prompt=prompt))
    assert kinds(check(run.path, quick=True)) == ["sample-unplanned"]


@pytest.mark.parametrize(
    "other",
    [
        lambda prompt: Prompt(array("i", [*prompt.token_ids[:-1], 7]), prompt.loss_spans),
        lambda prompt: Prompt(prompt.token_ids, ((0, 1),)),
        lambda prompt: Prompt(prompt.token_ids, ()),
    ],
    ids=["another token", "another mask", "no mask"],
)
def test_ids_and_masks_are_compared_with_the_plan(run: RunFolder, other) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """A whole, well-checksummed sample with another prompt's ids or mask is a fault."""
    first, second = prompts_of(run)
    store(run, dataclasses.replace(first, prompt=other(first.prompt)), second)
    verdict = check(run.path)
    assert [(fault.kind, fault.key) for fault in verdict.faults] == [("prompt-differs", first.key)]
    assert check(run.path, quick=True).is_good


def test_a_plan_that_lies_about_a_prompt_is_found(run: RunFolder) -> None:
    """A plan whose row does not have its key is a fault, though every sample is right."""
    first, second = prompts_of(run)
    store(run, first, second)
    with PlanWriter(run.plan_file) as plan:
        plan.append(plan_batch([dataclasses.replace(first, prompt=second.prompt), second]))
    verdict = check(run.path)
    assert [(f.kind, f.key) for f in verdict.faults] == [("plan-row-differs", first.key)]


def test_shards_of_another_spec_are_found(run: RunFolder) -> None:
    """A sample of the right key under another capture spec is a fault."""
    spec = dataclasses.replace(run.read_record().inputs.spec, layers=(1, 2, 3))
    store(run, *prompts_of(run), spec=spec)
    assert kinds(check(run.path, quick=True)) == ["spec-differs"]


def test_damage_inside_a_shard_is_reported(run: RunFolder) -> None:
    """One flipped bit of a payload is a fault, unless payloads are left alone."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    # What is not sealed may have been harmed by a crash, and then the sample is not stored at all.
    seal(shard)
    data = bytearray(shard.read_bytes())
    data[data.index(np.arange(1, 65, dtype=np.float32).tobytes())] ^= 1
    shard.write_bytes(data)
    assert kinds(check(run.path)) == ["payload-corrupt"]
    assert check(run.path, quick=True).is_good


def test_what_is_not_there_is_missing(run: RunFolder, tmp_path: Path) -> None:
    """A path without a shard or a run is a sentence, not a verdict."""
    (tmp_path / "empty").mkdir()
    for path, kind in ((tmp_path / "x.h5", "shard-missing"), (tmp_path / "empty", "run-missing")):
        with pytest.raises(StatetapError) as caught:
            check(run.path, path)
        assert (caught.value.kind, caught.value.exit_code) == (kind, 3)
