"""OnnxModule: an ONNX graph as a Module. Owns how its nodes are run, and where its parameters are.

Floating initializers are parameters, under their own names (with dots, a hierarchy of Modules, as
in the model that was exported), but for operands that say how to compute (the scales of Resize).
Large ones of other dtypes are buffers, small ones constants of the graph: shapes, axes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.onnx.errors import OnnxLoadError, OnnxNodeError, OnnxUnsupportedError
from jitgrad.onnx.importing import attention as attention
from jitgrad.onnx.importing import control as control
from jitgrad.onnx.importing import elementwise as elementwise
from jitgrad.onnx.importing import linear_attention as linear_attention
from jitgrad.onnx.importing import ml as ml
from jitgrad.onnx.importing import networks as networks
from jitgrad.onnx.importing import quantization as quantization
from jitgrad.onnx.importing import recurrent as recurrent
from jitgrad.onnx.importing import reductions as reductions
from jitgrad.onnx.importing import sampling as sampling
from jitgrad.onnx.importing import shapes as shapes
from jitgrad.onnx.importing import signals as signals
from jitgrad.onnx.importing import training as training
from jitgrad.onnx.importing.calls import (
    HANDLERS,
    Call,
    apart,
    as_array,
    as_tensor,
    dtype_of,
    is_known,
)
from jitgrad.onnx.importing.conditions import KEY, check_conditions, read_conditions
from jitgrad.onnx.importing.reader import (
    Function,
    Graph,
    Model,
    Node,
    Port,
    Reference,
    builtin_function,
    read_model,
    walk,
)
from jitgrad.runtime.errors import CompileError
from jitgrad.tensor import Tensor

Declared = tuple[str, str, tuple[int | str, ...]]
_FEW = 64  # elements of integer initializers whose numbers Python may need
_FLOATING = ("float16", "bfloat16", "float32", "float64")
_CONTROL = (CompileError, OnnxLoadError, OnnxNodeError, OnnxUnsupportedError, MemoryError)


class Program:
    """What a Module runs, which never changes: the model, its constants by name, the paths of its
    parameters and buffers by name, and what must hold of the sizes of its inputs."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.constants: dict[str, Any] = {}
        self.paths: dict[str, tuple[str, ...]] = {}
        self.inputs = [p for p in model.graph.inputs if p.name not in model.graph.initializers]
        shown = {d for p in self.inputs for d in p.dims or () if isinstance(d, str)}
        self.conditions = read_conditions(model.metadata.get(KEY, ""), shown)

    def __deepcopy__(self, memo: Any) -> Program:
        return self


def _sealed(program: Program) -> Callable[[], Program]:
    """A function that gives the program: jit guards no state behind functions of our own."""
    return lambda: program


class OnnxModule(Module):
    """A loaded model. `forward` takes the model's inputs in order (or by name) and gives its
    outputs: one, or a tuple.

    Attributes: input_names, output_names; opset; producer.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        _check_ops(model)
        program = Program(model)
        graph = model.graph
        self.opset = model.opsets.get("", 1)
        self.producer = model.producer
        self.input_names = tuple(p.name for p in program.inputs)
        self.output_names = tuple(p.name for p in graph.outputs)
        numbers = _numbers(model)
        for name, array in graph.initializers.items():
            if name in numbers or (array.dtype.name not in _FLOATING and array.size <= _FEW):
                program.constants[name] = array
            elif array.dtype.name in _FLOATING:
                program.paths[name] = self._keep(name, Parameter(as_tensor(array)))
            else:
                program.paths[name] = self._keep(name, as_tensor(array))
        graph.initializers = {}
        self._program = _sealed(program)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_program": self._program()}

    def __setstate__(self, held: dict[str, Any]) -> None:
        super().__setstate__({**held, "_program": _sealed(held["_program"])})

    def _keep(self, name: str, x: Tensor) -> tuple[str, ...]:
        """Registers a parameter or buffer under its name; where that cannot be, under one without
        dots. Gives its path."""
        *path, last = name.split(".")
        holder: Module = self
        for part in path:
            child = holder._modules.get(part)
            if child is None:
                if not part or hasattr(holder, part):
                    break
                child = Module()
                holder.add_module(part, child)
            holder = child
        else:
            if last and not hasattr(holder, last):
                _register(holder, last, x)
                return (*path, last)
        plain = name.replace(".", "_") or "_"
        while hasattr(self, plain):
            plain += "_"
        _register(self, plain, x)
        return (plain,)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Runs the graph. Raises TypeError or ValueError for inputs that do not fit, naming them;
        OnnxNodeError where a node fails."""
        program = self._program()
        given = dict(zip(self.input_names, inputs, strict=False))
        given.update(named)
        needed = [p.name for p in program.inputs if p.kind != "optional"]
        if len(inputs) > len(program.inputs) or any(n not in given for n in needed):
            raise TypeError(
                f"[onnx] expected the inputs {', '.join(self.input_names) or 'none'}; got "
                f"{len(inputs)} and {sorted(named)}"
            )
        unknown = [n for n in named if n not in self.input_names]
        if unknown or len(given) < len(inputs) + len(named):
            raise TypeError(f"[onnx] expected each input once; got {sorted(named)} besides")
        values: dict[str, Any] = dict(program.constants)
        for name, path in program.paths.items():
            found: Any = self
            for part in path:
                found = getattr(found, part)
            values[name] = found
        dims: dict[str, Any] = {}
        for port in program.inputs:
            if port.name in given:
                values[port.name] = _fitting(given[port.name], port, dims)
            else:
                values[port.name] = None
        check_conditions(program.conditions, dims)
        run = Run(program.model, program.model.opsets)
        results = run.graph(program.model.graph, values)
        made = [_result(r) for r in results]
        return made[0] if len(made) == 1 else tuple(made)

    def ports(self) -> tuple[list[Declared], list[Declared]]:
        """What the model declares of its inputs and outputs: name, dtype, and shape, in which sizes
        that may differ are names. Raises OnnxLoadError where it does not say, or of lists."""
        graph = self._program().model.graph
        return [_declared(p) for p in self._program().inputs], [_declared(p) for p in graph.outputs]

    def ops(self) -> dict[str, int]:
        """How often each op is there."""
        counts: dict[str, int] = {}
        for node in walk(self._program().model.graph.nodes):
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return counts

    def extra_repr(self) -> str:
        ops = sum(1 for _ in walk(self._program().model.graph.nodes))
        return f"({', '.join(self.input_names)}) -> ({', '.join(self.output_names)}), {ops} nodes"


