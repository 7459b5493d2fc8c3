"""Pointwise chains, rows (softmax, layer norm, sums): their size decides who wins."""

from __future__ import annotations

import random

from _harness import Contender

from workloads.common import COMPILE, HEADS, JAX, JAX_TAIL, OURS, PYTORCH, Workload, function, odd

_CHAIN = """
def f(x, w, b):
    return M.tanh(gelu(x * w + b) * sigmoid(x))
"""
_CHAIN_DATA = """
arrays = [np.random.default_rng(k).standard_normal(SIZE).astype(np.float32) for k in range(3)]
"""
_TANH_GELU = """
def sigmoid(x):
    return 1 / (1 + np.exp(-x))
def gelu(x):
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.79788456) * (x + np.float32(0.044715) * x * x * x)))
"""  # noqa: E501


def chain(n: int) -> Workload:
    """tanh(gelu(x w + b) sigmoid(x)) of n floats."""
    torch = "\ngelu = lambda x: F.gelu(x, approximate='tanh')\nsigmoid = torch.sigmoid\n"
    contenders = function(
        _CHAIN_DATA.replace("SIZE", str(n)),
        torch + _CHAIN.replace("M.", "torch."),
        "\ngelu, sigmoid = jax.nn.gelu, jax.nn.sigmoid\n" + _CHAIN.replace("M.", "jnp."),
        _TANH_GELU + _CHAIN.replace("M.", "np."),
        "def f(x, w, b):\n    return ((x * w + b).gelu() * x.sigmoid()).tanh()\n",
    )
    return Workload(f"chain of {n:,}", "pointwise", contenders, nbytes=16.0 * n, rtol=2e-3)


def _rows(m: int, n: int) -> str:
    return f"""
rng = np.random.default_rng(0)
arrays = [rng.standard_normal(({m}, {n})).astype(np.float32)]
"""


def softmax(m: int, n: int) -> Workload:
    """softmax over the last axis."""
    contenders = function(
        _rows(m, n),
        "def f(x):\n    return F.softmax(x, -1)\n",
        "def f(x):\n    return jax.nn.softmax(x, -1)\n",
        """
def f(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
""",
        "def f(x):\n    return x.softmax(-1)\n",
    )
    return Workload(f"softmax {m} x {n}", "rows", contenders, nbytes=8.0 * m * n)


def layer_norm(m: int, n: int) -> Workload:
    """Layer norm over the last axis."""
    contenders = function(
        _rows(m, n),
        f"def f(x):\n    return F.layer_norm(x, ({n},))\n",
        """
def f(x):
    m = x.mean(-1, keepdims=True)
    return (x - m) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
""",
        """
def f(x):
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))
""",
        "def f(x):\n    return x.layernorm()\n",
    )
    return Workload(f"layer norm {m} x {n}", "rows", contenders, nbytes=8.0 * m * n)


_BACKWARD = """
x = torch.from_numpy(arrays[0]).requires_grad_()
w = torch.ones(SIZE, requires_grad=True)
b = torch.zeros(SIZE, requires_grad=True)
t = torch.from_numpy(arrays[0][::-1].copy())
class Nothing:
    def zero_grad(self):
        x.grad = w.grad = b.grad = None
    def step(self):
        pass
optimizer = Nothing()
def both(loss):
    def train():
        optimizer.zero_grad()
        out = loss()
        out.backward()
        return x.grad
    return train
"""


def _backward(m: int, n: int, loss: str, jax: str) -> list[Contender]:
    """The contenders for a loss and its gradients with respect to x, w and b."""
    data = _rows(m, n)
    torch = (
        data + _BACKWARD.replace("SIZE", str(n)) + f"loss = lambda: {loss}\n"
        "inputs = []\nf = both(loss)\n"
    )
    tail = """
f = WRAP
def step():
    return f()
for _ in range(3):
    step()
def check():
    return [float(v) * 1000 for v in step().reshape(-1)[:50].numpy()]
"""

    def make(name: str, wrap: str) -> Contender:
        return Contender(name, HEADS[name] + torch + tail.replace("WRAP", wrap))

    return [
        make(OURS, "compiled(f)"),
        make(PYTORCH, "f"),
        make(COMPILE, "both(torch.compile(loss))"),
        Contender(
            JAX,
            HEADS[JAX] + data + "x = arrays[0]\n"
            f"inputs = [jnp.asarray(x), jnp.ones({n}), jnp.zeros({n}), jnp.asarray(x[::-1])]\n"
            + jax + "\nf = lambda *a, g=jax.grad(loss, (0, 1, 2)): g(*a)\n"
            + JAX_TAIL.replace("np.asarray(step())", "1000 * np.asarray(step()[0])"),
        ),
    ]  # fmt: skip


def layer_norm_both(m: int, n: int) -> Workload:
    """Layer norm with weight and bias, forward and backward."""
    contenders = _backward(
        m, n, f"(F.layer_norm(x, ({n},), w, b) * t).mean()",
        """
def loss(x, w, b, t):
    m = x.mean(-1, keepdims=True)
    y = (x - m) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
    return (y * t).mean()
""",
    )  # fmt: skip
    return Workload(f"layer norm both ways {m} x {n}", "rows", contenders, nbytes=12.0 * m * n)


def softmax_both(m: int, n: int) -> Workload:
    """Softmax of x w + b, forward and backward."""
    contenders = _backward(
        m, n, "(F.softmax(x * w + b, -1) * t).mean()",
        """
def loss(x, w, b, t):
    return (jax.nn.softmax(x * w + b, -1) * t).mean()
""",
    )  # fmt: skip
    return Workload(f"softmax both ways {m} x {n}", "rows", contenders, nbytes=12.0 * m * n)


def total(m: int, n: int, axis: int) -> Workload:
    """A sum along one axis."""
    contenders = function(
        _rows(m, n),
        f"def f(x):\n    return x.sum({axis})\n",
        f"def f(x):\n    return x.sum({axis})\n",
        f"def f(x):\n    return x.sum({axis})\n",
        f"def f(x):\n    return x.sum({axis})\n",
    )
    name = f"sum over axis {axis} of {m} x {n}"
    return Workload(name, "rows", contenders, nbytes=4.0 * m * n, rtol=2e-2)


def workloads(rng: random.Random | None) -> list[Workload]:
    """Those of the table, or as many of shapes drawn at random."""
    if rng is None:
        return [
            *(chain(n) for n in (1, 10**3, 10**5, 10**7)),
            softmax(4096, 1024),
            layer_norm(4096, 1024),
            softmax_both(4096, 1024),
            layer_norm_both(4096, 1024),
            total(4096, 4096, 0),
            total(4096, 4096, 1),
        ]

    def sizes() -> tuple[int, int]:
        return odd(rng, 300, 9000), odd(rng, 100, 3000)

    return [
        *(chain(odd(rng, low, 9 * low)) for low in (10**3, 10**5, 10**6)),
        softmax(*sizes()),
        layer_norm(*sizes()),
        softmax_both(*sizes()),
        layer_norm_both(*sizes()),
        total(*sizes(), 0),
        total(*sizes(), 1),
    ]
