"""Several hosts on one machine: network namespaces, each with a cable to one switch."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import pytest
from statetap_local.service import Service

_NETWORK: Final = "10.77.0"


class Network:
    """A switch in a namespace of its own, so that this machine's network is left alone.

    Skips the test where namespaces cannot be had.
    """

    def __init__(self) -> None:
        self._prefix = f"statetap{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._num_hosts = 0
        self._end = ExitStack()

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("only root can make network namespaces; CI is root")
        try:
            self._add_namespace(self._switch)
            for name, kind in (("bridge", "bridge"), ("probe", "veth")):
                _ip("-n", self._switch, "link", "add", name, "type", kind)
            _ip("-n", self._switch, "link", "delete", "probe")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self._end.close()
            why = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"no network namespaces here: {why.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def add_host(self, name: str) -> "Host":
        """A new host with a cable to the switch.

        Args:
            name: at most ten letters, digits and dashes.
        """
        self._num_hosts += 1
        namespace, port = f"{self._prefix}-{name}", f"to-{name}"
        address = f"{_NETWORK}.{self._num_hosts}"
        self._add_namespace(namespace)
        _ip(
            *("-n", self._switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", namespace),
        )
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", device, "up")
        return Host(name, address, namespace, (self._switch, port))

    def _add_namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        # A device goes with its namespace, and its other end with it.
        self._end.callback(_ip, "netns", "delete", name)


class Host:
    """One host. It sees its own loopback and what is on the switch, nothing else."""

    def __init__(self, name: str, address: str, namespace: str, port: tuple[str, str]) -> None:
        self.name = name
        self.address = address
        self._namespace = namespace
        self._port = port

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> Service:
        """Starts a process on it, whose pid is that of the service."""
        return Service(f"{name} on {self.name}", self._inside(command), log, environment)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 300
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on it to its end."""
        return subprocess.run(
            self._inside(command),
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def cut(self) -> None:
        """Pulls its cable: connections stay, and nothing comes through."""
        self._set_port("down")

    def heal(self) -> None:
        """Plugs its cable in again."""
        self._set_port("up")

    def _set_port(self, state: str) -> None:
        switch, port = self._port
        _ip("-n", switch, "link", "set", port, state)

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._namespace}", "--", *command]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
