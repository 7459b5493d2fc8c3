"""Runs kernels of the loop language with NumPy: the oracle for fusion, staging, ordering, memory.

Every expression is evaluated over the whole index grid of its loop at once. Memory is modelled as
the plan has it: arrays that share an arena block or a state input share bytes, so a wrong lifetime
or an unsafe in-place write shows as a wrong number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from loop_interpreter import SCALAR

from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    SpecialKernel,
    kernel_writes,
)
from jitgrad.compiler.loops import (
    INDEX,
    MATH,
    Array,
    Call,
    Contraction,
    Expr,
    Reduction,
    Scan,
    Scatter,
    Sort,
    axis,
    load,
    postorder,
    rewrite,
)
from jitgrad.compiler.lower import Program
from jitgrad.compiler.ops.reduce import last_nan
from jitgrad.compiler.ops.scan import recurrence
from jitgrad.compiler.passes.memory import Plan
from jitgrad.compiler.passes.order import Schedule


class Faults(set[Any]):
    """Sites that were flagged."""


class Machine:
    """Memory for one run: `memory[array]` is the ndarray an Array lives in."""

    def __init__(self) -> None:
        self.memory: dict[Array, np.ndarray] = {}
        self.faults = Faults()

    def evaluate(self, root: Expr, grid: dict[int, np.ndarray]) -> np.ndarray:
        """An expression over an index grid: axis number -> broadcastable int64 array."""
        done: dict[Expr, Any] = {}
        for e in postorder([root]):
            done[e] = self._one(e, [done[a] for a in e.args], grid)
        return np.asarray(done[root])

    def _one(self, e: Expr, args: list[Any], grid: dict[int, np.ndarray]) -> Any:
        dtype = np.dtype(np.int64) if e.dtype is INDEX else e.dtype.np
        if e.op == "const":
            return np.asarray(e.attr).astype(dtype)
        if e.op == "axis":
            return grid[e.attr]
        if e.op == "load":
            return self.memory[e.attr][tuple(args)]
        if e.op == "cast":
            return np.asarray(args[0]).astype(dtype)
        if e.op == "bitcast":
            return np.ascontiguousarray(args[0]).view(dtype).reshape(np.shape(args[0]))
        if e.op == "check":
            if ((args[0] < 0) | (args[0] >= args[1])).any():
                self.faults.add(e.attr)
            return np.clip(args[0], 0, np.maximum(args[1] - 1, 0))
        if e.op == "select":
            return np.where(*args)
        if e.op in MATH:  # in double: what the ops themselves do is loop_interpreter's to check
            wide = [np.asarray(a).astype(np.float64) for a in args]
            return np.asarray(SCALAR[e.op](*wide)).astype(dtype)
        return SCALAR[e.op](*map(np.asarray, args))


def grid(extents: list[int]) -> dict[int, np.ndarray]:
    """Index arrays for axes 0.. with these extents, broadcastable against each other."""
    n = len(extents)
    return {
        k: np.arange(d, dtype=np.int64).reshape([-1 if i == k else 1 for i in range(n)])
        for k, d in enumerate(extents)
    }


def combine(name: str, values: np.ndarray, axes: int) -> np.ndarray:
    """Reduces the last `axes` dims."""
    lead = values.shape[: values.ndim - axes]
    flat = values.reshape((*lead, int(np.prod(values.shape[len(lead) :], dtype=np.int64))))
    if name in ("sum", "prod"):
        f = np.sum if name == "sum" else np.prod
        return np.asarray(f(flat, axis=-1, dtype=flat.dtype))
    if name in ("any", "all"):
        return np.asarray(getattr(np, name)(flat, axis=-1))
    if name == "argpool":
        return last_nan(flat, np.argmax(flat, axis=-1))
    if name in ("argmax", "argmin"):
        return np.asarray(getattr(np, name)(flat, axis=-1))
    if flat.dtype.kind == "f" or flat.dtype.kind == "V":
        start = -np.inf if name == "max" else np.inf
        return np.asarray(getattr(np, name)(flat, axis=-1, initial=start))
    if flat.dtype == bool:
        return np.asarray((np.any if name == "max" else np.all)(flat, axis=-1))
    return np.asarray(getattr(np, name)(flat, axis=-1))


def run_kernel(m: Machine, kernel: Kernel) -> None:
    """Runs one kernel on the machine's memory."""
    if isinstance(kernel, ChainKernel):
        for a in kernel.locals:
            m.memory[a] = np.empty([int(d) for d in a.shape], a.dtype.np)
        for part in kernel.kernels:
            run_kernel(m, part)
    elif isinstance(kernel, LoopKernel):
        _run_loop(m, kernel)
    elif isinstance(kernel, ContractionKernel):
        a = kernel.array
        value = _contract(m, a)
        g = grid([int(d) for d in a.shape])
        m.memory[a], kept = value, m.memory.get(a)
        results = [
            (s, np.broadcast_to(m.evaluate(s.value, g), a.shape).copy()) for s in kernel.stores
        ]
        if kept is not None:
            m.memory[a] = kept
        for s, v in results:
            m.memory[s.array][
                tuple(np.broadcast_to(m.evaluate(i, g), v.shape) for i in s.index)
            ] = v
    else:
        assert isinstance(kernel, SpecialKernel)
        for a in kernel.arrays:
            m.memory[a][...] = _special(m, a)


