"""Fused records: in plain eager code several records are one, with one node on the tape.

Owns `Fused`, whose `compose` says what it stands for by calls of records, and `apply`, which
applies one: as itself where nobody looks, as its composition everywhere else (recorders, vmap,
profiles, hooks on saved tensors, GPUs). So graphs never hold a fused record, and no pass, generator
or exporter knows of any. Its kernel calls those of its parts, one after another, and its derivative
is theirs, in the order in which the tape would run them: the bits are those of the composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jitgrad import composites, dispatch
from jitgrad.autograd.straight import Code, StandIn, Typed
from jitgrad.compiler.ops.record import Op, apply_like, op
from jitgrad.compiler.symbolic import prod
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import plan_of
from jitgrad.plain import is_unwatched
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.tape.names import called, name_of
from jitgrad.tape.node import EVERY
from jitgrad.tensor import Tensor


class _Value(Typed):
    """What a record gives, computed when it is asked for."""

    __slots__ = ("_found", "attrs", "needed", "operands", "record", "tape")

    needed: bool

    def __init__(
        self, tape: list[_Value], record: Any, operands: tuple[_Value, ...], attrs: dict[str, Any],
        type_: TensorType, found: Any = None,
    ) -> None:  # fmt: skip
        self.tape, self.record, self.operands, self.attrs = tape, record, operands, attrs
        self._type, self._found = type_, found
        self.needed = any(x.needed for x in operands)

    def _constant(self, value: Any, dtype: DType) -> _Value:
        found = self.tape[0].found()._constant(value, dtype)
        return _Value(self.tape, None, (), {}, found._type, found)

    def _bind(self, record: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> _Value:
        dtype = next((x.dtype for x in operands if isinstance(x, _Value)), self.dtype)
        whole = tuple([x if isinstance(x, _Value) else self._constant(x, dtype) for x in operands])
        made = _Value(self.tape, record, whole, attrs, plan_of(record, whole, attrs).types)
        self.tape.append(made)
        return made

    def found(self) -> Any:
        """The value."""
        if self._found is None:
            if self.operands:
                self._found = self.record(*[x.found() for x in self.operands], **self.attrs)
            else:
                self._found = apply_like(self.record, self.tape[0].found(), **self.attrs)
        return self._found


class Fused(Op):
    """Base of fused records, of one result. A subclass gives `name` and `compose`. Where it is much
    work, `compose` runs as a composite (composites.py).

    most: the derivative computes values of the forward pass again, which pays up to so many
    elements of an operand. None: it computes none that are worth keeping.
    """

    chooses = True
    saves = (EVERY,)
    most: int | None = None
    compose: ClassVar[Callable[..., Any]]

    def __init__(self) -> None:
        """Registers nothing: it is in no graph."""

    def _code(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> tuple[Code, list[str], StandIn]:
        code = Code()
        names = [f"x{i}" for i in range(len(types))]
        operands = [StandIn(code, name, t) for name, t in zip(names, types, strict=True)]
        return code, names, self.compose(*operands, **attrs)

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        return self._code(types, attrs)[2]._type

    def kernel(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Callable[..., Any]:
        code, names, result = self._code(types, attrs)
        run = code.function(names, [result.name])
        return lambda *arrays: run(*arrays)[0]

    def vjp(
        self, g: Any, out: Any, *operands: Any, needs: Sequence[bool] = (), **attrs: Any
    ) -> tuple[Any, ...]:
        tape: list[_Value] = []
        try:
            return self._passed(tape, g, operands, needs, attrs)
        finally:
            tape.clear()  # it holds all that holds it

    def _passed(
        self, tape: list[_Value], g: Any, operands: tuple[Any, ...], needs: Sequence[bool],
        attrs: dict[str, Any],
    ) -> tuple[Any, ...]:  # fmt: skip
        for x in (g, *operands):
            tape.append(_Value(tape, None, (), {}, x._type, x))
        roots = tuple(tape[1:])
        for i, x in enumerate(roots):
            x.needed = x.dtype.category >= Category.FLOAT and (not needs or needs[i])
        result = self.compose(*roots, **attrs)
        steps = [x for x in tape if x.operands and x.needed]
        sums: dict[int, Any] = {id(result): tape[0]}
        for x in reversed(steps):
            here = sums.pop(id(x), None)
            if here is None:
                continue
            chosen = {"needs": [y.needed for y in x.operands]} if x.record.chooses else {}
            passed = x.record.vjp(here, x, *x.operands, **chosen, **x.attrs)
            for y, part in zip(x.operands, passed, strict=False):
                if y.needed and part is not None:
                    have = sums.get(id(y))
                    sums[id(y)] = part if have is None else op.add(have, part)
        found = [sums.get(id(x)) for x in roots]
        return tuple([None if x is None else x.found() for x in found])


def fits(record: Fused, operands: Sequence[Tensor]) -> bool:
    """Whether the record is applied as itself to these."""
    if not is_unwatched():
        return False
    for x in operands:
        if x._data is None or x._type.device != "cpu":
            return False
        if record.most is not None and x._data.size > record.most:
            return False
    return True


def apply(record: Fused, operands: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
    """The record applied to tensors; its composition where somebody may tell the difference."""
    if composites.is_large(operands):
        made = composites.run(record.compose, operands, attrs)
        if made is not None:
            return called(made, name_of(record, made._type))
    if fits(record, operands):
        return dispatch.apply(record, operands, attrs)
    return record.compose(*operands, **attrs)


_FEW = 1 << 14


# -- the records -----------------------------------------------------------------------------------
class Addmm(Fused):
    """addmm(x, w, b): x @ w.T + b, of x (..., K), w (N, K) and b that broadcasts to (..., N)."""

    name = "addmm"

    def compose(self, x: Any, w: Any, b: Any) -> Any:
        return op.add(op.matmul(x, w, transpose_b=True), b)


class NllLoss(Fused):
    """nll_loss(x, target; axis, ignore, text): the mean of 0 - x at target along axis, over the
    targets that are not `ignore`. text: as select_at's."""

    name = "nll_loss"

    def compose(self, x: Any, target: Any, *, axis: int, ignore: int, text: str) -> Any:
        loss = op.select_at(x, target, axis=axis, ignore=ignore, text=text, negate=True)
        axes = tuple(range(target.ndim))
        counts = op.ne(target, target._constant(ignore, target.dtype))
        number = op.sum(counts, axes=axes, keepdim=False, dtype=x.dtype)
        return op.div(op.sum(loss, axes=axes, keepdim=False), number)


