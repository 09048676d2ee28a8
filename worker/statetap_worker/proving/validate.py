"""The proof that a dump belongs to its prompt. Nothing that fails it is ever stored."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash
from statetap_contract import CaptureSpec, Job, MismatchError, Receipt, ServerCapture, dump_name
from statetap_store import bad_rows

from statetap_worker.proving.dump import Dump, map_dump


def claimed_dump(folder: Path, receipt: Receipt, job: Job, server: ServerCapture) -> Dump:
    """The dump that a proven receipt speaks of; ``prove_dump`` says whether it is that.

    Raises:
        MismatchError, TransientError: those of ``prove_receipt``, ``prove_origin`` and
            ``map_dump``.
    """
    prove_receipt(receipt, job, server.spec)
    prove_origin(receipt, server)
    return map_dump(folder, receipt)


def proven_dump(folder: Path, receipt: Receipt, job: Job, server: ServerCapture) -> Dump:
    """The dump that a receipt speaks of, with all that can be proven of it proven.

    Raises:
        MismatchError, TransientError: those of ``claimed_dump`` and ``prove_dump``.
    """
    dump = claimed_dump(folder, receipt, job, server)
    prove_dump(dump, receipt, job, server.spec)
    return dump


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
    _compare(receipt, job.key, expected)


def prove_origin(receipt: Receipt, server: ServerCapture) -> None:
    """Proves that a proven receipt is of the server that shook hands.

    Samples are stored under that server's provenance. A server that was exchanged meanwhile, or a
    dump that an earlier one left behind, shows here.

    Raises:
        MismatchError: the kind names the first field that disagrees.
    """
    expected = {
        "host": server.host,
        "path": f"{server.dumps.rstrip('/')}/{dump_name(receipt.key)}",
        "sglang-version": server.sglang_version,
        "patch-version": server.patch_version,
    }
    _compare(receipt, receipt.key, expected)


def _compare(receipt: Receipt, key: str, expected: Mapping[str, object]) -> None:
    for name, value in expected.items():
        found = getattr(receipt, name.replace("-", "_"))
        if found != value:
            raise MismatchError(
                f"receipt-{name}", f"the receipt of {key} says {name} {found}, not {value}"
            )


def prove_dump(dump: Dump, receipt: Receipt, job: Job, spec: CaptureSpec) -> None:
    """Proves the dump's content, row by row.

    Raises:
        MismatchError: kinds ``dump-unreadable``, ``dump-receipt`` (the file is of another attempt),
            ``dump-token-ids`` (a row was computed from another token than the prompt has there),
            ``dump-checksum``, ``states-not-finite``, ``states-zero-row``.
    """
    if not dump.is_of(receipt):
        raise MismatchError(
            "dump-receipt", f"the dump of {job.key} is not the one that the receipt speaks of"
        )
    if dump.token_ids.tobytes() != job.prompt.token_bytes():
        prompt_ids = np.frombuffer(job.prompt.token_bytes(), "<i4")
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
