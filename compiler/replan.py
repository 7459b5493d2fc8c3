"""The arena of an image for other values of its symbolic dims.

An image says how long each array lives and how many elements it has (image.Image.lives), so nothing
of the compiler's levels is needed: images from the disk cache are planned like new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jitgrad.compiler.image import Image
from jitgrad.compiler.parse import parse_dim
from jitgrad.compiler.passes.memory import Plan, peak_of, place
from jitgrad.compiler.passes.recompute import check_limit
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.symbolic import Dim, ShapeEnv, Sym, evaluate, hint

_Replan = Callable[[Mapping[str, int]], dict[int, int]]
_Lives = list[tuple[int, int, list[int]]]


def replanner(image: Image, env: ShapeEnv, stages: Stages | None = None) -> _Replan:
    """The arena for other values of the symbolic dims: {slot: offset} and, at -1, its bytes.

    stages: whose memory is limited; their plan is then checked for these values, too.
    """
    sizes, lives = _arenas(image, env)
    limit = None if stages is None else stages.memory_limit

    def replan(values: Mapping[str, int]) -> dict[int, int]:
        if stages is not None and limit is not None:
            check_limit(_plan_at(stages, values), limit, lambda d: evaluate(d, values))
        now = [[evaluate(n, values) for n in arena] for arena in sizes]
        offsets: list[list[int]] = [[] for _ in now]
        peak = 0
        for k in reversed(range(len(now))):  # arenas lie in those before them
            blocks, offsets[k] = place(lives[k], now[k])
            peak = peak_of(blocks)
            if k:
                around, life = image.within[k - 1]
                now[around][life] = peak
        starts = [0]
        for around, life in image.within:
            starts.append(starts[around] + offsets[around][life])
        arena = {slot: starts[k] + offsets[k][life] for slot, k, life in image.lies}
        return {**arena, -1: peak}

    return replan


def largest(image: Image, env: ShapeEnv) -> Dim:
    """The bytes of the arrays that are live in the wave with the most (by the hints), as a
    formula."""
    sizes, lives = _arenas(image, env)
    total: Dim = 0
    for k in reversed(range(len(sizes))):
        blocks, _ = place(lives[k], [hint(n) for n in sizes[k]])
        live = [[b for b in blocks if b.start <= n <= b.end] for _, n, _ in lives[k]]
        total = 0
        for b in max(live, key=lambda found: sum(b.size for b in found), default=[]):
            total = total + sizes[k][b.lives[0]]
        if k:
            around, life = image.within[k - 1]
            sizes[around][life] = total
    return total


def _arenas(image: Image, env: ShapeEnv) -> tuple[list[list[Dim]], list[_Lives]]:
    """For each arena, the bytes of each of its arrays, and their lives as `place` takes them."""
    dims = {name: Sym({(name,): 1}, env) for name in env.hints}
    with env.deciding_by_form():
        sizes = [
            [parse_dim(text, dims) * item for text, item, *_ in arena] for arena in image.lives
        ]
    return sizes, [[(start, end, over) for *_, start, end, over in a] for a in image.lives]


def _plan_at(stages: Stages, values: Mapping[str, int]) -> Plan:
    with stages.graph.env.deciding_by_form():
        return stages.planned(lambda d: evaluate(d, values)).plan
