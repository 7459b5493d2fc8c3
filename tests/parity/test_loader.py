"""DataLoader with workers, its options and errors; combined datasets; DistributedSampler."""

import collections
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, raises_alike
from parity.test_data import Point, data, plain

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:'pin_memory' argument",
    "ignore:Exception ignored in",  # PyTorch's iterator that was not made
)


def alike(function):
    """The same from both libraries; returns it."""
    ours, theirs = (function(data(lib), lib.t) for lib in LIBS)
    assert ours == theirs
    return ours


class Row:
    """A sequence that is no list."""

    def __init__(self, items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


collections.abc.Sequence.register(Row)

SAMPLES = {
    "defaultdict": lambda t: [collections.defaultdict(int, a=k, b=[k]) for k in range(3)],
    "ordered": lambda t: [collections.OrderedDict(b=k, a=float(k)) for k in range(3)],
    "mappings": lambda t: [collections.ChainMap({"a": k}, {"b": 2}) for k in range(2)],
    "sequence": lambda t: [Row([k, 2.0]) for k in range(2)],
    "deque": lambda t: [collections.deque([k, np.ones(2)]) for k in range(2)],
    "range": lambda t: [range(3), range(3)],
    "bytes": lambda t: [b"a", b"b"],
    "named": lambda t: [Point(k, {"z": t.ones(k and 1)}) for k in (1, 1)],
    "mixed bools": lambda t: [True, False],
    "numpy strings": lambda t: [np.str_("a"), np.str_("b")],
    "0-d": lambda t: [t.tensor(1.5), t.tensor(2.5)],
    "empty lists": lambda t: [[], []],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_collate_and_convert_keep_containers(name):
    def types(x):
        if isinstance(x, collections.abc.Mapping):
            return type(x).__name__, {k: types(v) for k, v in x.items()}
        if isinstance(x, (list, tuple, collections.deque, Row)):
            return type(x).__name__, [types(v) for v in x]
        return plain(x)

    alike(lambda d, t: types(d.default_collate(SAMPLES[name](t))))
    alike(lambda d, t: [types(d.default_convert(s)) for s in SAMPLES[name](t)])


def test_the_table_of_collate_functions_extends():
    class Card:
        def __init__(self, n):
            self.n = n

    def joined(d, t):
        table = dict(d._utils.collate.default_collate_fn_map)
        table[Card] = lambda batch, *, collate_fn_map=None: sum(c.n for c in batch)
        batch = [(Card(1), 2.0), (Card(5), 3.0)]
        cards, floats = d._utils.collate.collate(batch, collate_fn_map=table)
        return cards, plain(floats)

    alike(joined)


OPTIONS = {
    "two": {"num_workers": 2, "batch_size": 3},
    "drop": {"num_workers": 2, "batch_size": 3, "drop_last": True},
    "ahead": {"num_workers": 2, "batch_size": 2, "prefetch_factor": 4},
    "single": {"num_workers": 2, "batch_size": None},
    "pinned": {"num_workers": 1, "batch_size": 4, "pin_memory": True},
    "batches": {"num_workers": 2, "batch_sampler": [[0, 1], [5], [2, 3, 4]]},
    "persistent": {"num_workers": 2, "batch_size": 3, "persistent_workers": True, "timeout": 60},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_workers(options):
    def batches(d, t):
        samples = [(t.full((2, 3), float(k)), k, str(k), {"a": np.ones(2) * k}) for k in range(8)]
        loader = d.DataLoader(samples, **options)
        return [[plain(b) for b in loader] for _ in range(2)], len(loader)

    alike(batches)


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}],
    ids=str,
)
def test_streams_of_workers(options):
    def batches(d, t):
        class Stream(d.IterableDataset):
            def __iter__(self):
                me = d.get_worker_info()
                return iter(range(me.id * 5, 5 + 6 * me.id))

        return [plain(b) for b in d.DataLoader(Stream(), num_workers=2, **options)]

    alike(batches)


def test_errors_of_workers_have_one_form():
    def message(d, t):
        class Bad(d.Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, i):
                raise LookupError("nothing here")

        with pytest.raises(LookupError) as caught:
            next(iter(d.DataLoader(Bad(), num_workers=1)))
        lines = str(caught.value).splitlines()
        return lines[:2], lines[-1]

    alike(message)


def test_worker_info():
    def facts(d, t):
        def init(number):
            me = d.get_worker_info()
            me.dataset.append((number, me.id, me.num_workers, me.seed == t.initial_seed()))

        loader = d.DataLoader([0], sampler=[1, 1], num_workers=2, worker_init_fn=init)
        return [plain(b) for b in loader], d.get_worker_info()

    alike(facts)


def test_combined_datasets():
    def found(d, t):
        class Stream(d.IterableDataset):
            def __init__(self, n):
                self.n = n

            def __iter__(self):
                return iter(range(self.n))

            def __len__(self):
                return self.n

        class Table(d.Dataset):
            def __getitems__(self, indices):
                return [-i for i in indices]

            def __getitem__(self, i):
                return -i

            def __len__(self):
                return 4

        chain = Stream(3) + Stream(2)
        stack = d.StackDataset([1, 2, 3, 4], Table())
        named = d.StackDataset(a=[1, 2, 3, 4], b=Table())
        part = d.Subset(Table(), [3, 1])
        return [
            type(chain).__name__, list(chain), len(chain),
            [plain(b) for b in d.DataLoader(chain, 4)],
            [stack[i] for i in range(4)], stack.__getitems__([0, 2]), len(stack),
            named[1], named.__getitems__([3]), part.__getitems__([0, 1]), part[1], len(part),
            [plain(b) for b in d.DataLoader(named, 2)],
            type(Table() + Table()).__name__, (Table() + [7])[4],
            d.ConcatDataset([[1], [2, 3]]).cumulative_sizes,
        ]  # fmt: skip

    alike(found)


