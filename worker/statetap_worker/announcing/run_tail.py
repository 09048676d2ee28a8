"""RunTail: what becomes durable in one run's folder, whichever worker writes it."""

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from statetap_contract import DeadLetter, StatetapError
from statetap_contract.announcement import pack_samples
from statetap_store.index_row import Rows
from statetap_store.shard_names import shard_paths
from statetap_store.shard_tail import ShardTail

from statetap_worker.announcing.ledger_tail import LedgerTail

logger = structlog.get_logger(__name__)

#: Samples of one batch: 1.3 MB.
_BATCH_SAMPLES: Final = 65_536

#: Seconds until a shard that could not be read is tried again.
_AGAIN_S: Final = 60.0

#: A folder that did not change for so long before it was listed, and has the same time of change
#: still, holds the same names. File systems' clocks tick slower than this.
_SETTLED_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class News:
    """What was not known before."""

    #: One batch of samples for ``announcement``, empty when there are none.
    samples: bytes = b""
    num_samples: int = 0
    letters: list[DeadLetter] = field(default_factory=list)


class RunTail:
    """Follows the shards and the ledger of a run. One that rests costs a ``stat`` for each file."""

    def __init__(self, folder: Path) -> None:
        self._shards = _Listing(folder / "shards", shard_paths)
        self._ledger = _Listing(folder / "ledger", _ledger_paths)
        self._shard_tails: dict[Path, ShardTail] = {}
        self._ledger_tails: dict[Path, LedgerTail] = {}
        #: Shards that cannot be read, and when they are tried again.
        self._unreadable: dict[Path, float] = {}

    def read_new(self) -> Iterator[News | None]:
        """What is new since the last time; None when something given is there no more.

        After None the tail is of no use: start over with another one.

        Raises:
            OSError, MissingError: a folder or a ledger cannot be read.
        """
        shards, ledgers = self._shards.paths(), self._ledger.paths()
        if self._shard_tails.keys() - set(shards) or self._ledger_tails.keys() - set(ledgers):
            yield None
            return
        for path in ledgers:
            letters = self._ledger_tails.setdefault(path, LedgerTail(path)).read_new()
            if letters != []:
                yield None if letters is None else News(letters=letters)
        for path in shards:
            yield from self._read_shard(path)

    def _read_shard(self, path: Path) -> Iterator[News | None]:
        if self._unreadable.get(path, 0.0) > time.monotonic():
            return
        is_known = path in self._shard_tails
        try:
            samples = self._shard_tails.setdefault(path, ShardTail(path)).read_new()
        except StatetapError as error:
            logger.warning("samples are not announced", kind=error.kind, why=error.message)
            self._unreadable[path] = time.monotonic() + _AGAIN_S
            del self._shard_tails[path]
            # What was given of it before is taken back.
            if is_known:
                yield None
            return
        if samples is None:
            yield None
            return
        for start in range(0, len(samples), _BATCH_SAMPLES):
            yield _news_of(samples[start : start + _BATCH_SAMPLES])


class _Listing:
    """The files in a folder, which is listed only when it has changed."""

    def __init__(self, folder: Path, list_files: Callable[[Path], list[Path]]) -> None:
        self._folder = folder
        self._list_files = list_files
        self._paths: list[Path] = []
        self._listed_ns = self._changed_ns = 0

    def paths(self) -> list[Path]:
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            self._paths, self._changed_ns = [], 0
            return []
        if changed_ns != self._changed_ns or self._listed_ns - changed_ns <= _SETTLED_NS:
            self._listed_ns, self._changed_ns = time.time_ns(), changed_ns
            self._paths = self._list_files(self._folder)
        return self._paths


def _ledger_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _news_of(samples: Rows) -> News:
    keys = samples["key"].tobytes().decode("ascii")
    num_tokens = array("I", samples["num_tokens"].astype("=u4").tobytes())
    return News(pack_samples(keys, num_tokens), len(samples))
