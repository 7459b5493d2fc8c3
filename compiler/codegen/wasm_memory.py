"""malloc, free and memcpy for WebAssembly modules, which have no C library.

Owns the functions. malloc is first fit over a list of freed blocks, else from the end of the
memory, which grows by pages. A block has 16 bytes before it: its size, and the next free block. It
is made for a few large blocks that live long (instances, a caller's arrays); it is not thread-safe.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.words import (
    I32,
    I64,
    PTR,
    VOID,
    const,
    define,
    get,
    put,
    variable,
    while_loop,
)

_HEADER, _ALIGN, _PAGE = 16, 16, 1 << 16


def emit_allocator(module: ir.Module) -> tuple[ir.Function, ir.Function]:
    """ptr malloc(i64), null when the memory cannot grow, and void free(ptr); both internal. And
    memcpy, which other modules of the program call."""
    _emit_memcpy(module)
    end = _global(module, "jg.heap_end")  # 0: not begun
    freed = _global(module, "jg.freed")
    return _emit_malloc(module, end, freed), _emit_free(module, freed)


def _global(module: ir.Module, name: str) -> ir.GlobalVariable:
    made = ir.GlobalVariable(module, I64, name)
    made.initializer, made.linkage = const(0), "internal"
    return made


def _emit_malloc(
    module: ir.Module, end: ir.GlobalVariable, freed: ir.GlobalVariable
) -> ir.Function:
    function, b = define(module, "jg.malloc", PTR, [I64])
    need = b.and_(b.add(function.args[0], const(_HEADER + _ALIGN - 1)), const(-_ALIGN))
    link = variable(b, b.ptrtoint(freed, I64))  # the word that leads to the block at hand

    def block_now() -> ir.Value:
        return b.load(b.inttoptr(b.load(link, typ=I64), PTR), typ=I64)

    with while_loop(b, lambda: b.icmp_unsigned("!=", block_now(), const(0))):
        at = block_now()
        block = b.inttoptr(at, PTR)
        with b.if_then(b.icmp_unsigned(">=", get(b, block, 0), need)):
            b.store(get(b, block, 1), b.inttoptr(b.load(link, typ=I64), PTR))
            b.ret(b.inttoptr(b.add(at, const(_HEADER)), PTR))
        b.store(b.add(at, const(8)), link)

    base = ir.GlobalVariable(module, ir.IntType(8), "__heap_base")
    with b.if_then(b.icmp_unsigned("==", b.load(end, typ=I64), const(0))):
        first = b.add(b.ptrtoint(base, I64), const(_ALIGN - 1))
        b.store(b.and_(first, const(-_ALIGN)), end)
    start = b.load(end, typ=I64)
    stop = b.add(start, need)
    zero = ir.Constant(I32, 0)
    size = _intrinsic(module, "llvm.wasm.memory.size.i32", [I32])
    have = b.mul(b.zext(b.call(size, [zero]), I64), const(_PAGE))
    with b.if_then(b.icmp_unsigned(">", stop, have)):
        pages = b.udiv(b.add(b.sub(stop, have), const(_PAGE - 1)), const(_PAGE))
        with b.if_then(b.icmp_unsigned(">", stop, const(2**32 - _PAGE))):
            b.ret(ir.Constant(PTR, None))
        grow = _intrinsic(module, "llvm.wasm.memory.grow.i32", [I32, I32])
        before = b.call(grow, [zero, b.trunc(pages, I32)])
        with b.if_then(b.icmp_signed("==", before, ir.Constant(I32, -1))):
            b.ret(ir.Constant(PTR, None))
    b.store(stop, end)
    block = b.inttoptr(start, PTR)
    put(b, block, 0, need)
    b.ret(b.inttoptr(b.add(start, const(_HEADER)), PTR))
    return function


def _emit_memcpy(module: ir.Module) -> None:
    """ptr memcpy(to, from, n): one instruction (memory.copy)."""
    function, b = define(module, "memcpy", PTR, [PTR, PTR, I64], public=True)
    to, source, count = function.args
    copy = ir.Function(
        module, ir.FunctionType(VOID, [PTR, PTR, I64, ir.IntType(1)]), "llvm.memcpy.p0.p0.i64"
    )
    b.call(copy, [to, source, count, ir.Constant(ir.IntType(1), 0)])
    b.ret(to)


def _emit_free(module: ir.Module, freed: ir.GlobalVariable) -> ir.Function:
    function, b = define(module, "jg.free", VOID, [PTR])
    at = b.ptrtoint(function.args[0], I64)
    with b.if_then(b.icmp_unsigned("==", at, const(0))):
        b.ret_void()
    block_at = b.sub(at, const(_HEADER))
    block = b.inttoptr(block_at, PTR)
    put(b, block, 1, b.load(freed, typ=I64))
    b.store(block_at, freed)
    b.ret_void()
    return function


def _intrinsic(module: ir.Module, name: str, params: list[ir.Type]) -> ir.Function:
    return ir.Function(module, ir.FunctionType(I32, params), name)
