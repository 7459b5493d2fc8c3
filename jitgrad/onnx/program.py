"""`torch.onnx.export` with PyTorch's arguments, on top of `jitgrad.export` and `Exported.onnx`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from jitgrad.effects import is_module
from jitgrad.example_inputs import leaf_names
from jitgrad.export import Exported, keywords, parameter_names, record
from jitgrad.nn.module import Module
from jitgrad.onnx.errors import expect_package
from jitgrad.pytree import flatten, unflatten
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor
from jitgrad.testing import assert_close

_exporting = threading.local()


class TrainingMode(IntEnum):
    """The mode of the Module while it is recorded: eval(), as it is, or train()."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


class ONNXProgram:
    """What `export` gives: an `Exported` and how it is to be written.

    Attributes: exported; opset.
    """

    def __init__(self, exported: Exported, opset: int) -> None:
        self.exported, self.opset = exported, opset

    @property
    def model_proto(self) -> Any:
        """The onnx.ModelProto."""
        expect_package()
        from jitgrad.onnx.exporter import to_model

        return to_model(self.exported, opset=self.opset)

    def save(
        self,
        destination: str | os.PathLike[str],
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: bool | None = None,
    ) -> None:
        """Writes the model. Raises as `Exported.onnx` does."""
        if not include_initializers or keep_initializers_as_inputs:
            raise ValueError(
                "[onnx] expected weights to be written as initializers; got include_initializers="
                f"{include_initializers}, keep_initializers_as_inputs="
                f"{keep_initializers_as_inputs}; leave them at their defaults"
            )
        self.exported.onnx(destination, opset=self.opset, external_data=external_data)

    def __call__(self, /, *inputs: Tensor, **named: Tensor) -> Any:
        """Runs the exported graph on tensors, in order or by name, compiled."""
        return self.exported(*inputs, **named)

    def __repr__(self) -> str:
        return f"<ONNXProgram opset {self.opset}: {self.exported!r}>"


def is_in_onnx_export() -> bool:
    """Whether this thread is inside `jitgrad.onnx.export`."""
    return getattr(_exporting, "depth", 0) > 0


def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool | None = None,
    dynamic_shapes: Any = None,
    custom_translation_table: Any = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    dynamic_axes: Mapping[str, Any] | None = None,
    training: int = TrainingMode.EVAL,
    operator_export_type: int = 0,
    do_constant_folding: bool = True,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: Any = False,
    autograd_inlining: bool = True,
) -> ONNXProgram:
    """Records a Module or function on example arguments and writes an ONNX model.

    Args:
        model: a Module, a function, or what `jitgrad.export` gave (then args are not used).
        args, kwargs: the arguments of the example call; a tensor stands for (tensor,). Tensors in
            them, also in nested tuples, lists and dicts, become inputs, in the order of the
            model's parameters; all else is fixed.
        f: the file's path; None writes none.
        input_names: of the inputs, in order (more names than inputs are ignored); default: the
            parameters, and what leads to a tensor in them ("cache.0.k").
        output_names: of the outputs, in order.
        opset_version: default 18.
        external_data: whether weights go to a second file; None: when they exceed 2 GB. (PyTorch's
            default True is None here.)
        dynamic_shapes, dynamic_axes: the dims that may change, by input: {"x": {0: "batch"}} or,
            for dynamic_axes, {"x": [0]} too. What is said of outputs follows from the inputs.
        training: the Module's mode while it is recorded; afterwards it is as it was.
        verify: runs the file in ONNX Runtime on the example and compares.

    verbose, dynamo, report, optimize, profile, do_constant_folding and other arguments about how
    PyTorch's exporter works are taken and change nothing; those that would change the file in a way
    that is not there raise ValueError. Raises what `jitgrad.export` and `Exported.onnx` raise.
    """
    refused = {
        "custom_translation_table": custom_translation_table is not None,
        "export_params": not export_params,
        "keep_initializers_as_inputs": keep_initializers_as_inputs,
        "operator_export_type": operator_export_type != 0,
        "export_modules_as_functions": bool(export_modules_as_functions),
        "dump_exported_program": dump_exported_program,
    }
    for name, given in refused.items():
        if given:
            raise ValueError(f"[onnx.export] expected {name} to be left at its default")
    opset = 18 if opset_version is None else opset_version
    tensors: list[Tensor] = []
    if isinstance(model, Exported):
        exported = model
    else:
        exported, tensors = _recorded(
            model, args, dict(kwargs or {}), input_names, output_names,
            dynamic_axes if dynamic_shapes is None else dynamic_shapes, training,
        )  # fmt: skip
    program = ONNXProgram(exported, opset)
    if f is not None:
        exported.onnx(f, opset=opset, external_data=external_data)
        if verify:
            _verify(exported, f, tensors)
    else:
        from jitgrad.onnx.exporter import walked

        expect_package()
        walked(exported, opset=opset)  # what cannot be written is refused now
    return program


