"""Pods may do what they need and nothing else."""

from statetap_contract.api_key import API_KEY_VARIABLE

from .manifests import Manifest, num_bytes, of_kind, pods


def test_pods_run_as_nobody_in_particular(documents: list[Manifest]) -> None:
    """Not as root, without the cluster's token, without more system calls than usual."""
    for pod in pods(documents):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.name
        assert context["runAsUser"] > 0, pod.name
        assert context["runAsGroup"] > 0, pod.name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, pod.name
        assert pod.spec["automountServiceAccountToken"] is False, pod.name
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(pod.spec)


def test_containers_are_closed(documents: list[Manifest]) -> None:
    """No privileges, no capabilities, nothing to write to but what is mounted."""
    for pod in pods(documents):
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, f"{pod.name} {container['name']}"


def test_nothing_of_the_node_is_mounted(documents: list[Manifest]) -> None:
    """Volumes are claims and folders of the pod's own."""
    kinds = {
        kind
        for pod in pods(documents)
        for volume in pod.spec.get("volumes", [])
        for kind in set(volume) - {"name"}
    }
    assert kinds <= {"persistentVolumeClaim", "emptyDir"}


def test_what_a_container_takes_is_bounded(documents: list[Manifest]) -> None:
    """Memory asked for and bounded, processor asked for; folders of a pod's own have a size."""
    for pod in pods(documents):
        for container in pod.containers:
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]), (
                f"{pod.name} {container['name']}"
            )
            asked, most = (resources[each]["memory"] for each in ("requests", "limits"))
            assert num_bytes(asked) <= num_bytes(most), f"{pod.name} {container['name']}"
        for volume in pod.spec.get("volumes", []):
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": None}), pod.name


def test_no_secret_is_written_down(documents: list[Manifest]) -> None:
    """Secrets are named only; a variable for a password or a key takes it from one."""
    assert of_kind(documents, "Secret") == {}
    for pod in pods(documents):
        for container in pod.containers:
            for variable in container.get("env", []):
                if variable["name"].endswith(("_PASSWORD", "_KEY")):
                    assert "secretKeyRef" in variable["valueFrom"], pod.name


def test_no_password_stands_in_a_command_line(documents: list[Manifest]) -> None:
    """A command line can be read by everyone on the node."""
    for pod in pods(documents):
        for container in pod.containers:
            line = " ".join([*container.get("command", []), *container.get("args", [])])
            assert "PASSWORD" not in line, pod.name
            assert "KEY" not in line, pod.name
            assert "redis://" not in line, pod.name


def test_the_servers_key_is_where_it_is_needed(system: list[Manifest]) -> None:
    """Server and worker have the same one; the others reach no server, and have none."""
    holders = {
        (pod.name, container["name"]): variable["valueFrom"]
        for pod in pods(system)
        for container in pod.containers
        for variable in container.get("env", [])
        if variable["name"] == API_KEY_VARIABLE
    }
    # Not optional: a pod without it does not start, rather than serve everybody.
    wanted = {"secretKeyRef": {"name": "statetap", "key": "api-key"}}
    assert holders == {
        ("StatefulSet/worker", "server"): wanted,
        ("StatefulSet/worker", "worker"): wanted,
    }


def test_no_variables_of_services(documents: list[Manifest]) -> None:
    """Flower would read FLOWER_PORT, which a service of that name would set."""
    assert all(pod.spec["enableServiceLinks"] is False for pod in pods(documents))


def test_images_are_pinned(documents: list[Manifest]) -> None:
    """No image is whatever is the latest today."""
    for pod in pods(documents):
        for container in pod.containers:
            _, _, tag = container["image"].partition(":")
            assert tag not in {"", "latest"}, f"{pod.name} {container['name']}"


def test_the_namespace_refuses_open_pods(system: list[Manifest]) -> None:
    """The cluster itself holds pods to the strictest of its standards."""
    labels = of_kind(system, "Namespace")["statetap"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {document["metadata"].get("namespace") for document in system} == {None, "statetap"}
