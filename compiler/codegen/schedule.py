"""Operands and indices of loop kernels, without LLVM: what a `Program` (program.py) is made with.

Owns the numbers of operands, flat element offsets of loads and stores, the linear analysis of an
offset along an axis, and `Space` with `collapse`: adjacent axes are one wherever every index allows
it. Which loop is vectorised is decided in `nest.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.kernelcode import Operand, Site, Size
from jitgrad.compiler.index import Monomial, Poly, Simplifier, strides_of
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
    make,
    postorder,
    rewrite,
)
from jitgrad.compiler.math import expand
from jitgrad.compiler.symbolic import Dim, prod

_LINEAR = {"add", "sub", "mul", "neg", "const", "axis", "size"}


@dataclass
class Operands:
    """The operands of a kernel, numbered by first appearance."""

    list: list[Operand] = field(default_factory=list)
    flat: dict[Array, Array] = field(default_factory=dict)  # array -> its 1-d stand-in
    number: dict[Array | Site | str, int] = field(default_factory=dict)

    def array(self, array: Array) -> Array:
        """The stand-in of an operand: 1-d, named by its number."""
        found = self.flat.get(array)
        if found is None:
            n = len(self.list)
            self.list.append(array)
            found = self.flat[array] = Array(f"operand{n}", (array.numel,), array.dtype)
            self.number[found] = n
        return found

    def site(self, tag: object) -> int:
        site = Site(tag)
        if site not in self.number:
            self.number[site] = len(self.list)
            self.list.append(site)
        return self.number[site]

    def size(self, name: str, dims: Mapping[str, Dim]) -> int:
        """The operand that says which word of sizes holds the dim called `name`."""
        if name not in self.number:
            self.number[name] = len(self.list)
            self.list.append(dims.get(name, Size(name)))
        return self.number[name]


def flatten_loads(
    root: Expr,
    operands: Operands,
    local: Mapping[Array, Array],
    simplifier: Simplifier,
    math: bool = False,
) -> Expr:
    """root with math expanded (unless `math`: the back end has functions for it), indices
    simplified and every load by element offset."""

    def leaf(e: Expr) -> Expr | None:
        if e.op != "load":
            return None
        array: Array = e.attr
        if not array.shape:
            return e if array in local else loops.load(operands.array(array), (const(0, INDEX),))
        flat = local[array] if array in local else operands.array(array)
        return loops.load(flat, (offset_of(array, e.args),))

    return simplifier.simplify(rewrite(root if math else expand(root), leaf))


def offset_of(array: Array, index: Iterable[Expr]) -> Expr:
    """The element offset of array[index], not simplified."""
    total = const(0, INDEX)
    for i, stride in zip(index, strides_of(array), strict=True):
        total = make("add", total, make("mul", i, loops.dim(stride)))
    return total


def step_of(e: Expr, k: int, known: Mapping[Expr, int]) -> int:
    """d where e reads axis k only as axis // d, 2 d, ...; 0 where it does not read it. `known`: of
    its arguments."""
    if e.op == "axis":
        return int(e.attr == k)
    if e.op == "floordiv" and e.args[1].op == "const" and e.args[0] is loops.axis(k):
        return int(e.args[1].attr)
    return math.gcd(*(known[a] for a in e.args))


# -- linear forms ----------------------------------------------------------------------------------
def index_roots(roots: Iterable[Expr]) -> list[Expr]:
    """The maximal linear INDEX expressions under roots: where an index meets something else."""
    out: dict[Expr, None] = {}
    roots = list(roots)
    for e in roots:
        if e.dtype is INDEX:
            out[e] = None
    for e in postorder(roots):
        if e.dtype is INDEX and e.op in _LINEAR:
            continue
        for a in e.args:
            if a.dtype is INDEX:
                out[a] = None
    return list(out)


def coefficient(poly: Poly, axis_expr: Expr) -> Poly | None:
    """The coefficient of an axis in a polynomial; None where it is not linear in the axis.

    Atoms other than sizes are taken as they are: what is inside them has index roots of its own.
    """
    out: Poly = {}
    for m, c in poly.items():
        if axis_expr in m:
            rest = list(m)
            rest.remove(axis_expr)
            if any(a.op != "size" for a in rest):
                return None
            out[tuple(rest)] = out.get(tuple(rest), 0) + c
    return {_sorted(m): c for m, c in out.items() if c}


def _sorted(m: Monomial) -> Monomial:
    return tuple(sorted(m, key=lambda e: str(e.attr)))


def times_dim(simplifier: Simplifier, poly: Poly, d: Dim) -> Poly:
    size = simplifier.poly(loops.dim(d))
    return {_sorted(m): c for m, c in simplifier._mul(poly, size).items() if c}


def constant_of(poly: Poly | None) -> int | None:
    """The integer that a polynomial is; None for others."""
    if poly is None or any(m for m in poly):
        return None
    return poly.get((), 0)


def walk(poly: Poly | None) -> int:
    """How good an axis is for neighbouring lanes or threads, by its coefficient in one load."""
    stride = constant_of(poly)
    return 2 if stride == 1 else 1 if stride == 0 else 0


@dataclass
class Space:
    """A loop space: axis numbers and their extents, outermost first."""

    axes: list[int]
    extents: list[Dim]

    @property
    def total(self) -> Dim:
        return prod(self.extents)


def collapse(
    space: Space, roots: list[Expr], extents: dict[int, Dim], fixed: int = 0
) -> tuple[Space, dict[Expr, Expr]]:
    """Drops axes of extent 1 and joins adjacent ones where every index of `roots` allows it.

    Returns the new space and {axis expression: replacement}. The last `fixed` axes stay apart.
    """
    replace: dict[Expr, Expr] = {}
    axes, sizes = [], []
    for k, d in zip(space.axes, space.extents, strict=True):
        if isinstance(d, int) and d == 1:
            replace[axis(k)] = const(0, INDEX)
        else:
            axes.append(k)
            sizes.append(d)
    s = Simplifier(extents)
    polys = [s.poly(s.simplify(r)) for r in index_roots(roots)]
    k = len(axes) - 1
    while k > 0:
        last, first = axis(axes[k]), axis(axes[k - 1])
        joined = k < len(axes) or not fixed
        if fixed and k >= len(axes) - fixed:
            joined = False
        for p in polys:
            if not joined:
                break
            inner, outer = coefficient(p, last), coefficient(p, first)
            joined = (
                inner is not None and outer is not None and outer == times_dim(s, inner, sizes[k])
            )
        if joined:
            replace[first] = const(0, INDEX)
            sizes[k] = sizes[k - 1] * sizes[k]
            del axes[k - 1], sizes[k - 1]
            polys = [{m: c for m, c in p.items() if first not in m} for p in polys]
        k -= 1
    return Space(axes, sizes), replace
