"""Handlers of ONNX's ops that hold graphs (If, Loop, Scan), and of sequences and optionals.

They run in Python: under @jit a condition or a number of rounds must be known when the graph is,
and loops are unrolled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.onnx.importing.calls import Call, as_array, as_tensor, axis_of, handler
from jitgrad.tensor import Tensor

MAX_ROUNDS = 10_000_000


@handler("If", folds=False)
def if_(c: Call) -> Any:
    c.ignore("then_branch", "else_branch")
    chosen = bool(c.array(0).reshape(()))
    made = c.run.subgraph(c, c.graph("then_branch" if chosen else "else_branch"), [])
    return tuple(made)


@handler("Loop", folds=False)
def loop(c: Call) -> Any:
    body = c.graph("body")
    limit = int(c.array(0).reshape(())) if c.has(0) else MAX_ROUNDS
    go = bool(c.array(1).reshape(())) if c.has(1) else True
    carried = list(c.values[2:])
    stacked: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    number = 0
    while go and number < limit:
        if number >= MAX_ROUNDS:
            raise ValueError(f"the loop does not end in {MAX_ROUNDS:,} rounds")
        made = c.run.subgraph(
            c, body, [np.array(number, np.int64), np.array(go), *carried]
        )  # fmt: skip
        number += 1
        go = number < limit and bool(as_array(made[0]).reshape(()))
        carried = made[1 : 1 + len(carried)]
        for rows, row in zip(stacked, made[1 + len(carried) :], strict=True):
            rows.append(row)
    return (*carried, *[_stacked(rows, 0, c) for rows in stacked])


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
    xs = [x.movedim(axis_of(a, x.ndim), 0) for x, a in zip(xs, axes, strict=True)]
    steps = {int(x.shape[0]) for x in xs}
    if len(steps) != 1:
        raise ValueError(f"expected scanned operands of one length; got {sorted(steps)}")
    (n,) = steps
    rows: list[list[Any]] = [[] for _ in range(made_count)]
    for t in range(n):
        now = [x[n - 1 - t if b else t] for x, b in zip(xs, backwards, strict=True)]
        made = c.run.subgraph(c, body, [*states, *now])
        states = made[: len(states)]
        for kept, row in zip(rows, made[len(states) :], strict=True):
            kept.append(row)
    stacks = []
    for kept, back, axis in zip(rows, out_backwards, out_axes, strict=True):
        rank = as_tensor(kept[0]).ndim + 1 if kept else 1
        stacks.append(_stacked(kept[::-1] if back else kept, axis_of(axis, rank), c))
    return [*states, *stacks]


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