def _declared(port: Port) -> Declared:
    if port.kind != "tensor" or not port.type or port.dims is None:
        raise OnnxLoadError(
            f"[onnx] expected a model that declares dtype and rank of {port.name!r}, a tensor; it "
            "does not; give it example inputs: jitgrad.export(jitgrad.onnx.load(path), ...)"
        )
    shape = tuple([
        d if isinstance(d, int) and d >= 0 else str(d or f"{port.name}_{k}")
        for k, d in enumerate(port.dims)
    ])  # fmt: skip
    return port.name, dtype_of(port.type).name, shape


def _register(holder: Module, name: str, x: Tensor) -> None:
    if isinstance(x, Parameter):
        holder.register_parameter(name, x)
    else:
        holder.register_buffer(name, x)


def load_model(source: str | os.PathLike[str] | bytes) -> OnnxModule:
    """See `jitgrad.onnx.load`."""
    return OnnxModule(read_model(source))


def _check_ops(model: Model) -> None:
    """Raises OnnxUnsupportedError that lists every op that is not there, with its nodes. Ops that
    ONNX itself defines by others become functions of the model."""
    missing: dict[str, list[str]] = {}
    bodies: list[tuple[Sequence[Node], Mapping[str, int]]] = [(model.graph.nodes, model.opsets)]
    bodies += [(f.nodes, f.opsets) for f in model.functions.values()]
    for nodes, opsets in bodies:  # grows by ONNX's own definitions
        for node in walk(nodes):
            key = (node.domain, node.op_type)
            if key in HANDLERS or key in model.functions:
                continue
            function = builtin_function(node, opsets)
            if function is not None:
                model.functions[key] = function
                bodies.append((function.nodes, function.opsets))
                continue
            op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing.setdefault(op, []).append(node.name or ", ".join(node.outputs))
    if missing:
        lines = [
            f"  {op}: {', '.join(map(repr, nodes[:8]))}{' ...' if len(nodes) > 8 else ''}"
            for op, nodes in sorted(missing.items())
        ]
        raise OnnxUnsupportedError(
            f"[onnx.load] {len(missing)} of the model's ops are not supported:\n" + "\n".join(lines)
        )


# Operands whose numbers Python needs, though they may be floats.
_NUMBERS = {
    "Dropout": (1,), "MelWeightMatrix": (3, 4), "NonMaxSuppression": (3, 4), "OneHot": (1,),
    "Pad": (2,), "Range": (0, 1, 2), "Resize": (1, 2), "Upsample": (1,),
}  # fmt: skip


def _numbers(model: Model) -> set[str]:
    """The names of values that are needed as numbers."""
    return {
        node.inputs[i]
        for node in walk(model.graph.nodes)
        for i in _NUMBERS.get(node.op_type, ())
        if not node.domain and i < len(node.inputs)
    }


def _fitting(x: Any, port: Port, dims: dict[str, Any]) -> Any:
    """An input, checked against what the model declares."""
    if port.kind != "tensor":
        return list(x) if isinstance(x, (list, tuple)) else x
    if not isinstance(x, Tensor):
        raise TypeError(
            f"[onnx] expected input {port.name!r} to be a Tensor; got {type(x).__name__}"
        )
    if port.type and x.dtype is not dtype_of(port.type):
        raise TypeError(
            f"[onnx] expected input {port.name!r} of dtype {dtype_of(port.type)}; got {x.dtype}; "
            "convert with .to(dtype)"
        )
    if port.dims is None:
        return x
    wanted = [dims.get(d, d) if isinstance(d, str) else d for d in port.dims]
    if len(wanted) != x.ndim or any(map(_differs, wanted, x.shape)):
        raise ValueError(
            f"[onnx] expected input {port.name!r} of shape {wanted}; got {list(x.shape)}"
        )
    for d, n in zip(port.dims, x.shape, strict=True):
        if isinstance(d, str) and d:
            dims.setdefault(d, n)  # under @jit a size may be symbolic: no int()
    return x


