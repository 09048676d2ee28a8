"""Stored states against HF transformers, on a small random Llama."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from statetap_contract import ModelFolder, StatetapError
from statetap_producer.planning.make_plan import PlanRequest, make_plan
from statetap_producer.planning.settle_spec import SpecWish
from statetap_producer.proving.crosscheck import (
    CrosscheckOutcome,
    CrosscheckRequest,
    crosscheck,
)
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, ShardSet
from transformers import LlamaConfig, LlamaForCausalLM

from .conftest import NO_WEIGHTS, ModelMaker, prompts_of

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def llama(make_model: ModelMaker) -> Path:
    """A folder with real, random weights: hidden size 64, 8 layers."""
    folder = make_model("llama")
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=380,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        # Wide enough for attention and MLP to matter beside the residual.
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run(llama: Path, dataset: Path, tmp_path: Path) -> RunFolder:  # a run of this model
    return plan(llama, dataset, tmp_path / "demo", "float32")


def plan(llama: Path, dataset: Path, path: Path, dtype: str, norm: str | None = None) -> RunFolder:
    folder = RunFolder(path)
    wish = SpecWish(layers=(2, 4, 5), dtype=dtype, norm=norm)
    make_plan(PlanRequest(dataset, folder, llama, wish), lambda *_: None)
    return folder


def boundaries(llama: Path, token_ids: list[int]) -> list[torch.Tensor]:
    """[n, 64] before each layer, after the last and its norm, and, at last, before that norm.

    Taken by hooks on the modules themselves.
    """
    model = LlamaForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    found: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _, args: found.append(args[0][0].clone()))
    model.model.norm.register_forward_hook(
        lambda _, args, output: found.extend((output[0].clone(), args[0][0].clone()))
    )
    with torch.inference_mode():
        model(torch.tensor([token_ids]))
    return found


def unchanged(rows: torch.Tensor) -> torch.Tensor:
    return rows


def store_states(
    run: RunFolder,
    llama: Path,
    *,
    layers: tuple[int, ...] = (2, 4, 5, 8),
    change: Change = unchanged,
) -> None:
    """Stores the model's own states, of these boundaries, changed."""
    spec = run.read_record().inputs.spec
    provenance = Provenance("demo", "w0", "here", "0.5.23", "0.1.0", (1, 3, 4))
    with ShardSet(run.shards, "w0", 1 << 20, spec, provenance) as shards:
        for row in prompts_of(run):
            ids = list(row.prompt.token_ids)
            found = boundaries(llama, ids)
            states = change(torch.cat([found[layer] for layer in layers], dim=1))
            states = states.to(getattr(torch, spec.dtype)).contiguous()
            mask = np.frombuffer(row.prompt.loss_mask(), np.uint8)
            raw = states.view(torch.uint8).numpy()
            shards.append(row.key, np.array(ids, np.int32), mask, raw)
        shards.commit()


def compare(
    path: Path, model: Path, *, samples: int = 8, seed: int = 0, bound: float | None = None
) -> CrosscheckOutcome:
    return crosscheck(CrosscheckRequest(path, model, samples, seed, bound), lambda *_: None)


def test_the_models_own_states_pass(run: RunFolder, llama: Path) -> None:
    """Float32 states of the model itself are equal in every slot, and choose its tokens."""
    store_states(run, llama)
    outcome = compare(run.path, llama)
    assert outcome.is_good
    assert [slot.slot for slot in outcome.slots] == ["h2", "h4", "h5", "last"]
    assert all(slot.max_absolute <= 1e-5 for slot in outcome.slots)
    assert all(slot.min_cosine > 0.99999 for slot in outcome.slots)
    assert outcome.next_token_agreement == 1.0
    assert outcome.num_tokens == sum(row.prompt.num_tokens for row in prompts_of(run))
    assert set(outcome.keys) == {row.key for row in prompts_of(run)}
    assert compare(run.shard_files()[0], llama).slots == outcome.slots


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("layers", "change", "bad_slots"),
    [
        ((2, 4, 5, 8), lambda rows: rows.roll(1, dims=0), {"h2", "h4", "h5", "last"}),
        ((3, 4, 5, 8), unchanged, {"h2"}),
        ((2, 4, 5, 7), unchanged, {"last"}),
        ((2, 5, 4, 8), unchanged, {"h4", "h5"}),
        (
            (2, 4, 5, 8),
            lambda rows: rows.where(rows != rows[-1], torch.nan),
            {"h2", "h4", "h5", "last"},
        ),
    ],
    ids=["rows shifted", "layer off by one", "last layer missing", "layers swapped", "nan"],
)
def test_wrong_states_fail_in_their_slots(
    llama: Path,
    dataset: Path,
    tmp_path: Path,
    dtype: str,
    layers: tuple[int, ...],
    change: Change,
    bad_slots: set[str],
) -> None:
    """Rows of other tokens or layers are beyond the bound of every dtype, right ones are not."""
    run = plan(llama, dataset, tmp_path / "demo", dtype)
    store_states(run, llama, layers=layers, change=change)
    outcome = compare(run.path, llama)
    assert {slot.slot for slot in outcome.slots if slot.num_beyond} == bad_slots
    assert not outcome.is_good


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_rounding_alone_passes(
    llama: Path, dataset: Path, tmp_path: Path, dtype: str, unit: float
) -> None:
    """States rounded once are off by no more than the unit roundoff, well within the bound."""
    run = plan(llama, dataset, tmp_path / "demo", dtype)
    store_states(run, llama)
    outcome = compare(run.path, llama)
    assert outcome.is_good
    assert all(0 < slot.max_relative <= unit < outcome.bounds.middle for slot in outcome.slots)


