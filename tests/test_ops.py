"""Every op record, on every sample of its own: the facets against each other.

Owns the harness driven by the records; it knows no op. Checks infer against the reference (with
fixed and with symbolic dims) and the loop definitions (through tests/loop_interpreter.py) against
the reference. Derivatives and batching are in test_op_derivatives.py.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from loop_interpreter import interpret
from op_cases import ALL_OPS, assert_close, cases, outputs, run

from jitgrad.compiler.loops import Array, Builder
from jitgrad.compiler.ops import Op
from jitgrad.compiler.ops.record import MANY, Sample
from jitgrad.compiler.symbolic import Dim, ShapeEnv, evaluate
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import from_numpy


def types_of(s: Sample) -> list[TensorType]:
    return [TensorType(a.shape, from_numpy(a.dtype)) for a in s.args]


def symbolic_types(s: Sample) -> tuple[list[TensorType], ShapeEnv]:
    """Operand types with every dim of at least 2 a symbol of its own."""
    env = ShapeEnv()
    types = []
    for a in s.args:
        dims: list[Dim] = [
            env.dim(f"n{len(env.hints)}", size) if size >= 2 else size for size in a.shape
        ]
        types.append(TensorType(tuple(dims), from_numpy(a.dtype)))
    return types, env


def test_every_op_has_samples() -> None:
    missing = [op.name for op in ALL_OPS if not list(op.samples())]
    assert not missing


@pytest.mark.parametrize(("op", "s"), cases())
def test_infer(op: Op, s: Sample) -> None:
    """infer, with fixed and with symbolic dims, says what the reference gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = run(op, s)
    assert len(results) == op.nout or op.nout == MANY
    for r, t in zip(results, outputs(op.infer(*types_of(s), **s.attrs)), strict=True):
        assert isinstance(r, np.ndarray)
        assert (r.shape, from_numpy(r.dtype)) == (t.shape, t.dtype)
    types, env = symbolic_types(s)
    for r, t in zip(results, outputs(op.infer(*types, **s.attrs)), strict=True):
        assert tuple(evaluate(d, env.hints) for d in t.shape) == r.shape
        assert t.dtype is from_numpy(r.dtype)
    assert env.holds(env.hints)


def has_loops(op: Op, s: Sample) -> bool:
    """Whether compiled code computes the sample in loops, not by calling the reference."""
    results = outputs(op.infer(*types_of(s), **s.attrs))
    if op.host or op.bodies:
        return False
    return not any(t.dtype.is_complex for t in (*types_of(s), *results))


# -- lowering --------------------------------------------------------------------------------------
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(("op", "s"), [c for c in cases() if has_loops(*c.values)])
def test_lower(op: Op, s: Sample, symbolic: bool) -> None:
    """The loop definitions compute what the reference does, also with symbolic dims."""
    types, env = symbolic_types(s) if symbolic else (types_of(s), ShapeEnv())
    operands = [Array(f"in{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    builder = Builder()
    made = outputs(op.lower(builder, *operands, **s.attrs))
    done = interpret(builder.arrays, dict(zip(operands, s.args, strict=True)), env.hints)
    assert not done.faults
    for array, wanted in zip(made, run(op, s), strict=True):
        assert_close(done.values[array], wanted)
