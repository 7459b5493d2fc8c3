"""Collector: the Python state that code can read, as items.

Owns what containers, functions, classes, instances and modules are made of, and which names
code asks of them: each place gets an Item (guards.py). watch.py tells it which code runs.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import operator
import os
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import EnumMeta
from types import (
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from jitgrad.effects import (
    attribute_names,
    impure_value,
    is_module,
    owner_of,
    owner_of_class,
    owner_of_module,
)
from jitgrad.facts import tensor_facts
from jitgrad.guards import (
    CONTAINERS,
    MAX_ARRAY_BYTES,
    MISSING,
    SCALARS,
    Item,
    State,
    keys_of,
    own_attributes,
    own_names,
    short,
)
from jitgrad.hostscalar import HostScalar
from jitgrad.random import Generator
from jitgrad.reads import Path_, Reads, reads_of
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor

_MAX_ITEMS = 20000
_MAX_CONTAINER = 5000
_CACHED = type(functools.cache(len))
_MODULE_SLOTS = (
    "training", "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks",
    "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


class Collector(State):
    """Collects items while a function is recorded.

    leaves: of the arguments; nodes: the containers that hold them. reasons: why something that
    was met cannot be guarded.
    """

    def __init__(
        self, function: Any, leaves: list[Any], names: list[str], nodes: Iterable[Any] = (),
        facts: Callable[[Item], Any] | None = None,
        lend: Callable[[Item], bool] | None = None,
    ) -> None:  # fmt: skip
        """facts: what guards require of a tensor that an item holds (facts.tensor_facts). lend:
        puts a symbolic size in the place of an int, or a lifted number in that of a float, where
        that is to be one."""
        super().__init__(leaves)
        self._facts = facts or (lambda item: tensor_facts(item.now))
        self._lend = lend
        self._by_key: dict[tuple[int, str, Any], Item] = {}
        self._storages: dict[Storage, Item] = {}
        self._functions: dict[CodeType, list[Item]] = {}
        self._scanned: set[tuple[CodeType, int]] = set()
        self._entered: set[CodeType] = set()
        self._plain: list[Item] = []
        self._sparse: list[Item] = []
        self._loose: set[str] = set()
        self._asked: set[str] = set()
        self._classes: dict[type, tuple[frozenset[str], list[Any]]] = {}
        self.sets: set[str] = set()  # names that code assigns to
        self.lengths: dict[Item, int] = {}  # of the lists that code only appends to, as they were
        self.cached: set[CodeType] = set()  # of functions whose results a functools.cache keeps
        self.appends: dict[Item, int] = {}  # how many of its calls were seen
        self.namespaces: set[Item] = set()  # dicts of globals, whose keys are names in code
        self._named_anywhere: set[str] = set()  # by code of which no lines are known
        self._appended = ""  # the name of such a list, when its item is about to be made
        self._made: dict[int, Any] = {}
        self._nodes = {id(x): x for x in nodes}
        self.ignore(self._nodes.values())
        self._builtins: Item | None = None
        self.leaf_names = names
        self._arg_storage: dict[Storage, int] = {}
        self._arg_ids: dict[int, int] = {}
        for i, x in enumerate(leaves):
            if isinstance(x, Tensor):
                self._arg_ids.setdefault(id(x), i)
                have = self._arg_storage.get(x._storage)
                if have is None or len(leaves[have]._chain) > len(x._chain):
                    self._arg_storage[x._storage] = i
            elif not isinstance(x, (*SCALARS, np.ndarray)):
                self.root(x, names[i])
        self.root(function, getattr(function, "__name__", "f"))

    # -- adding ------------------------------------------------------------------------------------
    def root(self, x: Any, name: str) -> Item:
        """An item for an object that the guard holds itself."""
        found = self._by_object.get(id(x))
        if found is not None:
            self.met.setdefault(None, []).append(found)
            return found
        item = Item(None, "root", None, "object", x, name)
        item.covered = True
        self._append(item)
        self._by_object[id(x)] = item
        self._expand(item, x)
        return item

    def ignore(self, nodes: Iterable[Any]) -> None:
        """Containers that exist for this call only."""
        self._made.update((id(x), x) for x in nodes)

    def _append(self, item: Item) -> None:
        item.number = len(self.items)
        self.items.append(item)
        if item.number == _MAX_ITEMS:
            self.reasons.append(
                f"reaches more than {_MAX_ITEMS} objects (the last: {item.name}); pass what it "
                "needs as arguments"
            )

    def put(
        self, parent: Item, step: str, key: Any, value: Any, name: str, covered: bool = False
    ) -> Item:
        """The item of a place, made when it is first met."""
        where = (id(parent.now), step, key)
        only_appended = bool(self._appended) and name.rpartition(".")[2] == self._appended
        found = self._by_key.get(where)
        if found is not None:
            if found.kind == "list" and not only_appended:
                self._open(found)
            return found
        if type(value) is HostScalar:
            self.reasons.append(f"keeps a number computed from an argument in {name}")
        if step in ("size", "absent", "cache") or isinstance(value, SCALARS):
            kind = "value"
        elif isinstance(value, Tensor) and not value._shapeless:
            kind = "tensor"
        elif isinstance(value, np.ndarray):
            kind = "array"
        elif isinstance(value, CONTAINERS):
            kind = "container"
        else:
            kind = "object"
        first = self._by_object.get(id(value)) if kind == "container" else None
        if first is not None:
            if first.kind == "list" and not only_appended:
                self._open(first)
            kind = "object"  # a second way to it: the items of the first say what it holds
        elif kind == "container" and only_appended and type(value) is list:
            kind = "list"
        item = Item(parent, step, key, kind, value, name)
        item.facts = first
        if kind != "value" and id(value) in self._by_object:
            self.met.setdefault(item, []).append(self._by_object[id(value)])
        item.covered = covered
        self._by_key[where] = item
        self._append(item)
        if type(value) in (int, float) and self._lend is not None and _is_users_place(item):
            kind = item.kind = type(value).__name__ if self._lend(item) else kind
        elif type(value) is float and step == "item" and hasattr(type(parent.now), "lifts_floats"):
            item.kind = "lifted"  # whoever reads it is seen there
        if (
            kind == "value" and step != "cache" and is_users(value)
        ):  # an Enum's member, a subclass of int, ...
            self._expand_instance(item, value)
        if kind == "tensor":
            item.facts = self._facts(item)
            self._by_object.setdefault(id(value), item)
            self._expand_sparse(item)
            have = self._storages.get(value._storage)
            if have is None or len(have.now._chain) > len(value._chain):
                self._storages[value._storage] = item
        elif kind == "array":
            self._by_object.setdefault(id(value), item)
            item.facts = (value.dtype, value.shape, value.strides)
            if value.dtype.hasobject:
                self.reasons.append(f"reaches a NumPy array of objects ({name}); use a list")
            elif value.nbytes <= MAX_ARRAY_BYTES:
                item.before = value.tobytes()
        elif kind == "list":
            self._by_object[id(value)] = item
            self.lengths[item] = len(value)
        elif kind != "value" and value is not MISSING and id(value) not in self._by_object:
            self._by_object[id(value)] = item
            if len(self.items) <= _MAX_ITEMS:
                self._expand(item, value)
        return item

    def _open(self, item: Item) -> None:
        """Code reads a list that it has but appended to so far."""
        if self.appends.get(item):
            self.reasons.append(f"reads {item.name}, to which it has appended")
        else:
            item.kind = "container"
            self._expand(item, item.now)

    def appended(self, x: list[Any]) -> None:
        """Code is about to append to a list."""
        item = self._by_object.get(id(x))
        if item is not None and item.now is x and item.kind == "list":
            self.appends[item] = self.appends.get(item, 0) + 1

    # -- what objects are made of ------------------------------------------------------------------
    def _expand(self, item: Item, x: Any) -> None:
        reason = impure_value(x)
        if reason:
            self.reasons.append(f"{reason} ({item.name})")
        elif isinstance(x, CONTAINERS):
            self._expand_container(item, x)
        elif isinstance(x, Tensor) and x._shapeless:  # its class changes when it gets a shape
            self.put(item, "get", "__class__", type(x), f"class of {item.name}", True)
        elif isinstance(x, FunctionType):
            self._expand_function(item, x)
        elif isinstance(x, MethodType):
            self.put(item, "get", "__func__", x.__func__, item.name, covered=True)
            self.put(item, "get", "__self__", x.__self__, f"{item.name}.__self__", covered=True)
        elif isinstance(x, functools.partial):
            for key in ("func", "args", "keywords"):
                self.put(item, "get", key, getattr(x, key), f"{item.name}.{key}", covered=True)
        elif isinstance(x, property):
            if x.fget is not None:
                self.put(item, "get", "fget", x.fget, item.name, covered=True)
        elif isinstance(x, (staticmethod, classmethod)):
            self.put(item, "get", "__func__", x.__func__, item.name, covered=True)
        elif isinstance(x, type):
            if owner_of_class(x) == "user":
                self._identity(item, "__mro__", x.__mro__, f"bases of {item.name}")
                there = tuple(vars(x))
                made = self._only(item, "names", None, "attributes", there, f"names in {item.name}")
                made.facts = attribute_names(x)
                for base in x.__mro__[1:]:
                    if owner_of_class(base) == "user":
                        self.root(base, base.__name__)
                self._expand_sparse(item)
        elif isinstance(x, ModuleType):
            if x is not sys:
                self._expand_sparse(item)
        elif x is os.environ:
            pass  # each variable that is read is noticed (effects.py)
        elif isinstance(x, Generator):
            pass  # what reads its seed or its state is noticed (effects.py)
        elif isinstance(x, (operator.attrgetter, operator.methodcaller)):
            asked = [n for n in x.__reduce__()[1] if isinstance(n, str)]
            loose = {name for n in asked for name in n.split(".")}
            self._learn(Reads(loose=loose))
            self._named_anywhere |= loose
        elif isinstance(x, _CACHED):
            self.put(item, "cache", None, x.cache_info()[1::2], f"cache of {item.name}")
            self.put(item, "get", "__wrapped__", x.__wrapped__, item.name, covered=True)
            f = x.__wrapped__
            if isinstance(f, FunctionType):  # which a filled cache does not enter
                self.cached.add(f.__code__)
                self._learn(reads_of(f.__code__))
                self._named_anywhere |= set(reads_of(f.__code__).lines)
                self._scan(f.__code__, f.__globals__)
                self._captured(f, reads_of(f.__code__))
        elif is_logging(x):  # handlers run when a message is emitted, which is an effect
            for name in _LOGGERS:
                if name in vars(x):
                    self.put(item, "get", name, vars(x)[name], f"{item.name}.{name}")
        elif getattr(type(x), "is_jit_function", False):
            self.put(item, "get", "__wrapped__", x.__wrapped__, item.name, covered=True)
        else:
            self._expand_instance(item, x)

    def _expand_container(self, item: Item, x: Any) -> None:
        if len(x) > _MAX_CONTAINER:
            self.reasons.append(
                f"reads {item.name}, a {type(x).__name__} of {len(x)} elements; make it a tensor, "
                "or pass what it needs as arguments"
            )
            return
        fixed = isinstance(x, (tuple, frozenset))
        if not isinstance(x, tuple):
            keyed = isinstance(x, (dict, set, frozenset))
            what = "keys of" if isinstance(x, dict) else "elements of" if keyed else "length of"
            covered = item.covered or fixed
            self.put(item, "size", None, keys_of(x), f"{what} {item.name}", covered)
            for key in x if keyed else ():  # guarded by identity, so what it holds is state
                if isinstance(key, Tensor):
                    self.keyed[id(key)] = key
                if not isinstance(key, (*SCALARS, Tensor)) or is_users(key):
                    self.root(key, f"<{type(key).__name__}> in {item.name}")
        if isinstance(x, (set, frozenset)):
            return
        covered = fixed or (item.covered and item.step == "item" and item.key in _MODULE_SLOTS)
        # dict's own items: reading those of an optimizer's group would lift its floats.
        pairs: Iterable[tuple[Any, Any]] = dict.items(x) if isinstance(x, dict) else enumerate(x)
        for key, value in list(pairs):
            text = short(key) if isinstance(key, (str, int)) else f"<{type(key).__name__}>"
            self.put(item, "item", key, value, f"{item.name}[{text}]", covered)
        if type(x) not in (list, tuple, dict, OrderedDict, defaultdict, deque) and hasattr(
            x, "__dict__"
        ):
            self._expand_instance(item, x)

    def _expand_function(self, item: Item, f: FunctionType) -> None:
        owner = owner_of(f.__code__.co_filename)
        if owner != "user":
            inner = getattr(f, "__wrapped__", None)  # e.g. no_grad()(f): the wrapper is ours
            if inner is not None and isinstance(inner, FunctionType):
                self.put(item, "get", "__wrapped__", inner, item.name, covered=True)
            if owner == "stdlib":  # e.g. the registry of a singledispatch function
                for cell in f.__closure__ or ():
                    if type(contents_of(cell)) in (dict, list, FunctionType):
                        self.put(
                            self._cell(cell, item.name), "cell", None, cell.cell_contents, item.name
                        )
            return
        self.put(item, "get", "__code__", f.__code__, f"code of {item.name}")
        self.put(item, "get", "__defaults__", f.__defaults__, f"defaults of {item.name}")
        self.put(item, "get", "__kwdefaults__", f.__kwdefaults__, f"defaults of {item.name}")
        self._functions.setdefault(f.__code__, []).append(item)
        self._expand_sparse(item)

    def _only(self, parent: Item, step: str, key: Any, kind: str, value: Any, name: str) -> Item:
        """The item of a place whose contents are watched by other items, or do not matter."""
        where = (id(parent.now), step, key)
        found = self._by_key.get(where)
        if found is None:
            found = self._by_key[where] = Item(parent, step, key, kind, value, name)
            self._append(found)
        return found

    def _identity(self, parent: Item, key: str, value: Any, name: str) -> Item:
        """The item of an attribute that must stay the very object."""
        return self._only(parent, "get", key, "object", value, name)

    def _vars(self, item: Item) -> Item | None:
        fields = getattr(item.now, "__dict__", None)
        if not isinstance(fields, dict):
            return None
        have = self._by_object.get(id(fields))
        if have is not None:
            return have
        where = (id(item.now), "get", "__dict__")
        made = Item(item, "get", "__dict__", "object", fields, f"attributes of {item.name}")
        # Of their own objects users may set another, and each thread has one of a threading.local.
        own = is_users(item.now) or isinstance(item.now, threading.local)
        made.covered = is_module(item.now) or not own
        self._by_key[where] = made
        self._by_object[id(fields)] = made
        self._append(made)
        covered = is_module(item.now)
        if not isinstance(item.now, (ModuleType, type)):
            size = self.put(made, "size", None, tuple(fields), made.name, covered)
            size.kind = "attributes"
            cls: Any = type(item.now)
            size.facts = attribute_names(cls)
        return made

    def _expand_instance(self, item: Item, x: Any) -> None:
        self._plain.append(item)
        fields = self._vars(item)
        cls: Any = type(x)
        if is_users(x) or is_module(x):
            self.put(item, "get", "__class__", cls, f"class of {item.name}", is_module(x))
        if is_module(x):
            assert fields is not None
            for name in _MODULE_SLOTS:
                if name in fields.now:
                    self._field(item, fields, name, True)
            for c in type(x).__mro__:
                if "forward" in vars(c):
                    self._class_attribute(item, type(x), "forward")
                    break
        names = self._loose | attribute_names(cls) | {"_value_"}  # of an Enum's member
        self._expand_names(item, names | _own_names(x) if self._every else names)

    def _expand_names(self, item: Item, names: Iterable[str]) -> None:
        """Items for those of an instance's attributes that have one of these names."""
        x = item.now
        cls: Any = type(x)
        fields = self._vars(item)
        own: Any = () if fields is None else fields.now
        slots, classes = self._members(cls)
        # Of the names that all code of a program asks for, an instance has few.
        wanted = set(names)
        for name in sorted(set[str]().union(*map(wanted.intersection, (own, slots, *classes)))):
            if name in own:
                assert fields is not None
                self._field(item, fields, name, is_module(x))
            elif _is_slot(cls, name):
                value = getattr(x, name, MISSING)
                self.put(item, "get", name, value, f"{item.name}.{name}")
            else:
                self._class_attribute(item, cls, name)

    def _members(self, cls: type) -> tuple[frozenset[str], list[Any]]:
        """The names in __slots__ of a class and its bases, and the dicts of those that users
        wrote: no other attribute of a class is state."""
        found = self._classes.get(cls)
        if found is None:
            many = [getattr(c, "__slots__", ()) for c in cls.__mro__]
            slots = [name for s in many for name in ((s,) if isinstance(s, str) else s)]
            dicts = [vars(c) for c in cls.__mro__ if owner_of_class(c) == "user"]
            found = self._classes[cls] = frozenset(slots), dicts
        return found

    def _expand_sparse(self, item: Item) -> None:
        """Of an object that has many attributes, of which few are state of the function."""
        self._sparse.append(item)
        self._expand_present(item, self._loose)

    def _expand_present(self, item: Item, names: Iterable[str]) -> None:
        """Items for those of these names that the object has, or that code asks whether it has."""
        x = item.now
        own = getattr(x, "__dict__", ())
        if isinstance(x, type):
            own = {n for c in x.__mro__ if owner_of_class(c) == "user" for n in vars(c)}
        if isinstance(x, ModuleType) and owner_of_module(x) != "user":
            for name in sorted(self._asked.intersection(names)):
                self._library_attribute(item, name, vars(x).get(name, MISSING))
            return
        for name in sorted(names):
            if name in own or name in self._asked:
                self._attribute(item, name)

    def _library_attribute(self, item: Item, name: str, value: Any) -> Item | None:
        """The item of data in a module that is not the user's, and of what is not there."""
        if value is MISSING and name not in self._asked:
            return None
        fields = self._vars(self.root(item.now, item.name))
        assert fields is not None
        if value is MISSING:
            return self.put(fields, "absent", name, False, f"{item.name}.{name}")
        if isinstance(value, (*SCALARS, *CONTAINERS)) and value is not sys.modules:
            if name in fields.now:
                return self._field(item, fields, name, False)
        return Item(None, "root", None, "object", value, name)

    def _field(self, item: Item, fields: Item, name: str, covered: bool) -> Item:
        where = "" if name in ("_parameters", "_buffers", "_modules") else f".{name}"
        shown = f"{item.name}{where}" if where or item.name else item.name
        return self.put(fields, "item", name, fields.now[name], shown, covered)

    def _class_attribute(self, item: Item, cls: type, name: str) -> Item | None:
        holder = next((c for c in cls.__mro__ if name in vars(c)), None)
        if holder is None or owner_of_class(holder) != "user":
            return None
        self._named.add(name)  # so that a subclass that begins to override it is noticed
        self.root(cls, cls.__name__)
        owner = self.root(holder, holder.__name__)
        return self.put(owner, "class", name, vars(holder)[name], f"{holder.__name__}.{name}")

    def _attribute(self, item: Item, name: str) -> Item | None:
        """The item of an attribute that code names, of the object of `item`."""
        x = item.now
        item = self._by_object.get(id(x), item)
        if isinstance(x, (*SCALARS, *CONTAINERS, np.ndarray)) and not is_users(x):
            return None
        if id(x) in self._made or x is os.environ:
            return None
        if isinstance(x, (Tensor, FunctionType)):
            # hasattr would ask FunctionType for annotations of its own
            if any(name in vars(c) for c in type(x).__mro__):
                return None
            if name in vars(x):
                return self.put(item, "get", name, vars(x)[name], f"{item.name}.{name}")
            self._named.add(name)
            made = self._only(item, "own", None, "attributes", own_names(x), f"{item.name}.{name}")
            made.facts = frozenset()
            return None
        if isinstance(x, ModuleType):
            if owner_of_module(x) == "numpy":  # whose submodules are loaded when they are named
                value = getattr(x, name, MISSING)
            else:
                value = vars(x).get(name, MISSING)
            if owner_of_module(x) != "user":
                reason = impure_value(value)
                if reason:
                    self.reasons.append(reason)
                return self._library_attribute(item, name, value)
            fields = self._vars(item)
            assert fields is not None
            if value is MISSING:
                if "__getattr__" in fields.now:  # PEP 562
                    self._field(item, fields, "__getattr__", False)
                return self.put(fields, "absent", name, False, f"{item.name}.{name}")
            return self._field(item, fields, name, False)
        if isinstance(x, type):
            meta: Any = type(x)
            if owner_of_class(meta) == "user":
                self._class_attribute(item, meta, name)
            if isinstance(x, EnumMeta) and name in x.__members__:
                return self.root(x.__members__[name], f"{item.name}.{name}")
            return self._class_attribute(item, x, name)
        fields = self._vars(item)
        module = is_module(x)
        if fields is not None:
            if name in fields.now:
                return self._field(item, fields, name, module)
            if module:
                for slot in ("_parameters", "_buffers", "_modules"):
                    inside = fields.now.get(slot, {})
                    if name in inside:
                        return self._by_key.get((id(inside), "item", name))
            self.put(fields, "absent", name, False, f"{item.name}.{name}", module)
        if _is_slot(type(x), name):
            value = getattr(x, name, MISSING)
            return self.put(item, "get", name, value, f"{item.name}.{name}")
        return self._class_attribute(item, type(x), name)

    def _follow(self, item: Item | None, path: Path_, reads: Reads) -> None:
        """Items for the attributes of a path, from the item of its first name."""
        for k, name in enumerate(path[1:], 1):
            if item is None:
                return
            if item.kind == "array":
                self._by_object[id(item.now)].looked = True
            self._expect(path, k, reads)
            item = self._attribute(item, name)
            self._appended = ""
        if item is not None:
            self._note_use(item, path, reads)

    def _expect(self, path: Path_, k: int, reads: Reads) -> None:
        """Notes whether code only appends to what is at name `k` of a path, before that is met."""
        self._appended = path[k] if k == len(path) - 2 and path in reads.appended else ""

    def _note_use(self, item: Item, path: Path_, reads: Reads) -> None:
        """Notes whether code that names an array does more with it than making it a tensor."""
        item = self._by_object.get(id(item.now), item)
        if path in reads.looked:
            item.looked = True
        else:
            item.handed = True

    # -- what code names ---------------------------------------------------------------------------
    def _learn(self, reads: Reads) -> None:
        """Names that code asks of objects reached in any way."""
        if reads.every and not self._every:
            self._every = True
            for item in list(self._plain):
                self._expand_names(item, _own_names(item.now))
        new = (reads.loose - self._loose) | (reads.asked - self._asked)
        paths = reads.globals | reads.locals | reads.cells
        named = reads.loose.union(*(path[1:] for path in paths)) - self._named
        self._loose |= reads.loose
        self._asked |= reads.asked
        self.sets |= reads.sets
        self._named |= named
        if named or new:
            self._ask_arguments(named | new)
        if new:
            for item in list(self._plain):
                self._expand_names(item, new)
            for item in list(self._sparse):
                self._expand_present(item, new)

    def _ask_arguments(self, names: Iterable[str]) -> None:
        """Notes those attributes of tensors among the arguments that users set and code names."""
        for i, x in enumerate(self.leaves):
            if isinstance(x, Tensor):
                own = own_attributes(x)
                for name in sorted(names):
                    if name in own and (i, name) not in self.arg_attributes:
                        self.arg_attributes[i, name] = own[name]
                        if not isinstance(own[name], SCALARS):
                            what = f"{self.leaf_names[i]}.{name}"
                            self.reasons.append(
                                f"reads {what}, set on an argument; pass it as an argument"
                            )
                    elif name in self._asked and not hasattr(type(x), name):
                        self.arg_attributes.setdefault((i, name), MISSING)

    def _scan(self, code: CodeType, names: dict[str, Any]) -> None:
        """Adds items for the globals that code reads and the modules that it imports."""
        where = (code, id(names))
        if where in self._scanned:
            return
        self._scanned.add(where)
        reads = reads_of(code)
        owner = self.root_namespace(names, names.get("__name__", "?"))
        for path in sorted(reads.globals):
            self._expect(path, 0, reads)
            found = self._global(owner, path[0])
            self._appended = ""
            self._follow(found, path, reads)
        for name in sorted(reads.stored):
            self._global(owner, name)
        for name, level in sorted(reads.imports):
            if level:
                package = names.get("__package__") or ""
                name = importlib.util.resolve_name("." * level + name, package)
            self.imported(name, reads)
        for key in sorted(reads.modules):
            self._module_of(str(names.get("__name__", "")) if key == "__name__" else key)
        if reads.by_name is not None and "" in reads.by_name:
            self.reasons.append("uses __import__ in a way that jit does not follow")

    def _module_of(self, key: str) -> None:
        """Adds items for what code looks for in sys.modules, which need not be there."""
        if not key:
            self.reasons.append("uses sys.modules in a way that jit does not follow")
        elif isinstance(sys.modules.get(key), ModuleType):
            self.imported(key)
        elif key not in sys.modules:
            owner = self.root_namespace(sys.modules, "sys.modules")
            self.put(owner, "absent", key, False, f"module {key}")

    def imported(self, name: str, reads: Reads | None = None) -> None:
        """Adds items for a module that code imports by name; it may not be loaded yet.

        reads: of the code that imports it, None where that is not known.
        """
        owner = self.root_namespace(sys.modules, "sys.modules")
        while name:
            module = sys.modules.get(name)
            if isinstance(module, ModuleType):
                item = self.put(owner, "item", name, module, name)
                if reads is not None and owner_of_module(module) != "user":
                    for attribute in sorted(reads.loose):
                        self._attribute(item, attribute)
            name = name.rpartition(".")[0]

    def variable(self, name: Any) -> None:
        """Adds the item of a variable of the environment that code reads."""
        if not isinstance(name, str):
            return
        held: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
        owner, key = self.root_namespace(held, "os.environ"), os.environ.encodekey(name)
        if key in held:
            self.put(owner, "item", key, held[key], f"os.environ[{name!r}]")
        else:
            self.put(owner, "absent", key, False, f"os.environ[{name!r}]")

    def root_namespace(self, names: dict[str, Any], name: str) -> Item:
        """The item of a dict of globals (its contents are watched by name only)."""
        found = self._by_object.get(id(names))
        if found is None:
            found = Item(None, "root", None, "object", names, f"globals of {name}")
            found.covered = True
            self.namespaces.add(found)
            self._append(found)
            self._by_object[id(names)] = found
        return found

    def _global(self, owner: Item, name: str) -> Item | None:
        if name in owner.now:
            return self.put(owner, "item", name, owner.now[name], name)
        self.put(owner, "absent", name, False, name)
        if self._builtins is None:
            self._builtins = self.root_namespace(vars(builtins), "builtins")
        if name in self._builtins.now:
            return self.put(self._builtins, "item", name, self._builtins.now[name], name)
        return None

    def _captured(self, f: FunctionType, reads: Reads) -> None:
        """Adds items for the cells that a function reads."""
        cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
        for path in sorted(reads.cells):
            name = path[0]
            value = contents_of(cells[name])
            if value is not MISSING:
                holder = self._cell(cells[name], name)
                self._expect(path, 0, reads)
                found = self.put(holder, "cell", None, value, name)
                self._appended = ""
                self._follow(found, path, reads)

    def _cell(self, cell: Any, name: str) -> Item:
        holder = self._by_object.get(id(cell))
        if holder is None:
            holder = Item(None, "root", None, "object", cell, f"cell {name}")
            holder.covered = True
            self._append(holder)
            self._by_object[id(cell)] = holder
        return holder


