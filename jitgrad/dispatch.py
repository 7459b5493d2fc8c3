"""The one point that every op application and every in-place write passes.

Owns `apply` (infer, run, put on the tape, tell the recorder) and `assign` (the in-place
primitive). Three modes: eager; eager and recorded; abstract (types only). What operands an op gets
(promotion, numbers) is decided before, in promotion.py and functions/.

Inside vmap, tensors have no data but a level (LevelStorage, see levels.py): such operands leave the
fast path where data is asked for, and the level applies the op.

The recorder's protocol (state.recorder, see jitgrad/recorder.py for the one that jit uses):
    op(op, operands, attrs, outputs, line)   an op was applied; outputs is always a tuple
    write(target, value, line)               target's elements became value's (called after)
    refuse_write(target)                     where there is one: target is about to be written
    rebind(owner, key, value)                a slot is about to be set ("grad", "data", ...)
    slot_read(owner, key)                    a slot is about to be read
    raw_read(x, what)                        data of a tensor or storage leaves the graph
    number_of(x)                             x.item() of a floating tensor: a HostScalar, or None
    memory_read(x, what)                     Python asks where a tensor lies in memory, how large a
                                             storage is, or what it is a view of
    layout_read()                            Python asks for strides that sizes do not tell
    sizes_fixed(frame)                       whether code that asks for a shape is to see ints
    tape_read(node)                          Python gets hold of a tape node
    constant(tensor, array)                  a tensor was made from host data (`array`, or None
                                             when the data was copied)
    draw(generator) -> (seed, draw)          numbers a random draw: two 0-d int64 tensors
    lift(hostscalar) -> Tensor               a host number meets a tensor: 0-d float64
    specialise(hostscalar)                   Python looked at a host number
    truth(hostscalar)                        Python asked whether a host number is zero
    compare(name, a, b) -> bool              Python compares host numbers (of one at least): whether
                                             that is noted; else they are specialised

Errors of infer and of references get the user's file and line here, once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from sys import getrefcount
from typing import Any

import numpy as np

from jitgrad import gpu, sizes
from jitgrad.compiler.ops.quiet import hush, unhush
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import is_static
from jitgrad.compiler.types import TensorType
from jitgrad.kernels import kernel_of
from jitgrad.layouts import can_view, ghost, is_dense, is_told, laid, layout_of, set_order
from jitgrad.pending import fetch
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import user_frame, user_line, with_line
from jitgrad.state import abstract_mode, bump_epoch, defaults, epoch, recording, state, unwatched
from jitgrad.storage import LevelStorage, Storage, overlaps_itself
from jitgrad.tape.node import (
    IdentityNode,
    Node,
    OverwrittenNode,
    StartNode,
    edge_of,
    next_seq,
    save_tensor,
)
from jitgrad.tape.saves import reads_of_gradients, saved_keys
from jitgrad.tape.views import ViewInfo, new_view, rebase
from jitgrad.tensor import AbsentTensor, Size, Tensor, absent, intern_type, wrap

__all__ = [
    "abstract_mode", "apply", "assign", "bump_epoch", "check_inplace", "epoch", "full", "recording",
    "state",
]  # fmt: skip


class Plan:
    """What is known of an op's application from the operands' types and the attributes.

    Attributes:
        types: the result's type, or the tuple of them.
        operand_types: held, so that ids of types in keys of plans stay theirs.
        taped: the result may be on the tape (differentiable, floating).
        kernel: what runs on the operands' arrays; None: the record's reference, with attributes.
        keeps: for each set of operands that require grad (as bits), what is saved.
        fresh: the kernel is one of NumPy's ufuncs, whose result is an array of its own.
        zeros: the attributes that are zero: 0.0 and -0.0 have one plan.
        lasts: it is kept, and says all of such applications: there are no such zeros.
    """

    __slots__ = (
        "fresh", "keeps", "kernel", "lasts", "operand_types", "reads", "taped", "types",
        "zeros",
    )  # fmt: skip

    def __init__(
        self, types: Any, operand_types: tuple[TensorType, ...], taped: bool, kernel: Any
    ) -> None:
        self.types = types
        self.kernel = kernel
        self.operand_types = operand_types
        self.taped = taped
        self.fresh = type(kernel) is np.ufunc and kernel.nout == 1
        self.zeros: tuple[str, ...] = ()
        self.lasts = False
        self.keeps: dict[int, Kept] = {}
        self.reads: tuple[frozenset[Any], ...] | None = None

    @property
    def nout(self) -> int:
        """The number of results."""
        return len(self.types) if type(self.types) is tuple else 1

    def keeps_for(self, wanted: int, op: Any, attrs: dict[str, Any]) -> Kept:
        """What is saved where these operands require grad."""
        found = self.keeps.get(wanted)
        if found is None:
            count = len(self.operand_types)
            if op.sparse:  # what is read depends on the whole of what is wanted
                needs = [bool(wanted >> k & 1) for k in range(count)]
                self.reads = reads_of_gradients(
                    op, self.operand_types, self.types, {**attrs, "needs": needs}
                )
            elif self.reads is None:
                operands, types = self.operand_types, self.types
                if not all(is_static(t.shape) for t in operands) or _has_sizes(attrs):
                    operands = tuple(map(sizes.type_of_data, operands))  # the sizes of this call
                    types = (
                        tuple(map(sizes.type_of_data, types))
                        if isinstance(types, tuple)
                        else sizes.type_of_data(types)
                    )
                    attrs = sizes.hinted(attrs)
                self.reads = reads_of_gradients(op, operands, types, attrs)
            needed: frozenset[Any] = frozenset()
            for k, keys in enumerate(self.reads):
                if wanted >> k & 1:
                    needed = needed | keys
            flags = tuple(i in needed for i in range(count))
            results = tuple(f"out{i}" in needed for i in range(self.nout))
            absent_some = any(isinstance(k, int) for k in saved_keys(op, count, self.nout))
            found = Kept(
                self, wanted, flags if absent_some else None,
                results[0] if op.nout == 1 else results,
            )  # fmt: skip
            self.keeps[wanted] = found
        return found


class Kept:
    """What a node saves of an application, and how its derivative is run on arrays.

    Attributes:
        plan, wanted: the application's, and the operands that require grad, as bits.
        operands: a flag for each operand: it is saved. None: no data of any is.
        results: whether the result is saved (a tuple of flags when there are several).
        uses: how often the derivative was run without `run`; negative: there is none.
        run: the straight derivative (autograd/straight.py), or None.
        reads: the operands that it takes. types: its results' (None: no gradient).
    """

    __slots__ = ("operands", "plan", "reads", "results", "run", "types", "uses", "wanted")

    def __init__(
        self, plan: Plan, wanted: int, operands: tuple[bool, ...] | None, results: Any
    ) -> None:
        self.plan, self.wanted = plan, wanted
        self.operands, self.results = operands, results
        self.uses = 0
        self.run: Any = None
        self.reads: tuple[int, ...] = ()
        self.types: tuple[TensorType | None, ...] = ()


plans: dict[Any, Plan] = {}
"""Plans by (op, ids of operand types, attributes). A plan holds its types, so an id in a key stays
theirs."""
_MAX_PLANS = 8192
_FLOATING = dtypes.Category.FLOAT
_SIZELESS = frozenset([int, bool, float, str, type(None), dtypes.DType])
ndarray = np.ndarray


timing: Any = None
"""The profile that is on (profiler.py), or None. Plans made meanwhile have kernels it times."""


def forget_plans() -> None:
    """Forgets all plans: for tests that replace references of records, and for profiles."""
    plans.clear()


def apply(op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
    """Applies a record to tensors. Returns a Tensor, or a tuple of them when op.nout > 1.

    Operands have their final dtypes. Views share their operand's storage.
    """
    modes = state.__dict__
    if modes["watcher"] is not None:
        if modes["casting"] is not None:
            operands = modes["casting"].at(op, operands)
        return unwatched(apply, op, operands, attrs)
    count = len(operands)
    key: Any
    if count == 2:
        a, b = operands
        key = (op, id(a._type), id(b._type))
    elif count == 1:
        key = (op, id(operands[0]._type))
    else:
        key = (op, *[id(x._type) for x in operands])
    try:
        if attrs:
            if modes["recorder"] is not None and _has_sizes(attrs):
                raise KeyError  # its plan is no other call's, and a size is not hashed
            key = (key, *attrs.items())
        plan = plans[key]
    except (KeyError, TypeError):
        if gpu.mixed(operands):
            settled = gpu.mixing.settled(op, operands)
            if settled is not None:
                return apply(op, settled, attrs)
        plan = _make_plan(key, op, operands, attrs)
    types = plan.types
    if op.view:
        outputs: Any = _apply_view(op, operands[0], attrs, plan)
        if outputs._data is None and (
            type(outputs) is AbsentTensor or type(outputs._storage) is LevelStorage
        ):
            return outputs
    elif modes["abstract"]:
        for x in operands:
            if type(x) is AbsentTensor or type(x._storage) is LevelStorage:
                return _without_data(op, operands, attrs, plan)
        outputs = wrap(None, types) if op.nout == 1 else tuple([wrap(None, t) for t in types])
        if op.keeps_layout:
            set_order(operands, outputs)
    else:
        if count == 2:  # the commonest case, without loops over operands
            left, right = a._data, b._data
            if left is None or right is None:
                return _without_data(op, operands, attrs, plan)
        else:
            arrays = [x._data for x in operands]
            for array in arrays:
                if array is None:
                    return _without_data(op, operands, attrs, plan)
        token = hush()
        try:
            kernel = plan.kernel
            if count == 2:
                if kernel is not None:
                    result = kernel(left, right)
                else:
                    result = op.reference(left, right, **attrs)
                if plan.fresh:
                    shared = False
                    if not left.flags.c_contiguous:
                        result = laid(op, result, (left, right))
                else:
                    shared = (
                        result is left
                        or result is right
                        or getattr(result, "base", None) is not None
                    )
                    if op.nout == 1:
                        result = laid(op, result, (left, right))
            else:
                if kernel is not None:
                    result = kernel(*arrays)
                else:
                    result = op.reference(*arrays, **attrs)
                shared = not plan.fresh and (
                    count > 2
                    or (count == 1 and result is arrays[0])
                    or getattr(result, "base", None) is not None
                )
                if op.nout == 1 and not plan.fresh:
                    result = laid(op, result, arrays)
        except Exception as error:
            raise with_line(error)  # noqa: B904 (see with_line)
        finally:
            unhush(token)
        if op.nout == 1:
            if type(result) is not ndarray and not isinstance(result, ndarray):  # a ufunc's scalar
                result = np.asarray(result)
            if shared:
                result = _owned(result, operands)
            outputs = wrap(result, types)
        else:
            outputs = tuple(
                [
                    wrap(_owned(laid(op, r, ()), operands), t)
                    for r, t in zip(result, types, strict=True)
                ]
            )
    if plan.taped and modes["grad_enabled"]:
        for x in operands:
            if x._requires_grad or (x._view is not None and x.requires_grad):
                put_on_tape(op, operands, attrs, plan, outputs)
                if modes["saved_hooks"]:
                    _tell(op, operands, attrs, outputs)
                    pack_node(outputs)
                    return outputs
                break
    recorder = modes["recorder"]
    if recorder is not None:
        if recorder is modes["lazy"]:
            if op.precise:
                attrs = _recorded(op, operands, attrs)
                plan = plan_of(op, operands, attrs)
            recorder.apply(op, operands, attrs, plan, outputs)
        else:
            _tell(op, operands, attrs, outputs)
    return outputs


def apply_two(op: Any, a: Tensor, b: Tensor) -> Any:
    """apply(op, (a, b), {}), with the commonest case of eager code first: one of NumPy's ufuncs on
    two tensors that have data, with nobody listening. All else is apply's."""
    modes = state.__dict__
    plan = plans.get((op, id(a._type), id(b._type)))
    left, right = a._data, b._data
    if (
        plan is None
        or not plan.fresh
        or left is None
        or right is None
        or modes["recorder"] is not None
        or modes["watcher"] is not None
        or modes["abstract"]
        or modes["saved_hooks"]
    ):
        return apply(op, (a, b), {})
    token = hush()
    try:
        result = plan.kernel(left, right)
        if not left.flags.c_contiguous:
            result = laid(op, result, (left, right))
    except Exception as error:
        raise with_line(error)  # noqa: B904 (see with_line)
    finally:
        unhush(token)
    if type(result) is not ndarray:
        result = np.asarray(result)
    out = wrap(result, plan.types)
    if plan.taped and modes["grad_enabled"]:
        if a._view is not None or b._view is not None:
            if a.requires_grad or b.requires_grad:
                put_on_tape(op, (a, b), {}, plan, out)
        elif a._requires_grad or b._requires_grad:
            put_on_tape(op, (a, b), {}, plan, out)
    return out


