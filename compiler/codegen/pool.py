"""The native half of a launch: `jg_run`, the thread pool, and the entry that Python calls.

Owns the LLVM module that every compiled program needs exactly once: it walks a launch table,
cuts the rows of a wave into blocks and hands the blocks to threads. It does not own kernels
(`codegen/llvm.py`), nor who creates the pool and when (`runtime/threads.py`).

The ABI, in i64 words (named in `runtime/abi.py`); everything that runs compiled code agrees on it:

    kernel        void k(Ctx*, i8** bufs, const i64* args, i64 begin, i64 end, i64 worker)
    Ctx           0 pool (0: run serially)        1 pointer to the error cell
                  2 pointer to symbolic sizes     3 number of threads      4..7 reserved, 0
    error cell    2^63-1, or the smallest site number flagged so far
    launch row    0 kernel (0: a commit row)      1 pointer to args
                  2 total (-s-1: word s of sizes) 3 grain, >= 1
                  4 1 for the last of a wave      5 reserved

    i32 jg_run(Ctx*, i8** bufs, const i64* table, i64 nrows)    1 if an error was flagged
    ptr jg_pool_create(i64 nthreads)                            0 if it cannot, or nthreads < 2
    void jg_pool_destroy(ptr)                                   no wave may be running in it
    PyObject* jg_py_call(self, args, nargs)                     only on request; see _emit_py_call

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

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

_i1, _i32, _i64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_ptr, _void = ir.PointerType(), ir.VoidType()
_KERNEL = ir.FunctionType(_void, [_ptr, _ptr, _ptr, _i64, _i64, _i64])

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

# A worker looks this often for the next wave before it sleeps: some 20 to 50 microseconds, more
# than Python needs between two calls, less than what would be felt as heat.
_WORKER_SPINS = 1000
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
    run = _emit_run(module, row_blocks, run_wave, threads)
    if python:
        _emit_py_call(module, run)
    return module


# --- small helpers over the builder ---------------------------------------------------------------


def _const(value: int) -> ir.Constant:
    return ir.Constant(_i64, value)


def _define(
    module: ir.Module, name: str, result: ir.Type, params: list[ir.Type], public: bool = False
) -> tuple[ir.Function, ir.IRBuilder]:
    """A new function and a builder at its start; helpers are internal, so they get inlined."""
    function = ir.Function(module, ir.FunctionType(result, params), name)
    function.attributes.add("nounwind")
    if not public:
        function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _extern(module: ir.Module, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
    if name not in ALLOWED_SYMBOLS:
        raise ValueError(f"the runtime module may not refer to {name}: not in ALLOWED_SYMBOLS")
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result, params), name)


def _word(b: ir.IRBuilder, base: ir.Value, index: int | ir.Value) -> ir.Value:
    """The address of word `index` of an array of i64."""
    index = _const(index) if isinstance(index, int) else index
    return b.gep(base, [index], source_etype=_i64)


def _get(b: ir.IRBuilder, base: ir.Value, index: int | ir.Value = 0) -> ir.Value:
    return b.load(_word(b, base, index), typ=_i64)


def _get_pointer(b: ir.IRBuilder, base: ir.Value, index: int) -> ir.Value:
    return b.inttoptr(_get(b, base, index), _ptr)


def _function(b: ir.IRBuilder, word: ir.Value, function_type: ir.FunctionType) -> ir.Value:
    """A callable value from an address; llvmlite takes the type of a call from its callee."""
    return b.inttoptr(word, function_type.as_pointer())


def _set(b: ir.IRBuilder, base: ir.Value, index: int, value: ir.Value) -> None:
    if isinstance(value.type, ir.PointerType):
        value = b.ptrtoint(value, _i64)
    b.store(value, _word(b, base, index))


def _atomic_get(b: ir.IRBuilder, base: ir.Value, index: int, order: str) -> ir.Value:
    return b.load_atomic(_word(b, base, index), order, 8, typ=_i64)


def _atomic(
    b: ir.IRBuilder, op: str, base: ir.Value, index: int, value: int | ir.Value, order: str
) -> ir.Value:
    """A read-modify-write; stores are "xchg". Returns the old word."""
    value = _const(value) if isinstance(value, int) else value
    return b.atomic_rmw(op, _word(b, base, index), value, order)


def _min(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def _variable(b: ir.IRBuilder, value: int | ir.Value) -> ir.Value:
    """A local i64 variable; LLVM makes a register of it."""
    with b.goto_entry_block():
        slot = b.alloca(_i64)
    b.store(_const(value) if isinstance(value, int) else value, slot)
    return slot


def _add_to(b: ir.IRBuilder, variable: ir.Value, value: int | ir.Value) -> None:
    value = _const(value) if isinstance(value, int) else value
    b.store(b.add(b.load(variable, typ=_i64), value), variable)


@contextmanager
def _while(b: ir.IRBuilder, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """while (condition()) { the body of the with statement }"""
    test, body, done = (b.append_basic_block(name) for name in ("test", "body", "done"))
    b.branch(test)
    b.position_at_end(test)
    b.cbranch(condition(), body, done)
    b.position_at_end(body)
    yield
    b.branch(test)
    b.position_at_end(done)


def _pause(b: ir.IRBuilder, triple: str) -> None:
    """Tells the processor that this is a wait loop, where it has a way to be told.

    Intrinsics, since inline assembly would need an assembly parser in whoever loads this. On
    AArch64 `yield` does nothing on most cores; `isb` waits about as long as x86's `pause`.
    """
    arch = triple.split("-")[0]
    if arch == "x86_64":
        b.call(_intrinsic(b.module, "llvm.x86.sse2.pause", []), [])
    elif arch in ("aarch64", "arm64"):
        b.call(_intrinsic(b.module, "llvm.aarch64.isb", [_i32]), [ir.Constant(_i32, 15)])


def _intrinsic(module: ir.Module, name: str, params: list[ir.Type]) -> ir.Function:
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(_void, params), name)


# --- rows, blocks, and waves ----------------------------------------------------------------------


def _emit_row_total(module: ir.Module) -> ir.Function:
    """i64 row_total(ctx, row): the row's number of items, read from the sizes if symbolic."""
    function, b = _define(module, "jg.row_total", _i64, [_ptr, _ptr])
    ctx, row = function.args
    total = _get(b, row, abi.ROW_TOTAL)
    with b.if_then(b.icmp_signed("<", total, _const(0)), likely=False):
        b.ret(_get(b, _get_pointer(b, ctx, abi.CTX_SIZES), b.not_(total)))
    b.ret(total)
    return function


