"""The dump folder that a pod makes is one that the server takes."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from statetap_contract import MissingError
from statetap_patch.dump_folder import check_dump_folder

from .manifests import KUBERNETES, Manifest, pod_of

IMAGES = KUBERNETES.parent / "images"

#: As the kubelet makes a folder in memory: without a group of the pod's own, and with one.
MODES = (0o777, 0o2777)


def make(system: list[Manifest], volume: Path) -> Path:
    """Does in ``volume`` what the pod does before its server; returns the dump folder."""
    container = pod_of(system, "StatefulSet", "worker").container("dump-folder")
    (mount,) = container["volumeMounts"]
    command = [part.replace(mount["mountPath"], str(volume)) for part in container["command"]]
    subprocess.run(command, check=True, timeout=60)
    return Path(command[-1])


@pytest.fixture(params=MODES, ids=oct)
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a pod finds in place of its volume."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(request.param)
    return folder


def test_the_server_refuses_the_volume_itself(volume: Path) -> None:
    """So that something has to be made in it."""
    with pytest.raises(MissingError) as caught:
        check_dump_folder(volume, 1)
    assert caught.value.kind == "dumps-open"


def test_the_server_takes_what_the_pod_made(system: list[Manifest], volume: Path) -> None:
    """Of one user alone, whatever the umask."""
    before = os.umask(0)
    try:
        dumps = make(system, volume)
    finally:
        os.umask(before)
    assert check_dump_folder(dumps, 1) == dumps
    assert dumps.stat().st_uid == os.getuid()


def test_a_pod_that_starts_again_closes_what_was_opened(
    system: list[Manifest], volume: Path
) -> None:
    """Dumps of the server before it stay; a kubelet that gave the folder to a group is undone."""
    dumps = make(system, volume)
    (dumps / "dump").touch()
    dumps.chmod(0o2770)
    assert check_dump_folder(make(system, volume), 1) == dumps
    assert [path.name for path in dumps.iterdir()] == ["dump"]


def test_all_of_the_pod_are_one_user(system: list[Manifest]) -> None:
    """Who makes the folder, who writes and who reads; the number is that of the images."""
    pod = pod_of(system, "StatefulSet", "worker")
    context = pod.spec["securityContext"]
    user, group = context["runAsUser"], context["runAsGroup"]
    # By it the disk of the runs becomes theirs; a container has no user of its own.
    assert context["fsGroup"] == group
    assert not [each for each in pod.containers if "runAsUser" in each["securityContext"]]
    for container in pod.containers:
        name = container["image"].partition(":")[0].removeprefix("statetap/")
        users = re.findall(r"^USER (.*)$", (IMAGES / name / "Dockerfile").read_text(), re.MULTILINE)
        assert users[-1] == f"{user}:{group}", name
