"""Guards: the Python state that a recorded function depends on, and whether it still is so.

Owns `Item`, one place of that state and what it holds, and `State`, all of them: what a function
changed itself while it was recorded, and what has changed since. A tensor that was replaced by one
of the same type is no mismatch: items hold what is there now. watch.py collects the items; the
fast check of a call is generated from them by replay_code.py.

What Module attributes hold is checked only when the epoch moved (jitgrad.state): items say so by
`covered`.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from jitgrad.device import device
from jitgrad.effects import (
    is_module,
)
from jitgrad.facts import FACTS, tensor_facts
from jitgrad.hostscalar import HostScalar, Truth
from jitgrad.runtime import formats
from jitgrad.runtime.dtypes import DType
from jitgrad.sizes import is_size
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range, DType,
           *formats.TYPES, device, Enum, np.generic, np.dtype)  # fmt: skip
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_BY_VALUE = ("value", "int", "float", "lifted", "attributes")
_READ = ("int", "float", "lifted")  # by replay, at each call
MAX_ARRAY_BYTES = 4096


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


class Item:
    """One place of Python state, and what it holds.

    Attributes:
        step, key, parent: how it is read: "item" parent[key]; "get" getattr(parent, key);
            "cell"; "class" the class's own dict; "names" the names in it; "own" the names that a
            tensor or a function has (others that code names are not there); "root" an object held
            by the guard; "size" the keys, elements (in their order) or length of the parent;
            "absent" key is not in the parent; "created" a dict that the first access makes;
            "cache" how often a functools.cache was filled.
        kind: "value" (equal, same type), "object" (the very object), "container" (its items say
            what it must hold), "tensor", "array", "lifted" (a float, read at each call),
            "int" (one whose value is a symbolic size), "float" (one that is lifted),
            "list" (one that code only appends to, whatever it holds),
            "attributes" (the names of an object's attributes, or of a class's; facts: those that
            the library's own code names).
        now: what it holds; for "size" a copy of the keys.
        covered: unchanged as long as the epoch is, or as the parent is.
        name: how users know it.
        before: the contents of a small array when it was first met.
        captured, handed, looked: of an array, whether it became a tensor; whether code names it
            for that, and for anything else. captured: of a lifted float, whether it was read.
        facts: what guards require of a tensor or an array; of a container that another item leads
            to as well, that item.
    """

    __slots__ = (
        "before", "captured", "covered", "facts", "fresh", "handed", "key", "kind", "looked",
        "name", "now", "number", "parent", "step",
    )  # fmt: skip

    def __init__(
        self, parent: Item | None, step: str, key: Any, kind: str, now: Any, name: str
    ) -> None:
        self.parent, self.step, self.key = parent, step, key
        self.kind, self.now, self.name = kind, now, name
        self.covered = False
        self.captured = False
        self.looked = self.handed = False
        self.number = 0
        self.facts: Any = None
        self.fresh: Any = None
        self.before: bytes | None = None

    def read(self, parent: Any) -> Any:
        """What is there, reading from `parent`; MISSING where nothing is."""
        step = self.step
        try:
            if step == "item":
                if not _has(parent, self.key):
                    return MISSING
                getter = own_getitem(parent)
                return parent[self.key] if getter is None else getter(parent, self.key)
            if step == "get":
                return getattr(parent, self.key, MISSING)
            if step == "cell":
                return parent.cell_contents
            if step == "class":
                return vars(parent).get(self.key, MISSING)
            if step == "size":
                return keys_of(parent)
            if step == "names":
                return tuple(vars(parent))
            if step == "own":
                return own_names(parent)
            if step == "absent":
                return self.key in parent
            if step == "cache":
                return parent.cache_info()[1::2]
        except (KeyError, IndexError, ValueError, TypeError, AttributeError):
            return MISSING
        return self.now

    def write(self, value: Any) -> None:
        """Puts a value where this is read."""
        assert self.parent is not None
        holder = self.parent.now
        if self.step == "cell":
            holder.cell_contents = value
        elif self.step == "class":
            setattr(holder, self.key, value)
        else:
            holder[self.key] = value

    def __repr__(self) -> str:
        return f"<Item {self.name}: {self.kind} {short(self.now)}>"


def is_plain(x: Any) -> bool:
    """Whether setting an attribute of this object does that and nothing else."""
    setter: Any = type(x).__setattr__
    return (
        setter is object.__setattr__
        and hasattr(x, "__dict__")
        and not isinstance(x, (type, FunctionType, ModuleType, Tensor))
    )


def _has(parent: Any, key: Any) -> bool:
    return key in parent if isinstance(parent, dict) else key < len(parent)


def own_getitem(container: Any) -> Callable[[Any, Any], Any] | None:
    """How to read what a container holds where its class's [] is other code (which may make what
    it gives); None where [] reads it."""
    cls = type(container)
    if cls in (dict, list, tuple):
        return None
    for base in (dict, list, tuple):
        if isinstance(container, base):
            getter: Any = base.__getitem__
            return None if cls.__getitem__ is getter else getter
    return None


def keys_of(container: Any) -> Any:
    """The keys or elements in their order; of a list, tuple or deque the length."""
    if isinstance(container, (dict, set, frozenset)):
        return tuple(container)
    return len(container)


def same(a: Any, b: Any) -> bool:
    """Whether two scalars are the same value of the same type (NaN is NaN, 0.0 is not -0.0).

    Tuples of keys are the same when their elements are: in order, scalars by value, other objects
    by identity.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is float and a == b != 0.0:
        return True
    if isinstance(a, (float, complex, np.generic)):
        return repr(a) == repr(b)
    if isinstance(a, (tuple, frozenset)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Enum) or not isinstance(a, SCALARS):
        return False
    return bool(a == b)


