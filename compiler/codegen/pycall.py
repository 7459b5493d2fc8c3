"""`jg_py_call`, machine code that CPython calls as a built-in function.

Owns this one function: how arrays given from Python become pointers, and when the GIL is released.
What runs then is `jg_run` (`pool.py`); `runtime/threads.py` makes the Python function of it.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.words import (
    I64,
    PTR,
    VOID,
    add_to,
    const,
    define,
    function_at,
    get,
    get_pointer,
    put,
    variable,
    while_loop,
    word,
)
from jitgrad.runtime import abi


def emit_py_call(module: ir.Module, run: ir.Function) -> None:
    """PyObject* jg_py_call(self, args, nargs): stores the arrays' data pointers and runs.

    A METH_FASTCALL function: CPython enters it in some 50 ns, ctypes needs ten times that.
    `self` is an int64 ndarray of the CALL_ words; args[i] becomes bufs[i]. Returns a Python int:
    the result of jg_run, or, where nothing ran, CALL_REFUSED if the number or the type of the
    arguments is not what was announced (exact ndarrays: a subclass may do as it likes), CALL_TAKEN
    if word CALL_BUSY says that a call with this `self` is in flight. The word is 1 while one is,
    and after one that failed, until whoever called has read the error and puts 0 there; it is read
    and written under the GIL.

    It names no symbol of Python: what it calls comes in words CALL_SAVE (PyEval_SaveThread, or 0:
    keep the GIL), CALL_RESTORE and CALL_FROM_LONG (PyLong_FromLong). It knows where CPython has an
    object's type and NumPy an array's data pointer; `runtime/threads.py` checks both beforehand.
    """
    function, b = define(module, "jg_py_call", PTR, [PTR, PTR, I64], public=True)
    this, args, nargs = function.args
    save_type = ir.FunctionType(PTR, [])
    from_long = ir.FunctionType(PTR, [I64])
    restore_type = ir.FunctionType(VOID, [PTR])
    refuse = b.append_basic_block("refuse")
    taken = b.append_basic_block("taken")
    go = b.append_basic_block("go")

    def field(obj: ir.Value, offset: int) -> ir.Value:
        return b.load(b.gep(obj, [const(offset)], source_etype=ir.IntType(8)), typ=I64)

    words = b.inttoptr(field(this, abi.PY_DATA_OFFSET), PTR)
    bufs = get_pointer(b, words, abi.CALL_BUFS)
    array_type = get(b, words, abi.CALL_TYPE)
    with b.if_then(b.icmp_signed("!=", nargs, get(b, words, abi.CALL_NARGS)), likely=False):
        b.branch(refuse)
    with b.if_then(b.icmp_signed("!=", get(b, words, abi.CALL_BUSY), const(0)), likely=False):
        b.branch(taken)
    i = variable(b, 0)
    with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), nargs)):
        obj = b.inttoptr(get(b, args, b.load(i, typ=I64)), PTR)
        exact = b.icmp_unsigned("==", field(obj, abi.PY_TYPE_OFFSET), array_type)
        with b.if_then(b.not_(exact), likely=False):
            b.branch(refuse)
        b.store(field(obj, abi.PY_DATA_OFFSET), word(b, bufs, b.load(i, typ=I64)))
        add_to(b, i, 1)
    b.branch(go)

    for block, code in ((refuse, abi.CALL_REFUSED), (taken, abi.CALL_TAKEN)):
        b.position_at_end(block)
        answer = function_at(b, get(b, words, abi.CALL_FROM_LONG), from_long)
        b.ret(b.call(answer, [const(code)]))

    b.position_at_end(go)
    put(b, words, abi.CALL_BUSY, const(1))
    save = get(b, words, abi.CALL_SAVE)
    run_args = [
        get_pointer(b, words, abi.CALL_CTX),
        bufs,
        get_pointer(b, words, abi.CALL_TABLE),
        get(b, words, abi.CALL_NROWS),
    ]
    result = variable(b, 0)
    with b.if_else(b.icmp_unsigned("!=", save, const(0))) as (then, otherwise):
        with then:
            state = b.call(function_at(b, save, save_type), [])
            b.store(b.zext(b.call(run, run_args), I64), result)
            b.call(function_at(b, get(b, words, abi.CALL_RESTORE), restore_type), [state])
        with otherwise:
            b.store(b.zext(b.call(run, run_args), I64), result)
    failed = b.icmp_signed("!=", b.load(result, typ=I64), const(0))
    put(b, words, abi.CALL_BUSY, b.zext(failed, I64))
    answer = function_at(b, get(b, words, abi.CALL_FROM_LONG), from_long)
    b.ret(b.call(answer, [b.load(result, typ=I64)]))
