"""DockerEngine: an engine of the test's own, and stand-ins for images that no registry gives."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from statetap_contract import MissingError
from statetap_local.service import Service

#: Seconds for the engine to listen, and for a base system to be fetched and unpacked.
_START_S: Final = 60.0
_DEBOOTSTRAP_S: Final = 900.0

#: The Debian release that the tags of the base images name, and what is in them that is used.
_RELEASE: Final = "bookworm"
_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv", "redis-server")

#: An imported file system has no settings, unlike the images that it stands for.
_PATH: Final = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: What the Dockerfiles begin with, on a CPU.
BASE_IMAGES: Final = ("python:3.11-slim-bookworm", "redis:7.2-bookworm")


class DockerEngine(Service):
    """``dockerd`` with all its files in one folder. It takes root.

    Args:
        folder: for images, containers and volumes; on a disk.
        log: file for its output.

    Raises:
        MissingError: kind ``service-failed``: it does not start here.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.address = f"unix://{folder}/docker.sock"
        super().__init__(
            "dockerd",
            [
                "dockerd",
                f"--host={self.address}",
                f"--data-root={folder}/data",
                f"--exec-root={folder}/exec",
                f"--pidfile={folder}/docker.pid",
                # Compose makes networks of its own; another engine may have this one.
                "--bridge=none",
            ],
            log,
        )
        self.wait_until(self.is_ready, _START_S)

    def is_ready(self) -> bool:
        """Whether it answers."""
        return is_answering(self.address)


def is_answering(address: str) -> bool:
    """Whether an engine listens there."""
    asked = subprocess.run(
        ["docker", "version"],
        env=dict(os.environ) | {"DOCKER_HOST": address},
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0


def unmount_namespaces(folder: Path) -> None:
    """Unmounts the network namespaces that an engine leaves in its folder when it stops."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind == "nsfs" and Path(place).is_relative_to(folder):
            subprocess.run(["umount", place], check=False)


def add_stand_ins(address: str, scratch: Path) -> bool:
    """Gives the engine the base images that it does not have; whether any was missing.

    Args:
        address: of the engine.
        scratch: folder for a file system of 300 MB, which is removed afterwards.

    Raises:
        MissingError: kind ``base-image-missing``.
    """
    environment = dict(os.environ) | {"DOCKER_HOST": address}
    missing = [
        image
        for image in BASE_IMAGES
        if subprocess.run(
            ["docker", "image", "inspect", image], env=environment, capture_output=True, check=False
        ).returncode
    ]
    if not missing:
        return False
    root = scratch / "root"
    try:
        _run(
            ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _RELEASE, root]
        )
        shutil.rmtree(root / "var/cache/apt")
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(
                ["docker", "import", f"--change={_PATH}", "-", missing[0]],
                stdin=packed.stdout,
                env=environment,
                capture_output=True,
                check=True,
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for image in missing[1:]:
        subprocess.run(["docker", "tag", missing[0], image], env=environment, check=True)
    return True


def _run(command: list[str | Path]) -> None:
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_DEBOOTSTRAP_S
    )
    if ended.returncode:
        last = (ended.stderr.strip() or ended.stdout.strip()).split("\n")[-1]
        raise MissingError("base-image-missing", f"{command[0]} failed: {last}")