def plan_of(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Plan:
    """The plan of an application (as `apply` looks it up); of operands, their types are read."""
    count = len(operands)
    key: Any
    if count == 2:
        key = (op, id(operands[0]._type), id(operands[1]._type))
    elif count == 1:
        key = (op, id(operands[0]._type))
    else:
        key = (op, *[id(x._type) for x in operands])
    if attrs:
        key = (key, *attrs.items())
    try:
        return plans[key]
    except (KeyError, TypeError):
        return _make_plan(key, op, operands, attrs)


def settle_attrs(attrs: dict[str, Any]) -> None:
    """Shapes of tensors among the attributes become tuples, NumPy's numbers Python's."""
    for name, value in attrs.items():
        if isinstance(value, np.generic):
            attrs[name] = value.item()
        elif isinstance(value, tuple) and (
            type(value) is Size or any(isinstance(x, np.generic) for x in value)
        ):
            attrs[name] = tuple([x.item() if isinstance(x, np.generic) else x for x in value])


def _tell(op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any], outputs: Any) -> None:
    """Reports an op to the recorder, if there is one."""
    if state.recorder is not None:
        settle_attrs(attrs)
        many = outputs if op.nout > 1 else (outputs,)
        if op.precise:
            attrs = _recorded(op, operands, attrs)
        state.recorder.op(op, operands, attrs, many, user_line())


