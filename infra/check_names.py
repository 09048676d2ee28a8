"""Finds public names that two modules define: one word per thing, in code too.

Usage: python infra/check_names.py FOLDER...; exits with 1 and a list when there are any.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

#: Entry points, loggers and type variables: each module has its own.
_MAY_REPEAT = {"main", "logger", "S", "T"}


def public_names(module: Path) -> list[str]:
    """Classes, functions and constants that a module defines at its top level."""
    names = []
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.append(name)
    return [name for name in names if not name.startswith("_") and name not in _MAY_REPEAT]


def main() -> None:
    """Checks all modules below the folders on the command line."""
    places = defaultdict(list)
    for folder in sys.argv[1:]:
        for module in sorted(Path(folder).rglob("*.py")):
            for name in public_names(module):
                places[name].append(module)
    repeated = {name: modules for name, modules in places.items() if len(modules) > 1}
    for name, modules in sorted(repeated.items()):
        print(f"{name} is defined in {', '.join(map(str, modules))}")
    if repeated:
        sys.exit(1)


if __name__ == "__main__":
    main()
