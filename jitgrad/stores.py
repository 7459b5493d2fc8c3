"""Stores: what a recorded function leaves in Python state, so that replay leaves it there, too.

Owns which effects are so simple that Python need not run for them: a number, string or None that
code assigns where one was, and elements that it appends to a list of which it reads nothing. What
such a place gets is a function of what guards compare and of tensors, so it is described as results
are (sources.py). All other effects make the function run in segments (jit_function.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jitgrad.guards import Item, difference, same
from jitgrad.hostscalar import HostScalar, plain
from jitgrad.pytree import Structure, flatten, is_named_tuple, nodes_of
from jitgrad.sizes import is_size
from jitgrad.sources import Result
from jitgrad.tensor import Tensor

_KINDS = (int, float, bool, str, type(None))


@dataclass
class Store:
    """A place that the function has assigned to, or a list that it has appended to.

    values: what the place got, or the elements; let go when the recording is over. structures,
    results: of each of them, for replay.
    """

    item: Item
    values: list[Any]
    structures: list[Structure] = field(default_factory=list)
    results: list[list[Result]] = field(default_factory=list)

    @property
    def appends(self) -> bool:
        return self.item.kind == "list"

    @property
    def by_value(self) -> bool:
        """Whether the place is guarded by its value, so that the next call is recorded anew."""
        return self.item.kind == "value"

    def __str__(self) -> str:
        if self.appends:
            return f"changes {self.item.name}"
        (x,) = self.values
        new = x.value if type(x) is HostScalar else x.hint if is_size(x) else x
        return f"changes {self.item.name} ({difference(self.item.now, new)})"


def find_stores(watch: Any, lent: Mapping[Item, Any]) -> list[Store]:
    """What a function that has just run has stored. lent: what stood in the place of numbers."""
    out: list[Store] = []
    for item in watch.items:
        if item.kind in ("value", "int", "float") and _is_set(item, watch.sets):
            x = item.read(item.parent.now)
            if x is not lent.get(item, item.now) and _is_storable(x) and not same(x, item.now):
                out.append(Store(item, [x]))
    for item in watch.appends:
        out.append(Store(item, item.now[watch.lengths[item] :]))
    return out


def _is_set(item: Item, names: set[str]) -> bool:
    if item.parent is None or not _is_storable(item.now):
        return False
    if item.step == "cell":
        return item.name in names
    return item.step in ("item", "class") and (item.key in names or "[]" in names)


def _is_storable(x: Any) -> bool:
    return type(x) in _KINDS or type(x) is HostScalar or is_size(x)


def objection(stores: Iterable[Store], result: Any, watch: Any) -> str:
    """Why replay cannot leave the same, as text; "" where it can."""
    seen = {id(x) for x in nodes_of(result) if not isinstance(x, tuple)}
    for store in stores:
        if store.appends and len(store.values) != watch.appends[store.item]:
            return str(store)  # others append, too, or take away
        for x in store.values:
            for node in nodes_of(x):
                if type(node) is tuple or is_named_tuple(node):
                    continue
                if type(node) not in (list, dict) or id(node) in seen or watch.owner(node):
                    return str(store)
                seen.add(id(node))
            for leaf in flatten(x)[0]:
                known = _is_storable(leaf) or isinstance(leaf, Tensor) or watch.is_known(leaf)
                if not known or type(leaf) is slice:
                    return str(store)
    return ""


def tensors_of(stores: Iterable[Store]) -> list[Tensor]:
    """The tensors that were stored."""
    return [x for s in stores for v in s.values for x in flatten(v)[0] if isinstance(x, Tensor)]


def settle_stores(stores: Iterable[Store], watch: Any) -> None:
    """The recording is over: what was stored are plain numbers."""
    for item in watch.appends:
        first = watch.lengths[item]
        item.now[first:] = [plain(x) for x in item.now[first:]]
    for store in stores:
        if store.appends:
            store.values = store.item.now[watch.lengths[store.item] :]
        else:
            (x,) = store.values
            store.values = [plain(x)]
            store.item.write(store.values[0])
