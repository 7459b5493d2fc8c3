"""Products beside NumPy and PyTorch: python benchmarks/matmul.py [--random N] [case ...]

Each case runs compiled (`jit`), in NumPy and in eager PyTorch, each in a process of its own, in
turn, on one thread and on two (`_harness.py`); their results must agree. What is timed is a whole
call, as users make it. The last columns are operations per second, and by how many times the best
of the rivals is slower (above 1: we are faster), by medians.

Cases: MxKxN for `a @ b`, with `:` and what is added:
    t      b is stored transposed (the weight of a linear layer)
    gelu   gelu(a @ b + bias), by tanh
    f64    in double precision; bf16, f16: in half precision; int8: to int32
    high   float32 with set_float32_matmul_precision("high"): where the processor has AMX; medium
    batch  of 64 such products
and conv-N-C-O-S: a 3x3 convolution with padding 1 of N images of C channels to O, S x S.
`--random N` adds N shapes, drawn anew each time, that nobody has tuned for (`--seed` draws again).
"""

from __future__ import annotations

import argparse
import math
import random

from _harness import Contender, Result, compare

CASES = [
    *("64x64x64", "256x256x256", "1024x1024x1024", "2048x2048x2048", "1024x1024x1024:f64"),
    *("1x1024x1024", "1x1024x1024:t", "1x1024x1024:t:gelu", "8x2048x2048"),
    *(
        "32x768x3072",
        "32x768x3072:t:gelu",
        "1024x1024x1024:gelu",
        "64x64x64:gelu",
        "64x64x64:batch",
    ),
    *("1024x1024x1024:bf16", "1024x1024x1024:f16", "1024x1024x1024:int8", "33x1000x77:bf16"),
    *("2048x2048x2048:bf16", "2048x2048x2048:int8", "1024x1024x1024:high", "2048x2048x2048:high"),
    *("conv-1-64-64-56", "conv-8-128-128-14", "conv-8-3-64-32"),
]

_KINDS = ("f64", "bf16", "f16", "int8", "high", "medium")
_OPERANDS = """
import numpy as np
rng = np.random.default_rng(0)
def make(*shape):
    if {kind!r} == "int8":
        return rng.integers(-100, 100, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(np.float64 if {kind!r} == "f64" else np.float32)
{operands}
"""
_NUMPY = """
if {kind!r} in ("bf16", "f16", "int8") or {conv}:
    raise ImportError("NumPy has no such product")
def f():
    y = a @ b
    if {gelu}:
        y += bias
        inner = np.float32(0.7978845608) * (y + np.float32(0.044715) * y * y * y)
        y = np.float32(0.5) * y * (1 + np.tanh(inner))
    return y
def step():
    return f()
def check():
    return f().reshape(-1)[:50].tolist()
"""
_TORCH = """
import {module} as torch
import {module}.nn.functional as F
types = {{"bf16": torch.bfloat16, "f16": torch.float16}}
if {kind!r} in ("high", "medium"):
    torch.set_float32_matmul_precision({kind!r})
args = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
args = [x.to(types.get({kind!r}, x.dtype)) for x in args]
def f(a, b, *bias):
    if {conv}:
        return F.conv2d(a, b, padding=1)
    if {turned}:
        b = b.mT
    if {kind!r} == "int8":
        return {bytes}
    y = a @ b
    return F.gelu(y + bias[0], approximate="tanh") if {gelu} else y
{wrap}
def step():
    return f(*args)
def check():
    return step().reshape(-1)[:50].to(torch.float64).numpy().tolist()
"""


def contenders(case: str) -> tuple[list[Contender], float, float]:
    """The three, the operations of a call, and how far results may differ."""
    shape, *options = case.split(":")
    known = {"t", "gelu", "batch", *_KINDS}
    if set(options) - known:
        raise SystemExit(f"{case}: expected {', '.join(sorted(known))} after the colons")
    kind = next((o for o in options if o in _KINDS), "f32")
    is_conv = shape.startswith("conv")
    if is_conv:
        n, c, o, size = (int(x) for x in shape.split("-")[1:])
        lines = f"a = make({n}, {c}, {size}, {size}); b = make({o}, {c}, 3, 3); arrays = [a, b]"
        work = 2.0 * n * c * o * 9 * size * size
    else:
        m, k, n = (int(x) for x in shape.split("x"))
        batch = "64, " if "batch" in options else ""
        lines = f"a = make({batch}{m}, {k}); b = make({batch}{k}, {n}); bias = make({n})\n"
        lines += f"arrays = [a, {'b.T' if 't' in options else 'b'}, bias]"
        work = 2.0 * m * k * n * (64 if batch else 1)
    words = {"kind": kind, "conv": is_conv, "gelu": "gelu" in options, "turned": "t" in options}
    start = _OPERANDS.format(operands=lines, **words)
    ours = _TORCH.format(
        module="jitgrad", wrap="f = torch.jit(f, fallback='error')",
        bytes="a.to(torch.int32) @ b.to(torch.int32)", **words,
    )  # fmt: skip
    theirs = _TORCH.format(module="torch", wrap="", bytes="torch._int_mm(a, b)", **words)
    found = [
        Contender("jitgrad", start + ours),
        Contender("NumPy", start + _NUMPY.format(**words)),
        Contender("PyTorch", start + theirs),
    ]
    return found, work, {"bf16": 0.3, "medium": 0.3, "f16": 0.05}.get(kind, 2e-2)


def random_cases(count: int, seed: int | None) -> list[str]:
    """Shapes whose sizes are spread evenly by magnitude, with something added to most."""
    rng = random.Random(seed)

    def size(most: int) -> int:
        return round(math.exp(rng.uniform(0, math.log(most))))

    extra = ["", ":t", ":gelu", ":t:gelu", ":bf16"]
    return [f"{size(2048)}x{size(2048)}x{size(2048)}{rng.choice(extra)}" for _ in range(count)]


def report(case: str, work: float, results: dict[str, Result], threads: int) -> str:
    ours = results["jitgrad"].median
    rivals = {k: r.median for k, r in results.items() if k != "jitgrad"}
    if not rivals:
        return f"{case:28} {threads:2} {work / ours / 1e9:8.1f} G/s  no rival"
    best = min(rivals, key=lambda k: rivals[k])
    return f"{case:28} {threads:2} {work / ours / 1e9:8.1f} G/s {rivals[best] / ours:6.2f} x {best}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--cpu", action="store_true", help="the processor's time, on one thread")
    options = parser.parse_args()
    lines = []
    for case in [*options.cases, *random_cases(options.random, options.seed)]:
        for threads in [1] if options.cpu else options.threads:
            made, work, rtol = contenders(case)
            clock = "process_time" if options.cpu else "perf_counter"
            results = compare(case, made, options.rounds, 0.03, threads, rtol, clock)
            lines.append(report(case, work, results, threads))
    print("\ncase                         th            best rival", *lines, sep="\n")


if __name__ == "__main__":
    main()
