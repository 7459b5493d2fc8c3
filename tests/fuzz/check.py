"""Runs a program eager and compiled, and says whether they agree.

Owns `check` and `Outcome`. Nothing is loosened for ill-conditioned programs: where two runs differ
by more than a few ulp, eager runs with noise in its inexact ops say what rounding explains.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuzz.compare import Picture, Shown, differences, explained, picture
from fuzz.noise import noisy, row_major
from fuzz.program import CALLS, run
from jitgrad.jit import JitFunction
from jitgrad.runtime.knobs import knob

RUNS = 24


@dataclass
class Outcome:
    """problems: what differs, by call; empty when all agree. fallback: why it was not compiled, or
    "". exact: no inexact op ran, so that bits were compared. noise: rounding explained something.
    invalid: the program itself raises at the first eager call.
    """

    problems: list[str] = field(default_factory=list)
    fallback: str = ""
    exact: bool = False
    noise: bool = False
    invalid: bool = False
    ops: set[str] = field(default_factory=set)
    raised: bool = False
    hits: int = 0
    segments: int = 0
    traces: int = 0


def pictures(text: str, wrap: Any = lambda f: f, calls: int = CALLS) -> list[Picture]:
    """One picture for each call, up to the first that raises."""
    out = []
    for step in run(text, wrap, calls):
        out.append(picture(step))
        if step.error is not None:
            break
    return out


def check(text: str, calls: int = CALLS, effects: bool = False) -> Outcome:
    """Runs the program eager and under jit and compares every call. effects: with a Python effect
    in front of each call, so that it runs in segments."""
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with noisy(None) as noise:
            eager = pictures(text, calls=calls)
        outcome.exact = not noise.used
        if eager[0].error is not None:
            outcome.invalid = True
            return outcome
        made: list[JitFunction] = []

        def wrap(f: Any) -> JitFunction:
            happened: list[None] = []

            def with_effect(*args: Any) -> Any:
                happened.extend([None])
                return f(*args)

            made.append(JitFunction(with_effect if effects else f, fallback="silent"))
            return made[0]

        with knob(verify=True):
            fast = pictures(text, wrap, calls)
        found = made[0]
        if found.eager:
            outcome.fallback = found.eager[0].reason
        outcome.hits, outcome.traces = found.stats.hits, found.stats.traces
        for spec in found.specialisations:
            outcome.ops |= {n.op.name for n in spec.trace.graph.nodes}
        if found.segmented is not None:
            outcome.segments = found.stats.segments
            graphs = [p.graph for p in found.segmented.segments.programs if p.graph is not None]
            outcome.ops |= {n.op.name for graph in graphs for n in graph.nodes}
        outcome.raised = eager[-1].error is not None
        _compare(text, eager, fast, outcome, calls)
        if outcome.problems and effects:  # segments' results are row-major: more of them are views
            with row_major():
                ordered = pictures(text, calls=calls)
            outcome.problems.clear()
            _compare(text, [_nearer(*three) for three in zip(eager, ordered, fast, strict=False)],
                     fast, outcome, calls)  # fmt: skip
    return outcome


def _nearer(eager: Picture, ordered: Picture, fast: Picture) -> Picture:
    """Which of two eager pictures has the aliases of the third (first calls run eagerly)."""
    return ordered if eager.aliases != fast.aliases == ordered.aliases else eager


def _compare(
    text: str, eager: list[Picture], fast: list[Picture], outcome: Outcome, calls: int
) -> None:
    noise_runs: list[list[Picture]] | None = None
    for k, (a, b) in enumerate(zip(eager, fast, strict=False)):
        found = differences(a, b, outcome.exact)
        for path, what in found:
            if path and not outcome.exact:
                if noise_runs is None:
                    noise_runs = _noise_runs(text, calls)
                x, y = a.values[path], b.values[path]
                if _explained(x, y, path, k, noise_runs):
                    outcome.noise = True
                    continue
            outcome.problems.append(f"call {k}: {what}")
        if outcome.problems:
            return
    if len(eager) != len(fast):
        outcome.problems.append(f"{len(eager)} calls against {len(fast)}: {eager[-1].error!r}")


def _noise_runs(text: str, calls: int) -> list[list[Picture]]:
    out = []
    for seed in range(RUNS):
        with noisy(seed):
            out.append(pictures(text, calls=calls))
    return out


def _explained(x: Shown, y: Shown, path: str, k: int, runs: list[list[Picture]]) -> bool:
    moved: list[np.ndarray[Any, Any]] = []
    for r in runs:
        if k >= len(r):
            continue
        shown = r[k].values.get(path)
        if isinstance(shown, Shown) and shown.array.shape == x.array.shape:
            moved.append(shown.array)
    return bool(moved) and explained(x.array, y.array, moved)
