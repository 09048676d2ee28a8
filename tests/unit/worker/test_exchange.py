"""An answer is bounded in time and in size, over real sockets that do as they like."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from statetap_contract import MismatchError
from statetap_worker.asking.exchange import WholeAnswer, exchange

#: Sends what it likes; the function is called again and again until the other side has gone.
Talk = Callable[[socket.socket], None]


@contextmanager
def peer(first: bytes, then: Talk) -> Iterator[str]:
    """Answers one connection with ``first`` and then with ``then``. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(first)
                while True:
                    then(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive(), "its connection was left open"


def ask(url: str, timeout_s: float) -> WholeAnswer:
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0)) as client:
        return exchange(client, client.build_request("GET", url), timeout_s)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"x")
    time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"x" * 100_000)


def hang_up(_connection: socket.socket) -> None:
    raise OSError


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
)
def test_bytes_that_trickle_end_when_the_time_is_up(first: bytes) -> None:
    """In the status line, in a header, in a body of known or unknown length."""
    with peer(first, trickle) as url, pytest.raises(httpx.TransportError):
        ask(url, 0.5)


def test_a_trickle_is_a_time_out() -> None:
    """It never counts as an answer, not even one that ends with its connection."""
    with peer(b"HTTP/1.1 200 OK\r\n\r\n", trickle) as url, pytest.raises(httpx.ReadTimeout):
        ask(url, 0.5)


@pytest.mark.parametrize(
    "header", [b"Content-Length: 100000000000", b"Connection: close", b"Content-Encoding: gzip"]
)
def test_a_flood_is_cut(header: bytes) -> None:
    """After some megabytes, whatever it announces."""
    with (
        peer(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n", flood) as url,
        pytest.raises(MismatchError) as caught,
    ):
        ask(url, 30)
    assert caught.value.kind == "answer-too-long"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"\x00\x01\x02 no HTTP\r\n\r\n",
    ],
)
def test_a_broken_answer_is_none(first: bytes) -> None:
    """Cut anywhere, or no HTTP at all; and it is no time-out."""
    with peer(first, hang_up) as url, pytest.raises(httpx.TransportError) as caught:
        ask(url, 30)
    assert not isinstance(caught.value, httpx.TimeoutException)


def test_what_stands_behind_an_answer_is_never_read() -> None:
    """It would be taken for the answer to the next request."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with peer(2 * answer, hang_up) as url:
        assert ask(url, 30).json() == {}


def test_nobody_listening_is_a_refused_connection() -> None:
    """Which must be told from a connection that breaks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(httpx.ConnectError):
        ask(f"http://127.0.0.1:{port}", 30)