def _emit_row_blocks(module: ir.Module, row_total: ir.Function) -> ir.Function:
    """i64 row_blocks(ctx, row) = ceil(total / grain)."""
    function, b = _define(module, "jg.row_blocks", _i64, [_ptr, _ptr])
    total, grain = b.call(row_total, function.args), _get(b, function.args[1], abi.ROW_GRAIN)
    with b.if_then(b.icmp_signed("<=", total, grain), likely=True):
        b.ret(b.zext(b.icmp_signed(">", total, _const(0)), _i64))
    b.ret(b.add(b.udiv(b.sub(total, _const(1)), grain), _const(1)))
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
    end = _min(b, b.add(begin, _get(b, row, abi.ROW_GRAIN)), total)
    kernel = _function(b, _get(b, row, abi.ROW_KERNEL), _KERNEL)
    args = _get_pointer(b, row, abi.ROW_ARGS)
    call = b.call(kernel, [ctx, bufs, args, begin, end, worker])
    call.attributes.add("nounwind")
    return end


def _emit_run_serial(module: ir.Module, row_total: ir.Function) -> ir.Function:
    """void run_serial(ctx, bufs, rows, nrows, nblocks): a wave, block by block, on the caller."""
    function, b = _define(module, "jg.run_serial", _void, [_ptr, _ptr, _ptr, _i64, _i64])
    ctx, bufs, rows, nrows, _ = function.args
    i, begin = _variable(b, 0), _variable(b, 0)
    with _while(b, lambda: b.icmp_signed("<", b.load(i, typ=_i64), nrows)):
        row = _word(b, rows, b.mul(b.load(i, typ=_i64), _const(abi.ROW_WORDS)))
        total = b.call(row_total, [ctx, row])
        b.store(_const(0), begin)
        with _while(b, lambda: b.icmp_signed("<", b.load(begin, typ=_i64), total)):
            start = b.load(begin, typ=_i64)
            b.store(_call_kernel(b, ctx, bufs, row, start, total, _const(0)), begin)
        _add_to(b, i, 1)
    b.ret_void()
    return function


def _emit_run_shared(
    module: ir.Module, row_total: ir.Function, row_blocks: ir.Function
) -> ir.Function:
    """void run_shared(pool, worker): takes blocks of the pool's job until there are none.

    The block numbers that one thread draws only grow, so it walks the rows once.
    """
    function, b = _define(module, "jg.run_shared", _void, [_ptr, _i64])
    pool, worker = function.args
    ctx, bufs = _get_pointer(b, pool, _CTX), _get_pointer(b, pool, _BUFS)
    rows, nblocks = _get_pointer(b, pool, _ROWS), _get(b, pool, _NBLOCKS)
    at, first = _variable(b, 0), _variable(b, 0)  # the row's first word, its first block
    count = _variable(b, b.call(row_blocks, [ctx, rows]))
    block = _variable(b, 0)

    def draw() -> ir.Value:
        b.store(_atomic(b, "add", pool, _NEXT, 1, "monotonic"), block)
        return b.icmp_signed("<", b.load(block, typ=_i64), nblocks)

    def past_row() -> ir.Value:
        end = b.add(b.load(first, typ=_i64), b.load(count, typ=_i64))
        return b.icmp_signed(">=", b.load(block, typ=_i64), end)

    with _while(b, draw):
        with _while(b, past_row):
            _add_to(b, first, b.load(count, typ=_i64))
            _add_to(b, at, abi.ROW_WORDS)
            row = _word(b, rows, b.load(at, typ=_i64))
            b.store(b.call(row_blocks, [ctx, row]), count)
        row = _word(b, rows, b.load(at, typ=_i64))
        total = b.call(row_total, [ctx, row])
        index = b.sub(b.load(block, typ=_i64), b.load(first, typ=_i64))
        _call_kernel(b, ctx, bufs, row, b.mul(index, _get(b, row, abi.ROW_GRAIN)), total, worker)
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
    function, b = _define(module, "jg.run_wave", _void, [_ptr, _ptr, _ptr, _i64, _i64])
    ctx, bufs, rows, _, nblocks = function.args
    serial, contend = b.append_basic_block("serial"), b.append_basic_block("contend")
    parallel = b.append_basic_block("parallel")

    pool_word = _get(b, ctx, abi.CTX_POOL)
    wanted = b.and_(
        b.icmp_unsigned("!=", pool_word, _const(0)),
        b.and_(
            b.icmp_signed(">", nblocks, _const(1)),
            b.icmp_signed(">", _get(b, ctx, abi.CTX_THREADS), _const(1)),
        ),
    )
    b.cbranch(wanted, contend, serial)

    b.position_at_end(serial)
    b.call(run_serial, function.args)
    b.ret_void()

    b.position_at_end(contend)
    pool = b.inttoptr(pool_word, _ptr)
    taken = b.cmpxchg(_word(b, pool, _BUSY), _const(0), _const(1), "acquire", "monotonic")
    b.cbranch(b.extract_value(taken, 1), parallel, serial)

    b.position_at_end(parallel)
    for index, value in ((_CTX, ctx), (_BUFS, bufs), (_ROWS, rows), (_NBLOCKS, nblocks)):
        _set(b, pool, index, value)
    _atomic(b, "xchg", pool, _NEXT, 0, "monotonic")
    epoch = b.and_(_atomic_get(b, pool, _GATE, "monotonic"), _const(-_EPOCH_ONE))
    opened = b.or_(b.add(epoch, _const(_EPOCH_ONE)), _const(_OPEN))
    _atomic(b, "xchg", pool, _GATE, opened, "seq_cst")
    sleepers = _atomic_get(b, pool, _SLEEPERS, "seq_cst")
    with b.if_then(b.icmp_signed(">", sleepers, _const(0))):
        b.call(wake, [pool, sleepers, _get(b, ctx, abi.CTX_THREADS), b.sub(nblocks, _const(1))])
    b.call(run_shared, [pool, _const(0)])
    _atomic(b, "and", pool, _GATE, ~_OPEN, "acq_rel")
    spins = _variable(b, 0)

    def somebody_inside() -> ir.Value:
        gate = _atomic_get(b, pool, _GATE, "acquire")
        return b.icmp_unsigned("!=", b.and_(gate, _const(_INSIDE)), _const(0))

    with _while(b, somebody_inside):
        _pause(b, triple)
        _add_to(b, spins, 1)
        with b.if_then(b.icmp_signed(">", b.load(spins, typ=_i64), _const(_CALLER_SPINS))):
            b.call(_extern(module, "sched_yield", _i32, []), [])
    _atomic(b, "xchg", pool, _BUSY, 0, "release")
    b.ret_void()
    return function


