"""Draws programs.

Owns `Maker` (the live namespace that proposals run in, and what is picked from it), `generate` and
`varied` (the same program on other sizes). Draws come from a `random.Random`: a seeded one, or
hypothesis's, which shrinks.
"""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np

import jitgrad as jg
from fuzz import lines
from fuzz.compare import parts
from fuzz.program import Program
from fuzz.world import namespace
from jitgrad.compiler.ops.record import OPS

SHAPES: list[tuple[int, ...]] = [
    (), (1,), (5,), (3, 4), (4, 3), (3, 3), (2, 3, 4), (1, 4), (3, 1), (2, 1, 3), (0,), (0, 4),
    (1, 1), (17,), (2, 3), (3,), (4,),
]  # fmt: skip
LARGEST = 600
NAMES = ("a", "b", "c")


class Maker:
    """The namespace of a program while it is drawn, and the choices made in it."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.program = Program()
        self.live: dict[str, Any] = namespace()
        self.pool: list[str] = []
        self.leaves: list[str] = []
        self.made: list[str] = []
        self._held: list[str] = []
        self._known: dict[str, str] = {}
        self.branches = False

    # -- what lines ask ----------------------------------------------------------------------------
    def value(self, name: str) -> Any:
        return self.live[name]

    def shape(self) -> tuple[int, ...]:
        return self.r.choice(SHAPES)

    def _pick(self, names: list[str]) -> str:
        back = min(len(names) - 1, int(12 * self.r.random() ** 3))  # mostly recent ones
        return names[-1 - back] if self.r.random() < 0.8 else self.r.choice(names)

    def any(self) -> str:
        return self._pick(self.pool)

    def floating(self) -> str:
        names = [n for n in self.pool if self.live[n].dtype.is_floating_point]
        return self._pick(names or self.pool)

    def leaf(self) -> str:
        return self.r.choice(self.leaves)

    def beside(self, name: str) -> str:
        """A tensor whose shape broadcasts with this one's."""
        shape = self.live[name].shape
        fit = [n for n in self.pool if _broadcasts(self.live[n].shape, shape)]
        return self._pick(fit or [name])

    def like(self, name: str) -> str:
        """A tensor of this one's shape (and mostly dtype)."""
        x = self.live[name]
        fit = [n for n in self.pool if self.live[n].shape == x.shape]
        same = [n for n in fit if self.live[n].dtype is x.dtype]
        return self._pick(same or fit)

    def setup(self, expression: str) -> str:
        """The name of a value that is made before the function."""
        if expression in self._known:
            return self._known[expression]
        name = f"g{len(self._known)}"
        self.live[name] = eval(expression, self.live)
        self._known[expression] = name
        self._held.append(f"{name} = {expression}")
        return name

    # -- making the program ------------------------------------------------------------------------
    def start(self) -> None:
        """Arguments, captured tensors, parameters."""
        r, p = self.r, self.program
        self.add("M = Net(3)")
        for name in NAMES[: r.randint(1, 3)]:
            dtype = r.choice(lines.DTYPES) if r.random() < 0.6 else "float32"
            first = f"tensor({dtype!r}, {self.shape()}, {r.randrange(99)})"
            pick = r.random()
            if pick < 0.25 and self.pool:
                base = r.choice(self.pool)
                first = r.choice([f"{base}", f"{base}[1:]", f"{base}.t()", f"{base}.reshape(-1)"])
            elif pick < 0.4:
                first += r.choice([".t()", ".flip(0)", "[::2]"])
            elif pick < 0.55:
                first = first.replace(f"tensor({dtype!r}", f"parameter({r.choice(lines.FLOATS)!r}")
            if self.add(f"{name} = {first}"):
                self.pool.append(name)
                p.arguments[name] = name
        self._states()
        if not p.arguments:
            self.add("a = tensor('float32', (3, 4), 0)")
            self.pool.append("a")
            p.arguments["a"] = "a"
        p.arguments["s"] = r.choice(
            ["0.5", "0.5 + k * 0.25", "1.5 - k", "[0.5, 2.0, 0.5, -1.0][k % 4]"]
        )
        p.arguments["n"] = r.choice(["2", "3", "2 + k % 2"])
        self.live["s"], self.live["n"] = 0.5, 2
        for name in [n for n in p.arguments if n not in "sn"]:
            if r.random() < 0.2:
                fresh = self.live[name]
                text = f"tensor({fresh.dtype.name.rstrip('_')!r}, {tuple(fresh.shape)}, 50 + k)"
                p.arguments[name] = text if not fresh.requires_grad else name
        self._changes()

    def _states(self) -> None:
        r = self.r
        if self.add(f"w = parameter('float32', {r.choice([(3, 4), (4,), (3, 3), ()])}, 5)"):
            self.pool.append("w")
            self.leaves.append("w")
        if self.add(f"h = tensor({r.choice(lines.DTYPES)!r}, {self.shape()}, 6)"):
            self.pool.append("h")
        if r.random() < 0.3 and self.add(r.choice(["v = h[1:]", "v = h.t()", "v = h.reshape(-1)"])):
            self.pool.append("v")
        self.program.cells = [
            n for n in ("w", "h", "v", "M") if n in self.live and r.random() < 0.4
        ]
        for name in ("weight", "bias"):
            self.live[f"M.{name}"] = getattr(self.live["M"], name)
            self.leaves.append(f"M.{name}")
        self.pool.append("M.weight")
        self.live["M.count"] = self.live["M"].count
        self.pool.append("M.count")
        self.leaves += [n for n in self.pool if self.live[n].requires_grad and n not in self.leaves]

    def _changes(self) -> None:
        r = self.r
        for name in self.pool:
            x = self.live[name]
            if r.random() < 0.3 and "." not in name and not x.requires_grad:
                text = f"tensor({x.dtype.name.rstrip('_')!r}, {tuple(x.shape)}, 70 + k)"
                self.program.between.append(f"{name}.copy_({text})")
        if r.random() < 0.2:
            self.program.between.append("w.grad = None")
        if r.random() < 0.15:
            self.program.between.append("M.train(k % 2 == 0)")
        if r.random() < 0.1:
            self.program.between.append("M.scale = 0.5 + k")

    def add(self, statement: str) -> bool:
        """Runs and keeps a set-up statement, if it works."""
        try:
            exec(statement, self.live)
        except Exception:
            return False
        self.program.setup.append(statement)
        return True

    def body(self, text: str, moderate: bool = True) -> bool:
        """Runs and keeps a line of the function, if it works and gives moderate numbers."""
        if text.startswith("?"):
            kept = self.body(text[1:], moderate)
            self.branches = self.branches or kept
            return kept
        name = f"v{len(self.made)}"
        line = text[1:] if text.startswith("!") else f"{name} = {text}"
        self.program.setup += self._held
        self._held = []
        target = line.split(" ")[0]
        if target in self.live and "." in target:
            return False
        try:
            exec(line, self.live)
        except Exception:
            return False
        if text.startswith("!"):
            self.program.body.append(line)
            return True
        value = self.live[name]
        if not isinstance(value, jg.Tensor) or (moderate and not self._moderate(value)):
            return False
        self.made.append(name)
        self.pool.append(name)
        self.program.body.append(line)
        return True

    def _moderate(self, value: Any) -> bool:
        if value.numel() > LARGEST or value.ndim > 5:
            return False
        array = parts(value.detach().numpy()).astype(np.float64)
        usual = bool(np.all(np.abs(array) < 1e4))
        return usual or self.r.random() < 0.02

    def finish(self) -> Program:
        """Chooses results. Where Python looks at values, arguments change from call to call."""
        r = self.r
        if self.branches:
            self.program.calls = 7
            for name, text in self.program.arguments.items():
                x = self.live[name]
                if text == name and not x.requires_grad and r.random() < 0.7:
                    made = f"tensor({x.dtype.name.rstrip('_')!r}, {tuple(x.shape)}, 50 + k % 3)"
                    self.program.arguments[name] = made
        choice = self.made[-3:] + r.sample(self.made, min(len(self.made), r.randint(1, 4)))
        if r.random() < 0.3:
            choice.append(r.choice(self.pool))
        taped = r.random() < 0.5
        self.program.backward = taped
        for name in dict.fromkeys(choice):
            off = not taped and self.live[name].requires_grad and not self.live[name].is_leaf
            self.program.results.append(f"{name}.detach()" if off else name)
        if r.random() < 0.1:
            self.program.results.append(r.choice(["s", "n", "None", "'text'", "(s * 2, n)"]))
        return self.program


