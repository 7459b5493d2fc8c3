"""Static arguments: `jit(f, static_argnums=..., static_argnames=...)`, as jax.jit has them.

A static argument is a Python value that the compiled code is made for: each value (by == and hash)
has a JitFunction of its own, in which the argument is fixed. Owns which arguments are static, and
the function that stands for all of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

from jitgrad.explain import Explanation, Stats
from jitgrad.jit_function import JitFunction
from jitgrad.runtime.errors import FallbackWarning
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

MAX_VALUES = 64
"""Combinations of static values whose code is kept; then the one used least recently is dropped."""


class StaticFunction:
    """A function under @jit some of whose arguments are static.

    Has the reports of a JitFunction, of all values together. Calls raise ValueError for a static
    argument that is a tensor or cannot be hashed.
    """

    is_jit_function = True

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Iterable[int] | None,
        static_argnames: str | Iterable[str] | None,
        options: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        self._options = options
        known = getattr(function, "__qualname__", type(function).__name__)
        self.name: str = options.get("name") or str(known)
        self._positions, self._names = _which(function, static_argnums, static_argnames)
        self._parts: dict[Any, JitFunction] = {}
        self._dropped = Stats()
        self._warned = False
        self._last: JitFunction | None = None

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        part, dynamic, keywords = self._part(args, kwargs)
        return part(*dynamic, **keywords)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As JitFunction.lower; static arguments are given as they are."""
        part, dynamic, keywords = self._part(args, kwargs)
        return part.lower(*dynamic, **keywords)

    def _part(self, args: Any, kwargs: Any) -> tuple[JitFunction, list[Any], dict[str, Any]]:
        fixed = {i % len(args): None for i in self._positions if -len(args) <= i < len(args)}
        values = {i: args[i] for i in fixed}
        named = {k: v for k, v in kwargs.items() if k in self._names}
        key = (
            len(args),
            tuple([(i, type(v), v) for i, v in sorted(values.items())]),
            tuple([(k, type(v), v) for k, v in sorted(named.items())]),
        )
        try:
            hash(key)
        except TypeError:
            self._refuse(values, named)
        part = self._parts.pop(key, None)
        if part is None:
            if any(isinstance(v, Tensor) for v in (*values.values(), *named.values())):
                self._refuse(values, named)
            part = self._make(values, named, len(args))
        self._parts[key] = self._last = part  # the last in order is the one used last
        dynamic = [x for i, x in enumerate(args) if i not in fixed]
        return part, dynamic, {k: v for k, v in kwargs.items() if k not in self._names}

    def _refuse(self, values: dict[int, Any], named: dict[str, Any]) -> None:
        for where, v in [*values.items(), *named.items()]:
            what = f"argument {where}" if isinstance(where, int) else repr(where)
            if isinstance(v, Tensor):
                raise ValueError(
                    f"[jit] expected static {what} of {self.name} to be a Python value; got a "
                    f"tensor {v._type}; tensors are inputs: do not name it as static"
                )
            try:
                hash(v)
            except TypeError:
                raise ValueError(
                    f"[jit] expected static {what} of {self.name} to be hashable, as code is kept "
                    f"for each value; got {type(v).__name__}: {v!r}; pass a tuple, a frozen "
                    "dataclass or a string, or do not name it as static"
                ) from None

    def _make(self, values: dict[int, Any], named: dict[str, Any], count: int) -> JitFunction:
        if len(self._parts) >= MAX_VALUES:
            oldest = next(iter(self._parts))
            self._dropped = self._dropped + self._parts.pop(oldest).stats
            if not self._warned and self._options.get("fallback") != "silent":
                self._warned = True
                warn(
                    f"[jit] {self.name} was called with more than {MAX_VALUES} values of its "
                    "static arguments; code for the oldest is dropped. Let what changes at each "
                    "call be no static argument (numbers in arithmetic are inputs: docs/jit.md)",
                    FallbackWarning,
                )
        function = self.__wrapped__

        def part(*args: Any, **kwargs: Any) -> Any:
            rest = iter(args)
            merged = [values[i] if i in values else next(rest) for i in range(count)]
            return function(*merged, **named, **kwargs)

        shown = [f"{v!r:.20}" for v in (*values.values(), *named.values())]
        return JitFunction(part, **{**self._options, "name": f"{self.name}[{', '.join(shown)}]"})

    # -- reports, of all values together -----------------------------------------------------------
    @property
    def specialisations(self) -> list[Any]:
        return [s for p in reversed(list(self._parts.values())) for s in p.specialisations]

    @property
    def eager(self) -> list[Any]:
        return [d for p in self._parts.values() for d in p.eager]

    @property
    def segmented(self) -> Any:
        return next((p.segmented for p in self._parts.values() if p.segmented is not None), None)

    @property
    def _refused(self) -> str:
        return next((p._refused for p in self._parts.values() if p._refused), "")

    @property
    def stats(self) -> Stats:
        total = self._dropped
        for part in self._parts.values():
            total = total + part.stats
        return total

    def explain(self) -> Explanation:
        return Explanation(self)

    def guards(self) -> str:
        return "\n".join(p.guards() for p in self._parts.values())

    def memory_plan(self) -> str:
        return self.explain().memory()

    def explain_last_miss(self) -> str:
        return self._last.explain_last_miss() if self._last is not None else ""

    def clear(self) -> None:
        self._parts = {}

    def __repr__(self) -> str:
        return f"<jit {self.name}: {len(self._parts)} values of its static arguments>"


def _which(
    function: Callable[..., Any],
    numbers: int | Iterable[int] | None,
    names: str | Iterable[str] | None,
) -> tuple[tuple[int, ...], frozenset[str]]:
    """Positions and names of the static arguments; each by the other where it has both."""
    positions = [numbers] if isinstance(numbers, int) else list(numbers or ())
    chosen = [names] if isinstance(names, str) else list(names or ())
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in positions):
        raise TypeError(f"[jit] expected static_argnums to be integers; got {numbers!r}")
    if not all(isinstance(n, str) for n in chosen):
        raise TypeError(f"[jit] expected static_argnames to be strings; got {names!r}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return tuple(positions), frozenset(chosen)
    known = [p.name for p in parameters]
    kinds = {p.kind for p in parameters}
    for name in chosen:
        if name not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ValueError(f"[jit] static_argnames has {name!r}; the parameters are {known}")
    places = [
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        for i in positions:
            if not -len(places) <= i < len(places):
                raise ValueError(
                    f"[jit] static_argnums has {i}; there are {len(places)} positional parameters"
                )
        positions = [i % len(places) for i in positions]
    found = set(positions) | {places.index(n) for n in chosen if n in places}
    by_name = {places[i] for i in positions if i < len(places)}
    return tuple(sorted(found)), frozenset(by_name | set(chosen))
