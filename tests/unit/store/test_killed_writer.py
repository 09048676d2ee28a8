"""Real processes, really killed."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardReader, ShardSet, scan_run, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]

SCRIPT = Path(__file__).with_name("endless_writer.py")
NUM_KILLS = 20


def acknowledged_in(path: Path) -> list[int]:
    """Numbers that a writer said are durable; the last line may be cut."""
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@pytest.mark.timeout(120)
def test_kill_nine_loses_and_doubles_nothing(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """After kills at random moments, with redelivery, each sample is there once and is right."""
    generator = random.Random(11)
    acknowledged = tmp_path / "acknowledged"
    folder = tmp_path / "shards"
    for kill in range(NUM_KILLS):
        before = acknowledged_in(acknowledged)
        # As after a lost acknowledgement, the last few are delivered again.
        first = max(0, max(before, default=0) - 5)
        batch = generator.choice([1, 1, 4])
        command = [sys.executable, str(SCRIPT), str(folder), str(first), str(batch)]
        with subprocess.Popen([*command, str(acknowledged)]) as writer:
            wanted = len(before) + generator.randrange(30)
            while len(acknowledged_in(acknowledged)) <= wanted:
                assert writer.poll() is None, f"the writer failed before kill {kill}"
            try:
                writer.wait(generator.uniform(0, 0.02))
            except subprocess.TimeoutExpired:
                os.kill(writer.pid, signal.SIGKILL)
        assert writer.returncode == -signal.SIGKILL

    ShardSet(folder, "w0", 1, spec, provenance).close()
    index = scan_run(folder)
    stored = {int(entry.key, 16) for entry in index.samples}
    assert index.num_duplicates == 0
    assert stored >= set(acknowledged_in(acknowledged))
    assert len(index.shards) > 1, "kills met full shards"
    for path in index.shards:
        assert verify_shard(path).faults == ()
        with ShardReader(path) as reader:
            for entry in reader.samples:
                sample, (_, ids, mask, states) = (
                    reader.read(entry),
                    numbered_sample(int(entry.key, 16)),
                )
                assert sample.token_ids.tobytes() == ids.tobytes()
                assert sample.loss_mask.tobytes() == mask.tobytes()
                assert sample.states.tobytes() == states.tobytes()
