"""The native half of a launch: `jg_run`, the thread pool, and the entry that Python calls.

Owns the LLVM module that every compiled program needs exactly once: it walks a launch table,
cuts the rows of a wave into blocks and hands the blocks to threads. It does not own kernels
(`codegen/llvm.py`), nor who creates the pool and when (`runtime/threads.py`).

The ABI, in i64 words (named in `runtime/abi.py`); everything that runs compiled code agrees
on it:

    kernel        void k(Ctx*, i8** bufs, const i64* args, i64 begin, i64 end, i64 worker)
    Ctx           0 pool (0: run serially)        1 pointer to the error cell
                  2 pointer to symbolic sizes     3 number of threads
                  4 pointer to the launch table   5..7 reserved, 0
    error cell    2^63-1, or the smallest site number flagged so far
    launch row    0 kernel (0: a commit row)      1 pointer to args
                  2 total (-s-1: word s of sizes) 3 grain, >= 1
                  4 1 for the last of a wave      5 reserved

    i32 jg_run(Ctx*, i8** bufs, const i64* table, i64 nrows)    1 if an error was flagged
    ptr jg_pool_create(i64 nthreads)                            0 if it cannot, or nthreads < 2
    void jg_pool_destroy(ptr)                                   no wave may be running in it
    PyObject* jg_py_call(self, args, nargs)                     only on request; see `pycall.py`
    jg_loop, jg_branch                                          kernels; see `drivers.py`

A row's [0, total) is always cut at multiples of its grain, however many threads there are, so the
(begin, end) that a kernel sees never depend on them. A wave with one block, and any wave whose
pool is absent or taken by another caller, runs on the caller as worker 0. That is safe because
the scratch that `worker` selects belongs to the bufs of this very call.

How a wave meets the workers. One word, the gate, holds (epoch << 16 | open << 15 | inside). The
caller writes the job, then opens the gate under a new epoch; a worker enters by compare-and-swap
of the whole word, so it can enter only the wave that it saw. The caller works too; when no block
is left it closes the gate and waits until nobody is inside. A worker that sleeps, or comes late,
is never waited for. Sleeping is the usual store/load handshake: the worker counts itself a
sleeper and then reads the gate, the caller writes the gate and then reads the count, both
sequentially consistent, so at least one of them sees the other; the mutex closes the window
between the worker's last look and its wait.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.drivers import emit_drivers
from jitgrad.compiler.codegen.pycall import emit_py_call
from jitgrad.compiler.codegen.words import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    add_to,
    atomic,
    atomic_get,
    const,
    define,
    function_at,
    get,
    get_pointer,
    minimum,
    put,
    variable,
    while_loop,
    word,
)
from jitgrad.runtime import abi

# Symbols that an emitted runtime module may leave undefined. A loader refuses any other.
ALLOWED_SYMBOLS = frozenset(
    {
        *("pthread_create", "pthread_join"),
        *("pthread_mutex_init", "pthread_mutex_destroy"),
        *("pthread_mutex_lock", "pthread_mutex_unlock"),
        *("pthread_cond_init", "pthread_cond_destroy", "pthread_cond_wait"),
        *("pthread_cond_signal", "pthread_cond_broadcast", "sched_yield"),
        *("malloc", "free", "memcpy", "memmove", "memset"),
    }
)

_KERNEL = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])

# The pool, in words. What different threads write lies 128 bytes apart: two lines, since CPUs
# fetch lines in pairs. A pthread mutex or condition takes at most 64 bytes; each has 128.
_GATE, _STOP, _SLEEPERS = 0, 1, 2
_NEXT = 16
_BUSY = 32
_CTX, _BUFS, _ROWS, _NBLOCKS = 48, 49, 50, 51
_NTHREADS, _RAW = 64, 65
_MUTEX, _COND = 80, 96
_WORKERS, _WORKER_WORDS = 112, 4  # of each worker: pool, number, pthread_t

_OPEN = 1 << 15
_INSIDE = _OPEN - 1
_EPOCH_ONE = 1 << 16

# How often a worker looks for the next wave before it sleeps. Waking a sleeper takes a system call
# and 50 microseconds, or far more on a virtual machine, where an idle processor is given away:
# longer than many waves, than a kernel between them that runs on one thread, and than Python
# between two calls. The first looks take 20 to 50 microseconds. At each look after them the worker
# offers its processor to other threads, so that it delays none; these take some 200 to 500.
_WORKER_SPINS = 1000
_WORKER_LOOKS = 2000
# The caller looks this often for the last worker to leave before it yields its processor.
_CALLER_SPINS = 256


def emit_runtime(triple: str, threads: bool, python: bool = False) -> ir.Module:
    """Returns the runtime module for `triple`.

    threads: emit the pool (POSIX threads). Without it no pthread symbol is referenced, every wave
        runs on the caller and `jg_pool_create` returns 0: WebAssembly, bare targets, Windows.
    python: also emit `jg_py_call`, which CPython calls as a METH_FASTCALL function.
    """
    module = ir.Module("jitgrad_runtime")
    module.triple = triple
    row_total = _emit_row_total(module)
    row_blocks = _emit_row_blocks(module, row_total)
    run_serial = _emit_run_serial(module, row_total)
    if threads:
        run_shared = _emit_run_shared(module, row_total, row_blocks)
        wake = _emit_wake(module)
        run_wave = _emit_run_parallel(module, triple, run_serial, run_shared, wake)
        _emit_pool_create(module, _emit_worker(module, triple, run_shared))
        _emit_pool_destroy(module)
    else:
        run_wave = run_serial
        _emit_no_pool(module)
    run = _emit_run(module, row_blocks, run_wave)
    emit_drivers(module, run, _extern(module, "memcpy", PTR, [PTR, PTR, I64]))
    if python:
        emit_py_call(module, run)
    return module


def _extern(module: ir.Module, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
    if name not in ALLOWED_SYMBOLS:
        raise ValueError(f"the runtime module may not refer to {name}: not in ALLOWED_SYMBOLS")
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result, params), name)


def pause(b: ir.IRBuilder, triple: str) -> None:
    """Tells the processor that this is a wait loop, where it has a way to be told.

    Intrinsics, since inline assembly would need an assembly parser in whoever loads this. On
    AArch64 `yield` does nothing on most cores; `isb` waits about as long as x86's `pause`.
    """
    arch = triple.split("-")[0]
    if arch == "x86_64":
        b.call(_intrinsic(b.module, "llvm.x86.sse2.pause", []), [])
    elif arch in ("aarch64", "arm64"):
        b.call(_intrinsic(b.module, "llvm.aarch64.isb", [I32]), [ir.Constant(I32, 15)])


def _intrinsic(module: ir.Module, name: str, params: list[ir.Type]) -> ir.Function:
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(VOID, params), name)


# --- rows, blocks, and waves ----------------------------------------------------------------------


def _emit_row_total(module: ir.Module) -> ir.Function:
    """i64 row_total(ctx, row): the row's number of items, read from the sizes if symbolic."""
    function, b = define(module, "jg.row_total", I64, [PTR, PTR])
    ctx, row = function.args
    total = get(b, row, abi.ROW_TOTAL)
    with b.if_then(b.icmp_signed("<", total, const(0)), likely=False):
        b.ret(get(b, get_pointer(b, ctx, abi.CTX_SIZES), b.not_(total)))
    b.ret(total)
    return function


def _emit_row_blocks(module: ir.Module, row_total: ir.Function) -> ir.Function:
    """i64 row_blocks(ctx, row) = ceil(total / grain)."""
    function, b = define(module, "jg.row_blocks", I64, [PTR, PTR])
    total, grain = b.call(row_total, function.args), get(b, function.args[1], abi.ROW_GRAIN)
    with b.if_then(b.icmp_signed("<=", total, grain), likely=True):
        b.ret(b.zext(b.icmp_signed(">", total, const(0)), I64))
    b.ret(b.add(b.udiv(b.sub(total, const(1)), grain), const(1)))
    return function


def _call_kernel(
    b: ir.IRBuilder,
    ctx: ir.Value,
    bufs: ir.Value,
    row: ir.Value,
    begin: ir.Value,
    total: ir.Value,
    worker: ir.Value,
) -> ir.Value:
    """Runs the block of `row` that starts at `begin`; returns where it ended."""
    end = minimum(b, b.add(begin, get(b, row, abi.ROW_GRAIN)), total)
    kernel = function_at(b, get(b, row, abi.ROW_KERNEL), _KERNEL)
    args = get_pointer(b, row, abi.ROW_ARGS)
    call = b.call(kernel, [ctx, bufs, args, begin, end, worker])
    call.attributes.add("nounwind")
    return end


def _emit_run_serial(module: ir.Module, row_total: ir.Function) -> ir.Function:
    """void run_serial(ctx, bufs, rows, nrows, nblocks): a wave, block by block, on the caller."""
    function, b = define(module, "jg.run_serial", VOID, [PTR, PTR, PTR, I64, I64])
    ctx, bufs, rows, nrows, _ = function.args
    i, begin = variable(b, 0), variable(b, 0)
    with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), nrows)):
        row = word(b, rows, b.mul(b.load(i, typ=I64), const(abi.ROW_WORDS)))
        total = b.call(row_total, [ctx, row])
        b.store(const(0), begin)
        with while_loop(b, lambda: b.icmp_signed("<", b.load(begin, typ=I64), total)):
            start = b.load(begin, typ=I64)
            b.store(_call_kernel(b, ctx, bufs, row, start, total, const(0)), begin)
        add_to(b, i, 1)
    b.ret_void()
    return function


def _emit_run_shared(
    module: ir.Module, row_total: ir.Function, row_blocks: ir.Function
) -> ir.Function:
    """void run_shared(pool, worker): takes blocks of the pool's job until there are none.

    The block numbers that one thread draws only grow, so it walks the rows once.
    """
    function, b = define(module, "jg.run_shared", VOID, [PTR, I64])
    pool, worker = function.args
    ctx, bufs = get_pointer(b, pool, _CTX), get_pointer(b, pool, _BUFS)
    rows, nblocks = get_pointer(b, pool, _ROWS), get(b, pool, _NBLOCKS)
    at, first = variable(b, 0), variable(b, 0)  # the row's first word, its first block
    count = variable(b, b.call(row_blocks, [ctx, rows]))
    block = variable(b, 0)

    def draw() -> ir.Value:
        b.store(atomic(b, "add", pool, _NEXT, 1, "monotonic"), block)
        return b.icmp_signed("<", b.load(block, typ=I64), nblocks)

    def past_row() -> ir.Value:
        end = b.add(b.load(first, typ=I64), b.load(count, typ=I64))
        return b.icmp_signed(">=", b.load(block, typ=I64), end)

    with while_loop(b, draw):
        with while_loop(b, past_row):
            add_to(b, first, b.load(count, typ=I64))
            add_to(b, at, abi.ROW_WORDS)
            row = word(b, rows, b.load(at, typ=I64))
            b.store(b.call(row_blocks, [ctx, row]), count)
        row = word(b, rows, b.load(at, typ=I64))
        total = b.call(row_total, [ctx, row])
        index = b.sub(b.load(block, typ=I64), b.load(first, typ=I64))
        _call_kernel(b, ctx, bufs, row, b.mul(index, get(b, row, abi.ROW_GRAIN)), total, worker)
    b.ret_void()
    return function


def _emit_run_parallel(
    module: ir.Module,
    triple: str,
    run_serial: ir.Function,
    run_shared: ir.Function,
    wake: ir.Function,
) -> ir.Function:
    """void run_wave(ctx, bufs, rows, nrows, nblocks): over the pool if that can pay."""
    function, b = define(module, "jg.run_wave", VOID, [PTR, PTR, PTR, I64, I64])
    ctx, bufs, rows, _, nblocks = function.args
    serial, contend = b.append_basic_block("serial"), b.append_basic_block("contend")
    parallel = b.append_basic_block("parallel")

    pool_word = get(b, ctx, abi.CTX_POOL)
    wanted = b.and_(
        b.icmp_unsigned("!=", pool_word, const(0)),
        b.and_(
            b.icmp_signed(">", nblocks, const(1)),
            b.icmp_signed(">", get(b, ctx, abi.CTX_THREADS), const(1)),
        ),
    )
    b.cbranch(wanted, contend, serial)

    b.position_at_end(serial)
    b.call(run_serial, function.args)
    b.ret_void()

    b.position_at_end(contend)
    pool = b.inttoptr(pool_word, PTR)
    taken = b.cmpxchg(word(b, pool, _BUSY), const(0), const(1), "acquire", "monotonic")
    b.cbranch(b.extract_value(taken, 1), parallel, serial)

    b.position_at_end(parallel)
    for index, value in ((_CTX, ctx), (_BUFS, bufs), (_ROWS, rows), (_NBLOCKS, nblocks)):
        put(b, pool, index, value)
    atomic(b, "xchg", pool, _NEXT, 0, "monotonic")
    epoch = b.and_(atomic_get(b, pool, _GATE, "monotonic"), const(-_EPOCH_ONE))
    opened = b.or_(b.add(epoch, const(_EPOCH_ONE)), const(_OPEN))
    atomic(b, "xchg", pool, _GATE, opened, "seq_cst")
    sleepers = atomic_get(b, pool, _SLEEPERS, "seq_cst")
    with b.if_then(b.icmp_signed(">", sleepers, const(0))):
        b.call(wake, [pool, sleepers, get(b, ctx, abi.CTX_THREADS), b.sub(nblocks, const(1))])
    b.call(run_shared, [pool, const(0)])
    atomic(b, "and", pool, _GATE, ~_OPEN, "acq_rel")
    spins = variable(b, 0)

    def somebody_inside() -> ir.Value:
        gate = atomic_get(b, pool, _GATE, "acquire")
        return b.icmp_unsigned("!=", b.and_(gate, const(_INSIDE)), const(0))

    with while_loop(b, somebody_inside):
        pause(b, triple)
        add_to(b, spins, 1)
        with b.if_then(b.icmp_signed(">", b.load(spins, typ=I64), const(_CALLER_SPINS))):
            b.call(_extern(module, "sched_yield", I32, []), [])
    atomic(b, "xchg", pool, _BUSY, 0, "release")
    b.ret_void()
    return function


