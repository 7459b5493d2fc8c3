"""`device`: where a tensor's memory is. A str ("cpu", "cuda:0") with PyTorch's type and index."""

from __future__ import annotations

from typing import Any

from jitgrad.runtime import cuda


class device(str):
    """A device. `jitgrad.device("cpu")`, `device("cuda")`, `device("cuda", 1)`, `device(0)`; equal
    to its text, so types in the compiler use text.

    Raises RuntimeError for a device that there is not.
    """

    __slots__ = ()

    def __new__(cls, spec: Any = "cpu", index: int | None = None) -> device:
        if not isinstance(spec, (str, int)) or isinstance(spec, bool):
            raise TypeError(f"[device] expected a str such as 'cpu'; got {type(spec).__name__}")
        text = str.__str__(spec) if isinstance(spec, str) else f"cuda:{spec}"
        kind, _, number = text.partition(":")
        if kind == "cuda" and (number.isdigit() or not number):
            if index is not None:
                number = str(int(index))
            cuda.device.require("device")
            if number:
                cuda.device.device(int(number), "device")
            return super().__new__(cls, f"cuda:{int(number)}" if number else "cuda")
        if kind != "cpu" or (number and number != "0") or index not in (None, 0):
            raise RuntimeError(f"[device] expected 'cpu' or 'cuda'; got {text!r}; use device='cpu'")
        return super().__new__(cls, "cpu")

    @property
    def type(self) -> str:
        return "cpu" if self[1] == "p" else "cuda"

    @property
    def index(self) -> int | None:  # type: ignore[override]
        number = self.partition(":")[2]
        return int(number) if number else None

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (str.__str__(self),))


CPU = device("cpu")


def place(spec: Any) -> str:
    """The device that tensors are on which are made for `spec`: "cpu", "cuda:0"."""
    found = device("cpu" if spec is None else spec)
    if found.type == "cpu" or found.index is not None:
        return str.__str__(found)
    return f"cuda:{cuda.device.current()}"
