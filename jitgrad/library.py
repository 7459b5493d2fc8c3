"""torch.library: functions that public code registers as operators, and calls as
`ops.namespace.name`.

Owns the registry and `custom_op`. An operator here is its Python function: it is recorded by `@jit`
like any other code, so neither a schema nor a fake implementation is needed. Operators of PyTorch's
own (`ops.aten`) are not in the registry: their public functions are.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jitgrad.autograd.function import Function
from jitgrad.body_recorder import Untraceable, trace
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.hostscalar import HostScalar
from jitgrad.missing import missing
from jitgrad.pytree import flatten, unflatten
from jitgrad.state import state
from jitgrad.tensor import Tensor

REGISTERED: dict[str, dict[str, CustomOpDef]] = {}
"""Operators by namespace, and by name in it."""

_HERE = ("", "CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
_UNUSED = ("Meta", "MPS", "XPU", "HPU", "PrivateUse1")
_CONSTANT = (bool, int, float, str, type(None))
_exports = threading.local()


@contextmanager
def calls_kept() -> Iterator[None]:
    """Inside, what is recorded with gradients off has a node `call` for each call of an operator,
    which a symbolic function can write to ONNX (`jitgrad.export`)."""
    before = getattr(_exports, "kept", False)
    _exports.kept = True
    try:
        yield
    finally:
        _exports.kept = before


class CustomOpDef:
    """An operator: calling it runs its function, whose derivative may be registered.

    Its gradient is what `register_autograd` was given, else that of the operations in it.
    """

    def __init__(self, name: str, fn: Callable[..., Any] | None, schema: str | None = None) -> None:
        self._name, self._schema, self._init_fn = name, schema, fn
        self._functions: dict[str, Callable[..., Any]] = {}
        self._derivative: tuple[Callable[..., Any], Callable[..., Any] | None] | None = None
        self._vmap: Callable[..., Any] | None = None
        self._mutates = False
        self.__name__ = name.partition("::")[2]

    @property
    def default(self) -> CustomOpDef:
        """The operator: it has one overload."""
        return self

    def _implementation(self, args: Any) -> Callable[..., Any]:
        kinds = {str(x.device).partition(":")[0] for x in args if isinstance(x, Tensor)}
        for kind in (*sorted(kinds, reverse=True), ""):
            if kind in self._functions:
                return self._functions[kind]
        raise NotImplementedError(
            f"[{self._name}] expected an implementation for tensors on {sorted(kinds) or 'cpu'}; "
            "none was registered; use library.register_kernel or impl"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self._implementation(flatten((args, kwargs))[0])
        kept = self._kept(function, args, kwargs)
        if kept is not None:
            return kept[0]
        if self._derivative is None:
            return function(*args, **kwargs)
        backward, setup = self._derivative
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        only = bound.kwargs

        def forward(*inputs: Any) -> Any:
            return function(*inputs, **only)

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            if setup is None:
                return
            if only:
                setup(ctx=ctx, inputs=inputs, keyword_only_inputs=only, output=output)
            else:
                setup(ctx=ctx, inputs=inputs, output=output)

        rules = {"forward": forward, "setup_context": setup_context, "backward": backward}
        if self._vmap is not None:
            rules["vmap"] = self._vmap
        parts = {name: staticmethod(rule) for name, rule in rules.items()}
        made: Any = type(self.__name__, (Function,), parts)
        return made.apply(*bound.args)

    def _kept(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result, in a tuple, of a call that becomes one node of the graph that is recorded for
        an export; None where its ops do: with gradients on, inside vmap, and of a function that no
        graph holds (it writes to its arguments, draws random numbers, looks at values)."""
        recorder = state.recorder
        if not getattr(_exports, "kept", False) or self._mutates or recorder is None:
            return None
        if state.grad_enabled or state.levels or not hasattr(recorder, "draw_block"):
            return None
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = [("", x) for x in bound.args] + list(bound.kwargs.items())
        given = [(k, float(x) if isinstance(x, HostScalar) else x) for k, x in given]
        constants = (y for _, x in given for y in (x if isinstance(x, (tuple, list)) else (x,)))
        if not all(isinstance(x, Tensor) or type(x) in _CONSTANT for x in constants):
            return None
        if any(isinstance(y, Tensor) for _, x in given if isinstance(x, (tuple, list)) for y in x):
            return None
        operands = [x for _, x in given if isinstance(x, Tensor)]
        before = recorder.reason
        try:
            made = trace(
                lambda a, k: function(*a, **k),
                (bound.args, bound.kwargs),
                [x._type for x in operands],
            )
        except Untraceable:
            recorder.reason = before
            return None
        if made.draws or not made.body.outputs:
            return None
        arguments = tuple([
            (k, True, None) if isinstance(x, Tensor)
            else (k, False, tuple(x) if isinstance(x, list) else x)
            for k, x in given
        ])  # fmt: skip
        attrs = {"body": made.body, "name": self._name, "arguments": arguments}
        found = apply(OPS["call"], (*operands, *made.captured), attrs)
        return (unflatten(made.structure, list(found)),)

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """backward(ctx, *grads) gives a gradient for each argument;
        setup_context(ctx, inputs, output) keeps what it needs."""
        self._derivative = backward, setup_context

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """fn, which is not used: shapes follow from the function itself."""
        return fn

    def register_kernel(
        self, device_types: Any, fn: Callable[..., Any] | None = None, /
    ) -> Callable[..., Any]:
        """The implementation for tensors on these kinds of device (None: all); a decorator
        without fn."""
        if fn is None:
            return lambda f: self.register_kernel(device_types, f)
        kinds = [device_types] if isinstance(device_types, str) else device_types
        for kind in ("",) if kinds is None else kinds:
            self._functions[kind] = fn
        return fn

    def register_vmap(self, fn: Callable[..., Any] | None = None, /) -> Callable[..., Any]:
        """The rule under vmap, fn(info, in_dims, *args), of an operator with a registered
        derivative; without one vmap goes through the function's operations."""
        if fn is None:
            return self.register_vmap
        self._vmap = fn
        return fn

    def __repr__(self) -> str:
        return f"<CustomOpDef({self._name})>"


