"""Control flow on tensors' values: cond, while_loop and scan.

Eager code runs Python: the branch that is chosen, one step after another. Where a graph is recorded
(under jit), the functions are traced once and become one node (compiler/ops/control.py), so that
loops are not unrolled and branches are compiled. Functions are to be pure: what they do besides
computing their result happens once, while they are traced. On a GPU Python runs in graphs, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.body_recorder import Traced, Untraceable, draw_block, trace
from jitgrad.compiler.body import Body
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.ops.scan_derivative import reversed_scan, saving
from jitgrad.compiler.types import TensorType
from jitgrad.creation import as_tensor, zeros
from jitgrad.dispatch import apply
from jitgrad.functions.elementwise import where
from jitgrad.functions.shape import stack
from jitgrad.levels import Level
from jitgrad.loop_nodes.recording import recorded_loop, records, together
from jitgrad.pytree import Structure, flatten, unflatten
from jitgrad.runtime import dtypes
from jitgrad.sizes import is_size
from jitgrad.state import state
from jitgrad.storage import LevelStorage
from jitgrad.tensor import Tensor


# -- scan ------------------------------------------------------------------------------------------
def scan(
    combine_fn: Callable[..., Any],
    init: Any,
    xs: Any = None,
    *,
    dim: int = 0,
    reverse: bool = False,
    length: int | None = None,
) -> tuple[Any, Any]:
    """A loop that carries a state along a dimension: (last carry, results of all steps, stacked).

    combine_fn(carry, x) -> (next carry, result), for each slice x of xs along `dim`. init, xs and
    results are tensors or trees of them (tuples, lists, dicts); carries keep their shapes and
    dtypes; results are stacked along `dim`. reverse: from the last slice to the first, results at
    their slices' places. xs None: `length` steps, x is None.

    Tensors that combine_fn captures get gradients as well. Under jit one node is recorded, however
    many steps there are; combine_fn then runs once, and may not change anything in place that it
    did not make. Raises TypeError for functions that do not return pairs, RuntimeError for xs of
    different lengths, leaves that are no tensors, and carries that change.
    """
    name = "scan"
    _expect_callable(name, combine_fn=combine_fn)
    carries, carry_shape = _tensors(name, "init", init)
    if not carries:
        raise RuntimeError("[scan] expected init with at least one tensor; got none")
    slices, x_shape = _tensors(name, "xs", xs) if xs is not None else ([], flatten(None)[1])
    if not isinstance(reverse, bool):
        raise RuntimeError(f"[scan] expected reverse to be a bool; got {type(reverse).__name__}")
    if slices and dim < 0:
        dim += slices[0].dim()
    steps = _length(slices, dim, length)
    slices = [x.movedim(dim, 0) if dim else x for x in slices]

    def step(*leaves: Any) -> tuple[list[Tensor], list[Tensor], Structure | None]:
        """(carries, slices) as leaves -> carries and results as leaves, and the results' tree (None
        where there are none)."""
        carry = unflatten(carry_shape, leaves[: len(carries)])
        x = None if xs is None else unflatten(x_shape, leaves[len(carries) :])
        found = combine_fn(carry, x)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise TypeError(
                f"[scan] expected combine_fn to return (carry, result); got {_kind(found)}"
            )
        now = _checked(name, found[0], carry_shape, carries)
        if found[1] is None:
            return now, [], None
        ys, y_shape = flatten(found[1])
        return now, [_as_tensor(y) for y in ys], y_shape

    operands = [*carries, *slices]
    if records(operands, combine_fn) and (state.recorder is not None or steps > _FEW):
        try:
            return _recorded_scan(step, carries, carry_shape, slices, steps, reverse, dim)
        except Untraceable as problem:
            _give_up(name, problem)
    now, results, y_shape = list(carries), [], None
    order = range(steps)
    parts = [x.unbind(0) for x in slices]
    for t in reversed(order) if reverse else order:
        now, ys, y_shape = step(*now, *(p[t] for p in parts))
        results.append(ys)
    if reverse:
        results.reverse()
    if not results:
        return _no_steps(step, carries, carry_shape, slices, dim)
    stacked = [stack(list(column)) for column in zip(*results, strict=True)]
    return unflatten(carry_shape, now), _results(y_shape, stacked, dim)


def _results(shape: Structure | None, stacked: list[Tensor], dim: int) -> Any:
    if shape is None:
        return None
    return unflatten(shape, [y.movedim(0, dim) for y in stacked] if dim else stacked)


def _length(slices: Sequence[Tensor], dim: int, length: int | None) -> Any:
    """The number of steps, symbolic where the size of xs is."""
    sizes: list[Any] = []
    for x in slices:
        if not -x.dim() <= dim < x.dim():
            raise RuntimeError(f"[scan] expected xs with a dim {dim}; got {x._type}")
        sizes.append(x.shape[dim])
    if length is not None:
        sizes.append(length if is_size(length) else operator.index(length))
    if not sizes or any(n != sizes[0] for n in sizes[1:]):
        raise RuntimeError(
            f"[scan] expected xs of one length along dim {dim}, or length; got {sorted(set(sizes))}"
        )
    return sizes[0]


def _recorded_scan(
    step: Callable[..., Any],
    carries: Sequence[Tensor],
    carry_shape: Structure,
    slices: Sequence[Tensor],
    steps: int,
    reverse: bool,
    dim: int,
) -> tuple[Any, Any]:
    shape, made = _traced_step(step, carries, slices)
    last, stacked = apply_scan(made, carries, slices, steps, reverse)
    return unflatten(carry_shape, last), _results(shape, stacked, dim)


def _traced_step(
    step: Callable[..., Any], carries: Sequence[Tensor], slices: Sequence[Tensor]
) -> tuple[Structure | None, Traced]:
    """The tree of a step's results, and the step traced."""
    shapes: list[Structure | None] = []

    def traced_step(*leaves: Any) -> tuple[list[Tensor], list[Tensor]]:
        now, ys, shape = step(*leaves)
        shapes.append(shape)
        return now, ys

    types = [x._type for x in carries]
    types += [x._type.with_shape(x._type.shape[1:]) for x in slices]
    made = trace(traced_step, [*carries, *slices], types)
    return shapes[0], made


