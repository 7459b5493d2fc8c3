"""How an autograd.Function runs inside vmap and forward mode.

Owns `run_forward`: the innermost level goes first. Forward mode runs the user's `jvp`; vmap the
user's `vmap`, or forward and backward themselves on tensors of the level.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jitgrad.autograd import given
from jitgrad.autograd.forward import Tangents
from jitgrad.autograd.function import Function, FunctionCtx
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import level_of
from jitgrad.functions.shape import movedim
from jitgrad.levels import Level
from jitgrad.pytree import flatten, unflatten
from jitgrad.state import state
from jitgrad.tape.node import zeros_of
from jitgrad.tensor import Tensor


def run_forward(cls: Any, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """forward and setup_context, off the tape; the innermost vmap or forward mode goes first."""
    top = state.levels[-1] if state.levels else None
    if isinstance(top, Tangents):
        return _forward_with_tangents(cls, ctx, args, kwargs, top)
    if isinstance(top, Level):
        if any(isinstance(x, Tensor) and level_of((x,)) is top for x in args):
            return _forward_of_examples(cls, ctx, args, kwargs, top)
        with top.outside():
            return run_forward(cls, ctx, args, kwargs)
    before = state.grad_enabled
    state.grad_enabled = False
    try:
        return _plainly(cls, ctx, args, kwargs)
    finally:
        state.grad_enabled = before


def _forward_with_tangents(
    cls: Any, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any], level: Tangents
) -> Any:
    """Forward mode: forward as it is, then the user's jvp."""
    with level.outside():
        tangents = [level.get(x) if isinstance(x, Tensor) else None for x in args]
        result = run_forward(cls, ctx, args, kwargs)
        if all(t is None for t in tangents):
            return result
        if ctx.materialize_grads:
            tangents = [
                zeros_of(x._type) if t is None and isinstance(x, Tensor) else t
                for x, t in zip(args, tangents, strict=True)
            ]
        found = cls.jvp(ctx, *tangents)
        many = result if isinstance(result, tuple) else (result,)
        along = found if isinstance(found, tuple) else (found,)
        if len(along) != len(many):
            raise RuntimeError(
                f"{cls.__name__}.jvp returned an incorrect number of tangents (expected "
                f"{len(many)}, got {len(along)})"
            )
        storages = {id(x._storage) for x in args if isinstance(x, Tensor)}
        outputs = []
        for y, t in zip(many, along, strict=True):
            if isinstance(y, Tensor) and (t is not None or id(y._storage) in storages):
                if id(y) not in ctx._dirty and (y._chain or id(y._storage) in storages):
                    y = y.clone()  # a tangent of its own
                if t is not None and t._type.shape != y._type.shape:
                    raise RuntimeError(
                        f"{cls.__name__}.jvp returned a tangent of type {t._type}; expected "
                        f"{y._type}"
                    )
                if t is not None:
                    t = given.like(t, y._type, f"{cls.__name__}.jvp returned an invalid tangent")
                level.replace(y, t)
            outputs.append(y)
    return tuple(outputs) if isinstance(result, tuple) else outputs[0]


class VmapInfo(NamedTuple):
    """What a Function's `vmap` is told: how many examples, and vmap's randomness."""

    batch_size: Any
    randomness: str


def _forward_of_examples(
    cls: Any, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any], level: Level
) -> Any:
    """vmap: the user's `vmap`, or forward and backward themselves, run on examples."""
    if cls.vmap is Function.vmap:
        with level.outside():
            pairs = [level.below_of(x) if isinstance(x, Tensor) else (x, False) for x in args]
            call = _Call(cls, ctx, level, tuple([b for _, b in pairs]), kwargs)
            below = _OfExamples.apply(call, *[x for x, _ in pairs])
        many = below if isinstance(below, tuple) else (below,)
        outputs = [
            level.wrap(y, t, b) if isinstance(y, Tensor) else y
            for y, (t, b) in zip(many, call.outputs, strict=True)
        ]
        ctx.to_save = tuple(
            outputs[call.own[i]] if i in call.own else t for i, t in enumerate(ctx.to_save)
        )
        return tuple(outputs) if isinstance(below, tuple) else outputs[0]
    if cls.setup_context is Function.setup_context:
        raise RuntimeError(
            f"[{cls.__name__}] expected a separate setup_context staticmethod beside vmap; split "
            "forward(ctx, ...) into forward(...) and setup_context(ctx, inputs, output)"
        )
    with level.outside():
        pairs = [level.below_of(x) if isinstance(x, Tensor) else (x, False) for x in args]
        in_dims = tuple([0 if b else None for _, b in pairs])
        info = VmapInfo(level.size, level.randomness)
        found, out_dims = cls.vmap(info, in_dims, *[x for x, _ in pairs], **kwargs)
        values, form = flatten(found)
        dims = [out_dims] * len(values) if not isinstance(out_dims, tuple) else list(out_dims)
        fronts = [
            y if d is None or d == 0 or not isinstance(y, Tensor) else movedim(y, d, 0)
            for y, d in zip(values, dims, strict=True)
        ]
    wrapped = [
        y if not isinstance(y, Tensor) else level.lift(y) if d is None else level.batch(y)
        for y, d in zip(fronts, dims, strict=True)
    ]
    result = unflatten(form, wrapped)
    cls.setup_context(ctx, args, result)
    return result


