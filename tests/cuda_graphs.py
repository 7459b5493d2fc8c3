"""Graphs on a GPU or its simulator compared with references and with the CPU back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.compiler.codegen.cuda.target import target_of_device
from jitgrad.compiler.cuda_compiled import CudaCompiled
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops.record import Op, Sample
from jitgrad.compiler.options import Options
from jitgrad.compiler.pipeline import compile_cuda
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.cuda import arrays, device
from jitgrad.runtime.cuda.arrays import host_copy

# Relative tolerance by the dtype's bytes: libdevice's functions are within 2 ulp or so.
RTOL = {2: 1e-2, 4: 2e-5, 8: 1e-12}


def close(got: np.ndarray, want: np.ndarray, scale: float = 1.0) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    rtol = RTOL[got.dtype.itemsize] * scale
    size = np.abs(want.astype(np.float64))
    finite = size[np.isfinite(size)]
    atol = rtol * min(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol
    )


def graph_of(op: Op, args: Sequence[np.ndarray], attrs: dict[str, Any], symbolic: bool) -> Graph:
    """A graph of one node; with `symbolic`, sizes above 1 are symbolic dims."""
    graph = Graph()
    names: dict[int, Any] = {}
    values = []
    for i, a in enumerate(args):
        shape = tuple(
            names.setdefault(d, graph.env.dim(f"n{d}", d)) if symbolic and d > 1 else d
            for d in a.shape
        )
        kind = TensorType(shape, dtypes.from_numpy(a.dtype))
        values.append(graph.add_input(kind, "arg", f"x{i}"))
    graph.outputs = list(graph.add_node(op, values, attrs))
    return graph


def recorded(f: Any, *args: np.ndarray) -> Graph:
    """The graph that a function of tensors records."""
    specs = [jg.TensorSpec(a.shape, jg.tensor(a).dtype) for a in args]
    return jg.jit(f).lower(*specs).graph


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compiled(graph: Graph, **target: Any) -> CudaCompiled:
    """The graph compiled for the device; target: what of its CudaTarget is to be another."""
    here = device.device()
    wanted = replace(target_of_device(here.properties.arch), **target)
    return compile_cuda(graph, wanted, here, Options())


def on_host(x: Any) -> np.ndarray:
    """A result on the host: graphs whose types are the CPU's give such ones themselves."""
    return host_copy(x) if isinstance(x, arrays.DeviceArray) else x


def run(code: CudaCompiled, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results on the host of copies of the arrays on the device."""
    there = [arrays.to_device(a, device.device()) for a in args]
    return [on_host(x) for x in code.run(there)]


def run_writing(code: CudaCompiled, args: Sequence[np.ndarray]) -> tuple[list[Any], list[Any]]:
    """Results, and what the arrays are afterwards."""
    there = [arrays.to_device(a, device.device()) for a in args]
    got = [on_host(x) for x in code.run(there)]
    return got, [host_copy(x) for x in there]


def check_sample(op: Op, sample: Sample, symbolic: bool = False) -> CudaCompiled | None:
    """The op on the device gives what its reference gives, or raises what that raises."""
    args = [np.asarray(a) for a in sample.args]
    code = compiled(graph_of(op, args, sample.attrs, symbolic))
    try:
        with np.errstate(all="ignore"):
            want = op.reference(*(a.copy() for a in args), **sample.attrs)
    except (IndexError, RuntimeError, ZeroDivisionError) as expected:
        try:
            run(code, args)
        except type(expected):
            return code
        raise AssertionError(f"no {expected!r}") from expected
    got = run(code, args)
    for x, y in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        close(x, np.asarray(y))
    return code
