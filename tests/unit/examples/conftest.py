"""A target that is made by hand, and samples of it."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from statetap_contract import CaptureSpec, ModelFolder
from statetap_store import Provenance, SampleTable, ShardWriter

#: Tokens and elements of the hidden states of the made target, which has one aux layer.
WIDTH = 64

#: Token ids, loss mask, aux states [n, layers * WIDTH] and last states [n, WIDTH].
Arrays = tuple[Sequence[int], Sequence[int], torch.Tensor, torch.Tensor]

#: Writes samples of a capture spec into a run folder and lists them.
Store = Callable[[CaptureSpec, Sequence[Arrays]], SampleTable]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing by two, which wait for each other on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def made_target(tmp_path: Path) -> Path:
    """A model folder with nothing but an embedding and a head, which is the identity."""
    folder = tmp_path / "made-target"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": WIDTH,
        "vocab_size": WIDTH,
        "max_position_embeddings": 512,
        "dtype": "float32",
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        "model.embed_tokens.weight": torch.randn(WIDTH, WIDTH, generator=seeded(5)),
        "lm_head.weight": torch.eye(WIDTH),
    }
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def made_spec(made_target: Path) -> CaptureSpec:
    """Layer 2 and the last hidden state of the made target, float32."""
    return ModelFolder.read(made_target).spec(layers=(2,))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    def write(spec: CaptureSpec, samples: Sequence[Arrays]) -> SampleTable:
        folder = tmp_path / "run" / "shards"
        folder.mkdir(parents=True)
        provenance = Provenance("run", "w0", "here", "none", "none", spec.layers)
        with ShardWriter.create(folder / "w0-00001.h5", spec, provenance, 1 << 28) as writer:
            for number, (token_ids, loss_mask, aux, last) in enumerate(samples):
                writer.append(
                    f"{number:032x}",
                    np.array(token_ids, np.int32),
                    np.array(loss_mask, np.uint8),
                    torch.cat([aux, last], dim=1).float().numpy(),
                )
        return SampleTable.scan(folder.parent)

    return write


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
