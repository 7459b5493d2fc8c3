"""Export: a function or Module leaves Python as a pure graph with named inputs, outputs and state.

Owns `export`; what it gives is exported.py's `Exported`. Recording is jit's (recorder.py). What
cannot be exported (in-place writes to state, random draws, host numbers, results that are no
tensors) is refused with the reason and the user's line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.autograd.modes import enable_grad, no_grad
from jitgrad.callable_module import make_callable
from jitgrad.compiler.ir import Graph, Value, Write
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.compiler.types import TensorType
from jitgrad.dims import Dim as Dim
from jitgrad.dims import dims as dims
from jitgrad.dynamic_shapes import (
    DynamicShapes,
    refuse_fixed_dims,
    symbolic_inputs,
)
from jitgrad.effects import is_module
from jitgrad.example_inputs import is_flat, leaf_names, spread
from jitgrad.export_names import StateNames, number_node, plain_path
from jitgrad.exported import Exported, load_exported
from jitgrad.hostscalar import HostScalar
from jitgrad.jit import JitFunction
from jitgrad.library import calls_kept
from jitgrad.lowered import Lowered
from jitgrad.pytree import Structure, flatten, leaves_of, names_of, tree_map, unflatten
from jitgrad.random import get_rng_state, set_rng_state
from jitgrad.recorder import Entry, Trace, plain_attrs
from jitgrad.runtime.dtypes import float64
from jitgrad.runtime.errors import CompileError
from jitgrad.sources import (
    AliasResult,
    Arg,
    Captured,
    Constant,
    ConstantResult,
    Draw,
    FreshResult,
    Grad,
    Number,
    SameResult,
    Seed,
)
from jitgrad.tensor import Tensor
from jitgrad.values import plain_type


def export(
    function: Any,
    *example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: DynamicShapes = None,
) -> Exported:
    """Records a function or Module on example inputs.

    A Module, and a function that only gives results, is recorded with gradients off, or on where it
    takes gradients inside (the forces of an energy): they become part of the graph. A function that
    changes tensors it captures (a training step: zero_grad, backward, optimizer.step; a
    counter) or draws random numbers is traced without data: nothing changes here, and what it
    changes becomes the exported graph's own state, which each call carries on. Call such a step
    once before, so that its optimizer's state is there. `.grad`s that it sets anew stay inside.

    Args:
        function: called with the example inputs; a Module is recorded as it is (call `.eval()`
            first, or dropout and batch statistics are refused).
        example_inputs: tensors, or tuples, lists, dicts, named tuples and dataclasses of them,
            nested at will; their shapes and dtypes are those of the exported graph. Each tensor is
            an input of its own, called by what leads to it ("cache.0.k"); `Exported` takes trees
            like these, native code and ONNX the tensors in this order.
        kwargs: example inputs that the function is called with by keyword; they follow the others
            in the order of the function's parameters, called by their keywords. Parameters that are
            not given keep their defaults.
        names: of the inputs, of characters that print; default: the parameters' names.
        output_names: default: the keys of a dict of results ("loss", "out.hidden"), the field names
            of a named tuple; of others "output", or "output0", "output1", ...
        dynamic_shapes: the dims that may have another size in each call, by input name or, in a
            sequence, for each input: {"x": {0: "batch"}}, ({0: "batch"}, None); for a tree, a tree
            of such, or by the tensors' own names. Dims of the same
            name have the same size. The function is then recorded once more, without data; see
            docs/export.md.

    Raises TypeError for what is no tensor and arguments that the function does not take, ValueError
    for names that will not do, CompileError naming reason and line for what cannot be exported; a
    Module's state and the random generator are then as they were.
    """
    if not callable(function):
        raise TypeError(f"[export] expected a function or a Module; got {type(function).__name__}")
    kwargs = keywords(function, example_inputs, kwargs)
    given = (*example_inputs, *kwargs.values())
    trees = [flatten(x)[1] for x in given]
    labels = parameter_names(function, len(example_inputs)) if example_inputs else []
    labels += kwargs
    paths = [leaf_names(t, label) for t, label in zip(trees, labels, strict=True)]
    leaves = leaves_of(given)
    for i, (tree, x) in enumerate(zip(paths, given, strict=True)):
        for path, leaf in zip(tree, flatten(x)[0], strict=True):
            if not isinstance(leaf, Tensor):
                which = i if i < len(example_inputs) else repr(labels[i])
                where = f" at {path!r}" if x is not leaf else ""
                raise TypeError(
                    "[export] expected example inputs to be Tensors, or trees of them; input "
                    f"{which} is {type(leaf).__name__}{where}; close over other values, or use "
                    "functools.partial"
                )
    if is_flat(given) and not kwargs:
        return record(function, function, example_inputs, names, output_names, dynamic_shapes)
    flat_names = [path for tree in paths for path in tree]
    if names is not None:
        flat_names = _expect_names(names, "names", len(leaves))
    if dynamic_shapes is not None:
        dynamic_shapes = _spread(dynamic_shapes, trees, labels, flat_names)
    call = flatten((example_inputs, kwargs))[1]
    exported = record(function, function, leaves, flat_names, output_names, dynamic_shapes, call)
    if not is_flat(given):
        exported.arguments = Structure(dict, tuple(labels), tuple(trees))
    return exported


def keywords(function: Any, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Example inputs by keyword, in the order of the function's parameters. Raises TypeError for
    what is no mapping by name, and for arguments that the function does not take."""
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(k, str) for k in kwargs):
        what = f"keys {list(kwargs)}" if isinstance(kwargs, Mapping) else type(kwargs).__name__
        raise TypeError(f"[export] expected kwargs to be a dict of inputs by name; got {what}")
    signature = _signature(function)
    if signature is None:
        return dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        if getattr(function, "_forward_pre_hooks", None):  # which may change the arguments
            return dict(kwargs)
        raise TypeError(
            f"[export] expected arguments of {_name(function)}{signature}; {error}; give example "
            "inputs in order, or by name in kwargs={...}"
        ) from None
    order = [name for name in signature.parameters if name in bound.arguments]
    return {k: kwargs[k] for k in dict.fromkeys([*order, *kwargs]) if k in kwargs}


def _spread(
    dynamic_shapes: Any, trees: Sequence[Structure], labels: Sequence[str], names: Sequence[str]
) -> list[Any]:
    """What `dynamic_shapes` says of each tensor, in order."""
    if isinstance(dynamic_shapes, Mapping):
        known = {*labels, *names}
        unknown = [k for k in dynamic_shapes if k not in known]
        if unknown:
            raise ValueError(f"[export] expected dynamic_shapes of {sorted(known)}; got {unknown}")
        wanted = [dynamic_shapes.get(label) for label in labels]
    else:
        wanted = list(dynamic_shapes)
        if len(wanted) != len(trees):
            raise ValueError(
                f"[export] expected dynamic_shapes of {len(trees)} inputs; got {len(wanted)}; "
                "give None for an input of fixed shape"
            )
    found = [
        leaf
        for spec, tree, label in zip(wanted, trees, labels, strict=True)
        for leaf in spread(spec, tree, label)
    ]
    if isinstance(dynamic_shapes, Mapping):
        found = [dynamic_shapes.get(n, x) for n, x in zip(names, found, strict=True)]
    return found


@calls_kept()
def record(
    function: Any,
    of: Any,
    example_inputs: Sequence[Tensor],
    names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    dynamic_shapes: DynamicShapes,
    call: Structure | None = None,
) -> Exported:
    """What `export` gives, of a function that calls `of`: a Module, after which state is named.
    call: (args, kwargs), as trees, that the function takes these inputs in; None: each is an
    argument."""
    state = of.state_dict(keep_vars=True) if is_module(of) else {}
    for i, x in enumerate(example_inputs):
        _expect_host(of, f"input {i}", x._type.device)
    for path, x in state.items():
        if isinstance(x, Tensor):
            _expect_host(of, path, x._type.device)
    for strings, what in ((names, "names"), (output_names, "output_names")):
        if strings is not None:
            _expect_strings(strings, what)
    inputs = [x.detach().clone() for x in example_inputs]

    def given_as(leaves: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tuple(leaves), {}) if call is None else unflatten(call, leaves)

    refusal: Exception | None = None
    if not is_module(of):
        labels = _labels(of, inputs, names)
        env = ShapeEnv()
        given = inputs
        if dynamic_shapes is not None:
            given = symbolic_inputs(inputs, labels, dynamic_shapes, env)
        step, refusal = _traced_step(function, *given_as(given), env)
        if step is not None:
            refuse_fixed_dims(env, _name(of))
            _refuse_results(step, of)
            state_names = StateNames.of_function(of)
            return _exported(step, given, labels, output_names, _name(of), state_names)
    called = function.__call__ if is_module(function) else function

    def recording() -> Exported:
        recorded = _Detaching(called, fallback="error", segments=False)
        args, kwargs = given_as([x.detach() for x in inputs])
        recorded(*args, **kwargs)
        trace = recorded.specialisations[0].trace
        labels = _labels(of, inputs, names)
        exported = _named(trace, of, inputs, labels, output_names)  # or refuses
        if dynamic_shapes is None:
            return exported
        env = ShapeEnv()
        symbolic = symbolic_inputs(inputs, labels, dynamic_shapes, env)
        args, kwargs = given_as(symbolic)
        trace = recorded.symbolic_trace(args, env, kwargs)
        refuse_fixed_dims(env, _name(of))
        return _named(trace, of, symbolic, labels, output_names)

    before = _Before(of)
    try:
        try:
            with no_grad():
                return recording()
        except RuntimeError as error:
            if refusal is not None or "does not require grad" not in str(error):
                raise
        before.restore()
        with enable_grad():  # it takes gradients inside
            return recording()
    except CompileError as error:
        before.restore()
        text = str(error)
        if text.startswith("[export]"):
            raise
        raise CompileError(f"[export] cannot export {_name(of)}: {text}") from error
    except RuntimeError as error:
        if refusal is None or "does not require grad" not in str(error):
            raise
        before.restore()
        raise CompileError(
            f"[export] cannot export {_name(of)}, a step that takes gradients, without its data: "
            f"{refusal}; leave what looks at values (.item(), print, if) outside of the step"
        ) from refusal


