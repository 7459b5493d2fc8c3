"""DataLoader with worker processes: order, seeds, failures, limits, and that nothing is left."""

import errno
import functools
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker

import numpy as np
import pytest
import shared_files

import jitgrad as t
from jitgrad.runtime import memory_file
from jitgrad.utils import data
from jitgrad.utils.data._utils import channel, pool

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
IMAGE = (3, 64, 64)  # in a batch, large enough for shared memory of its own


def descriptors():
    return set(os.listdir("/proc/self/fd"))


def mapped():
    with open("/proc/self/maps") as lines:
        return sum("jitgrad" in line for line in lines)


@pytest.fixture(autouse=True)
def nothing_left():
    """No file in memory, no descriptor, no mapping and no process more than before."""
    if not os.path.isdir("/proc/self/fd"):
        yield
        return
    resource_tracker.ensure_running()  # a process that stays, which spawning needs
    with shared_files.alone():
        gc.collect()
        before = (shared_files.names(), len(descriptors()), mapped())
        yield
        gc.collect()
        assert (shared_files.names(), len(descriptors()), mapped()) == before
    assert not pool.multiprocessing.active_children()


class Images(data.Dataset):
    """Samples with large and small tensors, text, and random numbers of three generators."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        me = data.get_worker_info()
        drawn = (float(t.rand(())), float(np.random.rand()), random.random())
        return {"x": t.full(IMAGE, float(i)), "i": i, "s": str(i), "who": me and me.id, "r": drawn}


class Broken(data.Dataset):
    """Sample 5 does what `how` says."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 5:
            self.how()
        return i


class Stream(data.IterableDataset):
    def __init__(self, n, split=False):
        self.n, self.split = n, split

    def __iter__(self):
        me = data.get_worker_info()
        if self.split and me is not None:
            return iter(range(me.id, self.n, me.num_workers))
        return iter(range(self.n))


def test_batches_and_seeds():
    """The same batches as without workers, forked or spawned; from each worker other random
    numbers, which the seed fixes."""

    def epoch(workers, method="fork", seed=1):
        t.manual_seed(seed)
        context = {"multiprocessing_context": method} if workers else {}
        loader = data.DataLoader(Images(), 2, True, num_workers=workers, **context, collate_fn=list)
        return [s for batch in loader for s in batch]

    alone, first, again = epoch(0), epoch(2), epoch(2, "spawn")
    for a, b, c in zip(alone, first, again, strict=True):
        assert (b["x"] == a["x"]).all() and b["s"] == a["s"] and b["r"] == c["r"]
    assert [s["who"] for s in first] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    for kind in range(3):
        assert len({s["r"][kind] for s in first}) == 10
    assert first[0]["r"] != epoch(2, seed=2)[0]["r"]


def test_workers_leave_the_generator_as_it_would_be():
    def after(workers):
        t.manual_seed(1)
        order = [b.tolist() for b in data.DataLoader(range(9), 2, True, num_workers=workers)]
        return order, float(t.rand(()))

    assert after(0) == after(2)


def test_a_generator_fixes_seeds_and_order():
    def epoch():
        own = t.Generator().manual_seed(5)
        loader = data.DataLoader(Images(), 5, True, num_workers=2, generator=own)
        return [(b["i"].tolist(), b["r"][0].tolist()) for b in loader]

    t.manual_seed(0)
    first = epoch()
    assert first == epoch()


def test_large_arrays_are_shared_and_writable():
    (batch,) = data.DataLoader(Images(), 10, num_workers=1)
    assert batch["x"].is_shared() and not batch["i"].is_shared()
    batch["x"].add_(1)
    batch["i"].add_(1)
    assert batch["x"][:, 0, 0, 0].tolist() == batch["i"].tolist() == list(range(1, 11))
    arrays = data.DataLoader([np.ones(9000), np.ones(9000)], None, num_workers=1, collate_fn=tuple)
    assert all(memory_file.mapping_of(a[0].base) or a[0] == 1 for a in arrays)


