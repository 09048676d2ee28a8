"""What manifests call one another by is there."""

from collections.abc import Callable

import pytest

from .manifests import Manifest, manifests, of_kind, pod_of
from .references import dangling


def test_every_reference_leads_somewhere(system: list[Manifest]) -> None:
    """Selectors, ports, volumes, claims, config maps, keys of the secret, variables, addresses."""
    assert dangling(system) == []


def test_seal_finds_the_disk_of_a_worker() -> None:
    """The job that ends a run mounts what the stateful set has made."""
    assert dangling([*manifests("base"), *manifests("seal")]) == []


def _rename_label(system: list[Manifest]) -> None:
    pod_of(system, "StatefulSet", "redis").labels["app.kubernetes.io/name"] = "cache"


def _rename_port(system: list[Manifest]) -> None:
    pod_of(system, "StatefulSet", "worker").container("worker")["ports"][0]["name"] = "numbers"


def _rename_volume(system: list[Manifest]) -> None:
    pod_of(system, "StatefulSet", "worker").spec["volumes"][0]["name"] = "shared"


def _rename_claim(system: list[Manifest]) -> None:
    of_kind(system, "PersistentVolumeClaim")["models"]["metadata"]["name"] = "weights"


def _rename_config_map(system: list[Manifest]) -> None:
    for name, document in of_kind(system, "ConfigMap").items():
        document["metadata"]["name"] = f"{name}-of-others"


def _rename_key(system: list[Manifest]) -> None:
    variable = pod_of(system, "Deployment", "flower").container("flower")["env"][0]
    variable["valueFrom"]["secretKeyRef"]["key"] = "password"


def _rename_variable(system: list[Manifest]) -> None:
    pod_of(system, "Job", "enqueue").container("enqueue")["args"] = ["--run=/runs/$(NAME)"]


def _reorder_variables(system: list[Manifest]) -> None:
    pod_of(system, "StatefulSet", "worker").container("worker")["env"].reverse()


def _rename_service(system: list[Manifest]) -> None:
    of_kind(system, "Service")["redis"]["metadata"]["name"] = "queue"


def _move_redis(system: list[Manifest]) -> None:
    of_kind(system, "Service")["redis"]["spec"]["ports"][0]["port"] = 6380


@pytest.mark.parametrize(
    ("break_", "sentence"),
    [
        (_rename_label, "StatefulSet/redis does not select its own pods"),
        (_rename_label, "service redis selects no pod"),
        (_rename_label, "policy redis selects no pod"),
        (_rename_label, "policy to-redis names a peer that is no pod"),
        (_rename_port, "service worker wants the port metrics"),
        (_rename_port, "policy worker-metrics wants the port metrics"),
        (_rename_port, "StatefulSet/worker worker is probed at the port metrics"),
        (_rename_volume, "StatefulSet/worker mounts dumps, which is no volume"),
        (_rename_volume, "StatefulSet/worker mounts nowhere the volume shared"),
        (_rename_claim, "StatefulSet/worker wants the claim models"),
        (_rename_config_map, "Job/enqueue enqueue uses $(RUN), which is not set before"),
        (_rename_key, "Deployment/flower flower wants password of the secret statetap"),
        (_rename_variable, "Job/enqueue enqueue uses $(NAME), which is not set before"),
        (
            _reorder_variables,
            "StatefulSet/worker worker uses $(REDIS_PASSWORD), which is not set before",
        ),
        (_rename_service, "StatefulSet/redis wants the service redis"),
        (_move_redis, "CronJob/reconcile reconcile wants redis:6379, which no service has"),
    ],
)
def test_a_broken_reference_is_found(
    cpu_system: list[Manifest], break_: Callable[[list[Manifest]], None], sentence: str
) -> None:
    """Each kind of reference, broken, is named."""
    break_(cpu_system)
    assert sentence in dangling(cpu_system)
