"""Control flow at run time: `jg_loop` and `jg_branch`, kernels that run rows of the launch table.

A loop is a row of the table like any other, a wave of its own with one block, so the caller's
thread runs it; it sets the slots that change from step to step and has `jg_run` (pool.py) do the
rows of the body, which stand behind the rows of the program in the same table (Ctx word 4). Loops
nest, and the kernels of a body use the pool as ever. Owns these two functions; who makes their
arguments is compiler/launch_rows.py.

    jg_branch   0 slot of pred   1, 2 first row and rows if true   3, 4 if false
    jg_loop     0 steps at most   1 whether from the last slice to the first
                2, 3, 4 first row and rows of the test (0: none), slot of its answer
                5, 6 first row and rows of the body
                7 number of slices   8 number of carries
                then for each slice: its slot, the slot of the whole array, bytes of a slice
                and for each carry: slots of its first and last value, slots that the body reads and
                writes, slots of two buffers of its own, bytes

Steps and bytes may be symbolic: -s-1 is the size s. The test runs before each step. A fault ends
the loop; the program then ends at its commit row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import llvmlite.ir as ir

from jitgrad.compiler.codegen.words import (
    I32,
    I64,
    PTR,
    VOID,
    add_to,
    const,
    define,
    get,
    get_pointer,
    put,
    variable,
    while_loop,
    word,
)
from jitgrad.runtime import abi

STEPS, REVERSE, TEST, TEST_ROWS, ANSWER, BODY, BODY_ROWS, SLICES, CARRIES, HEAD = range(10)
SLICE_WORDS, CARRY_WORDS = 3, 7


def emit_drivers(module: ir.Module, run: ir.Function, copy: ir.Function) -> None:
    """Adds both to the module that has jg_run. copy: memcpy."""
    _emit_branch(module, run)
    _emit_loop(module, run, copy)


def _driver(module: ir.Module, name: str) -> tuple[ir.IRBuilder, Sequence[ir.Value]]:
    function, b = define(module, name, VOID, [PTR, PTR, PTR, I64, I64, I64], public=True)
    return b, function.args[:3]


class _Rows:
    """Runs of rows of the launch table."""

    def __init__(self, b: ir.IRBuilder, ctx: ir.Value, bufs: ir.Value, run: ir.Function) -> None:
        self.b, self.ctx, self.bufs, self.run = b, ctx, bufs, run
        self.table = get_pointer(b, ctx, abi.CTX_TABLE)

    def go(self, first: ir.Value, count: ir.Value) -> ir.Value:
        """Runs them; whether an error was flagged."""
        start = word(self.b, self.table, self.b.mul(first, const(abi.ROW_WORDS)))
        flagged = self.b.call(self.run, [self.ctx, self.bufs, start, count])
        return self.b.icmp_signed("!=", flagged, ir.Constant(I32, 0))


def _truth(b: ir.IRBuilder, bufs: ir.Value, slot: ir.Value) -> ir.Value:
    byte = b.load(b.inttoptr(get(b, bufs, slot), PTR), typ=ir.IntType(8))
    return b.icmp_unsigned("!=", byte, ir.Constant(ir.IntType(8), 0))


def _emit_branch(module: ir.Module, run: ir.Function) -> None:
    b, (ctx, bufs, args) = _driver(module, "jg_branch")
    yes = _truth(b, bufs, get(b, args, 0))
    first = b.select(yes, get(b, args, 1), get(b, args, 3))
    count = b.select(yes, get(b, args, 2), get(b, args, 4))
    _Rows(b, ctx, bufs, run).go(first, count)
    b.ret_void()


def _emit_loop(module: ir.Module, run: ir.Function, copy: ir.Function) -> None:
    b, (ctx, bufs, args) = _driver(module, "jg_loop")
    rows = _Rows(b, ctx, bufs, run)
    test_rows = get(b, args, TEST_ROWS)
    sizes = get_pointer(b, ctx, abi.CTX_SIZES)
    found = variable(b, 0)

    def known(number: ir.Value) -> ir.Value:
        """A number that may be a symbolic size."""
        b.store(number, found)
        with b.if_then(b.icmp_signed("<", number, const(0))):
            b.store(get(b, sizes, b.sub(const(-1), number)), found)
        return b.load(found, typ=I64)

    steps = known(get(b, args, STEPS))
    n_slices, n_carries = get(b, args, SLICES), get(b, args, CARRIES)
    slices = word(b, args, HEAD)
    carries = word(b, slices, b.mul(n_slices, const(SLICE_WORDS)))
    done = b.append_basic_block("finished")
    step = variable(b, 0)

    def now() -> ir.Value:
        return b.load(step, typ=I64)

    @contextmanager
    def each(base: ir.Value, count: ir.Value, words: int) -> Iterator[Callable[[int], ir.Value]]:
        """Loops over records of `words` words; gives the words of one by their numbers."""
        i = variable(b, 0)
        with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), count)):
            start = b.mul(b.load(i, typ=I64), const(words))
            yield lambda k: get(b, base, b.add(start, const(k)))
            add_to(b, i, 1)

    def move(to: ir.Value, source: ir.Value) -> None:
        put(b, bufs, to, get(b, bufs, source))

    with each(carries, n_carries, CARRY_WORDS) as carry:
        move(carry(2), carry(0))

    with while_loop(b, lambda: b.icmp_signed("<", now(), steps)):
        with b.if_then(b.icmp_signed(">", test_rows, const(0))):
            with b.if_then(rows.go(get(b, args, TEST), test_rows), likely=False):
                b.ret_void()
            with b.if_then(b.not_(_truth(b, bufs, get(b, args, ANSWER)))):
                b.branch(done)
        backwards = b.icmp_signed("!=", get(b, args, REVERSE), const(0))
        at = b.select(backwards, b.sub(b.sub(steps, const(1)), now()), now())
        with each(slices, n_slices, SLICE_WORDS) as part:
            put(b, bufs, part(0), b.add(get(b, bufs, part(1)), b.mul(at, known(part(2)))))
        odd = b.icmp_signed("!=", b.and_(now(), const(1)), const(0))
        with each(carries, n_carries, CARRY_WORDS) as carry:
            move(carry(3), b.select(odd, carry(5), carry(4)))
        with b.if_then(rows.go(get(b, args, BODY), get(b, args, BODY_ROWS)), likely=False):
            b.ret_void()
        with each(carries, n_carries, CARRY_WORDS) as carry:
            move(carry(2), carry(3))
        add_to(b, step, 1)
    b.branch(done)

    b.position_at_end(done)
    with each(carries, n_carries, CARRY_WORDS) as carry:
        to, source = get(b, bufs, carry(1)), get(b, bufs, carry(2))
        b.call(copy, [b.inttoptr(to, PTR), b.inttoptr(source, PTR), known(carry(6))])
    b.ret_void()
