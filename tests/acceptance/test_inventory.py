"""``INVENTORY.md`` against the installed SGLang, and against the code of the patch."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from statetap_contract import CaptureSpec
from statetap_local.services import SERVER_ENVIRONMENT
from statetap_patch.guard import Guard
from statetap_patch.hooks import hook_table
from statetap_patch.scheduler_side import SchedulerSide
from statetap_patch.settings import PatchSettings
from statetap_patch.tokenizer_side import _FOREIGN_FIELDS, TokenizerSide

#: Variables of the patch that hold objects of SGLang, and the class of each.
OBJECTS = {
    "args": "ServerArgs",
    "batch": "ScheduleBatch",
    "check": "CheckWeightsReqInput",
    "manager": "TokenizerManager",
    "obj": "GenerateReqInput",
    "output": "LogitsProcessorOutput",
    "req": "Req",
    "scheduler": "Scheduler",
    "server_args": "ServerArgs",
    "tp_worker": "TpModelWorker",
}


@pytest.fixture(scope="module")
def entries(repository: Path) -> list[str]:
    """What the inventory's tables list, in the forms that it explains."""
    rows = re.findall(
        r"^\| (`.+?`) \|", (repository / "sglang_patch" / "INVENTORY.md").read_text(), re.MULTILINE
    )
    return [entry for row in rows for entry in re.findall(r"`([^`]+)`", row)]


@pytest.fixture(scope="module")
def modules(repository: Path) -> list[ast.Module]:
    """The patch's own code."""
    files = sorted((repository / "sglang_patch" / "statetap_patch").rglob("*.py"))
    return [ast.parse(file.read_text()) for file in files]


def look_up(names: list[str]) -> list[str]:
    """Those that the installed wheel does not have."""
    ended = subprocess.run(
        [
            str(SERVER_ENVIRONMENT / "bin" / "python"),
            str(Path(__file__).with_name("names_in_the_wheel.py")),
        ],
        input="\n".join(names),
        env={"PATH": "/usr/bin:/bin", "SGLANG_PLATFORM": "statetap_cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def listed_attributes(entries: list[str]) -> dict[str, set[str]]:
    """Class name -> attributes that the inventory lists for it."""
    listed: dict[str, set[str]] = {}
    for entry in entries:
        path, colon, names = entry.partition(": ")
        if colon:
            listed.setdefault(path.rpartition(".")[2], set()).update(names.split(", "))
    return listed


def test_every_name_is_in_the_installed_wheel(entries: list[str]) -> None:
    """And names that are not there, of each form, are found missing."""
    made_up = [
        "sglang.srt.managers.scheduler.Scheduler.no_such_method",
        "sglang.srt.managers.schedule_batch.Req: rid, no_such_attribute",
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation(no_such_parameter)",
        "--no-such-flag",
        "SGLANG_NO_SUCH_VARIABLE_AT_ALL",
    ]
    assert len(entries) > 50
    assert look_up(entries + made_up) == [
        "sglang.srt.managers.scheduler.Scheduler.no_such_method",
        "sglang.srt.managers.schedule_batch.Req: no_such_attribute",
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation: no_such_parameter",
        "--no-such-flag",
        "SGLANG_NO_SUCH_VARIABLE_AT_ALL",
    ]


def test_every_hook_is_listed(entries: list[str], tmp_path: Path) -> None:
    """By its full name, in the first table."""
    settings = PatchSettings(tmp_path, CaptureSpec("m", "r", (1,), "post", 4, "float32"), (0,), 60)
    guard = Guard()
    table = hook_table(SchedulerSide(settings, guard), TokenizerSide(settings), guard)
    listed = {entry.partition("(")[0] for entry in entries}
    assert {hook.target for hook in table} <= listed


def test_every_import_is_listed(entries: list[str], modules: list[ast.Module]) -> None:
    """Whatever the patch imports from SGLang."""
    imported = {
        f"{node.module}.{alias.name}"
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.")
        for alias in node.names
    }
    assert imported
    unlisted = {name for name in imported if not any(name in entry for entry in entries)}
    assert unlisted == set()


def test_every_attribute_is_listed(entries: list[str], modules: list[ast.Module]) -> None:
    """Of SGLang's objects, as far as the name of a variable tells that it holds one."""
    listed = listed_attributes(entries)
    used = {(owner, name) for module in modules for owner, name in attributes_of(module)}
    assert ("Req", "extra_key") in used
    assert {(owner, name) for owner, name in used if name not in listed[owner]} == set()
    assert set(_FOREIGN_FIELDS) <= listed["GenerateReqInput"]


def test_every_argument_is_listed(entries: list[str], modules: list[ast.Module]) -> None:
    """That the launcher gives to SGLang, or refuses to take."""
    flags = {
        node.value.partition("=")[0]
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"--[a-z-]+(=.*)?", node.value)
    }
    assert "--enable-return-aux-hidden-states" in flags
    launchers_own = {
        "--any-sglang-version",
        "--cpu",
        "--dumps",
        "--keep",
        "--layers",
        "--model",
        "--norm",
    }
    assert flags - set(entries) == launchers_own


def attributes_of(module: ast.Module) -> Iterator[tuple[str, str]]:
    """(class, attribute) for each use of an attribute of an object of SGLang."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Attribute):
            continue
        holder = node.value
        name = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", None)
        if name in OBJECTS and not is_own(name, node.attr):
            yield OBJECTS[name], node.attr


def is_own(variable: str, attribute: str) -> bool:
    """``hooks.hook_table`` has a ``scheduler`` of its own: the side whose hooks it lists."""
    return variable == "scheduler" and hasattr(SchedulerSide, attribute)
