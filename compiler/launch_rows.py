"""Launch rows: a planned program becomes an Image, kernels rows of numbers over buffer slots.

Owns the numbering of slots and sizes, and the rows. Those of the bodies of control flow stand
behind those of the program; the row of the control flow (codegen/drivers.py tells its words) says
where. In front of it stand the rows that pack what all steps share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jitgrad.compiler.codegen import drivers
from jitgrad.compiler.codegen.kernelcode import Generated, Launch, Operand, Site, Size
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.image import CONTROL, Image
from jitgrad.compiler.kernels import Kernel, kernel_writes
from jitgrad.compiler.loops import Array
from jitgrad.compiler.passes.memory import lifetimes
from jitgrad.compiler.stages import Nested, Stages
from jitgrad.compiler.symbolic import Dim, Sym, prod
from jitgrad.runtime.buffers import round_up

Slots = dict[Array, int]
Base = tuple[int, Array]
"""Where the temporaries of a body lie: the number of an arena, an array in it."""
UNBOUNDED = 2**63 - 1


@dataclass
class _Part:
    """Rows to be made of a body: its stages, the slots of its inputs and results, where its
    temporaries lie, the site that it flags; and the args that are told where they are."""

    stages: Stages
    slots: Slots
    base: Base
    site: int
    args: list[int]
    where: int


def assemble(stages: Stages) -> tuple[Image, list[Sym]]:
    """The image of a planned graph, and the Syms whose values each call brings in sizes."""
    made = _Rows(stages)
    if made.syms:
        made.image.sizes = [str(s) for s in made.syms]
        with stages.graph.env.deciding_by_form():
            made.tell_arenas()
    return made.image, list(made.syms)


def _late(stages: Stages) -> list[int]:
    """The fresh results that nothing writes before the commit point."""
    waves, commit = stages.schedule.waves, stages.schedule.commit
    early = {a for wave in waves[:commit] for k in wave for a in kernel_writes(k)}
    return [i for i, a in enumerate(stages.program.fresh) if a not in early]


class _Rows:
    def __init__(self, stages: Stages) -> None:
        program = stages.program
        self.env = stages.graph.env
        # The dims themselves come first, so that the sizes of a call determine everything else.
        names = enumerate(self.env.hints)
        self.syms: dict[Sym, int] = {Sym({(name,): 1}, self.env): i for i, name in names}
        self.image = image = Image(n_inputs=len(program.inputs), n_results=len(program.fresh))
        image.results = [([_static(d) for d in a.shape], a.dtype.name) for a in program.fresh]
        image.late = _late(stages)
        image.arena_bytes = stages.plan.peak
        self.numbers: dict[tuple[str, str], int] = {}
        self.count = image.n_inputs + image.n_results
        self.parts: list[_Part] = []
        self.arenas: list[tuple[Stages, Base | None, int]] = []  # where each lies, and begins
        self.lies: list[tuple[int, int, Array]] = []  # slot, arena, array in it
        self.scratch: list[int] = []  # slots; the kernels of a wave have one each
        slots = {a: i for i, a in enumerate([*program.inputs, *program.fresh])}
        self._once(stages, slots)
        arena = self._place(stages, slots, None)
        self._rows(stages, slots, arena, None)
        image.n_main = len(image.launches)
        for part in self.parts:  # which grows: bodies may hold bodies
            part.args[part.where] = len(image.launches)
            arena = self._place(part.stages, part.slots, part.base)
            self._rows(part.stages, part.slots, arena, part.site)
            part.args[part.where + 1] = len(image.launches) - part.args[part.where]
        image.kernels = list(self.numbers)

    def _once(self, stages: Stages, slots: Slots) -> None:
        """The rows that make what is kept between calls; what is made alike is kept once."""
        image = self.image
        made: dict[tuple[object, ...], int] = {}
        for k in stages.kernels:
            code = stages.generated[k]
            for launch in code.launches:
                if not launch.once:
                    continue
                arrays = [x for x in launch.operands if isinstance(x, Array)]
                (own,) = [x for x in arrays if x in code.kept]
                read = [slots[x] for x in arrays if x is not own]
                words = [-1 if x is own else self._word(x, slots, None) for x in launch.operands]
                alike = (launch.once, *words)
                slot = made.get(alike)
                if slot is None:
                    slot = made[alike] = self._new()
                    image.kept[slot] = round_up(nbytes(own))
                    image.constants = sorted({*image.constants, *read})
                    words = [slot if w < 0 else w for w in words]
                    self._launch(code, launch, words, self._scratch(code, 0), True)
                slots[own] = slot
        image.n_once = len(image.launches)

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _place(self, stages: Stages, slots: Slots, base: Base | None) -> int:
        """Slots of the temporaries; the number of their arena. base None: of the program."""
        start = 0
        if base is not None:
            around, _, before = self.arenas[base[0]]
            start = before + around.plan.offsets[base[1]]
        arena = len(self.arenas)
        self.arenas.append((stages, base, start))
        for a, offset in stages.plan.offsets.items():
            slots[a] = self._new()
            self.lies.append((slots[a], arena, a))
            self.image.arena[slots[a]] = start + offset
        for a, target in stages.schedule.home.items():
            slots[a] = slots[target]
        return arena

    def tell_arenas(self) -> None:
        """Image.lives, within and lies: how the arenas follow from sizes."""
        image = self.image
        numbers: list[dict[Array, int]] = []
        for stages, base, _ in self.arenas:
            lives = lifetimes(stages.schedule, stages.fixed, stages.workspace)
            numbers.append({x.array: k for k, x in enumerate(lives)})
            image.lives.append(
                [(str(x.array.numel), x.array.dtype.itemsize, x.start, x.end, x.over)
                 for x in lives]
            )  # fmt: skip
            if base is not None:
                image.within.append((base[0], numbers[base[0]][base[1]]))
        image.lies = [(slot, arena, numbers[arena][a]) for slot, arena, a in self.lies]

    def _rows(self, stages: Stages, slots: Slots, arena: int, site: int | None) -> None:
        for n, wave in enumerate(stages.schedule.waves):
            if n == stages.schedule.commit and site is None:
                self.image.launches.append((-1, [], 0, 1, True))
            single = all(_count(stages.generated[k]) == 1 for k in wave)
            for i, k in enumerate(wave):
                number = sum(_needs_scratch(stages, other) for other in wave[:i]) if single else 0
                last = not single or k is wave[-1]
                self._kernel(stages, k, slots, arena, site, last, number)

    def _kernel(
        self,
        stages: Stages,
        k: Kernel,
        slots: Slots,
        arena: int,
        site: int | None,
        last: bool,
        number: int,
    ) -> None:
        """The rows of a kernel. number: how many before it have scratch, of what may run at the
        same time."""
        nested = stages.nested.get(k)
        if nested is not None:
            place = _Inner(self, nested, slots, arena, nested.site if site is None else site)
            number = self._number(CONTROL, place.symbol)
            self.image.launches.append((number, place.args, 1, 1, True))
            return
        code = stages.generated[k]
        scratch = self._scratch(code, number)
        for launch in code.launches:
            if not launch.once:
                words = [self._word(x, slots, site) for x in launch.operands]
                self._launch(code, launch, words, scratch, last)

    def launch(self, code: Generated, launch: Launch, slots: Slots, site: int) -> None:
        """A row that is a wave of its own."""
        words = [self._word(x, slots, site) for x in launch.operands]
        self._launch(code, launch, words, self._scratch(code, 0), True)

    def _scratch(self, code: Generated, number: int) -> list[int]:
        """The slot of the scratch that code needs, if any. Waves share the slots: scratch holds
        nothing from one block to the next, and what was written last is in the caches."""
        if not code.scratch:
            return []
        if number == len(self.scratch):
            self.scratch.append(self._new())
        slot = self.scratch[number]
        self.image.scratch[slot] = max(self.image.scratch.get(slot, 0), round_up(code.scratch))
        return [slot]

    def _launch(
        self, code: Generated, launch: Launch, words: list[int], scratch: list[int], last: bool
    ) -> None:
        number = self._number(code.key, launch.symbol)
        total = self.count_of(launch.total)
        self.image.launches.append((number, words + scratch, total, launch.grain, last))

    def size(self, d: Sym) -> int:
        """The number of a symbolic size."""
        return self.syms.setdefault(d, len(self.syms))

    def count_of(self, d: Dim) -> int:
        """The word of a number that may be symbolic: -s-1 for the size s."""
        return -self.size(d) - 1 if isinstance(d, Sym) else d

    def _number(self, key: str, symbol: str) -> int:
        return self.numbers.setdefault((key, symbol), len(self.numbers))

    def _word(self, x: Operand, slots: Slots, site: int | None) -> int:
        if isinstance(x, Array):
            return slots[x]
        if isinstance(x, Size):
            x = Sym({(x.name,): 1}, self.env)
        if isinstance(x, Sym):
            return self.size(x)
        if isinstance(x, Site):
            return int(x.tag) if site is None else site  # type: ignore[call-overload]
        return x

    def loose(self) -> int:
        """A slot that control flow binds while it runs."""
        self.image.loose.append(self._new())
        return self.image.loose[-1]


class _Inner:
    """The words of the row of a Nested; asks `rows` for the rows of its bodies."""

    def __init__(self, rows: _Rows, nested: Nested, slots: Slots, arena: int, site: int) -> None:
        self.rows, self.nested, self.slots, self.site = rows, nested, slots, site
        self.bases = {name: (arena, a) for name, a in nested.arena.items()}
        self.args: list[int] = []
        self.attrs: dict[str, Any] = nested.node.attr
        self.operands = [slots[a] for a in nested.operands]
        self.results = [slots[a] for a in nested.results]
        if "on_true" in nested.parts:
            self.symbol = "jg_branch"
            self.args = [self.operands[0], 0, 0, 0, 0]
            self._part("on_true", self.operands[1:], self.results, 1)
            self._part("on_false", self.operands[1:], self.results, 3)
        else:
            self.symbol = "jg_loop"
            self._loop()

    def _loop(self) -> None:
        rows, attrs, nested = self.rows, self.attrs, self.nested
        n, m = attrs["carries"], attrs.get("xs", 0)
        limit = attrs.get("length", attrs.get("limit"))
        self.args += [0] * drivers.HEAD
        self.args[drivers.STEPS] = UNBOUNDED if limit is None else rows.count_of(limit)
        self.args[drivers.REVERSE] = int(attrs.get("reverse", False))
        reads, writes = [rows.loose() for _ in range(n)], [rows.loose() for _ in range(n)]
        slices: list[int] = []
        for whole, a in [
            *zip(self.operands[n : n + m], nested.operands[n : n + m], strict=True),
            *zip(self.results[n:], nested.results[n:], strict=True),
        ]:
            part = rows.loose()
            slices.append(part)
            self.args += [part, whole, rows.count_of(prod(a.shape[1:]) * a.dtype.itemsize)]
        self.args[drivers.SLICES], self.args[drivers.CARRIES] = len(slices), n
        for k in range(n):
            first, second = (self.slots[a] for a in nested.buffers[k])
            self.args += [self.operands[k], self.results[k], reads[k], writes[k], first, second]
            result = nested.results[k]
            self.args.append(rows.count_of(result.numel * result.dtype.itemsize))
        consts = self.operands[n + m :]
        if nested.answer is not None:
            answer = self.slots[nested.answer]
            self.args[drivers.ANSWER] = answer
            self._part("cond", [*reads, *consts], [answer], drivers.TEST)
        self._part("body", [*reads, *slices[:m], *consts], [*writes, *slices[m:]], drivers.BODY)

    def _part(self, name: str, inputs: list[int], results: list[int], where: int) -> None:
        stages = self.nested.parts[name]
        program = stages.program
        slots = dict(zip(program.inputs, inputs, strict=True))
        slots.update(zip(program.fresh, results, strict=True))
        slots.update((a, self.slots[a]) for a in stages.kept)
        for code in stages.generated.values():
            for launch in code.launches:
                if launch.once:  # before the first step
                    self.rows.launch(code, launch, slots, self.site)
        self.rows.parts.append(_Part(stages, slots, self.bases[name], self.site, self.args, where))


def _needs_scratch(stages: Stages, k: Kernel) -> bool:
    return k not in stages.nested and bool(stages.generated[k].scratch)


def _count(code: Generated) -> int:
    """The launches of each call."""
    return sum(not launch.once for launch in code.launches)


def _static(d: Dim) -> int:
    return -1 if isinstance(d, Sym) else d
