"""Functions whose parts or positions follow from a size: exported and compiled for any size, they
give what eager code gives, and the same derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.compiler import link
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError

h, w = jg.Dim("h", max=9), jg.Dim("w", max=8)
THETA = jg.tensor([[[0.9, 0.2, 0.1], [-0.3, 1.1, 0.2]]])


def grid_of(x):
    return (x[:, :2].permute(0, 2, 3, 1) - 0.5) * 3


def folded(x):
    columns = F.unfold(x, (2, 3), dilation=(2, 1), padding=(2, 1), stride=(1, 2))
    size = x.shape[2:]
    return F.fold(columns * columns, size, (2, 3), dilation=(2, 1), padding=(2, 1), stride=(1, 2))


FUNCTIONS = {  # function, the least sizes
    "roll": (lambda x: (x.roll(3, 2), x.roll((-5, 2), (2, 3)), x.roll(2)), (1, 1)),
    "split": (lambda x: (*x.split([1, x.shape[2] - 1], 2), *x.tensor_split(3, 3)), (2, 3)),
    "split by a size": (lambda x: x.split((x.shape[2] + 1) // 2, 2), (2, 1)),
    "chunk": (lambda x: x.chunk(2, 2), (2, 1)),
    "tensor_split at indices": (lambda x: x.tensor_split((1, -1), 2), (3, 1)),
    "unfold": (lambda x: F.unfold(x, (2, 3), (2, 1), (2, 1), (1, 2)), (1, 1)),
    "fold": (folded, (1, 1)),
    "adaptive means": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (1, 1)),
    "adaptive means of one dim": (lambda x: F.adaptive_avg_pool2d(x, (None, 4)), (1, 1)),
    "adaptive maxima": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (1, 1)),
    "area": (lambda x: F.interpolate(x, size=(4, 3), mode="area"), (1, 1)),
    "adaptive maxima and places": (
        lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True)[0], (1, 1)),
    "anti-aliased": (lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True),
                     (1, 1)),
    "anti-aliased at corners": (lambda x: F.interpolate(
        x, size=(1, 3), mode="bicubic", antialias=True, align_corners=True), (1, 1)),
    "anti-aliased by a scale": (lambda x: F.interpolate(
        x, scale_factor=(0.5, 1.75), mode="bicubic", antialias=True), (2, 1)),
    "lanczos": (lambda x: F.interpolate(x, size=(6, 3), mode="lanczos", antialias=True), (1, 1)),
    "to another's size": (lambda x: F.interpolate(
        x[:, :, 1:], size=x.shape[2:], mode="bilinear", antialias=True), (2, 1)),
    "sizes that are kept": (lambda x: (
        F.interpolate(x, scale_factor=1.125, mode="bilinear"),
        F.interpolate(x, scale_factor=0.96875, mode="bicubic", antialias=True)), (2, 2)),
    "half, cubic": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic"), (2, 2)),
    "half": (lambda x: F.interpolate(x, scale_factor=(0.5, 1.75), mode="bilinear"), (2, 1)),
    "bilinear": (lambda x: F.grid_sample(x, grid_of(x), align_corners=False), (1, 1)),
    "border": (lambda x: F.grid_sample(
        x, grid_of(x), padding_mode="border", align_corners=True), (1, 1)),
    "reflection": (lambda x: F.grid_sample(
        x, grid_of(x), "bicubic", "reflection", align_corners=False), (1, 1)),
    "reflection at corners": (lambda x: F.grid_sample(
        x, grid_of(x), "nearest", "reflection", align_corners=True), (2, 2)),
    "affine": (lambda x: F.grid_sample(x, F.affine_grid(
        THETA, x.shape, align_corners=False), align_corners=False), (2, 2)),
    "affine at corners": (lambda x: F.affine_grid(
        THETA, x.shape, align_corners=True) * x.mean(), (2, 2)),
}  # fmt: skip


IN_LIBRARY = ("roll", "split", "unfold", "fold", "adaptive means", "half", "border", "affine",
              "adaptive maxima and places", "anti-aliased", "anti-aliased by a scale", "lanczos",
              "sizes that are kept")  # fmt: skip


def parts(y):
    return y if isinstance(y, tuple) else (y,)


def sizes(low):
    """Of the smallest and the largest, and some between."""
    for rows, columns in ((low[0], low[1]), (9, 8), (low[0], 7), (5, low[1]), (4, 6), (7, 3)):
        if rows >= low[0] and columns >= low[1]:
            yield rows, columns


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported(name):
    f, low = FUNCTIONS[name]
    jg.manual_seed(0)
    exported = jg.export(f, jg.rand(1, 3, 7, 6), names=["x"], dynamic_shapes=[{2: h, 3: w}])
    for rows, columns in sizes(low):
        x = jg.rand(1, 3, rows, columns)
        for y, want in zip(parts(exported(x)), parts(f(x)), strict=True):
            assert y.shape == want.shape
            jg.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    f, low = FUNCTIONS[name]
    jg.manual_seed(0)

    def total(x):
        return sum((y.square() * 0.3).sum() for y in parts(f(x)))

    fast = jg.jit(total, dynamic=True, fallback="error")
    for rows, columns in sizes(low):
        x = jg.rand(1, 3, rows, columns, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fast(x).backward()
        total(y).backward()
        jg.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
def test_a_library(tmp_path):
    def all_of(x):
        functions = [FUNCTIONS[name][0] for name in IN_LIBRARY]
        return tuple(y for f in functions for y in parts(f(x)))

    jg.manual_seed(0)
    exported = jg.export(all_of, jg.rand(1, 3, 7, 6), names=["x"], dynamic_shapes=[{2: h, 3: w}])
    exported.native(tmp_path / "libnet.so")
    library = load(tmp_path / "libnet.so")
    assert library.sizes == {"h": (2, 9), "w": (3, 8)}
    for rows, columns in sizes((2, 3)):
        x = jg.rand(1, 3, rows, columns)
        for y, want in zip(library(x.numpy()), all_of(x), strict=True):
            np.testing.assert_allclose(y, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("f", [lambda x: x.split(2, 2), lambda x: x.unbind(2)])
def test_as_many_results_as_a_size_says_are_refused(f):
    with pytest.raises(CompileError, match=r"where h == 7 \((split|unbind), at .*number of parts"):
        jg.export(f, jg.rand(1, 3, 7, 6), names=["x"], dynamic_shapes=[{2: h}])
