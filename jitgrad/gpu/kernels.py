"""Eager code on a GPU: each op is a compiled kernel of its own, kept for its types and strides.

Owns when arrays are views, copies between devices, and writes into tensors on a device (`store`).
Code of ops is made by the compiler's GPU pipeline (compiler/pipeline.py, compile_cuda), as for jit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.compiler.codegen.cuda.target import target_of_device
from jitgrad.compiler.ir import Graph, Input, Node, Value, Write
from jitgrad.compiler.one_gpu import gpu_of
from jitgrad.compiler.options import Options
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import plans
from jitgrad.gpu import computes
from jitgrad.runtime import cuda, dtypes
from jitgrad.runtime.errors import InternalError

Array = np.ndarray[Any, Any]
Strides = tuple[tuple[int, tuple[int, ...]], ...]


def index_of(device: str) -> int:
    """The number of "cuda:1"."""
    return int(device.partition(":")[2] or 0)


def graph_device(graph: Graph) -> int | None:
    """The number of the GPU that a graph computes on; None for the CPU. Raises CompileError where
    its values lie on more than one."""
    found = gpu_of(graph)
    return None if found is None else index_of(found)


def compile_for(graph: Graph, index: int, options: Options) -> Any:
    """A graph compiled for a GPU and loaded there."""
    from jitgrad.compiler.pipeline import compile_cuda

    device = cuda.device.device(index)
    target = target_of_device(device.properties.arch)
    if device.blas is not None:
        target = replace(target, blas=True)
    return compile_cuda(graph, target, device, options)


def strides_of(arrays: Sequence[Array]) -> Strides:
    """Which arrays are not dense, and their steps in elements."""
    return tuple(
        (i, tuple(s // x.itemsize for s in x.strides))
        for i, x in enumerate(arrays)
        if not x.flags.c_contiguous and isinstance(x, cuda.arrays.DeviceArray)
    )


def device_kernel(
    op: Any, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
) -> Callable[..., Any]:
    """What runs an op of which an operand or a result is on a GPU. Attributes are part of its code:
    0 and -0.0 have code of their own, found again here, as one plan cannot serve both."""
    zeros = zeros_of(attrs)
    if not zeros:
        return _device_kernel(op, types, outs, attrs)
    signs = tuple([math.copysign(1.0, attrs[k]) for k in zeros])
    key = (op, tuple(types), tuple(outs), tuple(attrs.items()), signs)
    try:
        found = _with_zeros.get(key)
    except TypeError:  # an attribute that cannot be hashed
        return _device_kernel(op, types, outs, attrs)
    if found is None:
        if len(_with_zeros) >= _MOST:
            _with_zeros.clear()
        found = _with_zeros[key] = _device_kernel(op, types, outs, attrs)
    return found


def zeros_of(attrs: dict[str, Any]) -> list[str]:
    """The attributes that are 0 or, equal to it, -0.0."""
    return [k for k, v in attrs.items() if type(v) in (int, float) and v == 0]


_with_zeros: dict[Any, Callable[..., Any]] = {}
_MOST = 1024


def _device_kernel(
    op: Any, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
) -> Callable[..., Any]:
    if op.name == "to_device":
        target = outs[0].device
        later = bool(attrs.get("non_blocking"))
        return lambda x: moved(x, target, later)
    if op.view:
        return _View(op, types, attrs)
    if all(t.numel == 0 for t in outs):
        return _Empty(outs)
    return _OnDevice(op, types, attrs)


class _OnDevice:
    """An op's kernels, by the strides of its operands."""

    def __init__(self, op: Any, types: Sequence[TensorType], attrs: dict[str, Any]) -> None:
        self.op, self.types, self.attrs = op, tuple(types), dict(attrs)
        self.made: dict[Strides, Any] = {}

    def __call__(self, *arrays: Array) -> Any:
        strides = strides_of(arrays)
        code = self.made.get(strides)
        if code is None:
            code = self.made[strides] = self._compile(strides)
        results = code.run(arrays)
        return results[0] if self.op.nout == 1 else tuple(results)

    def _compile(self, strides: Strides) -> Any:
        values = [Value(t, name=f"x{i}") for i, t in enumerate(self.types)]
        node = Node(self.op, values, self.attrs)
        graph = Graph(name=self.op.name)
        graph.inputs = [Input(v, "arg", v.name) for v in values]
        graph.nodes, graph.outputs = [node], list(node.outputs)
        index = graph_device(graph)
        assert index is not None
        return compile_for(graph, index, Options(strides=strides))


class _View(_OnDevice):
    """A view op: its reference, which touches no element, or a kernel where that must copy."""

    def __call__(self, *arrays: Array) -> Any:
        try:
            shown = self.op.reference(*arrays, **self.attrs)
        except InternalError:
            return super().__call__(*arrays)
        if not is_there(shown):
            raise InternalError(f"a view by {self.op.name} of an array on a GPU is the host's")
        return shown


MADE_OF_ATTRIBUTES = {_OnDevice, _View}
"""Kernels that hold the attributes of the application that they were made for."""


class _Empty:
    """Results without elements."""

    def __init__(self, outs: Sequence[TensorType]) -> None:
        self.outs = tuple(outs)

    def __call__(self, *arrays: Array) -> Any:
        made = [new_array(t) for t in self.outs]
        return made[0] if len(made) == 1 else tuple(made)


