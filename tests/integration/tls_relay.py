"""Encrypts a Redis that was built without encryption: TLS outside, plain TCP on loopback inside."""

import asyncio
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that has signed itself, and its key."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str, host: str) -> Self:
        """A new one for a host, given as in a certificate: ``IP:127.0.0.1`` or ``DNS:name``."""
        made = cls(folder / f"{name}.pem", folder / f"{name}.key")
        command = [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-addext", f"subjectAltName={host}"),
            *("-keyout", str(made.key), "-out", str(made.certificate)),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return made


class TlsRelay:
    """Passes what comes encrypted on to a port of loopback, while the context is open."""

    def __init__(self, target_port: int, certificate: Certificate) -> None:
        self._target_port = target_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tls-relay")
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        #: What clients have sent, once it was decrypted.
        self.num_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_open.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._is_open.set()
        await self._is_over.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(
            self._pump(reader, inner_writer, is_counted=True),
            self._pump(inner_reader, writer, is_counted=False),
            return_exceptions=True,  # a broken connection is an end like any other
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_counted: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.num_bytes += len(data) if is_counted else 0
                writer.write(data)
                await writer.drain()
        finally:
            writer.transport.abort()  # which ends the other direction too
