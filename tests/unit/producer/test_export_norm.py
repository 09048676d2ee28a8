"""The final norm on the way to a trainer, against transformers' own norm modules."""

import importlib
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from statetap_contract import CaptureSpec, CheckError, MissingError, ModelFolder, UsageError
from statetap_producer.exporting.model_norm import _ONE_MORE, _PLAIN, ModelNorm
from statetap_producer.exporting.norm_step import NormStep
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from .conftest import Invoke
from .export_stage import (
    DTYPES,
    EPS,
    HIDDEN,
    make_folder,
    spec_of,
    store_samples,
    stored_samples,
)

DATA = Path(__file__).parent / "data"

#: Unit roundoffs.
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}


def llama_norm(weight: torch.Tensor, eps: float) -> torch.nn.Module:
    """The reader's norm, in float32."""
    norm: torch.nn.Module = LlamaRMSNorm(len(weight), eps)
    norm.load_state_dict({"weight": weight.float()})
    return norm.requires_grad_(requires_grad=False)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1e-4, 1e-2, 1.0, 300.0]),
    dtype=st.sampled_from(list(DTYPES.values())),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    num_zeros=st.sampled_from([0, 1, 20]),
    eps=st.sampled_from([1e-5, 1e-6]),
)
def test_what_was_undone_is_normed_into_the_same(
    seed: int, size: float, dtype: torch.dtype, spread: float, num_zeros: int, eps: float
) -> None:
    """Captured, undone, rounded and normed again, a state is itself up to rounding.

    Whatever the weights: negative, as unlike as a million to one, zero for some elements. However
    large the states were before the norm, so that eps counts or does not.
    """
    width = 64
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(width, generator=generator) * torch.exp(
        spread * torch.randn(width, generator=generator)
    )
    weight = weight.clamp(-1e3, 1e3)
    weight = torch.where(weight.abs() < 1e-3, 1e-3, weight)
    weight[torch.randperm(width, generator=generator)[:num_zeros]] = 0
    norm = llama_norm(weight, eps)
    captured = norm(torch.randn(5, width, generator=generator) * size).to(dtype)
    undone = ModelNorm(weight, eps).undo(captured.float())[0].to(dtype)
    again = norm(undone.float())
    # One rounding of an element when it was captured and one when it was undone; the mean square
    # of all moves by no more than an element.
    # Nor does float16 hold less than 2^-24, which is scaled up with the rest.
    least = 2.0**-25 / eps**0.5 if dtype is torch.float16 else 0.0
    share = 3 * ROUNDING[dtype] + eps / 2
    bound = share * captured.float().abs() + least * weight.abs()
    assert ((again - captured.float()).abs() <= bound).all()
    assert (again[:, weight == 0] == 0).all()


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1e-4, 1.0, 300.0]))
def test_the_weights_of_a_real_model(seed: int, size: float) -> None:
    """SmolLM2-135M's own final norm, in the bfloat16 in which a reader may apply it."""
    weight = load_file(DATA / "smollm2_final_norm.safetensors")["model.norm.weight"]
    rows = torch.randn(9, len(weight), generator=torch.Generator().manual_seed(seed)) * size
    captured = llama_norm(weight, EPS)(rows).bfloat16()
    undone = ModelNorm(weight.float(), EPS).undo(captured.float())[0].bfloat16()
    difference = (llama_norm(weight, EPS)(undone.float()) - captured.float()).abs()
    assert (difference <= 2 * 2**-8 * captured.float().abs()).all()
    reader: torch.nn.Module = LlamaRMSNorm(len(weight), EPS)
    reader.load_state_dict({"weight": weight})
    in_bfloat16 = reader.bfloat16()(undone)
    assert in_bfloat16.dtype == torch.bfloat16
    difference = (in_bfloat16.detach().float() - captured.float()).abs()
    assert (difference <= 4 * 2**-8 * captured.float().abs()).all()


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1e-4, 1.0, 300.0]))
def test_apply_is_the_readers_own(seed: int, size: float) -> None:
    """Up to the order of additions."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(48, generator=generator)
    rows = torch.randn(7, 48, generator=generator) * size
    expected = llama_norm(weight, EPS)(rows)
    torch.testing.assert_close(ModelNorm(weight, EPS).apply(rows), expected, rtol=1e-5, atol=0)


def test_states_of_another_norm_are_found_out() -> None:
    """Neither those that were never normed pass, nor those of other weights."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 64, generator=generator) * 3
    weight = torch.rand(64, generator=generator) + 0.5
    norm = ModelNorm(weight, EPS)
    norm.undo(norm.apply(rows))
    for others in (rows, ModelNorm(weight + 1, EPS).apply(rows)):
        with pytest.raises(ValueError, match="above 1"):
            norm.undo(others)
    with pytest.raises(ValueError, match="not zero"):
        ModelNorm(torch.where(weight > 1, weight, 0), EPS).undo(norm.apply(rows))


