"""Functions that rearrange elements: views, joins, splits, repetitions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.compiler.ops.movement import inverse_axes
from jitgrad.compiler.ops.record import OPS, same_shape
from jitgrad.compiler.symbolic import Sym, hint, plain
from jitgrad.compiler.symbolic import prod as dims_product
from jitgrad.compiler.types import broadcast_shapes
from jitgrad.composites import composite
from jitgrad.dispatch import apply
from jitgrad.functions.args import (
    as_dim,
    as_shape,
    expect_rank_of,
    expect_tensor,
    infer_minus_one,
    one_axis,
    one_given,
    positions,
)
from jitgrad.layouts import can_view, is_dense, is_told, layout_of, order_of, outline, root_order
from jitgrad.pending import fetch, waits
from jitgrad.promotion import cast, constant, expect_fits, plain_number, result_type
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.formats import preserve_format
from jitgrad.sizes import to_hints
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Size, Tensor, root_of


# -- views ---------------------------------------------------------------------------------------
def _viewable(x: Tensor, shape: tuple[Any, ...]) -> bool:
    """Whether x's memory can be seen under this shape without a copy."""
    data = x._data
    if data is None:
        if not is_told(x):  # as if made anew, unless seen through something but reshapes
            return all(op.name == "reshape" for op, _ in x._chain)
        return is_dense(x) or can_view(OPS["reshape"], {"shape": shape}, layout_of(x))
    if data.flags.c_contiguous:
        return True
    shape = tuple(operator.index(d) for d in to_hints(shape))
    return bool(OPS["reshape"].can_view(data.shape, data.strides, shape))  # type: ignore[attr-defined]


def reshape(input: Tensor, *positional: Any, shape: Any = None) -> Tensor:
    """The elements in row-major order under another shape (one size may be -1): a view where the
    memory allows it, else a copy."""
    given = as_shape(positional if shape is None else (shape,))
    sizes = infer_minus_one("reshape", given, input.numel())
    if not _viewable(input, sizes):
        input = apply(OPS["contiguous"], (input,), {})
    return apply(OPS["reshape"], (input,), {"shape": sizes})


def view(input: Tensor, *positional: Any, size: Any = None, dtype: DType | None = None) -> Tensor:
    """reshape that never copies: raises RuntimeError where the memory does not allow it. With a
    dtype: see view_dtype."""
    if dtype is not None:
        return view_dtype(input, dtype)
    if len(positional) == 1 and isinstance(dtypes.of_python(positional[0]), DType):
        return view_dtype(input, dtypes.of_python(positional[0]))
    given = as_shape(positional if size is None else (size,))
    sizes = infer_minus_one("view", given, input.numel())
    if is_told(input) and not _viewable(input, sizes) and _fits(input, sizes):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead. (Tensor "
            f"{input._type} with strides {input.stride()}, view {list(sizes)}.)"
        )
    return apply(OPS["reshape"], (input,), {"shape": sizes})


def _fits(x: Tensor, sizes: tuple[Any, ...]) -> bool:
    return bool(dims_product(sizes) == x.numel())


