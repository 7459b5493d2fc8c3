"""What GPU code is generated for: the architecture, and the sizes of blocks and tiles.

Owns `CudaTarget`. Kernels for Numba's simulator are the same source with smaller sizes, as there a
thread of the GPU is a thread of Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from jitgrad.runtime.errors import CompileError

_KNOWN = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""The architectures that CUDA 13 makes code for (NVVM IR's list of targets)."""


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

    Raises ValueError for a name that is none.
    """
    if arch == "sim":
        return SIMULATOR
    number = _number(arch)
    if number not in _KNOWN:
        plain = arch[:-1] if isinstance(arch, str) else ""
        special = _number(plain) in _KNOWN and arch[-1] in "af"
        hint = f"; kernels use none of its own instructions: ask for {plain!r}" if special else ""
        raise ValueError(
            "[cuda] expected an architecture that CUDA makes code for "
            f"({', '.join(f'sm_{k}' for k in _KNOWN)}); got {arch!r}{hint}"
        )
    return _target(number)


def target_of_device(arch: str) -> CudaTarget:
    """The target of a device's kernels: its own, or the newest known one that is older, whose PTX
    the driver takes, too. Raises CompileError for a GPU older than all."""
    number = _number(arch)
    known = [k for k in _KNOWN if number is not None and k <= number]
    if arch == "sim":
        return SIMULATOR
    if not known:
        raise CompileError(f"[cuda] expected a GPU from sm_{_KNOWN[0]} on; this one is {arch}")
    return _target(known[-1])


def _number(arch: Any) -> int | None:
    return int(arch[3:]) if isinstance(arch, str) and re.fullmatch(r"sm_\d{2,3}", arch) else None


def _target(number: int) -> CudaTarget:
    arch = f"sm_{number}"
    return CudaTarget(arch) if number >= 80 else CudaTarget(arch, mma=None, asynchronous=False)
