"""AnnouncedRun: keeps the announcement of one run in step with the run's folder."""

import shutil
import time
import uuid
from pathlib import Path
from typing import Final

from statetap_contract.announcement import pack_letters

from statetap_worker.announcing.notice_board import NoticeBoard
from statetap_worker.announcing.run_tail import News, RunTail

#: Samples, and batches of letters, that are sent to Redis in one go.
_SENT_SAMPLES: Final = 65_536
_SENT_BATCHES: Final = 1_000

#: Seconds until a run in which nothing happens is announced again: so long may it take to notice
#: that Redis has lost it.
_HEARTBEAT_S: Final = 5.0


class AnnouncedRun:
    """One run of a place. What is not durable on disk any more is taken back by a new epoch."""

    def __init__(self, name: str, folder: Path, board: NoticeBoard) -> None:
        self._name = name
        self._folder = folder
        self._board = board
        self._published = board.blank("")
        self._is_complete = True
        self._announced_at = 0.0
        self._tail: RunTail | None = None
        self._num_looks = 0

    @property
    def is_caught_up(self) -> bool:
        """Whether all is announced that was durable before the last look but one.

        The last sample of a shard is announced by the second look at it.
        """
        return self._num_looks > 1

    def begin_again(self) -> None:
        """What is in Redis is not what was left there: the next look announces everything."""
        self._tail = None
        self._num_looks = 0

    def look(self) -> None:
        """Announces what is new.

        Raises:
            redis.RedisError: it cannot be known what was announced; ``begin_again`` is needed.
            OSError, MissingError: the folder or a ledger cannot be read.
        """
        tail = self._tail or self._begin()
        waiting: list[News] = []
        for news in tail.read_new():
            if news is None:
                self.begin_again()
                return
            waiting.append(news)
            num_samples = sum(news.num_samples for news in waiting)
            if num_samples >= _SENT_SAMPLES or len(waiting) >= _SENT_BATCHES:
                self._add(waiting, is_complete=self._is_complete)
                waiting = []
                if self._tail is None:
                    return
        if not self._is_complete and not waiting and self._is_empty:
            self._board.withdraw(self._name)
            self._is_complete = True
        elif waiting or not self._is_complete or (self._is_old and not self._is_empty):
            self._add(waiting, is_complete=True)
        if self._tail is not None:
            self._num_looks += 1

    @property
    def _is_empty(self) -> bool:
        return not self._published.num_sample_batches + self._published.num_letter_batches

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self._announced_at >= _HEARTBEAT_S

    def _begin(self) -> RunTail:
        if not self._is_complete:
            self._board.discard(self._name, self._published.epoch)
        self._published = self._board.blank(uuid.uuid4().hex[:8])
        self._is_complete = False
        self._tail = RunTail(self._folder)
        return self._tail

    def _add(self, waiting: list[News], *, is_complete: bool) -> None:
        letters = [letter for news in waiting for letter in news.letters]
        published = self._board.add(
            self._name,
            self._published,
            samples=[news.samples for news in waiting if news.samples],
            letters=[pack_letters(letters)] if letters else [],
            num_samples=sum(news.num_samples for news in waiting),
            free_bytes=shutil.disk_usage(self._folder).free,
            is_complete=is_complete,
        )
        if published is None:
            self.begin_again()
            return
        self._published, self._is_complete = published, is_complete
        self._announced_at = time.monotonic()
