"""Losses by margins, likelihoods, distances: every reduction and option, values and gradients."""

import inspect
import warnings

import numpy as np
import pytest
from parity.compare import (
    LIBS,
    OURS,
    THEIRS,
    check,
    copy_parameters,
    raises_alike,
    same,
    torch,
)

REDUCTIONS = ["mean", "sum", "none"]


def values(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def signs(*shape, seed=1):
    return np.asarray(np.random.default_rng(seed).integers(0, 2, shape) * 2.0 - 1)


LOSSES = {
    "soft_margin": lambda F, a, b, t, r: F.soft_margin_loss(a, t.detach(), reduction=r),
    "hinge": lambda F, a, b, t, r: F.hinge_embedding_loss(a, t.detach(), 0.7, reduction=r),
    "ranking": lambda F, a, b, t, r: F.margin_ranking_loss(a, b, t.detach(), 0.3, reduction=r),
    "triplet": lambda F, a, b, t, r: F.triplet_margin_loss(a, b, a * b + 1, reduction=r),
    "triplet swap": lambda F, a, b, t, r: F.triplet_margin_loss(
        a, b, a * b, 2.0, p=1.0, swap=True, reduction=r
    ),
    "triplet distance": lambda F, a, b, t, r: F.triplet_margin_with_distance_loss(
        a, b, a * b, distance_function=lambda x, y: (x - y).abs(), margin=0.5, swap=True,
        reduction=r,
    ),
    "triplet default": lambda F, a, b, t, r: F.triplet_margin_with_distance_loss(
        a, b, a + b, reduction=r
    ),
    "soft labels": lambda F, a, b, t, r: F.multilabel_soft_margin_loss(
        a, (t.detach() + 1) / 2, reduction=r
    ),
    "weighted soft labels": lambda F, a, b, t, r: F.multilabel_soft_margin_loss(
        a, (t.detach() + 1) / 2, b.detach().abs(), reduction=r
    ),
    "poisson": lambda F, a, b, t, r: F.poisson_nll_loss(a, b.detach().abs(), reduction=r),
    "poisson full": lambda F, a, b, t, r: F.poisson_nll_loss(
        a.abs(), b.detach().abs() * 3, log_input=False, full=True, reduction=r
    ),
    "gaussian": lambda F, a, b, t, r: F.gaussian_nll_loss(a, t.detach(), b * b, reduction=r),
    "gaussian full": lambda F, a, b, t, r: F.gaussian_nll_loss(
        a, t.detach(), b.abs(), full=True, eps=0.5, reduction=r
    ),
    "gaussian number": lambda F, a, b, t, r: F.gaussian_nll_loss(a, t.detach(), 0.3, reduction=r),
    "weighted mse": lambda F, a, b, t, r: F.mse_loss(a, t, reduction=r, weight=b.abs()),
    "weighted l1": lambda F, a, b, t, r: F.l1_loss(a, t, reduction=r, weight=b.abs()),
    "weighted huber": lambda F, a, b, t, r: F.huber_loss(a, t, r, 0.5, b.abs()),
}  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 3), (0, 3)])
def test_pairwise(name, reduction, shape):
    code = LOSSES[name]
    a, b, t = values(*shape), values(*shape, seed=2), signs(*shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda lib, a, b, t: code(lib.F, a, b, t, reduction), a, b, t, scale=20)


@pytest.mark.parametrize("name", ["soft_margin", "hinge", "ranking", "poisson", "gaussian"])
def test_scalars(name):
    a, b, t = values(), values(seed=2), signs()
    check(lambda lib, a, b, t: LOSSES[name](lib.F, a, b, t, "mean"), a, b, t, scale=4)


def test_at_the_margin():
    """Where a hinge is exactly at its corner."""
    a, t = np.array([1.0, 1.0, -1.0, 0.0]), np.array([1.0, -1.0, 1.0, -1.0])
    check(lambda lib, a, t: lib.F.hinge_embedding_loss(a, t.detach(), reduction="none"), a, t)
    check(lambda lib, a, t: lib.F.margin_ranking_loss(a, a * 0, t.detach(), 1.0), a, t)
    x = np.array([[0.0, 1.0, 2.0], [3.0, 2.0, 1.0]])
    check(lambda lib, x, y: lib.F.multi_margin_loss(x, y), x, np.array([1, 0]))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4)])
