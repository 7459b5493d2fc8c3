"""Which sizes of a call are symbolic: those that were declared, and those that have changed.

Owns `Dim` (a declared size), `mark_dynamic`, `History` (the sizes that a compiled function was
recorded with) and `Symbols` (the symbolic sizes of one recording: where each call finds them).
What code sees of them is sizes.py; what guards them, argument_guards.py and replay_code.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jitgrad.compiler.passes.fix_sizes import decided
from jitgrad.compiler.symbolic import Guard, ShapeEnv, Sym, evaluate
from jitgrad.compiler.types import TensorType
from jitgrad.facts import leaf_facts, tensor_facts
from jitgrad.pytree import children_of
from jitgrad.sizes import SymInt, is_size, type_of_data
from jitgrad.tensor import Tensor

MAX_INT = 2**31 - 1
"""Larger int arguments are recorded for themselves."""


class _Hint:
    """A size without a name: Dim.AUTO, Dim.DYNAMIC, Dim.STATIC."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


class Dim:
    """A size that may differ from call to call: `jit(f, dynamic_shapes={"x": {0: Dim("batch")}})`.

    Sizes of one name are equal. min, max: calls with other sizes are recorded for themselves, as
    are those with sizes 0 and 1. Dim.DYNAMIC is a Dim without a name, Dim.STATIC a size that stays
    fixed, Dim.AUTO what undeclared sizes are: symbolic once a second size was seen.

    Raises ValueError for a name that is no identifier, or a range that holds no size.
    """

    AUTO = _Hint("AUTO")
    DYNAMIC = _Hint("DYNAMIC")
    STATIC = _Hint("STATIC")

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"[Dim] expected a name that is an identifier; got {name!r}")
        self.__name__ = name
        self.min = 0 if min is None else min
        self.max = max
        if self.min < 0 or (max is not None and max < self.min):
            raise ValueError(f"[Dim] expected 0 <= min <= max; got min {min}, max {max}")

    def __repr__(self) -> str:
        return f"Dim({self.__name__!r}, min={self.min}, max={self.max})"


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """A Dim for each name."""
    return tuple(Dim(name, min=min, max=max) for name in names)


