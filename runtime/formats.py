"""How elements lie in memory, as arguments and attributes name it: layouts, memory formats, and
PyTorch's schemes of quantised tensors.

Owns the three types and their values. Tensors here have one layout, `strided`, and one memory
format: the others can be named, compared, saved and given where they change nothing.
"""

from __future__ import annotations

from typing import Any


class _Named:
    """A value with a name. There is one object per name: compare with `is` or `==`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class layout(_Named):
    """How a tensor stores its elements."""

    __slots__ = ()


class memory_format(_Named):
    """The order in which dims lie in memory."""

    __slots__ = ()


class qscheme(_Named):
    """How numbers are quantised; no tensor here is."""

    __slots__ = ()


strided = layout("strided")
sparse_coo, sparse_csr, sparse_csc = (
    layout("sparse_coo"),
    layout("sparse_csr"),
    layout("sparse_csc"),
)
sparse_bsr, sparse_bsc, jagged = layout("sparse_bsr"), layout("sparse_bsc"), layout("jagged")

contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")

per_tensor_affine = qscheme("per_tensor_affine")
per_channel_affine = qscheme("per_channel_affine")
per_tensor_symmetric = qscheme("per_tensor_symmetric")
per_channel_symmetric = qscheme("per_channel_symmetric")
per_channel_affine_float_qparams = qscheme("per_channel_affine_float_qparams")

TYPES = (layout, memory_format, qscheme)
BY_NAME: dict[str, layout | memory_format | qscheme] = {
    name: value for name, value in globals().items() if isinstance(value, TYPES)
}


def expect_strided(function: str, given: Any) -> None:
    """Raises for a layout that tensors do not have: TypeError if it is none."""
    if given is None or given is strided:
        return
    if not isinstance(given, layout):
        raise TypeError(
            f"{function}(): argument 'layout' must be torch.layout, not {type(given).__name__}"
        )
    raise NotImplementedError(
        f"[{function}] expected layout torch.strided; got {given}: there are no sparse or jagged "
        "tensors yet (docs/limits.md)"
    )