def _split(name: str, what: str) -> tuple[str, str]:
    space, colons, inner = name.partition("::")
    if not colons or not space or not inner:
        raise ValueError(f"[{what}] expected a name like 'namespace::name'; got {name!r}")
    return space, inner.partition(".")[0]


def _register(op: CustomOpDef) -> CustomOpDef:
    space, inner = _split(op._name, "custom_op")
    REGISTERED.setdefault(space, {})[inner] = op
    return op


def registered(name: str) -> bool:
    """Whether an operator has this name, "namespace::name"."""
    space, _, inner = name.partition("::")
    return inner in REGISTERED.get(space, {})


def _find(op: Any, what: str) -> CustomOpDef:
    if isinstance(op, CustomOpDef):
        return op
    if not isinstance(op, str):
        raise ValueError(
            f"[{what}] expected an operator or its name; got {type(op).__name__}; give what "
            "custom_op gave, or 'namespace::name'"
        )
    space, inner = _split(op, what)
    found = REGISTERED.get(space, {}).get(inner)
    if found is None:
        raise RuntimeError(f"[{what}] operator {space}::{inner} does not exist; define it first")
    return found


def custom_op(
    name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: str | Iterable[str],
    device_types: Any = None, schema: str | None = None, tags: Any = None,
) -> Any:  # fmt: skip
    """Registers fn as `ops.namespace.name`; a decorator without fn. Gives a CustomOpDef.

    name: "namespace::name". mutates_args: the arguments that fn writes to; writes are seen by
    themselves. device_types: the kinds of device that fn is for (None: all).

    Raises ValueError for a name without a namespace.
    """
    if fn is None:
        return lambda f: custom_op(
            name, f, mutates_args=mutates_args, device_types=device_types, schema=schema
        )
    _split(name, "custom_op")
    made = CustomOpDef(name, fn, schema)
    made._mutates = bool(mutates_args)
    made.register_kernel(device_types, fn)
    return _register(made)


triton_op = custom_op


def register_fake(op: Any, func: Any = None, /, *, lib: Any = None, **options: Any) -> Any:
    """func, which is not used: shapes follow from the operator's function."""
    return (lambda f: f) if func is None else func


impl_abstract = register_fake


def register_autograd(
    op: Any, backward: Callable[..., Any], /, *, setup_context: Any = None, lib: Any = None
) -> None:
    """Registers an operator's derivative (CustomOpDef.register_autograd)."""
    _find(op, "register_autograd").register_autograd(backward, setup_context=setup_context)


def register_kernel(op: Any, device_types: Any, func: Any = None, /, *, lib: Any = None) -> Any:
    """Registers an operator's implementation for kinds of device."""
    return _find(op, "register_kernel").register_kernel(device_types, func)


def register_vmap(op: Any, func: Any = None, /, *, lib: Any = None) -> Any:
    """Registers an operator's rule under vmap."""
    return _find(op, "register_vmap").register_vmap(func)


def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Declares an operator, whose implementation follows by `impl`."""
    _split(qualname, "define")
    _register(CustomOpDef(qualname, None, schema))


def impl(qualname: str, types: Any, func: Any = None, *, lib: Any = None) -> Any:
    """Registers an operator's implementation for kinds of device ("cpu", "default": all)."""
    kinds = (types,) if isinstance(types, str) else tuple(types)
    kinds = tuple("" if k in ("default", "CompositeExplicitAutograd") else k.lower() for k in kinds)
    return _find(qualname, "impl").register_kernel(kinds, func)


class Library:
    """Operators of one namespace, as `Library("mine", "DEF")`."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("DEF", "IMPL", "FRAGMENT"):
            raise ValueError(f"[Library] expected the kind DEF, IMPL or FRAGMENT; got {kind!r}")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Declares the operator of a schema, "name(Tensor x) -> Tensor". Gives its name."""
        name = schema.partition("(")[0].strip().partition(".")[0]
        define(f"{self.ns}::{name}", schema)
        return name

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """The operator's implementation for a dispatch key: those of devices and the composite
        ones. Raises RuntimeError for others, which change how PyTorch dispatches."""
        key = dispatch_key or self.dispatch_key
        if key in _UNUSED:
            return
        if key not in _HERE:
            raise RuntimeError(
                f"[Library.impl] expected a dispatch key of {', '.join(_HERE[1:])}; got {key!r}; a "
                "derivative is registered by library.register_autograd"
            )
        name = op_name if isinstance(op_name, str) else op_name._name
        name = name if "::" in name else f"{self.ns}::{name}"
        kind = key.lower() if key in ("CPU", "CUDA") else None
        _find(name, "Library.impl").register_kernel(kind, fn)


__getattr__ = missing(__name__)
