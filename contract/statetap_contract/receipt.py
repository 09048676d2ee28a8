"""The receipt: what the server's answer says about the dump it wrote."""

from dataclasses import dataclass
from typing import Self

from statetap_contract.spec import DTYPE_BYTES
from statetap_contract.strict_json import read_record, record_of


@dataclass(frozen=True, slots=True)
class Receipt:
    """Facts of one published dump. The same record stands in the dump's own header."""

    #: Sample key the request was made with.
    key: str
    #: One try of the request; a retry has another.
    attempt: str
    #: Where the server published the dump, as the server's host sees it.
    path: str
    #: Host name of the server.
    host: str
    #: Digest of the capture spec the server really captures.
    spec_digest: str
    #: Rows in the dump.
    num_tokens: int
    #: Elements in a row, aux layers and last hidden state together.
    row_width: int
    #: Element type of the rows.
    dtype: str
    #: Boundary indices the model really captured, ascending.
    layers: tuple[int, ...]
    #: ``post`` or ``pre``: whether the last hidden state has had the final norm.
    norm: str
    #: Digest of the token ids that the model was fed, row by row.
    token_digest: str
    #: xxh3-64 of the rows' bytes, 16 hex digits.
    states_xxh3: str
    sglang_version: str
    patch_version: str

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        return record_of(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        receipt = read_record(cls, value, "the receipt")
        if receipt.dtype not in DTYPE_BYTES:
            raise ValueError(f"the receipt has dtype {receipt.dtype!r}, which is unknown")
        return receipt
