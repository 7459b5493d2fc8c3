"""Group, instance, RMS and local response norm; dropouts; Bilinear, embeddings with options."""

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
    numpy,
    raises_alike,
    same,
    torch,
)


def values(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 5), (1, 6, 1, 2), (2, 6, 3, 1, 2), (0, 6, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(shape, groups):
    def code(lib, x, w, b):
        return lib.F.group_norm(x, groups, w, b, 1e-3), lib.F.group_norm(x * 2, groups)

    if shape == (3, 6) and groups == 6:
        return  # one value in each group: 0, up to rounding
    check(code, values(*shape) * 3 + 1, values(6, seed=1), values(6, seed=2), scale=100)


@pytest.mark.parametrize("shape,over", [((3, 6), (6,)), ((2, 3, 4), (3, 4)), ((4, 1), (1,))])
@pytest.mark.parametrize("eps", [None, 0.1])
def test_rms_norm(shape, over, eps):
    def code(lib, x, w):
        return lib.F.rms_norm(x, over, w, eps), lib.F.rms_norm(x, over, eps=eps)

    check(code, values(*shape), values(*over, seed=1), scale=30)
    check(code, values(*shape).astype(np.float32), values(*over).astype(np.float32), scale=4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    def code(lib, x, w):
        x, w = (v.to(getattr(lib.t, dtype)) for v in (x, w))
        return [
            lib.F.group_norm(x, 2, w, w), lib.F.instance_norm(x.unsqueeze(0)),
            lib.F.rms_norm(x * 1e-4, (4,)), lib.F.rms_norm(x, (4,), w),
            lib.F.rms_norm(x, (4,), w, 1e-2),
        ]  # fmt: skip

    check(code, values(5, 4).astype(np.float32), values(4, seed=1).astype(np.float32), grad=False)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(2, 6, 3), (2, 6, 3, 2), (1, 2, 1, 2, 3)])
