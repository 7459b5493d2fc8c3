"""Memory of a training step, planned and measured, beside PyTorch's; and what a bound costs.

Of each workload: the bytes that one step has at most beyond those that it begins with. jitgrad's
are planned: the arena and the results that a call returns (but for gradients that take the memory
of those which they replace), which is all that a compiled call allocates besides scratch of
threads. PyTorch's are those of its allocator, from its profiler, in a process of its own. Then the
same step under `memory_limit`, as shares of its free plan: the planned peak, kernels, and the ratio
of the processor times of a step.

    python benchmarks/memory.py [--only resnet] [--shares 0.75 0.5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from workloads import steps
from workloads.common import OURS, PYTORCH, Workload

import jitgrad

WORKLOADS = {"mlp": steps.mlp, "resnet": steps.resnet18, "gpt": steps.gpt}

_PYTORCH = """
import sys, json
scope = {"__name__": "contender", "THREADS": 1}
exec(compile(sys.stdin.read().split("def check")[0], "contender", "exec"), scope)
for _ in range(2):
    scope["train"]()
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
    scope["train"]()
events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
now = most = 0
for e in sorted(events, key=lambda e: e.start_ns()):
    now += e.nbytes()
    most = max(most, now)
print(json.dumps(most))
"""


def source_of(workload: Workload, contender: str) -> str:
    found = next(c for c in workload.contenders if c.name == contender)
    return found.source.replace("THREADS", "1")


def pytorch_peak(workload: Workload) -> int | None:
    """Bytes that PyTorch's eager step allocates at most; None where there is no PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", _PYTORCH], input=source_of(workload, PYTORCH), text=True,
        capture_output=True,
    )  # fmt: skip
    return int(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else None


def ours(workload: Workload, limit: int | None) -> tuple[Any, int, float]:
    """The report of the compiled step, the bytes of its results, the processor time of a call."""
    source = source_of(workload, OURS).split("def check")[0]
    scope: dict[str, Any] = {"__name__": "contender"}
    exec(compile(source, "contender", "exec"), scope)
    train = jitgrad.jit(scope["train"].__wrapped__, fallback="error", memory_limit=limit)
    for _ in range(4):
        train()
    times = []
    for _ in range(5):
        start = time.process_time()
        train()
        times.append(time.process_time() - start)
    spec = train.specialisations[0]
    return spec.compiled.report, spec.result_bytes(), min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--shares", nargs="*", type=float, default=[0.75, 0.5])
    arguments = parser.parse_args()
    mb = 1e-6
    for name in arguments.only:
        workload = WORKLOADS[name]()
        report, fresh, seconds = ours(workload, None)
        theirs = pytorch_peak(workload)
        whole = report.peak + fresh
        text = f"{workload.name}: arena {report.peak * mb:.1f} MB (lower bound "
        text += f"{report.lower_bound * mb:.1f}), results {fresh * mb:.1f} MB"
        if theirs is not None:
            text += f"; PyTorch {theirs * mb:.1f} MB; ratio {whole / theirs:.2f}"
        print(text, flush=True)
        for share in arguments.shares:
            limit = int(report.peak * share)
            try:
                bound, _, spent = ours(workload, limit)
            except RuntimeError as error:
                print(f"  memory_limit {limit * mb:.1f} MB: {str(error).split('.')[0][:110]}")
                continue
            print(
                f"  memory_limit {limit * mb:.1f} MB: arena {bound.peak * mb:.1f} MB, "
                f"{bound.kernels} kernels for {report.kernels}, time x {spent / seconds:.2f}"
                + (f"; ratio {(bound.peak + fresh) / theirs:.2f}" if theirs else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
