"""What the caching allocator reserves for real training steps (benchmarks/gpu_allocator.py)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="replays on a driver in host memory")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("gpu_allocator")
    sys.path.remove(folder)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["digits", "GPT", "ResNet"])
def test_training_steps_reserve_less_than_powers_of_two(
    benchmark: Any, name: str, compiled: bool
) -> None:
    trace = benchmark.record(name, compiled, 8)
    live, ours, plain = benchmark.reserved(trace)
    assert live <= ours <= 0.9 * plain, (live, ours, plain)
    assert sum(kind == "new" for kind, _, _ in trace) > 50
