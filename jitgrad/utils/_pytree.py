"""torch.utils._pytree: the names by which public code takes nested containers apart.

Owns is_leaf and the "only" forms; the walk's nodes and their rebuilding are jitgrad.pytree's.
Dataclasses are leaves here, as in PyTorch, unless they are registered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jitgrad import pytree
from jitgrad.missing import missing
from jitgrad.pytree import Structure

PyTree = Any
TreeSpec = PyTreeSpec = Structure
LeafSpec = functools.partial(Structure, None, None, ())
IsLeaf = Callable[[Any], bool] | None


def _children(x: Any, is_leaf: IsLeaf) -> tuple[Sequence[Any], Any] | None:
    if is_leaf is not None and is_leaf(x):
        return None
    return None if pytree.is_plain_dataclass(x) and not _registered(x) else pytree.children_of(x)


def _registered(x: Any) -> bool:
    return type(x) in pytree.registered()


def _flatten(x: Any, leaves: list[Any], is_leaf: IsLeaf) -> Structure:
    found = _children(x, is_leaf)
    if found is None:
        leaves.append(x)
        return pytree.LEAF
    children, context = found
    return Structure(type(x), context, tuple([_flatten(c, leaves, is_leaf) for c in children]))


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Structure]:
    """(leaves, structure); is_leaf(x) says which nodes are to count as leaves."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, is_leaf)


def tree_unflatten(leaves: Any, treespec: Structure) -> Any:
    """The tree of a structure with these leaves. Raises ValueError for a wrong number."""
    return pytree.unflatten(treespec, list(leaves))


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves, in order."""
    return tree_flatten(tree, is_leaf)[0]


tree_iter = tree_leaves


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> Structure:
    """The structure."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree with func applied to each leaf, and to what stands at its place in `rests`.

    Raises ValueError where a tree of `rests` does not have the structure.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [leaves, *(_parts(spec, rest) for rest in rests)]
    return tree_unflatten([func(*xs) for xs in zip(*columns, strict=True)], spec)


def _parts(spec: Structure, tree: Any) -> list[Any]:
    """What stands in a tree at the places of a structure's leaves."""
    if spec.kind is None:
        return [tree]
    found = pytree.children_of(tree)
    kind: type = type(tree)
    if found is None or kind is not spec.kind or len(found[0]) != len(spec.children):
        raise ValueError(f"[tree_map] expected a tree of structure {spec}; got {kind}")
    children = found[0]
    if kind is dict:  # their order may be another
        children = [tree[key] for key in spec.context]
    return [x for s, c in zip(spec.children, children, strict=True) for x in _parts(s, c)]


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Calls func as tree_map does, for its effects. Gives the tree back."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def tree_map_only(kind: Any, func: Any, tree: Any, is_leaf: IsLeaf = None) -> Any:
    """tree_map over the leaves of a type (or several, or those that a predicate names)."""
    return tree_map(lambda x: func(x) if _is(x, kind) else x, tree, is_leaf=is_leaf)


def tree_map_only_(kind: Any, func: Any, tree: Any, is_leaf: IsLeaf = None) -> Any:
    """As tree_map_only, for func's effects. Gives the tree back."""
    tree_map_only(kind, func, tree, is_leaf)
    return tree


def _is(x: Any, kind: Any) -> bool:
    plain = callable(kind) and not isinstance(kind, type)
    return bool(kind(x)) if plain else isinstance(x, kind)


def tree_all(pred: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for a leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(kind: Any, pred: Any, tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for all leaves of a type."""
    return all(pred(x) for x in tree_leaves(tree, is_leaf) if _is(x, kind))


def tree_any_only(kind: Any, pred: Any, tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for a leaf of a type."""
    return any(pred(x) for x in tree_leaves(tree, is_leaf) if _is(x, kind))


class MappingKey(NamedTuple):
    """How a child is reached from a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """The child."""
        return mapping[self.key]


class SequenceKey(NamedTuple):
    """How a child is reached from a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """The child."""
        return sequence[self.idx]


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """(pairs of MappingKey and value, keys), for classes derived from dict."""
    return [(MappingKey(k), v) for k, v in d.items()], list(d)


def register_pytree_node(
    cls: type, flatten_fn: Callable[[Any], Any], unflatten_fn: Callable[..., Any], **names: Any
) -> None:
    """Makes instances of `cls` inner nodes: flatten_fn(x) -> (children, context),
    unflatten_fn(children, context) -> x. jit sees through them, too."""
    pytree.register(cls, flatten_fn, lambda context, children: unflatten_fn(children, context))


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """(values, keys), for classes derived from dict."""
    return list(d.values()), list(d)


def _dict_unflatten(values: Any, context: list[Any]) -> dict[Any, Any]:
    """The dict of what _dict_flatten gave."""
    return dict(zip(context, values, strict=True))


_register_pytree_node = register_pytree_node


class NodeDef(NamedTuple):
    """How nodes of a type are taken apart and put together again."""

    type: type[Any]
    flatten_fn: Callable[[Any], tuple[list[Any], Any]]
    unflatten_fn: Callable[[Any, Any], Any]


def _get_node_type(tree: Any) -> type[Any]:
    """The key of a tree's root in SUPPORTED_NODES, if it is no leaf."""
    return type(tree)


class _SupportedNodes(Mapping[type[Any], NodeDef]):
    """The types of inner nodes: built in, registered, and all named tuples (of these, the
    iteration gives none: they are known when they are met)."""

    def __getitem__(self, kind: type[Any]) -> NodeDef:
        if not (
            kind in pytree.BUILT_IN
            or kind in pytree.registered()
            or (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"))
        ):
            raise KeyError(kind)

        def flatten(x: Any) -> tuple[list[Any], Any]:
            found = pytree.children_of(x)
            assert found is not None
            return list(found[0]), found[1]

        return NodeDef(
            kind, flatten, lambda children, context: pytree.rebuild(kind, context, list(children))
        )

    def __iter__(self) -> Iterator[type[Any]]:
        return iter((*pytree.BUILT_IN, *pytree.registered()))

    def __len__(self) -> int:
        return len(pytree.BUILT_IN) + len(pytree.registered())


SUPPORTED_NODES = _SupportedNodes()

__getattr__ = missing(__name__)
