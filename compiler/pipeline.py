"""The compiler as one list: Graph in, Compiled out.

`GRAPH_PASSES` and then the steps of `compile_graph` are, in order, all that happens to a graph.
The runner here times, dumps and verifies around every step, so that no pass does any of that.
Owns the order; owns no transformation.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from jitgrad.compiler.codegen import canonical, host_runtime
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.spent import collect
from jitgrad.compiler.codegen.target import Target, host
from jitgrad.compiler.codegen.workers import Workers
from jitgrad.compiler.compiled import WITHOUT_CODE, Compiled
from jitgrad.compiler.cost import bytes_moved, nbytes
from jitgrad.compiler.cuda_compiled import CudaCompiled
from jitgrad.compiler.graph_cache import (
    Loaded,
    find_compiled,
    graph_key,
    is_cached,
    remember,
    sites_of,
)
from jitgrad.compiler.host_call import call_of
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.kernels import Kernel
from jitgrad.compiler.launch_rows import assemble
from jitgrad.compiler.lower import lower
from jitgrad.compiler.nested import generated_of, is_nested, nest
from jitgrad.compiler.one_gpu import gpu_of
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes.chain import chain
from jitgrad.compiler.passes.checks import keep_checks
from jitgrad.compiler.passes.fix_sizes import fix_sizes
from jitgrad.compiler.passes.fuse import fuse
from jitgrad.compiler.passes.inline import inline
from jitgrad.compiler.passes.memory import Plan, plan_memory
from jitgrad.compiler.passes.merge import merge
from jitgrad.compiler.passes.order import Schedule, order
from jitgrad.compiler.passes.place import place
from jitgrad.compiler.passes.recompute import check_limit, recompute, spare
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.passes.stages import stage
from jitgrad.compiler.passes.stream import stream
from jitgrad.compiler.printer import kernel_text, plan_text, program_text
from jitgrad.compiler.progress import Progress
from jitgrad.compiler.replan import replanner
from jitgrad.compiler.report import Report
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.verify import verify
from jitgrad.runtime.cuda.device import Device
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knobs

WORTH_SPARING = 16 << 20
"""Bytes of an arena from which on loops run again to make it smaller."""

GRAPH_PASSES: list[Callable[[Graph], Graph]] = [fix_sizes, simplify]


class _Runner:
    """Times each step; prints what JITGRAD_LOG and JITGRAD_DUMP ask for, to stderr."""

    def __init__(self, report: Report, name: str = "graph") -> None:
        self.report = report
        self.progress = Progress(name)
        self.start: Callable[[Generated], None] | None = None
        self._waits = False  # garbage collection, until a step is done

    def compile(self, code: Generated) -> Generated:
        """Hands code on to LLVM as soon as it is there, if machine code is wanted."""
        if self.start is not None and code.key not in WITHOUT_CODE:
            self.start(code)
        return code

    @contextmanager
    def step(self, name: str, collects: bool = False) -> Iterator[None]:
        """collects: whether garbage collection goes on meanwhile. Passes keep most of what they
        make, and what grows so has all of it looked at again and again."""
        start = time.perf_counter()
        self.progress.at(name)
        waits = not collects and gc.isenabled()
        if waits:
            gc.disable()
            self._waits = True
        try:
            yield
        finally:
            if waits:
                gc.enable()
                self._waits = False
        spent = (time.perf_counter() - start) * 1e3
        self.report.milliseconds[name] = self.report.milliseconds.get(name, 0.0) + spent
        if "compile" in knobs.log:
            print(f"[compile] {name}: {spent:.1f} ms", file=sys.stderr)

    def sweep(self) -> None:
        """Frees what the code of a kernel was made of: its parts refer to each other in circles.
        Looks at nothing that it has looked at before."""
        if self._waits:
            gc.collect(0)

    def log_budget(self, spent: Mapping[str, float]) -> None:
        """Prints where the time went: of each step, and LLVM's by phase, which overlaps them."""
        if "compile" not in knobs.log:
            return
        total = self.report.compile_ms
        print(f"[compile] {self.progress.name}: {total:.1f} ms, of which", file=sys.stderr)
        for name, value in self.report.milliseconds.items():
            share = 100 * value / max(total, 1e-9)
            print(f"[compile]   {name:<10}{value:9.1f} ms {share:5.1f} %", file=sys.stderr)
        llvm = ", ".join(f"{name} {value:.1f} ms" for name, value in spent.items())
        print(f"[compile]   LLVM in all threads: {llvm or 'nothing'}", file=sys.stderr)

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
    with graph.env.deciding_by_form():
        return _compile(graph, options)


