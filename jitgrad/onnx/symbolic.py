"""Users' ONNX forms of ops: symbolic functions, as `torch.onnx.register_custom_op_symbolic` has.

Owns the registry, and the graph object that PyTorch's symbolic functions take.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.record import OnnxContext, Op
from jitgrad.library import REGISTERED, registered
from jitgrad.onnx.errors import OnnxExporterError

Symbolic = Callable[..., Any]
_FORMS: dict[str, list[tuple[int, Symbolic]]] = {}


class SymbolicGraph:
    """What a symbolic function builds with: `g.op("Mul", a, b)`, `g.op("my.domain::Op", x, n_i=3)`.

    Attributes of nodes are keywords that end in their kind, as PyTorch writes them: `_i` (int or
    ints), `_f` (float or floats), `_s` (string or strings), `_t` (tensor or array). Operands are
    values (names), numbers, tensors and NumPy arrays.
    """

    def __init__(self, context: OnnxContext) -> None:
        self.context = context

    def op(self, name: str, *operands: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns its output, or a tuple of `outputs` of them."""
        domain, _, op_type = name.rpartition("::")
        more: dict[str, Any] = {"domain": domain} if domain else {}
        for key, value in attributes.items():
            plain, _, kind = key.rpartition("_")
            if kind not in ("i", "f", "s", "t") or not plain:
                raise TypeError(
                    f"[onnx] expected attributes of {name} to end in _i, _f, _s or _t; got {key!r}"
                )
            more[plain] = _attribute(value, kind)
        inputs = [x if isinstance(x, str) else self.constant(x) for x in operands]
        return self.context.node(op_type, inputs, outputs, **more)

    def constant(self, value: Any) -> str:
        """A value that holds a number, a tensor or an array."""
        array = value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)
        return self.context.constant(array)

    def type(self, value: str) -> Any:
        """The type of an operand: `.shape`, `.dtype`."""
        return self.context.type(value)


def _attribute(value: Any, kind: str) -> Any:
    if kind == "t":
        from onnx import numpy_helper

        array = value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)
        return numpy_helper.from_array(np.ascontiguousarray(array))
    convert = {"i": int, "f": float, "s": str}[kind]
    if isinstance(value, (list, tuple)):
        return [convert(v) for v in value]
    return convert(value)


def register_custom_op_symbolic(
    symbolic_name: str, symbolic_fn: Symbolic, opset_version: int = 1
) -> None:
    """Says how an op is written to ONNX models of `opset_version` and later.

    Args:
        symbolic_name: a user's operator ("my::twice", of `library.custom_op`), or an op's record,
            with or without a namespace ("gcd", "mine::gcd").
        symbolic_fn: called as symbolic_fn(g, *operands, **attributes), with a `SymbolicGraph`;
            gives the value, or a tuple of values, that the op's results are.

    It goes before the record's own ONNX form. Raises ValueError if there is no such op.
    """
    name = name_of(symbolic_name, symbolic_fn, "register_custom_op_symbolic")
    forms = [f for f in _FORMS.get(name, []) if f[0] != opset_version]
    _FORMS[name] = sorted([*forms, (opset_version, symbolic_fn)], key=lambda f: f[0])


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int = 1) -> None:
    """Forgets what `register_custom_op_symbolic` was told for that opset."""
    for name in (symbolic_name, symbolic_name.rpartition("::")[2]):
        _FORMS[name] = [f for f in _FORMS.get(name, []) if f[0] != opset_version]


def name_of(name: str, symbolic_fn: Any, what: str, also: Collection[str] = ()) -> str:
    """The symbolic name of the applications that a symbolic function is given for. also: those of a
    graph. Raises ValueError where no op is called so, TypeError for what is no function."""
    if not callable(symbolic_fn):
        raise TypeError(
            f"[{what}] expected a function for {name!r}; got {type(symbolic_fn).__name__}"
        )
    if isinstance(name, str):
        if name in also or registered(name):
            return name
        plain = name.rpartition("::")[2]
        if plain in OPS:
            return plain
    own = {f"{space}::{n}" for space, ops in REGISTERED.items() for n in ops}
    near = difflib.get_close_matches(str(name), sorted({*OPS.keys(), *own, *also}), 3)
    raise ValueError(
        f"[{what}] expected the name of an op; got {name!r}, which neither a record nor an "
        "operator of library.custom_op has; define it first"
        + (f", or write {' or '.join(repr(n) for n in near)}" if near else "")
    )


def as_form(symbolic_fn: Symbolic, op: Op, outputs: int) -> Symbolic:
    """A symbolic function as the ONNX form of a record's application with so many results:
    (context, operands, **attributes). What it raises, or gives instead of values, is an error that
    names the op."""

    def form(context: OnnxContext, inputs: Sequence[str], **attributes: Any) -> Any:
        args, named = op.symbolic_arguments(inputs, attributes)
        label = f"the symbolic function of {op.symbolic_name(attributes)}"
        try:
            made = symbolic_fn(SymbolicGraph(context), *args, **named)
        except Exception as error:
            text = f"[onnx] {label} raised {type(error).__name__}: {error}"
            raise OnnxExporterError(text) from error
        many = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        if len(many) != outputs or not all(isinstance(y, str) for y in many):
            wanted = "a value" if outputs == 1 else f"a tuple of {outputs} values"
            got = f"{len(many)} of them" if len(many) != outputs else type(made).__name__
            raise OnnxExporterError(
                f"[onnx] expected {label} to give {wanted}, as g.op does; got {got}"
            )
        return many

    return form


def registered_function(name: str, opset: int) -> Symbolic | None:
    """The symbolic function that users registered for an op at an opset."""
    found = [fn for first, fn in _FORMS.get(name, []) if first <= opset]
    return found[-1] if found else None