class Dropout(Fused):
    """dropout(keep, x; scale): x * scale where the bool keep holds, else 0."""

    name = "dropout"
    keeps_layout = True

    def compose(self, keep: Any, x: Any, *, scale: float) -> Any:
        number = x._constant
        return op.where(keep, op.mul(x, number(scale, x.dtype)), number(0.0, x.dtype))


class Gelu(Fused):
    """gelu(x): x * Phi(x), Phi the normal distribution's."""

    name = "gelu"
    keeps_layout = True
    most = _FEW

    def compose(self, x: Any) -> Any:
        number = x._constant
        inner = op.erf(op.mul(x, number(math.sqrt(0.5), x.dtype)))
        half = op.mul(x, number(0.5, x.dtype))
        return op.mul(half, op.add(number(1.0, x.dtype), inner))


def _centred(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """(mean over axes, x less it, variance), with dims of 1."""
    count = x._constant(prod([x._type.shape[k] for k in axes]), x.dtype)
    mean = op.div(op.sum(x, axes=axes, keepdim=True), count)
    centred = op.sub(x, mean)
    squares = op.sum(op.mul(centred, centred), axes=axes, keepdim=True)
    return mean, centred, op.div(squares, count)


class Normalise(Fused):
    """normalise(x, *affine; axes, eps, shape=None): x less its mean over axes, by the root of its
    variance plus eps; affine: what it is multiplied by, and what is added, in this shape."""

    name = "normalise"
    most = _FEW

    def compose(
        self, x: Any, *affine: Any, axes: tuple[int, ...], eps: float,
        shape: tuple[int, ...] | None = None,
    ) -> Any:  # fmt: skip
        _, centred, var = _centred(x, axes)
        out = op.mul(centred, op.rsqrt(op.add(var, x._constant(eps, x.dtype))))
        for record, y in zip((op.mul, op.add), affine, strict=False):
            out = record(out, y if shape is None else op.reshape(y, shape=shape))
        return out


class Moved(Fused):
    """moved(old, x; axes, momentum, unbias=None): running statistics (C), moved towards the mean of
    x over axes or, with `unbias`, its variance times that: (1 - momentum) * old + momentum * new.
    """

    name = "moved"
    most = _FEW

    def compose(
        self, old: Any, x: Any, *, axes: tuple[int, ...], momentum: float,
        unbias: float | None = None,
    ) -> Any:  # fmt: skip
        number = x._constant
        mean, _, var = _centred(x, axes)
        new = op.reshape(mean if unbias is None else var, shape=old.shape)
        if unbias is not None:
            new = op.mul(new, number(unbias, x.dtype))
        kept = op.mul(old, number(1 - momentum, x.dtype))
        return op.add(kept, op.mul(new, number(momentum, x.dtype)))


addmm, nll_loss, dropout, gelu = Addmm(), NllLoss(), Dropout(), Gelu()
normalise, moved = Normalise(), Moved()
"""Made once: plans are found by them."""
