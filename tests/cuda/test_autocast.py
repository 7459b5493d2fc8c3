"""Autocast for GPUs: each function of PyTorch's documented lists for CUDA computes in the dtype of
its class, eager and under jit, forward and backward; all others as they do without autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.nn import functional as F
from jitgrad.state import state

Code = Callable[..., Any]


def of(*shapes: tuple[int, ...], dtype: Any = torch.float32) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.1, 0.9, s).astype(np.float32) for s in shapes]
    return [torch.from_numpy(x).to(dtype).to("cuda") for x in arrays]


def index() -> torch.Tensor:
    return torch.tensor([[0, 1], [1, 0]], device="cuda")


LOWER: dict[str, tuple[list[tuple[int, ...]], Code]] = {
    "matmul": ([(2, 3), (3, 2)], torch.matmul),
    "@": ([(2, 3), (3, 2)], lambda a, b: a @ b),
    "mm": ([(2, 3), (3, 2)], torch.mm),
    "mv": ([(2, 3), (3,)], lambda a, b: a.mv(b)),
    "bmm": ([(2, 2, 3), (2, 3, 2)], torch.bmm),
    "addmm": ([(2, 2), (2, 3), (3, 2)], torch.addmm),
    "addmv": ([(2,), (2, 3), (3,)], torch.addmv),
    "addr": ([(3, 2), (3,), (2,)], torch.addr),
    "baddbmm": ([(2, 2, 2), (2, 2, 3), (2, 3, 2)], torch.baddbmm),
    "addbmm": ([(2, 2), (2, 2, 3), (2, 3, 2)], torch.addbmm),
    "chain_matmul": ([(2, 3), (3, 2), (2, 4)], torch.chain_matmul),
    "multi_dot": ([(2, 3), (3, 2), (2, 4)], lambda *x: torch.linalg.multi_dot(x)),
    "vecdot": ([(2, 3), (2, 3)], torch.linalg.vecdot),
    "einsum": ([(2, 3), (3, 2)], lambda a, b: torch.einsum("ij,jk->ik", a, b)),
    "linear": ([(2, 3), (4, 3), (4,)], F.linear),
    "conv1d": ([(1, 2, 5), (2, 2, 3), (2,)], F.conv1d),
    "conv2d": ([(1, 2, 4, 4), (2, 2, 3, 3), (2,)], F.conv2d),
    "conv_transpose1d": ([(1, 2, 4), (2, 2, 3)], F.conv_transpose1d),
    "prelu": ([(2, 3), (1,)], F.prelu),
    "attention": ([(1, 2, 3, 4)] * 3, F.scaled_dot_product_attention),
}

M = [(2, 3)]
FLOAT32: dict[str, tuple[list[tuple[int, ...]], Code]] = {
    **{
        f"{name} {kind}": (M, code)
        for name in [
            "acos",
            "asin",
            "cosh",
            "erfinv",
            "exp",
            "expm1",
            "log",
            "log10",
            "log2",
            "log1p",
            "reciprocal",
            "rsqrt",
            "sinh",
            "tan",
            "sum",
            "prod",
            "norm",
        ]
        for kind, code in (
            ("method", lambda x, name=name: getattr(x, name)()),
            ("function", lambda x, name=name: getattr(torch, name)(x)),
        )
    },
    "pow": (M, lambda x: torch.pow(x, 3)),
    "**": (M, lambda x: x**2),
    "** of a number": (M, lambda x: 2**x),
    "** of tensors": ([*M, *M], lambda x, y: x**y),
    "number / tensor": (M, lambda x: 2 / x),
    "cumsum": (M, lambda x: x.cumsum(1)),
    "cumprod": (M, lambda x: torch.cumprod(x, dim=1)),
    "softmax": (M, lambda x: x.softmax(-1)),
    "nn.Softmax": (M, lambda x: nn.Softmax(-1)(x)),
    "F.log_softmax": (M, lambda x: F.log_softmax(x, -1)),
    "logsumexp": (M, lambda x: x.logsumexp(1)),
    "softplus": (M, F.softplus),
    "layer_norm": (M, lambda x: F.layer_norm(x, (3,))),
    "nn.LayerNorm": (M, lambda x: nn.LayerNorm(3).to("cuda")(x)),
    "rms_norm": (M, lambda x: F.rms_norm(x, (3,))),
    "group_norm": ([(2, 4, 3)], lambda x: F.group_norm(x, 2)),
    "vector_norm": (M, torch.linalg.vector_norm),
    "matrix_norm": (M, torch.linalg.matrix_norm),
    "normalize": (M, F.normalize),
    "renorm": (M, lambda x: torch.renorm(x, 2, 0, 1.0)),
    "dist": ([*M, *M], torch.dist),
    "cdist": ([*M, *M], torch.cdist),
    "cosine_similarity": ([*M, *M], F.cosine_similarity),
    "interpolate": ([(1, 1, 2, 2)], lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    **{
        name: ([*M, *M], lambda x, y, name=name: getattr(F, name)(x, y.detach()))
        for name in [
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "kl_div",
            "poisson_nll_loss",
            "hinge_embedding_loss",
            "soft_margin_loss",
            "binary_cross_entropy_with_logits",
        ]
    },
    "cross_entropy": (M, lambda x: F.cross_entropy(x, index()[0])),
    "nll_loss": (M, lambda x: F.nll_loss(x, index()[0])),
    "margin_ranking_loss": ([*M, *M, *M], F.margin_ranking_loss),
    "triplet_margin_loss": ([*M, *M, *M], F.triplet_margin_loss),
}

WIDEST: dict[str, tuple[list[tuple[int, ...]], Code]] = {
    "addcdiv": ([*M] * 3, torch.addcdiv),
    "addcmul": ([*M] * 3, lambda x, y, z: x.addcmul(y, z)),
    "atan2": ([*M] * 2, torch.atan2),
    "cross": ([*M] * 2, lambda x, y: torch.cross(x, y, dim=1)),
    "dot": ([(3,)] * 2, torch.dot),
    "tensordot": ([(2, 3), (3, 2)], lambda x, y: torch.tensordot(x, y, 1)),
    "bilinear": ([(2, 3), (2, 3), (4, 3, 3)], F.bilinear),
    "scatter_add": ([(2, 2)] * 2, lambda x, y: x.scatter_add(0, index(), y)),
}

AS_GIVEN: dict[str, tuple[list[tuple[int, ...]], Code]] = {
    **{
        name: (M, lambda x, name=name: getattr(F, name)(x))
        for name in ("gelu", "silu", "relu", "elu", "mish", "softsign", "logsigmoid", "dropout")
    },
    **{
        name: (M, lambda x, name=name: getattr(torch, name)(x))
        for name in ("sigmoid", "tanh", "sqrt", "mean", "var", "std", "square", "amax", "sin")
    },
    "+": ([*M, *M], lambda x, y: x + y),
    "tensor / number": (M, lambda x: x / 2),
    "batch_norm": (M, lambda x: F.batch_norm(x, None, None, training=True)),
    "area": ([(1, 1, 2, 2)], lambda x: F.interpolate(x, scale_factor=2, mode="area")),
    "exp_": (M, lambda x: x.clone().exp_()),
    "out=": (M, lambda x: torch.exp(x.detach(), out=torch.empty_like(x))),
    "outer": ([(3,), (2,)], torch.outer),
}


def close(x: torch.Tensor, y: torch.Tensor, lower: bool) -> None:
    tolerance = 2e-2 if lower else 1e-5
    np.testing.assert_allclose(
        x.detach().float().cpu().numpy(), y.detach().float().cpu().numpy(), tolerance, tolerance
    )


def check(shapes: Any, code: Code, given: list[Any], wanted: Any, jit: bool) -> None:
    """The result's dtype and value, and gradients, against operands cast by hand."""

    def cast(x: Any) -> Any:
        return x if wanted is None else x.to(wanted)

    def under(*x: Any) -> Any:
        with torch.autocast("cuda"):
            return code(*x)

    made = [x.to(d).requires_grad_() for x, d in zip(of(*shapes), given, strict=True)]
    same = [x.detach().clone().requires_grad_() for x in made]
    run = torch.jit(under, fallback="error") if jit else under
    torch.manual_seed(0)
    result = run(*made)
    torch.manual_seed(0)
    expected = code(*map(cast, same))
    assert result.dtype is expected.dtype and result.device == "cuda:0"
    close(result, expected, torch.float16 in (*given, wanted))
    if not expected.requires_grad:
        return
    for y in (result, expected):
        y.float().sum().backward()
    for x, y in zip(made, same, strict=True):
        assert (x.grad is None) == (y.grad is None)
        if x.grad is not None and y.grad is not None:
            assert x.grad.dtype is y.grad.dtype
            close(x.grad, y.grad, True)


