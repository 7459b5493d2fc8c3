"""The input gradient of a strided convolution by phase. Owns no record.

Along a dim of stride s, position h of the result, with h + padding = u s + r, meets only the kernel
elements k = r + s t: y[u - t] w[r + s t]. Phases r with equally many such elements are an axis of
one contraction's output, beside the channels; where s does not divide the kernel's size there are
two kinds of phases along the dim. No product is one by a zero that the stride put between y's
elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    dim,
    load,
    make,
)
from jitgrad.compiler.ops.conv_geometry import Grouped
from jitgrad.compiler.ops.regions import (
    accumulator,
    all_of,
    guarded,
    is_empty,
    padded,
    zero_filled,
)
from jitgrad.compiler.symbolic import Dim, Sym

Ints = tuple[int, ...]


def has_phases(kernel: Sequence[Dim], stride: Ints, dilation: Ints) -> bool:
    """Whether `by_phase` is for this geometry: a stride, none of them with dilation."""
    return any(s > 1 for s in stride) and all(
        s == 1 or (d == 1 and not isinstance(k, Sym))
        for k, s, d in zip(kernel, stride, dilation, strict=True)
    )


@dataclass(eq=False)
class _Phases:
    """Phases [start, stop) of a dim, each with `taps` kernel elements. A dim without a stride has
    one, which is no axis."""

    start: int
    stop: int
    taps: Dim


def _kinds(k: Dim, s: int) -> list[_Phases]:
    if s == 1:
        return [_Phases(0, 1, k)]
    assert isinstance(k, int)
    rest = k % s
    kinds = [_Phases(0, rest, k // s + 1), _Phases(rest, s, k // s)]
    return [p for p in kinds if p.start < p.stop]


def by_phase(
    b: Builder,
    y: Array,
    w: Array,
    shape: Sequence[Dim],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    """conv_input_grad(y, w), (N, C, *shape)."""
    rank = len(stride)
    full = (y.shape[0], w.shape[1] * groups, *shape)
    if is_empty((*full, *y.shape)):
        return zero_filled(b, full, y.dtype)
    kinds = [_kinds(k, s) for k, s in zip(w.shape[2:], stride, strict=True)]
    # result position h is (u, r) with h + shift = u s + r; y[u] is at `low` of the padded y
    shift = [0 if s == 1 else p for s, p in zip(stride, padding, strict=True)]
    count = [(n - 1 + q) // s + 1 for n, q, s in zip(shape, shift, stride, strict=True)]
    most = [kind[0].taps for kind in kinds]
    reach = [d * (t - 1) for t, d in zip(most, dilation, strict=True)]
    low = [r - p + q for r, p, q in zip(reach, padding, shift, strict=True)]
    high = [n + r - lo - q for n, r, lo, q in zip(count, reach, low, y.shape[2:], strict=True)]
    yp = padded(b, y, (0, 0, *low), (0, 0, *high), (1,) * y.ndim, 0)
    moved = [axis(2 + i) + shift[i] for i in range(rank)]
    whole = [h // s if s > 1 else h for h, s in zip(moved, stride, strict=True)]
    value: Expr = const(0, y.dtype)
    for chosen in itertools.product(*kinds):
        if any(not isinstance(c.taps, Sym) and c.taps == 0 for c in chosen):
            continue
        out = _contraction(b, yp, w, full, chosen, most, count, stride, dilation, groups)
        tests: list[Expr | None] = []
        turns = []
        for i, c in enumerate(chosen):
            if stride[i] > 1:
                r = moved[i] % stride[i]
                if len(kinds[i]) > 1:
                    tests += [r >= c.start, r < c.stop]
                    r = make("min", make("max", r, const(c.start, INDEX)), const(c.stop - 1, INDEX))
                turns.append(r - c.start)
        part = load(out, (axis(0), axis(1), *turns, *whole))
        value = guarded(all_of(tests), part, value)
    return b.pointwise(full, y.dtype, value)


def _contraction(
    b: Builder,
    yp: Array,
    w: Array,
    full: Sequence[Dim],
    chosen: Sequence[_Phases],
    most: Sequence[Dim],
    count: Sequence[Dim],
    stride: Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    """The results of some phases, (N, C, *phases of the strided dims, *count)."""
    strided = [i for i, s in enumerate(stride) if s > 1]
    sizes = [chosen[i].stop - chosen[i].start for i in strided]
    g = Grouped(groups, (*full[:2], *sizes, *count), split=1)
    first = 2 + len(strided)
    o, *t = b.axes(1 + len(stride), start=g.rank)
    per_group = w.shape[0] // groups
    element = [dim(c.taps - 1) - j for c, j in zip(chosen, t, strict=True)]
    for turn, i in enumerate(strided):
        element[i] = g.index[2 + turn] + chosen[i].start + element[i] * stride[i]
    at = [
        u + j * d + dim(top - c.taps)
        for u, j, d, top, c in zip(g.index[first:], t, dilation, most, chosen, strict=True)
    ]
    acc = accumulator(yp.dtype)
    out = b.contraction(
        g.shape,
        yp.dtype,
        batch=g.batch,
        m=g.place[1:first],
        n=(g.place[0], *g.place[first:]),
        k=(per_group, *(c.taps for c in chosen)),
        a=load(w, (g.channel(o, per_group), g.within, *element)).cast(acc),
        b=load(yp, (g.index[0], g.channel(o, per_group), *at)).cast(acc),
        acc=acc,
    )
    return g.join(b, out)