def mark_dynamic(
    t: Tensor, index: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Makes dim `index` of a tensor symbolic in functions that are recorded with it as an argument
    (torch._dynamo.mark_dynamic). Raises IndexError for a dim that it does not have."""
    for k in index if isinstance(index, (list, tuple)) else (index,):
        if not -t.ndim <= k < t.ndim:
            raise IndexError(f"[mark_dynamic] expected a dim of {t._type}; got {k}")
        marks = t.__dict__.setdefault("_dynamic_dims", {})
        marks[k % t.ndim] = (min, max)


def mark_static(t: Tensor, index: int | Sequence[int] | None = None) -> None:
    """Keeps dim `index` of a tensor (None: all) fixed (torch._dynamo.mark_static)."""
    every = range(t.ndim) if index is None else index
    for k in every if isinstance(every, (list, tuple, range)) else (every,):
        t.__dict__.setdefault("_dynamic_dims", {})[k % t.ndim] = None


@dataclass(frozen=True)
class Place:
    """Where a call shows a size: dim `axis` of argument `index`, or that argument, an int; or of
    the tensor that an item of Python state (guards.Item) holds."""

    index: int
    axis: int | None
    name: str
    item: Any = None

    def text(self) -> str:
        return self.name if self.axis is None else f"{self.name}.shape[{self.axis}]"


class Pattern:
    """A tensor's type in guards, some sizes any. Equal to the types that it admits."""

    def __init__(self, type: TensorType, free: Iterable[int], names: Sequence[Any]) -> None:
        self.type, self.free, self.names = type, frozenset(free), tuple(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Pattern):
            return (self.type, self.free) == (other.type, other.free)
        if not isinstance(other, TensorType):
            return NotImplemented
        mine, its = self.type, other
        return (
            mine.dtype is its.dtype
            and mine.device == its.device
            and len(mine.shape) == len(its.shape)
            and all(
                k in self.free or a == b
                for k, (a, b) in enumerate(zip(mine.shape, its.shape, strict=True))
            )
        )

    def __hash__(self) -> int:
        return hash((self.type.dtype, len(self.type.shape)))

    def __str__(self) -> str:
        return f"{self.type.dtype.name}[{', '.join(map(str, self.names))}]"

    __repr__ = __str__


class Symbols:
    """The symbolic sizes of one recording.

    Attributes:
        env: their hints and guards.
        shapes: by argument, its shape in SymInts and ints. numbers: by argument, an int's SymInt.
        places: where each call finds the sizes, by name, in the order of the env; all others that
            must equal the first.
        declared: names of dims that must not be fixed.
    """

    def __init__(self, history: History | None = None) -> None:
        self.env = ShapeEnv()
        self.history = history
        self.shapes: dict[int, tuple[Any, ...]] = {}
        self.numbers: dict[int, SymInt] = {}
        self.places: dict[str, list[Place]] = {}
        self.declared: set[str] = set()
        self._known: dict[Any, SymInt] = {}
        self._lent: list[tuple[Any, TensorType]] = []
        self._ints: list[tuple[Any, Any]] = []  # items that hold sizes in the place of ints
        self.lost: list[str] = []  # those in whose place something else was found

    def __bool__(self) -> bool:
        return bool(self.places)

    def symbol(self, key: Any, value: int, place: Place, low: int, high: int | None) -> Any:
        """The SymInt of a size, the same for equal keys."""
        known = self._known.get((key, value))
        if known is None and isinstance(key, str) and key in self.places:
            other = self.places[key][0].text()
            raise ValueError(
                f"[jit] expected the sizes of Dim {key!r} to be equal; {other} is "
                f"{self.env.hints[key]}, {place.text()} is {value}"
            )
        if known is None:
            name = key if isinstance(key, str) else f"s{len(self.places)}"
            while name in self.places:
                name += "_"
            known = SymInt(self.env.dim(name, value).terms, self.env)
            self._known[key, value] = known
            self.places[name] = []
            self.env.low[name] = max(2, low)
        name = str(next(iter(known.terms))[0])
        if high is not None:
            self.env.high[name] = min(high, self.env.high.get(name, high))
        self.env.low[name] = max(low, self.env.low[name])
        self.places[name].append(place)
        return known

    def lend(self, leaves: Sequence[Any]) -> None:
        """Tensors among the arguments show symbolic shapes from here on, until `settle`."""
        for i, shape in self.shapes.items():
            self._lend(leaves[i], shape)

    def _lend(self, x: Tensor, shape: tuple[Any, ...]) -> None:
        old = x._type
        new = TensorType(shape, old.dtype, old.device)
        self._lent.append((x, old))
        x._type = new
        if x._storage.type is old:
            self._lent.append((x._storage, old))
            x._storage.type = new

    def lend_grad(self, owner: Tensor, grad: Tensor) -> bool:
        """The gradient of a tensor with a symbolic shape shows that shape, too."""
        if grad._type.shape is owner._type.shape or not _is_symbolic(owner._type):
            return False
        if grad._data is None or grad._data.shape != owner._data.shape or _is_symbolic(grad._type):
            return False
        self._lend(grad, tuple(owner._type.shape))
        return True

    def captured(self, item: Any) -> Any:
        """What guards require of a captured tensor, which shows a symbolic shape from here on where
        sizes have changed."""
        x = item.now
        facts = tensor_facts(x)
        shape = x._type.shape
        if not _is_symbolic(x._type):
            known = self.history.captured(self, item) if self.history is not None else None
            if known is None:
                return facts
            self._lend(x, known)
            shape = known
        else:  # an argument, or captured at another place, too
            for k, d in enumerate(shape):
                if isinstance(d, Sym):
                    name = str(next(iter(d.terms))[0])
                    self.places[name].append(Place(-1, k, str(item.name), item))
        return (facts[0], _pattern(type_of_data(facts[1]), shape), *facts[2:])

    def lend_int(self, item: Any) -> bool:
        """Puts a size in the place of an int that code reads from Python state, until `take_back`,
        where it has changed; says whether it did."""
        size = self.history.number(self, item) if self.history is not None else None
        if size is not None:
            item.write(size)
            self._ints.append((item, size))
        return size is not None

    def take_back_ints(self) -> None:
        """Ints stand where they stood; a size that code has put there is the int that it is."""
        for item, size in self._ints:
            found = item.read(item.parent.now)
            if is_size(found):
                item.write(item.now if found.hint == item.now else found.hint)
            elif self.env.known("==", size, item.now) is not True:
                self.lost.append(str(item.name))
        self._ints = []

    def fix_ints(self) -> None:
        """Puts ints back where sizes stand for them, and guards their values."""
        for _, size in self._ints:
            size.__index__()
        self.take_back_ints()

    def fix(self) -> None:
        """Fixes all sizes: code asks what depends on them in no way that is followed."""
        for symbol in self._known.values():
            symbol.__index__()

    def take_back(self) -> None:
        """Arguments show their own types again; sizes that code has kept are ints from here on."""
        self.take_back_ints()
        for holder, old in reversed(self._lent):
            if isinstance(holder, Tensor):
                holder._type = old
            else:
                holder.type = old
        self._lent = []
        self.env.live = False

    # -- what guards ask ---------------------------------------------------------------------------
    def pattern(self, i: int, type: TensorType) -> Any:
        """The type that argument i must have."""
        shape = self.shapes.get(i)
        return type if shape is None else _pattern(type, shape)

    def facts(self, grad: Tensor | None) -> Any:
        """What guards require of a gradient: of one whose owner's shape is symbolic, that shape."""
        found = leaf_facts(grad)
        if grad is None or found is None or not _is_symbolic(grad._type):
            return found
        cls, type_, *rest = found
        return (cls, _pattern(type_of_data(type_), type_.shape), *rest)

    def values(self, leaves: Sequence[Any]) -> dict[str, int] | str:
        """The sizes of a call, by name; or which two differ that must be equal."""
        found: dict[str, int] = {}
        for name, places in self.places.items():
            for place in places:
                x = leaves[place.index] if place.item is None else place.item.now
                if place.axis is None and place.item is not None:
                    x = place.item.read(place.item.parent.now)
                    if type(x) is not int:
                        return f"{place.name}: an int -> {x!r}"
                value = x if place.axis is None else x._type.shape[place.axis]
                if found.setdefault(name, value) != value:
                    first = places[0].text()
                    return f"{first} == {place.text()}: {found[name]} and {value}"
        return found

    def broken(self, leaves: Sequence[Any]) -> str:
        """Which guard on sizes the arguments of a call break; "" for none."""
        values = self.values(leaves)
        return values if isinstance(values, str) else self.broken_by(values)

    def broken_by(self, values: Mapping[str, int]) -> str:
        """Which guard on sizes these break; "" for none."""
        for name, value in values.items():
            low, high = self.env.low.get(name, 2), self.env.high.get(name)
            if value < low or (high is not None and value > high):
                return f"{self.range_text(name)}: it is {value}"
        for g in self.env.guards:
            if not g.holds(values):
                now = ", ".join(f"{self.title(n)} = {v}" for n, v in values.items())
                return f"{self.guard_text(g)}: {now}"
        return ""

    def title(self, name: str) -> str:
        """How users know a size: "x.shape[0]"."""
        return self.places[name][0].text()

    def range_text(self, name: str) -> str:
        high = self.env.high.get(name)
        upper = "" if high in (None, MAX_INT) else f" <= {high}"
        return f"{self.env.low.get(name, 2)} <= {self.title(name)}{upper}"

    def guard_text(self, g: Guard) -> str:
        names = {name: self.title(name) for name in self.places}
        return g.expression(names) + (f" (at {g.line})" if g.line else "")

    def signature(self) -> tuple[Any, ...]:
        """Equal for recordings whose sizes are the same, by name, place, range and what guards
        decide of them."""
        places = [(n, *(p.text() for p in found)) for n, found in self.places.items()]
        ranges = [(self.env.low.get(n), self.env.high.get(n)) for n in self.places]
        known = sorted((n, str(d)) for n, d in decided(self.env).items())
        return (*places, *ranges, *known)

    def texts(self) -> list[str]:
        """All guards on sizes, for people."""
        out = []
        for name, places in self.places.items():
            out.append(self.range_text(name))
            out += [f"{places[0].text()} == {p.text()}" for p in places[1:]]
        return out + [self.guard_text(g) for g in self.env.guards]

    def fixed(self) -> str:
        """Which declared size code has fixed, with the line; "" for none."""
        for g in self.env.guards:
            if g.kind != "==" or not g.outcome:
                continue
            for d, value in ((g.a, g.b), (g.b, g.a)):
                names = d.names() if isinstance(d, Sym) else set()
                if isinstance(value, int) and len(names) == 1 and names <= self.declared:
                    (name,) = names
                    known = evaluate(d, self.env.hints)
                    return (
                        f"{self.title(name)} ({name}) was declared to be dynamic, but code fixes "
                        f"it: {self.guard_text(g)}; it was {known} here. Use it in arithmetic on "
                        "tensors and sizes only, or declare it Dim.STATIC or Dim.AUTO"
                    )
        return ""


def _pattern(type: TensorType, shape: Sequence[Any]) -> Pattern:
    free = [k for k, d in enumerate(shape) if isinstance(d, Sym)]
    names = [next(iter(d.terms))[0] if isinstance(d, Sym) else d for d in shape]
    return Pattern(type, free, names)


def _is_symbolic(t: TensorType) -> bool:
    return any(isinstance(d, Sym) for d in t.shape)


class History:
    """The sizes that a function was recorded with, and what was declared of them.

    dynamic: True (all sizes of arguments are symbolic), False (only declared ones are), None (those
    that have changed are). declared: by name of the argument, as `jit(dynamic_shapes=...)`.
    """

    def __init__(self, dynamic: bool | None, declared: Any) -> None:
        self.dynamic, self.declared = dynamic, declared
        self._seen: dict[Any, list[tuple[Any, ...]]] = {}
        self._met: dict[Any, int] = {}  # names of captured tensors and ints, in this recording

    def symbols(self, leaves: Sequence[Any], names: Sequence[str]) -> Symbols:
        """The symbolic sizes of a call that is to be recorded."""
        out = Symbols(self)
        self._met = {}
        specs = self._specs(leaves, names, [n.split("[")[0] for n in names])
        for i, x in enumerate(leaves):
            if type(x) is int:
                self._int(out, i, x, names[i])
            elif isinstance(x, Tensor) and x._data is not None and x._data.flags.c_contiguous:
                self._tensor(out, i, x, names[i], specs.get(names[i]))
        return out

    def _int(self, out: Symbols, i: int, x: int, name: str) -> None:
        seen = self._seen.setdefault((name, "int"), [])
        seen.append((x,))
        changed = len(set(seen)) > 1 and self.dynamic is not False
        if 2 <= x <= MAX_INT and (changed or self.dynamic):
            place = Place(i, None, name)
            out.numbers[i] = out.symbol(("int", *seen), x, place, 2, MAX_INT)

    def _tensor(self, out: Symbols, i: int, x: Tensor, name: str, spec: Any) -> None:
        shape: tuple[Any, ...] = tuple(x._type.shape)
        if any(isinstance(d, Sym) for d in shape):
            return
        seen = self._seen.setdefault((name, len(shape)), [])
        seen.append(shape)
        marks = x.__dict__.get("_dynamic_dims", {})
        dims_: list[Any] = []
        for k, d in enumerate(shape):
            history = tuple(s[k] for s in seen)
            wanted: Any = (spec or {}).get(k, Dim.AUTO)
            low, high = 2, None
            if k in marks and wanted is Dim.AUTO:
                wanted = Dim.STATIC if marks[k] is None else Dim.DYNAMIC
                if marks[k] is not None:
                    low, high = marks[k][0] or 2, marks[k][1]
            key: Any = ("size", *history)
            if isinstance(wanted, Dim):
                key, low, high = wanted.__name__, wanted.min, wanted.max
            elif wanted is Dim.AUTO and (
                self.dynamic is False or not (self.dynamic or len(set(history)) > 1)
            ):
                wanted = Dim.STATIC
            low = max(low, 2)
            if wanted is Dim.STATIC or d < low or (high is not None and d > high):
                dims_.append(d)
                continue
            symbol = out.symbol(key, d, Place(i, k, name), low, high)
            if wanted is not Dim.AUTO:
                out.declared.add(next(iter(symbol.terms))[0])
            dims_.append(symbol)
        if any(isinstance(d, Sym) for d in dims_):
            out.shapes[i] = tuple(dims_)

    def captured(self, out: Symbols, item: Any) -> tuple[Any, ...] | None:
        """The shape that a captured tensor shows; None where it is fixed. (Parameters do not
        change their sizes.)"""
        x = item.now
        if type(x) is not Tensor or x._data is None or not x._data.flags.c_contiguous:
            return None
        name = str(item.name)
        count = self._met[name] = self._met.get(name, 0) + 1
        shape: tuple[Any, ...] = tuple(x._type.shape)
        seen = self._seen.setdefault((name, len(shape), count), [])
        seen.append(shape)
        if self.dynamic is False or len(set(seen)) == 1:
            return None
        found = []
        for k, d in enumerate(shape):
            history = tuple(s[k] for s in seen)
            if len(set(history)) > 1 and d >= 2:
                d = out.symbol(("size", *history), d, Place(-1, k, name, item), 2, None)
            found.append(d)
        return tuple(found) if any(isinstance(d, Sym) for d in found) else None

    def number(self, out: Symbols, item: Any) -> Any:
        """The size that an int of Python state is; None where it is guarded by its value."""
        name, value = (str(item.name), "int"), item.now
        count = self._met[name] = self._met.get(name, 0) + 1
        seen = self._seen.setdefault((*name, count), [])
        seen.append((value,))
        if self.dynamic is False or len(set(seen)) == 1 or not 2 <= value <= MAX_INT:
            return None
        return out.symbol(("int", *seen), value, Place(-1, None, name[0], item), 2, MAX_INT)

    def _specs(
        self, leaves: Sequence[Any], names: Sequence[str], roots: Sequence[str]
    ) -> dict[str, dict[int, Any]]:
        """What is declared, by the name of the leaf."""
        if self.declared is None:
            return {}
        found: dict[str, dict[int, Any]] = {}
        declared = self.declared
        if not isinstance(declared, Mapping):
            order = list(dict.fromkeys(roots))
            declared = dict(zip(order, declared, strict=False))
        unknown = [name for name in declared if name not in roots]
        if unknown:
            raise ValueError(
                "[jit] expected dynamic_shapes to name arguments "
                f"({', '.join(dict.fromkeys(roots))}); got {unknown}"
            )
        shapes = {n: x for n, x in zip(names, leaves, strict=True) if isinstance(x, Tensor)}
        for root, spec in declared.items():
            for name, what in _flat(root, spec):
                if name not in shapes:
                    raise ValueError(
                        f"[jit] dynamic_shapes speaks of {name}, which is no tensor in this call"
                    )
                rank = shapes[name].ndim
                if any(not -rank <= k < rank for k in what):
                    raise ValueError(
                        f"[jit] expected dims of {name}: {shapes[name]._type}; got {sorted(what)}"
                    )
                found[name] = {k % rank: d for k, d in what.items()}
        return found


def _flat(name: str, spec: Any) -> Iterable[tuple[str, dict[int, Any]]]:
    """(name of a tensor, {dim: what it is}) for all that a specification speaks of."""
    if spec is None:
        return
    if isinstance(spec, dict) and all(isinstance(k, int) for k in spec):
        if all(_is_spec(d) for d in spec.values()):
            yield name, {k: _spec(d) for k, d in spec.items()}
            return
    elif isinstance(spec, (tuple, list)) and spec and all(map(_is_spec, spec)):
        yield name, {k: _spec(d) for k, d in enumerate(spec)}
        return
    found = children_of(spec)
    if found is None:
        raise TypeError(
            f"[jit] expected dynamic_shapes of {name} as a dict of dims, a tuple with an entry for "
            f"each dim, or a structure of such; got {spec!r}"
        )
    children, context = found
    keys = range(len(children)) if context is None else context
    for key, child in zip(keys, children, strict=False):
        yield from _flat(f"{name}[{key!r}]", child)


def _is_spec(d: Any) -> bool:
    return d is None or isinstance(d, (Dim, _Hint, int))


def _spec(d: Any) -> Any:
    """None leaves a dim to be found out; an int fixes it (torch.export)."""
    return Dim.AUTO if d is None else Dim.STATIC if isinstance(d, int) else d


__all__ = ["Dim", "dims", "mark_dynamic", "mark_static"]
