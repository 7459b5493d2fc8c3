"""utils.data: what loaders yield, what samplers and splits promise."""

from collections import namedtuple

import numpy as np
import pytest
from parity.compare import LIBS, OURS, dtype_name, numpy, raises_alike

Point = namedtuple("Point", "x y")


def data(lib):
    return lib.t.utils.data


def plain(x):
    """A batch with tensors as (dtype, values)."""
    if isinstance(x, (OURS.t.Tensor, LIBS[1].t.Tensor)):
        return dtype_name(x), numpy(x).tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x).__name__, [plain(v) for v in x]
    return x


def batches_of(samples, **options):
    found = []
    for lib in LIBS:
        own = [s(lib) if callable(s) else s for s in samples]
        loader = data(lib).DataLoader(own, **options)
        found.append(([plain(b) for b in loader], len(loader)))
    assert found[0] == found[1]
    return found[0][0]


SAMPLES = {
    "ints": [1, 2, 3, 4, 5],
    "floats": [0.5, 1.5, 2.5],
    "bools": [True, False, True],
    "strings": ["a", "b", "c"],
    "numpy float32": [np.float32(1), np.float32(2)],
    "numpy float64": [np.float64(1), np.float64(2)],
    "numpy int32": [np.int32(1), np.int32(2)],
    "numpy bool": [np.bool_(True), np.bool_(False)],
    "arrays": [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
    "0-d arrays": [np.array(1.5), np.array(2.5)],
    "tuples": [(1, 2.5, "a"), (2, 3.5, "b"), (3, 4.5, "c")],
    "lists": [[1, np.ones(2)], [2, np.zeros(2)]],
    "dicts": [{"x": 1, "y": (2.0, "s")}, {"x": 2, "y": (3.0, "t")}],
    "named": [Point(1, 2.0), Point(3, 4.0)],
    "tensors": [lambda lib: lib.t.ones(2), lambda lib: lib.t.zeros(2)],
    "nested": [{"a": [np.ones(1), {"b": 1}]}, {"a": [np.zeros(1), {"b": 2}]}],
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True},
                                     {"batch_size": None}], ids=str)  # fmt: skip
def test_batches(name, options):
    batches_of(SAMPLES[name], **options)


def test_shuffled_epochs_are_permutations():
    for lib in LIBS:
        d = data(lib)
        generator = lib.t.Generator().manual_seed(3)
        set_ = d.TensorDataset(lib.t.arange(20), lib.t.arange(20) * 2)
        loader = d.DataLoader(set_, batch_size=6, shuffle=True, generator=generator)
        epochs = [lib.t.cat([x for x, _ in loader]).tolist() for _ in range(3)]
        assert all(sorted(e) == list(range(20)) for e in epochs)
        assert len({tuple(e) for e in epochs}) == 3
        assert all((y == 2 * x).all() for x, y in loader)
        again = d.DataLoader(
            set_, batch_size=6, shuffle=True, generator=lib.t.Generator().manual_seed(3)
        )
        assert lib.t.cat([x for x, _ in again]).tolist() == epochs[0]


def test_own_samplers_and_collate():
    found = []
    for lib in LIBS:
        d = data(lib)
        samples = list(range(10))
        first = d.DataLoader(samples, batch_size=3, sampler=[9, 0, 5, 5])
        second = d.DataLoader(samples, batch_sampler=[[1, 2], [3]], collate_fn=tuple)
        found.append([[plain(b) for b in first], list(second), len(first), len(second)])
    assert found[0] == found[1]


def test_iterable_datasets():
    found = []
    for lib in LIBS:

        class Stream(data(lib).IterableDataset):
            def __iter__(self):
                return iter(range(7))

        loaders = [
            data(lib).DataLoader(Stream(), batch_size=3),
            data(lib).DataLoader(Stream(), batch_size=3, drop_last=True),
            data(lib).DataLoader(Stream(), batch_size=None),
        ]
        found.append([[plain(b) for b in loader] for loader in loaders])
    assert found[0] == found[1]


def test_combining_and_splitting():
    found = []
    for lib in LIBS:
        d = data(lib)
        both = d.ConcatDataset([[1, 2], [3], [4, 5, 6]])
        sub = d.Subset(both, [5, 0, 2])
        parts = d.random_split(range(11), [0.5, 0.3, 0.2])
        assert sorted(i for p in parts for i in p) == list(range(11))
        fixed = d.random_split(range(6), [2, 4])
        found.append([
            [both[i] for i in range(-6, 6)], len(both), [sub[i] for i in range(3)], len(sub),
            [len(p) for p in parts], [len(p) for p in fixed],
        ])  # fmt: skip
    assert found[0] == found[1]


def test_samplers():
    for lib in LIBS:
        d = data(lib)
        assert list(d.SequentialSampler(range(3))) == [0, 1, 2]
        drawn = list(d.RandomSampler(range(5), replacement=True, num_samples=200))
        assert len(drawn) == 200 and set(drawn) == set(range(5))
        more = list(d.RandomSampler(range(4), num_samples=10))
        assert sorted(more[:4]) == sorted(more[4:8]) == [0, 1, 2, 3] and len(more) == 10
        assert sorted(d.SubsetRandomSampler([3, 7, 9])) == [3, 7, 9]
        weighted = list(d.WeightedRandomSampler([0.0, 1.0, 3.0], 400))
        assert 0 not in weighted and 1.5 < weighted.count(2) / weighted.count(1) < 6
        once = list(d.WeightedRandomSampler([0.1, 1.0, 3.0], 3, replacement=False))
        assert sorted(once) == [0, 1, 2]
        assert list(d.BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]


BAD = {
    "batch_size": lambda d, t: d.DataLoader([1], batch_size=0),
    "both orders": lambda d, t: d.DataLoader([1], shuffle=True, sampler=[0]),
    "batch_sampler": lambda d, t: d.DataLoader([1], batch_size=2, batch_sampler=[[0]]),
    "no batches": lambda d, t: d.DataLoader([1], batch_size=None, drop_last=True),
    "shapes": lambda d, t: next(iter(d.DataLoader([t.ones(2), t.ones(3)], batch_size=2))),
    "lengths": lambda d, t: d.default_collate([[1, 2], [1]]),
    "type": lambda d, t: d.default_collate([object()]),
    "keys": lambda d, t: d.default_collate([{"a": 1}, {"b": 1}]),
    "sizes": lambda d, t: d.TensorDataset(t.ones(2), t.ones(3)),
    "split": lambda d, t: d.random_split(range(5), [2, 2]),
    "replacement": lambda d, t: d.RandomSampler([1], replacement=3),
    "weights": lambda d, t: d.WeightedRandomSampler([1.0], 0),
    "no items": lambda d, t: d.Dataset()[0],
    "concat": lambda d, t: d.ConcatDataset([]),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD[name](data(lib), lib.t))
