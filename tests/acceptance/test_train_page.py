"""docs/train.md: what it tells people to type, parsed by those who would have to understand it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from statetap_producer.cli import app

from .peer_samples import LENGTHS, PeerData
from .test_peers import export

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks(repository: Path) -> dict[str, list[str]]:
    """Language -> the blocks in it."""
    found: dict[str, list[str]] = {}
    for language, text in _BLOCK.findall((repository / "docs/train.md").read_text()):
        found.setdefault(language, []).append(text)
    return found


@pytest.fixture(scope="module")
def commands(blocks: dict[str, list[str]]) -> list[list[str]]:
    """The words of every line of its sh blocks."""
    return [shlex.split(line) for block in blocks["sh"] for line in block.splitlines()]


def test_our_commands_have_these_options(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line that is ours is one that the program takes; each export is told of."""
    program: Any = typer.main.get_command(app)
    names = []
    for words in commands:
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        elif words[0] == "statetap":
            context = program.make_context("statetap", words[1:])
            name, command, rest = program.resolve_command(context, words[1:])
            assert command is not None
            command.make_context(name, rest, parent=context)
            names.append(name)
    assert names.count("export") == 4
    assert {"plan", "enqueue", "verify", "crosscheck"} <= set(names)


def test_trainers_take_these_commands(
    repository: Path,
    blocks: dict[str, list[str]],
    commands: list[list[str]],
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """Their own code parses them, and finds the very files that our export commands write.

    The ratio is that of a real export, as the shell puts it in; that it cuts where the held-out
    samples begin is held in ``test_peers.py``.
    """
    python = repository / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run make peers")
    (run,) = blocks["yaml"]
    (tmp_path / "mine.yaml").write_text(run)
    told: dict[str, Any] = {"specforge": str(tmp_path / "mine.yaml")}
    told["speculators"] = next(words[2:] for words in commands if words[0] == "speculators")
    data = PeerData.make(tiny_model, tmp_path / "data")
    held_out = ("--val-fraction", "0.3")
    made = export("speculators", data.post, data.model, tmp_path / "made", *held_out)
    ratio = json.loads((made / "export.json").read_text())["train_data_ratio"]
    place = told["speculators"].index("--train-data-ratio") + 1
    told["speculators"][place] = in_shell(told["speculators"][place], made)
    told["modelopt"] = next(words[1:] for words in commands if words[0] == "./launch_train.sh")
    ended = subprocess.run(
        [python, repository / "tests/acceptance/peers/parse_commands.py", json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    taken = json.loads(ended.stdout.splitlines()[-1])
    exported = {
        words[words.index("--to") + 1]: words[words.index("--out") + 1]
        for words in commands
        if words[:2] == ["statetap", "export"]
    }
    assert taken == {
        "specforge": {
            "hidden_states_path": f"{exported['specforge']}/train",
            "eval_hidden_states_path": f"{exported['specforge']}/val",
            "vocab_mapping_path": f"{exported['specforge']}/vocab_mapping/vocab_mapping.pt",
        },
        "speculators": {
            "data_path": exported["speculators"],
            "on_missing": "raise",
            "draft_vocab_size": 32000,
            "train_data_ratio": ratio,
        },
        "modelopt": {
            "offline_data_path": f"{exported['modelopt']}/train",
            "draft_vocab_cache": f"{exported['modelopt']}/d2t.pt",
            "answer_only_loss": True,
            "draft_vocab_size": 32000,
        },
    }


def in_shell(word: str, made: Path) -> str:
    """What a shell makes of a word that has ``jq`` read from the export, were it there."""
    found = re.fullmatch(r"\$\(jq \.(\w+) (\S+)\)", word)
    assert found is not None, word
    file = Path(found[2].replace("/data/speculators", str(made)))
    return json.dumps(json.loads(file.read_text())[found[1]])


def test_the_loop_of_a_trainer_of_ones_own_runs(
    blocks: dict[str, list[str]], tiny_model: Path, tmp_path: Path
) -> None:
    """As it stands there, for one epoch: every token of the samples comes by."""
    shards = PeerData.make(tiny_model, tmp_path).post
    (loop,) = blocks["python"]
    loop = loop.replace("/data/runs/mine", str(shards)).replace("range(10)", "range(1)")
    loop = loop.replace("        ...", '        print(int(batch["attention_mask"].sum()))')
    ended = subprocess.run(
        [sys.executable, "-c", loop], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert sum(map(int, ended.stdout.split())) == sum(LENGTHS)
