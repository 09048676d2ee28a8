"""Who may talk to whom, from the policies alone."""

from collections.abc import Sequence

from .manifests import Manifest, Pod, of_kind, pods
from .selectors import selects

Flow = tuple[str, str, int | str]

DNS = "kube-system"
PROMETHEUS = "monitoring"


def kind_of(pod: Pod) -> str:
    return pod.labels["app.kubernetes.io/name"]


def outgoing(documents: Sequence[Manifest]) -> set[Flow]:
    """Sender, receiver and port, by what senders are allowed."""
    return _flows(documents, "egress", "to")


def incoming(documents: Sequence[Manifest]) -> set[Flow]:
    """Sender, receiver and port, by what receivers are allowed."""
    return {(peer, subject, port) for subject, peer, port in _flows(documents, "ingress", "from")}


def _flows(documents: Sequence[Manifest], rules: str, side: str) -> set[Flow]:
    """Pod, peer and port. A rule without ports or peers would allow everything: KeyError."""
    return {
        (kind_of(pod), peer, port["port"])
        for policy in of_kind(documents, "NetworkPolicy").values()
        for pod in pods(documents)
        if selects(policy["spec"]["podSelector"], pod.labels)
        for rule in policy["spec"].get(rules, [])
        for selector in rule[side]
        for peer in _peers(documents, selector)
        for port in rule["ports"]
    }


def _peers(documents: Sequence[Manifest], peer: Manifest) -> set[str]:
    if "namespaceSelector" in peer:
        return {peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]}
    return {kind_of(pod) for pod in pods(documents) if selects(peer["podSelector"], pod.labels)}


def test_everything_is_denied_first(system: list[Manifest]) -> None:
    """One policy means every pod, in both directions, and allows nothing."""
    spec = of_kind(system, "NetworkPolicy")["default-deny"]["spec"]
    assert spec == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_everybody_talks_to_redis_and_nobody_else(system: list[Manifest]) -> None:
    """Senders: Redis and its address. Nobody reaches the internet, Redis reaches nobody."""
    senders = ("worker", "producer", "flower")
    assert outgoing(system) == {
        *((sender, "redis", "redis") for sender in senders),
        *((sender, DNS, 53) for sender in senders),
    }


def test_redis_and_metrics_can_be_reached(system: list[Manifest]) -> None:
    """Receivers: Redis from within, a worker's metrics for Prometheus. Flower, servers: nobody."""
    assert incoming(system) == {
        ("worker", "redis", "redis"),
        ("producer", "redis", "redis"),
        ("flower", "redis", "redis"),
        (PROMETHEUS, "worker", "metrics"),
    }
