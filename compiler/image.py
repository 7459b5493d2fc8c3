"""Image: a compiled graph as plain data, the last thing before addresses.

Everything that running needs and nothing that only compiling needs: kernels by key and symbol, the
launch rows, what each buffer slot is, the arena. It is JSON (no code, no pickle), so it is what
the graph level of the disk cache holds, and what export writes into a library.

Slots of the buffer table: graph inputs, then fresh results, then temporaries and scratch, then what
is kept between calls.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 7


CONTROL = "control"
"""Stands for the object file of rows of control flow; the symbol is that of their driver
(codegen/drivers.py)."""


@dataclass
class Image:
    """Attributes:
    kernels: (object key, symbol) of each distinct kernel function.
    launches: (kernel number, args, total, grain, last_of_wave); kernel -1 is the commit row.
    n_once: the first rows, which make what is kept; they need not run while no constant changes.
    n_main: the rows of the program, with the first ones; those of bodies of control flow stand
        behind them.
    constants: numbers of the inputs that the first rows read.
    loose: slots that control flow sets while it runs.
    n_inputs, n_results: slots 0..n_inputs-1 and the next n_results come with each call.
    results: (shape, dtype name) of each fresh result.
    late: the results that are written after the commit row only.
    arena: {slot: byte offset}; arena_bytes.
    scratch: {slot: bytes for each worker}.
    kept: {slot: bytes} of memory that stays between calls.
    n_sites: of faults that kernels may flag.
    sizes: the symbolic sizes that a call brings, as text; guards: what compiling assumed of them
        ((kind, a, b, outcome), as text). lives: for each arena, of each array in it (elements, as
        text, bytes of one, first and last wave, the numbers of lives that it may be stored over).
        within: for each arena but the first, where it lies itself: (arena before it, life). lies:
        (slot, arena, life).
    report: figures for people: see Report in pipeline.py.
    """

    kernels: list[tuple[str, str]] = field(default_factory=list)
    launches: list[tuple[int, list[int], int, int, bool]] = field(default_factory=list)
    n_once: int = 0
    n_main: int = 0
    constants: list[int] = field(default_factory=list)
    loose: list[int] = field(default_factory=list)
    n_inputs: int = 0
    n_results: int = 0
    results: list[tuple[list[int], str]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    arena: dict[int, int] = field(default_factory=dict)
    arena_bytes: int = 0
    scratch: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    n_sites: int = 0
    sizes: list[str] = field(default_factory=list)
    guards: list[tuple[str, str, str, bool]] = field(default_factory=list)
    lives: list[list[tuple[str, int, int, int, list[int]]]] = field(default_factory=list)
    within: list[tuple[int, int]] = field(default_factory=list)
    lies: list[tuple[int, int, int]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def n_buffers(self) -> int:
        fixed = self.n_inputs + self.n_results + len(self.loose)
        return fixed + len(self.arena) + len(self.scratch) + len(self.kept)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Image | None:
        """Reads an image; None when it is of another version or malformed."""
        try:
            raw = json.loads(data)
            if raw["version"] != VERSION:
                return None
            return cls(
                [(str(k), str(s)) for k, s in raw["kernels"]],
                [(int(k), [int(a) for a in args], int(t), int(g), bool(last))
                 for k, args, t, g, last in raw["launches"]],
                int(raw["n_once"]),
                int(raw["n_main"]),
                [int(k) for k in raw["constants"]],
                [int(k) for k in raw["loose"]],
                int(raw["n_inputs"]),
                int(raw["n_results"]),
                [([int(d) for d in shape], str(dtype)) for shape, dtype in raw["results"]],
                [int(k) for k in raw["late"]],
                {int(k): int(v) for k, v in raw["arena"].items()},
                int(raw["arena_bytes"]),
                {int(k): int(v) for k, v in raw["scratch"].items()},
                {int(k): int(v) for k, v in raw["kept"].items()},
                int(raw["n_sites"]),
                [str(s) for s in raw["sizes"]],
                [(str(k), str(a), str(b), bool(o)) for k, a, b, o in raw["guards"]],
                [[(str(n), int(size), int(start), int(end), [int(k) for k in over])
                  for n, size, start, end, over in arena] for arena in raw["lives"]],
                [(int(arena), int(life)) for arena, life in raw["within"]],
                [(int(slot), int(arena), int(life)) for slot, arena, life in raw["lies"]],
                dict(raw["report"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