def _run_loop(m: Machine, kernel: LoopKernel) -> None:
    outer = [int(d) for d in kernel.outer]
    p = len(outer)
    local = set(kernel.locals)

    def substitute(root: Expr) -> Expr:
        """Row locals get the outer axes in front of their index."""

        def leaf(e: Expr) -> Expr | None:
            if e.op == "load" and e.attr in local:
                return load(whole[e.attr], (*(axis(k) for k in range(p)), *e.args))
            return None

        return rewrite(root, leaf)

    whole = {a: Array(a.name, (*outer, *a.shape), a.dtype) for a in kernel.locals}
    for a in kernel.locals:
        m.memory[whole[a]] = np.empty([*outer, *(int(d) for d in a.shape)], a.dtype.np)
    for s in kernel.stages:
        extents = [*outer, *(int(d) for d in s.inner)]
        g = grid(extents)
        stores = [
            (t, np.broadcast_to(m.evaluate(substitute(t.value), g), extents).copy())
            for t in s.stores
        ]
        reduces = [
            (r, np.broadcast_to(m.evaluate(substitute(r.value), g), extents).copy())
            for r in s.reduces
        ]
        for t, v in stores:
            if t.combine:
                moved = np.moveaxis(v, range(p), range(-p, 0))
                inner = grid([int(d) for d in s.inner])
                at = {p + k: i for k, i in inner.items()}
                index = [np.broadcast_to(m.evaluate(i, at), moved.shape[: len(s.inner)])
                         for i in t.index]  # fmt: skip
                m.memory[t.array][tuple(index)] = combine(t.combine, moved, p)
                continue
            index = [np.broadcast_to(m.evaluate(substitute(i), g), extents) for i in t.index]
            if t.array in local:
                lead = [np.broadcast_to(g[k], extents) for k in range(p)]
                m.memory[whole[t.array]][(*lead, *index)] = v
            else:
                m.memory[t.array][tuple(index)] = v
        for r, v in reduces:
            m.memory[whole[r.array]][...] = combine(r.combine, v, len(s.inner))


def _contract(m: Machine, a: Array) -> np.ndarray:
    c = a.define
    assert isinstance(c, Contraction)
    extents = [*(int(d) for d in a.shape), *(int(d) for d in c.k)]
    g = grid(extents)
    acc = c.acc.np
    wide = np.float64 if np.dtype(acc).kind == "f" else acc
    x, y = m.evaluate(c.a, g).astype(wide), m.evaluate(c.b, g).astype(wide)
    product = np.broadcast_to(x * y, extents)
    total = product.sum(axis=tuple(range(a.ndim, len(extents))), dtype=wide)
    return np.asarray(total).astype(acc).astype(a.dtype.np)


