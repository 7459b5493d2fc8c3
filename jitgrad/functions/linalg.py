"""Products of matrices and vectors."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.casting import exempt, lower, wide
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import prod as dims_product
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_dtype, expect_expandable, expect_tensor, older_order
from jitgrad.functions.complex_numbers import conj
from jitgrad.functions.shape import row_major, separate
from jitgrad.promotion import cast
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor


def _product(a: Tensor, b: Tensor) -> Tensor:
    return apply(OPS["matmul"], (a, b), {})


def times_transposed(a: Tensor, b: Tensor) -> Tensor:
    """a (..., M, K) or (K) times the transpose of b (..., N, K)."""
    if len(a._type.shape) == 1:
        return times_transposed(a.unsqueeze(0), b).squeeze(-2)
    return apply(OPS["matmul"], (a, b), {"transpose_b": True})


def _expect(name: str, a: Any, b: Any) -> None:
    for x in (a, b):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): expected Tensors; got {type(x).__name__}")
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"[{name}] expected operands to have the same dtype, but got: {a._type} and "
            f"{b._type}; convert one with .to(dtype)"
        )


@lower
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product; vectors count as a row (left) or a column (right); batches broadcast.

    Shapes (..., M, K) and (..., K, N) give (..., M, N). Raises RuntimeError when K differs.
    """
    _expect("matmul", input, other)
    a, b = input, other
    if a.ndim == 2 and b.ndim == 2:
        return _product(a, b)
    if a.ndim >= 2 and b.ndim >= 2:
        return called(_product(a, b), "UnsafeViewBackward0")
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D"
        )
    if a.ndim == 1 and b.ndim == 1:
        return dot(a, b)
    if a._type.shape[-1] != b._type.shape[0 if b.ndim == 1 else -2]:
        raise RuntimeError(
            f"[matmul] mat1 and mat2 shapes cannot be multiplied; got {a._type} and {b._type}; the "
            "last dim of the first must equal the contracted dim of the second"
        )
    if a.ndim == 1:
        return _product(a.unsqueeze(0), b).squeeze(-2)
    return called(_product(a, b.unsqueeze(1)).squeeze(-1), "MvBackward0")


def _ranks(name: str, a: Tensor, b: Tensor, ranks: tuple[int, int]) -> None:
    _expect(name, a, b)
    if (a.ndim, b.ndim) != ranks:
        raise RuntimeError(
            f"[{name}] expected a {ranks[0]}-d and a {ranks[1]}-d tensor; got {a._type} and "
            f"{b._type}; use matmul for other shapes"
        )


@lower
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """(M, K) by (K, N)."""
    _ranks("mm", input, mat2, (2, 2))
    return _product(input, mat2)


@lower
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """(B, M, K) by (B, K, N)."""
    _ranks("bmm", input, mat2, (3, 3))
    if input._type.shape[0] != mat2._type.shape[0]:
        raise RuntimeError(
            f"[bmm] expected batches of one size; got {input._type} and {mat2._type}"
        )
    return _product(input, mat2)


@exempt
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """(M, K) by (K,)."""
    _ranks("mv", input, vec, (2, 1))
    return called(matmul(input, vec), "MvBackward0")


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _ranks("dot", input, tensor, (1, 1))
    if input._type.shape[0] != tensor._type.shape[0]:
        raise RuntimeError(
            "inconsistent tensor size, expected tensor "
            f"{list(input.shape)} and src {list(tensor.shape)} to have the same number of elements"
        )
    return called(_product(input.unsqueeze(0), tensor.unsqueeze(1)).reshape(()), "DotBackward0")


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, the first one conjugated."""
    return dot(conj(input), other)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products summed over the last dims."""
    if input.ndim == 0 or other.ndim == 0:
        return input * other
    if input._type.shape[-1] != other._type.shape[-1]:
        raise RuntimeError(
            f"[inner] expected last dims of one size; got {input._type} and {other._type}"
        )
    if input.ndim == 1 and other.ndim == 1:
        return dot(input, other)
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors, (N, M)."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"outer: Expected 1-D arguments; got {input._type} and {vec2._type}")
    return input.unsqueeze(1) * vec2


ger = outer


