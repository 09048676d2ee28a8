"""The numbered samples of the store's unit tests, some of them long enough for several pages."""

import runpy
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec
from statetap_store import Provenance

Arrays = tuple[str, npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint16]]

#: Test folders are no packages, so the script shares its samples this way.
_SCRIPT: Final[dict[str, Any]] = runpy.run_path(
    str(Path(__file__).parents[1] / "unit/store/endless_writer.py")
)

#: Rows of 48 bytes.
SPEC: Final = cast(CaptureSpec, _SCRIPT["SPEC"])
PROVENANCE: Final = cast(Provenance, _SCRIPT["PROVENANCE"])

#: Room for about 70 samples.
SHARD_BYTES: Final = 64 * 1024


def sample(number: int) -> Arrays:
    """Key, ids, mask and states; most have up to 13 tokens, every 29th has 300: four pages."""
    num_tokens = 300 if number % 29 == 28 else 0
    return cast(Arrays, _SCRIPT["numbered_sample"](number, num_tokens))
