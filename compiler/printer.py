"""The loop program, kernels and the memory plan as text for people (JITGRAD_DUMP, explain).

Expressions print as a list of named steps where they are shared, so the text is linear in the
number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    SpecialKernel,
)
from jitgrad.compiler.loops import (
    Array,
    Call,
    Contraction,
    Expr,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    definition_exprs,
    postorder,
)
from jitgrad.compiler.lower import Program
from jitgrad.compiler.passes.memory import Plan

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
          "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
          "shl": "<<", "shr": ">>"}  # fmt: skip


class _Expressions:
    """Prints the expressions of one body; shared work gets a name and a line."""

    def __init__(self, roots: Iterable[Expr]) -> None:
        self.lines: list[str] = []
        self.text: dict[Expr, str] = {}
        roots = list(roots)
        uses: dict[Expr, int] = {}
        for e in postorder(roots):
            for a in e.args:
                uses[a] = uses.get(a, 0) + 1
        for e in postorder(roots):
            text = self._one(e)
            shared = uses.get(e, 0) > 1 and e.op not in ("const", "axis", "size", "load")
            if shared or len(text) > 80:
                name = f"v{len(self.lines)}"
                self.lines.append(f"{name} = {text}")
                text = name
            self.text[e] = text

    def _one(self, e: Expr) -> str:
        args = [self.text[a] for a in e.args]
        if e.op == "const":
            return repr(e.attr)
        if e.op == "axis":
            return f"i{e.attr}"
        if e.op == "size":
            return str(e.attr)
        if e.op == "load":
            return f"{e.attr.name}[{', '.join(args)}]"
        if e.op in ("cast", "bitcast"):
            return f"{'bits_' if e.op == 'bitcast' else ''}{e.dtype.name}({args[0]})"
        if e.op in _INFIX:
            return f"({args[0]} {_INFIX[e.op]} {args[1]})"
        return f"{e.op}({', '.join(args)})"


def _shape(a: Array) -> str:
    return f"{a.dtype.name}[{', '.join(map(str, a.shape))}]"


def program_text(program: Program) -> str:
    """Every definition of a lowered graph."""
    out = []
    for a in program.arrays:
        roots = definition_exprs(a)
        printed = _Expressions(roots)
        out.append(f"{a.name}: {_shape(a)} = {_definition(a, [printed.text[r] for r in roots])}"
                   + (f"  # {a.line}" if a.line else ""))  # fmt: skip
        out += [f"    where {line}" for line in printed.lines]
    out.append("results " + ", ".join(a.name for a in program.results))
    if program.checks:
        out.append("checks " + ", ".join(a.name for a in program.checks))
    return "\n".join(out)


def _definition(a: Array, texts: list[str]) -> str:
    d = a.define
    if isinstance(d, Pointwise):
        return texts[0]
    if isinstance(d, Reduction):
        return f"{d.combine} over {list(d.extents)} ({d.order}) of {texts[0]}"
    if isinstance(d, Contraction):
        how = " by Winograd" if d.winograd else ""
        return f"contraction{how} over {list(d.k)} m={d.m} n={d.n} of {texts[0]} * {texts[1]}"
    if isinstance(d, Scan):
        factor = f" with factor {texts[1]}" if len(texts) > 1 else ""
        return f"scan {d.combine} along {d.along} of {texts[0]}{factor}"
    if isinstance(d, Scatter):
        index = ", ".join(texts[1:-1])
        return (
            f"scatter {d.combine} into {texts[0]} over {list(d.extents)}: [{index}] <- {texts[-1]}"
        )
    if isinstance(d, Call):
        return f"call {d.node.op.name}({', '.join(texts)}), output {d.part}"
    assert isinstance(d, Sort)
    return f"sort {d.extent} along {d.along} of {texts[0]}, output {d.part}"


def kernel_text(kernel: Kernel) -> str:
    """One kernel: its loops, what it computes, what it stores."""
    head = f"{kernel.name}"
    where = f"  # {', '.join(kernel.lines[:3])}" if kernel.lines else ""
    out: list[str] = []
    if isinstance(kernel, ChainKernel):
        tiles = ", ".join(map(str, kernel.tiles))
        out.append(f"chain {head}: parallel for each of {tiles}{where}")
        for a in kernel.locals:
            out.append(f"  local {a.name}: {_shape(a)}, one part at a time")
        for k in kernel.kernels:
            out += ["  " + line for line in kernel_text(k).splitlines()]
    elif isinstance(kernel, LoopKernel):
        axes = ", ".join(f"i{k}<{d}" for k, d in enumerate(kernel.outer))
        out.append(f"kernel {head}: parallel for {axes or 'one point'}{where}")
        for a in kernel.locals:
            out.append(f"  local {a.name}: {_shape(a)}")
        for s in kernel.stages:
            indent = "  "
            if s.inner:
                p = len(kernel.outer)
                axes = ", ".join(f"i{p + k}<{d}" for k, d in enumerate(s.inner))
                out.append(f"  for {axes}")
                indent = "    "
            roots = [e for t in s.stores for e in (*t.index, t.value)]
            printed = _Expressions([*roots, *(r.value for r in s.reduces)])
            out += [indent + line for line in printed.lines]
            for r in s.reduces:
                out.append(f"{indent}{r.array.name} = {r.combine} of {printed.text[r.value]}")
            for t in s.stores:
                over = f"  # {t.combine} over the outer points" if t.combine else ""
                out.append(indent + _store(t.array, t.index, t.value, printed) + over)
    elif isinstance(kernel, ContractionKernel):
        c = kernel.contraction
        roots = [c.a, c.b, *(e for s in kernel.stores for e in (*s.index, s.value))]
        printed = _Expressions(roots)
        out.append(
            f"contraction {head}: {_shape(kernel.array)}, batch {c.batch} m {c.m} n {c.n} "
            f"k {list(c.k)}{' by Winograd' if c.winograd else ''}{where}"
        )
        out += ["  " + line for line in printed.lines]
        out.append(f"  {kernel.array.name} = sum of {printed.text[c.a]} * {printed.text[c.b]}")
        out += ["  " + _store(s.array, s.index, s.value, printed) for s in kernel.stores]
    else:
        assert isinstance(kernel, SpecialKernel)
        out.append(f"special {head}:{where}")
        for a in kernel.arrays:
            printed = _Expressions(definition_exprs(a))
            out += ["  " + line for line in printed.lines]
            texts = [printed.text[r] for r in definition_exprs(a)]
            out.append(f"  {a.name}: {_shape(a)} = {_definition(a, texts)}")
    return "\n".join(out)


def _store(array: Array, index: tuple[Expr, ...], value: Expr, printed: _Expressions) -> str:
    at = ", ".join(printed.text[i] for i in index)
    return f"{array.name}[{at}] = {printed.text[value]}"


def plan_text(plan: Plan) -> str:
    """The memory plan as a table, by offset."""
    out = [
        f"arena {plan.peak} bytes; lower bound {plan.lower_bound}; all buffers {plan.total}; "
        f"{plan.waves} waves",
        f"{'offset':>10} {'bytes':>10}  waves    arrays",
    ]
    for b in sorted(plan.blocks, key=lambda b: (b.offset, b.start)):
        names = ", ".join(a.name for a in b.arrays)
        out.append(f"{b.offset:>10} {b.size:>10}  {b.start:>3}-{b.end:<3}  {names}")
    return "\n".join(out)