def _blend(
    name: str, multiply: Callable[[Tensor, Tensor], Tensor], given: tuple[Any, ...], beta: Any,
    alpha: Any,
) -> Tensor:  # fmt: skip
    """beta * input + alpha * multiply(a, b), of given: (input, a, b), or an older order."""
    if len(given) > 3:
        (base, a, b), (beta, alpha) = older_order(name, given, 3, (beta, alpha))
    else:
        base, a, b = given
    product = multiply(a, b)
    expect_tensor(name, base)
    if name != "addr" and base.dtype is not product.dtype:
        raise RuntimeError(
            f"[{name}] expected input of the matrices' dtype; got {base._type} and the product "
            f"{product._type}; convert one with .to(dtype)"
        )
    expect_expandable(name, product._type.shape, input=base)
    for key, x in (("beta", beta), ("alpha", alpha)):
        if isinstance(x, Tensor) and x.ndim or isinstance(x, str) or x is None:
            raise TypeError(f"[{name}] expected a number as {key}; got {type(x).__name__}")
        if isinstance(x, complex) and not product.dtype.is_complex:
            raise RuntimeError(f"[{name}] expected a real number as {key}; got {x}")
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (base if beta == 1 else base * beta)


@lower
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *older: Any, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    return called(_blend("addmm", mm, (input, mat1, mat2, *older), beta, alpha), "AddmmBackward0")


def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *older: Any, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return called(_blend("addmv", mv, (input, mat, vec, *older), beta, alpha), "AddmvBackward0")


def addr(
    input: Tensor, vec1: Tensor, vec2: Tensor, *older: Any, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    return _blend("addr", outer, (input, vec1, vec2, *older), beta, alpha)


@lower
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *older: Any, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2)."""
    return called(
        _blend("baddbmm", bmm, (input, batch1, batch2, *older), beta, alpha), "BaddbmmBackward0"
    )


@lower
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *older: Any, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """beta * input + alpha * the sum of bmm(batch1, batch2) over the batch."""
    return called(
        _blend("addbmm", _bmm_total, (input, batch1, batch2, *older), beta, alpha),
        "AddbmmBackward0",
    )


def _bmm_total(batch1: Tensor, batch2: Tensor) -> Tensor:
    return cast(bmm(batch1, batch2).sum(0), batch1.dtype)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Products summed over pairs of dims (the last n of a with the first n of b for an int)."""
    _expect("tensordot", a, b)
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    left, right = [d % a.ndim for d in left], [d % b.ndim for d in right]
    for p, q in zip(left, right, strict=True):
        one_of_them = [x._type.shape[d] for x, d in ((a, p), (b, q))]
        if one_of_them[0] != one_of_them[1] and 1 in one_of_them:  # sums to size 1
            a = a.sum(p, keepdim=True) if one_of_them[0] != 1 else a
            b = b.sum(q, keepdim=True) if one_of_them[1] != 1 else b
        if a._type.shape[p] != b._type.shape[q]:
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {a._type.shape[p]} in dim"
                f" {p} and second has size {b._type.shape[q]} in dim {q}"
            )
    keep_a = [k for k in range(a.ndim) if k not in left]
    keep_b = [k for k in range(b.ndim) if k not in right]
    shape_a = tuple(a._type.shape[k] for k in keep_a)
    shape_b = tuple(b._type.shape[k] for k in keep_b)
    inner_size = dims_product(a._type.shape[k] for k in left)
    flat_a = a.permute(*keep_a, *left).reshape(dims_product(shape_a), inner_size)
    flat_b = b.permute(*right, *keep_b).reshape(inner_size, dims_product(shape_b))
    return mm(flat_a, flat_b).reshape((*shape_a, *shape_b))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
    rank = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (rank - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (rank - other.ndim) + tuple(other.shape))
    sa = [d for k in range(rank) for d in (a.shape[k], 1)]
    sb = [d for k in range(rank) for d in (1, b.shape[k])]
    shape = [a.shape[k] * b.shape[k] for k in range(rank)]
    return (a.reshape(sa) * b.reshape(sb)).reshape(shape)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """vector_product along dim, or along the first dim of size 3."""
    if dim is None:
        sizes = input._type.shape
        dim = next((k for k, size in enumerate(sizes) if size == 3), None)
        if dim is None:
            raise RuntimeError(f"[cross] expected a dim of size 3; got {input._type}; pass dim")
    return called(vector_product(input, other, dim=dim), "LinalgCrossBackward0")


