"""Sealing a shard that no worker has open."""

from pathlib import Path

from statetap_contract import StopError

from statetap_store.writer import ShardWriter


def seal(path: Path) -> None:
    """Gives a shard exact sizes; a sealed shard stays as it is, an interrupted seal is finished.

    Raises:
        MissingError, StopError: as ``ShardWriter.open`` and ``ShardWriter.seal``.
    """
    try:
        writer = ShardWriter.open(path)
    except StopError as error:
        if error.kind != "shard-sealed":
            raise
        return
    try:
        writer.seal()
    finally:
        writer.close()
