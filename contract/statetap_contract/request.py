"""The capture request: what a client puts into ``sampling_params.custom_params``.

Hidden states are captured only for requests that carry it; all other traffic of the server
passes untouched.
"""

from dataclasses import dataclass
from typing import Final, Self

from statetap_contract.prompt import KEY_FORM
from statetap_contract.strict_json import read_record

#: Name of the field in ``custom_params``, in ``meta_info`` and in the server's info.
FIELD: Final = "statetap"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Asks the server to dump the states of the prompt that it comes with."""

    #: Sample key; the dump is named by it.
    key: str
    #: Tokens in the prompt, as the client counts them.
    num_tokens: int
    #: Digest of the capture spec that the client expects the server to have.
    spec_digest: str

    def to_json(self) -> dict[str, object]:
        return {"key": self.key, "num_tokens": self.num_tokens, "spec_digest": self.spec_digest}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        request = read_record(cls, value, "the capture request")
        if not KEY_FORM.fullmatch(request.key):
            raise ValueError(f"sample key {request.key!r} is not 32 lower-case hex digits")
        return request
