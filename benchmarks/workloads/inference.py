"""Inference: ResNet-18, a GPT's next token with its KV cache, a small MLP's call from Python."""

from __future__ import annotations

import random

from _harness import Contender

from workloads.common import (
    COMPILE,
    EAGER,
    FILL,
    HEADS,
    JAX,
    JAX_TAIL,
    NUMPY,
    NUMPY_TAIL,
    ONNX,
    ONNX_TAIL,
    OURS,
    PYTORCH,
    TORCH_TAIL,
    WEIGHTS,
    Workload,
    odd,
)
from workloads.steps import GPT, RESNET, RESNET_JAX


def _module(text: str, exported: str = "model") -> list[Contender]:
    """The contenders for a model in eval mode; text makes `model`, `inputs` and f of them."""
    found = [Contender(n, HEADS[n] + text + TORCH_TAIL) for n in (OURS, PYTORCH, COMPILE)]
    tail = ONNX_TAIL.replace("EXPORTED", exported)
    return [*found, Contender(ONNX, HEADS[EAGER] + text + tail)]


def resnet18(batch: int, size: int = 224) -> Workload:
    """ResNet-18 in eval mode."""
    data = f"""
x_ = np.random.default_rng(2).standard_normal(({batch}, 3, {size}, {size})).astype(np.float32)
"""
    text = data + FILL + RESNET + "\nmodel.eval()\ninputs = [torch.from_numpy(x_)]\nf = model\n"
    jax = (
        HEADS[JAX] + "TRAIN = False\n" + data + WEIGHTS + RESNET_JAX
        + "\ninputs = [params, jnp.asarray(x_)]\nf = logits\n" + JAX_TAIL
    )  # fmt: skip
    contenders = [*_module(text), Contender(JAX, jax)]
    return Workload(f"ResNet-18 inference, batch {batch}", "inference", contenders, rtol=1e-2)


def token(layers: int = 4, width: int = 256, heads: int = 4, past: int = 64) -> Workload:
    """The logits of one token after `past` others, whose keys and values are given."""
    text = (
        FILL + GPT
        + f"""
model = fill(GPT(65, {2 * past}, {width}, {layers}, {heads})).eval()
caches_ = np.random.default_rng(3).standard_normal(
    ({2 * layers}, 1, {heads}, {past}, {width // heads})).astype(np.float32)
inputs = [torch.from_numpy(np.array([[3]])), *(torch.from_numpy(c.copy()) for c in caches_)]
def f(x, *caches):
    return model(x, list(zip(caches[::2], caches[1::2])))
"""
    )  # fmt: skip
    name = f"GPT {layers} x {width}, one token after {past}"
    return Workload(name, "inference", _module(text, "f"), rtol=1e-2)


def small_mlp(sizes: tuple[int, ...] = (32, 64, 64, 8)) -> Workload:
    """One call at batch 1: what a call costs."""
    pairs = list(zip(sizes, sizes[1:], strict=False))
    layers = ", nn.ReLU(), ".join(f"nn.Linear({a}, {b})" for a, b in pairs)
    text = (
        FILL + f"\nmodel = fill(nn.Sequential({layers}))\nf = model\n"
        f"inputs = [torch.from_numpy(np.ones((1, {sizes[0]}), np.float32))]\n"
    )  # fmt: skip
    shapes = ", ".join(f"({b}, {a}), ({b},)" for a, b in pairs)
    by_hand = (
        WEIGHTS
        + f"""
params = [MAKE(w) for w in weights({shapes})]
inputs = [MAKE(np.ones((1, {sizes[0]}), np.float32)), *params]
def f(x, *ps):
    for k in range(0, len(ps), 2):
        x = x @ ps[k].T + ps[k + 1]
        x = RELU if k < len(ps) - 2 else x
    return x
"""
    )  # fmt: skip
    jax = by_hand.replace("MAKE", "jnp.asarray").replace("RELU", "jax.nn.relu(x)")
    numpy = by_hand.replace("MAKE", "np.asarray").replace("RELU", "np.maximum(x, np.float32(0))")
    contenders = [
        *_module(text),
        Contender(JAX, HEADS[JAX] + jax + JAX_TAIL),
        Contender(NUMPY, HEADS[NUMPY] + numpy + NUMPY_TAIL),
    ]
    return Workload(f"MLP {'-'.join(map(str, sizes))}, batch 1, one call", "inference", contenders)


def workloads(rng: random.Random | None) -> list[Workload]:
    """Those of the table, or as many of shapes drawn at random."""
    if rng is None:
        return [resnet18(1), resnet18(8), token(), small_mlp()]
    sizes = tuple(odd(rng, 10, 100) for _ in range(4))
    return [
        resnet18(odd(rng, 1, 4), odd(rng, 100, 250)),
        token(odd(rng, 1, 5), 4 * odd(rng, 30, 80), 4, odd(rng, 20, 200)),
        small_mlp(sizes),
    ]
