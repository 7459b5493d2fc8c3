"""Code of a chain: one function that runs the kernels of one tile after the other.

Owns `generate_chain`. The kernels are those that the chain's parts would be on their own, linked
into one module; each does the stretch of its parallel space that belongs to the tile. They find
their memory in a table of the function's own: arrays from outside as they are, private ones in the
worker's scratch, moved back by as much as the tile lies behind the first, so that the index
arithmetic of the kernels stays what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I64, PTR, VOID, Code
from jitgrad.compiler.codegen.kernelcode import Generated, Launch, Operand, Site
from jitgrad.compiler.codegen.target import Target, llvm_binding
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.kernels import ChainKernel, Kernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.symbolic import hint, prod
from jitgrad.runtime.errors import InternalError

_LINE = 128  # bytes; parts of scratch begin at multiples


def generate_chain(
    kernel: ChainKernel, target: Target, generate: Callable[[Kernel, Target], Generated]
) -> Generated:
    """Code of a chain, of the code that `generate` gives for its parts."""
    return _Chain(kernel, [generate(k, target) for k in kernel.kernels], target).generated()


class _Chain:
    def __init__(self, kernel: ChainKernel, parts: list[Generated], target: Target) -> None:
        self.kernel, self.parts, self.target = kernel, parts, target
        self.tiles = hint(prod(kernel.tiles))
        self.private: dict[Array, int] = {}  # array -> its offset in scratch
        self.operands: list[Operand] = []
        self._number: dict[object, int] = {}

    def generated(self) -> Generated:
        size = self._place()
        inner = max(_rounded(p.scratch) for p in self.parts)
        module = ir.Module("chain")
        module.triple = self.target.triple
        self._emit(module, size, size + inner)
        text = str(module)
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        symbol = f"jg_{key}_0"
        text = self._linked(text.replace('@"chain"', f'@"{symbol}"'))
        launch = Launch(symbol, self.operands, self.tiles, 1)
        routines = {r.key: r for p in self.parts for r in p.routines}
        return Generated(key, text, [launch], [], size + inner, routines=tuple(routines.values()))

    def _linked(self, text: str) -> str:
        """One module of the function and the parts, whose symbols nobody else sees."""
        binding = llvm_binding()
        whole = binding.parse_assembly(text)
        for part in {p.key: p for p in self.parts}.values():
            whole.link_in(binding.parse_assembly(part.module_text))
        for part in self.parts:
            for launch in part.launches:
                whole.get_function(launch.symbol).linkage = "internal"
        return str(whole)

    def _place(self) -> int:
        """Offsets in scratch of one tile's share of private arrays and of the parts' workspace:
        each as low as those that are in use at the same time allow. Returns the bytes of all."""
        uses: dict[Array, list[int]] = {}
        private = set(self.kernel.locals)
        for n, part in enumerate(self.parts):
            mine = {x for p in part.launches for x in p.operands if isinstance(x, Array)}
            for a in mine:
                if a in private or a in part.workspace:
                    uses.setdefault(a, []).append(n)
        placed: list[tuple[int, int, int, int]] = []
        for a, when in sorted(uses.items(), key=lambda u: u[1][0]):
            size = _rounded(nbytes(a) // self.tiles)
            first, last = min(when), max(when)
            offset = 0
            for start, stop, begin, end in sorted(placed):
                if first <= end and begin <= last and offset < stop and start < offset + size:
                    offset = stop
            placed.append((offset, offset + size, first, last))
            self.private[a] = offset
        return max((stop for _, stop, _, _ in placed), default=0)

    def _operand(self, x: Operand) -> int:
        known = self._number.get(x)
        if known is None:
            known = self._number[x] = len(self.operands)
            self.operands.append(x)
        return known

    def _emit(self, module: ir.Module, scratch: int, total: int) -> None:
        kind = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])
        function = ir.Function(module, kind, "chain")
        function.attributes.add("nounwind")
        ctx, bufs, args, begin, end, worker = function.args
        code = Code(ir.IRBuilder(function.append_basic_block("entry")))
        slots: dict[Array, int] = {}
        for part in self.parts:
            for launch in part.launches:
                for x in launch.operands:
                    if isinstance(x, Array):
                        slots.setdefault(x, len(slots))
                        if x not in self.private:
                            self._operand(x)
                    elif isinstance(x, Site):
                        self._operand(x)
                    elif not isinstance(x, int):
                        raise InternalError(f"a chain with an operand {x}")
        own = len(slots)  # where the parts find their scratch
        table = code.local(I64, own + 1)
        slot = code.load(args, len(self.operands), I64)
        base = code.b.load(code.at(bufs, slot, I64), align=8, typ=PTR)
        base = code.beyond(base, code.mul(worker, total))
        for a, n in slots.items():
            if a not in self.private:
                at = code.load(args, self._number[a], I64)
                found = code.b.load(code.at(bufs, at, I64), align=8, typ=PTR)
                code.b.store(found, code.at(table, n, I64), align=8)
        code.b.store(code.beyond(base, scratch), code.at(table, own, I64), align=8)
        calls: list[tuple[ir.Function, ir.Value, int]] = []
        symbols: dict[str, ir.Function] = {}
        for part in self.parts:
            for launch in part.launches:
                if hint(launch.total) % self.tiles:
                    raise InternalError(f"{launch.symbol} cannot be cut into {self.tiles} tiles")
                words = code.local(I64, len(launch.operands) + 1)
                for n, x in enumerate(launch.operands):
                    word: int | ir.Value
                    if isinstance(x, Array):
                        word = slots[x]
                    elif isinstance(x, Site):
                        word = code.load(args, self._number[x], I64)
                    else:
                        assert isinstance(x, int)
                        word = x
                    code.store(code.value(word), words, n, I64)
                code.store(code.value(own), words, len(launch.operands), I64)
                callee = symbols.get(launch.symbol)
                if callee is None:
                    callee = symbols[launch.symbol] = ir.Function(module, kind, launch.symbol)
                calls.append((callee, words, hint(launch.total) // self.tiles))
        with code.loop(begin, end) as tile:
            for a, offset in self.private.items():
                back = code.mul(tile, nbytes(a) // self.tiles)
                at = code.beyond(base, code.sub(offset, back))
                code.b.store(at, code.at(table, slots[a], I64), align=8)
            for callee, words, each in calls:
                start = code.mul(tile, each)
                code.b.call(
                    callee,
                    [ctx, table, words, code.value(start), code.value(code.add(start, each)),
                     ir.Constant(I64, 0)],
                )  # fmt: skip
        code.b.ret_void()


def _rounded(size: int) -> int:
    return -(-size // _LINE) * _LINE
