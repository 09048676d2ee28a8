"""A real worker, real Redis, real processes that die; only the server is a stand-in."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from statetap_contract import CaptureSpec, queue_name
from statetap_contract.transport import TAKEN_PATTERN
from statetap_local.services import LocalRedis
from statetap_producer.queueing.envelope import Envelope

from .bench import RUN, Bench, assert_stored_once, job_of
from .stand_in_server import SPEC, StandInServer


def test_every_job_ends_in_a_shard_once(bench: Bench) -> None:
    """Also when it is sent twice; nothing stays in the queue or in shared memory."""
    jobs = bench.send_jobs([1 + 13 * i % 90 for i in range(60)])
    bench.send_jobs([1 + 13 * i % 90 for i in range(60)])
    bench.wait_until(lambda: len(bench.stored_keys()) == 60 and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert list(bench.server.dumps.iterdir()) == []


def test_a_refused_prompt_becomes_a_dead_letter(bench: Bench) -> None:
    """At once, with the server's reason, and the others go on."""
    refused = job_of(1, 20).key
    bench.server.behaviour = lambda key, _attempt: (
        (400, {"error": {"message": "too long for this model"}}) if key == refused else None
    )
    bench.send_jobs([20, 20, 20])
    bench.wait_until(lambda: len(bench.stored_keys()) == 2 and bench.num_messages() == 0)
    (letter,) = bench.dead_letters()
    assert (letter.key, letter.kind, letter.attempts) == (refused, "request-refused", 1)
    assert "too long for this model" in letter.message
    assert letter.server == bench.server.url


def test_a_mismatch_is_tried_again_and_never_stored(bench: Bench) -> None:
    """The first dump holds another prompt's rows; the second try is right."""
    (job,) = [job_of(0, 30)]
    bench.server.wrong_ids[job.key] = [0, *list(job.prompt.token_ids)[:-1]]
    bench.send(job.to_message())
    bench.wait_until(lambda: bench.stored_keys() == {job.key} and bench.num_messages() == 0)
    bench.worker.stop()
    assert bench.server.asked[job.key] == 2
    assert_stored_once(bench, [job])
    assert bench.dead_letters() == []


def test_a_retry_is_shown_as_what_it_retries(bench: Bench) -> None:
    """Celery would write a shortened repr of the packed ids into the message instead."""
    (job,) = [job_of(0, 30)]
    bench.server.behaviour = lambda _key, _attempt: (500, {"message": "no"})
    with bench.redis.client() as client:
        client.lpush(queue_name(SPEC.digest), Envelope(SPEC.digest).wrap(job))

        def shown() -> set[str]:
            messages = client.lrange(queue_name(SPEC.digest), 0, -1)
            for name in client.scan_iter(match=TAKEN_PATTERN):
                messages += [json.dumps(json.loads(e)[0]) for e in client.hvals(name)]
            headers = [json.loads(message)["headers"] for message in messages]
            return {each["argsrepr"] for each in headers if each["retries"]}

        bench.wait_until(lambda: bench.server.asked.get(job.key, 0) >= 2)
        bench.wait_until(lambda: shown() != set())
        assert shown() == {str(job)}


@pytest.mark.parametrize(
    "arguments",
    [("garbage",), (), (1, 2), ({"run": RUN},), ({"run": "../x", "key": "k"},), (None,)],
)
def test_garbage_arguments_never_stop_the_worker(bench: Bench, arguments: tuple[Any, ...]) -> None:
    """It leaves the queue, and the next job is stored."""
    bench.send(*arguments)
    (job,) = bench.send_jobs([10])
    bench.wait_until(lambda: bench.stored_keys() == {job.key} and bench.num_messages() == 0)


def test_a_killed_child_loses_no_job(bench: Bench) -> None:
    """With kill -9, while a request is in flight: its job comes again, and is stored once."""
    in_flight, go_on = Event(), Event()

    def hold_first(_key: str, attempt: int) -> None:
        if attempt == 1:
            in_flight.set()
            go_on.wait(30)

    bench.server.behaviour = hold_first
    jobs = bench.send_jobs([25, 26])
    assert in_flight.wait(60)
    for child in bench.children():
        child.send_signal(signal.SIGKILL)
    go_on.set()
    bench.wait_until(lambda: len(bench.stored_keys()) == 2)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert bench.dead_letters() == []


