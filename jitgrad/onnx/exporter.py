"""An exported graph becomes an ONNX model: every node by its record's ONNX form.

Owns the walk over the graph, the list of what cannot be written, the check of the model, and its
files. The nodes are collected by writer.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jitgrad.compiler.ir import Graph, Node, Value, all_nodes
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.types import TensorType
from jitgrad.dynamic_shapes import conditions
from jitgrad.onnx.errors import OnnxExporterError, UnsupportedOperatorError
from jitgrad.onnx.importing.conditions import KEY
from jitgrad.onnx.opsets import NEWEST, OLDEST, ir_version
from jitgrad.onnx.symbolic import as_form, name_of, registered_function
from jitgrad.onnx.writer import Writer, value_info
from jitgrad.runtime.errors import CompileError
from jitgrad.version import jitgrad as own_version

if TYPE_CHECKING:
    from jitgrad.export import Exported

Weight = Callable[[np.ndarray[Any, Any], str], onnx.TensorProto]

LARGEST = 2**31 - 2**20  # protobuf's limit of 2 GiB for one message, less what is not weights
_SMALL = 1024  # bytes: weights below it stay in the model's own file
_MANY = 20  # nodes of one op that an error lists


@dataclass(frozen=True)
class OnnxFile:
    """What was written: the model's path, the weights' file or None, the opset, and the names."""

    path: str
    data: str | None
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """A node that cannot be written: its op, the user's line, and why."""

    op: str
    line: str
    reason: str


def unsupported(
    exported: Exported, *, opset: int = 18, custom: Mapping[str, Any] | None = None
) -> list[Missing]:
    """The nodes of an exported graph that have no ONNX form at this opset; [] if it can be written.

    Nothing is written. See `Exported.onnx` for the arguments.
    """
    _check_opset(opset)
    return _Walk(exported, opset, custom).missing


