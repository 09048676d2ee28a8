"""The proof that a dump belongs to its prompt. Nothing that fails it is ever stored."""

import numpy as np
import xxhash
from statetap_contract import CaptureSpec, Job, MismatchError, Receipt
from statetap_store import bad_rows

from statetap_worker.dump import Dump


def prove_receipt(receipt: Receipt, job: Job, spec: CaptureSpec) -> None:
    """Proves that the receipt speaks of this prompt under this spec.

    Raises:
        MismatchError: the kind names the first field that disagrees.
    """
    expected = {
        "key": job.key,
        "spec-digest": spec.digest,
        "num-tokens": job.prompt.num_tokens,
        "token-digest": job.prompt.token_digest(),
        "layers": spec.layers,
        "norm": spec.norm,
        "row-width": spec.row_width,
        "dtype": spec.dtype,
    }
    for name, value in expected.items():
        found = getattr(receipt, name.replace("-", "_"))
        if found != value:
            raise MismatchError(
                f"receipt-{name}", f"the receipt of {job.key} says {name} {found}, not {value}"
            )


def prove_dump(dump: Dump, receipt: Receipt, job: Job, spec: CaptureSpec) -> None:
    """Proves the dump's content, row by row.

    Raises:
        MismatchError: kinds ``dump-receipt`` (the file is of another attempt), ``dump-token-ids``
            (a row was computed from another token than the prompt has there), ``dump-checksum``,
            ``states-not-finite``, ``states-zero-row``.
    """
    if dump.receipt != receipt:
        raise MismatchError(
            "dump-receipt", f"the dump of {job.key} is not the one that the receipt speaks of"
        )
    prompt_ids = np.frombuffer(job.prompt.token_bytes(), "<i4")
    if not np.array_equal(dump.token_ids, prompt_ids):
        row = int(np.flatnonzero(dump.token_ids != prompt_ids)[0])
        raise MismatchError(
            "dump-token-ids",
            f"row {row} of {job.key} was computed from token {dump.token_ids[row]}, the prompt "
            f"has {prompt_ids[row]} there",
        )
    checksum = xxhash.xxh3_64_hexdigest(dump.states.data)
    if checksum != receipt.states_xxh3:
        raise MismatchError(
            "dump-checksum",
            f"the rows of {job.key} have checksum {checksum}, the server wrote "
            f"{receipt.states_xxh3}",
        )
    for bad in bad_rows(dump.states, spec):
        raise MismatchError(f"states-{bad.kind}", f"the dump of {job.key} is wrong: {bad}")
