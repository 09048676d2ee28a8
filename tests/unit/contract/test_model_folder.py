"""Facts read from a model folder."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import MissingError, ModelFolder, UsageError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def make(folder: Path, config: Any, weights: bytes = b"{}") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(weights)) + weights + bytes(8))
    return folder


def test_eagle3_layers_are_the_default(tmp_path: Path) -> None:
    """SGLang's EAGLE-3 default for 30 layers is boundaries 2, 15 and 27."""
    model = ModelFolder.read(make(tmp_path / "SmolLM2", CONFIG))
    spec = model.spec()
    assert (spec.model, spec.layers, spec.dtype) == ("SmolLM2", (2, 15, 27), "bfloat16")
    assert (model.vocab_size, model.context_length) == (49152, 8192)


def test_layers_may_be_asked_for_in_any_order(tmp_path: Path) -> None:
    """Slots ascend whatever the order."""
    model = ModelFolder.read(make(tmp_path / "m", CONFIG))
    assert model.spec((28, 1, 14), "float32").layers == (1, 14, 28)


@pytest.mark.parametrize("layers", [(0, 3), (3, 30), (3, 3), (), (-1, 2)])
def test_impossible_layers_are_refused_with_the_possible_ones(
    tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """The sentence says which boundary indices there are."""
    model = ModelFolder.read(make(tmp_path / "m", CONFIG))
    with pytest.raises(UsageError, match="from 1 to 29") as caught:
        model.spec(layers)
    assert caught.value.kind == "layers-impossible"


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    """The sentence names the known ones."""
    with pytest.raises(UsageError, match="bfloat16"):
        ModelFolder.read(make(tmp_path / "m", CONFIG)).spec(dtype="fp8")


def test_multimodal_config_is_read_where_the_text_model_is(tmp_path: Path) -> None:
    """Kimi-K2.5 keeps the language model's sizes in text_config, the architecture outside."""
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": CONFIG}
    model = ModelFolder.read(make(tmp_path / "m", config))
    assert (model.architecture, model.num_layers) == ("KimiK25ForConditionalGeneration", 30)


def test_revision_sees_config_and_weights(tmp_path: Path) -> None:
    """Another config, other tensors or another size is another revision; a copy is the same."""
    one = ModelFolder.read(make(tmp_path / "a", CONFIG)).revision
    assert ModelFolder.read(make(tmp_path / "b", CONFIG)).revision == one
    others = {
        ModelFolder.read(make(tmp_path / "c", CONFIG | {"rope_theta": 1})).revision,
        ModelFolder.read(make(tmp_path / "d", CONFIG, b'{"a": 1}')).revision,
    }
    assert len(others | {one}) == 3


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("not json", "language model"),
        ("[]", "language model"),
        ({}, "architectures"),
        (CONFIG | {"architectures": None}, "architectures"),
        (CONFIG | {"architectures": []}, "architectures"),
        (CONFIG | {"architectures": "LlamaForCausalLM"}, "architectures"),
        (CONFIG | {"architectures": [7]}, "architectures"),
        ({"text_config": CONFIG}, "architectures"),
        (CONFIG | {"num_hidden_layers": 0}, "num_hidden_layers"),
        (CONFIG | {"hidden_size": "big"}, "hidden_size"),
        (CONFIG | {"dtype": "int4"}, "int4"),
    ],
)
def test_unreadable_configs_get_a_sentence(tmp_path: Path, config: Any, reason: str) -> None:
    """No traceback for a folder that is not a model."""
    with pytest.raises(UsageError, match=reason) as caught:
        ModelFolder.read(make(tmp_path / "m", config))
    assert caught.value.kind == "model-unreadable"


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """No folder, no config, no weights."""
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(MissingError, match=r"config\.json"):
            ModelFolder.read(folder)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(MissingError, match="no weights"):
        ModelFolder.read(tmp_path)


def test_a_dangling_weight_file_is_named(tmp_path: Path) -> None:
    """The usual state of a broken hub cache: a link to nowhere."""
    folder = make(tmp_path / "m", CONFIG)
    (folder / "model-2.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MissingError, match="model-2"):
        ModelFolder.read(folder)
