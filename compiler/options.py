"""Options: what a compilation depends on besides the graph."""

from __future__ import annotations

from dataclasses import dataclass

from jitgrad.compiler.codegen.target import Target


@dataclass(frozen=True)
class Options:
    """What a compilation depends on besides the graph.

    strides: (input number, memory strides in elements) of inputs that are not dense row-major.
    target: the machine; None is this one.
    """

    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    target: Target | None = None
