"""Sharing: work that two stages of a kernel have in common is done once.

Before: a LoopKernel. After: the same, where a heavy expression of one stage that a later stage
computes again is stored into a row buffer, and loaded there. Expressions are hash-consed, so what
is equal is one object. Values that are the same for the whole row are computed once anyway.
"""

from __future__ import annotations

from dataclasses import replace

from jitgrad.compiler.cost import own_weight
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    INDEX,
    LEAVES,
    Array,
    Expr,
    axis,
    load,
    postorder,
    rewrite,
)
from jitgrad.compiler.passes.inline import CHEAP
from jitgrad.compiler.symbolic import is_static, prod

ROW_BUFFER_BYTES = 64 * 1024  # of a buffer that stays in a core's cache
_MOST = 4  # buffers of one kernel, with those that it has already


def share(kernel: LoopKernel) -> LoopKernel:
    """Puts what is worth it into row buffers."""
    loops = [s for s in kernel.stages if s.inner]
    if len(loops) < 2 or not is_static(loops[0].inner):
        return kernel
    if any(r.order.startswith("columns") for s in loops for r in s.reduces):
        return kernel
    p, inner = len(kernel.outer), loops[0].inner
    index = tuple(axis(p + k) for k in range(len(inner)))
    count = sum(1 for a in kernel.locals if a.shape)
    stages = list(kernel.stages)
    made: list[Array] = []
    rows = _Rows(p)
    for n in range(len(stages)):
        if stages[n].inner != inner:
            continue
        here = set(postorder(roots_of(stages[n])))
        later = [e for s in stages[n + 1 :] for e in postorder(roots_of(s)) if e in here]
        kept = _largest([e for e in dict.fromkeys(later) if rows.heavy(e)])
        reads: dict[Expr, Expr] = {}
        for e in kept:
            size = prod(inner) * e.dtype.itemsize
            if count + len(made) < _MOST and isinstance(size, int) and size <= ROW_BUFFER_BYTES:
                made.append(Array(f"shared{len(made)}", inner, e.dtype))
                reads[e] = load(made[-1], index)
        if reads:
            stores = [Store(x.attr, index, e) for e, x in reads.items()]
            stages[n] = replace(stages[n], stores=(*stages[n].stores, *stores))
            stages[n + 1 :] = [_with(s, reads) for s in stages[n + 1 :]]
    if not made:
        return kernel
    return replace(kernel, stages=stages, locals=[*kernel.locals, *made])


def roots_of(stage: Stage) -> list[Expr]:
    """What a stage computes, indices of stores included."""
    stored = [e for t in stage.stores for e in (*t.index, t.value)]
    return stored + [r.value for r in stage.reduces]


class _Rows:
    """Which expressions cost more to compute for each point of a row than a trip to a buffer does.
    Nodes are looked at once, arguments first. p: the first axis of a row."""

    def __init__(self, p: int) -> None:
        self.p = p
        self.varies: dict[Expr, bool] = {}
        self.dear: dict[Expr, bool] = {}

    def heavy(self, root: Expr) -> bool:
        """Whether this one does."""
        if root.op in LEAVES or root.dtype is INDEX:
            return False
        if root not in self.dear:
            for e in postorder([root]):
                if e not in self.dear:
                    self._look(e)
        return self.dear[root]

    def _look(self, e: Expr) -> None:
        varies = self.varies[e] = (
            e.op == "axis" and e.attr >= self.p or any(self.varies[a] for a in e.args)
        )
        dear = varies and any(self.dear[a] for a in e.args)
        if varies and not dear:
            seen, stack, total = {e}, [e], 0
            while stack:
                x = stack.pop()
                total += own_weight(x)
                below = [a for a in x.args if a not in seen and self.varies[a]]
                seen.update(below)
                stack += dict.fromkeys(below)
            dear = total > CHEAP
        self.dear[e] = dear


def _largest(found: list[Expr]) -> list[Expr]:
    """Those that are no part of another."""
    inside: set[Expr] = set()
    stack = [a for e in found for a in e.args]
    while stack:
        e = stack.pop()
        if e not in inside:
            inside.add(e)
            stack += e.args
    return [e for e in found if e not in inside]


def _with(stage: Stage, reads: dict[Expr, Expr]) -> Stage:
    memo: dict[Expr, Expr] = {}

    def new(e: Expr) -> Expr:
        return rewrite(e, reads.get, memo)

    return replace(
        stage,
        stores=tuple(replace(t, value=new(t.value)) for t in stage.stores),
        reduces=tuple(replace(r, value=new(r.value)) for r in stage.reduces),
    )
