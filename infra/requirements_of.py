"""Prints what packages of this repository need from elsewhere, for locks of their own.

Usage: python requirements_of.py FOLDER...; each holds a pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Prints a requirement on each line."""
    for folder in sys.argv[1:]:
        project = tomllib.loads(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))
        for requirement in project["project"]["dependencies"]:
            if not requirement.startswith("statetap-"):
                print(requirement)


if __name__ == "__main__":
    main()
