"""Faults: which kernels may raise the error flag, and which of them must be waited for.

Owns `can_fault` and `must_be_waited_for`. State is overwritten only after every kernel that may
still find a fault. One whose checks were all made by a kernel before it cannot: the backward of an
embedding looks at the indices that its forward looked at. If these are wrong the call ends before
anything is overwritten, else the later kernel finds them right; so nothing need wait for it, and
the gradients' readers may free what they read while backward goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jitgrad.compiler.host_call import call_of
from jitgrad.compiler.index import Simplifier, offset
from jitgrad.compiler.kernels import (
    Kernel,
    LoopKernel,
    kernel_exprs,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    const,
    load,
    loads,
    postorder,
    rewrite,
)
from jitgrad.compiler.lower import may_flag
from jitgrad.compiler.symbolic import Dim, hint

Key = tuple[Any, ...]


def can_fault(kernel: Kernel) -> bool:
    """Whether a kernel may raise the error flag."""
    call = call_of(kernel)
    if call is not None:
        return may_flag(call.node)
    return any(e.has_check for e in kernel_exprs(kernel))


def must_be_waited_for(kernels: list[Kernel]) -> list[Kernel]:
    """Those that may find a fault which no other of them finds. kernels: in dependency order."""
    known: set[Key] = set()
    found = []
    for kernel in kernels:
        if not can_fault(kernel):
            continue
        if call_of(kernel) is None and known:
            keys = [_key(e) for e in postorder(kernel_exprs(kernel)) if e.op == "check"]
            if all(key in known for key in keys):
                continue
        found.append(kernel)
        known.update(_checks_of_all(kernel))
    return found


def _key(check: Expr) -> Key | None:
    """What a check asks of an element of an array, wherever the element lies: its expression with
    all places replaced by 0. None where it asks more than that."""
    index, extent = check.args
    read = {e.attr for e in loads([index])}
    if len(read) != 1:
        return None

    def leaf(e: Expr) -> Expr | None:
        return load(e.attr, [const(0, INDEX)] * len(e.args)) if e.op == "load" else None

    plain = rewrite(index, leaf)
    if any(e.op in ("axis", "check") for e in postorder([plain, extent])):
        return None
    return plain, extent


def _checks_of_all(kernel: Kernel) -> Iterator[Key]:
    """The keys of checks that the kernel is sure to make of all elements of an array."""
    if not isinstance(kernel, LoopKernel):
        return
    for stage in kernel.stages:
        extents = (*kernel.outer, *stage.inner)
        roots = [e for s in stage.stores for e in (*s.index, s.value)]
        for e in _unconditional([*roots, *(r.value for r in stage.reduces)]):
            if e.op == "check" and all(_reads_all(x, extents) for x in loads([e.args[0]])):
                key = _key(e)
                if key is not None:
                    yield key


def _unconditional(roots: list[Expr]) -> Iterator[Expr]:
    """The expressions that are computed whatever conditions say."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        yield e
        stack.extend(e.args[:1] if e.op == "select" else e.args)


def _reads_all(e: Expr, extents: tuple[Dim, ...]) -> bool:
    """Whether a load meets all elements of its array as the axes of a loop go: its offset is a sum
    of axes, each of which steps over all that the smaller ones reach."""
    array: Array = e.attr
    sizes = dict(enumerate(extents))
    simplifier = Simplifier(sizes)
    terms = simplifier.poly(simplifier.simplify(offset(array, e.args, sizes)))
    steps = []
    for monomial, step in terms.items():
        if len(monomial) != 1 or monomial[0].op != "axis":
            return False
        steps.append((step, sizes[monomial[0].attr]))
    reached: Dim = 1
    for step, size in sorted(steps, key=lambda x: hint(x[0])):
        if step != reached:
            return False
        reached = reached * size
    return array.strides is None and reached == array.numel
