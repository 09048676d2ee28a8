"""What a newcomer sees: the demo, with the tiny model, and the files it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
import torch
from statetap_contract import ModelFolder
from statetap_local.service import Service

from .reference import Reference

NUM_CONVERSATIONS = 60


@pytest.fixture(scope="module")
def dataset(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of the example conversations, and as many lines that cannot be used."""
    lines = (repository / "examples/data/conversations.jsonl").read_text().splitlines()
    path = tmp_path_factory.mktemp("data") / "some.jsonl"
    path.write_text("\n".join([*lines[:NUM_CONVERSATIONS], "{}", "not json", lines[0]]) + "\n")
    return path


class Demo:
    """The demo command over one folder."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "runs" / "example"
        self.command = [sys.executable, "-m", "statetap_local.demo", "--model=tiny"]
        self.command += [f"--folder={folder}", f"--dataset={dataset}"]

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command, capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture(scope="module")
def demo(tiny_model: Path, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A demo that has run once, to a good end."""
    assert tiny_model.is_dir()  # made before, so that the demo's own time is not spent on it
    demo = Demo(tmp_path_factory.mktemp("demo"), dataset)
    ended = demo.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{NUM_CONVERSATIONS} prompts queued, 0 already stored, 0 dead" in ended.stdout
    assert "every sample stored and proven" in ended.stdout
    return demo


def statetap(*arguments: object) -> Any:
    """What a command says with --json."""
    program = Path(sys.executable).parent / "statetap"
    ended = subprocess.run(
        [str(program), *map(str, arguments), "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout)


def test_the_account_adds_up(demo: Demo) -> None:
    """Every prompt planned is stored, none is dead or pending, and the lines left out are told."""
    numbers = statetap("status", "--run", demo.run_folder)
    assert numbers["planned"] == numbers["stored"] == NUM_CONVERSATIONS
    assert numbers["dead"] == numbers["pending"] == 0
    record = json.loads((demo.run_folder / "run.json").read_text())
    assert record["counts"]["num_read"] == NUM_CONVERSATIONS + 3
    assert record["counts"]["num_duplicates"] == 1


def test_every_row_equals_the_reference(demo: Demo, tiny_model: Path) -> None:
    """Read with plain h5py, compared with HF transformers: every sample, every slot."""
    reference, layers = Reference(tiny_model), ModelFolder.read(tiny_model).default_layers
    num_samples = 0
    for path in (demo.run_folder / "shards").glob("*.h5"):
        with h5py.File(path) as shard:
            assert list(shard.attrs["layers"]) == list(layers)
            for row in shard["index"][...]:
                if not row["num_tokens"]:
                    continue
                tokens = slice(row["token_offset"], row["token_offset"] + row["num_tokens"])
                ids, states = shard["input_ids"][tokens], shard["states"][tokens]
                expected = reference.states(ids.tolist(), layers)
                assert (torch.from_numpy(states) - expected).abs().max() <= 1e-4
                num_samples += 1
    assert num_samples == NUM_CONVERSATIONS


def test_the_crosscheck_keeps_its_bound(demo: Demo, tiny_model: Path) -> None:
    """It tells the largest difference of each slot. That it can fail: test_faults."""
    outcome = statetap("crosscheck", demo.run_folder, "--model", tiny_model)
    assert [slot["slot"] for slot in outcome["slots"]] == ["h2", "h4", "h5", "last"]
    assert all(slot["max_absolute"] <= 1e-4 for slot in outcome["slots"])
    assert len(outcome["keys"]) == 8


def test_the_readmes_script_shows_a_sample(demo: Demo, repository: Path) -> None:
    """Five lines of plain h5py, as they stand in the README, on a shard of the demo."""
    blocks = re.findall(r"```python\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    (script,) = [block for block in blocks if "import h5py" in block and "torch" not in block]
    assert len(script.strip().splitlines()) <= 5
    (shard_name,) = re.findall(r'"(demo-run/[^"]*\.h5)"', script)
    shard = demo.folder.joinpath(*Path(shard_name).parts[1:])
    ended = subprocess.run(
        [sys.executable, "-c", script.replace(shard_name, str(shard))],
        capture_output=True,
        text=True,
        check=True,
    )
    with h5py.File(shard) as opened:
        row = opened["index"][0]
        first_state = opened["states"][0, 0]
    assert row["key"].decode() in ended.stdout
    assert np.format_float_positional(first_state, precision=3, trim="-")[:4] in ended.stdout


def test_nothing_is_left_in_shared_memory_or_running(demo: Demo) -> None:
    """Dumps are deleted, services stopped."""
    assert not list(Path("/dev/shm").glob("statetap-demo-*"))
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(demo.folder) in command]


def test_a_second_demo_finds_everything_stored_and_ctrl_c_stops_it(
    demo: Demo, tmp_path: Path
) -> None:
    """Nothing is extracted again; a demo that was told to stay ends on Ctrl-C with its services."""
    log = tmp_path / "again.log"
    service = Service("the demo", [*demo.command, "--keep"], log)
    service.wait_until(lambda: "Everything keeps running" in log.read_text(), 300)
    text = log.read_text()
    assert "The run holds this very plan already" in text
    assert f"0 prompts queued, {NUM_CONVERSATIONS} already stored, 0 dead" in text
    started = psutil.Process(service.pid).children(recursive=True)
    assert len(started) > 4
    os.kill(service.pid, signal.SIGINT)
    assert service.wait(60) == 130
    # One that has ended may wait for an init process to take note of it.
    alive = [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not alive
    assert not list(Path("/dev/shm").glob("statetap-demo-*"))