def admits(wanted: Any, value: float) -> bool:
    """Whether a number is what a trace was specialised on: a value, or a Truth."""
    return bool(value) is wanted.nonzero if type(wanted) is Truth else same(wanted, value)


_RARE = frozenset({"_was", "_grad", "_hooks", "_post_hooks", "_retains", "_shapeless"})


def own_names(x: Any) -> frozenset[str]:
    """The names of the attributes that a tensor or function has itself, and of those that tensors
    keep beside them."""
    return _RARE.union(vars(x))


def own_attributes(t: Tensor) -> dict[str, Any]:
    """The attributes that users set on a tensor."""
    return {name: x for name, x in vars(t).items() if not hasattr(Tensor, name)}


def short(value: Any) -> str:
    """A value for a message, on one line."""
    if isinstance(value, Tensor):
        return f"tensor {value._type}"
    if is_module(value):
        return f"<{type(value).__name__}>"
    if type(value) is tuple:
        inside = ", ".join(map(short, value[:8])) + (", ..." if len(value) > 8 else "")
        text = f"({inside},)" if len(value) == 1 else f"({inside})"
    else:
        text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def difference(old: Any, new: Any) -> str:
    """How two values differ, for a message: old -> new, and more where these look alike."""
    a, b = short(old), short(new)
    if a != b:
        return f"{a} -> {b}"
    if type(old) is not type(new):
        return f"{a}, {a_class(old)} -> {a_class(new)}"
    if isinstance(old, (tuple, list)) and len(old) == len(new):
        for i, (x, y) in enumerate(zip(old, new, strict=True)):
            if not same(x, y):
                return f"{i}: {difference(x, y)}"
    if isinstance(old, np.ndarray):
        return f"other elements: {a}"
    if isinstance(old, (str, bytes)):
        at = next(i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y)
        return f"from {at}: {short(old[at:])} -> {short(new[at:])}"
    return f"another object that looks alike: {a}"


def a_class(x: Any) -> str:
    return f"a {type(x).__module__}.{type(x).__qualname__}".replace("builtins.", "")


