"""Handlers of ONNX's ops that move elements: shapes, slices, gathers, scatters, padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import Call, axis_of, check_size, handler
from jitgrad.tensor import Tensor


@handler("Shape", folds=False)
def shape(c: Call) -> Any:
    sizes = list(c.value(0).shape)
    start, end = c.attr("start", 0), c.attr("end", None)
    return np.array(sizes[slice(start, end)], np.int64)


@handler("Size", folds=False)
def size(c: Call) -> Any:
    return np.array(math.prod(c.value(0).shape), np.int64)


@handler("Reshape")
def reshape(c: Call) -> Tensor:
    x = c.tensor()
    wanted = c.ints(1) if c.opset >= 5 else c.attr("shape")
    if not c.attr("allowzero", 0):
        wanted = [x.shape[k] if d == 0 else d for k, d in enumerate(wanted)]
    return x.reshape(tuple(wanted))


@handler("Flatten")
def flatten(c: Call) -> Tensor:
    x, axis = c.tensor(), c.attr("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@handler("Squeeze")
def squeeze(c: Call) -> Tensor:
    x, axes = c.tensor(), c.axes()
    if axes is None:
        return x.squeeze()
    chosen = {axis_of(k, x.ndim) for k in axes}
    if any(x.shape[k] != 1 for k in chosen):
        raise ValueError(f"expected dims {sorted(chosen)} of size 1; got shape {list(x.shape)}")
    return x.reshape([d for k, d in enumerate(x.shape) if k not in chosen])


@handler("Unsqueeze")
def unsqueeze(c: Call) -> Tensor:
    x, axes = c.tensor(), c.axes() or []
    rank = x.ndim + len(axes)
    chosen = {axis_of(k, rank) for k in axes}
    sizes = iter(x.shape)
    return x.reshape([1 if k in chosen else next(sizes) for k in range(rank)])


@handler("Transpose")
def transpose(c: Call) -> Tensor:
    x = c.tensor()
    return x.permute(c.attr("perm", None) or list(range(x.ndim))[::-1])


@handler("Concat")
def concat(c: Call) -> Tensor:
    return jg.cat(c.tensors(), c.attr("axis", 1 if c.opset < 4 else 0))


@handler("Split")
def split(c: Call) -> Any:
    x = c.tensor()
    axis = axis_of(c.attr("axis", 0), x.ndim)
    c.ignore("num_outputs")
    sizes = c.ints(1) if c.has(1) else c.attr("split", None)
    if sizes is None:
        count = c.attr("num_outputs", c.outputs)
        each = -(-x.shape[axis] // count)
        sizes = [min(each, max(0, x.shape[axis] - k * each)) for k in range(count)]
    return tuple(jg.split(x, sizes, axis))


@handler("Expand")
def expand(c: Call) -> Tensor:
    x = c.tensor()
    wanted = np.broadcast_shapes(tuple(x.shape), check_size(c.ints(1)))
    return x.expand(check_size(wanted))


@handler("Tile")
def tile(c: Call) -> Tensor:
    x, repeats = c.tensor(), c.ints(1)
    check_size([d * r for d, r in zip(x.shape, repeats, strict=True)])
    return x.repeat(repeats) if repeats else x


@handler("Slice")
def slice_(c: Call) -> Tensor:
    x = c.tensor()
    if c.opset < 10:
        starts, ends = c.attr("starts"), c.attr("ends")
        axes, steps = c.attr("axes", None), None
    else:
        starts, ends = c.ints(1), c.ints(2)
        axes = c.ints(3) if c.has(3) else None
        steps = c.ints(4) if c.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index: list[Any] = [slice(None)] * x.ndim
    backwards: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        k = axis_of(axis, x.ndim)
        first, stop, step = slice(start, end, step).indices(x.shape[k])
        count = len(range(first, stop, step))
        if step < 0:
            last = first + (count - 1) * step
            index[k] = slice(last, first + 1, -step) if count else slice(0, 0)
            backwards.append(k)
        else:
            index[k] = slice(first, max(first, stop), step)
    y = x[tuple(index)]
    return jg.flip(y, backwards) if backwards else y


@handler("Pad")
def pad(c: Call) -> Tensor:
    x, mode = c.tensor(), c.attr("mode", "constant")
    if c.opset < 11:
        pads, value = c.attr("pads"), c.attr("value", 0.0)
    else:
        pads = c.ints(1)
        value = c.array(2).reshape(()).item() if c.has(2) else 0
    n = len(pads) // 2
    axes = [axis_of(k, x.ndim) for k in (c.ints(3) if c.has(3) else range(n))]
    low, high = [0] * x.ndim, [0] * x.ndim
    for k, axis in enumerate(axes):
        low[axis], high[axis] = pads[k], pads[k + n]
    check_size([max(0, d + a + b) for d, a, b in zip(x.shape, low, high, strict=True)])
    if mode == "constant":
        pairs = [p for k in reversed(range(x.ndim)) for p in (low[k], high[k])]
        return F.pad(x, pairs, value=value) if pairs else x
    for k in range(x.ndim):
        if low[k] or high[k]:
            x = jg.index_select(x, k, jg.from_numpy(_padded(x.shape[k], low[k], high[k], mode)))
    return x


def _padded(n: int, low: int, high: int, mode: str) -> np.ndarray[Any, Any]:
    """Which elements a padded dim of size n shows."""
    places = np.arange(-low, n + high)
    if mode == "edge":
        return np.clip(places, 0, n - 1).astype(np.int64)
    if mode == "wrap":
        return (places % n).astype(np.int64)
    if mode != "reflect":
        raise ValueError(f"expected a mode of Pad; got {mode!r}")
    if n == 1:
        return np.zeros_like(places)
    places = np.abs(places) % (2 * (n - 1))
    return np.minimum(places, 2 * (n - 1) - places).astype(np.int64)


@handler("CenterCropPad")
def center_crop_pad(c: Call) -> Tensor:
    x, wanted = c.tensor(), c.ints(1)
    axes = [axis_of(k, x.ndim) for k in (c.attr("axes", None) or range(x.ndim))]
    for axis, size in zip(axes, check_size(wanted), strict=True):
        have = x.shape[axis]
        if size < have:
            x = x.narrow(axis, (have - size) // 2, size)
        elif size > have:
            low = (size - have) // 2
            pairs = [0] * (2 * (x.ndim - axis))
            pairs[-2:] = [low, size - have - low]
            x = F.pad(x, pairs)
    return x


@handler("DepthToSpace")
def depth_to_space(c: Call) -> Tensor:
    x, b = c.tensor(), c.attr("blocksize")
    n, d, h, w = x.shape
    if c.attr("mode", "DCR") == "DCR":
        y = x.reshape(n, b, b, d // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, d // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, d // (b * b), h * b, w * b)


@handler("SpaceToDepth")
def space_to_depth(c: Call) -> Tensor:
    x, b = c.tensor(), c.attr("blocksize")
    n, d, h, w = x.shape
    first = c.attr("mode", "DCR") == "CRD"
    order = (0, 1, 3, 5, 2, 4) if first else (0, 3, 5, 1, 2, 4)
    y = x.reshape(n, d, h // b, b, w // b, b).permute(order)
    return y.reshape(n, d * b * b, h // b, w // b)


@handler("Trilu")
def trilu(c: Call) -> Tensor:
    k, upper = c.ints(1)[0] if c.has(1) else 0, c.attr("upper", 1)
    x = c.tensor()
    if 0 in x.shape:
        return x
    return jg.triu(x, k) if upper else jg.tril(x, k)


@handler("ReverseSequence")
def reverse_sequence(c: Call) -> Tensor:
    x, lengths = c.tensor(0), c.tensor(1)
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    y = x.movedim((batch, time), (0, 1))
    steps = jg.arange(y.shape[1]).reshape(1, -1)
    ends = lengths.reshape(-1, 1)
    places = jg.where(steps < ends, ends - 1 - steps, steps)
    index = places.reshape(*places.shape, *[1] * (y.ndim - 2)).expand(y.shape)
    return jg.gather(y, 1, index).movedim((0, 1), (batch, time))


# -- gather and scatter ---------------------------------------------------------------------------
def _wrapped(index: Tensor, n: int) -> Tensor:
    """Places counted from the front."""
    index = index.to(jg.int64)
    return jg.where(index < 0, index + n, index)


@handler("Gather")
def gather(c: Call) -> Tensor:
    x, index = c.tensor(0), c.tensor(1)
    axis = axis_of(c.attr("axis", 0), x.ndim)
    flat = _wrapped(index, x.shape[axis]).reshape(-1)
    y = jg.index_select(x, axis, flat)
    return y.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@handler("GatherElements")
def gather_elements(c: Call) -> Tensor:
    x = c.tensor(0)
    axis = axis_of(c.attr("axis", 0), x.ndim)
    return jg.gather(x, axis, _wrapped(c.tensor(1), x.shape[axis]))


@handler("GatherND")
def gather_nd(c: Call) -> Tensor:
    x, index, b = c.tensor(0), c.tensor(1), c.attr("batch_dims", 0)
    depth = index.shape[-1]
    lead = tuple(x.shape[:b])
    rows = math.prod(lead)
    flat = x.reshape(rows, *x.shape[b:])
    places = index.reshape(rows, -1, depth)
    where = jg.arange(rows).reshape(-1, 1).expand(rows, places.shape[1])
    picks = [_wrapped(places[..., k], x.shape[b + k]) for k in range(depth)]
    y = flat[(where, *picks)]
    return y.reshape((*lead, *index.shape[b:-1], *x.shape[b + depth :]))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@handler("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> Tensor:
    x, updates = c.tensor(0), c.tensor(2)
    axis = axis_of(c.attr("axis", 0), x.ndim)
    index = _wrapped(c.tensor(1), x.shape[axis])
    how = c.attr("reduction", "none")
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[how], include_self=True)


@handler("ScatterND")
def scatter_nd(c: Call) -> Tensor:
    x, index, updates = c.tensor(0), c.tensor(1), c.tensor(2)
    depth = index.shape[-1]
    inner = math.prod(x.shape[depth:])
    flat = x.reshape(math.prod(x.shape[:depth]), inner)
    place = jg.zeros(index.shape[:-1], dtype=jg.int64)
    for k in range(depth):
        place = place * x.shape[k] + _wrapped(index[..., k], x.shape[k])
    rows = place.reshape(-1, 1).expand(-1, inner)
    values = updates.reshape(rows.shape)
    how = c.attr("reduction", "none")
    if how == "none":
        return flat.scatter(0, rows, values).reshape(x.shape)
    return flat.scatter_reduce(0, rows, values, _REDUCTIONS[how], include_self=True).reshape(
        x.shape
    )


@handler("TensorScatter")
def tensor_scatter(c: Call) -> Tensor:
    """Writes new rows of a cache at each example's own place along an axis."""
    cache, update = c.tensor(0), c.tensor(1)
    axis = axis_of(c.attr("axis", -2), cache.ndim)
    n, steps = cache.shape[axis], update.shape[axis]
    first = c.tensor(2) if c.has(2) else jg.zeros(cache.shape[0], dtype=jg.int64)
    places = first.reshape(-1, 1) + jg.arange(steps).reshape(1, -1)
    if c.attr("mode", "linear") == "circular":
        places = places % n
    shape = [1] * cache.ndim
    shape[0], shape[axis] = cache.shape[0], steps
    return cache.scatter(axis, places.reshape(shape).expand(update.shape), update)


@handler("OneHot")
def one_hot(c: Call) -> Tensor:
    index, values = c.tensor(0), c.tensor(2)
    depth = c.ints(1)[0]
    axis = c.attr("axis", -1)
    check_size((*index.shape, depth))
    rank = index.ndim + 1
    axis = axis_of(axis, rank)
    places = jg.where(index < 0, index + depth, index).unsqueeze(axis)
    range_ = (
        jg.arange(depth).to(index.dtype).reshape([depth if k == axis else 1 for k in range(rank)])
    )
    return jg.where(places == range_, values[1], values[0])


@handler("Compress", folds=False)
def compress(c: Call) -> Tensor:
    x, chosen, axis = c.tensor(0), c.array(1), c.attr("axis", None)
    if axis is None:
        x, axis = x.reshape(-1), 0
    return jg.index_select(x, axis, jg.from_numpy(np.flatnonzero(chosen).astype(np.int64)))
