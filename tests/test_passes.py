"""Every pass of the compiler, without machine code: kernels run on a NumPy machine whose memory is
laid out as the plan says (kernel_interpreter.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_interpreter import Faults, run_schedule
from random_graphs import random_graph

from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.ir import Graph, Write
from jitgrad.compiler.kernels import LoopKernel
from jitgrad.compiler.loops import (
    INDEX,
    Expr,
    axis,
    const,
    loads,
    make,
    postorder,
)
from jitgrad.compiler.lower import Program, lower
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.parse import ParseError, parse
from jitgrad.compiler.passes.chain import chain
from jitgrad.compiler.passes.checks import keep_checks
from jitgrad.compiler.passes.fuse import fuse
from jitgrad.compiler.passes.inline import inline
from jitgrad.compiler.passes.memory import Plan, plan_memory
from jitgrad.compiler.passes.merge import merge
from jitgrad.compiler.passes.order import Schedule, order
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.passes.stages import stage
from jitgrad.compiler.printer import kernel_text, program_text
from jitgrad.compiler.text import to_text
from jitgrad.compiler.types import TensorType
from jitgrad.compiler.verify import verify
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import InternalError

F = dtypes.float32


def compile_to_schedule(
    graph: Graph, strides: dict[int, tuple[int, ...]] | None = None
) -> tuple[Program, Schedule, Plan]:
    program = keep_checks(lower(graph, strides))
    bodies = inline(program)
    kernels = stage(merge(fuse(bodies), bodies), bodies, program.roots)
    kernels = chain(kernels, program.roots)
    schedule = order(kernels, program)
    return program, schedule, plan_memory(schedule, {*program.inputs, *program.fresh}, {})


def reference(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    values = {i.value: a.copy() for i, a in zip(graph.inputs, arrays, strict=True)}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            out = node.op.reference(*(values[v] for v in node.inputs), **node.attr)
            many = out if isinstance(out, tuple) else (out,)
            values.update(zip(node.outputs, many, strict=True))
    return [values[v] for v in graph.results()]


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind in "fV":
        rtol = 2e-2 if got.dtype.itemsize == 2 else 2e-5
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=2e-5
        )
    else:
        np.testing.assert_array_equal(got, want)


def test_equal_bodies_are_read_at_0_of_dims_of_size_1() -> None:
    """Rows that are all cut away have equal bodies, of shape [1, 8]: one array stands for them."""
    rows = range(6)
    lines = ['%x: float32[3, 8] = arg "x"', '%two: float32[1, 8] = arg "two"']
    lines.append("%p: float32[6, 8] = pad(%x) {high=(0,0,), interior=(0,0,), low=(3,0,), value=0}")
    for k in rows:
        cut = f"{{starts=({k},0,), steps=(1,1,), stops=({k + 1},8,)}}"
        lines.append(f"%s{k}: float32[1, 8] = slice(%p) {cut}")
        lines.append(f"%m{k}: float32[1, 8] = mul(%s{k}, %two)")
        place = f"{{high=({5 - k},0,), interior=(0,0,), low=({k},0,), value=0}}"
        lines.append(f"%q{k}: float32[6, 8] = pad(%m{k}) {place}")
    lines.append("%a1: float32[6, 8] = add(%q0, %q1)")
    lines += [f"%a{k}: float32[6, 8] = add(%a{k - 1}, %q{k})" for k in rows[2:]]
    graph = parse("graph f() {\n" + "\n".join(lines) + "\nreturn %a5\n}")
    bodies = inline(keep_checks(lower(graph)))
    read = [e for exprs in bodies.exprs.values() for e in loads(exprs)]
    assert any(e.attr.shape == (1, 8) for e in read)
    assert all(e.args[0] is const(0, INDEX) for e in read if e.attr.shape == (1, 8))
    arrays = [np.ones((3, 8), np.float32), np.full((1, 8), 2, np.float32)]
    (got,), _ = run_schedule(*compile_to_schedule(graph), [a.copy() for a in arrays])
    close(got, *reference(graph, arrays))


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_sample_lowers_fuses_and_runs(name: str) -> None:
    op = OPS[name]
    for sample in op.samples():
        graph = Graph()
        args = [np.asarray(a) for a in sample.args]
        values = [
            graph.add_input(TensorType(a.shape, dtypes.from_numpy(a.dtype)), "arg", f"x{i}")
            for i, a in enumerate(args)
        ]
        graph.outputs = list(graph.add_node(op, values, sample.attrs))
        text = to_text(graph)
        assert to_text(parse(text)) == text
        graph = simplify(graph)
        verify(graph)
        strides = {
            i: tuple(s // a.itemsize for s in a.strides)
            for i, a in enumerate(args)
            if not a.flags.c_contiguous
        }
        program, schedule, plan = compile_to_schedule(graph, strides)
        got, faults = run_schedule(program, schedule, plan, [a.copy() for a in args])
        try:
            with np.errstate(all="ignore"):
                out = op.reference(*(a.copy() for a in args), **sample.attrs)
        except (IndexError, RuntimeError, ZeroDivisionError):
            assert faults, f"{sample.note}: the reference raises, the kernels flag nothing"
            continue
        assert not faults
        for x, y in zip(got, out if isinstance(out, tuple) else (out,), strict=True):
            close(x, np.asarray(y))


def _check_random(seed: int) -> None:
    graph, arrays = random_graph(seed)
    text = to_text(graph)
    assert to_text(parse(text)) == text
    want = reference(graph, arrays)
    simple = simplify(graph)
    verify(simple)
    for a, b in zip(want, reference(simple, arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    program, schedule, plan = compile_to_schedule(simple)
    assert plan.lower_bound <= plan.peak <= plan.total
    inputs = [a.copy() for a in arrays]
    got, faults = run_schedule(program, schedule, plan, inputs)
    assert faults == Faults()
    n = len(simple.outputs)
    for a, b in zip(got[:n], want[:n], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    written = {w.input: v for w, v in zip(simple.writes, want[n:], strict=True)}
    for i, a in enumerate(inputs):
        np.testing.assert_allclose(a, written.get(i, arrays[i]), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_graphs(start: int) -> None:
    for seed in range(start, start + 50):
        _check_random(seed)


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 6000, 500))
def test_many_random_graphs(start: int) -> None:
    for seed in range(start, start + 500):
        _check_random(seed)


# -- index arithmetic ------------------------------------------------------------------------------
_EVALUATE: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b,
}  # fmt: skip


def _evaluate(e: Expr, point: dict[int, int]) -> Any:
    done: dict[Expr, Any] = {}
    for x in postorder([e]):
        if x.op == "const":
            done[x] = x.attr
        elif x.op == "axis":
            done[x] = point[x.attr]
        else:
            done[x] = _EVALUATE[x.op](*(done[a] for a in x.args))
    return done[e]


def _random_index(rng: np.random.Generator, depth: int) -> Expr:
    if depth == 0:
        k = int(rng.integers(4))
        return axis(k) if k < 3 else const(int(rng.integers(-5, 20)), INDEX)
    op = str(rng.choice(["add", "add", "sub", "mul", "floordiv", "mod", "floordiv", "mod", "min"]))
    left = _random_index(rng, depth - 1)
    if op in ("floordiv", "mod"):
        return make(op, left, const(int(rng.integers(1, 12)), INDEX))
    if op == "mul":
        return make(op, left, const(int(rng.integers(-3, 12)), INDEX))
    return make(op, left, _random_index(rng, depth - 1))


def test_index_simplification_is_exact() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1500):
        extents = {k: int(rng.integers(1, 8)) for k in range(3)}
        e = _random_index(rng, int(rng.integers(1, 6)))
        if rng.random() < 0.3:
            e = make(str(rng.choice(["lt", "le", "eq"])), e, _random_index(rng, 2))
        simple = Simplifier(extents).simplify(e)
        for _ in range(10):
            point = {k: int(rng.integers(n)) for k, n in extents.items()}
            assert _evaluate(e, point) == _evaluate(simple, point)


# -- what fusion promises, in counts ------------------------------------------------------------
def _graph(*shapes: tuple[int, ...]) -> tuple[Graph, list[Any]]:
    graph = Graph()
    return graph, [graph.add_input(TensorType(s, F), "arg", f"x{i}") for i, s in enumerate(shapes)]


def test_softmax_is_one_kernel_with_one_exp() -> None:
    g, (x,) = _graph((64, 100))
    g.outputs = [g.add(OPS["softmax"], x, axis=1)]
    _, schedule, plan = compile_to_schedule(g)
    ((kernel,),) = schedule.waves
    assert plan.peak == 0
    assert kernel_text(kernel).count("exp(") <= 2  # printed for its store and its sum; one node
    assert isinstance(kernel, LoopKernel) and len(kernel.stages) == 3


def test_a_chain_of_elementwise_ops_is_one_kernel() -> None:
    g, (x, y) = _graph((8, 1, 5), (4, 5))
    v = x
    for name in ["mul", "add", "sub", "maximum"] * 5:
        v = g.add(OPS[name], v, y)
    g.outputs = [g.add(OPS["tanh"], v)]
    _, schedule, plan = compile_to_schedule(g)
    assert sum(map(len, schedule.waves)) == 1 and plan.peak == 0


def test_movement_needs_no_buffer() -> None:
    g, (x,) = _graph((4, 6))
    v = g.add(OPS["permute"], x, axes=(1, 0))
    v = g.add(OPS["reshape"], v, shape=(2, 12))
    v = g.add(OPS["slice"], v, starts=(0, 2), stops=(2, 12), steps=(1, 2))
    g.outputs = [g.add(OPS["exp"], v)]
    _, schedule, plan = compile_to_schedule(g)
    assert sum(map(len, schedule.waves)) == 1 and plan.peak == 0


def test_matmul_takes_bias_and_activation_into_its_epilogue() -> None:
    g, (x, w, b) = _graph((8, 16), (16, 4), (4,))
    v = g.add(OPS["add"], g.add(OPS["matmul"], x, w), b)
    g.outputs = [g.add(OPS["relu"], v)]
    _, schedule, plan = compile_to_schedule(g)
    assert sum(map(len, schedule.waves)) == 1 and plan.peak == 0


def test_a_contraction_reads_a_reshaped_and_transposed_operand_where_it_lies() -> None:
    """As a weight's gradient, over batch and time: places are affine, though indices are not."""
    g, (x, y) = _graph((4, 8, 16), (4, 8, 6))
    h = g.add(OPS["tanh"], x)
    flat = g.add(OPS["permute"], g.add(OPS["reshape"], h, shape=(32, 16)), axes=(1, 0))
    g.outputs = [h, g.add(OPS["matmul"], flat, g.add(OPS["reshape"], y, shape=(32, 6)))]
    _, schedule, plan = compile_to_schedule(g)
    assert sum(map(len, schedule.waves)) == 2 and plan.peak == 0