def _emit_run(
    module: ir.Module, row_blocks: ir.Function, run_wave: ir.Function, threads: bool
) -> ir.Function:
    """i32 jg_run(ctx, bufs, table, nrows): the waves in order, stopping at a failed commit."""
    function, b = _define(module, "jg_run", _i32, [_ptr, _ptr, _ptr, _i64], public=True)
    ctx, bufs, table, nrows = function.args
    cell = _get_pointer(b, ctx, abi.CTX_ERROR)
    i, j, blocks = _variable(b, 0), _variable(b, 0), _variable(b, 0)

    def row_at(index: ir.Value) -> ir.Value:
        return _word(b, table, b.mul(b.load(index, typ=_i64), _const(abi.ROW_WORDS)))

    def flagged() -> ir.Value:
        value = _atomic_get(b, cell, 0, "monotonic")
        return b.icmp_unsigned("!=", value, _const(abi.NO_ERROR))

    def in_wave() -> ir.Value:
        """The next row exists, is no commit row, and the row before it did not end the wave."""
        more = b.icmp_signed("<", b.load(j, typ=_i64), nrows)
        with b.if_else(more) as (then, otherwise):
            with then:
                row = row_at(j)
                open_wave = b.icmp_signed(
                    "==", _get(b, row, abi.ROW_LAST - abi.ROW_WORDS), _const(0)
                )
                kernel = b.icmp_unsigned("!=", _get(b, row, abi.ROW_KERNEL), _const(0))
                joined, then_end = b.and_(open_wave, kernel), b.block
            with otherwise:
                otherwise_end = b.block
        phi = b.phi(_i1)
        phi.add_incoming(joined, then_end)
        phi.add_incoming(ir.Constant(_i1, 0), otherwise_end)
        return phi

    with _while(b, lambda: b.icmp_signed("<", b.load(i, typ=_i64), nrows)):
        first = row_at(i)
        commit = b.icmp_unsigned("==", _get(b, first, abi.ROW_KERNEL), _const(0))
        with b.if_else(commit) as (then, otherwise):
            with then:
                with b.if_then(flagged(), likely=False):
                    b.ret(ir.Constant(_i32, 1))
                _add_to(b, i, 1)
            with otherwise:
                b.store(b.call(row_blocks, [ctx, first]), blocks)
                b.store(b.add(b.load(i, typ=_i64), _const(1)), j)
                with _while(b, in_wave):
                    _add_to(b, blocks, b.call(row_blocks, [ctx, row_at(j)]))
                    _add_to(b, j, 1)
                count = b.sub(b.load(j, typ=_i64), b.load(i, typ=_i64))
                b.call(run_wave, [ctx, bufs, first, count, b.load(blocks, typ=_i64)])
                b.store(b.load(j, typ=_i64), i)
    b.ret(b.zext(flagged(), _i32))
    return function


# --- the pool -------------------------------------------------------------------------------------


