"""Names in manifests that must be those of something else, which no schema can say."""

import re
from collections.abc import Iterator, Sequence

from .manifests import Manifest, Pod, of_kind, pods
from .selectors import selects

#: The one Secret, which whoever runs the system makes, and what must be in it.
SECRET = "statetap"  # noqa: S105  its name
SECRET_KEYS = {"redis-password", "flower-password", "api-key"}

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_ADDRESS = re.compile(r"@([a-z0-9-]+):([0-9]+)/")


def dangling(documents: Sequence[Manifest]) -> list[str]:
    """References that lead nowhere, a sentence each."""
    return [
        *_in_workloads(documents),
        *_in_services(documents),
        *_in_policies(documents),
        *(fault for pod in pods(documents) for fault in _in_pod(pod, documents)),
    ]


def _in_workloads(documents: Sequence[Manifest]) -> Iterator[str]:
    for pod in pods(documents):
        selector = pod.owner["spec"].get("selector")
        if selector is not None and not selects(selector, pod.labels):
            yield f"{pod.name} does not select its own pods"
        service = pod.owner["spec"].get("serviceName")
        if service is not None and service not in of_kind(documents, "Service"):
            yield f"{pod.name} wants the service {service}"


def _in_services(documents: Sequence[Manifest]) -> Iterator[str]:
    for name, service in of_kind(documents, "Service").items():
        selector = {"matchLabels": service["spec"]["selector"]}
        meant = [pod for pod in pods(documents) if selects(selector, pod.labels)]
        if not meant:
            yield f"service {name} selects no pod"
        for port in service["spec"]["ports"]:
            if any(port["targetPort"] not in pod.port_names for pod in meant):
                yield f"service {name} wants the port {port['targetPort']}"


def _in_policies(documents: Sequence[Manifest]) -> Iterator[str]:
    for name, policy in of_kind(documents, "NetworkPolicy").items():
        spec = policy["spec"]
        subjects = [pod for pod in pods(documents) if selects(spec["podSelector"], pod.labels)]
        if not subjects:
            yield f"policy {name} selects no pod"
        rules = [(rule, rule.get("from", []), subjects) for rule in spec.get("ingress", [])]
        rules += [(rule, rule.get("to", []), []) for rule in spec.get("egress", [])]
        for rule, peers, targets in rules:
            for peer in peers:
                if "namespaceSelector" in peer:
                    continue
                meant = [pod for pod in pods(documents) if selects(peer["podSelector"], pod.labels)]
                if not meant:
                    yield f"policy {name} names a peer that is no pod"
                if "to" in rule:
                    targets = meant  # noqa: PLW2901
            for port in rule.get("ports", []):
                is_name = isinstance(port["port"], str)
                if is_name and any(port["port"] not in pod.port_names for pod in targets):
                    yield f"policy {name} wants the port {port['port']}"


def _in_pod(pod: Pod, documents: Sequence[Manifest]) -> Iterator[str]:
    for term in _affinity_terms(pod):
        if not any(selects(term["labelSelector"], other.labels) for other in pods(documents)):
            yield f"{pod.name} wants to be beside what is not there"
    claims = {
        claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])
    }
    volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | claims
    mounted = {
        mount["name"] for container in pod.containers for mount in container.get("volumeMounts", [])
    }
    yield from (f"{pod.name} mounts {name}, which is no volume" for name in mounted - volumes)
    yield from (f"{pod.name} mounts nowhere the volume {name}" for name in volumes - mounted)
    for volume in pod.spec.get("volumes", []):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and claim not in _claims(documents):
            yield f"{pod.name} wants the claim {claim}"
    for container in pod.containers:
        yield from _in_container(f"{pod.name} {container['name']}", container, documents)


def _affinity_terms(pod: Pod) -> list[Manifest]:
    affinity = pod.spec.get("affinity", {}).get("podAffinity", {})
    terms: list[Manifest] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return terms


def _claims(documents: Sequence[Manifest]) -> set[str]:
    """Claims that are written down, and those that stateful sets make."""
    made = {
        f"{claim['metadata']['name']}-{name}-{ordinal}"
        for name, workload in of_kind(documents, "StatefulSet").items()
        for claim in workload["spec"].get("volumeClaimTemplates", [])
        for ordinal in range(workload["spec"]["replicas"])
    }
    return made | set(of_kind(documents, "PersistentVolumeClaim"))


def _in_container(where: str, container: Manifest, documents: Sequence[Manifest]) -> Iterator[str]:
    maps = of_kind(documents, "ConfigMap")
    known: set[str] = set()
    for source in container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        if name not in maps:
            yield f"{where} wants the config map {name}"
        known |= set(maps.get(name, {}).get("data", {}))
    for variable in container.get("env", []):
        origin = variable.get("valueFrom", {})
        if (key := origin.get("secretKeyRef")) and not _is_secret(key):
            yield f"{where} wants {key['key']} of the secret {key['name']}"
        if key := origin.get("configMapKeyRef"):
            data = maps.get(key["name"], {}).get("data", {})
            if key["key"] not in data:
                yield f"{where} wants {key['key']} of the config map {key['name']}"
        value = variable.get("value", "")
        # A variable sees those that stand before it; of others the name stays as it is.
        yield from _unknown(where, [value], known)
        yield from _unreachable(where, value, documents)
        known.add(variable["name"])
    yield from _unknown(where, [*container.get("command", []), *container.get("args", [])], known)
    ports = {port["name"] for port in container.get("ports", [])}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(kind, {})
        port = {**probe.get("httpGet", {}), **probe.get("tcpSocket", {})}.get("port")
        if port is not None and port not in ports:
            yield f"{where} is probed at the port {port}"


def _is_secret(reference: Manifest) -> bool:
    return reference["name"] == SECRET and reference["key"] in SECRET_KEYS


def _unknown(where: str, texts: Sequence[str], known: set[str]) -> Iterator[str]:
    for text in texts:
        for name in _VARIABLE.findall(text):
            if name not in known:
                yield f"{where} uses $({name}), which is not set before"


def _unreachable(where: str, value: str, documents: Sequence[Manifest]) -> Iterator[str]:
    """Addresses of services in a variable."""
    for host, port in _ADDRESS.findall(value):
        service = of_kind(documents, "Service").get(host, {"spec": {"ports": []}})
        if int(port) not in {each["port"] for each in service["spec"]["ports"]}:
            yield f"{where} wants {host}:{port}, which no service has"
