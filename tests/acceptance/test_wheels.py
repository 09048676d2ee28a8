"""The two wheels that are added to an SGLang image, and nothing else."""

import ast
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from statetap_local.services import SERVER_ENVIRONMENT

#: What SGLang brings along, itself or through FastAPI.
SGLANG_HAS = {"sglang", "starlette", "torch"}


@pytest.fixture(scope="module")
def wheels(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Package -> its wheel, built as a release would build it."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    for package in ("contract", "sglang_patch"):
        subprocess.run(
            [*command, f"--wheel-dir={folder}", str(repository / package)],
            check=True,
            capture_output=True,
        )
    return {file.name.split("-")[0]: file for file in folder.glob("*.whl")}


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        message = Parser().parsestr(archive.read(metadata).decode())
    return sorted(message.get_all("Requires-Dist", []))


def test_they_require_xxhash_and_each_other(wheels: dict[str, Path]) -> None:
    """Whatever else they import is SGLang's own."""
    assert requirements(wheels["statetap_contract"]) == []
    assert requirements(wheels["statetap_patch"]) == ["statetap-contract", "xxhash>=3.5"]


def test_they_import_nothing_that_is_not_there(wheels: dict[str, Path]) -> None:
    """The code keeps what the metadata promises."""
    imported: set[str] = set()
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    imported |= top_level_imports(ast.parse(archive.read(name)))
    foreign = imported - set(sys.stdlib_module_names) - SGLANG_HAS
    assert foreign == {"statetap_contract", "statetap_patch", "xxhash"} | {"_typeshed"}


def test_they_work_alone_beside_sglang(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Installed from the wheels, without the repository, all entry points are found."""
    python = str(SERVER_ENVIRONMENT / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*install, f"--target={tmp_path}", *map(str, wheels.values())],
        check=True,
        capture_output=True,
    )
    program = (
        "from importlib.metadata import entry_points, distribution\n"
        "import statetap_patch\n"
        "print(statetap_patch.__file__)\n"
        "found = {(e.group, e.name): e for e in distribution('statetap-patch').entry_points}\n"
        "print(found['console_scripts', 'statetap-sglang'].load().__name__)\n"
        "print(found['sglang.srt.plugins', 'statetap'].load()())\n"
        "print(found['sglang.srt.platforms', 'statetap_cpu'].load()())\n"
    )
    ended = subprocess.run(
        [python, "-c", program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # Neither plugin nor platform does anything in a server that the launcher did not start.
    assert ended.stdout.splitlines() == [
        str(tmp_path / "statetap_patch" / "__init__.py"),
        "main",
        "None",
        "None",
    ]


def top_level_imports(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}
