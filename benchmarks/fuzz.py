"""Long runs of the fuzzer, from seeds: python benchmarks/fuzz.py [--first N] [--count N] [--keep]
[--segments | --sizes] [--short], or --log FILE [--programs N] [--summary FILE].

Generates programs (tests/fuzz), runs each eager and compiled, and prints what differed, how many
compiled, why the others did not, and which records were compiled. --keep writes every failure, made
small, to tests/fuzz_cases/. --segments puts a Python effect into each call, so that programs run in
segments, four calls each. --sizes gives arguments other sizes in each call. --short makes seven of
eight programs two to five lines long. The exit status is 1 if anything differed or under 95 %
compiled.

--log: short programs from seed 0 on, in chunks of which each third runs plain, in segments and on
other sizes, until FILE has N programs. FILE gets a line of JSON for each chunk, so the run can be
stopped and gone on with; a chunk that differed runs again at another commit. --part 0/2 and
--part 1/2 are two processes that share the chunks. --summary writes what FILE says as Markdown.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
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

NAMES = sorted(OPS)
KINDS = ("plain", "segments", "sizes")
CHUNK = 500
MEMORY = 1500  # MiB; past it a logging process stops, for another one to go on


def fails(program: Program, **how: Any) -> bool:
    """Whether the program is valid and its runs differ. One without a name it needs is not."""
    try:
        return bool(check(program.text(), **how).problems)
    except NameError:
        return False


class Tally:
    """What runs gave: counts, reasons of fallbacks, records that were compiled."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.compiled: Counter[str] = Counter()

    def add(self, outcome: Any) -> None:
        """Counts the outcome of one program."""
        counts = self.counts
        counts["programs"] += 1
        counts["valid"] += not outcome.invalid
        counts["compared to the bit"] += outcome.exact
        counts["rounding measured"] += outcome.noise
        counts["calls of compiled code"] += outcome.hits
        counts["native segments"] += outcome.segments
        counts["eager instead"] += bool(outcome.fallback)
        counts["differ"] += bool(outcome.problems)
        self.compiled.update(outcome.ops)
        if outcome.fallback:
            self.reasons[outcome.fallback] += 1

    def join(self, other: dict[str, dict[str, int]]) -> None:
        """Adds what another tally's `vars` says."""
        for name, counts in other.items():
            getattr(self, name).update(counts)

    def share(self) -> float:
        """Which part of the valid programs was compiled."""
        return 1 - self.counts["eager instead"] / max(self.counts["valid"], 1)

    def lines(self) -> list[str]:
        """The report."""
        out = [f"{name}: {count}" for name, count in self.counts.items()]
        out += [f"compiled: {self.share():.1%}"]
        out += [f"    {count} x {reason[:140]}" for reason, count in self.reasons.most_common()]
        never = sorted(set(NAMES) - set(self.compiled))
        done = len(NAMES) - len(never)
        out += [f"records compiled: {done} of {len(NAMES)}; never: {', '.join(never) or 'none'}"]
        return out


def run(seeds: Iterable[int], kind: str, short: bool, keep: bool) -> Tally:
    """Runs the programs of these seeds, and tells what differs as it is found."""
    how: dict[str, Any] = {"calls": 4, "effects": True} if kind == "segments" else {}
    tally = Tally()
    told = time.perf_counter()
    for seed in seeds:
        if time.perf_counter() - told > 20:
            told = time.perf_counter()
            print(f"{dict(tally.counts)}", flush=True)
        length = 2 + seed % 4 if short and seed % 8 != 7 else None
        program = generate(random.Random(seed), NAMES[seed % len(NAMES)], length)
        if kind == "sizes":
            program = varied(program)
        outcome = check(program.text(), **how)
        tally.add(outcome)
        if outcome.problems:
            print(f"seed {seed}, {kind}: {'; '.join(outcome.problems[:3])}", flush=True)
            if keep:
                small = minimise(program, partial(fails, **how))
                path = TESTS / "fuzz_cases" / f"seed_{seed}.txt"
                path.write_text(small.text())
                print(f"  kept as {path.name}")
    return tally


