"""Kernels of the loop language: what fusion groups arrays into, and code generators take.

Owns `LoopKernel` and its stages, `ContractionKernel`, `SpecialKernel`, `ChainKernel`, and what they
read and write. Arrays and expressions are loops.py's.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any

from jitgrad.compiler.loops import Array, Contraction, Expr, definition_exprs, loads
from jitgrad.compiler.symbolic import Dim


@dataclass(frozen=True, eq=False)
class Store:
    """array[index] = value, for every point of the loop it stands in.

    With a `combine` (a name in COMBINES, no arg*): array[index] = combine of value over the outer
    points, in the "columns" order; `index` names every inner axis and no outer one. Such a sum over
    rows is made while the rows pass by; nothing in the kernel reads it.
    """

    array: Array
    index: tuple[Expr, ...]
    value: Expr
    combine: str = ""


@dataclass(frozen=True, eq=False)
class Reduce:
    """array[()] (a row-local scalar of the kernel) = combine over the stage's inner loop of value.

    `array.shape` is (); later stages read it by load(array, ()).
    """

    array: Array
    value: Expr
    combine: str
    order: str = "lanes"


@dataclass(frozen=True, eq=False)
class Stage:
    """One loop over `inner` (axes p..p+q-1; () runs the body once), for each outer point.

    Within one point of the loop all loads come before all stores; a stored array may share memory
    with an array that is loaded at the same index in this loop (in-place).
    """

    inner: tuple[Dim, ...]
    stores: tuple[Store, ...] = ()
    reduces: tuple[Reduce, ...] = ()


@dataclass(eq=False)
class LoopKernel:
    """For each point of `outer` (parallel, axes 0..p-1): the stages, in order.

    `locals`: arrays that live for one outer point only: Reduce results (shape ()), and row buffers
    (any static shape, stored and loaded at inner indices), kept in scratch.
    """

    outer: tuple[Dim, ...]
    stages: list[Stage]
    locals: list[Array] = field(default_factory=list)
    lines: tuple[str, ...] = ()
    name: str = "kernel"


@dataclass(eq=False)
class ContractionKernel:
    """A contraction with an epilogue. `stores` values read the accumulator as
    load(array, (axis(0), ..., axis(rank-1))) where `array` is the contraction's own Array; the
    array itself is stored only if a store says so. Store indices are over the output axes.
    The accumulator is rounded to array.dtype first."""

    array: Array
    stores: list[Store]
    lines: tuple[str, ...] = ()
    name: str = "contraction"

    @property
    def contraction(self) -> Contraction:
        assert isinstance(self.array.define, Contraction)
        return self.array.define


@dataclass(eq=False)
class SpecialKernel:
    """Scan, Scatter, Sort or Call, alone in its kernel: computes `arrays` (two for a Sort)."""

    arrays: list[Array]
    lines: tuple[str, ...] = ()
    name: str = "special"


@dataclass(eq=False)
class ChainKernel:
    """For each point of `tiles` (parallel): all kernels in order, at that point only.

    The leading axes of every kernel's parallel space have as many points. `locals`: arrays of
    which no other kernel knows; all accesses of them are at the point's own index, so one point's
    part of them is kept in scratch.
    """

    tiles: tuple[Dim, ...]
    kernels: list[Any]
    locals: list[Array]
    lines: tuple[str, ...] = ()
    name: str = "chain"


Kernel = LoopKernel | ContractionKernel | SpecialKernel | ChainKernel


def kernel_exprs(kernel: Kernel) -> list[Expr]:
    """The root expressions of everything that a kernel computes, indices of stores included."""
    if isinstance(kernel, ChainKernel):
        return [e for k in kernel.kernels for e in kernel_exprs(k)]
    if isinstance(kernel, LoopKernel):
        return [e for s in kernel.stages for e in _stage_exprs(s)]
    if isinstance(kernel, ContractionKernel):
        c = kernel.contraction
        return [c.a, c.b, *(e for s in kernel.stores for e in (*s.index, s.value))]
    return [e for a in kernel.arrays for e in definition_exprs(a)]


def kernel_reads(kernel: Kernel) -> list[Array]:
    """The arrays (not locals) that a kernel loads, each once, in a fixed order."""
    own: set[int] = set()
    if isinstance(kernel, ChainKernel):
        own = {id(a) for k in kernel.kernels for a in kernel_writes(k)}
        read = [a for k in kernel.kernels for a in kernel_reads(k)]
        return list({id(a): a for a in read if id(a) not in own}.values())
    if isinstance(kernel, LoopKernel):
        own = set(map(id, kernel.locals))
    elif isinstance(kernel, ContractionKernel):
        own = {id(kernel.array)}
    seen: dict[int, Array] = {}
    for e in loads(kernel_exprs(kernel)):
        if id(e.attr) not in own:
            seen.setdefault(id(e.attr), e.attr)
    return list(seen.values())


def kernel_writes(kernel: Kernel) -> list[Array]:
    """The arrays (not locals) that a kernel stores."""
    if isinstance(kernel, ChainKernel):
        own = set(map(id, kernel.locals))
        made = [a for k in kernel.kernels for a in kernel_writes(k)]
        return [a for a in made if id(a) not in own]
    if isinstance(kernel, LoopKernel):
        own = set(map(id, kernel.locals))
        stored = [s.array for stage in kernel.stages for s in stage.stores]
        return list({id(a): a for a in stored if id(a) not in own}.values())
    if isinstance(kernel, ContractionKernel):
        return list({id(s.array): s.array for s in kernel.stores}.values())
    return list(kernel.arrays)


def without_stores(kernel: Kernel, arrays: Set[Array]) -> Kernel | None:
    """A kernel of stages, or a contraction, without its stores to some arrays; None if none is
    left. Others stay as they are."""
    if not isinstance(kernel, (LoopKernel, ContractionKernel)):
        return kernel
    if arrays.isdisjoint(kernel_writes(kernel)):
        return kernel
    if isinstance(kernel, ContractionKernel):
        stores = [s for s in kernel.stores if s.array not in arrays]
        return replace(kernel, stores=stores) if stores else None
    stages: list[Stage] = []
    for stage in kernel.stages:
        kept = tuple(s for s in stage.stores if s.array not in arrays)
        if kept or stage.reduces:
            stages.append(replace(stage, stores=kept))
    return replace(kernel, stages=stages) if any(s.stores for s in stages) else None


def _stage_exprs(stage: Stage) -> list[Expr]:
    exprs = [e for s in stage.stores for e in (*s.index, s.value)]
    return exprs + [r.value for r in stage.reduces]
