"""Announcer: tells the producer, through Redis, which samples lie on this worker's disk.

Truth is on disk: whatever is durable in the folder of runs is announced, whichever worker stored
it. Redis may lose everything at any time, and is told again. No failure here is one of the worker:
an announcement that cannot be made is made later.
"""

import os
import socket
import threading
from contextlib import suppress
from typing import Final

import redis
import structlog
from statetap_contract import RUN_NAME_FORM, MissingError

from statetap_worker.announcing.announced_run import AnnouncedRun
from statetap_worker.announcing.notice_board import NoticeBoard, Speaker
from statetap_worker.place import place_of
from statetap_worker.settings import WorkerSettings

logger = structlog.get_logger(__name__)

#: Seconds between two looks, and the most after failures.
_INTERVAL_S: Final = 1.0
_LONGEST_WAIT_S: Final = 5.0

#: Seconds that the end of the process waits for a look that is under way.
_JOIN_S: Final = 10.0


class Announcer:
    """A thread in one child of each worker; of those that share a folder of runs, one speaks.

    It must not be started in a process that forks: a lock might be held at that moment.

    Args:
        settings: the worker's.
        spec_digest: of the capture spec to whose queue the worker listens.
    """

    def __init__(self, settings: WorkerSettings, spec_digest: str) -> None:
        self._settings = settings
        self._spec_digest = spec_digest
        self._client = redis.Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=5,
            socket_timeout=15,
            # Whether a batch that was not answered has arrived is found out by its list's length.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        self._board: NoticeBoard | None = None
        self._is_speaker = False
        self._runs: dict[str, AnnouncedRun] = {}
        #: When the last look began, by the clock of Redis; 0 where it does not count.
        self._looked_us = 0
        #: Runs that cannot be announced at the moment, None for all of them; this was logged.
        self._failing: set[str | None] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._announce, name="announcer", daemon=True)

    def start(self) -> None:
        """Looks about once a second from now on."""
        self._thread.start()

    def close(self) -> None:
        """Announces what this process has stored to the last, and ends. Raises nothing."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            # A last sample counts when nothing was written between two looks.
            if self._try_look():
                self._try_look()
            with suppress(redis.RedisError):
                if self._is_speaker and self._board is not None:
                    self._board.give_word()
        self._client.close()

    def _announce(self) -> None:
        # At once: a worker is known from its start.
        wait_s = 0.0
        while not self._is_over.wait(wait_s):
            is_good = self._try_look()
            wait_s = _INTERVAL_S if is_good else min(max(_INTERVAL_S, 2 * wait_s), _LONGEST_WAIT_S)

    def _try_look(self) -> bool:
        try:
            self.look()
        except (redis.RedisError, OSError) as error:
            self._note("nothing can be announced for now", error)
        except Exception:
            # A thread that ends would leave the producer in the dark for good.
            logger.exception("announcing failed")
        else:
            self._failing.discard(None)
            return True
        self._is_speaker = False
        self._looked_us = 0
        return False

    def look(self) -> None:
        """Announces what is new in all runs, if this is the one that speaks for the folder.

        Raises:
            redis.RedisError: Redis cannot be used.
            OSError: the folder of runs cannot be listed.
        """
        if self._board is None:
            settings = self._settings
            speaker = Speaker(settings.name, socket.gethostname(), str(settings.runs))
            self._board = NoticeBoard(self._client, place_of(settings.runs), speaker)
        self._board.serve(self._spec_digest)
        was_speaker, self._is_speaker = self._is_speaker, self._board.take_word()
        if not self._is_speaker:
            self._looked_us = 0
            return
        begun_us = self._board.now_us()
        on_disk = self._runs_on_disk()
        if not self._board.is_as_left() or not was_speaker:
            # What is in Redis now is not known: it may have lost it, or another one spoken.
            self._looked_us = 0
            for run in self._runs.values():
                run.begin_again()
        recorded = set() if was_speaker else self._board.runs()
        for name in (recorded | self._runs.keys()) - on_disk:
            self._board.withdraw(name)
            self._runs.pop(name, None)
        for name in sorted(on_disk):
            if name not in self._runs:
                self._runs[name] = AnnouncedRun(name, self._settings.runs / name, self._board)
            self._look_at(name)
        behind = [name for name, run in self._runs.items() if not run.is_caught_up]
        self._board.appear(self._looked_us, sorted(behind))
        self._looked_us = begun_us

    def _look_at(self, name: str) -> None:
        try:
            self._runs[name].look()
        except (OSError, MissingError) as error:
            self._note("a run cannot be announced for now", error, name)
            self._runs[name].begin_again()
        else:
            self._failing.discard(name)

    def _runs_on_disk(self) -> set[str]:
        with os.scandir(self._settings.runs) as entries:
            return {
                entry.name
                for entry in entries
                if RUN_NAME_FORM.fullmatch(entry.name) and entry.is_dir()
            }

    def _note(self, event: str, error: Exception, run: str | None = None) -> None:
        """Logs a failure, the first time."""
        if run not in self._failing:
            logger.warning(event, run=run, why=error)
            self._failing.add(run)