@pytest.mark.parametrize(("pieces", "kept", "kernels"), [
    (3, False, 1), (3, True, 1), (60, False, 2), (60, True, 2),
])  # fmt: skip
def test_heavy_bodies_stay_out_of_column_sums(pieces: int, kept: bool, kernels: int) -> None:
    """As the gradient of the steps of a recurrent layer and the bias's: a choice of many pieces,
    summed over the steps."""
    g, inputs = _graph(*[(1, 4, 16)] * pieces)
    whole = g.add(OPS["concatenate"], *inputs, axis=0)
    total = g.add(OPS["sum"], whole, axes=(0, 1), keepdim=False)
    g.outputs = [total, whole] if kept else [total]
    _, schedule, _ = compile_to_schedule(g)
    assert sum(map(len, schedule.waves)) == kernels


def test_independent_updates_share_a_wave_and_write_in_place_after_the_commit() -> None:
    g, inputs = _graph((4, 4), (7,), (3, 5))
    for i, x in enumerate(inputs):
        g.writes.append(Write(i, g.add(OPS["tanh"], x)))
    _, schedule, plan = compile_to_schedule(g)
    assert len(schedule.waves) == 1 and len(schedule.waves[0]) == 3
    assert schedule.commit == 0 and len(schedule.home) == 3 and plan.peak == 0