@row_major
def vector_product(input: Tensor, other: Tensor, dim: int) -> Tensor:
    """The vector product along a dim of size 3; others broadcast. Raises RuntimeError for dtypes or
    ranks that differ."""
    expect_dtype("linalg.cross", input.dtype, other=other)
    if input.ndim != other.ndim:
        raise RuntimeError(
            "linalg.cross: inputs must have the same number of dimensions; got "
            f"{input._type} and {other._type}"
        )
    if input.shape[dim] != 3 or other.shape[dim] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3; got {input._type} and "
            f"{other._type}"
        )
    a1, a2 = input.roll(-1, dim), input.roll(-2, dim)
    b1, b2 = other.roll(-1, dim), other.roll(-2, dim)
    return a1 * b2 - a2 * b1


@wide
def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return called(input.diagonal().sum(), "TraceBackward0")


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, from the left."""
    out = matrices[0]
    for m in matrices[1:]:
        out = mm(out, m)
    return separate(out, matrices[0])


# -- einsum --------------------------------------------------------------------------------------
def einsum(*args: Any) -> Tensor:
    """Sums of products by subscripts, e.g. einsum("bik,bkj->bij", a, b), or with lists of numbers
    from 0 to 51 for letters: einsum(a, [0, 1, 2], b, [0, 2, 3], [0, 1, 3]).

    Ellipses and repeated subscripts (diagonals) work. Operands are combined from the left, each
    pair by one matrix product. Raises RuntimeError for subscripts that do not fit, and for one
    that is repeated in an operand with unequal sizes.
    """
    if len(args) < 2:
        raise ValueError(
            "einsum(): must specify the equation string and at least one operand, or at least one "
            "operand and its subscripts list"
        )
    equation, *operands = _of_lists(args) if isinstance(args[0], Tensor) else args
    tensors: list[Tensor] = list(
        operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    )
    inputs, output = _parse(equation, tensors)
    terms = [_diagonals(k, x, inputs[k]) for k, x in enumerate(tensors)]
    sizes: dict[str, Any] = {}
    for x, labels in terms:
        for label, size in zip(labels, x._type.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == size:
                continue
            if known == 1:
                sizes[label] = size
            elif size != 1:
                raise RuntimeError(
                    f"[einsum] subscript {label} has size {size} for one operand and {known} for "
                    f"another in {equation!r}"
                )
    while len(terms) > 1:
        (a, la), (b, lb) = terms[0], terms[1]
        later = set(output).union(*(labels for _, labels in terms[2:]))
        alone = [label for label in output if (label in la) != (label in lb)]
        if (
            len(terms) == 2 and alone and alone[0] in lb
        ):  # so that the product has the output's order
            a, la, b, lb = b, lb, a, la
        terms[:2] = [_contract(a, la, b, lb, later, sizes)]
    x, labels = terms[0]
    drop = [k for k, label in enumerate(labels) if label not in output]
    if drop:
        x = cast(x.sum(drop), x.dtype)
        labels = [label for label in labels if label in output]
    order = [labels.index(label) for label in output]
    return x.permute(order) if order != list(range(len(order))) else x


def _of_lists(args: Sequence[Any]) -> list[Any]:
    """einsum's arguments as an equation and its operands: x, [0, 1], ..., [1, 0]."""
    last = len(args) - len(args) % 2
    sides = [_letters(row) for row in args[1:last:2]]
    output = "->" + _letters(args[-1]) if last < len(args) else ""
    return [",".join(sides) + output, *args[:last:2]]


def _letters(row: Any) -> str:
    letters = string.ascii_uppercase + string.ascii_lowercase
    parts = []
    for k in row:
        if k is not Ellipsis and not 0 <= k < 52:
            raise ValueError(f"einsum(): subscripts in a list must be from 0 to 51; got {k}")
        parts.append("..." if k is Ellipsis else letters[k])
    return "".join(parts)