@pytest.mark.parametrize("dtype", [t.bfloat16, t.float16, t.bool, t.int8, t.complex64], ids=str)
@pytest.mark.parametrize("n", [0, 1, 50_000])
def test_dtypes_and_sizes(dtype, n):
    ones = t.from_numpy((np.arange(n) % 2).astype(np.complex64)) if dtype.is_complex else None
    want = (t.arange(n) % 2).to(dtype) if ones is None else ones
    (got,) = data.DataLoader([want], None, num_workers=1)
    assert got.dtype is dtype and got.shape == (n,) and got.tolist() == want.tolist()


def test_views_come_as_copies_of_what_they_show():
    whole = t.arange(3_000_000.0).reshape(-1, 30)
    sent = channel.Message(whole[7])
    assert sent.inside and sent.nbytes < 1000
    sent.close()
    rows = list(data.DataLoader(data.TensorDataset(whole[:6].t()), None, num_workers=1))
    assert all((row[0] == whole[:6, k]).all() for k, row in enumerate(rows))
    x = t.ones(100, 100)
    (pair,) = data.DataLoader([(x, x)], None, num_workers=1, collate_fn=tuple)
    pair[0].add_(1)
    assert pair[1][0, 0] == 2  # what showed one whole storage still does


def test_many_large_tensors_in_one_batch():
    count = channel.MOST_FILES + 60
    samples = [[t.full((5000,), float(k)) for k in range(count)]]
    (batch,) = data.DataLoader(samples, None, num_workers=1)
    assert [x[-1].item() for x in batch] == list(range(count))


def test_long_tasks_and_long_answers_do_not_block():
    """Index lists and pickles larger than a socket's buffer, many of them ahead."""
    text = "x" * 300_000
    loader = data.DataLoader(
        range(400_000), 40_000, num_workers=1, prefetch_factor=20, collate_fn=Text(text)
    )
    assert [(a, len(b)) for a, b in loader] == [(k * 40_000, 300_000) for k in range(10)]


class Text:
    def __init__(self, text):
        self.text = text

    def __call__(self, samples):
        return samples[0], self.text


def test_streams():
    loader = data.DataLoader(Stream(7), 3, num_workers=2)
    assert [b.tolist() for b in loader] == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2 + [[6]] * 2
    split = data.DataLoader(Stream(7, split=True), 2, num_workers=2, drop_last=True)
    assert [b.tolist() for b in split] == [[0, 2], [1, 3], [4, 6]]
    assert sorted(data.DataLoader(Stream(7, True), None, num_workers=3)) == list(range(7))
    uneven = data.DataLoader(Stream(1, split=True), 1, num_workers=2)
    assert [b.tolist() for b in uneven] == [[0]]


