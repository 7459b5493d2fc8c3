"""Compiled: a graph's machine code, ready to be called with NumPy arrays.

Owns what stands between an Image and `runtime.launch.Executable`: fresh results, symbolic sizes,
and the user's error for a fault site. It checks no dtypes or shapes: jit's guards have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.codegen import host_runtime
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.host_call import KEY as HOST
from jitgrad.compiler.host_call import HostCall
from jitgrad.compiler.image import CONTROL, Image
from jitgrad.compiler.interpret import first_fault, unknown_fault
from jitgrad.compiler.ir import Graph, Node, inner_nodes, node_at, with_line
from jitgrad.compiler.shown_dims import ShownDims
from jitgrad.compiler.symbolic import MAX_KNOWN, Sym, evaluate
from jitgrad.runtime import buffers, launch, threads
from jitgrad.runtime.dtypes import BY_NAME

Replan = Callable[[Mapping[str, int]], dict[int, int]]


WITHOUT_CODE = (HOST, CONTROL)
"""Keys of kernels that have no object file."""


def may_flag(node: Node) -> bool:
    """Whether the node has a fault site: its kernels may flag an error."""
    if node.op.bodies:
        return any(may_flag(n) for n in inner_nodes(node))
    return node.op.checked or node.op.host or is_complex(node)


def is_complex(node: Node) -> bool:
    """Whether an operand or a result is complex. There is no arithmetic of complex numbers in the
    loop language, so such a node is a call of its reference, unless it only moves elements."""
    return any(v.type.dtype.is_complex for v in (*node.inputs, *node.outputs))


class Compiled:
    """A compiled graph. `run(arrays)` returns the fresh results: graph outputs, then rebinds.

    Storage writes land in the input arrays, after the last point at which the call can fail.

    loaded: what holds `image` and `library` (graph_cache.Loaded). sites: gives the nodes of the
    fault sites, by number.

    Attributes: `graph` (as recorded, or simplified), `image`, `report`, `stages` (None when the
    graph was compiled before), `makers` (of the results' memory; none if sizes are symbolic),
    `late` (the results that are written only where the call can no longer fail).
    """

    def __init__(
        self,
        graph: Graph,
        loaded: Any,
        sites: Callable[[], Sequence[Node]],
        report: Any,
        syms: Sequence[Sym] = (),
        replan: Replan | None = None,
        stages: Any = None,
    ) -> None:
        image: Image = loaded.image
        library = loaded.library
        self.graph, self.image, self.report, self.stages = graph, image, report, stages
        self.loaded, self.syms, self._replan = loaded, tuple(syms), replan
        self._sites = sites
        writes = len(graph.writes)
        first = len(graph.outputs)
        values = graph.results()
        self._results = [v.type for v in (*values[:first], *values[first + writes :])]
        # Of symbolic graphs the shapes differ from call to call: see _run_symbolic.
        self.late = image.late
        self.makers = [
            buffers.array_maker(tuple(shape), BY_NAME[dtype].np)
            for shape, dtype in ([] if syms else image.results)
        ]
        self._shown = ShownDims(graph)
        self._arenas: dict[tuple[int, ...], launch.ArenaPlan] = {}
        self._known: dict[tuple[int, ...], tuple[tuple[int, ...], list[Callable[[], Any]]]] = {}
        self._calls: dict[str, HostCall] = {}
        self._outer: dict[str, Node] = {}  # the nodes of the graph that calls stand in
        for key, symbol in image.kernels:
            if key == HOST:
                node, self._outer[symbol] = node_at(graph, symbol)
                names = tuple(graph.env.hints) if syms else ()
                self._calls[symbol] = HostCall(node, names)
        self.executable = launch.Executable(
            [self._address(key, symbol) for key, symbol in image.kernels],
            [
                launch.COMMIT if k < 0 else launch.Launch(k, args, total, grain, last)
                for k, args, total, grain, last in image.launches
            ],
            n_buffers=image.n_buffers,
            n_varying=image.n_inputs + image.n_results,
            arena=self._arena if replan else launch.ArenaPlan(image.arena, image.arena_bytes),
            scratch=image.scratch,
            n_sizes=len(self.syms),
            n_once=image.n_once,
            kept=image.kept,
            n_main=image.n_main,
            loose=image.loose,
            sites={i: _fault(i) for i in range(image.n_sites)},
            owners=(library, self._calls),
            release_gil=report.bytes_after >= threads.WORTH_RELEASING,
        )
        if not syms:  # straight to the code, with nothing of this class between
            self.run_prepared = self.executable.caller(self.makers, self._run_into)  # type: ignore[method-assign]
            if not image.n_once:
                self.run = self.run_prepared  # type: ignore[method-assign]

    def _address(self, key: str, symbol: str) -> int:
        if key == CONTROL:
            return host_runtime.driver(symbol, host())
        if key == HOST:
            return self._calls[symbol].address
        return self.loaded.library.address(key, symbol)

    def run(
        self, arrays: Sequence[np.ndarray], dims: tuple[int, ...] | None = None,
        results: list[np.ndarray] | None = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """Runs on arrays for the graph's inputs, in order, of the very dtypes, shapes and strides
        that were compiled for. Raises what eager code would have raised for a bad element; then no
        input has been written.

        dims: the values of the graph's symbolic dims, in the order of its env; without them they
        are read from the shapes of the arrays. results: dense arrays to write results into, in the
        place of new ones.
        """
        if self.image.n_once:
            self.prepare(arrays)
        return self.run_prepared(arrays, dims, results)

    def prepare(self, arrays: Sequence[np.ndarray]) -> None:
        """Makes what is kept between calls, of the inputs `image.constants`."""
        self.executable.prepare(arrays)

    def run_prepared(
        self, arrays: Sequence[np.ndarray], dims: tuple[int, ...] | None = None,
        results: list[np.ndarray] | None = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """As `run`, where no constant has changed since `prepare`."""
        return self._run_symbolic(arrays, dims, results)

    def _run_into(self, arrays: Sequence[np.ndarray], results: list[np.ndarray]) -> None:
        """As `run_prepared`, without symbolic dims, into `results`."""
        try:
            self.executable.run([*arrays, *results])
        except _Fault as fault:
            raise self._error(fault, arrays, {}) from None

    def _run_symbolic(
        self, arrays: Sequence[np.ndarray], dims: tuple[int, ...] | None,
        results: list[np.ndarray] | None,
    ) -> list[np.ndarray]:  # fmt: skip
        if dims is None:
            dims = self.dims_of(arrays)
        known = self._known.get(dims)
        if known is None:
            known = self._sizes(dims)
        sizes, makers = known
        if results is None:
            results = [make() for make in makers]
        try:
            self.executable.run([*arrays, *results], sizes)
        except _Fault as fault:
            raise self._error(fault, arrays, self._named(dims)) from None
        return results

    def dims_of(self, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
        """The values of the symbolic dims that the arrays show (ShownDims.of)."""
        return self._shown.of(arrays)

    def _named(self, dims: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self.graph.env.hints, dims, strict=False))

    def _sizes(self, dims: tuple[int, ...]) -> tuple[tuple[int, ...], list[Callable[[], Any]]]:
        """What a call with these dims passes to kernels, and what makes its results."""
        named = self._named(dims)
        makers = [
            buffers.array_maker(tuple(evaluate(d, named) for d in t.shape), t.dtype.np)
            for t in self._results
        ]
        known = (tuple(evaluate(s, named) for s in self.syms), makers)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[dims] = known
        return known

    def _error(
        self, fault: _Fault, arrays: Sequence[np.ndarray], dims: Mapping[str, int]
    ) -> BaseException:
        """What eager code would have raised; nothing has been written, so the arrays still say."""
        node = self._sites()[fault.site]
        for symbol, call in self._calls.items():
            raised = call.taken()
            if raised is not None and self._outer[symbol] is node:
                return with_line(raised, call.node)
        found = first_fault(self.graph, arrays, dims)
        return unknown_fault(node) if found is None else found

    def _arena(self, sizes: tuple[int, ...]) -> launch.ArenaPlan:
        if sizes not in self._arenas:
            assert self._replan is not None
            if len(self._arenas) >= MAX_KNOWN:
                self._arenas.clear()
            offsets = dict(self._replan(self._named(sizes)))  # the first sizes are the dims
            self._arenas[sizes] = launch.ArenaPlan(offsets, offsets.pop(-1))
        return self._arenas[sizes]

    def __repr__(self) -> str:
        r = self.report
        return (
            f"<Compiled {self.graph.name}: {r.nodes} nodes, {r.kernels} kernels, "
            f"peak {r.peak} bytes, compiled in {r.compile_ms:.0f} ms>"
        )


class _Fault(Exception):
    """A kernel flagged a fault site."""

    def __init__(self, site: int) -> None:
        super().__init__()
        self.site = site


def _fault(site: int) -> Callable[[], BaseException]:
    return lambda: _Fault(site)
