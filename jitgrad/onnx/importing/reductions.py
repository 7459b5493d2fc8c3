"""Handlers of ONNX's reductions, scans, sorts and normalised exponentials."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import HANDLERS, Call, Registered, axis_of, handler
from jitgrad.tensor import Tensor

Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for k in sorted(axes, reverse=True):
        x = jg.prod(x, k, keepdim=keep).to(x.dtype)
    return x


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return jg.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point():
        return jg.mean(x, axes, keepdim=keep)
    count = int(np.prod([x.shape[k] for k in axes]))
    return jg.div(_sum(x, axes, keep), count, rounding_mode="trunc").to(x.dtype)


def _max(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, jg.amax, False)


def _min(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _extreme(x, axes, keep, jg.amin, True)


def _extreme(x: Tensor, axes: tuple[int, ...], keep: bool, f: Any, least: bool) -> Tensor:
    if any(x.shape[k] == 0 for k in axes):  # of nothing: the farthest value
        shape = [1 if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes]
        if x.dtype is jg.bool:
            return jg.full(shape, least, dtype=jg.bool)
        if x.is_floating_point():
            return jg.full(shape, float("inf") if least else float("-inf"), dtype=x.dtype)
        info = jg.iinfo(x.dtype)
        return jg.full(shape, info.max if least else info.min, dtype=x.dtype)
    if x.dtype is jg.bool:
        return f(x.to(jg.uint8), axes, keepdim=keep).to(jg.bool)
    return f(x, axes, keepdim=keep)


def _in_floats(f: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Reduce:
    def reduce(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        wide = x if x.is_floating_point() else x.to(jg.float64)
        return f(wide, axes, keep).to(x.dtype)

    return reduce


_REDUCE: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: _sum(jg.abs(x), axes, keep),
    "ReduceL2": _in_floats(lambda x, axes, keep: jg.sqrt(_sum(x * x, axes, keep))),
    "ReduceLogSum": _in_floats(lambda x, axes, keep: jg.log(_sum(x, axes, keep))),
    "ReduceLogSumExp": _in_floats(lambda x, axes, keep: jg.logsumexp(x, axes, keepdim=keep)),
    "ReduceMax": _max, "ReduceMean": _mean, "ReduceMin": _min, "ReduceProd": _prod,
    "ReduceSum": _sum, "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}  # fmt: skip


def _reduce(f: Reduce, c: Call) -> Tensor:
    x = c.tensor()
    axes, keep = c.axes(), bool(c.attr("keepdims", 1))
    none = c.attr("noop_with_empty_axes", 0)
    if not axes:
        if none:
            return x if c.node.op_type in _PLAIN else f(x, (), False)
        axes = list(range(x.ndim))
    return f(x, tuple(axis_of(k, x.ndim) for k in axes), keep)


_PLAIN = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def _register() -> None:
    for name, f in _REDUCE.items():
        HANDLERS["", name] = Registered(functools.partial(_reduce, f), True)


_register()


@handler("ArgMax", "ArgMin")
def arg_best(c: Call) -> Tensor:
    x, axis, keep = c.tensor(), c.attr("axis", 0), bool(c.attr("keepdims", 1))
    find = jg.argmax if c.node.op_type == "ArgMax" else jg.argmin
    if not c.attr("select_last_index", 0):
        return find(x, axis, keepdim=keep)
    last = x.shape[axis_of(axis, x.ndim)] - 1
    return last - find(jg.flip(x, [axis]), axis, keepdim=keep)


@handler("CumSum", "CumProd")
def cumulate(c: Call) -> Tensor:
    x = c.tensor(0)
    axis = axis_of(c.ints(1)[0], x.ndim)
    product = c.node.op_type == "CumProd"
    if c.attr("reverse", 0):
        x = jg.flip(x, [axis])
    out = jg.cumprod(x, axis, dtype=x.dtype) if product else jg.cumsum(x, axis, dtype=x.dtype)
    if c.attr("exclusive", 0):
        first = jg.full_like(x.narrow(axis, 0, min(1, x.shape[axis])), int(product))
        out = jg.cat([first, out.narrow(axis, 0, max(0, x.shape[axis] - 1))], axis)
    return jg.flip(out, [axis]) if c.attr("reverse", 0) else out


@handler("TopK")
def top_k(c: Call) -> Any:
    x, axis = c.tensor(0), c.attr("axis", -1)
    k = c.ints(1)[0] if c.opset >= 10 else c.attr("k")
    largest = bool(c.attr("largest", 1))
    c.ignore("sorted")
    values, places = jg.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), places.narrow(axis, 0, k)


@handler("Softmax", "LogSoftmax", "Hardmax")
def normalised(c: Call) -> Tensor:
    x = c.tensor()
    f = {"Softmax": jg.softmax, "LogSoftmax": jg.log_softmax}.get(c.node.op_type, _hardmax)
    if c.opset >= 13:
        return f(x, c.attr("axis", -1))
    axis = axis_of(c.attr("axis", 1), x.ndim)
    rows = int(np.prod(x.shape[:axis]))
    return f(x.reshape(rows, -1), 1).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    best = jg.argmax(x, axis, keepdim=True)
    return jg.zeros_like(x).scatter(axis, best, 1.0)


@handler("LpNormalization")
def lp_normalization(c: Call) -> Tensor:
    x, axis, p = c.tensor(), c.attr("axis", -1), c.attr("p", 2)
    size = jg.sum(jg.abs(x), axis, keepdim=True)
    if p == 2:
        size = jg.sqrt(jg.sum(x * x, axis, keepdim=True))
    elif p != 1:
        c.unsupported(f"p = {p}")
    return jg.where(size == 0, jg.zeros_like(x), x / size)


@handler("Unique", folds=False)
def unique(c: Call) -> Any:
    x, axis = c.array(0), c.attr("axis", None)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not c.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], place[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@handler("NonZero", folds=False)
def non_zero(c: Call) -> Any:
    return np.array(np.nonzero(np.atleast_1d(c.array(0))), np.int64)


@handler("Einsum")
def einsum(c: Call) -> Tensor:
    return jg.einsum(c.attr("equation"), *c.tensors())


@handler("MatMul")
def matmul(c: Call) -> Tensor:
    return jg.matmul(c.tensor(0), c.tensor(1))


@handler("Gemm")
def gemm(c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    a = a.T if c.attr("transA", 0) else a
    b = b.T if c.attr("transB", 0) else b
    y = jg.matmul(a, b)
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    y = y if alpha == 1 else (y * alpha).to(y.dtype)
    if c.has(2) and beta != 0:
        bias = c.tensor(2)
        y = y + (bias if beta == 1 else (bias * beta).to(bias.dtype))
    return y


@handler("Det")
def det(c: Call) -> Tensor:
    return jg.linalg.det(c.tensor())


# -- losses ---------------------------------------------------------------------------------------
@handler("NegativeLogLikelihoodLoss")
def nll_loss(c: Call) -> Tensor:
    return _nll(c, c.tensor(0))


@handler("SoftmaxCrossEntropyLoss")
def cross_entropy(c: Call) -> Any:
    log = jg.log_softmax(c.tensor(0), 1)
    return _nll(c, log), log


def _nll(c: Call, log: Tensor) -> Tensor:
    target = c.tensor(1).to(jg.int64)
    ignored = c.attr("ignore_index", None)
    weight = c.optional(2)
    return F.nll_loss(
        log, target, weight=weight, ignore_index=_NONE if ignored is None else ignored,
        reduction=c.attr("reduction", "mean"),
    )  # fmt: skip


_NONE = -(2**40)
