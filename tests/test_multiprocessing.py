"""jitgrad.multiprocessing and share_memory_: one memory in several processes, and nothing left."""

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing import resource_tracker

import numpy as np
import pytest
import shared_files

import jitgrad as t
import jitgrad.multiprocessing as mp
from jitgrad import nn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


@pytest.fixture(autouse=True)
def nothing_left():
    """No file in memory more than before."""
    with shared_files.alone():
        before = shared_files.names()
        yield
        gc.collect()
        assert shared_files.names() == before


@pytest.fixture(params=sorted(mp.get_all_sharing_strategies()))
def strategy(request):
    """Each way of sharing."""
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


def forked(function, *args):
    """Runs it in a forked process."""
    process = mp.get_context("fork").Process(target=function, args=args)
    process.start()
    process.join(30)
    assert process.exitcode == 0


# -- share_memory_ -------------------------------------------------------------------------------
def test_all_tensors_on_a_storage_move(strategy):
    x = t.arange(12.0).reshape(3, 4)
    views = [x[1:, ::2], x.t(), x.detach(), x.unflatten(0, (3, 1)), x.expand(2, 3, 4)]
    want = [v.tolist() for v in views]
    old = x.numpy()
    assert not x.is_shared()
    assert views[0].share_memory_() is views[0]
    assert x.is_shared() and all(v.is_shared() for v in views)
    assert [v.tolist() for v in views] == want and views[0].storage_offset() == 4
    assert x.untyped_storage().is_shared() and x.storage().is_shared()
    x[1, 0] = 100
    assert views[0][0, 0] == views[1][0, 1] == 100 and old[1, 0] == 4
    place = x.data_ptr()
    assert x.share_memory_().data_ptr() == place  # once is enough
    forked(x.fill_, 7.0)
    assert (views[1] == 7).all()


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[3:, 1], np.s_[:, ::3], np.s_[0:0]], ids=str)
def test_strided_roots(cut):
    array = np.arange(60.0).reshape(6, 10)[cut]
    x = t.from_numpy(array).share_memory_()
    assert x.tolist() == array.tolist() and x.stride() == t.from_numpy(array).stride()
    x.add_(1)
    assert array.size == 0 or x.numpy()[0].tolist() != array[0].tolist()


@pytest.mark.parametrize("dtype", [t.bfloat16, t.bool, t.int16, t.complex128], ids=str)
def test_dtypes(dtype):
    x = t.ones(5, dtype=dtype).share_memory_()
    assert x.dtype is dtype and x.is_shared() and x.tolist() == t.ones(5, dtype=dtype).tolist()


