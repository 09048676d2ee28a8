"""Relay: passes TCP connections on to a port that may change, and freezes or cuts them."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Final

_CHUNK: Final = 1 << 16


class Relay:
    """Listens on a loopback port of its own, in a thread of its own.

    A frozen relay accepts connections and passes nothing on, as a network does that drops packets.

    Args:
        counted: bytes whose occurrences in what clients send are counted.
    """

    def __init__(self, counted: bytes) -> None:
        #: Port that connections are passed on to; may be set at any time.
        self.target = 0
        self.num_counted = 0
        self._counted = counted
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._listener = self._loop.run_until_complete(
            asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        )
        self.port: int = self._listener.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def freeze(self) -> None:
        """Holds back everything from now on."""
        self._loop.call_soon_threadsafe(self._is_open.clear)

    def thaw(self) -> None:
        """Passes on what was held back, and all that follows."""
        self._loop.call_soon_threadsafe(self._is_open.set)

    def cut(self) -> None:
        """Resets all connections there are."""
        self._loop.call_soon_threadsafe(self._abort)

    def close(self) -> None:
        """Ends all connections and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        self._listener.close()
        self._is_open.set()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._known(writer), contextlib.suppress(OSError):
            await self._is_open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            with self._known(far_writer):
                ways = [
                    asyncio.ensure_future(self._pump(reader, far_writer, self._counted)),
                    asyncio.ensure_future(self._pump(far_reader, writer, b"")),
                ]
                # Whichever end closes first, both are closed.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bytes
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._is_open.wait()
            if counted:
                self.num_counted += data.count(counted)
            writer.write(data)
            await writer.drain()

    @contextlib.contextmanager
    def _known(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.remove(writer)
            writer.close()
