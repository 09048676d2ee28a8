"""The benchmark of exports on a small scale: it runs, and nothing is slower by a whole class."""

import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


def test_exports_keep_up(benchmark_script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Far from a third of the rate of a raw copy, and of the peers' own writers."""
    script = benchmark_script("export_rate")
    stage = script.make_stage(tmp_path, 60_000_000)
    assert len(script.CASES) == 7
    for case in script.CASES:
        rounds = [script.measure(case, stage, tmp_path, seed) for seed in range(3)]
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
        if case.bound is not None:
            assert statistics.median(other / ours for ours, other in rounds) > 1 / 3, case
