"""Tests of the GPU back end on Numba's CUDA simulator: a process of their own (`make test-cuda`).

They run with JITGRAD_CUDA=sim, where the simulator is the one device; without it, or without
numba-cuda, nothing here is collected.
"""

from __future__ import annotations

import importlib.util

from jitgrad.runtime.knobs import knobs

collect_ignore_glob: list[str] = []
if knobs.cuda != "sim" or importlib.util.find_spec("numba_cuda") is None:
    collect_ignore_glob = ["test_*.py"]