def _recorded(
    model: Any, args: Any, kwargs: dict[str, Any], input_names: Sequence[str] | None,
    output_names: Sequence[str] | None, dynamic: Any, training: int,
) -> tuple[Exported, list[Tensor]]:  # fmt: skip
    """The example call as Exported, and its tensors."""
    given = (args,) if isinstance(args, Tensor) else tuple(args)
    if given and isinstance(given[-1], dict) and not kwargs and is_module(model):
        *first, kwargs = given  # PyTorch: a dict at the end holds keyword arguments
        given = tuple(first)
    kwargs = keywords(model, given, kwargs)
    leaves, structure = flatten((given, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
    tensors = [leaves[i] for i in places]
    plain = not kwargs and len(places) == len(leaves) == len(given)
    function = model if plain else _Call(model, leaves, structure, places)
    if input_names is None:
        arguments = [*parameter_names(model, len(given)), *kwargs]
        trees = [child for part in structure.children for child in part.children]
        paths = [p for name, t in zip(arguments, trees, strict=True) for p in leaf_names(t, name)]
        names = [paths[i] for i in places]
    else:
        names = list(input_names)[: len(tensors)]
    with _as_asked(model, training):
        shapes = _shapes(dynamic, names)
        exported = record(function, model, tensors, names, output_names, shapes)
    return exported, tensors


class _Call(Module):
    """Calls a model with tensors, beside the arguments that are fixed."""

    def __init__(self, model: Any, leaves: list[Any], structure: Any, places: list[int]) -> None:
        super().__init__()
        self.model, self.structure, self.places = model, structure, places
        self.fixed = [None if i in places else x for i, x in enumerate(leaves)]

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.fixed)
        for i, x in zip(self.places, tensors, strict=True):
            leaves[i] = x
        args, kwargs = unflatten(self.structure, leaves)
        return self.model(*args, **kwargs)


def _shapes(dynamic: Any, names: Sequence[str]) -> Any:
    """dynamic_axes or dynamic_shapes as `jitgrad.export` takes them: of inputs, dims with names."""
    if dynamic is None or not isinstance(dynamic, Mapping):
        return dynamic
    out: dict[str, Any] = {}
    for name, spec in dynamic.items():
        if name not in names:
            continue  # an output's: it follows from the inputs
        if isinstance(spec, Mapping):
            out[name] = {k: _identifier(v) for k, v in spec.items()}
        elif spec is None or any(not isinstance(k, int) for k in spec):
            out[name] = spec
        else:
            out[name] = {k: f"{_identifier(name)}_dynamic_axes_{i + 1}" for i, k in enumerate(spec)}
    return out


def _identifier(label: Any) -> Any:
    """A dim's name, spelt as an identifier."""
    if not isinstance(label, str) or label.isidentifier():
        return label
    plain = "".join(c if c.isalnum() else "_" for c in label)
    return plain if plain.isidentifier() else f"dim_{plain}"


@contextmanager
def _as_asked(model: Any, training: int) -> Iterator[None]:
    """The Module in the mode asked for; afterwards as it was. Inside, is_in_onnx_export()."""
    modules = list(model.modules()) if is_module(model) else []
    before = [m.training for m in modules]
    if training != TrainingMode.PRESERVE:
        for m in modules:
            m.training = training == TrainingMode.TRAINING
    _exporting.depth = getattr(_exporting, "depth", 0) + 1
    try:
        yield
    finally:
        _exporting.depth -= 1
        for m, mode in zip(modules, before, strict=True):
            m.training = mode


def _verify(exported: Exported, path: str | os.PathLike[str], tensors: Sequence[Tensor]) -> None:
    """Warns where ONNX Runtime's numbers are not those of the exported graph."""
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    feeds = {n: x.detach().numpy() for n, x in zip(exported.input_names, tensors, strict=True)}
    wanted = flatten(exported(*tensors))[0]
    for name, found, want in zip(
        exported.output_names, session.run(None, feeds), wanted, strict=True
    ):
        try:
            assert_close(found, want.detach().numpy(), rtol=1e-3, atol=1e-4)
        except AssertionError as error:
            warn(f"[onnx.export] {name} differs in ONNX Runtime: {error}")
