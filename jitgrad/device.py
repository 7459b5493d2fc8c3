"""`device`: where a tensor's memory is. A str ("cpu", "cuda:0") with PyTorch's type and index.

Owns the names of devices, and `place`, which asks whether one is there.
"""

from __future__ import annotations

from typing import Any

from jitgrad.runtime import cuda
from jitgrad.state import state

_KINDS = (
    "cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia",
    "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone",
)  # fmt: skip


class device(str):
    """A device. `jitgrad.device("cpu")`, `device("cuda")`, `device("cuda", 1)`, `device(0)`; equal
    to its text, so types in the compiler use text. It need not be there, unless it is a number:
    making a tensor on it asks.

    `with device("cuda"):` makes it the default device of this thread: factories (zeros, tensor,
    randn, ...) and modules make tensors there unless told otherwise. Raises RuntimeError for a kind
    of device that PyTorch has not, and on entering one that is not there.
    """

    __slots__ = ()

    def __new__(cls, type: Any = None, index: int | None = None, *, device: Any = None) -> device:
        spec = type if device is None else device
        if spec.__class__ is cls and index is None:
            return spec
        if not isinstance(spec, (str, int)) or isinstance(spec, bool):
            kind = spec.__class__.__name__
            raise TypeError(f"[device] expected a str such as 'cpu'; got {kind}")
        if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
            raise TypeError(
                "device(): argument 'index' (position 2) must be int, not "
                f"{index.__class__.__name__}"
            )
        if isinstance(spec, int):  # a number of a device that must be there
            cuda.device.require("device")
        text = str.__str__(spec) if isinstance(spec, str) else f"cuda:{spec}"
        kind, colon, number = text.partition(":")
        if kind not in _KINDS:
            raise RuntimeError(
                f"[device] expected one of {', '.join(_KINDS)} at the start of the device string; "
                f"got {text!r}; use device='cpu'"
            )
        if colon and (index is not None or not number.isdigit()):
            raise RuntimeError(
                f"[device] expected a kind, or a kind and a number, as in 'cuda:1'; got {text!r}"
                + ("" if index is None else f" and index={index}")
            )
        number = number if index is None else str(int(index))
        plain = kind if not number or kind == "cpu" else f"{kind}:{int(number)}"
        return super().__new__(cls, plain)

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        number = self.partition(":")[2]
        return int(number) if number else None

    def __enter__(self) -> device:
        _outer().append(state.device)
        set_default(self)
        return self

    def __exit__(self, *error: object) -> None:
        state.device = _outer().pop()

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (str.__str__(self),))


CPU = device("cpu")


def set_default(spec: Any) -> None:
    """Makes a device this thread's default. Raises RuntimeError for one that is not there."""
    where = place(spec)
    state.device = None if where == "cpu" else where


def _outer() -> list[str | None]:
    """The default devices outside of the contexts that this thread is in."""
    found: list[str | None] = state.__dict__.setdefault("outer_devices", [])
    return found


def place(spec: Any, what: str = "device") -> str:
    """The device that tensors are on which are made for `spec`: "cpu", "cuda:0".

    Raises RuntimeError for a device that there is not.
    """
    found = device("cpu" if spec is None else spec)
    if found == "cpu":
        return "cpu"
    if found.type != "cuda":
        raise RuntimeError(f"[{what}] expected 'cpu' or 'cuda'; got {found!s}; use device='cpu'")
    cuda.device.require(what)
    if found.index is None:
        return f"cuda:{cuda.device.current()}"
    cuda.device.device(found.index, what)
    return str.__str__(found)
