"""Workers, children and servers lost with prompts in hand, and workers that are stopped."""

import os
import signal
import threading
import time
from threading import Event
from typing import Any

import psutil
import pytest
from statetap_contract import dump_name
from statetap_local.service import Service
from statetap_worker.failing.retry import MOST_LOSSES
from statetap_worker.failing.sample_leases import lease_key
from statetap_worker.settings import WORKERS_FOLDER

from .bench import Bench, assert_stored_once, job_of


def kill(worker: Service) -> None:
    """The parent alone, with -9; its children follow."""
    family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children()]
    family[0].send_signal(signal.SIGKILL)
    worker.wait(30)
    _, alive = psutil.wait_procs(family[1:], 30)
    assert not alive


def wait_until_children_know(bench: Bench) -> None:
    """Until each child has heard that the worker is to stop: from then on it blames no prompt.

    Two signals of one kind at once would be one.
    """
    notes = [bench.runs / WORKERS_FOLDER / f"w-{slot:02d}" for slot in range(2)]
    bench.wait_until(lambda: not any(note.read_text().strip() for note in notes))


def failed_tries(bench: Bench) -> list[str]:
    folder = bench.runs / "a-run" / "tries"
    return [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_what_a_killed_worker_held_is_given_back_at_once(bench: Bench) -> None:
    """By its successor of the same name, long before the visibility timeout."""
    both_asked, go_on = Event(), Event()

    def hold(_key: str, attempt: int) -> None:
        if len(bench.server.asked) == 2:
            both_asked.set()
        if attempt == 1:
            go_on.wait(30)

    bench.server.behaviour = hold
    jobs = bench.send_jobs([25, 26, 27, 28])
    assert both_asked.wait(60)
    kill(bench.worker)
    go_on.set()
    bench.worker = bench.start_worker()
    bench.wait_until(lambda: len(bench.stored_keys()) == 4 and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert bench.dead_letters() == []
    # The two in hand, and no other, were counted.
    assert len(failed_tries(bench)) == 2


def test_a_worker_outlives_its_connections(bench: Bench) -> None:
    """What it held goes back at once, and the same process goes on."""

    def take_a_while(_key: str, _attempt: int) -> None:
        Event().wait(0.2)

    bench.server.behaviour = take_a_while
    jobs = bench.send_jobs([5] * 60)
    pid = bench.worker.pid
    with bench.redis.client() as client:
        for num_stored in (5, 15, 25, 35):
            bench.wait_until(lambda: len(bench.stored_keys()) >= num_stored)  # noqa: B023
            client.client_kill_filter(_type="normal", skipme=True)
    bench.wait_until(lambda: len(bench.stored_keys()) == 60 and bench.num_messages() == 0)
    assert bench.worker.is_running
    assert bench.worker.pid == pid
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert bench.dead_letters() == []


def test_the_dump_of_a_killed_process_goes_with_it(bench: Bench) -> None:
    """Also when its message is lost, so that nobody asks for the prompt again."""
    (job,) = [job_of(0, 25)]
    asked = Event()

    def hold(_key: str, _attempt: int) -> None:
        asked.set()
        Event().wait(5)

    bench.server.behaviour = hold
    bench.send(job.to_message())
    assert asked.wait(60)
    left = bench.server.dumps / dump_name(job.key)
    left.write_bytes(b"published")
    with bench.redis.client() as client:
        client.flushall()
    kill(bench.worker)
    bench.worker = bench.start_worker()
    bench.worker.wait_until(lambda: not left.exists(), 60)


def test_a_prompt_that_kills_the_whole_worker_becomes_a_dead_letter(bench: Bench) -> None:
    """Nobody in the worker outlives it to count, as when memory runs out in a container."""
    poison, good = job_of(0, 25), job_of(1, 26)
    was_asked = Event()

    def answer(key: str, _attempt: int) -> None:
        if key == poison.key:
            was_asked.set()
            Event().wait(2)

    bench.server.behaviour = answer
    bench.send(poison.to_message())
    for _ in range(MOST_LOSSES):
        assert was_asked.wait(60)
        kill(bench.worker)
        was_asked.clear()
        bench.worker = bench.start_worker()
    bench.send(good.to_message())
    bench.wait_until(lambda: len(bench.dead_letters()) == 1 and bench.num_messages() == 0)
    (letter,) = bench.dead_letters()
    assert (letter.key, letter.kind, letter.attempts) == (poison.key, "worker-lost", MOST_LOSSES)
    assert bench.stored_keys() == {good.key}
    assert bench.server.asked[poison.key] == MOST_LOSSES


def test_a_prompt_that_kills_its_server_becomes_a_dead_letter(bench: Bench) -> None:
    """Whoever was in flight with it is tried again alone, and is not blamed."""
    poison, *others = jobs = [job_of(number, 30 + number) for number in range(5)]
    lock = threading.Lock()
    in_flight: set[str] = set()
    companies: list[set[str]] = []
    is_dead = Event()

    def answer(key: str, _attempt: int) -> None:
        with lock:
            in_flight.add(key)
        try:
            if key == poison.key:
                Event().wait(0.5)  # for company
                with lock:
                    companies.append(set(in_flight))
                is_dead.set()
                threading.Timer(2, is_dead.clear).start()
            elif poison.key in in_flight:
                is_dead.wait(1)
            if is_dead.is_set():
                raise ConnectionAbortedError("the server died")
        finally:
            with lock:
                in_flight.discard(key)

    shake_hands = bench.server.server_info

    def server_info() -> dict[str, Any]:
        if is_dead.is_set():
            raise ConnectionAbortedError("the server is away")
        return shake_hands()

    bench.server.behaviour = answer
    bench.server.server_info = server_info  # type: ignore[method-assign]
    for job in jobs:
        bench.send(job.to_message())
    bench.wait_until(lambda: len(bench.dead_letters()) == 1 and bench.num_messages() == 0)
    (letter,) = bench.dead_letters()
    assert (letter.key, letter.kind, letter.attempts) == (poison.key, "server-lost", MOST_LOSSES)
    assert len(companies) == MOST_LOSSES
    assert companies[1:] == [{poison.key}] * (MOST_LOSSES - 1)
    bench.worker.stop()
    assert_stored_once(bench, others)


def test_a_stop_of_the_whole_group_is_one_of_the_worker(bench: Bench) -> None:
    """As systemd sends it: what the server has is finished, and nothing is counted."""
    asked, go_on = Event(), Event()

    def hold(_key: str, _attempt: int) -> None:
        if len(bench.server.asked) == 2:
            asked.set()
        go_on.wait(60)

    bench.server.behaviour = hold
    bench.send_jobs([10, 11])
    assert asked.wait(60)
    for process in (*bench.children(), psutil.Process(bench.worker.pid)):
        process.terminate()
    time.sleep(1)
    go_on.set()
    assert bench.worker.wait(30) == 0
    assert bench.stored_keys() == set(bench.server.asked)
    assert bench.num_messages() == 0
    assert failed_tries(bench) == []


def test_a_kill_after_a_stop_blames_nobody(bench: Bench) -> None:
    """As ``docker stop`` does when a prompt takes longer than its patience."""
    was_asked = Event()

    def answer(_key: str, attempt: int) -> None:
        was_asked.set()
        if attempt <= MOST_LOSSES:
            Event().wait(3)

    bench.server.behaviour = answer
    (job,) = jobs = bench.send_jobs([25])
    for _ in range(MOST_LOSSES):
        assert was_asked.wait(60)
        psutil.Process(bench.worker.pid).terminate()
        bench.worker.wait_until(lambda: len(bench.children()) == 1, 30)
        kill(bench.worker)
        was_asked.clear()
        bench.worker = bench.start_worker()
    bench.wait_until(lambda: bench.stored_keys() == {job.key} and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert failed_tries(bench) == []
    assert bench.dead_letters() == []


def test_the_first_stop_finishes_what_the_server_has(bench: Bench) -> None:
    """It is stored and acknowledged; what waits in the queue stays there."""
    asked, go_on = Event(), Event()

    def hold(_key: str, _attempt: int) -> None:
        asked.set()
        go_on.wait(60)

    bench.server.behaviour = hold
    bench.send_jobs([10] * 8)
    assert asked.wait(60)
    bench.wait_until(lambda: len(bench.server.asked) == 2)
    psutil.Process(bench.worker.pid).terminate()
    wait_until_children_know(bench)
    go_on.set()
    assert bench.worker.wait(30) == 0
    assert bench.stored_keys() == set(bench.server.asked)
    assert bench.num_messages() == 8 - len(bench.server.asked)
    assert failed_tries(bench) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_second_stop_gives_back_what_the_server_has(bench: Bench, how: signal.Signals) -> None:
    """At once; it counts as no try, and the next worker stores it."""
    go_on = Event()

    def hold(_key: str, attempt: int) -> None:
        if attempt == 1:
            go_on.wait(60)

    bench.server.behaviour = hold
    jobs = bench.send_jobs([10, 11])
    bench.wait_until(lambda: len(bench.server.asked) == 2)
    os.kill(bench.worker.pid, how)
    wait_until_children_know(bench)
    assert bench.worker.is_running
    os.kill(bench.worker.pid, how)
    assert bench.worker.wait(30) == 0
    assert bench.num_messages() == 2
    assert bench.stored_keys() == set()
    go_on.set()
    bench.worker = bench.start_worker()
    bench.wait_until(lambda: len(bench.stored_keys()) == 2 and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert failed_tries(bench) == []
    assert list(bench.server.dumps.iterdir()) == []


def test_a_stop_does_not_wait_for_a_server_that_is_away(bench: Bench) -> None:
    """The prompts that wait for it, which they would for ten minutes, go back to the queue."""
    bench.wait_until(lambda: len(bench.children()) == 2)
    bench.server.server_info = be_away  # type: ignore[method-assign]
    bench.send_jobs([10] * 4)
    waiting = 'logger=statetap_worker.asking.server event="waiting for the server"'
    bench.wait_until(lambda: bench.worker.log.read_text().count(waiting) == 2)
    psutil.Process(bench.worker.pid).terminate()
    assert bench.worker.wait(60) == 0
    assert bench.num_messages() == 4
    assert failed_tries(bench) == []


def be_away() -> dict[str, Any]:
    raise ConnectionAbortedError("the server is away")


def test_a_death_is_counted_once(bench: Bench) -> None:
    """The successor of a killed process clears its note; one that is killed idle blames nobody."""
    asked = Event()

    def hold(_key: str, _attempt: int) -> None:
        asked.set()
        Event().wait(5)

    bench.server.behaviour = hold
    bench.send_jobs([25])
    assert asked.wait(60)
    with bench.redis.client() as client:
        client.flushall()
    for _ in range(2):
        kill(bench.worker)
        bench.worker = bench.start_worker()
        bench.wait_until(lambda: len(failed_tries(bench)) >= 1)
    # Each of two children begins one, so both of them have looked at their notes.
    both = threading.Barrier(2)

    def meet(_key: str, _attempt: int) -> None:
        both.wait(60)

    bench.server.behaviour = meet
    jobs = [job_of(number, 30 + number) for number in range(2)]
    for job in jobs:
        bench.send(job.to_message())
    bench.wait_until(lambda: len(bench.stored_keys()) == 2)
    assert len(failed_tries(bench)) == 1
    bench.worker.stop()
    assert_stored_once(bench, jobs)


def test_a_prompt_that_is_delivered_twice_is_asked_for_and_stored_once(bench: Bench) -> None:
    """The second process waits for the first, whatever Redis forgets, and finds the sample."""
    asked, both_asked, go_on = Event(), Event(), Event()

    def hold(_key: str, attempt: int) -> None:
        if attempt == 2:
            both_asked.set()
        asked.set()
        go_on.wait(30)

    bench.server.behaviour = hold
    (job,) = jobs = [job_of(0, 25)]
    bench.send(job.to_message())
    assert asked.wait(60)
    with bench.redis.client() as client:
        client.delete(lease_key(job.key))
    bench.send(job.to_message())
    # It must not come, which nobody announces.
    both_asked.wait(3)
    go_on.set()
    bench.wait_until(lambda: len(bench.stored_keys()) == 1 and bench.num_messages() == 0)
    bench.worker.stop()
    assert_stored_once(bench, jobs)
    assert bench.server.asked == {job.key: 1}


def test_a_second_worker_of_the_same_name_is_refused(bench: Bench) -> None:
    """With one sentence and code 3; the first one goes on."""
    bench.wait_until(lambda: len(bench.children()) == 2)
    bench._log = bench._log.with_name("second.log")
    second = bench.start_worker()
    assert second.wait(60) == 3
    assert "give each worker of a folder a --name of its own" in second.log.read_text()
    (job,) = bench.send_jobs([10])
    bench.wait_until(lambda: bench.stored_keys() == {job.key})
