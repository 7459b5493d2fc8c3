"""Exported: a pure graph with named inputs, outputs and state, outside of any function.

Owns the class: calling it, its texts, and the ways out (`save`, `native`, `weights`). Recording a
function is export.py's; the `.jgx` file is exported_file.py's, native code `compiler/native.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import exported_file, version
from jitgrad.compiler.fixed_sizes import at_sizes
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.parse import parse
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.dynamic_shapes import check_conditions, fits, known_sizes
from jitgrad.example_inputs import leaves_like, leaves_named
from jitgrad.exported_file import Parts
from jitgrad.onnx.errors import expect_package
from jitgrad.pytree import Structure, flatten, unflatten
from jitgrad.runtime.by_name import in_order
from jitgrad.runtime.errors import counted
from jitgrad.tensor import Tensor, wrap_array

if TYPE_CHECKING:
    from jitgrad.compiler.compiled import Compiled
    from jitgrad.compiler.native import NativeFiles
    from jitgrad.onnx.exporter import OnnxFile


_MOST_PROGRAMS = 16  # compiled for special sizes


class Exported:
    """A pure graph: named inputs, outputs, and the state that it closes over.

    Attributes:
        graph: inputs of kind "arg" and "state"; no slots. It writes to state only.
        state: name -> array, a copy of what the function captured. Calls of a training step change
            it in place.
        input_names, output_names: in order of call and of result.
        arguments: the trees of the inputs by the parameters' names, where some are no tensors but
            trees of them; else None.

    Calling it with tensors (or trees like those it was exported with) runs the compiled graph and
    gives what the function gave.
    """

    def __init__(
        self,
        graph: Graph,
        state: Mapping[str, np.ndarray[Any, Any]],
        input_names: Sequence[str],
        output_names: Sequence[str],
        structure: Structure,
        arguments: Structure | None = None,
    ) -> None:
        self.graph, self.state = graph, dict(state)
        self.input_names, self.output_names = tuple(input_names), tuple(output_names)
        self._structure, self.arguments = structure, arguments
        self._general: tuple[ShapeEnv, Compiled] | None = None
        self._special: dict[tuple[tuple[str, int], ...], Compiled] = {}

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """Runs on tensors of the exported shapes and dtypes, in order or by `input_names`, or trees
        by the names of their parameters. Raises TypeError or ValueError that names the input
        otherwise."""
        expected = [i for i in self.graph.inputs if i.kind == "arg"]
        leaves = leaves_like(inputs, self.arguments)
        by_name = leaves_named(named, self.arguments, self.input_names)
        short = not named and leaves is not None and len(leaves) != len(expected)
        if leaves is None or by_name is None or (short and self.arguments is not None):
            got = (*map(_tree_text, inputs), *(f"{k}={_tree_text(x)}" for k, x in named.items()))
            raise TypeError(
                f"[export] expected inputs {self.arguments}, or the {len(expected)} tensors in "
                f"them; got ({', '.join(got)})"
            )
        if by_name:
            inputs = in_order("export", self.input_names, leaves, by_name)
        else:
            inputs = tuple(leaves)
        if len(inputs) != len(expected):
            names = ", ".join(f"{i.name}: {i.value.type}" for i in expected) or "none"
            raise TypeError(
                f"[export] expected {len(expected)} inputs ({names}); got {len(inputs)}: "
                + counted([i.name for i in expected], [_type_of(x) for x in inputs])
            )
        dims: dict[str, int] = {}
        given = iter(inputs)
        arrays = []
        for item in self.graph.inputs:
            if item.kind == "state":
                arrays.append(self.state[item.name])
                continue
            x = next(given)
            if not isinstance(x, Tensor) or not fits(x._type, item.value.type, dims):
                raise ValueError(
                    f"[export] expected input {item.name!r} to be a Tensor "
                    f"{item.value.type}; got {_type_of(x)}{known_sizes(dims)}"
                )
            arrays.append(np.ascontiguousarray(x.detach().numpy()).reshape(x.shape))
        check_conditions(self.graph.env, dims)
        sizes = tuple([dims[name] for name in self.graph.env.hints])
        results = [wrap_array(a) for a in self._program(dims).run(arrays, sizes)]
        return unflatten(self._structure, results)

    def _program(self, dims: Mapping[str, int]) -> Compiled:
        """The compiled graph for these sizes: one for most, and one for each combination that it is
        not right for: a size below 2, or one that the compiler took not to be (a guard of its)."""
        if self._general is None:
            # A copy with dims of its own: guards of the compiler are none of the function's.
            copy = parse(str(self.graph))
            self._general = copy.env, compile_graph(copy)
        env, general = self._general
        if all(size >= 2 for size in dims.values()) and env.holds(dims):
            return general
        key = tuple(dims.items())
        if key not in self._special:
            if len(self._special) >= _MOST_PROGRAMS:
                del self._special[next(iter(self._special))]
            self._special[key] = compile_graph(at_sizes(self.graph, dims))
        return self._special[key]

    def native(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        target: str | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> NativeFiles:
        """Writes native code, by the path's suffix, that needs neither Python nor LLVM.

        `.so` or `.dylib`, a shared library, `.o`, an object file, `.a`, a static archive, each with
        a C header beside it; `.wasm`, a WebAssembly module with a JavaScript loader (`.js`). Load a
        library with `jitgrad.runtime.load(path)`, or from C by its header. Symbolic dims stay so:
        each needs a largest size, `Dim("batch", max=64)`, which memory is made for.

        Args:
            name: the prefix of the C functions (jg_<name>_run); default: the file's.
            target: "host" (default); a level of x86-64 processors: "x86-64", "x86-64-v2",
                "x86-64-v3", "x86-64-v4", "x86-64-v4-amx"; "portable", v2 to v4 (and v4 with AMX
                for products of bfloat16 and bytes) in one library, which picks the best when it
                starts; a system: "x86_64-linux-gnu", "aarch64-linux-gnu",
                "riscv64-linux-gnu", "aarch64-macos", "x86_64-macos", "wasm32", with a processor
                after a colon if need be ("aarch64-linux-gnu:neoverse-n1").
            weights: a file that the weights go to ("libnet.weights"), which programs map into
                memory: for models of 2 GB and more. Others of the same layout can take their
                place (see `weights`). Default: they are in the library.

        Raises ValueError for a path or target that will not do; CompileError where there is no
        linker: then the object file is there, and the message says how to link it.
        """
        from jitgrad.compiler.native import write_native

        return write_native(
            self.graph,
            self.state,
            path,
            name=name,
            output_names=self.output_names,
            target=target,
            weights=weights,
            creator=_creator(),
        )

    def weights(self, path: str | os.PathLike[str], *, target: str | None = None) -> None:
        """Writes the weights alone, as `native(..., weights=path)` does: for a library that was
        written of the same model before it was trained further.

        A library takes any file whose names, shapes and dtypes are its own, and whose values are
        stored as its code reads them, so `target` is what the library was written for (default:
        "host"). What is no tensor (an eps, a Python float) is in the library.

        Raises ValueError for a path or target that will not do, OSError when the file cannot be
        written.
        """
        from jitgrad.compiler.native import write_native_weights

        write_native_weights(self.graph, self.state, path, target)

    def onnx(
        self,
        path: str | os.PathLike[str],
        *,
        opset: int = 18,
        custom: Mapping[str, Any] | None = None,
        external_data: bool | None = None,
    ) -> OnnxFile:
        """Writes an ONNX model.

        An output that is called as an input is has "_out" behind its name there, for ONNX has one
        name for one value; what is returned says the names.

        Args:
            path: of the file; it is replaced in one step.
            opset: of the default domain, from 17 to the newest that the `onnx` package knows.
            custom: op name -> symbolic function, for ops without an ONNX form of their own (see
                `jitgrad.onnx.register_custom_op_symbolic`).
            external_data: whether weights go to a second file, `path` + ".data"; default: when
                they are larger than 2 GB, which no single file can hold.

        Raises CompileError that lists every op that has no ONNX form, each with the user's line,
        before anything is written; ImportError without the package `onnx` (extra `onnx`).
        """
        expect_package()
        from jitgrad.onnx.exporter import write_onnx

        return write_onnx(self, path, opset=opset, custom=custom, external_data=external_data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `.jgx` file: the graph's text, the state as safetensors, names. `load_exported`
        reads it back. Raises OSError where it cannot be written."""
        names = list(self.input_names), list(self.output_names)
        parts = Parts(self.graph, self.state, *names, self._structure, self.arguments)
        exported_file.write(parts, path, _creator())

    def __repr__(self) -> str:
        size = sum(a.nbytes for a in self.state.values())
        inputs = ", ".join(
            f"{i.name}: {i.value.type}" for i in self.graph.inputs if i.kind == "arg"
        )
        outputs = ", ".join(
            f"{n}: {v.type}" for n, v in zip(self.output_names, self.graph.outputs, strict=True)
        )
        return f"<Exported ({inputs}) -> ({outputs}); {len(self.state)} state, {size:,} bytes>"

    def __str__(self) -> str:
        return str(self.graph)


def _tree_text(x: Any) -> str:
    return str(flatten(x)[1])


def _type_of(x: Any) -> str:
    return str(x._type) if isinstance(x, Tensor) else type(x).__name__


def _creator() -> str:
    return f"jitgrad {version.jitgrad}"


def load_exported(path: str | os.PathLike[str]) -> Exported:
    """Reads what `Exported.save` wrote. Nothing in the file is run.

    Results come in tuples, lists and dicts: of a named tuple or a dataclass, whose class the file
    does not hold, a tuple or a dict. Inputs may be either. Raises ArtifactError, which says what is
    wrong, for a damaged, foreign or newer file; OSError where it cannot be read.
    """
    parts = exported_file.read(path)
    return Exported(
        parts.graph, parts.state, parts.input_names, parts.output_names, parts.structure,
        parts.arguments,
    )  # fmt: skip
