"""The report's benchmark on a small scale: neither its page nor its memory grows with the run."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

BenchmarkScript = Callable[[str], ModuleType]


def test_a_report_grows_little_with_the_run(
    benchmark_script: BenchmarkScript, tmp_path: Path
) -> None:
    """Ten times the samples: a kB for each of them at most, and a page of the same size."""
    script = benchmark_script("report_scale")
    few, many = (
        script.report_cost(script.large_run(tmp_path / f"run-{number}", number))
        for number in (4_000, 40_000)
    )
    assert many.page_bytes < 2 * few.page_bytes < 200_000
    assert many.peak_bytes - few.peak_bytes < 36_000 * 1000
