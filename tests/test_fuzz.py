"""Generated programs: eager and compiled runs agree on results, state, gradients and aliases.

The generator draws over all op records, through public functions and methods, and by direct calls
on the records' samples. tests/fuzz_cases/ holds every failure that was found, made small.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fuzz.check import check
from fuzz.generate import generate, varied
from fuzz.noise import EXACT, SUMS
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import forget_plans

CASES = sorted((Path(__file__).parent / "fuzz_cases").glob("*.txt"))
NAMES = sorted(OPS)


@pytest.mark.parametrize("effects", [False, True], ids=["plain", "segments"])
@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path, effects: bool) -> None:
    outcome = check(path.read_text(), calls=4, effects=effects)
    assert not outcome.problems and not outcome.fallback and not outcome.invalid


def run_seeds(seeds: range) -> tuple[dict[str, list[int]], set[str], int]:
    """Fallbacks by reason, ops that were compiled, how many bits were compared exactly."""
    fallbacks: dict[str, list[int]] = {}
    ops: set[str] = set()
    exact = 0
    for n in seeds:
        program = generate(random.Random(n), NAMES[n % len(NAMES)])
        outcome = check(program.text())
        assert not outcome.problems, f"seed {n}: {outcome.problems}\n{program.text()}"
        if outcome.fallback:
            fallbacks.setdefault(outcome.fallback, []).append(n)
        ops |= outcome.ops
        exact += outcome.exact
    return fallbacks, ops, exact


@pytest.mark.long
def test_every_record_and_few_fallbacks() -> None:
    """Two programs for each record; at least 95 % compile; every record is in a compiled graph
    (but for those that hold graphs, which are not drawn)."""
    count = 2 * len(NAMES)
    fallbacks, ops, exact = run_seeds(range(count))
    assert sum(map(len, fallbacks.values())) <= 0.05 * count, fallbacks
    missing = {n for n in NAMES if n not in ops and not OPS[n].bodies}
    assert len(missing) <= 3, missing  # samples that raise, or whose program falls back
    assert exact > 0.05 * count


def test_some_programs() -> None:
    """A few of what the long tier runs by thousands."""
    run_seeds(range(0, 24, 2))


def test_some_programs_in_segments() -> None:
    """With a Python effect in each call; some of the calls run machine code."""
    native = 0
    for n in range(1, 25, 3):
        program = generate(random.Random(n), NAMES[n % len(NAMES)])
        outcome = check(program.text(), calls=4, effects=True)
        assert not outcome.problems, f"seed {n}: {outcome.problems}\n{program.text()}"
        native += outcome.segments
    assert native


def test_some_programs_on_other_sizes() -> None:
    """Arguments have other sizes in each call; some of the calls run code with symbolic sizes."""
    hits = 0
    for n in range(1, 25, 3):
        program = varied(generate(random.Random(n), NAMES[n % len(NAMES)]))
        outcome = check(program.text())
        assert not outcome.problems, f"seed {n}: {outcome.problems}\n{program.text()}"
        hits += outcome.hits
    assert hits


@pytest.mark.long
@seed(20)
@settings(
    max_examples=25, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_drawn_by_hypothesis(r: random.Random) -> None:
    program = generate(r)
    outcome = check(program.text(), calls=3)
    assert not outcome.problems, f"{outcome.problems}\n{program.text()}"


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 14_000, 500))
def test_thousands(first: int) -> None:
    fallbacks, _, _ = run_seeds(range(first, first + 500))
    assert sum(map(len, fallbacks.values())) <= 25, fallbacks


def test_noise_knows_every_record() -> None:
    """A record that is not listed as exact gets noise; the lists name records that exist."""
    assert set(OPS) >= EXACT and set(OPS) >= SUMS and not EXACT & SUMS


def test_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is no formality: references that are off are noticed."""
    text = (
        "a = tensor('float32', (3, 4), 0)\n\n\ndef f():\n    return [a.exp() * 2, a + 1]\n\n\n"
        "def between(k):\n    pass\n\n\ndef arguments(k):\n    return ()\n"
    )
    assert not check(text).problems
    reference = OPS["exp"].reference
    calls = [0]

    def worse(self: object, x: np.ndarray) -> np.ndarray:
        calls[0] += 1
        return np.asarray(reference(x) * np.float32(1 + 2e-5), x.dtype)

    monkeypatch.setattr(type(OPS["exp"]), "reference", worse)
    forget_plans()  # some hold the reference
    outcome = check(text)
    assert calls[0] and outcome.problems
