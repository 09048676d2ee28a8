"""``python -m train_drafter``: what it says when something is wrong, and when nothing is."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from statetap_contract import CaptureSpec, ModelFolder
from train_drafter.__main__ import main

from .conftest import WIDTH, Arrays, Store, seeded

#: Runs the command in this process: exit code, stdout, stderr.
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["train_drafter", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def any_sample(number: int) -> Arrays:
    states = torch.randn(12, 2 * WIDTH, generator=seeded(number))
    aux, last = torch.split(states, WIDTH, dim=1)
    return list(range(number, number + 12)), [0] * 4 + [1] * 8, aux, last


@pytest.fixture
def run(store: Store, made_spec: CaptureSpec) -> Path:
    """The run folder of 20 samples of the made target."""
    table = store(made_spec, [any_sample(number) for number in range(20)])
    return table.shards[0].parents[1]


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_one_training(command: Command, run: Path, made_target: Path) -> None:
    """Says what it trains on, each epoch's loss, and the scores; nothing is compared."""
    code, out, err = command(run, "--model", made_target, "--epochs", 2, "--seeds", 2)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "17 samples of 204 tokens to train on, 3 of 36 held out, 27 tokens to draft"
    )
    assert sum("epoch 2 of 2: loss " in line for line in lines) == 2
    assert sum(line.startswith("correct, seed 1: agreement ") for line in lines) == 1
    # Of a sample's 8 answered tokens all can be the first of a chain but the last three.
    assert lines[-1] == (
        "agreement over 24 held-out tokens; tokens won by one pass of the target with chains of 1 "
        "to 4, over 15 places"
    )


def test_samples_that_teach_nothing_are_no_proof(
    command: Command, run: Path, made_target: Path
) -> None:
    """With random states no variant is better than another: code 1, and the verdict says so."""
    code, out, err = command(run, "--model", made_target, "--epochs", 1, "--variants")
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].startswith("correct samples are NOT better by at least ")
    names = ("no aux states", "rows shifted by one", "layers swapped", "samples exchanged")
    assert all(name in out for name in names)


def test_from_a_shell(repository: Path, run: Path, made_target: Path) -> None:
    """As the README has it."""
    program = [sys.executable, "-m", "train_drafter", str(run), "--model", str(made_target)]
    ended = subprocess.run(
        [*program, "--epochs", "1"],
        cwd=repository / "examples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def refused(result: tuple[int, str, str], code: int, *parts: str) -> None:
    """Ended with a code and one sentence on stderr that has these parts."""
    assert result[0] == code
    (line,) = result[2].splitlines()
    assert line.startswith("train_drafter: ")
    assert all(part in line for part in parts), line


def test_runs_that_cannot_be_used(
    command: Command, run: Path, made_target: Path, tmp_path: Path
) -> None:
    """No such path, no samples, too few on one side, fractions that are none."""
    model = ("--model", made_target)
    refused(command(tmp_path / "none", *model), 3, "none")
    (tmp_path / "empty" / "shards").mkdir(parents=True)
    refused(command(tmp_path / "empty", *model), 3, "there is no shard in", "empty")
    few = "training takes at least two and measuring one"
    refused(command(run, *model, "--val-fraction", "0"), 1, "0 of 20 samples", few)
    refused(command(run, *model, "--val-fraction", "0.999"), 1, "20 of 20 samples", few)
    refused(command(run, *model, "--val-fraction", "1.5"), 2, "1.5")


def test_models_that_cannot_be_used(command: Command, run: Path, made_target: Path) -> None:
    """None there, another one, and one whose logits are not its head times its states."""
    refused(command(run, "--model", run), 3, "holds no config.json")
    change_config(made_target, vocab_size=WIDTH + 1)
    revision = ModelFolder.read(made_target).revision
    refused(command(run, "--model", made_target), 2, f"is revision {revision}", "give the folder")


@pytest.mark.parametrize(
    ("config", "weights", "part"),
    [
        ({"logits_scaling": 8.0}, {}, "its config has logits_scaling"),
        ({"final_logit_softcapping": 30.0}, {}, "its config has final_logit_softcapping"),
        ({}, {"lm_head.bias": torch.zeros(WIDTH)}, "it has a lm_head.bias"),
        ({}, {"model.embed_tokens.weight": None}, "holds an embed_tokens.weight"),
        ({}, {"other.lm_head.weight": torch.eye(WIDTH)}, "several: lm_head.weight, other.lm_head"),
    ],
)
def test_heads_that_are_not_known(
    command: Command,
    store: Store,
    made_target: Path,
    config: dict[str, Any],
    weights: dict[str, torch.Tensor | None],
    part: str,
) -> None:
    """A drafter would learn other answers than the target gives, so none is trained."""
    change_config(made_target, **config)
    path = made_target / "model.safetensors"
    changed = load_file(path) | weights
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)
    spec = ModelFolder.read(made_target).spec(layers=(2,))
    table = store(spec, [any_sample(number) for number in range(20)])
    refused(command(table.shards[0], "--model", made_target), 2, part)


def test_wrong_use(command: Command, run: Path, made_target: Path) -> None:
    """The parser's own sentence and code."""
    for option in ("--epochs", "--seeds", "--draft-vocab-size"):
        code, _, err = command(run, "--model", made_target, option, 0)
        assert code == 2
        assert "0 is not positive" in err
