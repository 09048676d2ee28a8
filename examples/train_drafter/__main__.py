"""The command: ``python -m train_drafter RUN --model DIR``, from the folder ``examples``."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from statetap_contract import StatetapError
from statetap_store import SampleTable

from train_drafter.comparison import MARGIN, Trials, VariantScores, is_proven
from train_drafter.damage import VARIANTS, Variant
from train_drafter.held_out import CHAIN, Score
from train_drafter.score_view import score_table
from train_drafter.train import Recipe

#: Something needed is not there.
_EXIT_MISSING = 3

_VAL_FRACTION = 0.1


def main() -> int:
    """Trains and reports; 1 when the correct samples do not win."""
    arguments = _parser().parse_args()
    try:
        return _run(arguments)
    except StatetapError as error:
        sentence, code = error.message, error.exit_code
    except OSError as error:
        sentence, code = str(error), _EXIT_MISSING
    print(f"train_drafter: {sentence}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    recipe = Recipe()
    parser = argparse.ArgumentParser(
        prog="train_drafter",
        description="Trains an EAGLE-3 drafter on the samples of a run, on the CPU.",
    )
    parser.add_argument("run", type=Path, nargs="+", help="run folders or shards")
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument(
        "--variants", action="store_true", help="train on samples damaged in several ways too"
    )
    for name, default, what in (
        ("--seeds", 1, "trainings of each kind"),
        ("--epochs", recipe.num_epochs, "epochs of a training"),
        ("--draft-vocab-size", recipe.vocabulary_size, "most tokens that can be drafted"),
    ):
        parser.add_argument(
            name, type=_positive, default=default, metavar="N", help=f"{what}, by default {default}"
        )
    parser.add_argument(
        "--val-fraction",
        type=float,
        default=_VAL_FRACTION,
        metavar="SHARE",
        help=f"samples to hold out, by default {_VAL_FRACTION}",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _run(arguments: argparse.Namespace) -> int:
    table = SampleTable.scan(*arguments.run)
    recipe = Recipe(num_epochs=arguments.epochs, vocabulary_size=arguments.draft_vocab_size)
    trials = Trials(table, arguments.model, recipe, arguments.val_fraction)
    trained_on, held_out = trials.trained_on, trials.held_out
    print(
        f"{len(trained_on)} samples of {trained_on.num_tokens.sum():,} tokens to train on, "
        f"{len(held_out)} of {held_out.num_tokens.sum():,} held out, "
        f"{len(trials.vocabulary):,} tokens to draft"
    )
    variants = VARIANTS if arguments.variants else VARIANTS[:1]
    results = []
    for variant in variants:
        scores = tuple(_trained(trials, variant, seed) for seed in range(arguments.seeds))
        results.append(VariantScores(variant, scores))
    Console().print(score_table(results))
    first = results[0].scores[0]
    print(
        f"agreement over {first.num_rows:,} held-out tokens; tokens won by one pass of the target "
        f"with chains of 1 to {CHAIN}, over {first.num_chains:,} places"
    )
    if not arguments.variants:
        return 0
    is_good = is_proven(results[0], results[1:])
    verdict = "are better by" if is_good else "are NOT better by"
    print(f"correct samples {verdict} at least {MARGIN:.0%} in agreement than any others")
    return 0 if is_good else 1


def _trained(trials: Trials, variant: Variant, seed: int) -> Score:
    begun = time.monotonic()

    def show(epochs: int, loss: float) -> None:
        done = f"epoch {epochs} of {trials.recipe.num_epochs}"
        seconds = time.monotonic() - begun
        print(f"{variant.name}, seed {seed}, {done}: loss {loss:.3f}, {seconds:.0f} s", flush=True)

    score = trials.score(variant, seed, show)
    print(f"{variant.name}, seed {seed}: agreement {score.agreement:.1%}", flush=True)
    return score


if __name__ == "__main__":
    sys.exit(main())
