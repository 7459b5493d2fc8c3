"""Levels: vmap's batching, between dispatch and the tensors below.

Owns `Level` (one vmap that is being run), the tensors that belong to it, and what a recorder hears
across it. A tensor of a level shows one example; its storage (LevelStorage) holds a tensor of the
level below, which has all examples along its first axis. Dispatch asks the innermost level among an
op's operands to apply it: by the record's batching rule, to the tensors below. As those may be of
another level, vmaps nest; as the rules apply ops, what lies below is on the tape, recorded, and
differentiated forward as any tensor. The level's own tensors have their own tape: a gradient taken
inside vmap is that of each example.

`state.levels` has the vmaps and forward modes (autograd/forward.py) that are being run, outermost
first. While a rule runs, only those outside its level are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.compiler.ops.record import OPS, Op
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import apply, as_view, assign, pack_node, put_on_tape
from jitgrad.relay import Relay
from jitgrad.runtime.errors import InternalError
from jitgrad.runtime.userline import user_line
from jitgrad.state import state
from jitgrad.storage import LevelStorage
from jitgrad.tensor import Tensor, _new, intern_type


class _Boundary(Relay):
    """What recorders outside a level hear while it is run: all but what concerns its tensors. (For
    those, they hear of the ops that its rules apply.)"""

    def __init__(self, level: Level) -> None:
        super().__init__(level.recorder)
        self.level = level

    def op(self, op: Any, operands: Any, attrs: Any, outputs: Any, line: str) -> None:
        if self._hears(outputs[0]):
            super().op(op, operands, attrs, outputs, line)

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        if self._hears(target):
            super().write(target, value, line)

    def _hears(self, x: Tensor) -> bool:
        storage = x._storage
        return type(storage) is not LevelStorage or storage.level.number < self.level.number


class _Outside:
    """`with level.outside():` (a class, as every op inside vmap enters it)."""

    __slots__ = ("before", "level")

    def __init__(self, level: Level) -> None:
        self.level = level

    def __enter__(self) -> None:
        level = self.level
        levels = state.levels
        if level not in levels:
            raise RuntimeError(
                "vmap: expected a tensor of a vmap that is being run; this one was kept beyond its "
                "vmap; return it instead"
            )
        self.before = (state.recorder, levels, state.grad_enabled)
        state.recorder, state.levels = level.recorder, level.below
        if not level.grad_enabled:
            state.grad_enabled = False

    def __exit__(self, *exc: object) -> None:
        state.recorder, state.levels, state.grad_enabled = self.before


class Level:
    """One vmap that is being run over `size` examples.

    Attributes:
        randomness: "error", "same" or "different" draws for the examples.
        number: greater than those of the levels outside it.
        recorder, grad_enabled, below: of state, outside it.
    """

    def __init__(self, size: Any, randomness: str = "error") -> None:
        self.size = size
        self.randomness = randomness
        self.number = 0
        self.recorder: Any = None
        self.grad_enabled = True
        self.below: tuple[Any, ...] = ()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Runs a block at this level (again, for a derivative of what was run before)."""
        before = (state.recorder, state.levels)
        own = (self.recorder, self.below, self.grad_enabled, self.number)
        self.recorder, self.below = before
        self.grad_enabled = state.grad_enabled
        self.number = 1 + max((level.number for level in self.below), default=0)
        state.recorder = _Boundary(self)
        state.levels = (*self.below, self)
        try:
            yield
        finally:
            state.recorder, state.levels = before
            self.recorder, self.below, self.grad_enabled, self.number = own

    def outside(self) -> _Outside:
        """Runs a block on the tensors below."""
        return _Outside(self)

    # -- tensors -------------------------------------------------------------------------------
    def wrap(self, value: Tensor, type_: TensorType, batched: bool) -> Tensor:
        """The tensor of this level, of type type_, that shows one example of `value`."""
        out: Tensor = _new(Tensor)
        out._data = None
        out._type = type_
        out._storage = LevelStorage(value, type_, self, batched)
        out._chain = ()
        out._node = None
        out._out = 0
        out._requires_grad = False
        out._view = None
        return out

    def batch(self, value: Tensor) -> Tensor:
        """The tensor of this level whose examples lie along the first axis of `value`."""
        t = value._type
        return self.wrap(value, intern_type(t.with_shape(tuple(t.shape[1:]))), True)

    def lift(self, x: Tensor) -> Tensor:
        """x as a tensor of this level, the same for all examples."""
        storage = x._storage
        if type(storage) is LevelStorage and storage.level is self:
            return x
        return self.wrap(x, x._type, False)

    def below_of(self, x: Tensor) -> tuple[Tensor, bool]:
        """The tensor below x, and whether it has an axis of examples in front. Call `outside`."""
        storage = x._storage
        if type(storage) is not LevelStorage or storage.level is not self:
            return x, False
        if not x._chain:
            return storage.value, storage.batched
        value = x.__dict__.get("_below")
        if value is None:
            value = storage.value
            for op, attrs in x._chain:
                if storage.batched:
                    value = op.batch([value], [True], **attrs)
                else:
                    value = op(value, **attrs)
            x.__dict__["_below"] = value
        return value, storage.batched

    def widened(self, x: Tensor) -> Tensor:
        """The tensor below x with an axis of examples in any case. Call `outside`."""
        value, batched = self.below_of(x)
        if batched:
            return value
        shape = tuple(value._type.shape)
        return apply(OPS["expand"], (value,), {"shape": (self.size, *shape)})

    def text(self, x: Tensor) -> str:
        """repr of a tensor of this level, as PyTorch's."""
        if self not in state.levels:
            return f"BatchedTensor({x._type}, of a vmap that has ended)"
        number = 1 + vmap_levels().index(self)
        with self.outside():
            value, batched = self.below_of(x)
            below = repr(value).replace("\n", "\n    ")
        where = "bdim=0, " if batched else ""
        return f"BatchedTensor(lvl={number}, {where}value=\n    {below}\n)"

    # -- what dispatch asks ----------------------------------------------------------------------
    def apply(self, op: Any, operands: tuple[Tensor, ...], attrs: dict[str, Any], plan: Any) -> Any:
        """dispatch.apply, for operands of which this is the innermost level."""
        lifted = tuple([self.lift(x) for x in operands])
        with self.outside():
            pairs = [self.below_of(x) for x in lifted]
            values = [v for v, _ in pairs]
            flags = [b for _, b in pairs]
            batched = True in flags
            if not batched:
                found = apply(op, tuple(values), attrs)
            elif type(op).batch is Op.batch:
                found = self._one_by_one(op, values, flags, attrs)
            else:
                found = op.batch(values, flags, **attrs)
            many = found if op.nout > 1 else (found,)
            is_view = op.view and many[0]._storage is values[0]._storage
            if not is_view:  # a rule may give a view of an operand; the result is none
                many = tuple([
                    apply(OPS["clone"], (y,), {}) if _shares(y, values) else y for y in many
                ])  # fmt: skip
        types = plan.types if op.nout > 1 else (plan.types,)
        if batched:
            for y, t in zip(many, types, strict=True):
                if y._type.dtype is not t.dtype or tuple(y._type.shape) != (self.size, *t.shape):
                    raise InternalError(
                        f"[{op.name}] its batching rule gave {y._type} for {self.size} of {t}"
                    )
        if is_view:
            out = as_view(op, lifted[0], attrs, None, types[0])
            out.__dict__["_below"] = many[0]
            outputs: Any = (out,)
        else:
            outputs = tuple([self.wrap(y, t, batched) for y, t in zip(many, types, strict=True)])
        result = outputs if op.nout > 1 else outputs[0]
        taped = plan.taped and state.grad_enabled and any(x.requires_grad for x in lifted)
        if taped:
            put_on_tape(op, lifted, attrs, plan, result)
        recorder = state.recorder
        if recorder is not None and getattr(recorder, "level", None) is not self:
            recorder.op(op, operands, attrs, outputs, user_line())
        if taped and state.saved_hooks:
            pack_node(result)
        return result

    def _one_by_one(
        self, op: Any, values: Sequence[Tensor], flags: Sequence[bool], attrs: dict[str, Any]
    ) -> Any:
        """An op without a batching rule: each example for itself, then stacked."""
        if self.size == 0:
            raise RuntimeError(
                f"[{op.name}] expected at least one example, as it has no batching rule; got none"
            )
        rows = []
        for i in range(self.size):
            operands = [v[i] if b else v for v, b in zip(values, flags, strict=True)]
            found = apply(op, tuple(operands), dict(attrs))
            rows.append(found if op.nout > 1 else (found,))
        stacked = []
        for column in zip(*rows, strict=True):
            parts = [OPS["reshape"](y, shape=(1, *y._type.shape)) for y in column]
            stacked.append(apply(OPS["concatenate"], tuple(parts), {"axis": 0}))
        return tuple(stacked) if op.nout > 1 else stacked[0]

    def prepare_write(self, target: Tensor, value: Tensor) -> Tensor | None:
        """The value to assign to a tensor of this level; None when the write was done below."""
        storage = target._storage
        if type(storage) is LevelStorage and storage.level is self:
            return self.lift(value)
        if value.requires_grad and state.grad_enabled:
            raise RuntimeError(
                "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to "
                "call in-place operation that would mutate a captured Tensor. This is not "
                "supported; please rewrite the function being transformed to explicitly accept the "
                "mutated Tensor(s) as inputs."
            )
        with self.outside():
            below, batched = self.below_of(value)
            if batched:
                raise _unbatched_target(target)
            assign(target, below)
        return None

    def write(self, target: Tensor, value: Tensor) -> None:
        """Target's elements become value's, for tensors of this level."""
        with self.outside():
            below, batched = self.below_of(target)
            new, wide = self.below_of(value)
            if batched:
                new = self.widened(value)
            elif wide:
                raise _unbatched_target(target)
            if target._view is not None and target._view.hidden:
                below = below.data
            assign(below, new)


