"""Stages: a graph at every level of the compiler; Nested: the same of graphs that a node holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.kernels import Kernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.lower import Program
from jitgrad.compiler.passes.memory import Plan, plan_memory
from jitgrad.compiler.passes.order import Schedule
from jitgrad.compiler.symbolic import Dim, hint


@dataclass
class Stages:
    """A graph at every level, as far as it was compiled (for explain, dumps and pictures)."""

    graph: Graph
    program: Program
    kernels: list[Kernel]
    schedule: Schedule
    generated: dict[Kernel, Generated]
    plan: Plan
    nested: dict[Kernel, Nested] = field(default_factory=dict)
    memory_limit: int | None = None

    @property
    def fixed(self) -> set[Array]:
        """The arrays with memory of their own: inputs and results."""
        return {*self.program.inputs, *self.program.fresh}

    @property
    def workspace(self) -> dict[Kernel, list[Array]]:
        """The temporary arrays that the code of each kernel needs while it runs."""
        return {k: g.workspace for k, g in self.generated.items()}

    @property
    def kept(self) -> list[Array]:
        """What its kernels keep of inputs that are constant."""
        return [a for g in self.generated.values() for a in g.kept]

    def planned(self, size_of: Callable[[Dim], int]) -> Stages:
        """The same stages with memory planned anew, for symbolic sizes as `size_of` says."""
        nested = {k: n.planned(size_of) for k, n in self.nested.items()}
        arenas = {
            a: max(n.parts[name].plan.peak, 1)
            for n in nested.values()
            for name, a in n.arena.items()
        }

        def bytes_of(a: Array) -> int:
            found = arenas.get(a)
            return size_of(a.numel) * a.dtype.itemsize if found is None else found

        plan = plan_memory(self.schedule, self.fixed, self.workspace, bytes_of)
        return replace(self, plan=plan, nested=nested)

    def all_generated(self) -> Iterator[Generated]:
        """The code of all kernels and their routines, those of bodies too."""
        for g in self.generated.values():
            yield from g.with_routines()
        for n in self.nested.values():
            for part in n.parts.values():
                yield from part.all_generated()

    def steps(self) -> Iterator[tuple[Stages, int]]:
        """Itself and the stages of all bodies, and how often each runs (a guess for loops whose
        test decides)."""
        yield self, 1
        for n in self.nested.values():
            times = n.times()
            for part in n.parts.values():
                for inner, count in part.steps():
                    yield inner, count * times


@dataclass
class Nested:
    """A node of control flow, as a kernel whose row runs the rows of its bodies.

    Attributes:
        node: with `parts`, by name: the stages of the graphs that it holds.
        operands, results: its arrays in the program that it stands in.
        site: the fault site that the kernels of its bodies flag.
        arena: for each part, an array that stands for the memory of its temporaries.
        buffers: two arrays for each carry of a loop, one step's and the next one's.
        answer: the result of a loop's test.
    """

    node: Node
    parts: dict[str, Stages]
    operands: list[Array]
    results: list[Array]
    site: int
    arena: dict[str, Array]
    buffers: list[tuple[Array, Array]] = field(default_factory=list)
    answer: Array | None = None

    @property
    def workspace(self) -> list[Array]:
        """All the memory that it needs while it runs."""
        made = [*self.arena.values(), *(a for pair in self.buffers for a in pair)]
        made += [a for part in self.parts.values() for a in part.kept]
        return made if self.answer is None else [*made, self.answer]

    def planned(self, size_of: Callable[[Dim], int]) -> Nested:
        """As Stages.planned, of all parts."""
        return replace(self, parts={k: part.planned(size_of) for k, part in self.parts.items()})

    def times(self) -> int:
        """How often its bodies run (a guess where that is known only then)."""
        attrs = self.node.attr
        steps = attrs.get("length", attrs.get("limit"))
        return 1 if steps is None else max(1, hint(steps))