def _compile(graph: Graph, options: Options) -> Compiled:
    target = options.target or host()
    report = Report(nodes=len(graph.nodes), bytes_before=_bytes_before(graph))
    run = _Runner(report, graph.name)
    run.dump("graph", lambda: str(graph))
    if knobs.verify:
        verify(graph)
    key = graph_key(graph, options, target) if is_cached(graph, options) else ""
    guards = len(graph.env.guards)
    for p in GRAPH_PASSES:
        with run.step(p.__name__):
            graph = p(graph)
        if knobs.verify:
            verify(graph, p.__name__)
    report.nodes_simplified = len(graph.nodes)
    host_runtime.install(target)
    with collect() as spent, Workers(target) as workers:
        run.start = workers.start
        stages = to_stages(graph, options, target, run)
        with run.step("llvm", collects=True):
            workers.finish(lambda made: run.progress.each(made, "machine code of kernel"))
        with run.step("load"):
            codes = [g for g in stages.all_generated() if g.key not in WITHOUT_CODE]
            library = Library.build(codes, target)
    for part, times in stages.steps():
        report.kernels += len(part.kernels)
        report.bytes_after += times * sum(map(bytes_moved, part.kernels))
    plan = stages.plan
    report.peak, report.lower_bound, report.total = plan.peak, plan.lower_bound, plan.total
    report.waves = len(stages.schedule.waves)
    run.dump("asm", library.assembly)
    with run.step("image"):
        image, syms = assemble(stages)
    sites = sites_of(graph)
    image.n_sites = len(sites)
    made = graph.env.guards[guards:]
    image.guards = [(g.kind, str(g.a), str(g.b), g.outcome) for g in made]
    report.launches, report.kept = len(image.launches), sum(image.kept.values())
    run.log_budget(spent)
    image.report = {**asdict(report), "milliseconds": {}}
    run.progress.done(f"{report.nodes} nodes became {report.kernels} kernels")
    loaded = remember(key, image, library) if key else Loaded(image, library)
    replan = replanner(image, graph.env, stages) if syms else None
    return Compiled(graph, loaded, lambda: sites, report, syms, replan, stages)


def compile_cuda(
    graph: Graph, target: CudaTarget, device: Device, options: Options
) -> CudaCompiled:
    """Compiles a graph for a GPU and loads it there. Raises CompileError as `compile_graph` does,
    and for what has no kernel on GPUs."""
    with graph.env.deciding_by_form():
        report = Report(nodes=len(graph.nodes), bytes_before=_bytes_before(graph))
        run = _Runner(report, graph.name)
        run.dump("graph", lambda: str(graph))
        for p in GRAPH_PASSES:
            with run.step(p.__name__):
                graph = p(graph)
            if knobs.verify:
                verify(graph, p.__name__)
        report.nodes_simplified = len(graph.nodes)
        stages = to_stages(graph, options, target, run)
        for kernel in stages.kernels:
            _expect_gpu_kernel(kernel, stages)
        report.kernels = len(stages.kernels)
        report.bytes_after = sum(map(bytes_moved, stages.kernels))
        plan = stages.plan
        report.peak, report.lower_bound, report.total = plan.peak, plan.lower_bound, plan.total
        report.waves = len(stages.schedule.waves)
        with run.step("load"):
            return CudaCompiled(graph, stages, sites_of(graph), report, target, device)


def cuda_stages(graph: Graph, options: Options, target: CudaTarget) -> Stages:
    """All levels of a graph for a GPU, without one: nothing is compiled further or loaded. Raises
    CompileError as `compile_cuda` does, and where values lie on more than one GPU."""
    gpu_of(graph)
    with graph.env.deciding_by_form():
        for p in GRAPH_PASSES:
            graph = p(graph)
        stages = to_stages(graph, options, target, _Runner(Report()))
    for kernel in stages.kernels:
        _expect_gpu_kernel(kernel, stages)
    return stages


