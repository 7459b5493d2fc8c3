"""Options: what a compilation depends on besides the graph."""

from __future__ import annotations

from dataclasses import dataclass

from jitgrad.compiler.codegen.target import Target


@dataclass(frozen=True)
class Options:
    """What a compilation depends on besides the graph.

    strides: (input number, memory strides in elements) of inputs that are not dense row-major.
    target: the machine; None is this one.
    memory_limit: the most bytes that the plan of temporaries may have; None is no limit.
    constants: numbers of inputs that seldom change: what is made of them alone is kept between
        calls (Compiled.prepare makes it).
    """

    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    target: Target | None = None
    memory_limit: int | None = None
    constants: frozenset[int] = frozenset()
