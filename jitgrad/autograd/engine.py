"""Running the tape backwards: `backward` and `grad`.

Owns the order of nodes, accumulation of gradients, hooks, and freeing of what was saved. No
recursion: a chain of any depth works. Nodes run in the reverse order of their creation, each once,
after all nodes that pass gradients to it.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.autograd import bare, given
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import apply, assign, full, hand_on
from jitgrad.levels import Level
from jitgrad.promotion import constant
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import InternalError
from jitgrad.runtime.userline import warn
from jitgrad.state import is_ours, state, unwatched
from jitgrad.storage import is_part
from jitgrad.tape.node import (
    AccumulateGrad,
    GradientEdge,
    IdentityNode,
    LeafNode,
    Node,
    OverwrittenNode,
    edge_of,
    tensor_at,
    zeros_of,
)
from jitgrad.tape.pieces import connect
from jitgrad.tensor import AbsentTensor, Tensor, wrap

Gradient = Tensor | bare.Bare


class Run:
    """One run of the tape: `targets` are the ids of the nodes and leaves that take part; `node` is
    the op's node whose derivative is being recorded, or None."""

    __slots__ = ("node", "targets")

    def __init__(self, targets: frozenset[int]) -> None:
        self.targets = targets
        self.node: Node | None = None


class _Sink:
    """Where the gradients of one output of one node, or of a leaf, are summed."""

    __slots__ = ("pending", "sums", "target")

    def __init__(self, target: Any, pending: int, outputs: int) -> None:
        self.target = target
        self.pending = pending  # edges into it that have not delivered yet
        self.sums: list[Tensor | None] = [None] if outputs == 1 else [None] * outputs


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Tensor | Sequence[Tensor | None] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds to `.grad` of the leaves the gradients of the sum of `tensors`.

    grad_tensors: a cotangent for each tensor, of its shape; may be None for tensors of one element.
    grad_variables is its older name.
    inputs: only these get gradients (they need not be leaves). retain_graph: keep what was saved,
    so that this graph can be run again; by default as create_graph. create_graph: the gradients can
    be differentiated themselves.

    Raises RuntimeError for tensors that do not require grad, a missing or wrong cotangent, and a
    graph whose saved tensors are freed or were changed in place.
    """
    if grad_variables is not None:
        if grad_tensors is not None:
            raise RuntimeError(
                "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to "
                "`backward()`. Please only use `grad_tensors`."
            )
        warn("`grad_variables` is deprecated. Use `grad_tensors` instead.", FutureWarning)
        grad_tensors = grad_variables
    outputs = _places(tensors)
    chosen = None
    if inputs is not None:
        chosen = _places(inputs)
        if not chosen:
            raise RuntimeError("'inputs' argument to 'backward' cannot be empty.")
    seeds = _seeds(outputs, grad_tensors, create_graph)
    _run(outputs, seeds, chosen, create_graph if retain_graph is None else retain_graph,
         create_graph, accumulate=True)  # fmt: skip


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`, as a tuple.

    Arguments as `backward`'s. allow_unused: an input that the outputs do not depend on gives None
    instead of an error; materialize_grads: zeros instead. `.grad` of no tensor changes.
    """
    if not only_inputs:
        raise ValueError("[grad] only_inputs=False is not supported; use backward()")
    outs = _places(outputs)
    ins = _places(inputs)
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, "
            "but got: allow_unused=False."
        )
    if is_grads_batched:
        return _grad_batched(  # type: ignore[return-value]
            outs, ins, grad_outputs, retain_graph, create_graph, allow_unused
        )
    seeds = _seeds(outs, grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    found = _run(outs, seeds, ins, retain, create_graph, accumulate=False)
    result: list[Tensor | None] = []
    for x, g in zip(ins, found, strict=True):
        if g is None and materialize_grads:
            g = zeros_of(x._type)
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior. "
                f"(It is input {len(result)}, {x._type}.)"
            )
        elif g is not None and g._chain and not create_graph:
            g = _copy_of(g)  # an expanded gradient could not be written
        result.append(g)
    return tuple(result)  # type: ignore[arg-type]  # None only with allow_unused


def _places(xs: Any) -> list[Any]:
    """The tensors, or tensors at the gradient edges, that a caller named."""
    many = [xs] if isinstance(xs, (Tensor, GradientEdge)) else list(xs)
    return [_place(x) if isinstance(x, GradientEdge) else x for x in many]


def _place(edge: GradientEdge) -> Tensor:
    node = edge.node
    return node.variable if isinstance(node, AccumulateGrad) else tensor_at(node, edge.output_nr)


def _grad_batched(
    outs: list[Tensor],
    ins: list[Tensor],
    grad_outputs: Any,
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool | None,
) -> tuple[Tensor | None, ...]:
    """grad for each slice of the cotangents' leading axis, all at once (by vmap)."""
    seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    sizes = {len(g) for g in seeds if g is not None}
    if len(sizes) != 1:
        raise RuntimeError(
            f"[grad] expected grad_outputs with one batch size as first dim; got {sizes}"
        )
    level = Level(sizes.pop())
    with level.inside():
        rows = [None if g is None else level.batch(g) for g in seeds]
        found = grad(outs, ins, rows, retain_graph, create_graph, allow_unused=allow_unused)
        with level.outside():
            return tuple([None if g is None else level.widened(g) for g in found])


def _seeds(outputs: list[Tensor], grads: Any, create_graph: bool) -> list[Tensor]:
    if grads is None:
        cotangents: list[Any] = [None] * len(outputs)
    elif isinstance(grads, Tensor):
        cotangents = [grads]
    else:
        cotangents = list(grads)
    if len(cotangents) != len(outputs):
        raise RuntimeError(
            f"got {len(outputs)} tensors and {len(cotangents)} gradients; expected one each"
        )
    seeds = []
    for i, (y, g) in enumerate(zip(outputs, cotangents, strict=True)):
        if not isinstance(y, Tensor):
            raise TypeError(f"[backward] expected tensors; got {type(y).__name__}")
        if not y.requires_grad:
            raise RuntimeError(
                f"element {i} of tensors does not require grad and does not have a grad_fn"
            )
        if g is None:
            if y.numel() != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs; got "
                    f"{y._type}; pass the gradient argument, or reduce it, e.g. with .sum()"
                )
            if y._type.dtype.is_complex:
                raise RuntimeError(
                    "grad can be implicitly created only for real scalar outputs but got "
                    f"{y._type}; pass the gradient argument, or take its abs() or real"
                )
            watched = y._node is None or y._node.hooks or y._node.retains
            if y._type.shape or watched or y._type.device != "cpu":
                g = full(y._type.shape, 1.0, y._type.dtype, y._type.device)
            else:  # nobody gets to write it
                g = constant(1.0, y._type.dtype)
        elif not isinstance(g, Tensor):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(g).__name__}")
        else:
            if g._type.shape != y._type.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] "
                    f"has a shape of {y.shape}."
                )
            g = given.like(g, y._type, f"invalid gradient at index {i}")
            if not create_graph and g.requires_grad:
                g = g.detach()
        seeds.append(g)
    return seeds


def _run(
    outputs: list[Tensor],
    seeds: list[Tensor],
    inputs: list[Tensor] | None,
    retain_graph: bool,
    create_graph: bool,
    accumulate: bool,
) -> list[Tensor | None]:
    """Runs the graph; the gradients of `inputs` (or [] when None: all leaves accumulate)."""
    wanted: dict[tuple[int, int], list[int]] = {}  # (id of target, output) -> inputs
    results: list[Tensor | None] = [None] * (len(inputs) if inputs is not None else 0)
    targets: list[Any] = []
    for i, x in enumerate(inputs or ()):
        if not isinstance(x, Tensor):
            raise TypeError(f"[grad] expected tensors as inputs; got {type(x).__name__}")
        target, slot = edge_of(x)
        if target is None:
            raise RuntimeError(
                f"One of the differentiated Tensors does not require grad (input {i}, {x._type}); "
                "call requires_grad_() on it before it is used"
            )
        targets.append(target)
        wanted.setdefault((id(target), slot), []).append(i)

    roots = [edge_of(y) for y in outputs]
    sinks = unwatched(_collect, roots, None if inputs is None else targets)
    given = (roots, seeds, sinks, wanted, results, inputs, retain_graph, create_graph, accumulate)
    if state.watcher is not None and unwatched(_is_closed, sinks, seeds):
        unwatched(_walk, *given)
    else:
        _walk(*given)
    return results