@pytest.mark.parametrize("margin", [0.0, 0.4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cosine_embedding(shape, margin, reduction):
    def code(lib, a, b, t):
        return lib.F.cosine_embedding_loss(a, b, t.detach(), margin, reduction=reduction)

    check(code, values(*shape), values(*shape, seed=1), signs(*shape[:-1], seed=3), scale=10)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (1, 5), (3, 1), (0, 5)])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multi_margin(shape, p, weighted, reduction):
    if shape[0] == 0 and reduction != "none":
        return  # PyTorch returns memory that it never wrote
    y = np.asarray(np.random.default_rng(3).integers(0, shape[-1], shape[:-1]))
    w = np.random.default_rng(4).random(shape[-1])

    def code(lib, x, y):
        weight = lib.t.from_numpy(w) if weighted else None
        return lib.F.multi_margin_loss(x, y, p, 0.8, weight, reduction=reduction)

    check(code, values(*shape), y, scale=4)


LABELS = {
    (4,): [3, 0, -1, 1],
    (3, 4): [[3, 0, -1, 1], [-1, 1, 2, 3], [0, 1, 2, 3]],
    (1, 4): [[2, -1, -1, -1]],
    (2, 4): [[2, 2, -1, 0], [1, 0, 3, -1]],
}


@pytest.mark.parametrize("shape", LABELS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(shape, reduction):
    y = np.array(LABELS[shape])
    check(
        lambda lib, x, y: lib.F.multilabel_margin_loss(x, y, reduction=reduction),
        values(*shape), y, scale=4,
    )  # fmt: skip


@pytest.mark.parametrize("var", [(3, 4), (3,), (3, 1)])
def test_gaussian_variance_shapes(var):
    def code(lib, x, t, v):
        return lib.F.gaussian_nll_loss(x, t, v.abs(), full=True)

    check(code, values(3, 4), values(3, 4, seed=1), values(*var, seed=2), scale=20)


# -- distances -------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("shapes", [
    ((3, 4), (5, 4)), ((2, 3, 4), (2, 5, 4)), ((2, 1, 3, 4), (3, 5, 4)), ((0, 4), (5, 4)),
    ((3, 1), (2, 1)), ((30, 3), (28, 3)),
], ids=str)  # fmt: skip
def test_cdist(p, shapes):
    a, b = values(*shapes[0]), values(*shapes[1], seed=1)
    if 0 < p < 1 and a.ndim > 2:
        return
    check(lambda lib, a, b: lib.t.cdist(a, b, p), a, b, grad=p > 0, scale=1e4)


def test_cdist_of_equal_rows():
    """A distance of 0 has a gradient of 0; every compute mode."""
    a = values(28, 3)
    for mode in ("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"):
        check(lambda lib, a, mode=mode: lib.t.cdist(a[:3], a[:2] * 1, 2.0, mode), a, scale=1e9)
    x = a[:3].round(1)
    for p in (1.0, 2.0, 3.0):
        check(lambda lib, x, p=p: lib.t.cdist(x, x * 1, p), x, scale=10)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3), (1, 3), (0, 3)])
def test_pdist(p, shape):
    check(lambda lib, x: lib.F.pdist(x, p), values(*shape), grad=p > 0 and shape[0] > 1, scale=10)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((4,), (4,)), ((2, 3, 4), (4,))], ids=str)
