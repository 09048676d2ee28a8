"""What processes count, where, and what is answered to Prometheus."""

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from statetap_contract import MissingError
from statetap_local.service import free_port
from statetap_worker.measuring import scrape_point as scrape_point_module
from statetap_worker.measuring.metrics_page import MetricsPage
from statetap_worker.measuring.scrape_point import ScrapePoint, scrape_point
from statetap_worker.settings import WorkerSettings

#: Name and labels of a sample: its value.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

COUNT = """
import os, signal, sys
from pathlib import Path
from statetap_worker.measuring.metrics import Metrics
from statetap_worker.pipeline import Outcome
metrics = Metrics(Path(sys.argv[1]), sys.argv[2], row_bytes=100)
"""


def count(folder: Path, process: str, code: str) -> None:
    """Counts in a process of that name, which is killed at the end, as any may be."""
    program = f"{COUNT}{code}\nos.kill(os.getpid(), signal.SIGKILL)"
    ended = subprocess.run(
        [sys.executable, "-c", program, folder, process],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def settings_of(folder: Path, port: int | None) -> WorkerSettings:
    """Nobody listens where this worker's server and Redis should be."""
    return WorkerSettings(
        server_url="http://127.0.0.1:9",
        redis_url="redis://127.0.0.1:9",
        dumps=folder,
        runs=folder,
        name="w",
        num_processes=1,
        shard_bytes=1,
        metrics_address=None if port is None else ("127.0.0.1", port),
    )


@pytest.fixture
def point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScrapePoint]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scrape_point(settings_of(tmp_path, free_port())) as point:
        assert point is not None
        yield point


@pytest.fixture
def scrape(point: ScrapePoint, tmp_path: Path) -> Iterator[Callable[[], Samples]]:
    """Asks the page as Prometheus does."""
    settings = settings_of(tmp_path, None)
    page = MetricsPage(point, settings, "ab" * 16)
    page.start()
    port = point.listener.getsockname()[1]

    def scrape() -> Samples:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert answer.is_success
        families = text_string_to_metric_families(answer.text)
        samples = [sample for family in families for sample in family.samples]
        found = {(item.name, tuple(sorted(item.labels.items()))): item.value for item in samples}
        assert len(found) == len(samples)
        return found

    yield scrape
    page.close()


STORED = "metrics.stored(Outcome('k', {tokens}, True, {server}, {prove}, {store}))"


def test_processes_are_added_up(point: ScrapePoint, scrape: Callable[[], Samples]) -> None:
    """Samples, tokens, bytes, and seconds by stage, in the buckets they belong to."""
    count(point.folder, "00", STORED.format(tokens=3, server=1500, prove=0.4, store=3))
    count(point.folder, "01", STORED.format(tokens=7, server=40, prove=0.9, store=5))
    samples = scrape()
    assert samples["statetap_samples_stored_total", ()] == 2
    assert samples["statetap_tokens_stored_total", ()] == 10
    assert samples["statetap_states_stored_bytes_total", ()] == 1000
    assert samples["statetap_samples_found_total", ()] == 0
    stage = ("stage", "server")
    assert samples["statetap_stage_seconds_sum", (stage,)] == pytest.approx(1.54)
    bounds = {"0.02": 0, "0.05": 1, "1.0": 1, "2.0": 2, "900.0": 2, "+Inf": 2}
    for bound, number in bounds.items():
        assert samples["statetap_stage_seconds_bucket", (("le", bound), stage)] == number


def test_a_sample_found_is_none_stored(point: ScrapePoint, scrape: Callable[[], Samples]) -> None:
    """It took no time of the server, and no bytes."""
    count(point.folder, "00", "metrics.stored(Outcome('k', 3, False, 0.0, 0.0, 0.0))")
    samples = scrape()
    assert samples["statetap_samples_found_total", ()] == 1
    assert samples["statetap_samples_stored_total", ()] == 0
    assert samples["statetap_tokens_stored_total", ()] == 0
    assert samples["statetap_stage_seconds_count", (("stage", "server"),)] == 0


def test_failures_are_counted_by_kind(point: ScrapePoint, scrape: Callable[[], Samples]) -> None:
    """Retries, waits and dead letters, over all processes."""
    count(point.folder, "00", "metrics.retried('a'); metrics.retried('b'); metrics.buried('b')")
    count(point.folder, "01", "metrics.retried('a'); metrics.waited('c')")
    samples = scrape()
    assert samples["statetap_retries_total", (("kind", "a"),)] == 2
    assert samples["statetap_retries_total", (("kind", "b"),)] == 1
    assert samples["statetap_dead_letters_total", (("kind", "b"),)] == 1
    assert samples["statetap_server_waits_total", (("kind", "c"),)] == 1