_LOGGERS = ("level", "disabled", "disable", "propagate", "parent", "manager")
"""The attributes of loggers and their manager by which messages are let through."""


def is_logging(x: Any) -> bool:
    """Whether an object is of one of logging's classes, or of one that derives from it."""
    return any(c.__module__ == "logging" for c in type(x).__mro__)


def is_users(x: Any) -> bool:
    """Whether an object is of a class that users wrote."""
    return owner_of_class(type(x)) == "user"


def _is_users_place(item: Item) -> bool:
    """Whether a number can be put where this is read, and only users' code reads it there."""
    holder = item.parent
    assert holder is not None
    if item.step == "class":
        return type(holder.now) is type and owner_of_class(holder.now) == "user"
    if item.step == "cell":
        return True
    if item.step != "item" or type(holder.now) not in (dict, list):
        return False
    around: Item | None = holder
    while around is not None and isinstance(around.now, CONTAINERS):
        around = around.parent
    if around is None or isinstance(around.now, (CellType, FunctionType)):
        return True
    if isinstance(around.now, ModuleType):
        return owner_of_module(around.now) == "user"
    if is_module(around.now):
        return is_users(around.now)
    return all(owner_of_class(c) != "jitgrad" for c in type(around.now).__mro__) and is_users(
        around.now
    )  # not of a user's scheduler, which our own code counts with


def _own_names(x: Any) -> set[str]:
    """The names of an instance's own attributes, and of those of its class that users wrote."""
    names = set(getattr(x, "__dict__", ()))
    for c in type(x).__mro__:
        if owner_of_class(c) == "user":
            names |= {n for n in vars(c) if not n.startswith("__")}
    return names


def contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _is_slot(cls: type, name: str) -> bool:
    return any(name in getattr(c, "__slots__", ()) and name in vars(c) for c in cls.__mro__)