def test_swapping_two_inputs_goes_through_memory_of_its_own() -> None:
    g, (x, y) = _graph((5,), (5,))
    g.writes = [Write(0, y), Write(1, x)]
    program, schedule, plan = compile_to_schedule(g)
    a, b = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    run_schedule(program, schedule, plan, inputs := [a.copy(), b.copy()])
    np.testing.assert_array_equal(inputs[0], b)
    np.testing.assert_array_equal(inputs[1], a)


# -- simplify: golden text ------------------------------------------------------------------------
def _simplified(text: str) -> str:
    return to_text(simplify(parse(text)))


def test_simplify_golden() -> None:
    before = """graph g() {
  %0: float32[4, 3] = arg "x"
  %1: float32[] = full() {device="cpu", dtype=:float32, shape=(), value=1.0}
  %2: float32[] = full() {device="cpu", dtype=:float32, shape=(), value=2.0}
  %3: float32[4, 3] = mul(%0, %1)
  %4: float32[4, 3] = neg(%3)
  %5: float32[4, 3] = neg(%4)
  %6: float32[] = add(%1, %2)
  %7: float32[4, 3] = reshape(%5) {shape=(4,3,)}
  %8: float32[4, 3] = mul(%7, %6)
  %9: float32[4, 3] = mul(%0, %6)
  %10: float32[4, 3] = exp(%0)
  return %8, %9
}"""
    after = """graph g() {
  %0: float32[4, 3] = arg "x"
  %1: float32[] = full() {device="cpu", dtype=:float32, shape=(), value=3.0}
  %2: float32[4, 3] = mul(%0, %1)
  return %2, %2
}"""
    assert _simplified(before) == after


