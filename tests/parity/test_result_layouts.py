"""How results lie in memory: strides are PyTorch's, eager and compiled; so writes through reshape
and flatten reach what they reach there, and view() takes what it takes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from parity.compare import torch

import jitgrad

ELEMENTWISE = {
    "add": lambda t, x, y: y + x,
    "add_of_row_major": lambda t, x, y: x + y,
    "number": lambda t, x, y: y * 2,
    "exp": lambda t, x, y: y.exp(),
    "broadcast": lambda t, x, y: y[:1] + y,
    "expanded": lambda t, x, y: x[:1].expand(2, 3, 4) * y,
    "gaps": lambda t, x, y: x[:, ::2] * 2,
    "gaps_of_permuted": lambda t, x, y: y[:, ::2] * 2,
    "compare": lambda t, x, y: y > x,
    "where": lambda t, x, y: t.where(y > 3, y, x),
    "double": lambda t, x, y: y.double(),
    "clamp": lambda t, x, y: y.clamp(0, 1),
    "gelu": lambda t, x, y: t.nn.functional.gelu(y),
    "lerp": lambda t, x, y: t.lerp(y, x, 0.25),
    "addcmul": lambda t, x, y: t.addcmul(y, x, x),
    "complex": lambda t, x, y: t.complex(y, x),
    "clone": lambda t, x, y: y.clone(),
    "clone_of_gaps": lambda t, x, y: y[:, ::2].clone(),
    "clone_of_expanded": lambda t, x, y: y[:1].expand(5, 3, 4).clone(),
    "zeros_like": lambda t, x, y: t.zeros_like(y),
    "full_like": lambda t, x, y: t.full_like(y, 2.0),
    "flip": lambda t, x, y: y.flip(0),
    "dropout": lambda t, x, y: t.nn.functional.dropout(y, 1e-9, True),
}
OTHERS = {
    "contiguous": lambda t, x, y: y.contiguous(),
    "contiguous_clone": lambda t, x, y: y.clone(memory_format=t.contiguous_format),
    "contiguous_like": lambda t, x, y: t.zeros_like(y, memory_format=t.contiguous_format),
    "index": lambda t, x, y: x[:, [0, 2]],
    "two_indices": lambda t, x, y: x[:, [0, 2], 1],
    "mask": lambda t, x, y: x[:, t.tensor([True, False, True])],
    "index_select": lambda t, x, y: y.index_select(1, t.tensor([0, 1])),
    "sum": lambda t, x, y: y.sum(1),
    "mean": lambda t, x, y: y.mean(-1),
    "var": lambda t, x, y: y.var(1),
    "norm": lambda t, x, y: t.norm(y, dim=1),
    "prod": lambda t, x, y: y.prod(1),
    "logsumexp": lambda t, x, y: t.logsumexp(y, 1),
    "all": lambda t, x, y: (y > 0).all(1),
    "softmax": lambda t, x, y: y.softmax(0),
    "log_softmax": lambda t, x, y: y.log_softmax(-1),
    "cumsum": lambda t, x, y: y.cumsum(1),
    "cumprod": lambda t, x, y: y.cumprod(1),
    "stack": lambda t, x, y: t.stack([y, y]),
    "cat": lambda t, x, y: t.cat([y, y], 1),
    "roll": lambda t, x, y: y.roll(1, 0),
    "repeat": lambda t, x, y: y.repeat(1, 2, 1),
    "gather": lambda t, x, y: y.gather(1, t.zeros(2, 3, 4, dtype=t.long)),
    "scatter": lambda t, x, y: y.scatter(1, t.zeros(2, 1, 4, dtype=t.long), 0.0),
    "scatter_add": lambda t, x, y: y.scatter_add(1, t.zeros(2, 1, 4, dtype=t.long), y),
    "index_add": lambda t, x, y: y.index_add(0, t.tensor([0]), y[:1]),
    "masked_fill": lambda t, x, y: y.masked_fill(y > 3, 0.0),
    "tril": lambda t, x, y: y.tril(),
    "masked_scatter": lambda t, x, y: y.masked_scatter(y > 3, x),
    "put": lambda t, x, y: y.put(t.tensor([0]), t.tensor([1.0])),
    "slice_scatter": lambda t, x, y: y.slice_scatter(x[:1], 0, 0, 1),
    "select_scatter": lambda t, x, y: y.select_scatter(x[0], 0, 0),
    "diagonal_scatter": lambda t, x, y: y.diagonal_scatter(t.zeros(4, 2)),
    "index_fill": lambda t, x, y: y.index_fill(0, t.tensor([0]), 1.0),
    "renorm": lambda t, x, y: y.renorm(2, 0, 1.0),
    "rot90": lambda t, x, y: y.rot90(),
    "rot90_not": lambda t, x, y: y.rot90(4),
    "roll_not": lambda t, x, y: y.roll(0, 0),
    "sort": lambda t, x, y: y.sort(1).values,
    "argsort": lambda t, x, y: y.argsort(1),
    "msort": lambda t, x, y: y.msort(),
    "topk": lambda t, x, y: y.topk(2, 1).values,
    "one_hot": lambda t, x, y: t.nn.functional.one_hot(y.long(), 30),
    "embedding": lambda t, x, y: t.nn.functional.embedding(y.long(), t.ones(30, 2)),
    "pixel_shuffle": lambda t, x, y: t.nn.functional.pixel_shuffle(y[:, :1], 1),
    "transpose_copy": lambda t, x, y: t.transpose_copy(y, 0, 1),
    "einsum": lambda t, x, y: t.einsum("bij,bkj->bki", y, x),
    "einsum_outer": lambda t, x, y: t.einsum("i,j->ji", y[0, 0], y[0, :, 0]),
    "einsum_kept": lambda t, x, y: t.einsum("bnd,md->bmn", y, t.ones(5, 4)),
    "cross": lambda t, x, y: t.linalg.cross(y[:, :, :3], y[:, :, :3]),
    "layer_norm": lambda t, x, y: t.nn.functional.layer_norm(y, (4,)),
    "rms_norm": lambda t, x, y: t.nn.functional.rms_norm(y, (4,)),
    "batch_norm": lambda t, x, y: t.nn.functional.batch_norm(
        x.transpose(1, 2), None, None, training=True
    ),
    "linear": lambda t, x, y: t.nn.functional.linear(y, t.ones(5, 4), t.ones(5)),
    "matmul": lambda t, x, y: y @ t.ones(4, 5),
    "attention": lambda t, x, y: t.nn.functional.scaled_dot_product_attention(
        *[t.ones(2, 4, 3, 5).transpose(1, 2)] * 3
    ),
}
Call = Callable[[Any, Any, Any], Any]


def _operands(t: Any) -> tuple[Any, Any]:
    x = t.arange(24.0).reshape(2, 3, 4)
    return x, t.arange(24.0).reshape(4, 3, 2).permute(2, 1, 0)


@pytest.mark.parametrize("name", [*ELEMENTWISE, *OTHERS])
def test_strides(name: str) -> None:
    f: Call = {**ELEMENTWISE, **OTHERS}[name]
    expected = f(torch, *_operands(torch)).stride()
    x, y = _operands(jitgrad)
    assert f(jitgrad, x, y).stride() == expected
    compiled = jitgrad.jit(lambda x, y: f(jitgrad, x, y), fallback="error")
    for _ in range(3):
        made = compiled(x, y)
        assert made.stride() == expected
        assert jitgrad.allclose(made, f(jitgrad, x, y))
    assert compiled.stats.hits == 2


WRITES = {
    "index": lambda t, x: x[:, [0, 2]],
    "softmax": lambda t, x: x.t().softmax(0),
    "stack": lambda t, x: t.stack([x.t(), x.t()]),
    "clone": lambda t, x: x.t().clone(),
    "zeros_like": lambda t, x: t.zeros_like(x.t()),
    "add": lambda t, x: x.t() + 1,
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("how", ["eager", "jit", "segments"])
def test_writes_through_reshape(name: str, how: str) -> None:
    make = WRITES[name]

    def f(t: Any, x: Any) -> Any:
        if how == "segments":
            open("/dev/null").close()  # which Python does each time
        a = make(t, x)
        a.reshape(-1)[0] = -1
        return a

    expected = f(torch, torch.arange(6.0).reshape(2, 3))
    x = jitgrad.arange(6.0).reshape(2, 3)
    ours: Any = (
        (lambda x: f(jitgrad, x)) if how == "eager" else jitgrad.jit(lambda x: f(jitgrad, x))
    )
    for _ in range(3):
        made = ours(x)
        assert made.stride() == expected.stride()
        assert jitgrad.allclose(made, jitgrad.tensor(expected.tolist()))
