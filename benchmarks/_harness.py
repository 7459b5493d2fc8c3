"""Interleaved benchmarks: each contender in its own process, timed in turn, compared by medians.

Owns processes and numbers; what is measured is in the scripts. A contender is Python source that
defines `step()` (and may define `check()`, whose numbers must agree between contenders). `THREADS`
in it is the number of threads; a process may use as many CPUs. Machines are shared and noisy, so
rounds are interleaved and ratios are of medians. Between the rounds of programs with several
threads is a pause: some libraries' threads look for work long after a call (ONNX Runtime's for 40
ms), on the processor that the next contender wants. NumPy runs with OPENBLAS_CORETYPE and
OPENBLAS_L2_SIZE unset, since they pin an older kernel.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

_WORKER = """
import json, os, sys, time, traceback
answers, sys.stdout = sys.stdout, sys.stderr
source = json.loads(sys.stdin.readline())
scope = {"__name__": "contender"}
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
def say(x):
    print(json.dumps(x), file=answers, flush=True)
try:
    exec(compile(source, "contender", "exec"), scope)
    step = scope["step"]
    values = scope["check"]() if "check" in scope else None
    step()
except ImportError as error:
    say({"missing": str(error)})
    sys.exit(0)
except Exception as error:
    traceback.print_exc()
    say({"failed": f"{type(error).__name__}: {error}".split("\\n")[0]})
    sys.exit(0)
n, spent = 1, 0.0
while True:
    t = CLOCK()
    for _ in range(n):
        step()
    spent = CLOCK() - t
    if spent > 0.02 or n > 1 << 20:
        break
    n *= 2
n = max(1, int(n * SECONDS / max(spent, 1e-9)))
say({"ready": n, "check": values})
for line in sys.stdin:
    t = CLOCK()
    for _ in range(n):
        step()
    say((CLOCK() - t) / n)
"""


_PAUSE = 0.15  # seconds


@dataclass
class Contender:
    """One competitor: its name, its source, extra environment."""

    name: str
    source: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Seconds of each round of one contender; or none, and why it was left out."""

    name: str
    seconds: list[float]
    reason: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def _start(contender: Contender, seconds: float, threads: int, clock: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items()
           if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}  # fmt: skip
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                 "JITGRAD_NUM_THREADS"):  # fmt: skip
        env[name] = str(threads)
    env |= contender.env
    worker = _WORKER.replace("SECONDS", repr(seconds)).replace("THREADS", str(threads))
    worker = worker.replace("CLOCK", f"time.{clock}")
    process = subprocess.Popen(
        [sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=env,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(contender.source.replace("THREADS", str(threads))) + "\n")
    process.stdin.flush()
    return process


def _ask(process: subprocess.Popen[str]) -> object:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a contender died; its error is above")
    return json.loads(line)


def asked_clock() -> str:
    """The clock for `compare`: with --cpu on the command line the processor's time, which other
    work on the machine adds little to."""
    return "process_time" if "--cpu" in sys.argv else "perf_counter"


def compare(
    title: str,
    contenders: list[Contender],
    rounds: int = 11,
    seconds: float = 0.1,
    threads: int = 1,
    rtol: float = 1e-3,
    clock: str = "perf_counter",
) -> dict[str, Result]:
    """Runs the contenders in turn; prints medians and ratios to the first; returns results.

    Contenders whose packages are missing are left out, and so are those that fail and those whose
    `check()` numbers differ from the first contender's: these results have no seconds, and say why.
    """
    running: list[tuple[Contender, subprocess.Popen[str]]] = []
    results: dict[str, Result] = {}
    expected: list[float] | None = None
    print(f"\n{title}  ({threads} thread{'s' if threads > 1 else ''})")
    for c in contenders:
        process = _start(c, seconds, threads, clock)
        answer = _ask(process)
        assert isinstance(answer, dict)
        reason = answer.get("missing") or answer.get("failed", "")
        if not reason and answer["check"] is not None:
            expected = answer["check"] if expected is None else expected
            worst = _apart(expected, answer["check"])
            if not worst <= rtol:
                reason = f"computes something else: off by {worst:.2e}"
                _stop(process)
        if reason:
            print(f"  {c.name:28} left out: {reason}", flush=True)
            if "missing" not in answer:
                results[c.name] = Result(c.name, [], reason)
            continue
        running.append((c, process))
        results[c.name] = Result(c.name, [])
    for _ in range(rounds):
        for c, process in running:
            assert process.stdin is not None
            if threads > 1 and len(running) > 1:
                time.sleep(_PAUSE)
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = _ask(process)
            assert isinstance(answer, float)
            results[c.name].seconds.append(answer)
    for _, process in running:
        _stop(process)
    timed = [r for r in results.values() if r.seconds]
    first = timed[0].median if timed else 0.0
    for r in timed:
        print(f"  {r.name:28} {in_units(r.median):>10}   {r.median / first:6.2f} x")
    return results


def _apart(expected: list[float], values: list[float]) -> float:
    """The largest difference, relative to the value where that is more than the typical one."""
    typical = statistics.fmean(abs(a) for a in expected) or 1.0
    pairs = zip(expected, values, strict=True)
    return max((abs(a - b) / max(typical, abs(a)) for a, b in pairs), default=0.0)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def in_units(seconds: float) -> str:
    """A time as people read it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError
