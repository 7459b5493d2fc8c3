"""Typed helpers over llvmlite's builder for code whose memory is arrays of i64 words.

Owns the notation in which `pool.py` and `pycall.py` are written: words of an array, atomic words,
local variables, loops. It knows no layout and no ABI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
PTR, VOID = ir.PointerType(), ir.VoidType()


def const(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def define(
    module: ir.Module, name: str, result: ir.Type, params: list[ir.Type], public: bool = False
) -> tuple[ir.Function, ir.IRBuilder]:
    """A new function and a builder at its start; helpers are internal, so they get inlined."""
    function = ir.Function(module, ir.FunctionType(result, params), name)
    function.attributes.add("nounwind")
    if not public:
        function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def word(b: ir.IRBuilder, base: ir.Value, index: int | ir.Value) -> ir.Value:
    """The address of word `index` of an array of i64."""
    index = const(index) if isinstance(index, int) else index
    return b.gep(base, [index], source_etype=I64)


def get(b: ir.IRBuilder, base: ir.Value, index: int | ir.Value = 0) -> ir.Value:
    return b.load(word(b, base, index), typ=I64)


def get_pointer(b: ir.IRBuilder, base: ir.Value, index: int) -> ir.Value:
    return b.inttoptr(get(b, base, index), PTR)


def function_at(b: ir.IRBuilder, word: ir.Value, function_type: ir.FunctionType) -> ir.Value:
    """A callable value from an address; llvmlite takes the type of a call from its callee."""
    return b.inttoptr(word, function_type.as_pointer())


def put(b: ir.IRBuilder, base: ir.Value, index: int, value: ir.Value) -> None:
    if isinstance(value.type, ir.PointerType):
        value = b.ptrtoint(value, I64)
    b.store(value, word(b, base, index))


def atomic_get(b: ir.IRBuilder, base: ir.Value, index: int, order: str) -> ir.Value:
    return b.load_atomic(word(b, base, index), order, 8, typ=I64)


def atomic(
    b: ir.IRBuilder, op: str, base: ir.Value, index: int, value: int | ir.Value, order: str
) -> ir.Value:
    """A read-modify-write; stores are "xchg". Returns the old word."""
    value = const(value) if isinstance(value, int) else value
    return b.atomic_rmw(op, word(b, base, index), value, order)


def minimum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def variable(b: ir.IRBuilder, value: int | ir.Value) -> ir.Value:
    """A local i64 variable; LLVM makes a register of it."""
    with b.goto_entry_block():
        slot = b.alloca(I64)
    b.store(const(value) if isinstance(value, int) else value, slot)
    return slot


def add_to(b: ir.IRBuilder, variable: ir.Value, value: int | ir.Value) -> None:
    value = const(value) if isinstance(value, int) else value
    b.store(b.add(b.load(variable, typ=I64), value), variable)


@contextmanager
def while_loop(b: ir.IRBuilder, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """while (condition()) { the body of the with statement }"""
    test, body, done = (b.append_basic_block(name) for name in ("test", "body", "done"))
    b.branch(test)
    b.position_at_end(test)
    b.cbranch(condition(), body, done)
    b.position_at_end(body)
    yield
    b.branch(test)
    b.position_at_end(done)
