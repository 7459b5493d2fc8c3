"""Compiled code against the references: every op record's samples, and random graphs.

Both with static shapes and with every dim symbolic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph
from test_passes import reference

import jitgrad.compiler.ops.control  # noqa: F401 (for its records)
from jitgrad.compiler.fixed_sizes import at_sizes
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.record import Op, Sample
from jitgrad.compiler.pipeline import Options, compile_graph
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import CompileError

# Relative tolerance by the dtype's bytes; the ulp of each op is tested in test_math.py.
_RTOL = {2: 1e-2, 4: 2e-5, 8: 1e-12}
_COMPLEX = ("complex64", "complex128")


def _close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    rtol = _RTOL[got.dtype.itemsize]
    scale = np.abs(want.astype(np.float64))
    finite = scale[np.isfinite(scale)]
    atol = rtol * min(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol
    )


def _run(op: Op, sample: Sample, symbolic: bool) -> None:
    graph = Graph()
    args = [np.asarray(a) for a in sample.args]
    names: dict[int, Any] = {}
    values = []
    for i, a in enumerate(args):
        shape = tuple(
            names.setdefault(d, graph.env.dim(f"n{d}", d)) if symbolic and d > 1 else d
            for d in a.shape
        )
        values.append(
            graph.add_input(TensorType(shape, dtypes.from_numpy(a.dtype)), "arg", f"x{i}")
        )
    graph.outputs = list(graph.add_node(op, values, sample.attrs))
    strides = tuple(
        (i, tuple(s // a.itemsize for s in a.strides))
        for i, a in enumerate(args)
        if not a.flags.c_contiguous
    )
    compiled = compile_graph(graph, Options(strides=() if symbolic else strides))
    copies = [np.ascontiguousarray(a) for a in args] if symbolic else args
    try:
        with np.errstate(all="ignore"):
            out = op.reference(*(a.copy() for a in args), **sample.attrs)
    except (IndexError, RuntimeError, ZeroDivisionError) as expected:
        with pytest.raises(type(expected)):
            compiled.run(copies)
        return
    got = compiled.run(copies)
    for x, y in zip(got, out if isinstance(out, tuple) else (out,), strict=True):
        _close(x, np.asarray(y))


def _samples(op: Op) -> list[Sample]:
    return [
        s for s in op.samples() if not any(np.asarray(a).dtype.name in _COMPLEX for a in s.args)
    ]


@pytest.mark.parametrize("name", sorted(OPS))
def test_samples(name: str) -> None:
    op = OPS[name]
    for sample in _samples(op):
        try:
            _run(op, sample, symbolic=False)
        except BaseException as e:
            e.add_note(f"sample {sample.note!r} {[np.asarray(a).shape for a in sample.args]} "
                       f"{sample.attrs}")  # fmt: skip
            raise


@pytest.mark.parametrize("name", sorted(OPS))
def test_samples_with_symbolic_dims(name: str) -> None:
    """A few of the samples (all of them in the long tier): attributes may pin dims."""
    _symbolic(OPS[name], 3)


def _symbolic(op: Op, limit: int | None) -> None:
    tried = 0
    for sample in _samples(op):
        shapes = [np.asarray(a).shape for a in sample.args]
        if not any(d > 1 for s in shapes for d in s):
            continue
        if any(isinstance(v, tuple) and k in ("shape",) for k, v in sample.attrs.items()):
            continue
        tried += 1
        if limit is not None and tried > limit:
            return
        try:
            _run(op, sample, symbolic=True)
        except BaseException as e:
            e.add_note(f"sample {sample.note!r} {shapes} {sample.attrs}")
            raise


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(OPS))
def test_all_samples_with_symbolic_dims(name: str) -> None:
    _symbolic(OPS[name], None)


def _without(op: Op, sample: Sample) -> None:
    """The sample with each of its sizes at 0, by code that takes that."""
    args = [np.asarray(a) for a in sample.args]
    sizes = {f"n{d}": d for a in args for d in a.shape if d > 1}
    graph = Graph()
    dims = {d: graph.env.dim(name, d) for name, d in sizes.items()}
    values = []
    for i, a in enumerate(args):
        shape = tuple(dims.get(d, d) for d in a.shape)
        values.append(
            graph.add_input(TensorType(shape, dtypes.from_numpy(a.dtype)), "arg", f"x{i}")
        )
    graph.outputs = list(graph.add_node(op, values, sample.attrs))
    asked = list(graph.env.guards)
    graph.env.low.update(dict.fromkeys(sizes, 0))
    compiled = compile_graph(graph)
    for name, size in sizes.items():
        call = {**sizes, name: 0}
        if not all(g.holds(call) for g in asked):
            continue
        none = [a[tuple(slice(0 if d == size else d) for d in a.shape)] for a in args]
        try:
            at_sizes(graph, call)
            with np.errstate(all="ignore"):
                out = op.reference(*(a.copy() for a in none), **sample.attrs)
        except (CompileError, RuntimeError, ValueError, IndexError, ZeroDivisionError):
            continue  # the op does not take it
        room = [np.zeros(max(a.size, 1 << 12), a.dtype)[: a.size].reshape(a.shape) for a in none]
        for to, a in zip(room, none, strict=True):
            to[...] = a
        got = compiled.run(room, tuple(call[n] for n in graph.env.hints))
        for x, y in zip(got, out if isinstance(out, tuple) else (out,), strict=True):
            _close(x, np.asarray(y))


def _samples_without(op: Op) -> None:
    for sample in _samples(op):
        if any(d > 1 for a in sample.args for d in np.shape(a)) and not op.random:
            try:
                _without(op, sample)
            except BaseException as e:
                e.add_note(f"sample {sample.note!r} {sample.attrs}")
                raise


@pytest.mark.parametrize("name", ["concatenate", "pad", "slice_update", "sum", "matmul"])
def test_samples_without_elements(name: str) -> None:
    _samples_without(OPS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(OPS))
def test_all_samples_without_elements(name: str) -> None:
    _samples_without(OPS[name])


def _check_random(seed: int) -> None:
    graph, arrays = random_graph(seed)
    want = reference(graph, arrays)
    compiled = compile_graph(graph)
    inputs = [a.copy() for a in arrays]
    got = compiled.run(inputs)
    n = len(graph.outputs)
    for a, b in zip(got, want[:n], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    written = {w.input: v for w, v in zip(graph.writes, want[n:], strict=True)}
    for i, a in enumerate(inputs):
        np.testing.assert_allclose(a, written.get(i, arrays[i]), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_random_graphs(start: int) -> None:
    for seed in range(start, start + 10):
        _check_random(seed)


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 3000, 100))
def test_many_random_graphs(start: int) -> None:
    for seed in range(start, start + 100):
        _check_random(seed)