def _shares(y: Tensor, values: Sequence[Tensor]) -> bool:
    return any(y._storage is v._storage for v in values)


def _unbatched_target(target: Tensor) -> RuntimeError:
    return RuntimeError(
        "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor "
        "`other` in extra_args that has more elements than `self`. This happened due to `other` "
        f"being vmapped over but `self` (one tensor for all examples, {target._type}) not being "
        "vmapped over in a vmap. Make self inside vmap from a tensor that is mapped, e.g. with "
        "zeros_like(), or use the out-of-place form of the operation"
    )


def vmap_levels() -> list[Level]:
    """The vmaps that are being run, outermost first."""
    return [level for level in state.levels if isinstance(level, Level)]


def lifted_to_current(x: Tensor) -> Tensor:
    """x as a tensor of the innermost vmap (x itself where there is none, or it is one)."""
    levels = vmap_levels()
    return levels[-1].lift(x) if levels else x


def examples_like(like: Tensor, x: Tensor) -> Tensor:
    """A fresh tensor x as one for each example of `like`: what zeros_like and its kin give."""
    storage = like._storage
    if type(storage) is not LevelStorage or type(x._storage) is LevelStorage:
        return x
    level = storage.level
    with level.outside():
        value = examples_like(storage.value, x)
        if storage.batched:
            shape = (level.size, *value._type.shape)
            value = apply(OPS["clone"], (OPS["expand"](value, shape=shape),), {})
    out: Tensor = level.wrap(value, x._type, storage.batched)
    out._requires_grad = x._requires_grad
    return out


def draw_for_examples(make: Callable[[tuple[Any, ...]], Tensor], shape: tuple[Any, ...]) -> Tensor:
    """A random tensor of `shape` inside vmap, as the levels' randomness says; make(shape) draws.

    Raises RuntimeError where a level forbids random operations.
    """
    levels = vmap_levels()
    if any(level.randomness == "error" for level in levels):
        raise RuntimeError(
            "vmap: called random operation while in randomness error mode. Please either use the "
            "'same' or 'different' randomness flags on vmap or perform the randomness operation "
            "out of vmap"
        )
    own = [level for level in levels if level.randomness == "different"]
    out = make((*[level.size for level in own], *shape))
    for level in own:
        out = level.batch(out)
    return out