class _Detaching(JitFunction):
    """Its results are off the tape: gradients of an exported function are taken inside of it."""

    def _run_recorded(self, *args: Any) -> Any:
        result, profile = super()._run_recorded(*args)
        return tree_map(lambda y: y.detach() if isinstance(y, Tensor) else y, result), profile


def _traced_step(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], env: ShapeEnv
) -> tuple[Trace | None, Exception | None]:
    """The trace of a function that changes state or draws numbers, made without running it on
    data; None for a function that only gives results, or needs values, and the error then."""
    try:
        with enable_grad():
            trace = Lowered(_Detaching(function, fallback="error"), args, kwargs, env).trace
    except (RuntimeError, TypeError, ValueError) as error:
        return None, error  # recording it with data tells why, if it cannot be exported
    if trace.cuts or not (trace.graph.writes or trace.rebinds or trace.draws or trace.stores):
        return None, None
    refused = [f"{owner.item.name}[{key!r}]" for owner, key, _ in trace.rebinds
               if isinstance(owner, Captured) and key != "grad"]  # fmt: skip
    if refused:
        raise CompileError(
            f"[export] cannot export {_name(function)}: it makes state ({', '.join(refused[:4])}), "
            "as the first call of an optimizer does; call it once, then export it"
        )
    written = [trace.entries[w.input] for w in trace.graph.writes]
    if any(isinstance(e.source, (Arg, Constant)) for e in written):
        return None, None
    return trace, None


class _Before:
    """What recording may change, as it was: a Module's parameters and buffers, the generator."""

    def __init__(self, function: Any) -> None:
        state = function.state_dict(keep_vars=True).values() if is_module(function) else ()
        self.arrays = [(t, t.detach().numpy().copy()) for t in state]
        self.generator = get_rng_state()

    def restore(self) -> None:
        for t, array in self.arrays:
            np.copyto(t.detach().numpy(), array)
        set_rng_state(self.generator)


def _expect_host(function: Any, what: str, device: str, line: str = "") -> None:
    """Raises CompileError for what is on a GPU: exported code runs on the CPU."""
    if device != "cpu":
        where = f" (at {line})" if line else ""
        raise CompileError(
            f"[export] cannot export {_name(function)}: expected all tensors on the CPU, for which "
            f"code is exported; {what} is on {device}; move it with .cpu(){where}"
        )


