"""What the producer makes of announcements, which a worker's own code puts into a real Redis."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from statetap_contract import DeadLetter, StatetapError
from statetap_contract.announcement import Announcement, announced_key, pack_letters, pack_samples
from statetap_local.services import LocalRedis
from statetap_producer.queueing import announcements as announcements_module
from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.broker import Broker
from statetap_producer.run.run_folder import RunFolder
from statetap_worker.announcing.notice_board import NoticeBoard, Speaker

LETTER = DeadLetter("ab" * 16, "mismatch", "why", 6, "http://s", "2026-01-01T00:00:00Z")


def key(number: int) -> str:
    return f"{number:032x}"


class Worker:
    """A worker on another machine, as far as Redis shows it."""

    def __init__(self, client: redis.Redis, run: RunFolder, name: str) -> None:
        self.board = NoticeBoard(client, f"place-of-{name}", Speaker(name, "host", "/runs"))
        self.run = run.name
        self.published: Announcement | None = self.board.blank("e1")

    def begin(self, epoch: str) -> None:
        self.published = self.board.blank(epoch)

    def tell(self, *numbers: int, letters: tuple[DeadLetter, ...] = ()) -> None:
        """Announces samples of ``number`` tokens whose keys are their numbers."""
        assert self.published is not None
        keys = "".join(map(key, numbers))
        self.published = self.board.add(
            self.run,
            self.published,
            [pack_samples(keys, array("I", numbers))] if numbers else [],
            [pack_letters(letters)] if letters else [],
            len(numbers),
            is_complete=True,
        )
        assert self.published is not None


class Scene:
    """A planned run, and a Redis in which workers announce."""

    def __init__(self, run: RunFolder, local_redis: LocalRedis) -> None:
        self.run = run
        self.redis = local_redis
        self.client = local_redis.client()

    def worker(self, name: str) -> Worker:
        return Worker(self.client, self.run, name)

    def producer(self) -> Announcements:
        return Announcements(self.run, Broker(self.redis.url))


@pytest.fixture
def scene(run: RunFolder, redis_server: LocalRedis) -> Iterator[Scene]:
    scene = Scene(run, redis_server)
    yield scene
    scene.client.close()


def keys(*numbers: int) -> set[str]:
    return set(map(key, numbers))


def test_nobody_has_announced_anything(scene: Scene) -> None:
    """An empty Redis and a run without workers are no fault."""
    heard = scene.producer()
    heard.refresh(set())
    assert (set(heard.keys), heard.letters, heard.workers, heard.silent) == (set(), {}, [], [])
    assert not (scene.run.path / "workers.json").exists()


def test_samples_of_all_workers_are_known(scene: Scene) -> None:
    """Each key once; tokens and bytes are those that the run's own files do not hold."""
    scene.worker("a").tell(1, 2, 3)
    scene.worker("b").tell(3, 4)
    heard = scene.producer()
    heard.refresh(keys(1, 9))
    assert heard.keys == keys(1, 2, 3, 4)
    spec = scene.run.read_record().inputs.spec
    assert heard.num_tokens == 2 + 3 + 4
    assert heard.num_bytes == 9 * (spec.row_bytes + 4 + 1)
    assert [(worker.name, worker.host, worker.num_samples) for worker in heard.workers] == [
        ("a", "host", 3),
        ("b", "host", 2),
    ]
    assert all(0 <= worker.heard_s_ago < 60 for worker in heard.workers)
    assert heard.silent == []


def test_only_news_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads the batches that were added since the last one, in bounded pieces."""
    monkeypatch.setattr(announcements_module, "_READ_BATCHES", 2)
    worker, heard = scene.worker("a"), scene.producer()
    for number in range(1, 6):
        worker.tell(number)
    heard.refresh(set())
    assert heard.keys == keys(1, 2, 3, 4, 5)
    worker.tell(6, letters=(LETTER,))
    scene.client.config_resetstat()
    heard.refresh(set())
    assert heard.keys == keys(1, 2, 3, 4, 5, 6)
    calls = scene.client.info("commandstats")["cmdstat_lrange"]["calls"]
    heard.refresh(set())
    assert calls == 2
    assert scene.client.info("commandstats")["cmdstat_lrange"]["calls"] == calls


def test_letters_are_collected_by_key(scene: Scene) -> None:
    """In the order of each ledger, from all workers."""
    again = replace(LETTER, kind="worker-lost")
    other = replace(LETTER, key="cd" * 16)
    scene.worker("a").tell(letters=(LETTER, again))
    scene.worker("b").tell(letters=(other,))
    heard = scene.producer()
    heard.refresh(set())
    assert heard.letters == {LETTER.key: [LETTER, again], other.key: [other]}


def test_what_is_taken_back_is_forgotten(scene: Scene) -> None:
    """A new epoch replaces the old one; the other worker's samples stay."""
    first, second, heard = scene.worker("a"), scene.worker("b"), scene.producer()
    first.tell(1, 2, letters=(LETTER,))
    second.tell(3)
    heard.refresh(set())
    first.begin("e2")
    first.tell(1)
    heard.refresh(set())
    assert heard.keys == keys(1, 3)
    assert heard.letters == {}
    first.board.withdraw(scene.run.name)
    heard.refresh(set())
    assert heard.keys == keys(3)


def test_an_incomplete_epoch_does_not_count(scene: Scene) -> None:
    """As long as a worker announces anew, the producer goes by what it said before."""
    worker = scene.worker("a")
    worker.tell(1, 2)
    batch = pack_samples(key(1), array("I", [1]))
    worker.board.add(
        scene.run.name, worker.board.blank("e2"), [batch], num_samples=1, is_complete=False
    )
    heard = scene.producer()
    heard.refresh(set())
    assert heard.keys == keys(1, 2)


