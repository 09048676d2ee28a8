"""The last samples of another writer's shard: nobody here knows whether they are durable."""

import os
from pathlib import Path

from statetap_contract import CheckError, StopError

from statetap_store.disk_errors import stop_for
from statetap_store.payload import is_payload_intact
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import find_row


def make_durable(path: Path, key: str) -> bool:
    """Proves a sample of a shard, which may be growing, and syncs it; False where it is not whole.

    It may be another process's uncommitted one, or what a crash left.

    Raises:
        MissingError: kind ``shard-missing`` or ``shard-unreachable``.
        StopError: kinds of ``ShardHeader.decode``, ``shard-truncated`` or ``shard-broken``: it
            cannot be read or synced.
    """
    try:
        with ShardFile.open_whole(path) as shard:
            layout = shard.header.layout
            row = find_row(shard.fd, layout, key)
            if row is None or not is_payload_intact(shard.fd, layout, row):
                return False
            os.fdatasync(shard.fd)
            return True
    except CheckError as error:
        raise StopError(error.kind, error.message) from error
    except OSError as error:
        raise stop_for(error, path, "sync samples") from error
