"""Recurrent cells: one step of RNN, LSTM and GRU, for loops written by hand."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.making import empty, zeros
from jitgrad.nn import init
from jitgrad.nn.functional.recurrent import GATES, State, Weights, cell
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


class RNNCellBase(Module):
    """Parameters and checks of the cells.

    weight_ih (gates, input_size), weight_hh (gates, hidden_size), bias_ih and bias_hh (gates), all
    from U(-1/sqrt(hidden_size), 1/sqrt(hidden_size)). Shapes: input (N, input_size) or
    (input_size,); states (N, hidden_size) or (hidden_size,), zeros when they are left out.
    """

    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows, kind = num_chunks * hidden_size, {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty(rows, input_size, **kind))
        self.weight_hh = Parameter(empty(rows, hidden_size, **kind))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, **kind)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, mode: str, input: Tensor, states: State | None, count: int) -> State:
        """The next states, `count` of them."""
        name = type(self).__name__
        for what, x in (("input", input), *[("hx", s) for s in states or ()]):
            if x.dim() not in (1, 2):
                raise ValueError(f"[{name}] expected {what} of 1 or 2 dims; got {tuple(x.shape)}")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"[{name}] expected input with input_size={self.input_size} features; got "
                f"{tuple(input.shape)}"
            )
        if states is None:
            zero = zeros(x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)
            states = (zero,) * count
        elif not batched:
            states = tuple([s.unsqueeze(0) for s in states])
        for s in states:
            if tuple(s.shape) != (x.shape[0], self.hidden_size):
                raise RuntimeError(
                    f"[{name}] expected hx of shape {(int(x.shape[0]), self.hidden_size)} for "
                    f"input {tuple(input.shape)}; got {tuple(s.shape)}"
                )
        weights = Weights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        after = cell(mode, x, states, weights)
        return after if batched else tuple([s.squeeze(0) for s in after])

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu for tanh; see RNNCellBase.

    Raises RuntimeError, when called, for another nonlinearity.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, GATES["RNN_TANH"], device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(
                f"[RNNCell] expected nonlinearity 'tanh' or 'relu'; got {self.nonlinearity!r}"
            )
        mode = f"RNN_{self.nonlinearity.upper()}"
        return self._step(mode, input, None if hx is None else (hx,), 1)[0]


class LSTMCell(RNNCellBase):
    """One step of LSTM: input, (h, c) -> (h', c'); see LSTM and RNNCellBase."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, GATES["LSTM"], device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        h, c = self._step("LSTM", input, None if hx is None else tuple(hx), 2)
        return h, c


class GRUCell(RNNCellBase):
    """One step of GRU: input, h -> h'; see GRU and RNNCellBase."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, GATES["GRU"], device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step("GRU", input, None if hx is None else (hx,), 1)[0]