def test_a_prompt_that_kills_its_process_becomes_a_dead_letter(bench: Bench) -> None:
    """Every process that takes it dies; the others' jobs are stored all the same."""
    poison, good = job_of(0, 25), job_of(1, 26)

    def kill_who_asks(key: str, _attempt: int) -> None:
        if key == poison.key:
            # Only one of two asks at a time: the good job is long done.
            for child in bench.children():
                child.send_signal(signal.SIGKILL)

    bench.send(good.to_message())
    bench.wait_until(lambda: bench.stored_keys() == {good.key})
    bench.server.behaviour = kill_who_asks
    bench.send(poison.to_message())
    bench.wait_until(lambda: len(bench.dead_letters()) == 1 and bench.num_messages() == 0)
    (letter,) = bench.dead_letters()
    assert (letter.key, letter.kind, letter.attempts) == (poison.key, "worker-lost", 3)
    assert bench.server.asked[poison.key] == 3


def test_an_outage_of_the_server_costs_no_sample(bench: Bench) -> None:
    """The queue stays in Redis while workers wait, and everything is stored afterwards."""
    bench.server.behaviour = lambda _key, _attempt: (503, {"message": "starting"})
    jobs = bench.send_jobs([10] * 30)
    bench.wait_until(lambda: sum(bench.server.asked.values()) >= 4)
    assert bench.num_messages() >= 28
    bench.server.behaviour = lambda _key, _attempt: None
    bench.wait_until(lambda: len(bench.stored_keys()) == 30 and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert bench.dead_letters() == []


def test_a_server_of_another_spec_ends_the_worker(bench: Bench) -> None:
    """With code 3, and the job goes back: its server would answer with other states."""
    bench.send_jobs([5])
    bench.wait_until(lambda: len(bench.stored_keys()) == 1)
    bench.server.spec = CaptureSpec("stand-in", "r", (1, 3), "post", 16, "float32")
    for child in bench.children():
        child.send_signal(signal.SIGKILL)
    bench.send(job_of(7, 8).to_message())
    assert bench.worker.wait(60) == 3
    assert bench.num_messages() == 1
    assert len(bench.stored_keys()) == 1


@pytest.mark.parametrize("what", ["host", "sglang_version"])
def test_another_server_at_the_same_address_ends_the_worker(bench: Bench, what: str) -> None:
    """With code 3 after the outage: its samples would be stored as the first one's."""

    def be_replaced(_key: str, _attempt: int) -> tuple[int, dict[str, Any]]:
        setattr(bench.server, what, "another")
        return 503, {"message": "starting"}

    bench.server.behaviour = be_replaced
    bench.send_jobs([5])
    assert bench.worker.wait(60) == 3
    assert "kind=server-differs" in bench.worker.log.read_text()
    assert bench.num_messages() == 1
    assert bench.stored_keys() == set()
    assert bench.dead_letters() == []


def test_a_run_folder_that_cannot_be_made_stops_the_worker(bench: Bench) -> None:
    """No message is acknowledged for it."""
    (bench.runs / RUN).write_text("in the way")
    bench.send_jobs([5, 6, 7])
    assert bench.worker.wait(60) == 3
    assert bench.num_messages() == 3


def test_a_ledger_that_cannot_be_written_stops_the_worker(bench: Bench) -> None:
    """A sample is given up only when that is durable."""
    (bench.runs / RUN).mkdir()
    (bench.runs / RUN / "ledger").write_text("in the way")
    bench.server.behaviour = lambda _key, _attempt: (400, {"message": "no"})
    bench.send_jobs([5, 6, 7])
    assert bench.worker.wait(60) == 3
    assert bench.num_messages() == 3


def test_a_retry_that_redis_does_not_take_is_not_lost(bench: Bench) -> None:
    """With Redis full, the message stays in it, whatever becomes of the worker."""
    job = job_of(0, 30)
    bench.server.wrong_ids[job.key] = [0] * 30
    with bench.redis.client() as client:

        def fill_redis(_key: str, attempt: int) -> None:
            if attempt == 1:
                client.config_set("maxmemory", 1)

        bench.server.behaviour = fill_redis
        bench.send(job.to_message())
        try:
            bench.wait_until(lambda: "maxmemory" in bench.worker.log.read_text())
        finally:
            client.config_set("maxmemory", 0)
    assert bench.num_messages() == 1 or bench.stored_keys() == {job.key}
    assert bench.dead_letters() == []


def test_an_acknowledgement_survives_its_connection(bench: Bench) -> None:
    """Else the worker would hold the message for ever, and take no other in its stead."""
    is_asked, may_answer = Event(), Event()

    def wait(_key: str, _attempt: int) -> None:
        is_asked.set()
        may_answer.wait(30)

    bench.server.behaviour = wait
    jobs = bench.send_jobs([5] * 2)
    assert is_asked.wait(30)
    with bench.redis.client() as client:
        noted_over = [one["id"] for one in client.client_list() if one["cmd"] == "exec"]
        for number in noted_over:
            client.client_kill_filter(_id=number)
    may_answer.set()
    bench.wait_until(lambda: bench.num_messages() == 0)
    assert noted_over
    assert bench.stored_keys() == {job.key for job in jobs}
    assert "Connection to broker lost" not in bench.worker.log.read_text()


def test_a_redis_without_memory_is_waited_for(bench: Bench) -> None:
    """It refuses acknowledgements: an outage like any other, also at the start and at the end.

    A message that was being taken may be lost, and one that was done may stay: as in any outage.
    """
    waiting = "Redis has no memory"
    jobs = bench.send_jobs([5] * 60)

    def take_a_while(_key: str, _attempt: int) -> None:
        Event().wait(0.1)

    bench.server.behaviour = take_a_while
    bench.wait_until(lambda: len(bench.stored_keys()) >= 5)
    with bench.redis.client() as client:
        client.config_set("maxmemory", 1)
        try:
            bench.wait_until(lambda: "maxmemory" in bench.worker.log.read_text())
            bench.worker.stop()
            assert bench.worker.wait(0) == 0
            assert len(bench.stored_keys()) < 60
            bench.worker.log.unlink()
            left = client.llen(queue_name(SPEC.digest))
            bench.worker = bench.start_worker()
            bench.wait_until(lambda: waiting in bench.worker.log.read_text())
            num_clients = len(client.client_list())
            bench.wait_until(lambda: bench.worker.log.read_text().count(waiting) > 2)
            # No try leaves a connection behind.
            assert len(client.client_list()) <= num_clients
            # What it took now would be lost: such a Redis does not note who has it.
            assert client.llen(queue_name(SPEC.digest)) == left > 0
            assert "Traceback" not in bench.worker.log.read_text()
        finally:
            client.config_set("maxmemory", 0)
    # As reconcile does.
    bench.send_jobs([5] * 60)
    bench.wait_until(lambda: len(bench.stored_keys()) == 60)
    bench.worker.stop()
    assert_stored_once(bench, jobs)


def test_an_unpatched_server_is_refused(tmp_path: Path, local_redis: LocalRedis) -> None:
    """Before any job is taken, with a sentence and code 3."""
    with StandInServer(tmp_path) as server:
        server.server_info = lambda: {"internal_states": [{}]}  # type: ignore[method-assign]
        program = str(Path(sys.executable).parent / "statetap-worker")
        folders = [f"--dumps={tmp_path}", f"--runs={tmp_path}"]
        ended = subprocess.run(
            [program, f"--server={server.url}", *folders],
            env=os.environ | {"STATETAP_REDIS": local_redis.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 3
    assert ended.stderr == (
        f"statetap-worker: the server at {server.url} captures nothing; start it with "
        "statetap-sglang\n"
    )
