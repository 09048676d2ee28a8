"""The queue's benchmarks on a small scale: they run, and nothing is slower by a whole class.

Their bounds are those of ``make bench``; on a busy machine and with little data only what is far
off can be told from noise.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from statetap_local.services import LocalRedis
from statetap_producer.queueing.reconcile import reconcile

BenchmarkScript = Callable[[str], ModuleType]


def test_enqueuing_keeps_up_with_redis(benchmark_script: BenchmarkScript, tmp_path: Path) -> None:
    """Far from a fiftieth of plain pipelines, in flat memory, a few kB of Redis a prompt."""
    script = benchmark_script("enqueue_rate")
    with script.redis_at(tmp_path) as url:
        rounds = script.alternate(tmp_path, url, 2000, 500, 3)
        assert statistics.median(ours / bare for ours, bare in rounds) > 1 / 50
        run = script.RunFolder(tmp_path / "small")
        assert 1000 < script.bytes_a_prompt(run, url) < 4000
        figures = script.feed_all(script.text_like_run(tmp_path / "large", 20_000, 50), url)
    assert 0 < figures.most_waiting <= script.WINDOW
    assert figures.end_bytes < figures.tenth_bytes + 30_000_000


def test_a_round_grows_with_the_samples(
    benchmark_script: BenchmarkScript, local_redis: LocalRedis, tmp_path: Path
) -> None:
    """Ten times the samples take about ten times as long, found missing or not."""
    script = benchmark_script("reconcile_scale")
    with local_redis.client() as client:
        client.flushall()
    seconds = []
    for num_samples in (4_000, 40_000):
        run = script.stored_run(tmp_path / str(num_samples), num_samples)
        outcome = reconcile(run, local_redis.url, window=0)
        assert (outcome.is_over, outcome.num_enqueued) == (True, 0)
        round_s = min(
            script.timed(lambda run=run: reconcile(run, local_redis.url, window=0))
            for _ in range(3)
        )
        seconds.append(round_s)
    few_s, many_s = seconds
    # Twice that for noise; what is quadratic takes a hundred times as long.
    assert many_s < 20 * few_s