def test_a_successor_goes_on(point: ScrapePoint, scrape: Callable[[], Samples]) -> None:
    """However many processes are killed in one slot, nothing is lost and no file is added."""
    count(point.folder, "00", "metrics.retried('a')")
    files = sorted(point.folder.iterdir())
    for _ in range(2):
        count(point.folder, "00", "metrics.retried('a')")
    assert scrape()["statetap_retries_total", (("kind", "a"),)] == 3
    assert sorted(point.folder.iterdir()) == files


def test_a_killed_process_has_nothing_in_flight(
    point: ScrapePoint, scrape: Callable[[], Samples]
) -> None:
    """As soon as its successor is there; until then nobody knows."""
    kill = "with metrics.in_flight(): os.kill(os.getpid(), signal.SIGKILL)"
    count(point.folder, "00", kill)
    count(point.folder, "01", kill)
    assert scrape()["statetap_prompts_in_flight", ()] == 2
    count(point.folder, "00", "with metrics.in_flight(): pass")
    assert scrape()["statetap_prompts_in_flight", ()] == 1


def test_files_have_their_room_from_the_start(point: ScrapePoint) -> None:
    """A mapped page for which the disk has none kills its process when it is written to."""
    count(point.folder, "00", "metrics.buried('a')")
    files = {file.name: file.stat() for file in point.folder.iterdir()}
    assert files.keys() == {"counter_00.db", "gauge_sum_00.db", "histogram_00.db"}
    for status in files.values():
        assert status.st_blocks * 512 >= status.st_size == 65536


def test_nothing_is_written_where_nobody_asks(tmp_path: Path) -> None:
    """A worker without --metrics-port counts in memory alone."""
    program = (
        "from statetap_worker.measuring.metrics import Metrics\n"
        "Metrics(None, '00', 1).retried('a')\nMetrics(None, '00', 1).buried('a')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=60, check=True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_gone_costs_its_own_lines(scrape: Callable[[], Samples]) -> None:
    """Without Redis and server there are still the disks, and an answer."""
    samples = scrape()
    assert samples["statetap_redis_ready", ()] == 0
    assert samples["statetap_server_ready", ()] == 0
    assert samples["statetap_runs_free_bytes", ()] > 0
    assert samples["statetap_dumps_free_bytes", ()] > 0
    assert not [name for name, _ in samples if name == "statetap_queue_messages"]


def test_a_file_in_the_making_is_passed_over(
    point: ScrapePoint, scrape: Callable[[], Samples]
) -> None:
    """A child that starts makes its files while others are asked."""
    (point.folder / "counter_07.db").touch()
    count(point.folder, "00", "metrics.retried('a')")
    assert scrape()["statetap_retries_total", (("kind", "a"),)] == 1


def test_unreadable_messages_are_lines_of_their_ledger(
    scrape: Callable[[], Samples], tmp_path: Path
) -> None:
    """Those of an earlier worker of this name too; one that is being written does not count."""
    ledger = tmp_path / ".unreadable" / "w.jsonl"
    assert scrape()["statetap_unreadable_messages_total", ()] == 0
    ledger.parent.mkdir()
    ledger.write_text("{}\n{}\n{")
    assert scrape()["statetap_unreadable_messages_total", ()] == 2
    with ledger.open("a") as stream:
        stream.write("}\n{}\n")
    assert scrape()["statetap_unreadable_messages_total", ()] == 4


def test_a_client_that_says_nothing_holds_up_no_other(
    point: ScrapePoint, scrape: Callable[[], Samples]
) -> None:
    """Each has a thread, and only so many seconds."""
    with socket.create_connection(point.listener.getsockname()):
        assert scrape()


def test_the_folder_is_made_anew_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed worker left behind is in the same place, and does not count."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = settings_of(tmp_path, free_port())
    with scrape_point(settings) as first:
        assert first is not None
    assert not first.folder.exists()
    first.folder.mkdir()
    (first.folder / "counter_00.db").write_bytes(b"left")
    with scrape_point(settings) as second:
        assert second is not None
        assert second.folder == first.folder
        assert list(second.folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """And the folder of whoever uses it is left alone."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(MissingError, match=f"127.0.0.1:{port}") as refused,
            scrape_point(settings_of(tmp_path, port)),
        ):
            pass
    assert refused.value.kind == "metrics-port"


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can make a link in the temporary folder; what it points at is not emptied."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = settings_of(tmp_path, free_port())
    with scrape_point(settings) as point:
        assert point is not None
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").touch()
    point.folder.symlink_to(treasure)
    with pytest.raises(MissingError, match=str(point.folder)), scrape_point(settings):
        pass
    assert (treasure / "file").exists()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are mapped into memory there."""
    monkeypatch.setattr(scrape_point_module, "_file_system", lambda _folder: kind)
    settings = settings_of(tmp_path, free_port())
    with pytest.raises(MissingError, match=kind) as refused, scrape_point(settings):
        pass
    assert refused.value.kind == "metrics-folder"


def test_file_systems_are_known_by_their_mount() -> None:
    """Shared memory is a tmpfs, and nothing is a network's."""
    assert scrape_point_module._file_system(Path("/dev/shm")) == "tmpfs"
