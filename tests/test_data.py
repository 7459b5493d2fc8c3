"""utils.data: loaders, samplers, datasets (parity with PyTorch: tests/parity/test_data.py)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgrad as t
from jitgrad.utils import data


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 30), size=st.integers(1, 7), drop=st.booleans(), shuffle=st.booleans())
def test_an_epoch_sees_each_sample_once(n, size, drop, shuffle):
    if shuffle and not n:
        with pytest.raises(ValueError, match="num_samples=0"):
            data.DataLoader(range(n), shuffle=True)
        return
    loader = data.DataLoader(range(n), batch_size=size, drop_last=drop, shuffle=shuffle)
    batches = [b.tolist() for b in loader]
    assert len(batches) == len(loader) == (n // size if drop else -(-n // size))
    seen = [i for b in batches for i in b]
    assert len(set(seen)) == len(seen) and set(seen) <= set(range(n))
    assert len(seen) == (n // size * size if drop else n)
    assert all(len(b) == size for b in batches[:-1])
    if not shuffle:
        assert seen == list(range(len(seen)))


def test_the_seed_fixes_the_order():
    def order(seed):
        t.manual_seed(seed)
        return [b.tolist() for b in data.DataLoader(range(20), 5, shuffle=True)]

    assert order(1) == order(1) != order(2)
    g = t.Generator().manual_seed(1)
    own = [b.tolist() for b in data.DataLoader(range(20), 5, shuffle=True, generator=g)]
    t.randn(3)  # the global generator does not matter
    again = data.DataLoader(range(20), 5, shuffle=True, generator=t.Generator().manual_seed(1))
    assert own == [b.tolist() for b in again]


def test_collate():
    batch = data.default_collate(
        [{"x": (np.float32(1), [1, "a"])}, {"x": (np.float32(2), [2, "b"])}]
    )
    x, (numbers, names) = batch["x"]
    assert x.dtype is t.float32 and x.tolist() == [1, 2]
    assert numbers.dtype is t.int64 and list(names) == ["a", "b"]
    stacked = data.default_collate([t.ones(2, 3), t.zeros(2, 3)])
    assert stacked.shape == (2, 2, 3)


def test_whole_batches_are_fetched_at_once():
    asked = []

    class Table(data.Dataset):
        def __len__(self):
            return 5

        def __getitems__(self, indices):
            asked.append(list(indices))
            return [i * 10 for i in indices]

    assert [b.tolist() for b in data.DataLoader(Table(), 2)] == [[0, 10], [20, 30], [40]]
    assert asked == [[0, 1], [2, 3], [4]]


def test_tensor_dataset_and_training_split():
    x, y = t.arange(12).reshape(6, 2), t.arange(6)
    set_ = data.TensorDataset(x, y)
    first, second = data.random_split(set_, [4, 2], t.Generator().manual_seed(0))
    labels = [int(label) for part in (first, second) for _, label in part]
    assert sorted(labels) == list(range(6))
    assert all((row == x[int(label)]).all() for row, label in first)


def test_rows_at_once_are_the_rows():
    x = t.rand(5, 3, dtype=t.float64)
    rows = [t.arange(5), x.t()[:2].t(), t.ones(5, 0), t.ones(5).bfloat16(), x > 0.5]
    whole = data.TensorDataset(*rows)
    for indices in ([4, 0, 0, -1], [], [True, 2], [t.tensor(3)]):
        got = whole.__getitems__(indices)
        for a, b in zip(got, [whole[i] for i in indices], strict=True):
            for p, q in zip(a, b, strict=True):
                assert p.dtype is q.dtype and p.shape == q.shape and (p == q).all()
    with pytest.raises(IndexError):
        whole.__getitems__([0, 5])
    w = t.ones(3, 2, requires_grad=True)
    (batch,) = data.DataLoader(data.TensorDataset(w), 3)
    batch[0].sum().backward()
    assert w.grad.tolist() == [[1, 1]] * 3

    class Doubled(data.TensorDataset):
        def __getitem__(self, i):
            return super().__getitem__(i)[0] * 2

    (batch,) = data.DataLoader(Doubled(t.arange(3)), 3)
    assert batch.tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore:Length of split")
@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), parts=st.integers(1, 5))
def test_fractions_share_out_everything(n, parts):
    split = data.random_split(range(n), [1 / parts] * parts)
    assert sum(len(s) for s in split) == n
    assert sorted(i for s in split for i in s) == list(range(n))


def test_weighted_sampler_follows_the_weights():
    t.manual_seed(0)
    drawn = list(data.WeightedRandomSampler([1.0, 0.0, 3.0], 4000))
    assert drawn.count(1) == 0
    assert drawn.count(2) / len(drawn) == pytest.approx(0.75, abs=0.03)


def test_collate_is_part_of_tapes_and_recordings():
    w = t.ones(3, requires_grad=True)
    data.default_collate([w, t.zeros(3)]).sum().backward()
    assert w.grad.tolist() == [1, 1, 1]

    @t.jit(fallback="error")
    def f(a, b):
        return data.default_collate([{"x": (a, 1.0)}, {"x": (b, 2.0)}])["x"][0] * 2

    for k in range(4):
        assert f(t.full((2,), float(k)), t.zeros(2)).tolist() == [[2 * k, 2 * k], [0, 0]]
    mapped = t.vmap(lambda a: data.default_collate([a, a]))(t.arange(3))
    assert mapped.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert data.default_collate([t.tensor(1.5), t.tensor(2.5)]).tolist() == [1.5, 2.5]
    assert data.default_collate([t.ones(2, 3).t(), t.zeros(3, 2)]).stride() == (6, 2, 1)
