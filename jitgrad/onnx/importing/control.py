"""Handlers of ONNX's ops that hold graphs (If, Loop, Scan), and of sequences and optionals.

Scan is jitgrad.scan. If and Loop run in Python; while a graph is recorded, those that ask a tensor
become jitgrad.cond and jitgrad.while_loop. Loops with a known number of rounds are unrolled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.onnx.importing.calls import (
    Call,
    as_array,
    as_tensor,
    axis_of,
    handler,
    is_known,
)
from jitgrad.state import state
from jitgrad.tensor import Tensor

MAX_ROUNDS = 10_000_000


def _recording() -> bool:
    return state.recorder is not None or state.abstract


@handler("If", folds=False)
def if_(c: Call) -> Any:
    c.ignore("then_branch", "else_branch")
    pred = c.value(0)
    if isinstance(pred, Tensor) and _recording():

        def branch(name: str) -> Any:
            return lambda: tuple(map(as_tensor, c.run.subgraph(c, c.graph(name), [])))

        return jg.cond(pred.reshape(()), branch("then_branch"), branch("else_branch"), ())
    chosen = bool(c.array(0).reshape(()))
    return tuple(c.run.subgraph(c, c.graph("then_branch" if chosen else "else_branch"), []))


@handler("Loop", folds=False)
def loop(c: Call) -> Any:
    body = c.graph("body")
    carried = list(c.values[2:])
    stacked: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    start = c.values[1] if c.has(1) else np.array(True)
    known = is_known(c.values[0]) and is_known(start)
    if not known and _recording() and not stacked:
        return _while(c, start, carried)
    limit = int(c.array(0).reshape(())) if c.has(0) else MAX_ROUNDS
    go = bool(as_array(start).reshape(()))
    number = 0
    while go and number < limit:
        if number >= MAX_ROUNDS:
            raise ValueError(f"the loop does not end in {MAX_ROUNDS:,} rounds")
        made = c.run.subgraph(c, body, [np.array(number, np.int64), np.array(go), *carried])
        if not is_known(made[0]) and _recording() and not stacked:
            return _while(c, start, list(c.values[2:]))
        number += 1
        go = number < limit and bool(as_array(made[0]).reshape(()))
        carried = made[1 : 1 + len(carried)]
        for rows, row in zip(stacked, made[1 + len(carried) :], strict=True):
            rows.append(row)
    return (*carried, *[_stacked(rows, 0, c) for rows in stacked])


def _while(c: Call, start: Any, carried: list[Any]) -> Any:
    """A loop whose end is found in tensors."""
    limit = c.tensor(0).reshape(()) if c.has(0) else None

    def goes_on(number: Tensor, go: Tensor, *now: Tensor) -> Tensor:
        return go if limit is None else go & (number < limit)

    def step(number: Tensor, go: Tensor, *now: Tensor) -> Any:
        made = c.run.subgraph(c, c.graph("body"), [number, go, *now])
        after, *rest = map(as_tensor, made)
        return (number + 1, after.reshape(()), *rest)

    first = (jg.zeros((), dtype=jg.int64), as_tensor(start).reshape(()))
    found = jg.while_loop(goes_on, step, (*first, *map(as_tensor, carried)))
    return tuple(found[2:])


def _stacked(rows: list[Any], axis: int, c: Call) -> Any:
    if not rows:
        c.unsupported("a loop without rounds whose results are stacked")
    if all(isinstance(r, np.ndarray) for r in rows):
        return np.stack(rows, axis)
    return jg.stack([as_tensor(r) for r in rows], axis)


@handler("Scan", folds=False)
def scan(c: Call) -> Any:
    body, count = c.graph("body"), c.attr("num_scan_inputs")
    c.ignore("directions", "scan_input_directions")
    if c.opset < 9:
        return _scan_8(c, count)
    states = list(c.values[: len(c.values) - count])
    return tuple(
        _scan(c, states, [as_tensor(x) for x in c.values[len(states) :]], len(body.outputs))
    )


def _scan(c: Call, states: list[Any], xs: list[Tensor], outputs: int) -> list[Any]:
    body, count = c.graph("body"), len(xs)
    made_count = outputs - len(states)
    backwards = c.attr("scan_input_directions", None) or c.attr("directions", None) or [0] * count
    axes = c.attr("scan_input_axes", None) or [0] * count
    out_backwards = c.attr("scan_output_directions", None) or [0] * made_count
    out_axes = c.attr("scan_output_axes", None) or [0] * made_count
    rows = [x.movedim(axis_of(a, x.ndim), 0) for x, a in zip(xs, axes, strict=True)]
    if len({int(x.shape[0]) for x in rows}) != 1:
        raise ValueError(f"expected scanned operands of one length; got {[x.shape for x in rows]}")
    rows = [jg.flip(x, [0]) if b else x for x, b in zip(rows, backwards, strict=True)]

    def step(now: Any, row: Any) -> Any:
        made = tuple(map(as_tensor, c.run.subgraph(c, body, [*now, *row])))
        return made[: len(states)], made[len(states) :]

    last, stacks = jg.scan(step, tuple(map(as_tensor, states)), tuple(rows))
    found = []
    for y, back, axis in zip(stacks, out_backwards, out_axes, strict=True):
        y = jg.flip(y, [0]) if back else y
        found.append(y.movedim(0, axis_of(axis, y.ndim)))
    return [*last, *found]


def _scan_8(c: Call, count: int) -> Any:
    """Opset 8: with a batch in front, each example scanned by itself."""
    if c.has(0):
        c.unsupported("sequence_lens of Scan at opset 8")
    values = c.values[1:]
    states, xs = values[: len(values) - count], values[len(values) - count :]
    batch = int(as_tensor(xs[0]).shape[0])
    outputs = len(c.graph("body").outputs)
    examples = [
        _scan(
            c, [as_tensor(s)[b] for s in states], [as_tensor(x)[b] for x in xs], outputs
        )
        for b in range(batch)
    ]  # fmt: skip
    return tuple(jg.stack([as_tensor(e[k]) for e in examples]) for k in range(outputs))


# -- sequences ------------------------------------------------------------------------------------
def _list(c: Call, i: int = 0) -> list[Any]:
    found = c.value(i)
    if not isinstance(found, list):
        raise ValueError(f"expected operand {i} to be a sequence")
    return found


@handler("SequenceConstruct", folds=False)
def sequence_construct(c: Call) -> Any:
    return list(c.values)


@handler("SequenceEmpty", folds=False)
def sequence_empty(c: Call) -> Any:
    c.ignore("dtype")
    return []


@handler("SequenceAt", folds=False)
def sequence_at(c: Call) -> Any:
    return _list(c)[c.ints(1)[0]]


@handler("SequenceInsert", folds=False)
def sequence_insert(c: Call) -> Any:
    items = list(_list(c))
    items.insert(c.ints(2)[0] if c.has(2) else len(items), c.value(1))
    return items


@handler("SequenceErase", folds=False)
def sequence_erase(c: Call) -> Any:
    items = list(_list(c))
    del items[c.ints(1)[0] if c.has(1) else -1]
    return items


@handler("SequenceLength", folds=False)
def sequence_length(c: Call) -> Any:
    return np.array(len(_list(c)), np.int64)


@handler("ConcatFromSequence", folds=False)
def concat_from_sequence(c: Call) -> Any:
    xs, axis = [as_tensor(x) for x in _list(c)], c.attr("axis")
    return jg.stack(xs, axis) if c.attr("new_axis", 0) else jg.cat(xs, axis)


@handler("SplitToSequence", folds=False)
def split_to_sequence(c: Call) -> Any:
    x = c.tensor(0)
    axis = axis_of(c.attr("axis", 0), x.ndim)
    c.ignore("keepdims")
    if c.has(1):
        split = c.array(1)
        return list(jg.split(x, int(split) if split.ndim == 0 else [int(n) for n in split], axis))
    parts = jg.split(x, 1, axis)
    return list(parts) if c.attr("keepdims", 1) else [p.squeeze(axis) for p in parts]


@handler("SequenceMap", folds=False)
def sequence_map(c: Call) -> Any:
    first = _list(c)
    body = c.graph("body")
    rows = []
    for k in range(len(first)):
        operands = [v[k] if isinstance(v, list) else v for v in c.values]
        rows.append(c.run.subgraph(c, body, operands))
    return tuple([row[k] for row in rows] for k in range(len(body.outputs)))


# -- optionals ------------------------------------------------------------------------------------
@handler("Optional", folds=False)
def optional(c: Call) -> Any:
    c.ignore("type")
    return c.values[0] if c.values else None


@handler("OptionalHasElement", folds=False)
def optional_has_element(c: Call) -> Any:
    return np.array(c.has(0))


@handler("OptionalGetElement", folds=False)
def optional_get_element(c: Call) -> Any:
    return c.value(0)
