"""What a worker announces of its disk, in a real Redis."""

import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import redis
from statetap_contract import CaptureSpec, DeadLetter
from statetap_contract.announcement import (
    PLACES_KEY,
    Announcement,
    Presence,
    announced_key,
    announced_letters_key,
    announced_samples_key,
    presence_key,
    serving_key,
    speaker_key,
    unpack_letters,
    unpack_samples,
)
from statetap_local.services import LocalRedis
from statetap_store import Provenance, ShardSet
from statetap_worker.announcing import announced_run
from statetap_worker.announcing.announcer import Announcer
from statetap_worker.place import place_of
from statetap_worker.settings import WorkerSettings
from structlog.testing import capture_logs

SPEC = CaptureSpec("m", "r", (1, 3), "post", 8, "float32")
LETTER = DeadLetter("ab" * 16, "mismatch", "why", 6, "http://s", "2026-01-01T00:00:00Z")


class Disk:
    """A worker's folder of runs and what Redis says of it."""

    def __init__(self, runs: Path, local_redis: LocalRedis) -> None:
        self.runs = runs
        self.runs.mkdir()
        self.client = local_redis.client()
        self.settings = WorkerSettings("http://s", local_redis.url, runs, runs, "w", 2, 1 << 20)

    def store(self, run: str, *numbers: int, worker: str = "w-00") -> None:
        """Stores samples of ``number`` tokens whose keys are their numbers."""
        folder = self.runs / run / "shards"
        folder.parent.mkdir(exist_ok=True)
        provenance = Provenance(run, worker, "here", "0.5.23", "0.1.0", (0, 2))
        with ShardSet(folder, worker, 1 << 20, SPEC, provenance) as shards:
            for number in numbers:
                states = np.full((number, SPEC.row_width), number, np.float32)
                ids, mask = np.arange(number, dtype=np.int32), np.ones(number, np.uint8)
                shards.append(f"{number:032x}", ids, mask, states)
            shards.commit()

    def bury(self, run: str, text: str, name: str = "w-00") -> None:
        folder = self.runs / run / "ledger"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.jsonl").open("a") as stream:
            stream.write(text)

    def place(self) -> str:
        """The only place there is."""
        (place,) = self.places()
        return place

    def places(self) -> list[str]:
        return [member.decode() for member in cast(set[bytes], self.client.smembers(PLACES_KEY))]

    def record(self, run: str) -> Announcement | None:
        answers = [self.client.hget(announced_key(place), run) for place in self.places()]
        data = [cast(bytes, answer) for answer in answers if answer is not None]
        return Announcement.decode(data[0]) if data else None

    def batches(self, key: str) -> list[bytes]:
        return cast(list[bytes], self.client.lrange(key, 0, -1))

    def samples(self, run: str) -> list[tuple[int, int]]:
        """Number and tokens of each announced sample, sorted; no more than the record promises."""
        record = self.record(run)
        assert record is not None
        batches = self.batches(announced_samples_key(self.place(), run, record.epoch))
        assert len(batches) == record.num_sample_batches
        found = [(int(key, 16), size) for batch in batches for key, size in unpack_samples(batch)]
        assert len(found) == record.num_samples
        return sorted(found)

    def letters(self, run: str) -> list[DeadLetter]:
        record = self.record(run)
        assert record is not None
        batches = self.batches(announced_letters_key(self.place(), run, record.epoch))
        assert len(batches) == record.num_letter_batches
        return [letter for batch in batches for letter in unpack_letters(batch)]

    def num_lists(self) -> int:
        return sum(self.client.type(key) == b"list" for key in self.client.scan_iter())


@pytest.fixture
def disk(tmp_path: Path, local_redis: LocalRedis) -> Iterator[Disk]:
    disk = Disk(tmp_path / "runs", local_redis)
    disk.client.flushall()
    yield disk
    disk.client.close()


@pytest.fixture
def announcer(disk: Disk) -> Iterator[Announcer]:
    """Not started: the test looks."""
    announcer = Announcer(disk.settings, SPEC.digest)
    yield announcer
    announcer.close()


def look_twice(announcer: Announcer) -> None:
    """The last sample of a shard counts at the second look."""
    announcer.look()
    announcer.look()


def test_all_durable_samples_are_announced(disk: Disk, announcer: Announcer) -> None:
    """Whoever stored them, each with its tokens, run by run."""
    disk.store("a", 1, 2, 3)
    disk.store("a", 4, 5, worker="gone-07")
    disk.store("b", 6)
    look_twice(announcer)
    assert disk.samples("a") == [(number, number) for number in (1, 2, 3, 4, 5)]
    assert disk.samples("b") == [(6, 6)]
    record = disk.record("a")
    assert record is not None
    assert (record.worker, record.folder) == ("w", str(disk.runs))
    assert record.host
    assert abs(record.time_s - disk.client.time()[0]) < 60


