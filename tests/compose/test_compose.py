"""The whole CPU profile in real containers: make test-compose."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from .readme_path import readme_lines
from .stack import Stack

#: The example dataset, each row of which is planned.
_NUM_PROMPTS: Final = 177

_MODEL: Final = "/models/SmolLM2-135M-Instruct"
_SERVICES: Final = ("redis", "sglang", "worker", "flower")

#: Modules, by image, that must not be in it.
_FOREIGN: Final = {
    "server": ("celery", "redis", "h5py", "statetap_worker", "statetap_store", "statetap_producer"),
    "worker": ("torch", "sglang", "transformers", "statetap_patch", "statetap_producer"),
    "producer": ("torch", "sglang", "celery", "statetap_patch", "statetap_worker"),
    "flower": ("torch", "h5py", "statetap_contract"),
}


@pytest.mark.timeout(3 * 3600)
def test_a_newcomers_path_through_killed_containers(stack: Stack, repository: Path) -> None:
    """Up, enqueue, everything killed in turn, Flower, rerun, down: the README line by line."""
    for line in readme_lines(repository):
        stack.step(f"$ {line}")
        printed = stack.shell(line)
        if " up " in line:
            stack.wait_healthy(*_SERVICES)
            check_warnings(stack)
            check_api_key(stack)
            check_confinement(stack)
            check_small_shared_memory(stack)
        elif " enqueue " in line:
            assert f"{_NUM_PROMPTS} prompts queued" in printed
            kill_in_turn(stack)
        elif " verify " in line:
            assert f"{_NUM_PROMPTS} samples in " in printed
            check_images(stack)
            check_shards_on_the_volume(stack)
            check_flower(stack)
            check_metrics(stack)
            rerun_a_provoked_failure(stack)
    stack.step("nothing is left running")
    assert stack.docker("ps", "--all", "--quiet") == ""


def check_warnings(stack: Stack) -> None:
    stack.step("the example's passwords and key are warned of")
    for service, name in (
        ("redis", "REDIS_PASSWORD"),
        ("flower", "FLOWER_PASSWORD"),
        ("sglang", "STATETAP_API_KEY"),
    ):
        assert f"{name} is still the one of .env.example" in stack.compose("logs", service)


def check_api_key(stack: Stack) -> None:
    stack.step("the server answers nobody without its key, and shows it to nobody")
    worker, server = stack.container("worker"), stack.container("sglang")
    for path, headers, status in (
        ("model_info", "{}", 401),
        ("model_info", "{'Authorization': 'Bearer ' + os.environ['STATETAP_API_KEY']}", 200),
        ("ready", "{}", 200),
    ):
        program = (
            "import os, urllib.request as r\n"
            f"request = r.Request('http://sglang:30000/{path}', headers={headers})\n"
            "try: print(r.urlopen(request).status)\n"
            "except r.HTTPError as refused: print(refused.code)"
        )
        assert stack.docker("exec", worker, "python3", "-c", program).strip() == str(status)
    key = "change-me"
    assert key not in stack.docker("top", server) + stack.docker("logs", server)


def check_confinement(stack: Stack) -> None:
    stack.step("no root, no file system that can be written to, no port but on loopback")
    for service in _SERVICES:
        container = stack.container(service)
        assert stack.docker("exec", container, "id", "-u").strip() != "0", service
        assert stack.inspect(service, "{{.HostConfig.ReadonlyRootfs}}") == "true", service
        bindings = json.loads(stack.inspect(service, "{{json .HostConfig.PortBindings}}")) or {}
        addresses = {bound["HostIp"] for ports in bindings.values() for bound in ports}
        assert addresses <= {"127.0.0.1"}, service
    mounted = stack.docker("exec", stack.container("worker"), "df", "-B1", "/dumps").splitlines()
    assert mounted[-1].split()[:2] == ["tmpfs", str(2 << 30)]


def check_images(stack: Stack) -> None:
    stack.step("no image holds what belongs to another, nor a password")
    password = "change-me"  # noqa: S105  the example's
    for image, modules in _FOREIGN.items():
        program = (
            "import importlib.util as u, sys\n"
            f"sys.exit(' '.join(m for m in {modules} if u.find_spec(m)) or 0)"
        )
        name = f"statetap/{image}:0.1.0"
        stack.docker("run", "--rm", "--network=none", "--entrypoint=python3", name, "-c", program)
        assert password not in stack.docker("history", "--no-trunc", name)
        assert password not in stack.docker("inspect", name)
        size = int(stack.docker("inspect", "--format={{.Size}}", name))
        stack.step(f"  {name} has {size / 1e6:,.0f} MB")


def check_small_shared_memory(stack: Stack) -> None:
    stack.step("Docker's default of 64 MB shared memory is noticed")
    said = stack.docker(
        *("run", "--rm", "--network=none", "--volume=statetap_models:/models:ro"),
        *("--entrypoint=sh", "statetap/server:0.1.0", "-c"),
        "mkdir -m 700 /dev/shm/dumps; "
        f"timeout 10 statetap-sglang --cpu --model {_MODEL} --dumps /dev/shm/dumps; true",
    )
    assert "64 MB that Docker gives by default" in said


def kill_in_turn(stack: Stack) -> None:
    for service in ("worker", "sglang", "redis"):
        wait_for_progress(stack)
        stack.step(f"$ docker kill {service}")
        stack.docker("kill", stack.container(service))
        assert stack.inspect(service, "{{.State.Running}}") == "false"
        stack.compose("up", "--detach")
        stack.wait_healthy(*_SERVICES)
    wait_for_progress(stack)
    # Not the worker or its server again: who is in hand three times when one ends is given up.
    stack.step("a process that is killed from outside is started again by Docker alone")
    before = int(stack.inspect("flower", "{{.RestartCount}}"))
    os.kill(int(stack.inspect("flower", "{{.State.Pid}}")), signal.SIGKILL)
    stack.wait_for("restart", lambda: int(stack.inspect("flower", "{{.RestartCount}}")) > before)
    stack.wait_healthy("flower")
    stack.step("messages that were lost on the way are put back")
    stack.statetap("reconcile", "--run", "/runs/example")


def wait_for_progress(stack: Stack) -> None:
    before = stack.num_stored()
    stack.wait_for("sample stored", lambda: stack.num_stored() > before)


def check_shards_on_the_volume(stack: Stack) -> None:
    stack.step("the shards on the volume, read from outside")
    mountpoint = stack.docker("volume", "inspect", "--format={{.Mountpoint}}", "statetap_runs")
    program = Path(sys.executable).parent / "statetap"
    command = [str(program), "verify", f"{mountpoint.strip()}/example", "--json"]
    verified = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(verified.stdout)
    assert found["is_good"]
    assert sum(shard["num_samples"] for shard in found["shards"]) == _NUM_PROMPTS


def check_flower(stack: Stack) -> None:
    stack.step("Flower: closed without its password, and it knows the tasks")
    assert stack.flower("/api/tasks", None).status_code == 401
    assert stack.flower("/api/tasks", "wrong").status_code == 401
    tasks = stack.flower("/api/tasks?state=SUCCESS", "change-me-flower").json()
    # Of those that were received while it was away it knows only how they ended.
    known = [task["args"] for task in tasks.values() if task["args"] is not None]
    assert known
    assert all("run example" in arguments for arguments in known)


def check_metrics(stack: Stack) -> None:
    stack.step("metrics over HTTP")
    page = stack.metrics()
    for line in ("statetap_redis_ready 1.0", "statetap_server_ready 1.0"):
        assert line in page.splitlines()
    assert stack.num_stored() > 0


def rerun_a_provoked_failure(stack: Stack) -> None:
    stack.step("a server that takes 64 tokens at most refuses three prompts")
    data = stack.folder / "examples/data"
    rows = (data / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    longest = sorted(rows, key=len)[-3:]
    (data / "three.jsonl").write_text("\n".join(longest) + "\n", encoding="utf-8")
    small = {"STATETAP_SERVER_OPTIONS": "--context-length=64"}
    stack.compose("up", "--detach", "sglang", environment=small)
    stack.wait_healthy("sglang")
    stack.statetap("enqueue", "three.jsonl", "--run", "/runs/failing", "--model", _MODEL)
    stack.wait_for("dead letters", lambda: numbers(stack)["dead"] == 3)
    stack.step("with the right server again, they are rerun")
    stack.compose("up", "--detach")
    stack.wait_healthy(*_SERVICES)
    printed = stack.statetap("rerun", "--run", "/runs/failing", "--reason", "request-refused")
    assert "3 dead letters pending again" in printed
    stack.wait_for("3 samples", lambda: numbers(stack)["stored"] == 3)
    assert "3 samples in " in stack.statetap("verify", "/runs/failing")


def numbers(stack: Stack) -> dict[str, int]:
    """Stored, dead and pending of the failing run."""
    printed = stack.statetap("status", "--run", "/runs/failing", "--json")
    found: dict[str, int]
    # Compose speaks of the container before.
    found, _ = json.JSONDecoder().raw_decode(printed[printed.index("{") :])
    return found
