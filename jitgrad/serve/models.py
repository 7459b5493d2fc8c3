"""What can be served: an exported graph (`.jgx`), a native library (`.so`), an ONNX model, behind
one face.

Owns `load_model` and `warm_up`. A model has ports, and runs on NumPy arrays; `rows` says how many
rows requests that share a call may have, 0 where none can: where its first axis is free in every
input and output, calls are concatenated there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jitgrad import onnx
from jitgrad.autograd.modes import no_grad
from jitgrad.compiler.symbolic import LARGEST
from jitgrad.exported import load_exported
from jitgrad.jit import jit
from jitgrad.pytree import leaves_of
from jitgrad.runtime import dtypes, load
from jitgrad.serve.protocol import Port, can_serve
from jitgrad.settings import set_num_threads
from jitgrad.tensor import wrap_array

Array = np.ndarray[Any, Any]


class Model(Protocol):
    """What a worker runs."""

    inputs: list[Port]
    outputs: list[Port]
    rows: int

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The results of one call."""


def warm_up(model: Model) -> None:
    """Compiles what requests of one row, and of several, will need. Zeros may be no good input."""
    for size in (1, 2) if any(-1 in p.shape for p in model.inputs) else (1,):
        shapes = [tuple(size if n < 0 else n for n in p.shape) for p in model.inputs]
        inputs = [
            np.zeros(shape, dtypes.BY_NAME[p.dtype].np)
            for p, shape in zip(model.inputs, shapes, strict=True)
        ]
        with contextlib.suppress(Exception):
            model.run(inputs)


def load_model(path: str | os.PathLike[str], threads: int | None = None) -> Model:
    """A model from its file. Raises ArtifactError or OSError for a file that cannot be loaded,
    ValueError for one of another kind, or with a dtype that the protocol lacks."""
    suffix = Path(path).suffix
    if suffix == ".jgx":
        model: Model = _Graph(path, threads)
    elif suffix in (".so", ".dylib"):
        model = _Library(path, threads)
    elif suffix == ".onnx":
        model = _Onnx(path, threads)
    else:
        raise ValueError(
            f"[serve] expected a .jgx file (Exported.save), a library (Exported.native) or an "
            f".onnx file; got {os.fspath(path)!r}"
        )
    for port in (*model.inputs, *model.outputs):
        if not can_serve(port.dtype):
            raise ValueError(f"[serve] {port.name!r} is {port.dtype}, which the protocol lacks")
    return model


class _Graph:
    def __init__(self, path: str | os.PathLike[str], threads: int | None) -> None:
        if threads is not None:
            set_num_threads(threads)
        self._exported = exported = load_exported(path)
        values = [i.value for i in exported.graph.inputs if i.kind == "arg"]
        self.inputs = _ports(exported.input_names, values)
        self.outputs = _ports(exported.output_names, exported.graph.outputs)
        shapes = [v.type.shape for v in (*values, *exported.graph.outputs)]
        self.rows = LARGEST if values and _shared_axis(shapes) is not None else 0

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        tensors = [wrap_array(np.ascontiguousarray(a)) for a in inputs]
        results = leaves_of(self._exported(*tensors))
        return [y.numpy() for y in results]


def _ports(names: Sequence[str], values: Sequence[Any]) -> list[Port]:
    return [
        _port(name, v.type.dtype.name, v.type.shape) for name, v in zip(names, values, strict=True)
    ]


def _port(name: str, dtype: str, shape: Sequence[Any]) -> Port:
    return Port(name, dtype, tuple([d if isinstance(d, int) else str(d) for d in shape]))


def _shared_axis(shapes: Sequence[Sequence[Any]]) -> str | None:
    """The size that is the first of every shape, if it may differ from call to call."""
    first = {str(shape[0]) if shape else "" for shape in shapes}
    name = first.pop()
    return name if not first and name and not name.isdigit() else None


class _Onnx:
    """Compiled as @jit does, for the sizes of the first call and, from the second sizes on, for all
    that the model declares free."""

    def __init__(self, path: str | os.PathLike[str], threads: int | None) -> None:
        if threads is not None:
            set_num_threads(threads)
        module = onnx.load(path).eval()
        self._run = jit(module)
        inputs, outputs = module.ports()
        self.inputs, self.outputs = ([_port(*p) for p in k] for k in (inputs, outputs))
        shapes = [shape for _, _, shape in (*inputs, *outputs)]
        self.rows = LARGEST if inputs and _shared_axis(shapes) is not None else 0

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        with no_grad():
            results = self._run(*[wrap_array(np.ascontiguousarray(a)) for a in inputs])
        return [y.numpy() for y in leaves_of(results)]


class _Library:
    def __init__(self, path: str | os.PathLike[str], threads: int | None) -> None:
        self._library = load(path, threads=threads)
        ports = self._library.inputs, self._library.outputs
        self.inputs, self.outputs = ([_port(p.name, p.dtype, p.shape) for p in k] for k in ports)
        axis = _shared_axis([p.shape for k in ports for p in k]) if self.inputs else None
        self.rows = self._library.sizes[axis][1] if axis in self._library.sizes else 0

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        results = self._library(*inputs)
        return list(results) if isinstance(results, tuple) else [results]