def _differs(declared: Any, size: Any) -> bool:
    """Whether a size is not as declared; names, and numbers below 1, declare nothing."""
    if declared is None or isinstance(declared, str):
        return False
    if isinstance(declared, int) and declared < 1:
        return False
    return bool(declared != size)


def _result(x: Any) -> Any:
    """A result for the caller: tensors, also where a value was known beforehand."""
    if isinstance(x, np.ndarray):
        return as_tensor(x)
    return [_result(y) for y in x] if isinstance(x, list) else x


class Run:
    """One run of a model's graph: environments of values, by name."""

    def __init__(self, model: Model, opsets: Mapping[str, int]) -> None:
        self.model, self.opsets = model, opsets

    def graph(self, graph: Graph, values: dict[str, Any]) -> list[Any]:
        """Runs a graph's nodes in order; `values` has its inputs, and what is outside of it."""
        values.update(graph.initializers)
        self.nodes(graph.nodes, values)
        return [values[p.name] for p in graph.outputs]

    def subgraph(self, call: Call, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Runs a graph that a node holds. It sees the values around the node."""
        if len(inputs) != len(graph.inputs):
            raise ValueError(f"its graph takes {len(graph.inputs)} inputs; got {len(inputs)}")
        inner = dict(call.run.scope)
        inner.update(zip((p.name for p in graph.inputs), inputs, strict=True))
        return self.graph(graph, inner)

    scope: Mapping[str, Any] = {}

    def nodes(self, nodes: Sequence[Node], values: dict[str, Any]) -> None:
        outer = self.scope
        for node in nodes:
            self.scope = values
            made = self.node(node, [values[n] if n else None for n in node.inputs])
            results = made if isinstance(made, tuple) else (made,)
            if len(results) < len(node.outputs):
                raise OnnxNodeError(
                    f"[onnx] node {node} names {len(node.outputs)} results; it has {len(results)}"
                )
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    values[name] = result
        self.scope = outer

    def node(self, node: Node, operands: list[Any]) -> Any:
        """The result, or tuple of results, of one node."""
        key = (node.domain, node.op_type)
        function = self.model.functions.get(key)
        if function is not None:
            return self.function(function, node, operands)
        found = HANDLERS[key]
        call = Call(node, operands, self.opsets.get(node.domain, 1), self)
        try:
            if found.folds and all(is_known(x) for x in operands):
                with apart():
                    made = _known(found.run(call))
            else:
                made = found.run(call)
        except _CONTROL:
            raise
        except Exception as error:
            shapes = ", ".join(_described(x) for x in operands)
            raise OnnxNodeError(
                f"[onnx] node {node} failed: {type(error).__name__}: {error} (operands {shapes})"
            ) from error
        unread = sorted(set(node.attributes) - call.read)
        if unread:
            raise OnnxUnsupportedError(f"[onnx] {node}: {', '.join(unread)} is not supported")
        return made

    def function(self, f: Function, node: Node, operands: list[Any]) -> Any:
        """Runs the body of a function; its values are its own."""
        if len(operands) > len(f.inputs):
            raise OnnxNodeError(f"[onnx] node {node} has {len(operands)} operands; too many")
        padded = [*operands, *[None] * (len(f.inputs) - len(operands))]
        values = dict(zip(f.inputs, padded, strict=True))
        inner = Run(self.model, {**self.opsets, **f.opsets})
        inner.nodes([_bound(n, {**f.defaults, **node.attributes}) for n in f.nodes], values)
        return tuple(values[n] for n in f.outputs)


def _bound(node: Node, attributes: Mapping[str, Any]) -> Node:
    """A node of a function with the call's attributes in their places."""
    bound: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, Reference):
            if value.name in attributes:
                bound[name] = attributes[value.name]
        elif isinstance(value, Graph):
            bound[name] = Graph(
                value.name, value.inputs, value.outputs,
                [_bound(n, attributes) for n in value.nodes], value.initializers,
            )  # fmt: skip
        else:
            bound[name] = value
    return Node(node.op_type, node.domain, node.name, node.inputs, node.outputs, bound)


def _known(made: Any) -> Any:
    """Results of operands that are known, as arrays."""
    if isinstance(made, tuple):
        return tuple(_known(x) for x in made)
    return as_array(made).copy() if isinstance(made, Tensor) else made


def _described(x: Any) -> str:
    if x is None:
        return "absent"
    if isinstance(x, (Tensor, np.ndarray)):
        return f"{x.dtype}{list(x.shape)}"
    return type(x).__name__