class State:
    """The items of one recording.

    Attributes: `items`, parents before children; `groups`, tensors (and numbers of argument leaves)
    that shared a storage; `touched`, keys that look-ups made in defaultdicts; `reasons`, why
    something that was met cannot be guarded; `keyed`, tensors that are keys or elements of
    containers, by id; `arg_attributes`, what users set on tensors among the arguments, by number
    of the leaf and name; `filled`, whether the function's calls filled a functools.cache.
    """

    def __init__(self, leaves: list[Any]) -> None:
        self.items: list[Item] = []
        self.reasons: list[str] = []
        self.groups: list[list[Item | int]] = []
        self.touched: list[tuple[Item, Any]] = []
        self.leaves = leaves
        self._tensors = [(x, own_attributes(x)) for x in leaves if isinstance(x, Tensor)]
        self._twins: list[tuple[Item, Item]] = []
        self._by_object: dict[int, Item] = {}
        self.keyed: dict[int, Any] = {}
        self.arg_attributes: dict[tuple[int, str], Any] = {}
        self._named: set[str] = set()
        # By the item through which (None: by code) an object was met again: the object's own item.
        self.met: dict[Item | None, list[Item]] = {}
        self.replayed: set[Item] = set()  # which replay leaves as the function has
        self.filled = False
        self._every = False
        self._identities = False

    # -- afterwards ----------------------------------------------------------------------------
    def rebound(self) -> list[tuple[Any, Any, Tensor]]:
        """The items of dicts and lists, and attributes, that had a tensor (or None) and now have
        another: the holder, key and tensor of each. (Modules tell the recorder themselves.)"""
        found = []
        for item in self.items:
            if item.parent is None or not (item.kind == "tensor" or item.now is None):
                continue
            holder = item.parent.now
            if item.step == "item":
                fits = type(holder) in (dict, list)
            else:
                fits = item.step == "get" and is_plain(holder) and item.key in vars(holder)
            x = item.read(holder) if fits else None
            if isinstance(x, Tensor) and x is not item.now:
                found.append((holder, item.key, x))
        return found

    def changed(self, allowed: set[tuple[int, Any]], owners: set[int]) -> str:
        """What the function changed itself, as text; "" when nothing.

        allowed: (id of dict, key) that it rebound through the recorder. owners: ids of dicts that
        it filled through the recorder.
        """
        found = [_change_text(item, x) for item, x in self._changes(allowed, owners)]
        if found:  # all of them were looked at: none holds what only a recording computes with
            return found[0]
        for x, before in self._tensors:
            if own_attributes(x).items() != before.items():
                return "sets an attribute of a tensor that is an argument"
        for item in self.items:
            if item.kind == "array" and item.facts is not None:
                data = item.now
                if (data.dtype, data.shape, data.strides) != item.facts:
                    return f"changes {item.name}"
        return ""

    def restore_numbers(self) -> None:
        """Puts plain numbers where the function has stored what only a recording computes with."""
        for _ in self._changes(set(), set()):
            pass

    def forget_changed(
        self, allowed: set[tuple[int, Any]], owners: set[int], used: set[int]
    ) -> str:
        """Drops the items of what the function changed itself (jit(pure=True)).

        used: numbers of the items that replay reads. Returns, as text, a change that is read by
        replay and hence no effect that could be skipped; "" where there is none.
        """
        found = {item.number: x for item, x in self._changes(allowed, owners)}
        keep, dropped = [], set(found)
        for item in self.items:
            first = item.facts if isinstance(item.facts, Item) else None
            if (item.parent is not None and item.parent.number in dropped) or (
                first is not None and first.number in dropped
            ):
                dropped.add(item.number)
            if item.number not in dropped:
                keep.append(item)
            elif item.number in used or item.kind in _READ:
                x = found.get(item.number, MISSING)
                return f"changes {item.name}" if x is MISSING else _change_text(item, x)
        self.items = keep
        self.touched = [(item, key) for item, key in self.touched if item.number not in dropped]
        return ""

    def leave(self, objects: Sequence[Any], used: set[int]) -> None:
        """Drops the items of what these objects hold: Python keeps it, outside of compiled code.

        What the function names itself stays, and so does what is also reached on another way, and
        what leads to the items `used` by replay, with all that these hold.
        """
        held = {id(vars(x)) for x in objects}
        left = {
            item for item in self.items
            if item.parent is not None and id(item.parent.now) in held and item.step == "item"
            and item.key not in self._named
        }  # fmt: skip
        self.drop(left, used)

    def drop(self, left: set[Item], used: set[int]) -> None:
        """Drops these items and what they hold, but for what is also reached on another way, and
        what leads to the items `used` by replay, with all that these hold."""
        if self._every or not left:
            return
        needed: set[Item] = set()
        for item in self.items:
            read = item.captured if item.kind == "lifted" else item.kind in _READ
            if item.number in used or read:
                _add_with_parents(item, needed)
        inside: dict[Item | None, list[Item]] = {None: list(self.met.get(None, ()))}
        for item in self.items:
            inside[item] = list(self.met.get(item, ()))
        for item in self.items:
            if item not in left or item in needed:
                inside[item.parent].append(item)
        kept: set[Item] = set()
        reached: set[Item] = set()
        stack = inside[None]
        while stack:
            item = stack.pop()
            if item not in reached:
                reached.add(item)
                _add_with_parents(item, kept)
                stack.extend(inside[item])
        self.items = [item for item in self.items if item in kept]
        self.touched = [(item, key) for item, key in self.touched if item in kept]

    def _changes(
        self, allowed: set[tuple[int, Any]], owners: set[int]
    ) -> Iterator[tuple[Item, Any]]:
        skip: set[int] = set()
        for item in self.items:
            parent = item.parent
            if parent is None or item.step == "created" or item in self.replayed:
                continue
            if parent.number in skip:
                skip.add(item.number)
                continue
            x = item.read(parent.now)
            if x is item.now or (item.kind in _BY_VALUE and same(x, item.now)):
                continue
            if item.step == "own":
                if self._same_names(item, x):
                    continue
                yield item, x
                continue
            if item.step == "names" and set(x) ^ set(item.now) == {"__slotnames__"}:
                item.now = x  # what copy notes of a class
                continue
            if item.step == "cache":  # filled by the function's own calls
                item.now, self.filled = x, True
                continue
            if item.step == "absent" and _is_imported(parent.now, item.key):
                item.step, item.kind, item.now = "item", "object", parent.now[item.key]
                continue
            if item.step == "size" and isinstance(parent.now, dict):
                old, now = set(item.now), set(x)
                new = {k for k in old ^ now if (id(parent.now), k) not in allowed}
                if isinstance(parent.now, defaultdict) and old <= now:
                    # Keys that a look-up made; replay looks them up, too.
                    empty = {k for k in new if not parent.now[k] and parent.now[k] is not None}
                    self.touched += [(parent, k) for k in empty]
                    new -= empty
                if same(tuple(k for k in x if k in old), item.now) and all(
                    k in parent.now and id(parent.now[k]) in owners for k in new
                ):
                    continue
            elif (id(parent.now), item.key) in allowed:
                skip.add(item.number)
                continue
            _restore_numbers(item, x)
            yield item, x

    def freeze(self) -> None:
        """Called when recording is over: which tensors share storages; small arrays' contents."""
        groups: dict[Storage, list[Item | int]] = {}
        for i, x in enumerate(self.leaves):
            if isinstance(x, Tensor):
                groups.setdefault(x._storage, []).append(i)
        for item in self.items:
            if item.kind == "tensor":
                groups.setdefault(item.now._storage, []).append(item)
            elif item.kind == "array":
                if item.captured and item.handed and not item.looked:
                    continue  # nothing but tensors made of it: their memory is read afresh
                if item.now.nbytes > MAX_ARRAY_BYTES:
                    self.reasons.append(
                        f"reads the NumPy array {item.name} ({item.now.nbytes} bytes) in Python; "
                        "make it a tensor, or pass what it needs as arguments"
                    )
                found = item.now.tobytes()
                if item.before is not None and item.before != found:
                    self.reasons.append(f"changes the memory of {item.name}, which it reads")
                item.facts = (*item.facts, found)
        for item in self.items:
            if item.kind == "tensor" and (first := self._by_object[id(item.now)]) is not item:
                self._twins.append((item, first))
        self.groups = list(groups.values())
        for group in self.groups:
            if len(group) > 1:
                for member in group:
                    if isinstance(member, Item):
                        member.facts = (*member.facts, member.now._chain)

    def by_contents(self) -> list[Item]:
        """The arrays whose contents are guarded."""
        return [i for i in self.items if i.kind == "array" and i.facts and len(i.facts) > 3]

    # -- later calls ---------------------------------------------------------------------------
    def mismatch_of(self, leaves: Sequence[Any], names: Sequence[str]) -> str:
        """Which attribute that users set on an argument differs, as text."""
        for (i, name), old in self.arg_attributes.items():
            x = getattr(leaves[i], name, MISSING)
            if not same(x, old):
                return f"{names[i]}.{name}: {difference(old, x)}"
        return ""

    def mismatch(self) -> str:
        """What no longer holds, as text; "" when all does, and then `fresh` of all items is set."""
        for item in self.items:
            parent = item.parent
            if parent is None or item.step == "created":
                item.fresh = item.now
                continue
            old = item.now
            x = item.read(parent.fresh)
            kind = item.kind
            if kind == "value":
                ok = same(x, old)
            elif kind == "object":
                ok = x is old or (item.facts is not None and item.facts.fresh is x)
            elif kind == "lifted":
                ok = type(x) is float
            elif kind == "int":
                ok = type(x) is int
            elif kind == "float":
                ok = type(x) is float
            elif kind == "attributes":  # others than those that code names may come and go
                ok = x is not MISSING and self._same_names(item, x)
            elif kind == "list":
                ok = type(x) is list
            elif kind == "container":
                ok = type(x) is type(old) and (not isinstance(x, tuple) or len(x) == len(old))
            elif kind == "tensor":
                if not isinstance(x, Tensor) or (x is not old and self._is_looked_up(old, x)):
                    return f"{item.name}: {difference(old, x)}"
                found = tensor_facts(x)
                if len(item.facts) > len(found):
                    found = (*found, x._chain)
                if found != item.facts:
                    return f"{item.name}: {_facts_text(item.facts, found)}"
                ok = True
            else:
                ok = isinstance(x, np.ndarray)
                if ok:
                    facts: tuple[Any, ...] = (x.dtype, x.shape, x.strides)
                    if len(item.facts) > 3:
                        facts = (*facts, x.tobytes())
                    ok = facts == item.facts
            if not ok:
                return f"{item.name}: {difference(old, x)}"
            item.fresh = x
        return self._sharing()

    def _is_looked_up(self, *tensors: Any) -> bool:
        """Whether it matters which object one of these is: as a key, or for id()."""
        return self._identities or any(id(x) in self.keyed for x in tensors)

    def _same_names(self, item: Item, names: tuple[str, ...]) -> bool:
        if names == item.now:
            return True
        changed = set(names) ^ set(item.now)
        return not self._every and not any(
            n in self._named or n in item.facts or (item.step == "names" and n.startswith("__"))
            for n in changed
        )

    def _sharing(self) -> str:
        seen: set[int] = set()
        for group in self.groups:
            members = [m for m in group if isinstance(m, Item)]
            if not members:
                continue
            storage = members[0].fresh._storage
            if id(storage) in seen or any(m.fresh._storage is not storage for m in members):
                return f"{members[0].name}: which tensors share its memory has changed"
            seen.add(id(storage))
        for item, first in self._twins:
            if item.fresh is not first.fresh:
                return f"{item.name}: it was the same tensor as {first.name}"
        return ""

    def settle(self) -> None:
        """Makes what `mismatch` found the present state."""
        for item in self.items:
            item.now = item.fresh