def _is_closed(sinks: dict[int, _Sink], seeds: list[Tensor]) -> bool:
    """Whether none but our code runs between these nodes and leaves, and the call that is being
    recorded made all of the nodes: then nothing need be watched.

    Not where there are hooks, derivatives that users wrote, or tensors of classes of theirs.
    """
    first = getattr(state.recorder, "first_node", None)
    if first is None or not all(is_ours(type(g)) for g in seeds):
        return False
    for sink in sinks.values():
        target = sink.target
        if isinstance(target, Tensor):
            if target._hooks or target._post_hooks or not is_ours(type(target)):
                return False
            continue
        if target.seq < first or target.hooks or target.retains or not _runs_our_code(target):
            return False
        for edge in target.edges:
            if isinstance(edge, Tensor) and not is_ours(type(edge)):
                return False
    return True


def _runs_our_code(node: Node) -> bool:
    """Whether a node runs the derivative of a record of ours on what it has saved itself."""
    if type(node) is Node:
        return _is_record_of_ours(node.op) and not node.is_packed()
    return type(node) in _WITHOUT_CODE


_WITHOUT_CODE = frozenset([IdentityNode, OverwrittenNode, LeafNode])


@cache
def _is_record_of_ours(op: Any) -> bool:
    """Whether we wrote a record, and all functions that it was made of."""
    return is_ours(type(op)) and all(is_ours(f) for f in vars(op).values() if callable(f))


def _walk(
    roots: list[tuple[Node | Tensor | None, int]],
    seeds: list[Tensor],
    sinks: dict[int, _Sink],
    wanted: dict[tuple[int, int], list[int]],
    results: list[Tensor | None],
    inputs: list[Tensor] | None,
    retain_graph: bool,
    create_graph: bool,
    accumulate: bool,
) -> None:
    """Hands gradients on from the roots, node by node; `results` gets those of `inputs`."""
    ready: list[tuple[int, Node, _Sink]] = []
    for (target, slot), g in zip(roots, seeds, strict=True):
        if id(target) in sinks:
            _deliver(sinks[id(target)], slot, g)
    for sink in sinks.values():
        if sink.pending == 0 and isinstance(sink.target, Node):
            heapq.heappush(ready, (-sink.target.seq, sink.target, sink))

    before, outer = state.grad_enabled, state.backward
    state.grad_enabled, state.backward = create_graph, Run(frozenset(sinks))
    watched = state.anomaly or state.recorder is not None
    plain = not (watched or create_graph or state.abstract or state.levels)
    sink_of = sinks.get
    try:
        leaves = [s for s in sinks.values() if s.pending == 0 and isinstance(s.target, Tensor)]
        for sink in leaves:
            _finish_leaf(sink, wanted, results, inputs, accumulate, create_graph)
        while ready:
            _, node, here = heapq.heappop(ready)
            del sinks[id(node)]
            grads = here.sums
            if wanted or node.hooks or node.retains:
                _at_outputs(node, grads, wanted, results, inputs, accumulate, create_graph)
            edges = node.edges
            following = [sink_of(id(e)) for e in edges]  # None is no key, and leads nowhere
            passed: Any = ()
            for to in following:
                if to is not None:
                    break
            else:
                continue
            if grads[0] is not None or any(g is not None for g in grads):
                hooked = watched or node.hooks
                passed = None
                simple = plain and (type(node) is Node or node.kind is Node) and not hooked
                if simple and (type(grads[0]) is bare.Bare and len(grads) == 1 or _to_bare(grads)):
                    passed = bare.run(node, grads)
                if passed is None:
                    _to_tensors(grads)
                    passed = _run_node(node, grads) if hooked else node.run(grads)
                if type(passed) is not tuple or len(passed) < len(edges):
                    passed = _as_gradients(node, passed)
                passed = [*passed]  # so that each gradient can be let go of
                if create_graph and getattr(node.op, "flat", False):
                    connect(node, passed)
                if not retain_graph:
                    node.release()
            else:
                passed = [None] * len(edges)
            here.sums = []
            del grads
            for k, to in enumerate(following):
                if to is None:
                    continue
                g = passed[k]
                if g is not None:
                    if type(g) is AbsentTensor or type(g) is bare.Unsaved:
                        raise InternalError(f"{node.name()} did not save what its gradient reads")
                    passed[k] = None
                    _deliver(to, node.slots[k], g)
                    del g
                to.pending -= 1
                if to.pending == 0:
                    target = to.target
                    if isinstance(target, Node):
                        heapq.heappush(ready, (-target.seq, target, to))
                    else:
                        _finish_leaf(to, wanted, results, inputs, accumulate, create_graph)
    finally:
        state.grad_enabled, state.backward = before, outer


