"""The table of benchmarks: python benchmarks/table.py [--write] [--threads 1 2] [name ...]

Each workload runs in turn in a process for each contender (_harness.py): jitgrad compiled, PyTorch
eager, torch.compile, JAX, tinygrad, ONNX Runtime, NumPy; those that are not installed are skipped.
Outputs are compared before anything is timed. A number is a rival's time over ours: above 1 we are
faster. `limit` is the time that the machine needs at least, by what it copies and multiplies in
registers in the same run, over ours: 1 is as fast as possible (more than 1: it stays in a cache).
A second set of shapes, drawn at random (`--seed`), stands beside the first, so that nothing is
tuned to the table's own. Names choose the lines that contain them. `--skip torch.compile` leaves a
contender out. `--write` writes docs/benchmarks.md and docs/benchmarks.svg.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from _harness import Result, compare, in_units
from workloads import elementwise, inference, limits, processes, products, rows, steps
from workloads.common import EAGER, OURS, RIVALS, Workload

PARTS = {
    "pointwise": "Pointwise chains and rows",
    "rows": "Pointwise chains and rows",
    "matmul": "Matrix products",
    "step": "Training steps",
    "inference": "Inference",
}
DOCS = Path(__file__).parent.parent / "docs"


@dataclass
class Line:
    """A line of the table: a workload, the threads, whether its shape was drawn, the results."""

    workload: Workload
    threads: int
    drawn: bool
    results: dict[str, Result]
    limit: float = 0.0  # seconds

    @property
    def ours(self) -> float:
        return self.results[OURS].median

    def ratio(self, rival: str) -> float | None:
        """The rival's time over ours; None without one."""
        r = self.results.get(rival)
        return r.median / self.ours if r is not None and r.seconds else None

    @property
    def best(self) -> float | None:
        """The best rival's time over ours."""
        found = [x for x in map(self.ratio, RIVALS) if x is not None]
        return min(found, default=None)


def measure(args: argparse.Namespace) -> list[Line]:
    """All lines, in order."""
    lines = []
    skipped = set(args.skip)
    clock = "process_time" if args.cpu else "perf_counter"
    modules = (elementwise, rows, products, steps, inference)
    for threads in args.threads:
        found = compare("limits of the machine", [limits.COPY, limits.FMA], args.rounds,
                        args.seconds, threads, clock=clock)  # fmt: skip
        copied = 8.0 * limits.COPY_FLOATS / found["copy"].median
        multiplied = threads * limits.MULTIPLY_ADDS / found["multiply-adds"].median
        print(f"  copy {copied / 1e9:.1f} GB/s, multiply-adds {multiplied / 1e9:.0f} GFLOP/s")
        for drawn in (False, True)[: 1 + args.drawn]:
            rng = random.Random(args.seed) if drawn else None
            for w in (w for m in modules for w in m.workloads(rng)):
                if args.names and not any(n.lower() in w.name.lower() for n in args.names):
                    continue
                chosen = [c for c in w.contenders if c.name not in skipped]
                results = compare(w.name, chosen, args.rounds, args.seconds, threads, w.rtol, clock)
                limit = max(w.nbytes / copied, w.floats / multiplied)
                if OURS not in results or not results[OURS].seconds:
                    continue
                lines.append(Line(w, threads, drawn, results, limit))
                best = lines[-1].best
                if best is not None:
                    print(f"  best rival / jitgrad {best:.2f}", flush=True)
    return lines


def table(lines: list[Line]) -> list[str]:
    """The lines as Markdown, part by part."""
    text: list[str] = []
    rivals = [r for r in (EAGER, *RIVALS) if any(line.ratio(r) for line in lines)]
    for part in dict.fromkeys(PARTS.values()):
        inside = [line for line in lines if PARTS[line.workload.group] == part]
        if not inside:
            continue
        text += ["", f"## {part}", ""]
        text.append("| workload | threads | jitgrad | " + " | ".join(rivals) + " | limit |")
        text.append("|---" * (len(rivals) + 4) + "|")
        for line in inside:
            cells = [line.workload.name + (" (drawn)" if line.drawn else ""), str(line.threads)]
            cells.append(in_units(line.ours))
            for rival in rivals:
                ratio = line.ratio(rival)
                cells.append("" if ratio is None else f"{ratio:.2f}")
            cells.append(f"{line.limit / line.ours:.2f}" if line.limit else "")
            text.append("| " + " | ".join(cells) + " |")
        ratios = [line.best for line in inside if line.best is not None]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            text += ["", f"Best rival over jitgrad: geometric mean {mean:.2f}, "
                     f"least {min(ratios):.2f}."]  # fmt: skip
    return text


