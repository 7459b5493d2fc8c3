"""CudaCompiled: a graph's GPU code, ready to be called with arrays on a device.

The GPU's counterpart of compiled.py: the same image of launch rows (launch_rows.py), run by this
file instead of the native launch table. Launches are asynchronous; a graph that may flag a fault
waits at its commit point, so that state is not written after one. It checks no dtypes or shapes:
jit's guards have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.compiler.codegen.cuda.generate import Shape
from jitgrad.compiler.codegen.cuda.load import loader
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.interpret import first_fault, unknown_fault
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.launch_rows import assemble
from jitgrad.compiler.replan import replanner
from jitgrad.compiler.shown_dims import ShownDims
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.symbolic import evaluate
from jitgrad.runtime import abi
from jitgrad.runtime.buffers import address
from jitgrad.runtime.cuda import arrays as device_arrays
from jitgrad.runtime.cuda import capture
from jitgrad.runtime.cuda.arrays import DeviceArray, host_copy
from jitgrad.runtime.cuda.blas import nbytes
from jitgrad.runtime.cuda.device import Device, current_stream
from jitgrad.runtime.cuda.driver import CudaError
from jitgrad.runtime.errors import CompileError

_ALIGNMENT = 256
_KEPT = 32  # graphs, and sets of memory that were seen once


@dataclass(frozen=True)
class _Launch:
    """number: of its kernel in the image. words: of its parameters, each with its kind."""

    number: int
    function: Any
    shape: Shape
    blocks: int
    words: list[tuple[str, int]]

    def key(self) -> tuple[int, ...]:
        """Launches of equal keys do the same."""
        return (self.number, self.blocks, *[word for _, word in self.words])


@dataclass(frozen=True)
class _Library:
    """nbytes: of the source of the kernels."""

    nbytes: int


@dataclass(eq=False)
class _Loaded:
    """What holds the code, as of the CPU's (graph_cache.Loaded)."""

    library: _Library