def _emit_wake(module: ir.Module) -> ir.Function:
    """void wake(pool, sleepers, limit, useful): signals as many sleepers as can be of use.

    A signal wakes any one sleeper; where some may not take part (limit below the pool's size) it
    could hit the wrong one, so all are woken.
    """
    function, b = _define(module, "jg.wake", _void, [_ptr, _i64, _i64, _i64])
    function.attributes.add("noinline")
    pool, sleepers, limit, useful = function.args
    mutex, cond = _word(b, pool, _MUTEX), _word(b, pool, _COND)
    b.call(_extern(module, "pthread_mutex_lock", _i32, [_ptr]), [mutex])
    everyone = b.or_(
        b.icmp_signed(">=", useful, sleepers), b.icmp_signed("<", limit, _get(b, pool, _NTHREADS))
    )
    with b.if_else(everyone) as (then, otherwise):
        with then:
            b.call(_extern(module, "pthread_cond_broadcast", _i32, [_ptr]), [cond])
        with otherwise:
            left = _variable(b, 0)
            b.store(useful, left)
            with _while(b, lambda: b.icmp_signed(">", b.load(left, typ=_i64), _const(0))):
                b.call(_extern(module, "pthread_cond_signal", _i32, [_ptr]), [cond])
                _add_to(b, left, -1)
    b.call(_extern(module, "pthread_mutex_unlock", _i32, [_ptr]), [mutex])
    b.ret_void()
    return function


def _emit_worker(module: ir.Module, triple: str, run_shared: ir.Function) -> ir.Function:
    """ptr worker(record): what a thread of the pool does until it is told to stop.

    Activity of any kind, even a wave that was over before this thread could enter it, restarts the
    count of idle looks: the next wave is then likely to be near.
    """
    function, b = _define(module, "jg.worker", _ptr, [_ptr])
    record = function.args[0]
    pool, number = _get_pointer(b, record, 0), _get(b, record, 1)
    last, spins = _variable(b, 0), _variable(b, 0)
    look, idle, changed, enter, work, missed, sleep, stop = (
        b.append_basic_block(name)
        for name in ("look", "idle", "changed", "enter", "work", "missed", "sleep", "stop")
    )
    b.branch(look)

    b.position_at_end(look)
    gate = _atomic_get(b, pool, _GATE, "acquire")
    epoch = b.and_(gate, _const(-_EPOCH_ONE))
    b.cbranch(b.icmp_unsigned("!=", epoch, b.load(last, typ=_i64)), changed, idle)

    b.position_at_end(changed)
    is_open = b.icmp_unsigned("!=", b.and_(gate, _const(_OPEN)), _const(0))
    b.cbranch(is_open, enter, missed)

    b.position_at_end(missed)
    b.store(epoch, last)
    b.store(_const(0), spins)
    b.branch(look)

    b.position_at_end(enter)
    entered = b.cmpxchg(_word(b, pool, _GATE), gate, b.add(gate, _const(1)), "acquire", "monotonic")
    b.cbranch(b.extract_value(entered, 1), work, look)

    b.position_at_end(work)
    b.store(epoch, last)
    b.store(_const(0), spins)
    limit = _get(b, _get_pointer(b, pool, _CTX), abi.CTX_THREADS)
    with b.if_then(b.icmp_signed("<", number, limit)):
        b.call(run_shared, [pool, number])
    _atomic(b, "sub", pool, _GATE, 1, "release")
    b.branch(look)

    b.position_at_end(idle)
    stopping = _atomic_get(b, pool, _STOP, "acquire")
    with b.if_then(b.icmp_unsigned("!=", stopping, _const(0)), likely=False):
        b.branch(stop)
    _pause(b, triple)
    _add_to(b, spins, 1)
    b.cbranch(b.icmp_signed("<", b.load(spins, typ=_i64), _const(_WORKER_SPINS)), look, sleep)

    b.position_at_end(sleep)
    mutex, cond = _word(b, pool, _MUTEX), _word(b, pool, _COND)
    b.call(_extern(module, "pthread_mutex_lock", _i32, [_ptr]), [mutex])
    _atomic(b, "add", pool, _SLEEPERS, 1, "seq_cst")

    def nothing_new() -> ir.Value:
        epoch = b.and_(_atomic_get(b, pool, _GATE, "seq_cst"), _const(-_EPOCH_ONE))
        stopping = _atomic_get(b, pool, _STOP, "seq_cst")
        return b.and_(
            b.icmp_unsigned("==", epoch, b.load(last, typ=_i64)),
            b.icmp_unsigned("==", stopping, _const(0)),
        )

    with _while(b, nothing_new):
        b.call(_extern(module, "pthread_cond_wait", _i32, [_ptr, _ptr]), [cond, mutex])
    _atomic(b, "sub", pool, _SLEEPERS, 1, "seq_cst")
    b.call(_extern(module, "pthread_mutex_unlock", _i32, [_ptr]), [mutex])
    b.store(_const(0), spins)
    b.branch(look)

    b.position_at_end(stop)
    b.ret(ir.Constant(_ptr, None))
    return function