def _emit_run(module: ir.Module, row_blocks: ir.Function, run_wave: ir.Function) -> ir.Function:
    """i32 jg_run(ctx, bufs, table, nrows): the waves in order, stopping at a failed commit."""
    function, b = define(module, "jg_run", I32, [PTR, PTR, PTR, I64], public=True)
    ctx, bufs, table, nrows = function.args
    cell = get_pointer(b, ctx, abi.CTX_ERROR)
    i, j, blocks = variable(b, 0), variable(b, 0), variable(b, 0)

    def row_at(index: ir.Value) -> ir.Value:
        return word(b, table, b.mul(b.load(index, typ=I64), const(abi.ROW_WORDS)))

    def flagged() -> ir.Value:
        # A plain load: between waves no kernel runs, and joining them was an acquire.
        return b.icmp_unsigned("!=", get(b, cell), const(abi.NO_ERROR))

    def in_wave() -> ir.Value:
        """The next row exists, is no commit row, and the row before it did not end the wave."""
        more = b.icmp_signed("<", b.load(j, typ=I64), nrows)
        with b.if_else(more) as (then, otherwise):
            with then:
                row = row_at(j)
                open_wave = b.icmp_signed("==", get(b, row, abi.ROW_LAST - abi.ROW_WORDS), const(0))
                kernel = b.icmp_unsigned("!=", get(b, row, abi.ROW_KERNEL), const(0))
                joined, then_end = b.and_(open_wave, kernel), b.block
            with otherwise:
                otherwise_end = b.block
        phi = b.phi(I1)
        phi.add_incoming(joined, then_end)
        phi.add_incoming(ir.Constant(I1, 0), otherwise_end)
        return phi

    with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), nrows)):
        first = row_at(i)
        commit = b.icmp_unsigned("==", get(b, first, abi.ROW_KERNEL), const(0))
        with b.if_else(commit) as (then, otherwise):
            with then:
                with b.if_then(flagged(), likely=False):
                    b.ret(ir.Constant(I32, 1))
                add_to(b, i, 1)
            with otherwise:
                b.store(b.call(row_blocks, [ctx, first]), blocks)
                b.store(b.add(b.load(i, typ=I64), const(1)), j)
                with while_loop(b, in_wave):
                    add_to(b, blocks, b.call(row_blocks, [ctx, row_at(j)]))
                    add_to(b, j, 1)
                count = b.sub(b.load(j, typ=I64), b.load(i, typ=I64))
                b.call(run_wave, [ctx, bufs, first, count, b.load(blocks, typ=I64)])
                b.store(b.load(j, typ=I64), i)
    b.ret(b.zext(flagged(), I32))
    return function


# --- the pool -------------------------------------------------------------------------------------