def new_array(t: TensorType) -> Array:
    """An array of a type, where that is."""
    shape = tuple(map(int, t.shape))
    if t.device == "cpu":
        return np.empty(shape, t.dtype.np)
    found: Array = cuda.arrays.new(shape, t.dtype.np, cuda.device.device(index_of(t.device)))
    return found


# -- copies ----------------------------------------------------------------------------------------
def is_there(x: Any) -> bool:
    """Whether an array is on a GPU."""
    return type(x) is not np.ndarray and isinstance(x, cuda.arrays.DeviceArray)


def host_array(x: Array) -> Array:
    """A host array with the elements of an array: itself, or a copy from the GPU."""
    there: Any = x
    return cuda.arrays.host_copy(there) if is_there(x) else x


def on_host(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The arrays of a graph; those of a graph on a GPU are copied to the host."""
    return [host_array(a) for a in arrays] if computes(graph) else list(arrays)


def moved(x: Array, device: str, non_blocking: bool = False) -> Array:
    """A copy of an array on a device ("cpu", "cuda:0"). non_blocking: as of arrays.to_device, and
    of arrays.to_pinned."""
    if not is_there(x):
        if device == "cpu":
            return x.copy()
        target = cuda.device.device(index_of(device))
        return cuda.arrays.to_device(x, target, non_blocking=non_blocking)
    if device == "cpu" and not non_blocking:
        return host_array(x)
    source: Any = x
    if not x.flags.c_contiguous:
        source = _dense(x)
        if device == f"cuda:{source.device_index}":
            return source
    if device == "cpu":
        return cuda.arrays.to_pinned(source)
    target = cuda.device.device(index_of(device))
    if source.device_index == target.index:
        return cuda.arrays.duplicate(source)
    return cuda.arrays.to_peer(source, target)


def _dense(x: Any) -> Any:
    """A dense copy of an array on its device."""
    place = f"cuda:{x.device_index}"
    type_ = TensorType(x.shape, dtypes.from_numpy(x.dtype), place)
    made = new_array(type_)
    store(made, x, type_)
    return made


cuda.arrays.strided_copy = _dense
_stores: dict[Any, Any] = {}


def _forget() -> None:
    _stores.clear()
    _with_zeros.clear()
    plans.clear()


cuda.device.watch(_forget)


def store(target: Array, value: Array, type_: TensorType, non_blocking: bool = False) -> None:
    """target's elements become value's; one of them at least is on a GPU. non_blocking: copies of
    pinned memory, and into it, are not waited for."""
    if not target.size:
        return
    given: Any = value
    into: Any = target
    if not is_there(target):
        if non_blocking and target.flags.c_contiguous and cuda.pinned.is_pinned(target):
            cuda.arrays.to_pinned(given if given.flags.c_contiguous else _dense(given), target)
        else:
            np.copyto(target, host_array(value))
        return
    index = into.device_index
    device = cuda.device.device(index)
    if not is_there(value):
        if not any(s for s, n in zip(value.strides, value.shape, strict=True) if n > 1):
            _fill(into, value[(slice(0, 1),) * value.ndim], type_)
            return
        value = cuda.arrays.to_device(value, device, non_blocking=non_blocking)
    elif given.device_index != index:
        if not given.flags.c_contiguous:
            given = _dense(given)
        if target.flags.c_contiguous:
            cuda.arrays.to_peer(given, device, into)
            return
        value = cuda.arrays.to_peer(given, device)
    elif np.may_share_memory(target, value) and not _alike(target, value):
        value = _copied(given)  # what is written must not be read after it
    if target.flags.c_contiguous and value.flags.c_contiguous:
        stream = cuda.device.current_stream(index)
        device.driver.copy_within(
            index, address_of(target), address_of(value), target.nbytes, stream
        )
        return
    _run_store(target, value, type_)


def _fill(target: Any, one: Array, type_: TensorType) -> None:
    """target's elements become the one element of a host array: a number, which is part of
    captured work, and of which nothing is copied but the element."""
    index = target.device_index
    device = cuda.device.device(index)
    content = one.tobytes()
    if target.flags.c_contiguous and len(set(content)) == 1:
        stream = cuda.device.current_stream(index)
        device.driver.fill(index, address_of(target), content[0], target.nbytes, stream)
        return
    there = cuda.arrays.to_kernel(one, device)
    _run_store(target, np.broadcast_to(there, target.shape, subok=True), type_)


def _run_store(target: Array, value: Array, type_: TensorType) -> None:
    """target's elements become value's by a kernel; both are on one device."""
    index = cuda.arrays.device_of(target).index  # type: ignore[arg-type]
    strides = strides_of([target, value])
    key = (type_.shape, type_.dtype, index, strides)
    code = _stores.get(key)
    if code is None:
        place = TensorType(type_.shape, type_.dtype, f"cuda:{index}")
        into, of = Value(place, name="into"), Value(place, name="of")
        graph = Graph(name="store")
        graph.inputs = [Input(into, "arg", "into"), Input(of, "arg", "of")]
        graph.writes = [Write(0, of)]
        code = _stores[key] = compile_for(graph, index, Options(strides=strides))
    code.run([target, value])


def _copied(x: Any) -> Any:
    """A dense copy of an array on its device."""
    return cuda.arrays.duplicate(x) if x.flags.c_contiguous else _dense(x)


def _alike(x: Array, y: Array) -> bool:
    """Whether two arrays of one shape have each element in one place."""
    return address_of(x) == address_of(y) and x.strides == y.strides


def address_of(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
