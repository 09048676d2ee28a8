"""Real services for the tests: each is started once, used by many, stopped by its pid."""

import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from statetap_contract.api_key import API_KEY_VARIABLE
from statetap_local.services import LocalRedis, LocalServer

REPOSITORY = Path(__file__).resolve().parents[1]

# Nothing may look for a model hub, and nothing would find one.
os.environ["HF_HUB_OFFLINE"] = "1"

# A server asks for a key where its test says so. A developer's own would close all the others.
os.environ.pop(API_KEY_VARIABLE, None)

# Started in the background, a process has Ctrl-C ignored, and so has all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that is busy with servers draws examples slowly, which is no fault of a test.
hypothesis.settings.register_profile(
    "statetap", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("statetap")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of the longest tests to run, and which."""
    group = parser.getgroup("statetap")
    group.addoption("--stress-requests", type=int, default=500, help="captured requests")
    group.addoption(
        "--all-layers", action="store_true", help="three choices of layers an architecture, not one"
    )
    group.addoption("--stress-seed", type=int, default=1, help="the same seed, the same requests")
    group.addoption("--crash-states", type=int, default=200, help="crashes of each kind")
    group.addoption("--crash-seed", type=int, default=1, help="the same seed, the same crashes")
    group.addoption("--crash-kills", type=int, default=60, help="writers really killed")
    group.addoption("--chaos-samples", type=int, default=1500, help="prompts of the run")
    group.addoption("--chaos-kills", type=int, default=30, help="processes killed with -9")
    group.addoption("--chaos-seed", type=int, help="the same seed, the same schedule; else any")
    group.addoption("--soak-samples", type=int, default=300, help="prompts of the run")
    group.addoption("--soak-seed", type=int, default=1, help="the same seed, the same prompts")
    group.addoption("--compose", action="store_true", help="run containers; takes Docker and root")
    group.addoption("--crash-only", metavar="STATE", help="only this crash, such as power-17")


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def benchmark_script(repository: Path) -> Callable[[str], ModuleType]:
    """``benchmark_script(name)``: a script of benchmarks/, which is no package, as a module."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            name, repository / "benchmarks" / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A random float32 Llama with 8 layers and a ChatML tokenizer."""
    # Imports torch and transformers, for which no unit test should wait.
    from statetap_local.models import tiny_llama  # noqa: PLC0415

    return tiny_llama(REPOSITORY / ".cache" / "models")


@pytest.fixture(scope="session")
def local_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRedis]:
    """A Redis with a password; every test uses queues of its own."""
    folder = tmp_path_factory.mktemp("redis")
    service = LocalRedis(folder, folder / "redis.log", "s3cret-word")
    yield service
    service.stop()


@pytest.fixture(scope="session")
def dumps() -> Iterator[Path]:
    """The dump folder of ``server``, on shared memory."""
    folder = Path(tempfile.mkdtemp(prefix="statetap-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server(
    tiny_model: Path, dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A real SGLang server in the setting that is hardest on row capture.

    Prompts of more than 256 tokens are computed in chunks, chunks share batches with requests that
    are generating, the prefix cache is on, and overlap scheduling too.
    """
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=[
            "--max-total-tokens=16384",
            "--chunked-prefill-size=256",
            "--enable-mixed-chunk",
        ],
    )
    yield service
    service.stop()