def own_processes(args: argparse.Namespace) -> list[str]:
    """Import, first steps, memory and compile time, as Markdown."""
    text = ["", "## Import", "", "| package | seconds | peak MB |", "|---|---|---|"]
    for name, found in processes.imports(args.rounds).items():
        seconds, megabytes = (statistics.median(x) for x in list(zip(*found, strict=True))[:2])
        text.append(f"| {name} | {seconds:.2f} | {megabytes:.0f} |")
    text += [
        "", "## First steps and memory of a process", "",
        "Seconds from its start to the end of the first step, without caches (cold) and with those",
        "of the process before (warm); its peak memory in four steps, and what the steps added.",
        "", "| workload | contender | cold s | warm s | peak MB | added MB |", "|---" * 6 + "|",
    ]  # fmt: skip
    chosen = [c for c in processes.CONTENDERS if c not in args.skip]
    rounds = max(1, args.rounds // 4)
    for name, make in processes.WORKLOADS.items():
        for who, found in processes.first_steps(make(), 2, rounds, chosen).items():
            cells = [
                f"{statistics.median(found[key]):.{digits}f}" if key in found else ""
                for key, digits in (("cold", 2), ("warm", 2), ("peak", 0), ("over", 0))
            ]
            text.append(f"| {name} step | {who} | {' | '.join(cells)} |")
    text += warm_calls(chosen, rounds)
    counts = (10, 100, 1000, 5000, 10000)
    text += ["", "## A chain of N operations, first call in a new process, seconds", "",
             "| | " + " | ".join(f"{n:,}" for n in counts) + " |", "|---" * 6 + "|"]  # fmt: skip
    for name, by_count in processes.chains(counts, rounds).items():
        cells = [f"{statistics.median(by_count[n]):.2f}" if n in by_count else "" for n in counts]
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    return text


def warm_calls(chosen: list[str], rounds: int) -> list[str]:
    """What the first calls of a second process take, as Markdown."""
    text = [
        "", "## The first calls of a second process", "",
        "Seconds of processor time, one thread, with the caches of the process before; without",
        "import, and without making the model.", "",
        "| workload | contender | " + " | ".join(f"call {k + 1}" for k in range(processes.CALLS))
        + " |", "|---" * (2 + processes.CALLS) + "|",
    ]  # fmt: skip
    for name, make in processes.WORKLOADS.items():
        for who, found in processes.warm_calls(make(), rounds, chosen).items():
            cells = [f"{statistics.median(x):.3f}" for x in zip(*found, strict=True)]
            text.append(f"| {name} step | {who} | {' | '.join(cells)} |")
    return text


def processor() -> str:
    """The model of the CPU, where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [x.split(":")[1].strip() for x in text.splitlines() if x.startswith("model name")]
    return names[0] if names else platform.machine()


def plot(lines: list[Line], path: Path) -> None:
    """The best rival's time over ours, a bar for each line."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    shown = [line for line in lines if line.best is not None]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.22 * len(shown)))
    names = [
        f"{line.workload.name}{' (drawn)' if line.drawn else ''}, {line.threads} t"
        for line in shown
    ]
    values = [line.best for line in shown]
    colors = ["tab:green" if v >= 1 else "tab:red" for v in values if v is not None]
    axes.barh(names, [v - 1 for v in values if v is not None], left=1, color=colors)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("best rival's time over jitgrad's (right of 1: jitgrad is faster)")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one round")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes drawn")
    parser.add_argument("--skip", nargs="*", default=[], help="contenders to leave out")
    parser.add_argument("--drawn", type=int, default=1, choices=(0, 1), help="drawn shapes too")
    parser.add_argument("--cpu", action="store_true",
                        help="the processor's time, one thread: for a busy machine")  # fmt: skip
    parser.add_argument("--processes", action="store_true",
                        help="import, first steps, memory and compile time too")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and .svg")
    args = parser.parse_args()
    if args.cpu:
        args.threads = [1]
    lines = measure(args)
    text = table(lines)
    if args.processes:
        text += own_processes(args)
    print("\n".join(text))
    if args.write:
        head = ["# Benchmarks", "", *(__doc__ or "").split("\n\n", 1)[1].strip().splitlines(), "",
                f"Measured on {processor()}, {args.rounds} rounds, by", "",
                f"    python benchmarks/table.py {shlex.join(sys.argv[1:])}", "",
                "![best rival over jitgrad](benchmarks.svg)"]  # fmt: skip
        (DOCS / "benchmarks.md").write_text("\n".join(head + text) + "\n")
        plot(lines, DOCS / "benchmarks.svg")


if __name__ == "__main__":
    main()
