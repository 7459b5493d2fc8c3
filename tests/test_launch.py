"""Executables: slots, frames, arenas, errors, many callers, forks, and the number of threads."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from pool_kernels import kernels, runtime

from jitgrad.runtime import abi, buffers, launch, threads
from jitgrad.runtime.errors import InternalError
from jitgrad.runtime.launch import COMMIT, ArenaPlan, Executable, Launch

NAMES = ["add", "total", "visit", "range", "check", "count", "wait"]


@pytest.fixture(autouse=True)
def _native():
    if not threads.installed():
        symbols = runtime()
        threads.install(
            symbols["jg_run"],
            symbols["jg_pool_create"],
            symbols["jg_pool_destroy"],
            py_call=symbols["jg_py_call"],
        )
    before = threads.get_num_threads()
    threads.set_num_threads(3)
    yield
    threads.set_num_threads(before)


def row(name, *args, total, grain=4, last=True):
    return Launch(NAMES.index(name), args, total, grain, last)


def executable(rows, **options):
    addresses = kernels()
    return Executable([addresses[name] for name in NAMES], rows, **options)


def zeros(n=1):
    return np.zeros(n, np.int64)


def in_child(function):
    """Runs function in a forked child; fails if it raises there, or does not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork() of a threaded process
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def chain(n=100):
    """out = x + 3 + constant by way of two temporaries. Slots: x, out, constant, t1, t2."""
    rows = [
        row("add", 3, 0, 1, total=n),
        row("add", 4, 3, 2, total=n),
        row("add", 1, 4, 0, total=n, last=False),
        row("total", 5, 2, total=n),
    ]
    return executable(
        rows,
        n_buffers=6,
        n_varying=2,
        arena=ArenaPlan({3: 0, 4: 1024, 5: 2048}, 4096),
        constants={2: np.ones(n, np.int64)},
    )


@pytest.mark.parametrize("how", ["arrays", "pointers", "ctypes"])
def test_run(how, monkeypatch):
    if how == "ctypes":
        monkeypatch.setattr(threads.native(), "bind", None)
    program = chain()
    for i in range(20):
        x, out = np.arange(100) * i, zeros(100)
        if how == "pointers":
            program.run_pointers([buffers.address(x), buffers.address(out)])
        else:
            program.run([x, out])
        np.testing.assert_array_equal(out, x + 3)
    assert len(program._idle) == 1


@pytest.mark.parametrize("release_gil", [True, False])
def test_ten_arrays(release_gil):
    rows = [row("add", i + 5, i, i, total=6, last=i == 4) for i in range(5)]
    program = executable(rows, n_buffers=10, n_varying=10, release_gil=release_gil)
    arrays = [np.arange(6) if i < 5 else zeros(6) for i in range(10)]
    program.run(tuple(arrays))
    for i in range(5):
        np.testing.assert_array_equal(arrays[5 + i], np.arange(6) + i)


def test_no_arrays_and_no_rows():
    executable([], n_buffers=0, n_varying=0).run(())
    counter = zeros()
    program = executable(
        [row("add", 0, 0, 1, total=1)], n_buffers=1, n_varying=0, constants={0: counter}
    )
    for _ in range(5):
        program.run([])
    program.run_pointers([])
    assert counter[0] == 6


def test_views_subclasses_and_read_only_arrays(tmp_path):
    program = executable([row("add", 1, 0, 5, total=4)], n_buffers=2, n_varying=2)
    x = np.arange(20)
    x.flags.writeable = False
    out = np.memmap(tmp_path / "out", np.int64, "w+", shape=(4,))
    program.run([x[7:11], out])
    np.testing.assert_array_equal(out, x[7:11] + 5)


def test_wrong_arguments_run_nothing():
    program = executable([row("add", 1, 0, 5, total=4)], n_buffers=2, n_varying=2)
    out = zeros(4)
    with pytest.raises(InternalError, match="expected 2 arrays, got 1"):
        program.run([out])
    with pytest.raises(InternalError, match="expected 2 arrays, got 3"):
        program.run([out, out, out])
    with pytest.raises(InternalError, match="expected 2 arrays, got 0"):
        program.run_pointers([])
    for wrong in (3, None, [1, 2]):
        with pytest.raises(TypeError, match="expected an ndarray, got"):
            program.run([out, wrong])
    assert not out.any()
    program.run([out, out])
    assert (out == 5).all()