def _special(m: Machine, a: Array) -> np.ndarray:
    d = a.define
    shape = [int(s) for s in a.shape]
    g = grid(shape)
    if isinstance(d, Scan):
        v = np.broadcast_to(m.evaluate(d.body, g), shape)
        v = np.flip(v, d.along) if d.reverse else v
        if d.factor is not None:
            scale = np.broadcast_to(m.evaluate(d.factor, g), shape)
            scale = np.flip(scale, d.along) if d.reverse else scale
            out = recurrence(scale, v, d.along)
            return np.flip(out, d.along) if d.reverse else out
        f = {"sum": np.cumsum, "prod": np.cumprod}.get(d.combine)
        if f is not None:
            out = f(v, axis=d.along, dtype=v.dtype)
        else:
            ufunc = np.maximum if d.combine == "max" else np.minimum
            out = ufunc.accumulate(v, axis=d.along)
        return np.flip(out, d.along) if d.reverse else out
    if isinstance(d, Scatter):
        out = np.broadcast_to(m.evaluate(d.base, g), shape).copy()
        extents = shape + [int(s) for s in d.extents]
        rank = len(shape)
        inner = {k: v.reshape(v.shape[rank:]) for k, v in grid(extents).items() if k >= rank}
        space = extents[rank:]
        index = [np.broadcast_to(m.evaluate(i, inner), space).ravel() for i in d.index]
        value = np.broadcast_to(m.evaluate(d.value, inner), space).ravel()
        for n in range(value.size):
            at = tuple(int(i[n]) for i in index)
            old = out[at]
            out[at] = {"set": lambda o, v: v, "sum": lambda o, v: o + v,
                       "prod": lambda o, v: o * v, "max": np.maximum,
                       "min": np.minimum}[d.combine](old, value[n])  # fmt: skip
        return out
    if isinstance(d, Call):
        found = d.node.op.reference(*(m.memory[e.attr] for e in d.operands), **d.node.attr)
        return np.asarray(found[d.part] if isinstance(found, tuple) else found)
    assert isinstance(d, (Sort, Reduction)) and isinstance(d, Sort)
    whole = [*shape[: d.along], int(d.extent), *shape[d.along + 1 :]]
    v = np.broadcast_to(m.evaluate(d.body, grid(whole)), whole)
    if v.dtype.kind == "V":  # NumPy does not know where a bfloat16 NaN sorts
        v = v.astype(np.float32)
    if d.descending:
        n = v.shape[d.along]
        flipped = np.flip(v, d.along)
        order = np.flip(np.argsort(flipped, axis=d.along, kind="stable"), d.along)
        order = n - 1 - order
    else:
        order = np.argsort(v, axis=d.along, kind="stable")
    order = np.take(order, range(shape[d.along]), d.along)
    return np.take_along_axis(v, order, d.along) if d.part == 0 else order


def run_schedule(
    program: Program, schedule: Schedule, plan: Plan, inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], Faults]:
    """Runs a planned program. Inputs are written in place. Returns the program's results."""
    m = Machine()
    arena = np.empty(plan.peak, np.uint8)
    arena[:] = 0xA5  # garbage shows
    for a, x in zip(program.inputs, inputs, strict=True):
        m.memory[a] = x
    for wave in schedule.waves:
        for kernel in wave:
            for a in kernel_writes(kernel):
                if a in m.memory:
                    continue
                if a in schedule.home:
                    m.memory[a] = m.memory[schedule.home[a]]
                elif a in plan.offsets:
                    start = plan.offsets[a]
                    n = int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize
                    m.memory[a] = arena[start : start + n].view(a.dtype.np).reshape(a.shape)
                else:
                    m.memory[a] = np.empty(a.shape, a.dtype.np)
    for n, wave in enumerate(schedule.waves):
        if n == schedule.commit and m.faults:
            break
        for kernel in wave:
            with np.errstate(all="ignore"):
                run_kernel(m, kernel)
    return [m.memory[a] for a in program.results], m.faults
