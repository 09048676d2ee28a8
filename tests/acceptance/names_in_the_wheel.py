"""Looks up names of SGLang in the installed wheel.

It runs in the server's environment, where there is no pytest; ``test_inventory.py`` gives it names,
one a line in the forms of ``INVENTORY.md``, and reads back those that are missing.
"""

import ast
import functools
import inspect
import pkgutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from statetap_patch.cpu.import_hooks import install

install()  # before anything imports SGLang

import sglang  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

SOURCE = Path(sglang.__file__).parent


def missing(entry: str) -> list[str]:
    """What of one entry is not in the wheel."""
    if entry.startswith("--"):
        return [] if entry in flags() else [entry]
    if entry.isupper():
        return [] if any(entry in file for file in sources()) else [entry]
    path, _, rest = entry.partition(":") if ":" in entry else entry.partition("(")
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return [path]
    names = [name.strip() for name in rest.rstrip(")").split(",") if name.strip()]
    if not names:
        return []
    known = attributes(found) if ":" in entry else set(inspect.signature(found).parameters)
    return [f"{path}: {name}" for name in names if name not in known]


def attributes(cls: Any) -> set[str]:
    """Attributes of a class and, as far as its source shows, of its instances."""
    names: set[str] = set()
    for base in cls.__mro__[:-1]:  # not ``dir``, which shows no methods of an Enum
        names |= vars(base).keys() | getattr(base, "__annotations__", {}).keys()
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # built in, or made at run time
            continue
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return names


@functools.cache
def flags() -> set[str]:
    import argparse  # noqa: PLC0415  for this kind of name alone

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return set(parser._option_string_actions)


@functools.cache
def sources() -> list[str]:
    return [file.read_text(errors="replace") for file in SOURCE.rglob("*.py")]


if __name__ == "__main__":
    for line in sys.stdin.read().splitlines():
        for name in missing(line):
            print(name)  # noqa: T201  the report
