"""The newcomer's path through containers, as the README has it."""

from pathlib import Path
from typing import Final

_HEADING: Final = "## In containers"


def readme_lines(repository: Path) -> list[str]:
    """The commands of that section, in order: its indented lines, without the prompts' output."""
    section = (repository / "README.md").read_text(encoding="utf-8").partition(_HEADING)[2]
    section = section.partition("\n## ")[0]
    return [
        line.strip()
        for line in section.splitlines()
        if line.startswith("    ") and line.strip().startswith(("cp ", "docker compose "))
    ]
