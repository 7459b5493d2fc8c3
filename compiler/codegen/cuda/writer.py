"""One kernel function under construction: its lines, its operands, and the values in its scopes.

Owns `KernelWriter` (lines, parameters, shared memory) and `Scope`, a stretch of straight code in
which every expression is computed at most once. It knows no loops of kernels (`nest.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.kernelcode import Operand, Site, Size
from jitgrad.compiler.codegen.offsets import MARK
from jitgrad.compiler.codegen.schedule import Operands, Space
from jitgrad.compiler.loops import (
    Array,
    Expr,
    postorder,
)
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.runtime.cuda.blas import Gemm
from jitgrad.runtime.dtypes import DType

_SHORT = 48  # a value of one use is written where it is used, up to so many characters


class KernelWriter:
    """The source of one kernel.

    Attributes:
        symbol: the function's name.
        operands: what its launch must pass, numbered by first appearance.
        threads: of a block. max_blocks: the most blocks of a launch.
        workspace: arrays among the operands that the memory plan must provide.
        strides: of each load and store, how far apart neighbouring threads' elements are.
        wide: loads and stores of several elements at once.
    """

    def __init__(
        self, symbol: str, operands: Operands, dims: Mapping[str, Dim], target: CudaTarget
    ) -> None:
        self.symbol, self.operands, self.dims, self.target = symbol, operands, dims, target
        self.threads = target.threads
        self.workspace: list[Array] = []
        self.strides: list[int | None] = []
        self.max_blocks = target.max_blocks
        self.lines: list[str] = []
        self.shared_bytes = 0
        self.wide = 0
        self._depth = 1
        self._names = 0
        self._head: list[str] = []
        self._used: dict[int, str] = {}
        self._aligned: dict[str, str] = {}
        self._exchanges: dict[tuple[int, DType, str], str] = {}

    # -- lines -----------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines under `header`, one level in."""
        self.line(header)
        self._depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def let(self, text: str, prefix: str = "v") -> str:
        """A new name for a value."""
        name = self.name(prefix)
        self.line(f"{name} = {text}")
        return name

    def shared(self, count: int, dtype: DType, raw: bool = False) -> str:
        """An array in the block's shared memory, of values as they are in registers; raw: as they
        are in memory."""
        name = f"shared{len(self._head)}"
        wide = dtype in scalar.HALVES and not raw
        kind = "float32" if wide else scalar.memory_name(dtype)
        self._head.append(f"    {name} = cuda.shared.array({count}, np.{kind}, 16)")
        self.shared_bytes += count * (4 if wide else dtype.itemsize)
        return name

    def exchange(self, count: int, dtype: DType, what: str = "") -> str:
        """A shared array that the reductions of a kernel use in turn: each waits, before it ends,
        until every thread has read. what: another one of the same reduction has another word."""
        key = count, dtype, what
        if key not in self._exchanges:
            self._exchanges[key] = self.shared(count, dtype)
        return self._exchanges[key]

    def local(self, count: int, dtype: DType) -> str:
        """An array of the thread's own, of values as they are in registers."""
        name = f"local{len(self._head)}"
        kind = scalar.memory_name(dtype) if dtype not in scalar.HALVES else "float32"
        self._head.append(f"    {name} = cuda.local.array({count}, np.{kind})")
        return name

    # -- operands --------------------------------------------------------------------------------
    def array(self, array: Array) -> str:
        """The parameter of an array's stand-in."""
        return self._parameter(self.operands.number[array], "x")

    def memory(self, array: Array) -> str:
        """The parameter of an array that has no stand-in yet."""
        return self.array(self.operands.array(array))

    def aligned(self, array: Array) -> str:
        """Whether an array's memory starts at a multiple of 16 bytes, computed once."""
        name = self.array(array)
        return self._aligned.setdefault(name, f"aligned_{name}")

    def site(self, tag: object) -> str:
        return self._parameter(self.operands.site(tag), "site")

    def word(self, value: int) -> str:
        """The parameter of a number that each launch brings."""
        self.operands.list.append(value)
        return self._parameter(len(self.operands.list) - 1, "n")

    def size(self, name: str) -> str:
        return self._parameter(self.operands.size(name, self.dims), "n")

    def _parameter(self, number: int, prefix: str) -> str:
        return self._used.setdefault(number, f"{prefix}{number}")

    def dim(self, d: Dim) -> str:
        """A dim: a number, or an expression of the kernel's size parameters."""
        if not isinstance(d, Sym):
            return str(d)
        return Scope(self, {}, {}).value(loops.dim(d))

    def parameters(self) -> list[tuple[str, str]]:
        """(name, kind) of each parameter: kind is "int64" (a number of the launch), "size" (one of
        the call) or "*" and the dtype of an array."""
        found = []
        for n, operand in enumerate(self.operands.list):
            found.append((self._used.get(n, f"unused{n}"), _kind(operand)))
        if self.has_sites:
            found.append(("error", "*int64"))
        return found

    @property
    def has_sites(self) -> bool:
        return any(isinstance(x, Site) for x in self.operands.list)

    def source(self) -> str:
        """The function, which says of what types its parameters are and how it is launched: the
        same text is the same machine code."""
        parameters = self.parameters()
        names = ", ".join(name for name, _ in parameters)
        of_kind: dict[str, list[str]] = {}
        for name, kind in parameters:
            of_kind.setdefault(kind, []).append(name)
        told = [f"    # {kind}: {', '.join(found)}" for kind, found in of_kind.items()]
        told.append(f"    # blocks of {self.threads} threads, at most {self.max_blocks}")
        asked = [f"    {name} = is_aligned({x})" for x, name in self._aligned.items()]
        body = [*self._head, *asked, *self.lines] or ["    pass"]
        return "\n".join([f"def {self.symbol}({names}):", *told, *body]) + "\n"

    # -- loops -----------------------------------------------------------------------------------
    def unflatten(self, flat: str, space: Space, scope: Scope) -> None:
        """Binds the axes of a space to the point number `flat` in row-major order."""
        for k in range(len(space.axes) - 1, 0, -1):
            extent = self.dim(space.extents[k])
            parts = f"{flat} % {extent}", f"{flat} // {extent}"
            if isinstance(space.extents[k], Sym):  # short code, so that loops around are unrolled
                parts = f"remainder({flat}, {extent})", f"quotient({flat}, {extent})"
            scope.axes[space.axes[k]] = self.let(parts[0], "j")
            flat = self.let(parts[1], "j")
        if space.axes:
            scope.axes[space.axes[0]] = flat

    def extent(self, space: Space) -> str:
        """The number of points of a space, computed once."""
        total = space.total
        return str(total) if not isinstance(total, Sym) else self.dim(total)


