"""What a code generator hands on: `Generated` and its `Launch`es, and the kernel ABI.

Owns the contract between the CPU code generators (`llvm.py`, `contraction.py`), the memory plan and
the launch table. It knows no LLVM.

The kernel ABI (the launch table's side is in `pool.py`):

    void k(Ctx* ctx, i8** bufs, const i64* args, i64 begin, i64 end, i64 worker)

does the points [begin, end) of the launch's flattened parallel space [0, total). `args[j]` belongs
to `launch.operands[j]`:

    Array   the slot of its memory in `bufs`, a table of words, also where pointers are smaller
    int     the value itself
    Sym     the number of the word in the sizes (Ctx word 2) that holds the value of that Sym
    Site    the site's number, written by atomic unsigned minimum to the error cell (Ctx word 1)

If `scratch` > 0, `args[len(operands)]` is the slot of a buffer of nthreads * scratch bytes, of
which a kernel uses the part at worker * scratch. Successive launches of one kernel are separated by
barriers. `total` may be symbolic; 0 means that nothing runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jitgrad.compiler.loops import Array
from jitgrad.compiler.symbolic import Dim

ROUTINE = "jgr_"
"""What the symbols of routines begin with: functions that kernels share (routines.py)."""


@dataclass(frozen=True)
class Site:
    """An error site of a kernel: `tag` is what `loops.check` was given."""

    tag: Hashable


@dataclass(frozen=True)
class Size:
    """A named symbolic dim that no shape in the kernel shows (a bound that a check asks for); or,
    inside canonical.py, a number that each launch brings as a word (offsets.py)."""

    name: str


Operand = Array | Dim | Site | Size


@dataclass(frozen=True)
class Launch:
    """One call of `symbol` over [0, total), in blocks of `grain` points; any multiple of `unit`
    would do as well. `once`: not "" where what it reads are constants, and what it writes is kept:
    a digest of its code, for launches of other kernels that do the same."""

    symbol: str
    operands: list[Operand]
    total: Dim
    grain: int
    unit: int = 1
    once: str = ""


@dataclass
class Generated:
    """A kernel's code and how to run it.

    Attributes:
        key: digest of the code, the same for equal kernels whatever their arrays are called.
        module_text: LLVM assembly; symbols carry the key, so many modules link together.
        launches: in order, a barrier after each.
        workspace: temporary arrays among the operands that the memory plan must provide.
        kept: arrays among the operands that stay between calls; launches of kind `once` fill them.
        scratch: bytes for each worker.
        may_call: symbols from outside that this code may need (none for kernels).
        shapes: of GPU code: how each function is launched (codegen/cuda/generate.py).
        routines: the code of the functions that it calls; their keys are their symbols.
        driver: whether all that runs often lies in routines, so that optimising pays nothing.
    """

    key: str
    module_text: str
    launches: list[Launch]
    workspace: list[Array] = field(default_factory=list)
    scratch: int = 0
    may_call: frozenset[str] = frozenset()
    shapes: dict[str, Any] = field(default_factory=dict)
    routines: tuple[Generated, ...] = ()
    kept: tuple[Array, ...] = ()
    driver: bool = False

    def with_routines(self) -> Iterator[Generated]:
        """Its routines, then itself."""
        yield from self.routines
        yield self
