"""Losses: every reduction, weights, ignored classes, smoothing; values and gradients."""

import itertools

import numpy as np
import pytest
from parity.compare import THEIRS, check, raises_alike, torch

import jitgrad

REDUCTIONS = ["mean", "sum", "none"]


def rng(seed=0):
    return np.random.default_rng(seed)


PAIRWISE = {
    "mse_loss": {}, "l1_loss": {}, "smooth_l1_loss": {"beta": 0.4}, "huber_loss": {"delta": 0.3},
    "binary_cross_entropy_with_logits": {},
}  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("shape", [(), (4,), (3, 5), (2, 0)])
def test_pairwise(name, reduction, shape):
    x, y = np.asarray(rng().standard_normal(shape)), np.asarray(rng(1).random(shape))
    if x.size > 3:
        x.flat[0] = y.flat[0]
        x.flat[1] = 0.0

    def code(lib, x, y):
        return getattr(lib.F, name)(x, y, reduction=reduction, **PAIRWISE[name])

    check(code, x, y, scale=4)


def test_smooth_l1_with_beta_zero():
    x, y = rng().standard_normal((3, 5)), rng(1).standard_normal((3, 5))
    check(lambda lib, x, y: lib.F.smooth_l1_loss(x, y, beta=0.0), x, y)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction, weighted):
    p = rng().random((4, 6))
    p[0, :4] = [0.0, 1.0, 1e-20, 1 - 1e-14]
    p[1, :3] = [0.0, 1.0, 1e-13]
    t = rng(1).random((4, 6))
    t[0, :2] = [0.0, 1.0]
    t[1, :2] = [1.0, 0.0]
    w = rng(2).random(6)

    def code(lib, p, t):
        weight = lib.t.from_numpy(w) if weighted else None
        return lib.F.binary_cross_entropy(p, t, weight, reduction=reduction)

    check(code, p, t, grad=False, scale=10)
    # PyTorch clips at 1e-12 rounded to float32, and gives target an infinite gradient there.
    check(lambda lib, p, t: code(lib, p, t.detach()), p, t, scale=1e5)
    check(code, p[2:], t[2:], scale=10)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_with_logits_options(reduction):
    x, t = rng().standard_normal((4, 6)) * 30, rng(1).random((4, 6))
    x[0] = 0.0
    w, pw = rng(2).random((4, 6)), rng(3).random(6) * 3

    def code(lib, x, t, w, pw):
        return lib.F.binary_cross_entropy_with_logits(
            x, t, weight=w.detach(), pos_weight=pw.detach(), reduction=reduction
        )

    check(code, x, t, w, pw, scale=10)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_kl_div(reduction, log_target):
    x, t = np.log(rng().random((4, 6))), rng(1).random((4, 6)) + 0.01

    def code(lib, x, t):
        return lib.F.kl_div(x, t, reduction=reduction, log_target=log_target)

    check(code, x, t, scale=4)
    if not log_target:
        t[0, :2], t[1, 0] = 0.0, np.nan
        t[2, 0] = -1.0
        check(lambda lib, x, t: code(lib, x, t), x, t, grad=False)


CLASS_SHAPES = [(5,), (4, 5), (4, 5, 3), (2, 5, 3, 2)]


@pytest.mark.parametrize(
    "shape,reduction,weighted,smoothing",
    itertools.product(CLASS_SHAPES, REDUCTIONS, [False, True], [0.0, 0.1, 1.0]),
)
def test_cross_entropy_of_classes(shape, reduction, weighted, smoothing):
    x = rng().standard_normal(shape) * 5
    target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    t = np.asarray(rng(1).integers(0, 5, target_shape))
    w = rng(2).random(5)

    for ignore in (-100, 2):
        if len(shape) == 1:
            t = np.asarray(3)

        def code(lib, x, t, ignore=ignore):
            weight = lib.t.from_numpy(w) if weighted else None
            return lib.F.cross_entropy(
                x, t, weight, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing
            )

        check(code, x, t, scale=10)


