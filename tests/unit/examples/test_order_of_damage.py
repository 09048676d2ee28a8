"""A short training on real states: whoever learns from the right ones drafts best."""

from pathlib import Path

import pytest
import torch
from statetap_contract import ModelFolder
from train_drafter.comparison import Trials, VariantScores, is_proven
from train_drafter.damage import VARIANTS
from train_drafter.train import Recipe

from .conftest import Store
from .tiny_language import texts, train_target

NUM_TEXTS = 160


@pytest.fixture
def trials(tmp_path: Path, store: Store) -> Trials:
    """The states of a target that has learned a language, as HF transformers computes them."""
    folder = tmp_path / "target"
    model = train_target(folder)
    spec = ModelFolder.read(folder).spec(layers=(1, 2, 3), dtype="float32")
    samples = []
    for text in texts(NUM_TEXTS, seed=10_000):
        with torch.inference_mode():
            states = model(input_ids=text[None], output_hidden_states=True).hidden_states
        aux = torch.cat([states[layer][0] for layer in spec.layers], dim=1)
        samples.append((text.tolist(), [0, 0] + [1] * (len(text) - 2), aux, states[-1][0]))
    recipe = Recipe(num_epochs=20, num_steps=2, batch_tokens=256, vocabulary_size=48)
    return Trials(store(spec, samples), folder, recipe, 0.2)


def test_correct_samples_are_best(trials: Trials) -> None:
    """By a wide margin, in tokens agreed upon and in tokens won; the verdict of the command too.

    Without aux states the rule can only be guessed. With rows shifted, what is to be said is the
    very token that was given, and nothing else is learned.
    """
    first, *others = [
        VariantScores(variant, (trials.score(variant, 0, lambda *_: None),)) for variant in VARIANTS
    ]
    (correct,) = first.scores
    assert correct.num_rows > 500
    assert correct.agreement > 0.5, "of 48 tokens"
    for other in others:
        (damaged,) = other.scores
        assert damaged.agreement < correct.agreement - 0.1, other.variant.name
        assert damaged.acceptance[-1] < correct.acceptance[-1] - 0.1, other.variant.name
        assert not is_proven(other, [first])
    assert is_proven(first, others)
