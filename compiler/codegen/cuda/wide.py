"""Wide accesses: a thread does some neighbouring points, and loads and stores them in one go.

Owns which loads and stores of a step can be of up to 128 bits (`lanes_of`) and how the points of a
thread are written (`Lanes`). Arrays that are not aligned when the kernel runs are read and written
element by element by the same threads, so results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.writer import Scope, cold
from jitgrad.compiler.codegen.program import Step
from jitgrad.compiler.codegen.schedule import coefficient, constant_of
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import Array, Expr, axis, postorder

_BYTES = 16
_MOST = 8
_BODY = 600  # expressions of all lanes together: longer bodies have fewer lanes


def lanes_of(step: Step, own: Container[object], along: int) -> int:
    """How many points along an axis a thread does at once: 1 where nothing would be wide."""
    places = [(x.attr, x.args[0]) for x in loops.loads(step.roots()) if x.attr in own]
    places += [(t.array, t.offset) for t in step.stores if t.array in own]
    sizes = [a.dtype.itemsize for a, offset in places if _step(a, offset, along) == 1]
    if not sizes:
        return 1
    count = min(_MOST, _BYTES // max(sizes))
    while count > 1 and count * len(postorder(step.roots())) > _BODY:
        count //= 2
    wide = [a for a, offset in places if is_wide(a, offset, along, count)]
    return count if count > 1 and wide else 1


def _step(array: Array, offset: Expr, along: int) -> int | None:
    """How far an access moves along an axis; None where it is not linear, or not made wide."""
    if array.dtype.is_complex:
        return None
    return constant_of(coefficient(Simplifier({}).poly(offset), axis(along)))


def is_wide(array: Array, offset: Expr, along: int, count: int) -> bool:
    """Whether `count` neighbours from a multiple of it on lie at one aligned place."""
    if _step(array, offset, along) != 1:
        return False
    thread = axis(along)
    for atoms, factor in Simplifier({}).poly(offset).items():
        if atoms == (thread,):
            continue
        if factor % count or any(thread in postorder([a]) for a in atoms):
            return False
    return True


class Lanes:
    """`count` points of a step: `scopes`, one of each, that know what was loaded for all."""

    def __init__(self, scope: Scope, step: Step, along: int, count: int) -> None:
        self.writer, self.along, self.count = scope.writer, along, count
        own = self.writer.operands.number
        roots = step.roots()
        order = postorder(roots)
        skipped = cold(order, roots)
        thread = axis(along)
        moving: set[Expr] = set()
        for e in order:
            if e is thread or any(a in moving for a in e.args):
                moving.add(e)
        # What all lanes share is computed once.
        ends = [a for e in order if e in moving for a in e.args] + list(roots)
        scope.values([e for e in dict.fromkeys(ends) if e not in moving and e not in skipped])
        first = scope.axes[along]
        self.scopes = []
        for k in range(count):
            lane = scope.child(keep=True)
            lane.axes[along] = first if k == 0 else self.writer.let(f"{first} + {k}", "j")
            self.scopes.append(lane)
        for e in order:
            if e.op != "load" or e.attr not in own or e in skipped or e not in moving:
                continue
            if is_wide(e.attr, e.args[0], along, count):
                self._load(e)

    def _load(self, e: Expr) -> None:
        w = self.writer
        names = [w.name() for _ in self.scopes]
        at = self.scopes[0].value(e.args[0])
        w.line(f"{', '.join(names)} = {self._call('load', e.attr)}{at})")
        for lane, name in zip(self.scopes, names, strict=True):
            text = scalar.loaded(name, e.attr.dtype)
            lane.memo[e] = text if text == name else w.let(text)

    def _call(self, what: str, array: Array) -> str:
        w = self.writer
        w.wide += 1
        return f"{what}{self.count}({w.array(array)}, {w.aligned(array)}, "

    def store(self, array: Array, offset: Expr, values: Sequence[str]) -> None:
        """The lanes' values at array[offset]."""
        if array not in self.writer.operands.number or not is_wide(
            array, offset, self.along, self.count
        ):
            for lane, value in zip(self.scopes, values, strict=True):
                lane.store(array, offset, value)
            return
        # A tuple of one type: what a register holds is converted to what memory does.
        held = ", ".join(scalar.element(v, array.dtype) for v in values)
        at = self.scopes[0].value(offset)
        self.writer.line(f"{self._call('store', array)}{at}, ({held}))")