def test_splits_warn_of_empty_parts():
    def split(d, t):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            parts = d.random_split(range(3), [0.5, 0.4, 0.05, 0.05])
        return [len(p) for p in parts], [str(w.message) for w in said]

    alike(split)


@pytest.mark.parametrize("n", [0, 1, 7, 8])
@pytest.mark.parametrize("replicas", [1, 3, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_sampler(n, replicas, drop_last):
    def parts(d, t):
        options = {"num_replicas": replicas, "drop_last": drop_last, "shuffle": False}
        samplers = [d.DistributedSampler(range(n), rank=r, **options) for r in range(replicas)]
        try:
            return [(list(s), len(s), s.num_samples, s.total_size) for s in samplers]
        except ZeroDivisionError:
            return "no samples"

    if n or drop_last:
        alike(parts)
    else:
        assert parts(data(LIBS[0]), None) == [([], 0, 0, 0)] * replicas
    d = data(LIBS[0])
    shuffled = [d.DistributedSampler(range(n), replicas, r, drop_last=drop_last, seed=3)
                for r in range(replicas)]  # fmt: skip
    first = [list(s) for s in shuffled]
    flat = [i for part in first for i in part]
    assert len(flat) == shuffled[0].total_size and [list(s) for s in shuffled] == first
    assert len(set(flat)) == (len(flat) if drop_last else n)
    for s in shuffled:
        s.set_epoch(1)
    if n > 6 and replicas < n:
        assert [list(s) for s in shuffled] != first


def test_a_reported_length_that_is_wrong_warns():
    def said(d, t):
        class Stream(d.IterableDataset):
            def __iter__(self):
                return iter(range(4))

            def __len__(self):
                return 3

        loader = d.DataLoader(Stream(), batch_size=None)
        assert len(loader) == 3
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = list(loader)
        return got, len(caught), "was reported to be 3" in str(caught[0].message)

    alike(said)


def stream(d):
    class Stream(d.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    return Stream()


def assigned(d, name):
    loader = d.DataLoader([1, 2])
    setattr(loader, name, None)


BAD = {
    "workers": lambda d, t: d.DataLoader([1], num_workers=-1),
    "timeout": lambda d, t: d.DataLoader([1], timeout=-1),
    "timeout alone": lambda d, t: iter(d.DataLoader([1], timeout=1)),
    "prefetch alone": lambda d, t: d.DataLoader([1], prefetch_factor=2),
    "prefetch": lambda d, t: d.DataLoader([1], num_workers=1, prefetch_factor=-1),
    "no prefetch": lambda d, t: iter(d.DataLoader([1], num_workers=1, prefetch_factor=0)),
    "persistent": lambda d, t: d.DataLoader([1], persistent_workers=True),
    "context alone": lambda d, t: d.DataLoader([1], multiprocessing_context="fork"),
    "context": lambda d, t: d.DataLoader([1], num_workers=1, multiprocessing_context="thread"),
    "context type": lambda d, t: d.DataLoader([1], num_workers=1, multiprocessing_context=3),
    "stream shuffle": lambda d, t: d.DataLoader(stream(d), shuffle=True),
    "stream sampler": lambda d, t: d.DataLoader(stream(d), sampler=[1]),
    "stream batches": lambda d, t: d.DataLoader(stream(d), batch_sampler=[[1]]),
    "stream length": lambda d, t: len(d.DataLoader(stream(d))),
    "empty shuffle": lambda d, t: d.DataLoader([], shuffle=True),
    "num_samples": lambda d, t: d.RandomSampler([1], num_samples=0),
    "num_samples type": lambda d, t: d.RandomSampler([1], num_samples=1.5),
    "weights": lambda d, t: d.WeightedRandomSampler([[1.0]], 1),
    "replacement": lambda d, t: d.WeightedRandomSampler([1.0], 1, replacement=3),
    "batch size": lambda d, t: d.BatchSampler([1], True, False),
    "drop_last": lambda d, t: d.BatchSampler([1], 1, 3),
    "rank": lambda d, t: d.DistributedSampler([1], 2, 2),
    "negative rank": lambda d, t: d.DistributedSampler([1], 2, -1),
    "concat stream": lambda d, t: d.ConcatDataset([stream(d)]),
    "concat low": lambda d, t: d.ConcatDataset([[1, 2]])[-3],
    "concat high": lambda d, t: d.ConcatDataset([[1, 2]])[2],
    "chain": lambda d, t: list(d.ChainDataset([[1]])),
    "chain length": lambda d, t: len(d.ChainDataset([[1]])),
    "stack": lambda d, t: d.StackDataset([1], [1, 2]),
    "stack nothing": lambda d, t: d.StackDataset(),
    "stack both": lambda d, t: d.StackDataset([1], a=[1]),
    "subset": lambda d, t: type("Part", (d.Subset,), {"__getitem__": lambda s, i: 1})([1], [0]),
    "fraction": lambda d, t: d.random_split([1, 2], [1.5, -0.5]),
    "split": lambda d, t: d.random_split([1, 2], [1, 2]),
    "sampler": lambda d, t: iter(d.Sampler()),
    "object arrays": lambda d, t: d.default_collate([np.array([None]), np.array([None])]),
    "pickled iterator": lambda d, t: __import__("pickle").dumps(iter(d.DataLoader([1]))),
    **{
        f"set {name}": lambda d, t, name=name: assigned(d, name)
        for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset",
                     "persistent_workers")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD[name](data(lib), lib.t))
