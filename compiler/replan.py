"""The arena of an image for other values of its symbolic dims.

An image says how long each array lives and how many elements it has (image.Image.lives), so nothing
of the compiler's levels is needed: images from the disk cache are planned like new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jitgrad.compiler.image import Image
from jitgrad.compiler.parse import parse_dim
from jitgrad.compiler.passes.memory import Plan, peak_of, place, plan_memory
from jitgrad.compiler.passes.recompute import check_limit
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.symbolic import Dim, ShapeEnv, Sym, evaluate, hint

_Replan = Callable[[Mapping[str, int]], dict[int, int]]


def replanner(image: Image, env: ShapeEnv, stages: Stages | None = None) -> _Replan:
    """The arena for other values of the symbolic dims: {slot: offset} and, at -1, its bytes.

    stages: whose memory is limited; their plan is then checked for these values, too.
    """
    sizes, lives = _lives(image, env)
    limit = None if stages is None else stages.memory_limit

    def replan(values: Mapping[str, int]) -> dict[int, int]:
        if stages is not None and limit is not None:
            check_limit(_plan_at(stages, values), limit, lambda d: evaluate(d, values))
        blocks, offsets = place(lives, [evaluate(n, values) for n in sizes])
        arena = {slot: offsets[k] + behind for slot, k, behind in image.lies}
        return {**arena, -1: peak_of(blocks)}

    return replan


def largest(image: Image, env: ShapeEnv) -> Dim:
    """The bytes of the arrays that are live in the wave with the most (by the hints), as a
    formula."""
    sizes, lives = _lives(image, env)
    blocks, _ = place(lives, [hint(n) for n in sizes])
    live = [[b for b in blocks if b.start <= n <= b.end] for _, n, _ in lives]
    total: Dim = 0
    for b in max(live, key=lambda found: sum(b.size for b in found), default=[]):
        total = total + sizes[b.lives[0]]
    return total


def _lives(image: Image, env: ShapeEnv) -> tuple[list[Dim], list[tuple[int, int, list[int]]]]:
    """The bytes of each array of the arena, and its life as `place` takes it."""
    dims = {name: Sym({(name,): 1}, env) for name in env.hints}
    with env.deciding_by_form():
        sizes = [parse_dim(text, dims) * item for text, item, *_ in image.lives]
    return sizes, [(start, end, over) for _, _, start, end, over in image.lives]


def _plan_at(stages: Stages, values: Mapping[str, int]) -> Plan:
    fixed = {*stages.program.inputs, *stages.program.fresh}
    workspace = {k: g.workspace for k, g in stages.generated.items()}
    with stages.graph.env.deciding_by_form():
        return plan_memory(
            stages.schedule, fixed, workspace,
            lambda a: evaluate(a.numel, values) * a.dtype.itemsize,
        )  # fmt: skip
