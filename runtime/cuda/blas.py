"""cuBLAS through ctypes: products of matrices in a device's memory.

Owns where the library is (`find`), its handles, and how our matrices, with a step for rows and one
for columns, are told to it (`arguments`): it knows matrices by columns only. Its workspace is set
once for each stream, so that results repeat (cuBLAS documentation, "Results reproducibility").
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import threading
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jitgrad.runtime.cuda.driver import CudaError

_NAMES = ("libcublas.so.13", "libcublas.so.12", "cublas64_13.dll", "cublas64_12.dll")
_KINDS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType_t
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77  # cublasComputeType_t
_DEFAULT = -1  # cublasGemmAlgo_t
_PLAIN, _TRANSPOSED = 0, 1  # cublasOperation_t
_WORKSPACE = 32 << 20


@dataclass(frozen=True)
class Matrix:
    """A matrix of a batch: its dtype, and how far apart rows, columns and matrices are, in
    elements. One of the steps of rows and columns is 1."""

    dtype: str
    row: int
    col: int
    batch: int


@dataclass(frozen=True)
class Gemm:
    """c = a @ b: a is (m, k), b (k, n), c (m, n), `count` times. fast: float32 may be TF32."""

    m: int
    n: int
    k: int
    count: int
    a: Matrix
    b: Matrix
    c: Matrix
    fast: bool = False


def arguments(g: Gemm, a: int, b: int, c: int) -> tuple[int, ...]:
    """What cublasGemmStridedBatchedEx is told, but for handle, factors and algorithm: (transa,
    transb, m, n, k, A, type, lda, stride, B, type, ldb, stride, C, type, ldc, stride, count).

    c lies by rows: by columns that is c.T = b.T @ a.T. Where c lies by columns, c = a @ b.
    """
    if g.c.col == 1:
        left, right = _operand(g.b, b, False), _operand(g.a, a, False)
        size, step = (g.n, g.m), g.c.row
    else:
        left, right = _operand(g.a, a, True), _operand(g.b, b, True)
        size, step = (g.m, g.n), g.c.col
    return (
        left[0], right[0], *size, g.k, *left[1:], *right[1:],
        c, _KINDS[g.c.dtype], step, g.c.batch, g.count,
    )  # fmt: skip


def _operand(x: Matrix, address: int, by_columns: bool) -> tuple[int, ...]:
    """(operation, address, type, leading dimension, stride) of x, by columns or by rows."""
    one, other = (x.row, x.col) if by_columns else (x.col, x.row)
    operation, step = (_PLAIN, other) if one == 1 else (_TRANSPOSED, one)
    return operation, address, _KINDS[x.dtype], step, x.batch


@cache
def find() -> Any:
    """libcublas: of NVIDIA's wheels, or of the system; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [p for f in folders for p in sorted(Path(f).glob("*/lib/libcublas.so.*"))]
    for name in [*map(str, reversed(found)), *_NAMES]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class Blas:
    """cuBLAS on one device. The device must be current in the thread that calls.

    allocate: gives memory for a workspace: (bytes, stream) -> address.
    """

    def __init__(self, library: Any, allocate: Any) -> None:
        self._library, self._allocate = library, allocate
        self._workspaces: dict[int, int] = {}
        self._handle = c_void_p()
        self._lock = threading.RLock()  # the handle has one stream at a time
        self._call("cublasCreate_v2", byref(self._handle))
        self.calls = 0

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise CudaError(f"[cuda] cuBLAS: {name} failed with status {status}")

    def prepare(self, stream: int) -> None:
        """Makes what calls on a stream need, so that they allocate nothing later."""
        with self._lock:
            self._call("cublasSetStream_v2", self._handle, c_void_p(stream))
            place = self._workspaces.get(stream)
            if place is None:
                place = self._workspaces[stream] = self._allocate(_WORKSPACE, stream)
            self._call("cublasSetWorkspace_v2", self._handle, c_void_p(place), c_size_t(_WORKSPACE))

    def gemm(self, g: Gemm, a: int, b: int, c: int, stream: int) -> None:
        """c = a @ b on a stream, of addresses. Sums of halves are of float32."""
        double = g.a.dtype == "float64"
        number = c_double if double else c_float
        compute = _COMPUTE_64F if double else _COMPUTE_TF32 if g.fast else _COMPUTE_32F
        one, zero = number(1), number(0)
        (
            transa, transb, m, n, k, x, xtype, ldx, xstride, y, ytype, ldy, ystride, z, ztype, ldz,
            zstride, count,
        ) = arguments(g, a, b, c)  # fmt: skip
        with self._lock:
            self.prepare(stream)
            self.calls += 1
            self._call(
                "cublasGemmStridedBatchedEx", self._handle, c_int(transa), c_int(transb), c_int(m),
                c_int(n), c_int(k), byref(one), c_void_p(x), c_int(xtype), c_int(ldx),
                c_longlong(xstride), c_void_p(y), c_int(ytype), c_int(ldy), c_longlong(ystride),
                byref(zero), c_void_p(z), c_int(ztype), c_int(ldz), c_longlong(zstride),
                c_int(count), c_int(compute), c_int(_DEFAULT),
            )  # fmt: skip


def nbytes(dtype: str) -> int:
    """Of an element."""
    return _BYTES[dtype]
