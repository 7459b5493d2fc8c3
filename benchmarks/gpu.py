"""jitgrad on a GPU: bandwidth of fused kernels, products, and training steps beside PyTorch.

Bandwidth is in GB/s and as a share of the device's own copy; the target is 90 %. Products are in
TFLOP/s, our own kernels beside cuBLAS; the target of the whole is 95 % of cuBLAS, which is called
for large ones where it is installed. Times are of events on the stream, the median of `--rounds`.
Without a GPU this says so and ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import ptx

import jitgrad as jg
from jitgrad.runtime.knobs import knobs


def milliseconds(library: Any, run: Callable[[], Any], rounds: int) -> float:
    """The median time of a call on the device, after warming up."""
    for _ in range(5):
        run()
    times = []
    for _ in range(rounds):
        start, end = (library.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth(nbytes: int, rounds: int) -> float:
    """GB/s of the driver's copy within the device: bytes read and written."""
    x, y = (jg.zeros(nbytes // 4, device="cuda") for _ in range(2))
    return 2 * nbytes / milliseconds(jg, lambda: y.copy_(x), rounds) / 1e6


def kernels(rows: int, cols: int) -> dict[str, tuple[Callable[..., Any], list[Any], int]]:
    """Name -> function, arguments, bytes that it must read and write."""
    size = rows * cols * 4
    x, y = (jg.randn(rows, cols, device="cuda") for _ in range(2))
    w, b = (jg.randn(cols, device="cuda") for _ in range(2))
    norm = jg.nn.functional.layer_norm
    parameter = jg.nn.Parameter(x.clone())
    optimizer = jg.optim.Adam([parameter], fused=True)

    def adam(gradient: Any) -> None:
        parameter.grad = gradient
        optimizer.step()

    return {
        "pointwise": (lambda x, y: jg.nn.functional.gelu(x * y + x), [x, y], 3 * size),
        "softmax": (lambda x: jg.softmax(x, -1), [x], 2 * size),
        "layer norm": (lambda x, w, b: norm(x, (cols,), w, b), [x, w, b], 2 * size),
        "sum": (lambda x: x.sum(), [x], size),
        "Adam": (adam, [y], 7 * size),
    }


def print_bandwidth(rounds: int) -> None:
    rows, cols = 8192, 4096
    copy = copy_bandwidth(rows * cols * 4, rounds)
    print(f"\ncopy within the device: {copy:.0f} GB/s")
    print("| kernel | GB/s | of the copy |\n| --- | --- | --- |")
    for name, (f, args, nbytes) in kernels(rows, cols).items():
        run = jg.jit(f, fallback="error")
        spent = milliseconds(jg, lambda run=run, args=args: run(*args), rounds)
        rate = nbytes / spent / 1e6
        print(f"| {name} | {rate:.0f} | {rate / copy:.0%} |", flush=True)


def print_products(rounds: int) -> None:
    here = jg.runtime.cuda.device.device()
    print(f"\ncuBLAS: {'installed' if here.blas is not None else 'not installed'}")
    print("| product | our kernels TFLOP/s | as called | ratio |\n| --- | --- | --- | --- |")
    for dtype in (jg.float32, jg.float16, jg.bfloat16):
        for n in (512, 2048, 8192):
            a, b = (jg.randn(n, n, device="cuda").to(dtype) for _ in range(2))
            rates = []
            for own in (True, False):
                library = here.blas
                if own:
                    here.blas = None
                run = jg.jit(lambda a, b: a @ b, fallback="error")
                spent = milliseconds(jg, lambda run=run, a=a, b=b: run(a, b), rounds)
                here.blas = library
                rates.append(2 * n**3 / spent / 1e9)
            name = f"{dtype} {n}".replace("jitgrad.", "")
            print(f"| {name} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[0] / rates[1]:.0%} |")


def print_steps(rounds: int) -> None:
    print("\n| training step | jit ms | CUDA graphs ms |\n| --- | --- | --- |")
    for name, make in ptx.WORKLOADS.items():
        times = []
        for graphs in (False, True):
            model, specs, loss_of = make()
            run = jg.jit(ptx.training(model.cuda(), loss_of), fallback="error", cuda_graphs=graphs)
            args = [jg.zeros(s.shape, dtype=s.dtype, device="cuda") for s in specs]
            times.append(milliseconds(jg, lambda run=run, args=args: run(*args), rounds))
        print(f"| {name} | {times[0]:.3f} | {times[1]:.3f} |", flush=True)


def print_pytorch(rounds: int) -> None:
    """The same step of an MLP in PyTorch, where its build has CUDA."""
    try:
        import torch
    except ImportError:
        print("\nPyTorch is not installed: no steps beside it")
        return
    if not torch.cuda.is_available():
        print("\nthis PyTorch has no CUDA: no steps beside it")
        return
    print("\n| MLP step | ms |\n| --- | --- |")
    for name, library, compile_ in (
        ("jitgrad", jg, jg.compile), ("PyTorch eager", torch, None),
        ("torch.compile", torch, torch.compile),
    ):  # fmt: skip
        nn = library.nn
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        optimizer = library.optim.AdamW(model.parameters(), fused=True)
        x = library.randn(512, 1024, device="cuda")

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            ((model(x) - x) ** 2).mean().backward()
            optimizer.step()

        run = step if compile_ is None else compile_(step)
        print(f"| {name} | {milliseconds(library, lambda run=run, x=x: run(x), rounds):.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    if knobs.cuda == "sim" or not jg.cuda.is_available():
        why = "JITGRAD_CUDA=sim is a simulator" if knobs.cuda == "sim" else (
            jg.runtime.cuda.device.reason() or "no device is visible"
        )  # fmt: skip
        print(f"There is no GPU here ({why}): nothing is measured.")
        sys.exit(2)
    properties = jg.cuda.get_device_properties()
    print(f"{properties.name}, sm_{properties.major}{properties.minor}, jitgrad {jg.__version__}")
    print_bandwidth(options.rounds)
    print_products(options.rounds)
    print_steps(options.rounds)
    print_pytorch(options.rounds)


if __name__ == "__main__":
    main()
