"""jg_run and the thread pool: every item runs once, in wave order, whatever the threads do."""

from __future__ import annotations

import ctypes
import struct
import threading
import time

import numpy as np
import pytest
from pool_kernels import kernels, optimize, runtime, target_machine

from jitgrad.compiler.codegen import pool
from jitgrad.runtime import abi

_Address = ctypes.c_void_p


class Raw:
    """jg_run by hand: a Ctx, a pool of its own, and tables from lists of rows."""

    def __init__(self, nthreads, threads=True, limit=None):
        symbols = runtime(threads)
        run_type = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address, _Address, ctypes.c_int64)
        self._run = run_type(symbols["jg_run"])
        create = ctypes.CFUNCTYPE(_Address, ctypes.c_int64)(symbols["jg_pool_create"])
        self._destroy = ctypes.CFUNCTYPE(None, _Address)(symbols["jg_pool_destroy"])
        self.pool = create(nthreads) or 0
        self.nthreads = limit or nthreads

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._destroy(self.pool)

    def prepare(self, arrays, rows, sizes=()):
        """Returns a function that runs `rows` of (kernel name, args, total, grain, last)."""
        cell = np.array([abi.NO_ERROR])
        sizes = np.array([*sizes, 0])
        ctx = np.zeros(abi.CTX_WORDS, np.int64)
        ctx[:4] = self.pool, cell.ctypes.data, sizes.ctypes.data, self.nthreads
        bufs = np.array([a.ctypes.data for a in arrays] + [0])
        args = [np.array([*row[1], 0]) if row else None for row in rows]
        table = np.zeros((len(rows), abi.ROW_WORDS), np.int64)
        for words, row, arg in zip(table, rows, args, strict=True):
            if row is not None:
                name, _, total, grain, last = row
                words[:5] = kernels()[name], arg.ctypes.data, total, grain, last
        keep = ctx, bufs, table, args, cell, sizes, arrays

        def run(_keep=keep):
            cell[0] = abi.NO_ERROR
            code = self._run(ctx.ctypes.data, bufs.ctypes.data, table.ctypes.data, len(table))
            assert code == (cell[0] != abi.NO_ERROR)
            return int(cell[0]) if code else None

        return run

    def run(self, arrays, rows, sizes=()):
        return self.prepare(arrays, rows, sizes)()


@pytest.fixture(params=[1, 2, 4, 13])
def raw(request):
    with Raw(request.param) as made:
        yield made


