"""Reads a graph from its text (see text.py). Builds and evaluates no Python: literals only."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from jitgrad.compiler.body import Body
from jitgrad.compiler.ir import Graph, Node, Rebind, Value, Write
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.symbolic import Dim, Guard, ShapeEnv, Sym, smax, smin
from jitgrad.compiler.text import GUARDS
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import BY_NAME


class ParseError(ValueError):
    """The text is no graph; says the line and what was expected there."""


_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<value>%\w+|%\?)|(?P<dtype>:[A-Za-z]\w*)'
    r"|(?P<number>-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf\b|nan\b))|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?P<mark>[(){}\[\],=:<>+*@-]))"
)
_KINDS = ("arg", "state", "scalar")


class _Line:
    """A cursor over the tokens of one line."""

    def __init__(self, text: str, number: int) -> None:
        self.number = number
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            m = _TOKEN.match(text, at)
            if m is None or m.lastgroup is None:
                raise self.error(f"a token at {text[at : at + 20]!r}")
            self.tokens.append((m.lastgroup, m.group(m.lastgroup)))
            at = m.end()
        self.at = 0

    def error(self, expected: str) -> ParseError:
        return ParseError(f"line {self.number}: expected {expected}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def next(self, kind: str = "", text: str = "") -> str:
        if self.at >= len(self.tokens):
            raise self.error(text or kind or "more")
        k, t = self.tokens[self.at]
        if (kind and k != kind) or (text and t != text):
            raise self.error(f"{text or kind}, got {t!r}")
        self.at += 1
        return t

    def end(self) -> None:
        if self.kind():
            raise self.error(f"the end of the line, got {self.peek()!r}")

    def take(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False


def parse(text: str) -> Graph:
    """Reads a graph. Raises ParseError (a ValueError) on malformed text, and infer's errors."""
    return _Parser([(n, s.strip()) for n, s in enumerate(text.splitlines(), 1) if s.strip()]).graph


def _closing(lines: list[tuple[int, str]], at: int) -> int:
    """Where the graph that begins in line `at` ends."""
    depth = 0
    for end in range(at, len(lines)):
        depth += bool(_HELD.fullmatch(lines[end][1])) - (lines[end][1] == "}")
        if depth == 0:
            return end
    raise ParseError(f"line {lines[at][0]}: expected '}}' at the end of the graph")


_HELD = re.compile(r"@(\d+) = (graph .*)")
"""The header of a graph that nodes hold."""


def parse_dim(text: str, dims: Mapping[str, Sym]) -> Dim:
    """A dim as Sym prints itself, over named dims. Raises ParseError."""
    parser = _Parser.__new__(_Parser)
    parser.dims = dict(dims)
    line = _Line(text, 1)
    d = parser._dim(line)
    line.end()
    return d


