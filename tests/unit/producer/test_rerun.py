"""Dead letters get another chance, against a real Redis."""

import json
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import StatetapError, queue_name
from statetap_local.made_runs import MADE_SPEC as SPEC
from statetap_local.made_runs import made_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing.enqueue import EnqueueOutcome, enqueue
from statetap_producer.queueing.reconcile import reconcile
from statetap_producer.queueing.rerun import RerunOutcome, rerun
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder

from .conftest import give_up, prompts_of, store


@pytest.fixture
def dead(tmp_path: Path) -> RunFolder:
    """Six prompts: one stored, one pending, four dead for three reasons."""
    run = made_run(tmp_path / "made", 5, 6, 7, 8, 9, 10)
    prompts = prompts_of(run)
    store(run, prompts[0])
    for number, kind in ((2, "mismatch"), (3, "mismatch"), (4, "worker-lost"), (5, "too-long")):
        give_up(run, prompts[number].key, kind)
    # A letter of a sample that was stored after all is no dead letter.
    give_up(run, prompts[0].key, "mismatch")
    return run


def key(run: RunFolder, number: int) -> str:
    return prompts_of(run)[number].key


def queued(redis_server: LocalRedis) -> list[tuple[str, int]]:
    """Key and attempt of the messages in the queue, oldest first."""
    with redis_server.client() as client:
        raw: Any = client.lrange(queue_name(SPEC.digest), 0, -1)
    jobs = [json.loads(json.loads(message)["body"])[0][0] for message in reversed(raw)]
    return [(job["key"], job["attempt"]) for job in jobs]


def counts(run: RunFolder) -> tuple[int, int, int]:
    """Stored, dead, pending, by the files alone."""
    numbers = RunState(run).numbers()
    return numbers.stored, numbers.dead, numbers.pending


def again(run: RunFolder, redis_server: LocalRedis, **chosen: Any) -> RerunOutcome:
    return rerun(run, redis_server.url, window=0, **chosen)


def test_all_dead_letters_become_pending(redis_server: LocalRedis, dead: RunFolder) -> None:
    """They are enqueued with the next attempt; what was pending before is left to enqueue."""
    assert counts(dead) == (1, 4, 1)
    outcome = again(dead, redis_server)
    assert outcome == RerunOutcome({"mismatch": 2, "worker-lost": 1, "too-long": 1}, 4, 0)
    assert queued(redis_server) == [(key(dead, number), 2) for number in (2, 3, 4, 5)]
    assert counts(dead) == (1, 0, 5)


