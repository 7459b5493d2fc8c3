"""What the GPU's caching allocator reserves for real training steps, beside a power-of-two pool.

Records every allocation of eager and of compiled training steps (digits, GPT, ResNet: ptx.py) and
replays it. No GPU is needed: the driver is one in host memory whose kernels do nothing, as values
do not change what is allocated. Batches and texts are of several sizes, as in an epoch.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ptx

import jitgrad as jg
from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.allocator import Allocator
from jitgrad.runtime.cuda.simulator import SimulatedDriver

Trace = list[tuple[str, int, int]]
"""("new", address, bytes) and ("free", address, 0)."""

SIZES = {
    "digits": (0, (512, 512, 512, 261)),
    "GPT": (1, (128, 96, 112)),
    "ResNet": (0, (16, 16, 11)),
}
"""Of each step in turn, the size along a dim: an epoch's last batch is smaller, texts differ."""


class NoKernels(SimulatedDriver):
    """A driver that copies but computes nothing."""

    def load(self, device: int, code: Any, symbol: str) -> Any:
        return symbol

    def launch(self, *args: Any) -> None:
        self.launches += 1


class PowersOfTwo:
    """The pool to compare with: blocks of powers of two, kept by size, never split."""

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[int, list[int]] = {}
        self._used: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        size = 1 << max(9, (nbytes - 1).bit_length())
        found = self._free.get(size)
        if found:
            address = found.pop()
        else:
            address, self.reserved = self.reserved, self.reserved + size
        self._used[address] = size
        return address

    def free(self, address: int) -> None:
        self._free.setdefault(self._used.pop(address), []).append(address)


@contextmanager
def recorded(trace: Trace) -> Iterator[None]:
    """Within it, a device whose allocations go into the trace."""
    before = device.driver()
    device.use_driver(NoKernels(capacity=64 << 30))
    device.device().allocator.history = trace
    try:
        yield
    finally:
        gc.collect()
        device.use_driver(before)


def record(name: str, compiled: bool, steps: int) -> Trace:
    """The allocations of a workload's model and of some training steps."""
    trace: Trace = []
    with recorded(trace):
        model, specs, loss_of = ptx.WORKLOADS[name]()
        model = model.cuda()
        step = ptx.training(model, loss_of)
        run = jg.jit(step, fallback="error") if compiled else step
        for n in range(steps):
            args = []
            for spec in specs:
                shape = list(spec.shape)
                dim, sizes = SIZES[name]
                shape[dim] = sizes[n % len(sizes)]
                args.append(jg.zeros(shape, dtype=spec.dtype).cuda())
            run(*args)
            gc.collect()  # when cycles are freed must not depend on what ran before
        counted = list(trace)
    return counted


def replay(trace: Trace, allocator: Any) -> None:
    """Does to an allocator what a trace says."""
    places: dict[int, int] = {}
    for kind, name, nbytes in trace:
        if kind == "new":
            places[name] = allocator.allocate(nbytes)
        else:
            allocator.free(places.pop(name))


def reserved(trace: Trace) -> tuple[int, int, int]:
    """Bytes at the peak: live, reserved by the caching allocator, by powers of two."""
    ours = Allocator(SimulatedDriver(1 << 40, memory=False))
    replay(trace, ours)
    ours.check()
    pool = PowersOfTwo()
    replay(trace, pool)
    figures = ours.statistics()
    return (
        figures["requested_bytes.all.peak"], figures["reserved_bytes.all.peak"], pool.reserved,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--step", nargs="*", default=list(ptx.WORKLOADS))
    options = parser.parse_args()
    print(
        "| step | mode | allocations | live MiB | reserved MiB | lost to fragments "
        "| powers of two MiB | ratio |\n" + "| --- " * 8 + "|"
    )
    for name in options.step:
        for compiled in (False, True):
            trace = record(name, compiled, options.steps)
            live, ours, plain = (n / 2**20 for n in reserved(trace))
            count = sum(kind == "new" for kind, _, _ in trace)
            print(
                f"| {name} | {'jit' if compiled else 'eager'} | {count} | {live:.1f} | {ours:.1f} "
                f"| {1 - live / ours:.0%} | {plain:.1f} | {ours / plain:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