def _expect_gpu_kernel(kernel: Kernel, stages: Stages) -> None:
    """Raises CompileError for a kernel that only the CPU runs: a call of a record's reference, or
    control flow."""
    call = call_of(kernel)
    if call is None and kernel not in stages.nested:
        return
    node: Node = call.node if call is not None else stages.nested[kernel].node
    where = f" (at {node.line})" if node.line else ""
    numbers = [v.type.dtype for v in (*node.inputs, *node.outputs) if v.type.dtype.is_complex]
    if numbers:
        raise CompileError(
            f"[{node.op.name}] expected a dtype that has GPU kernels; got {numbers[0]}, which runs "
            f"on the CPU only{where}; move the operands with .cpu(), or take them by view_as_real"
        )
    raise CompileError(
        f"[{node.op.name}] expected an op with a GPU kernel; this one runs on the CPU only{where}; "
        "move its operands with .cpu()"
    )


def stages_of(graph: Graph, options: Options) -> tuple[Graph, Stages]:
    """The simplified graph and all its levels, for export: nothing is cached or loaded.

    Raises CompileError as `compile_graph` does.
    """
    for p in GRAPH_PASSES:
        graph = p(graph)
    return graph, to_stages(graph, options, options.target or host(), _Runner(Report()))


def to_stages(
    graph: Graph, options: Options, target: Target | CudaTarget, run: _Runner, path: str = ""
) -> Stages:
    """Everything up to code generation and the memory plan, of a simplified graph.

    path: where the graph stands, for one that a node holds (nested.node_at reads it).
    """
    with run.step("lower"):
        program = lower(graph, dict(options.strides), options.constants)
    with run.step("checks"):
        program = keep_checks(program)
    run.dump("loops", lambda: program_text(program))
    with run.step("inline"):
        bodies = inline(program)
    with run.step("fuse"):
        groups = merge(fuse(bodies, target.in_order), bodies)
    with run.step("stage"):
        kernels = stage(groups, bodies, program.roots)
    with run.step("place"):
        kernels = place(kernels, program.roots)
    if target.in_order:
        with run.step("chain"):
            kernels = chain(kernels, program.roots)
    if isinstance(target, CudaTarget):
        with run.step("stream"):
            kernels = stream(kernels, program.roots, target.stream_least, target.stream_side)
    with run.step("order"):
        schedule = order(kernels, program)
    ordered = [k for wave in schedule.waves for k in wave]
    run.dump("fused", lambda: "\n\n".join(map(kernel_text, ordered)))

    def compile_part(inner: Graph, where: str, constants: frozenset[int]) -> Stages:
        return to_stages(inner, Options(constants=constants), target, run, path + where)

    nested = {k: nest(k, compile_part) for k in ordered if is_nested(k)}
    generated: dict[Kernel, Generated] = {}
    with run.step("generate"):
        for k in run.progress.each(ordered, "code of kernel"):
            if k in nested:
                generated[k] = generated_of(nested[k])
            else:
                generated[k] = run.compile(canonical.generate(k, target, path))
                run.sweep()
    fixed = {*program.inputs, *program.fresh}

    def plan_of(planned: Schedule) -> Plan:
        for k in (k for wave in planned.waves for k in wave):
            if k not in generated:
                generated[k] = canonical.generate(k, target, path)
        return plan_memory(planned, fixed, {k: g.workspace for k, g in generated.items()})

    with run.step("memory"):
        plan = plan_of(schedule)
    limit = options.memory_limit
    again = schedule
    if target.in_order and plan.peak >= WORTH_SPARING:
        with run.step("spare"):
            again, plan = spare(schedule, fixed, plan_of, plan)
    if limit is not None and plan.peak > limit:
        with run.step("recompute"):
            again, plan = recompute(again, fixed, plan_of, limit)
    if again is not schedule:
        schedule = again
        ordered = [k for wave in schedule.waves for k in wave]
        generated = {k: run.compile(generated[k]) for k in ordered}
    check_limit(plan, limit)
    run.dump("llvm", lambda: "\n".join(g.module_text for g in generated.values()))
    run.dump("plan", lambda: plan_text(plan))
    return Stages(graph, program, ordered, schedule, generated, plan, nested, limit)


def _bytes_before(graph: Graph) -> int:
    return sum(nbytes(v.type) for n in graph.nodes for v in (*n.inputs, *n.outputs))
