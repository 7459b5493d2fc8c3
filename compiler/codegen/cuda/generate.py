"""A kernel of the loop language as Python source for Numba CUDA: `generate`.

Owns the dispatch by kind of kernel and what a launch needs to know (`Shape`). A module is one
function, or two where a reduction or a contraction is split, each readable by itself; the functions
that they call are those of `device.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jitgrad.compiler.codegen.cuda import nest, special
from jitgrad.compiler.codegen.cuda.contraction import contraction
from jitgrad.compiler.codegen.cuda.scatter import scatter
from jitgrad.compiler.codegen.cuda.sort import sort
from jitgrad.compiler.codegen.cuda.stream import stream
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, LibraryCall, Part
from jitgrad.compiler.codegen.kernelcode import Generated, Launch, Operand
from jitgrad.compiler.codegen.pieces import groups
from jitgrad.compiler.codegen.program import prepare
from jitgrad.compiler.codegen.split import split
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    SpecialKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    Array,
    Scan,
    Scatter,
    Sort,
    axis,
)
from jitgrad.runtime.errors import InternalError

VERSION = 12

_MOST_CHOICES = 8
"""Arrays that a point of a kernel chooses from: it reads one element of each."""


@dataclass(frozen=True)
class Shape:
    """How a kernel function is launched.

    Attributes:
        kinds: of its parameters: "*" and the dtype of an array's elements, "int64" for a number of
            the launch, "size" for one of the call.
        sites: whether the cell for faults is its last argument.
        threads: of a block. max_blocks: of a launch.
        shared: bytes of shared memory.
        strides: for each load and store of a loop kernel, how far apart in elements neighbouring
            threads are; None where that is not one number.
        wide: how many of them are of several elements at once.
        call: what a library does instead of a kernel.
    """

    kinds: tuple[str, ...]
    sites: bool
    threads: int
    max_blocks: int
    shared: int
    strides: tuple[int | None, ...] = ()
    wide: int = 0
    call: LibraryCall | None = None


def version_key(target: CudaTarget) -> str:
    """What generated code depends on besides the kernel."""
    return f"cuda{VERSION}|{target}"


def generate(kernel: Kernel, target: CudaTarget) -> Generated:
    """Source for a kernel. Raises CompileError for what is not compiled (complex arithmetic)."""
    return _assemble(_parts(kernel, target))


def _parts(kernel: Kernel, target: CudaTarget) -> list[Part]:
    symbol = "kernel"
    if isinstance(kernel, ContractionKernel):
        return contraction(kernel, symbol, target)
    if isinstance(kernel, LoopKernel):
        return _loops(kernel, target)
    if isinstance(kernel, ChainKernel):
        return [stream(kernel, symbol, target)]
    assert isinstance(kernel, SpecialKernel)
    array = kernel.arrays[0]
    define = array.define
    if isinstance(define, Scan):
        return [special.scan(array, define, symbol, target)]
    if isinstance(define, Scatter):
        identity = tuple(axis(k) for k in range(array.ndim))
        copy = LoopKernel(array.shape, [Stage((), (Store(array, identity, define.base),))])
        return [*_loops(copy, target), *scatter(array, define, "points", target)]
    if isinstance(define, Sort):
        return sort(kernel.arrays, symbol, target)
    raise InternalError(f"{array} is no special kernel's")


def _loops(kernel: LoopKernel, target: CudaTarget) -> list[Part]:
    programs, workspace = split(prepare(kernel, math=True))
    names = ["blocks", "whole"]
    if len(programs) == 1:
        programs = groups(programs[0], _MOST_CHOICES)
        names = ["kernel"] if len(programs) == 1 else [f"part{k}" for k in range(len(programs))]
    parts = [nest.emit(p, n, target) for p, n in zip(programs, names, strict=True)]
    first = parts[0].writer
    assert isinstance(first, KernelWriter)
    first.workspace += workspace
    return parts


def _assemble(parts: Sequence[Part]) -> Generated:
    writers = list(dict.fromkeys(part.writer for part in parts))
    text = "\n\n".join(w.source() for w in writers)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    shapes: dict[str, Shape] = {}
    workspace: list[Array] = []
    for w in writers:
        symbol = f"{w.symbol}_{key}"
        if isinstance(w, LibraryCall):
            shapes[symbol] = _call_shape(w)
            continue
        text = text.replace(f"def {w.symbol}(", f"@cuda.jit\ndef {symbol}(")
        shapes[symbol] = _shape(w)
        workspace += [a for a in w.workspace if a not in workspace]
    launches = [
        Launch(f"{p.writer.symbol}_{key}", _operands(p), p.total, p.grain)
        for p in parts
    ]  # fmt: skip
    return Generated(key, text, launches, workspace, 0, frozenset(), shapes)


def _operands(p: Part) -> list[Operand]:
    if p.operands is not None:
        return list(p.operands)
    assert isinstance(p.writer, KernelWriter)
    return list(p.writer.operands.list)


def _call_shape(call: LibraryCall) -> Shape:
    g = call.gemm
    kinds: list[str] = []
    for matrix, pairs in zip((g.a, g.b, g.c), call.pairs, strict=True):
        kinds += [f"*{matrix.dtype}", "int64", *["int64"] * (2 * pairs)]
    return Shape(tuple(kinds), False, 0, 1, 0, call=call)


def _shape(w: KernelWriter) -> Shape:
    kinds = tuple(kind for _, kind in w.parameters())
    sites = w.has_sites
    return Shape(
        kinds[: len(kinds) - sites], sites, w.threads, w.max_blocks, w.shared_bytes,
        tuple(w.strides), w.wide,
    )  # fmt: skip
