"""What of a call's arguments becomes what: floats are lifted to HostScalars; leaves have names.

Owns `Lifter`, `plain` (back to floats) and `leaf_names`, as users call the leaves of arguments.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from jitgrad import hostscalar
from jitgrad.effects import is_module
from jitgrad.hostscalar import HostScalar
from jitgrad.pytree import Structure, flatten, is_named_tuple, nodes_of, tree_map
from jitgrad.recorder import Recorder
from jitgrad.sizes import as_int, is_size


class Lifter:
    """Replaces floats among arguments (and in tuples of them) by HostScalars, if it is to."""

    def __init__(self, recorder: Recorder, lifts: bool = True) -> None:
        self.recorder, self.lifts = recorder, lifts
        self.made: list[HostScalar] = []
        self.leaf = 0  # the number of the next leaf

    def lift(self, x: Any) -> Any:
        """x, floats in it lifted, ints that are symbolic as such; called in the order of leaves."""
        if type(x) is not tuple and not is_named_tuple(x):
            number = self.recorder.symbols.numbers.get(self.leaf)
            self.leaf += flatten(x)[1].count
            if number is not None and type(x) is int:
                return number
        if type(x) is float and self.lifts:
            out = HostScalar(x, None, self.recorder)
            self.made.append(out)
            return out
        if type(x) is tuple:
            return tuple([self.lift(y) for y in x])
        if is_named_tuple(x):
            return type(x)._make([self.lift(y) for y in x])
        return x

    def lifted(self, structure: Structure, leaves: list[Any], args: Any, kwargs: Any) -> set[int]:
        """The numbers of the leaves that were lifted, in the order of `made`."""
        found = replaceable(args, kwargs) if self.lifts else []
        self.order = [i for i in found if type(leaves[i]) is float]
        return set(self.order)

    def name_leaves(self, structure: Structure, args: Any, kwargs: Any) -> None:
        for i, scalar in zip(self.order, self.made, strict=True):
            scalar.name = ("arg", i)


def replaceable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """The leaves of (args, kwargs) in whose place a call can get others: arguments, and what is in
    tuples of them. Lists, dicts and objects are handed on themselves, with the leaves they hold."""
    flags = [flag for x in (*args, *kwargs.values()) for flag in _replaceable_in(x)]
    return [i for i, flag in enumerate(flags) if flag]


def _replaceable_in(x: Any) -> list[bool]:
    if type(x) is tuple or is_named_tuple(x):
        return [flag for y in x for flag in _replaceable_in(y)]
    structure = flatten(x)[1]
    return [structure.kind is None] * structure.count


def plain(result: Any) -> Any:
    """The result with HostScalars as floats, symbolic sizes as ints. (Keys of dicts are plain.)"""
    leaves = flatten(result)[0]
    if not any(isinstance(x, (HostScalar, slice)) or is_size(x) for x in leaves):
        return result
    return tree_map(lambda x: hostscalar.plain(x) if type(x) is slice else as_number(x), result)


def as_number(x: Any) -> Any:
    """x, or the plain number that it stands for."""
    return x.value if isinstance(x, HostScalar) else as_int(x)


def plain_keys(result: Any) -> None:
    """Makes keys of dicts in a result plain numbers, whose values are guarded: they were hashed."""
    for x in nodes_of(result):
        if isinstance(x, dict) and any(is_size(k) or type(k) is HostScalar for k in x):
            pairs = [(plain(k), v) for k, v in x.items()]
            x.clear()
            x.update(pairs)


def leaf_names(function: Any, args: Any, structure: Structure) -> list[str]:
    """What users call each leaf: "x", "batch['image']"."""
    bound = isinstance(function, MethodType)
    if bound and is_module(function.__self__) and function.__func__.__name__ == "__call__":
        function = function.__self__.forward  # which gets the same arguments
        bound = isinstance(function, MethodType)
    code = getattr(function, "__code__", None)
    own = list(code.co_varnames[bound : code.co_argcount]) if code is not None else []
    out: list[str] = []
    positional, keywords = structure.children
    for i, child in enumerate(positional.children):
        out += _names_in(child, own[i] if i < len(own) else f"args[{i}]")
    for key, child in zip(keywords.context, keywords.children, strict=True):
        out += _names_in(child, key)
    return out


def _names_in(s: Structure, name: str) -> list[str]:
    if s.kind is None:
        return [name]
    keys: Any = range(len(s.children)) if s.context is None else s.context
    out: list[str] = []
    for key, child in zip(keys, s.children, strict=False):
        out += _names_in(child, f"{name}[{key!r}]")
    return out