def _broadcasts(a: Any, b: Any) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b), strict=False))


_SAMPLES = {name: len(list(o.samples())) for name, o in OPS.items()}


def generate(r: random.Random, must: str | None = None, length: int | None = None) -> Program:
    """A program. must: the name of a record that it calls, on one of the record's samples."""
    maker = Maker(r)
    maker.start()
    kinds = [line for weight, line in lines.KINDS for _ in range(weight)]
    if r.random() < 0.35:
        kinds += [line for weight, line in lines.BRANCHES for _ in range(4 * weight)]
    target = length or r.randint(3, 14)
    place = r.randrange(target)
    tries = 0
    while len(maker.program.body) < target and tries < 6 * target:
        if must is not None and len(maker.program.body) >= place:
            maker.body(lines.record(maker, must, r.randrange(_SAMPLES[must])), moderate=False)
            must = None
        tries += 1
        maker.body(r.choice(kinds)(maker))
    if not maker.made:
        maker.body("jg.ones(2) * s")
    return maker.finish()


_PLAIN = re.compile(r"(\w+) = tensor\('(\w+)', (\([\d, ]+\)), \d+\)")


def varied(program: Program) -> Program:
    """The program with other first sizes of its plain arguments, and another n, in each call."""
    arguments = dict(program.arguments)
    for line in program.setup:
        found = _PLAIN.fullmatch(line)
        if found is not None and found[1] in arguments:
            shape = ast.literal_eval(found[3])
            rest = "".join(f", {d}" for d in shape[1:])
            size = f"{shape[0]} + (0, 1, 3, 0, 2, 5)[k % 6]"
            arguments[found[1]] = f"tensor({found[2]!r}, ({size}{rest},), 50 + k)"
    arguments["n"] = "2 + (0, 1, 3, 0, 2, 5)[k % 6]"
    kept = [x for x in program.between if ".copy_(" not in x]  # of one size
    return replace(program, arguments=arguments, between=kept, calls=7)
