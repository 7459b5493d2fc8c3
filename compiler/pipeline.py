"""The compiler as one list: Graph in, Compiled out.

`GRAPH_PASSES` and then the steps of `compile_graph` are, in order, all that happens to a graph.
The runner here times, dumps and verifies around every step, so that no pass does any of that.
Owns the order and the assembly of launch rows; owns no transformation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from jitgrad.compiler.codegen import canonical, host_runtime
from jitgrad.compiler.codegen.kernelcode import Generated, Operand, Site, Size
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.compiler.compiled import Compiled
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.graph_cache import (
    Loaded,
    find_compiled,
    graph_key,
    is_cached,
    remember,
    sites_of,
)
from jitgrad.compiler.host_call import KEY as HOST
from jitgrad.compiler.image import Image
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.loops import Array, Kernel, kernel_reads, kernel_writes
from jitgrad.compiler.lower import Program, lower
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.checks import keep_checks
from jitgrad.compiler.passes.fuse import fuse
from jitgrad.compiler.passes.inline import inline
from jitgrad.compiler.passes.memory import Plan, plan_memory
from jitgrad.compiler.passes.order import Schedule, order
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.passes.stages import stage
from jitgrad.compiler.printer import kernel_text, plan_text, program_text
from jitgrad.compiler.report import Report
from jitgrad.compiler.symbolic import Dim, Sym, evaluate
from jitgrad.compiler.verify import verify
from jitgrad.runtime.buffers import round_up
from jitgrad.runtime.knobs import knobs

GRAPH_PASSES: list[Callable[[Graph], Graph]] = [simplify]


@dataclass
class Stages:
    """A graph at every level, as far as it was compiled (for explain, dumps and pictures)."""

    graph: Graph
    program: Program
    kernels: list[Kernel]
    schedule: Schedule
    generated: dict[Kernel, Generated]
    plan: Plan


class _Runner:
    """Times each step; prints what JITGRAD_LOG and JITGRAD_DUMP ask for, to stderr."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = (time.perf_counter() - start) * 1e3
        self.report.milliseconds[name] = self.report.milliseconds.get(name, 0.0) + spent
        if "compile" in knobs.log:
            print(f"[compile] {name}: {spent:.1f} ms", file=sys.stderr)

    def dump(self, what: str, text: Callable[[], str]) -> None:
        if what in knobs.dump:
            print(f"-- {what} --\n{text()}", file=sys.stderr)


def compile_graph(graph: Graph, options: Options | None = None) -> Compiled:
    """Compiles a graph for its target and loads it.

    Raises CompileError naming the op and the user's line where something cannot be compiled.
    """
    options = options or Options()
    found = find_compiled(graph, options)
    if found is not None:
        return found
    target = options.target or host()
    report = Report(nodes=len(graph.nodes), bytes_before=_bytes_before(graph))
    run = _Runner(report)
    run.dump("graph", lambda: str(graph))
    if knobs.verify:
        verify(graph)
    key = graph_key(graph, options, target) if is_cached(graph) else ""
    for p in GRAPH_PASSES:
        with run.step(p.__name__):
            graph = p(graph)
        if knobs.verify:
            verify(graph, p.__name__)
    report.nodes_simplified = len(graph.nodes)
    host_runtime.install(target)
    stages = to_stages(graph, options, target, run)
    report.kernels = len(stages.kernels)
    report.bytes_after = sum(
        sum(map(nbytes, kernel_reads(k))) + sum(map(nbytes, kernel_writes(k)))
        for wave in stages.schedule.waves
        for k in wave
    )
    plan = stages.plan
    report.peak, report.lower_bound, report.total = plan.peak, plan.lower_bound, plan.total
    report.waves = len(stages.schedule.waves)
    with run.step("llvm"):
        codes = [g for g in stages.generated.values() if g.key != HOST]
        library = Library.build(codes, target)
    run.dump("asm", library.assembly)
    with run.step("image"):
        image, syms = assemble(stages)
    sites = sites_of(graph)
    image.n_sites = len(sites)
    report.launches = len(image.launches)
    image.report = {**asdict(report), "milliseconds": {}}
    loaded = remember(key, image, library) if key else Loaded(image, library)
    replan = _replanner(stages, syms) if syms else None
    return Compiled(graph, loaded, lambda: sites, report, syms, replan, stages)


def stages_of(graph: Graph, options: Options) -> tuple[Graph, Stages]:
    """The simplified graph and all its levels, for export: nothing is cached or loaded.

    Raises CompileError as `compile_graph` does.
    """
    for p in GRAPH_PASSES:
        graph = p(graph)
    return graph, to_stages(graph, options, options.target or host(), _Runner(Report()))


