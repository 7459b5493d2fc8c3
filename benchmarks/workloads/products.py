"""Matrix products: square, small, skinny, with bias and GELU; bfloat16 and int8."""

from __future__ import annotations

import random

from _harness import Contender

from workloads.common import COMPILE, HEADS, OURS, PYTORCH, TORCH_TAIL, Workload, function, odd

_DATA = """
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((M, K)).astype(np.float32) / K ** 0.5,
          rng.standard_normal((K, N)).astype(np.float32)]
"""
_GELU = """
def gelu(x):
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.79788456) * (x + np.float32(0.044715) * x * x * x)))
def f(a, b, c):
    return gelu(a @ b + c)
"""  # noqa: E501


def _shaped(text: str, m: int, k: int, n: int) -> str:
    for name, size in (("M", m), ("K", k), ("N", n)):
        text = text.replace(f"({name},", f"({size},").replace(f", {name})", f", {size})")
        text = text.replace(f"({name})", f"({size})").replace(f" {name} **", f" {size} **")
    return text


def product(m: int, k: int, n: int) -> Workload:
    """float32 a @ b."""
    f = "def f(a, b):\n    return a @ b\n"
    contenders = function(_shaped(_DATA, m, k, n), f, f, f, f)
    return Workload(f"matmul {m} x {k} x {n}", "matmul", contenders, floats=2.0 * m * k * n)


def gelu_product(m: int, k: int, n: int) -> Workload:
    """float32 gelu(a @ b + c)."""
    more = "\narrays.append(rng.standard_normal((N)).astype(np.float32))\n"
    contenders = function(
        _shaped(_DATA + more, m, k, n),
        "def f(a, b, c):\n    return F.gelu(a @ b + c, approximate='tanh')\n",
        "def f(a, b, c):\n    return jax.nn.gelu(a @ b + c)\n",
        _GELU,
        "def f(a, b, c):\n    return (a @ b + c).gelu()\n",
    )
    name = f"matmul {m} x {k} x {n}, bias, GELU"
    return Workload(name, "matmul", contenders, floats=2.0 * m * k * n, rtol=2e-2)


def lowered_product(n: int, dtype: str) -> Workload:
    """a @ b of bfloat16 (gives bfloat16), square."""
    text = _shaped(_DATA, n, n, n) + (
        f"\ninputs = [torch.from_numpy(a).to(torch.{dtype}) for a in arrays]\n"
        "def f(a, b):\n    return a @ b\n"
    )
    tail = TORCH_TAIL.replace("step().detach()", "step().detach().float()")
    contenders = [Contender(n, HEADS[n] + text + tail) for n in (OURS, PYTORCH, COMPILE)]
    name = f"{dtype} matmul {n}"
    return Workload(name, "matmul", contenders, floats=2.0 * n**3, rtol=0.2)


def integer_product(n: int) -> Workload:
    """a @ b in int32 of int8 a, b: PyTorch's torch._int_mm."""
    data = f"""
rng = np.random.default_rng(0)
arrays = [rng.integers(-100, 100, ({n}, {n})).astype(np.int8) for _ in range(2)]
inputs = [torch.from_numpy(a) for a in arrays]
"""
    tail = TORCH_TAIL.replace("step().detach()", "step().detach().float()")
    ours = "def f(a, b):\n    return a.to(torch.int32) @ b.to(torch.int32)\n"
    contenders = [
        Contender(OURS, HEADS[OURS] + data + ours + tail),
        Contender(PYTORCH, HEADS[PYTORCH] + data + "f = torch._int_mm\n" + tail),
    ]
    return Workload(f"int8 matmul {n}", "matmul", contenders, floats=2.0 * n**3)


def workloads(rng: random.Random | None) -> list[Workload]:
    """Those of the table, or as many of shapes drawn at random."""
    if rng is None:
        shapes = [(n, n, n) for n in (64, 256, 1024, 2048)]
        skinny = [(1, 1024, 1024), (32, 768, 3072)]
        return [
            *(product(*s) for s in shapes + skinny),
            *(gelu_product(*s) for s in [*shapes[2:], *skinny]),
            lowered_product(1024, "bfloat16"),
            integer_product(1024),
        ]
    shapes = [tuple(odd(rng, low, 2 * low) for _ in range(3)) for low in (40, 200, 700)]
    shapes.append((odd(rng, 1, 4), odd(rng, 500, 3000), odd(rng, 500, 3000)))
    shapes.append((odd(rng, 16, 48), odd(rng, 500, 3000), odd(rng, 500, 3000)))
    return [*(product(*s) for s in shapes), *(gelu_product(*s) for s in shapes[2:])]