def _is_imported(names: Any, name: Any) -> bool:
    """Whether a module's `name`, which was not there, is a submodule: Python sets it when that is
    first imported, which is no change of the function's own."""
    module = sys.modules.get(f"{names.get('__name__')}.{name}")
    return module is not None and names[name] is module


def _change_text(item: Item, x: Any) -> str:
    return f"changes {item.name} ({difference(item.now, x)})"


def _facts_text(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    for name, a, b in zip((*FACTS, "view"), old, new, strict=False):
        if a != b:
            return f"{name} {a} -> {b}" if name not in ("hooks", "view") else f"its {name}"
    return "another tensor"


def _restore_numbers(item: Item, x: Any) -> None:
    """Lifted numbers and sizes that the function stored become the plain ones they stand for."""
    if item.parent is None:
        return
    holder = item.parent.now
    if _is_lent(x) and (item.step == "cell" or isinstance(holder, (dict, list))):
        item.write(_plain(x))
    if item.step in ("item", "size"):
        _restore_in(holder)
        for inside in list(holder.values()) if isinstance(holder, dict) else ():
            _restore_in(inside)  # a list that the function has made, say


def _restore_in(holder: Any) -> None:
    if type(holder) in (dict, list):
        for key, value in list(holder.items() if type(holder) is dict else enumerate(holder)):
            if _is_lent(value):
                holder[key] = _plain(value)


def _is_lent(x: Any) -> bool:
    return type(x) is HostScalar or is_size(x)


def _plain(x: Any) -> Any:
    return float(x.value) if type(x) is HostScalar else x.hint


def _add_with_parents(item: Item | None, to: set[Item]) -> None:
    while item is not None and item not in to:
        to.add(item)
        item = item.parent