def test_errors_are_measured(run: RunFolder, llama: Path) -> None:
    """A known change of every row shows as just that; a bound of one's own counts."""
    store_states(run, llama, change=lambda rows: rows * 1.25)
    outcome = compare(run.path, llama, bound=1e9)
    assert outcome.is_good
    for slot in outcome.slots:
        assert slot.max_relative == pytest.approx(0.25, rel=1e-3)
        assert slot.min_cosine == pytest.approx(1.0)
    assert not compare(run.path, llama).is_good


def test_the_seed_chooses_the_samples(run: RunFolder, llama: Path) -> None:
    """The same seed looks at the same sample; another one looks at the other, sooner or later."""
    store_states(run, llama)
    chosen = [compare(run.path, llama, samples=1, seed=seed).keys for seed in (0, 0, 1, 2, 3)]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 2


def test_another_model_is_refused(run: RunFolder, llama: Path, model: Path) -> None:
    """States are compared with the model they were computed by, or not at all."""
    store_states(run, llama)
    with pytest.raises(StatetapError, match="give the folder that the server loaded") as caught:
        compare(run.path, model)
    assert (caught.value.kind, caught.value.exit_code) == ("model-differs", 2)


def test_nothing_to_compare_is_a_failed_check(run: RunFolder, llama: Path) -> None:
    """A run without samples proves nothing."""
    with pytest.raises(StatetapError) as caught:
        compare(run.path, llama)
    assert (caught.value.kind, caught.value.exit_code) == ("no-samples", 1)


@pytest.mark.parametrize(
    ("weights", "words"),
    [(NO_WEIGHTS, "lacks 75 weights"), (b"no weights at all", "cannot load the model")],
)
def test_weights_that_do_not_load_are_named(
    run: RunFolder, llama: Path, tmp_path: Path, weights: bytes, words: str
) -> None:
    """Weights that are absent or unreadable are a sentence, never made up."""
    store_states(run, llama)
    damaged = tmp_path / "damaged"
    shutil.copytree(llama, damaged)
    (damaged / "model.safetensors").write_bytes(weights)
    spec = dataclasses.replace(
        run.read_record().inputs.spec, revision=ModelFolder.read(damaged).revision
    )
    with pytest.raises(StatetapError, match=words) as caught:
        ReferenceModel(damaged, spec)
    assert (caught.value.kind, caught.value.exit_code) == ("model-unloadable", 3)


def test_states_before_the_norm_are_compared_as_such(
    llama: Path, dataset: Path, tmp_path: Path
) -> None:
    """What the last layer put out passes, and its tokens agree; the normed state does not."""
    outcomes = {}
    for last in (8, 9):  # the norm's output and input, as ``boundaries`` gives them
        run = plan(llama, dataset, tmp_path / str(last), "float32", norm="pre")
        store_states(run, llama, layers=(2, 4, 5, last))
        outcomes[last] = compare(run.path, llama)
    assert outcomes[9].is_good
    assert outcomes[9].slots[-1].max_absolute == 0
    assert outcomes[9].next_token_agreement == 1
    assert not outcomes[8].is_good


def test_a_model_without_a_final_norm_is_refused(
    run: RunFolder, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of its class."""
    monkeypatch.setattr(LlamaForCausalLM, "base_model", torch.nn.Module())
    with pytest.raises(StatetapError, match="LlamaForCausalLM has no final norm") as caught:
        ReferenceModel(llama, run.read_record().inputs.spec)
    assert (caught.value.kind, caught.value.exit_code) == ("norm-unknown", 2)
