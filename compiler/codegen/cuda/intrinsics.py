"""Instructions that Numba has no Python for: wide loads and stores, atomics, tensor cores.

Owns the LLVM code of them; `device.py` has the functions that kernels call, and `simulated.py` what
stands for them in the simulator. It imports numba, so it is imported with the first kernel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


@intrinsic
def is_aligned(typing: Any, x: Any) -> Any:
    """Whether an address is a multiple of 16."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        low = b.and_(b.ptrtoint(args[0], _I64), _I64(15))
        return b.icmp_unsigned("==", low, _I64(0))

    return types.boolean(x), code


def _vector(element: Any, count: int) -> tuple[Any, Any]:
    """The vector of elements, and what memory holds: words of 32 bits where elements are smaller,
    since NVVM moves vectors of small elements in parts."""
    bits = {ir.HalfType(): 16, ir.FloatType(): 32, ir.DoubleType(): 64}.get(element)
    bits = element.width if bits is None else bits
    vector = ir.VectorType(element, count)
    if bits >= 32:
        return vector, vector
    words = bits * count // 32
    return vector, ir.VectorType(_I32, words) if words > 1 else _I32


def wide_load(count: int) -> Any:
    """x[at], ..., x[at + count - 1], of `count` neighbours at an aligned place, by one load."""

    @intrinsic
    def load(typing: Any, x: Any, at: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            vector, held = _vector(context.get_data_type(x.dtype), count)
            place = b.bitcast(b.gep(args[0], [args[1]]), held.as_pointer())
            found = b.load(place)
            found.align = _bytes(held)
            found = b.bitcast(found, vector)
            parts = [b.extract_element(found, _I32(k)) for k in range(count)]
            return context.make_tuple(b, signature.return_type, parts)

        return types.UniTuple(x.dtype, count)(x, types.int64), code

    return load


def load_each(count: int) -> Any:
    """The same by a load for each."""

    @intrinsic
    def load(typing: Any, x: Any, at: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            places = [b.gep(args[0], [b.add(args[1], _I64(k))]) for k in range(count)]
            parts = [b.load(place) for place in places]
            return context.make_tuple(b, signature.return_type, parts)

        return types.UniTuple(x.dtype, count)(x, types.int64), code

    return load


def wide_store(count: int) -> Any:
    """x[at], ..., x[at + count - 1] = values, a tuple."""

    @intrinsic
    def store(typing: Any, x: Any, at: Any, values: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            vector, held = _vector(context.get_data_type(x.dtype), count)
            whole = ir.Constant(vector, ir.Undefined)
            for k in range(count):
                whole = b.insert_element(whole, b.extract_value(args[2], k), _I32(k))
            place = b.bitcast(b.gep(args[0], [args[1]]), held.as_pointer())
            b.store(b.bitcast(whole, held), place).align = _bytes(held)
            return context.get_dummy_value()

        return types.void(x, types.int64, types.UniTuple(x.dtype, count)), code

    return store


def _bytes(held: Any) -> int:
    if not isinstance(held, ir.VectorType):
        return 4
    size = 8 if held.element in (ir.DoubleType(), _I64) else 4
    return size * held.count


def atomic(operation: str) -> Any:
    """x[at] = operation(x[at], value), whole; operation is LLVM's for signed integers."""

    @intrinsic
    def update(typing: Any, x: Any, at: Any, value: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            name = operation if x.dtype.signed or operation == "add" else f"u{operation}"
            b.atomic_rmw(name, b.gep(args[0], [args[1]]), args[2], "monotonic")
            return context.get_dummy_value()

        return types.void(x, types.int64, x.dtype), code

    return update


@intrinsic
def pair(typing: Any, x: Any, at: Any) -> Any:
    """The 32 bits at x[at] and x[at + 1], of two halves' bits; `at` is even."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        place = b.gep(context.make_array(x)(context, b, args[0]).data, [args[1]])
        found = b.load(b.bitcast(place, _I32.as_pointer(place.type.addrspace)))
        found.align = 4
        return found

    return types.uint32(x, types.int64), code


def shared_load(count: int) -> Any:
    """`count` neighbours in shared memory that begin at an aligned place, by one load."""

    @intrinsic
    def load(typing: Any, x: Any, at: Any) -> Any:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            vector, _ = _vector(context.get_data_type(x.dtype), count)
            place = b.gep(context.make_array(x)(context, b, args[0]).data, [args[1]])
            found = b.load(b.bitcast(place, vector.as_pointer(place.type.addrspace)))
            found.align = _bytes(vector)
            parts = [b.extract_element(found, _I32(k)) for k in range(count)]
            return context.make_tuple(b, signature.return_type, parts)

        return types.UniTuple(x.dtype, count)(x, types.int64), code

    return load


@intrinsic
def copy_async(typing: Any, tile: Any, place: Any, x: Any, at: Any) -> Any:
    """tile[place], in shared memory, becomes the 32 bits of x[at], once `copies_done` was called
    (PTX ISA, "cp.async")."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        here = b.gep(context.make_array(tile)(context, b, args[0]).data, [args[1]])
        if here.type.addrspace != 3:
            here = b.addrspacecast(here, here.type.pointee.as_pointer(3))
        there = b.addrspacecast(b.gep(args[2], [args[3]]), _F32.as_pointer(1))
        asm = ir.InlineAsm(
            ir.FunctionType(ir.VoidType(), [_I32, _I64]),
            "cp.async.ca.shared.global [$0], [$1], 4;", "r,l,~{memory}", side_effect=True,
        )  # fmt: skip
        b.call(asm, [b.ptrtoint(here, _I32), b.ptrtoint(there, _I64)])
        return context.get_dummy_value()

    return types.void(tile, types.int64, x, types.int64), code


@intrinsic
def copies_done(typing: Any) -> Any:
    """Waits for the thread's own asynchronous copies."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        b.call(ir.InlineAsm(kind, "cp.async.wait_all;", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), code


def tensor_core(kind: str) -> Any:
    """mma.sync.m16n8k16 (PTX ISA, "Warp-level matrix instructions"): the new c0 to c3 of
    c + a b, where a warp holds a (16 x 16), b (16 x 8) and c (16 x 8) in its registers; kind is
    "f16" or "bf16", or "tf32": m16n8k8, of a (16 x 8) and b (8 x 8)."""
    text = (
        f"mma.sync.aligned.m16n8k{8 if kind == 'tf32' else 16}.row.col.f32.{kind}.{kind}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )

    @intrinsic
    def mma(
        typing: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any,
        c0: Any, c1: Any, c2: Any, c3: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kinds = [_I32] * 6 + [_F32] * 4
            asm = ir.InlineAsm(
                ir.FunctionType(ir.LiteralStructType([_F32] * 4), kinds),
                text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True,
            )  # fmt: skip
            found = b.call(asm, args)
            parts = [b.extract_value(found, k) for k in range(4)]
            return context.make_tuple(b, signature.return_type, parts)

        words = [types.uint32] * 6 + [types.float32] * 4
        return types.UniTuple(types.float32, 4)(*words), code

    return mma
