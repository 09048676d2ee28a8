"""ScrapePoint: the port and the folder that a worker's metrics need, taken before it forks."""

import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from statetap_contract import MissingError

from statetap_worker.settings import WorkerSettings

#: Files are mapped into memory there and changed with each sample.
_NETWORK_FILE_SYSTEMS: Final = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|fuse\..*"
)

#: Connections that wait for the child that answers, also while it is being replaced.
_BACKLOG: Final = 16


@dataclass(frozen=True, slots=True)
class ScrapePoint:
    """What the processes of a worker share to be scraped."""

    #: Listens. The parent holds it open; a child that is killed leaves it to its successor.
    listener: socket.socket
    #: Of the files that processes count in.
    folder: Path


@contextmanager
def scrape_point(settings: WorkerSettings) -> Iterator[ScrapePoint | None]:
    """The worker's scrape point while the context lasts; None where it was told no address.

    Raises:
        MissingError: kinds ``metrics-port`` and ``metrics-folder``.
    """
    if settings.metrics_address is None:
        yield None
        return
    with _listener(settings.metrics_address) as listener:
        # Whoever holds the port is alone with the folder that is named after it.
        folder = _made_empty(_folder_of(settings))
        try:
            yield ScrapePoint(listener, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _listener(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        is_name = isinstance(error, socket.gaierror)
        reason = error.strerror if is_name else os.strerror(error.errno or 0)
        raise MissingError(
            "metrics-port",
            f"metrics cannot be served on {host}:{port} ({reason}); give another --metrics-port",
        ) from error


def _folder_of(settings: WorkerSettings) -> Path:
    """Always the same one for a worker, so that one which was killed leaves nothing behind."""
    names = f"{settings.runs}\0{settings.name}\0{settings.metrics_address}\0{os.geteuid()}"
    digest = blake2b(names.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"statetap-metrics-{digest}"


def _made_empty(folder: Path) -> Path:
    kind = _file_system(folder.parent)
    if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        raise MissingError(
            "metrics-folder",
            f"metrics cannot be counted in {folder.parent}, which is on {kind}; set TMPDIR to a "
            "folder on a disk of this host",
        )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        # Anybody may make names in the temporary folder.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise MissingError(
                "metrics-folder", f"{folder} is somebody else's; remove it, or set TMPDIR"
            )
        for path in folder.iterdir():
            path.unlink()
    except OSError as error:
        raise MissingError(
            "metrics-folder", f"metrics cannot be counted in {folder}: {error.strerror}; set TMPDIR"
        ) from error
    return folder


def _file_system(folder: Path) -> str:
    """Kind of the file system that holds the folder, such as ``ext4``."""
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == name:
            return source.split()[0]
    return ""
