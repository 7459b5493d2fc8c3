"""Explain: what jit did with a function, for people and for tests that count.

Owns the texts, the counts, and the comparison of compiled code with the references
(`jit(check=True)`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.compiler.interpret import interpret, interpret_all
from jitgrad.compiler.ir import Graph, all_nodes
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.memory import ALIGN
from jitgrad.compiler.replan import largest
from jitgrad.compiler.symbolic import expression
from jitgrad.recorder import Trace
from jitgrad.runtime.dtypes import Category, from_numpy

SENTENCES = ("the compiler", "it has", "an argument")
"""How reasons begin that are sentences by themselves."""


@dataclass
class Stats:
    """Counts of one jitted function.

    traces: recorded calls. compiles: graphs compiled (a forward and its backward are two). hits:
    calls of compiled code. fallbacks: calls that ran eagerly for a stated reason. segments: native
    segments that ran, of calls whose Python runs each time. bytes: of the machine code that is held
    now.
    """

    traces: int = 0
    compiles: int = 0
    hits: int = 0
    fallbacks: int = 0
    segments: int = 0
    bytes: int = field(default=0, compare=False)

    def __add__(self, other: Stats) -> Stats:
        return Stats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def compile_options(trace: Trace) -> Options:
    """The compiler's options for a trace: the strides of inputs that are not dense."""
    strides = []
    for i, entry in enumerate(trace.entries):
        steps = entry.strides
        if steps is not None:
            strides.append((i, steps))
    return Options(strides=tuple(strides))


def pair_options(trace: Trace, cotangents: int | None = None) -> Options:
    """The compiler's options for the backward of a trace's pair (or the part of it that has so
    many cotangents)."""
    assert trace.pair is not None
    first = len(trace.pair.cotangents) if cotangents is None else cotangents
    strides = []
    for n, (kind, i) in enumerate(trace.pair.kept):
        steps = trace.entries[i].strides if kind == "input" else None
        if steps is not None:
            strides.append((first + n, steps))
    return Options(strides=tuple(strides))


class Explanation:
    """The report of a jitted function; `str()` of it is what people read."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __str__(self) -> str:
        f = self.function
        out = [f"{f.name}: {f.stats}", *self._trees()]
        for i, spec in enumerate(f.specialisations):
            out.append(f"specialisation {i}: {spec.hits[0]} hits")
            report = spec.compiled.report if spec.compiled is not None else None
            if report is None:
                out.append("  not compiled yet (it is at its first hit)")
            else:
                out.append(
                    f"  {report.nodes} nodes, {report.nodes_simplified} after simplification; "
                    f"{report.kernels} kernels; {report.bytes_before} -> {report.bytes_after} "
                    f"bytes moved; compiled in {report.compile_ms:.0f} ms"
                    f"{' (from the disk cache)' if report.cached else ''}"
                )
            if spec.symbols:
                out.append(
                    "  sizes: "
                    + ", ".join(
                        f"{name} is {spec.symbols.title(name)}" for name in spec.symbols.places
                    )
                )
                out += [f"  guard: {text}" for text in spec.symbols.texts()]
            out += ["  " + line for line in str(spec.trace.graph).splitlines()]
            if spec.trace.pair is not None:
                out += ["  " + line for line in str(spec.trace.pair.backward).splitlines()]
        for decision in f.eager:
            at = f" (at {decision.line})" if decision.line else ""
            out.append(f"eager: {decision.reason}{at}")
        if f.segmented is not None:
            out += _segments_text(f.segmented)
        if f._refused:
            out.append(f"cannot be compiled: {f._refused}")
        if f.explain_last_miss():
            out.append("last miss: " + f.explain_last_miss())
        return "\n".join(out)

    __repr__ = __str__

    def _trees(self) -> list[str]:
        """The trees of the values that Python looks at."""
        specs = enumerate(self.function.specialisations)
        places = {s.trace.leaf: i for i, s in specs if s.trace.leaf is not None}
        return self.function.forest.text(places) if places else []

    def memory(self) -> str:
        """Peak and lower bound of each compiled specialisation's memory plan, in bytes. Of a leaf
        of a tree: of what follows the last branch; what branches have is in the tree. And of each
        segment. Where sizes are symbolic: for those of the recorded call, and the lower bound as a
        formula."""
        f = self.function
        out = self._trees()
        specs: list[Any] = f.specialisations
        parts: list[Any] = [
            (f"specialisation {i}", x.compiled, x.symbols) for i, x in enumerate(specs)
        ]
        if f.segmented is not None:
            programs = f.segmented.segments.programs
            parts += [(f"segment {i}", x.compiled, None) for i, x in enumerate(programs)]
        for name, compiled, symbols in parts:
            if compiled is None:
                out.append(f"{name}: not compiled yet")
                continue
            r = compiled.report
            out.append(
                f"{name}: peak {r.peak} bytes, lower bound {r.lower_bound} bytes "
                f"(all buffers together: {r.total})"
            )
            if symbols and compiled.image.sizes:
                titles = {size: symbols.title(size) for size in symbols.places}
                sizes = [f"{titles[n]} = {v}" for n, v in symbols.env.hints.items()]
                live = expression(largest(compiled.image, compiled.graph.env), titles)
                out[-1] += f" where {', '.join(sizes)}; at least {live}, in pieces of {ALIGN} bytes"
        return "\n".join(out)

    def draw(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes graph.svg, kernels.svg and memory.svg of the specialisation that ran last.

        graph: the nodes and what flows between them; kernels: what each reads and writes; memory:
        where every buffer lies, over time. Raises RuntimeError when nothing is compiled yet.
        """
        from jitgrad.compiler.draw import draw

        for spec in self.function.specialisations:
            if spec.compiled is not None:
                leaf = spec.trace.leaf
                graph = spec.trace.graph if leaf is None else leaf.part.graph
                options = compile_options(spec.trace) if leaf is None else leaf.part.options
                return draw(graph, options, folder, spec.compiled.stages)
        raise RuntimeError(
            f"[draw] expected a function that was compiled; {self.function.name} is not: call it "
            "twice first, and see explain() for why it runs eagerly"
        )


