"""torch._foreach_*: one function over lists of tensors, as optimizers that people write call them.

Owns the table of names. Each function applies the public function (or in-place method) of its name
to the tensors of a list in turn; under jit the calls are one graph, and become few kernels there.
Operands are one number or tensor for all, or a list with one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jitgrad
from jitgrad.missing import no_such
from jitgrad.tensor import Tensor

_UNARY = """abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10
    log1p log2 max neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"""
_BINARY = "add sub mul div pow clamp_max clamp_min maximum minimum mm copy"
_TERNARY = "addcmul addcdiv lerp"
_ONLY_IN_PLACE = frozenset({"zero", "copy"})
_NOT_IN_PLACE = frozenset({"clone", "max", "mm"})
_OPERANDS = {
    name: n for n, names in enumerate((_UNARY, _BINARY, _TERNARY)) for name in names.split()
}
_WITH_ONE_MORE = frozenset({"addcmul", "addcdiv", "copy"})  # value, non_blocking
_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # with a number as operand


def function_of(full: str) -> Callable[..., Any]:
    """The function of a name such as "_foreach_add_". Raises AttributeError for another."""
    name = full.removeprefix("_foreach_")
    if name == "norm":
        return _norm
    in_place = name.endswith("_")
    base = name.removesuffix("_")
    exclusive = _NOT_IN_PLACE if in_place else _ONLY_IN_PLACE
    if base not in _OPERANDS or base in exclusive:
        raise no_such("jitgrad", full)
    count = _OPERANDS[base]

    def function(self: Any, *operands: Any, **options: Any) -> Any:
        given = [*operands, *(options.pop(k) for k in _LISTS if k in options)]
        _check(full, base, given)
        value = _value(given, options, count)
        rows, others = _rows(full, self, given[:count])
        values = value if isinstance(value, (list, tuple)) else [value] * len(rows)
        results = []
        for x, args, v in zip(rows, others, values, strict=True):
            more = {} if v is None else {"value": v}
            results.append(_one(base, in_place)(x, *args, **more, **options))
        return self if in_place else tuple(results)

    function.__name__ = function.__qualname__ = full
    function.__doc__ = f"`{base}` of each tensor of a list{', in place' if in_place else ''}."
    return function


_LISTS = ("other", "scalar", "scalars", "exponent", "tensor1", "tensor2", "tensors1", "weight",
          "weights", "src", "mat2")  # fmt: skip


def _check(full: str, base: str, given: list[Any]) -> None:
    """Raises TypeError for a number of operands that the function does not take, and for a number
    or tensor where it takes lists only."""
    count = _OPERANDS[base]
    most = count + (base in _WITH_ONE_MORE)
    if not count <= len(given) <= most:
        wanted = str(count) if most == count else f"{count} or {most}"
        raise TypeError(
            f"{full}(): expected {wanted} operands after the list of tensors; got {len(given)}"
        )
    if base in ("addcmul", "addcdiv"):
        for operand in given[:2]:
            if not isinstance(operand, (list, tuple)):
                raise TypeError(
                    f"{full}(): expected lists of tensors to multiply or divide; got "
                    f"{type(operand).__name__}"
                )


def _value(given: list[Any], options: dict[str, Any], count: int) -> Any:
    """The factor of addcmul and addcdiv: a number, a list of them, or None where there is none."""
    value = options.pop("value", None)
    if count == 2 and len(given) > 2:
        value = given[2]
    if isinstance(value, Tensor) and value.ndim == 1:
        return list(value.unbind())
    return value


def _rows(full: str, self: Any, operands: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
    if not isinstance(self, (list, tuple)):
        if full != "_foreach_pow" or not operands or not isinstance(operands[0], (list, tuple)):
            raise TypeError(
                f"{full}(): argument 'self' must be tuple of Tensors, not {type(self).__name__}"
            )
        self = [self] * len(operands[0])  # one base, a list of exponents
    rows = list(self)
    if not rows:
        raise RuntimeError(f"[{full}] expected a list of at least one tensor; got none")
    columns = []
    for operand in operands:
        if isinstance(operand, (list, tuple)):
            if len(operand) != len(rows):
                raise RuntimeError(
                    f"[{full}] expected lists of one length; got {len(rows)} and {len(operand)}"
                )
            columns.append(list(operand))
        else:
            columns.append([operand] * len(rows))
    return rows, [[column[i] for column in columns] for i in range(len(rows))]


def _one(base: str, in_place: bool) -> Callable[..., Any]:
    """The function for one tensor."""

    def apply(x: Any, *args: Any, **options: Any) -> Any:
        number = base in _NUMBERS and not isinstance(args[0], Tensor)
        name = _NUMBERS[base] if number else base
        if not in_place:
            return getattr(jitgrad, name)(x, *args, **options)
        if hasattr(Tensor, name + "_"):
            return getattr(x, name + "_")(*args, **options)
        return x.copy_(getattr(jitgrad, name)(x, *args, **options))

    return apply


def _norm(self: Sequence[Tensor], ord: Any = 2, dtype: Any = None) -> tuple[Tensor, ...]:
    """The norm of each tensor of a list, of all its elements."""
    if not self:
        raise RuntimeError("[_foreach_norm] expected a list of at least one tensor; got none")
    return tuple(jitgrad.linalg.vector_norm(x, ord, dtype=dtype) for x in self)
