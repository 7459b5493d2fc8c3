"""Which sizes of a call are symbolic: those that were declared, and those that have changed.

Owns `Dim` (a declared size), `mark_dynamic` and `History` (the sizes that a compiled function was
recorded with). Those of one recording are symbols.py; what code sees of them is sizes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jitgrad.compiler.symbolic import Sym
from jitgrad.hostscalar import HostScalar
from jitgrad.pytree import children_of
from jitgrad.symbols import MAX_INT, Place, Symbols
from jitgrad.tensor import Tensor


class _Hint:
    """A size without a name: Dim.AUTO, Dim.DYNAMIC, Dim.STATIC."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


class Dim:
    """A size that may differ from call to call: `jit(f, dynamic_shapes={"x": {0: Dim("batch")}})`.

    Sizes of one name are equal. min, max: calls with other sizes are recorded for themselves, as
    are those with sizes 0 and 1; what is exported refuses others. A min that is given (`has_min`)
    is one that native code must take, or it is not made. Dim.DYNAMIC is a Dim without a name,
    Dim.STATIC a size that stays fixed, Dim.AUTO what undeclared sizes are: symbolic once a second
    size was seen.

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
        self.has_min = min is not None
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


class History:
    """The sizes that a function was recorded with, and what was declared of them.

    dynamic: True (all sizes of arguments are symbolic), False (only declared ones are), None (those
    that have changed are). declared: by name of the argument, as `jit(dynamic_shapes=...)`.
    """

    def __init__(self, dynamic: bool | None, declared: Any) -> None:
        if declared is not None and not isinstance(declared, (Mapping, tuple, list)):
            raise TypeError(
                "[jit] expected dynamic_shapes as a dict by the names of arguments, or a tuple with"
                f" an entry for each; got {declared!r}; dynamic=True lets all sizes differ"
            )
        self.dynamic, self.declared = dynamic, declared
        self._seen: dict[Any, list[tuple[Any, ...]]] = {}
        self._met: dict[Any, int] = {}  # names of captured tensors and ints, in this recording

    def symbols(
        self, leaves: Sequence[Any], names: Sequence[str], replaceable: Iterable[int]
    ) -> Symbols:
        """The symbolic sizes of a call that is to be recorded. Ints are symbolic only among the
        `replaceable` leaves: the function sees all others as they are."""
        out = Symbols(self)
        self._met = {}
        specs = self._specs(leaves, names, [n.split("[")[0] for n in names])
        ints = {i for i in replaceable if type(leaves[i]) is int}
        for i, x in enumerate(leaves):
            if i in ints:
                self._int(out, i, x, names[i])
            elif isinstance(x, Tensor) and (x._data is None or x._data.flags.c_contiguous):
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
        """The size that an int of Python state is, or the lifted number that a float is; None where
        it is guarded by its value."""
        value = item.now
        name = (str(item.name), type(value).__name__)
        count = self._met[name] = self._met.get(name, 0) + 1
        seen = self._seen.setdefault((*name, count), [])
        seen.append((value,))
        if self.dynamic is False or len(set(seen)) == 1:
            return None
        if type(value) is float:
            return HostScalar(value, ("item", item), out.recorder)
        if not 2 <= value <= MAX_INT:
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
