"""Contractions beside NumPy: python benchmarks/matmul.py [--rounds N] [case ...]

Each case is run in turn by the engine (in this process) and by NumPy (in a process of its own, so
that its BLAS has the machine to itself), `rounds` times; the medians and best times are compared.
NumPy runs without OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, and with as many threads as the engine.
A ratio above 1 means that the engine is faster.

Cases: f32-N, f64-N (square), gelu-N (bias and GELU by tanh; NumPy applies them after), skinny-M,
vector, vector-t (1 x 4096 by 4096 x 4096, stored by rows or by columns), small (64 products of
64), conv-C-O-S (3x3, batch 64, C to O channels, S x S padded images; NumPy: im2col and matmul).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CASES = [
    *("f32-256", "f32-512", "f32-1024", "f32-2048", "f64-1024", "gelu-1024"),
    *("skinny-8", "vector", "vector-t", "small", "conv-1-16-28", "conv-16-32-28", "conv-16-32-8"),
]
_TARGET_SECONDS = 0.02


# -- the problems, for both sides ------------------------------------------------------------------
def problem(case: str) -> tuple[list[np.ndarray], float]:
    """The operands, and the floating-point operations."""
    rng = np.random.default_rng(0)
    kind, *rest = case.split("-")
    numbers = [int(x) for x in rest if x.isdigit()]

    def make(*shape: int, dtype: type = np.float32) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    if kind in ("f32", "f64"):
        (n,) = numbers
        dtype = np.float32 if kind == "f32" else np.float64
        return [make(n, n, dtype=dtype), make(n, n, dtype=dtype)], 2.0 * n**3
    if kind == "gelu":
        (n,) = numbers
        return [make(n, n), make(n, n), make(n)], 2.0 * n**3
    if kind == "skinny":
        (m,) = numbers
        return [make(m, 2048), make(2048, 2048)], 2.0 * m * 2048 * 2048
    if kind == "vector":
        return [make(1, 4096), make(4096, 4096)], 2.0 * 4096 * 4096
    if kind == "small":
        return [make(64, 64, 64), make(64, 64, 64)], 2.0 * 64**4
    if kind == "conv":
        c, o, size = numbers
        x = np.pad(make(64, c, size, size), ((0, 0), (0, 0), (1, 1), (1, 1)))
        return [x, make(o, c, 3, 3)], 2.0 * 64 * o * c * 9 * size * size
    raise SystemExit(f"no case {case}; there are {', '.join(CASES)}")


def by_numpy(case: str) -> Callable[[], Any]:
    operands, _ = problem(case)
    kind = case.split("-")[0]
    if kind == "gelu":
        a, b, bias = operands

        def gelu() -> np.ndarray:
            x = a @ b
            x += bias
            inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
            return np.float32(0.5) * x * (1 + np.tanh(inner))

        return gelu
    if kind == "conv":
        x, w = operands

        def conv() -> np.ndarray:
            n, o, size = x.shape[0], w.shape[0], x.shape[2] - 2
            view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
            columns = view.transpose(1, 4, 5, 0, 2, 3).reshape(-1, n * size * size)
            return w.reshape(o, -1) @ columns

        return conv
    a, b = operands
    if case == "vector-t":
        b = b.T
    out = np.matmul(a, b)
    return lambda: np.matmul(a, b, out=out)


# -- the engine ------------------------------------------------------------------------------------
def by_engine(case: str) -> tuple[Callable[[], Any], float]:
    """The call, and the milliseconds that compiling took."""
    from jitgrad.compiler.codegen import contraction, objects, target
    from jitgrad.compiler.loops import Array
    from jitgrad.compiler.symbolic import evaluate, prod
    from jitgrad.runtime.launch import ArenaPlan, Executable, Launch

    operands, _ = problem(case)
    kernel, arrays = _kernel(case, operands)
    host = target.host()
    start = time.perf_counter()
    code = contraction.generate(kernel, host)
    objects.compile_object(code.module_text, host)
    compile_ms = (time.perf_counter() - start) * 1e3
    library = objects.Library.build([code], host)
    slots = {a: k for k, a in enumerate([*arrays, kernel.array])}
    varying, offsets, nbytes = len(slots), {}, 0
    for w in code.workspace:
        offsets[len(slots)] = nbytes
        slots[w] = len(slots)
        nbytes += -(-evaluate(prod(w.shape), {}) * w.dtype.itemsize // 128) * 128
    scratch = len(slots)
    program = Executable(
        [library.address(code.key, x.symbol) for x in code.launches],
        [
            Launch(
                k,
                [*(slots[o] if isinstance(o, Array) else o for o in x.operands), scratch],
                evaluate(x.total, {}),
                x.grain,
            )
            for k, x in enumerate(code.launches)
        ],
        n_buffers=scratch + 1,
        n_varying=varying,
        arena=ArenaPlan(offsets, nbytes),
        scratch={scratch: max(128, -(-code.scratch // 128) * 128)},
        owners=(library,),
    )  # type: ignore[arg-type]
    out = np.zeros([int(d) for d in kernel.array.shape], kernel.array.dtype.np)
    memory = [*operands, out]
    program.run(memory)
    expected = np.asarray(by_numpy(case)())
    if case.startswith("conv"):
        n, o = operands[0].shape[0], operands[1].shape[0]
        expected = expected.reshape(o, n, *out.shape[2:]).transpose(1, 0, 2, 3)
    scale = np.abs(expected).max()
    if not np.all(np.abs(out - expected) <= 1e-4 * scale):
        raise SystemExit(
            f"{case}: wrong by {np.abs(out - expected).max() / scale:.1e} of the largest"
        )
    return lambda: program.run(memory), compile_ms


def _kernel(case: str, operands: list[np.ndarray]) -> tuple[Any, list[Any]]:
    from jitgrad.compiler.loops import Array, Builder, ContractionKernel, Store, make
    from jitgrad.runtime import dtypes

    builder = Builder()
    dtype = dtypes.from_numpy(operands[0].dtype)
    arrays = [Array(f"x{k}", x.shape, dtype) for k, x in enumerate(operands)]
    a, b = arrays[:2]
    ax = builder.axes(8)
    kind = case.split("-")[0]
    if kind == "conv":
        n, c, size, _ = a.shape
        o = b.shape[0]
        y = builder.contraction(
            (n, o, size - 2, size - 2), dtype, batch=(), m=(1,), n=(0, 2, 3), k=(c, 3, 3),
            a=b[ax[1], ax[4], ax[5], ax[6]], b=a[ax[0], ax[4], ax[2] + ax[5], ax[3] + ax[6]],
            acc=dtype,
        )  # fmt: skip
        return ContractionKernel(y, [Store(y, ax[:4], y[ax[:4]])]), arrays
    r = a.ndim - 2
    if case == "vector-t":
        b.strides = (1, b.shape[0])
    y = builder.contraction(
        (*a.shape[:-1], b.shape[-1]), dtype, batch=range(r), m=(r,), n=(r + 1,), k=(a.shape[-1],),
        a=a[(*ax[:r], ax[r], ax[r + 2])], b=b[(*ax[:r], ax[r + 2], ax[r + 1])], acc=dtype,
    )  # fmt: skip
    index = ax[: r + 2]
    value = y[index]
    if kind == "gelu":
        x = value + arrays[2][(ax[1],)]
        value = x * 0.5 * (make("tanh", (x + x * x * x * 0.044715) * 0.7978845608) + 1.0)
    return ContractionKernel(y, [Store(y, index, value)]), arrays


def install_runtime() -> Any:
    """Makes the thread pool's module the process's runtime."""
    from jitgrad.compiler.codegen import pool, target
    from jitgrad.runtime import threads

    binding = target.llvm_binding()
    host = target.host()
    module = binding.parse_assembly(str(pool.emit_runtime(host.triple, threads=True, python=True)))
    engine = binding.create_mcjit_compiler(module, host.machine())
    engine.finalize_object()
    find = engine.get_function_address
    threads.install(
        find("jg_run"), find("jg_pool_create"), find("jg_pool_destroy"),
        py_call=find("jg_py_call"), owner=engine,
    )  # fmt: skip
    return engine


# -- measuring -------------------------------------------------------------------------------------
def seconds(call: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def serve(case: str) -> None:
    """The NumPy side: answers each line (a number of repeats) with the seconds of a call."""
    call = by_numpy(case)
    call()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(seconds(call, int(line))), flush=True)


def compare(case: str, threads_wanted: int, rounds: int) -> None:
    from jitgrad.runtime import threads

    threads.set_num_threads(threads_wanted)
    environ = {
        k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    }
    environ["OPENBLAS_NUM_THREADS"] = str(threads_wanted)
    command = [sys.executable, __file__, "--serve", case]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        if peer.stdout.readline().strip() != "ready":
            raise SystemExit(f"{case}: the NumPy process failed")
        call, compile_ms = by_engine(case)
        repeat = max(1, int(_TARGET_SECONDS / max(1e-7, seconds(call, 1))))
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(seconds(call, repeat))
            peer.stdin.write(f"{repeat}\n")
            peer.stdin.flush()
            theirs.append(float(json.loads(peer.stdout.readline())))
        peer.stdin.close()
    work = problem(case)[1]
    mine, peers = statistics.median(ours), statistics.median(theirs)
    print(
        f"{case:15} {threads_wanted:2} {mine * 1e6:10.1f} us {peers * 1e6:10.1f} us"
        f" {work / mine / 1e9:7.1f} {work / min(ours) / 1e9:7.1f}"
        f" {peers / mine:6.2f} {min(theirs) / min(ours):6.2f} {compile_ms:6.0f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--serve", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    engine = install_runtime()
    print("case            th      engine           numpy    GF/s    best  ratio   best compile")
    for case in options.cases:
        for n in options.threads:
            compare(case, n, options.rounds)
    del engine


if __name__ == "__main__":
    main()
