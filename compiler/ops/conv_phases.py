"""The input gradient of a strided convolution as one contraction, by phase. Owns no record.

Along a dim of stride s, position h of the result, with h + padding = u s + r, meets only the kernel
elements k = r + s t: y[u - t] w[r + s t]. Where s divides the kernel's size there are equally many
for each phase r, so the phases are axes of the output beside the channels, and none of the products
is one by a zero that the stride put between y's elements. Other kernels would need weights of zero,
which turn an infinity in y into NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.loops import Array, Builder, axis, dim, load
from jitgrad.compiler.ops.conv_geometry import Grouped
from jitgrad.compiler.ops.regions import accumulator, is_empty, padded, zero_filled
from jitgrad.compiler.symbolic import Dim, Sym

Ints = tuple[int, ...]


def has_phases(kernel: Sequence[Dim], stride: Ints, dilation: Ints) -> bool:
    """Whether `by_phase` is for this geometry."""
    return any(s > 1 for s in stride) and all(
        s == 1 or (d == 1 and not isinstance(k, Sym) and k % s == 0)
        for k, s, d in zip(kernel, stride, dilation, strict=True)
    )


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
    kernel, rank = w.shape[2:], len(stride)
    full = (y.shape[0], w.shape[1] * groups, *shape)
    if is_empty((*full, *y.shape)):
        return zero_filled(b, full, y.dtype)
    taps = [k if s == 1 else k // s for k, s in zip(kernel, stride, strict=True)]
    phases = [i for i in range(rank) if stride[i] > 1]
    # result position h is (u, r) with h + shift = u s + r; y[u] is at `low` of the padded y
    shift = [0 if s == 1 else p for s, p in zip(stride, padding, strict=True)]
    count = [(n - 1 + q) // s + 1 for n, q, s in zip(shape, shift, stride, strict=True)]
    reach = [d * (t - 1) for t, d in zip(taps, dilation, strict=True)]
    low = [r - p + q for r, p, q in zip(reach, padding, shift, strict=True)]
    high = [n + r - lo - q for n, r, lo, q in zip(count, reach, low, y.shape[2:], strict=True)]
    yp = padded(b, y, (0, 0, *low), (0, 0, *high), (1,) * y.ndim, 0)
    sizes = [stride[i] for i in phases]
    g = Grouped(groups, (*full[:2], *sizes, *count), split=1)
    first = 2 + len(phases)
    o, *t = b.axes(1 + rank, start=g.rank)
    per_group = w.shape[0] // groups
    element = [dim(size - 1) - j for size, j in zip(taps, t, strict=True)]
    for turn, i in enumerate(phases):
        element[i] = g.index[2 + turn] + element[i] * stride[i]
    at = [u + j * d for u, j, d in zip(g.index[first:], t, dilation, strict=True)]
    acc = accumulator(y.dtype)
    out = g.join(b, b.contraction(
        g.shape,
        y.dtype,
        batch=g.batch,
        m=g.place[1:first],
        n=(g.place[0], *g.place[first:]),
        k=(per_group, *taps),
        a=load(w, (g.channel(o, per_group), g.within, *element)).cast(acc),
        b=load(yp, (g.index[0], g.channel(o, per_group), *at)).cast(acc),
        acc=acc,
    ))  # fmt: skip
    moved = [axis(2 + i) + shift[i] for i in range(rank)]
    turns = [moved[i] % stride[i] for i in phases]
    whole = [h // s if s > 1 else h for h, s in zip(moved, stride, strict=True)]
    return b.pointwise(full, y.dtype, load(out, (axis(0), axis(1), *turns, *whole)))
