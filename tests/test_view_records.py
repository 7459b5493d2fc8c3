"""Views and indexing records beyond the harness: puts, which reshapes are views, faults, ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_interpreter import interpret
from op_cases import outputs, run

from jitgrad.compiler.loops import Array, Builder
from jitgrad.compiler.ops import OPS, Op
from jitgrad.compiler.ops.movement import Reshape, view_strides
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import float32, from_numpy, int64

VIEWS = [op for op in OPS.values() if op.view]


class _Eager:
    """The least that a record's put needs of a tensor."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.shape, self.ndim, self.device = data.shape, data.ndim, "cpu"
        self.dtype = from_numpy(data.dtype)

    def _bind(self, op: Op, operands: tuple[object, ...], attrs: dict[str, object]) -> _Eager:
        arrays = [x.data if isinstance(x, _Eager) else self.data.dtype.type(x) for x in operands]
        return _Eager(op.reference(*arrays, **attrs))


@pytest.mark.parametrize("op", VIEWS, ids=lambda op: op.name)
def test_reference_of_a_view_shares_memory_and_put_writes_through(op: Op) -> None:
    for s in op.samples():
        base = np.array(s.args[0])
        if isinstance(op, Reshape) and not op.can_view(base.shape, base.strides, **s.attrs):
            continue
        view = op.reference(base, **s.attrs)
        assert np.shares_memory(base, view) or view.size == 0
        update = np.arange(view.size).reshape(view.shape).astype(view.dtype)
        writable = view.flags.writeable and len(set(_addresses(view))) == view.size
        if not writable:
            with pytest.raises(RuntimeError, match=r"more than one element.*clone\(\)"):
                op.put(_Eager(base), _Eager(update), **s.attrs)
            continue
        found = op.put(_Eager(base), _Eager(update), **s.attrs).data
        view[...] = update
        np.testing.assert_array_equal(found, base)


