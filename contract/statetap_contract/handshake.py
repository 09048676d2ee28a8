"""The handshake: what a patched server says of itself in ``GET /server_info``."""

from dataclasses import asdict, dataclass
from typing import Self

from statetap_contract.errors import MissingError
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
    #: Exceptions of the patch's own code since the server started; each is in the server's log.
    num_hook_errors: int

    @property
    def origin(self) -> tuple[str, str, str, str]:
        """Who writes dumps, and where: host, folder, versions of SGLang and of the patch."""
        return self.host, self.dumps, self.sglang_version, self.patch_version

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
            num_hook_errors=fields.take("num_hook_errors", int),
        )
        fields.finish()
        return info


def agreed_capture(server_info: object, url: str) -> ServerCapture:
    """The capture facts in a decoded ``/server_info`` answer.

    A server has one scheduler per data-parallel rank, and all must say the same.

    Args:
        server_info: the decoded answer.
        url: the server's address, for messages.

    Raises:
        MissingError: kind ``server-unpatched``: prompts would be served uncaptured;
            ``server-inconsistent``; ``server-writer-dead``.
    """
    states = server_info.get("internal_states") if isinstance(server_info, dict) else None
    try:
        captures = [
            ServerCapture.from_json(state[FIELD])
            for state in (states if isinstance(states, list) else [])
            if isinstance(state, dict) and FIELD in state
        ]
    except ValueError as error:
        raise MissingError(
            "server-unpatched",
            f"the server at {url} speaks another version of statetap ({error}); install the same "
            "version on both sides",
        ) from error
    if not captures:
        raise MissingError(
            "server-unpatched",
            f"the server at {url} captures nothing; start it with statetap-sglang",
        )
    if any(capture.spec != captures[0].spec for capture in captures):
        raise MissingError(
            "server-inconsistent",
            f"the schedulers of the server at {url} do not all capture the same; restart it",
        )
    if not all(capture.is_writer_alive for capture in captures):
        raise MissingError(
            "server-writer-dead", f"the server at {url} can write no dumps any more; restart it"
        )
    return captures[0]
