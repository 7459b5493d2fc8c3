"""Variable: the old name of tensors on the tape."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import as_tensor
from jitgrad.tensor import Tensor


class _Meta(type):
    """Every tensor is a Variable; calling the class gives a tensor."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor)

    def __call__(cls, data: Any = None, requires_grad: bool = False, volatile: Any = None) -> Any:
        x = Tensor(0) if data is None else as_tensor(data).detach()
        return x.requires_grad_(requires_grad)


class Variable(metaclass=_Meta):
    """`Variable(tensor, requires_grad=True)`: a leaf on the tensor's memory, as PyTorch before 0.4.

    Raises RuntimeError for requires_grad with a dtype that is not floating.
    """
