"""Watch: sees the code of a recorded call before it runs, and has its state collected.

Globals, closure cells, defaults, attributes of what it reaches: each gets an Item (guards.py,
collect.py) before the code that can read it runs. Answers the recorder's questions (values.Finder):
where tensors, arrays and owners of slots will be found at later calls.
"""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Callable
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any

import numpy as np

from jitgrad.collect import Collector, contents_of, is_users
from jitgrad.effects import (
    attribute_names,
    is_module,
    owner_of,
    owner_of_class,
    owner_of_module,
)
from jitgrad.guards import (
    CONTAINERS,
    MISSING,
    SCALARS,
    Item,
    keys_of,
)
from jitgrad.hostscalar import HostScalar
from jitgrad.pytree import nodes_of
from jitgrad.reached import Reached
from jitgrad.reads import Reads, reads_of
from jitgrad.sizes import is_size
from jitgrad.sources import Arg, Captured, Grad, Owner, Source
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor
from jitgrad.values import is_part


class Watch(Collector):
    """Told of the code that runs while a function is recorded; answers the recorder.

    unlend: puts numbers back where symbolic sizes and lifted numbers stand for them. reached: the
    lines that ran.
    """

    unlend: Callable[[], None] | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reached = Reached()

    def forget_left_out(self, used: set[int]) -> None:
        """Drops the items of what is named in no line that ran. used: numbers of the items that
        replay reads."""
        codes = [code for code in self._entered if owner_of(code.co_filename) == "user"]
        names = self.reached.left_out(codes, self._named_anywhere)
        if names:
            self.drop({item for item in self.items if self._is_named(item, names)}, used)

    def _is_named(self, item: Item, names: set[str]) -> bool:
        """Whether an item is what one of these names stands for in code."""
        holder = item.parent
        if holder is None:
            return False
        if item.step == "cell":
            return item.name in names
        if item.key not in names or item.step not in ("item", "absent", "get"):
            return False
        if holder in self.namespaces:
            return holder.now is not sys.modules
        fields = holder.step == "get" and holder.key == "__dict__"
        owner = holder.parent if fields else holder
        if owner is None or not (fields or item.step == "get"):
            return False
        cls: Any = type(owner.now)
        return item.key not in attribute_names(cls)

    def container_in(self, result: Any) -> str:
        """A mutable container in a result that exists outside of the call, as text; or ""."""
        for x in nodes_of(result):
            if not isinstance(x, tuple) and (id(x) in self._nodes or id(x) in self._by_object):
                return f"a {type(x).__name__} that is an argument or captured"
        return ""

    # -- code that runs ----------------------------------------------------------------------------
    def entered(self, frame: FrameType) -> bool:
        """Adds items for all that the code of a frame, about to run, can read. True where what it
        gives outlives the call, so that it must not compute with lent numbers."""
        code = frame.f_code
        reads = reads_of(code)
        fields = frame.f_locals
        if code.co_name == "__init__" and code.co_argcount:
            first = fields.get(code.co_varnames[0])
            if first is not None:
                self.made(first)
        self._learn(reads)
        if reads.typed:  # code that asks for the type() of values
            self.end_lending()
        if code not in self._functions and code not in self._entered:
            self._find_function(code, fields)
        self._entered.add(code)
        self._entered.update(c for c in code.co_consts if isinstance(c, CodeType))
        self._scan(code, frame.f_globals)
        for path in sorted(reads.locals):
            x = fields.get(path[0], MISSING)
            if isinstance(x, np.ndarray) and id(x) in self._by_object:
                self._note_use(self._by_object[id(x)], path, reads)
            elif x is MISSING or len(path) == 1 or _has_no_state(x):
                if id(x) in self._by_object and isinstance(x, Tensor):
                    self._follow(self._by_object[id(x)], path, reads)
            elif not self._is_new(x):
                self._follow(self.root(x, path[0]), path, reads)
            elif is_users(x):
                cls: Any = type(x)
                self._class_attribute(self.root(cls, cls.__name__), cls, path[1])
        if reads.cells:
            self._cells(code, reads, fields)
        return code in self.cached

    def end_lending(self) -> None:
        """From here on code finds the very numbers of Python state, which are guarded by value."""
        self._lend = None
        if self.unlend is not None:
            self.unlend()

    def library(self, code: CodeType) -> None:
        """Learns what code of a library that the user's calls asks of objects it is given."""
        if code not in self._entered:
            self._entered.add(code)
            reads = reads_of(code)
            names = reads.loose.union(*(path[1:] for path in reads.locals | reads.cells))
            self._learn(Reads(loose=names, asked=reads.asked, every=reads.every))
            self._named_anywhere |= names | reads.asked

    def made(self, x: Any) -> None:
        """Notes an object that the function made."""
        if id(x) not in self._by_object:
            self._made[id(x)] = x

    def identities(self) -> None:
        """Notes that code asks for id() of objects."""
        self._identities = True

    def imported_now(self, name: str) -> bool:
        """Adds items for a module that was just imported, or looked for, by name: whether it is
        loaded. Gives whether it is users' code."""
        module = sys.modules.get(name)
        if module is not None:
            self.imported(name)
            return isinstance(module, ModuleType) and owner_of_module(module) == "user"
        owner = self.root_namespace(sys.modules, "sys.modules")
        self.put(owner, "absent", name, False, f"module {name}")
        return False

    def _is_new(self, x: Any) -> bool:
        """Whether an object that code holds in a variable was made while recording."""
        if id(x) in self._made or _is_transient(x):
            return True
        if isinstance(x, FunctionType) and id(x) not in self._by_object:
            # A local function of one that ran, or one of ours (what func.grad, func.vjp gave).
            return x.__code__ in self._entered or owner_of(x.__code__.co_filename) == "jitgrad"
        # Our own objects (the ctx of an autograd.Function, ...) are known where they are state.
        ours = owner_of_class(type(x)) == "jitgrad" and not is_module(x)
        return ours and id(x) not in self._by_object

    def _cells(self, code: CodeType, reads: Reads, fields: dict[str, Any]) -> None:
        owner = self._closure_of(code, fields)
        if owner is not None:
            self._captured(owner.now, reads)
            for name, cell in zip(code.co_freevars, owner.now.__closure__ or (), strict=True):
                if is_size(found := contents_of(cell)) or type(found) is HostScalar:
                    fields[name] = found  # for what is in `fields` is written to the cell
            return
        for path in sorted(reads.cells):
            name = path[0]
            if name in fields and name != "__class__":
                x = fields[name]
                if not _has_no_state(x) and not self._is_new(x):
                    self._follow(self.root(x, name), path, reads)

    def _closure_of(self, code: CodeType, fields: dict[str, Any]) -> Item | None:
        for item in self._functions.get(code, ()):
            closure = item.now.__closure__ or ()
            if all(
                contents_of(cell) is fields.get(name, MISSING)
                for name, cell in zip(code.co_freevars, closure, strict=False)
            ):
                return item
        return None

    def _find_function(self, code: CodeType, fields: dict[str, Any]) -> None:
        """Finds the function of code that was entered by a way not seen (through our library)."""
        if code.co_argcount:
            first = fields.get(code.co_varnames[0])
            cls = first if isinstance(first, type) else type(first)
            for c in cls.__mro__:
                for name, value in list(vars(c).items()):
                    inner = getattr(value, "__func__", None) or getattr(value, "fget", None)
                    if getattr(inner or value, "__code__", None) is code:
                        self._class_attribute(self.root(c, c.__name__), c, name)
                        return
        for f in gc.get_referrers(code):
            if isinstance(f, FunctionType) and f.__code__ is code:
                self.root(f, f.__qualname__)

    # -- the recorder's questions ------------------------------------------------------------------
    def storage(self, storage: Storage) -> tuple[Source, Tensor] | None:
        index = self._arg_storage.get(storage)
        if index is not None:
            return Arg(index), self.leaves[index]
        item = self._storages.get(storage)
        return None if item is None else (Captured(item), item.now)

    def part(self, x: Tensor) -> tuple[Source, Tensor] | None:
        for i, y in enumerate(self.leaves):
            if isinstance(y, Tensor) and y._storage is x._storage and is_part(x._chain, y._chain):
                return Arg(i), y
        for item in self.items:
            y = item.now
            if item.kind == "tensor" and y._storage is x._storage and is_part(x._chain, y._chain):
                return Captured(item), y
        return None

    def owner(self, owner: Any) -> Owner | None:
        index = self._arg_ids.get(id(owner))
        if index is not None and self.leaves[index] is owner:
            return Arg(index)
        item = self._by_object.get(id(owner))
        if item is not None:
            return Captured(item) if item.now is owner else None
        if isinstance(owner, dict):
            return self._created(owner)
        return None

    def _created(self, owner: dict[Any, Any]) -> Owner | None:
        """A dict that the function put into a dict that is watched (an optimizer's state)."""
        for item in self.items:
            if item.kind == "container" and isinstance(item.now, defaultdict):
                for key, value in item.now.items():
                    if value is owner:
                        made = Item(item, "created", key, "object", owner, f"{item.name}[...]")
                        self._append(made)
                        self._by_object[id(owner)] = made
                        return Captured(made)
        return None

    def begun(self, owner: dict[Any, Any]) -> None:
        for x in (owner, *owner.values()):
            item = self._by_object.get(id(x))
            if item is not None and item.now is x:  # else it is met with what it holds now
                self._by_key[id(x), "size", None].now = keys_of(x)
                self._expand(item, x)

    def array(self, array: np.ndarray[Any, Any]) -> Source | None:
        item = self._by_object.get(id(array))
        if item is None or item.kind != "array":
            return None
        item.captured = True
        return Captured(item)

    def number(self, owner: Any, key: Any) -> bool:
        holder = self._by_object.get(id(owner)) or self.root(owner, "dict")
        value = dict.__getitem__(owner, key) if isinstance(owner, dict) else owner[key]
        item = self.put(holder, "item", key, value, f"{holder.name}[{key!r}]")
        item.kind = "lifted"
        item.captured = True
        return True

    def number_item(self, name: Any) -> Item | None:
        """The item of a lifted number, by its leaf's name."""
        if name[0] == "item":
            found: Item = name[1]
            return found
        return self._by_key.get((name[0], "item", name[1]))

    def holds(self, owner: Owner, key: Any, source: Source) -> bool:
        if isinstance(source, Grad):
            return key == "grad" and source.owner == owner
        if not isinstance(source, Captured) or not isinstance(owner, Captured):
            return False
        parent = source.item.parent
        holder = owner.item.now
        if parent is None or source.item.key != key:
            return False
        inside = [holder]
        if is_module(holder):
            inside = [vars(holder), holder._buffers, holder._parameters]
        return any(parent.now is x for x in inside)

    def name(self, source: Source) -> str:
        if isinstance(source, Arg):
            return self.leaf_names[source.index]
        if isinstance(source, Captured):
            return str(source.item.name)
        if isinstance(source, Grad):
            return f"{self.name(source.owner)}.grad"
        return ""

    def is_known(self, value: Any) -> bool:
        return (
            isinstance(value, (*SCALARS, ModuleType))
            or id(value) in self._by_object
            or any(value is x for x in self.leaves)
            or (isinstance(value, (type, FunctionType)) and not _may_be_new(value))
        )

    def let_go(self) -> None:
        """Lets go of what code made: it has run."""
        self._made = {}

    def release(self) -> None:
        """Lets go of the arguments and of what only recording needs."""
        self.leaves = [None if isinstance(x, Tensor) else x for x in self.leaves]
        self._arg_storage, self._storages, self._made, self._nodes = {}, {}, {}, {}
        self._tensors, self.met = [], {}
        self.groups = [[m for m in group if isinstance(m, Item)] for group in self.groups]


def _may_be_new(x: Any) -> bool:
    """Whether a function or class may be made by the call: of those that no place of the user's
    is known to hold, what its module has not under its name. (Functions of libraries' modules,
    with no variables of outer functions, are taken for lasting.)"""
    found: Any = sys.modules.get(x.__module__)
    for name in x.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is x:
        return False
    if isinstance(x, type):
        return owner_of_class(x) == "user"
    return x.__closure__ is not None or owner_of(x.__code__.co_filename) == "user"


def _has_no_state(x: Any) -> bool:
    """Whether an object in a variable has no attributes that could be state."""
    return isinstance(x, (*SCALARS, *CONTAINERS, Tensor)) and not is_users(x)


def _is_transient(x: Any) -> bool:
    """Objects that only exist while code runs: no state that could be watched."""
    return isinstance(x, (BaseException, GeneratorType, FrameType, TracebackType)) or (
        type(x) is HostScalar
    )
