"""A generated program: lines of Python, and one run of them.

Owns the text form. The text is a plain Python module: set-up statements, `def f(...)`, and for
each call a block of statements that changes state and then an expression for the arguments.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jitgrad as jg
from fuzz.world import namespace

CALLS = 4


@dataclass
class Program:
    """setup: statements that make arguments and captured state. cells: names that f reaches by
    closure. body: statements of f. results: expressions. between: statements run before each call
    but the first (`k` is the call's number). backward: gradients of the results are taken outside.
    arguments: name -> expression, which may use k. calls: how many, where not CALLS.
    """

    setup: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    backward: bool = False
    calls: int = 0

    def text(self) -> str:
        """The program as a Python module that defines `f`, `between` and `arguments`."""
        names = ", ".join(self.arguments)
        out = [f"CALLS = {self.calls}"] if self.calls else []
        out += self.setup
        body = [f"{line}" for line in self.body]
        body.append(f"return [{', '.join(self.results)}]")
        out += ["", "", f"def make({', '.join(self.cells)}):", f"    def f({names}):"]
        out += [f"        {line}" for line in body]
        out += ["    return f", "", "", f"f = make({', '.join(self.cells)})", "", ""]
        out += ["def between(k):"] + [f"    {line}" for line in self.between or ["pass"]]
        values = "".join(x + ", " for x in self.arguments.values())
        out += ["", "", "def arguments(k):", f"    return ({values.rstrip()})"]
        return "\n".join(out) + "\n" + (AFTER if self.backward else "")


AFTER = """

def after(results, k):
    taped = [x for x in results if isinstance(x, jg.Tensor) and x.grad_fn is not None]
    if taped:
        sum((x.double() * (i + 1.5)).sum() for i, x in enumerate(taped)).backward()
"""

_numbers = iter(range(10**9))


def load(text: str) -> dict[str, Any]:
    """A fresh namespace in which the program's text has run."""
    name = f"<fuzz {next(_numbers)}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    scope = namespace()
    try:
        exec(compile(text, name, "exec"), scope)
    finally:
        linecache.cache.pop(name, None)
    return scope


@dataclass
class Step:
    """What one call gave: its results or the exception, all named state after it, and draws."""

    results: Any
    error: Exception | None
    state: dict[str, Any]
    draws: int


def run(text: str, wrap: Callable[[Any], Any] = lambda f: f, calls: int = CALLS) -> Iterator[Step]:
    """Runs a program from the start: yields after every call, before the next one."""
    jg.manual_seed(1234)
    scope = load(text)
    before = set(namespace())
    function = wrap(scope["f"])
    for k in range(max(calls, scope.get("CALLS", 0))):
        if k:
            scope["between"](k)
        args = scope["arguments"](k)
        error, results = None, None
        try:
            results = function(*args)
            if "after" in scope:
                scope["after"](results, k)
        except Exception as raised:
            error = raised
        state = {n: v for n, v in scope.items() if n not in before and not callable(v)}
        state.update({n: v for n, v in scope.items() if isinstance(v, jg.nn.Module)})
        state.update({f"argument {i}": v for i, v in enumerate(args)})
        yield Step(results, error, state, jg.default_generator.draws)
