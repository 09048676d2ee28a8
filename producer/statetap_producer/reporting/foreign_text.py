"""Text that came from outside, made safe to look at, in HTML and in Markdown.

Names, messages and paths are whatever people, models and servers wrote. Characters that cannot be
seen, or that turn the text around them, are shown by their escapes; what is long is cut.
"""

import re
import unicodedata
from typing import Final

from markupsafe import Markup, escape

#: Characters of a text that are shown.
_MOST: Final = 300

#: Marks, embeddings and isolates that change the direction of what follows them.
_TURNING: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)

#: Control characters, halves of surrogate pairs, code points without a meaning, breaks of lines.
_UNSEEN: Final = frozenset(("Cc", "Cs", "Cn", "Co", "Zl", "Zp"))


def visible(text: str, most: int = _MOST) -> str:
    """The text in characters that can be seen and encoded; cut after ``most`` of its own."""
    shown = "".join(map(_shown, text[:most]))
    return shown if len(text) <= most else f"{shown}…"


def _shown(character: str) -> str:
    if character in _TURNING or unicodedata.category(character) in _UNSEEN:
        return character.encode("unicode_escape").decode("ascii")
    return character


def foreign_html(text: str, most: int = _MOST) -> Markup:
    """The text for HTML, isolated, so that one written from right to left stays by itself."""
    return Markup("<bdi>{}</bdi>").format(escape(visible(text, most)))


def foreign_markdown(text: str, most: int = _MOST) -> str:
    """The text as a Markdown code span, in which nothing is markup."""
    shown = visible(text, most) or " "
    longest = max(map(len, re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    # A span that begins or ends with a backtick, or is blank, wants blanks, which are not shown.
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def foreign_cell(text: str, most: int = _MOST) -> str:
    """The same in a cell of a table, where alone a backslash keeps a bar from ending it."""
    return foreign_markdown(text, most).replace("|", "\\|")
