"""What needs a process of its own: import, the first step, peak memory, compile time by size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable

from workloads import steps
from workloads.common import (
    COMPILE,
    EAGER,
    HEADS,
    JAX,
    NUMPY,
    ONNX,
    OURS,
    PYTORCH,
    TINYGRAD,
    Workload,
)

_IMPORTS = {
    OURS: "jitgrad",
    PYTORCH: "torch",
    JAX: "jax.numpy",
    TINYGRAD: "tinygrad",
    ONNX: "onnxruntime",
    NUMPY: "numpy",
}

_TIMED = """
import json, os, resource, sys, time
begin = time.perf_counter()
{body}
used = resource.getrusage(resource.RUSAGE_SELF)
peak = used.ru_maxrss / 1024
print(json.dumps([time.perf_counter() - begin, peak, peak - globals().get('base', peak)]))
"""

_HEAD = """
source = sys.stdin.read()
scope = {"__name__": "contender"}
exec(compile(source.split("def check")[0], "contender", "exec"), scope)
def call():
    out = scope["train"]()
    float(out.detach() if hasattr(out, "detach") else out.item() if hasattr(out, "item") else out)
"""

_FIRST = (
    _HEAD
    + """
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for _ in range(STEPS):
    call()
"""
)


CALLS = 3
"""The first calls of a process, which `warm_calls` times apart."""

_CALLS = (
    _HEAD
    + """
spent = []
for _ in range(CALLS):
    start = time.process_time()
    call()
    spent.append(time.process_time() - start)
print(json.dumps(spent))
sys.exit()
"""
)


def _run(body: str, source: str = "", threads: int = 2, cache: str = "") -> list[float] | str:
    """Seconds, peak MB and those over `base` of a new process; or, as text, why there are none."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    for name in ("OMP_NUM_THREADS", "JITGRAD_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = str(threads)
    if cache:
        env |= {
            "JITGRAD_CACHE_DIR": cache + "/jitgrad",
            "TORCHINDUCTOR_CACHE_DIR": cache + "/inductor",
            "TRITON_CACHE_DIR": cache + "/triton",
            "JAX_COMPILATION_CACHE_DIR": cache + "/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XDG_CACHE_HOME": cache,
        }
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.replace("{body}", body)], env=env, text=True, check=False,
        input=source.replace("THREADS", str(threads)), capture_output=True,
    )  # fmt: skip
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    found: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def imports(rounds: int) -> dict[str, list[list[float]]]:
    """For each package that is installed: seconds and peak MB of each round."""
    found: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for name, module in _IMPORTS.items():
            answer = _run(f"import {module}")
            if not isinstance(answer, str):
                found.setdefault(name, []).append(answer)
    return found


def first_steps(
    workload: Workload, threads: int, rounds: int, chosen: Iterable[str]
) -> dict[str, dict[str, list[float]]]:
    """For each contender: seconds from the start of a process to the end of its first step, with
    empty caches ("cold") and with the caches that the last process left ("warm"); and the peak MB
    of a process of four steps ("peak")."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for c in workload.contenders:
            if c.name not in chosen:
                continue
            with tempfile.TemporaryDirectory() as cache:
                for what, count in (("cold", 1), ("warm", 1), ("peak", 4)):
                    answer = _run(_FIRST.replace("STEPS", str(count)), c.source, threads, cache)
                    if isinstance(answer, str):
                        print(f"  {c.name}: {answer}", file=sys.stderr)
                        break
                    numbers = {what: answer[0]}
                    if what == "peak":
                        numbers = {"peak": answer[1], "over": answer[2]}
                    for key, value in numbers.items():
                        found.setdefault(c.name, {}).setdefault(key, []).append(value)
    return found


def warm_calls(
    workload: Workload, rounds: int, chosen: Iterable[str]
) -> dict[str, list[list[float]]]:
    """For each contender, of each round: seconds of processor time of the first calls of a process
    that finds the caches of the one before. One thread; no import, no making of the model."""
    found: dict[str, list[list[float]]] = {}
    body = _CALLS.replace("CALLS", str(CALLS))
    for c in workload.contenders:
        if c.name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as cache:
            for k in range(rounds + 1):
                answer = _run(body, c.source, 1, cache)
                if isinstance(answer, str):
                    print(f"  {c.name}: {answer}", file=sys.stderr)
                    break
                if k:  # the first filled the caches
                    found.setdefault(c.name, []).append(answer)
    return found


_CHAIN = {
    OURS: """
def f(x):
    for k in range(COUNT):
        x = torch.tanh(x) + 0.1 if k % 2 else x * 1.01
    return x
f = compiled(f)
x = torch.from_numpy(np.ones(1000, np.float32))
train = lambda: f(x).sum()
""",
    JAX: """
def f(x):
    for k in range(COUNT):
        x = jnp.tanh(x) + 0.1 if k % 2 else x * 1.01
    return x
f = jax.jit(f)
x = jnp.ones(1000)
train = lambda: f(x).sum()
""",
}


def chains(counts: Iterable[int], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Seconds of a process whose first call runs a chain of so many operations, with no cache."""
    found: dict[str, dict[int, list[float]]] = {}
    for count in counts:
        for _ in range(rounds):
            for name, text in _CHAIN.items():
                source = HEADS[name] + text.replace("COUNT", str(count))
                with tempfile.TemporaryDirectory() as cache:
                    answer = _run(_FIRST.replace("STEPS", "1"), source, 1, cache)
                if not isinstance(answer, str):
                    found.setdefault(name, {}).setdefault(count, []).append(answer[0])
    return found


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "MLP": steps.mlp, "ResNet-18": steps.resnet18, "GPT": steps.gpt,
}  # fmt: skip
"""Whose first steps and memory are measured."""

CONTENDERS = (OURS, EAGER, PYTORCH, COMPILE, JAX)
"""Those whose first steps are measured."""
