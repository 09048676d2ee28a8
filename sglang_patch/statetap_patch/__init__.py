"""SGLang plugin that dumps the hidden states of a prompt, proven row by row.

It changes no file of SGLang: ``plugin.register`` is found through an entry point of the unmodified
wheel, and ``hooks`` lists every seam.
"""

from typing import Final

VERSION: Final = "0.1.0"
