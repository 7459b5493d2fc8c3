"""Kernels on the checking simulator (checked_gpu.py): no races, nothing outside of arrays; and that
it finds what is planted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from checked_gpu import GpuFault, _Checked, checking
from cuda_graphs import close, compiled, normal, run

import jitgrad as jg
from jitgrad import nn
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="kernels run on a GPU here")


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with checking():
        yield


_READ_EARLY = """
def k(x, y):
    s = cuda.shared.array(4, np.float32, 16)
    t = cuda.threadIdx.x
    s[t] = x[t]
    y[t] = s[(t + 1) % 4]
"""
_OVERWRITTEN = """
def k(x, y):
    s = cuda.shared.array(4, np.float32, 16)
    t = cuda.threadIdx.x
    for n in range(2):
        s[t] = x[t]
        cuda.syncthreads()
        y[t] = s[(t + 1) % 4]
"""
_TWO_BLOCKS = """
def k(x, y):
    if cuda.threadIdx.x == 0:
        y[0] = x[cuda.blockIdx.x]
"""
_OUTSIDE = """
def k(x, y):
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x + 1]
"""
_NEGATIVE = """
def k(x, y):
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x - 1]
"""
_SOME = """
def k(x, y):
    if cuda.threadIdx.x < 2:
        cuda.syncthreads()
"""
_ON_ITS_WAY = """
def k(x, y):
    s = cuda.shared.array(4, np.float32, 16)
    t = cuda.threadIdx.x
    copy_async(s, t, x, t)
    cuda.syncthreads()
    y[t] = s[t]
"""
_ODD = """
def k(x, y):
    if cuda.grid(1) == 0:
        store2(y, is_aligned(y), 1, load2(x, False, 0))
"""
_UNWRITTEN = """
def k(x, y):
    s = cuda.shared.array(4, np.float32, 16)
    y[cuda.grid(1)] = s[cuda.threadIdx.x]
"""


@pytest.mark.parametrize(
    ("text", "grid", "what"),
    [
        (_READ_EARLY, 1, "nobody has written"), (_OVERWRITTEN, 1, "another thread has read"),
        (_TWO_BLOCKS, 2, "another block has written"), (_OUTSIDE, 1, "outside of 4 elements"),
        (_NEGATIVE, 1, r"x\[-1\] is outside"), (_SOME, 1, "wait for others that have ended"),
        (_ON_ITS_WAY, 1, "nobody has written"), (_ODD, 1, "not aligned"),
        (_UNWRITTEN, 1, "nobody has written"),
    ],
)  # fmt: skip
def test_what_is_planted_is_found(text: str, grid: int, what: str) -> None:
    x, y = (np.zeros(64, np.float32)[:4] for _ in range(2))
    with pytest.raises(GpuFault, match=what):
        _Checked(text, "k", {})[grid, 4](x, y)


def _loss(x: Any, w: Any, b: Any, y: Any) -> Any:
    loss = nn.functional.cross_entropy(nn.functional.linear(jg.relu(x), w, b), y)
    return loss, *jg.autograd.grad(loss, (x, w, b))


def _convolution(x: Any, w: Any) -> Any:
    loss = (jg.relu(nn.functional.conv2d(x, w, padding=1)) ** 2).mean()
    return loss, *jg.autograd.grad(loss, (x, w))


def _attention(q: Any, k: Any, v: Any) -> Any:
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y, *jg.autograd.grad((y * y).sum(), (q, k, v))


def _norm(x: Any, w: Any, b: Any) -> Any:
    y = nn.functional.layer_norm(x, (x.shape[-1],), w, b)
    return y, *jg.autograd.grad((y * y).sum(), (x, w, b))


_I = np.random.default_rng(1).integers(0, 7, 30)
_FUSIONS = {
    "loss": (_loss, [normal(9, 8), normal(7, 8), normal(7), _I[:9]]),
    "convolution": (_convolution, [normal(2, 3, 6, 5), normal(4, 3, 3, 3)]),
    "attention": (_attention, [normal(1, 2, 9, 4, seed=k) for k in range(3)]),
    "norm": (_norm, [normal(6, 13), normal(13), normal(13)]),
    "rows": (lambda x: (jg.softmax(x, -1), x.argmax(-1), x.sum(0)), [normal(5, 40)]),
    "sums": (lambda x: (x.sum(), x.mean(0), x.amax()), [normal(40, 33)]),
    "halves": (
        lambda x: ((x.half() @ x.half().T).float(), (x.bfloat16() * 2).float()), [normal(17, 18)]
    ),
    "scans": (lambda x: (x.cumsum(1), x.cumsum(0), x.flip(0).cumprod(1)), [normal(3, 70)]),
    "sorts": (lambda x: (*x.sort(1), *x[:, :9].topk(3)), [normal(2, 90)]),
    "scatters": (
        lambda x, i: (
            jg.zeros(7, 3).index_add(0, i, x), x[i], x.index_put((i[:5],), x[:5]),
            jg.zeros(7, dtype=jg.int64).index_add(0, i, i),
        ),
        [normal(30, 3), _I],
    ),
    "views": (
        lambda x: (x[:, 1:] * x[:, :-1], x.T.flip(1) + 1, jg.cat([x, x * 2])), [normal(9, 16)]
    ),
    "gelu": (lambda x: nn.functional.gelu(x[1:]), [normal(33)]),
}  # fmt: skip


@pytest.mark.parametrize("blocks", [2, 1 << 10], ids=["turns", "blocks"])
@pytest.mark.parametrize("name", list(_FUSIONS))
def test_fusions(name: str, blocks: int) -> None:
    """blocks: of a launch, at most. Few take their points in turns, and must not be in their own
    way; of many each has one."""
    f, args = _FUSIONS[name]
    specs = [
        jg.TensorSpec(a.shape, jg.tensor(a).dtype, requires_grad=a.dtype.kind == "f") for a in args
    ]
    lowered = jg.jit(lambda *xs: f(*xs)).lower(*specs)
    order = [int(re.findall(r"\d+", i.name)[0]) for i in lowered.graph.inputs]
    got = run(compiled(lowered.graph, max_blocks=blocks), [args[k] for k in order])
    tensors = [jg.tensor(a, requires_grad=a.dtype.kind == "f") for a in args]
    want = f(*tensors)
    want = [w.detach().numpy() for w in (want if isinstance(want, tuple) else (want,))]
    for x, y in zip(got, want, strict=False):
        close(x, y, 10)
