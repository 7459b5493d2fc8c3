"""jit: symbolic sizes: how often functions are compiled, which guards they have, and that sizes
other than the recorded ones give what eager code, and code compiled for them, gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.jit import jit

SIZES = (4, 4, 6, 2, 3, 9, 33)


def make(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return jg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def numbers(*shape: int, below: int = 10, seed: int = 0) -> Any:
    return jg.tensor(np.random.default_rng(seed).integers(0, below, shape))


def leaves(x: Any) -> list[Any]:
    return [y for part in x for y in leaves(part)] if isinstance(x, (tuple, list)) else [x]


def assert_same(found: Any, wanted: Any, close: bool = False) -> None:
    a, b = leaves(found), leaves(wanted)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert type(x) is type(y)
        if not isinstance(x, jg.Tensor):
            assert x == y
            continue
        assert x.dtype is y.dtype and tuple(x.shape) == tuple(y.shape)
        assert all(type(d) is int for d in x.shape)
        u, v = x.detach().numpy(), y.detach().numpy()
        if close:
            np.testing.assert_allclose(u, v, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(u, v)


def both(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], traces: int = 2, **options: Any
) -> Any:
    """Calls a jitted function; compares each call with eager code, and the bits of those that were
    compiled with what code compiled for the very shapes gives. Asserts the number of traces."""
    fast = jit(function, fallback="error", **options)
    static = jit(function, fallback="error", dynamic=False)
    for args in calls:
        hits = fast.stats.hits
        found = fast(*args)
        assert_same(found, function(*args), close=True)
        if fast.stats.hits > hits:
            static(*args)
            assert_same(found, static(*args))
    assert fast.stats.traces == traces, fast.explain_last_miss()
    return fast


# -- what code does with sizes ---------------------------------------------------------------------
def masked(x: Any) -> Any:
    t = x.shape[-1]
    mask = jg.triu(jg.ones(t, t), 1)
    return (x @ x.mT).masked_fill(mask[:1, :1] == 1, 0.0), mask


def attention(x: Any) -> Any:
    b, t, d = x.size()
    q = x.view(b, t, 2, d // 2).transpose(1, 2)
    scores = q @ q.transpose(-2, -1) / (d // 2) ** 0.5
    causal = jg.tril(jg.ones(t, t, dtype=jg.bool))
    out = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ q
    return out.transpose(1, 2).reshape(b, t, d), F.scaled_dot_product_attention(q, q, q)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(x.shape[0], -1) + 1,
    "flatten": lambda x: (x.flatten(), x.reshape(-1, x.size(0)), x.view(-1)),
    "arithmetic": lambda x: x * x.shape[0] + x.shape[0] * 2 - x.shape[0] // 2,
    "division": lambda x: x / x.shape[0] + x.shape[0] / 3 + 1 / x.shape[0],
    "powers": lambda x: x * x.size(0) ** 2 + x * x.size(0) ** 0.5 - x * 2.0 * x.size(0),
    "numel": lambda x: x.sum() / x.numel(),
    "stride": lambda x: x * x.stride(0) + x.t().contiguous().stride(0),
    "loose_stride": lambda x: x + x.t()[:, :2].contiguous().t()[:, :2].stride(1),
    "arange": lambda x: (jg.arange(x.shape[0]), jg.arange(1, x.shape[0] + 1) * x[:, 0].long()),
    "create": lambda x: (
        jg.zeros(x.shape[0], 3), jg.ones(x.shape), jg.full((x.shape[0],), 2.5), jg.zeros_like(x)
    ),
    "eye": lambda x: jg.eye(x.shape[0]) @ x,
    "slices": lambda x: (x[: x.shape[0] // 2], x[x.shape[0] // 2 :], x[1:], x[:-1], x[::2], x[-1]),
    "means": lambda x: (x.mean(), x.mean(0), x.mean(1), x.var(0), x.std(0)),
    "reductions": lambda x: (x.sum(), x.amax(0), x.prod(0), x.norm(), x.median(1)[0]),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(1), x.logsumexp(0)),
    "cat": lambda x: (jg.cat([x, x]), jg.cat([x, x[:1]]), jg.stack([x, x])),
    "expand": lambda x: (x[:1].expand(x.shape[0], 3), x.sum(0).expand_as(x), x.repeat(2, 1)),
    "transpose": lambda x: (x.t(), x.t().contiguous(), x.t() @ x, x @ x.t()),
    "sort": lambda x: (x.sort(0)[0], x.argmax(0), x.cumsum(0), x.topk(2, 0)[0]),
    "flip": lambda x: (x.flip(0), x.roll(1, 0)),
    "index": lambda x: x[jg.arange(x.shape[0]), jg.zeros(x.shape[0], dtype=jg.int64)],
    "gather": lambda x: x.gather(0, jg.zeros(x.shape[0], 1, dtype=jg.int64)),
    "chunk": lambda x: x.t().contiguous().view(3, -1).chunk(3),
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "shape": lambda x: (x.shape[0], x.shape[0] * 2 + 1, list(x.shape), x.numel()),
    "isinstance": lambda x: x + (1 if isinstance(x.shape[0], int) else 2),
    "broadcast": lambda x: x[:, None] - x[None],
    "masks": lambda x: jg.where(jg.arange(x.shape[0])[:, None] < x.shape[0] // 2, x, -x),
    "losses": lambda x: (F.mse_loss(x, x * 2), F.cross_entropy(x, x.argmax(1))),
    "layers": lambda x: (F.layer_norm(x, (3,)), F.gelu(x), F.linear(x, jg.ones(4, 3))),
    "normalize": lambda x: (F.normalize(x), F.softmin(x, 0), F.cosine_similarity(x, x + 1)),
    "einsum": lambda x: (jg.einsum("bi,bj->ij", x, x), jg.einsum("bi,ci->bc", x, x)),
    "embedding": lambda x: F.embedding(x.argmax(1), jg.ones(3, 4)),
    "one_hot": lambda x: F.one_hot(x.argmax(1), 3),
    "dot": lambda x: (x[:, 0] @ x[:, 1], jg.outer(x[:, 0], x[:, 1])),
    "max": lambda x: x * max(x.shape[0], 2) + min(3, x.shape[0]),
    "copy": lambda x: (x.clone(), x.detach(), x.double(), x.long()),
}  # fmt: skip

FREE = {"max": 3, "slices": 4, "flip": 3, "loose_stride": len(set(SIZES))}
"""Programs that add a guard which some size breaks, and how often they are recorded."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    calls = [(make(n, 3, seed=n),) for n in SIZES]
    f = both(PROGRAMS[name], calls, FREE.get(name, 2))
    assert f.stats.compiles == f.stats.traces


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("shape",)])
def test_gradients(name: str) -> None:
    """Backward inside the function, whose bits do not depend on sizes being symbolic either."""

    def step(x: Any, w: Any) -> Any:
        outs = [y for y in leaves(PROGRAMS[name](x * w)) if y.requires_grad]
        if not outs:
            return w
        return jg.autograd.grad(sum((y * y).sum() for y in outs), [w])[0]

    w = make(3, seed=1).requires_grad_()
    both(
        step,
        [(make(n, 3, seed=n), w) for n in SIZES],
        FREE.get(name, 3 if name == "reductions" else 2),
    )


@pytest.mark.parametrize("function", [masked, attention])
def test_two_sizes(function: Callable[[Any], Any]) -> None:
    """Batch and time vary on their own."""
    shapes = [(4, 8, 6), (3, 8, 6), (4, 5, 6), (2, 9, 6), (7, 3, 6), (3, 3, 6)]
    both(function, [(make(*s, seed=s[1]),) for s in shapes], 3)