def _segments_text(segmented: Any) -> list[str]:
    """Why calls run in segments, and of each program: where it ends, and what it is."""
    out = []
    for reason, line in dict.fromkeys(segmented.reasons.values()):
        out.append(f"in segments: {_sentence(reason)}{f' (at {line})' if line else ''}")
    out.append(f"  {segmented.calls} calls")
    for i, p in enumerate(segmented.segments.programs):
        out.append(
            f"segment {i}: ends as {p.why}{f' (at {p.line})' if p.line else ''}; {len(p.steps)} "
            f"steps; {p.runs} runs, {p.native} of them native"
        )
        if p.compiled is not None:
            r = p.compiled.report
            out.append(
                f"  {r.nodes_simplified} nodes after simplification; {r.kernels} kernels; "
                f"{r.bytes_before} -> {r.bytes_after} bytes moved; compiled in {r.compile_ms:.0f} "
                f"ms{' (from the disk cache)' if r.cached else ''}"
            )
            out += ["  " + line for line in str(p.graph).splitlines()]
    return out


def _sentence(reason: str) -> str:
    return reason if reason.startswith(SENTENCES) else f"it {reason}"


# -- check ---------------------------------------------------------------------------------------
def differs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], slack: float = 0.0) -> bool:
    """Whether two arrays differ by more than rounding in another order explains. slack: how far
    they may differ at least, relative to the largest number."""
    if from_numpy(a.dtype).category < Category.FLOAT:
        return not np.array_equal(a, b)
    tolerance = max(_eps(a.dtype) * (256 if a.dtype.kind in "fc" else 2), slack)
    if a.dtype.kind not in "fc":  # bfloat16
        a, b = a.astype(np.float32), b.astype(np.float32)
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 0.0
    return not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def check_run(
    graph: Graph, compiled: Any, arrays: Sequence[np.ndarray[Any, Any]], dims: tuple[int, ...] = ()
) -> Any:
    """Runs compiled code, and the references beside it; raises where they differ by more than
    rounding explains: by some ulp, or as far as the references move when each of their numbers is
    moved by an ulp or two (a sum of what cancels, and what an optimizer makes of it).

    Raises RuntimeError that names the first op that differs and the user's line.
    """
    before = [np.array(a, copy=True) for a in gpu.kernels.on_host(graph, arrays)]
    results = compiled.run(arrays, dims)  # raises what eager code would have raised
    named = dict(zip(graph.env.hints, dims, strict=True))
    expected = interpret(graph, before, named)
    outputs = len(graph.outputs)
    found = [
        *results[:outputs],
        *(arrays[w.input] for w in graph.writes),
        *results[outputs:],
    ]
    slack = max((n.op.slack(n.attr) for n in all_nodes(graph)), default=0.0)
    on_host = gpu.kernels.on_host(graph, found)
    pairs = enumerate(zip(on_host, expected, strict=True))
    apart = {i: a for i, (a, b) in pairs if differs(a, b, slack)}
    if apart and (where := _unexplained(graph, before, named, apart, expected, slack)):
        text = first_difference(graph, before, named)
        raise RuntimeError(text or _FUSED.format(graph.name, where))
    return results