def failing():
    rows = [
        row("check", 0, 3, total=8, grain=1),
        row("check", 1, 2, total=8, grain=1),
        COMMIT,
        row("add", 2, 2, 1, total=8),
    ]
    sites = {2: lambda: IndexError("two"), 3: lambda: ValueError("three")}
    return executable(rows, n_buffers=3, n_varying=3, sites=sites)


@pytest.mark.parametrize("how", ["run", "run_pointers"])
def test_errors(how):
    program = failing()
    good, bad, state = zeros(8), np.arange(8) - 4, zeros(8)

    def call(*arrays):
        if how == "run":
            program.run(arrays)
        else:
            program.run_pointers([buffers.address(a) for a in arrays])

    for _ in range(3):
        with pytest.raises(ValueError, match="three"):
            call(bad, good, state)
        with pytest.raises(IndexError, match="two"):
            call(bad, bad, state)
        assert not state.any()
    call(good, good, state)
    assert (state == 1).all()
    assert len(program._idle) == 1


def test_a_site_without_a_message_is_our_bug():
    program = executable([row("check", 0, 77, total=2)], n_buffers=1, n_varying=1)
    with pytest.raises(InternalError, match="site 77"):
        program.run([np.array([-1, 0])])
    program.run([zeros(2)])


def test_symbolic_sizes_and_arena():
    plans = []

    def plan(sizes):
        plans.append(sizes)
        return ArenaPlan({2: 0, 3: buffers.round_up(8 * sizes[0])}, 16 * sizes[0] + 256)

    rows = [
        row("add", 2, 0, 1, total=-1),
        row("add", 3, 2, 1, total=-1),
        row("add", 1, 3, 1, total=-2),
    ]
    program = executable(rows, n_buffers=4, n_varying=2, n_sizes=2, arena=plan)
    for n, m in [(10, 4), (10, 4), (2000, 2000), (3, 0), (10, 4)]:
        x, out = np.arange(n), zeros(n)
        program.run([x, out], (n, m))
        np.testing.assert_array_equal(out, np.where(np.arange(n) < m, x + 3, 0))
    assert plans == [(10, 4), (2000, 2000), (3, 0), (10, 4)]
    with pytest.raises(InternalError, match="expected 2 sizes, got 1"):
        program.run([x, out], (1,))


def test_scratch_belongs_to_the_worker():
    rows = [row("count", 1, 16, total=1000, grain=1), row("total", 0, 1, total=3 * 16, grain=99)]
    program = executable(rows, n_buffers=2, n_varying=1, scratch={1: 128})
    out = zeros()
    program.run([out])
    program._idle[0].scratch[0][:] = 0
    out[0] = 0
    for _ in range(10):
        program.run([out])
    assert out[0] == sum(range(1000, 10_001, 1000))


def test_small_programs_have_arenas_of_their_own():
    x, out = np.arange(100), zeros(100)
    program = chain(50)
    program.run([x, out])
    assert program.plain and (out[:50] == np.arange(50) + 3).all()
    (frame,) = program._idle
    assert frame.arena.nbytes == program.arena.nbytes
    other = launch._Frame(program)  # as a second thread would have
    assert other.arena.address != frame.arena.address


def test_one_frame_serves_calls_that_do_not_overlap():
    program, x, ran = chain(50), np.arange(100), []

    def slow(arrays, results):
        ran.append(None)
        program.run([*arrays, *results])

    call = program.caller([lambda: zeros(100)], slow)
    out = zeros(100)
    assert call([x], None, [out])[0] is out and (out[:50] == np.arange(50) + 3).all()
    for n in (3, 2, 1):
        threads.set_num_threads(n)
        assert (call([x])[0][:50] == np.arange(50) + 3).all()
    assert not program._idle and not ran
    frame = call.__globals__["frame"]
    frame.call_words[abi.CALL_BUSY] = 1  # as while another thread is in it
    assert (call([x])[0][:50] == np.arange(50) + 3).all()
    frame.call_words[abi.CALL_BUSY] = 0
    assert (call([x.view(np.memmap)])[0][:50] == np.arange(50) + 3).all()  # a subclass
    assert len(ran) == 2 and len(program._idle) == 1
    assert (call([x])[0][:50] == np.arange(50) + 3).all() and len(ran) == 2
    with pytest.raises(ValueError, match="unpack"):
        call([x, x])


