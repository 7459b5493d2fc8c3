"""What a model's metadata says of its sizes: `jitgrad.conditions`, "n <= 64; 1 < (n // 2)".

Owns reading such a text and asking it of a call's sizes. The exporter writes it, from the guards of
the recording (compiler/symbolic.py): a graph is right only where they hold. Nothing in it is run as
code: comparisons of sums, products, quotients, remainders, max and min of ints and names are taken.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jitgrad.onnx.errors import OnnxLoadError

KEY = "jitgrad.conditions"
_MOST = 1 << 16  # characters of the text
_INFIX: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip
_CALLS: dict[str, Callable[[Any, Any], Any]] = {"max": max, "min": min}
Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """One comparison: its text, the names of sizes in it, and whether it holds for sizes."""

    text: str
    names: frozenset[str]
    holds: Callable[[Sizes], Any]


def read_conditions(text: str, shown: Collection[str]) -> list[Condition]:
    """The conditions of a text. shown: the names of the sizes that the model's inputs have.

    Raises OnnxLoadError for what is no such text, and for a size that no input shows, of which a
    call could not be asked.
    """
    if len(text) > _MOST:
        raise OnnxLoadError(f"[onnx.load] the metadata {KEY} has {len(text)} characters: altered")
    found = []
    for part in filter(None, map(str.strip, text.split(";"))):
        names: set[str] = set()
        try:
            (tree,) = ast.parse(part).body
            holds = _comparison(tree.value if isinstance(tree, ast.Expr) else tree, names)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise OnnxLoadError(
                f"[onnx.load] expected comparisons of sizes in the metadata {KEY}; got "
                f"{part[:200]!r}: altered"
            ) from None
        hidden = sorted(names - set(shown))
        if hidden:
            raise OnnxLoadError(
                f"[onnx.load] the model is right only where {part[:200]}, which its metadata {KEY} "
                f"says; none of its inputs has a size called {', '.join(hidden)}"
            )
        found.append(Condition(part, frozenset(names), holds))
    return found


def _comparison(tree: ast.AST, names: set[str]) -> Callable[[Sizes], Any]:
    """What computes whether a comparison holds for sizes, as `_function` does."""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        raise ValueError(type(tree).__name__)
    compare = _COMPARE.get(type(tree.ops[0]))
    if compare is None:
        raise ValueError(type(tree.ops[0]).__name__)
    left, right = _function(tree.left, names), _function(tree.comparators[0], names)
    return lambda sizes: compare(left(sizes), right(sizes))


def _function(tree: ast.AST, names: set[str]) -> Callable[[Sizes], Any]:
    """What computes an expression from sizes; `names` collects those that it asks for. Raises
    ValueError for what is none of these forms."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        number = tree.value
        return lambda sizes: number
    if isinstance(tree, ast.Name):
        name = tree.id
        names.add(name)
        return lambda sizes: sizes[name]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _function(tree.operand, names)
        return lambda sizes: -inner(sizes)
    run: Callable[[Any, Any], Any] | None = None
    operands: list[ast.expr] = []
    if isinstance(tree, ast.BinOp):
        run, operands = _INFIX.get(type(tree.op)), [tree.left, tree.right]
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        run, operands = _CALLS.get(tree.func.id), tree.args
    if run is None or len(operands) != 2:
        raise ValueError(type(tree).__name__)
    compute = run
    left, right = [_function(x, names) for x in operands]
    return lambda sizes: compute(left(sizes), right(sizes))


def check_conditions(conditions: list[Condition], sizes: Sizes) -> None:
    """Raises ValueError where sizes are not as the model's graph needs them. (Under @jit, where
    sizes may be symbolic, what is asked becomes a guard.)"""
    for c in conditions:
        if not c.names <= sizes.keys():
            continue  # an optional input is not there
        try:
            good = bool(c.holds(sizes))
        except ZeroDivisionError:
            good = False
        if not good:
            known = ", ".join(f"{n} = {sizes[n]}" for n in sorted(c.names))
            raise ValueError(f"[onnx] expected sizes with {c.text}; got {known}")
