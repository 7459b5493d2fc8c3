"""Symbolic dims of exported functions: which sizes of the inputs may differ from call to call.

Owns what `dynamic_shapes=` means, the inputs without data that a function is recorded on, and what
the recording assumed of the sizes. Symbolic dims themselves are compiler/symbolic.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.compiler.symbolic import Dim, ShapeEnv, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.dims import Dim as Declared
from jitgrad.runtime.errors import CompileError
from jitgrad.sizes import SymInt
from jitgrad.tensor import Tensor, wrap

DynamicShapes = Mapping[str, Any] | Sequence[Any] | None


def symbolic_inputs(
    inputs: Sequence[Tensor], names: Sequence[str], dynamic_shapes: DynamicShapes, env: ShapeEnv
) -> list[Tensor]:
    """Tensors without data, of the inputs' types, with the dims that `dynamic_shapes` names.

    A dim's hint is its example size, but at least 2. Raises ValueError for names and dims that are
    not there, for dims of one name whose example sizes differ, and for examples outside a Dim's
    range.
    """
    if isinstance(dynamic_shapes, Mapping):
        unknown = [k for k in dynamic_shapes if k not in names]
        if unknown:
            raise ValueError(
                f"[export] expected dynamic_shapes of inputs {list(names)}; got {unknown}"
            )
        wanted = [dynamic_shapes.get(name) for name in names]
    else:
        wanted = list(dynamic_shapes or ())
        if len(wanted) != len(inputs):
            raise ValueError(
                f"[export] expected dynamic_shapes of {len(inputs)} inputs; got {len(wanted)}; "
                "give None for an input of fixed shape"
            )
    sizes: dict[str, int] = {}
    made: dict[str, Sym] = {}
    out = []
    for x, name, spec in zip(inputs, names, wanted, strict=True):
        shape: list[Dim] = list(x.shape)
        for axis, (label, low, high, has_low) in _axes(spec, len(shape), name).items():
            size = int(x.shape[axis])
            if sizes.setdefault(label, size) != size:
                raise ValueError(
                    f"[export] expected dims called {label!r} to have one size; got "
                    f"{sizes[label]} and {size}; give them different names"
                )
            if size < low or (high is not None and size > high):
                most = "or more" if high is None else f"to {high}"
                raise ValueError(
                    f"[export] expected the example's size of Dim {label!r} to be {low} {most}; "
                    f"got {size} (dim {axis} of {name!r}); give another example or range"
                )
            if label not in made:
                made[label] = SymInt(env.dim(label, max(size, 2)).terms, env)
                env.least[label] = low
                if has_low:
                    env.guard("<=", low, made[label], True)
                if high is not None:
                    env.guard("<=", made[label], high, True)
            shape[axis] = made[label]
        out.append(wrap(None, TensorType(tuple(shape), x.dtype)))
    return out


def _axes(spec: Any, rank: int, name: str) -> dict[int, tuple[str, int, int | None, bool]]:
    """Axis -> name of its dim, least and largest size, whether the least was given, of one
    input."""
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        spec = dict(enumerate(spec))
    found: dict[int, tuple[str, int, int | None, bool]] = {}
    for axis, label in spec.items():
        if label is None or label in (Declared.STATIC, Declared.AUTO):
            continue
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise ValueError(
                f"[export] expected dims of {name!r}, which has {rank}; got {axis!r} in "
                "dynamic_shapes"
            )
        if label is Declared.DYNAMIC:
            label = f"{re.sub('[^0-9a-zA-Z]', '_', name)}_{axis % rank}"
        text = label if isinstance(label, str) else getattr(label, "__name__", "")
        if not text.isidentifier():
            raise ValueError(
                f"[export] expected dim {axis} of {name!r} to have a name such as 'batch'; got "
                f"{label!r}"
            )
        if isinstance(label, Declared):
            found[axis % rank] = (text, label.min, label.max, label.has_min)
        else:
            found[axis % rank] = (text, 0, None, False)
    return found


_BY_SIZE = {"split", "unbind"}
"""Functions that give as many tensors as a size says."""


def refuse_fixed_dims(env: ShapeEnv, name: str) -> None:
    """Raises CompileError where recording needed the very value of a dynamic dim. (That two dims
    are equal, or that a number divides one, is a condition like any other.)"""
    fixed = [
        g
        for g in env.guards
        if g.kind == "==" and g.outcome and not (isinstance(g.a, Sym) and isinstance(g.b, Sym))
        if g.is_fixing
    ]
    if not fixed:
        return
    texts = [g.told() for g in fixed]
    names = sorted({g.called for g in fixed} - {""})
    why, do = [], ["leave these dims out of dynamic_shapes"]
    if _BY_SIZE & {*names}:
        do.append("ask for a number of parts (chunk, tensor_split), or reshape to a dim of its own")
    if names:
        why.append(f"{' and '.join(names)} can do this for fixed sizes only")
    if any(not g.called for g in fixed):
        why.append("Python takes the number itself")
        do.append("compute with x.shape without int() and loops over it")
    raise CompileError(
        f"[export] cannot export {name} with these dynamic shapes: its result holds only where "
        f"{' and '.join(sorted(set(texts)))}: {'; '.join(why)}; {', or '.join(do)}"
    )


def conditions(env: ShapeEnv) -> list[str]:
    """What recording assumed of the dynamic dims, as text ("n <= 64"), besides being at least 2."""
    return list(dict.fromkeys(g.expression() for g in env.guards))


def fits(found: TensorType, declared: TensorType, dims: dict[str, int]) -> bool:
    """Whether a tensor's type is as declared; `dims` collects the sizes of symbolic dims."""
    if found.dtype is not declared.dtype or found.ndim != declared.ndim:
        return False
    for size, wanted in zip(found.shape, declared.shape, strict=True):
        known: Dim = wanted
        if isinstance(wanted, Sym):
            known = dims.setdefault(str(wanted), int(size))
        if size != known:
            return False
    return True


def known_sizes(dims: Mapping[str, int]) -> str:
    """The sizes of dims that earlier inputs fixed, for an error's end."""
    return f", where {', '.join(f'{k} = {v}' for k, v in dims.items())}" if dims else ""


def check_conditions(env: ShapeEnv, dims: Mapping[str, int]) -> None:
    """Raises ValueError where sizes are not as the recording assumed."""
    for g in env.guards:
        if not g.holds(dims):
            got = ", ".join(f"{k} = {v}" for k, v in dims.items())
            raise ValueError(f"[export] expected sizes with {g.expression()}; got {got}")
