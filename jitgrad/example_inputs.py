"""Example inputs of exported functions that are trees: dicts, tuples, lists of tensors, and so on.

Owns what the leaves are called, what `dynamic_shapes` says of each, and how those of a call are
found. Recording is export.py's, trees themselves pytree.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.pytree import LEAF, Structure, children_of, names_of
from jitgrad.tensor import Tensor


def is_flat(inputs: Sequence[Any]) -> bool:
    """Whether all inputs are tensors."""
    return all(isinstance(x, Tensor) for x in inputs)


def child_names(structure: Structure) -> tuple[str, ...]:
    """What a node calls its children, by number where it has no names."""
    return names_of(structure) or tuple(map(str, range(len(structure.children))))


def leaf_names(structure: Structure, label: str) -> list[str]:
    """What the leaves of an input are called: by the keys, fields and numbers that lead to them
    ("cache.0.k")."""
    if structure.kind is None:
        return [label]
    return [
        name
        for key, child in zip(child_names(structure), structure.children, strict=True)
        for name in leaf_names(child, f"{label}.{key}")
    ]


def spread(spec: Any, structure: Structure, label: str) -> list[Any]:
    """What `dynamic_shapes` says of each leaf of an input, from a tree like it: mappings by key or
    field, sequences in order, None for what is fixed. Raises ValueError for another tree."""
    if structure.kind is None:
        return [spec]
    if spec is None:
        return [None] * structure.count
    names = child_names(structure)
    if isinstance(spec, Mapping):
        unknown = [k for k in spec if str(k) not in names]
        parts = {str(k): part for k, part in spec.items()}
    else:
        sequence = isinstance(spec, (tuple, list)) and len(spec) == len(names)
        unknown = [] if sequence else [spec]
        parts = dict(zip(names, spec, strict=True)) if sequence else {}
    if unknown:
        raise ValueError(
            f"[export] expected dynamic_shapes of {label!r} to be a dict of {', '.join(names)}, or "
            f"a sequence of {len(names)}; got {unknown[0]!r}"
        )
    return [
        leaf
        for name, child in zip(names, structure.children, strict=True)
        for leaf in spread(parts.get(name), child, f"{label}.{name}")
    ]


def leaves_like(inputs: Sequence[Any], wanted: Structure | None) -> list[Any] | None:
    """The leaves of a call's inputs in order, which are trees like those in `wanted` (None:
    tensors) by keys, fields and places, whatever their classes; or the leaves themselves. None for
    other trees."""
    if wanted is None or is_flat(inputs):
        return list(inputs)
    out: list[Any] = []
    like = len(inputs) <= len(wanted.children) and all(
        _gather(x, tree, out) for x, tree in zip(inputs, wanted.children, strict=False)
    )
    return out if like else None


def leaves_named(
    named: dict[str, Any], wanted: Structure | None, names: Sequence[str]
) -> dict[str, Any] | None:
    """The leaves of inputs by their `names`, of which a call gives some so and others in trees by
    the parameters' names. None for other trees than those in `wanted` (None: tensors); raises
    TypeError for a leaf that is given in both ways."""
    if wanted is None:
        return named
    places: dict[str, tuple[Structure, Sequence[str]]] = {}
    first = 0
    for label, tree in zip(child_names(wanted), wanted.children, strict=True):
        places[label] = tree, names[first : first + tree.count]
        first += tree.count
    found: dict[str, Any] = {}
    for name, x in named.items():
        if name in names or name not in places:
            found[name] = x
            continue
        tree, names_inside = places[name]
        leaves: list[Any] = []
        if not _gather(x, tree, leaves):
            return None
        for leaf, value in zip(names_inside, leaves, strict=True):
            if leaf in named:
                raise TypeError(f"[export] input {leaf!r} is given twice: by name, and in {name!r}")
            found[leaf] = value
    return found


def _gather(x: Any, wanted: Structure, out: list[Any]) -> bool:
    """Adds the leaves of x; whether it is such a tree."""
    found = children_of(x)
    if wanted.kind is None or found is None:
        out.append(x)
        return wanted.kind is None and found is None
    children, context = found
    mine = names_of(Structure(type(x), context, (LEAF,) * len(children)))
    names = names_of(wanted)
    if mine is not None and names is not None:
        if set(mine) != set(names):
            return False
        by_name = dict(zip(mine, children, strict=True))
        children = [by_name[name] for name in names]
    if len(children) != len(wanted.children):
        return False
    return all(_gather(y, w, out) for y, w in zip(children, wanted.children, strict=True))