def _recorded(op: Any, operands: Sequence[Tensor], attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes that an op is recorded with: those of its application, and the setting of how
    precise products must be, which compiled code alone makes use of."""
    precision = defaults.settings["cpu_precision"]
    if precision == "highest" or "precision" in attrs:
        return attrs
    return op.with_precision([x._type for x in operands], attrs, precision)


def pack_node(outputs: Any) -> None:
    """Hands what an op's node saved to the pack hook. After recorders know the outputs: the hook
    may apply ops to them."""
    many = outputs if isinstance(outputs, tuple) else (outputs,)
    node = next(y._node for y in many if y._node is not None)
    node.pack()


def _make_plan(key: Any, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Plan:
    """Infers; remembered when all of it is static. Raises the user's error."""
    settle_attrs(attrs)
    operand_types = tuple(x._type for x in operands)
    static = all(is_static(t.shape) for t in operand_types) and not _has_sizes(attrs)
    try:
        infer = op.infer if static else partial(sizes.infer, op)
        found = infer(*operand_types, **attrs)
    except Exception as error:
        raise with_line(error)  # noqa: B904 (see with_line)
    many = found if isinstance(found, tuple) else (found,)
    many = tuple(intern_type(t) for t in many)
    types = many if isinstance(found, tuple) else many[0]
    taped = op.differentiable and any(t.dtype.category >= _FLOATING for t in many)
    if static:
        kernel = op.kernel(operand_types, attrs)
        plain = kernel or partial(op.reference, **attrs)
        if all(t.device == "cpu" for t in (*operand_types, *many)):
            kernel = kernel_of(op, operand_types, many, attrs, plain) or kernel
        else:
            kernel = gpu.kernels.device_kernel(op, operand_types, many, attrs)
    else:  # made for the sizes that the data has
        now = sizes.hinted(attrs)
        here = [sizes.type_of_data(t) for t in operand_types]
        if all(t.device == "cpu" for t in (*operand_types, *many)):
            kernel = op.kernel(here, now)
            kernel = partial(op.reference, **now) if kernel is None else kernel
        else:
            made = op.infer(*here, **now)
            made = made if isinstance(made, tuple) else (made,)
            kernel = gpu.kernels.device_kernel(op, here, made, now)
    of_attributes = type(kernel) in gpu.kernels.MADE_OF_ATTRIBUTES
    if timing is not None:
        plain = partial(op.reference, **attrs) if kernel is None else kernel
        kernel = timing.timed(op, operand_types, many, attrs, plain)
    plan = Plan(types, operand_types, taped, kernel)
    plan.zeros = tuple([k for k, v in attrs.items() if type(v) is float and v == 0.0])
    if static:
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        if not of_attributes or not gpu.kernels.zeros_of(attrs):
            with suppress(TypeError):  # an attribute that cannot be hashed: inferred every time
                plans[key] = plan
                plan.lasts = not plan.zeros
    return plan


def _has_sizes(attrs: dict[str, Any]) -> bool:
    return any(map(sizes.has_sizes, [x for x in attrs.values() if type(x) not in _SIZELESS]))


def _owned(result: np.ndarray[Any, Any], operands: tuple[Tensor, ...]) -> np.ndarray[Any, Any]:
    """The result of an op that is no view, sure to share no memory with an operand."""
    for x in operands:
        if result is x._data or (result.base is not None and np.may_share_memory(result, x._data)):
            return result.copy(order="K")
    return result


def _apply_view(op: Any, x: Tensor, attrs: dict[str, Any], plan: Plan) -> Tensor:
    """A view op: shares x's storage where the reference could give a view, else a fresh result."""
    source = x._data
    if state.abstract and type(x._storage) is not LevelStorage:
        return _abstract_view(op, x, attrs, plan)
    if source is None:
        return _without_data(op, (x,), attrs, plan)
    try:
        kernel = plan.kernel
        data = op.reference(source, **attrs) if kernel is None else kernel(source)
    except Exception as error:
        raise with_line(error)  # noqa: B904 (see with_line)
    base = data.base
    shared = base is not None and (
        base is source or base is source.base or np.shares_memory(data, source)
    )
    if not shared and data.size:
        return wrap(data, plan.types)
    return as_view(op, x, attrs, data, plan.types)


def _abstract_view(op: Any, x: Tensor, attrs: dict[str, Any], plan: Plan) -> Tensor:
    """A view op in abstract mode: where eager code would copy, a result of its own. In a call that
    runs in segments it shows memory that is there, though what that holds may have to wait."""
    if type(x) is AbsentTensor:
        return absent(plan.types)
    data = x._data if state.lazy is not None else None
    if not is_dense(x) and not can_view(op, attrs, layout_of(x)):
        return wrap(None, plan.types)
    if data is not None:
        try:
            kernel = plan.kernel
            data = op.reference(data, **attrs) if kernel is None else kernel(data)
        except Exception as error:
            raise with_line(error)  # noqa: B904 (see with_line)
    return as_view(op, x, attrs, data, plan.types)


def as_view(op: Any, x: Tensor, attrs: dict[str, Any], data: Any, type_: TensorType) -> Tensor:
    """A view of x by one more view op, that follows writes to x's base. Where x requires grad and
    no_grad holds, it is a leaf that requires grad (in abstract mode, whose graphs have derivatives
    of their own, it does not)."""
    out = new_view(x, data, type_, (op, attrs))
    storage = x._storage
    info = x._view
    if not op.differentiable:  # detach: nothing to follow
        if info is not None and info.hidden:
            out._view = info.detached()
        return out
    if info is None:
        base, hidden, tracked = x, False, True
    else:
        base = x if info.base is None else info.base
        hidden, tracked = info.hidden, info.tracked
    out._view = ViewInfo(
        base, storage.version - storage.hidden, hidden, tracked and state.grad_enabled
    )
    floating = type_.dtype.category >= _FLOATING
    if floating and not state.grad_enabled and x.requires_grad and not state.abstract:
        out._requires_grad = True
    return out


_new_node = Node.__new__


def put_on_tape(
    op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any], plan: Plan, outputs: Any
) -> None:
    """Makes the op's node, field by field (Node.__init__ and Node.save cost as much again)."""
    node = _new_node(Node)
    wanted = 0
    if len(operands) == 2:  # the commonest case, without loops and lists
        a, b = operands
        if a._view is not None:
            a._view.refresh(a)
        if b._view is not None:
            b._view.refresh(b)
        left: Node | Tensor | None = None
        right: Node | Tensor | None = None
        if a._requires_grad:
            wanted, left = 1, a if a._node is None else a._node
        if b._requires_grad:
            wanted, right = wanted + 2, b if b._node is None else b._node
        node.edges = (left, right)
        node.slots = (0 if left is a or left is None else a._out,
                      0 if right is b or right is None else b._out)  # fmt: skip
    else:
        for x in operands:
            if x._view is not None:
                x._view.refresh(x)
        edges: list[Node | Tensor | None] = []
        slots: list[int] = []
        bit = 1
        for x in operands:
            edge = (x if x._node is None else x._node) if x._requires_grad else None
            edges.append(edge)
            slots.append(0 if edge is x or edge is None else x._out)
            wanted |= bit if edge is not None else 0
            bit <<= 1
        node.edges = tuple(edges)
        node.slots = tuple(slots)
    node.op = op
    node.attrs = attrs
    node.nout = 1 if op.nout == 1 else len(outputs)
    node.out_types = plan.types
    node.seq = next_seq()
    node.hooks = node.retains = None
    frame = user_frame(2)
    if frame is not None:
        node._code = frame.f_code
        node._lasti = frame.f_lasti
    else:
        node._code = None
        node._lasti = 0
    kept = plan.keeps.get(wanted)
    if kept is None:
        kept = plan.keeps_for(wanted, op, attrs)
    node.known = kept
    keeps, keep_out = kept.operands, kept.results
    if keeps is None:
        node.operands = plan.operand_types
    else:
        node.operands = tuple(
            [save_tensor(x) if keep else x._type for x, keep in zip(operands, keeps, strict=True)]
        )
    if op.nout == 1:
        node.outs = save_tensor(outputs) if keep_out else ()
        outputs._node = node
        outputs._requires_grad = True
        return
    node.outs = tuple(
        [save_tensor(y) if keep else y._type for y, keep in zip(outputs, keep_out, strict=True)]
    )
    for i, y in enumerate(outputs):
        if y._type.dtype.category >= _FLOATING:
            y._node = node
            y._out = i
            y._requires_grad = True