def _kind(operand: Operand) -> str:
    if isinstance(operand, Array):
        return f"*{scalar.memory_name(operand.dtype)}"
    named = isinstance(operand, Sym) or (
        isinstance(operand, Size) and not operand.name.startswith(MARK)
    )
    return "size" if named else "int64"


@dataclass(frozen=True)
class LibraryCall:
    """A launch that is a library's: a product of matrices. pairs: how many sizes with factors the
    offset of each matrix has (blas.py)."""

    symbol: str
    gemm: Gemm
    pairs: tuple[int, ...]

    def source(self) -> str:
        return f"# {self.symbol}: cuBLAS, {self.gemm}\n"


@dataclass(frozen=True)
class Part:
    """One launch: of what, over how many points, of which a block does `grain` at once. operands:
    those of this launch, where its kernel is launched again with others."""

    writer: KernelWriter | LibraryCall
    total: Dim
    grain: int
    operands: tuple[Operand, ...] | None = None


class Scope:
    """Straight code in which each expression has one value.

    axes: the text of each axis. locals: the text of each row-local scalar. buffers: row buffers,
    each with the text that reads or writes element `{}` of it.
    """

    def __init__(
        self,
        writer: KernelWriter,
        axes: Mapping[int, str],
        locals: Mapping[Array, str],
        buffers: Mapping[Array, str] | None = None,
        memo: Mapping[Expr, str] | None = None,
    ) -> None:
        self.writer = writer
        self.axes = dict(axes)
        self.locals = dict(locals)
        self.buffers = dict(buffers or {})
        self.memo: dict[Expr, str] = dict(memo or {})

    def child(self, keep: bool = False) -> Scope:
        """A scope within this one; with `keep`, of the same code: what is known stays known."""
        memo = self.memo if keep else {}
        return Scope(self.writer, self.axes, self.locals, self.buffers, memo)

    def value(self, e: Expr) -> str:
        """The text of e's value; lines that compute it are written."""
        return self.values([e])[0]

    def values(self, roots: Sequence[Expr]) -> list[str]:
        uses: dict[Expr, int] = {}
        todo: list[Expr] = []
        seen: set[Expr] = set()
        for root in roots:
            uses[root] = uses.get(root, 0) + 1
            todo.append(root)
        while todo:
            e = todo.pop()
            if e in seen or e in self.memo:
                continue
            seen.add(e)
            for a in e.args:
                uses[a] = uses.get(a, 0) + 1
                todo.append(a)
        order = postorder(roots)
        skipped = cold(order, roots)
        for e in order:
            if e not in self.memo and e not in skipped:
                self.memo[e] = self._one(e, uses.get(e, 1))
        return [self.memo[e] for e in roots]

    def _one(self, e: Expr, uses: int) -> str:
        w = self.writer
        if e.op == "const":
            return scalar.constant(e.attr, e.dtype)
        if e.op == "axis":
            return self.axes[e.attr]
        if e.op == "size":
            return w.size(e.attr)
        if e.op == "load":
            return self._load(e)
        if e.op == "check":
            index, extent = (self.memo[a] for a in e.args)
            site = w.site(e.attr)
            index, extent = w.let(index), w.let(extent)
            with w.block(f"if {index} < 0 or {index} >= {extent}:"):
                w.line(f"flag(error, {site})")
            return w.let(f"clamp({index}, {extent})")
        if e.op == "select" and e.attr == "rare":
            return self._rare(e)
        text = scalar.apply(e, [self.memo[a] for a in e.args])
        if uses == 1 and len(text) <= _SHORT:
            return text
        return w.let(text)

    def _load(self, e: Expr) -> str:
        array: Array = e.attr
        if array in self.locals:
            return self.locals[array]
        index = self.memo[e.args[0]] if e.args else "0"
        if array in self.buffers:
            text = self.buffers[array].format(index)
            return self.writer.let(f"({text} != 0)" if array.dtype.name == "bool" else text)
        element = f"{self.writer.array(array)}[{index}]"
        return self.writer.let(scalar.loaded(element, array.dtype))

    def _rare(self, e: Expr) -> str:
        """select(c, a, b): a is computed only where c holds."""
        w = self.writer
        condition, usual = self.memo[e.args[0]], self.memo[e.args[2]]
        name = w.let(usual)
        with w.block(f"if {condition}:"):
            inner = self.child(keep=True)
            w.line(f"{name} = {inner.value(e.args[1])}")
        return name

    def store(self, array: Array, offset: Expr, value: str) -> None:
        """array[offset] = value."""
        at = self.value(offset)
        w = self.writer
        if array in self.buffers:
            w.line(f"{self.buffers[array].format(at)} = {value}")
        else:
            w.line(f"{w.array(array)}[{at}] = {scalar.stored(value, array.dtype)}")


def cold(order: Sequence[Expr], roots: Sequence[Expr]) -> set[Expr]:
    """What only the rare sides of selects need: it is computed there."""
    if not any(e.attr == "rare" and e.op == "select" for e in order):
        return set()
    warm: set[Expr] = set()
    todo = list(roots)
    while todo:
        e = todo.pop()
        if e in warm:
            continue
        warm.add(e)
        todo += (e.args[0], e.args[2]) if e.op == "select" and e.attr == "rare" else e.args
    return {e for e in order if e not in warm}
