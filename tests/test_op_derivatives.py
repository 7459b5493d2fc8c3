"""Derivatives and batching rules of every op record, on every sample of its own.

vjp, jvp and second order against finite differences in float64; batching against a loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_cases import assert_close, cases, is_float, outputs, run

from jitgrad import autograd
from jitgrad.compiler.ops import Op
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import Sample
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import apply
from jitgrad.runtime.dtypes import from_numpy
from jitgrad.tensor import Tensor, intern_type, wrap


def tensor(a: np.ndarray, requires_grad: bool = False) -> Tensor:
    out = wrap(a, intern_type(TensorType(a.shape, from_numpy(a.dtype))))
    if requires_grad:
        out.requires_grad_()
    return out


class Point:
    """A sample's float operands in float64, a random direction, and random cotangents."""

    def __init__(self, op: Op, s: Sample) -> None:
        self.op, self.s = op, s
        self.args = tuple(a.astype(np.float64) if is_float(a) else a for a in s.args)
        self.floats = [i for i, a in enumerate(s.args) if is_float(a)]
        rng = np.random.default_rng(7)
        self.v = {i: rng.standard_normal(self.args[i].shape) for i in self.floats}
        self.u = {i: rng.standard_normal(self.args[i].shape) for i in self.floats}
        self.g = [
            rng.standard_normal(r.shape) if is_float(r) else None for r in run(op, s, self.args)
        ]

    def moved(self, h: float) -> tuple[np.ndarray, ...]:
        return tuple(a + h * self.v[i] if i in self.v else a for i, a in enumerate(self.args))

    def forward(self, args: tuple[np.ndarray, ...], grad: bool = True) -> Any:
        tensors = [tensor(np.array(a), grad and i in self.v) for i, a in enumerate(args)]
        outs = outputs(apply(self.op, tuple(tensors), dict(self.s.attrs)))
        return tensors, [tensors[i] for i in self.floats], outs

    def gradients(self, args: tuple[np.ndarray, ...], create_graph: bool = False) -> Any:
        _, inputs, outs = self.forward(args)
        pairs = [
            (y, tensor(np.asarray(g), create_graph))
            for y, g in zip(outs, self.g, strict=True)
            if g is not None and y.requires_grad
        ]
        if not pairs:
            return inputs, [], [None] * len(inputs)
        grads = autograd.grad(
            [y for y, _ in pairs], inputs, [g for _, g in pairs], create_graph=create_graph,
            allow_unused=True,
        )  # fmt: skip
        return inputs, [g for _, g in pairs], grads


H = 1e-5


def data(t: Tensor | None, like: np.ndarray) -> np.ndarray:
    return np.zeros(like.shape) if t is None else t.detach().numpy()


@pytest.mark.parametrize(("op", "s"), cases(only_grad=True))
def test_first_order(op: Op, s: Sample) -> None:
    """vjp and jvp against central differences along one random direction."""
    p = Point(op, s)
    up, down = run(op, s, p.moved(H)), run(op, s, p.moved(-H))
    slopes = [(a - b) / (2 * H) if is_float(a) else None for a, b in zip(up, down, strict=True)]
    numeric = sum(
        float(np.sum(g * d)) for g, d in zip(p.g, slopes, strict=True)
        if g is not None and d is not None
    )  # fmt: skip
    _, _, grads = p.gradients(p.args)
    for i, g in zip(p.floats, grads, strict=True):
        assert g is None or g.shape == p.args[i].shape
    along = sum(
        float(np.sum(data(g, p.v[i]) * p.v[i])) for i, g in zip(p.floats, grads, strict=True)
    )
    assert along == pytest.approx(numeric, rel=2e-6, abs=2e-7)

    tensors, _, outs = p.forward(p.args, grad=False)
    tangents = tuple(tensor(p.v[i]) if i in p.v else None for i in range(len(p.args)))
    out = outs if op.nout > 1 else outs[0]
    moved = outputs(op.jvp(tangents, out, *tensors, **s.attrs))
    for t, d in zip(moved, slopes, strict=True):
        if d is not None:
            assert t is None or t.shape == d.shape
            np.testing.assert_allclose(data(t, d), d, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("op", "s"), cases(only_grad=True))
