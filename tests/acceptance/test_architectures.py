"""Layers asked for as HF counts them come back as HF computes them, whatever the architecture.

Each choice of layers is a server. One for each architecture runs among the tests, all by
``make architectures``.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import pytest
from statetap_local.models import tiny_deepseek_v3, tiny_llama, tiny_qwen3, tiny_qwen3_moe
from statetap_local.services import LocalServer
from statetap_local.tiny_kimi import tiny_kimi_k25

from .capturing import assert_right, capture_all, prompts_of
from .reference import Reference

Layers: TypeAlias = tuple[int, ...]
MakeModel: TypeAlias = Callable[[Path], Path]

#: EAGLE-3's own for 8 layers: 2, 8 // 2 and 8 - 3.
DEFAULT: Final = (2, 4, 5)

#: From one token to several chunks of 256; the longest goes beyond what YaRN calls original.
LENGTHS: Final = [1, 7, 40, 255, 256, 257, 600, 1100]


@pytest.fixture
def models(repository: Path) -> Path:
    return repository / ".cache" / "models"


@pytest.mark.parametrize(
    ("make_model", "choices"),
    [
        pytest.param(tiny_llama, [(1, 4, 7), (1,), (3, 6)], id="llama"),
        pytest.param(tiny_qwen3, [(2, 3, 6, 7), (7,), (1, 2, 5)], id="qwen3"),
        pytest.param(tiny_qwen3_moe, [(1, 3), (5,), (2, 4, 7)], id="qwen3-moe"),
        # A flag whose first id is 1 means other layers here than one whose first id is 2.
        pytest.param(tiny_deepseek_v3, [(1, 4, 5), (2, 5, 7), (1, 2, 3, 6)], id="deepseek-v3"),
    ],
)
def test_rows_are_those_of_hf(
    models: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    make_model: MakeModel,
    choices: list[Layers],
) -> None:
    """A server that is told no layers, which is for EAGLE-3's, and one for each choice."""
    num_choices = len(choices) if pytestconfig.getoption("--all-layers") else 1
    model = make_model(models)
    check_all(model, [None, *choices[:num_choices]], Reference(model), tmp_path)


def test_rows_of_kimi_are_those_of_its_language_model(models: Path, tmp_path: Path) -> None:
    """In Kimi-K2.5's wrapper the layers are set, found and captured two modules further in."""
    reference = Reference(tiny_deepseek_v3(models))
    check_all(tiny_kimi_k25(models), [None, (1, 6)], reference, tmp_path, "--trust-remote-code")


def check_all(
    model: Path,
    choices: list[Layers | None],
    reference: Reference,
    folder: Path,
    *arguments: str,
) -> None:
    """Checks every choice, two servers at a time.

    Starting a server takes one core half a minute, nearly all of it imports.
    """
    with ThreadPoolExecutor(2) as threads:
        checks = [
            threads.submit(check, model, layers, reference, folder, arguments) for layers in choices
        ]
    for finished in checks:
        finished.result()


def check(
    model: Path,
    layers: Layers | None,
    reference: Reference,
    folder: Path,
    arguments: tuple[str, ...],
) -> None:
    """Starts a server, captures, compares."""
    expected = layers or DEFAULT
    name = "-".join(map(str, layers or ["default"]))
    if layers:
        arguments += ("--layers", *map(str, layers))
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as dumps:
        server = LocalServer(
            model,
            Path(dumps),
            folder / f"{name}.log",
            arguments=["--chunked-prefill-size=256", *arguments],
            # Where transformers puts code that comes with a model; else in the home folder.
            environment={"HF_MODULES_CACHE": str(folder / name)},
        )
        try:
            captured = capture_all(server.url, Path(dumps), prompts_of(LENGTHS, seed=1))
            assert {receipt.layers for _, receipt in captured} == {expected}
            assert_right(Path(dumps), reference, captured)
        finally:
            server.stop()