@pytest.mark.parametrize(
    "shape,reduction,weighted,smoothing",
    itertools.product(CLASS_SHAPES, REDUCTIONS, [False, True], [0.0, 0.2]),
)
def test_cross_entropy_of_probabilities(shape, reduction, weighted, smoothing):
    x, t = rng().standard_normal(shape) * 5, rng(1).random(shape)
    w = rng(2).random(5)

    def code(lib, x, t):
        weight = lib.t.from_numpy(w) if weighted else None
        return lib.F.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=smoothing)

    check(code, x, t, scale=10)


@pytest.mark.parametrize("shape", CLASS_SHAPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(shape, reduction, weighted):
    x = rng().standard_normal(shape)
    t = np.asarray(rng(1).integers(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ()))
    w = rng(2).random(5)

    def code(lib, x, t):
        weight = lib.t.from_numpy(w) if weighted else None
        return lib.F.nll_loss(x, t, weight, ignore_index=1, reduction=reduction)

    check(code, x, t, scale=4)


@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 5), (3, 4, 5, 6)])
@pytest.mark.parametrize(
    "target", [(1,), (2,), (4,), (3, 1), (3, 4), (1, 3), (3, 1, 5), (2, 5), (3, 4, 5), (3, 1, 5, 6)]
)
def test_targets_of_other_shapes(name, shape, target):
    """The error's type is PyTorch's, and a vector takes a target of one element."""

    def outcome(lib):
        x, t = lib.zeros(shape), lib.zeros(target, dtype=lib.int64)
        try:
            return getattr(lib.nn.functional, name)(x, t, reduction="none").shape
        except (RuntimeError, ValueError) as error:
            return type(error)

    assert outcome(jitgrad) == outcome(torch)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_vector_and_one_target(reduction):
    """Whose gradient PyTorch refuses; ours is that of a 0-d target."""
    x = rng().standard_normal(4)
    for t in (np.array([2]), np.array([-100])):
        check(lambda lib, x, t: lib.F.nll_loss(x, t, reduction=reduction), x, t, grad=False)
        check(lambda lib, x, t: lib.F.cross_entropy(x, t, reduction=reduction), x, t, grad=False)
    leaf = jitgrad.tensor(x, requires_grad=True)
    loss = jitgrad.nn.functional.cross_entropy(leaf, jitgrad.tensor([2]), reduction=reduction)
    (got,) = jitgrad.autograd.grad(loss, leaf)
    wanted = leaf.detach().softmax(0) - jitgrad.tensor([0.0, 0.0, 1.0, 0.0])
    assert jitgrad.allclose(got, wanted, atol=1e-12)


def test_all_targets_ignored_is_nan():
    x, t = rng().standard_normal((3, 4)), np.full(3, -100)
    check(lambda lib, x, t: lib.F.cross_entropy(x, t), x, t, grad=False)
    check(lambda lib, x, t: lib.F.cross_entropy(x, t, reduction="sum"), x, t)


def test_float32_extremes():
    x = np.array([[1e4, -1e4, 0], [88, -88, 0], [0, 0, 0], [1e-30, 0, -1e-30]], np.float32)
    check(lambda lib, x, t: lib.F.cross_entropy(x, t), x, np.array([0, 1, 2, 0]), scale=4)


def test_modules():
    x, t = rng().standard_normal((4, 5)), np.array([0, 4, 2, 1])
    w = rng(2).random(5)

    def classes(lib, x, t):
        make = lib.nn.CrossEntropyLoss
        return [
            make()(x, t),
            make(weight=lib.t.from_numpy(w), ignore_index=2, label_smoothing=0.1)(x, t),
            lib.nn.NLLLoss(reduction="sum")(x, t),
        ]

    check(classes, x, t, scale=10)

    def pairs(lib, x, y):
        n = lib.nn
        losses = [
            n.MSELoss(), n.L1Loss(reduction="none"), n.SmoothL1Loss(beta=0.5),
            n.HuberLoss(delta=0.5), n.BCEWithLogitsLoss(pos_weight=lib.t.from_numpy(w)),
        ]  # fmt: skip
        return [loss(x, y) for loss in losses]

    check(pairs, x, rng(3).random((4, 5)), scale=10)


