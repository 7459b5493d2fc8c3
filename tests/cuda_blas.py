"""A library that reads what cuBLAS is told as its documentation says, by NumPy, in host memory."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.guarded import GuardedDriver

_TYPES: dict[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


def _opened() -> AbstractContextManager[None]:
    """The device's memory can be read and written: this is work of the device."""
    driver = device.driver()
    return driver.open() if isinstance(driver, GuardedDriver) else nullcontext()


class FakeBlas:
    """cublasGemmStridedBatchedEx on matrices by columns; `calls` are the arguments of each call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []
        self.streams: list[int | None] = []

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 7
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        self.streams.append(stream.value)
        return 0 if handle.value == 7 else 1

    def cublasSetWorkspace_v2(self, handle: Any, place: Any, nbytes: Any) -> int:
        return 0 if place.value and place.value % 256 == 0 else 7

    def cublasGemmStridedBatchedEx(
        self, handle: Any, transa: Any, transb: Any, m: Any, n: Any, k: Any, alpha: Any, a: Any,
        atype: Any, lda: Any, stride_a: Any, b: Any, btype: Any, ldb: Any, stride_b: Any, beta: Any,
        c: Any, ctype: Any, ldc: Any, stride_c: Any, count: Any, compute: Any, algo: Any,
    ) -> int:  # fmt: skip
        v = {name: x.value for name, x in locals().items() if hasattr(x, "value")}
        self.calls.append(v)
        m, n, k, count = v["m"], v["n"], v["k"], v["count"]
        double = v["atype"] == 1
        known = v["compute"] in ([70] if double else [68, 77])
        if not known or v["algo"] != -1 or v["atype"] != v["btype"]:
            return 15
        number = ctypes.c_double if double else ctypes.c_float
        assert isinstance(alpha._obj, number) and isinstance(beta._obj, number)
        assert alpha._obj.value == 1 and beta._obj.value == 0
        # "lda: at least max(1, m) if op(A) is A, else max(1, k)", and so on.
        rows_a, rows_b = (m, k)[v["transa"]], (k, n)[v["transb"]]
        if v["lda"] < rows_a or v["ldb"] < rows_b or v["ldc"] < m:
            return 7
        with _opened():
            for i in range(count):
                x = self._columns(v["a"], v["atype"], rows_a, (k, m)[v["transa"]], v["lda"],
                                  i * v["stride_a"])  # fmt: skip
                y = self._columns(v["b"], v["btype"], rows_b, (n, k)[v["transb"]], v["ldb"],
                                  i * v["stride_b"])  # fmt: skip
                z = self._columns(v["c"], v["ctype"], m, n, v["ldc"], i * v["stride_c"])
                x = x.T if v["transa"] else x
                y = y.T if v["transb"] else y
                wide = np.float64 if double else np.float32
                z[...] = (x.astype(wide) @ y.astype(wide)).astype(z.dtype)
        return 0

    @staticmethod
    def _columns(place: int, kind: int, rows: int, cols: int, step: int, offset: int) -> Any:
        dtype = np.dtype(_TYPES[kind])
        size = (step * (cols - 1) + rows) * dtype.itemsize
        memory: Any = (ctypes.c_char * size).from_address(place + offset * dtype.itemsize)
        flat = np.frombuffer(memory, dtype)
        strides = (dtype.itemsize, step * dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (rows, cols), strides, writeable=True)
