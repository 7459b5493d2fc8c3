"""associative_scan: all prefixes of an associative combination, in a logarithmic number of steps.

Made of ops: neighbours are combined in pairs, the pairs are scanned likewise, and what lies between
follows from them (Blelloch 1990, "Prefix sums and their applications"). Derivatives follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.func.mapping import vmap
from jitgrad.functions.shape import cat, flatten, flip, movedim, stack
from jitgrad.pytree import flatten as flatten_tree
from jitgrad.pytree import unflatten as unflatten_tree
from jitgrad.tensor import Tensor

Leaves = list[Tensor]


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Prefixes of xs along `dim`: y[0] = x[0], y[i] = combine_fn(y[i - 1], x[i]), as PyTorch's
    torch._higher_order_ops.associative_scan.

    xs: a tensor, or a tree of tensors of one length along dim; combine_fn takes two such trees of
    slices, without dim, and returns one; it has to be associative, and is called for many slices
    at once: inside vmap, or, with combine_mode "pointwise" (tensors on a GPU only), with the
    slices stacked in front. reverse: prefixes from the end. There are about 2 log2(n) calls.

    Raises ValueError for a function that cannot be called, another mode, no tensors, or a length
    of 0, IndexError for a dim out of range, RuntimeError for results of other shapes or dtypes.
    """
    name = "associative_scan"
    leaves, shape = flatten_tree(xs)
    if not callable(combine_fn):
        raise ValueError(f"[{name}] Combine_fn must be a callable, but got {combine_fn!r:.60}")
    if not isinstance(dim, int):
        raise ValueError(f"[{name}] Dim must be an int, but got {type(dim)}")
    if not isinstance(reverse, bool):
        raise RuntimeError(f"[{name}] Reverse must be a bool, but got {type(reverse)}")
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(
            f"[{name}] Combine_mode must either 'pointwise' or 'generic', but got {combine_mode!r}"
        )
    if not leaves or not all(isinstance(x, Tensor) for x in leaves):
        raise ValueError(f"[{name}] expected xs with at least one tensor, and nothing else")
    if combine_mode == "pointwise" and not all(x.is_cuda for x in leaves):
        raise ValueError(
            f"[{name}] For combine_mode='pointwise', all input tensors need to be on CUDA; got "
            f"{leaves[0]._type}; use combine_mode='generic'"
        )
    rank = leaves[0].ndim
    if not -rank <= dim < rank:
        raise IndexError(f"[{name}] expected a dim in [{-rank}, {rank - 1}]; got {dim}")
    dim = dim % rank
    if any(x.ndim <= dim or x.shape[dim] != leaves[0].shape[dim] for x in leaves):
        raise ValueError(
            f"[{name}] expected xs of one length along dim {dim}; got {_types(leaves)}"
        )
    if leaves[0].shape[dim] == 0:
        raise ValueError(f"[{name}] expected at least one slice along dim {dim}; got none")
    combine = vmap(combine_fn) if combine_mode == "generic" else combine_fn

    def both(a: Sequence[Tensor], b: Sequence[Tensor]) -> Leaves:
        made, kind = flatten_tree(combine(unflatten_tree(shape, a), unflatten_tree(shape, b)))
        if kind != shape or any(
            x._type.with_shape(x.shape[1:]) != y._type.with_shape(y.shape[1:])
            for x, y in zip(made, a, strict=True)
        ):
            raise RuntimeError(
                f"[{name}] expected combine_fn to return what it takes, in shapes and dtypes: "
                f"{_types(a)}; got {_types(made)}"
            )
        return made

    rows = [movedim(x, dim, 0) for x in leaves]
    if reverse:
        rows = [flip(x, [0]) for x in rows]
    rows = _prefixes(both, rows)
    if reverse:
        rows = [flip(x, [0]) for x in rows]
    return unflatten_tree(shape, [movedim(x, 0, dim) for x in rows])


def _types(xs: Sequence[Any]) -> str:
    return ", ".join(str(getattr(x, "_type", x)) for x in xs)


def _prefixes(combine: Callable[[Leaves, Leaves], Leaves], xs: Leaves) -> Leaves:
    """The prefixes along dim 0."""
    n = xs[0].shape[0]
    if n < 2:
        return xs
    odd = _prefixes(combine, combine([x[: n - 1 : 2] for x in xs], [x[1::2] for x in xs]))
    if n == 2:
        return [cat([x[:1], o]) for x, o in zip(xs, odd, strict=True)]
    before = odd if n % 2 else [o[:-1] for o in odd]
    between = combine(before, [x[2::2] for x in xs])
    return [_alternating(x[:1], o, b) for x, o, b in zip(xs, odd, between, strict=True)]


def _alternating(first: Tensor, odd: Tensor, between: Tensor) -> Tensor:
    """first, odd[0], between[0], odd[1], between[1], ...; the last of odd may have none behind."""
    n = between.shape[0]
    pairs = flatten(stack([odd[:n], between], 1), 0, 1)
    return cat([first, pairs, odd[n:]])
