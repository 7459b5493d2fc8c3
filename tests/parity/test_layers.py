"""Convolution, pooling, normalisation, embedding, padding: values, gradients, running state."""

import random

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
    return np.random.default_rng(seed).standard_normal(shape)


def conv_cases(count):
    """Random geometry, valid by construction."""
    pick = random.Random(0)
    for _ in range(count):
        n = pick.choice([1, 1, 2, 2, 2, 3])
        groups = pick.choice([1, 1, 2, 3])
        kernel = [pick.randint(1, 3) for _ in range(n)]
        stride = [pick.randint(1, 3) for _ in range(n)]
        padding = [pick.randint(0, 3) for _ in range(n)]
        dilation = [pick.randint(1, 3) for _ in range(n)]
        size = [
            max(d * (k - 1) + 1 - 2 * p, 1) + pick.randint(0, 5)
            for k, p, d in zip(kernel, padding, dilation, strict=True)
        ]
        batch = pick.choice([[], [1], [3]])
        yield (
            f"{n}d groups {groups} k {kernel} s {stride} p {padding} d {dilation} {batch}{size}",
            n,
            (*batch, groups * pick.randint(1, 2), *size),
            (groups * pick.randint(1, 2), kernel),
            {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
        )


CONV = list(conv_cases(80))


@pytest.mark.parametrize("n,shape,out,options", [c[1:] for c in CONV], ids=[c[0] for c in CONV])
def test_convolution(n, shape, out, options):
    channels = shape[-n - 1] // options["groups"]
    weight = values(out[0], channels, *out[1], seed=1)
    bias = values(out[0], seed=2)

    def code(lib, x, w, b):
        return getattr(lib.F, f"conv{n}d")(x, w, b, **options)

    check(code, values(*shape), weight, bias, scale=4)


@pytest.mark.parametrize(
    "n,kernel,dilation", [(1, 2, 1), (1, 3, 2), (2, 3, 1), (2, 4, 3), (3, 2, 1)]
)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_convolution_with_named_padding(n, kernel, dilation, padding):
    def code(lib, x, w):
        return getattr(lib.F, f"conv{n}d")(x, w, padding=padding, dilation=dilation)

    check(code, values(2, 3, *[11] * n), values(4, 3, *[kernel] * n, seed=1), scale=4)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [2, (1, 2), "same"])
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_convolution_with_padding_modes(mode, padding):
    their = torch.nn.Conv2d(2, 3, (3, 4), padding=padding, padding_mode=mode).double()
    our = OURS.nn.Conv2d(2, 3, (3, 4), padding=padding, padding_mode=mode).double()
    copy_parameters(their, our)
    x = values(2, 2, 6, 7)
    same(our(OURS.t.from_numpy(x)), their(torch.from_numpy(x)), scale=4)
    assert repr(our) == repr(their)