def _emit_pool_create(module: ir.Module, worker: ir.Function) -> None:
    """Starts nthreads - 1 threads, or as many as the system grants; the caller is worker 0."""
    function, b = _define(module, "jg_pool_create", _ptr, [_i64], public=True)
    (nthreads,) = function.args
    null = ir.Constant(_ptr, None)
    with b.if_then(b.icmp_signed("<", nthreads, _const(2))):
        b.ret(null)
    words = b.add(_const(_WORKERS), b.mul(nthreads, _const(_WORKER_WORDS)))
    nbytes = b.add(b.mul(words, _const(8)), _const(128))
    raw = b.call(_extern(module, "malloc", _ptr, [_i64]), [nbytes])
    with b.if_then(b.icmp_unsigned("==", b.ptrtoint(raw, _i64), _const(0)), likely=False):
        b.ret(null)
    aligned = b.and_(b.add(b.ptrtoint(raw, _i64), _const(127)), _const(-128))
    pool = b.inttoptr(aligned, _ptr)
    i = _variable(b, 0)
    with _while(b, lambda: b.icmp_signed("<", b.load(i, typ=_i64), words)):
        b.store(_const(0), _word(b, pool, b.load(i, typ=_i64)))
        _add_to(b, i, 1)
    _set(b, pool, _RAW, raw)
    for name, index in (("pthread_mutex_init", _MUTEX), ("pthread_cond_init", _COND)):
        b.call(_extern(module, name, _i32, [_ptr, _ptr]), [_word(b, pool, index), null])

    create = _extern(module, "pthread_create", _i32, [_ptr, _ptr, _ptr, _ptr])
    number, failed = _variable(b, 1), _variable(b, 0)

    def more() -> ir.Value:
        return b.and_(
            b.icmp_signed("<", b.load(number, typ=_i64), nthreads),
            b.icmp_signed("==", b.load(failed, typ=_i64), _const(0)),
        )

    with _while(b, more):
        me = b.load(number, typ=_i64)
        record = _word(b, pool, b.add(_const(_WORKERS), b.mul(me, _const(_WORKER_WORDS))))
        _set(b, record, 0, pool)
        _set(b, record, 1, me)
        status = b.call(create, [_word(b, record, 2), null, worker, record])
        b.store(b.zext(b.icmp_signed("!=", status, ir.Constant(_i32, 0)), _i64), failed)
        _add_to(b, number, b.sub(_const(1), b.load(failed, typ=_i64)))
    _set(b, pool, _NTHREADS, b.load(number, typ=_i64))
    b.ret(pool)


def _emit_pool_destroy(module: ir.Module) -> None:
    function, b = _define(module, "jg_pool_destroy", _void, [_ptr], public=True)
    (pool,) = function.args
    null = ir.Constant(_ptr, None)
    with b.if_then(b.icmp_unsigned("==", b.ptrtoint(pool, _i64), _const(0))):
        b.ret_void()
    mutex, cond = _word(b, pool, _MUTEX), _word(b, pool, _COND)
    _atomic(b, "xchg", pool, _STOP, 1, "seq_cst")
    b.call(_extern(module, "pthread_mutex_lock", _i32, [_ptr]), [mutex])
    b.call(_extern(module, "pthread_cond_broadcast", _i32, [_ptr]), [cond])
    b.call(_extern(module, "pthread_mutex_unlock", _i32, [_ptr]), [mutex])
    join = _extern(module, "pthread_join", _i32, [_ptr, _ptr])
    number, count = _variable(b, 1), _get(b, pool, _NTHREADS)
    with _while(b, lambda: b.icmp_signed("<", b.load(number, typ=_i64), count)):
        offset = b.mul(b.load(number, typ=_i64), _const(_WORKER_WORDS))
        record = _word(b, pool, b.add(_const(_WORKERS), offset))
        b.call(join, [_get_pointer(b, record, 2), null])
        _add_to(b, number, 1)
    b.call(_extern(module, "pthread_cond_destroy", _i32, [_ptr]), [cond])
    b.call(_extern(module, "pthread_mutex_destroy", _i32, [_ptr]), [mutex])
    b.call(_extern(module, "free", _void, [_ptr]), [_get_pointer(b, pool, _RAW)])
    b.ret_void()