class CudaCompiled:
    """A compiled graph. `run(arrays)` returns the fresh results: graph outputs, then rebinds.

    Attributes: `graph`, `image`, `report`, `stages`, `target`, `device`. `replays`: launches on the
    same memory as before are replayed as CUDA graphs. `late`: as of Compiled, but empty: results
    always have new memory here.
    """

    late: Sequence[int] = ()

    def __init__(
        self,
        graph: Graph,
        stages: Stages,
        sites: Sequence[Node],
        report: Any,
        target: CudaTarget,
        device: Device,
    ) -> None:
        self.graph, self.stages, self.report = graph, stages, report
        self.target, self.device, self._sites = target, device, sites
        self.image, syms = assemble(stages)
        self.syms = tuple(syms)
        self._replan = replanner(self.image, graph.env, stages) if syms else None
        writes, first = len(graph.writes), len(graph.outputs)
        values = graph.results()
        self._results = [v.type for v in (*values[:first], *values[first + writes :])]
        self._written = {w.input for w in graph.writes}
        self._to_host = any(t.device == "cpu" for t in self._results)
        self._shown = ShownDims(graph)
        texts: dict[str, str] = {}
        self.shapes: dict[str, Shape] = {}
        for code in stages.all_generated():
            self.shapes.update(code.shapes)
            texts.update(dict.fromkeys(code.shapes, code.module_text))
        self.texts = texts
        self.loaded = _Loaded(_Library(sum(map(len, texts.values()))))
        code_of = loader(texts, self.shapes, target)
        self._functions = []
        for _, symbol in self.image.kernels:
            if self.shapes[symbol].call is not None:
                self._functions.append((None, self.shapes[symbol]))
                continue
            function = device.functions.get(symbol)
            if function is None:
                with self._naming(symbol):
                    function = device.driver.load(device.index, code_of, symbol)
                device.functions[symbol] = function
            self._functions.append((function, self.shapes[symbol]))
        self.replays = False
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._plans: dict[tuple[int, ...], tuple[dict[int, int], int]] = {}
        self._draws = any(n.op.random for n in graph.nodes)
        self._may_flag = bool(sites) and any(shape.sites for shape in self.shapes.values())

    @contextmanager
    def _naming(self, symbol: str) -> Iterator[None]:
        """Errors of a kernel that cannot be compiled or loaded say which ops it has, and where."""
        try:
            yield
        except (CompileError, CudaError) as error:
            raise CompileError(f"{error}{self._whose(symbol)}") from error

    def _whose(self, symbol: str) -> str:
        """Which ops a kernel has, and where they are, as the end of an error's text."""
        found = [k for k, g in self.stages.generated.items() if symbol in g.shapes]
        lines = list(dict.fromkeys(line for k in found for line in k.lines if line))
        ops = ", ".join(dict.fromkeys(n.op.name for n in self.graph.nodes if n.line in lines))
        where = f" (at {', '.join(lines[:3])})" if lines else ""
        return f"; it is a kernel of {ops or self.graph.name}{where}"

    # -- calls -------------------------------------------------------------------------------------
    def run(
        self, arrays: Sequence[Any], dims: tuple[int, ...] | None = None,
        results: list[Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Runs on arrays for the graph's inputs, in order; those of the host are copied, also back
        where they are written, and results that the graph has on the CPU come back to it. Raises
        what eager code would have raised for a bad element; then no input has been written."""
        given = list(arrays)
        arrays = [
            x if isinstance(x, DeviceArray) else device_arrays.to_kernel(x, self.device)
            for x in given
        ]
        if self._draws:
            capture.refuse(
                self.device.index, f"random numbers ({self.graph.name})", "each replay would have "
                "the same ones"
            )  # fmt: skip
        named: Mapping[str, int] = {}
        sizes: tuple[int, ...] = ()
        if self.syms:
            if dims is None:
                dims = self.dims_of(arrays)
            named = dict(zip(self.graph.env.hints, dims, strict=False))
            sizes = tuple(evaluate(s, named) for s in self.syms)
        if results is None:
            results = [
                device_arrays.new(
                    tuple(evaluate(d, named) for d in t.shape), t.dtype.np, self.device,
                    self.graph.name,
                )
                for t in self._results
            ]  # fmt: skip
        self._launch([*arrays, *results], sizes, named)
        for i in self._written:
            if not isinstance(given[i], DeviceArray):
                np.copyto(given[i], host_copy(arrays[i]))
        if self._to_host:
            return [
                device_arrays.to_host(x) if t.device == "cpu" else x
                for x, t in zip(results, self._results, strict=True)
            ]
        return results

    _call = run

    def dims_of(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """The values of the symbolic dims that the arrays show (ShownDims.of)."""
        return self._shown.of(arrays)

    def _plan(self, sizes: tuple[int, ...], named: Mapping[str, int]) -> tuple[dict[int, int], int]:
        found = self._plans.get(sizes)
        if found is None:
            if self._replan is None:
                found = self.image.arena, self.image.arena_bytes
            else:
                offsets = dict(self._replan(named))
                found = offsets, offsets.pop(-1)
            self._plans[sizes] = found
        return found

    def _launch(self, arrays: list[Any], sizes: tuple[int, ...], named: Mapping[str, int]) -> None:
        image, device = self.image, self.device
        stream = current_stream(device.index)
        offsets, nbytes = self._plan(sizes, named)
        slots = {k: address(x) for k, x in enumerate(arrays)}
        arena: Any = None
        cell: Any = None
        if nbytes:
            arena = device_arrays.new(
                (nbytes + _ALIGNMENT,), np.dtype(np.uint8), device, f"arena of {self.graph.name}"
            )
            base = address(arena) + _ALIGNMENT - 1 & -_ALIGNMENT
            slots.update({slot: base + offset for slot, offset in offsets.items()})
        if self._may_flag:
            cell = device_arrays.to_kernel(np.array([abi.NO_ERROR], np.int64), device, "fault cell")
            graph = capture.current(device.index)
            if graph is not None:  # each replay looks at it
                graph.cells.append((cell, device_arrays.to_host, self._flagged))
        parts: list[list[_Launch]] = [[]]
        checks = 0
        for number, args, total, grain, _ in image.launches[: image.n_main]:
            if number < 0:  # the commit point
                parts.append([])
                checks += 1
                continue
            function, shape = self._functions[number]
            points = total if total >= 0 else sizes[-total - 1]
            if not points:
                continue
            words = [
                (kind, slots[a] if kind[0] == "*" else sizes[a] if kind == "size" else a)
                for kind, a in zip(shape.kinds, args, strict=True)
            ]
            if shape.sites:
                words.append(("*int64", address(cell)))
            parts[-1].append(_Launch(number, function, shape, -(-points // grain), words))
        for n, launches in enumerate(parts):
            if n:
                self._check(cell, arrays, named)
            self._run(launches, stream)
        if not checks:
            self._check(cell, arrays, named)

    def _run(self, launches: list[_Launch], stream: int) -> None:
        """Launches on a stream: as a graph, where such launches on the same memory came before."""
        device = self.device
        if not self.replays or len(launches) < 2 or capture.current(device.index) is not None:
            self._launch_all(launches, stream)
            return
        key = tuple([launch.key() for launch in launches])
        with device.noting:
            graph = self._graph(key, launches)
        if graph is None:
            self._launch_all(launches, stream)
        else:
            device.driver.launch_graph(device.index, graph.handle, stream)

    def _launch_all(self, launches: list[_Launch], stream: int) -> None:
        """Launches one by one. Errors of the driver say which ops the kernel has, and where."""
        for x in launches:
            try:
                _launch(self.device, x, stream)
            except CudaError as error:
                symbol = self.image.kernels[x.number][1]
                raise type(error)(f"{error}{self._whose(symbol)}") from error

    def _graph(self, key: Any, launches: list[_Launch]) -> _Graph | None:
        """The graph of such launches; None at their first time."""
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > _KEPT:
                    self._seen.popitem(last=False)
                return None
            graph = self._graphs[key] = _Graph(
                self.device, lambda stream: self._launch_all(launches, stream)
            )
            if len(self._graphs) > _KEPT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return graph

    def _check(self, cell: Any, arrays: list[Any], named: Mapping[str, int]) -> None:
        """Waits, and raises the user's error where a kernel flagged a fault."""
        if cell is None or capture.current(self.device.index) is not None:
            return
        site = int(device_arrays.to_host(cell)[0])
        if site == abi.NO_ERROR:
            return
        hosts = [host_copy(x) for x in arrays[: self.image.n_inputs]]
        found = first_fault(self.graph, hosts, named)
        raise unknown_fault(self._sites[site]) if found is None else found

    def _flagged(self, cell: np.ndarray[Any, Any]) -> BaseException | None:
        """The error of what a replayed kernel flagged."""
        site = int(cell[0])
        return None if site == abi.NO_ERROR else unknown_fault(self._sites[site])

    def __repr__(self) -> str:
        r = self.report
        return f"<CudaCompiled {self.graph.name}: {r.nodes} nodes, {r.kernels} kernels>"


class _Graph:
    """Launches noted once, to be replayed on the same memory."""

    def __init__(self, device: Device, launch: Callable[[int], None]) -> None:
        self.driver, self.index = device.driver, device.index
        stream = device.capturing
        if device.blas is not None:  # nothing may be allocated meanwhile
            self.driver.use(self.index)
            device.blas.prepare(stream)
        self.driver.begin_capture(self.index, stream)
        try:
            launch(stream)
        finally:
            self.handle = self.driver.end_capture(self.index, stream)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter is going down, or the capture failed
            self.driver.release_graph(self.index, self.handle)


def _launch(device: Device, x: _Launch, stream: int) -> None:
    if x.shape.call is not None:
        _call(x.shape, [word for _, word in x.words], device, stream)
        return
    grid = min(x.blocks, x.shape.max_blocks)
    device.driver.launch(device.index, x.function, grid, x.shape.threads, stream, x.words)


def _call(shape: Shape, words: list[int], device: Device, stream: int) -> None:
    """A product by cuBLAS; words: for each matrix its address, an offset, and pairs of an offset's
    size and factor."""
    assert shape.call is not None and device.blas is not None
    g, places, rest = shape.call.gemm, [], iter(words)
    for matrix, pairs in zip((g.a, g.b, g.c), shape.call.pairs, strict=True):
        place, offset = next(rest), next(rest)
        for _ in range(pairs):
            offset += next(rest) * next(rest)
        places.append(place + offset * nbytes(matrix.dtype))
    device.driver.use(device.index)
    device.blas.gemm(g, places[0], places[1], places[2], stream)
