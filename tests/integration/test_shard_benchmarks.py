"""The shard's benchmarks on a small scale: they run, and nothing is slower by a whole class.

Their bounds are those of ``make bench``; on a busy machine and with little data only what is far
off can be told from noise.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

BenchmarkScript = Callable[[str], ModuleType]


def test_appending_keeps_up_with_the_disk(
    benchmark_script: BenchmarkScript, tmp_path: Path
) -> None:
    """Far from a third of the speed of a plain write, and of one file a sample."""
    script = benchmark_script("shard_write")
    for case in script.CASES:
        rounds = [script.measure(case, tmp_path, seed, 60_000_000) for seed in range(3)]
        assert list(tmp_path.iterdir()) == []
        assert statistics.median(other / ours for ours, other, _ in rounds) > 1 / 3, case.name


def test_reading_keeps_up_with_the_page_cache(
    benchmark_script: BenchmarkScript, tmp_path: Path
) -> None:
    """Far from a third of the speed of a plain read and of one file a sample."""
    script = benchmark_script("shard_read")
    rows = [
        *script.wide_ratios(tmp_path / "wide", script.WIDE, [200, 700, 300], 5),
        *script.small_ratios(tmp_path / "small", script.NARROW, [5] * 500, 3),
    ]
    assert len(rows) == 11
    for name, ratios, _ in rows:
        assert statistics.median(ratios) > 1 / 3, name


def test_nothing_grows_faster_than_the_samples(
    benchmark_script: BenchmarkScript, tmp_path: Path
) -> None:
    """An append costs the same in a long shard; ten times the samples open in ten times as long."""
    script = benchmark_script("shard_scale")
    few_s, many_s = script.append_cost(tmp_path, 100, 6_000)
    assert many_s < 2 * few_s
    folders = {num_samples: tmp_path / str(num_samples) for num_samples in (6_000, 60_000)}
    for num_samples, folder in folders.items():
        folder.mkdir()
        script.filled(folder / "w0-00001.h5", num_samples, 0).close()
    for name, opening in script.OPENINGS.items():
        few_s, many_s = (
            min(script.timed(opening, folder) for _ in range(5)) for folder in folders.values()
        )
        # Twice that for noise; what is quadratic takes a hundred times as long.
        assert many_s < 20 * few_s, name