def test_a_call_that_failed_frees_its_frame():
    program, ran = failing(), []

    def slow(arrays, results):
        ran.append(None)
        program.run([*arrays, *results])

    call = program.caller([], slow)
    good, bad, state = zeros(8), np.arange(8) - 4, zeros(8)
    for i in range(3):
        with pytest.raises(IndexError):
            call([good, bad, state])
        assert len(ran) == i + 1 and not state.any()
    call([good, good, state])
    assert len(ran) == 3 and (state == 1).all()


def test_many_threads_share_the_frame_of_a_caller():
    program = chain()

    def slow(arrays, results):
        program.run([*arrays, *results])

    call = program.caller([lambda: zeros(100)], slow)

    def work(seed):
        x = np.arange(100) * seed
        for _ in range(300):
            np.testing.assert_array_equal(call([x])[0], x + 3)

    run_in_threads(8, work)


def test_warm_calls_allocate_no_frame_and_share_arenas(monkeypatch):
    monkeypatch.setattr(launch, "_OWN_ARENA", 0)
    buffers.empty_cache()
    gc.collect()
    others = buffers.statistics.by_purpose.get("arena", 0)  # of programs that other tests hold
    small, large = chain(50), chain(100)
    x, out = np.arange(100), zeros(100)
    for _ in range(10):
        small.run([x, out])
        large.run([x, out])
    assert len(small._idle) == len(large._idle) == 1
    assert len(launch._idle_arenas) == 1
    assert buffers.statistics.by_purpose["arena"] == others + 4096
    buffers.empty_cache()
    assert buffers.statistics.by_purpose.get("arena", 0) == others
    small.run([x, out])
    assert (out[:50] == np.arange(50) + 3).all()


def test_a_larger_arena_replaces_a_smaller_one(monkeypatch):
    monkeypatch.setattr(launch, "_OWN_ARENA", 0)
    buffers.empty_cache()
    for nbytes in (128, 4096, 1 << 20, 256):
        program = executable(
            [row("add", 1, 0, 1, total=2), row("add", 0, 1, 1, total=2)],
            n_buffers=2,
            n_varying=1,
            arena=ArenaPlan({1: nbytes - 128}, nbytes),
        )
        x = zeros(2)
        program.run([x])
        assert (x == 2).all()
    assert [arena.nbytes for arena in launch._idle_arenas] == [1 << 20]


def run_in_threads(count, work):
    failures = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def test_many_callers_at_once():
    program, other = chain(), failing()

    def work(seed):
        x = np.arange(100) * seed
        good, bad, state = zeros(8), np.arange(8) - 4, zeros(8)
        for _ in range(200):
            out = zeros(100)
            program.run([x, out])
            np.testing.assert_array_equal(out, x + 3)
            with pytest.raises(IndexError):
                other.run([good, bad, state])
        assert not state.any()

    run_in_threads(8, work)
    assert len(program._idle) <= launch._MAX_IDLE_FRAMES
    assert len(launch._idle_arenas) <= launch._MAX_IDLE_ARENAS


def test_other_threads_run_meanwhile():
    """A long call releases the GIL: another thread ends it by what only Python can see."""
    program = executable([row("wait", 0, 20_000_000, total=1)], n_buffers=1, n_varying=1)
    progress = []
    done = threading.Event()

    def work():
        while not done.is_set():
            progress.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    before = len(progress)
    program.run([zeros()])
    after = len(progress)
    done.set()
    thread.join()
    assert after > before


def test_100_000_calls():
    program = executable([row("add", 0, 0, 1, total=4, grain=2)], n_buffers=1, n_varying=1)
    x = zeros(4)
    arrays = (x,)
    for _ in range(100_000):
        program.run(arrays)
    assert (x == 100_000).all()


def worker_numbers(program, runs=50):
    count, who = zeros(1000), zeros(1000)
    for _ in range(runs):
        program.run([count, who])
    assert (count == runs).all()
    return set(who.tolist())


def test_the_number_of_threads_changes_under_running_calls():
    program = executable([row("visit", 0, 1, total=1000, grain=1)], n_buffers=2, n_varying=2)
    stop = threading.Event()

    def work(i):
        if i == 0:
            for n in [1, 2, 5, 3, 1, 4] * 5:
                threads.set_num_threads(n)
                assert threads.get_num_threads() == n
                worker_numbers(program, 3)
            stop.set()
        while not stop.is_set():
            worker_numbers(program, 3)

    run_in_threads(3, work)
    threads.set_num_threads(1)
    assert worker_numbers(program) == {0}
    threads.set_num_threads(2)
    assert worker_numbers(program) <= {0, 1}


