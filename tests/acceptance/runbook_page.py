"""What docs/runbook.md tells people to type, section by section."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)

#: Beginnings of what would be a command where it stood by itself; a name alone is none.
_PROGRAM: Final = re.compile(
    r"(?:statetap [a-z]+|statetap-worker|statetap-sglang|celery|redis-server|redis-cli|systemctl"
    r"|docker|kill|curl|find|rm|cp|df) [^ ]"
)

#: Words in backticks, and lines that are set apart without being a block.
_CODE: Final = re.compile(r"`([^`\n]+)`|^ {4}(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunbookPage:
    """The page."""

    #: The block that sets what the others use.
    variables: tuple[str, ...]
    #: Heading to commands, a line each; only sections that have some.
    sections: dict[str, tuple[str, ...]]
    #: Commands that stand in no block, so that no test would run them.
    stray: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads it."""
        text = path.read_text(encoding="utf-8")
        titles = [(match.start(), match[1]) for match in _HEADING.finditer(_without_blocks(text))]
        sections: dict[str, tuple[str, ...]] = {}
        for match in _BLOCK.finditer(text):
            title = [title for start, title in titles if start < match.start()][-1]
            sections[title] = (*sections.get(title, ()), *match[1].splitlines())
        variables = sections.pop(titles[0][1])
        prose = (one or other for one, other in _CODE.findall(_without_blocks(text)))
        return cls(variables, sections, tuple(code for code in prose if _PROGRAM.match(code)))


def _without_blocks(text: str) -> str:
    """The text with its blocks blanked out, everything else where it was."""
    return _BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
