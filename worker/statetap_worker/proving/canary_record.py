"""CanaryRecord: the states that were first computed of the canary prompt, as a dump on the disk."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from statetap_contract import (
    CaptureSpec,
    Job,
    MismatchError,
    Prompt,
    StopError,
    dump_name,
)
from statetap_store.file_bytes import make_folders, sync_folder

from statetap_worker.place import NO_LINKS
from statetap_worker.proving.dump import Dump, map_file
from statetap_worker.proving.validate import prove_dump, prove_receipt

#: Beside the runs. A leading dot: it is no run.
CANARY_FOLDER: Final = ".canaries"


@dataclass(frozen=True, slots=True)
class CanaryRecord:
    """One file for a capture spec, shared by all workers of a folder of runs.

    It is never changed. A person who deletes it accepts what the next server computes.
    """

    path: Path

    @classmethod
    def of(cls, runs: Path, spec: CaptureSpec) -> "CanaryRecord":
        """The record of a capture spec, which need not be there yet."""
        return cls(runs / CANARY_FOLDER / dump_name(spec.digest))

    def keep_first(self, dump: Dump) -> bool:
        """Makes a proven dump the record where there is none; returns whether it did.

        Of several workers that come together one wins. The record is durable and whole when it
        appears.

        Raises:
            StopError: kind ``canary-record-unwritable``.
        """
        # The dump's key is this process's own; what a killed one left is written over.
        own = self.path.with_name(f".{self.path.stem}.{dump.receipt().key}")
        try:
            if self.path.exists():
                return False
            make_folders(self.path.parent, 1)
            try:
                _write(own, dump)
                is_first = _publish(own, self.path)
            finally:
                own.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        except OSError as error:
            raise StopError(
                "canary-record-unwritable",
                f"cannot make {self.path}: {error.strerror}; check the disk",
            ) from error
        return is_first

    def read(self, prompt: Prompt, spec: CaptureSpec) -> Dump:
        """The record, proven like any dump.

        Raises:
            StopError: kind ``canary-record-broken``: it is cut, has a wrong checksum, or is of
                another prompt or spec; ``canary-record-unreadable``.
        """
        try:
            dump = map_file(self.path)
            receipt = dump.receipt()
            job = Job(receipt.key, "canary", spec.digest, prompt)
            prove_receipt(receipt, job, spec)
            prove_dump(dump, receipt, job, spec)
        except MismatchError as error:
            raise StopError(
                "canary-record-broken",
                f"{self.path} does not hold the canary prompt's states ({error}); delete it, and "
                "the next worker records them anew",
            ) from error
        except OSError as error:
            raise StopError(
                "canary-record-unreadable",
                f"cannot read {self.path}: {error.strerror}; check the disk",
            ) from error
        return dump

    def made(self) -> str:
        """When it was made, to the second, in UTC. Raises OSError."""
        made = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        return made.isoformat(sep=" ", timespec="seconds")


def _write(path: Path, dump: Dump) -> None:
    with path.open("wb") as stream:
        stream.write(dump.header)
        stream.write(dump.states.data)
        stream.write(dump.token_ids.data)
        stream.flush()
        os.fsync(stream.fileno())


def _publish(own: Path, path: Path) -> bool:
    """Gives a whole file its name, where nothing has it."""
    try:
        path.hardlink_to(own)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Should two get here at once, the later one's file stays, and is what both are held
        # against.
        own.rename(path)
    return True
