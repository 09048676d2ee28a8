"""Verification of many shards, or of large ones, in several processes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from statetap_store.process_pool import OrderedMap, process_pool
from statetap_store.shard_report import ShardReport
from statetap_store.verify import SHARE_BYTES, check_piece, look_at

#: Below this, starting processes takes longer than the work.
_SMALL_BYTES: Final = 1024 * 1024 * 1024

#: Opening a shard takes as long as checking about so much of its payload.
_OPENING_BYTES: Final = 4 * 1024 * 1024

#: How ``stat`` counts what a file takes on the disk.
_BLOCK_BYTES: Final = 512


def verify_shards(
    paths: Sequence[Path],
    *,
    quick: bool,
    has_digest_keys: bool = False,
    num_processes: int,
    on_progress: Callable[[int, int], None],
) -> tuple[ShardReport, ...]:
    """Checks shards as ``verify_shard`` does each, with the same faults in the same order.

    One large shard keeps all processes busy, and so do many small ones.

    Args:
        paths: the shards.
        quick: leave the payloads alone.
        has_digest_keys: as for ``verify_shard``.
        num_processes: how many may work; fewer do where there is little to do.
        on_progress: called with the payload bytes checked, and those to check in all shards.

    Returns:
        A report for each path, in their order.

    Raises:
        MissingError: as ``verify_shard`` and ``process_pool``. A shard that goes away later, while
            payloads are checked, has that fault.
    """
    is_alone = num_processes == 1 or _is_small(paths, quick=quick)
    workers: AbstractContextManager[OrderedMap] = (
        nullcontext(map) if is_alone else process_pool(num_processes)
    )
    with workers as in_order:
        look = partial(look_at, share_bytes=SHARE_BYTES, has_digest_keys=has_digest_keys)
        looks = list(in_order(look, paths))
        if quick:
            return tuple(look.report for look in looks)
        total = sum(look.report.num_bytes for look in looks)
        owners = [number for number, look in enumerate(looks) for _ in look.pieces]
        pieces = [piece for look in looks for piece in look.pieces]
        faults = [list(look.report.faults) for look in looks]
        num_checked = 0
        on_progress(num_checked, total)
        for owner, piece, found in zip(owners, pieces, in_order(check_piece, pieces), strict=True):
            faults[owner] += found
            num_checked += piece.num_bytes
            on_progress(num_checked, total)
    return tuple(
        replace(look.report, faults=tuple(found)) for look, found in zip(looks, faults, strict=True)
    )


def _is_small(paths: Sequence[Path], *, quick: bool) -> bool:
    opening = len(paths) * _OPENING_BYTES
    return opening + (0 if quick else sum(map(_disk_bytes, paths))) < _SMALL_BYTES


def _disk_bytes(path: Path) -> int:
    """What a shard takes on the disk; nothing where that cannot be known."""
    try:
        return path.stat().st_blocks * _BLOCK_BYTES
    except OSError:
        return 0
