"""Indexing, read and written, against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgrad as t

SHAPE = (3, 4, 5)


def array():
    return np.arange(60.0).reshape(SHAPE)


def slices(n):
    bound = st.one_of(st.none(), st.integers(-n - 2, n + 2))
    return st.builds(slice, bound, bound, st.one_of(st.none(), st.integers(1, 3)))


@st.composite
def basic(draw):
    parts = []
    for n in SHAPE[: draw(st.integers(0, 3))]:
        if draw(st.booleans()) and draw(st.booleans()):
            parts.append(None)
        parts.append(draw(st.one_of(st.integers(-n, n - 1), slices(n))))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), Ellipsis)
        if parts.index(Ellipsis) != len(parts) - 1:  # what follows counts from the back
            k = parts.index(Ellipsis)
            tail = []
            for n in SHAPE[3 - sum(p is not None for p in parts[k + 1 :]) :]:
                tail.append(draw(st.one_of(st.integers(-n, n - 1), slices(n))))
            parts = parts[: k + 1] + tail
            if sum(p is not None and p is not Ellipsis for p in parts) > 3:
                parts = [Ellipsis]
    return tuple(parts)


@settings(max_examples=200, deadline=None)
@given(basic())
def test_basic_reads_and_writes(index):
    a = array()
    x = t.from_numpy(a)
    got, want = x[index], a[index]
    assert got.shape == want.shape and np.array_equal(got.numpy(), want)
    assert got._storage is x._storage  # a view
    written = array()
    written[index] = -1.0
    y = t.from_numpy(array())
    y[index] = -1.0
    assert np.array_equal(y.numpy(), written)


@st.composite
def advanced(draw):
    """Slices, and one or more index arrays or a mask; no ints, which PyTorch treats otherwise."""
    shape = draw(st.sampled_from([(2,), (3,), (2, 3), (1,), ()]))
    parts, dim, used = [], 0, False
    while dim < 3:
        n = SHAPE[dim]
        kind = draw(st.sampled_from(["slice", "array", "mask", "stop"]))
        if kind == "stop" and used:
            break
        if kind == "array":
            values = draw(st.lists(st.integers(-n, n - 1), min_size=6, max_size=6))
            parts.append(np.array(values, np.int64)[: int(np.prod(shape))].reshape(shape))
            used = True
        elif kind == "mask" and not used:
            mask = draw(st.lists(st.booleans(), min_size=n, max_size=n))
            parts.append(np.array(mask))
            shape, used = (1,), True
        else:
            parts.append(draw(slices(n)))
        dim += 1
    return tuple(parts)


def as_tensors(index):
    return tuple(t.from_numpy(p) if isinstance(p, np.ndarray) else p for p in index)


@settings(max_examples=200, deadline=None)
@given(advanced())
def test_advanced_reads_and_writes(index):
    a = array()
    x = t.from_numpy(a.copy())
    got, want = x[as_tensors(index)], a[index]
    assert got.shape == want.shape and np.array_equal(got.numpy(), want)
    a[index] = -2.0
    x[as_tensors(index)] = -2.0
    assert np.array_equal(x.numpy(), a)
    values = np.random.default_rng(0).standard_normal(want.shape)
    if not any(isinstance(p, np.ndarray) and p.dtype != bool for p in index):
        a[index] = values  # no repeated positions
        x[as_tensors(index)] = t.from_numpy(values)
        assert np.array_equal(x.numpy(), a)


def test_int_beside_index_tensor_selects_first():
    a = array()
    x = t.from_numpy(a)
    i = t.tensor([0, 2])
    # NumPy would put the index's dim in front; PyTorch selects dim 0, then indexes.
    assert np.array_equal(x[0, :, i].numpy(), a[0][:, [0, 2]])
    assert np.array_equal(x[i, :, 0].numpy(), a[[0, 2]][:, :, 0])


def test_masks():
    a = array()
    x = t.from_numpy(a.copy())
    mask = a > 20
    assert np.array_equal(x[t.from_numpy(mask)].numpy(), a[mask])
    assert np.array_equal(x[x > 20].numpy(), a[mask])
    x[x > 20] = 0
    assert x.max().item() == 20
    rows = a.sum((1, 2)) > 300
    y = t.from_numpy(a.copy())
    y[t.from_numpy(rows), 1:3] = t.arange(5, dtype=t.float64)
    a[rows, 1:3] = np.arange(5)
    assert np.array_equal(y.numpy(), a)


def test_mask_of_wrong_shape():
    with pytest.raises(IndexError, match="shape of the mask"):
        t.zeros(3, 4)[t.tensor([True, False])]
    with pytest.raises(IndexError, match="shape of the mask"):
        t.zeros(3, 4)[t.tensor([True, False])] = 1


def test_bool_scalars_and_zero_d_masks():
    x = t.arange(3)
    assert x[True].tolist() == [[0, 1, 2]] and tuple(x[False].shape) == (0, 3)
    assert x[t.tensor(True)].tolist() == [[0, 1, 2]]
    s = t.tensor(5)
    assert s[s > 3].tolist() == [5] and s[None].tolist() == [5] and s[...].item() == 5


def test_lists_ranges_and_arrays():
    x = t.arange(5) * 10
    assert x[[0, -1]].tolist() == [0, 40]
    assert x[range(2)].tolist() == [0, 10]
    assert x[np.array([1, 1])].tolist() == [10, 10]
    assert x[np.int64(2)].item() == 20
    assert x[t.tensor(3)].item() == 30
    assert x[[]].tolist() == []
    assert x[[True, False, True, False, False]].tolist() == [0, 20]
    assert x[t.tensor([1, 2], dtype=t.int32)].tolist() == [10, 20]


def test_a_list_with_sequences_is_a_tuple():
    i, j = t.tensor([0, 2]), t.tensor([1, 3])
    for index, same in [
        ([[0, 2], [1, 3]], (i, j)),
        ([i, j], (i, j)),
        ([np.array([0, 2]), range(1, 4, 2)], (i, j)),
        ([[0, 2]], (i,)),
        ([0, [1, 3]], (0, j)),
        ([t.tensor(0), t.tensor(1)], (0, 1)),
        ([i, slice(1, 3)], (i, slice(1, 3))),
        ([[True, False, True]], (i,)),
        ([[2]] * 32, (t.full((32, 1), 2),)),  # too long for a tuple
    ]:
        x = t.from_numpy(array())
        assert np.array_equal(x[index].numpy(), x[same].numpy())
        y = x.clone()
        x[index], y[same] = -1.0, -1.0
        assert np.array_equal(x.numpy(), y.numpy())
    # What lies inside a tuple is no tuple.
    assert tuple(x[[[0, 2], [1, 2]],].shape) == (2, 2, *x.shape[1:])


def test_accumulate():
    x = t.zeros(3)
    x.index_put_((t.tensor([0, 0, 2]),), t.ones(3), accumulate=True)
    assert x.tolist() == [2.0, 0.0, 1.0]
    x.index_put_((t.tensor([1]),), t.tensor(7.0))
    assert x.tolist() == [2.0, 7.0, 1.0]


def test_write_conversions_and_broadcast():
    x = t.zeros(2, 3, dtype=t.int64)
    x[0] = 2.9
    x[1] = t.tensor([1.5, 2.5, 3.5])
    assert x.tolist() == [[2, 2, 2], [1, 2, 3]]
    x[:, 0] = t.tensor([[[8, 9]]])
    assert x[:, 0].tolist() == [8, 9]
    x[...] = [[1, 2, 3], [4, 5, 6]]
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[0] = t.zeros(2)


@pytest.mark.parametrize(
    "index,error,text",
    [
        (5, IndexError, "out of range"),
        ((0, -5), IndexError, "out of bounds for dimension 1 with size 4"),
        ((0, 0, 0), IndexError, "too many indices for tensor of dimension 2"),
        ((..., ...), IndexError, "single ellipsis"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        (t.tensor([0.5]), IndexError, "long, int, byte or bool"),
        ("a", TypeError, "not by text; got 'a'"),
        ({}, IndexError, "only integers, slices"),
        (t.tensor([7]), IndexError, "out of"),
        ((t.tensor([0, 1]), t.tensor([0, 1, 2])), IndexError, "could not be broadcast"),
    ],
)
def test_errors(index, error, text):
    with pytest.raises(error, match=text):
        t.zeros(3, 4)[index]


def test_zero_d_and_empty():
    with pytest.raises(IndexError, match="0-dim tensor"):
        t.tensor(1.0)[0]
    assert tuple(t.zeros(0, 3)[:, 1].shape) == (0,)
    assert tuple(t.zeros(3)[5:].shape) == (0,)
    assert tuple(t.zeros(3)[2:1].shape) == (0,)


def test_gather_scatter_select():
    x = t.arange(12.0).reshape(3, 4)
    i = t.tensor([[0, 3], [1, 1], [2, 0]])
    assert np.array_equal(x.gather(1, i).numpy(), np.take_along_axis(x.numpy(), i.numpy(), 1))
    assert x.index_select(0, t.tensor([2, 0])).tolist() == x.numpy()[[2, 0]].tolist()
    assert x.narrow(1, 1, 2).tolist() == x.numpy()[:, 1:3].tolist()
    assert x.take(t.tensor([0, 5])).tolist() == [0.0, 5.0]
    s = t.zeros(3, 4).scatter(1, i, 1.0)
    want = np.zeros((3, 4))
    np.put_along_axis(want, i.numpy(), 1.0, 1)
    assert np.array_equal(s.numpy(), want)
    assert t.zeros(4).scatter_add(0, t.tensor([1, 1]), t.tensor([1.0, 2.0])).tolist()[1] == 3.0
    assert x.masked_select(x > 9).tolist() == [10.0, 11.0]
    assert t.tensor([0, 1, 2]).nonzero().tolist() == [[1], [2]]
    assert [k.tolist() for k in t.where(t.tensor([[0, 1]]) > 0)] == [[0], [1]]
    with pytest.raises(RuntimeError, match="int32/int64"):
        x.gather(1, t.zeros(3, 1))
    assert t.searchsorted(t.tensor([1, 3, 5]), t.tensor([0, 3, 6])).tolist() == [0, 1, 3]
    assert t.searchsorted(t.tensor([1, 3, 5]), t.tensor([3]), right=True).tolist() == [2]


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0, 2), (4, 5), (2, 3, 7), (1, 1, 1, 3), (6, 1, 5)]
)
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "float16", "complex64", "uint8"])
def test_nonzero_gives_what_numpy_gives(shape, dtype):
    x = np.asarray(np.random.default_rng(0).integers(-1, 2, shape)).astype(dtype)
    if x.ndim and x.size and x.dtype.kind in "fc":
        x.flat[0] = np.nan
    for a in (x, x.T, x[..., ::-1] if x.ndim else x):
        wanted = np.nonzero(np.atleast_1d(a))
        found = t.tensor(a).nonzero()
        assert found.dtype is t.int64 and found.shape == (len(wanted[0]), x.ndim)
        if x.ndim:
            np.testing.assert_array_equal(found.numpy(), np.stack(wanted, -1))
        parts = t.tensor(a).nonzero(as_tuple=True)
        assert len(parts) == len(wanted)
        for one, other in zip(parts, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
