"""What guards cost a call: models of 0 and 200 modules around one small layer, and a training loop.

Goals: 200 modules add at most 2 microseconds to a call; a call with 2 tensor arguments of a model
with 20 parameters takes at most 8 microseconds beside its kernels. --cpu measures processor time.
"""

from __future__ import annotations

import time
import timeit
from typing import Any

from _harness import asked_clock

import jitgrad as jg
from jitgrad import nn

CLOCK = getattr(time, asked_clock())


def micros(call: Any, number: int = 2000) -> float:
    """The best time of a call, in microseconds."""
    return min(timeit.repeat(call, timer=CLOCK, number=number, repeat=15)) / number * 1e6


class Deep(nn.Module):
    """A linear layer, then so many modules that do nothing."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.ModuleList([nn.Identity() for _ in range(count)])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


def of_modules() -> None:
    x = jg.randn(2, 4)
    times = []
    for count in (0, 200):
        fast = jg.jit(Deep(count).eval(), fallback="error")
        with jg.no_grad():
            for _ in range(3):
                fast(x)
            times.append(micros(lambda fast=fast: fast(x)))
    print(f"  {'200 modules':28} {times[1]:8.2f} us, of which guards {times[1] - times[0]:.2f}")


def of_parameters() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(10)])
    fast = jg.jit(lambda x, y: model(x) + y, fallback="error")
    x, y = jg.randn(1, 2), jg.randn(1, 2)
    with jg.no_grad():
        for _ in range(3):
            fast(x, y)
        compiled = fast.specialisations[0].compiled
        given: list[Any] = []
        run = compiled._call
        compiled._call = lambda arrays: given.append(arrays) or run(arrays)
        fast(x, y)
        compiled._call = run
        frame = compiled.executable._take_frame()
        arrays = [*given[0], *[make() for make in compiled.makers]]
        call = micros(lambda: fast(x, y))
        kernels = micros(lambda: frame.call(*arrays))
    print(f"  {'2 tensors, 20 parameters':28} {call:8.2f} us, of which Python {call - kernels:.2f}")


def of_training() -> None:
    model = nn.Sequential(*[m for _ in range(25) for m in (nn.Linear(8, 8), nn.ReLU())])
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)
    fast = jg.jit(model, fallback="error")
    x = jg.randn(4, 8)

    def step(forward: Any) -> None:
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        optimizer.step()

    for name, forward in (("plain", model), ("compiled forward and backward", fast)):
        for _ in range(3):
            step(forward)
        print(f"  step, {name:22} {micros(lambda f=forward: step(f), 30):8.0f} us")


def main() -> None:
    print("what a call of a jitted function costs")
    of_modules()
    of_parameters()
    of_training()


if __name__ == "__main__":
    main()
