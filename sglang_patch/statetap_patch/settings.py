"""What the launcher tells the plugin, through the environment of the server's processes."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract import CaptureSpec
from statetap_contract.strict_json import FieldReader

_VARIABLE: Final = "STATETAP_PATCH"

#: Seconds a finished request waits for its dump before it fails.
HOLD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """One server's capture settings."""

    #: Folder that dumps are published in.
    dumps: Path
    #: What the server must capture; it refuses to start when the model captures anything else.
    spec: CaptureSpec
    #: Value given to ``--return-aux-hidden-state-layer-ids``.
    raw_layer_ids: tuple[int, ...]
    #: Seconds after which a published dump that nobody fetched is removed.
    keep_s: int
    #: Whether to start beside an SGLang that the patch was never tested with.
    is_any_version: bool = False

    def to_environment(self) -> dict[str, str]:
        """The variable to set for the server's processes."""
        value = {
            "dumps": str(self.dumps),
            "spec": self.spec.to_json(),
            "raw_layer_ids": list(self.raw_layer_ids),
            "keep_s": self.keep_s,
            "is_any_version": self.is_any_version,
        }
        return {_VARIABLE: json.dumps(value)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The settings, or None in a server that ``statetap-sglang`` did not start.

        Raises:
            ValueError: the variable is there and unreadable.
        """
        if _VARIABLE not in environment:
            return None
        fields = FieldReader(json.loads(environment[_VARIABLE]), _VARIABLE)
        settings = cls(
            dumps=Path(fields.take("dumps", str)),
            spec=CaptureSpec.from_json(fields.take("spec", dict)),
            raw_layer_ids=fields.take_ints("raw_layer_ids"),
            keep_s=fields.take("keep_s", int),
            is_any_version=fields.take("is_any_version", bool),
        )
        fields.finish()
        return settings
