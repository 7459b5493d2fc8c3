"""Writes the Python source of a specialisation's `call(args, kwargs)`.

The source checks arguments, modes and Python state, collects the arrays, runs the compiled graph,
applies the effects and builds the results. Names in it: a0.. leaves of the arguments, i0.. what
items of Python state hold, s0.. arrays of captured tensors, g0.. gradients, n0.. lifted numbers,
k0.. constants, r the results of the run, t0.. tensors on them, z0.. symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_not
from typing import Any

import numpy as np

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.symbolic import expression, is_static
from jitgrad.compiler.types import TensorType
from jitgrad.facts import place_facts
from jitgrad.guards import MISSING, Item, own_getitem, same
from jitgrad.hostscalar import SIGNS, HostScalar, Truth
from jitgrad.layouts import in_order
from jitgrad.looks import leaves_of
from jitgrad.pair import CompiledNode, Pair, attach, keep, overwritten, spent
from jitgrad.pytree import Structure, children_of, rebuild
from jitgrad.replay_support import (
    MISS,
    chain_at,
    clash,
    has_layout,
    leaf,
    make_alias,
    make_view,
    overlap,
    set_slot,
    signed,
    touches,
)
from jitgrad.reuse import LEAST
from jitgrad.runtime.cuda.device import unasked
from jitgrad.runtime.errors import CompileError
from jitgrad.sizes import has_sizes
from jitgrad.sources import (
    SPENT,
    AliasResult,
    Arg,
    Captured,
    Constant,
    ConstantResult,
    Draw,
    FreshResult,
    Grad,
    HostResult,
    Number,
    NumberResult,
    Result,
    SameResult,
    Seed,
    SizeResult,
    Source,
    is_array,
)
from jitgrad.state import defaults, epoch, state
from jitgrad.tensor import Tensor, intern_type, wrap, wrap_array
from jitgrad.tree import Divergence

FEW = 3
"""Up to so many, things are compared pair by pair."""


class Writer:
    """Writes the source of `call`."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.trace, self.watch, self.guard = spec.trace, spec.watch, spec.guard
        self.lines: list[str] = []
        self.constants = 0
        self.leaf_count = 0
        self.grads: dict[Any, str] = {}
        self.inside: dict[Item, list[Item]] = {}
        self.symbols = spec.symbols
        self.sized = bool(spec.symbols) and spec.trace.sized
        self.replaced: list[int] = []  # results that take the place of gradients
        self.size_names: dict[str, str] = {}  # of a dim: the local variable that has its value
        self.namespace: dict[str, Any] = {
            "MISS": MISS, "MISSING": MISSING, "Tensor": Tensor, "epoch": epoch, "state": state,
            "defaults": defaults,
            "place_facts": place_facts,
            "same": same, "refresh": spec.refresh, "stamp": spec.stamp, "hits": spec.hits,
            "has_layout": has_layout, "in_order": in_order, "make_view": make_view,
            "make_alias": make_alias,
            "leaf": leaf, "wrap": wrap, "wrap_array": wrap_array, "set_slot": set_slot,
            "rebuild": rebuild,
            "array": np.array, "float64": np.float64, "int64": np.int64, "run": spec.first_run,
            "overlap": overlap, "clash": clash, "touches": touches, "spans": ([], []),
            "children_of": children_of, "is_not": is_not, "keep": keep, "attach": attach,
            "spent": spent,
            "CompiledNode": CompiledNode, "overwritten": overwritten, "Divergence": Divergence,
            "known": {}, "lend": None, "learn": spec.learn, "chain_at": chain_at,
        }  # fmt: skip
        for item in self.watch.items:
            self.namespace[f"i{item.number}"] = item.now

    def constant(self, value: Any, named: bool = False) -> str:
        """The text of a constant: a literal, or a name in the namespace."""
        if not named and (value is None or type(value) in (bool, int)):
            return repr(value)
        self.constants += 1
        name = f"k{self.constants}"
        self.namespace[name] = value
        return name

    def put(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    def miss_if(self, condition: str) -> None:
        self.put(f"if {condition}: return MISS")

    def source(self) -> str:
        seen = ", seen=None" if self.trace.leaf is not None else ""
        self.lines = [f"def call(args, kwargs{seen}):"]
        self._arguments()
        self._modes()
        self._state()
        self._sizes()
        self._grads()
        self._run()
        self._effects()
        self._return()
        return "\n".join(self.lines) + "\n"

    # -- arguments -----------------------------------------------------------------------------
    def _arguments(self) -> None:
        positional, keywords = self.guard.structure.children
        self.put("# arguments")
        self._node("args", positional)
        if keywords.context:
            self.miss_if(f"(*kwargs,) != {keywords.context!r}")
            for key, child in zip(keywords.context, keywords.children, strict=True):
                name = self._fresh()
                self.put(f"{name} = kwargs[{key!r}]")
                self._node(name, child)
        else:
            self.miss_if("kwargs")
        tensors = [i for i, facts in enumerate(self.guard.facts) if facts is not None]
        groups = self.guard.groups
        self._on_storages_of_their_own([i for i in tensors if groups[i] == i])
        for i in tensors:
            if self.guard.chains[i] is not None:
                self.miss_if(f"a{i}._chain != {self.constant(self.guard.chains[i])}")
            if groups[i] != i:
                self.miss_if(f"a{i}._storage is not a{groups[i]}._storage")
                for j in tensors[: tensors.index(i)]:
                    if groups[j] == groups[i]:
                        self.miss_if(f"(a{i} is a{j}) is not {(i, j) in self.guard.same}")

    def _on_storages_of_their_own(self, arguments: list[int]) -> None:
        if len(arguments) <= FEW:
            for n, i in enumerate(arguments):
                for j in arguments[:n]:
                    self.miss_if(f"a{i}._storage is a{j}._storage")
        else:
            storages = ", ".join(f"a{i}._storage" for i in arguments)
            self.miss_if(f"len({{{storages}}}) != {len(arguments)}")

    def _keys(self) -> None:
        """Users' attributes of arguments; arguments that containers are asked for by identity."""
        for (i, name), value in self.watch.arg_attributes.items():
            read = f"getattr(a{i}, {name!r}, MISSING)"
            k = self.constant(value, named=True)
            self.miss_if(f"({read}) is not {k} and not same({read}, {k})")
        if not self.watch.keyed:
            return
        keyed = self.constant(frozenset(self.watch.keyed), named=True)
        for i, facts in enumerate(self.guard.facts):
            if facts is not None:
                known = self.watch.keyed.get(id(self.watch.leaves[i]))
                self.miss_if(f"id(a{i}) in {keyed}" if known is None
                             else f"a{i} is not {self.constant(known)}")  # fmt: skip

    def _fresh(self) -> str:
        self.constants += 1
        return f"v{self.constants}"

    def _node(self, x: str, structure: Structure) -> None:
        kind = structure.kind
        if kind is None:
            self._leaf(x)
            return
        count = len(structure.children)
        names = [self._fresh() for _ in structure.children]
        if x != "args":
            self.miss_if(f"type({x}) is not {self.constant(kind)}")
        if kind in (tuple, list) or issubclass(kind, tuple):
            self.miss_if(f"len({x}) != {count}")
            if names:
                self.put(f"{', '.join(names)}{',' if count == 1 else ''} = {x}")
        elif kind is dict:
            self.miss_if(f"tuple({x}) != {self.constant(structure.context)}")
            for name, key in zip(names, structure.context, strict=True):
                self.put(f"{name} = {x}[{self.constant(key)}]")
        else:
            context = self._fresh()
            self.put(f"{context} = children_of({x})")
            self.miss_if(f"{context} is None or {context}[1] != {self.constant(structure.context)}")
            self.miss_if(f"len({context}[0]) != {count}")
            if names:
                self.put(f"{', '.join(names)}{',' if count == 1 else ''} = {context}[0]")
        for name, child in zip(names, structure.children, strict=True):
            self._node(name, child)

    def _leaf(self, x: str) -> None:
        i = self.leaf_count
        self.leaf_count += 1
        a = f"a{i}"
        self.put(f"{a} = {x}")
        facts = self.guard.facts[i]
        if facts is None:
            if i in self.guard.lifted:
                self.miss_if(f"type({a}) is not float")
                if i in self.guard.special:
                    self._number_is(a, self.guard.special[i])
                return
            if self.symbols and i in self.symbols.numbers:
                self.miss_if(f"type({a}) is not int")
                return
            value = self.guard.leaves[i]
            if i in self.guard.contents:
                self.miss_if(f"not {self.constant(value)}.holds({a})")
            elif value is None or isinstance(value, bool):
                self.miss_if(f"{a} is not {value}")
            else:
                k = self.constant(value, named=True)
                self.miss_if(f"{a} is not {k} and not same({a}, {k})")
            return
        cls, type_, requires_grad, is_leaf, strides = facts
        self.miss_if(f"type({a}) is not {self.constant(cls)}")
        self._type(a, type_)
        self.miss_if(
            f"({a}._requires_grad if {a}._view is None else {a}.requires_grad) "
            f"is not {requires_grad}"
        )
        if requires_grad:
            self.miss_if(f"({a}._node is None) is not {is_leaf}")
            if self.trace.backward_inside:
                self.miss_if(f"{a}._hooks or {a}._post_hooks")
        if strides is None:
            self.miss_if(f"not {a}._data.flags.c_contiguous")
        else:
            self.miss_if(f"not has_layout({a}, {self.constant(strides)})")

    def _type(self, x: str, type_: Any) -> None:
        """Misses unless tensor x has the type, or one of the pattern."""
        if isinstance(type_, TensorType):
            t = self.constant(type_)
            self.miss_if(f"{x}._type is not {t} and {x}._type != {t}")
            return
        self.put(f"t = {x}._type")
        self.put("h = t.shape")
        mine = type_.type
        tests = [f"t.dtype is not {self.constant(mine.dtype)}", f"len(h) != {len(mine.shape)}"]
        tests += [f"h[{k}] != {d}" for k, d in enumerate(mine.shape) if k not in type_.free]
        self.miss_if(" or ".join([*tests, f"t.device != {self.constant(mine.device)}"]))

    def _sizes(self) -> None:
        """Reads the symbolic sizes (z0, z1, ...: `z`); `e` is what was learnt of them."""
        if not self.symbols:
            return
        self.put("# sizes")
        for n, places in enumerate(self.symbols.places.values()):
            for m, place in enumerate(places):
                x = f"a{place.index}" if place.item is None else f"i{place.item.number}"
                if place.item is not None and place.axis is None:
                    x = self._read(place.item)
                read = x if place.axis is None else f"{x}._type.shape[{place.axis}]"
                if m:
                    self.miss_if(f"{read} != z{n}")
                else:
                    self.put(f"z{n} = {read}")
                    self.size_names[list(self.symbols.places)[n]] = f"z{n}"
        self.put(f"z = ({', '.join(self.size_names.values())},)")
        if not self.sized:  # those of Python alone, which may be others at each call
            for name, z in self.size_names.items():
                low, high = self.symbols.env.low.get(name, 2), self.symbols.env.high.get(name)
                self.miss_if(f"{z} < {low}" + ("" if high is None else f" or {z} > {high}"))
            for g in self.symbols.env.guards:
                self.miss_if(f"not ({g.expression(self.size_names)})")
            return
        self.put("e = known.get(z)")
        self.put("if e is None:")
        self.put("e = learn(z)", 2)
        self.put("if e is None: return MISS", 2)

    def _chain(self, chain: Any) -> str:
        """An expression for view ops, with the sizes of the call."""
        if not any(has_sizes(tuple(attrs.values())) for _, attrs in chain):
            return self.constant(tuple(chain))
        names = self.constant(tuple(self.size_names))
        return f"chain_at({self.constant(tuple(chain))}, {names}, z)"

    # -- modes and Python state ----------------------------------------------------------------
    def _modes(self) -> None:
        modes = self.spec.modes
        settings = self.constant(modes.settings)
        nan = f"or modes['check_nan'] is not {modes.check_nan} " if modes.anomaly else ""
        casting = "is not None" if modes.casting is None else f"!= {self.constant(modes.casting)}"
        self.put("# modes")
        self.put("modes = state.__dict__")
        self.miss_if(
            f"modes['grad_enabled'] is not {modes.grad_enabled} "
            f"or modes['inference'] is not {modes.inference} "
            f"or modes['anomaly'] is not {modes.anomaly} {nan}"
            f"or defaults.dtype is not {self.constant(modes.dtype)} "
            f"or modes['casting'] {casting} or modes['device'] != {modes.device!r} "
            f"or (defaults.settings is not {settings} and defaults.settings != {settings})"
        )
        if modes.gpu is not None:
            self.miss_if(f"{self.constant(unasked)}() != {modes.gpu}")

    def _state(self) -> None:
        self._keys()
        self.put("# Python state: the epoch covers what Modules hold")
        self.put("try:")
        self.put("if (", 2)
        self.put("epoch[0] != stamp[0]", 3)
        for item in self.watch.items:
            test = self._test(item)
            if test:
                self.put(f"or {test}  # {item.name}".replace("\n", " "), 3)
        self.put("):", 2)
        self.put("if not refresh(): return MISS", 3)
        self.put("except (KeyError, IndexError, AttributeError, TypeError, ValueError):")
        self.put("if not refresh(): return MISS", 2)
        for owner, facts in self.trace.places:
            self.miss_if(f"place_facts({self.tensor(owner)}) != {self.constant(facts, named=True)}")
        for group in self.watch.groups:
            for i in (m for m in group if isinstance(m, int)):
                for item in (m for m in group if isinstance(m, Item)):
                    self.miss_if(f"a{i}._storage is not i{item.number}._storage")
                    self.miss_if(f"a{i}._chain != {self.constant(self.watch.leaves[i]._chain)}")

    def _is_replaced(self, item: Item) -> bool:
        """Whether a place has a tuple that each call may replace (as schedules do with betas): of
        floats that are read at each call, and of scalars."""
        if item.kind != "container" or item.step != "item" or type(item.now) is not tuple:
            return False
        kinds = {c.kind for c in self._elements(item)}
        return "lifted" in kinds and kinds <= {"lifted", "value"}

    def _elements(self, item: Item) -> list[Item]:
        if not self.inside:
            for x in self.watch.items:
                if x.parent is not None:
                    self.inside.setdefault(x.parent, []).append(x)
        return self.inside.get(item, [])

    def _holder(self, item: Item) -> str:
        """An expression for what an item holds now, in front of its elements."""
        if item.parent is not None and self._is_replaced(item):
            return f"i{item.parent.number}[{self.constant(item.key)}]"
        return f"i{item.number}"

    def _test(self, item: Item) -> str:
        """An expression that is true when the item may not hold what it held."""
        here = f"i{item.number}"
        by_contents = item.kind == "array" and item.facts is not None and len(item.facts) > 3
        contents = f"{here}.tobytes() != {self.constant(item.facts[3])}" if by_contents else ""
        if item.kind in ("int", "float"):
            return f"type({self._read(item)}) is not {item.kind}"
        if item.covered or item.parent is None or item.step == "created":
            return contents
        p = f"i{item.parent.number}"
        if item.step == "size":
            if item.kind == "attributes":
                return f"(*{p},) != {here}"
            if isinstance(item.now, tuple):
                return f"len({p}) != len({here}) or any(map(is_not, {p}, {here}))"
            return f"len({p}) != {item.now}"
        if item.step == "own":
            return f"not {p}.__dict__.keys() <= {here}"
        if item.step == "names":
            return f"(*{p}.__dict__,) != {here}"
        if item.step == "cache":
            return f"{p}.cache_info()[1::2] != {here}"
        if item.step == "absent":
            return f"{self.constant(item.key)} in {p}"
        if item.now is MISSING and item.step == "class":
            return f"{self.constant(item.key)} in {p}.__dict__"
        if item.now is MISSING:
            return f"hasattr({p}, {self.constant(item.key)})"
        read = self._read(item)
        if item.kind == "lifted":
            return ""
        if self._is_replaced(item):
            tests = [f"type({read}) is not tuple", f"len({read}) != {len(item.now)}"]
            values = [c for c in self._elements(item) if c.kind == "value"]
            tests += [f"not same({read}[{c.key}], i{c.number})" for c in values]
            return " or ".join(tests)
        if item.kind == "value" and not isinstance(item.now, (bool, type(None))):
            return f"{read} is not {here} and not same({read}, {here})"
        if contents:
            return f"{read} is not {here} or {contents}"
        return f"{read} is not {here}"

    def _read(self, item: Item) -> str:
        """An expression for what is at an item's place."""
        assert item.parent is not None
        p = f"i{item.parent.number}"
        if item.step == "item":
            getter, key = own_getitem(item.parent.now), self.constant(item.key)
            return f"{p}[{key}]" if getter is None else f"{self.constant(getter)}({p}, {key})"
        if item.step == "cell":
            return f"{p}.cell_contents"
        if item.step == "class":
            return f"{p}.__dict__[{self.constant(item.key)}]"
        return f"{p}.{item.key}"

    def _grads(self) -> None:
        for owner, key, grad in self.trace.slots:
            assert key == "grad"
            base = f"a{owner.index}" if isinstance(owner, Arg) else f"i{owner.item.number}"
            if grad is None:
                self.miss_if(f"{base}._grad is not None")
                continue
            g = f"g{len(self.grads)}"
            self.grads[owner] = g
            cls, type_, requires_grad, is_leaf, strides = grad
            self.put(f"{g} = {base}._grad")
            self.miss_if(f"type({g}) is not {self.constant(cls)}")
            self._type(g, type_)
            if not isinstance(type_, TensorType):
                self.miss_if(f"h != {base}._type.shape")
            self.miss_if(
                f"{g}.requires_grad is not {requires_grad} "
                f"or ({g}._node is None) is not {is_leaf} "
                f"or not has_layout({g}, {self.constant(strides)})"
            )

    # -- running -------------------------------------------------------------------------------
    def tensor(self, source: Source) -> str:
        """An expression for the tensor (or owner) at a source."""
        if isinstance(source, Arg):
            return f"a{source.index}"
        if isinstance(source, Grad):
            return self.grads[source.owner]
        assert isinstance(source, Captured)
        if source.item.step == "created":
            assert source.item.parent is not None
            return f"i{source.item.parent.number}[{self.constant(source.item.key)}]"
        return f"i{source.item.number}"

    def _array(self, i: int, source: Source) -> str:
        if isinstance(source, Constant):
            return self.constant(source.array)
        if isinstance(source, Captured):
            held = source.item.now
            self.namespace[f"s{i}"] = held._data if isinstance(held, Tensor) else held
            return f"s{i}"
        if isinstance(source, Number):
            return f"array({self._number(source.scalar)}, float64)"
        if isinstance(source, Seed):
            return f"array(signed({self.constant(source.generator)}._seed), int64)"
        if isinstance(source, Draw):
            return f"array({self.draws[source.generator]} + {source.offset}, int64)"
        return f"{self.tensor(source)}._data"

    def _number(self, scalar: HostScalar) -> str:
        if scalar.expr is None:
            return self._leaf_number(scalar)
        leaves = ", ".join(
            f"{self.constant(x.name)}: {self._leaf_number(x)}" for x in leaves_of(scalar)
        )
        return f"{self.constant(scalar)}.evaluate({{{leaves}}})"

    def _leaf_number(self, scalar: HostScalar) -> str:
        where, key = scalar.name
        if where == "size":
            return expression(key, self.size_names)
        if where == "arg":
            return f"a{key}"
        item = self.watch.number_item(scalar.name)
        assert item is not None and item.parent is not None
        name = f"n{item.number}"
        return name

    def _run(self) -> None:
        trace = self.trace
        self.put("# arrays")
        special = {name: value for name, value in trace.special.items() if name[0] != "arg"}
        for item in self.watch.items:
            if item.kind in ("lifted", "float"):
                assert item.parent is not None
                n = f"n{item.number}"
                held = f"{self._holder(item.parent)}[{self.constant(item.key)}]"
                self.put(f"{n} = {held if item.kind == 'lifted' else self._read(item)}")
                self.miss_if(f"type({n}) is not float")
                for name, wanted in special.items():
                    if self.watch.number_item(name) is item:
                        self._number_is(n, wanted)
        for found in trace.comparisons:
            texts = [self._number(x) if isinstance(x, HostScalar) else self.constant(x, named=True)
                     for x in (found.a, found.b)]  # fmt: skip
            self.miss_if(f"({texts[0]} {SIGNS[found.name]} {texts[1]}) is not {found.outcome}")
        self.numbers: dict[HostResult, str] = {}
        stored = [r for store in trace.stores for rs in store.results for r in rs]
        for result in [*trace.results, *stored]:
            if isinstance(result, HostResult):  # now, for it may raise
                name = self.numbers[result] = self._fresh()
                self.put(f"{name} = {self._number(result.scalar)}")
        written = set(self.spec._written)
        for i in written:
            source = trace.entries[i].source
            if not isinstance(source, Captured):
                self.miss_if(f"not {self.tensor(source)}._data.flags.writeable")
        places = [e.source for e in trace.entries]
        if written:
            self._aliasing(written, places)
        self.draws: dict[Any, str] = {}
        for generator, count in trace.draws.items():
            name = f"d{len(self.draws)}"
            self.draws[generator] = name
            self.put(f"{name} = {self.constant(generator)}.advance({count})")
        self.namespace["signed"] = signed
        arrays = [self._array(i, source) for i, source in enumerate(places)]
        dims = ", z" if self.sized else ""
        if self.trace.leaf is not None:
            self.put(f"x = [{', '.join(arrays)}]")
            back = [
                f"{self.constant(generator)}.give_back({name}, {trace.draws[generator]})"
                for generator, name in self.draws.items()
            ]
            if back:  # a leaf is compiled when it is first taken
                self.put("try:")
            self.put(f"r = run(x, seen{dims})", 2 if back else 1)
            if back:
                self.namespace["CompileError"] = CompileError
                self.put("except CompileError:")
                for line in [*back, "raise"]:
                    self.put(line, 2)
            self.put("if type(r) is Divergence:")
            for line in back:
                self.put(line, 2)
            self.put("return r.follow(args, kwargs, MISS)", 2)
        elif self.trace.pair is None:
            given = f"[{', '.join(arrays)}]"
            plain = f"r = run({given}{dims})"
            owners = self._replaced_grads()
            if owners:
                self.put(f"if lend is None: {plain}")
                self.put(f"else: r = lend({given}, ({', '.join(owners)},))")
            else:
                self.put(plain)
        else:
            self.put(f"x = [{', '.join(arrays)}]")
            self.put(f"r = run(x{dims})")

    def _replaced_grads(self) -> list[str]:
        """The owners of `.grad` slots that get a result whatever they hold (`replaced` has the
        results' numbers)."""
        if self.sized:
            return []
        read = {owner for owner, _, _ in self.trace.slots}
        owners: list[str] = []
        for owner, key, result in self.trace.rebinds:
            if key != "grad" or owner in read or not self._is_tensor(owner):
                continue
            if not isinstance(result, FreshResult) or result.chain:
                continue
            new = result.index not in self.replaced
            if new and nbytes(self._root_type(result.index)) >= LEAST:
                self.replaced.append(result.index)
                owners.append(self.tensor(owner))
        return owners

    def _number_is(self, x: str, wanted: Any) -> None:
        """A guard on a lifted number that Python looked at (see guards.admits)."""
        if type(wanted) is Truth:
            self.miss_if(f"{x} == 0.0" if wanted.nonzero else f"{x} != 0.0")
        else:
            k = self.constant(wanted)
            self.miss_if(f"{x} is not {k} and not same({x}, {k})")

    def _aliasing(self, written: set[int], places: Sequence[Source]) -> None:
        """Storages that are passed, not captured, must not overlap what is written, or be it; nor
        may what is written overlap NumPy arrays whose contents are guarded."""
        passed = [i for i, s in enumerate(places) if isinstance(s, (Arg, Grad))]
        if not passed:
            return
        held = {i for i, s in enumerate(places) if isinstance(s, Captured)}
        arrays = {i: self._array(i, places[i]) for i in {*passed, *held}}
        read = [f"i{item.number}" for item in self.watch.by_contents()]
        read += [f"a{i}" for i in self.guard.contents]
        if len(passed) > FEW:  # of what is captured it is known to hold
            mine = ", ".join(arrays.get(i) or self._array(i, places[i]) for i in sorted(written))
            rest = ", ".join([arrays[i] for i in sorted({*passed, *held} - written)] + read)
            self.miss_if(f"clash(({mine},), ({rest}{',' if rest else ''}))")
            return
        for i in passed:
            others = {*passed, *held} if i in written else written - held
            rest = ", ".join(
                [arrays[j] for j in sorted(others - {i})] + (read if i in written else [])
            )
            if rest:
                self.miss_if(f"overlap({arrays[i]}, ({rest},))")
            if i not in written and written & held:
                self.miss_if(f"touches({arrays[i]}, spans)")

    # -- effects and results -------------------------------------------------------------------
    def _effects(self) -> None:
        self.put("# effects")
        for entry in self.trace.entries:
            if not entry.writes or isinstance(entry.source, Constant) or is_array(entry.source):
                continue
            self.put(f"t = {self.tensor(entry.source)}._storage")
            self.put(f"t.version += {entry.writes}")
            if entry.hidden_writes:
                self.put(f"t.hidden += {entry.hidden_writes}")
        for item, key in self.watch.touched:
            self.put(f"i{item.number}[{self.constant(key)}]")
        self.roots: dict[int, str] = {}
        self.tensors: dict[int, str] = {}
        self.arrays: set[str] = set()
        self.used: set[int] = set()
        stored = [r for store in self.trace.stores for rs in store.results for r in rs]
        fresh = [r for r in [*self.trace.results, *stored] if isinstance(r, FreshResult)]
        self.taped = {r.index for r in fresh if r.slot != -1 or r.requires_grad}
        bound = [r for _, _, r in self.trace.rebinds if isinstance(r, FreshResult)]
        self.versions = {r.index: r.version for r in [*fresh, *bound]}
        self.orders = {r.index: r.order for r in [*fresh, *bound] if r.order is not None}
        if self.trace.pair is not None:
            self._pair(self.trace.pair)
        for owner, key, result in self.trace.rebinds:
            base = self.tensor(owner)
            value = "None" if result is None else self.result(result)
            if key == "requires_grad":
                self.put(f"{base}.requires_grad_({value})")
            elif key == "grad" and self._is_tensor(owner):
                self.put(f"{base}._grad = {value}")
            else:
                self.put(f"set_slot({base}, {self.constant(key)}, {value})")
        for owner, method in self.trace.later:
            self.put(f"{self.tensor(owner)}.{method}()")

    def _is_tensor(self, owner: Source) -> bool:
        if isinstance(owner, Arg):
            return self.guard.facts[owner.index] is not None
        return isinstance(owner, Captured) and isinstance(owner.item.now, Tensor)

    def result(self, result: Result) -> str:
        """An expression for a result."""
        if isinstance(result, ConstantResult):
            return self.constant(result.value)
        if isinstance(result, HostResult):
            return self.numbers[result]
        if isinstance(result, NumberResult):
            return f"r[{result.index}].item()"
        if isinstance(result, SizeResult):
            return expression(result.size, self.size_names)
        if isinstance(result, SameResult):
            return self.tensor(result.source)
        if isinstance(result, AliasResult):
            return self._alias(result)
        assert isinstance(result, FreshResult)
        name = self.tensors.get(result.number)
        if name is not None:
            return name
        root = self._root(result.index)
        if result.chain:
            base = f"{root}.detach()" if result.index in self.taped else root
            text = f"make_view({base}, {self._chain(result.chain)})"
            if not result.view:
                text += ".detach()"
        elif result.index in self.used:
            text = f"{root}.detach()"
        else:
            text = root
            self.used.add(result.index)
        if result.slot >= 0:
            text = f"attach({text}, c, {result.slot})"
        elif result.slot == SPENT:
            text = f"spent({text})"
        elif result.requires_grad:
            text = f"leaf({text})"
        name = self.tensors[result.number] = f"y{result.number}"
        self.put(f"{name} = {text}")
        return name

    def _alias(self, result: AliasResult) -> str:
        name = self.tensors.get(result.number)
        if name is not None:
            return name
        base = self._memory(result.source) if is_array(result.source) else None
        base, chain = base or self.tensor(result.source), self._chain(result.chain)
        name = self.tensors[result.number] = f"y{result.number}"
        self.put(f"{name} = make_alias({base}, {chain}, {result.requires_grad}, {result.tracked})")
        return name

    def _memory(self, source: Source) -> str:
        """The name of a new tensor on a NumPy array that the function did not make."""
        assert isinstance(source, Captured)
        name = f"m{source.item.number}"
        if name not in self.arrays:
            self.arrays.add(name)
            self.put(f"{name} = wrap_array(i{source.item.number})")
            writes = [e.writes for e in self.trace.entries if e.source == source]
            self.put(f"{name}._storage.version += {writes[0]}")
        return name

    def _root(self, index: int) -> str:
        """The name of the tensor on array `index` of the run."""
        root = self.roots.get(index)
        if root is None:
            root = self.roots[index] = f"t{index}"
            type_ = self._root_type(index)
            if is_static(type_.shape):
                text = self.constant(intern_type(type_))
            else:
                text = f"e[{index}]"
            array = f"r[{index}]"
            if index in self.orders:
                array = f"in_order({array}, {self.orders[index]})"
            self.put(f"{root} = wrap({array}, {text})")
            if self.versions.get(index):
                self.put(f"{root}._storage.version = {self.versions[index]}")
        return root

    def _pair(self, pair: Pair) -> None:
        """The tape node of the results: what gets gradients, and what is kept for them."""
        given = []
        for i, entry in enumerate(self.trace.entries):
            if i in self.spec._written:
                given.append(f"overwritten(x[{i}])")
                continue
            owner = "None"
            if isinstance(entry.source, (Arg, Captured, Grad)) and not is_array(entry.source):
                owner = self.tensor(entry.source)
            given.append(f"keep(x[{i}], {owner})")
        self.put(f"x = [{', '.join(given)}]")
        results = {r.index for r in self.trace.results if isinstance(r, FreshResult)}
        kept = []
        for kind, i in pair.kept:
            if kind == "input":
                kept.append(f"x[{i}]")
            else:
                owner = self._root(i) if i in results else "None"
                kept.append(f"keep(r[{i}], {owner})")
        tensors = ", ".join(self.tensor(source) for source in pair.sources)
        dims = ", z" if self.sized else ""
        self.put(
            f"c = CompiledNode({self.constant(pair)}, ({tensors},), [{', '.join(kept)}], x{dims})"
        )

    def _root_type(self, index: int) -> Any:
        return self.spec.result_types[index]

    def _return(self) -> None:
        text = self._built(self.trace.structure, iter(self.trace.results))
        self._stores()
        self.put("hits[0] += 1")
        self.put(f"return {text}")

    def _built(self, structure: Structure, results: Iterator[Result]) -> str:
        """An expression for a tree of results."""
        kind = structure.kind
        if kind is None:
            name = self._fresh()
            self.put(f"{name} = {self.result(next(results))}")
            return name
        parts = [self._built(c, results) for c in structure.children]
        if kind is tuple:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if kind is list:
            return f"[{', '.join(parts)}]"
        context = self.constant(structure.context)
        return f"rebuild({self.constant(kind)}, {context}, [{', '.join(parts)}])"

    def _stores(self) -> None:
        """What Python state gets. The stamp goes on with the epoch where this specialisation reads
        what it stores at each call."""
        made = []
        for store in self.trace.stores:
            values = [
                self._built(structure, iter(results))
                for structure, results in zip(store.structures, store.results, strict=True)
            ]
            made.append((store, values))
        if any(store.item.covered for store, _ in made):
            if not any(store.by_value for store, _ in made):
                self.put("if epoch[0] == stamp[0]: stamp[0] += 1")
            self.put("epoch[0] += 1")
        for store, values in made:
            item = store.item
            if store.appends:
                for value in values:
                    self.put(f"i{item.number}.append({value})")
            elif item.step == "class":
                assert item.parent is not None
                self.put(f"setattr(i{item.parent.number}, {self.constant(item.key)}, {values[0]})")
            else:
                self.put(f"{self._read(item)} = {values[0]}")