def taken(states: torch.Tensor, norm: ModelNorm) -> torch.Tensor:
    """What becomes of last states, in blocks of three rows, for a reader with a norm."""
    width = states.shape[1]
    spec = CaptureSpec("model", "none", (2, 4, 5), "post", width, "bfloat16")
    rows = torch.zeros(len(states), spec.row_width, dtype=torch.bfloat16)
    rows[:, -width:] = states
    blocks = np.split(rows.view(torch.int16).numpy().view(np.uint16), range(3, len(rows), 3))
    deque(NormStep("post", "pre", norm).taken("k" * 32, iter(blocks), spec), 0)
    return rows[:, -width:]


def test_other_weights_are_found_out_either_way() -> None:
    """By the middle row of a sample: smaller weights, larger ones, each by another share."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(64, generator=generator) + 0.5
    states = ModelNorm(weight, EPS).apply(torch.randn(10, 64, generator=generator) * 3)
    assert taken(states, ModelNorm(weight, EPS)).isfinite().all()
    shares = 1 + torch.rand(64, generator=generator)
    for factor, words in ((1.5, "below 1"), (shares, "below 1"), (1 / 1.5, "above 1")):
        with pytest.raises(CheckError, match=words) as caught:
            taken(states, ModelNorm(weight * factor, EPS))
        assert caught.value.kind == "norm-differs"
    # A few rows may be so small that eps took much of them.
    states[:4] = ModelNorm(weight, EPS).apply(torch.full((4, 64), 1e-3))
    assert taken(states, ModelNorm(weight, EPS)).isfinite().all()


@pytest.mark.parametrize("size", [1e18, 1e20, 3e38])
@pytest.mark.parametrize("num_large", [1, 10])
def test_no_state_is_too_large_to_be_found_out(size: float, num_large: int) -> None:
    """Also where its square is beyond float32; a model's norm gives none such."""
    norm = ModelNorm(torch.full((64,), 0.5), EPS)
    states = norm.apply(torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
    states[:num_large] = size
    with pytest.raises(CheckError, match="do not fit the model's final norm"):
        taken(states, norm)


#: The norm's class is called after the family, but for those that have another's language model.
NORM_OF = {
    "Llama4": "transformers.models.llama4.modeling_llama4.Llama4TextRMSNorm",
    "Mistral3": "transformers.models.mistral.modeling_mistral.MistralRMSNorm",
    "Qwen3VL": "transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLTextRMSNorm",
    "Qwen3VLMoe": "transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe.Qwen3VLMoeTextRMSNorm",
    # Not in transformers. Its language model is taken to be DeepSeek-V3's.
    "KimiK25": "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3RMSNorm",
}


def norm_class(family: str) -> tuple[str, Any]:
    """An architecture of a family, and transformers' class of its final norm."""
    names = (f"{family}ForCausalLM", f"{family}ForConditionalGeneration")
    name = next((name for name in names if hasattr(transformers, name)), names[1])
    if family in NORM_OF:
        module, class_name = NORM_OF[family].rsplit(".", 1)
    else:
        module, class_name = getattr(transformers, name).__module__, f"{family}RMSNorm"
    return name, getattr(importlib.import_module(module), class_name)


def test_one_family_alone_is_not_in_transformers() -> None:
    """All others are held against their own class below."""
    missing = {
        family for family in _PLAIN | _ONE_MORE if not hasattr(transformers, norm_class(family)[0])
    }
    assert missing == {"KimiK25"}


@pytest.mark.parametrize("family", sorted(_PLAIN | _ONE_MORE))
def test_each_architecture_has_its_own_norm(tmp_path: Path, family: str) -> None:
    """The norm read from a folder is that of transformers' class with the same weight."""
    architecture, of_class = norm_class(family)
    norm = of_class(HIDDEN, eps=EPS)
    weight = torch.linspace(-0.5, 2, HIDDEN).bfloat16()
    norm.weight.data = weight.float()
    rows = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(1))
    folder = make_folder(tmp_path / "model", architecture, weight)
    ours = ModelNorm.read(ModelFolder.read(folder)).apply(rows)
    torch.testing.assert_close(ours, norm(rows).detach(), rtol=1e-5, atol=1e-6)


