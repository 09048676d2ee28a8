"""Gives up workers whose disks are gone."""

from collections.abc import Collection

from statetap_contract import UsageError

from statetap_producer.queueing.announcements import Announcements
from statetap_producer.run.known_workers import KnownWorker


def give_up(announcements: Announcements, names: Collection[str]) -> None:
    """From now on these do not count, nor what they announced, until they speak again.

    Args:
        announcements: refreshed before, and to be refreshed after.
        names: as people are told of workers, with or without the folder.

    Raises:
        UsageError: kind ``worker-unknown`` or ``worker-alive``; then none was given up.
        MissingError: kinds of ``Broker``.
        OSError: it cannot be kept that they were given up.
    """
    workers = list(announcements.all_workers())
    given_up: list[KnownWorker] = []
    for name in names:
        # One that moved to another disk has the same name twice, and speaks for one of them.
        meant = [(worker, is_alive) for worker, is_alive in workers if name in _names_of(worker)]
        if not meant:
            listed = ", ".join(worker.address for worker, _ in workers)
            raise UsageError(
                "worker-unknown",
                f"{name} never announced a sample of this run; workers are: {listed or 'none'}",
            )
        gone = [worker for worker, is_alive in meant if not is_alive]
        if not gone:
            raise UsageError(
                "worker-alive",
                f"{name} is at work, and what it holds is not lost; to give it up all the same, "
                "stop it, and run this again after 20 seconds",
            )
        given_up += gone
    announcements.give_up(given_up)


def _names_of(worker: KnownWorker) -> tuple[str, str]:
    return worker.address, f"{worker.name}@{worker.host}"
