"""The handshake: what a patched server says of itself in ``GET /server_info``."""

from dataclasses import asdict, dataclass
from typing import Self

from statetap_contract.request import FIELD
from statetap_contract.spec import CaptureSpec
from statetap_contract.strict_json import FieldReader


@dataclass(frozen=True, slots=True)
class ServerCapture:
    """Capture facts of one running server."""

    spec: CaptureSpec
    #: Folder the server publishes dumps in, as its host sees it.
    dumps: str
    host: str
    #: Value of ``--return-aux-hidden-state-layer-ids`` that gave these layers.
    raw_layer_ids: tuple[int, ...]
    #: Token ids are below this.
    vocab_size: int
    #: Prompts are shorter than this.
    context_length: int
    sglang_version: str
    patch_version: str
    #: Whether dumps can still be written.
    is_writer_alive: bool
    #: Dumps published and captures failed since the server started.
    num_published: int
    num_failed: int

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        return asdict(self) | {
            "spec": self.spec.to_json(),
            "raw_layer_ids": list(self.raw_layer_ids),
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        fields = FieldReader(value, "the server's capture info")
        info = cls(
            spec=CaptureSpec.from_json(fields.take("spec", dict)),
            dumps=fields.take("dumps", str),
            host=fields.take("host", str),
            raw_layer_ids=fields.take_ints("raw_layer_ids"),
            vocab_size=fields.take("vocab_size", int),
            context_length=fields.take("context_length", int),
            sglang_version=fields.take("sglang_version", str),
            patch_version=fields.take("patch_version", str),
            is_writer_alive=fields.take("is_writer_alive", bool),
            num_published=fields.take("num_published", int),
            num_failed=fields.take("num_failed", int),
        )
        fields.finish()
        return info


def captures_in(server_info: object) -> list[ServerCapture]:
    """The capture facts in a decoded ``/server_info`` answer, one per scheduler that has them.

    An empty list means an unpatched server. Raises ValueError for facts that cannot be read.
    """
    states = server_info.get("internal_states") if isinstance(server_info, dict) else None
    if not isinstance(states, list):
        return []
    return [
        ServerCapture.from_json(state[FIELD])
        for state in states
        if isinstance(state, dict) and FIELD in state
    ]