def test_simplify_keeps_what_would_change_bits() -> None:
    text = """graph g() {
  %0: float32[3] = arg "x"
  %1: float32[] = full() {device="cpu", dtype=:float32, shape=(), value=0.0}
  %2: float32[3] = add(%0, %1)
  %3: float32[3] = mul(%0, %1)
  %4: float32[3] = sub(%0, %0)
  return %2, %3, %4
}"""
    assert _simplified(text) == text


# -- text ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1: expected 'graph"),
        ("graph g() {\n  %0: float32[2] = nosuch()\n}", "name of an op, got 'nosuch'"),
        ("graph g() {\n  %0: float32[2] = exp(%9)\n}", "a value defined above, got %9"),
        ("graph g() {\n  %0: float99[2] = arg \"x\"\n}", "a dtype"),
        ("graph g() {\n  return %0\n}", "a value defined above"),
        ("graph g() {\n  %0: float32[n] = arg \"x\"\n}", "a dim named in the header"),
        ("graph g() {\n  %0: float32[2] = arg \"x\"\n  %1: float32[3] = exp(%0)\n}", "infers"),
    ],
)  # fmt: skip
def test_malformed_text(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_verifier_names_the_pass() -> None:
    g, (x,) = _graph((3,))
    y = g.add(OPS["exp"], x)
    g.nodes.clear()
    g.outputs = [y]
    with pytest.raises(InternalError, match="after some_pass: result"):
        verify(g, "some_pass")


# -- checks ----------------------------------------------------------------------------------------
CHECKED = """\
graph g() {
  %0: float32[9, 4] = arg "x"
  %1: int64[6] = arg "i"
  %2: float32[6, 4] = index(%0, %1) {dims=(0,)}
  %3: float32[2, 4] = slice(%2) {starts=(0,0,), steps=(1,1,), stops=(2,4,)}
  return %3
}
"""


def test_a_part_of_a_checked_result_keeps_all_its_checks() -> None:
    program = lower(simplify(parse(CHECKED)))
    before = program_text(program)
    assert program.checks == [] and "check0" not in before
    program = keep_checks(program)
    (check,) = program.checks
    wrong = "not(((-9 <= in1[i0]) & (in1[i0] <= 8)))"
    flag = f"(int32(check(select({wrong}, 1, 0), 1)) != 0)"
    lines = before.splitlines()
    lines.insert(-1, f"check0: bool[] = any over [6] (lanes) of {flag}")
    assert program_text(program).splitlines() == [*lines, "checks check0"]
    assert check in program.roots and check not in program.results


@pytest.mark.parametrize(
    ("reader", "shape", "checks"),
    [
        ("neg(%2)", "6, 4", 0),
        ("permute(%2) {axes=(1,0,)}", "4, 6", 0),
        ("flip(%2) {axes=(0,)}", "6, 4", 0),
        ("reshape(%2) {shape=(3,8,)}", "3, 8", 0),
        ("pad(%2) {high=(1,0,), interior=(0,0,), low=(1,0,), value=0}", "8, 4", 0),
        ("pad(%2) {high=(1,0,), interior=(0,0,), low=(-1,0,), value=0}", "6, 4", 1),
        ("slice(%2) {starts=(0,1,), steps=(1,1,), stops=(6,4,)}", "6, 3", 0),  # columns alone
        ("slice(%2) {starts=(0,0,), steps=(2,1,), stops=(6,4,)}", "3, 4", 1),
        ("sum(%2) {axes=(0,), keepdim=False}", "4", 0),
        ("neg(%0)", "9, 4", 1),
    ],
)
def test_which_readers_compute_all_of_it(reader: str, shape: str, checks: int) -> None:
    head, _, _ = CHECKED.partition("  %3")
    graph = parse(f"{head}  %3: float32[{shape}] = {reader}\n  return %3\n}}\n")
    assert len(keep_checks(lower(simplify(graph))).checks) == checks