def apply_scan(
    made: Traced, carries: Sequence[Tensor], slices: Sequence[Tensor], steps: int, reverse: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The scan of a traced step: (last carries, stacked results)."""
    n, m, k = len(carries), len(slices), len(made.draws)
    graph = made.body.graph
    inputs, ends = graph.inputs, graph.outputs
    rest = inputs[n + m :]
    captured, extra = rest[: len(made.captured)], rest[len(made.captured) :]
    seeds, counters = extra[0::2], extra[1::2]
    count = len(ends) - n - k  # results of a step
    body = Body(Graph(
        [*inputs[:n], *counters, *inputs[n : n + m], *captured, *seeds], graph.nodes,
        [*ends[:n], *ends[n + count :], *ends[n : n + count]], name="body",
    ))  # fmt: skip
    drawn = [draw_block(g, each * steps) for g, each in made.draws]
    operands = (
        *carries, *(first for _, first in drawn), *slices, *made.captured,
        *(seed for seed, _ in drawn),
    )  # fmt: skip
    body = keeping(body, n + k, m, operands)
    found = apply(
        OPS["scan"], operands,
        {"body": body, "carries": n + k, "xs": m, "length": steps, "reverse": reverse},
    )  # fmt: skip
    return list(found[:n]), list(found[n + k : n + k + count])


def keeping(body: Body, carries: int, xs: int, operands: Sequence[Tensor]) -> Body:
    """The body, giving also what its derivative reads where that will be wanted."""
    if not state.grad_enabled or not any(x.requires_grad for x in operands):
        return body
    needs = tuple(x.requires_grad for x in operands)
    seeds = tuple(t.dtype.category >= dtypes.Category.FLOAT for t in body.outputs[carries:])
    plan = reversed_scan(body, carries, xs, seeds, needs)
    return saving(body, plan.missing) if plan.missing else body


def _no_steps(
    step: Callable[..., Any],
    carries: list[Tensor],
    carry_shape: Structure,
    slices: list[Tensor],
    dim: int,
) -> tuple[Any, Any]:
    """No step at all: results of length 0, of the types that a step would give."""
    try:
        if not any(x.is_cuda for x in (*carries, *slices)):
            return _recorded_scan(step, carries, carry_shape, slices, 0, False, dim)
        shape, made = _traced_step(step, carries, slices)
        types = made.body.outputs[len(carries) : len(made.body.outputs) - len(made.draws)]
        none = [zeros(0, *t.shape, dtype=t.dtype, device=t.device) for t in types]
        return unflatten(carry_shape, carries), _results(shape, none, dim)
    except Untraceable as problem:
        raise RuntimeError(
            f"[scan] expected at least one step of a function that {problem.reason}"
        ) from None


# -- while_loop ------------------------------------------------------------------------------------
def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    *,
    max_steps: int | None = None,
) -> Any:
    """carried = body_fn(*carried) as long as cond_fn(*carried) is true; returns the last carried.

    carried_inputs: a tuple of tensors, numbers (which become 0-d tensors) or trees of them; they
    keep their shapes and dtypes. cond_fn gives a bool, or a tensor of one. max_steps: the loop ends
    after so many steps at the latest; under jit only such a loop can be differentiated backwards,
    for what it has to keep. Inside vmap it runs until no example goes on.

    Under jit both functions run once, while they are traced, and may not change anything in place
    that they did not make. Raises RuntimeError for carried values that change their type.
    """
    name = "while_loop"
    _expect_callable(name, cond_fn=cond_fn, body_fn=body_fn)
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(
            f"[while_loop] expected carried_inputs to be a tuple; got {_kind(carried_inputs)}"
        )
    leaves, shape = flatten(tuple(carried_inputs))
    carries = [_as_tensor(x) for x in leaves]

    def test(*now: Any) -> Any:
        go = cond_fn(*unflatten(shape, now))
        return _as_tensor(go) if not isinstance(go, Tensor) else go

    def step(*now: Any) -> list[Tensor]:
        found = body_fn(*unflatten(shape, now))
        if isinstance(found, list):
            found = tuple(found)
        return _checked(name, found if isinstance(found, tuple) else (found,), shape, carries)

    if records(carries, cond_fn, body_fn):
        try:
            return unflatten(shape, recorded_loop(test, step, carries, max_steps))
        except Untraceable as problem:
            _give_up(name, problem)
    now, count = list(carries), 0
    while max_steps is None or count < max_steps:
        go = test(*now)
        some, each = _truth(go)
        if not some:
            break
        new = step(*now)
        if each is not None:  # examples that are done keep what they have
            new = [where(_like(each, a), a, b) for a, b in zip(new, now, strict=True)]
        now = new
        count += 1
    return unflatten(shape, now)


# -- cond ------------------------------------------------------------------------------------------
def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Any = (),
) -> Any:
    """true_fn(*operands) if pred else false_fn(*operands).

    pred: a bool, or a tensor of one element. operands: a tuple of tensors or trees of them. Only
    the function that is chosen runs; under jit both are traced and have to return tensors of the
    same shapes and dtypes, in trees alike. Inside vmap, with a pred for each example, both run and
    `where` chooses. Raises RuntimeError for a pred of more elements.
    """
    _expect_callable("cond", true_fn=true_fn, false_fn=false_fn)
    if not isinstance(operands, (tuple, list)):
        raise RuntimeError(f"[cond] expected operands to be a tuple; got {_kind(operands)}")
    operands = tuple(operands)
    if not isinstance(pred, Tensor):
        if not isinstance(pred, (bool, int, float)):
            raise RuntimeError(f"[cond] expected pred to be a bool or a tensor; got {_kind(pred)}")
        return true_fn(*operands) if pred else false_fn(*operands)
    if pred.numel() != 1:
        raise RuntimeError(f"[cond] expected pred to have one element; got {pred._type}")
    if records([pred, *flatten(operands)[0]], true_fn, false_fn):
        try:
            return _recorded_cond(pred, true_fn, false_fn, operands)
        except Untraceable as problem:
            _give_up("cond", problem)
    some, each = _truth(pred)
    if each is None:
        return true_fn(*operands) if some else false_fn(*operands)
    left, shape = flatten(true_fn(*operands))
    right, other = flatten(false_fn(*operands))
    _expect_alike(shape, other)
    chosen = [where(_like(each, a), a, b) for a, b in zip(left, right, strict=True)]
    return unflatten(shape, chosen)


def _recorded_cond(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    leaves, _ = flatten(operands)
    given = [x for x in leaves if isinstance(x, Tensor)]
    types = [x._type for x in given]
    branches = [trace(f, operands, types) for f in (true_fn, false_fn)]
    _expect_alike(*(b.structure for b in branches))
    if any(b.draws for b in branches):
        raise Untraceable("draws random numbers in a branch, how many is known only when it runs")
    left, right = (b.body.outputs for b in branches)
    if left != right:
        raise RuntimeError(
            f"[cond] expected branches that return tensors of equal types; got {_list(left)} and "
            f"{_list(right)}"
        )
    captured, bodies = together(given, branches)
    chosen = pred if pred.dtype is dtypes.bool_ else pred != 0
    attrs = {"on_true": bodies[0], "on_false": bodies[1]}
    found = apply(OPS["cond"], (chosen, *given, *captured), attrs)
    return unflatten(branches[0].structure, list(found))


def _expect_alike(left: Structure, right: Structure) -> None:
    if left != right:
        raise RuntimeError(
            f"[cond] expected branches that return trees alike; got {left} and {right}"
        )


_FEW = 3
"""So many steps of a scan take less time one by one than tracing one."""


# -- what they share -------------------------------------------------------------------------------
def _give_up(name: str, problem: Untraceable) -> None:
    """Under jit the whole call runs eagerly; in a body that is traced, the body around is none."""
    if state.recorder is not None and state.recorder is not state.lazy:
        state.recorder.give_up(f"[{name}] has a function that {problem.reason}", problem.line)


def _truth(go: Tensor) -> tuple[bool, Tensor | None]:
    """Whether it is true (of some example), and, inside vmap, the flag of each example."""
    if go.numel() != 1:
        raise RuntimeError(
            f"[control flow] expected a condition of one element; got {go._type}; use all() or "
            "any()"
        )
    flag = go.reshape(())
    if flag.dtype is not dtypes.bool_:
        flag = flag != 0
    if type(flag._storage) is not LevelStorage:
        return bool(flag), None
    below: Tensor = flag
    while type(below._storage) is LevelStorage:
        level: Level = below._storage.level
        with level.outside():
            below, _ = level.below_of(below)
            below = below.any()
    return bool(below), flag


def _like(flag: Tensor, x: Any) -> Tensor:
    """The flag with as many dims as x."""
    return flag.reshape((1,) * x.dim()) if isinstance(x, Tensor) else flag


def _tensors(name: str, what: str, tree: Any) -> tuple[list[Tensor], Structure]:
    leaves, structure = flatten(tree)
    for x in leaves:
        if not isinstance(x, Tensor):
            raise RuntimeError(f"[{name}] expected leaves of {what} to be tensors; got {_kind(x)}")
    return leaves, structure


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, (bool, int, float, complex)):
        raise RuntimeError(f"[control flow] expected tensors and numbers; got {_kind(x)}")
    return as_tensor(x)


def _checked(name: str, tree: Any, shape: Structure, before: Sequence[Tensor]) -> list[Tensor]:
    """The leaves of new carries, of the types that they had."""
    leaves, structure = flatten(tree)
    if structure != shape:
        raise RuntimeError(
            f"[{name}] expected carries of structure {shape}, as they came in; got {structure}"
        )
    found = [_as_tensor(x) for x in leaves]
    for old, new in zip(before, found, strict=True):
        if tuple(old.shape) != tuple(new.shape) or old.dtype is not new.dtype:
            raise RuntimeError(
                f"[{name}] expected a carry that stays {old._type}; got {new._type}; make the "
                "first one of that type"
            )
    return found


def _expect_callable(name: str, **functions: Any) -> None:
    for what, f in functions.items():
        if not callable(f):
            raise RuntimeError(f"[{name}] expected {what} to be callable; got {_kind(f)}")


def _kind(x: Any) -> str:
    return str(x._type) if isinstance(x, Tensor) else type(x).__name__


def _list(types: Sequence[TensorType]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"
