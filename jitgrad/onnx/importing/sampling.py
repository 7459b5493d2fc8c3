"""Handlers of ONNX's ops that resample images: Resize, GridSample, AffineGrid, RoiAlign."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import Array, Call, axis_of, check_size, handler
from jitgrad.tensor import Tensor


@handler("Upsample")
def upsample(c: Call) -> Tensor:
    x = c.tensor(0)
    scales = c.array(1).tolist() if c.opset >= 9 else c.attr("scales")
    sizes = check_size([math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)])
    mode = c.attr("mode", "nearest")
    for k, (n, s) in enumerate(zip(sizes, scales, strict=True)):
        if n != x.shape[k]:
            at = np.arange(n) / s
            weights = _nearest(at, x.shape[k], "floor") if mode == "nearest" else _linear(
                at, x.shape[k], 1.0, False)  # fmt: skip
            x = _along(x, k, weights)
    return x


@handler("Resize")
def resize(c: Call) -> Tensor:
    """Each dim by itself: a matrix of weights from positions of the input."""
    c.ignore(
        "nearest_mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value",
        "coordinate_transformation_mode", "keep_aspect_ratio_policy", "antialias",
    )  # fmt: skip
    x, mode = c.tensor(0), c.attr("mode", "nearest")
    old = c.opset < 11
    axes = [axis_of(a, x.ndim) for a in (c.attr("axes", None) or range(x.ndim))]
    scales = c.array(1 if old else 2).tolist() if c.has(1 if old else 2) else []
    sizes = c.ints(3) if not old and c.has(3) else []
    policy = c.attr("keep_aspect_ratio_policy", "stretch")
    wanted = {}  # axis -> (size, scale)
    if sizes:
        ratios = [n / x.shape[a] for n, a in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            one = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [one] * len(axes)
            sizes = [math.floor(one * x.shape[a] + 0.5) for a in axes]
        for a, n, ratio in zip(axes, sizes, ratios, strict=True):
            wanted[a] = (n, ratio)
    else:
        for a, s in zip(axes, scales, strict=True):
            wanted[a] = (math.floor(x.shape[a] * s), s)
    check_size([wanted.get(k, (n, 1))[0] for k, n in enumerate(x.shape)])
    how = "asymmetric" if old else c.attr("coordinate_transformation_mode", "half_pixel")
    roi = c.array(1) if how == "tf_crop_and_resize" and c.has(1) else None
    extrapolation = c.attr("extrapolation_value", 0.0)
    dtype = x.dtype
    if mode != "nearest" and not x.is_floating_point():
        x = x.to(jg.float32)
    outside = []
    for i, (axis, (size, scale)) in enumerate(wanted.items()):
        n = int(x.shape[axis])
        if size == n and scale == 1 and roi is None:
            continue
        low, high = (0.0, 1.0) if roi is None else (roi[i], roi[i + len(axes)])
        at = _positions(size, n, scale, how, float(low), float(high))
        if roi is not None:
            outside.append((axis, (at < 0) | (at > n - 1)))
        smooth = max(1.0, 1 / scale) if c.attr("antialias", 0) else 1.0
        if mode == "nearest":
            weights = _nearest(at, n, "floor" if old else c.attr("nearest_mode", _PREFER))
        elif mode == "linear":
            weights = _linear(at, n, smooth, bool(c.attr("exclude_outside", 0)))
        elif mode == "cubic":
            weights = _cubic(
                at, n, c.attr("cubic_coeff_a", -0.75), smooth, bool(c.attr("exclude_outside", 0))
            )
        else:
            c.unsupported(f"mode {mode!r}")
        x = _along(x, axis, weights)
    for axis, mask in outside:
        shape = [len(mask) if k == axis else 1 for k in range(x.ndim)]
        value = jg.full((), extrapolation, dtype=x.dtype)
        x = jg.where(jg.from_numpy(mask.reshape(shape)), value, x)
    return x if x.dtype is dtype else jg.round(x).to(dtype)


_PREFER = "round_prefer_floor"


def _positions(size: int, n: int, scale: float, how: str, low: float, high: float) -> Array:
    """Where in the input each result element lies, in elements."""
    i = np.arange(size, dtype=np.float64)
    if how == "asymmetric":
        return i / scale
    if how == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if size > 1 else np.zeros(size)
    if how == "half_pixel_symmetric":
        whole = n * scale
        centre = n / 2 * (1 - size / whole) if whole else 0.0
        return centre + (i + 0.5) / scale - 0.5
    if how == "align_corners":
        whole = n * scale  # not rounded, as ONNX has it
        return i * (n - 1) / (whole - 1) if whole != 1 else np.zeros(size)
    if how == "tf_crop_and_resize":
        if size > 1:
            return low * (n - 1) + i * (high - low) * (n - 1) / (size - 1)
        return np.full(size, 0.5 * (low + high) * (n - 1))
    raise ValueError(f"expected a coordinate_transformation_mode; got {how!r}")


def _nearest(at: Array, n: int, how: str) -> Array:
    """The place of each element's source, as integers."""
    rounded: dict[str, Any] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5), "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    if how not in rounded:
        raise ValueError(f"expected a nearest_mode; got {how!r}")
    return np.clip(rounded[how](at), 0, n - 1).astype(np.int64)