def test_local_response_norm(size, shape):
    check(
        lambda lib, x: lib.F.local_response_norm(x, size, 0.5, 0.6, 2.0), values(*shape), scale=10
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_cross_map_norm(size):
    """PyTorch's never takes channel 0 out of the window again, so only so many are compared."""
    ours, theirs = (lib.nn.CrossMapLRN2d(size, 0.5, 0.6, 2.0) for lib in LIBS)
    assert repr(ours) == repr(theirs)
    x = values(2, 6, 3, 2)
    if size > 1:
        few = x[:, : (size + 1) // 2]
        check(lambda lib, x: (ours if lib is OURS else theirs)(x), few, grad=False, scale=10)
    y = ours(OURS.t.from_numpy(x))
    if size % 2:
        same(y, torch.nn.LocalResponseNorm(size, 0.5, 0.6, 2.0)(torch.from_numpy(x)), scale=10)


NORMS = {"InstanceNorm1d": [(3, 4, 5), (4, 5)], "InstanceNorm2d": [(2, 4, 3, 2), (4, 3, 2)],
         "InstanceNorm3d": [(2, 4, 1, 3, 2)]}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("options", [
    {}, {"affine": True}, {"affine": True, "track_running_stats": True},
    {"track_running_stats": True, "momentum": 0.4, "eps": 0.1}, {"affine": True, "bias": False},
], ids=str)  # fmt: skip
def test_instance_norm(name, options):
    """Training steps, then evaluation; all state compared at each."""
    for shape in NORMS[name]:
        modules = [getattr(lib.nn, name)(4, **options).double() for lib in LIBS]
        our, their = modules
        assert list(our.state_dict()) == list(their.state_dict()) and repr(our) == repr(their)
        for step in range(4):
            if step == 3:
                our.eval(), their.eval()
            results = []
            for lib, module in zip(LIBS, modules, strict=True):
                x = lib.t.from_numpy(values(*shape, seed=step) * 3 + 1).requires_grad_()
                y = module(x)
                module.zero_grad()
                (y * y * lib.t.from_numpy(values(*shape, seed=9))).sum().backward()
                for p in module.parameters():
                    p.data -= 0.1 * p.grad
                results.append((y, x.grad))
            for a, b in zip(*results, strict=True):
                same(a, b, f"step {step}", scale=300)
            for key, b in their.state_dict().items():
                same(our.state_dict()[key], b, key, scale=30)


MAKERS = [
    lambda nn: nn.GroupNorm(2, 4), lambda nn: nn.GroupNorm(2, 4, affine=False),
    lambda nn: nn.GroupNorm(2, 4, bias=False), lambda nn: nn.RMSNorm(5),
    lambda nn: nn.RMSNorm((4, 5), 1e-3),
    lambda nn: nn.RMSNorm([5], elementwise_affine=False), lambda nn: nn.LocalResponseNorm(2),
    lambda nn: nn.Dropout1d(0.3), lambda nn: nn.Dropout2d(), lambda nn: nn.Dropout3d(0.2),
    lambda nn: nn.AlphaDropout(0.1), lambda nn: nn.FeatureAlphaDropout(0.1),
    lambda nn: nn.Unflatten(1, (2, 2)), lambda nn: nn.LayerNorm((4, 5), bias=False),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_layers(make):
    """repr, state and results of layers in evaluation."""
    ours, theirs = make(OURS.nn).double().eval(), make(THEIRS.nn).double().eval()
    assert repr(ours) == repr(theirs)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    check(lambda lib, x: (ours if lib is OURS else theirs)(x), values(3, 4, 5, seed=7), scale=30)


SIGNATURES = (
    "GroupNorm", "InstanceNorm1d", "RMSNorm", "LocalResponseNorm", "CrossMapLRN2d", "SyncBatchNorm",
    "Dropout2d", "AlphaDropout", "Bilinear", "Embedding", "EmbeddingBag", "Unflatten", "CELU",
    "PReLU", "RReLU", "Hardtanh", "Threshold", "MultiMarginLoss", "TripletMarginLoss",
    "PoissonNLLLoss", "GaussianNLLLoss", "KLDivLoss", "NLLLoss", "HuberLoss", "CrossEntropyLoss",
    "BCEWithLogitsLoss", "PairwiseDistance", "CosineSimilarity", "BatchNorm1d", "LayerNorm",
)  # fmt: skip


def test_signatures():
    for name in SIGNATURES:
        found = []
        for lib in LIBS:
            cls = getattr(lib.nn, name)
            found.append([(p.name, p.default) for p in inspect.signature(cls).parameters.values()])
            if hasattr(cls, "from_pretrained"):
                parameters = inspect.signature(cls.from_pretrained).parameters.values()
                found[-1] += [(p.name, p.default) for p in parameters]
        assert found[0] == found[1], name
    for name in ("group_norm", "instance_norm", "rms_norm", "local_response_norm", "embedding",
                 "embedding_bag", "dropout1d", "dropout3d", "alpha_dropout"):  # fmt: skip
        ours, theirs = (inspect.signature(getattr(lib.F, name)).parameters.values() for lib in LIBS)
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs], name


def test_sync_batch_norm():
    for lib in LIBS:
        lib.t.manual_seed(0)
        net = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4)).eval()
        state = dict(net.state_dict())
        x = lib.t.ones(2, 3)
        y = net(x)
        made = lib.nn.SyncBatchNorm.convert_sync_batchnorm(net)
        assert type(made[1]).__name__ == "SyncBatchNorm" and not made[1].training
        assert list(made.state_dict()) == list(state)
        assert (made(x) == y).all()
        y = made.train()(x * lib.t.arange(2.0).unsqueeze(1))  # one process: its own statistics
        assert y.mean(0).abs().max() < 1e-6 and made[1].num_batches_tracked == 1