def test_other_runs_do_not_count(scene: Scene) -> None:
    """A worker may hold samples of many runs."""
    other = scene.worker("a")
    other.run = "another"
    other.tell(1, 2)
    heard = scene.producer()
    heard.refresh(set())
    assert (set(heard.keys), heard.workers) == (set(), [])


def test_a_worker_that_redis_has_forgotten_is_silent(scene: Scene) -> None:
    """Also for a producer that starts afterwards; once it speaks again, it is not."""
    worker = scene.worker("a")
    worker.tell(1, 2)
    scene.worker("b").tell(3)
    scene.producer().refresh(set())
    scene.client.flushall()
    heard = scene.producer()
    heard.refresh(set())
    assert heard.silent == ["a@host:/runs", "b@host:/runs"]
    assert (set(heard.keys), heard.workers, heard.num_tokens) == (set(), [], 0)
    worker.begin("e2")
    worker.tell(1, 2)
    heard.refresh(set())
    assert heard.silent == ["b@host:/runs"]
    assert heard.keys == keys(1, 2)


def test_silence_of_a_worker_whose_samples_are_seen_does_not_matter(scene: Scene) -> None:
    """Its shards lie where the producer looks."""
    scene.worker("a").tell(1, 2)
    scene.producer().refresh(keys(1, 2))
    scene.client.flushall()
    heard = scene.producer()
    heard.refresh(keys(1, 2))
    assert heard.silent == []


def test_a_sample_that_is_stored_while_files_are_looked_at_is_found_later(scene: Scene) -> None:
    """It was announced before it was seen; that makes no hidden disk of a visible one."""
    scene.worker("a").tell(1, 2, 3)
    scene.producer().refresh(keys(1, 2))
    scene.client.flushall()
    heard = scene.producer()
    heard.refresh(keys(1, 2))
    assert heard.silent == ["a@host:/runs"]
    heard.refresh(keys(1, 2, 3))
    assert heard.silent == []


def test_of_many_hidden_samples_few_are_remembered(scene: Scene) -> None:
    """From all over the announcement: a part that was copied over does not stand for the rest."""
    scene.worker("a").tell(*range(1, 1001))
    scene.producer().refresh(set())
    (record,) = json.loads((scene.run.path / "workers.json").read_text())["workers"]
    remembered = [int(name, 16) for name in record["hidden"]]
    assert 16 <= len(remembered) <= 32
    assert remembered[0] < 32
    assert remembered[-1] > 950
    scene.client.flushall()
    heard = scene.producer()
    heard.refresh(keys(*range(1, 900)))
    assert heard.silent == ["a@host:/runs"]


def test_samples_that_went_from_the_files_are_counted_again(scene: Scene) -> None:
    """As when a disk is unmounted."""
    scene.worker("a").tell(5, 7)
    heard = scene.producer()
    for seen, num_tokens in ((keys(5, 7), 0), (keys(5), 7), (set(), 12)):
        heard.refresh(seen)
        assert heard.num_tokens == num_tokens


def test_lists_that_vanish_are_not_half_read(scene: Scene) -> None:
    """A record whose samples are not there is no announcement."""
    scene.worker("a").tell(1)
    scene.producer().refresh(set())
    for name in scene.client.scan_iter("statetap.announced-samples.*"):
        scene.client.delete(name)
    heard = scene.producer()
    heard.refresh(set())
    assert (heard.workers, heard.silent) == ([], ["a@host:/runs"])


@pytest.mark.parametrize("record", [b"", b"no json", b"{}", b"\xff\xfe"])
def test_an_unreadable_record_is_a_silent_worker(scene: Scene, record: bytes) -> None:
    """Another version's, or another program's: nothing is guessed."""
    scene.worker("a").tell(1)
    scene.producer().refresh(set())
    scene.client.hset(announced_key("place-of-a"), scene.run.name, record)
    heard = scene.producer()
    heard.refresh(set())
    assert heard.silent == ["a@host:/runs"]


def test_a_redis_that_goes_away_is_named(scene: Scene) -> None:
    """As ``Broker`` names it."""
    heard = scene.producer()
    scene.client.config_set("requirepass", "another")
    scene.client.client_kill_filter(_type="normal", skipme=True)
    try:
        with pytest.raises(StatetapError) as caught:
            heard.refresh(set())
    finally:
        scene.client.config_set("requirepass", scene.redis.password)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"workers": 1}', '{"workers": [{}]}', '{"workers": [{"hidden": [1]}]}'],
)
def test_a_damaged_list_of_workers_is_named(scene: Scene, text: str) -> None:
    """It is not taken for an empty one."""
    (scene.run.path / "workers.json").write_text(text)
    with pytest.raises(StatetapError, match=r"workers\.json is not a list of workers") as caught:
        scene.producer()
    assert (caught.value.kind, caught.value.exit_code) == ("workers-unreadable", 2)


def test_a_list_that_cannot_be_written_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only read the run's folder still sees what is announced."""

    def refuse(*_: object) -> None:
        raise PermissionError

    scene.worker("a").tell(1)
    heard = scene.producer()
    monkeypatch.setattr(Path, "write_text", refuse)
    heard.refresh(set())
    assert heard.keys == keys(1)
    assert [file.name for file in scene.run.path.iterdir() if "workers" in file.name] == []
