"""HostCall: a kernel that is a call back into Python, of a record's reference.

For records that have no loop form (`Op.host`: factorizations of matrices, Fourier transforms), and
for arithmetic of complex numbers, which the loop language has not (lower.py decides that).
Owns the C function that stands in the launch table: it wraps the memory of operands and results
as NumPy arrays, runs the reference and copies what it returns. Such a row is a wave of its own with
one block, so the thread that called the program runs it, whether that holds the GIL or not.

What the reference raises is kept for the thread, and the node's site is flagged, as a kernel does:
the run ends at the commit point, and `taken` gives the exception.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.fixed_sizes import concrete
from jitgrad.compiler.ir import Node
from jitgrad.compiler.kernels import SpecialKernel
from jitgrad.compiler.loops import Array, Call
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.symbolic import evaluate
from jitgrad.runtime import abi
from jitgrad.runtime.errors import InternalError

KEY = "host"
"""Stands for the object file of such kernels in an Image; the symbol is the node's number."""

_KERNEL = ctypes.CFUNCTYPE(
    None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


def call_of(kernel: Any) -> Call | None:
    """The definition of a kernel that is a call into Python; None of any other."""
    if isinstance(kernel, SpecialKernel) and isinstance(kernel.arrays[0].define, Call):
        return kernel.arrays[0].define
    return None


def operands_of(kernel: SpecialKernel) -> list[Array]:
    """The arrays whose slots the row's words name: operands, then results."""
    define = kernel.arrays[0].define
    assert isinstance(define, Call)
    results = sorted(kernel.arrays, key=lambda a: a.define.part)  # type: ignore[union-attr]
    return [*(e.attr for e in define.operands), *results]


class HostCall:
    """The call of a node. `address` is the C function's.

    names: the symbolic dims, in the order in which calls bring their values as the first sizes.
    """

    def __init__(self, node: Node, names: Sequence[str]) -> None:
        self.node, self.names = node, tuple(names)
        types = [v.type for v in (*node.inputs, *node.outputs)]
        self._shapes = [t.shape for t in types]
        self._dtypes = [t.dtype.np for t in types]
        self._raised = threading.local()
        self._function = _KERNEL(self._run)  # kept alive here: native code has its address
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        if not address:
            raise InternalError(f"no C function for {node.op.name}")
        self.address = address

    def taken(self) -> BaseException | None:
        """What the last call on this thread raised, once."""
        error = getattr(self._raised, "error", None)
        self._raised.error = None
        return error

    def _run(self, ctx: int, bufs: int, args: int, begin: int, end: int, worker: int) -> None:
        cell = _words(_words(ctx, abi.CTX_WORDS)[abi.CTX_ERROR], 1)
        if cell[0] != abi.NO_ERROR:
            return  # the run has failed already: what it would compute is not used
        count = len(self._shapes)
        words = _words(args, count + 1)
        try:
            dims: dict[str, int] = {}
            if self.names:
                sizes = _words(_words(ctx, abi.CTX_WORDS)[abi.CTX_SIZES], len(self.names))
                dims = dict(zip(self.names, sizes, strict=True))
            arrays = []
            for k in range(count):
                address = _words(bufs + 8 * words[k], 1)[0]
                shape = tuple(evaluate(d, dims) for d in self._shapes[k])
                arrays.append(_at(address, shape, self._dtypes[k]))
            n = len(self.node.inputs)
            self._fill(arrays[:n], arrays[n:], dims)
        except BaseException as error:
            self._raised.error = error
            cell[0] = min(cell[0], words[count])

    def _fill(
        self, operands: list[np.ndarray], results: list[np.ndarray], dims: Mapping[str, int]
    ) -> None:
        node = self.node
        for x in operands:
            x.flags.writeable = False
        attrs = {k: concrete(v, dims) for k, v in node.attr.items()}
        with Quiet():
            found = node.op.reference(*operands, **attrs)
        many = found if isinstance(found, tuple) else (found,)
        for target, value in zip(results, many, strict=True):
            if value.shape != target.shape or value.dtype != target.dtype:
                raise InternalError(
                    f"[{node.op.name}] expected {target.dtype}{target.shape} of its reference; got "
                    f"{value.dtype}{value.shape}"
                )
            np.copyto(target, value)


# Making a ctypes array type costs more than a small reference does, so they are kept.
@functools.lru_cache(1024)
def _array_type(element: Any, count: int) -> Any:
    return element * count


def _words(address: int, count: int) -> Any:
    return _array_type(ctypes.c_int64, count).from_address(address)


def _at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The dense array at an address."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _array_type(ctypes.c_char, nbytes).from_address(address))