def to_model(
    exported: Exported, *, opset: int = 18, custom: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """The model in memory, unchecked. See `Exported.onnx` for arguments and errors; ValueError for
    weights over 2 GB, which no single message holds."""
    refuse_large(exported, "Exported.onnx(path), which writes them to a file of their own")
    return walked(exported, opset=opset, custom=custom).model(_inside)


def refuse_large(exported: Exported, instead: str) -> None:
    """Raises ValueError where the weights are too large for one message of protobuf."""
    size = _size(exported)
    if size > LARGEST:
        raise ValueError(
            f"[onnx] expected weights of at most {LARGEST:,} bytes in one file; got {size:,}; use "
            f"{instead}"
        )


def walked(
    exported: Exported, *, opset: int = 18, custom: Mapping[str, Any] | None = None
) -> _Walk:
    """Every node in its ONNX form, or the error that lists those that have none."""
    if exported.graph.writes:
        changed = [exported.graph.inputs[w.input].name for w in exported.graph.writes]
        raise CompileError(
            f"[onnx] expected a function of results only; {exported.graph.name} changes its state "
            f"({', '.join(changed[:5])}), which an ONNX model cannot; return the new values "
            "instead, or use .native or .save"
        )
    _check_opset(opset)
    walk = _Walk(exported, opset, custom)
    if walk.missing:
        raise UnsupportedOperatorError(_listed(walk.missing, exported.graph.name, opset))
    return walk


def write_onnx(
    exported: Exported,
    path: str | os.PathLike[str],
    *,
    opset: int = 18,
    custom: Mapping[str, Any] | None = None,
    external_data: bool | None = None,
) -> OnnxFile:
    """Writes the model and checks it as ONNX's checker does. See `Exported.onnx`."""
    target = Path(path)
    walk = walked(exported, opset=opset, custom=custom)
    apart = _size(exported) > LARGEST if external_data is None else external_data
    if not apart:
        refuse_large(exported, "external_data=True")
    data = _write(walk, target, apart)
    return OnnxFile(
        str(target), data, opset, tuple(exported.input_names), tuple(_outputs(exported))
    )


def _size(exported: Exported) -> int:
    return sum(a.nbytes for a in exported.state.values())


def _outputs(exported: Exported) -> list[str]:
    """What outputs are called. ONNX has one name for one value: an output that is called as an
    input is has "_out" behind its name."""
    taken = {*exported.input_names, *exported.output_names}
    found = []
    for name in exported.output_names:
        if name in exported.input_names:
            while name in taken:
                name += "_out"
            taken.add(name)
        found.append(name)
    return found


def _check_opset(opset: int) -> None:
    if not isinstance(opset, int) or not OLDEST <= opset <= NEWEST:
        raise ValueError(
            f"[onnx] expected an opset from {OLDEST} to {NEWEST} (what the installed onnx "
            f"{onnx.__version__} knows); got {opset!r}"
        )


def _listed(missing: list[Missing], name: str, opset: int) -> str:
    """The error's text: every op, with the lines that use it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for m in missing:
        groups.setdefault((m.op, m.reason), []).append(m.line or "?")
    lines = []
    for (op, reason), places in groups.items():
        distinct = list(dict.fromkeys(places))
        more = f" and {len(distinct) - _MANY} more lines" if len(distinct) > _MANY else ""
        lines.append(f"  {op}, at {', '.join(distinct[:_MANY])}{more}: {reason}")
    return (
        f"[onnx] cannot write {name} at opset {opset}: {len(groups)} of its ops have no ONNX form "
        "there:\n" + "\n".join(lines) + "\nReplace them, or say how they are written with "
        "jitgrad.onnx.register_custom_op_symbolic"
    )


class _Walk:
    """One pass over the graph: what each node became, or why it cannot be written."""

    def __init__(self, exported: Exported, opset: int, custom: Mapping[str, Any] | None) -> None:
        self.exported, self.outputs = exported, _outputs(exported)
        self.writer = Writer(opset, self.inline)
        with exported.graph.env.deciding_by_form():  # what calls may be given stays as it was
            self.graph: Graph = simplify(exported.graph, calls=True)
        self.custom = self._custom(custom or {})
        self.names: dict[Value, str] = {}
        self.missing: list[Missing] = []
        self._declare()
        for node in self.graph.nodes:
            self._write(self.writer, node, self.names)

    def _custom(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The symbolic functions by symbolic name. One for a user's operator that has no node is
        refused: what it was asked to write would be written as the ops in it."""
        held = {n.op.symbolic_name(n.attr) for n in all_nodes(self.graph)}
        custom = {name_of(n, f, "onnx", held): f for n, f in given.items()}
        gone = [n for n in custom if n not in held and n not in OPS]
        if gone:
            raise ValueError(
                f"[onnx] expected {self.graph.name} to have {', '.join(gone)} as a node; it is not "
                "called, or became the ops in it: so does an operator where gradients are on or "
                "inside vmap, one with mutates_args or lists of tensors, and one that draws random "
                "numbers or looks at values"
            )
        return custom

    def _declare(self) -> None:
        for name in self.outputs:
            self.writer.declare(name, TensorType((), self.graph.outputs[0].type.dtype))
        for item in self.graph.inputs:
            if item.kind == "arg":
                name = item.name
                self.names[item.value] = self.writer.declare(name, item.value.type)
                self.writer.declare_dims(name, item.value.type)
            else:
                name = item.name
                while name in self.outputs:
                    name = f"{name}_state"
                self.names[item.value] = self.writer.declare(name, item.value.type)

    def inline(self, writer: Writer, graph: Graph, inputs: Sequence[str]) -> list[str]:
        """Adds a graph that a node holds to a writer."""
        values = (i.value for i in graph.inputs)
        names = dict(zip(values, inputs, strict=True))
        for node in graph.nodes:
            self._write(writer, node, names)
        return [names[v] for v in graph.outputs]

    def _write(self, writer: Writer, node: Node, names: dict[Value, str]) -> None:
        line = _short(node.line)
        writer.at(node.op.name, line)
        env = self.graph.env
        before = len(env.guards)
        try:
            inputs = [names[v] for v in node.inputs]
            made = self._form(node)(writer, inputs, **node.attr)
            if len(env.guards) != before:
                del env.guards[before:]
                raise UnsupportedOperatorError("its ONNX form needs fixed sizes")
        except RuntimeError as error:
            self.missing.append(Missing(node.op.name, line, _reason(error, node)))
            made = tuple(f"?{id(v)}" for v in node.outputs)  # the walk goes on
        many = made if isinstance(made, tuple) else (made,)
        for v, name in zip(node.outputs, many, strict=True):
            names[v] = name
            writer.typed(name, v.type)

    def _form(self, node: Node) -> Callable[..., Any]:
        name = node.op.symbolic_name(node.attr)
        function = self.custom.get(name) or registered_function(name, self.writer.opset)
        if function is None:
            return node.op.onnx
        return as_form(function, node.op, len(node.outputs))

    # -- the model -----------------------------------------------------------------------------
    def model(self, weight: Weight) -> onnx.ModelProto:
        """The model; `weight(array, name)` makes each initializer."""
        writer, exported = self.writer, self.exported
        writer.at("", "")
        for v, name in zip(self.graph.outputs, self.outputs, strict=True):
            self._name_output(self.names[v], name)
        used = {n for node in writer.nodes for n in node.input} | writer.captured
        weights = [
            weight(exported.state[i.name], self.names[i.value])
            for i in self.graph.inputs
            if i.kind != "arg" and self.names[i.value] in used
        ]
        graph = helper.make_graph(
            [*(c for c in writer.constants if c.output[0] in used), *writer.nodes],
            self.graph.name or "graph",
            [value_info(i.name, i.value.type) for i in self.graph.inputs if i.kind == "arg"],
            [
                value_info(name, v.type)
                for name, v in zip(self.outputs, self.graph.outputs, strict=True)
            ],
            weights,
        )
        opsets = [helper.make_opsetid("", writer.opset)]
        opsets += [helper.make_opsetid(d, v) for d, v in sorted(writer.domains.items())]
        model: onnx.ModelProto = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=ir_version(writer.opset),
            producer_name="jitgrad",
            producer_version=own_version,
        )
        assumed = conditions(self.graph.env)
        if assumed:
            helper.set_model_props(model, {KEY: "; ".join(assumed)})
        return model

    def _name_output(self, found: str, name: str) -> None:
        """Gives a value the name of an output: its node's, if nothing else has named it yet."""
        writer = self.writer
        taken = {*self.outputs, *writer.captured}
        for node in writer.nodes:
            if found in node.output and found not in taken:
                node.output[list(node.output).index(found)] = name
                for reader in writer.nodes:
                    for k, n in enumerate(reader.input):
                        if n == found:
                            reader.input[k] = name
                for v, n in self.names.items():
                    if n == found:
                        self.names[v] = name
                return
        writer.nodes.append(helper.make_node("Identity", [found], [name], name=f"{name}_identity"))