def cases(*tables: Any) -> list[Any]:
    return [pytest.param(*case, id=name) for table in tables for name, case in table.items()]


HALF, SINGLE = torch.float16, torch.float32


@pytest.mark.parametrize(("shapes", "code"), cases(LOWER))
def test_products_compute_in_float16(shapes: Any, code: Code) -> None:
    check(shapes, code, [SINGLE] * len(shapes), HALF, jit=False)


@pytest.mark.parametrize(("shapes", "code"), cases(FLOAT32))
def test_what_needs_range_computes_in_float32(shapes: Any, code: Code) -> None:
    check(shapes, code, [HALF] * len(shapes), SINGLE, jit=False)


@pytest.mark.parametrize(("shapes", "code"), cases(WIDEST))
def test_of_several_dtypes_the_widest(shapes: Any, code: Code) -> None:
    check(shapes, code, [HALF] * (len(shapes) - 1) + [SINGLE], SINGLE, jit=False)
    check(shapes, code, [HALF] * len(shapes), HALF, jit=False)


@pytest.mark.parametrize("given", [HALF, SINGLE])
@pytest.mark.parametrize(("shapes", "code"), cases(AS_GIVEN))
def test_all_others_compute_in_the_dtypes_they_are_given(
    shapes: Any, code: Code, given: Any
) -> None:
    check(shapes, code, [given] * len(shapes), None, jit=False)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name)
        for name, case in {
            "linear": (*LOWER["linear"], SINGLE, HALF), "@": (*LOWER["@"], SINGLE, HALF),
            "exp": (*FLOAT32["exp method"], HALF, SINGLE), "**": (*FLOAT32["**"], HALF, SINGLE),
            "softmax": (*FLOAT32["softmax"], HALF, SINGLE),
            "layer_norm": (*FLOAT32["nn.LayerNorm"], HALF, SINGLE),
            "cross_entropy": (*FLOAT32["cross_entropy"], HALF, SINGLE),
            "addcdiv": (*WIDEST["addcdiv"], HALF, HALF), "gelu": (*AS_GIVEN["gelu"], HALF, None),
            "dropout": (*AS_GIVEN["dropout"], HALF, None),
            "batch_norm": (*AS_GIVEN["batch_norm"], HALF, None),
        }.items()
    ],
)  # fmt: skip
def test_classes_under_jit(case: Any) -> None:
    shapes, code, given, wanted = case
    check(shapes, code, [given] * len(shapes), wanted, jit=True)


