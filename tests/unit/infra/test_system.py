"""What has to fit together for the system to work, and to lose nothing when it is stopped."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pytest
import typer
from statetap_patch import launch
from statetap_producer.cli import app
from statetap_worker import cli
from statetap_worker.asking import server as asking
from statetap_worker.settings import WORKER_NAME_FORM

from .manifests import Manifest, Pod, num_bytes, of_kind, pod_of, pods


def worker_of(system: Sequence[Manifest]) -> Pod:
    return pod_of(system, "StatefulSet", "worker")


def mount_point(container: Manifest, path: str) -> str:
    """The volume that a path lies in."""
    (name,) = (
        mount["name"]
        for mount in container["volumeMounts"]
        if PurePosixPath(path).is_relative_to(mount["mountPath"])
    )
    return str(name)


def server_arguments(system: Sequence[Manifest]) -> tuple[argparse.Namespace, list[str]]:
    return launch._parser().parse_known_args(worker_of(system).container("server")["args"])


def worker_arguments(system: Sequence[Manifest]) -> argparse.Namespace:
    return cli._parser().parse_args(worker_of(system).container("worker")["args"])


def test_the_server_comes_first_and_goes_last(system: list[Manifest]) -> None:
    """A sidecar: there before its worker, and until the worker has stored what it had asked for."""
    containers = worker_of(system).spec["initContainers"]
    assert [container["name"] for container in containers] == ["dump-folder", "server"]
    assert containers[1]["restartPolicy"] == "Always"
    assert "restartPolicy" not in containers[0]
    assert "startupProbe" in containers[1]


def test_a_worker_has_time_to_stop(system: list[Manifest]) -> None:
    """Longer than the longest answer that it waits for."""
    seconds = worker_of(system).spec["terminationGracePeriodSeconds"]
    assert seconds >= asking._ANSWER_TIMEOUT_S + 30


def test_dumps_lie_in_shared_memory_of_a_stated_size(system: list[Manifest]) -> None:
    """One volume, in memory, seen by both under the same path, counted to the server's memory."""
    pod = worker_of(system)
    arguments, _ = server_arguments(system)
    dumps = str(arguments.dumps)
    assert str(worker_arguments(system).dumps) == dumps
    assert pod.container("dump-folder")["command"][-1] == dumps
    names = {
        mount_point(pod.container(name), dumps) for name in ("dump-folder", "server", "worker")
    }
    assert names == {"dumps"}
    sizes = {
        volume["name"]: num_bytes(volume["emptyDir"]["sizeLimit"])
        for volume in pod.spec["volumes"]
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    }
    assert set(sizes) == {"dumps", "server-shm"}
    # SGLang's processes have more there than the 64 MB of a container.
    assert mount_point(pod.container("server"), "/dev/shm") == "server-shm"
    # Twice: what a server takes itself is not less than what it leaves behind.
    limit = num_bytes(pod.container("server")["resources"]["limits"]["memory"])
    assert limit >= 2 * sum(sizes.values())