# -- dropout ---------------------------------------------------------------------------------------
CHANNELS = {
    "dropout1d": [(40, 50, 6), (300, 6)], "dropout2d": [(40, 50, 3, 2), (40, 50, 6)],
    "dropout3d": [(40, 50, 3, 1, 2), (300, 3, 1, 2)], "feature_alpha_dropout": [(40, 50, 6)],
}  # fmt: skip


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_channel_dropout(name):
    """Whole channels go, at the right rate; the rest is as PyTorch leaves it."""
    for shape in CHANNELS[name]:
        x = values(*shape)
        for lib in LIBS:
            lib.t.manual_seed(0)
            leaf = lib.t.from_numpy(x).requires_grad_()
            y = getattr(lib.F, name)(leaf, 0.3, training=True)
            (g,) = lib.t.autograd.grad(y.sum(), leaf)
            spatial = tuple(range(len(shape) - {6: 1, 2: 2}[shape[-1]], len(shape)))
            if shape[-1] == 2:
                spatial = tuple(range(len(shape) - (2 if name == "dropout2d" else 3), len(shape)))
            else:
                spatial = (len(shape) - 1,)
            gone = numpy(g) == 0
            assert (gone.all(spatial) | ~gone.any(spatial)).all()
            assert abs(gone.mean() - 0.3) < 0.07
            if "alpha" not in name:
                np.testing.assert_allclose(numpy(y), np.where(gone, 0, x / 0.7), rtol=1e-12)


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout(name):
    """Kept and dropped elements have PyTorch's values; mean and variance stay."""
    x = values(300, 200)
    found = []
    for lib in LIBS:
        lib.t.manual_seed(0)
        leaf = lib.t.from_numpy(x).requires_grad_()
        y = getattr(lib.F, name)(leaf, 0.2, training=True)
        (g,) = lib.t.autograd.grad(y.sum(), leaf)
        y, g = numpy(y), numpy(g)
        scale, shift = g.max(), (y - x * g.max())[g > 0]
        found.append((scale, shift.mean(), y[g == 0].mean(), y[g == 0].std()))
        assert np.ptp(shift) < 1e-12 and abs((g == 0).mean() - 0.2) < 0.01
        assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05
        assert (getattr(lib.F, name)(leaf, 0.5) == leaf).all()
    np.testing.assert_allclose(*found, rtol=1e-7, atol=1e-12)


# -- Bilinear, embeddings --------------------------------------------------------------------------
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_bilinear(lead):
    check(
        lambda lib, a, b, w, c: (lib.F.bilinear(a, b, w, c), lib.F.bilinear(a, b, w)),
        values(*lead, 3), values(*lead, 4, seed=1), values(5, 3, 4, seed=2), values(5, seed=3),
        scale=10,
    )  # fmt: skip
    theirs = torch.nn.Bilinear(3, 4, 5).double()
    ours = OURS.nn.Bilinear(3, 4, 5).double()
    copy_parameters(theirs, ours)
    assert repr(ours) == repr(theirs)
    a, b = values(2, 3), values(2, 4, seed=1)
    same(ours(*map(OURS.t.from_numpy, (a, b))), theirs(*map(torch.from_numpy, (a, b))), scale=10)


@pytest.mark.parametrize("options", [
    {"max_norm": 1.5}, {"max_norm": 1.0, "norm_type": 1.0}, {"scale_grad_by_freq": True},
    {"scale_grad_by_freq": True, "padding_idx": 2, "max_norm": 1.0},
], ids=str)  # fmt: skip
def test_embedding_options(options):
    """Also what is left in the table."""
    index = np.array([[0, 2, 2], [3, 0, 0]])

    def code(lib, w, i):
        table = lib.nn.Embedding(5, 3, _weight=w.detach().clone(), **options)
        y = table(i)
        (g,) = lib.t.autograd.grad((y * y).sum(), table.weight)
        return y, g, table.weight

    check(code, values(5, 3), index, grad=False, scale=10)
    assert repr(OURS.nn.Embedding(5, 3, **options)) == repr(THEIRS.nn.Embedding(5, 3, **options))