def test_twice_is_harmless(redis_server: LocalRedis, dead: RunFolder) -> None:
    """The second one finds nobody dead, and queues nothing."""
    again(dead, redis_server)
    assert again(dead, redis_server) == RerunOutcome({}, 0, 0)
    assert len(queued(redis_server)) == 4
    assert len((dead.path / "reruns.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("reasons", "numbers", "expected"),
    [
        (["mismatch"], [], [2, 3]),
        (["too-long", "worker-lost"], [], [4, 5]),
        ([], [3], [3]),
        (["too-long"], [3, 4], [3, 4, 5]),
    ],
)
def test_some_are_chosen(
    redis_server: LocalRedis,
    dead: RunFolder,
    reasons: list[str],
    numbers: list[int],
    expected: list[int],
) -> None:
    """By reason, by key or by both; the others stay dead."""
    samples = [key(dead, number) for number in numbers]
    outcome = again(dead, redis_server, reasons=reasons, samples=samples)
    assert [name for name, _ in queued(redis_server)] == [key(dead, number) for number in expected]
    assert (outcome.num_enqueued, outcome.num_dead) == (len(expected), 4 - len(expected))
    assert counts(dead) == (1, 4 - len(expected), 1 + len(expected))


def test_a_sample_dies_again(redis_server: LocalRedis, dead: RunFolder) -> None:
    """Another letter counts, however the clocks of the workers go; the attempts count on."""
    again(dead, redis_server, samples=[key(dead, 2)])
    give_up(dead, key(dead, 2), "mismatch")
    assert counts(dead) == (1, 4, 1)
    with redis_server.client() as client:
        client.flushall()
    again(dead, redis_server, samples=[key(dead, 2)])
    assert queued(redis_server) == [(key(dead, 2), 3)]
    assert counts(dead) == (1, 3, 2)


def test_a_wiped_redis_changes_nothing(redis_server: LocalRedis, dead: RunFolder) -> None:
    """The pardon is in the run folder: enqueue and reconcile go by it."""
    again(dead, redis_server)
    with redis_server.client() as client:
        client.flushall()
    assert reconcile(dead, redis_server.url, window=2).num_enqueued == 2
    assert enqueue(dead, redis_server.url, window=0) == EnqueueOutcome(3, 1, 0, 2)
    assert dict(queued(redis_server)) == {key(dead, n): 1 if n == 1 else 2 for n in (1, 2, 3, 4, 5)}


def test_a_dead_letter_that_is_queued_is_pardoned_only(
    redis_server: LocalRedis, dead: RunFolder
) -> None:
    """Its message may have been queued twice and still be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statetap_producer.queueing.settled.Settled.is_dead", lambda *_: False)
        enqueue(dead, redis_server.url, window=0)
    assert again(dead, redis_server) == RerunOutcome(
        {"mismatch": 2, "worker-lost": 1, "too-long": 1}, 0, 0
    )
    assert len(queued(redis_server)) == 5


def test_an_unknown_reason_is_answered_with_those_there_are(
    redis_server: LocalRedis, dead: RunFolder
) -> None:
    """Nothing is pardoned then."""
    with pytest.raises(StatetapError) as caught:
        again(dead, redis_server, reasons=["mismatch", "bad-luck"])
    assert (caught.value.kind, caught.value.exit_code) == ("reason-unknown", 2)
    assert caught.value.message.endswith("'bad-luck'; reasons are: mismatch, too-long, worker-lost")
    assert counts(dead) == (1, 4, 1)


def test_a_sample_that_is_not_dead_is_answered_with_those_that_are(
    redis_server: LocalRedis, dead: RunFolder
) -> None:
    """Stored, pending or never heard of."""
    for sample in (key(dead, 0), key(dead, 1), "ab" * 16):
        with pytest.raises(StatetapError) as caught:
            again(dead, redis_server, samples=[sample])
        assert (caught.value.kind, caught.value.exit_code) == ("sample-not-dead", 2)
        assert caught.value.message.endswith(
            ", ".join(sorted(key(dead, number) for number in (2, 3, 4, 5)))
        )


def test_nobody_dead(redis_server: LocalRedis, tmp_path: Path) -> None:
    """Then there is nothing to do, and no reason to name."""
    run = made_run(tmp_path / "made", 5)
    assert again(run, redis_server) == RerunOutcome({}, 0, 0)
    assert not (run.path / "reruns.jsonl").exists()
    with pytest.raises(StatetapError, match="none, for no sample is dead"):
        again(run, redis_server, reasons=["mismatch"])


def test_a_pardon_outlives_a_full_redis(redis_server: LocalRedis, dead: RunFolder) -> None:
    """What could not be enqueued is pending, and reconcile finds it."""
    with redis_server.client() as client:
        real = client.config_get("maxmemory")["maxmemory"]
        with pytest.MonkeyPatch.context() as patch:

            def fill(*_: object) -> None:
                client.config_set("maxmemory", 1)

            patch.setattr("statetap_producer.queueing.feed.QueueFeed.add", fill)
            patch.setattr("statetap_producer.queueing.feed.QueueFeed.flush", push_one)
            try:
                with pytest.raises(StatetapError) as caught:
                    again(dead, redis_server)
            finally:
                client.config_set("maxmemory", real)
    assert caught.value.kind == "redis-full"
    assert counts(dead) == (1, 0, 5)
    assert reconcile(dead, redis_server.url, window=0).num_enqueued == 5


def push_one(feed: Any) -> None:
    feed._broker.push(feed._queue, [b"x"])
