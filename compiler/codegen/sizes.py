"""Symbolic sizes in an exported library: who gives them, what they must be, what follows.

Owns the functions set_sizes, set_shapes, output_shape and the table of sizes. An instance keeps
what follows from the sizes that were set last: the words that kernels read (Ctx word 2) and, behind
them, the shapes of the results. Memory is made for the largest sizes, so setting them makes none.
Where all results have no elements, a call does nothing. Other arrays without elements, which need
no memory, are read at memory of the instance: `Emitter.instead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline
from jitgrad.compiler.codegen.interface import reference
from jitgrad.compiler.codegen.words import I32, I64, PTR, atomic, const, define, get, put, word
from jitgrad.compiler.symbolic import Dim, Func, Sym
from jitgrad.runtime import artifact_format as fmt

if TYPE_CHECKING:
    from jitgrad.compiler.codegen.capi import Emitter

Values = Mapping[str, ir.Value]
_COMPARE = {"==": "==", "<": "<", "<=": "<="}


def emit_dim(b: ir.IRBuilder, d: Dim, values: Values) -> ir.Value:
    """The value of a size, as Python computes it, from those of the named dims."""
    if not isinstance(d, Sym):
        return const(d)
    total: ir.Value = const(0)
    for monomial, coefficient in d.key:
        term: ir.Value = const(coefficient)
        for atom in monomial:
            factor = values[atom] if isinstance(atom, str) else _emit_func(b, atom, values)
            term = b.mul(term, factor)
        total = b.add(total, term)
    return total


def _emit_func(b: ir.IRBuilder, atom: Func, values: Values) -> ir.Value:
    x, y = emit_dim(b, atom.a, values), emit_dim(b, atom.b, values)
    if atom.name in ("max", "min"):
        first = b.icmp_signed(">" if atom.name == "max" else "<", x, y)
        return b.select(first, x, y)
    y = b.select(b.icmp_signed("==", y, const(0)), const(1), y)  # conditions refuse such sizes
    rest = b.srem(x, y)
    other_sign = b.icmp_signed("<", b.xor(rest, y), const(0))
    down = b.and_(b.icmp_signed("!=", rest, const(0)), other_sign)
    if atom.name == "mod":
        return b.add(rest, b.select(down, y, const(0)))
    return b.sub(b.sdiv(x, y), b.zext(down, I64))


def emit_sizes(e: Emitter) -> dict[str, ir.Function]:
    """The functions of a model with symbolic sizes, in its module; those of the descriptor."""
    model = e.model
    rows = [[reference(e.text(s.name)), const(s.low), const(s.high)] for s in model.sizes]
    table = reference(e.struct_array(rows, "sizes"))
    count, b = e.public("n_sizes", I32, [])
    baseline(count, e.target)
    b.ret(ir.Constant(I32, len(rows)))
    for k, (column, result) in enumerate((("name", PTR), ("min", I64), ("max", I64))):
        function, b = e.public(f"size_{column}", result, [I32])
        baseline(function, e.target)
        index = function.args[0]
        with b.if_then(b.icmp_unsigned(">=", index, ir.Constant(I32, len(rows)))):
            b.ret(ir.Constant(PTR, None) if result is PTR else const(-1))
        found = get(b, table, b.add(b.mul(b.zext(index, I64), const(3)), const(k)))
        b.ret(b.inttoptr(found, PTR) if result is PTR else found)
    take = _emit_take(e)
    return {
        "set_sizes": _emit_set_sizes(e, take),
        "set_shapes": _emit_set_shapes(e, take),
        "output_shape": _emit_output_shape(e),
    }


@contextmanager
def _held(e: Emitter, b: ir.IRBuilder, me: ir.Value) -> Iterator[Callable[[ir.Value], None]]:
    """Code that has the instance for itself. Gives what ends it with an error's text; after it,
    the code is ready to return OK."""
    with b.if_then(b.icmp_unsigned("==", b.ptrtoint(me, I64), const(0)), likely=False):
        b.ret(ir.Constant(I32, fmt.BAD_ARGUMENT))
    taken = b.cmpxchg(word(b, me, e.BUSY), const(0), const(1), "acquire", "monotonic")
    with b.if_then(b.not_(b.extract_value(taken, 1)), likely=False):
        b.ret(ir.Constant(I32, fmt.BUSY))

    def leave(text: ir.Value, status: int) -> None:
        put(b, me, e.ERROR, text)
        atomic(b, "xchg", me, e.BUSY, 0, "release")
        b.ret(ir.Constant(I32, status))

    yield lambda text: leave(text, fmt.BAD_ARGUMENT)
    leave(reference(e.text("")), fmt.OK)


def _emit_take(e: Emitter) -> ir.Function:
    """ptr take(instance, sizes): why these cannot be, or null when they are set."""
    function, b = define(e.module, "jg.take_sizes", PTR, [PTR, PTR])
    me, given = function.args
    values: dict[str, ir.Value] = {}
    for k, s in enumerate(e.model.sizes):
        v = values[s.name] = get(b, given, k)
        bad = b.or_(b.icmp_signed("<", v, const(s.low)), b.icmp_signed(">", v, const(s.high)))
        with b.if_then(bad, likely=False):
            b.ret(reference(e.text(f"expected {s.name} to be {s.low} to {s.high}; it is not")))
    for g in e.model.conditions:
        x, y = emit_dim(b, g.a, values), emit_dim(b, g.b, values)
        holds = b.icmp_signed(_COMPARE[g.kind], x, y)
        bad = b.not_(holds) if g.outcome else holds
        with b.if_then(bad, likely=False):
            b.ret(reference(e.text(f"expected sizes with {g.expression()}; they are not so")))
    for k, sym in enumerate(e.model.syms):
        put(b, me, e.sizes_at + k, emit_dim(b, sym, values))
    at = e.shapes_at
    for _, port in e.model.outputs:
        for d in port.shape:
            put(b, me, at, emit_dim(b, d, values))
            at += 1
    empty: ir.Value = ir.Constant(ir.IntType(1), 0)
    for name in e.model.empty:
        empty = b.or_(empty, b.icmp_signed("==", values[name], const(0)))
    put(b, me, e.SIZED, b.select(empty, const(e.EMPTY), const(1)))
    spare = b.add(b.ptrtoint(me, I64), const(e.arena_at))
    for k, port in enumerate(e.model.ports if e.model.spare else ()):
        none: ir.Value = ir.Constant(ir.IntType(1), 0)
        for axis in port.vacant:
            size = emit_dim(b, port.shape[axis], values)
            none = b.or_(none, b.icmp_signed("==", size, const(0)))
        put(b, me, e.instead + k, b.select(none, spare, const(0)))
    b.ret(ir.Constant(PTR, None))
    return function


def _emit_set_sizes(e: Emitter, take: ir.Function) -> ir.Function:
    """i32 set_sizes(instance, const int64_t *sizes)."""
    function, b = e.public("set_sizes", I32, [PTR, PTR])
    me, given = function.args
    with _held(e, b, me) as refuse:
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(given, I64), const(0)), likely=False):
            names = ", ".join(s.name for s in e.model.sizes)
            text = f"expected an array of {len(e.model.sizes)} sizes ({names}); got NULL"
            refuse(reference(e.text(text)))
        problem = b.call(take, [me, given])
        with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(problem, I64), const(0)), likely=False):
            refuse(problem)
    return function


def _emit_set_shapes(e: Emitter, take: ir.Function) -> ir.Function:
    """i32 set_shapes(instance, const int64_t *const *shapes)."""
    function, b = e.public("set_shapes", I32, [PTR, PTR])
    me, given = function.args
    numbers = {s.name: k for k, s in enumerate(e.model.sizes)}
    found = b.alloca(I64, const(len(numbers)))
    seen: set[str] = set()
    with _held(e, b, me) as refuse:
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(given, I64), const(0)), likely=False):
            ports = ", ".join(p.name for _, p in e.model.inputs)
            text = f"expected an array of {len(e.model.inputs)} shapes ({ports}); got NULL"
            refuse(reference(e.text(text)))
        for n, (_, port) in enumerate(e.model.inputs):
            if not port.shape:
                continue
            shape = b.load(b.gep(given, [const(n)], source_etype=PTR), typ=PTR)
            label = f"inputs[{n}] ({port.name}, {port})"
            with b.if_then(b.icmp_unsigned("==", b.ptrtoint(shape, I64), const(0)), likely=False):
                refuse(reference(e.text(f"expected the shape of {label}; got NULL")))
            text = reference(e.text(f"expected {label} to have that shape; it has not"))
            for axis, d in enumerate(port.shape):
                size = get(b, shape, axis)
                if str(d) in numbers and str(d) not in seen:
                    seen.add(str(d))
                    put(b, found, numbers[str(d)], size)
                    continue
                known = get(b, found, numbers[str(d)]) if str(d) in numbers else const(int(d))
                with b.if_then(b.icmp_signed("!=", size, known), likely=False):
                    refuse(text)
        problem = b.call(take, [me, found])
        with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(problem, I64), const(0)), likely=False):
            refuse(problem)
    return function


def _emit_output_shape(e: Emitter) -> ir.Function:
    """const int64_t *output_shape(instance, i): null before sizes are set."""
    function, b = e.public("output_shape", PTR, [PTR, I32])
    me, index = function.args
    null = ir.Constant(PTR, None)
    starts, at = [], e.shapes_at
    for _, port in e.model.outputs:
        starts.append(const(at))
        at += len(port.shape)
    wrong = b.icmp_unsigned("==", b.ptrtoint(me, I64), const(0))
    wrong = b.or_(wrong, b.icmp_unsigned(">=", index, ir.Constant(I32, len(starts))))
    with b.if_then(wrong):
        b.ret(null)
    with b.if_then(b.icmp_signed("==", get(b, me, e.SIZED), const(0))):
        b.ret(null)
    table = reference(e.array(I64, starts or [const(0)], "starts"))
    b.ret(word(b, me, get(b, table, b.zext(index, I64))))
    return function