BAGS = {
    "rows": (np.array([[0, 2, 2], [3, 0, 4]]), None),
    "ragged": (np.array([0, 2, 2, 3, 0, 4, 1]), np.array([0, 2, 2, 6])),
    "all empty": (np.zeros(0, np.int64), np.array([0, 0])),
    "one": (np.array([[4]]), None),
}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", BAGS)
@pytest.mark.parametrize("options", [
    {}, {"padding_idx": 2}, {"padding_idx": -5},
    {"include_last_offset": True}, {"max_norm": 1.0}, {"weights": True},
], ids=str)  # fmt: skip
def test_embedding_bag(mode, bags, options):
    index, offsets = BAGS[bags]
    options = dict(options)
    weighted = options.pop("weights", False)
    if weighted and mode != "sum":
        return
    last = options.get("include_last_offset")
    if bags == "all empty" and (mode == "max" or last or weighted):
        return
    if last and offsets is None:
        return
    if last:
        offsets = np.append(offsets, len(index))

    def code(lib, w, s):
        table = lib.nn.EmbeddingBag(5, 3, mode=mode, _weight=w.detach().clone(), **options)
        i = lib.t.from_numpy(index)
        o = None if offsets is None else lib.t.from_numpy(offsets)
        y = table(i, o, s if weighted else None)
        inputs = [table.weight, s] if weighted else [table.weight]
        return y, *lib.t.autograd.grad((y * y).sum(), inputs), table.weight

    weights = values(*index.shape, seed=3)

    def off(lib, w, s):
        return code(lib, w, s.requires_grad_())

    check(off, values(5, 3), weights, grad=False, scale=10)
    ours, theirs = (lib.nn.EmbeddingBag(5, 3, mode=mode, **options) for lib in LIBS)
    assert repr(ours) == repr(theirs)


def test_from_pretrained():
    for lib in LIBS:
        w = lib.t.from_numpy(values(5, 3))
        table = lib.nn.Embedding.from_pretrained(w, padding_idx=1)
        assert not table.weight.requires_grad and (table(lib.t.tensor([3])) == w[3]).all()
        bag = lib.nn.EmbeddingBag.from_pretrained(w, freeze=False, mode="sum")
        assert bag.weight.requires_grad
        assert (bag(lib.t.tensor([[3, 3]])) == w[3] * 2).all()


BAD = {
    "groups": lambda lib, x: lib.F.group_norm(x, 3),
    "GroupNorm": lambda lib, x: lib.nn.GroupNorm(3, 4),
    "group one value": lambda lib, x: lib.F.group_norm(x[:1, :1], 1),
    "group rank": lambda lib, x: lib.F.group_norm(x[0], 1),
    "group weight": lambda lib, x: lib.F.group_norm(x, 2, x[0, :2]),
    "instance": lambda lib, x: lib.F.instance_norm(x),
    "instance channels": lambda lib, x: lib.nn.InstanceNorm1d(3, affine=True).double()(x[None]),
    "instance rank": lambda lib, x: lib.nn.InstanceNorm2d(4)(x),
    "rms": lambda lib, x: lib.F.rms_norm(x, (3,)),
    "lrn": lambda lib, x: lib.F.local_response_norm(x, 2),
    "dropout1d": lambda lib, x: lib.F.dropout1d(x[0]),
    "dropout2d": lambda lib, x: lib.F.dropout2d(x[0]),
    "probability": lambda lib, x: lib.nn.AlphaDropout(1.5),
    "feature": lambda lib, x: lib.F.feature_alpha_dropout(x[0], training=True),
    "bilinear": lambda lib, x: lib.F.bilinear(x, x, x[None, :3]),
    "Bilinear": lambda lib, x: lib.nn.Bilinear(0, 2, 3),
    "Unflatten": lambda lib, x: lib.nn.Unflatten(1, 4),
    "Unflatten floats": lambda lib, x: lib.nn.Unflatten(1, (2.0, 2)),
    "unflattened": lambda lib, x: lib.nn.Unflatten(1, (3, 2))(x),
    "bag mode": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([[0]]), x, mode="prod"),
    "bag offsets": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([0]), x),
    "bag both": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([[0]]), x, lib.t.tensor([0])),
    "bag start": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([0]), x, lib.t.tensor([1])),
    "bag rank": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([[[0]]]), x),
    "bag weights": lambda lib, x: lib.F.embedding_bag(lib.t.tensor([[0]]), x, per_sample_weights=x),
    "bag weights shape": lambda lib, x: lib.F.embedding_bag(
        lib.t.tensor([[0]]), x, mode="sum", per_sample_weights=x
    ),
    "bag frequency": lambda lib, x: lib.F.embedding_bag(
        lib.t.tensor([[0]]), x, mode="max", scale_grad_by_freq=True
    ),
    "pretrained": lambda lib, x: lib.nn.Embedding.from_pretrained(x[0]),
    "given": lambda lib, x: lib.nn.Embedding(3, 3, _weight=x),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raises_alike(BAD[name], values(2, 4))