def _linear(at: Array, n: int, wide: float, exclude: bool) -> Array:
    def triangle(d: Array) -> Array:
        return np.maximum(0, 1 - np.abs(d))

    return _weights(at, n, math.ceil(wide), triangle, wide, exclude)


def _cubic(at: Array, n: int, a: float, wide: float, exclude: bool) -> Array:
    """Keys (1981), "Cubic convolution interpolation", with parameter a."""

    def curve(d: Array) -> Array:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return _weights(at, n, math.ceil(2 * wide), curve, wide, exclude)


def _weights(at: Array, n: int, reach: int, curve: Any, wide: float, exclude: bool) -> Array:
    """A matrix (results, n): each row sums to 1. Places outside count as the edge's, or not."""
    first = np.floor(at).astype(np.int64)
    taps = first[:, None] + np.arange(1 - reach, reach + 1)[None, :]
    value = curve((at[:, None] - taps) / wide)
    inside = (taps >= 0) & (taps < n)
    if exclude:
        value = np.where(inside, value, 0)
    value = value / value.sum(1, keepdims=True)
    out = np.zeros((len(at), n))
    np.add.at(out, (np.arange(len(at))[:, None], np.clip(taps, 0, n - 1)), value)
    return out


def _along(x: Tensor, axis: int, weights: Array) -> Tensor:
    """x with a dim picked (integers) or mixed (a matrix)."""
    if weights.ndim == 1:
        return jg.index_select(x, axis, jg.from_numpy(weights))
    matrix = jg.from_numpy(weights).to(x.dtype)
    return jg.matmul(x.movedim(axis, -1), matrix.T).movedim(-1, axis)


@handler("GridSample")
def grid_sample(c: Call) -> Tensor:
    x, grid = c.tensor(0), c.tensor(1)
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        c.attr("mode", "linear"), c.attr("mode", "linear")
    )
    if mode == "bicubic" and x.ndim != 4:
        c.unsupported("cubic sampling of volumes")
    return F.grid_sample(
        x, grid, mode, c.attr("padding_mode", "zeros"), bool(c.attr("align_corners", 0))
    )


@handler("AffineGrid")
def affine_grid(c: Call) -> Tensor:
    size = check_size(c.ints(1))
    return F.affine_grid(c.tensor(0), size, align_corners=bool(c.attr("align_corners", 0)))