def test_new_samples_are_added(disk: Disk, announcer: Announcer) -> None:
    """To the same lists: nothing is announced a second time."""
    disk.store("a", 1, 2)
    look_twice(announcer)
    before = disk.record("a")
    disk.store("a", 3)
    disk.store("a", 4, worker="w-01")
    look_twice(announcer)
    after = disk.record("a")
    assert disk.samples("a") == [(number, number) for number in (1, 2, 3, 4)]
    assert before is not None
    assert after is not None
    assert before.epoch == after.epoch


def test_dead_letters_are_announced(disk: Disk, announcer: Announcer) -> None:
    """A line that is still being written comes when it is whole; what is no letter is passed."""
    first, second = json.dumps(LETTER.to_json()), replace(LETTER, kind="worker-lost", key="cd" * 16)
    line = json.dumps(second.to_json())
    disk.bury("a", f"{first}\nno letter\n{line[:20]}")
    announcer.look()
    assert disk.letters("a") == [LETTER]
    disk.bury("a", f"{line[20:]}\n")
    disk.bury("a", f"{first}\n", name="w-parent")
    look_twice(announcer)
    assert disk.letters("a") == [LETTER, second, LETTER]


def test_a_folder_without_samples_is_not_announced(disk: Disk, announcer: Announcer) -> None:
    """Neither is a run that has not begun, nor what is no run."""
    (disk.runs / "empty" / "shards").mkdir(parents=True)
    (disk.runs / ".hidden").mkdir()
    (disk.runs / "notes.txt").touch()
    look_twice(announcer)
    assert disk.client.hlen(announced_key(disk.place())) == 0
    assert disk.num_lists() == 0