def _addresses(x: np.ndarray) -> np.ndarray:
    offsets = np.zeros((), np.int64)
    for n, stride in zip(x.shape, x.strides, strict=True):
        offsets = offsets[..., None] + np.arange(n) * stride
    return offsets.reshape(-1)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_view_strides_agrees_with_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    steps = data.draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    order = data.draw(st.permutations(range(len(shape))))
    whole = np.zeros([n * k for n, k in zip(shape, steps, strict=True)])
    x = whole[tuple(slice(None, None, k) for k in steps)].transpose(order)
    a = data.draw(st.sampled_from([d for d in range(1, x.size + 1) if x.size % d == 0]))
    b = data.draw(st.sampled_from([d for d in range(1, a + 1) if a % d == 0]))
    new = (b, a // b, x.size // a)
    y = x.reshape(new)
    strides = view_strides(x.shape, x.strides, new)
    assert (strides is not None) == np.shares_memory(x, y)
    if strides is not None:
        assert all(n == 1 or s == t for n, s, t in zip(new, strides, y.strides, strict=True))


X = np.arange(12.0, dtype=np.float32).reshape(3, 4)
FAULTS = [
    ("gather", (X, np.array([[0], [4], [1]])), {"axis": 1}, "index 4 .* dimension 1 with size 4"),
    ("gather", (X, np.array([[0], [-1], [1]])), {"axis": 1}, "index -1 .* dimension 1"),
    ("scatter", (X, np.array([[3, 0]]), X), {"axis": 0}, "index 3 .* dimension 0 with size 3"),
    ("scatter_add", (X, np.full((3, 9), 4), np.ones((3, 9), np.float32)), {"axis": 1}, "index 4"),
    ("index", (X, np.array([0, 3])), {"dims": (0,)}, "index 3 .* dimension 0 with size 3"),
    ("index", (X, np.array([-5])), {"dims": (1,)}, "index -5 .* dimension 1 with size 4"),
    (
        "index_put",
        (X, np.ones((1, 4), np.float32), np.array([-4])),
        {"dims": (0,), "accumulate": False},
        "index -4 .* dimension 0 with size 3",
    ),
]
_RANGE = {"low": 0, "high": 3, "error": "IndexError", "text": "[expect_range] value {value}"}
FAULTS += [
    ("expect_range", (np.array([1, 4]),), _RANGE, "value 4"),
    ("expect_range", (np.array([-1, 4]),), _RANGE, "value -1"),
    ("expect_range", (np.array([5], np.int32),), _RANGE, "value 5"),
    ("expect_range", (np.array([1.0, np.nan], np.float32),), _RANGE, "value nan"),
    ("expect_range", (np.array([3.5]),), _RANGE, "value 3.5"),
]


@pytest.mark.parametrize(("name", "args", "attrs", "text"), FAULTS)
def test_positions_out_of_range(
    name: str, args: tuple[np.ndarray, ...], attrs: dict[str, object], text: str
) -> None:
    """The reference raises PyTorch's words; the loop definitions flag the fault."""
    op = OPS[name]
    kind = RuntimeError if name in ("gather", "scatter", "scatter_add") else IndexError
    with pytest.raises(kind, match=rf"\[{name}\] {text}"):
        op.reference(*args, **attrs)
    builder = Builder()
    builder.site = 7
    operands = [Array(f"in{i}", a.shape, from_numpy(a.dtype)) for i, a in enumerate(args)]
    op.lower(builder, *operands, **attrs)
    done = interpret(builder.arrays, dict(zip(operands, args, strict=True)), {})
    assert set(done.faults) == {7}


def test_the_last_write_wins() -> None:
    base, index = np.zeros(3, np.float32), np.array([1, 1, 0, 1])
    src = np.array([1, 2, 3, 4], np.float32)
    out = OPS["scatter"].reference(base, index, src, axis=0)
    np.testing.assert_array_equal(out, [3, 4, 0])
    out = OPS["index_put"].reference(base, src, index, dims=(0,), accumulate=False)
    np.testing.assert_array_equal(out, [3, 4, 0])
    out = OPS["index_put"].reference(base, src, index, dims=(0,), accumulate=True)
    np.testing.assert_array_equal(out, [3, 7, 0])


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "padding", "expected"),
    [(5, 2, 2, 0, 3), (5, 2, 2, 1, 3), (3, 2, 2, 1, 2), (6, 3, 2, 1, 4), (7, 3, 3, 1, 3)],
)
def test_ceil_mode_sizes(n: int, kernel: int, stride: int, padding: int, expected: int) -> None:
    """PyTorch's rule: the last window starts inside the input or its left padding."""
    t = TensorType((1, n), float32)
    values, places = OPS["max_pool"].infer(
        t, kernel=(kernel,), stride=(stride,), padding=(padding,), dilation=(1,), ceil_mode=True
    )
    assert values.shape == places.shape == (1, expected)
    assert places.dtype is int64


def test_max_pool_of_nothing_but_lowest_points_into_the_input() -> None:
    for x in (np.full((1, 3, 3), -np.inf, np.float32), np.full((1, 3, 3), -128, np.int8)):
        attrs = {
            "kernel": (2, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1),
            "ceil_mode": False,
        }  # fmt: skip
        _, places = outputs(OPS["max_pool"].reference(x, **attrs))
        np.testing.assert_array_equal(places, [[[0, 1], [3, 4]]])


def test_samples_are_deterministic() -> None:
    for op in VIEWS:
        for a, b in zip(op.samples(), op.samples(), strict=True):
            for x, y in zip(run(op, a), run(op, b), strict=True):
                np.testing.assert_array_equal(x, y)


def test_noop_records_are_identities_where_the_type_stays() -> None:
    """What `noop` promises to simplification (a pad that shifts keeps the type and is none)."""
    checked = set()
    for op in OPS.values():
        for s in op.samples() if op.noop else ():
            (out,) = run(op, s)
            if (out.shape, out.dtype) == (s.args[0].shape, s.args[0].dtype):
                np.testing.assert_array_equal(out, s.args[0])
                checked.add(op.name)
    assert "expand" in checked
    assert not OPS["pad"].noop