class _Parser:
    def __init__(
        self, lines: list[tuple[int, str]], around: Mapping[str, Sym] | None = None
    ) -> None:
        """around: the dims of the graph around this one, which nodes hold."""
        self.graph = Graph()
        self.values: dict[str, Value] = {}
        self.dims: dict[str, Sym] = dict(around or {})
        self.bodies: dict[str, Body] = {}
        if not lines or not lines[0][1].startswith("graph ") or lines[-1][1] != "}":
            raise ParseError("line 1: expected 'graph name(dims) {' ... '}'")
        self._header(_Line(lines[0][1], lines[0][0]))
        at = 1
        while at < len(lines) - 1:
            held = _HELD.fullmatch(lines[at][1])
            if held is None:
                self._statement(*lines[at])
                at += 1
                continue
            end = _closing(lines, at)
            inner = [(lines[at][0], held.group(2)), *lines[at + 1 : end + 1]]
            self.bodies[held.group(1)] = Body(_Parser(inner, self.dims).graph)
            at = end + 1

    def _header(self, line: _Line) -> None:
        line.next("name", "graph")
        self.graph.name = line.next("name")
        self.graph.env = ShapeEnv()
        line.next(text="(")
        while not line.take(")"):
            name = line.next("name")
            line.next(text="=")
            hint = int(line.next("number"))
            self.dims[name] = self.graph.env.dim(name, hint)
            line.take(",")
        line.next(text="{")
        line.end()

    def _statement(self, number: int, text: str) -> None:
        code, _, comment = _split_comment(text)
        line = _Line(code, number)
        word = line.peek()
        if word == "guard":
            self._guard(line)
        elif word == "return":
            line.next()
            while line.kind():
                self.graph.outputs.append(self._value(line))
                line.take(",")
        elif word == "write":
            line.next()
            target = self._value(line)
            at = [i for i, item in enumerate(self.graph.inputs) if item.value is target]
            if not at:
                raise line.error("a graph input after 'write'")
            line.next(text="=")
            self.graph.writes.append(Write(at[0], self._value(line)))
        elif word == "rebind":
            line.next()
            owner, key = _unquote(line.next("string")), _unquote(line.next("string"))
            line.next(text="=")
            value = None if line.take("None") else self._value(line)
            self.graph.rebinds.append(Rebind(owner, key, value))
        else:
            self._definition(line, comment)
        line.end()

    def _guard(self, line: _Line) -> None:
        line.next()
        kinds = {word: kind for kind, word in GUARDS.items()}
        kind = kinds.get(line.next("name"))
        if kind is None:
            raise line.error(f"one of {', '.join(kinds)} after 'guard'")
        sides = []
        for _ in range(2):
            line.next(text="<")
            sides.append(self._dim(line))
            line.next(text=">")
        outcome = line.next("name") == "True"
        self.graph.env.guards.append(Guard(kind, sides[0], sides[1], outcome, ""))

    def _definition(self, line: _Line, comment: str) -> None:
        left: list[tuple[str, TensorType]] = []
        while True:
            name = line.next("value")
            if name in self.values or name in [n for n, _ in left]:
                raise line.error(f"a name for a value that no other has, got {name}")
            left.append((name, self._type(line)))
            if not line.take(","):
                break
        line.next(text="=")
        word = line.next("name")
        if word in _KINDS and line.kind() == "string":
            value = self.graph.add_input(left[0][1], word, _unquote(line.next("string")))
            self.values[left[0][0]] = value
            return
        op = OPS.get(word)
        if op is None:
            raise line.error(f"the name of an op, got {word!r}")
        line.next(text="(")
        inputs = []
        while not line.take(")"):
            inputs.append(self._value(line))
            line.take(",")
        attrs: dict[str, Any] = {}
        if line.take("{"):
            while not line.take("}"):
                key = line.next("name")
                line.next(text="=")
                attrs[key] = self._attribute(line)
                line.take(",")
        node = Node(op, inputs, attrs, comment)
        odd = any(isinstance(d, bool) for v in node.outputs for d in v.type.shape)
        if odd or [t for _, t in left] != [v.type for v in node.outputs]:
            raise line.error(f"types {[str(v.type) for v in node.outputs]} as {word} infers them")
        self.graph.nodes.append(node)
        self.values.update({n: v for (n, _), v in zip(left, node.outputs, strict=True)})

    def _value(self, line: _Line) -> Value:
        name = line.next("value")
        if name not in self.values:
            raise line.error(f"a value defined above, got {name}")
        return self.values[name]

    def _type(self, line: _Line) -> TensorType:
        dtype = BY_NAME.get(line.next("dtype")[1:] if line.kind() == "dtype" else self._colon(line))
        if dtype is None:
            raise line.error("a dtype")
        line.next(text="[")
        shape: list[Dim] = []
        while not line.take("]"):
            shape.append(self._dim(line))
            line.take(",")
        device = "cpu"
        if line.take("@"):
            device = line.next("name")
            if line.kind() == "dtype":
                device += line.next("dtype")
        return TensorType(tuple(shape), dtype, device)

    def _colon(self, line: _Line) -> str:
        line.next(text=":")
        return line.next("name")

    def _dim(self, line: _Line) -> Dim:
        """A sum of products over dim names, as Sym prints itself."""
        total: Dim = self._product(line)
        while True:
            if line.take("+") or line.kind() == "number" and line.peek().startswith("-"):
                total = total + self._product(line)
            else:
                return total

    def _product(self, line: _Line) -> Dim:
        total = self._factor(line)
        while line.take("*"):
            total = total * self._factor(line)
        return total

    def _factor(self, line: _Line) -> Dim:
        if line.kind() == "number":
            return int(line.next())
        name = line.next("name")
        if name not in ("floordiv", "mod", "max", "min"):
            if name not in self.dims:
                raise line.error(f"a dim named in the header, got {name!r}")
            return self.dims[name]
        line.next(text="(")
        a = self._dim(line)
        line.next(text=",")
        b = self._dim(line)
        line.next(text=")")
        if name == "floordiv":
            return a // b
        if name == "mod":
            return a % b
        return smax(a, b) if name == "max" else smin(a, b)

    def _attribute(self, line: _Line) -> Any:
        kind, word = line.kind(), line.peek()
        if kind == "dtype":
            dtype = BY_NAME.get(line.next()[1:])
            if dtype is None:
                raise line.error("a dtype")
            return dtype
        if line.take("@"):
            number = line.next("number")
            if number not in self.bodies:
                raise line.error(f"the name of a graph above, got @{number}")
            return self.bodies[number]
        if line.take("<"):
            d = self._dim(line)
            line.next(text=">")
            return d
        if line.take("("):
            items = []
            while not line.take(")"):
                items.append(self._attribute(line))
                line.take(",")
            return tuple(items)
        line.next()
        if kind == "string":
            return _unquote(word)
        if kind == "number":
            if word.lstrip("-") in ("inf", "nan"):
                return float(word)
            return _literal(word)
        if word in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[word]
        if word in ("inf", "nan"):
            return math.inf if word == "inf" else math.nan
        raise line.error(f"an attribute's value, got {word!r}")


def _unquote(s: str) -> str:
    return str(_literal(s))


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except SyntaxError as error:  # 01, a bad escape
        raise ParseError(f"expected a number or a string, got {text[:60]}: {error.msg}") from None


def _split_comment(text: str) -> tuple[str, str, str]:
    """Cuts at the first '#' that is not inside a string."""
    quoted = escaped = False
    for i, c in enumerate(text):
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = quoted
        elif c == '"':
            quoted = not quoted
        elif c == "#" and not quoted:
            return text[:i], "#", text[i + 1 :].strip()
    return text, "", ""
