"""Every kind that a worker's log can show stands in docs/faults.md, with what to do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import statetap_contract
from statetap_contract import StatetapError, StopError

#: Errors that carry a kind, by the name under which they are raised.
ERRORS = {
    name
    for name, value in vars(statetap_contract).items()
    if isinstance(value, type) and issubclass(value, StatetapError)
}

#: What a worker uses of the contract that raises errors of its own.
CONTRACT = ("api_key.py", "handshake.py", "job.py")

PREFIX = "statetap_store."


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def writing_modules(store: Path) -> set[Path]:
    """What appending to a run's shards imports, from ``ShardSet`` downwards."""
    found: set[Path] = set()
    left = [store / "shard_set.py"]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        left += (
            store / f"{(node.module or '').removeprefix(PREFIX)}.py"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX)
        )
    return found


def kinds_in(tree: ast.Module) -> Iterator[str]:
    """First arguments of errors, and ``kind=`` of log lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(kind)), *_]) if (
                name in ERRORS
            ):
                yield kind
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger")), keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
                        yield str(keyword.value.value)


def kinds_of(repository: Path) -> set[str]:
    worker = repository / "worker" / "statetap_worker"
    contract = repository / "contract" / "statetap_contract"
    paths = {
        *worker.rglob("*.py"),
        *writing_modules(repository / "store" / "statetap_store"),
        *(contract / name for name in CONTRACT),
    }
    return {kind for path in paths for kind in kinds_in(tree_of(path))}


def test_kinds_are_found_in_code() -> None:
    """Of errors in any layout, and of log lines; a name alone is none."""
    code = 'raise StopError(\n  "a-b", f"{x}"\n)\nlogger.error("e", kind="c-d")\n'
    code += 'raise ValueError("e-f")\nsort(x, kind="stable")\n'
    assert StopError.__name__ in ERRORS
    assert set(kinds_in(ast.parse(code))) == {"a-b", "c-d"}


@pytest.mark.parametrize("kind", ["shard-locked", "canary-drift", "server-inconsistent"])
def test_kinds_of_all_packages_are_found(repository: Path, kind: str) -> None:
    """Store, worker and contract."""
    assert kind in kinds_of(repository)


def test_every_kind_is_documented(repository: Path) -> None:
    """Whoever reads a kind in a log finds it on the page."""
    page = (repository / "docs" / "faults.md").read_text()
    documented = set(re.findall(r"`([a-z0-9-]+)`", page))
    assert sorted(kinds_of(repository) - documented) == []
