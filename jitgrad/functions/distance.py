"""Distances and similarities of vectors: pairwise_distance, cosine_similarity, cdist, pdist."""

from __future__ import annotations

import numpy as np

from jitgrad import creation
from jitgrad.casting import wide
from jitgrad.composites import composite
from jitgrad.functions import elementwise, linalg, reduce
from jitgrad.functions.args import expect_dtype, expect_floating, expect_tensor
from jitgrad.functions.shape import broadcast_shapes_of
from jitgrad.promotion import promote_types
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor

_MANY_ROWS = 25
"""From more rows than these on, cdist computes Euclidean distances by a matrix product."""


@composite
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last dim; shapes broadcast."""
    expect_tensor("pairwise_distance", x1), expect_tensor("pairwise_distance", x2)
    return called(reduce.vector_norm(x1 - x2 + eps, p, -1, keepdim), "NormBackward1")


@composite
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along dim; shapes broadcast.

    Raises RuntimeError unless the common dtype is floating.
    """
    expect_tensor("cosine_similarity", x1), expect_tensor("cosine_similarity", x2)
    dtype = promote_types(x1.dtype, x2.dtype)
    if not dtype.is_floating_point:
        raise NotImplementedError(
            f"[cosine_similarity] expected common dtype to be floating point; got {dtype}; convert "
            "with .float()"
        )
    shape = broadcast_shapes_of(x1.shape, x2.shape)
    a, b = (x.to(dtype).expand(shape) for x in (x1, x2))
    return (_unit(a, dim, eps) * _unit(b, dim, eps)).sum(dim)


def _unit(x: Tensor, dim: int, eps: float) -> Tensor:
    """x / max(|x|, eps), differentiated as if the norm were above eps."""
    length = reduce.vector_norm(x, 2, dim, True)
    return x / elementwise.where(length < eps, length - length.detach() + eps, length)


@wide
@composite
@naming("CdistBackward0")
def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Tensor:  # fmt: skip
    """The p-norm distances of all rows: x1 (*, P, M), x2 (*, R, M) -> (*, P, R); * broadcasts.

    For p 2 and more than 25 rows, sqrt(|a|**2 + |b|**2 - 2 a.b), which is faster and less precise
    for rows close to each other (compute_mode "donot_use_mm_for_euclid_dist" never does so,
    "use_mm_for_euclid_dist" always). Raises RuntimeError for sizes that do not fit, a negative p.
    """
    for name, x in (("x1", x1), ("x2", x2)):
        expect_floating("cdist", name, expect_tensor("cdist", x))
    expect_dtype("cdist", x1.dtype, x2=x2)
    if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            "[cdist] expected x1 (*, P, M) and x2 (*, R, M): X1 and X2 must have the same number "
            f"of columns; got {x1._type} and {x2._type}"
        )
    modes = (
        "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
        "donot_use_mm_for_euclid_dist",
    )  # fmt: skip
    if compute_mode not in modes:
        raise ValueError(f"[cdist] {compute_mode} is not a valid value for compute_mode")
    if not p >= 0:
        raise RuntimeError(f"[cdist] only supports non-negative p values; got {p}")
    many = max(x1.shape[-2], x2.shape[-2]) > _MANY_ROWS
    if p == 2 and (compute_mode == modes[1] or (compute_mode == modes[0] and many)):
        return _by_product(x1, x2)
    return _lengths(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _lengths(x: Tensor, p: float) -> Tensor:
    """The p-norms along the last dim; 0 where it is empty."""
    return reduce.vector_norm(x, p if x.shape[-1] else 1, -1)


def _by_product(x1: Tensor, x2: Tensor) -> Tensor:
    squares = (x1 * x1).sum(-1, keepdim=True) + (x2 * x2).sum(-1).unsqueeze(-2)
    squares = squares - 2 * linalg.matmul(x1, x2.transpose(-1, -2))
    positive = squares > 0  # rounding may leave a little less than 0
    root = elementwise.where(positive, squares, 1.0).sqrt()
    return elementwise.where(positive, root, 0.0)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances of all pairs of rows of (N, M), i < j in order: (N * (N - 1) / 2).

    Raises RuntimeError for another rank or a negative p.
    """
    expect_floating("pdist", "input", expect_tensor("pdist", input))
    if input.dim() != 2:
        raise RuntimeError(f"[pdist] only supports 2D tensors, got {input._type}")
    if not p >= 0:
        raise RuntimeError(f"[pdist] only supports non-negative p values; got {p}")
    pairs = np.triu_indices(int(input.shape[0]), 1)
    first, second = (input.index_select(0, creation.tensor(k)) for k in pairs)
    return _lengths(first - second, p)
