"""Functions that PyTorch has for its own use, in both libraries."""

from __future__ import annotations

import numpy as np
import pytest
from parity.compare import OURS, check, flat, tensors

import jitgrad

RNG = np.random.default_rng(0)


def test_native_layer_norm() -> None:
    x, w, b = RNG.standard_normal((2, 3, 4)), RNG.standard_normal(4), RNG.standard_normal(4)
    check(lambda lib, x, w, b: lib.t.native_layer_norm(x, (4,), w, b, 1e-5), x, w, b, scale=10)
    check(lambda lib, x: lib.t.native_layer_norm(x, (3, 4), None, None, 1e-3), x, scale=10)


def test_native_group_norm() -> None:
    x, w, b = RNG.standard_normal((2, 6, 5)), RNG.standard_normal(6), RNG.standard_normal(6)

    def code(lib, x, w, b):
        return lib.t.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5)

    check(code, x, w, b, scale=10)


def test_embedding_with_weight_first() -> None:
    weight, place = RNG.standard_normal((5, 3)), np.array([[0, 4], [2, 2]])
    check(lambda lib, w, i: lib.t.embedding(w, i), weight, place)
    check(lambda lib, w, i: lib.t.embedding(w, i, 2, True), weight, place)


X, C = RNG.standard_normal((4, 6, 5)), RNG.standard_normal(6)
POSITIVE = np.abs(RNG.standard_normal(6)) + 0.5
IDS, OFFSETS = np.array([0, 1, 4, 2, 1, 1]), np.array([0, 2, 2, 5])
LOGP = RNG.standard_normal((7, 2, 4))


def params(layers, gates, features, hidden, directions=1, bias=True):
    """The parameters of recurrent layers, flat."""
    out = []
    for layer in range(layers):
        for _ in range(directions):
            wide = features if layer == 0 else hidden * directions
            out += [RNG.standard_normal((gates * hidden, w)) * 0.4 for w in (wide, hidden)]
            out += [RNG.standard_normal(gates * hidden) * 0.4] * 2 if bias else []
    return out


CASES = {
    "layer_norm": (lambda t, x, w: t.layer_norm(x, (5,), None, w, 1e-3, True), X, X[0, 0]),
    "group_norm": (lambda t, x, w: t.group_norm(x, 3, w, None, 1e-3, False), X, C),
    "batch_norm": (
        lambda t, x, w, m, v: t.batch_norm(x, w, None, m, v, False, 0.1, 1e-5, True),
        X, C, C[::-1].copy(), POSITIVE,
    ),
    "instance_norm": (
        lambda t, x, w, b: t.instance_norm(x, w, b, None, None, True, 0.1, 1e-5, True), X, C, C
    ),
    "native_batch_norm": (
        lambda t, x, w: t.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5), X, C
    ),
    "native_channel_shuffle": (lambda t, x: t.native_channel_shuffle(x, 2), X),
    "conv_tbc": (
        lambda t, x, w, b: t.conv_tbc(x, w, b, 1), X, RNG.standard_normal((3, 5, 2)), C[:2]
    ),
    "convolution": (
        lambda t, x, w: t.convolution(x, w, None, [2], [1], [1], False, [0], 2), X,
        RNG.standard_normal((4, 3, 3)),
    ),
    "convolution transposed": (
        lambda t, x, w, b: t.convolution(x, w, b, (2, 2), (1, 1), (1, 1), True, (1, 0), 1),
        RNG.standard_normal((2, 3, 4, 4)), RNG.standard_normal((3, 2, 3, 3)), C[:2],
    ),
    "embedding_bag sum": (
        lambda t, w, i, o: t.embedding_bag(w, i, o, False, 0)[0], X[0], IDS, OFFSETS
    ),
    "embedding_bag mean": (
        lambda t, w, i, o: t.embedding_bag(w, i, o, mode=1, include_last_offset=False)[:3:2],
        X[0], IDS, OFFSETS,
    ),
    "embedding_bag max": (
        lambda t, w, i, o: t.embedding_bag(w, i, o, mode=2)[:3], X[0], IDS, OFFSETS[:2]
    ),
    "norm_except_dim": (lambda t, x: t.norm_except_dim(x, 2, 1), X),
    "norm_except_dim all": (lambda t, x: t.norm_except_dim(x, 2, -1), X),
    "kl_div": (lambda t, x, y: t.kl_div(x, y, 2, log_target=True), X, X * 0.5),
    "bce": (
        lambda t, x, y, p: t.binary_cross_entropy_with_logits(x, y, None, p, 0),
        X, (X > 0) * 1.0, np.abs(X[0, 0]),
    ),
    "cosine_embedding_loss": (
        lambda t, x, y, z: t.cosine_embedding_loss(x, y, z, 0.1), X[0], X[1], np.sign(C)
    ),
    "hinge_embedding_loss": (
        lambda t, x, y: t.hinge_embedding_loss(x, y, 0.5, 2), X, np.sign(X)
    ),
    "margin_ranking_loss": (
        lambda t, x, y, z: t.margin_ranking_loss(x, y, z, 0.1, 0), X, X * 0.3, np.sign(X)
    ),
    "poisson_nll_loss": (
        lambda t, x, y: t.poisson_nll_loss(x, y, True, False, 1e-8, 1), X, np.abs(X)
    ),
    "triplet_margin_loss": (
        lambda t, x, y, z: t.triplet_margin_loss(x, y, z, 0.7, swap=True), X[0], X[1], X[2]
    ),
    "ctc_loss": (
        lambda t, x, y: t.ctc_loss(x.log_softmax(2), y, [7, 6], [3, 2], 0, 1),
        LOGP, np.array([[1, 2, 1], [3, 3, 0]]),
    ),
    "prelu": (lambda t, x, w: (t.prelu(x, w), x.prelu(w)), X, C),
    "hardshrink": (lambda t, x: (t.hardshrink(x), x.hardshrink(0.3)), X),
    "lstm_cell": (
        lambda t, x, h, *w: t.lstm_cell(x, (h, h * 2), *w), X[0], RNG.standard_normal((6, 3)),
        *params(1, 4, 5, 3),
    ),
    "gru_cell": (
        lambda t, x, h, *w: t.gru_cell(x, h, *w), X[0], RNG.standard_normal((6, 3)),
        *params(1, 3, 5, 3),
    ),
    "rnn_tanh_cell": (
        lambda t, x, h, *w: t.rnn_tanh_cell(x, h, *w), X[0], RNG.standard_normal((6, 3)),
        *params(1, 1, 5, 3, bias=False),
    ),
    "rnn_relu_cell": (
        lambda t, x, h, *w: t.rnn_relu_cell(x, h, *w), X[0], RNG.standard_normal((6, 3)),
        *params(1, 1, 5, 3),
    ),
    "lstm": (
        lambda t, x, h, *w: t.lstm(x, (h, h * 2), w, True, 2, 0.0, True, True, True),
        X, RNG.standard_normal((4, 4, 3)), *params(2, 4, 5, 3, 2),
    ),
    "gru": (
        lambda t, x, h, *w: t.gru(x, h, w, False, 1, 0.0, False, False, batch_first=False),
        X, RNG.standard_normal((1, 6, 3)), *params(1, 3, 5, 3, bias=False),
    ),
    "rnn_tanh": (
        lambda t, x, h, *w: t.rnn_tanh(x, h, w, True, 1, 0.0, False, False, False),
        X, RNG.standard_normal((1, 6, 3)), *params(1, 1, 5, 3),
    ),
    "rnn_relu": (
        lambda t, x, h, *w: t.rnn_relu(x, h, w, True, 1, 0.0, False, True, False),
        X, RNG.standard_normal((2, 6, 3)), *params(1, 1, 5, 3, 2),
    ),
}  # fmt: skip


