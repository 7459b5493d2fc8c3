"""What GPU code is generated for: the architecture, and the sizes of blocks and tiles.

Owns `CudaTarget`. Kernels for Numba's simulator are the same source with smaller sizes, as there a
thread of the GPU is a thread of Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from jitgrad.runtime.errors import CompileError

_OLDEST = 75


@dataclass(frozen=True)
class CudaTarget:
    """A GPU to generate code for.

    Attributes:
        arch: "sm_90", say; "sim" is Numba's simulator.
        threads: the threads of a block, at most; a power of two.
        tile: rows, columns and depth of a contraction's tile, and the rows and columns of it that a
            thread has; (rows / its rows) * (columns / its columns) are the threads of its blocks.
        large_tile: the same, for contractions of float32 with many tiles of this size.
        mma: rows, columns and depth of a tile on tensor cores, and how many warps share its rows
            and columns; None where there are none for bfloat16.
        asynchronous: whether memory is copied to shared memory without registers (cp.async).
        busy: so many tiles keep the GPU busy.
        shared_bytes: of shared memory that a block may use.
        max_blocks: blocks of one launch, at most; they take further work in turn.
        many: points of an elementwise kernel from which on a thread does several at once.
        many_points: points of a scatter that may meet, from which on they are sorted.
        long_line: elements of a line, from which on it is sorted by digits.
        stream_least: elements of an array that only lies between contractions, from which on it is
            never stored. stream_side: its least rows and columns.
        blas: whether cuBLAS does contractions of at least `blas_least` products.
        in_order: whether a worker does the points of a kernel one after the other.
    """

    arch: str = "sm_80"
    threads: int = 256
    tile: tuple[int, int, int, int, int] = (64, 64, 16, 4, 4)
    large_tile: tuple[int, int, int, int, int] | None = (128, 128, 8, 8, 8)
    mma: tuple[int, int, int, int, int] | None = (64, 64, 32, 4, 2)
    asynchronous: bool = True
    busy: int = 128
    shared_bytes: int = 48 * 1024
    max_blocks: int = 65535
    many: int = 1 << 14
    many_points: int = 512
    long_line: int = 2048
    stream_least: int = 1 << 20
    stream_side: int = 32
    blas: bool = False
    blas_least: int = 1 << 24
    in_order: ClassVar[bool] = False

    @property
    def simulated(self) -> bool:
        return self.arch == "sim"

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0) of "sm_90"."""
        number = int(self.arch.removeprefix("sm_"))
        return number // 10, number % 10


SIMULATOR = CudaTarget(
    "sim",
    threads=4,
    tile=(8, 4, 4, 4, 2),
    shared_bytes=4096,
    max_blocks=2,
    many=8,
    many_points=24,
    long_line=48,
    stream_least=64,
    stream_side=4,
    large_tile=(8, 8, 4, 4, 4),
    mma=(16, 16, 16, 1, 1),
    busy=2,
)


def gpu_target(arch: str) -> CudaTarget:
    """The target called "sm_90", say.

    Raises CompileError for a name that is none, or of a GPU older than sm_75.
    """
    if arch == "sim":
        return SIMULATOR
    if not re.fullmatch(r"sm_\d{2,3}", arch) or int(arch[3:]) < _OLDEST:
        raise CompileError(
            f"[cuda] expected an architecture from sm_{_OLDEST} on, such as 'sm_90'; got {arch!r}"
        )
    return (
        CudaTarget(arch) if int(arch[3:]) >= 80 else CudaTarget(arch, mma=None, asynchronous=False)
    )
