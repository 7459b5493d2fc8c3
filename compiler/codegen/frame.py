"""One kernel function under construction: its operands, sizes, scratch, and index arithmetic.

Owns the ABI's side of hand-written code (see kernelcode.py): `Frame` numbers the operands in order
of first use, loads their addresses and sizes once, at the function's entry, and hands out parts of
the worker's scratch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import llvmlite.ir as ir

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.code import I64, PTR, VOID, Code, Int, size_of
from jitgrad.compiler.codegen.kernelcode import Generated, Launch, Operand, Site, Size
from jitgrad.compiler.codegen.offsets import MARK
from jitgrad.compiler.codegen.outline import Uses
from jitgrad.compiler.loops import (
    Array,
    Expr,
    postorder,
)
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.runtime import abi
from jitgrad.runtime.errors import InternalError

_LINE = 64  # bytes; parts of scratch begin on a cache line


class Frame:
    """A kernel function: `code` emits into it; `operands` is what its launch must pass.

    uses: of its module. `names` gives the Sym of each named dim that may occur.
    """

    def __init__(self, uses: Uses, symbol: str, names: Mapping[str, Sym]) -> None:
        kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])
        self.function = ir.Function(uses.module, kind, symbol)
        self.uses = uses
        self.function.attributes.add("nounwind")
        self.ctx, self.bufs, self.args, self.begin, self.end, self.worker = self.function.args
        b = ir.IRBuilder(self.function.append_basic_block("entry"))
        body = b.append_basic_block("body")
        b.branch(body)
        b.position_at_end(body)
        self.code = Code(b)
        self.names = names
        self.operands: list[Operand] = []
        self.scratch_bytes = 0
        self._arrays: dict[Array, ir.Value] = {}
        self._sizes: dict[str, ir.Value] = {}
        self._dims: dict[Dim, Int] = {}
        self._sites: dict[object, ir.Value] = {}
        self._scratch: ir.Value | None = None
        # Known when the code is done; the instructions that use them print later.
        self._scratch_slot = ir.Constant(I64, 0)
        self._scratch_size = ir.Constant(I64, 0)

    @contextmanager
    def _entry(self) -> Iterator[None]:
        """Emits at the end of the entry block; may be nested."""
        entry = self.function.entry_basic_block
        if self.code.b.block is entry:
            yield
            return
        with self.code.b.goto_block(entry):
            yield

    @contextmanager
    def often(self) -> Iterator[None]:
        """What is emitted meanwhile runs so often that it is worth optimising: it becomes a routine
        (Uses.outlined), while the function is compiled as it is."""
        with self.uses.outlined(self.code.b):
            yield

    def _argument(self, operand: Operand) -> ir.Value:
        number = len(self.operands)
        self.operands.append(operand)
        return self.code.load(self.args, number, I64)

    def array(self, array: Array) -> ir.Value:
        """The address of an array's memory."""
        if array not in self._arrays:
            with self._entry():
                slot = self._argument(array)
                address = self.code.at(self.bufs, slot, I64)  # a word each
                self._arrays[array] = self.code.b.load(address, align=8, typ=PTR)
        return self._arrays[array]

    def site(self, tag: object) -> ir.Value:
        """The number of an error site."""
        if tag not in self._sites:
            with self._entry():
                self._sites[tag] = self._argument(Site(tag))
        return self._sites[tag]

    def size(self, name: str) -> ir.Value:
        """The value of a named dim."""
        if name not in self._sizes:
            with self._entry():
                word = self._argument(self.names.get(name, Size(name)))
                if name.startswith(MARK):
                    self._sizes[name] = word
                    return word
                sizes = self.code.b.load(
                    self.code.at(self.ctx, abi.CTX_SIZES, I64), align=8, typ=PTR
                )
                self._sizes[name] = self.code.load(sizes, word, I64)
        return self._sizes[name]

    def dim(self, d: Dim) -> Int:
        """The value of a dim, computed once at the function's entry."""
        if not isinstance(d, Sym):
            return int(d)
        if d not in self._dims:
            with self._entry():
                self._dims[d] = self.index(loops.dim(d), {})
        return self._dims[d]

    def unknown(self, number: Int) -> ir.Value:
        """A number as a value, so that stretches which run often and differ in it alone are one:
        each time another, else they would also differ in which numbers are equal."""
        if not isinstance(number, int):
            return number
        with self._entry():
            return self.code.b.add(self.code.value(0), self.code.value(number))

    # -- scratch -------------------------------------------------------------------------------
    def scratch(self, element: ir.Type, count: int) -> ir.Value:
        """`count` elements of the worker's scratch, cache-line aligned relative to its start."""
        offset = self.scratch_bytes
        nbytes = count * size_of(element)
        self.scratch_bytes = offset + -(-nbytes // _LINE) * _LINE
        return self.code.at(self._scratch_base(), offset)

    def _scratch_base(self) -> ir.Value:
        if self._scratch is None:
            code = self.code
            with self._entry():
                slot = code.load(self.args, self._scratch_slot, I64)
                memory = code.b.load(code.at(self.bufs, slot, I64), align=8, typ=PTR)
                self._scratch = code.at(memory, code.mul(self.worker, self._scratch_size))
        return self._scratch

    def finish(self, scratch_bytes: int) -> None:
        """Ends the function; `scratch_bytes` is what each worker has in every launch."""
        self.code.b.ret_void()
        self._scratch_slot.constant = len(self.operands)
        self._scratch_size.constant = scratch_bytes

    # -- indices -------------------------------------------------------------------------------
    def index(self, e: Expr, axes: Mapping[int, Int]) -> Int:
        """The value of a plain INDEX expression at these values of its axes."""
        code = self.code
        memo: dict[Expr, Int] = {}
        for x in postorder([e]):
            args = [memo[a] for a in x.args]
            if x.op == "const":
                memo[x] = x.attr
            elif x.op == "axis":
                memo[x] = axes[x.attr]
            elif x.op == "size":
                memo[x] = self.size(x.attr)
            elif x.op in ("add", "sub", "mul", "min", "max"):
                memo[x] = getattr(code, x.op)(*args)
            elif x.op == "floordiv":
                memo[x] = _floor(code, args[0], args[1])
            elif x.op == "mod":
                quotient = _floor(code, args[0], args[1])
                memo[x] = code.sub(args[0], code.mul(quotient, args[1]))
            else:
                raise InternalError(f"index expression with {x.op}")
        return memo[e]

    def unflatten(
        self, flat: Int, group: Sequence[int], extents: Mapping[int, Dim]
    ) -> dict[int, Int]:
        """The values of a group's axes at a flattened index."""
        axes: dict[int, Int] = {}
        for k, a in enumerate(reversed(group)):
            if not isinstance(extents[a], Sym) and extents[a] == 1:
                axes[a] = 0
            elif k == len(group) - 1:
                axes[a] = flat
            else:
                extent = self.dim(extents[a])
                axes[a] = self.code.rem(flat, extent)
                flat = self.code.div(flat, extent)
        return axes


def link(
    uses: Uses,
    frames: Sequence[tuple[Frame, str, Dim, int]],
    workspace: list[Array],
    kept: Sequence[Array] = (),
) -> Generated:
    """The code of a kernel whose launches are the functions of a module, in order.

    uses: the module, and the routines that it calls. frames: each with its symbol, the size of its
    parallel space, and its grain. kept: arrays that stay between calls; launches that bring one
    besides constants alone run once.
    """
    target = uses.target
    scratch = -(-max(f.scratch_bytes for f, *_ in frames) // 128) * 128
    for f, *_ in frames:
        f.finish(scratch)
    text = str(uses.module)
    key = hashlib.sha256((text + target.cpu + target.features).encode()).hexdigest()[:32]
    launches = []
    for f, symbol, total, grain in frames:
        text = text.replace(f'@"{symbol}"', f'@"k{key}_{symbol}"')
        arrays = [x for x in f.operands if isinstance(x, Array)]
        once = ""
        if any(x in kept for x in arrays) and all(x.constant or x in kept for x in arrays):
            own = str(f.function).replace(f'@"{symbol}"', "")
            once = hashlib.sha256(own.encode()).hexdigest()
        launches.append(Launch(f"k{key}_{symbol}", f.operands, total, grain, once=once))
    return Generated(
        key, text, launches, workspace, scratch, routines=tuple(uses.codes), kept=tuple(kept),
        driver=True,
    )  # fmt: skip


def _floor(code: Code, x: Int, y: Int) -> Int:
    """floor(x / y) for y > 0, any x."""
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    b = code.b
    xv, yv = code.value(x), code.value(y)
    quotient = b.sdiv(xv, yv)
    exact = b.icmp_signed(">=", b.srem(xv, yv), code.value(0))
    return b.select(exact, quotient, b.sub(quotient, code.value(1)))
