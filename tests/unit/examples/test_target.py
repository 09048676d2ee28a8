"""Embedding and head read from files, against HF transformers' own model."""

from pathlib import Path

import pytest
import torch
from statetap_contract import ModelFolder
from train_drafter.target import Target
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_next_tokens_are_the_models_own(tmp_path: Path, norm: str, *, is_tied: bool) -> None:
    """With a head of its own or the embedding for one, in one file or many, before the norm too."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        tie_word_embeddings=is_tied,
    )
    model = LlamaForCausalLM(config).eval()
    torch.nn.init.uniform_(model.model.norm.weight, 0.2, 3)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    target = Target.read(tmp_path, ModelFolder.read(tmp_path).spec(layers=(1, 2), norm=norm))
    caught = []
    model.model.norm.register_forward_pre_hook(lambda _, given: caught.append(given[0][0]))
    ids = torch.randint(96, (1, 700))
    with torch.inference_mode():
        answer = model(input_ids=ids, output_hidden_states=True)
    assert torch.equal(target.embedding[ids], answer.hidden_states[0])
    assert (target.norm is None) == (norm == "post")
    last = answer.hidden_states[-1][0] if target.norm is None else target.norm.apply(caught[0])
    assert torch.equal(target.next_tokens(last), answer.logits[0].argmax(dim=1))