def view_dtype(input: Tensor, dtype: DType) -> Tensor:
    """The bits read as another dtype; a view, off the tape. Between sizes of elements the last dim
    grows or shrinks by their ratio. Raises RuntimeError where it does not divide, or has gaps."""
    if dtype is input.dtype:
        return alias(input)
    return apply(OPS["bitcast"], (input,), {"dtype": dtype})


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """view(other.shape)."""
    return view(input, other.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """reshape(other.shape)."""
    return reshape(input, other.shape)


def _restructure(input: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """Reshape where dims of size 1 come or go only: always a view."""
    return apply(OPS["reshape"], (input,), {"shape": shape})


def permute(input: Tensor, *positional: Any, dims: Any = None) -> Tensor:
    """The dims in another order; a view."""
    order = as_shape(positional if dims is None else (dims,))
    rank = input.ndim
    if len(order) != rank:
        raise RuntimeError(
            "permute: number of dimensions in the tensor input does not match the length of the "
            f"desired ordering of dimensions i.e. input.dim() = {rank} is not equal to len(dims) "
            f"= {len(order)}"
        )
    axes = tuple(one_axis("permute", rank, d) for d in order)
    if len(set(axes)) != rank:
        raise RuntimeError(f"permute(): duplicate dims are not allowed; got {order}")
    return apply(OPS["permute"], (input,), {"axes": axes})


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dims exchanged; a view."""
    rank = input.ndim
    a, b = one_axis("transpose", rank, dim0), one_axis("transpose", rank, dim1)
    if not rank:
        return called(alias(input), "TransposeBackward0")
    axes = list(range(rank))
    axes[a], axes[b] = axes[b], axes[a]
    out = apply(OPS["permute"], (input,), {"axes": tuple(axes)})
    return called(out, "TransposeBackward0")


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two dims exchanged; a view."""
    return transpose(input, axis0, axis1)


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors as they are."""
    if input.ndim > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D; use "
            ".mT or permute"
        )
    return called(transpose(input, 0, 1) if input.ndim == 2 else alias(input), "TBackward0")


def alias(input: Tensor) -> Tensor:
    """A view of all of it."""
    return _restructure(input, tuple(input._type.shape))


def strides_known(x: Tensor) -> bool:
    """Whether x's memory lies in its root's row-major order, so that strides can be spoken of."""
    if waits(x):
        fetch(x)
    root = x._storage.array
    if x._data is None or root is None:
        plain = root_order(x._storage) is None
        return plain and all(op.name == "reshape" for op, _ in x._chain)
    return bool(root.flags.c_contiguous)


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Tensor:
    """Element (i, j, ...) is what lies at storage_offset + i stride[0] + j stride[1] + ... in the
    memory of input's base (offset by default input's own); a view.

    Gradients go to the base. Raises RuntimeError past the memory's end, for negative strides, and
    where the memory itself is not in row-major order (clone() it first).
    """
    if storage_offset is None:
        storage_offset = input.storage_offset()
    base = input if input._base is None else input._base
    if not strides_known(input):
        raise RuntimeError(
            f"[as_strided] expected a tensor whose memory is in row-major order; got {input._type} "
            f"with strides {input.stride()}; use .contiguous() first"
        )
    offset = as_dim(storage_offset)
    if base._data is not None and base._chain:
        # A base that shows a part (a detached view, say): seen from there if it is in one piece.
        if base._data.flags.c_contiguous and (base.requires_grad or base._storage.array is None):
            offset = offset - base.storage_offset()
        else:
            base = root_of(base._storage)
    if base.dtype is not input.dtype:
        base = view_dtype(base, input.dtype)
    flat = apply(OPS["reshape"], (base,), {"shape": (base.numel(),)})
    attrs = {"size": as_shape((tuple(size),)), "stride": as_shape((tuple(stride),))}
    return apply(OPS["as_strided"], (flat,), {**attrs, "offset": offset})


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Dims moved to other places; the rest keep their order. A view."""
    rank = input.ndim
    many = isinstance(source, (tuple, list)), isinstance(destination, (tuple, list))
    sources = list(source) if many[0] else [source]
    places = list(destination) if many[1] else [destination]
    if len(sources) != len(places):
        kind = TypeError if many[0] is not many[1] else None
        raise (kind or RuntimeError)(
            f"movedim: Invalid source or destination dims: {source} and {destination} should "
            "contain the same number of dims"
        )
    sources = [one_axis("movedim", rank, d) for d in sources]
    places = [one_axis("movedim", rank, d) for d in places]
    for what, dims in (("source", sources), ("destination", places)):
        if len(set(dims)) != len(dims):
            raise RuntimeError(f"movedim: repeated dim in `{what}` ({dims})")
    order: list[int | None] = [None] * rank
    for s, d in zip(sources, places, strict=True):
        order[d] = s
    rest = iter(k for k in range(rank) if k not in sources)
    return permute(input, tuple(next(rest) if k is None else k for k in order))


def matrix_transpose(input: Tensor) -> Tensor:
    """The last two dims exchanged (`x.mT`)."""
    if input.ndim < 2:
        raise RuntimeError(
            "tensor.mT is only supported on matrices or batches of matrices. Got "
            f"{input.ndim}-D tensor."
        )
    return transpose(input, -2, -1)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dims start..end merged into one."""
    rank = input.ndim
    a, b = one_axis("flatten", rank, start_dim), one_axis("flatten", rank, end_dim)
    if a > b:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    shape = input._type.shape
    if not rank:
        return _restructure(input, (1,))
    if a == b:
        return input
    return reshape(input, (*shape[:a], dims_product(shape[a : b + 1]), *shape[b + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dim split into several (one of them may be -1)."""
    axis = one_axis("unflatten", input.ndim, dim)
    shape = input._type.shape
    split = infer_minus_one("unflatten", as_shape(tuple(sizes)), shape[axis])
    if dims_product(split) != shape[axis]:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(split)} don't multiply up to the size of dim {axis} "
            f"({shape[axis]}) in the input tensor"
        )
    return view(input, (*shape[:axis], *split, *shape[axis + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """Flattened to one dim."""
    return reshape(input, -1)


def squeeze(input: Tensor, dim: Any = None, *more: int) -> Tensor:
    """Without its dims of size 1 (all, or of those named, which may come one by one). A view."""
    if more:
        dim = (dim, *more)
    shape = input._type.shape
    rank = len(shape)
    if dim is None:
        drop = set(range(rank))
    else:
        dims = dim if isinstance(dim, (tuple, list)) else (dim,)
        drop = {one_axis("squeeze", rank, d) for d in dims}
        if len(drop) != len(dims):
            raise RuntimeError(f"[squeeze] dim appears multiple times in the list of dims: {dim}")
    kept = tuple(d for k, d in enumerate(shape) if k not in drop or d != 1)
    kind = 0 if dim is None else 2 if isinstance(dim, (tuple, list)) else 1
    return called(_restructure(input, kept), f"SqueezeBackward{kind}")


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a new dim of size 1 at `dim`. A view."""
    axis = one_axis("unsqueeze", input.ndim + 1, dim)
    shape = input._type.shape
    return called(_restructure(input, (*shape[:axis], 1, *shape[axis:])), "UnsqueezeBackward0")


def expand(input: Tensor, *positional: Any, size: Any = None) -> Tensor:
    """Dims of size 1 repeated, without a copy; -1 keeps a size; new dims may come in front."""
    shape = as_shape(positional if size is None else (size,))
    lead = len(shape) - input.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand({input._type}, size={list(shape)}): the number of sizes provided "
            f"({len(shape)}) must be greater or equal to the number of dimensions in the tensor "
            f"({input.ndim})"
        )
    filled = []
    for k, d in enumerate(shape):
        if isinstance(d, int) and d == -1:
            if k < lead:
                raise RuntimeError(
                    f"The expanded size of the tensor ({d}) isn't allowed in a leading, "
                    f"non-existing dimension {k}"
                )
            d = input._type.shape[k - lead]
        filled.append(plain(d))  # whether it is the input's size is no choice of the user's
    if not lead and same_shape(filled, input._type.shape):
        return alias(input)
    return apply(OPS["expand"], (input,), {"shape": tuple(filled)})


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """expand(other.shape)."""
    return expand(input, tuple(other._type.shape))


def broadcast_to(input: Tensor, *positional: Any, size: Any = None) -> Tensor:
    """expand(size); sizes may come one by one."""
    return expand(input, *positional, size=size)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All expanded to their common shape."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes_of(*(x._type.shape for x in tensors))
    return tuple(expand(x, shape) for x in tensors)


def broadcast_shapes_of(*shapes: Any) -> tuple[Any, ...]:
    """The shape that these broadcast to (torch.broadcast_shapes)."""
    try:
        return Size(broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in shapes)))
    except ValueError as error:
        raise RuntimeError(
            "Shape mismatch: objects cannot be broadcast to a single shape; got "
            f"{', '.join(str(tuple(s)) for s in shapes)} ({error})"
        ) from None


def diagonal_view(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two dims, as the last dim; a view."""
    a, b = one_axis("diagonal", input.ndim, dim1), one_axis("diagonal", input.ndim, dim2)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    attrs = {"offset": offset, "axis1": a, "axis2": b}
    return apply(OPS["diagonal"], (input,), attrs)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """All windows of `size`, `step` apart, along a dim; the window is the last dim. A view."""
    axis = one_axis("unfold", input.ndim, dimension)
    if not input.ndim:  # a 0-d tensor is windowed as a vector of one element
        return unfold(input.reshape(1), 0, size, step).reshape(size) if size else input.new_zeros(0)
    attrs = {"axis": axis, "size": size, "step": step}
    return apply(OPS["unfold"], (input,), attrs)


def slice_along(input: Tensor, axis: int, start: Any, stop: Any, step: int = 1) -> Tensor:
    """input[..., start:stop:step, ...] along one axis; bounds are normalised already."""
    shape = input._type.shape
    rank = len(shape)
    attrs = {
        "starts": tuple([start if k == axis else 0 for k in range(rank)]),
        "stops": tuple([stop if k == axis else shape[k] for k in range(rank)]),
        "steps": tuple([step if k == axis else 1 for k in range(rank)]),
    }
    return apply(OPS["slice"], (input,), attrs)


def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """`length` elements from `start` along a dim; a view."""
    axis = one_axis("narrow", input.ndim, dim)
    if not input.ndim:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    size = input._type.shape[axis]
    if isinstance(start, Tensor) and (start.ndim or not start.dtype.is_integer):
        raise RuntimeError(f"[narrow] start must be an 0-dim integral Tensor; got {start._type}")
    start = as_dim(start)
    if start < 0:
        start = start + size
    if start < 0 or start > size:
        raise IndexError(
            f"[narrow] start out of range (expected to be in range of [{-size}, {size}], but got "
            f"{start})"
        )
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if start + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return slice_along(input, axis, start, start + length)


def select(input: Tensor, dim: int, index: Any) -> Tensor:
    """The slice at `index` along a dim, which goes away; a view."""
    rank = input.ndim
    if not rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = one_axis("select", rank, dim)
    size = input._type.shape[axis]
    index = as_dim(index)
    if not (-size <= index and index < size):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input._type.shape)} "
            f"at dimension {axis}"
        )
    if index < 0:
        index = index + size
    part = slice_along(input, axis, index, index + 1)
    shape = part._type.shape
    return called(_restructure(part, (*shape[:axis], *shape[axis + 1 :])), "SelectBackward0")


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices along a dim."""
    axis = one_axis("unbind", input.ndim, dim)
    if not input.ndim:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    count = operator.index(input._type.shape[axis])
    return tuple([called(select(input, axis, i), "UnbindBackward0") for i in range(count)])


def split(
    tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None
) -> tuple[Tensor, ...]:
    """Parts along a dim, of one size (the last may be smaller) or of the sizes given. Views."""
    if split_size_or_sections is None:  # the method's name for it
        split_size_or_sections = split_size
    axis = one_axis("split", tensor.ndim, dim)
    if not tensor.ndim:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    total = tensor._type.shape[axis]
    if isinstance(split_size_or_sections, (tuple, list)):
        sizes = [as_dim(s) for s in split_size_or_sections]
        if sum(sizes) != total or any(s < 0 for s in sizes):
            raise RuntimeError(
                "split_with_sizes expects split_sizes to sum exactly to "
                f"{total} (input tensor's size at dimension {axis}), but got "
                f"split_sizes={sizes}"
            )
    elif isinstance(split_size_or_sections, Sym):
        each: Any = split_size_or_sections
        count = -(-hint(total) // max(1, hint(each)))
        bool((count - 1) * each < total <= count * each)  # how many there are is a condition
        sizes = [each] * (count - 1) + [total - (count - 1) * each]
    else:
        size, total = operator.index(split_size_or_sections), operator.index(total)
        if size < 0 or (size == 0 and total != 0):
            raise RuntimeError(f"split expects split_size be positive, but got split_size={size}")
        sizes = [min(size, total - s) for s in range(0, total, size or 1)] or [0]
    parts, start = [], 0
    listed = isinstance(split_size_or_sections, (tuple, list))
    name = "SplitWithSizesBackward0" if listed else "SplitBackward0"
    for size in sizes:
        parts.append(called(slice_along(tensor, axis, start, start + size), name))
        start += size
    return tuple(parts)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts of equal size (the last may be smaller) along a dim. Views."""
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    axis = one_axis("chunk", input.ndim, dim)
    total = input._type.shape[axis]
    if isinstance(total, Sym):
        if hint(total) % chunks == 0 and total % chunks == 0:
            return split(input, [total // chunks] * chunks, axis)
    size = (total + chunks - 1) // chunks
    if not isinstance(size, Sym) and size == 0:
        return split(input, [0] * chunks, axis)
    return split(input, size, axis)


def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, sections: Any = None,
    indices: Any = None, tensor_indices_or_sections: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Parts along a dim: a number of nearly equal ones, or cut at the indices given. The keywords
    are PyTorch's names of the first argument, by its kind."""
    indices_or_sections = one_given(
        "tensor_split", indices_or_sections, sections, indices, tensor_indices_or_sections
    )
    axis = one_axis("tensor_split", input.ndim, dim)
    if not input.ndim:
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    total = input._type.shape[axis]
    if isinstance(indices_or_sections, Tensor):
        if indices_or_sections.dtype is not dtypes.int64 or indices_or_sections.ndim > 1:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to be int64, of zero or one dim, "
                f"but got {indices_or_sections._type}"
            )
        if indices_or_sections.is_cuda:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
                f"{indices_or_sections.device}"
            )
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        n = indices_or_sections
        if n <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {n}")
        counted: list[Any] = [0]
        for i in range(n - 1):
            counted.append(counted[-1] + (total + n - 1 - i) // n)
        spans = zip(counted, [*counted[1:], total], strict=True)
        return tuple([
            called(slice_along(input, axis, *span), "SplitWithSizesBackward0") for span in spans
        ])  # fmt: skip
    cuts = [min(max(c + total if c < 0 else c, 0), total) for c in indices_or_sections]
    bounds = [0, *cuts, total]
    parts = []
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        parts.append(slice_along(input, axis, start, max(start, stop)))
    return tuple(parts)


# -- copies --------------------------------------------------------------------------------------
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy; gradients flow to the original. Its elements lie in memory in the order of input's
    dims; in row-major order with a memory_format but preserve_format."""
    expect_tensor("clone", input)
    if memory_format is not None:
        expect_rank_of(memory_format, input.ndim)
    kept = memory_format is None or memory_format is preserve_format
    return apply(OPS["clone" if kept else "contiguous"], (input,), {})


def separate(made: Tensor, *operands: Tensor) -> Tensor:
    """`made`, or a copy where it shows the memory of an operand: for functions that are no views,
    composed of ops that give views where sizes of 1, or counts of it, let them."""
    if any(made._storage is x._storage for x in operands):
        return apply(OPS["clone"], (made,), {})
    return made


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself if its elements lie in row-major order, else a copy."""
    rank = len(input._type.shape)
    if memory_format is not None:
        expect_rank_of(memory_format, rank)
    dense = is_dense(input) if is_told(input) else not input._chain
    return input if dense else apply(OPS["contiguous"], (input,), {})


def row_major(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decorator of functions of tensors that are composed of ops: the result is in row-major
    order, whatever the layout of operands."""

    @functools.wraps(function)
    def laid(*args: Any, **kwargs: Any) -> Tensor:
        made = function(*args, **kwargs)
        if not is_told(made) or is_dense(made):
            return made
        return _named_as(contiguous(made), made)

    return laid


def keeping_layout(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decorator of functions of a tensor that are composed of ops: the result lies in memory as
    the first argument, `input`, does."""

    @functools.wraps(function)
    def laid(*args: Any, **kwargs: Any) -> Tensor:
        return laid_as(function(*args, **kwargs), args[0] if args else kwargs["input"])

    return laid


def laid_as(made: Tensor, *operands: Tensor) -> Tensor:
    """`made`, or a copy that lies in memory as an elementwise op's result on the operands does."""
    have = (made, *operands)
    if not all(map(is_told, have)) or all(map(is_dense, have)):
        return made
    arrays = [outline(x) for x in have]
    order = order_of(arrays[0].shape, arrays[1:])
    if order == order_of(arrays[0].shape, arrays[:1]):
        return made
    if order is None:
        return _named_as(contiguous(made), made)
    copy = apply(OPS["contiguous"], (permute(made, order),), {})
    return _named_as(permute(copy, inverse_axes(order)), made)


def _named_as(y: Tensor, x: Tensor) -> Tensor:
    """y, a tensor that ops just made of x: its node has the name of x's."""
    return y if x._node is None else called(y, x._node.name())


def flip(input: Tensor, *positional: Any, dims: Any = None) -> Tensor:
    """The order of elements reversed along dims; a copy."""
    given = as_shape(positional if dims is None else (dims,))
    axes = tuple(sorted(one_axis("flip", input.ndim, d) for d in given))
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"dim appears multiple times in the list of dims: {axes}")
    return apply(OPS["flip"], (input,), {"axes": axes if input.ndim else ()})


def fliplr(input: Tensor) -> Tensor:
    """flip along dim 1. Raises RuntimeError for less than two dims."""
    if input.ndim < 2:
        raise RuntimeError(f"[fliplr] Input must be >= 2-d; got {input._type}")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """flip along dim 0. Raises RuntimeError for a 0-d tensor."""
    if input.ndim < 1:
        raise RuntimeError(f"[flipud] Input must be >= 1-d; got {input._type}")
    return flip(input, 0)


def _listed(name: str, tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        raise TypeError(
            f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor; put "
            "it in a list, or unbind it"
        )
    return list(tensors)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors joined along a dim. Dtypes promote; empty tensors of one dim are skipped."""
    parts = _listed("cat", tensors)
    if not parts:
        raise ValueError("[cat] expected a non-empty list of Tensors")
    for i, x in enumerate(parts):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"expected Tensor as element {i} in argument 0, but got {type(x).__name__}"
            )
    kept = [x for x in parts if not (x.ndim == 1 and _is_zero(x._type.shape[0]))] or parts[:1]
    if any(x.ndim == 0 for x in kept):
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    dtype = result_type(*parts)
    if kept[0].ndim == 1 and _is_zero(kept[0]._type.shape[0]):  # all are: the dim is not looked at
        return clone(cast(kept[0], dtype))
    where = one_axis("cat", kept[0].ndim, dim if axis is None else axis)
    if len(kept) == 1:
        return apply(OPS["contiguous"], (cast(kept[0], dtype),), {})
    attrs = {"axis": where}
    return apply(OPS["concatenate"], tuple([cast(x, dtype) for x in kept]), attrs)


def _is_zero(d: Any) -> bool:
    return not isinstance(d, Sym) and d == 0


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dim."""
    parts = _listed("stack", tensors)
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")
    axis = one_axis("stack", parts[0].ndim + 1, dim)
    first = parts[0]._type.shape
    for i, x in enumerate(parts):
        if tuple(x._type.shape) != tuple(first):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first)} at entry 0 "
                f"and {list(x._type.shape)} at entry {i}"
            )
    return called(cat([unsqueeze(x, axis) for x in parts], axis), "StackBackward0")


