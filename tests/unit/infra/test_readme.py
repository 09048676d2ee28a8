"""The page on Kubernetes names what there is."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from .manifests import KUBECTL, KUBERNETES, Manifest, of_kind, pod_of, pods, rendered
from .references import SECRET, SECRET_KEYS, dangling

PAGE = (KUBERNETES / "README.md").read_text()


def test_the_secret_that_it_makes_is_the_one_that_is_wanted() -> None:
    """The line makes a secret of the name and the keys that pods refer to, with long passwords."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to choose passwords with")
    (line,) = re.findall(r"^ +(printf .*)$", PAGE, re.MULTILINE)
    shown = subprocess.run(
        ["sh", "-c", f"{line} --dry-run=client --output=json"],
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PATH": f"{KUBECTL.parent}:{os.environ['PATH']}"},
    )
    secret = json.loads(shown.stdout)
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == (SECRET, "statetap")
    assert set(secret["data"]) == SECRET_KEYS
    # Base64 of 64 digits.
    assert {len(value) for value in secret["data"].values()} == {88}


def test_what_it_names_is_there(cpu_system: list[Manifest]) -> None:
    """Each kind/name in a command is a manifest."""
    there = {
        f"{document['kind'].lower()}/{document['metadata']['name']}" for document in cpu_system
    }
    named = set(re.findall(r"\b(?:job|cronjob|deployment|statefulset)/[a-z]+\b", PAGE))
    assert len(named) > 4
    assert named - there == {"job/seal"}


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[[str], list[Manifest]]:
    """``overlay(name)``: the manifests of a folder that the page shows, beside the repository's."""
    (tmp_path / "infra").symlink_to(KUBERNETES.parent)

    def render(name: str) -> list[Manifest]:
        shown = rf"^```yaml\n# {name}/kustomization.yaml\n(.*?)^```$"
        (text,) = re.findall(shown, PAGE, re.MULTILINE | re.DOTALL)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(text)
        return rendered(folder)

    return render


def images(documents: list[Manifest]) -> set[str]:
    return {container["image"] for pod in pods(documents) for container in pod.containers}


def test_an_overlay_as_it_is_shown_changes_what_it_says(
    overlay: Callable[[str], list[Manifest]],
) -> None:
    """Images from another registry, another model, another run; nothing is left as it was."""
    documents = overlay("my")
    assert {image.partition("/")[0] for image in images(documents)} == {"registry.example"}
    assert {image.partition(":")[2] for image in images(documents)} == {"0.1.0"}
    settings = [document["data"] for document in of_kind(documents, "ConfigMap").values()]
    assert {"MODEL": "my-model"} in settings
    assert {"RUN": "my-run", "DATASET": "my.jsonl"} in settings
    assert dangling(documents) == []


def test_a_job_is_made_for_each_disk_as_it_is_shown(
    overlay: Callable[[str], list[Manifest]],
) -> None:
    """By the line's own sed: another name, another claim, the run that was meant."""
    (line,) = re.findall(r"\| sed \"(.*)\" \|", PAGE)
    made = subprocess.run(
        ["sed", line.replace("$n", "7")],
        input=yaml.safe_dump_all(overlay("my-seal")),
        capture_output=True,
        text=True,
        check=True,
    )
    (document,) = yaml.safe_load_all(made.stdout)
    pod = pod_of([document], "Job", "seal-worker-7")
    (claim,) = (
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.spec["volumes"]
        if "persistentVolumeClaim" in volume
    )
    assert claim == "runs-worker-7"
    assert [container["args"][0] for container in pod.containers] == 2 * ["/runs/my-run"]
    assert images([document]) == {"registry.example/statetap/producer:0.1.0"}
