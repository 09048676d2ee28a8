"""The canary on a real server: what it must not mind, and what it must notice."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import pytest
from statetap_contract import CaptureSpec, StopError, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server
from statetap_worker.proving.canary import Canary
from statetap_worker.settings import WorkerSettings

from .capturing import Capture, other_traffic, prompts_of

#: Starts another server on a model folder, and gives it with its dump folder.
Start: TypeAlias = Callable[[Path], tuple[LocalServer, Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[LocalServer] = []
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:

        def start_on(model: Path) -> tuple[LocalServer, Path]:
            dumps = Path(folder)
            # Chunks in which the canary takes two steps.
            arguments = ["--max-total-tokens=16384", "--chunked-prefill-size=16"]
            servers.append(LocalServer(model, dumps, tmp_path / "log", arguments=arguments))
            return servers[-1], dumps

        yield start_on
        for server in servers:
            server.stop()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def reproduce(server: LocalServer, dumps: Path, runs: Path) -> CaptureSpec:
    """What a worker does before it takes work from the server. Returns what is captured."""
    settings = WorkerSettings(
        server_url=server.url,
        redis_url="redis://unused",
        dumps=dumps,
        runs=runs,
        name="w",
        num_processes=1,
        shard_bytes=1 << 30,
    )
    client = Server(server.url)
    capture = client.handshake()
    Canary(settings, capture, "w-00").wait_until_reproduced(client, 60)
    return capture.spec


def test_the_same_model_passes(
    server: LocalServer,
    dumps: Path,
    capture: Capture,
    tiny_model: Path,
    runs: Path,
    start: Start,
) -> None:
    """Beside captures, decoding and health checks, and in another process with other chunks."""
    spec = reproduce(server, dumps, runs)
    with other_traffic(server), ThreadPoolExecutor(1) as threads:
        captured = threads.submit(capture, prompts_of([900, 300, 40, 7] * 3, "canary"))
        for _ in range(5):
            reproduce(server, dumps, runs)
        captured.result()
    assert reproduce(*start(tiny_model), runs) == spec
    assert [file.name for file in (runs / ".canaries").iterdir()] == [dump_name(spec.digest)]


def test_weights_that_were_changed_in_place_are_noticed(
    server: LocalServer,
    dumps: Path,
    tiny_model: Path,
    tmp_path: Path,
    runs: Path,
    start: Start,
) -> None:
    """Name, shapes and configuration as before, hence the spec; each weight is off by 0.1 %."""
    spec = reproduce(server, dumps, runs)
    model = tmp_path / tiny_model.name
    shutil.copytree(tiny_model, model)
    change_weights(model / "model.safetensors", 0.001)
    changed = start(model)
    client = Server(changed[0].url)
    assert client.handshake().spec == spec
    with pytest.raises(StopError, match=str(runs)) as caught:
        reproduce(*changed, runs)
    assert caught.value.kind == "canary-drift"


def change_weights(file: Path, scale: float) -> None:
    """Multiplies each weight of a float32 checkpoint by a normal deviate around 1."""
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    weights = np.frombuffer(content, "<f4", offset=start)
    weights *= 1 + scale * np.random.default_rng(0).standard_normal(len(weights), np.float32)
    file.write_bytes(content)
