"""An answer is bounded in time and in size, over real sockets that do as they like."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from statetap_contract import MismatchError, UsageError
from statetap_worker.asking.exchange import (
    BrokenOffError,
    ExchangeError,
    LateError,
    Peer,
    UnreachableError,
    WholeAnswer,
)

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
    return Peer(url).exchange("GET", "/", None, timeout_s=timeout_s)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"x")
    time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"x" * 100_000)


def say_nothing(connection: socket.socket) -> None:
    if not connection.recv(1):
        raise OSError


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
    with peer(first, trickle) as url, pytest.raises(ExchangeError):
        ask(url, 0.5)


def test_a_trickle_is_a_time_out() -> None:
    """It never counts as an answer, not even one that ends with its connection."""
    with peer(b"HTTP/1.1 200 OK\r\n\r\n", trickle) as url, pytest.raises(LateError):
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
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"\x00\x01\x02 no HTTP\r\n\r\n",
    ],
)
def test_a_broken_answer_is_none(first: bytes) -> None:
    """Cut anywhere, or no HTTP at all; and it is no time-out."""
    with peer(first, hang_up) as url, pytest.raises(BrokenOffError):
        ask(url, 30)


def test_what_stands_behind_an_answer_is_never_read() -> None:
    """It would be taken for the answer to the next request."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with peer(2 * answer, hang_up) as url:
        assert ask(url, 30).json() == {}


def test_nobody_listening_is_a_refused_connection() -> None:
    """Which must be told from a connection that breaks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnreachableError):
        ask(f"http://127.0.0.1:{port}", 30)


def test_the_body_may_end_with_its_connection() -> None:
    """As proxies send it; or in chunks."""
    with peer(b"HTTP/1.1 200 OK\r\nRetry-After: 7\r\n\r\n[1]", hang_up) as url:
        assert ask(url, 30) == WholeAnswer(200, b"[1]", "7")
    chunks = b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n"
    with peer(chunks, hang_up) as url:
        assert ask(url, 30) == WholeAnswer(500, b"[1]")


def test_a_request_is_one_of_http() -> None:
    """Under the path of its server, with a body of a known length, in JSON."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert (
            Peer(f"http://{address}/a/").exchange("POST", "/b", b"{}", timeout_s=30).status == 204
        )
        thread.join(10)
    head, body = heard[0].split(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    assert (first, body) == ("POST /a/b HTTP/1.1", b"{}")
    assert sorted(fields) == [
        "Accept-Encoding: identity",
        "Connection: close",
        "Content-Length: 2",
        "Content-Type: application/json",
        f"Host: {address}",
    ]


def test_what_a_server_says_before_it_hangs_up_is_heard() -> None:
    """It may refuse a request that it has not read to its end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        answer = Peer(url).exchange("POST", "/", bytes(5_000_000), timeout_s=30)
        assert answer.status == 413
        thread.join(10)


def test_a_request_that_nobody_reads_ends_when_the_time_is_up() -> None:
    """Sending counts as well as waiting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(LateError):
            Peer(url).exchange("POST", "/", bytes(50_000_000), timeout_s=0.3)


@pytest.mark.parametrize("body", [b"Content-Length: -1", b"Transfer-Encoding: chunked"])
def test_a_length_that_is_none_takes_no_memory(body: bytes) -> None:
    """What is announced is not believed."""
    first = b"HTTP/1.1 200 OK\r\n" + body + b"\r\n\r\nfffffffffff\r\n"
    with peer(first, flood) as url, pytest.raises(MismatchError) as caught:
        ask(url, 30)
    assert caught.value.kind == "answer-too-long"


def test_an_interrupt_ends_the_wait_and_the_connection() -> None:
    """A worker that is told to stop waits for no answer; its server must see that."""

    class Stopped(BaseException):
        pass

    def stop(_number: int, _frame: object) -> None:
        raise Stopped

    me = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR2, stop)
    try:
        with peer(b"HTTP/1.1 200 OK\r\n", say_nothing) as url:
            threading.Timer(0.3, signal.pthread_kill, [me, signal.SIGUSR2]).start()
            with pytest.raises(Stopped):
                ask(url, 30)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:30000", "http://", ""])
def test_only_plain_http_is_spoken(url: str) -> None:
    """An address that says otherwise is refused, not asked in another way."""
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:30000"):
        Peer(url)


@pytest.mark.parametrize(
    ("key", "header"), [("s3cret", b"\r\nAuthorization: Bearer s3cret\r\n"), (None, None)]
)
def test_the_key_is_shown_with_every_request(key: str | None, header: bytes | None) -> None:
    """Where there is one; before the body, as headers are."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BrokenOffError):
            Peer(url, key).exchange("POST", "/generate", b"{}", timeout_s=10)
        thread.join(10)
    (request,) = heard
    if header is None:
        assert b"Authorization" not in request
    else:
        assert request.count(header) == 1
        assert request.endswith(b"\r\n\r\n{}")