BAD = {
    "batch": lambda lib, x: lib.F.cross_entropy(x, lib.t.tensor([0, 1])),
    "class": lambda lib, x: lib.F.cross_entropy(x, lib.t.tensor([0, 1, 5])),
    "negative class": lambda lib, x: lib.F.nll_loss(x, lib.t.tensor([0, 1, -1])),
    "int32": lambda lib, x: lib.F.cross_entropy(x, lib.t.tensor([0, 1, 2], dtype=lib.t.int32)),
    "weight": lambda lib, x: lib.F.cross_entropy(
        x, lib.t.tensor([0, 1, 2]), lib.t.ones(7, dtype=lib.t.float64)
    ),
    "reduction": lambda lib, x: lib.F.mse_loss(x, x, reduction="avg"),
    "smoothing": lambda lib, x: lib.F.cross_entropy(x, lib.t.tensor([0, 1, 2]), label_smoothing=2),
    "bce shape": lambda lib, x: lib.F.binary_cross_entropy_with_logits(x, x[:2]),
    "bce range": lambda lib, x: lib.F.binary_cross_entropy(x * 0 + 2, x * 0),
    "beta": lambda lib, x: lib.F.smooth_l1_loss(x, x, beta=-1.0),
    "delta": lambda lib, x: lib.F.huber_loss(x, x, delta=0.0),
    "ignored": lambda lib, x: lib.F.cross_entropy(x, x, ignore_index=1),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], rng().standard_normal((3, 4)))


CLASS_LOSSES = {
    "cross_entropy": lambda F, x, y: F.cross_entropy(x, y),
    "cross_entropy smoothed": lambda F, x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "cross_entropy ignoring": lambda F, x, y: F.cross_entropy(x, y, ignore_index=1),
    "cross_entropy of images": lambda F, x, y: F.cross_entropy(x[:, :, None], y[:, None]),
    "nll_loss": lambda F, x, y: F.nll_loss(x, y),
    "nll_loss of images": lambda F, x, y: F.nll_loss(x[:, :, None], y[:, None]),
    "multi_margin_loss": lambda F, x, y: F.multi_margin_loss(x, y),
    "multilabel_margin_loss": lambda F, x, y: F.multilabel_margin_loss(x, y[:, None].repeat(1, 3)),
    "embedding": lambda F, x, y: F.embedding(y, x).sum(),
    "one_hot": lambda F, x, y: (F.one_hot(y, 3) * x).sum(),
    "mse_loss": lambda F, x, y: F.mse_loss(x[:, 0], y),
    "smooth_l1_loss": lambda F, x, y: F.smooth_l1_loss(x[:, 0], y),
    "hinge_embedding_loss": lambda F, x, y: F.hinge_embedding_loss(x[:, 0], y),
    "binary_cross_entropy_with_logits": (
        lambda F, x, y: F.binary_cross_entropy_with_logits(x[:, 0], y)
    ),
    "kl_div": lambda F, x, y: F.kl_div(x[:, 0], y, reduction="sum"),
    "margin_ranking_loss": lambda F, x, y: F.margin_ranking_loss(x[:, 0], x[:, 1], y),
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "bool"])
@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_targets_of_other_dtypes(name, dtype):
    """What PyTorch takes is taken, with its numbers; what it refuses is refused alike."""
    scores = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)

    def code(lib, x):
        y = lib.t.tensor([0, 1, 1, 0]).to(getattr(lib.t, dtype))
        return CLASS_LOSSES[name](lib.F, x, y)

    try:
        code(THEIRS, torch.from_numpy(scores))
    except (RuntimeError, IndexError, TypeError):
        raises_alike(code, scores)
    else:
        check(code, scores, scale=10)