class _Call:
    """One application of a Function to examples. `outputs`: type and whether batched of each
    output; `own`: which of what forward saved are outputs."""

    def __init__(
        self, function: Any, ctx: FunctionCtx, level: Level, batched: tuple[bool, ...],
        kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self.function, self.level = function, level
        self.ctx: Any = ctx
        self.batched, self.kwargs = batched, kwargs
        self.outputs: list[tuple[Any, bool]] = []
        self.saved: list[tuple[Any, bool]] = []
        self.saved_forward: list[tuple[Any, bool]] = []
        self.own: dict[int, int] = {}


class _OfExamples(Function):
    """A Function applied to examples, as a Function of what lies below them: forward and backward
    run inside the vmap. So its derivative is the user's on the tape outside, too."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *below: Any) -> Any:
        level = call.level
        with level.inside():
            args = _wrapped(level, below, [(None, b) for b in call.batched])
            result = _plainly(call.function, call.ctx, args, call.kwargs)
            many = result if isinstance(result, tuple) else (result,)
            mine = {id(y): i for i, y in enumerate(many)}
            call.own = {i: mine[id(t)] for i, t in enumerate(call.ctx.to_save) if id(t) in mine}
            with level.outside():
                pairs = [level.below_of(y) if isinstance(y, Tensor) else (y, False) for y in many]
                saved = [_below(level, t) for t in call.ctx.to_save]
                ahead = [_below(level, t) for t in call.ctx._for_forward or ()]
        call.outputs = [
            (y._type if isinstance(y, Tensor) else None, b)
            for y, (_, b) in zip(many, pairs, strict=True)
        ]
        outputs = [y for y, _ in pairs]
        call.saved = [(None, b) for _, b in saved]
        call.saved_forward = [(None, b) for _, b in ahead]
        if call.ctx._for_forward is not None:
            ctx.save_for_forward(*[t for t, _ in ahead])
        ctx.call = call
        ctx.fields = {k: v for k, v in vars(call.ctx).items() if k not in _OWN_FIELDS}
        ctx.save_for_backward(
            *[outputs[call.own[i]] if i in call.own else t for i, (t, _) in enumerate(saved)]
        )
        ctx.mark_non_differentiable(
            *[
                y
                for y, z in zip(outputs, many, strict=True)
                if id(z) in call.ctx._non_differentiable
            ]
        )
        ctx.mark_dirty(*[x for x, z in zip(below, args, strict=True) if id(z) in call.ctx._dirty])
        ctx.set_materialize_grads(call.ctx.materialize_grads)
        call.ctx = None  # it holds the outputs, whose node holds the call
        return tuple(outputs) if isinstance(result, tuple) else outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call: _Call = ctx.call
        level = Level(call.level.size, call.level.randomness)
        inner = FunctionCtx()
        vars(inner).update(ctx.fields)
        with level.inside():
            inner.needs_input_grad = ctx.needs_input_grad[1:]
            inner.to_save = _wrapped(level, ctx.saved_tensors, call.saved)
            seeds = _wrapped(level, grads, call.outputs)
            found = call.function._derivative()(inner, *seeds)
            many = found if isinstance(found, (tuple, list)) else (found,)
            with level.outside():
                out = [_gradient(level, g, b) for g, b in zip(many, call.batched, strict=False)]
        return None, *out

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        call: _Call = ctx.call
        level = Level(call.level.size, call.level.randomness)
        inner = FunctionCtx()
        vars(inner).update(ctx.fields)
        with level.inside():
            flags = [(None, b) for b in call.batched]
            inner.to_save = _wrapped(level, ctx.to_save, call.saved)
            if ctx._for_forward is not None:
                inner._for_forward = _wrapped(level, ctx._for_forward, call.saved_forward)
            found = call.function.jvp(inner, *_wrapped(level, tangents[1:], flags))
            many = found if isinstance(found, tuple) else (found,)
            with level.outside():
                out = tuple(
                    [
                        t if t is None else level.widened(t) if b else level.below_of(t)[0]
                        for t, (_, b) in zip(many, call.outputs, strict=True)
                    ]
                )
        return out if isinstance(found, tuple) else out[0]


def _below(level: Level, x: Tensor | None) -> tuple[Tensor | None, bool]:
    return (None, False) if x is None else level.below_of(x)


def _wrapped(level: Level, xs: Any, flags: Any) -> tuple[Any, ...]:
    """Tensors below as ones of the level; flags: (anything, whether batched) of each."""
    return tuple(
        [
            x if not isinstance(x, Tensor) else level.batch(x) if b else level.lift(x)
            for x, (_, b) in zip(xs, flags, strict=True)
        ]
    )


_OWN_FIELDS = ("to_save", "_node", "_for_forward", "needs_input_grad")


def _plainly(cls: Any, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cls.setup_context is Function.setup_context:
        return cls.forward(ctx, *args, **kwargs)
    result = cls.forward(*args, **kwargs)
    cls.setup_context(ctx, args, result)
    return result


def _gradient(level: Level, g: Any, batched: bool) -> Any:
    """The gradient of what lies below an argument: summed over examples where it is one for all."""
    if not isinstance(g, Tensor):
        return g
    if batched:
        return level.widened(g)
    below, is_batched = level.below_of(g)
    return OPS["sum"](below, axes=(0,), keepdim=False) if is_batched else (below * level.size)


Function._run_forward = staticmethod(run_forward)  # type: ignore[method-assign]