@pytest.mark.parametrize("total", [0, 1, 2, 7, 8, 9, 1000])
@pytest.mark.parametrize("grain", [1, 3, 8, 5000])
def test_every_item_runs_once_in_blocks_of_the_grain(raw, total, grain):
    count, who, begins, ends = (np.zeros(1001, np.int64) for _ in range(4))
    rows = [("visit", [0, 1], total, grain, 0), ("range", [2, 3], total, grain, 1)]
    assert raw.run([count, who, begins, ends], rows) is None
    assert (count[:total] == 1).all() and not count[total:].any()
    assert (who >= 0).all() and (who < raw.nthreads).all()
    items = np.arange(total)
    np.testing.assert_array_equal(begins[:total], items // grain * grain)
    np.testing.assert_array_equal(ends[:total], np.minimum(items // grain * grain + grain, total))


def test_sum(raw):
    x = np.random.default_rng(0).integers(-1000, 1000, 12345)
    out = np.zeros(1, np.int64)
    raw.run([out, x], [("total", [0, 1], x.size, 100, 1)])
    assert out[0] == x.sum()


def test_a_wave_sees_what_the_wave_before_wrote(raw):
    n = 257
    x, y = np.arange(n), np.zeros(n, np.int64)
    rows = [("add", [1, 0, 1], n, 5, 1), ("add", [0, 1, 1], n, 7, 1)] * 100
    run = raw.prepare([x, y], rows)
    for _ in range(20):
        run()
    np.testing.assert_array_equal(x, np.arange(n) + 200 * 20)


def test_rows_of_one_wave_with_very_different_sizes(raw):
    sizes = [0, 1, 100, 0, 3, 1000, 1, 0]
    arrays = [np.zeros(max(n, 1), np.int64) for n in sizes for _ in (0, 1)]
    rows = [("visit", [2 * i, 2 * i + 1], n, 2, 0) for i, n in enumerate(sizes)]
    raw.run(arrays, rows)  # no row is marked last: the end of the table ends the wave
    for i, n in enumerate(sizes):
        assert arrays[2 * i].sum() == n and (arrays[2 * i] <= 1).all()


def test_symbolic_totals(raw):
    count, who = np.zeros(50, np.int64), np.zeros(50, np.int64)
    rows = [("visit", [0, 1], -2, 3, 1)]
    run = raw.prepare([count, who], rows, sizes=[7, 20, 9])
    run()
    np.testing.assert_array_equal(count, np.arange(50) < 20)


def test_error_stops_at_the_commit_row(raw):
    state, bad, good = np.zeros(8, np.int64), np.arange(8) - 3, np.arange(8)
    rows = [
        ("check", [1, 9], 8, 1, 0),
        ("check", [1, 4], 8, 1, 0),
        ("check", [1, 7], 8, 1, 1),
        None,
        ("add", [0, 0, 1], 8, 1, 1),
    ]
    assert raw.run([state, bad], rows) == 4  # the smallest site
    assert not state.any()
    assert raw.run([state, good], rows) is None
    assert (state == 1).all()


def test_error_without_a_commit_row_is_returned_at_the_end(raw):
    state, bad = np.zeros(8, np.int64), np.arange(8) - 3
    rows = [("check", [1, 5], 8, 1, 1), ("add", [0, 0, 1], 8, 1, 1)]
    assert raw.run([state, bad], rows) == 5
    assert (state == 1).all()


def test_a_commit_row_ends_a_wave_and_an_empty_table_runs(raw):
    x = np.zeros(8, np.int64)
    rows = [None, ("add", [0, 0, 1], 8, 1, 0), None, ("add", [0, 0, 1], 8, 1, 0), None]
    assert raw.run([x], rows) is None
    assert (x == 2).all()
    assert raw.run([x], []) is None


def test_workers_beyond_the_context_stay_out():
    with Raw(8, limit=2) as raw:
        count, who = np.zeros(500, np.int64), np.zeros(500, np.int64)
        run = raw.prepare([count, who], [("visit", [0, 1], 500, 1, 1)])
        for _ in range(300):
            run()
            assert who.max() < 2
        assert (count == 300).all()


def test_worker_numbers_are_exclusive():
    """Scratch that is chosen by worker number is never used by two threads at once."""
    with Raw(4) as raw:
        scratch = np.zeros(4 * 16, np.int64)
        run = raw.prepare([scratch], [("count", [0, 16], 2000, 1, 1)])
        for _ in range(100):
            run()
        assert scratch.sum() == 100 * 2000


def test_threads_do_take_part():
    with Raw(2) as raw:
        x, count, who = (np.zeros(64, np.int64) for _ in range(3))
        rows = [("wait", [0, 100_000], 64, 1, 0), ("visit", [1, 2], 64, 1, 1)]
        run = raw.prepare([x, count, who], rows)
        for _ in range(200):
            run()
            if who.any():
                return
        pytest.fail("in 200 runs of some 10 ms no worker ever took a block")


def test_100_000_tiny_runs():
    with Raw(4) as raw:
        x = np.zeros(4, np.int64)
        run = raw.prepare([x], [("add", [0, 0, 1], 4, 1, 1)] * 10)
        for _ in range(10_000):
            run()
        assert (x == 100_000).all()


def test_sleeping_workers_are_woken_and_none_is_lost():
    """Pauses around the time after which workers fall asleep: where a wake-up could be lost."""
    with Raw(4) as raw:
        x = np.zeros(16, np.int64)
        run = raw.prepare([x], [("add", [0, 0, 1], 16, 1, 1)] * 3)
        pauses = np.random.default_rng(0).uniform(0, 1e-3, 1500)
        for pause in pauses:
            run()
            end = time.perf_counter() + pause
            while time.perf_counter() < end:
                pass
        assert (x == 3 * len(pauses)).all()


def test_many_callers_at_once():
    with Raw(3) as raw:
        failures = []

        def caller(seed):
            n = 100 + seed
            x = np.zeros(n, np.int64)
            scratch = np.zeros(3 * 16, np.int64)
            rows = [("add", [0, 0, 1], n, 4, 0), ("count", [1, 16], n, 4, 1)] * 5
            run = raw.prepare([x, scratch], rows)
            for _ in range(300):
                run()
            if not (x == 1500).all() or scratch.sum() != 1500 * n:
                failures.append(seed)

        threads = [threading.Thread(target=caller, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_pools_come_and_go():
    for i in range(100):
        with Raw(1 + i % 5) as raw:
            x = np.zeros(10, np.int64)
            if i % 3:
                raw.run([x], [("add", [0, 0, 1], 10, 1, 1)])
                assert (x == 1).all()


def test_without_threads_everything_runs_on_the_caller():
    with Raw(4, threads=False) as raw:
        assert raw.pool == 0
        count, who = np.zeros(100, np.int64), np.ones(100, np.int64)
        raw.run([count, who], [("visit", [0, 1], 100, 3, 1)])
        assert (count == 1).all() and not who.any()


def undefined_symbols(triple, threads, python=False):
    """What the object refers to and does not define (intrinsics may have become calls)."""
    machine = target_machine(triple)
    data = machine.emit_object(optimize(pool.emit_runtime(triple, threads, python), machine))
    if data[:4] != b"\x7fELF":
        module = optimize(pool.emit_runtime(triple, threads, python), machine)
        names = {f.name for f in module.functions if f.is_declaration}
        return {name for name in names if not name.startswith("llvm.")}
    return elf_undefined(data)


def elf_undefined(data):
    """Names of the undefined symbols of a 64-bit little-endian ELF object."""
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + size * i) for i in range(count)]
    names = set()
    for _, kind, _, _, start, nbytes, link, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = headers[link][4]
        for at in range(start + 24, start + nbytes, 24):
            name, _, _, section = struct.unpack_from("<IBBH", data, at)
            if section == 0:
                names.add(data[strings + name : data.index(0, strings + name)].decode())
    return names - {""}


@pytest.mark.parametrize(
    "triple",
    [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "riscv64-unknown-linux-gnu",
        "arm64-apple-macosx14",
    ],
)
def test_symbols_with_threads(triple):
    symbols = undefined_symbols(triple, True)
    assert {"pthread_create", "pthread_cond_wait"} <= symbols <= pool.ALLOWED_SYMBOLS
    assert undefined_symbols(triple, True, python=True) == symbols


@pytest.mark.parametrize(
    "triple",
    ["x86_64-pc-windows-msvc", "wasm32-unknown-unknown", "riscv64-unknown-elf", "aarch64-none-elf"],
)
def test_without_threads_memcpy_is_all_that_is_undefined(triple):
    """Compilers expect it of every environment, also where there is no C library."""
    assert undefined_symbols(triple, False) <= {"memcpy"}
