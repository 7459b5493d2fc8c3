"""Small kernels for the tests of the pool and of launches, and the runtime module, compiled.

All arrays are int64. Words of args are named in each kernel's docstring.
"""

from __future__ import annotations

import ctypes
import functools

import llvmlite.binding as llvm
import llvmlite.ir as ir

from jitgrad.compiler.codegen import pool
from jitgrad.runtime import abi

_i64, _ptr = ir.IntType(64), ir.PointerType()


def _word(b, base, index):
    return b.gep(base, [index], source_etype=_i64)


def _const(value):
    return ir.Constant(_i64, value)


def _kernel(module, name, body):
    """A kernel that runs body(b, k, i) for each i of its range; k has ctx, array, arg, worker."""
    kind = ir.FunctionType(ir.VoidType(), [_ptr, _ptr, _ptr, _i64, _i64, _i64])
    function = ir.Function(module, kind, name)
    ctx, bufs, args, begin, end, worker = function.args
    entry, loop, done = (function.append_basic_block(x) for x in ("entry", "loop", "done"))
    b = ir.IRBuilder(entry)

    class Words:
        def arg(self, index):
            return b.load(_word(b, args, _const(index)), typ=_i64)

        def array(self, index):
            return b.load(b.gep(bufs, [self.arg(index)], source_etype=_ptr), typ=_ptr)

    k = Words()
    k.ctx, k.begin, k.end, k.worker = ctx, begin, end, worker
    b.cbranch(b.icmp_signed("<", begin, end), loop, done)
    b.position_at_end(loop)
    i = b.phi(_i64)
    i.add_incoming(begin, entry)
    body(b, k, i)
    following = b.add(i, _const(1))
    i.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, end), loop, done)
    b.position_at_end(done)
    b.ret_void()


def _add(b, k, i):
    """args: out, x, c. out[i] = x[i] + c"""
    x = b.load(_word(b, k.array(1), i), typ=_i64)
    b.store(b.add(x, k.arg(2)), _word(b, k.array(0), i))


def _total(b, k, i):
    """args: out, x. out[0] += x[i], atomically"""
    x = b.load(_word(b, k.array(1), i), typ=_i64)
    b.atomic_rmw("add", k.array(0), x, "monotonic")


def _visit(b, k, i):
    """args: count, who. count[i] += 1, atomically; who[i] = worker"""
    b.atomic_rmw("add", _word(b, k.array(0), i), _const(1), "monotonic")
    b.store(k.worker, _word(b, k.array(1), i))


def _range(b, k, i):
    """args: begins, ends. begins[i], ends[i] = the block that held i"""
    b.store(k.begin, _word(b, k.array(0), i))
    b.store(k.end, _word(b, k.array(1), i))


def _check(b, k, i):
    """args: x, site. flags site where x[i] < 0"""
    x = b.load(_word(b, k.array(0), i), typ=_i64)
    with b.if_then(b.icmp_signed("<", x, _const(0))):
        cell = b.load(_word(b, k.ctx, _const(abi.CTX_ERROR)), typ=_ptr)
        b.atomic_rmw("umin", cell, k.arg(1), "monotonic")


def _count(b, k, i):
    """args: scratch, words per worker. scratch[worker * words] += 1, not atomically"""
    address = _word(b, k.array(0), b.mul(k.worker, k.arg(1)))
    b.store(b.add(b.load(address, typ=_i64), _const(1)), address)


def _wait(b, k, i):
    """args: x, n. draws n pseudo-random numbers after x[i], one after the other, into x[i]"""
    place = _word(b, k.array(0), i)
    steps = k.arg(1)
    start, loop, done = b.block, b.append_basic_block(), b.append_basic_block()
    first = b.load(place, typ=_i64)
    b.branch(loop)
    b.position_at_end(loop)
    x, n = b.phi(_i64), b.phi(_i64)
    new_x = b.add(b.mul(x, _const(6364136223846793005)), _const(1442695040888963407))
    new_n = b.sub(n, _const(1))
    for phi, initial, following in ((x, first, new_x), (n, steps, new_n)):
        phi.add_incoming(initial, start)
        phi.add_incoming(following, loop)
    b.cbranch(b.icmp_signed(">", new_n, _const(0)), loop, done)
    b.position_at_end(done)
    b.store(new_x, place)


_BODIES = {
    "add": _add,
    "total": _total,
    "visit": _visit,
    "range": _range,
    "check": _check,
    "count": _count,
    "wait": _wait,
}


def target_machine(triple=None):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple) if triple else llvm.Target.from_default_triple()
    # LLVM's plain riscv64 has neither multiplication nor atomics; Linux needs rv64gc.
    features = "+m,+a,+f,+d,+c" if triple and triple.startswith("riscv64") else ""
    return target.create_target_machine(opt=2, features=features)


def optimize(module, machine):
    """The module as LLVM sees it after its standard pipeline."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def load(module):
    engine = llvm.create_mcjit_compiler(optimize(module, target_machine()), target_machine())
    engine.finalize_object()
    return engine


@functools.cache
def kernels():
    """{name: address}; their code is never released."""
    module = ir.Module("test_kernels")
    for name, body in _BODIES.items():
        _kernel(module, name, body)
    engine = load(module)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return {name: engine.get_function_address(name) for name in _BODIES}


@functools.cache
def runtime(threads=True):
    """{symbol: address} of the runtime module; its code is never released."""
    engine = load(pool.emit_runtime(llvm.get_default_triple(), threads, python=True))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    names = ("jg_run", "jg_pool_create", "jg_pool_destroy", "jg_py_call")
    return {name: engine.get_function_address(name) for name in names}