def test_what_redis_lost_is_announced_again(
    disk: Disk, announcer: Announcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing new to say, and with something new to say."""
    monkeypatch.setattr(announced_run, "_HEARTBEAT_S", 0.0)
    disk.store("a", 1, 2)
    look_twice(announcer)
    disk.client.flushall()
    for _ in range(3):
        announcer.look()
    assert disk.samples("a") == [(1, 1), (2, 2)]
    monkeypatch.undo()
    disk.client.flushall()
    disk.store("a", 3)
    for _ in range(4):
        announcer.look()
    assert disk.samples("a") == [(1, 1), (2, 2), (3, 3)]


def test_an_older_state_of_redis_is_noticed(
    disk: Disk, announcer: Announcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it comes back from a snapshot: the lists are shorter than they were left."""
    disk.store("a", 1, 2)
    look_twice(announcer)
    record = disk.record("a")
    assert record is not None
    monkeypatch.setattr(announced_run, "_HEARTBEAT_S", 0.0)
    disk.client.rpop(announced_samples_key(disk.place(), "a", record.epoch))
    for _ in range(3):
        announcer.look()
    assert disk.samples("a") == [(1, 1), (2, 2)]
    assert disk.num_lists() == 1


def test_what_is_gone_from_disk_is_taken_back(disk: Disk, announcer: Announcer) -> None:
    """A shard, a ledger, a whole run; no list stays behind."""
    disk.store("a", 1)
    disk.store("a", 2, worker="w-01")
    disk.bury("a", json.dumps(LETTER.to_json()) + "\n")
    disk.store("b", 3)
    look_twice(announcer)
    assert disk.num_lists() == 3
    (disk.runs / "a" / "shards" / "w-01-00001.h5").unlink()
    (disk.runs / "a" / "ledger" / "w-00.jsonl").unlink()
    (disk.runs / "b").rename(disk.runs.parent / "elsewhere")
    for _ in range(3):
        announcer.look()
    assert disk.samples("a") == [(1, 1)]
    assert disk.letters("a") == []
    assert disk.record("b") is None
    (disk.runs / "a" / "shards" / "w-00-00001.h5").unlink()
    for _ in range(2):
        announcer.look()
    assert disk.record("a") is None
    assert disk.num_lists() == 0


def test_a_run_that_went_while_no_worker_ran_is_taken_back(disk: Disk) -> None:
    """The next worker on the disk speaks for it."""
    disk.store("a", 1)
    disk.store("b", 2)
    for run in (None, "b"):
        announcer = Announcer(disk.settings, SPEC.digest)
        look_twice(announcer)
        announcer.close()
        if run is None:
            (disk.runs / "b").rename(disk.runs.parent / "elsewhere")
    assert disk.samples("a") == [(1, 1)]
    assert disk.record("b") is None
    assert disk.num_lists() == 1


def test_of_workers_that_share_a_folder_one_speaks(disk: Disk) -> None:
    """When it ends, another one takes over, and the place is the same."""
    disk.store("a", 1, 2)
    announcer = Announcer(disk.settings, SPEC.digest)
    other = Announcer(replace(disk.settings, name="v"), SPEC.digest)
    look_twice(announcer)
    look_twice(other)
    place, record = disk.place(), disk.record("a")
    assert record is not None
    assert record.worker == "w"
    announcer.close()
    look_twice(other)
    other.close()
    record = disk.record("a")
    assert record is not None
    assert (disk.place(), record.worker) == (place, "v")
    assert disk.samples("a") == [(1, 1), (2, 2)]


def test_who_lost_the_word_is_quiet_and_begins_again(disk: Disk, announcer: Announcer) -> None:
    """As after a pause in which another worker spoke: what Redis holds now is not known."""
    disk.store("a", 1)
    look_twice(announcer)
    before = disk.record("a")
    disk.client.set(speaker_key(disk.place()), "another", px=200)
    disk.store("a", 2)
    look_twice(announcer)
    assert disk.record("a") == before
    while disk.client.exists(speaker_key(disk.place())):
        time.sleep(0.01)
    look_twice(announcer)
    after = disk.record("a")
    assert before is not None
    assert after is not None
    assert before.epoch != after.epoch
    assert disk.samples("a") == [(1, 1), (2, 2)]
    assert disk.num_lists() == 1


def test_a_copy_of_a_folder_is_another_place(disk: Disk, announcer: Announcer) -> None:
    """A disk that was copied with everything on it speaks for itself."""
    disk.store("a", 1)
    look_twice(announcer)
    copy = disk.runs.parent / "copy"
    copy.mkdir()
    (file,) = (file for file in disk.runs.iterdir() if file.is_file())
    (copy / file.name).write_bytes(file.read_bytes())
    (copy / "a" / "shards").mkdir(parents=True)
    shard = "a/shards/w-00-00001.h5"
    (copy / shard).write_bytes((disk.runs / shard).read_bytes())
    other = Announcer(replace(disk.settings, runs=copy), SPEC.digest)
    look_twice(other)
    other.close()
    assert disk.client.scard(PLACES_KEY) == 2


def test_an_unreadable_shard_hides_no_other(disk: Disk, announcer: Announcer) -> None:
    """It is named once, and what was announced of it is taken back."""
    disk.store("a", 1)
    disk.store("a", 2, worker="w-01")
    look_twice(announcer)
    shard = disk.runs / "a" / "shards" / "w-01-00001.h5"
    with capture_logs() as events:
        os.truncate(shard, 1000)
        for _ in range(4):
            announcer.look()
    assert disk.samples("a") == [(1, 1)]
    assert 1 <= len([event for event in events if "w-01-00001.h5" in event["why"]]) <= 2


def test_redis_that_is_gone_is_waited_for(disk: Disk, local_redis: LocalRedis) -> None:
    """It is logged once, without the password, and nothing is lost meanwhile."""
    disk.store("a", 1)
    announcer = Announcer(disk.settings, SPEC.digest)
    assert announcer._try_look()
    disk.client.config_set("requirepass", "another")
    disk.client.client_kill_filter(_type="normal", skipme=True)
    try:
        disk.store("a", 2)
        with capture_logs() as events:
            for _ in range(3):
                assert not announcer._try_look()
    finally:
        disk.client.config_set("requirepass", local_redis.password)
    assert len(events) == 1
    assert "s3cret" not in str(events)
    for _ in range(2):
        assert announcer._try_look()
    announcer.close()
    assert disk.samples("a") == [(1, 1), (2, 2)]
    assert disk.num_lists() == 1


def test_many_samples_go_in_pieces(
    disk: Disk, announcer: Announcer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record comes with the last piece: until then the producer goes by the one before."""
    monkeypatch.setattr(announced_run, "_SENT_SAMPLES", 2)
    for worker in range(5):
        disk.store("a", 2 * worker + 1, 2 * worker + 2, worker=f"w-{worker:02d}")
    look_twice(announcer)
    record = disk.record("a")
    assert record is not None
    assert disk.samples("a") == [(number, number) for number in range(1, 11)]
    assert disk.client.ttl(announced_samples_key(disk.place(), "a", record.epoch)) == -1


def test_a_thread_announces_and_ends(disk: Disk) -> None:
    """What is stored at the very end is announced while it closes."""
    announcer = Announcer(disk.settings, SPEC.digest)
    announcer.start()
    disk.store("a", 1, 2)
    announcer.close()
    assert disk.samples("a") == [(1, 1), (2, 2)]


def test_closing_without_redis_raises_nothing(disk: Disk) -> None:
    """A worker that ends must end."""
    settings = replace(disk.settings, redis_url="redis://:s3cret-word@127.0.0.1:1/0")
    announcer = Announcer(settings, SPEC.digest)
    announcer.start()
    announcer.close()
    with pytest.raises(redis.RedisError):
        announcer.look()


def presence(disk: Disk) -> Presence:
    data = cast(bytes, disk.client.get(presence_key(disk.place())))
    return Presence.decode(data)


def test_a_presence_says_until_when_all_is_announced(disk: Disk, announcer: Announcer) -> None:
    """What was durable when the look before the last one began; a new run comes a look later."""
    disk.store("a", 1)
    announcer.look()
    assert (presence(disk).time_us, presence(disk).tells("a")) == (0, False)
    announcer.look()
    first = presence(disk)
    assert first.tells("a")
    assert first.tells("another")
    disk.store("b", 2)
    seconds, microseconds = disk.client.time()
    announcer.look()
    assert presence(disk).behind == ("b",)
    assert presence(disk).tells("a")
    announcer.look()
    last = presence(disk)
    assert last.tells("b")
    assert first.time_us < 1_000_000 * seconds + microseconds <= last.time_us
    assert disk.client.smembers(serving_key(SPEC.digest)) == {disk.place().encode()}


def test_a_wiped_redis_is_noticed_by_the_next_look(disk: Disk, announcer: Announcer) -> None:
    """Nothing is promised until all is announced again."""
    disk.store("a", 1, 2)
    for _ in range(3):
        announcer.look()
    disk.client.flushall()
    announcer.look()
    assert not presence(disk).tells("a")
    announcer.look()
    assert presence(disk).tells("a")
    assert disk.samples("a") == [(1, 1), (2, 2)]


def test_an_older_presence_is_noticed(disk: Disk, announcer: Announcer) -> None:
    """As when Redis comes back from a snapshot."""
    disk.store("a", 1)
    look_twice(announcer)
    older = cast(bytes, disk.client.get(presence_key(disk.place())))
    epoch = disk.record("a")
    announcer.look()
    disk.client.set(presence_key(disk.place()), older)
    look_twice(announcer)
    record = disk.record("a")
    assert record is not None
    assert epoch is not None
    assert record.epoch != epoch.epoch


@pytest.mark.parametrize(
    ("lease", "is_taken"),
    [
        ("w@{host}:999999999:7", True),
        ("w@{host}:{pid}:7", True),
        ("w@{host}:{pid}:{started}", False),
        ("w@elsewhere:999999999:7", False),
        ("v@{host}:999999999:7", False),
        ("w@{host}:no-pid", False),
        ("another", False),
    ],
)
def test_the_lease_of_a_killed_process_of_the_same_worker_is_taken_over(
    disk: Disk, announcer: Announcer, lease: str, *, is_taken: bool
) -> None:
    """Its pid is nobody's on this host, or somebody's who began later."""
    look_twice(announcer)
    # This process runs, and is not the announcer's parent.
    fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    held = lease.format(
        host=f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}",
        pid=os.getpid(),
        started=fields[19],
    )
    disk.client.set(speaker_key(disk.place()), held, ex=20)
    announcer.look()
    value = cast(bytes, disk.client.get(speaker_key(disk.place()))).decode()
    assert (value != held) == is_taken


def test_the_room_on_the_disk_is_announced(disk: Disk, announcer: Announcer) -> None:
    """With each record."""
    disk.store("a", 1)
    look_twice(announcer)
    record = disk.record("a")
    assert record is not None
    assert abs(record.free_bytes - shutil.disk_usage(disk.runs).free) < 1 << 30


def refuse_links(_self: Path, _target: Path) -> None:
    raise PermissionError(errno.EPERM, "no hard links here")


def refuse_space(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_place_is_named_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file, the same name for all."""
    monkeypatch.setattr(Path, "hardlink_to", refuse_links)
    assert place_of(tmp_path) == place_of(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".statetap-place"]


def test_a_full_disk_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file piles up, however often it is tried."""
    monkeypatch.setattr(os, "fsync", refuse_space)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            place_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_not_whole_is_not_used(tmp_path: Path) -> None:
    """Another worker writes it; what a crash left of one is made anew."""
    file = tmp_path / ".statetap-place"
    file.write_text(".ab")
    with pytest.raises(OSError, match="3 characters"):
        place_of(tmp_path)
    os.utime(file, (0, 0))
    with pytest.raises(OSError, match="3 characters"):
        place_of(tmp_path)
    assert len(place_of(tmp_path)) == 32
