"""A device that looks like a GPU to all of jitgrad, for tests of what else only a GPU would show.

Its driver does not say that it is simulated: so code is made for sm_80, with the sizes of blocks
and tiles that GPUs have, and `pytest -m gpu tests/cuda -p standin_gpu` (with tests/ on PYTHONPATH)
runs the tests that a GPU would. Kernels run on Numba's simulator, slowly: blocks have 256 threads.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from jitgrad.compiler.codegen.cuda import load
from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.driver import Properties
from jitgrad.runtime.cuda.simulator import SimulatedDriver


class StandIn(SimulatedDriver):
    """In host memory."""

    def properties(self, device: int) -> Properties:
        return Properties("a stand-in", 8, 0, self.capacity, 108)


def install() -> None:
    """Puts the stand-in in the place of this process's driver."""

    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # for whoever imports Numba first: PyTorch may

    def kernel(text: str, symbol: str, shape: load.Shape, _: Any) -> Any:
        return load.simulated_kernel(text, symbol, shape)

    load.to_ptx = kernel  # what a driver asks for where the target is a GPU
    device.find_blas = lambda: None
    device.use_driver(StandIn())


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    install()