@handler("RoiAlign")
def roi_align(c: Call) -> Tensor:
    """He et al. (2017), "Mask R-CNN": bilinear samples of each bin, their mean or maximum."""
    x, rois, owner = c.tensor(0), c.tensor(1), c.tensor(2)
    oh, ow = c.attr("output_height", 1), c.attr("output_width", 1)
    ratio, scale = c.attr("sampling_ratio", 0), c.attr("spatial_scale", 1.0)
    if ratio <= 0:
        c.unsupported("sampling_ratio 0, whose number of samples depends on the regions")
    mode = c.attr(
        "coordinate_transformation_mode", "half_pixel" if c.opset >= 16 else "output_half_pixel"
    )
    half = 0.5 if mode == "half_pixel" else 0.0
    boxes = rois * scale - half
    x1, y1, x2, y2 = (boxes[:, k] for k in range(4))
    width, height = x2 - x1, y2 - y1
    if not half:
        width, height = jg.clamp(width, min=1.0), jg.clamp(height, min=1.0)
    steps_y = (jg.arange(oh * ratio) + 0.5) / (oh * ratio)
    steps_x = (jg.arange(ow * ratio) + 0.5) / (ow * ratio)
    ys = y1[:, None] + height[:, None] * steps_y
    xs = x1[:, None] + width[:, None] * steps_x
    images = jg.index_select(x, 0, owner.to(jg.int64))
    h, w = x.shape[2:]
    rows, columns = _tent(ys, h), _tent(xs, w)
    parts = jg.einsum("rnh,rchw->rcnw", rows, images)
    if c.attr("mode", "avg") == "avg":
        samples = jg.einsum("rmw,rcnw->rcnm", columns, parts)
        return samples.reshape(*samples.shape[:2], oh, ratio, ow, ratio).mean((3, 5))
    corners = rows.unsqueeze(1).unsqueeze(3).unsqueeze(5)  # the largest weighted corner
    terms = corners * columns.reshape(columns.shape[0], 1, 1, columns.shape[1], 1, w) * images[
        :, :, None, None]  # fmt: skip
    best = jg.amax(terms, (-2, -1))
    return best.reshape(*best.shape[:2], oh, ratio, ow, ratio).amax((3, 5))


def _tent(at: Tensor, n: int) -> Tensor:
    """Bilinear weights (..., n) of positions; none from more than one element outside."""
    outside = (at < -1.0) | (at > n)
    place = jg.clamp(at, 0, n - 1)
    weights = jg.clamp(1 - jg.abs(place[..., None] - jg.arange(n)), min=0)
    return jg.where(outside[..., None], jg.zeros_like(weights), weights)


@handler("NonMaxSuppression", folds=False)
def non_max_suppression(c: Call) -> Any:
    boxes, scores = c.array(0).astype(np.float64), c.array(1)
    limit = int(c.ints(2)[0]) if c.has(2) else 0
    overlap = float(c.array(3).reshape(-1)[0]) if c.has(3) else 0.0
    least = float(c.array(4).reshape(-1)[0]) if c.has(4) else -math.inf
    if c.attr("center_point_box", 0):
        middle, size = boxes[..., :2], boxes[..., 2:] / 2
        boxes = np.concatenate([middle - size, middle + size], -1)
    low = np.minimum(boxes[..., :2], boxes[..., 2:])
    high = np.maximum(boxes[..., :2], boxes[..., 2:])
    chosen: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            kept: list[int] = []
            for k in np.argsort(-scores[batch, kind], kind="stable").tolist():
                if len(kept) >= limit or scores[batch, kind, k] <= least:
                    break
                if all(_iou(low[batch], high[batch], k, j) <= overlap for j in kept):
                    kept.append(k)
            chosen += [(batch, kind, k) for k in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _iou(low: Array, high: Array, a: int, b: int) -> float:
    shared = np.prod(np.maximum(0, np.minimum(high[a], high[b]) - np.maximum(low[a], low[b])))
    union = np.prod(high[a] - low[a]) + np.prod(high[b] - low[b]) - shared
    return float(shared / union) if union > 0 else 0.0
