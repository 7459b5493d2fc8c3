"""Interleaved benchmarks: each contender in its own process, timed in turn, compared by medians.

Owns processes and numbers; what is measured is in the scripts. A contender is Python source that
defines `step()` (and may define `check()`, whose numbers must agree between contenders). Machines
are shared and noisy, so rounds are interleaved and ratios are of medians. NumPy runs with
OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE unset, since they pin an older kernel.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

_WORKER = """
import json, sys, time
source = json.loads(sys.stdin.readline())
scope = {"__name__": "contender"}
try:
    exec(compile(source, "contender", "exec"), scope)
except ImportError as error:
    print(json.dumps({"missing": str(error)}), flush=True)
    sys.exit(0)
step = scope["step"]
values = scope["check"]() if "check" in scope else None
step()
n, spent = 1, 0.0
while True:
    t = time.perf_counter()
    for _ in range(n):
        step()
    spent = time.perf_counter() - t
    if spent > 0.02 or n > 1 << 20:
        break
    n *= 2
n = max(1, int(n * SECONDS / max(spent, 1e-9)))
print(json.dumps({"ready": n, "check": values}), flush=True)
for line in sys.stdin:
    t = time.perf_counter()
    for _ in range(n):
        step()
    print(json.dumps((time.perf_counter() - t) / n), flush=True)
"""


@dataclass
class Contender:
    """One competitor: its name, its source, extra environment."""

    name: str
    source: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Seconds of each round of one contender."""

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def _start(contender: Contender, seconds: float, threads: int) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items()
           if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}  # fmt: skip
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                 "JITGRAD_NUM_THREADS"):  # fmt: skip
        env[name] = str(threads)
    env |= contender.env
    worker = _WORKER.replace("SECONDS", repr(seconds))
    process = subprocess.Popen(
        [sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=env,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(contender.source) + "\n")
    process.stdin.flush()
    return process


def _ask(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a contender died; its error is above")
    return json.loads(line)


def compare(
    title: str,
    contenders: list[Contender],
    rounds: int = 11,
    seconds: float = 0.1,
    threads: int = 1,
    rtol: float = 1e-3,
) -> dict[str, Result]:
    """Runs the contenders in turn; prints medians and ratios to the first; returns results.

    Contenders whose packages are missing are left out. Raises AssertionError when their `check()`
    numbers disagree.
    """
    running: list[tuple[Contender, subprocess.Popen[str]]] = []
    results: dict[str, Result] = {}
    expected: list[float] | None = None
    print(f"\n{title}  ({threads} thread{'s' if threads > 1 else ''})")
    for c in contenders:
        process = _start(c, seconds, threads)
        answer = _ask(process)
        assert isinstance(answer, dict)
        if "missing" in answer:
            print(f"  {c.name:28} skipped: {answer['missing']}")
            continue
        if answer["check"] is not None:
            if expected is None:
                expected = answer["check"]
            worst = max(
                abs(a - b) / max(1e-6, abs(a))
                for a, b in zip(expected, answer["check"], strict=True)
            )
            if not worst <= rtol:
                raise AssertionError(f"{c.name} computes something else: off by {worst:.2e}")
        running.append((c, process))
        results[c.name] = Result(c.name, [])
    for _ in range(rounds):
        for c, process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = _ask(process)
            assert isinstance(answer, float)
            results[c.name].seconds.append(answer)
    for _, process in running:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    first = next(iter(results.values())).median
    for r in results.values():
        print(f"  {r.name:28} {_time(r.median):>10}   {r.median / first:6.2f} x")
    return results


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError
