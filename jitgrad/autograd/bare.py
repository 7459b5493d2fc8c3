"""Gradients as bare arrays: how backward runs records' derivatives where nobody looks at them.

Owns `Bare`, an array with its type that records can be applied to, and `run`, a node's derivative
on them. Only where that cannot be told from tensors: eager mode, gradients that are not
differentiated, no recorder, no vmap, no hook on the way. Gradients become tensors where they leave:
at leaves, hooks, and nodes that are no record's (engine.py). Plans and kernels are dispatch's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import dispatch, gpu
from jitgrad.autograd.straight import STRAIGHT, Typed, make
from jitgrad.compiler.ops.quiet import hush, unhush
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import Plan, plan_of, plans
from jitgrad.promotion import constant
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.userline import with_line
from jitgrad.storage import is_part
from jitgrad.tape.node import EVERY, RETAIN_ERROR, Node, version_error
from jitgrad.tensor import Tensor, wrap

_new = object.__new__
ndarray = np.ndarray


class Bare(Typed):
    """An array and its type, as an operand of records. `tensor`: the tensor that it is, if any."""

    __slots__ = ("_data", "tensor")

    _data: Any
    tensor: Tensor | None

    if TYPE_CHECKING:

        @staticmethod
        def _bind(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any: ...

    @staticmethod
    def _constant(value: Any, dtype: DType) -> Bare:
        found = constant(value, dtype)
        return _bare(found._data, found._type)


class Unsaved(Bare):
    """One whose data was not kept, as no wanted gradient reads it: as AbsentTensor is."""

    __slots__ = ()


def _bare(data: Any, type_: TensorType) -> Bare:
    out: Bare = _new(Bare)
    out._data = data
    out._type = type_
    out.tensor = None
    return out


def _unsaved(type_: TensorType) -> Bare:
    out: Bare = _new(Unsaved)
    out._data = out.tensor = None
    out._type = type_
    return out


def bare_of(x: Tensor) -> Bare:
    """A tensor's data, as an operand."""
    out = _bare(x._data, x._type)
    out.tensor = x
    return out


def owned_tensor(x: Bare) -> Tensor | None:
    """A new tensor of an array that nobody else holds, of a gradient that nobody else will read
    (the caller holds it by one variable); None where that is not so."""
    if x.tensor is not None or sys.getrefcount(x) > _LONE:
        return None
    data = x._data
    if is_part(data) or sys.getrefcount(data) > _LONE or not data.flags.c_contiguous:
        return None
    return wrap(data, x._type)


def tensor_of(x: Bare) -> Tensor:
    """A tensor with this data, the same one each time. Memory that another array shows, or that
    somebody else holds, is copied."""
    if x.tensor is None:
        data = x._data
        if is_part(data) or sys.getrefcount(data) > _LONE:
            data = data.copy()
            x._data = data
        x.tensor = wrap(data, x._type)
    return x.tensor


def _count_lone() -> int:
    x = _bare(np.zeros(2, np.float32), None)  # type: ignore[arg-type]
    data = x._data
    return sys.getrefcount(data)


_LONE = _count_lone()


