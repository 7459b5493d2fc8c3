"""What nodes of the tape are called, as in PyTorch: "AddmmBackward0".

Owns the names of records whose own are others, and `called`, by which functions composed of ops
name the node of their result. A name is made when it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAMES: dict[str, str] = {
    "avg_pool": "AvgPool{spatial}DBackward0",
    "cast": "ToCopyBackward0",
    "cholesky": "LinalgCholeskyExBackward0",
    "concatenate": "CatBackward0",
    "conv": "ConvolutionBackward0",
    "conv_input_grad": "ConvolutionBackward0",
    "copy": "torch::autograd::CopyBackwards",
    "copy_slices": "torch::autograd::CopySlices",
    "det": "LinalgDetBackward0",
    "eig": "LinalgEigBackward0",
    "eigh": "LinalgEighBackward0",
    "eigvalsh": "LinalgEighBackward0",
    "fft": "FftC2CBackward0",
    "floor_divide": "torch::autograd::NotImplemented",
    "inverse": "LinalgInvExBackward0",
    "irfft": "FftC2RBackward0",
    "log1p": "Log1PBackward0",
    "matmul": "{product}Backward0",
    "matrix_exp": "LinalgMatrixExpBackward0",
    "max_pool": "MaxPool{spatial}DWithIndicesBackward0",
    "overwrite": "FillBackward0",
    "pad": "ConstantPadNdBackward0",
    "prelu": "PreluKernelBackward0",
    "prod": "ProdBackward{by_dims}",
    "qr": "LinalgQrBackward0",
    "reshape": "ViewBackward0",
    "rfft": "FftR2CBackward0",
    "slogdet": "LinalgSlogdetBackward0",
    "solve": "LinalgSolveExBackward0",
    "sum": "SumBackward{by_dims}",
    "svd": "LinalgSvdBackward0",
    "svdvals": "LinalgSvdBackward0",
}
"""Of records, by name; what is in braces depends on the types (`_parts`)."""


def name_of(op: Any, out_types: Any) -> str:
    """The name of the node of an op."""
    name = NAMES.get(op.name)
    if name is None:
        return "".join(p.capitalize() for p in op.name.split("_")) + "Backward0"
    if "{" not in name:
        return name
    rank = len(out_types.shape) if op.nout == 1 else len(out_types[0].shape)
    return name.format(
        spatial=rank - 2, product="Mm" if rank == 2 else "Bmm", by_dims=int(rank > 0)
    )


def called(y: Any, name: str) -> Any:
    """y, a tensor that ops just made: its node is called by the name from here on."""
    node = y._node
    if node is not None:
        node.label = name
    return y


def naming(name: str) -> Callable[[Any], Any]:
    """A decorator of functions of tensors that are composed of ops: names the node of the result,
    or the first one that is on the tape of several. A "{by_dims}" in the name is 1 where the
    function was told dims, else 0."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        plain = "{" not in name

        @functools.wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            y = made[0] if isinstance(made, tuple) else made
            node = getattr(y, "_node", None)
            if node is not None and not (args and y is args[0]):
                told = plain or len(args) > 1 and args[1] is not None or "dim" in kwargs
                node.label = name if plain else name.format(by_dims=int(told))
            return made

        return named

    return decorate