def logged(path: Path) -> dict[int, dict[str, Any]]:
    """The chunks that a log has, by number; the last line of each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {found["chunk"]: found for found in map(json.loads, lines)}


def run_log(path: Path, programs: int, part: int, parts: int, keep: bool) -> int:
    """Runs chunks that the log does not have, or has with differences from another commit, of
    numbers `part` modulo `parts`. The exit status is 3 where another process should go on."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=TESTS, capture_output=True, text=True
    ).stdout.strip()
    while True:
        known = logged(path)
        ran = {
            k
            for k, chunk in known.items()
            if not chunk["counts"]["differ"] or chunk["commit"] == commit
        }
        number = next((k for k in range(part, -(-programs // CHUNK), parts) if k not in ran), None)
        if number is None:
            return int(any(chunk["counts"]["differ"] for chunk in known.values()))
        kind = KINDS[number % 3]
        start = time.process_time()
        tally = run(range(number * CHUNK, (number + 1) * CHUNK), kind, True, keep)
        line = {"chunk": number, "kind": kind, "commit": commit, **vars(tally)}
        line["seconds"] = round(time.process_time() - start, 1)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"chunk {number} ({kind}): {dict(tally.counts)}, {line['seconds']} s", flush=True)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        if used > MEMORY:
            return 3


def summary(path: Path) -> str:
    """The log as a page of Markdown."""
    known = logged(path)
    whole = Tally()
    rows = []
    for kind in KINDS:
        part = Tally()
        seconds = 0.0
        for chunk in known.values():
            if chunk["kind"] == kind:
                part.join({k: chunk[k] for k in vars(part)})
                seconds += chunk["seconds"]
        c = part.counts
        rows.append(
            f"| {kind} | {c['programs']} | {c['valid']} | {c['calls of compiled code']} | "
            f"{c['native segments']} | {c['compared to the bit']} | {part.share():.2%} | "
            f"{c['differ']} | {seconds / 3600:.1f} |"
        )
        whole.join(vars(part))
    never = sorted(set(NAMES) - set(whole.compiled))
    commits = list(dict.fromkeys(chunk["commit"] for chunk in known.values()))
    reasons = [f"- {n} x {reason[:160]}" for reason, n in whole.reasons.most_common(12)]
    cells = ["kind", "programs", "valid", "calls of compiled code", "native segments"]
    cells += ["compared to the bit", "compiled", "differences", "CPU hours"]
    return PAGE.format(
        head="| " + " | ".join(cells) + " |\n|" + " --- |" * len(cells),
        programs=whole.counts["programs"],
        differ=whole.counts["differ"],
        share=f"{whole.share():.2%}",
        rows="\n".join(rows),
        last=CHUNK * (max(known, default=-1) + 1) - 1,
        chunk=CHUNK,
        commits=", ".join(commits),
        records=f"{len(NAMES) - len(never)} of {len(NAMES)}"
        + (f"; never: {', '.join(never)}" if never else ""),
        reasons="\n".join(reasons) or "- nothing",
    )


PAGE = """# A long run of the fuzzer

Written by `python benchmarks/fuzz.py --log FILE --programs N --summary docs/fuzz-log.md`: generated
programs (tests/fuzz: control flow on values, mutation, views, random numbers, gradients, state;
each calls one record on one of its samples), each run eager and compiled. Results, state,
gradients, aliases, versions and draws are compared after every call, floats within what rounding
explains. `segments`: with a Python effect in each call. `sizes`: other sizes in each call.

**{programs} programs, {differ} differences**; {share} of the valid ones compiled without fallback.

{head}
{rows}

Seeds 0 to {last}, in chunks of {chunk}; at commits {commits}. Records compiled: {records}.

What was not compiled, and why:

{reasons}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare eager and compiled runs of programs.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--keep", action="store_true", help="minimise failures and keep them")
    parser.add_argument("--segments", action="store_true", help="with an effect in each call")
    parser.add_argument("--sizes", action="store_true", help="other sizes in each call")
    parser.add_argument("--short", action="store_true", help="mostly of few lines")
    parser.add_argument("--log", type=Path, help="run chunks, and note them in this file")
    parser.add_argument("--programs", type=int, default=100_000, help="how many in the log")
    parser.add_argument("--part", default="0/1", help="of the log's chunks: K/N, the k-th of n")
    parser.add_argument("--summary", type=Path, help="write what the log says to this file")
    options = parser.parse_args()
    if options.log:
        part, parts = map(int, options.part.split("/"))
        status = run_log(options.log, options.programs, part, parts, options.keep)
        if options.summary:
            options.summary.write_text(summary(options.log))
        return status
    kind = "segments" if options.segments else "sizes" if options.sizes else "plain"
    start = time.perf_counter()
    seeds = range(options.first, options.first + options.count)
    tally = run(seeds, kind, options.short, options.keep)
    print(f"{options.count} programs in {time.perf_counter() - start:.0f} s")
    print("\n".join(f"  {line}" for line in tally.lines()))
    return 1 if tally.counts["differ"] or tally.share() < 0.95 else 0


if __name__ == "__main__":
    sys.exit(main())