def bind(op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """What `record(x, y, attr=...)` calls (Op.__call__): numbers among operands become 0-d tensors
    of the first tensor's dtype."""
    if attrs:
        settle_attrs(attrs)
    for x in operands:
        if not isinstance(x, Tensor):
            return apply(op, _numbers_to_tensors(operands), attrs)
    return apply(op, operands, attrs)


def _numbers_to_tensors(operands: tuple[Any, ...]) -> tuple[Tensor, ...]:
    like = next(x for x in operands if isinstance(x, Tensor))
    number = (
        functools.partial(full, (), dtype=like._type.dtype)
        if state.lazy is None
        else functools.partial(Tensor._constant, dtype=like._type.dtype)
    )
    out = []
    for x in operands:
        if not isinstance(x, (Tensor, int, float, complex)):
            raise TypeError(f"expected tensors and numbers as operands; got {type(x).__name__}")
        out.append(x if isinstance(x, Tensor) else number(x))
    return tuple(out)


def full(shape: Sequence[Any], value: Any, dtype: Any, device: str = "cpu") -> Tensor:
    """A tensor of one value, by the `full` record."""
    attrs = {"shape": tuple(shape), "value": value, "dtype": dtype, "device": str(device)}
    return apply(OPS["full"], (), attrs)


def hand_on(x: Tensor) -> Tensor:
    """A tensor on the memory of x, off the tape, where nobody else has x and the caller lets go of
    it: to recorders a copy."""
    copy = OPS["contiguous"]
    out = wrap(x._data, plan_of(copy, (x,), {}).types)
    _tell(copy, (x,), {}, out)
    return out


def _absent(op: Any, types: Any) -> Any:
    return absent(types) if op.nout == 1 else tuple(absent(t) for t in types)


def _without_data(op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any], plan: Plan) -> Any:
    """The result when an operand has no data of its own: absent, what the level of an operand
    inside vmap makes of it, or the user's error."""
    for x in operands:
        if type(x) is AbsentTensor:
            return _absent(op, plan.types)
    level = level_of(operands)
    if level is not None:
        return level.apply(op, operands, attrs, plan)
    missing = [x for x in operands if x._data is None]
    if all(map(fetch, missing)):  # of a call that runs in segments, in another thread
        return apply(op, operands, attrs)
    x = missing[0]
    raise with_line(
        RuntimeError(
            f"[{op.name}] expected tensors with data; {x._type} is abstract (it was made while "
            "tracing from shapes alone); use it inside the traced function only"
        )
    )