def test_a_norm_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """By its architecture; and what a folder lacks is said, and nothing is guessed."""
    folder = make_folder(tmp_path / "other", "NemotronForCausalLM")
    with pytest.raises(UsageError, match="NemotronForCausalLM is not known") as caught:
        ModelNorm.read(ModelFolder.read(folder))
    assert caught.value.kind == "norm-unknown"
    folder = make_folder(tmp_path / "wide", weight=torch.ones(HIDDEN + 1))
    with pytest.raises(UsageError, match="one final norm of 16 elements"):
        ModelNorm.read(ModelFolder.read(folder))
    folder = make_folder(tmp_path / "no-eps")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": None}))
    with pytest.raises(UsageError, match="has no 'rms_norm_eps'"):
        ModelNorm.read(ModelFolder.read(folder))
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": "small"}))
    with pytest.raises(UsageError, match="is 'small', not a small number"):
        ModelNorm.read(ModelFolder.read(folder))
    folder = make_folder(tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="from safetensors files only") as caught:
        ModelNorm.read(ModelFolder.read(folder))
    assert caught.value.kind == "norm-unknown"
    folder = make_folder(tmp_path / "cut")
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(MissingError, match="copy the model again"):
        ModelNorm.read(ModelFolder.read(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_states_before_the_norm_are_normed(statetap: Invoke, tmp_path: Path, dtype: str) -> None:
    """A reader of normed states gets what transformers' norm makes of ours, rounded."""
    model, out = make_folder(tmp_path / "model"), tmp_path / "out"
    store_samples(tmp_path / "shards", spec_of(model, dtype, "pre"), [4, 1, 60])
    arguments = ("export", tmp_path / "shards", "--to", "specforge", "--out", out)
    refused = statetap(*arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "give the model's folder with --model" in refused.stderr
    assert not out.exists()
    assert statetap(*arguments, "--model", model).exit_code == 0
    norm = llama_norm(torch.linspace(0.25, 4, HIDDEN).bfloat16(), EPS)
    files = sorted(out.rglob("*.ckpt"))
    for file, stored in zip(files, stored_samples(tmp_path / "shards"), strict=True):
        content = torch.load(file)
        expected = norm(stored.last.float())
        rounding = ROUNDING[stored.last.dtype]
        assert content["hidden_state"].dtype == stored.last.dtype
        assert (
            (content["hidden_state"][0].float() - expected).abs() <= rounding * expected.abs()
        ).all()
        assert torch.equal(content["aux_hidden_state"][0], stored.aux)
    record = json.loads((out / "export.json").read_text())
    assert record["last_hidden_states"]["captured"] == "pre"
    assert record["last_hidden_states"]["written"] == "post"
    assert "final norm was applied" in record["last_hidden_states"]["conversion"]


def test_normed_states_for_a_reader_with_a_norm(statetap: Invoke, tmp_path: Path) -> None:
    """Its own norm gives the captured states again; another model's folder is refused."""
    model, out = make_folder(tmp_path / "model"), tmp_path / "out"
    store_samples(tmp_path / "shards", spec_of(model), [4, 1, 60])
    arguments = ("export", tmp_path / "shards", "--to", "speculators", "--out", out)
    assert "--model" in statetap(*arguments).stderr
    other = make_folder(tmp_path / "other", "MistralForCausalLM")
    refused = statetap(*arguments, "--model", other)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "give the folder that the server loaded" in refused.stderr
    assert not out.exists()
    assert statetap(*arguments, "--model", model).exit_code == 0
    norm = llama_norm(torch.linspace(0.25, 4, HIDDEN).bfloat16(), EPS)
    for row, stored in enumerate(stored_samples(tmp_path / "shards")):
        content = load_file(out / "hidden_states" / f"hs_{row}.safetensors")
        aux, last = content["hidden_states"][:, :3].flatten(1), content["hidden_states"][:, 3]
        assert torch.equal(aux, stored.aux)
        assert not torch.equal(last, stored.last)
        captured = stored.last.float()
        assert ((norm(last.float()) - captured).abs() <= 2**-7 * captured.abs()).all()


def test_states_that_were_never_normed_are_a_failed_check(statetap: Invoke, tmp_path: Path) -> None:
    """Shards that say post and hold something else do not become wrong training data."""
    folder = make_folder(tmp_path / "model", weight=torch.full((HIDDEN,), 1e-2))
    store_samples(tmp_path / "shards", spec_of(folder), [4, 1, 60])
    out = tmp_path / "out"
    result = statetap(
        "export", tmp_path / "shards", "--to", "speculators", "--out", out, "--model", folder
    )
    assert result.exit_code == 1
    first = next(stored_samples(tmp_path / "shards"))
    assert f"sample {first.key} do not fit the model's final norm" in result.stderr
    assert not list(out.rglob("*.safetensors"))
    assert not (out / "export.json").exists()


def test_too_large_for_float16(statetap: Invoke, tmp_path: Path) -> None:
    """A conversion that would overflow is refused, and not written as infinity."""
    folder = make_folder(tmp_path / "model", weight=torch.full((HIDDEN,), 60_000.0))
    store_samples(tmp_path / "shards", spec_of(folder, "float16", "pre"), [40])
    result = statetap(
        *("export", tmp_path / "shards", "--to", "specforge", "--out", tmp_path / "out"),
        *("--model", folder),
    )
    assert result.exit_code == 1
    assert "beyond float16" in result.stderr