def _collect(
    roots: list[tuple[Node | Tensor | None, int]], targets: list[Any] | None
) -> dict[int, _Sink]:
    """A sink for every node and leaf that takes part, with the number of edges into it.

    With `targets`, only what lies on a path to one of them takes part.
    """
    sinks: dict[int, _Sink] = {}
    stack: list[Any] = []
    for target, _ in roots:
        if target is not None and id(target) not in sinks:
            if isinstance(target, Node):
                sinks[id(target)] = _Sink(target, 0, target.nout)
                stack.append(target)
            else:
                sinks[id(target)] = _Sink(target, 0, 1)
    while stack:
        for e in stack.pop().edges:
            if e is not None:
                key = id(e)
                if key in sinks:
                    sinks[key].pending += 1
                elif isinstance(e, Node):
                    sinks[key] = _Sink(e, 1, e.nout)
                    stack.append(e)
                else:
                    sinks[key] = _Sink(e, 1, 1)
    return sinks if targets is None else _leading_to(targets, sinks)


def _leading_to(targets: list[Any], sinks: dict[int, _Sink]) -> dict[int, _Sink]:
    """The sinks on a path to one of the targets, their edges counted again."""
    useful = {id(t) for t in targets}
    nodes = [s.target for s in sinks.values() if isinstance(s.target, Node)]
    nodes.sort(key=lambda n: n.seq)
    for node in nodes:  # what a node leads to was created before it
        if any(e is not None and id(e) in useful for e in node.edges):
            useful.add(id(node))
    sinks = {key: sink for key, sink in sinks.items() if key in useful}
    for sink in sinks.values():
        sink.pending = 0
    for node in nodes:
        if id(node) in sinks:
            for e in node.edges:
                if e is not None and id(e) in sinks:
                    sinks[id(e)].pending += 1
    return sinks


def _deliver(sink: _Sink, slot: int, g: Gradient) -> None:
    sums: list[Any] = sink.sums
    have = sums[slot]
    if have is None:
        sums[slot] = g
    elif type(have) is type(g) is bare.Bare:
        sums[slot] = bare.add(have, g)
    else:
        sums[slot] = apply(OPS["add"], (_as_tensor(have), _as_tensor(g)), {})


def _as_tensor(g: Any) -> Tensor:
    return g if isinstance(g, Tensor) else bare.tensor_of(g)


def _to_tensors(grads: list[Any]) -> None:
    """Gradients become tensors, in place."""
    for k, g in enumerate(grads):
        if g is not None and not isinstance(g, Tensor):
            grads[k] = bare.tensor_of(g)


