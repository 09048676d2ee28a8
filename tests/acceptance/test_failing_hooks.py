"""Faults in the patch's own code cost the request they concern, and nothing else."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    ask,
    assert_no_leftovers,
    assert_right,
    capture_all,
    generate,
    jobs_of,
    prompts_of,
    write_plugin,
)
from .reference import Reference

#: A fault in every hook that a request goes through, each for prompts of one length.
FAULTY = """
def register():
    from statetap_patch import capture
    from statetap_patch.capture import Capture
    from statetap_patch.scheduler_side import SchedulerSide

    def fail_at(owner, name, length, num_rows):
        original = getattr(owner, name)

        def faulty(*args, **kwargs):
            if num_rows(*args, **kwargs) == length:
                raise RuntimeError(f"a fault in {name}")
            return original(*args, **kwargs)

        setattr(owner, name, faulty)

    fail_at(Capture, "__init__", 21, lambda _self, _writer, request, *_: request.num_tokens)
    fail_at(capture, "place", 22, lambda *, num_rows, **_: num_rows)
    fail_at(Capture, "write", 23, lambda self, *_: self.num_rows)
    fail_at(Capture, "open_file", 24, lambda self: self.num_rows)
    fail_at(SchedulerSide, "_is_unsettled", 25, lambda _self, _req, capture: capture.num_rows)
"""

FAULTY_LENGTHS = [21, 22, 23, 24, 25]


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=["--max-total-tokens=16384", "--chunked-prefill-size=256"],
        environment=write_plugin(tmp_path_factory.mktemp("plugin"), FAULTY),
    )
    yield service
    service.stop()


def test_a_fault_costs_its_request_alone(
    server: LocalServer, dumps: Path, reference: Reference
) -> None:
    """A 5xx for each request that met one; the others, in the same batches, are right."""
    doomed = jobs_of(server.url, prompts_of(FAULTY_LENGTHS * 4, 80))
    with ThreadPoolExecutor(len(doomed)) as threads:
        asked = [threads.submit(ask, server.url, job) for job in doomed]
        captured = capture_all(server.url, dumps, prompts_of([1, 20, 26, 300, 90] * 4, 81))
        answers = [one.result() for one in asked]
    statuses = {
        job.prompt.num_tokens: answer.status for job, answer in zip(doomed, answers, strict=True)
    }
    assert all(answer.receipt is None for answer in answers)
    assert statuses == dict.fromkeys(FAULTY_LENGTHS, 500)
    assert_right(dumps, reference, captured)
    assert_no_leftovers(dumps)
    client = Server(server.url)
    state = client.handshake()  # raises when a writer is dead
    # Two of the five are faults in a hook; the others are in what fails a capture by itself.
    assert state.num_hook_errors == 2 * 4
    assert "a fault in place" in server.log.read_text()
    assert generate(server, [5, 6, 7], max_new_tokens=8)["meta_info"]["completion_tokens"] == 8