def _parse(equation: str, tensors: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        raise RuntimeError(
            f"einsum(): got {len(tensors)} operands for {len(parts)} subscripts in {equation!r}"
        )
    letters = set(string.ascii_letters)
    sides: list[tuple[str, str, str]] = []
    ranks = []
    for part, x in zip(parts, tensors, strict=True):
        head, dots, tail = part.partition("...")
        names = len(head) + len(tail)
        if not set(head + tail) <= letters:
            raise RuntimeError(f"einsum(): invalid subscript in {equation!r}")
        if (names != x.ndim) if not dots else (names > x.ndim):
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({names}) does not match the "
                f"number of dimensions ({x.ndim}) for operand {len(sides)}, {x._type}"
            )
        ranks.append(x.ndim - names)
        sides.append((head, dots, tail))
    widest = max(ranks)
    # Dims of an ellipsis are called by digits, aligned at the last.
    spread = (
        [str(k) for k in range(widest)] if widest <= 10 else [chr(200 + k) for k in range(widest)]
    )
    labels = [
        [*head, *(spread[widest - rank :] if dots else []), *tail]
        for (head, dots, tail), rank in zip(sides, ranks, strict=True)
    ]
    if arrow:
        first, dots, last = right.partition("...")
        output = [*first, *(spread if dots else []), *last]
        known = {label for names in labels for label in names}
        for label in output:
            if label not in known or output.count(label) > 1:
                raise RuntimeError(
                    f"einsum(): output subscript {label} does not appear in the equation for any "
                    f"input operand, or twice in the output, in {equation!r}"
                )
    else:
        counts: dict[str, int] = {}
        for row in labels:
            for label in row:
                counts[label] = counts.get(label, 0) + 1
        once = sorted(s for s, n in counts.items() if n == 1 and s not in spread)
        output = [*spread, *once]
    return labels, output


def _diagonals(operand: int, x: Tensor, labels: list[str]) -> tuple[Tensor, list[str]]:
    """The operand with each label once. Raises RuntimeError for a label of unequal sizes."""
    labels = list(labels)
    for label in sorted(set(labels)):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            first, second = x._type.shape[a], x._type.shape[b]
            if first != second:
                raise RuntimeError(
                    f"einsum(): subscript {label} is repeated for operand {operand} but the sizes "
                    f"don't match, {second} != {first}; pass {x._type} with equal sizes"
                )
            x = x.diagonal(0, a, b)
            labels = [s for k, s in enumerate(labels) if k not in (a, b)] + [label]
    return x, labels


def _contract(
    a: Tensor, la: list[str], b: Tensor, lb: list[str], later: set[str], sizes: dict[str, Any]
) -> tuple[Tensor, list[str]]:
    """Two operands as one batched matrix product; labels not needed later are summed."""
    # Labels of one operand only that nobody needs: summed first.
    for side in (0, 1):
        x, mine, others = (a, la, lb) if side == 0 else (b, lb, la)
        drop = [k for k, s in enumerate(mine) if s not in others and s not in later]
        if drop:
            x = cast(x.sum(drop), x.dtype)
            mine = [s for k, s in enumerate(mine) if k not in drop]
            a, la, b, lb = (x, mine, b, lb) if side == 0 else (a, la, x, mine)
    shared = [s for s in la if s in lb]
    batch = [s for s in shared if s in later]
    summed = [s for s in shared if s not in later]
    rows = [s for s in la if s not in lb]
    columns = [s for s in lb if s not in la]

    def arrange(x: Tensor, labels: list[str], order: list[str]) -> Tensor:
        x = x.permute([labels.index(s) for s in order])
        shape = tuple(sizes[s] for s in order)
        return x if tuple(x._type.shape) == shape else x.expand(shape)

    size = {n: dims_product(sizes[s] for s in g) for n, g in
            (("b", batch), ("m", rows), ("k", summed), ("n", columns))}  # fmt: skip
    left = arrange(a, la, batch + rows + summed).reshape(size["b"], size["m"], size["k"])
    right = arrange(b, lb, batch + summed + columns).reshape(size["b"], size["k"], size["n"])
    if summed:
        out = bmm(left, right)
    else:
        out = left * right
    order = batch + rows + columns
    return out.reshape(tuple(sizes[s] for s in order)), order