def _emit_wake(module: ir.Module) -> ir.Function:
    """void wake(pool, sleepers, limit, useful): signals as many sleepers as can be of use.

    A signal wakes any one sleeper; where some may not take part (limit below the pool's size) it
    could hit the wrong one, so all are woken.
    """
    function, b = define(module, "jg.wake", VOID, [PTR, I64, I64, I64])
    function.attributes.add("noinline")
    pool, sleepers, limit, useful = function.args
    mutex, cond = word(b, pool, _MUTEX), word(b, pool, _COND)
    b.call(_extern(module, "pthread_mutex_lock", I32, [PTR]), [mutex])
    everyone = b.or_(
        b.icmp_signed(">=", useful, sleepers), b.icmp_signed("<", limit, get(b, pool, _NTHREADS))
    )
    with b.if_else(everyone) as (then, otherwise):
        with then:
            b.call(_extern(module, "pthread_cond_broadcast", I32, [PTR]), [cond])
        with otherwise:
            left = variable(b, 0)
            b.store(useful, left)
            with while_loop(b, lambda: b.icmp_signed(">", b.load(left, typ=I64), const(0))):
                b.call(_extern(module, "pthread_cond_signal", I32, [PTR]), [cond])
                add_to(b, left, -1)
    b.call(_extern(module, "pthread_mutex_unlock", I32, [PTR]), [mutex])
    b.ret_void()
    return function


def _emit_worker(module: ir.Module, triple: str, run_shared: ir.Function) -> ir.Function:
    """ptr worker(record): what a thread of the pool does until it is told to stop.

    Activity of any kind, even a wave that was over before this thread could enter it, restarts the
    count of idle looks: the next wave is then likely to be near.
    """
    function, b = define(module, "jg.worker", PTR, [PTR])
    record = function.args[0]
    pool, number = get_pointer(b, record, 0), get(b, record, 1)
    last, spins = variable(b, 0), variable(b, 0)
    look, idle, changed, enter, work, missed, sleep, stop = (
        b.append_basic_block(name)
        for name in ("look", "idle", "changed", "enter", "work", "missed", "sleep", "stop")
    )
    b.branch(look)

    b.position_at_end(look)
    gate = atomic_get(b, pool, _GATE, "acquire")
    epoch = b.and_(gate, const(-_EPOCH_ONE))
    b.cbranch(b.icmp_unsigned("!=", epoch, b.load(last, typ=I64)), changed, idle)

    b.position_at_end(changed)
    is_open = b.icmp_unsigned("!=", b.and_(gate, const(_OPEN)), const(0))
    b.cbranch(is_open, enter, missed)

    b.position_at_end(missed)
    b.store(epoch, last)
    b.store(const(0), spins)
    b.branch(look)

    b.position_at_end(enter)
    entered = b.cmpxchg(word(b, pool, _GATE), gate, b.add(gate, const(1)), "acquire", "monotonic")
    b.cbranch(b.extract_value(entered, 1), work, look)

    b.position_at_end(work)
    b.store(epoch, last)
    b.store(const(0), spins)
    limit = get(b, get_pointer(b, pool, _CTX), abi.CTX_THREADS)
    with b.if_then(b.icmp_signed("<", number, limit)):
        b.call(run_shared, [pool, number])
    atomic(b, "sub", pool, _GATE, 1, "release")
    b.branch(look)

    b.position_at_end(idle)
    stopping = atomic_get(b, pool, _STOP, "acquire")
    with b.if_then(b.icmp_unsigned("!=", stopping, const(0)), likely=False):
        b.branch(stop)
    pause(b, triple)
    add_to(b, spins, 1)
    with b.if_then(b.icmp_signed(">", b.load(spins, typ=I64), const(_WORKER_SPINS))):
        b.call(_extern(module, "sched_yield", I32, []), [])
    b.cbranch(b.icmp_signed("<", b.load(spins, typ=I64), const(_WORKER_LOOKS)), look, sleep)

    b.position_at_end(sleep)
    mutex, cond = word(b, pool, _MUTEX), word(b, pool, _COND)
    b.call(_extern(module, "pthread_mutex_lock", I32, [PTR]), [mutex])
    atomic(b, "add", pool, _SLEEPERS, 1, "seq_cst")

    def nothing_new() -> ir.Value:
        epoch = b.and_(atomic_get(b, pool, _GATE, "seq_cst"), const(-_EPOCH_ONE))
        stopping = atomic_get(b, pool, _STOP, "seq_cst")
        return b.and_(
            b.icmp_unsigned("==", epoch, b.load(last, typ=I64)),
            b.icmp_unsigned("==", stopping, const(0)),
        )

    with while_loop(b, nothing_new):
        b.call(_extern(module, "pthread_cond_wait", I32, [PTR, PTR]), [cond, mutex])
    atomic(b, "sub", pool, _SLEEPERS, 1, "seq_cst")
    b.call(_extern(module, "pthread_mutex_unlock", I32, [PTR]), [mutex])
    b.store(const(0), spins)
    b.branch(look)

    b.position_at_end(stop)
    b.ret(ir.Constant(PTR, None))
    return function