def test_jvp_of_each_operand_alone(op: Op, s: Sample) -> None:
    """With one tangent at a time (the others None), the parts add up to the whole."""
    p = Point(op, s)
    if len(p.floats) < 2:
        pytest.skip("one floating operand")
    tensors, _, outs = p.forward(p.args, grad=False)
    out = outs if op.nout > 1 else outs[0]

    def push(which: list[int]) -> list[np.ndarray | None]:
        tangents = tuple(tensor(p.v[i]) if i in which else None for i in range(len(p.args)))
        parts = outputs(op.jvp(tangents, out, *tensors, **s.attrs))
        return [
            data(t, y.detach().numpy()) if is_float(y.detach().numpy()) else None
            for t, y in zip(parts, outs, strict=True)
        ]

    whole, parts = push(p.floats), [push([i]) for i in p.floats]
    for k, w in enumerate(whole):
        if w is not None:
            total = sum(part[k] for part in parts)  # type: ignore[misc]
            np.testing.assert_allclose(total, w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("op", "s"), cases(only_grad=True))
def test_second_order(op: Op, s: Sample) -> None:
    """The gradient of <vjp, u> by the operands (and by the cotangent) against differences."""
    p = Point(op, s)
    inputs, cotangents, grads = p.gradients(p.args, create_graph=True)
    live = [(i, g) for i, g in zip(p.floats, grads, strict=True) if g is not None]
    live = [(i, g) for i, g in live if g.requires_grad]
    if not live:
        return
    second = autograd.grad(
        [g for _, g in live], [*inputs, *cotangents], [tensor(p.u[i]) for i, _ in live],
        allow_unused=True,
    )  # fmt: skip
    along = sum(
        float(np.sum(data(h, p.v[i]) * p.v[i])) for i, h in zip(p.floats, second, strict=False)
    )

    def pulled(args: tuple[np.ndarray, ...]) -> float:
        _, _, moved = p.gradients(args)
        return sum(
            float(np.sum(data(g, p.u[i]) * p.u[i])) for i, g in zip(p.floats, moved, strict=True)
        )

    numeric = (pulled(p.moved(H)) - pulled(p.moved(-H))) / (2 * H)
    assert along == pytest.approx(numeric, rel=1e-5, abs=1e-6)

    # <vjp(g), u> is linear in g: its gradient by g is J u
    up = run(op, s, tuple(a + H * p.u[i] if i in p.u else a for i, a in enumerate(p.args)))
    down = run(op, s, tuple(a - H * p.u[i] if i in p.u else a for i, a in enumerate(p.args)))
    slopes = [(a - b) / (2 * H) for a, b in zip(up, down, strict=True) if is_float(a)]
    for h, d in zip(second[len(inputs) :], slopes, strict=False):
        np.testing.assert_allclose(data(h, d), d, rtol=2e-6, atol=2e-6)


# -- batching --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "s"), cases())
def test_batch(op: Op, s: Sample) -> None:
    """The batching rule against a loop, for every operand alone and for all together."""
    if not s.args or op.random:
        pytest.skip("no operand to map over")
    choices = {tuple(k == i for k in range(len(s.args))) for i in range(len(s.args))}
    for batched in sorted(choices | {(True,) * len(s.args)}):
        rows = [
            tuple(
                (a * a.dtype.type(1 - 0.25 * r)).astype(a.dtype) if is_b and is_float(a) else a
                for a, is_b in zip(s.args, batched, strict=True)
            )
            for r in range(3)
        ]
        stacked = [
            np.stack([row[k] for row in rows]) if is_b else s.args[k]
            for k, is_b in enumerate(batched)
        ]
        with Quiet():
            found = outputs(op.batch([tensor(a) for a in stacked], batched, **s.attrs))
        wanted = [run(op, s, row) for row in rows]
        for k, y in enumerate(found):
            assert_close(np.asarray(y.numpy()), np.stack([w[k] for w in wanted]))
