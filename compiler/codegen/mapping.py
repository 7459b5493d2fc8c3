"""A file of weights mapped by its path: create_from, for systems that have mmap.

Owns that function, which stands in a module of its own: a program that has no files links without
it, and gives the weights as a pointer (capi.py, create_with).
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline
from jitgrad.compiler.codegen.interface import Interface, Model, reference
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.words import I32, I64, PTR, VOID, const, define, put

SYMBOLS = frozenset({"open", "lseek", "mmap", "munmap", "close"})
RELEASE, MAPPED = 6, 7
"""Words of an instance: a function (address, bytes) that ends the mapping, or 0; the address."""

_SEEK_END, _PROT_READ, _MAP_PRIVATE = 2, 1, 2
_CLOEXEC_LINUX, _CLOEXEC_APPLE = 0x80000, 0x1000000


def symbol(model: Model) -> str:
    """The function's name."""
    return f"jg_{model.name}_create_from"


def emit_mapping(model: Model, target: Target) -> ir.Module:
    """ptr create_from(i32 threads, const char *path, const char **why)."""
    return _Mapping(model, target).emit()


class _Mapping(Interface):
    def emit(self) -> ir.Module:
        null = ir.Constant(PTR, None)
        create_with = self._declare(f"jg_{self.model.name}_create_with", PTR, [I32, PTR, I64, PTR])
        open_type = ir.FunctionType(I32, [PTR, I32], var_arg=True)
        open_file = ir.Function(self.module, open_type, "open")
        seek = self._declare("lseek", I64, [I32, I64, I32])
        close = self._declare("close", I32, [I32])
        mmap = self._declare("mmap", PTR, [PTR, I64, I32, I32, I32, I64])
        release = self._release()
        function, b = self.public("create_from", PTR, [I32, PTR, PTR])
        baseline(function, self.target)
        threads, path, why = function.args

        def fail(condition: ir.Value, text: str, file: ir.Value | None = None) -> None:
            with b.if_then(condition, likely=False):
                if file is not None:
                    b.call(close, [file])
                with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(why, I64), const(0))):
                    b.store(reference(self.text(text)), why)
                b.ret(null)

        unnamed = b.icmp_unsigned("==", b.ptrtoint(path, I64), const(0))
        fail(unnamed, "expected the path of the file of weights; got NULL")
        apple = "apple" in self.target.triple
        flags = ir.Constant(I32, _CLOEXEC_APPLE if apple else _CLOEXEC_LINUX)
        file = b.call(open_file, [path, flags])
        negative = b.icmp_signed("<", file, ir.Constant(I32, 0))
        fail(negative, "expected a file of weights that can be opened; this cannot be")
        nbytes = b.call(seek, [file, const(0), ir.Constant(I32, _SEEK_END)])
        empty = b.icmp_signed("<=", nbytes, const(0))
        fail(empty, "expected a file of weights; this is empty or no file", file)
        protection = [ir.Constant(I32, k) for k in (_PROT_READ, _MAP_PRIVATE)]
        place = b.call(mmap, [null, nbytes, *protection, file, const(0)])
        failed = b.icmp_signed("==", b.ptrtoint(place, I64), const(-1))
        fail(failed, "expected a file of weights that can be mapped; this cannot be", file)
        b.call(close, [file])
        made = b.call(create_with, [threads, place, nbytes, why])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(made, I64), const(0)), likely=False):
            b.call(release, [place, nbytes])
            b.ret(null)
        put(b, made, RELEASE, reference(release))
        put(b, made, MAPPED, place)
        b.ret(made)
        return self.module

    def _release(self) -> ir.Function:
        munmap = self._declare("munmap", I32, [PTR, I64])
        function, b = define(self.module, "jg.unmap", VOID, [PTR, I64])
        baseline(function, self.target)
        b.call(munmap, function.args)
        b.ret_void()
        return function
