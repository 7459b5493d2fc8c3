"""jitgrad.lstm, gru, rnn_tanh, rnn_relu and their cells: recurrent layers as functions of a list of
parameters, as PyTorch has them at the top.

Each layer takes (input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
batch_first) with input (T, N, in), or of packed sequences (data, batch_sizes, hx, params,
has_biases, num_layers, dropout, train, bidirectional); params lists, for each layer and direction,
weight_ih, weight_hh, the biases if there are any, and weight_hr of an LSTM with projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.nn.functional.recurrent import State, Weights, cell, recurrent
from jitgrad.runtime.arguments import located
from jitgrad.tensor import Tensor

__all__ = [
    "gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh",
    "rnn_tanh_cell",
]  # fmt: skip


def _weights(params: Sequence[Tensor], biases: bool, count: int) -> list[Weights]:
    each = len(params) // count
    made = []
    for k in range(count):
        own = list(params[k * each : (k + 1) * each])
        w_ih, w_hh = own[:2]
        b_ih, b_hh = own[2:4] if biases else (None, None)
        hr = own[-1] if each > (4 if biases else 2) else None
        made.append(Weights(w_ih, w_hh, b_ih, b_hh, hr))
    return made


def _run(
    name: str, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, State]:
    """The output and the last states."""
    packed = isinstance(args[1], Tensor) and args[1].dim() == 1
    order = ["input", *(["batch_sizes"] if packed else []), "hx", "params", "has_biases",
             "num_layers", "dropout", "train", "bidirectional"]  # fmt: skip
    order += [] if packed else ["batch_first"]
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    if set(given) != set(order) or len(args) > len(order):
        raise TypeError(f"[{name}] expected the arguments {', '.join(order)}; got {sorted(given)}")
    hx = given["hx"]
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if given["bidirectional"] else 1
    count = given["num_layers"] * directions
    if len(given["params"]) % count:
        raise RuntimeError(
            f"[{name}] expected as many parameters for each of {count} layers and directions; got "
            f"{len(given['params'])}"
        )
    weights = _weights(given["params"], given["has_biases"], count)
    dropout = given["dropout"] if given["train"] else 0.0
    x = given["input"]
    if packed:
        sizes = tuple(given["batch_sizes"].tolist())
        return recurrent(mode, x, states, weights, directions, dropout, sizes)
    x = x.transpose(0, 1) if given["batch_first"] else x
    y, states = recurrent(mode, x, states, weights, directions, dropout, None)
    return (y.transpose(0, 1) if given["batch_first"] else y), states


def lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """LSTM, its hx (h, c): the output, h and c after the last step."""
    y, (h, c) = _run("lstm", "LSTM", args, kwargs)
    return y, h, c


def gru(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """GRU: the output, and h after the last step."""
    y, (h,) = _run("gru", "GRU", args, kwargs)
    return y, h


def rnn_tanh(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """RNN with tanh: the output, and h after the last step."""
    y, (h,) = _run("rnn_tanh", "RNN_TANH", args, kwargs)
    return y, h


def rnn_relu(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """RNN with relu: the output, and h after the last step."""
    y, (h,) = _run("rnn_relu", "RNN_RELU", args, kwargs)
    return y, h


def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One step of LSTM: input (N, in), hx (h, c) of (N, hidden) -> (h', c')."""
    h, c = cell("LSTM", input, tuple(hx), Weights(w_ih, w_hh, b_ih, b_hh))
    return h, c


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One step of GRU: input (N, in), hx (N, hidden) -> h'."""
    return cell("GRU", input, (hx,), Weights(w_ih, w_hh, b_ih, b_hh))[0]


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One step of RNN with tanh: input (N, in), hx (N, hidden) -> h'."""
    return cell("RNN_TANH", input, (hx,), Weights(w_ih, w_hh, b_ih, b_hh))[0]


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One step of RNN with relu: input (N, in), hx (N, hidden) -> h'."""
    return cell("RNN_RELU", input, (hx,), Weights(w_ih, w_hh, b_ih, b_hh))[0]


globals().update({name: located(globals()[name]) for name in __all__})
