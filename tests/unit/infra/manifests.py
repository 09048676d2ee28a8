"""What kustomize makes of infra/kubernetes/, and the pods in it."""

import copy
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

#: The pinned one, of this environment.
KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"

KUBERNETES = Path(__file__).resolve().parents[3] / "infra" / "kubernetes"

#: Everything that somebody may apply.
FOLDERS = ("base", "overlays/cpu", "overlays/gpu", "seal")
#: Of these, what is a whole system.
SYSTEMS = ("base", "overlays/cpu", "overlays/gpu")

Manifest = dict[str, Any]


def rendered(folder: Path) -> list[Manifest]:
    """The manifests of any folder with a kustomization, as they would be applied."""
    process = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    return [manifest for manifest in yaml.safe_load_all(process.stdout) if manifest]


@cache
def _rendered(folder: str) -> list[Manifest]:
    return rendered(KUBERNETES / folder)


def manifests(folder: str) -> list[Manifest]:
    """The manifests of a folder of the repository's; a copy of one's own."""
    return copy.deepcopy(_rendered(folder))


@dataclass(frozen=True, slots=True)
class Pod:
    """The pods that one manifest leads to."""

    owner: Manifest
    labels: dict[str, str]
    spec: Manifest

    @property
    def name(self) -> str:
        return f"{self.owner['kind']}/{self.owner['metadata']['name']}"

    @property
    def containers(self) -> list[Manifest]:
        """All of them, in the order in which they start."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def port_names(self) -> set[str]:
        return {
            port["name"] for container in self.containers for port in container.get("ports", [])
        }

    def container(self, name: str) -> Manifest:
        (found,) = (container for container in self.containers if container["name"] == name)
        return found


def pods(documents: Sequence[Manifest]) -> Iterator[Pod]:
    """What starts pods, whatever its kind."""
    for document in documents:
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield Pod(document, template["metadata"]["labels"], template["spec"])


def pod_of(documents: Sequence[Manifest], kind: str, name: str) -> Pod:
    """The pods of one manifest."""
    (found,) = (pod for pod in pods(documents) if pod.name == f"{kind}/{name}")
    return found


def of_kind(documents: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """Manifests of a kind, by name."""
    return {
        document["metadata"]["name"]: document for document in documents if document["kind"] == kind
    }


def num_bytes(quantity: str | int) -> int:
    """A quantity of memory or disk."""
    text = str(quantity)
    for suffix, factor in (("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)