def atleast_1d(*tensors: Tensor) -> Any:
    """Views of at least 1 dim, of one tensor or of each of several."""
    return _at_least(tensors, lambda x: x.reshape(1) if x.ndim == 0 else x)


def atleast_2d(*tensors: Tensor) -> Any:
    """Views of at least 2 dims, of one tensor or of each of several."""
    return _at_least(
        tensors, lambda x: x.reshape(1, 1) if x.ndim == 0 else x[None] if x.ndim == 1 else x
    )


def atleast_3d(*tensors: Tensor) -> Any:
    """Views of at least 3 dims, of one tensor or of each of several."""

    def grow(x: Tensor) -> Tensor:
        if x.ndim == 0:
            return x.reshape(1, 1, 1)
        if x.ndim == 1:
            return x[None, :, None]
        return x.unsqueeze(-1) if x.ndim == 2 else x

    return _at_least(tensors, grow)


def _at_least(tensors: tuple[Any, ...], grow: Any) -> Any:
    if len(tensors) == 1 and not isinstance(tensors[0], (tuple, list)):
        return grow(tensors[0])
    many = tensors[0] if len(tensors) == 1 else tensors
    return tuple(grow(x) for x in many)


def _some(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return list(tensors)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 1 (dim 0 for vectors)."""
    parts = [atleast_1d(x) for x in _some("hstack", tensors)]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 0, at least matrices."""
    return cat([atleast_2d(x) for x in _some("vstack", tensors)], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along dim 2, at least of 3 dims."""
    return cat([atleast_3d(x) for x in _some("dstack", tensors)], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as columns, joined along dim 1."""
    return cat([x.reshape(-1, 1) if x.ndim <= 1 else x for x in tensors], 1)


def repeat(input: Tensor, *positional: Any, repeats: Any = None) -> Tensor:
    """The tensor repeated so many times along each dim (new dims in front)."""
    counts = as_shape(positional if repeats is None else (repeats,))
    lead = len(counts) - input.ndim
    if lead < 0:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            f"tensor; got {counts} for {input._type}"
        )
    if any(not isinstance(c, Sym) and c < 0 for c in counts):
        raise RuntimeError(f"Trying to create tensor with negative dimension; got repeat{counts}")
    shape = (1,) * lead + tuple(input._type.shape)
    # Each dim d becomes (count, d), then the two are merged.
    apart: list[Any] = []
    wide: list[Any] = []
    for c, d in zip(counts, shape, strict=True):
        apart += [1, d]
        wide += [c, d]
    out = expand(_restructure(input, tuple(apart)), tuple(wide))
    merged = tuple(c * d for c, d in zip(counts, shape, strict=True))
    copy: Tensor = apply(OPS["contiguous"], (out,), {})
    return called(apply(OPS["reshape"], (copy,), {"shape": merged}), "RepeatBackward0")


def tile(input: Tensor, *positional: Any, dims: Any = None) -> Tensor:
    """repeat, with missing counts in front taken as 1."""
    counts = as_shape(positional if dims is None else (dims,))
    return repeat(input, (1,) * (input.ndim - len(counts)) + counts)


@row_major
@naming("RollBackward0")
def roll(input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Elements moved along dims (flattened where none are given); what falls off the end comes
    first."""
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        return roll(reshape(input, -1), shifts, 0).reshape(tuple(input._type.shape))
    shift_list = [as_dim(x) for x in (shifts if isinstance(shifts, (tuple, list)) else [shifts])]
    dim_list = list(dims) if isinstance(dims, (tuple, list)) else [dims]
    if len(shift_list) != len(dim_list):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shift_list)}, dims:{len(dim_list)}"
        )
    moved = False
    for shift, dim in zip(shift_list, dim_list, strict=True):
        axis = one_axis("roll", input.ndim, dim)
        size = input._type.shape[axis]
        if size == 0:
            continue
        shift = shift % (plain(size) if shift == 1 else size)  # of one element, 1 is as good as 0
        if isinstance(shift, Sym):  # 0 at some sizes
            twice = apply(OPS["concatenate"], (input, input), {"axis": axis})
            input = slice_along(twice, axis, size - shift, 2 * size - shift)
        elif shift:
            head = slice_along(input, axis, size - shift, size)
            tail = slice_along(input, axis, 0, size - shift)
            input = apply(OPS["concatenate"], (head, tail), {"axis": axis})
        else:
            continue
        moved = True
    return input if moved else clone(input)


@naming("Rot90Backward0")
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotated by 90 degrees k times in the plane of two dims."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got {input._type}")
    a, b = one_axis("rot90", input.ndim, dims[0]), one_axis("rot90", input.ndim, dims[1])
    if a == b:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    k %= 4
    if k == 0:
        return apply(OPS["contiguous"], (input,), {})
    if k == 2:
        return flip(input, a, b)
    return flip(transpose(input, a, b), a if k == 1 else b)


def pad_constant(input: Tensor, pad: Sequence[Any], value: float = 0.0) -> Tensor:
    """Constants around the last dims: pad = (last low, last high, next low, ...)."""
    expect_fits(value, input.dtype)
    pairs = len(pad) // 2
    if len(pad) % 2 or pairs > input.ndim:
        raise RuntimeError(
            f"[pad] expected pairs of sizes for at most {input.ndim} dims of {input._type}; got "
            f"{tuple(pad)}"
        )
    low: list[Any] = [0] * input.ndim
    high: list[Any] = [0] * input.ndim
    for k in range(pairs):
        low[input.ndim - 1 - k] = as_dim(pad[2 * k])
        high[input.ndim - 1 - k] = as_dim(pad[2 * k + 1])
    attrs = {
        "low": tuple(low),
        "high": tuple(high),
        "interior": (0,) * input.ndim,
        "value": plain_number(value, input.dtype),
    }
    return apply(OPS["pad"], (input,), attrs)


# -- triangles and diagonals ---------------------------------------------------------------------
@composite
def _triangle(name: str, input: Tensor, diagonal: int) -> Tensor:
    if input.ndim < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
    rows, columns = input._type.shape[-2:]
    offset = positions(columns, input) - positions(rows, input).unsqueeze(1)
    keep = offset <= diagonal if name == "tril" else offset >= diagonal
    return apply(OPS["where"], (keep, input, constant(0, input.dtype)), {})


@lasting
@row_major
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dims; zeros above."""
    return called(_triangle("tril", input, diagonal), "TrilBackward0")


@lasting
@row_major
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dims; zeros below."""
    return called(_triangle("triu", input, diagonal), "TriuBackward0")


@lasting
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dim as the diagonal of two new dims; zeros elsewhere."""
    rank = input.ndim + 1
    a, b = one_axis("diag_embed", rank, dim1), one_axis("diag_embed", rank, dim2)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = input._type.shape[-1] + abs(offset)
    low = pad_constant(input, (max(offset, 0), max(-offset, 0)))  # at column j
    place = positions(size, input)
    on = (place - place.unsqueeze(1)) == offset
    out = apply(OPS["where"], (on, low.unsqueeze(-2), constant(0, input.dtype)), {})
    return movedim(out, (-2, -1), (a, b))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as a diagonal matrix, or a matrix's diagonal (a copy)."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return clone(diagonal_view(input, diagonal))


def meshgrid(*tensors: Tensor, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Coordinate grids of vectors. indexing: "ij" (the default) or "xy"."""
    indexing = "ij" if indexing is None else indexing
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    if indexing not in ("ij", "xy"):
        raise RuntimeError(
            'torch.meshgrid: indexing must be one of "xy" or "ij", but received: ' + str(indexing)
        )
    if not tensors:
        raise RuntimeError("meshgrid expects a non-empty list of Tensors")
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"[meshgrid] expected Tensors; got {type(x).__name__}")
        if x.ndim > 1:
            raise RuntimeError(f"[meshgrid] expected 0-d and 1-d tensors; got {x._type}")
        if x.dtype is not tensors[0].dtype:
            raise RuntimeError(
                f"[meshgrid] expected tensors of one dtype; got {tensors[0]._type} and {x._type}"
            )
    if len({x._type.device for x in tensors}) > 1:
        raise RuntimeError(
            "torch.meshgrid expects all tensors to have the same device; got "
            f"{', '.join(x._type.device for x in tensors)}"
        )
    parts = [x.reshape(-1) for x in tensors]
    swap = indexing == "xy" and len(parts) > 1
    if swap:
        parts[0], parts[1] = parts[1], parts[0]
    shape = tuple(x._type.shape[0] for x in parts)
    grids = []
    for k, x in enumerate(parts):
        place = (1,) * k + (-1,) + (1,) * (len(parts) - 1 - k)
        grids.append(expand(x.reshape(place), shape))
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)