def test_persistent_workers():
    class Who(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return os.getpid()

    loader = data.DataLoader(Who(), 2, num_workers=2, persistent_workers=True)
    first = [set(b.tolist()) for b in loader]
    left = iter(loader)
    next(left)  # the rest of this epoch is dropped
    assert [set(b.tolist()) for b in loader] == first
    assert iter(loader) is left
    streams = data.DataLoader(Stream(4), 2, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert [b.tolist() for b in streams] == [[0, 1]] * 2 + [[2, 3]] * 2
    fresh = data.DataLoader(Who(), 2, num_workers=2)
    assert [set(b.tolist()) for b in fresh] != [set(b.tolist()) for b in fresh]


def test_out_of_order():
    class Slow(data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 0:
                gate.acquire()
            return i

    gate = pool.multiprocessing.get_context("fork").Semaphore(0)
    loader = data.DataLoader(Slow(), None, num_workers=2, in_order=False)
    iterator = iter(loader)
    assert next(iterator) == 1
    gate.release()
    assert sorted(iterator) == [0, 2, 3, 4, 5]


def test_worker_init_fn_and_info():
    def init(number):
        me = data.get_worker_info()
        assert (me.id, me.num_workers) == (number, 2)
        me.dataset[0] = number + 10 * (me.seed - t.initial_seed())

    here = [5, 5]
    loader = data.DataLoader(here, sampler=[0, 0], num_workers=2, worker_init_fn=init)
    assert [b.item() for b in loader] == [0, 1] and here == [5, 5]
    assert data.get_worker_info() is None


class Unusual(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


def fail_key():
    raise KeyError("no such\nkey")


def fail_unusual():
    raise Unusual(1, 2)


def fail_local():
    class Local(ValueError):
        pass

    raise Local("of a class in a function")


def fail_stop():
    raise StopIteration


@pytest.mark.parametrize(
    ("how", "type_", "text"),
    [
        (fail_key, KeyError, "Caught KeyError in DataLoader worker process 1.\nOriginal Trace"),
        (fail_unusual, RuntimeError, r"Unusual[\s\S]*in fail_unusual"),
        (fail_local, RuntimeError, "Local[\\s\\S]*of a class in a function"),
        (fail_stop, StopIteration, "fail_stop"),
    ],
)
def test_errors_arrive_with_type_and_traceback(how, type_, text):
    iterator = iter(data.DataLoader(Broken(how), None, num_workers=2))
    assert [next(iterator) for _ in range(5)] == list(range(5))
    with pytest.raises(type_, match=text) as caught:
        next(iterator)
    assert how.__name__ in str(caught.value)
    assert list(iterator) == list(range(6, 12))  # the others come


def test_errors_of_init_collate_and_pickling():
    def bad(*_):
        raise ValueError("bad")

    with pytest.raises(ValueError, match="worker process 0"):
        next(iter(data.DataLoader([1], num_workers=1, worker_init_fn=bad)))
    with pytest.raises(ValueError, match="in bad"):
        next(iter(data.DataLoader([1], num_workers=1, collate_fn=bad)))
    with pytest.raises((RuntimeError, TypeError, AttributeError), match="pickle"):
        next(iter(data.DataLoader([1], num_workers=1, collate_fn=lambda x: lambda: x)))
    w = t.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="non-leaf"):
        next(iter(data.DataLoader([1], num_workers=1, collate_fn=lambda x: w * 2)))


@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGTERM, 3], ids=str)
def test_a_dead_worker_raises(cause):
    def die():
        os._exit(cause) if cause == 3 else os.kill(os.getpid(), cause)

    iterator = iter(data.DataLoader(Broken(die), None, num_workers=2))
    name = "exit code 3" if cause == 3 else signal.Signals(cause).name
    with pytest.raises(RuntimeError, match=rf"pid\(s\) \d+\) exited unexpectedly.*{name}"):
        list(iterator)
    assert not pool.multiprocessing.active_children()
    loader = data.DataLoader(Broken(die), None, num_workers=2, persistent_workers=True)
    for _ in range(2):  # a loader of dead workers starts new ones
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            list(loader)


def test_a_worker_killed_from_outside_raises():
    class Endless(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 1:
                time.sleep(1000)
            return i

    iterator = iter(data.DataLoader(Endless(), None, num_workers=2))
    assert next(iterator) == 0
    os.kill(iterator._workers._processes[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        next(iterator)


def test_timeout(monkeypatch):
    class Slow(data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            time.sleep(1000)

    monkeypatch.setattr(pool, "GRACE", 0.05)
    iterator = iter(data.DataLoader(Slow(), num_workers=2, timeout=0.1))
    with pytest.raises(RuntimeError, match="timed out after 0.1 seconds"):
        next(iterator)
    del iterator  # busy workers are ended


def test_an_abandoned_iterator_leaves_nothing():
    iterator = iter(data.DataLoader(Images(), 2, num_workers=2))
    kept = next(iterator)["x"]
    del iterator
    assert kept[1].mean() == 1  # memory outlives the workers
    for batch in data.DataLoader(Images(), 2, num_workers=2):
        del batch
        break


def test_a_kept_label_does_not_keep_the_images():
    gc.collect()
    before = mapped()  # other tests of this process
    labels = [b["i"] for b in data.DataLoader(Images(), 2, num_workers=1)]
    assert mapped() == before and len(labels) == 5
    images = [b["x"] for b in data.DataLoader(Images(), 2, num_workers=1)]
    assert len(images) == 5 and mapped() == before + 5  # without descriptors: nothing_left


def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\nfrom jitgrad.utils import data\n"
        "def big(x): return bytes(10_000_000)\n"
        "a = iter(data.DataLoader(range(99), num_workers=2, collate_fn=big))\n"
        "b = iter(data.DataLoader(range(99), num_workers=2, prefetch_factor=30))\n"
        "next(a), next(b)\n"
        "print(*(p.pid for i in (a, b) for p in i._workers._processes), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4, done.stderr
    for _ in range(200):
        alive = [p for p in pids if os.path.exists(f"/proc/{p}") and not is_zombie(p)]
        if not alive:
            return
        time.sleep(0.05)
    pytest.fail(f"{len(alive)} workers live on without their parent")


def is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_without_memfd(monkeypatch):
    """Where the system has no anonymous files in memory, they lose their name at once."""

    def forbidden(*_):
        raise OSError(errno.ENOSYS, "not there")

    monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    assert [b["x"][-1].mean().item() for b in data.DataLoader(Images(), 5, num_workers=1)] == [4, 9]
    monkeypatch.delattr(os, "memfd_create")
    assert t.ones(3).share_memory_().is_shared()


def test_the_end_of_a_program_ends_busy_workers(tmp_path):
    """With results that nobody takes, and workers that persist."""
    script = tmp_path / "program.py"
    script.write_text(
        "from jitgrad.utils import data\n"
        "def big(x): return ['x' * 1000] * 1000, bytes(10_000_000), list(range(100_000))\n"
        "a = iter(data.DataLoader(range(99), num_workers=2, collate_fn=big, prefetch_factor=9))\n"
        "b = data.DataLoader(range(9), num_workers=1, persistent_workers=True)\n"
        "next(a)\n"
        "print(len(list(b)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("9\n", "", 0)


def test_full_shared_memory():
    """A limit on the size of files stands for a full file system: both fail while writing."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        with pytest.raises(RuntimeError, match=r"room for \d+ bytes[\s\S]*fewer workers"):
            next(iter(data.DataLoader(Images(), 2, num_workers=1)))
        with pytest.raises(RuntimeError, match="room for 400000 bytes"):
            t.ones(100_000).share_memory_()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def no_descriptors():
    """Leaves this process with one free descriptor."""
    used = max(map(int, descriptors())) + 1
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, old[1]))
    filler = []
    try:
        while True:
            filler.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        os.close(filler.pop())
    return old, filler


def with_no_descriptors(what):
    old, filler = no_descriptors()
    try:
        with pytest.raises(RuntimeError, match="Too many open files[\\s\\S]*ulimit -n"):
            what()
    finally:
        for fd in filler:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_too_many_open_files():
    """In the loader, in a worker, and where workers cannot be started."""
    two = data.DataLoader([(t.ones(9000), t.ones(9000))] * 3, None, num_workers=1)
    iterator = iter(two)
    next(iterator)
    with_no_descriptors(functools.partial(list, iterator))
    del iterator

    def starve(_):
        no_descriptors()

    with pytest.raises(RuntimeError, match="Too many open files"):
        next(iter(data.DataLoader([(t.ones(9000), t.ones(9000))], None, num_workers=1,
                                  worker_init_fn=starve)))  # fmt: skip
    with_no_descriptors(lambda: iter(data.DataLoader(Images(), num_workers=1)))


def test_unpicklable_with_spawn():
    with (
        pytest.warns(UserWarning, match="picklable"),
        pytest.raises((AttributeError, TypeError, pool.pickle.PicklingError)),
    ):
        iter(data.DataLoader([1], num_workers=1, collate_fn=lambda x: x,
                             multiprocessing_context="spawn"))  # fmt: skip


def test_compiled_code_runs_in_workers():
    """A function that was compiled in the parent runs in a forked worker, on one thread."""

    @t.jit(fallback="error")
    def f(x):
        return (x * 2).sum()

    for _ in range(3):
        f(t.ones(100))
    got = data.DataLoader([t.ones(100), t.zeros(100)], None, num_workers=2, collate_fn=f)
    assert [x.item() for x in got] == [200, 0]