def native_threads():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in Linux's /proc")
def test_no_thread_before_it_is_needed_and_none_is_left_behind():
    gc.collect()
    threads.set_num_threads(1)
    chain().run([zeros(100), zeros(100)])
    gc.collect()
    idle = native_threads()
    threads.set_num_threads(4)
    tiny = executable([row("add", 0, 0, 1, total=4, grain=4)], n_buffers=1, n_varying=1)
    tiny.run([zeros(4)])
    assert not tiny.parallel and native_threads() == idle
    program = executable([row("add", 0, 0, 1, total=5, grain=4)], n_buffers=1, n_varying=1)
    program.run([zeros(5)])
    assert program.parallel and native_threads() == idle + 3
    threads.set_num_threads(2)
    program.run([zeros(5)])
    gc.collect()
    assert native_threads() == idle + 1
    threads.set_num_threads(1)
    del program
    gc.collect()
    assert native_threads() == idle


def test_num_threads_arguments():
    for wrong, error in ((0, ValueError), (-1, ValueError), (1e3, TypeError), (True, TypeError)):
        with pytest.raises(error, match="set_num_threads expected"):
            threads.set_num_threads(wrong)
    assert threads.get_num_threads() == 3
    assert threads.available_processors() >= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_fork():
    program, x = chain(), np.arange(100)

    def check():
        for _ in range(100):
            out = zeros(100)
            program.run([x, out])
            np.testing.assert_array_equal(out, x + 3)

    def child():
        check()
        in_child(check)  # and a grandchild
        check()

    check()
    pool = threads.current
    in_child(child)
    check()
    assert threads.current is pool  # the parent's own is untouched


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_fork_while_other_threads_run():
    program, x = chain(), np.arange(100)
    stop = threading.Event()

    def check():
        out = zeros(100)
        program.run([x, out])
        np.testing.assert_array_equal(out, x + 3)

    def work(i):
        if i == 0:
            for _ in range(30):
                in_child(lambda: [check() for _ in range(20)])
            stop.set()
        while not stop.is_set():
            check()

    run_in_threads(3, work)


EXIT = """
import threading, sys, time
import numpy as np
from jitgrad.runtime import threads
from jitgrad.runtime.launch import Executable, Launch
import pool_kernels as k
s = k.runtime()
threads.install(s["jg_run"], s["jg_pool_create"], s["jg_pool_destroy"], py_call=s["jg_py_call"])
threads.set_num_threads(3)
program = Executable([k.kernels()["add"]], [Launch(0, (0, 0, 1), 50, 1)], n_buffers=1, n_varying=1)
x = np.zeros(50, np.int64)
program.run([x])
def forever():
    while True:
        program.run([x])
if "daemon" in sys.argv:
    threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.1)
"""


@pytest.mark.parametrize("argument", ["", "daemon"])
def test_the_interpreter_exits_cleanly(argument):
    done = subprocess.run(
        [sys.executable, "-c", EXIT, argument],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_runtime_does_not_need_llvm():
    code = "import sys, jitgrad.runtime.launch, jitgrad.runtime.cache; print(sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "'jitgrad.runtime.launch'" in modules
    for heavy in ("llvmlite", "numba", "networkx", "jitgrad.compiler.pipeline"):
        assert f"'{heavy}'" not in modules


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_buffers": 3, "n_varying": 1}, "3 slots, of which these are bound: \\[0\\]"),
        ({"n_buffers": 2, "n_varying": 1, "constants": {0: zeros()}}, "bound: \\[0, 0\\]"),
        ({"n_buffers": 2, "n_varying": 1, "scratch": {1: 100}}, "not a multiple of 128"),
    ],
)
def test_slots_are_checked(options, message):
    with pytest.raises(InternalError, match=message):
        executable([row("add", 0, 0, 1, total=1)], **options)


@pytest.mark.parametrize(
    "bad, message",
    [
        (Launch(99, (), 1, 1), "names kernel 99"),
        (Launch(0, (), 1, 0), "grain 0"),
        (Launch(0, (), -3, 1), "names size 2"),
    ],
)
def test_launches_are_checked(bad, message):
    with pytest.raises(InternalError, match=message):
        executable([bad], n_buffers=0, n_varying=0, n_sizes=2)
    with pytest.raises(InternalError, match="kernel 0 has no address"):
        Executable([0], [], n_buffers=0, n_varying=0)
