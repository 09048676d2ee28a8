"""Has the trainers' own code parse what docs/train.md tells people to type to them.

Usage: parse_commands.py JSON

JSON is an object: ``specforge``, the path of a run's configuration; ``speculators`` and
``modelopt``, the words of each command after the program. Prints, as JSON, what each trainer took
from them.
"""

import json
import sys

from modelopt.recipe.loader import load_recipe
from specforge.config import load_config
from speculators.train.config import TrainConfig


def main(told: dict[str, str], speculators: list[str], modelopt: list[str]) -> None:
    """Any option that a trainer does not have is an error here, as there."""
    config = load_config(told["specforge"])
    flat = TrainConfig.resolve(speculators).flatten()
    recipe = load_recipe(modelopt[1], overrides=modelopt[2:])
    taken = {
        "specforge": {
            "hidden_states_path": config.data.hidden_states_path,
            "eval_hidden_states_path": config.data.eval_hidden_states_path,
            "vocab_mapping_path": config.model.vocab_mapping_path,
        },
        "speculators": {
            name: flat[name]
            for name in ("data_path", "on_missing", "draft_vocab_size", "train_data_ratio")
        },
        "modelopt": {
            "offline_data_path": recipe.data.offline_data_path,
            "draft_vocab_cache": recipe.data.draft_vocab_cache,
            "answer_only_loss": recipe.training.answer_only_loss,
            "draft_vocab_size": recipe.eagle.eagle_architecture_config["draft_vocab_size"],
        },
    }
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    words = json.loads(sys.argv[1])
    main(words, words["speculators"], words["modelopt"])
