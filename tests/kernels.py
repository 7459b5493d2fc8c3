"""Runs kernels of the loop language through ctypes, for tests of code generation."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from jitgrad.compiler.codegen import llvm
from jitgrad.compiler.codegen.kernelcode import Generated, Site
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.compiler.kernels import Kernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.symbolic import Sym, evaluate

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
)  # fmt: skip
NO_ERROR = 2**63 - 1


class Run:
    """A loaded kernel. Call it with {Array: ndarray}; the ndarrays are read and written."""

    def __init__(self, kernel: Kernel, target: Target | None = None) -> None:
        target = target or host()
        self.code: Generated = llvm.generate(kernel, target)
        self.library = Library.build([self.code], target)

    def __call__(
        self,
        arrays: Mapping[Array, np.ndarray],
        sizes: Mapping[str, int] | None = None,
        grain: int | None = None,
        workers: int = 1,
        sites: Sequence[object] = (),
    ) -> int:
        """Returns the smallest flagged site's number, or -1. Blocks of `grain` points go round
        robin to `workers` scratch areas, last block first when there are several workers."""
        sizes = sizes or {}
        memory = dict(arrays)
        for a in self.code.workspace:
            shape = [evaluate(d, sizes) for d in a.shape]
            memory[a] = np.full(shape, 77, a.dtype.np)
        slots: list[np.ndarray] = []
        scratch = np.zeros(max(1, self.code.scratch) * workers + 64, np.uint8)
        cell = np.array([NO_ERROR], np.int64)
        words: list[int] = []
        launches = []
        for launch in self.code.launches:
            args = []
            for x in launch.operands:
                if isinstance(x, Array):
                    args.append(len(slots))
                    slots.append(memory[x])
                elif isinstance(x, Site):
                    args.append(list(sites).index(x.tag))
                elif isinstance(x, Sym):
                    args.append(len(words))
                    words.append(evaluate(x, sizes))
                else:
                    args.append(x)
            args.append(-1)
            launches.append((launch, args))
        start = scratch.ctypes.data
        pointers = [a.ctypes.data for a in slots] + [start + (-start) % 64]
        bufs = (ctypes.c_void_p * len(pointers))(*pointers)
        word_array = np.array([*words, 0], np.int64)
        ctx = np.array([0, cell.ctypes.data, word_array.ctypes.data, workers, 0, 0, 0, 0], np.int64)
        for launch, args in launches:
            args[-1] = len(pointers) - 1
            arg_array = np.array(args, np.int64)
            address = self.library.address(self.code.key, launch.symbol)
            function = _KERNEL(address)
            total = evaluate(launch.total, sizes)
            step = -(-grain // launch.unit) * launch.unit if grain else launch.grain
            starts = list(range(0, total, step))
            for n, begin in enumerate(reversed(starts) if workers > 1 else starts):
                function(
                    ctx.ctypes.data, ctypes.addressof(bufs), arg_array.ctypes.data,
                    begin, min(begin + step, total), n % workers,
                )  # fmt: skip
        return -1 if cell[0] == NO_ERROR else int(cell[0])