def level_of(tensors: Sequence[Tensor]) -> Any:
    """The innermost vmap that one of the tensors belongs to; None when there is none."""
    found = None
    for x in tensors:
        storage = x._storage
        if type(storage) is LevelStorage and (found is None or storage.level.number > found.number):
            found = storage.level
    return found


# -- in-place ---------------------------------------------------------------------------------
def check_inplace(target: Tensor, value_requires_grad: bool = False) -> None:
    """Raises RuntimeError, in PyTorch's words, where `target` may not be written in place."""
    data = target._data
    if data is None and target._chain and is_told(target):
        data = ghost(layout_of(target))
    if data is not None:
        flags = data.flags
        if not flags.c_contiguous and overlaps_itself(data):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                f"operation. (The tensor is {target._type}, a view that shows elements twice.)"
            )
        if not flags.writeable:
            root = target._storage.array
            if root is not None and root.flags.writeable:
                raise RuntimeError(
                    f"[assign] expected no view of an expanded tensor; got {target._type}, whose "
                    "base was expanded; clone() it first"
                )
            raise RuntimeError(
                f"[assign] expected a tensor that may be written; {target._type} shows a read-only "
                "NumPy array; clone() it first"
            )
    if not state.grad_enabled:
        return
    info = target._view
    base = None if info is None else info.base
    tracked = info is None or info.tracked
    if base is not None and not tracked and (base._requires_grad or value_requires_grad):
        raise RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode "
            "enabled. Make the view in grad mode, or write to it in no_grad mode."
        )
    if target.requires_grad and _is_start(target._node):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )
    if base is not None and base._requires_grad and _is_start(base._node):
        raise RuntimeError(
            "a view of a leaf Variable that requires grad is being used in an in-place operation."
        )