# PyTorch has no derivative, or none by one of the operands.
NO_GRADIENT = ("batch_norm", "native_channel_shuffle", "bce", "native_batch_norm")


@pytest.mark.parametrize("name", CASES)
def test_names_at_the_top(name) -> None:
    code, *arrays = CASES[name]
    check(lambda lib, *xs: code(lib.t, *xs), *arrays, scale=1e4, grad=name not in NO_GRADIENT)


@pytest.mark.parametrize("name", CASES)
def test_names_at_the_top_compiled(name) -> None:
    code, *arrays = CASES[name]
    compiled = jitgrad.jit(lambda *xs: code(jitgrad, *xs), fallback="error")
    for _ in range(2):
        inputs = tensors(OURS, arrays, False)
        for a, b in zip(flat(compiled(*inputs)), flat(code(jitgrad, *inputs)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    assert compiled.stats.hits >= 1


def test_packed_sequences_at_the_top() -> None:
    data, sizes = RNG.standard_normal((6, 5)), np.array([3, 2, 1])
    h, weights = RNG.standard_normal((1, 3, 4)), params(1, 4, 5, 4)

    def code(lib, x, n, h, *w):
        return lib.t.lstm(x, n, (h, h), list(w), True, 1, 0.0, False, False)

    check(code, data, sizes, h, *weights, scale=30)


def test_dropout_at_the_top() -> None:
    x = jitgrad.ones(40, 50)
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        f, write = getattr(jitgrad, name), getattr(jitgrad, name + "_")
        assert f(x, 0.5, False).equal(x)
        jitgrad.manual_seed(1)
        made = f(x, 0.5, train=True)
        jitgrad.manual_seed(1)
        y = x.clone()
        assert write(y, 0.5, True) is y and y.equal(made) and len(made.unique()) == 2
    out, mask = jitgrad.native_dropout(x, 0.25, True)
    assert out.equal(mask / 0.75) and abs(mask.float().mean() - 0.75) < 0.05
    out, mask = jitgrad.native_dropout(x, 0.25, False)
    assert out.equal(x) and mask.all()


def test_embedding_renorm() -> None:
    weight, ids = RNG.standard_normal((5, 4)) * 3, np.array([0, 3])

    def code(lib, w, i):
        w = w.clone()
        return lib.t.embedding_renorm_(w, i, 1.5, 2.0), w

    check(code, weight, ids, grad=False)