def test_binary_cross_entropy_is_refused() -> None:
    x, y = of((3,), (3,))
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, y)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.BCELoss()(x, y)
        F.binary_cross_entropy(x.cpu(), y.cpu())
    F.binary_cross_entropy(x, y)


def test_float64_and_integers_stay() -> None:
    x = of((2, 2))[0]
    with torch.autocast("cuda"):
        assert x.double().exp().dtype is torch.float64
        assert (x.double() @ x.double()).dtype is torch.float64
        assert index().sum().dtype is torch.int64
        assert x.half().sum(dtype=torch.float16).dtype is torch.float16
        assert x.cpu().half().exp().dtype is torch.float16


def test_parts_of_attention_have_classes_of_their_own() -> None:
    net = nn.MultiheadAttention(4, 2).to("cuda")
    x = of((3, 2, 4))[0]
    with torch.autocast("cuda"):
        out, weights = net(x, x, x)
    assert out.dtype is HALF and weights is not None
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is SINGLE for p in net.parameters())


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"])
def test_recurrent_layers_compute_in_float16(name: str) -> None:
    net = getattr(nn, name)(4, 5).to("cuda")
    x = of((2, 4) if "Cell" in name else (3, 2, 4))[0]
    with torch.autocast("cuda"):
        out = net(x)
    y = out[0] if isinstance(out, tuple) else out
    assert y.dtype is HALF
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is SINGLE for p in net.parameters())


def test_errors_are_the_functions_own() -> None:
    x = of((2, 3))[0]
    with torch.autocast("cuda"):
        for code in (lambda: x @ x, lambda: x.softmax(5), lambda: F.layer_norm(x, (7,))):
            with pytest.raises((RuntimeError, IndexError)) as caught:
                code()
            assert "called anew" not in str(caught.value) and __file__ in str(caught.value)


@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_pass_inside_the_context_is_as_outside(inside: bool) -> None:
    x = of((2, 3))[0].requires_grad_()
    y = of((2, 3))[0].requires_grad_()
    with torch.autocast("cuda"):
        loss = (x.softmax(-1) * x.exp()).log().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    (y.softmax(-1) * y.exp()).log().mean().backward()
    assert x.grad is not None and y.grad is not None
    close(x.grad, y.grad, False)


def test_checkpoints_recompute_as_they_computed() -> None:
    def part(x: Any) -> Any:
        return nn.functional.layer_norm(x @ x.t(), (2,)).exp()

    seen = []
    for checkpointed in (False, True):
        x = of((2, 3))[0].requires_grad_()
        with torch.autocast("cuda"):
            y = (
                torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
                if checkpointed
                else part(x)
            )
        assert y.dtype is SINGLE
        y.sum().backward()
        assert x.grad is not None
        seen.append(x.grad)
    close(*seen, False)


def test_nothing_is_asked_when_it_is_off() -> None:
    assert state.watcher is None
    with torch.autocast("cuda"):
        assert state.watcher is not None
        with torch.autocast("cuda", enabled=False):
            assert state.watcher is None
    with torch.autocast("cpu"):
        assert state.watcher is None
    assert state.watcher is None
