"""GPU kernels of whole training steps, compiled to PTX and assembled by ptxas; no GPU needed.

For each step and architecture: kernels, registers, shared memory, spills (0 is the goal) and the
occupancy that registers and shared memory allow. `--kernels` prints every kernel.
Needs numba-cuda and NVIDIA's compiler wheels: pip install "jitgrad[cuda]".
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jitgrad as jg
from jitgrad import nn

ARCHITECTURES = ("sm_80", "sm_90")


Workload = tuple[Any, list[Any], Callable[..., Any]]
"""A model, what its training step takes, and its loss."""


def training(model: Any, loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """The training step of a model."""
    optimizer = jg.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(*args: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, *args)
        loss.backward()
        optimizer.step()
        return loss

    return step


def lowered(name: str) -> Any:
    """The lowered training step of a workload."""
    model, inputs, loss_of = WORKLOADS[name]()
    return jg.jit(training(model, loss_of), fallback="error").lower(*inputs)


def classify(model: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x), y)


def predict(model: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def digits() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10),
    )  # fmt: skip
    spec = jg.TensorSpec
    return model, [spec((128, 1, 8, 8)), spec((128,), jg.int64)], classify


class Gpt(nn.Module):
    """A decoder of two layers."""

    def __init__(self, tokens: int = 512, width: int = 256, heads: int = 4, length: int = 128):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList([layer, layer])
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(x) + self.place(jg.arange(length, device=x.device))
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(x)


def gpt() -> Workload:
    spec = jg.TensorSpec((8, 128), jg.int64)
    return Gpt(), [spec, spec], predict


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.side = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return jg.relu(self.body(x) + self.side(x))


def resnet() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), Block(64, 64, 1), Block(64, 128, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    spec = jg.TensorSpec
    return model, [spec((16, 3, 64, 64)), spec((16,), jg.int64)], classify


WORKLOADS = {"digits": digits, "GPT": gpt, "ResNet": resnet}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="print every kernel")
    parser.add_argument("--arch", nargs="*", default=ARCHITECTURES)
    parser.add_argument("--step", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    print("| step | target | kernels | registers | shared | spilled | stack | occupancy | s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.step:
        step = lowered(name)
        for arch in options.arch:
            start = time.perf_counter()
            rows = step.resources(arch)
            spent = time.perf_counter() - start
            print(
                f"| {name} | {arch} | {len(rows)} | at most {max(r.registers for r in rows)} "
                f"| at most {max(r.shared for r in rows)} | {sum(r.spills for r in rows)} "
                f"| {sum(r.stack for r in rows)} | {min(r.occupancy for r in rows):.0%} to "
                f"{max(r.occupancy for r in rows):.0%} | {spent:.0f} |",
                flush=True,
            )
            if options.kernels:
                for r in rows:
                    print(f"    {r}")


if __name__ == "__main__":
    main()
