"""The keys that a shard of another writer durably holds."""

import os
from pathlib import Path

from statetap_contract import CaptureSpec, CheckError, StopError

from statetap_store.disk_errors import stop_for
from statetap_store.index_row import keys_of
from statetap_store.recover import plan_recovery
from statetap_store.shard_file import ShardFile


def stored_keys(path: Path, spec: CaptureSpec) -> set[str]:
    """Keys of the samples that no crash can take from a shard, which may be growing.

    The last rows may be another process's uncommitted ones, or what a crash left. They count
    only if their payload is right, and after a sync made from here.

    Raises:
        StopError: kind ``spec-mismatch``: the shard belongs to another capture spec. Kinds of
            ``ShardHeader.decode``, ``shard-truncated`` or ``shard-broken``: it cannot be read.
    """
    try:
        with ShardFile.open_whole(path) as shard:
            if shard.header.spec != spec:
                raise spec_mismatch(path, shard.header.spec, spec)
            recovery = plan_recovery(shard.fd, shard.header.layout, shard.load_index())
            os.fdatasync(shard.fd)
            return {*keys_of(recovery.durable), *(row.key for row in recovery.proven)}
    except CheckError as error:
        raise StopError(error.kind, error.message) from error
    except OSError as error:
        raise stop_for(error, path, "sync samples") from error


def spec_mismatch(path: Path, found: CaptureSpec, wanted: CaptureSpec) -> StopError:
    """The error for a shard that has no place in its folder."""
    return StopError(
        "spec-mismatch",
        f"{path} holds states of capture spec {found.digest} and this run has {wanted.digest}: "
        "give every capture spec a run folder of its own",
    )
