"""Recurrent layers over sequences: the gates of RNN, LSTM and GRU, one step and whole sequences.

The steps are a scan (control_flow.py), composed of ops. What the input contributes to the gates of
all steps is one matrix product in front of the loop. Modules and checks are in nn/recurrent.py,
packing in nn/utils/rnn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import jitgrad.functions as ops
from jitgrad.casting import lower
from jitgrad.control_flow import scan
from jitgrad.functions.shape import cat
from jitgrad.nn.functional.dropout import dropout as drop
from jitgrad.nn.functional.linear import linear
from jitgrad.tensor import Tensor

State = tuple[Tensor, ...]
"""(h,), or (h, c) of an LSTM."""


class Weights(NamedTuple):
    """The parameters of one layer in one direction; None where there is none."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None


class _Hidden(NamedTuple):
    """What a step needs of the weights: matrices as they multiply from the right."""

    hh: Tensor
    bias: Tensor | None
    hr: Tensor | None


Inputs = tuple[Tensor, ...]
Step = Callable[[Inputs, State, _Hidden], State]


def _elman(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(inputs: Inputs, state: State, w: _Hidden) -> State:
        return (activation(inputs[0] + ops.matmul(state[0], w.hh)),)

    return step


def _lstm(inputs: Inputs, state: State, w: _Hidden) -> State:
    """i, f, o = sigmoid, g = tanh of the gates; c' = f c + i g; h' = o tanh(c')."""
    h, c = state
    i, f, g, o = (inputs[0] + ops.matmul(h, w.hh)).chunk(4, -1)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    h = ops.sigmoid(o) * ops.tanh(c)
    return (h if w.hr is None else ops.matmul(h, w.hr)), c


def _gru(inputs: Inputs, state: State, w: _Hidden) -> State:
    """r, z = sigmoid of the gates; n = tanh(x_n + r (W_hn h + b_hn)); h' = n + z (h - n)."""
    (h,) = state
    width = h.shape[-1]
    hidden = ops.matmul(h, w.hh)
    if w.bias is not None:
        hidden = hidden + w.bias.to(hidden.dtype)  # which autocast may have lowered
    r, z = ops.sigmoid(inputs[0] + hidden.narrow(-1, 0, 2 * width)).chunk(2, -1)
    n = ops.tanh(inputs[1] + r * hidden.narrow(-1, 2 * width, width))
    return (n + z * (h - n),)


_STEPS: dict[str, Step] = {
    "RNN_TANH": _elman(ops.tanh),
    "RNN_RELU": _elman(ops.relu),
    "LSTM": _lstm,
    "GRU": _gru,
}
GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}
"""How many times hidden_size the rows of the weights are, by mode."""


def _project(mode: str, x: Tensor, w: Weights) -> tuple[Inputs, _Hidden]:
    """What the input gives to the gates (..., gates), in the parts that a step wants."""
    apart = mode == "GRU"  # whose reset gate multiplies the hidden bias
    bias = w.bias_ih
    if bias is not None and w.bias_hh is not None and not apart:
        bias = bias + w.bias_hh
    gates = linear(x, w.ih, bias)
    hidden = _Hidden(w.hh.t(), w.bias_hh if apart else None, None if w.hr is None else w.hr.t())
    if not apart:
        return (gates,), hidden
    width = w.hh.shape[1]
    return gates.split([2 * width, width], -1), hidden


def cell(mode: str, x: Tensor, state: State, w: Weights) -> State:
    """One step: x (N, in), state of (N, hidden) each -> the next state."""
    return (_lowered_cell if x.is_cuda else _cell)(mode, x, state, w)


def _cell(mode: str, x: Tensor, state: State, w: Weights) -> State:
    inputs, hidden = _project(mode, x, w)
    return _STEPS[mode](inputs, state, hidden)


def _run(
    mode: str, x: Tensor, start: State, w: Weights, sizes: Sequence[int] | None, reverse: bool
) -> tuple[Tensor, State]:
    """One layer in one direction; see recurrent. Packed steps of as many sequences are one scan."""
    projected, hidden = _project(mode, x, w)
    step = _STEPS[mode]
    dtype = projected[0].dtype
    if mode != "GRU" and dtype is not x.dtype:  # lowered by autocast, as each state will be
        start = tuple([s.to(dtype) for s in start])

    def combine(state: State, inputs: Inputs) -> tuple[State, Tensor]:
        new = step(inputs, state, hidden)
        return new, new[0]

    if sizes is None:
        state, y = scan(combine, start, projected, reverse=reverse)
        return y, state
    runs = [(count, len(list(same))) for count, same in groupby(sizes)]
    parts = [p.split([count * steps for count, steps in runs], 0) for p in projected]
    now = runs[-1 if reverse else 0][0]
    state = tuple([s.narrow(0, 0, now) for s in start])
    outputs, ended = [], []
    order = range(len(runs))
    for k in reversed(order) if reverse else order:
        count, steps = runs[k]
        if count < now:  # sequences that ended
            ended.append(tuple([s.narrow(0, count, now - count) for s in state]))
            state = tuple([s.narrow(0, 0, count) for s in state])
        elif count > now:  # backwards: sequences that begin
            more = [s.narrow(0, now, count - now) for s in start]
            state = tuple([cat(pair) for pair in zip(state, more, strict=True)])
        now = count
        rows = tuple([p[k].reshape(steps, count, p[k].shape[-1]) for p in parts])
        state, y = scan(combine, state, rows, reverse=reverse)
        outputs.append(y.reshape(steps * count, y.shape[-1]))
    if ended:
        state = tuple([cat(s) for s in zip(state, *reversed(ended), strict=True)])
    if reverse:
        outputs.reverse()
    return cat(outputs), state


def recurrent(
    mode: str,
    x: Tensor,
    start: State,
    weights: Sequence[Weights],
    directions: int,
    dropout: float,
    sizes: Sequence[int] | None = None,
) -> tuple[Tensor, State]:
    """All layers: (output, last state).

    Shapes: x (T, N, in), or with `sizes` (the number of sequences at each step, never growing)
    packed (sum of sizes, in); start: each (layers * directions, N, hidden); weights: one for each
    layer and direction, the direction changing fastest. output is packed as x is, with
    directions * hidden features. `dropout` is a probability, applied between layers.
    """
    run = _lowered if mode == "LSTM" or x.is_cuda else _layers
    return run(mode, x, start, weights, directions, dropout, sizes)


def _layers(
    mode: str, x: Tensor, start: State, weights: Sequence[Weights], directions: int,
    dropout: float, sizes: Sequence[int] | None,
) -> tuple[Tensor, State]:  # fmt: skip
    layers = len(weights) // directions
    starts = list(zip(*[s.unbind(0) for s in start], strict=True))
    ends = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            y, end = _run(mode, x, starts[k], weights[k], sizes, reverse=direction == 1)
            outputs.append(y)
            ends.append(end)
        x = outputs[0] if directions == 1 else cat(outputs, -1)
        if dropout and layer < layers - 1:
            x = drop(x, dropout)
    return x, tuple([ops.stack(list(s)) for s in zip(*ends, strict=True)])


# Under autocast an LSTM is one function of low precision; on GPUs so are the others, and cells.
_lowered, _lowered_cell = lower(_layers), lower(_cell)
