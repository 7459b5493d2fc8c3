"""Rows with more in them: norms, losses, attention, forward and with all gradients."""

from __future__ import annotations

import random

from _harness import Contender

from workloads.common import COMPILE, HEADS, JAX, JAX_TAIL, OURS, PYTORCH, Workload, odd

_GRADIENTS = """
inputs = [torch.from_numpy(a).requires_grad_(a.dtype == np.float32) for a in arrays]
wanted = [x for x in inputs if x.requires_grad]
def f(*inputs):
    return torch.autograd.grad(loss(*inputs), wanted)
"""
_TAIL = """
f = WRAP
def step():
    return f(*inputs)
for _ in range(3):
    step()
def check():
    return [float(v) * 1000 for v in step()[0].reshape(-1)[:50].numpy()]
"""


def _both(name: str, data: str, torch: str, jax: str, nbytes: float) -> Workload:
    """The gradients of `loss(*arrays)` with respect to every array of floats."""
    body = data + torch + _GRADIENTS

    def make(who: str, head: str, wrap: str) -> Contender:
        return Contender(who, HEADS[head] + body + _TAIL.replace("WRAP", wrap))

    contenders = [
        make(OURS, OURS, "compiled(f)"),
        make(PYTORCH, PYTORCH, "f"),
        Contender(
            COMPILE,
            HEADS[COMPILE] + data + torch + "loss = torch.compile(loss)\n" + _GRADIENTS
            + _TAIL.replace("WRAP", "f"),
        ),
        Contender(
            JAX,
            HEADS[JAX] + data + jax + "inputs = [jnp.asarray(a) for a in arrays]\n"
            "wanted = tuple(k for k, a in enumerate(arrays) if a.dtype == np.float32)\n"
            "f = lambda *a, g=jax.grad(loss, wanted): g(*a)\n"
            + JAX_TAIL.replace("np.asarray(step())", "1000 * np.asarray(step()[0])"),
        ),
    ]  # fmt: skip
    return Workload(name, "rows", contenders, nbytes=nbytes)


def _data(*shapes: tuple[int, ...]) -> str:
    made = ", ".join(f"rng.standard_normal({s}).astype(np.float32)" for s in shapes)
    return f"\nrng = np.random.default_rng(0)\narrays = [{made}]\n"


def rms_norm(m: int, n: int) -> Workload:
    """RMS norm with a weight, both ways."""
    return _both(
        f"rms norm both ways {m} x {n}", _data((m, n), (n,), (m, n)),
        f"def loss(x, w, t):\n    return (F.rms_norm(x, ({n},), w, 1e-6) * t).mean()\n",
        "def loss(x, w, t):\n"
        "    y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w\n"
        "    return (y * t).mean()\n",
        16.0 * m * n,
    )  # fmt: skip


def batch_norm(m: int, n: int) -> Workload:
    """Batch norm while training, over rows, both ways."""
    return _both(
        f"batch norm both ways {m} x {n}", _data((m, n), (n,), (n,), (m, n)),
        "def loss(x, w, b, t):\n"
        "    return (F.batch_norm(x, None, None, w, b, training=True) * t).mean()\n",
        "def loss(x, w, b, t):\n"
        "    d = x - x.mean(0)\n"
        "    return ((d * lax.rsqrt((d * d).mean(0) + 1e-5) * w + b) * t).mean()\n",
        16.0 * m * n,
    )  # fmt: skip


def cross_entropy(m: int, n: int) -> Workload:
    """Cross-entropy with its gradient."""
    return _both(
        f"cross-entropy both ways {m} x {n}",
        _data((m, n)) + f"arrays.append(rng.integers(0, {n}, {m}))\n",
        "def loss(x, t):\n    return F.cross_entropy(x, t)\n",
        "def loss(x, t):\n"
        "    y = jax.nn.log_softmax(x, -1)\n"
        "    return -jnp.take_along_axis(y, t[:, None], 1).mean()\n",
        8.0 * m * n,
    )


def attention(batch: int, heads: int, length: int, width: int) -> Workload:
    """Causal attention with the gradients of queries, keys and values."""
    shape = (batch, heads, length, width)
    work = _both(
        f"attention both ways {batch} x {heads} x {length} x {width}",
        _data(shape, shape, shape),
        "def loss(q, k, v):\n"
        "    return F.scaled_dot_product_attention(q, k, v, is_causal=True).pow(2).mean()\n",
        "def loss(q, k, v):\n"
        f"    s = q @ k.swapaxes(-1, -2) * {width**-0.5}\n"
        f"    s = jnp.where(jnp.tril(jnp.ones(({length}, {length}), bool)), s, -jnp.inf)\n"
        "    return ((jax.nn.softmax(s, -1) @ v) ** 2).mean()\n",
        0.0,
    )
    work.floats = 12.0 * batch * heads * length * length * width / 2
    return work


def workloads(rng: random.Random | None) -> list[Workload]:
    """Those of the table, or as many of shapes drawn at random."""
    if rng is None:
        return [
            rms_norm(4096, 1024),
            batch_norm(4096, 1024),
            cross_entropy(4096, 1024),
            attention(8, 4, 128, 64),
            attention(2, 8, 512, 64),
        ]

    def sizes() -> tuple[int, int]:
        return odd(rng, 300, 9000), odd(rng, 100, 3000)

    return [
        rms_norm(*sizes()),
        batch_norm(*sizes()),
        cross_entropy(*sizes()),
        attention(odd(rng, 2, 8), 4, odd(rng, 60, 300), 32),
    ]
