"""torch._subclasses: what asks for tensors without data hears that there are none."""

from __future__ import annotations

from typing import Any

from jitgrad.fx import Proxy
from jitgrad.missing import missing, names_module


def is_fake(x: Any) -> bool:
    """Whether x has no data by class. While @jit records, tensors are of the same class."""
    return False


class FakeTensor(Proxy):
    """PyTorch's tensors without data: nothing is one (jitgrad.TensorSpec describes tensors)."""


class FakeTensorMode(Proxy):
    """A mode in which tensors get no data: there is none."""


fake_tensor = names_module(
    f"{__name__}.fake_tensor",
    {"is_fake": is_fake, "FakeTensor": FakeTensor, "FakeTensorMode": FakeTensorMode},
    "Names of torch._subclasses.fake_tensor.",
)

__getattr__ = missing(__name__)