def pool_cases(count):
    pick = random.Random(1)
    for _ in range(count):
        n = pick.choice([1, 2, 2, 3])
        kernel = [pick.randint(1, 4) for _ in range(n)]
        padding = [pick.randint(0, k // 2) for k in kernel]
        stride = pick.choice([None, [pick.randint(1, 4) for _ in range(n)]])
        dilation = [pick.randint(1, 2) for _ in range(n)]
        ceil = pick.random() < 0.5
        size = [d * (k - 1) + 1 + pick.randint(0, 6) for k, d in zip(kernel, dilation, strict=True)]
        batch = pick.choice([[], [1], [2]])
        yield n, (*batch, 2, *size), kernel, stride, padding, dilation, ceil


@pytest.mark.parametrize("case", list(pool_cases(80)), ids=str)
def test_pooling(case):
    n, shape, kernel, stride, padding, dilation, ceil = case
    x = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape) / 7.0
    more = {"padding": padding, "ceil_mode": ceil}

    def maximum(lib, x):
        pool = getattr(lib.F, f"max_pool{n}d")
        return pool(x, kernel, stride, dilation=dilation, return_indices=True, **more)

    check(maximum, x)

    def mean(lib, x):
        pool = getattr(lib.F, f"avg_pool{n}d")
        return pool(x, kernel, stride, count_include_pad=sum(kernel) % 2 == 0, **more)

    check(mean, x, scale=4)
    if n > 1:

        def divided(lib, x):
            return getattr(lib.F, f"avg_pool{n}d")(x, kernel, stride, divisor_override=3, **more)

        check(divided, x, scale=4)


def test_max_pool_ties_and_nan():
    x = np.array([[[1.0, 1.0, np.nan, 2.0, np.inf, np.inf, -np.inf, -np.inf]]])
    check(lambda lib, x: lib.F.max_pool1d(x, 2, return_indices=True), x, grad=False)
    ties = np.zeros((1, 1, 4, 4))
    check(lambda lib, x: lib.F.max_pool2d(x, 2, return_indices=True), ties)


@pytest.mark.parametrize("name,shape", [
    ("BatchNorm1d", (6, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 4, 5)),
    ("BatchNorm3d", (2, 3, 2, 3, 2)),
])  # fmt: skip
@pytest.mark.parametrize("options", [
    {}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3},
    {"eps": 0.1},
], ids=str)  # fmt: skip
def test_batch_norm(name, shape, options):
    """Several training steps with an optimizer, then evaluation; state compared at each."""
    modules = [getattr(lib.nn, name)(3, **options).double() for lib in LIBS]
    our, their = modules
    assert list(our.state_dict()) == list(their.state_dict())
    assert repr(our) == repr(their)
    for step in range(4):
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
            same(a, b, f"step {step}", scale=30)
        for key, b in their.state_dict().items():
            same(our.state_dict()[key], b, key, scale=30)
    our.eval(), their.eval()
    x = values(*shape, seed=7)
    same(our(OURS.t.from_numpy(x)), their(torch.from_numpy(x)), scale=30)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normalisation_in_half_precision(dtype):
    def code(lib, x, w, b):
        x, w, b = (v.to(getattr(lib.t, dtype)) for v in (x, w, b))
        zeros, ones = lib.t.zeros(5, dtype=x.dtype), lib.t.ones(5, dtype=x.dtype)
        return [
            lib.F.layer_norm(x, (5,), w, b),
            lib.F.batch_norm(x, zeros, ones, w, b, training=True),
            lib.F.batch_norm(x, zeros, ones, w, b),
            zeros, ones,
        ]  # fmt: skip

    x = (values(30, 5) * 20 + 100).astype(np.float32)
    check(code, x, values(5).astype(np.float32), values(5, seed=3).astype(np.float32), grad=False)


@pytest.mark.parametrize("shape,over", [((4, 5), (5,)), ((2, 3, 4), (3, 4)), ((2, 3, 4), (4,))])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape, over, affine):
    def code(lib, x, w, b):
        return lib.F.layer_norm(x, over, w if affine else None, b if affine else None, 1e-3)

    check(code, values(*shape) * 3 + 2, values(*over, seed=1), values(*over, seed=2), scale=30)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)])