def _expect_strings(names: Any, what: str) -> list[str]:
    """`names` as a list. Raises TypeError for what is no list of strings, ValueError for names that
    are empty or hold what does not print (C's strings end at NUL)."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
        raise TypeError(f"[export] expected {what} to be a list of strings; got {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"[export] expected {what} to be strings; got {name!r} among them")
        if not name or not name.isprintable():
            raise ValueError(f"[export] expected {what} of characters that print; got {name!r}")
    return list(names)


def _expect_names(names: Sequence[str], what: str, count: int) -> list[str]:
    """The names of so many inputs or results, which must differ."""
    found = _expect_strings(names, what)
    if len(found) != count or len(set(found)) != count:
        raise ValueError(f"[export] expected {count} different {what}; got {found}")
    return found


def _labels(function: Any, inputs: Sequence[Tensor], names: Sequence[str] | None) -> list[str]:
    """What the inputs are called."""
    labels = parameter_names(function, len(inputs)) if names is None else names
    return _expect_names(labels, "names", len(inputs))


def _named(
    trace: Trace,
    function: Any,
    inputs: Sequence[Tensor],
    labels: Sequence[str],
    output_names: Sequence[str] | None,
) -> Exported:
    """The trace of a function as Exported, its inputs and state named."""
    if is_module(function):
        state = function.state_dict(keep_vars=True)
        paths = {id(t): path for path, t in state.items()}
        paths |= {id(m): path for path, m in function.named_modules()}
        state_names = StateNames(paths)
    else:
        state_names = StateNames.of_function(function)
    _refuse_effects(trace, function, state_names)
    _refuse_results(trace, function)
    return _exported(trace, inputs, labels, output_names, _name(function), state_names)


def _name(function: Any) -> str:
    if isinstance(function, str):
        return function
    name = getattr(function, "__name__", None) or type(function).__name__
    return re.sub(r"\W", "_", name)


def _signature(function: Any) -> inspect.Signature | None:
    """What a function or Module is called with; None for a callable that does not say."""
    try:
        return inspect.signature(function.forward if is_module(function) else function)
    except (TypeError, ValueError):
        return None


def named_parameters(function: Any) -> list[str]:
    """The parameters that may be given by name."""
    signature = _signature(function)
    found = [] if signature is None else signature.parameters.values()
    return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def parameter_names(function: Any, count: int) -> list[str]:
    """Names of the positional parameters; input0, input1, ... where there are none."""
    signature = _signature(function)
    found = [] if signature is None else signature.parameters.values()
    names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [f"input{i}" for i in range(len(names), count)])[:count]


def _exported(
    trace: Trace,
    inputs: Sequence[Tensor],
    names: Sequence[str],
    output_names: Sequence[str] | None,
    name: str,
    state_names: StateNames,
) -> Exported:
    """A pure graph made of a trace: all arguments inputs, captured tensors state."""
    for node in trace.graph.nodes:
        for v in (*node.inputs, *node.outputs):
            _expect_host(
                name, f"what {node.op.name} reads or gives", v.type.device, node.line or ""
            )
    by_argument: dict[int, Entry] = {}
    captured: list[Entry] = []
    for e in trace.entries:
        if isinstance(e.source, Arg):
            by_argument[e.source.index] = e
        else:
            captured.append(e)
    graph = Graph(env=trace.graph.env, name=name)
    replace: dict[Value, Value] = {}
    argument_values: dict[int, Value] = {}
    for i, (label, x) in enumerate(zip(names, inputs, strict=True)):
        value = graph.add_input(plain_type(x._type), "arg", label)
        argument_values[i] = value
        if i in by_argument:
            replace[by_argument[i].value] = value
    state: dict[str, np.ndarray[Any, Any]] = {}
    taken = set(names)
    source_values: dict[Any, Value] = {Arg(i): v for i, v in argument_values.items()}

    def add_state(label: str, array: np.ndarray[Any, Any], type: TensorType) -> Value:
        label = _unique(_expect_strings([label], "names of state")[0], taken)
        state[label] = array
        return graph.add_input(type, "state", label)

    settings: dict[Any, Value] = {}  # numbers that are read, by what recorders know them by

    def host_number(scalar: HostScalar) -> Value:
        if scalar.expr is not None or scalar.name[0] == "size":
            return number_node(graph, scalar, host_number)
        if scalar.name not in settings:
            array = np.array(scalar.value, np.float64)
            settings[scalar.name] = add_state(
                state_names.setting(scalar), array, TensorType((), float64)
            )
        return settings[scalar.name]

    inputs_of: dict[int, Value] = {}  # entries that are state, by their number
    draws: dict[int, Value] = {}  # the next draw, of each generator
    for number, e in enumerate(trace.entries):
        if e not in captured:
            continue
        if isinstance(e.source, Draw):
            key = id(e.source.generator)
            if key not in draws:
                array = np.array(e.source.generator.draws, np.int64)
                draws[key] = add_state("random.draws", array, e.value.type)
            value = _plus(graph, draws[key], e.source.offset)
        elif isinstance(e.source, Number):
            value = host_number(e.source.scalar)
        else:
            label = state_names.of(e, trace)
            value = add_state(label, _state_array(e, name), e.value.type)
            inputs_of[number] = value
        replace[e.value] = source_values[e.source] = value
    for node in trace.graph.nodes:
        made = graph.add_node(
            node.op, [replace.get(v, v) for v in node.inputs], node.attrs, node.line
        )
        replace.update(zip(node.outputs, made, strict=True))
    for w in trace.graph.writes:  # a result on that memory shows what it holds at the end
        source_values[trace.entries[w.input].source] = replace.get(w.value, w.value)
    for result in trace.results:
        if isinstance(result, FreshResult):
            value = trace.graph.outputs[result.index]
            value, chain = replace.get(value, value), result.chain
        elif isinstance(result, AliasResult):
            value, chain = source_values[result.source], result.chain
        else:
            assert isinstance(result, SameResult), "_refuse_results has seen to it"
            source = result.source
            if isinstance(source, Captured) and source not in source_values:  # returned, never read
                x = source.item.now
                label = state_names.paths.get(id(x), plain_path(source.item.name))
                held = add_state(label, _copy(x), TensorType(tuple(x.shape), x.dtype))
                source_values[source] = held
            value, chain = source_values[source], ()
        for step in chain:
            op, attrs = step
            line = trace.view_lines.get(id(step), "")
            value = graph.add_node(op, [value], plain_attrs(attrs), line)[0]
        graph.outputs.append(value)
    places = {item.value: i for i, item in enumerate(graph.inputs)}
    for w in trace.graph.writes:
        value = replace.get(w.value, w.value)
        graph.writes.append(Write(places[inputs_of[w.input]], value))
    for generator, drawn in trace.draws.items():
        if id(generator) in draws:
            first = draws[id(generator)]
            graph.writes.append(Write(places[first], _plus(graph, first, drawn)))
    labels = _result_names(trace.structure) if output_names is None else output_names
    labels = _expect_names(labels, "output_names", len(graph.outputs))
    return Exported(graph, state, names, labels, trace.structure)


def _plus(graph: Graph, value: Value, number: int) -> Value:
    """value + number, of integers."""
    if number == 0:
        return value
    t = value.type
    attrs = {"shape": (), "value": number, "dtype": t.dtype, "device": t.device}
    return graph.add(OPS["add"], value, graph.add_node(OPS["full"], (), attrs)[0])


def _result_names(structure: Structure) -> list[str]:
    """What results are called: by the keys and fields that lead to them ("out.hidden"), where all
    have such names, and different ones; else by number."""
    paths = [".".join(path) for path in _paths(structure)]
    if all(re.fullmatch(r"[\w.-]+", path) for path in paths) and len(set(paths)) == len(paths):
        return paths
    return ["output"] if len(paths) == 1 else [f"output{k}" for k in range(len(paths))]


def _paths(structure: Structure, below: bool = False) -> list[tuple[str, ...]]:
    """For each result, the keys that lead to it. Sequences number what they hold `below` a key."""
    names = names_of(structure)
    if names is None:
        if structure.kind is None or not below:
            return [()] * structure.count
        names = tuple(map(str, range(len(structure.children))))
    return [
        (name, *path)
        for name, child in zip(names, structure.children, strict=True)
        for path in _paths(child, True)
    ]


def _refuse_effects(trace: Trace, function: Any, state_names: StateNames) -> None:
    """Raises CompileError where the function does more than return results, naming the state that
    it changes."""
    graph = trace.graph
    if trace.cuts:
        raise CompileError(
            f"[export] cannot export {_name(function)}: it reads tensors' values in Python "
            f"({', '.join(map(str, trace.cuts[:3]))}), so that another call may go another way; "
            "choose with jitgrad.where"
        )
    changed: dict[str, str] = {}  # name -> the line that wrote it first
    for w in graph.writes:
        e = trace.entries[w.input]
        label = state_names.of(e, trace)
        if isinstance(e.source, Arg):
            label = f"its input {label}"
        changed.setdefault(label, w.value.line)
    for owner, key, _ in trace.rebinds:
        if key == "requires_grad" and isinstance(owner, Arg):
            continue  # callers of what is exported have no tape
        holder = None if isinstance(owner, Arg) else owner.item.now
        prefix = state_names.paths.get(
            id(holder), "" if is_module(holder) else type(holder).__name__
        )
        changed.setdefault(f"{prefix}.{key}" if prefix else str(key), "")
    changed |= {store.item.name: "" for store in trace.stores}
    random = next((n for n in graph.nodes if n.op.random), None)
    if not changed and random is None:
        return
    reasons = []
    if changed:
        line = next((f" (at {line})" for line in changed.values() if line), "")
        reasons.append(f"it changes {', '.join(changed)}{line}")
    if random is not None:
        reasons.append(f"it draws random numbers ({random.op.name} at {random.line})")
    advice = []
    inside = random is not None or not all(name.startswith("its input ") for name in changed)
    if inside and is_module(function) and any(m.training for m in function.modules()):
        advice.append("the Module is in training mode: call .eval() first")
    if not advice or any(name.startswith("its input ") for name in changed):
        advice.append("return the new values instead")
    raise CompileError(
        f"[export] cannot export {_name(function)}: {' and '.join(reasons)}; an exported function "
        f"has results only; {'; '.join(advice)}"
    )


def _refuse_results(trace: Trace, function: Any) -> None:
    """Raises CompileError where a result is no tensor, naming it and where the function is."""
    paths = _paths(trace.structure)
    for path, result in zip(paths, trace.results, strict=True):
        if isinstance(result, (FreshResult, AliasResult, SameResult)):
            continue
        what = repr(result.value) if isinstance(result, ConstantResult) else "a Python number"
        label = f"as {'.'.join(path)!r} " if path else ""
        code = getattr(function.forward if is_module(function) else function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        way_out = "leave it out" if len(paths) > 1 else "return a tensor"
        raise CompileError(
            f"[export] cannot export {_name(function)}{where}: {label}it returns {what}, which is "
            f"no tensor; {way_out}"
        )


def _state_array(e: Entry, name: str) -> np.ndarray[Any, Any]:
    """A dense copy of what a captured input holds now."""
    if isinstance(e.source, Constant):
        return np.array(e.source.array, order="C", copy=True)
    if isinstance(e.source, Captured) and isinstance(e.source.item.now, Tensor):
        return _copy(e.source.item.now)
    if isinstance(e.source, Seed):
        return np.array(e.source.generator._seed, np.int64)
    if isinstance(e.source, Grad) and e.tensor is not None:
        return _copy(e.tensor)
    raise CompileError(
        f"[export] cannot export {name}: it reads {e.value.name!r}, which is neither an input "
        "nor a captured tensor"
    )


def _copy(x: Tensor) -> np.ndarray[Any, Any]:
    return np.array(x.detach()._array("export"), order="C", copy=True)


def _unique(name: str, taken: set[str]) -> str:
    label, n = name, 1
    while label in taken:
        label, n = f"{name}_{n}", n + 1
    taken.add(label)
    return label


__all__ = ["Exported", "export", "load_exported"]

make_callable(__name__, export)  # `jitgrad.export(model, x)`