# -- applying records ------------------------------------------------------------------------------
def _apply(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """dispatch.apply on bare operands: run, nothing else. Inside `run`, which hushes NumPy."""
    for x in operands:
        if type(x) is not Bare:
            return _apply_to_others(op, operands, attrs)
    if len(operands) == 2 and not attrs:  # the commonest case
        a, b = operands
        plan = plans.get((op, id(a._type), id(b._type)))
        if plan is None:
            if gpu.mixed(operands) and gpu.mixing.device_among(operands):
                return _apply(op, _on_one_device(operands), attrs)
            plan = plan_of(op, operands, attrs)
        kernel = plan.kernel
        left, right = a._data, b._data
        result = op.reference(left, right) if kernel is None else kernel(left, right)
    else:
        try:
            plan = plan_of(op, operands, attrs)
        except RuntimeError:
            if not gpu.mixed(operands) or not gpu.mixing.device_among(operands):
                raise
            return _apply(op, _on_one_device(operands), attrs)
        kernel = plan.kernel
        arrays = [x._data for x in operands]
        result = op.reference(*arrays, **attrs) if kernel is None else kernel(*arrays)
    types = plan.types
    if op.nout != 1:
        return tuple([_bare(r, t) for r, t in zip(result, types, strict=True)])
    out: Bare = _new(Bare)
    out._data = result if isinstance(result, ndarray) else np.asarray(result)
    out._type = types
    out.tensor = None
    return out


def _on_one_device(operands: tuple[Bare, ...]) -> tuple[Bare, ...]:
    """Operands where one of them is on a GPU: what a derivative made on the CPU is copied there."""
    device = gpu.mixing.device_among(operands)
    return tuple(
        [
            _bare(gpu.kernels.moved(x._data, device), TensorType(x.shape, x.dtype, device))
            if x._type.device == "cpu" and x._type.shape
            else x
            for x in operands
        ]
    )


Bare._bind = staticmethod(_apply)  # type: ignore[method-assign]


def _apply_to_others(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Where operands are numbers (of the first one's dtype), or were not saved."""
    like = next(x for x in operands if isinstance(x, Bare))
    whole = tuple(
        [x if isinstance(x, Bare) else Bare._constant(x, like._type.dtype) for x in operands]
    )
    if any(type(x) is Unsaved for x in whole):
        plan: Plan = plan_of(op, whole, attrs)
        types = plan.types
        return _unsaved(types) if op.nout == 1 else tuple([_unsaved(t) for t in types])
    return _apply(op, whole, attrs)


def add(a: Bare, b: Bare) -> Bare:
    """The sum of two gradients of one tensor."""
    token = hush()
    try:
        out: Bare = _apply(OPS["add"], (a, b), {})
    finally:
        unhush(token)
    return out


# -- nodes -----------------------------------------------------------------------------------------
def run(node: Node, grads: list[Any]) -> Any:
    """Node.run on bare gradients; None where it takes tensors: a pack hook holds what was saved,
    or it has no data."""
    saved = node.operands
    if saved is None or node.outs is None:
        raise RuntimeError(RETAIN_ERROR + f" (node {node.name()}, made at {node.line})")
    kept = node.known
    if kept is not None and dispatch.timing is None:  # else kernels of this time's plans run
        if kept.run is not None:
            passed = _run_straight(node, kept, grads[0]._data)
            if passed is not None:
                return passed
        else:
            kept.uses += 1
            if kept.uses == STRAIGHT:
                make(node.op, node.attrs, kept)
    op = node.op
    saves = op.saves
    operands: list[Any] = []
    for i, x in enumerate(saved):
        kind = type(x)
        if kind is tuple:
            x = _saved(node, x, i)
            if x is None:
                return None
            operands.append(x)
        elif kind is not TensorType:
            return None
        elif saves and (i in saves or EVERY in saves):
            operands.append(_unsaved(x))
        else:
            operands.append(x)
    attrs = node.attrs
    if op.nout == 1:
        outs = node.outs
        g = grads[0]
        if outs:
            out: Any = _saved(node, outs, -1) if type(outs) is tuple else None
            if out is None:
                return None
        else:
            read = "out" in saves or "out0" in saves
            out = _unsaved(node.out_types) if read else node.out_types
    else:
        found: list[Any] = []
        for i, y in enumerate(node.outs):
            kind = type(y)
            if kind is tuple:
                y = _saved(node, y, -1 - i)
            elif kind is not TensorType:
                y = None
            elif "out" in saves or f"out{i}" in saves:
                y = _unsaved(y)
            if y is None:
                return None
            found.append(y)
        out = tuple(found)
        g = tuple([_or_zeros(g, t) for g, t in zip(grads, node.out_types, strict=True)])
    token = hush()
    try:
        if op.chooses:
            needs = [edge is not None for edge in node.edges]
            return op.vjp(g, out, *operands, needs=needs, **attrs)
        return op.vjp(g, out, *operands, **attrs)
    except Exception as error:
        raise with_line(error)  # noqa: B904 (see with_line)
    finally:
        unhush(token)


def _run_straight(node: Node, kept: Any, g: Any) -> tuple[Bare | None, ...] | None:
    """The gradients by the straight derivative; None where what was saved has no data here."""
    arrays = [g]
    saved: Any = node.operands
    for i in kept.reads:
        x = saved[i]
        if type(x) is not tuple:
            return None
        data, storage, _, type_, version = x
        if version is not None and storage.version - storage.hidden != version:
            raise version_error(node, f"operand {i}", type_, version, storage)
        if data is None:
            return None
        arrays.append(data)
    if kept.results:
        x = node.outs
        if type(x) is not tuple:
            return None
        data, storage, _, type_, version = x
        if version is not None and storage.version - storage.hidden != version:
            raise version_error(node, "its result", type_, version, storage)
        if data is None:
            return None
        arrays.append(data)
    token = hush()
    try:
        found = kept.run(*arrays)
    except Exception as error:
        raise with_line(error)  # noqa: B904 (see with_line)
    finally:
        unhush(token)
    passed: list[Bare | None] = []
    for array, type_ in zip(found, kept.types, strict=True):
        if type_ is None:
            passed.append(None)
            continue
        out: Bare = _new(Bare)
        out._data = array
        out._type = type_
        out.tensor = None
        passed.append(out)
    return tuple(passed)


def _saved(node: Node, saved: Any, i: int) -> Bare | None:
    """Operand i, or output -1 - i, as Node._unpack gives it; None where it has no data."""
    data, storage, _, type_, version = saved
    if version is not None and storage.version - storage.hidden != version:
        what = f"operand {i}" if i >= 0 else "its result"
        raise version_error(node, what, type_, version, storage)
    if data is None:
        return None
    out: Bare = _new(Bare)
    out._data = data
    out._type = type_
    out.tensor = None
    return out


def _or_zeros(g: Bare | None, type_: TensorType) -> Bare | None:
    if g is not None or not (type_.dtype.is_floating_point or type_.dtype.is_complex):
        return g
    return _bare(np.zeros(type_.shape, type_.dtype.np), type_)