def _short(line: str) -> str:
    """A source line without the folders of the machine that it was recorded on."""
    file, _, number = line.rpartition(":")
    return f"{os.path.basename(file)}:{number}" if file else line


def _reason(error: Exception, node: Node) -> str:
    operands = ", ".join(str(v.type) for v in node.inputs)
    return f"{str(error).removeprefix(f'[{node.op.name}] ')} (operands {operands})"


def _inside(array: np.ndarray[Any, Any], name: str) -> onnx.TensorProto:
    """An initializer that holds its data."""
    return numpy_helper.from_array(array, name)


def _beside(array: np.ndarray[Any, Any], name: str, file: IO[bytes], location: str) -> Any:
    """An initializer whose data goes to the end of a file, without being in the message, which may
    hold 2 GB at most."""
    tensor = onnx.TensorProto(
        name=name,
        dims=array.shape,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    place = {"location": location, "offset": file.tell(), "length": array.nbytes}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return tensor


def _write(walk: _Walk, path: Path, apart: bool) -> str | None:
    """Writes beside the path, checks, then renames: a failure leaves what was there."""
    folder = path.parent
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=folder))
    except OSError as error:
        raise type(error)(
            error.errno,
            f"[onnx] expected a folder that can be written; {str(folder)!r} cannot be: "
            f"{error.strerror}; choose another folder",
        ) from None
    data = f"{path.name}.data"
    try:
        draft = scratch / path.name
        if apart:
            with open(scratch / data, "wb") as file:
                model = walk.model(
                    lambda array, name: (
                        _inside(array, name)
                        if array.nbytes < _SMALL
                        else _beside(array, name, file, data)
                    )
                )
                has_data = file.tell() > 0
        else:
            model, has_data = walk.model(_inside), False
        onnx.save_model(model, str(draft))
        try:
            onnx.checker.check_model(str(draft), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise OnnxExporterError(f"[onnx] ONNX's checker refuses the model: {error}") from error
        if has_data:
            os.replace(scratch / data, folder / data)
        os.replace(draft, path)
        return str(folder / data) if has_data else None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


__all__ = ["Missing", "OnnxFile", "to_model", "unsupported", "walked", "write_onnx"]
