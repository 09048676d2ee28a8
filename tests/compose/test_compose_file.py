"""What docker-compose.yml promises, without Docker."""

import json
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Not ended by Docker before what they have in hand is done: seconds of the longest answer.
_LONGEST_ANSWER_S: Final = 900

#: Top-level keys and service keys that docker-compose 1.29 knows as well as Compose v2.
_TOP: Final = {"services", "networks", "volumes"}
_KEYS: Final = {
    "build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment",
    "healthcheck", "hostname", "image", "init", "logging", "network_mode", "networks", "ports",
    "profiles", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs",
    "user", "volumes",
}  # fmt: skip

_VARIABLE: Final = re.compile(r"\$\{([A-Z_]+)(?:(:-|:\?)([^}]*))?\}")


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docker-compose.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def services(text: str) -> dict[str, Any]:
    """The services, with the defaults in place of variables."""
    plain = _VARIABLE.sub(lambda found: found[3] if found[2] == ":-" else "given", text)
    loaded: dict[str, Any] = yaml.safe_load(plain)
    assert {key for key in loaded if not key.startswith("x-")} == _TOP
    found: dict[str, Any] = loaded["services"]
    return found


@pytest.fixture(scope="module")
def example(repository: Path) -> dict[str, str]:
    """The variables of .env.example, those that are commented out too."""
    lines = (repository / ".env.example").read_text(encoding="utf-8").splitlines()
    pairs = (re.fullmatch(r"#?([A-Z_]+)=(.*)", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_nothing_is_used_that_either_compose_lacks(services: dict[str, Any]) -> None:
    """1.29 refuses a key that it does not know, as Compose v2 does."""
    for name, service in services.items():
        assert service.keys() <= _KEYS, name


def test_every_service_is_confined(services: dict[str, Any]) -> None:
    """Read-only, without capabilities; what ends is started again, but for one-off commands."""
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        is_once = name in {"model", "producer"}
        assert service["restart"] == ("no" if is_once else "unless-stopped"), name
        assert is_once or "test" in service["healthcheck"], name


def test_ports_are_published_on_loopback_alone(services: dict[str, Any]) -> None:
    """Neither Redis nor the server has any."""
    published = {name: service.get("ports", []) for name, service in services.items()}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert not published["redis"] + published["sglang"] + published["sglang-gpu"]


def test_no_image_runs_as_root(repository: Path, services: dict[str, Any]) -> None:
    """By the image's last USER, or by the service's own."""
    for name, service in services.items():
        if "build" not in service:
            assert service["user"].split(":")[0].isdecimal(), name
            assert not service["user"].startswith("0:"), name
            continue
        dockerfile = repository / service["build"]["dockerfile"]
        users = re.findall(r"^USER (\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
        assert users[-1] in {"10001:10001", "redis"}, name


def test_a_worker_has_time_to_finish(services: dict[str, Any]) -> None:
    """And is stopped before its server, which Compose does to what depends on another."""
    for name, server in (("worker", "sglang"), ("worker-gpu", "sglang-gpu")):
        minutes = re.fullmatch(r"(\d+)m", services[name]["stop_grace_period"])
        assert minutes is not None
        assert int(minutes[1]) * 60 > _LONGEST_ANSWER_S
        assert services[name]["depends_on"] == {
            "redis": {"condition": "service_healthy"},
            server: {"condition": "service_healthy"},
        }


def test_dumps_lie_in_memory_of_a_stated_size(text: str, services: dict[str, Any]) -> None:
    """In a volume that server and worker share, and nobody else has."""
    (options,) = re.findall(r"^      o: (.*)$", text, re.MULTILINE)
    assert options == "size=${STATETAP_DUMPS_SIZE:-2g},uid=10001,gid=10001,mode=0700"
    holders = {name for name, service in services.items() if "dumps:/dumps" in service["volumes"]}
    assert holders == {"sglang", "worker", "sglang-gpu", "worker-gpu"}


def test_the_example_has_every_variable_with_its_default(
    text: str, example: dict[str, str]
) -> None:
    """Passwords and the key have none: only the example gives them."""
    used = {name: (sign, default) for name, sign, default in _VARIABLE.findall(text)}
    of_compose = {"COMPOSE_PROJECT_NAME", "COMPOSE_PROFILES"}
    assert example.keys() - of_compose == used.keys()
    for name, (sign, default) in used.items():
        if name.endswith(("_PASSWORD", "_KEY")):
            assert example[name].startswith("change-me"), name
        elif sign == ":-" and default:
            assert example[name] == default, name


def test_no_example_is_a_default(text: str) -> None:
    """Without .env nothing starts."""
    assert "change-me" not in text
    for name in ("REDIS_PASSWORD", "FLOWER_PASSWORD", "GRAFANA_PASSWORD"):
        assert f"${{{name}:?copy .env.example to .env" in text


def test_images_are_built_from_what_they_need(repository: Path) -> None:
    """A COPY of the server names nothing of the worker, and the other way round."""
    copied = {
        name: set(
            re.findall(
                r"\b(contract|store|producer|worker|sglang_patch)\b",
                " ".join(
                    line
                    for line in (repository / "infra/images" / name / "Dockerfile")
                    .read_text(encoding="utf-8")
                    .splitlines()
                    if line.startswith("COPY ")
                ),
            )
        )
        for name in ("server", "server-gpu", "worker", "producer", "flower")
    }
    assert copied["server"] == copied["server-gpu"] == {"contract", "sglang_patch"}
    assert copied["worker"] == {"contract", "store", "worker"}
    assert copied["producer"] == {"contract", "store", "producer"}
    assert copied["flower"] == set()


@pytest.mark.parametrize("name", ["build", "flower", "producer", "worker", "main"])
def test_a_lock_holds_all_that_its_packages_ask_for(repository: Path, name: str) -> None:
    """On the oldest Python too: pip is told to look for nothing else."""
    text = (repository / f"requirements/{name}.lock").read_text(encoding="utf-8")
    locked = {canonicalize_name(found) for found in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert locked
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
    # Torch has a lock of its own.
    missing = {
        f"{asked} of {package}"
        for package in locked
        for asked in map(Requirement, requires(package) or [])
        if asked.marker is None or asked.marker.evaluate(oldest)
        if canonicalize_name(asked.name) not in locked | {"torch"}
    }
    assert not missing


def test_the_dashboard_shows_metrics_that_there_are(repository: Path) -> None:
    """All that the document lists, and nothing else."""
    dashboard = repository / "infra/grafana/dashboards/statetap.json"
    panels = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    shown = {
        name.removesuffix("_bucket")
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"statetap_\w+", target["expr"])
    }
    document = (repository / "docs/metrics.md").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"^\| `(statetap_\w+)`", document, re.MULTILINE))


def test_prometheus_scrapes_the_worker_under_the_name_of_the_alerts(repository: Path) -> None:
    """And finds its rules beside its settings."""
    folder = repository / "infra/prometheus"
    settings = yaml.safe_load((folder / "prometheus.yml").read_text(encoding="utf-8"))
    assert settings["rule_files"] == ["statetap.rules.yml"]
    (job,) = settings["scrape_configs"]
    rules = (folder / "statetap.rules.yml").read_text(encoding="utf-8")
    assert f'up{{job="{job["job_name"]}"}}' in rules
    assert job["static_configs"] == [{"targets": ["worker:9400"]}]