def _to_bare(grads: list[Any]) -> bool:
    """Whether all gradients have data; they become bare, in place, up to one that has none."""
    for k, g in enumerate(grads):
        if g is not None and type(g) is not bare.Bare:
            if g._data is None:
                return False
            grads[k] = bare.bare_of(g)
    return True


def _run_node(node: Node, grads: list[Tensor | None]) -> tuple[Any, ...]:
    """One node's vjp, with the hooks on it."""
    hooks = node.hooks
    anomaly = state.anomaly
    recorder = state.recorder
    if hooks and -2 in hooks:
        for hook in list(hooks[-2].values()):
            changed = hook(tuple(grads))
            if changed is not None:
                grads = list(given.all_changed(hook, changed, grads))
    if recorder is not None and node.kind is Node:
        state.backward.node = node
    if anomaly:
        passed = _run_watched(node, grads)
    else:
        passed = node.run(grads)
    if recorder is not None:
        state.backward.node = None
    passed = _as_gradients(node, passed)
    if anomaly and state.check_nan:
        passed = _check_anomaly(node, passed)
    if hooks and -1 in hooks:
        for hook in list(hooks[-1].values()):
            changed = hook(tuple(passed), tuple(grads))
            if changed is not None:
                passed = given.all_changed(hook, changed, passed)
    return tuple(passed)


def _as_gradients(node: Node, passed: Any) -> tuple[Tensor | None, ...]:
    """What a derivative gave, as a tuple. Raises RuntimeError for too few gradients."""
    if not isinstance(passed, (tuple, list)) or len(passed) < len(node.edges):
        given = len(passed) if isinstance(passed, (tuple, list)) else 1
        raise RuntimeError(
            f"[{node.name()}] expected {len(node.edges)} gradients from the derivative; got {given}"
        )
    return tuple(passed)


def _run_watched(node: Node, grads: list[Tensor | None]) -> Any:
    """node.run; an error in it names the forward operation's line (detect_anomaly)."""
    try:
        return node.run(grads)
    except Exception as error:
        error.add_note(
            f"Error detected in {node.name()}; the forward operation that it belongs to is at "
            f"{node.line or 'an unknown line'}"
        )
        raise


