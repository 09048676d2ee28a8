"""Manifests have the form that Kubernetes gives them."""

import copy
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from .manifests import KUBERNETES, Manifest, of_kind

#: The oldest Kubernetes that keeps a server running beside its worker (sidecars), and the newest
#: that the schemas are there of.
VERSIONS = ("1.29", "1.37")

FILES = sorted(
    path
    for folder in ("base", "seal")
    for path in (KUBERNETES / folder).glob("*.yaml")
    if path.name != "kustomization.yaml"
)


def fault(document: Manifest, version: str) -> str | None:
    """Why a manifest does not fit its schema, None where it does. Unknown fields do not fit."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_applied_fits(documents: list[Manifest], version: str) -> None:
    """Every rendered manifest of every folder fits its schema."""
    faults = {document["metadata"]["name"]: fault(document, version) for document in documents}
    assert documents
    assert {name: why for name, why in faults.items() if why} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_fit(path: Path) -> None:
    """So does every file as it is written, before kustomize."""
    documents = list(yaml.safe_load_all(path.read_text()))
    assert [fault(document, VERSIONS[-1]) for document in documents] == [None] * len(documents)


def _misspell(worker: Manifest) -> None:
    worker["spec"]["replica"] = worker["spec"].pop("replicas")


def _text_for_number(worker: Manifest) -> None:
    worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "16m"


def _forget(worker: Manifest) -> None:
    del worker["spec"]["selector"]


@pytest.mark.parametrize("break_", [_misspell, _text_for_number, _forget])
def test_a_broken_manifest_does_not_fit(
    cpu_system: list[Manifest], break_: Callable[[Manifest], None]
) -> None:
    """The schemas are strict: a misspelt field, a wrong type, a field that is missing."""
    worker = copy.deepcopy(of_kind(cpu_system, "StatefulSet")["worker"])
    break_(worker)
    assert fault(worker, VERSIONS[-1]) is not None
