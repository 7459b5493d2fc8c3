"""Pytrees: nested tuples, lists, dicts, named tuples, dataclasses and registered types, as leaves
and a structure.

Owns flatten, unflatten, map and registration. What the leaves are is the caller's business.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[Any, Sequence[Any]], Any]


class _Registered(NamedTuple):
    flatten: Flatten
    unflatten: Unflatten


_registry: dict[type, _Registered] = {}


def register(cls: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Makes instances of `cls` inner nodes.

    flatten(x) -> (children, context), context hashable; unflatten(context, children) -> x.
    Raises ValueError when the class is registered or built in.
    """
    if cls in _registry or cls in _DICTS or cls in (tuple, list):
        raise ValueError(f"[register] expected a class that is no pytree yet; got {cls.__name__}")
    _registry[cls] = _Registered(flatten, unflatten)


def registered() -> set[type]:
    """The classes that were registered."""
    return set(_registry)


class Structure:
    """The shape of a pytree. Equal structures have equal keys; `count` is the number of leaves.

    Attributes: `kind` (the node's class, None for a leaf), `context` (dict keys, field names, ...),
    `children`.
    """

    __slots__ = ("children", "context", "count", "key", "kind")

    def __init__(self, kind: type | None, context: Any, children: tuple[Structure, ...]) -> None:
        self.kind = kind
        self.context = context
        self.children = children
        self.count: int = 1 if kind is None else sum(c.count for c in children)
        self.key: Any = (kind, context, tuple(c.key for c in children))

    @property
    def num_leaves(self) -> int:
        """count, by PyTorch's name."""
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        inside = ", ".join(map(repr, self.children))
        if self.kind in _DICTS:
            keys = self.context[0] if self.kind is defaultdict else self.context
            pairs = zip(keys, self.children, strict=True)
            inside = ", ".join(f"{k!r}: {c!r}" for k, c in pairs)
        return f"{self.kind.__name__}({inside})"


LEAF = Structure(None, None, ())
_DICTS = (dict, OrderedDict, defaultdict)
BUILT_IN = (tuple, list, *_DICTS)


def is_named_tuple(x: Any) -> bool:
    """Whether x is an instance of a named tuple's class, one that is not registered."""
    kind = type(x)
    named = isinstance(x, tuple) and kind is not tuple and hasattr(kind, "_fields")
    return named and kind not in _registry


def children_of(x: Any) -> tuple[Sequence[Any], Any] | None:
    """The children of a node and its context; None for a leaf."""
    kind = type(x)
    if kind is tuple or kind is list:
        return x, None
    if kind is dict or kind is OrderedDict:
        return list(x.values()), tuple(x)
    if kind is defaultdict:
        return list(x.values()), (tuple(x), x.default_factory)
    if kind in _registry:
        children, context = _registry[kind].flatten(x)
        return list(children), context
    if is_named_tuple(x):
        return x, None
    if is_plain_dataclass(x):
        names = tuple(f.name for f in dataclasses.fields(x))
        return [getattr(x, name) for name in names], names
    return None


def is_plain_dataclass(x: Any) -> bool:
    """Whether x is a dataclass instance whose state is its fields (so that it can be rebuilt)."""
    kind = type(x)
    if not hasattr(kind, "__dataclass_fields__") or isinstance(x, type):
        return False
    names = {f.name for f in dataclasses.fields(x)}
    return set(getattr(x, "__dict__", ())) <= names and all(hasattr(x, n) for n in names)


def names_of(structure: Structure) -> tuple[str, ...] | None:
    """What a node calls its children: keys of a dict that are strings, names of fields. None for
    nodes that number them, and for leaves."""
    kind, context = structure.kind, structure.context
    if kind is None or kind is tuple or kind is list or kind in _registry:
        return None
    if kind is defaultdict:
        context = context[0]
    elif issubclass(kind, tuple):
        context = kind._fields  # type: ignore[attr-defined]
    return context if all(isinstance(name, str) for name in context) else None


def rebuild(kind: type, context: Any, children: Sequence[Any]) -> Any:
    """A node from its children: what children_of took apart."""
    if kind is tuple or kind is list:
        return kind(children)
    if kind is defaultdict:
        keys, factory = context
        out: Any = defaultdict(factory)
        out.update(zip(keys, children, strict=True))
        return out
    if kind is dict or kind is OrderedDict:
        return kind(zip(context, children, strict=True))
    if kind in _registry:
        return _registry[kind].unflatten(context, children)
    if issubclass(kind, tuple):
        return kind._make(children)  # type: ignore[attr-defined]
    out = object.__new__(kind)
    for name, value in zip(context, children, strict=True):
        object.__setattr__(out, name, value)
    return out


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, in order, and its structure. Raises ValueError for a cycle."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, ())


def _flatten(x: Any, leaves: list[Any], above: tuple[int, ...]) -> Structure:
    found = children_of(x)
    if found is None:
        leaves.append(x)
        return LEAF
    if id(x) in above:
        raise ValueError(f"[flatten] expected a tree; a {type(x).__name__} contains itself")
    children, context = found
    inside = (*above, id(x))
    return Structure(type(x), context, tuple([_flatten(c, leaves, inside) for c in children]))


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves. Raises ValueError for a wrong number."""
    if len(leaves) != structure.count:
        raise ValueError(f"[unflatten] expected {structure.count} leaves; got {len(leaves)}")
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Any) -> Any:
    if structure.kind is None:
        return next(leaves)
    children = [_unflatten(c, leaves) for c in structure.children]
    return rebuild(structure.kind, structure.context, children)


def nodes_of(tree: Any) -> list[Any]:
    """The inner nodes of a tree: containers, dataclass instances, ..."""
    out: list[Any] = []
    stack = [tree]
    while stack:
        x = stack.pop()
        found = children_of(x)
        if found is not None:
            out.append(x)
            stack.extend(found[0])
    return out


def leaves_of(tree: Any) -> list[Any]:
    """The leaves, in order."""
    return flatten(tree)[0]


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The tree with function applied to each leaf (and to the leaves of `rest` at its place).

    Raises ValueError where structures differ.
    """
    leaves, structure = flatten(tree)
    others = []
    for other in rest:
        more, its = flatten(other)
        if its != structure:
            raise ValueError(f"[tree_map] expected structure {structure}; got {its}")
        others.append(more)
    return unflatten(structure, [function(*xs) for xs in zip(leaves, *others, strict=True)])
