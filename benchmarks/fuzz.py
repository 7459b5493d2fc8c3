"""Long runs of the fuzzer, from seeds: python benchmarks/fuzz.py [--first N] [--count N] [--keep]
[--segments] [--sizes].

Generates programs (tests/fuzz), runs each eager and compiled, and prints what differed, how many
compiled, why the others did not, and which records were compiled. --keep writes every failure, made
small, to tests/fuzz_cases/. --segments puts a Python effect into each call, so that programs run in
segments, four calls each. --sizes gives arguments other sizes in each call. The exit status is 1 if
anything differed or under 95 % compiled.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from fuzz.check import check  # noqa: E402 (found by the line above)
from fuzz.generate import generate, varied  # noqa: E402
from fuzz.minimise import minimise  # noqa: E402
from fuzz.program import Program  # noqa: E402

from jitgrad.compiler.ops.record import OPS  # noqa: E402


def fails(program: Program, **how: Any) -> bool:
    """Whether the program is valid and its runs differ. One without a name it needs is not."""
    try:
        return bool(check(program.text(), **how).problems)
    except NameError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare eager and compiled runs of programs.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--keep", action="store_true", help="minimise failures and keep them")
    parser.add_argument("--segments", action="store_true", help="with an effect in each call")
    parser.add_argument("--sizes", action="store_true", help="other sizes in each call")
    options = parser.parse_args()
    how: dict[str, Any] = {"calls": 4, "effects": True} if options.segments else {}
    names = sorted(OPS)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    compiled: Counter[str] = Counter()
    start = time.perf_counter()
    told = start
    for done, seed in enumerate(range(options.first, options.first + options.count)):
        if time.perf_counter() - told > 5:
            told = time.perf_counter()
            print(
                f"{done} of {options.count} programs, {counts['differ']} differ, "
                f"{told - start:.0f} s",
                flush=True,
            )
        program = generate(random.Random(seed), names[seed % len(names)])
        if options.sizes:
            program = varied(program)
        outcome = check(program.text(), **how)
        counts["valid"] += not outcome.invalid
        counts["compared to the bit"] += outcome.exact
        counts["rounding measured"] += outcome.noise
        counts["calls of compiled code"] += outcome.hits
        counts["native segments"] += outcome.segments
        compiled.update(outcome.ops)
        if outcome.fallback:
            reasons[outcome.fallback] += 1
        if outcome.problems:
            counts["differ"] += 1
            print(f"seed {seed}: {'; '.join(outcome.problems[:3])}", flush=True)
            if options.keep:
                small = minimise(program, partial(fails, **how))
                path = TESTS / "fuzz_cases" / f"seed_{seed}.txt"
                path.write_text(small.text())
                print(f"  kept as {path.name}")
    fallbacks = sum(reasons.values())
    share = 1 - fallbacks / max(counts["valid"], 1)
    print(f"{options.count} programs in {time.perf_counter() - start:.0f} s")
    for name, count in counts.items():
        print(f"  {name}: {count}")
    print(f"  compiled: {share:.1%}; eager instead: {fallbacks}")
    for reason, count in reasons.most_common():
        print(f"    {count} x {reason[:140]}")
    print(f"  records compiled: {len(set(names) & set(compiled))} of {len(names)}; never: "
          f"{', '.join(sorted(set(names) - set(compiled))) or 'none'}")  # fmt: skip
    return 1 if counts["differ"] or share < 0.95 else 0


if __name__ == "__main__":
    sys.exit(main())