def _emit_no_pool(module: ir.Module) -> None:
    _, b = _define(module, "jg_pool_create", _ptr, [_i64], public=True)
    b.ret(ir.Constant(_ptr, None))
    _, b = _define(module, "jg_pool_destroy", _void, [_ptr], public=True)
    b.ret_void()


# --- the entry for CPython ------------------------------------------------------------------------


def _emit_py_call(module: ir.Module, run: ir.Function) -> None:
    """PyObject* jg_py_call(self, args, nargs): stores the arrays' data pointers and runs.

    A METH_FASTCALL function: CPython enters it in some 50 ns, ctypes needs ten times that.
    `self` is an int64 ndarray of the CALL_ words; args[i] becomes bufs[i]. Returns a Python int:
    the result of jg_run, or -1 if the number or the type of the arguments is not what was
    announced (exact ndarrays: a subclass may do as it likes), and nothing ran.

    It names no symbol of Python: what it calls comes in words CALL_SAVE (PyEval_SaveThread, or 0:
    keep the GIL), CALL_RESTORE and CALL_FROM_LONG (PyLong_FromLong). It knows where CPython has an
    object's type and NumPy an array's data pointer; `runtime/threads.py` checks both beforehand.
    """
    function, b = _define(module, "jg_py_call", _ptr, [_ptr, _ptr, _i64], public=True)
    this, args, nargs = function.args
    save_type = ir.FunctionType(_ptr, [])
    from_long = ir.FunctionType(_ptr, [_i64])
    restore_type = ir.FunctionType(_void, [_ptr])
    refuse = b.append_basic_block("refuse")
    go = b.append_basic_block("go")

    def field(obj: ir.Value, offset: int) -> ir.Value:
        return b.load(b.gep(obj, [_const(offset)], source_etype=ir.IntType(8)), typ=_i64)

    words = b.inttoptr(field(this, abi.PY_DATA_OFFSET), _ptr)
    bufs = _get_pointer(b, words, abi.CALL_BUFS)
    array_type = _get(b, words, abi.CALL_TYPE)
    with b.if_then(b.icmp_signed("!=", nargs, _get(b, words, abi.CALL_NARGS)), likely=False):
        b.branch(refuse)
    i = _variable(b, 0)
    with _while(b, lambda: b.icmp_signed("<", b.load(i, typ=_i64), nargs)):
        obj = b.inttoptr(_get(b, args, b.load(i, typ=_i64)), _ptr)
        exact = b.icmp_unsigned("==", field(obj, abi.PY_TYPE_OFFSET), array_type)
        with b.if_then(b.not_(exact), likely=False):
            b.branch(refuse)
        b.store(field(obj, abi.PY_DATA_OFFSET), _word(b, bufs, b.load(i, typ=_i64)))
        _add_to(b, i, 1)
    b.branch(go)

    b.position_at_end(refuse)
    answer = _function(b, _get(b, words, abi.CALL_FROM_LONG), from_long)
    b.ret(b.call(answer, [_const(-1)]))

    b.position_at_end(go)
    save = _get(b, words, abi.CALL_SAVE)
    run_args = [
        _get_pointer(b, words, abi.CALL_CTX),
        bufs,
        _get_pointer(b, words, abi.CALL_TABLE),
        _get(b, words, abi.CALL_NROWS),
    ]
    result = _variable(b, 0)
    with b.if_else(b.icmp_unsigned("!=", save, _const(0))) as (then, otherwise):
        with then:
            state = b.call(_function(b, save, save_type), [])
            b.store(b.zext(b.call(run, run_args), _i64), result)
            b.call(_function(b, _get(b, words, abi.CALL_RESTORE), restore_type), [state])
        with otherwise:
            b.store(b.zext(b.call(run, run_args), _i64), result)
    answer = _function(b, _get(b, words, abi.CALL_FROM_LONG), from_long)
    b.ret(b.call(answer, [b.load(result, typ=_i64)]))
