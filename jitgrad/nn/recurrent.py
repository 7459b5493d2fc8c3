"""Recurrent layers: RNN, LSTM, GRU over sequences. Cells for one step are in recurrent_cells.py.

Owns parameters and checks; the arithmetic is in functional/recurrent.py.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from jitgrad.casting import lower_dtype
from jitgrad.making import empty, zeros
from jitgrad.nn import init
from jitgrad.nn.functional.recurrent import GATES, State, Weights, recurrent
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.nn.utils.rnn import PackedSequence, batch_sizes_of
from jitgrad.runtime.arguments import apart
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


def _expect_sizes(name: str, **sizes: Any) -> None:
    for what, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"[{name}] expected {what} to be an int; got {type(value).__name__}")
        if value <= 0:
            raise ValueError(f"[{name}] expected {what} of at least 1; got {value}")


class RNNBase(Module):
    """Parameters, checks and the forward pass of RNN, LSTM and GRU.

    Shapes: input (T, N, input_size), with batch_first (N, T, input_size), unbatched
    (T, input_size), or a PackedSequence; the output is alike, with D * (proj_size or hidden_size)
    features, D = 2 if bidirectional else 1. States are (D * num_layers, N, hidden_size).

    Layer k has weight_ih_lk (gates, in), weight_hh_lk (gates, hidden), bias_ih_lk, bias_hh_lk
    (gates) and with proj_size weight_hr_lk (proj, hidden), for the reverse direction with the
    suffix _reverse; all start as U(-1/sqrt(hidden_size), 1/sqrt(hidden_size)).
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if mode not in GATES:
            raise ValueError(f"[{name}] expected a mode of {sorted(GATES)}; got {mode!r}")
        if (
            not isinstance(dropout, numbers.Number)
            or isinstance(dropout, bool)
            or not 0 <= dropout <= 1
        ):
            raise ValueError(f"[{name}] expected dropout, a probability from 0 to 1; got {dropout}")
        if dropout > 0 and num_layers == 1:
            warn(
                f"[{name}] dropout is applied after all layers but the last; with num_layers=1, "
                f"dropout={dropout} does nothing"
            )
        for what, flag in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(flag, bool):
                raise TypeError(f"[{name}] expected {what}, a bool; got {type(flag).__name__}")
        _expect_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"[{name}] expected proj_size of 0 (no projection) or more, less than "
                f"hidden_size={hidden_size}; got {proj_size}"
            )
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        self.proj_size = proj_size
        self._all_weights: list[list[str]] = []
        directions, out = self._directions(), proj_size or hidden_size
        rows, kind = GATES[mode] * hidden_size, {"device": device, "dtype": dtype}
        for layer in range(num_layers):
            features = input_size if layer == 0 else out * directions
            shapes: dict[str, tuple[int, ...]] = {
                "weight_ih": (rows, features), "weight_hh": (rows, out)
            }  # fmt: skip
            if bias:
                shapes.update(bias_ih=(rows,), bias_hh=(rows,))
            if proj_size:
                shapes.update(weight_hr=(proj_size, hidden_size))
            for suffix in ("", "_reverse")[:directions]:
                names = {f"{key}_l{layer}{suffix}": shape for key, shape in shapes.items()}
                for key, shape in names.items():
                    setattr(self, key, Parameter(empty(*shape, **kind)))
                self._all_weights.append(list(names))
        self.reset_parameters()

    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._flat_weights_names]

    def flatten_parameters(self) -> None:
        """Does nothing: parameters need no common piece of memory here."""

    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _weights(self) -> list[Weights]:
        made = []
        for names in self._all_weights:
            values = [getattr(self, name) for name in names]
            bias_ih, bias_hh = values[2:4] if self.bias else (None, None)
            hr = values[-1] if self.proj_size else None
            made.append(Weights(values[0], values[1], bias_ih, bias_hh, hr))
        return made

    def _state_sizes(self) -> tuple[int, ...]:
        """The features of each state."""
        return (self.hidden_size,)

    def _states(self, hx: Any) -> State:
        return (hx,)

    def _run(self, input: Any, hx: Any) -> tuple[Any, State]:
        """(output, states), the states as a tuple."""
        name = type(self).__name__
        if isinstance(input, PackedSequence):
            sizes, count = batch_sizes_of(input), int(batch_sizes_of(input)[0])
            self._check_input(input.data, 2)
            states = self._checked_states(hx, input.data, count, 3)
            if input.sorted_indices is not None and hx is not None:
                states = tuple([s.index_select(1, input.sorted_indices) for s in states])
            data, states = self._recurrent(input.data, states, sizes)
            if input.unsorted_indices is not None:
                states = tuple([s.index_select(1, input.unsorted_indices) for s in states])
            output = PackedSequence(data, *input[1:])
            output._sizes = sizes
            return output, states
        if input.dim() not in (2, 3):
            raise ValueError(
                f"[{name}] expected input of 2 (unbatched) or 3 dims; got {tuple(input.shape)}"
            )
        rank = input.dim()
        self._check_input(input, rank)
        x = input.unsqueeze(1) if rank == 2 else input
        if rank == 3 and self.batch_first:
            x = x.transpose(0, 1)
        if x.shape[0] == 0:
            raise RuntimeError(
                f"[{name}] expected a sequence of at least one step; got input {tuple(input.shape)}"
            )
        states = self._checked_states(hx, x, x.shape[1], rank)
        y, states = self._recurrent(x, states, None)
        if rank == 2:
            return y.squeeze(1), tuple([s.squeeze(1) for s in states])
        return (apart(y.transpose(0, 1), (), {}) if self.batch_first else y), states

    def _recurrent(
        self, x: Tensor, states: State, sizes: tuple[int, ...] | None
    ) -> tuple[Tensor, State]:
        dropout = self.dropout if self.training else 0.0
        weights, directions = self._weights(), self._directions()
        return recurrent(self.mode, x, states, weights, directions, dropout, sizes)

    def _check_input(self, x: Tensor, rank: int) -> None:
        name, weight = type(self).__name__, getattr(self, self._all_weights[0][0])
        if x.dtype is not weight.dtype and lower_dtype(x) is None:
            raise ValueError(
                f"[{name}] expected input of the weights' dtype {weight.dtype}; got {x.dtype} "
                f"{tuple(x.shape)}; convert one with .to(dtype)"
            )
        if x.dim() != rank:
            raise RuntimeError(f"[{name}] expected {rank} dims of data; got {tuple(x.shape)}")
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"[{name}] expected input with input_size={self.input_size} features; got "
                f"{tuple(x.shape)}"
            )

    def _checked_states(self, hx: Any, x: Tensor, count: int, rank: int) -> State:
        """The initial states, (layers * D, count, features) each; zeros when hx is None."""
        layers, sizes = self.num_layers * self._directions(), self._state_sizes()
        if hx is None:
            return tuple([zeros(layers, count, n, dtype=x.dtype, device=x.device) for n in sizes])
        states = []
        for state, features in zip(self._states(hx), sizes, strict=True):
            shape = (layers, features) if rank == 2 else (layers, count, features)
            if tuple(state.shape) != shape:
                raise RuntimeError(
                    f"[{type(self).__name__}] expected a state of shape {shape} for this input; "
                    f"got {tuple(state.shape)}"
                )
            states.append(state.unsqueeze(1) if rank == 2 else state)
        return tuple(states)

    # What subclasses with a forward of their own call.
    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raises RuntimeError for an input of other features, or not of 3 dims (2 when packed)."""
        self._check_input(input, 3 if batch_sizes is None else 2)

    def get_expected_hidden_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[Any, Any, Any]:
        """The shape of the state for an input."""
        count = input.shape[0 if self.batch_first else 1]
        if batch_sizes is not None:
            count = int(batch_sizes[0])
        return self.num_layers * self._directions(), count, self._state_sizes()[0]

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: tuple[Any, Any, Any],
        msg: str = "Expected hidden size {}, got {}",
    ) -> None:  # fmt: skip
        """Raises RuntimeError for a state of another shape."""
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise RuntimeError(msg.format(tuple(expected_hidden_size), list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """check_input, and check_hidden_size of all states."""
        self.check_input(input, batch_sizes)
        *front, _ = self.get_expected_hidden_size(input, batch_sizes)
        for state, features in zip(self._states(hidden), self._state_sizes(), strict=True):
            self.check_hidden_size(state, (front[0], front[1], features))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """The states with their sequences in another order."""
        if permutation is None:
            return hx
        states = tuple([s.index_select(1, permutation) for s in self._states(hx)])
        return states if isinstance(hx, tuple) else states[0]

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        usual = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0,
            "bidirectional": False,
        }  # fmt: skip
        for name, value in usual.items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh) (Elman 1990); or relu for tanh.

    Args: input_size, hidden_size, num_layers=1, nonlinearity="tanh", bias=True, batch_first=False,
    dropout=0.0, bidirectional=False, device=None, dtype=None. See RNNBase for shapes and
    parameters. Raises ValueError for another nonlinearity, RuntimeError for shapes that do not fit.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_projection("RNN", kwargs)
        if len(args) > 3:
            nonlinearity, args = args[3], (*args[:3], *args[4:])
        else:
            nonlinearity = kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"[RNN] expected nonlinearity 'tanh' or 'relu'; got {nonlinearity!r}")
        super().__init__(f"RNN_{nonlinearity.upper()}", *args, **kwargs)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        output, (h,) = self._run(input, hx)
        return output, h


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with forget gates.

    i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh), g = tanh of the same form; c' = f c + i g;
    h' = o tanh(c'), with proj_size W_hr times that (Sak, Senior and Beaufays 2014).

    Args: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
    bidirectional=False, proj_size=0, device=None, dtype=None. The state hx is (h, c). See RNNBase.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)

    def _state_sizes(self) -> tuple[int, ...]:
        return self.proj_size or self.hidden_size, self.hidden_size

    def _states(self, hx: Any) -> State:
        return tuple(hx)

    def get_expected_cell_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[Any, Any, Any]:
        """The shape of the cells' state for an input."""
        layers, count, _ = self.get_expected_hidden_size(input, batch_sizes)
        return layers, count, self.hidden_size

    def forward(
        self, input: Any, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        output, (h, c) = self._run(input, hx)
        return output, (h, c)


class GRU(RNNBase):
    """Gated recurrent units (Cho et al. 2014).

    r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh); n = tanh(W_in x + b_in + r (W_hn h + b_hn));
    h' = (1 - z) n + z h.

    Args: input_size, hidden_size, num_layers=1, bias=True, batch_first=False, dropout=0.0,
    bidirectional=False, device=None, dtype=None. See RNNBase.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_projection("GRU", kwargs)
        super().__init__("GRU", *args, **kwargs)

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        output, (h,) = self._run(input, hx)
        return output, h


def _no_projection(name: str, kwargs: dict[str, Any]) -> None:
    if "proj_size" in kwargs:
        raise ValueError(f"[{name}] proj_size is for LSTM only; leave it out")
