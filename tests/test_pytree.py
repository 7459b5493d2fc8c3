"""jitgrad.pytree: flatten and unflatten are inverse, structures compare, registration."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest

from jitgrad import pytree

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Batch:
    image: Any
    label: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple[int, ...]


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


TREES = [
    3,
    (),
    (1, [2, {"a": 3, "b": (4,)}]),
    Point(1, Point(2, 3)),
    Batch([1, 2], {"k": None}),
    Frozen(1, (2, 3)),
    OrderedDict(z=1, a=2),
    defaultdict(list, {1: 2}),
    [],
    None,
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_unflatten_inverts_flatten(tree: Any) -> None:
    leaves, structure = pytree.flatten(tree)
    again = pytree.unflatten(structure, leaves)
    assert again == tree
    assert type(again) is type(tree)
    assert structure.count == len(leaves)
    assert pytree.flatten(again)[1] == structure


def test_leaves_are_in_order() -> None:
    assert pytree.leaves_of((1, [2, {"b": 3, "a": 4}], Point(5, 6), Batch(7, 8))) == [
        1, 2, 3, 4, 5, 6, 7, 8,
    ]  # fmt: skip


def test_structures_differ_by_kind_keys_and_nesting() -> None:
    trees = [(1,), [1], {"a": 1}, {"b": 1}, Point(1, 2), (1, 2), ((1,),), Batch(1, 2)]
    keys = {pytree.flatten(t)[1] for t in trees}
    assert len(keys) == len(trees)


def test_map_and_mismatch() -> None:
    assert pytree.tree_map(lambda a, b: a + b, {"a": [1, 2]}, {"a": [10, 20]}) == {"a": [11, 22]}
    with pytest.raises(ValueError, match=r"\[tree_map\] expected structure"):
        pytree.tree_map(lambda a, b: a, [1], (1,))
    with pytest.raises(ValueError, match=r"\[unflatten\] expected 1 leaves; got 2"):
        pytree.unflatten(pytree.flatten([1])[1], [1, 2])


def test_cycle_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        pytree.flatten(loop)


def test_register() -> None:
    pytree.register(Box, lambda b: ((b.inside,), "box"), lambda _, c: Box(*c))
    leaves, structure = pytree.flatten([Box((1, 2))])
    assert leaves == [1, 2]
    assert pytree.unflatten(structure, leaves)[0].inside == (1, 2)
    with pytest.raises(ValueError, match="no pytree yet"):
        pytree.register(Box, lambda b: ((), None), lambda _, c: None)


def test_registered_named_tuple() -> None:
    """What is registered counts, not the fields: the context too is part of the structure."""

    class Sized(namedtuple("Sized", "data")):
        size = 0

    def rebuild(size: int, children: Any) -> Sized:
        out = Sized(*children)
        out.size = size
        return out

    pytree.register(Sized, lambda x: (tuple(x), x.size), rebuild)
    assert not pytree.is_named_tuple(Sized(1)) and pytree.is_named_tuple(Point(1, 2))
    leaves, structure = pytree.flatten(rebuild(3, [1]))
    assert pytree.unflatten(structure, leaves).size == 3
    assert structure != pytree.flatten(rebuild(4, [1]))[1]


def test_dataclass_with_more_state_is_a_leaf() -> None:
    batch = Batch(1)
    batch.extra = 2  # type: ignore[attr-defined]
    assert pytree.leaves_of(batch) == [batch]
