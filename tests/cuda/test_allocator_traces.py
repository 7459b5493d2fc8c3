"""What the caching allocator reserves for real training steps (benchmarks/gpu_allocator.py), in a
process of its own: what is live in a first call depends on what a process did before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jitgrad.runtime.knobs import knobs


@pytest.mark.skipif(knobs.cuda != "sim", reason="replays on a driver in host memory")
def test_training_steps_reserve_less_than_powers_of_two() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_allocator.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [(name, mode) for name, mode, *_ in rows] == [
        (name, mode) for name in ("digits", "GPT", "ResNet") for mode in ("eager", "jit")
    ]
    for name, mode, count, live, ours, _, plain, _ in rows:
        assert float(live) <= float(ours) <= 0.9 * float(plain), (name, mode)
        assert int(count) > 50