def _is_start(node: Node | None) -> bool:
    """Whether a tensor with this node is a leaf, or what func.grad gave a function as one."""
    return node is None or node.kind is StartNode


def assign(target: Tensor, value: Tensor, non_blocking: bool = False) -> None:
    """Target's elements become value's, in place. Same shape and dtype. non_blocking: as of copy_.

    Bumps the storage's version; on the tape, target is value from here on (and the base of a view
    is the base with that region replaced). Raises RuntimeError as `check_inplace` says.
    """
    if (
        value._type is not target._type
        and value._type != target._type
        and (value._type.shape, value._type.dtype) != (target._type.shape, target._type.dtype)
    ):
        raise RuntimeError(
            f"[assign] expected a value of type {target._type}; got {value._type}; expand it and "
            "convert it to the target's dtype first"
        )
    level = None
    if target._data is None or value._data is None:
        level = level_of((target, value))
        if level is not None:
            value = level.prepare_write(target, value)
            if value is None:
                return
    modes = state.__dict__
    refuse = getattr(modes["recorder"], "refuse_write", None)
    if refuse is not None:
        refuse(target)
    taped = modes["grad_enabled"] and (value.requires_grad or target.requires_grad)
    if value._type.device != target._type.device and (taped or modes["recorder"] is not None):
        value = apply(OPS["to_device"], (value,), {"device": target._type.device})
    check_inplace(target, value._requires_grad)
    storage = target._storage
    if taped and value._node is not None:
        value._node.protect(storage, _snapshot)
    recorder = modes["recorder"]
    if recorder is not None:  # while the target is what it was: it asks for its place on the tape
        if recorder is modes["lazy"]:
            recorder.write(target, value, "")
        else:
            unwatched(recorder.write, target, value, user_line())
    info = target._view
    if level is not None:
        level.write(target, value)
    else:
        if (
            modes["lazy"] is None
            and (value._data is not None or fetch(value))
            and (target._data is not None or fetch(target))
        ):
            if target._type.device == value._type.device == "cpu":
                np.copyto(target._data, value._data)
            else:
                gpu.kernels.store(target._data, value._data, target._type, non_blocking)
        storage.version += 1
        if info is not None and info.hidden:
            storage.hidden += 1
        if getrefcount(storage) > _UNSAVED:  # the tape may have saved it, and complain
            note_write(storage)
    if taped:
        if info is not None and info.base is not None:
            rebase(target, value)
        elif not value._requires_grad:
            edge, slot = edge_of(target)
            assert edge is not None
            target._node, target._out = OverwrittenNode(edge, slot, target._type), 0
        elif value._node is None or value._view is not None or value._storage is storage:
            edge, slot = edge_of(value)
            assert edge is not None
            target._node = IdentityNode(edge, slot, target._type)
            target._out, target._requires_grad = 0, True
        else:
            target._node, target._out = value._node, value._out
            target._requires_grad = True
    elif info is not None and info.base is not None:
        # Unseen by the tape, or nothing that requires grad: the view's node still stands.
        if not info.base._requires_grad:
            info.version = storage.version - storage.hidden


def note_write(storage: Storage) -> None:
    """Notes the user's line and the name of the in-place function that wrote a storage."""
    frame = sys._getframe(2)  # who called assign
    name = frame.f_code.co_name
    if name == "store":
        name = frame.f_locals["name"]
    user = user_frame(2)
    code, lasti = (None, 0) if user is None else (user.f_code, user.f_lasti)
    storage.writer = (storage.version, code, lasti, _WRITERS.get(name, name))


_WRITERS = {"setitem": "an assignment to a part of it (x[...] = ...)"}
_UNSAVED = 3  # references to a storage that one tensor has and nothing else, seen in assign


def _snapshot(x: Tensor) -> Tensor:
    """A copy of x, off the tape (but in the recorded graph)."""
    before = state.grad_enabled
    state.grad_enabled = False
    try:
        return apply(OPS["clone"], (x,), {})
    finally:
        state.grad_enabled = before


Tensor._bind = staticmethod(bind)  # type: ignore[method-assign]