def test_linear(shape):
    def code(lib, x, w, b):
        return lib.F.linear(x, w, b), lib.F.linear(x, w)

    check(code, values(*shape), values(5, 3, seed=1), values(5, seed=2), scale=4)


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_embedding(padding_idx, shape):
    index = np.asarray(np.random.default_rng(0).integers(0, 5, shape))
    check(lambda lib, w, i: lib.F.embedding(i, w, padding_idx), values(5, 3), index)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "pads", [(1, 2), (2, 0, 1, 3), (0, 1, 1, 0, 2, 1), (-1, 2), (-1, -1, 1, 0)]
)
def test_pad(mode, pads):
    shape = (2, 3, 4, 5, 6)[-1 - max(len(pads) // 2, 1) - 1 :]
    value = 1.5 if mode == "constant" else None
    check(lambda lib, x: lib.F.pad(x, pads, mode, value), values(*shape))


def test_normalize_and_one_hot():
    x = values(4, 5)
    x[1] = 0
    check(lambda lib, x: lib.F.normalize(x), x + 0.1, scale=4)
    check(lambda lib, x: lib.F.normalize(x, dim=0, p=3.0), x + 0.1, scale=10)
    check(lambda lib, x: lib.F.normalize(x), x, scale=4)
    check(lambda lib, i: lib.F.one_hot(i), np.array([[0, 3], [2, 1]]), grad=False)
    check(lambda lib, i: lib.F.one_hot(i, 6), np.array([0, 3]), grad=False)


def test_dropout_keeps_the_rest():
    x = np.ones((50, 40))
    for lib in LIBS:
        lib.t.manual_seed(0)
        leaf = lib.t.from_numpy(x).requires_grad_()
        y = lib.F.dropout(leaf, 0.25)
        y.sum().backward()
        kept = numpy(y) != 0
        assert 0.70 < kept.mean() < 0.80
        np.testing.assert_allclose(numpy(y)[kept], 1 / 0.75)
        np.testing.assert_array_equal(numpy(leaf.grad), numpy(y))
        assert (numpy(lib.F.dropout(leaf, 1.0)) == 0).all()
        assert lib.F.dropout(leaf, 0.5, training=False) is leaf or lib is THEIRS


BAD = {
    "channels": lambda lib, x: lib.F.conv2d(x, lib.t.ones(2, 5, 3, 3, dtype=lib.t.float64)),
    "kernel": lambda lib, x: lib.F.conv2d(x, lib.t.ones(2, 3, 9, 9, dtype=lib.t.float64)),
    "conv dtype": lambda lib, x: lib.F.conv2d(x, lib.t.ones(2, 3, 2, 2)),
    "conv rank": lambda lib, x: lib.F.conv1d(x, lib.t.ones(2, 3, 2, dtype=lib.t.float64)),
    "conv bias": lambda lib, x: lib.F.conv2d(
        x, lib.t.ones(2, 3, 2, 2, dtype=lib.t.float64), lib.t.ones(3, dtype=lib.t.float64)
    ),
    "conv groups": lambda lib, x: lib.F.conv2d(
        x, lib.t.ones(2, 1, 2, 2, dtype=lib.t.float64), groups=2
    ),
    "conv stride": lambda lib, x: lib.F.conv2d(
        x, lib.t.ones(2, 3, 2, 2, dtype=lib.t.float64), stride=0
    ),
    "same stride": lambda lib, x: lib.F.conv2d(
        x, lib.t.ones(2, 3, 2, 2, dtype=lib.t.float64), stride=2, padding="same"
    ),
    "pool padding": lambda lib, x: lib.F.max_pool2d(x, 2, padding=2),
    "pool size": lambda lib, x: lib.F.avg_pool2d(x, 9),
    "bn channels": lambda lib, x: lib.nn.BatchNorm2d(4).double()(x),
    "bn rank": lambda lib, x: lib.nn.BatchNorm1d(3).double()(x),
    "bn one value": lambda lib, x: lib.nn.BatchNorm1d(3).double()(x[:1, :, 0, 0]),
    "ln shape": lambda lib, x: lib.F.layer_norm(x, (4,)),
    "linear": lambda lib, x: lib.F.linear(x, lib.t.ones(2, 4, dtype=lib.t.float64)),
    "linear dtype": lambda lib, x: lib.F.linear(x, lib.t.ones(2, 5)),
    "index": lambda lib, x: lib.F.embedding(lib.t.tensor([7]), x[0, 0]),
    "negative index": lambda lib, x: lib.F.embedding(lib.t.tensor([-1]), x[0, 0]),
    "float index": lambda lib, x: lib.F.embedding(x[0, 0, 0], x[0, 0]),
    "padding_idx": lambda lib, x: lib.F.embedding(lib.t.tensor([0]), x[0, 0], 9),
    "probability": lambda lib, x: lib.F.dropout(x, 1.5),
    "pad odd": lambda lib, x: lib.F.pad(x, (1, 2, 3)),
    "reflect": lambda lib, x: lib.F.pad(x, (7, 0), "reflect"),
    "Conv2d groups": lambda lib, x: lib.nn.Conv2d(3, 4, 2, groups=2),
    "Conv2d padding": lambda lib, x: lib.nn.Conv2d(3, 4, 2, padding="full"),
    "Conv1d same stride": lambda lib, x: lib.nn.Conv1d(3, 4, 3, stride=2, padding="same"),
    "Conv2d same stride": lambda lib, x: lib.nn.Conv2d(
        3, 4, 2, (1, 2), "same", padding_mode="circular"
    ),
    "Embedding": lambda lib, x: lib.nn.Embedding(3, 2, padding_idx=5),
    "one_hot": lambda lib, x: lib.F.one_hot(lib.t.tensor([5]), 3),
    "softmax dim": lambda lib, x: lib.F.softmax(x, 7),
    "gelu": lambda lib, x: lib.F.gelu(x, approximate="fast"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], values(2, 3, 4, 5))
