"""Which shards a path means."""

from pathlib import Path

from statetap_store.shard_names import shard_paths


def find_shards(*paths: Path) -> list[Path]:
    """The shards that a person means by some paths, in the order in which readers take them.

    A folder that has a folder ``shards`` is a run's and stands for the shards in there, any other
    folder for those in itself, and all else for itself, whether it is there or not. The order is
    by name, whatever that of ``paths``. A file that is named twice, or through links, counts once.

    Raises:
        MissingError: kind ``folder-unreachable``: a folder cannot be listed.
    """
    named = [shard for path in paths for shard in _shards_at(path)]
    # Runs in several folders have shards of the same names.
    named.sort(key=lambda shard: (shard.name, shard.absolute()))
    found: dict[object, Path] = {}
    for shard in named:
        found.setdefault(_identity(shard), shard)
    return list(found.values())


def _shards_at(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    in_run = path / "shards"
    return shard_paths(in_run if in_run.is_dir() else path)


def _identity(path: Path) -> object:
    """What two names of one file have in common; the name itself where no file is."""
    try:
        status = path.stat()
    except OSError:
        return path.absolute()
    return status.st_dev, status.st_ino
