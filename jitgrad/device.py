"""`device`: where a tensor's memory is. A str ("cpu") with PyTorch's `type` and `index`."""

from __future__ import annotations

from typing import Any


class device(str):
    """A device. `jitgrad.device("cpu")`; equal to its text, so types in the compiler use text.

    Raises RuntimeError for a device that jitgrad has not (CUDA is not built yet: docs/limits.md).
    """

    __slots__ = ()

    def __new__(cls, spec: Any = "cpu", index: int | None = None) -> device:
        if not isinstance(spec, (str, int)) or isinstance(spec, bool):
            raise TypeError(f"[device] expected a str such as 'cpu'; got {type(spec).__name__}")
        text = str.__str__(spec) if isinstance(spec, str) else str(spec)
        kind, _, number = text.partition(":")
        if kind == "cuda":
            raise RuntimeError(
                "[device] expected 'cpu'; got 'cuda': the GPU back end is not built yet (see "
                "docs/limits.md); use device='cpu'"
            )
        if kind != "cpu" or (number and number != "0") or index not in (None, 0):
            raise RuntimeError(f"[device] expected 'cpu'; got {text!r}; use device='cpu'")
        return super().__new__(cls, "cpu")

    @property
    def type(self) -> str:
        return "cpu"

    @property
    def index(self) -> int | None:  # type: ignore[override]
        return None

    def __repr__(self) -> str:
        return "device(type='cpu')"

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (str.__str__(self),))


CPU = device("cpu")
