"""What the threads of a block do with two slices of a contraction's operands in shared memory.

Owns who has which elements of the tile and the products: `Registers` (fma, any dtype) and
`TensorCores` (mma.sync, of float16, bfloat16, and float32 where TF32 will do, summed in float32).
Slices are double-buffered: `held` says which half of the shared memory is read, and the other is
filled meanwhile.
"""

from __future__ import annotations

from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter
from jitgrad.compiler.loops import Contraction, Expr
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_PAD = 16  # bytes between rows of a slice, so that what a warp reads lies in different banks
_KINDS = {dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.float32: "tf32"}


class Registers:
    """A thread has `each_row` x `each_col` elements of the tile, in registers."""

    def __init__(self, tile: tuple[int, int, int, int, int], acc: DType) -> None:
        self.rows, self.cols, self.step, self.each_row, self.each_col = tile
        self.acc = acc
        self.across = self.cols // self.each_col
        self.threads = (self.rows // self.each_row) * self.across
        self.size = self.each_row * self.each_col
        wide = 16 // acc.itemsize
        self.group = wide if wide in (2, 4) and self.each_col % wide == 0 else 1

    def begin(self, w: KernelWriter, slices: int = 2) -> None:
        """Shared memory for so many slices of rows and two of columns, accumulators, and the
        thread's place."""
        self.a = w.shared(slices * self.rows * self.step, self.acc)
        self.b = w.shared(2 * self.cols * self.step, self.acc)
        self.sums = w.local(self.size, self.acc)
        w.line("t = cuda.threadIdx.x")
        w.line(f"ty, tx = t // {self.across}, t % {self.across}")

    def put(self, w: KernelWriter, into: str, size: int, which: str, value: str) -> None:
        """Element (r, k) of a slice of `size` rows, in buffer `which`."""
        w.line(f"{into}[{self.at(size, which)}] = {value}")

    def at(self, size: int, which: str) -> str:
        """Where that is."""
        return f"({which} * {self.step} + k) * {size} + r"

    def multiply(self, w: KernelWriter, left: str = "held") -> None:
        """Every product of two slices: number `left` of the rows, and that held of the columns."""
        rows, cols = self.rows, self.cols
        own = f"{left} * {rows * self.step} + ty * {self.each_row}"
        mine = w.let(own, "j")
        theirs = w.let(f"held * {cols * self.step} + tx * {self.group}", "j")
        with w.block(f"for k in range({self.step}):"):
            above = self._neighbours(w, self.a, f"{mine} + k * {rows}", self.each_row, 1)
            beside = self._neighbours(
                w, self.b, f"{theirs} + k * {cols}", self.each_col, self.across
            )
            for i, x in enumerate(above):
                for j, y in enumerate(beside):
                    at = f"{self.sums}[{i * self.each_col + j}]"
                    w.line(f"{at} = {product(x, y, at, self.acc)}")

    def _neighbours(
        self, w: KernelWriter, tile: str, first: str, count: int, apart: int
    ) -> list[str]:
        """`count` elements, groups of which lie side by side: 128 bits at once."""
        group = self.group if count % self.group == 0 else 1
        names = []
        for k in range(0, count, group):
            new = [w.name() for _ in range(group)]
            at = f"{first} + {k * apart}"
            w.line(
                f"{', '.join(new)} = shared{group}({tile}, {at})" if group > 1 else
                f"{new[0]} = {tile}[{at}]"
            )  # fmt: skip
            names += new
        return names

    def wider(self, times: int) -> Registers:
        """The same threads with tiles of so many times the columns."""
        tile = (self.rows, times * self.cols, self.step, self.each_row, times * self.each_col)
        return Registers(tile, self.acc)

    @property
    def sharing(self) -> int:
        """How many threads have parts of one row."""
        return self.across

    def place_in_row(self) -> str:
        """The thread's number among those."""
        return "tx"

    @property
    def own_rows(self) -> int:
        """How many rows a thread has parts of."""
        return self.each_row

    def own_row(self, n: str) -> str:
        """Which of them the thread's element n is in."""
        return f"{n} // {self.each_col}"

    def row(self, i: str) -> str:
        """The row in the tile of the thread's row i."""
        return f"ty * {self.each_row} + {i}"

    def place(self) -> tuple[str, str]:
        """The row and the column in the tile of the thread's element n."""
        column, group = f"n % {self.each_col}", self.group
        return (
            f"ty * {self.each_row} + n // {self.each_col}",
            f"{column} // {group} * {group * self.across} + tx * {group} + {column} % {group}",
        )


class TensorCores:
    """A warp has `high` x `wide` parts of 16 x 8 elements of the tile, spread over its threads as
    the PTX ISA says for mma.m16n8k16; float32 are TF32, 8 of k at a time."""

    def __init__(self, tile: tuple[int, int, int, int, int], dtype: DType) -> None:
        self.rows, self.cols, self.step, down, self.across = tile
        self.dtype, self.acc = dtype, dtypes.float32
        self.threads = 32 * down * self.across
        self.high, self.wide = self.rows // down // 16, self.cols // self.across // 8
        self.size = 4 * self.high * self.wide
        self.pitch = self.step + _PAD // dtype.itemsize
        self.kind = _KINDS[dtype]
        self.depth = 8 if dtype is dtypes.float32 else 16

    def begin(self, w: KernelWriter, slices: int = 2) -> None:
        self.a = w.shared(slices * self.rows * self.pitch, self.dtype, raw=True)
        self.b = w.shared(2 * self.cols * self.pitch, self.dtype, raw=True)
        self.sums = w.local(self.size, self.acc)
        w.line("t = cuda.threadIdx.x")
        w.line(f"down = t // {32 * self.across} * {16 * self.high}")
        self.right = w.let(f"t // 32 % {self.across} * {8 * self.wide}", "right")

    def put(self, w: KernelWriter, into: str, size: int, which: str, value: str) -> None:
        single = self.dtype is dtypes.float32
        held = f"round_tf32({value})" if single else scalar.stored(value, self.dtype)
        w.line(f"{into}[{self.at(size, which)}] = {held}")

    def at(self, size: int, which: str) -> str:
        return f"({which} * {size} + r) * {self.pitch} + k"

    def multiply(self, w: KernelWriter, left: str = "held") -> None:
        pitch, name = self.pitch, "words" if self.dtype is dtypes.float32 else "part"
        for k in range(0, self.step, self.depth):
            above = [
                w.let(f"{name}_a({self.a}, ({left} * {self.rows} + down + {i * 16}) * {pitch}"
                      f" + {k}, {pitch})")
                for i in range(self.high)
            ]  # fmt: skip
            beside = [
                w.let(f"{name}_b({self.b}, (held * {self.cols} + {self.right} + {j * 8}) * {pitch}"
                      f" + {k}, {pitch})")
                for j in range(self.wide)
            ]  # fmt: skip
            for i, x in enumerate(above):
                for j, y in enumerate(beside):
                    at = 4 * (i * self.wide + j)
                    w.line(f"mma_{self.kind}({x}, {y}, {self.sums}, {at})")

    def place(self) -> tuple[str, str]:
        return (
            f"down + n // {4 * self.wide} * 16 + n // 2 % 2 * 8 + t % 32 // 4",
            f"{self.right} + n // 4 % {self.wide} * 8 + t % 4 * 2 + n % 2",
        )

    def wider(self, times: int) -> TensorCores:
        down = self.threads // 32 // self.across
        tile = (self.rows, times * self.cols, self.step, down, self.across)
        return TensorCores(tile, self.dtype)

    @property
    def sharing(self) -> int:
        return 4 * self.across

    def place_in_row(self) -> str:
        return f"t // 32 % {self.across} * 4 + t % 4"

    @property
    def own_rows(self) -> int:
        return 2 * self.high

    def own_row(self, n: str) -> str:
        return f"{n} // {4 * self.wide} * 2 + {n} // 2 % 2"

    def row(self, i: str) -> str:
        return f"down + {i} // 2 * 16 + {i} % 2 * 8 + t % 32 // 4"


Micro = Registers | TensorCores


def choose(
    c: Contraction, shape: tuple[int, int, int, int], target: CudaTarget, large: bool = True
) -> Micro:
    """The way of a contraction of (count, M, N, K); large: its tiles may be large ones."""
    count, rows, cols, depth = shape
    acc, kind = c.acc, _held(c.a)
    alike = _held(c.b) is kind and acc is dtypes.float32
    if alike and target.mma is not None and min(rows, cols, depth) >= 16:
        if kind in scalar.HALVES:
            return TensorCores(target.mma, kind)
        if kind is dtypes.float32 and c.parts:
            high, wide, step, *warps = target.mma
            return TensorCores((high, wide, max(step // 2, 8), *warps), kind)  # type: ignore[arg-type]
    tile = target.large_tile if large else None
    if acc is dtypes.float32 and tile is not None:
        tiles = -(-rows // tile[0]) * -(-cols // tile[1]) * count
        if tiles >= target.busy:
            return Registers(tile, acc)
    return Registers(target.tile, acc)


def _held(e: Expr) -> DType:
    """The dtype that all values of an expression fit in: that before casts to float32."""
    while e.op == "cast" and e.dtype is dtypes.float32 and e.args[0].dtype in scalar.HALVES:
        e = e.args[0]
    return e.dtype


def product(x: str, y: str, acc: str, dtype: DType) -> str:
    """acc + x * y, by fma for floats."""
    if dtype in (dtypes.float32, dtypes.float64):
        return f"libdevice.fma{'f' if dtype is dtypes.float32 else ''}({x}, {y}, {acc})"
    return scalar.arithmetic("add", dtype, [acc, scalar.arithmetic("mul", dtype, [x, y])])
