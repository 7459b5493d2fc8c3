"""Algebraic rewrites as rows: pattern -> replacement, each keeping the bits of the result.

A pattern is text: `op(a, b)`, names stand for values, numbers for constants of that value (a
`full` node). A replacement is a name of the pattern, or a pattern of ops without attributes over
its names. The driver (simplify.py) applies a row only where the replacement has the very type of
what it replaces. Owns the rows and their matching.

Not here, since they would change bits or hide NaN: x + 0 (turns -0 into +0), x * 0, x - x, x / x,
exp(log(x)), reassociation.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from jitgrad.compiler.ir import Node, Value

Pattern = tuple[str, tuple["Pattern", ...]] | str | float  # op(args), a name, or a number

ROWS: list[tuple[str, str]] = [
    ("mul(x, 1)", "x"),
    ("mul(1, x)", "x"),
    ("div(x, 1)", "x"),
    ("sub(x, 0)", "x"),
    ("add(x, -0.0)", "x"),
    ("add(-0.0, x)", "x"),
    ("mul(x, -1)", "neg(x)"),
    ("mul(-1, x)", "neg(x)"),
    ("div(x, -1)", "neg(x)"),
    ("neg(neg(x))", "x"),
    ("abs(neg(x))", "abs(x)"),
    ("abs(abs(x))", "abs(x)"),
    ("add(x, neg(y))", "sub(x, y)"),
    ("sub(x, neg(y))", "add(x, y)"),
    ("relu(relu(x))", "relu(x)"),
    ("where(c, x, x)", "x"),
    ("logical_not(logical_not(b))", "b"),
    ("maximum(x, x)", "x"),
    ("minimum(x, x)", "x"),
]


@dataclass(frozen=True)
class Rule:
    """One row, parsed."""

    text: str
    pattern: Pattern
    replacement: Pattern


def _parse(text: str) -> Pattern:
    def convert(e: ast.expr) -> Pattern:
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name):
            return e.func.id, tuple(convert(a) for a in e.args)
        if isinstance(e, ast.Name):
            return e.id
        return float(ast.literal_eval(e))

    return convert(ast.parse(text, mode="eval").body)


def rules_by_op() -> dict[str, list[Rule]]:
    """The rows, by the op at the pattern's root."""
    table: dict[str, list[Rule]] = {}
    for left, right in ROWS:
        pattern = _parse(left)
        assert isinstance(pattern, tuple)
        table.setdefault(pattern[0], []).append(Rule(f"{left} -> {right}", pattern, _parse(right)))
    return table


def constant(v: Value) -> float | None:
    """The number that fills a value made by `full`; None for any other value."""
    if v.node is None or v.node.op.name != "full":
        return None
    value = dict(v.node.attrs).get("value")
    return value if isinstance(value, (int, float)) else None


def match(pattern: Pattern, v: Value, bound: dict[str, Value]) -> bool:
    """Whether v has the pattern's form; binds its names."""
    if isinstance(pattern, str):
        return bound.setdefault(pattern, v) is v
    if isinstance(pattern, float):
        c = constant(v)
        return c is not None and c == pattern and math.copysign(1, c) == math.copysign(1, pattern)
    node = v.node
    return node is not None and match_node(pattern, node, bound)


def match_node(pattern: Pattern, node: Node, bound: dict[str, Value]) -> bool:
    if not isinstance(pattern, tuple) or node.op.name != pattern[0]:
        return False
    if len(node.inputs) != len(pattern[1]) or len(node.outputs) != 1:
        return False
    return all(match(p, x, bound) for p, x in zip(pattern[1], node.inputs, strict=True))