def test_pairwise_distance(shapes, p, keepdim):
    a, b = values(*shapes[0]), values(*shapes[1], seed=1)
    check(lambda lib, a, b: lib.F.pairwise_distance(a, b, p, keepdim=keepdim), a, b, scale=10)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cosine_similarity(dim):
    a, b = values(3, 4, 2), values(3, 4, 2, seed=1)
    check(lambda lib, a, b: lib.F.cosine_similarity(a, b, dim), a, b, scale=10)
    check(lambda lib, a, b: lib.F.cosine_similarity(a[:, :1], b, dim, 2.0), a, b, scale=10)
    a[0] = 0
    check(lambda lib, a, b: lib.F.cosine_similarity(a * 1e-5, b, dim), a, b, scale=10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("given", [
    {}, {"batch_chunk_size": 2}, {"chunking_method": "aspect_ratio"}, {"batch_chunk_size": 99},
    {"chunking_method": None}, {"acc_policy": "accurate"},
], ids=str)  # fmt: skip
def test_linear_cross_entropy_in_pieces(given, reduction):
    y = np.random.default_rng(0).integers(0, 12, 7)
    y[2] = -100

    def code(lib, x, w, b):
        made = lib.nn.LinearCrossEntropyOptions(**given)
        return lib.F.linear_cross_entropy(
            x, w, lib.t.from_numpy(y), linear_bias=b, reduction=reduction, options=made,
            weight=lib.t.linspace(0.5, 2, 12, dtype=lib.t.float64),
        )  # fmt: skip

    check(code, values(7, 3), values(12, 3, seed=1), values(12, seed=2), scale=10)


@pytest.mark.parametrize("given", [
    {"batch_chunk_size": 0}, {"batch_chunk_size": "a"}, {"chunking_method": "pieces"},
    {"chunking_method": "aspect_ratio:0"}, {"acc_policy": "best"},
], ids=str)  # fmt: skip
def test_options_that_are_none(given):
    raises_alike(lambda lib: lib.nn.LinearCrossEntropyOptions(**given))


@pytest.mark.parametrize("outer", [(), (2,), (2, 3)])
@pytest.mark.parametrize("options", [
    {}, {"reduction": "none", "label_smoothing": 0.1}, {"ignore_index": 1, "reduction": "sum"},
], ids=str)  # fmt: skip
def test_linear_cross_entropy(outer, options):
    y = np.random.default_rng(0).integers(0, 4, (3, *outer))

    def code(lib, x, w, b):
        target = lib.t.from_numpy(y)
        f = lib.F.linear_cross_entropy
        return f(x, w, target, **options), f(x, w, target, linear_bias=b, **options)

    weight, bias = values(4, *outer, 5, seed=1), values(4, *outer, seed=2)
    check(code, values(3, 5), weight, bias, scale=10)
    if not outer:
        p = np.abs(values(3, 4, seed=4))
        check(
            lambda lib, x, w, p: lib.F.linear_cross_entropy(x, w, p), values(3, 5), weight, p,
            scale=10,
        )  # fmt: skip
    theirs = THEIRS.nn.LinearCrossEntropyLoss(5, 4, out_features=outer, bias=True, **options)
    ours = OURS.nn.LinearCrossEntropyLoss(5, 4, out_features=outer, bias=True, **options)
    assert repr(ours) == repr(theirs) and not any(copy_parameters(theirs, ours))
    x = values(3, 5).astype(np.float32)
    same(
        ours(OURS.t.from_numpy(x), OURS.t.from_numpy(y)),
        theirs(torch.from_numpy(x), torch.from_numpy(y)), scale=10,
    )  # fmt: skip


# -- layers ----------------------------------------------------------------------------------------
LAYERS = {
    "SoftMarginLoss": ({}, 2), "HingeEmbeddingLoss": ({"margin": 0.5}, 2),
    "MarginRankingLoss": ({"margin": 0.5}, 3), "TripletMarginLoss": ({"p": 1.0, "swap": True}, 3),
    "TripletMarginWithDistanceLoss": ({"margin": 2.0}, 3), "MultiLabelSoftMarginLoss": ({}, 2),
    "PoissonNLLLoss": ({"log_input": True}, 2), "GaussianNLLLoss": ({"full": True}, 2),
    "CosineSimilarity": ({"dim": 0}, 2), "PairwiseDistance": ({"keepdim": True}, 2),
    "NLLLoss2d": ({}, 0), "MultiMarginLoss": ({"p": 2}, 0), "CosineEmbeddingLoss": ({}, 0),
    "MultiLabelMarginLoss": ({}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    options, operands = LAYERS[name]
    ours, theirs = (getattr(lib.nn, name)(**options) for lib in LIBS)
    assert repr(ours) == repr(theirs)
    arrays = [values(3, 4), signs(3, 4), values(3, 4, seed=5)]
    if name == "NLLLoss2d":
        arrays = [values(2, 3, 2, 2), np.random.default_rng(0).integers(0, 3, (2, 2, 2))]
    elif name == "MultiMarginLoss":
        arrays = [values(3, 4), np.array([0, 3, 2])]
    elif name == "CosineEmbeddingLoss":
        arrays = [values(3, 4), values(3, 4, seed=5), signs(3)]
    elif name == "MultiLabelMarginLoss":
        arrays = [values(3, 4), np.array(LABELS[3, 4])]
    else:
        arrays = arrays[:operands]
    if name == "GaussianNLLLoss":
        arrays.append(np.abs(arrays[0]))
    if name == "MarginRankingLoss":
        arrays = [arrays[0], arrays[2], arrays[1]]

    def code(lib, x, *rest):
        return (ours if lib is OURS else theirs)(x, *(y.detach() for y in rest))

    check(code, *arrays, scale=20)


FUNCTIONS = [n for n in dir(OURS.F) if n.endswith("_loss") or n in (
    "kl_div", "cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "gumbel_softmax", "softmax", "log_softmax", "rrelu", "celu", "threshold", "elu", "normalize",
)]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures(name):
    """Argument names, order and defaults are PyTorch's."""
    ours, theirs = (inspect.signature(getattr(lib.F, name)).parameters.values() for lib in LIBS)
    assert [(p.name, p.default, p.kind) for p in ours] == [
        (p.name, p.default, p.kind) for p in theirs
    ]


@pytest.mark.parametrize("size_average", [None, True, False])
@pytest.mark.parametrize("reduce", [None, True, False])
def test_deprecated_flags(size_average, reduce):
    if size_average is None and reduce is None:
        return
    x, y = values(3, 4), signs(3, 4)

    def code(lib, x, y):
        with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
            layer = lib.nn.MSELoss(size_average=size_average, reduce=reduce)
        with pytest.warns(UserWarning, match="please use reduction="):
            loss = lib.F.hinge_embedding_loss(x, y.detach(), 1.0, size_average, reduce)
        return layer(x, y), loss

    check(code, x, y, scale=4)


BAD = {
    "linear sizes": lambda lib, x: lib.F.linear_cross_entropy(x, x[:, :2], lib.t.tensor([0, 1, 2])),
    "linear bias": lambda lib, x: lib.F.linear_cross_entropy(
        x, x, lib.t.tensor([0, 1, 2]), linear_bias=x[0]
    ),
    "linear ignored": lambda lib, x: lib.F.linear_cross_entropy(x, x, x[:, :3], ignore_index=1),
    "linear rank": lambda lib, x: lib.F.linear_cross_entropy(x[0], x[:, None], lib.t.tensor(0)),
    "p": lambda lib, x: lib.F.multi_margin_loss(x, lib.t.tensor([0, 1, 2]), 3),
    "multi weight": lambda lib, x: lib.F.multi_margin_loss(x, lib.t.tensor([0, 1, 2]), weight=x),
    "multi target": lambda lib, x: lib.F.multi_margin_loss(x, lib.t.tensor([0, 1])),
    "multi rank": lambda lib, x: lib.F.multi_margin_loss(x[None], lib.t.tensor([0, 1])),
    "labels": lambda lib, x: lib.F.multilabel_margin_loss(x, lib.t.tensor([0, 1])),
    "labels dtype": lambda lib, x: lib.F.multilabel_margin_loss(x, x),
    "ranking": lambda lib, x: lib.F.margin_ranking_loss(x, x, x[0]),
    "cosine": lambda lib, x: lib.F.cosine_embedding_loss(x, x, x),
    "triplet rank": lambda lib, x: lib.F.triplet_margin_loss(x, x[0], x),
    "triplet margin": lambda lib, x: lib.F.triplet_margin_loss(x, x, x, margin=0),
    "negative var": lambda lib, x: lib.F.gaussian_nll_loss(x, x, -x * x),
    "negative number": lambda lib, x: lib.F.gaussian_nll_loss(x, x, -1.0),
    "var shape": lambda lib, x: lib.F.gaussian_nll_loss(x, x, x[:, :2].abs()),
    "reduction": lambda lib, x: lib.F.soft_margin_loss(x, x, reduction="avg"),
    "poisson reduction": lambda lib, x: lib.F.poisson_nll_loss(x, x, reduction="avg"),
    "mse weight": lambda lib, x: lib.F.mse_loss(x, x, weight=x[0]),
    "cdist": lambda lib, x: lib.t.cdist(x, x[:, :2]),
    "cdist rank": lambda lib, x: lib.t.cdist(x, x[0]),
    "cdist p": lambda lib, x: lib.t.cdist(x, x, -1.0),
    "cdist mode": lambda lib, x: lib.t.cdist(x, x, 2.0, "fast"),
    "cdist ints": lambda lib, x: lib.t.cdist(x.long(), x.long()),
    "pdist": lambda lib, x: lib.F.pdist(x[0]),
    "cosine ints": lambda lib, x: lib.F.cosine_similarity(x.long(), x.long()),
    "MultiMarginLoss": lambda lib, x: lib.nn.MultiMarginLoss(3),
    "TripletMarginLoss": lambda lib, x: lib.nn.TripletMarginLoss(-1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], values(3, 4))


def test_soft_margin_does_not_overflow():
    """PyTorch gives infinity here."""
    x = OURS.t.tensor([-200.0, 200.0], requires_grad=True)
    y = OURS.F.soft_margin_loss(x, OURS.t.ones(2), reduction="none")
    y.sum().backward()
    assert y.tolist() == [200.0, 0.0] and x.grad.tolist() == [-1.0, 0.0]
    assert THEIRS.F.soft_margin_loss(torch.tensor([-200.0]), torch.ones(1)).isinf()
    same(y[1:] * 0, torch.zeros(1))
