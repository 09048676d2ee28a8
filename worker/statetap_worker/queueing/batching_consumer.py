"""BatchingConsumer: what Celery says of each message, for Flower, sent for many of them at once.

Celery says three things of a message, and would send each of them before it goes on: the first
while the message waits for its process, the last before the next message is taken.
"""

from typing import Any, Final

from celery.worker.consumer import Consumer

#: Seconds that Flower hears later, at most.
_LATER_S: Final = 0.1


class BatchingConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's, but for when it sends what it has to say."""

    #: Entry of the event loop's timer, while there is something to be said.
    _flush: Any = None

    def on_send_event_buffered(self) -> None:
        """Called by Celery with each thing that is to be said."""
        if self._flush is None or self._flush.canceled:
            self._flush = self.hub.call_later(_LATER_S, self._flush_batch)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Called by Celery before it connects anew, with another dispatcher."""
        # That one takes over what this one could not send, and nothing that it did not try to.
        self._flush_batch()
        super().on_connection_error_after_connected(exc)

    def shutdown(self) -> None:
        """Called by Celery when its processes have ended, and before its connections do."""
        self._flush_batch()
        super().shutdown()

    def _flush_batch(self) -> None:
        self._flush = None
        if self.event_dispatcher:
            # Not what could not be sent before: each of that would wait for Redis once more.
            self.event_dispatcher.flush(errors=False)