def _emit_pool_create(module: ir.Module, worker: ir.Function) -> None:
    """Starts nthreads - 1 threads, or as many as the system grants; the caller is worker 0."""
    function, b = define(module, "jg_pool_create", PTR, [I64], public=True)
    (nthreads,) = function.args
    null = ir.Constant(PTR, None)
    with b.if_then(b.icmp_signed("<", nthreads, const(2))):
        b.ret(null)
    words = b.add(const(_WORKERS), b.mul(nthreads, const(_WORKER_WORDS)))
    nbytes = b.add(b.mul(words, const(8)), const(128))
    raw = b.call(_extern(module, "malloc", PTR, [I64]), [nbytes])
    with b.if_then(b.icmp_unsigned("==", b.ptrtoint(raw, I64), const(0)), likely=False):
        b.ret(null)
    aligned = b.and_(b.add(b.ptrtoint(raw, I64), const(127)), const(-128))
    pool = b.inttoptr(aligned, PTR)
    i = variable(b, 0)
    with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), words)):
        b.store(const(0), word(b, pool, b.load(i, typ=I64)))
        add_to(b, i, 1)
    put(b, pool, _RAW, raw)
    for name, index in (("pthread_mutex_init", _MUTEX), ("pthread_cond_init", _COND)):
        b.call(_extern(module, name, I32, [PTR, PTR]), [word(b, pool, index), null])

    create = _extern(module, "pthread_create", I32, [PTR, PTR, PTR, PTR])
    number, failed = variable(b, 1), variable(b, 0)

    def more() -> ir.Value:
        return b.and_(
            b.icmp_signed("<", b.load(number, typ=I64), nthreads),
            b.icmp_signed("==", b.load(failed, typ=I64), const(0)),
        )

    with while_loop(b, more):
        me = b.load(number, typ=I64)
        record = word(b, pool, b.add(const(_WORKERS), b.mul(me, const(_WORKER_WORDS))))
        put(b, record, 0, pool)
        put(b, record, 1, me)
        status = b.call(create, [word(b, record, 2), null, worker, record])
        b.store(b.zext(b.icmp_signed("!=", status, ir.Constant(I32, 0)), I64), failed)
        add_to(b, number, b.sub(const(1), b.load(failed, typ=I64)))
    put(b, pool, _NTHREADS, b.load(number, typ=I64))
    b.ret(pool)


def _emit_pool_destroy(module: ir.Module) -> None:
    function, b = define(module, "jg_pool_destroy", VOID, [PTR], public=True)
    (pool,) = function.args
    null = ir.Constant(PTR, None)
    with b.if_then(b.icmp_unsigned("==", b.ptrtoint(pool, I64), const(0))):
        b.ret_void()
    mutex, cond = word(b, pool, _MUTEX), word(b, pool, _COND)
    atomic(b, "xchg", pool, _STOP, 1, "seq_cst")
    b.call(_extern(module, "pthread_mutex_lock", I32, [PTR]), [mutex])
    b.call(_extern(module, "pthread_cond_broadcast", I32, [PTR]), [cond])
    b.call(_extern(module, "pthread_mutex_unlock", I32, [PTR]), [mutex])
    join = _extern(module, "pthread_join", I32, [PTR, PTR])
    number, count = variable(b, 1), get(b, pool, _NTHREADS)
    with while_loop(b, lambda: b.icmp_signed("<", b.load(number, typ=I64), count)):
        offset = b.mul(b.load(number, typ=I64), const(_WORKER_WORDS))
        record = word(b, pool, b.add(const(_WORKERS), offset))
        b.call(join, [get_pointer(b, record, 2), null])
        add_to(b, number, 1)
    b.call(_extern(module, "pthread_cond_destroy", I32, [PTR]), [cond])
    b.call(_extern(module, "pthread_mutex_destroy", I32, [PTR]), [mutex])
    b.call(_extern(module, "free", VOID, [PTR]), [get_pointer(b, pool, _RAW)])
    b.ret_void()


def _emit_no_pool(module: ir.Module) -> None:
    _, b = define(module, "jg_pool_create", PTR, [I64], public=True)
    b.ret(ir.Constant(PTR, None))
    _, b = define(module, "jg_pool_destroy", VOID, [PTR], public=True)
    b.ret_void()
