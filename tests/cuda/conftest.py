"""Tests of the GPU back end: a process of their own.

`make test-cuda` runs them with JITGRAD_CUDA=sim, on Numba's simulator, whose memory the host cannot
touch here (runtime/cuda/guarded.py). On a machine with a GPU the same tests run on it:
`pytest -m gpu tests/cuda`. Where there is neither, nothing is collected.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.guarded import GuardedDriver
from jitgrad.runtime.knobs import knobs

if knobs.cuda == "sim":  # PyTorch, of test_mixing.py, imports Numba, too
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    device.use_driver(GuardedDriver())
collect_ignore_glob: list[str] = []
if importlib.util.find_spec("numba_cuda") is None or not device.count():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Marks the tests here that run on a GPU."""
    here = Path(__file__).parent
    for item in items:
        if knobs.cuda != "sim" and here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.gpu)
