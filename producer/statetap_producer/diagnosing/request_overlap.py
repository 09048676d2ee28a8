"""Which logged requests were under way at the same time as another one."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from statetap_producer.diagnosing.sglang_log import RequestFinished

#: Requests remembered, each way. SGLang does not log the end of a request that it refuses.
_MOST_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Ended:
    finished: RequestFinished
    end: int
    is_beside_others: bool


class RequestOverlap:
    """Follows requests from their first line to their last, by the order of lines alone.

    Only a request whose end is logged counts as a neighbour: of another, nobody knows how long it
    was there. So a request is judged when all that began before its end have ended too.
    """

    def __init__(self) -> None:
        self._now = 0
        self._last_end = 0
        #: When each request under way began, in this order.
        self._begun: dict[str, int] = {}
        #: Ended, not judged, in the order of their ends.
        self._ended: deque[_Ended] = deque()

    def begin(self, rid: str) -> None:
        """A request has come in."""
        self._now += 1
        self._begun.pop(rid, None)
        self._begun[rid] = self._now
        if len(self._begun) > _MOST_REMEMBERED:
            del self._begun[next(iter(self._begun))]

    def drop(self, rid: str) -> None:
        """A request has ended without an answer."""
        self._end(rid)

    def finish(self, finished: RequestFinished) -> None:
        """A request has been answered."""
        is_beside_others = self._end(finished.rid)
        self._ended.append(_Ended(finished, self._now, is_beside_others))

    def judged(self, *, is_over: bool = False) -> Iterator[tuple[RequestFinished, bool]]:
        """Takes out the requests on which nothing that comes can change the verdict.

        Args:
            is_over: nothing comes, so all of them.
        """
        first_begun = next(iter(self._begun.values()), self._now + 1)
        while self._ended and (
            is_over or self._ended[0].end < first_begun or len(self._ended) > _MOST_REMEMBERED
        ):
            ended = self._ended.popleft()
            yield ended.finished, ended.is_beside_others
        if is_over:
            self._begun.clear()

    def _end(self, rid: str) -> bool:
        """Marks whom this request was beside; gives whether there was anybody."""
        self._now += 1
        begun = self._begun.pop(rid, None)
        if begun is None:
            return False  # it began before the log did
        is_beside_others = self._last_end > begun
        for other in reversed(self._ended):
            if other.end < begun:
                break
            other.is_beside_others = True
        self._last_end = self._now
        return is_beside_others