def to_stages(graph: Graph, options: Options, target: Target, run: _Runner) -> Stages:
    """Everything up to code generation and the memory plan, of a simplified graph."""
    with run.step("lower"):
        program = lower(graph, dict(options.strides))
    with run.step("checks"):
        program = keep_checks(program)
    run.dump("loops", lambda: program_text(program))
    with run.step("inline"):
        bodies = inline(program)
    with run.step("fuse"):
        groups = fuse(bodies)
    with run.step("stage"):
        kernels = stage(groups, bodies, program.roots)
    with run.step("order"):
        schedule = order(kernels, program)
    ordered = [k for wave in schedule.waves for k in wave]
    run.dump("fused", lambda: "\n\n".join(map(kernel_text, ordered)))
    with run.step("generate"):
        generated = {k: canonical.generate(k, target) for k in ordered}
    run.dump("llvm", lambda: "\n".join(g.module_text for g in generated.values()))
    with run.step("memory"):
        fixed = {*program.inputs, *program.fresh}
        workspace = {k: g.workspace for k, g in generated.items()}
        plan = plan_memory(schedule, fixed, workspace)
    run.dump("plan", lambda: plan_text(plan))
    return Stages(graph, program, ordered, schedule, generated, plan)


def _bytes_before(graph: Graph) -> int:
    return sum(nbytes(v.type) for n in graph.nodes for v in (*n.inputs, *n.outputs))


class _Slots:
    """Numbers for buffers: inputs, results, temporaries, scratch."""

    def __init__(self, stages: Stages) -> None:
        program = stages.program
        self.results = program.fresh
        self.slot: dict[Array, int] = {a: i for i, a in enumerate(program.inputs)}
        for a in self.results:
            self.slot[a] = len(self.slot)
        self.arena: dict[int, int] = {}
        self.temporaries: dict[Array, int] = {}
        for a, offset in stages.plan.offsets.items():
            number = len(self.slot)
            self.slot[a] = number
            self.temporaries[a] = number
            self.arena[number] = offset
        for a, target in stages.schedule.home.items():
            self.slot[a] = self.slot[target]


def assemble(stages: Stages) -> tuple[Image, list[Sym]]:
    """The image of a planned graph, and the Syms whose values each call brings in sizes."""
    slots = _Slots(stages)
    image = Image(n_inputs=len(stages.program.inputs), n_results=len(slots.results))
    image.results = [([_static(d) for d in a.shape], a.dtype.name) for a in slots.results]
    image.arena, image.arena_bytes = slots.arena, stages.plan.peak
    next_slot = image.n_inputs + image.n_results + len(image.arena)
    numbers: dict[tuple[str, str], int] = {}
    env = stages.graph.env
    # The dims themselves come first, so that the sizes of a call determine everything else.
    syms: dict[Sym, int] = {Sym({(name,): 1}, env): i for i, name in enumerate(env.hints)}

    def word(x: Operand) -> int:
        if isinstance(x, Array):
            return slots.slot[x]
        if isinstance(x, Size):
            x = Sym({(x.name,): 1}, env)
        if isinstance(x, Sym):
            return syms.setdefault(x, len(syms))
        return int(x.tag) if isinstance(x, Site) else x  # type: ignore[call-overload]

    rows: list[tuple[int, list[int], int, int, bool]] = []
    for n, wave in enumerate(stages.schedule.waves):
        if n == stages.schedule.commit:
            rows.append((-1, [], 0, 1, True))
        single = all(len(stages.generated[k].launches) == 1 for k in wave)
        for k in wave:
            code = stages.generated[k]
            scratch: list[int] = []
            if code.scratch:
                scratch = [next_slot]
                image.scratch[next_slot] = round_up(code.scratch)
                next_slot += 1
            for launch in code.launches:
                kernel = (code.key, launch.symbol)
                number = numbers.setdefault(kernel, len(numbers))
                args = [word(x) for x in launch.operands] + scratch
                total = launch.total
                rows.append(
                    (
                        number,
                        args,
                        -syms.setdefault(total, len(syms)) - 1 if isinstance(total, Sym) else total,
                        launch.grain,
                        not single or k is wave[-1],
                    )
                )
    image.kernels = list(numbers)
    image.launches = rows
    return image, list(syms)


def _static(d: Dim) -> int:
    return -1 if isinstance(d, Sym) else d


def _replanner(stages: Stages, syms: list[Sym]) -> Callable[[Mapping[str, int]], dict[int, int]]:
    """The arena for other values of the symbolic dims: {slot: offset} and, at -1, its bytes."""
    slots = _Slots(stages)
    fixed = {*stages.program.inputs, *stages.program.fresh}
    workspace = {k: g.workspace for k, g in stages.generated.items()}

    def replan(dims: Mapping[str, int]) -> dict[int, int]:
        def size_of(a: Array) -> int:
            return evaluate(a.numel, dims) * a.dtype.itemsize

        plan = plan_memory(stages.schedule, fixed, workspace, size_of)
        offsets = {slots.temporaries[a]: offset for a, offset in plan.offsets.items()}
        return {**offsets, -1: plan.peak}

    return replan
