"""A stable sort of unsigned keys with their places, by digits of 4 bits from the lowest on.

Owns `Radix`: its memory and its launches. For each digit, blocks count the digits of their tiles,
one block for each line sums the counts, and blocks move their tiles' keys to where they belong
(the radix sort of D. Merrill and A. Grimshaw, Parallel Processing Letters 21(2), 2011, with digits
ranked by each thread's own counts). Lines lie one after the other; there is no workspace but two
copies of keys and places and the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part
from jitgrad.compiler.codegen.schedule import Operands
from jitgrad.compiler.loops import Array
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_BITS = 4
_DIGITS = 1 << _BITS
_EACH = 8  # elements of a thread


@dataclass
class Radix:
    """The sort of `lines` lines of `count` keys each, of which the lowest `bits` bits differ.

    Attributes: keys, places: arrays that the first launch of these parts reads, written by a kernel
    before them; the last ones hold what is sorted (`sorted_keys`, `sorted_places`).
    """

    lines: int
    count: int
    bits: int
    target: CudaTarget
    keys: list[Array] = field(init=False)
    places: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.lines * self.count,)
        kind: DType = dtypes.uint32 if self.bits <= 32 else dtypes.uint64
        self.keys = [Array(f"keys{k}", shape, kind) for k in range(2)]
        self.places = [Array(f"places{k}", shape, dtypes.int32) for k in range(2)]
        self.tile = self.target.threads * _EACH
        self.tiles = -(-self.count // self.tile)
        self.counts = Array("counts", (self.lines * _DIGITS * self.tiles,), dtypes.int32)

    @property
    def digits(self) -> int:
        return -(-self.bits // _BITS)

    @property
    def sorted_keys(self) -> Array:
        return self.keys[self.digits % 2]

    @property
    def sorted_places(self) -> Array:
        return self.places[self.digits % 2]

    @property
    def workspace(self) -> list[Array]:
        return [*self.keys, *self.places, self.counts]

    def parts(self) -> list[Part]:
        """The launches, three for each digit."""
        count, offsets, move = self._count(), self._offsets(), self._move()
        found = []
        for n in range(self.digits):
            a, b = n % 2, (n + 1) % 2
            keys, places, shift = self.keys, self.places, n * _BITS
            blocks = self.lines * self.tiles
            found += [
                Part(count, blocks, 1, (keys[a], self.counts, shift)),
                Part(offsets, self.lines, 1),
                Part(move, blocks, 1, (keys[a], places[a], keys[b], places[b], self.counts, shift)),
            ]
        return found

    def _writer(self, symbol: str) -> KernelWriter:
        return KernelWriter(symbol, Operands(), {}, self.target)

    @contextmanager
    def _blocks(self, w: KernelWriter, count: int) -> Iterator[None]:
        """Each block takes some of so many pieces of work, p, in turn."""
        w.line("t = cuda.threadIdx.x")
        with w.block(f"for p in range(cuda.blockIdx.x, {count}, cuda.gridDim.x):"):
            yield
            w.line("cuda.syncthreads()")

    @contextmanager
    def _each_tile(self, w: KernelWriter) -> Iterator[str]:
        """A block has a tile of a line. Gives an array of each thread's own counts of digits."""
        held = w.shared(_DIGITS * (w.threads + 1), dtypes.int32)
        with self._blocks(w, self.lines * self.tiles):
            w.line(f"line, tile = p // {self.tiles}, p % {self.tiles}")
            with w.block(f"for d in range({_DIGITS}):"):
                w.line(f"{held}[d * {w.threads + 1} + t] = i32(0)")
            yield held

    def _count(self) -> KernelWriter:
        w = self._writer("count")
        keys, counts, shift = w.memory(self.keys[0]), w.memory(self.counts), w.word(0)
        T, n = w.threads, self.count
        with self._each_tile(w) as held:
            w.line(f"end = min((tile + 1) * {self.tile}, {n})")
            with w.block(f"for e in range(tile * {self.tile} + t, end, {T}):"):
                w.line(f"d = digit({keys}[line * {n} + e], {shift})")
                w.line(f"{held}[d * {T + 1} + t] += i32(1)")
            w.line("cuda.syncthreads()")
            with w.block(f"for d in range(t, {_DIGITS}, {T}):"):
                w.line("total = i32(0)")
                with w.block(f"for k in range({T}):"):
                    w.line(f"total += {held}[d * {T + 1} + k]")
                w.line(f"{counts}[(line * {_DIGITS} + d) * {self.tiles} + tile] = i32(total)")
        return w

    def _offsets(self) -> KernelWriter:
        """Of each digit and tile, where in the line its first key goes."""
        w = self._writer("offsets")
        counts = w.memory(self.counts)
        T, size = w.threads, _DIGITS * self.tiles
        each = -(-size // T)
        held = w.shared(T, dtypes.int32)
        with self._blocks(w, self.lines):
            w.line(f"first, end = t * {each}, min((t + 1) * {each}, {size})")
            w.line("total = i32(0)")
            with w.block("for k in range(first, end):"):
                w.line(f"total += {counts}[p * {size} + k]")
            w.line(f"{held}[t] = i32(total)")
            w.line("cuda.syncthreads()")
            w.line("before = i32(0)")
            with w.block("for k in range(t):"):
                w.line(f"before += {held}[k]")
            with w.block("for k in range(first, end):"):
                w.line(f"mine = {counts}[p * {size} + k]")
                w.line(f"{counts}[p * {size} + k] = i32(before)")
                w.line("before += mine")
        return w

    def _move(self) -> KernelWriter:
        w = self._writer("move")
        keys, places, to_keys, to_places, counts = (
            w.memory(a)
            for a in (self.keys[0], self.places[0], self.keys[1], self.places[1], self.counts)
        )
        shift = w.word(0)
        T, n = w.threads, self.count
        tile_keys = w.shared(self.tile, self.keys[0].dtype)
        with self._each_tile(w) as held:
            w.line(f"base = line * {n}")
            w.line(f"first = tile * {self.tile}")
            w.line(f"size = min({self.tile}, {n} - first)")
            with w.block(f"for e in range(t, size, {T}):"):
                w.line(f"{tile_keys}[e] = {keys}[base + first + e]")
            w.line("cuda.syncthreads()")
            w.line(f"start, end = t * {_EACH}, min((t + 1) * {_EACH}, size)")
            with w.block("for e in range(start, end):"):
                w.line(f"{held}[digit({tile_keys}[e], {shift}) * {T + 1} + t] += i32(1)")
            w.line("cuda.syncthreads()")
            with w.block(f"for d in range(t, {_DIGITS}, {T}):"):
                w.line(f"at = {counts}[(line * {_DIGITS} + d) * {self.tiles} + tile]")
                with w.block(f"for k in range({T}):"):
                    w.line(f"mine = {held}[d * {T + 1} + k]")
                    w.line(f"{held}[d * {T + 1} + k] = i32(at)")
                    w.line("at += mine")
            w.line("cuda.syncthreads()")
            with w.block("for e in range(start, end):"):
                w.line(f"key = {tile_keys}[e]")
                w.line(f"cell = digit(key, {shift}) * {T + 1} + t")
                w.line(f"at = {held}[cell]")
                w.line(f"{held}[cell] = i32(at + 1)")
                w.line(f"{to_keys}[base + at] = key")
                w.line(f"{to_places}[base + at] = {places}[base + first + e]")
        return w
