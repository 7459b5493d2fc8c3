"""fake_quantize_per_tensor_affine and _per_channel_: values, straight-through gradients, errors;
and batch normalisation without running statistics, for vmap."""

from __future__ import annotations

import numpy as np
import pytest
from parity.compare import LIBS, OURS, check, same

import jitgrad

X = np.concatenate([np.linspace(-4, 4, 33), [0.25, -0.25, 1.5, 100.0]]).astype(np.float32)


@pytest.mark.parametrize("zero_point", [0, 1, -3])
@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0])
def test_per_tensor(scale, zero_point):
    """Numbers, and tensors of one; ties, and numbers beyond the bounds."""

    def of_numbers(lib, x):
        return lib.t.fake_quantize_per_tensor_affine(x, scale, zero_point, -8, 7)

    def of_tensors(lib, x):
        s = lib.t.tensor([scale])
        z = lib.t.tensor([zero_point], dtype=lib.t.int32)
        return lib.t.fake_quantize_per_tensor_affine(x, s, z, -8, 7)

    check(of_numbers, X)
    check(of_tensors, X)


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis):
    def call(lib, x):
        s = lib.t.tensor([0.1, 0.5, 1.0])
        z = lib.t.tensor([0, 1, 5], dtype=lib.t.int32)
        return lib.t.fake_quantize_per_channel_affine(x, s, z, axis, 0, 15)

    check(call, np.linspace(-4, 4, 9, dtype=np.float32).reshape(3, 3))


@pytest.mark.parametrize(
    "call",
    [
        "t.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, 1)",
        "t.fake_quantize_per_tensor_affine(x, 0.1, 99, 0, 15)",
        "t.fake_quantize_per_channel_affine(x, t.ones(2), t.zeros(3).int(), 0, 0, 15)",
        "t.fake_quantize_per_channel_affine(x, t.ones(3), t.zeros(3).int(), 5, 0, 15)",
        "t.fake_quantize_per_channel_affine(x, t.ones(3), -t.ones(3).int(), 0, 0, 15)",
    ],
)
def test_errors(call):
    for lib in LIBS:
        with pytest.raises((RuntimeError, IndexError)):
            eval(call, {"t": lib.t, "x": lib.t.ones(3)})


def test_compiled():
    def f(x):
        return jitgrad.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7).sin()

    x = jitgrad.from_numpy(X.copy())
    g = jitgrad.jit(f, fallback="error")
    for _ in range(2):
        same(g(x), f(x))


def test_batch_norm_without_statistics():
    for lib in LIBS:
        model = lib.nn.Sequential(lib.nn.BatchNorm1d(3), lib.nn.Sequential(lib.nn.BatchNorm1d(3)))
        assert lib.t.func.replace_all_batch_norm_modules_(model) is model
        for layer in (model[0], model[1][0]):
            assert layer.running_mean is layer.running_var is layer.num_batches_tracked is None
            assert layer.track_running_stats is False
    x = OURS.t.randn(2, 4, 3)
    found = jitgrad.vmap(lambda x: jitgrad.nn.BatchNorm1d(3, track_running_stats=False)(x))(x)
    assert found.shape == (2, 4, 3)