def test_samples_and_names_outlive_a_pod(system: list[Manifest]) -> None:
    """Runs lie on a claim of the pod's own, which is kept; the worker is called as its pod is."""
    pod = worker_of(system)
    claims = {claim["metadata"]["name"] for claim in pod.owner["spec"]["volumeClaimTemplates"]}
    assert mount_point(pod.container("worker"), str(worker_arguments(system).runs)) in claims
    policy = pod.owner["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert set(policy.values()) == {"Retain"}
    assert worker_arguments(system).name == "$(POD_NAME)"
    last = f"{pod.owner['metadata']['name']}-{pod.owner['spec']['replicas'] - 1}"
    assert WORKER_NAME_FORM.fullmatch(last)


def test_the_server_is_seen_by_its_worker_alone(system: list[Manifest]) -> None:
    """It listens on loopback, where the worker looks for it, and publishes no port."""
    arguments, _ = server_arguments(system)
    assert arguments.host == "127.0.0.1"
    assert worker_arguments(system).server == f"http://127.0.0.1:{arguments.port}"
    assert "ports" not in worker_of(system).container("server")


def test_probes_ask_the_right_port(system: list[Manifest]) -> None:
    """Of a server on loopback only the pod itself can ask."""
    arguments, _ = server_arguments(system)
    container = worker_of(system).container("server")
    for probe in ("startupProbe", "livenessProbe"):
        assert f"http://127.0.0.1:{arguments.port}/" in container[probe]["exec"]["command"][-1]
    address = worker_arguments(system).metrics_port
    assert (
        address == f"0.0.0.0:{worker_of(system).container('worker')['ports'][0]['containerPort']}"
    )


def test_a_server_has_as_long_as_its_worker_waits(system: list[Manifest]) -> None:
    """A long prompt is not ended by a probe; a model may take half an hour to load."""
    container = worker_of(system).container("server")
    patience_s = {
        name: container[name]["periodSeconds"] * container[name]["failureThreshold"]
        for name in ("startupProbe", "livenessProbe")
    }
    assert patience_s["livenessProbe"] > asking._ANSWER_TIMEOUT_S
    assert patience_s["startupProbe"] >= 1800
    assert "livenessProbe" not in worker_of(system).container("worker")


def test_plan_means_what_the_server_captures(system: list[Manifest]) -> None:
    """It cannot ask the server: the model is the same, and so are options that change the spec."""
    server, _ = server_arguments(system)
    (plan,) = (options for name, *options in statetap_lines(system) if name == "plan")
    assert f"--model={server.model}" in plan
    assert (server.layers, server.dtype, server.norm) == (None, None, "post")
    assert not [each for each in plan if each.startswith(("--layers", "--dtype", "--norm"))]


def test_what_is_passed_on_to_sglang_may_be(system: list[Manifest]) -> None:
    """Options that the launcher does not know are SGLang's, and none is one that it sets itself."""
    _, passed_on = server_arguments(system)
    assert not [each for each in passed_on if each.split("=")[0] in launch._OWNED]


def statetap_lines(documents: Sequence[Manifest]) -> Iterator[list[str]]:
    for pod in pods(documents):
        for container in pod.containers:
            if container.get("command", [""])[0] == "statetap":
                yield [*container["command"][1:], *container.get("args", [])]


def test_statetap_takes_its_options(
    documents: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that a pod runs is one that there is, with options that it has."""
    monkeypatch.setenv("STATETAP_REDIS", "redis://:secret@redis:6379/0")
    lines = list(statetap_lines(documents))
    assert lines
    for name, *arguments in lines:
        command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        with command.make_context(name, arguments):
            pass


def test_redis_has_room_to_write_its_log_anew(system: list[Manifest]) -> None:
    """Twice its data in memory, four times on disk."""
    pod = pod_of(system, "StatefulSet", "redis")
    (redis,) = pod.containers
    (text,) = (each["value"] for each in redis["env"] if each["name"] == "REDIS_MEMORY")
    data = int(text.removesuffix("gb")) * 2**30
    assert num_bytes(redis["resources"]["limits"]["memory"]) >= 2 * data
    (claim,) = pod.owner["spec"]["volumeClaimTemplates"]
    assert num_bytes(claim["spec"]["resources"]["requests"]["storage"]) >= 4 * data


def test_the_producers_pods_are_at_one_node(system: list[Manifest]) -> None:
    """They share a disk that one node can hold."""
    assert of_kind(system, "PersistentVolumeClaim")["producer"]["spec"]["accessModes"] == [
        "ReadWriteOnce"
    ]
    sharers = [
        pod
        for pod in pods(system)
        for volume in pod.spec.get("volumes", [])
        if volume.get("persistentVolumeClaim", {}).get("claimName") == "producer"
    ]
    assert {pod.name for pod in sharers} == {
        "Deployment/producer",
        "Job/enqueue",
        "CronJob/reconcile",
    }
    for pod in sharers:
        (term,) = pod.spec["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term == {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "producer"}},
        }
        assert pod.labels["app.kubernetes.io/name"] == "producer"


def test_nothing_starts_before_there_is_a_run(system: list[Manifest]) -> None:
    """The job and its supervisor wait for a dataset."""
    assert of_kind(system, "Job")["enqueue"]["spec"]["suspend"] is True
    assert of_kind(system, "CronJob")["reconcile"]["spec"]["suspend"] is True


def test_one_reconcile_at_a_time(system: list[Manifest]) -> None:
    """It goes on until nothing is pending, and is not counted as missed meanwhile."""
    spec = of_kind(system, "CronJob")["reconcile"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    # A hundred misses are a fault; the schedule is one in ten minutes.
    assert spec["startingDeadlineSeconds"] < 100 * 600