def _check_anomaly(node: Node, passed: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients, without any NaN; checks are recorded, so that compiled code looks, too."""
    checked = list(passed)
    for k, g in enumerate(passed):
        if g is None or not g.is_floating_point():
            continue
        text = (
            f"Function '{node.name()}' returned nan values in its {k}th output; the forward "
            f"operation is at {node.line}"
        )
        if state.recorder is not None:
            attrs = {"low": -math.inf, "high": math.inf, "error": "RuntimeError", "text": text}
            checked[k] = apply(OPS["expect_range"], (g,), attrs)
        elif g._data is not None and _has_nan(g):
            raise RuntimeError(text)
    return checked


def _has_nan(g: Tensor) -> bool:
    data = g._data if g._type.device == "cpu" else gpu.kernels.host_array(g._data)
    return bool((data != data).any())


def _call_hooks(hooks: Any, g: Tensor, where: Tensor | None) -> Tensor:
    for hook in list(hooks.values()):
        changed = given.changed(hook, hook(g), g)
        g = g if changed is None else changed
    return g


def _at_outputs(
    node: Node,
    grads: list[Tensor | None],
    wanted: dict[tuple[int, int], list[int]],
    results: list[Tensor | None],
    inputs: list[Tensor] | None,
    accumulate: bool,
    create_graph: bool,
) -> None:
    """Hooks, retained gradients and wanted inputs at the outputs of a node about to run."""
    _to_tensors(grads)
    for slot, g in enumerate(grads):
        if g is None:
            continue
        if node.hooks and slot in node.hooks:
            g = grads[slot] = _call_hooks(node.hooks[slot], g, None)
        if node.retains and slot in node.retains:
            tensor = node.retains[slot]()
            if tensor is not None and tensor._node is node and tensor._out == slot:
                tensor._set_grad(g if tensor._grad is None else tensor._grad + g)
        for i in wanted.get((id(node), slot), ()):
            if accumulate:
                assert inputs is not None
                _accumulate(inputs[i], _copy_of(g), create_graph)
            else:
                results[i] = g


def _finish_leaf(
    sink: _Sink,
    wanted: dict[tuple[int, int], list[int]],
    results: list[Tensor | None],
    inputs: list[Tensor] | None,
    accumulate: bool,
    create_graph: bool,
) -> None:
    """All gradients of a leaf have arrived."""
    leaf = sink.target
    if sink.sums[0] is None:
        return
    if inputs is None and type(sink.sums[0]) is bare.Bare and not leaf._hooks:
        first: Any = sink.sums.pop()
        owned = bare.owned_tensor(first)
        if owned is not None:
            _accumulate(leaf, owned, create_graph)
            if leaf._post_hooks:
                for hook in list(leaf._post_hooks.values()):
                    hook(leaf)
            return
        sink.sums.append(first)
        del first
    _to_tensors(sink.sums)
    if leaf._hooks:
        sink.sums[0] = _call_hooks(leaf._hooks, sink.sums[0], leaf)
    if inputs is not None and not accumulate:
        for i in wanted.get((id(leaf), 0), ()):
            results[i] = sink.sums[0]
        return
    if inputs is not None and (id(leaf), 0) not in wanted:
        return
    g: Tensor | None = sink.sums.pop()
    assert g is not None
    if not (_holders(g) <= (_FRESH if g._data is not None else _LAZY) and _is_whole(g)):
        g = _copy_of(g)
    elif state.recorder is not state.lazy:  # the graph has a copy: there the memory may be shared
        g = hand_on(g)
    _accumulate(leaf, g, create_graph)
    if leaf._post_hooks:
        for hook in list(leaf._post_hooks.values()):
            hook(leaf)


def _accumulate(leaf: Tensor, g: Tensor, create_graph: bool) -> None:
    """leaf.grad += g, where g is nobody else's."""
    if g._type.shape != leaf._type.shape:
        raise RuntimeError(f"[backward] expected a gradient of type {leaf._type}; got {g._type}")
    if g._type.dtype is not leaf._type.dtype:
        g = apply(OPS["cast"], (g,), {"dtype": leaf._type.dtype})
    have = leaf.grad if state.recorder is not None else leaf._grad
    if have is None:
        leaf._set_grad(g)
        return
    total = apply(OPS["add"], (have, g), {})
    if create_graph or have.requires_grad:
        leaf._set_grad(total)
    else:
        assign(have, total)


def _copy_of(g: Tensor) -> Tensor:
    return apply(OPS["contiguous"], (g,), {})


def _is_whole(g: Tensor) -> bool:
    """g is the root of its storage and owns its memory."""
    if g._chain or g._view is not None or g._hooks:
        return False
    recorded = state.recorder is not state.lazy
    if recorded and (g._data is None or g._requires_grad or state.lazy is not None):
        return False
    if g._requires_grad and g._node is None:
        return False
    data = g._data
    return data is None or (not is_part(data) and bool(data.flags.c_contiguous))


def _holders(g: Tensor) -> int:
    """How many refer to the tensor, its storage and its array, the caller's own included."""
    count = sys.getrefcount(g) + sys.getrefcount(g._storage)
    return count + (sys.getrefcount(g._data) if g._data is not None else 0)


def _count_fresh(array: Any) -> int:
    """_holders of a tensor that only one local variable refers to, as in _finish_leaf."""
    sums: list[Any] = [_lone_tensor(array)]
    del array
    g = sums.pop()
    return _holders(g)


def _lone_tensor(array: Any) -> Tensor:
    return wrap(None if array is None else array(), TensorType((2,), dtypes.float32))


_FRESH = _count_fresh(lambda: np.zeros((2,), np.float32))
_LAZY = _count_fresh(None) + 1  # the recorder of a call in segments knows the storage
