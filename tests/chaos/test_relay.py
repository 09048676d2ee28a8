"""A frozen relay holds back, a cut one resets, and both go on afterwards."""

import socket
from collections.abc import Iterator

import pytest

from .relay import Relay


class Line:
    """A client's end and a server's end of one connection through a relay."""

    def __init__(self, relay: Relay, listener: socket.socket) -> None:
        self.client = socket.create_connection(("127.0.0.1", relay.port), timeout=10)
        self.client.sendall(b"hello")  # the relay goes on to the server once somebody is there
        self.server, _ = listener.accept()
        self.server.settimeout(10)
        assert self.server.recv(5) == b"hello"

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay(b"ask")
    yield relay
    relay.close()


@pytest.fixture
def listener(relay: Relay) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        relay.target = listener.getsockname()[1]
        yield listener


@pytest.fixture
def line(relay: Relay, listener: socket.socket) -> Iterator[Line]:
    line = Line(relay, listener)
    yield line
    line.close()


def test_it_passes_on_both_ways_and_counts(relay: Relay, line: Line) -> None:
    """Only what clients send is counted."""
    line.client.sendall(b"ask ask")
    assert line.server.recv(7) == b"ask ask"
    line.server.sendall(b"ask")
    assert line.client.recv(3) == b"ask"
    assert relay.num_counted == 2


def test_what_is_sent_while_it_is_frozen_comes_afterwards(relay: Relay, line: Line) -> None:
    """Nothing passes for as long as it is frozen, and nothing is lost."""
    relay.freeze()
    line.client.sendall(b"late")
    line.server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        line.server.recv(4)
    line.server.settimeout(10)
    relay.thaw()
    assert line.server.recv(4) == b"late"


def test_a_cut_resets_both_ends(relay: Relay, listener: socket.socket, line: Line) -> None:
    """The next connection works."""
    relay.cut()
    for end in (line.client, line.server):
        try:
            assert end.recv(1) == b""
        except ConnectionResetError:
            continue
    Line(relay, listener).close()


def test_a_target_that_is_gone_ends_the_connection(relay: Relay) -> None:
    """As a refused connection would end."""
    relay.target = 1
    with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as client:
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            return