def first_difference(
    graph: Graph, arrays: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int]
) -> str | None:
    """Names the first op whose compiled result differs from its reference's; None if none does."""
    from jitgrad.compiler.pipeline import compile_graph

    values = interpret_all(graph, arrays, dims)
    for node in graph.nodes:
        part = Graph([], [], [], env=graph.env, name="check")
        inputs = [part.add_input(v.type, "arg", f"x{i}") for i, v in enumerate(node.inputs)]
        made = part.add_node(node.op, inputs, node.attrs, node.line)
        part.outputs.extend(made)
        feed = [np.array(values[v], order="C", copy=True) for v in node.inputs]
        code = (
            gpu.kernels.compile_for(part, gpu.kernels.graph_device(part), Options())
            if gpu.computes(part)
            else compile_graph(part)
        )
        results = gpu.kernels.on_host(part, code.run(feed, tuple(dims.values())))
        for got, v in zip(results, node.outputs, strict=True):
            if differs(got, values[v], node.op.slack(node.attr)):
                return (
                    f"[{node.op.name}] compiled code differs from the reference at {node.line}: "
                    f"operands {', '.join(str(v.type) for v in node.inputs)}; "
                    f"{_worst(got, values[v])}; please report it"
                )
    return None


def _unexplained(
    graph: Graph,
    arrays: Sequence[np.ndarray[Any, Any]],
    dims: Mapping[str, int],
    found: Mapping[int, np.ndarray[Any, Any]],
    expected: Sequence[np.ndarray[Any, Any]],
    slack: float,
) -> str:
    """Where a result (of `found`, by place) is further from the references' than they move with
    rounding inside the graph; "" if none is."""
    rng = np.random.default_rng(0)
    results = list(graph.results())
    spread = {i: np.zeros(a.shape) for i, a in found.items()}
    with np.errstate(all="ignore"):
        for _ in range(_NOISY_RUNS):
            values = interpret_all(graph, arrays, dims, lambda a: _moved(a, rng))
            for i, most in spread.items():
                off = np.abs(_wide(values[results[i]]) - _wide(expected[i]))
                np.maximum(most, np.where(np.isnan(off), np.inf, off), out=most)
        for i, a in found.items():
            wanted = expected[i]
            near = np.abs(_wide(a) - _wide(wanted)) <= 4 * spread[i]
            left = np.where(near | np.isinf(spread[i]), wanted, a).astype(a.dtype)
            if differs(left, wanted, slack):
                return _worst(left, wanted)
    return ""


_NOISY_RUNS = 6
_FUSED = (
    "[jit] compiled {} differs from the references, though each op by itself does not: a bug of "
    "fusion or scheduling; {}; please report it"
)


def _eps(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps) if dtype.kind in "fc" else 2.0**-7  # bfloat16


def _wide(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _moved(a: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Floating numbers moved by up to 2 units in the last place, at random; others as they are."""
    if from_numpy(a.dtype).category < Category.FLOAT:
        return a
    by = rng.uniform(-2, 2, a.shape) * _eps(a.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(a + (_wide(a) * by).astype(a.dtype), a.dtype)


def _worst(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> str:
    """Where two arrays differ most, and what is there."""
    a, b = _wide(got), _wide(wanted)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    apart = np.where(np.isnan(apart), np.inf, apart)  # NaN, or infinities, where the other is not
    apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, apart)
    place = np.unravel_index(int(np.argmax(apart)), apart.shape)
    index = ", ".join(str(int(i)) for i in place)
    return f"at [{index}] it gave {a[place]:g}, the reference {b[place]:g}"
