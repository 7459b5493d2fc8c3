"""Handlers of ONNX's recurrent layers: RNN, GRU, LSTM, in both directions, by jitgrad.scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import Call, handler
from jitgrad.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


class _Layer:
    """The operands and attributes that the three share."""

    def __init__(self, c: Call, gates: int, defaults: list[str]) -> None:
        c.ignore("hidden_size")  # w has it
        self.x, self.w, self.r = c.tensor(0), c.tensor(1), c.tensor(2)
        self.hidden = self.w.shape[1] // gates
        self.batch_first = bool(c.attr("layout", 0))
        if self.batch_first:
            self.x = self.x.transpose(0, 1)
        self.bias = c.optional(3)
        self.lengths = c.optional(4)
        direction = c.attr("direction", "forward")
        ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        if direction not in ways:
            raise ValueError(f"expected a direction; got {direction!r}")
        self.ways = ways[direction]
        self.initial = [self.state(c, i) for i in (5, 6)]
        clip = c.attr("clip", None)
        names = c.attr("activations", None) or defaults * len(self.ways)
        alpha, beta = c.attr("activation_alpha", None), c.attr("activation_beta", None)
        each = len(defaults)
        self.activations = [
            [
                _activation(c, name, alpha, beta, d * each + k, clip)
                for k, name in enumerate(names[d * each : (d + 1) * each])
            ]
            for d in range(len(self.ways))
        ]

    def state(self, c: Call, i: int) -> Tensor:
        """(directions, batch, hidden)."""
        if not c.has(i):
            return jg.zeros((len(self.ways), self.x.shape[1], self.hidden), dtype=self.x.dtype)
        found = c.tensor(i)
        return found.transpose(0, 1) if self.batch_first else found

    def run(self, step: Any, states: int) -> Any:
        """step(direction, projected x, states) -> states, for each step. Results of ONNX's form."""
        steps = self.x.shape[0]
        outputs, lasts = [], []
        for d, backwards in enumerate(self.ways):
            now = [s[d] for s in self.initial[:states]]
            projected = jg.matmul(self.x, self.w[d].T)
            if self.bias is not None:
                wide = self.w.shape[1]
                projected = projected + self.bias[d, :wide]

            def one(carry: Any, row: Any, d: int = d) -> Any:
                x, t = row
                after = step(d, x, list(carry))
                if self.lengths is None:
                    return tuple(after), after[0]
                inside = (self.lengths > t).reshape(-1, 1)
                kept = tuple(jg.where(inside, a, b) for a, b in zip(after, carry, strict=True))
                return kept, jg.where(inside, after[0], jg.zeros_like(after[0]))

            last, ys = jg.scan(one, tuple(now), (projected, jg.arange(steps)), reverse=backwards)
            outputs.append(ys)
            lasts.append(list(last))
        y = jg.stack(outputs, 1)  # (steps, directions, batch, hidden)
        ends = [jg.stack([now[k] for now in lasts]) for k in range(states)]
        if self.batch_first:
            y, ends = y.permute(2, 0, 1, 3), [e.transpose(0, 1) for e in ends]
        return (y, *ends)

    def recurrent_bias(self, d: int) -> Tensor | float:
        return 0.0 if self.bias is None else self.bias[d, self.w.shape[1] :]


def _activation(
    c: Call, name: str, alphas: Any, betas: Any, k: int, clip: float | None
) -> Activation:
    """An activation by ONNX's name, with its own alpha and beta."""
    alpha = alphas[k] if alphas and k < len(alphas) else None
    beta = betas[k] if betas and k < len(betas) else None
    a, b = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
    found: dict[str, Activation] = {
        "relu": jg.relu, "tanh": jg.tanh, "sigmoid": jg.sigmoid, "softsign": F.softsign,
        "softplus": F.softplus, "affine": lambda x: a * x + b, "elu": lambda x: F.elu(x, a),
        "leakyrelu": lambda x: F.leaky_relu(x, 0.01 if alpha is None else alpha),
        "thresholdedrelu": lambda x: jg.where(x > a, x, jg.zeros_like(x)),
        "scaledtanh": lambda x: a * jg.tanh(x * (1.0 if beta is None else beta)),
        "hardsigmoid": lambda x: jg.clamp(
            (0.2 if alpha is None else alpha) * x + (0.5 if beta is None else beta), 0, 1
        ),
    }  # fmt: skip
    f = found.get(name.lower())
    if f is None:
        c.unsupported(f"activation {name!r}")
    return f if clip is None else lambda x: f(jg.clamp(x, -clip, clip))


@handler("RNN")
def rnn(c: Call) -> Any:
    layer = _Layer(c, 1, ["Tanh"])

    def step(d: int, x: Tensor, now: list[Tensor]) -> list[Tensor]:
        (h,), (f,) = now, layer.activations[d]
        return [f(x + jg.matmul(h, layer.r[d].T) + layer.recurrent_bias(d))]

    return layer.run(step, 1)


@handler("GRU")
def gru(c: Call) -> Any:
    layer = _Layer(c, 3, ["Sigmoid", "Tanh"])
    before, n = bool(c.attr("linear_before_reset", 0)), layer.hidden

    def step(d: int, x: Tensor, now: list[Tensor]) -> list[Tensor]:
        (h,), (f, g) = now, layer.activations[d]
        weights, bias = layer.r[d], layer.recurrent_bias(d)
        gates = x[:, : 2 * n] + jg.matmul(h, weights[: 2 * n].T)
        inner: Tensor | float = 0.0
        if isinstance(bias, Tensor):
            gates, inner = gates + bias[: 2 * n], bias[2 * n :]
        z, r = f(gates[:, :n]), f(gates[:, n:])
        if before:
            candidate = g(x[:, 2 * n :] + r * (jg.matmul(h, weights[2 * n :].T) + inner))
        else:
            candidate = g(x[:, 2 * n :] + jg.matmul(r * h, weights[2 * n :].T) + inner)
        return [(1 - z) * candidate + z * h]

    return layer.run(step, 1)


@handler("LSTM")
def lstm(c: Call) -> Any:
    layer = _Layer(c, 4, ["Sigmoid", "Tanh", "Tanh"])
    n, coupled = layer.hidden, bool(c.attr("input_forget", 0))
    peephole = c.optional(7)

    def step(d: int, x: Tensor, now: list[Tensor]) -> list[Tensor]:
        (h, cell), (f, g, k) = now, layer.activations[d]
        gates = x + jg.matmul(h, layer.r[d].T) + layer.recurrent_bias(d)
        i, o, forget, new = (gates[:, j * n : (j + 1) * n] for j in range(4))
        if peephole is not None:
            p = peephole[d]
            i, forget = i + p[:n] * cell, forget + p[2 * n :] * cell
        i = f(i)
        keep = 1 - i if coupled else f(forget)
        cell = keep * cell + i * g(new)
        if peephole is not None:
            o = o + peephole[d][n : 2 * n] * cell
        return [f(o) * k(cell), cell]

    return layer.run(step, 2)