def test_modules_and_compiled_code():
    """Training in a forked process is seen here, by compiled code too."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.weight = model[0].weight  # tied

    @t.jit(fallback="error")
    def f(x):
        return model(x)

    x = t.randn(4, 3)
    for _ in range(3):
        f(x)
    want = f(x)
    assert model.share_memory() is model
    assert all(p.is_shared() for p in (*model.parameters(), *model.buffers()))
    assert t.allclose(f(x), want)

    def train():
        optimizer = t.optim.SGD(model.parameters(), lr=0.5)
        model(x).square().sum().backward()
        optimizer.step()

    forked(train)
    assert not t.allclose(f(x), want) and model.weight is model[0].weight
    assert t.allclose(f(x), model(x))


def test_gradients_go_on():
    w = t.ones(3, requires_grad=True)
    loss = (w * w).sum()
    w.share_memory_()
    loss.backward()
    assert w.grad.tolist() == [2, 2, 2] and w.is_leaf
    with pytest.raises(RuntimeError, match="vmap"):
        t.vmap(lambda x: x.share_memory_())(t.ones(2, 3))


# -- queues --------------------------------------------------------------------------------------
def answer(inbox, outbox):
    """Adds 1 to what comes; sends it back, and tensors of its own."""
    got = inbox.get(timeout=60)
    with t.no_grad():
        got["x"].add_(1)
        got["w"].add_(1)
    outbox.put((got, t.arange(6.0).reshape(2, 3).t(), t.ones(4, dtype=t.bfloat16), t.ones(0, 2)))
    assert inbox.get(timeout=60) == "end"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_queues_share_memory(strategy, method):
    resource_tracker.ensure_running()
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(inbox, outbox))
    process.start()
    x, w = t.zeros(2, 3), nn.Parameter(t.ones(2))
    view = x[1]
    inbox.put({"x": x, "w": w, "same": x.t()})
    back, own, half, empty = outbox.get(timeout=60)
    assert view.tolist() == [1, 1, 1] and w.tolist() == [2, 2]  # written there, seen here
    assert back["x"]._storage is x._storage is back["same"]._storage  # it came home
    assert type(back["w"]) is nn.Parameter and back["w"].requires_grad
    assert own.tolist() == [[0, 3], [1, 4], [2, 5]] and own.is_shared()
    assert half.dtype is t.bfloat16 and half.tolist() == [1] * 4 and empty.shape == (0, 2)
    inbox.put("end")
    process.join(30)
    assert process.exitcode == 0


def test_descriptors_are_given_back(strategy):
    queue = mp.get_context("fork").SimpleQueue()
    resource_tracker.ensure_running()

    def once():
        queue.put(t.ones(3))
        assert queue.get().tolist() == [1, 1, 1]

    once()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_on_the_tape_is_refused():
    queue = mp.get_context("fork").SimpleQueue()
    y = t.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf"):
        queue.put(y)
    queue.put(y.detach())
    assert queue.get().tolist() == [2, 2, 2]


def double(x):
    return x * 2


def test_pools(strategy):
    with mp.get_context("fork").Pool(2) as workers:
        assert [x.tolist() for x in workers.map(double, [t.ones(2), t.zeros(1)])] == [[2, 2], [0]]
        workers.close()
        workers.join()


def test_strategies():
    assert mp.get_all_sharing_strategies() == {"file_descriptor", "file_system"}
    assert mp.get_sharing_strategy() == "file_descriptor"
    with pytest.raises(AssertionError, match="invalid sharing strategy"):
        mp.set_sharing_strategy("pigeons")
    assert mp.Process is multiprocessing.Process and mp.Queue == multiprocessing.Queue
    assert {"Queue", "Pool", "Event", "spawn"} <= set(mp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mp.nonsense  # noqa: B018


def test_names_of_a_killed_process_are_removed(tmp_path):
    """What a killed process named goes with the process that started it."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, jitgrad as t, jitgrad.multiprocessing as mp\n"
        "def child(q):\n"
        "    x = t.ones(10).share_memory_()\n"
        "    q.put(x)\n"
        "    q.close(); q.join_thread()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "mp.set_sharing_strategy('file_system')\n"
        "q = mp.get_context('fork').Queue()\n"
        "p = mp.get_context('fork').Process(target=child, args=(q,))\n"
        "p.start(); p.join()\n"
        "x = q.get()\n"
        "kept = t.ones(3).share_memory_()\n"
        "print(x.sum().item(), sum(f'-{k}-' in n for n in os.listdir('/dev/shm')\n"
        "      for k in (p.pid, os.getpid())))\n"
    )
    before = shared_files.names()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "10.0 3\n", done.stderr
    for _ in range(100):
        if shared_files.names() == before:
            return
        time.sleep(0.05)
    pytest.fail(f"left: {shared_files.names() - before}")


# -- spawn ---------------------------------------------------------------------------------------
def note(index, x):
    x[index] = index + 1


def fail(index):
    if index == 1:
        raise ValueError("of process 1")
    time.sleep(1000)


def leave(index):
    os._exit(3)


def test_spawn_shares_its_arguments():
    x = t.zeros(2)
    assert mp.spawn(note, (x,), nprocs=2) is None
    assert x.tolist() == [1, 2]


def test_failures_of_processes():
    with pytest.raises(mp.ProcessRaisedException, match="in fail\n[\\s\\S]*of process 1") as raised:
        mp.start_processes(fail, nprocs=2, start_method="fork")
    assert raised.value.error_index == 1
    with pytest.raises(mp.ProcessExitedException, match="exit code 3") as left:
        mp.start_processes(leave, start_method="fork")
    assert left.value.exit_code == 3
    running = mp.start_processes(fail, nprocs=1, join=False, start_method="fork")
    assert not running.join(timeout=0.05)
    os.kill(running.pids()[0], 9)
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        running.join()
    with pytest.warns(FutureWarning, match="start_processes"):
        mp.spawn(note, (t.zeros(1),), start_method="fork")
