"""Composites: functions composed of ops, run as one compiled program in plain eager code.

Owns `composite`, the decorator of such functions, and when it has them run as a record
(composite_records.py). Where somebody looks on (recorders, vmap, profiles, hooks on saved tensors),
on GPUs and where there is little work, a function runs as it is written; so graphs hold the records
that it is made of. Else types and arguments alone decide, as for kernels of one op (kernels.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad import dispatch
from jitgrad.plain import is_plain
from jitgrad.pytree import unflatten
from jitgrad.runtime.dtypes import DType
from jitgrad.tape.pieces import in_pieces
from jitgrad.tensor import Tensor

_LEAST = 1 << 14
"""With fewer elements in its operands a function runs as it is written, unasked."""

_MOST = 4096
"""So much is known of functions."""


_known: dict[Any, Any] = {}
"""How functions run (composite_records.Found), by function, types and other arguments."""


def composite(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of functions of tensors that are composed of ops.

    Results are new tensors, one or several. It reads and changes nothing but its arguments. Where
    it warns it runs as it is written, and so it does when it is called with anything but tensors,
    numbers, words, dtypes and tuples of these.
    """

    @functools.wraps(function)
    def applied(*args: Any, **kwargs: Any) -> Any:
        made = run(function, args, kwargs) if is_large(args) else None
        return function(*args, **kwargs) if made is None else made

    return applied


def is_large(args: Sequence[Any]) -> bool:
    """Whether a function of these may run as a composite."""
    size = 0
    for x in args:
        if isinstance(x, Tensor) and x._data is not None:
            size += x._data.size
    return size >= _LEAST and is_plain()


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs) as a composite, of arguments that `is_large`; None where it is
    none."""
    key: list[Any] = [function, *kwargs]
    operands: list[Tensor] = []
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            if x._data is None or x._type.device != "cpu":
                return None
            operands.append(x)
            key.append(id(x._type))
            if not x._data.flags.c_contiguous:
                key.append(x._data.strides)
        elif _is_told_by_repr(x):
            key.append(repr(x))  # 1, True and 1.0 are different, and so are 0.0 and -0.0
        else:
            return None
    whole = tuple(key)
    try:
        found = _known[whole]
    except KeyError:
        from jitgrad.composite_records import find

        if len(_known) >= _MOST:
            _known.clear()
        found = _known[whole] = find(function, args, kwargs, operands)
    if found.record is None:
        return None
    made = dispatch.apply(found.record, tuple(operands), {})
    many = (made,) if found.record.nout == 1 else made
    if found.flat:
        in_pieces(made, operands[0], found.label)
        return made
    for y in many:
        if y._node is not None:
            y._node.label = found.label
            break
    return unflatten(found.structure, list(many))


_PLAIN = frozenset([int, float, bool, str, type(None), DType])


def _is_told_by_repr(x: Any) -> bool:
    return type(x) in _PLAIN or (isinstance(x, tuple) and all(map(_is_told_by_repr, x)))
