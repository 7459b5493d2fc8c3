"""Functions of images whose height and width differ from call to call: what is right for all sizes
is exported, what is not says which function asks for fixed ones."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import link
from jitgrad.nn import functional as F
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError

FREE = {
    "reflect": lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"),
    "reflect and crop": lambda x: F.pad(x, (3, -1, -1, 3), mode="reflect"),
    "replicate": lambda x: F.pad(x, (5, 1, 0, 9), mode="replicate"),
    "replicate and crop": lambda x: F.pad(x, (-1, 4, 1, -2), mode="replicate"),
    "circular": lambda x: F.pad(x, (3, 1, 2, 2), mode="circular"),
    "circular and crop": lambda x: F.pad(x, (-1, 2, 3, -1), mode="circular"),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 1),
    "its place": lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True)[1],
    "adaptive maximum of rows": lambda x: F.adaptive_max_pool1d(x.flatten(2), 1),
    "adaptive maxima": lambda x: jg.stack(
        [y.double() for y in F.adaptive_max_pool2d(x, (3, 2), return_indices=True)]
    ),
    "places of maxima": lambda x: F.adaptive_max_pool3d(x, (1, 5, None), return_indices=True)[1],
    "bytes": lambda x: F.interpolate(x.byte(), (6, 5), mode="bicubic", antialias=True),
    "bytes by a scale": lambda x: F.interpolate(
        x.byte(), scale_factor=(0.5, 1.25), mode="bilinear"
    ),
    "searchsorted": lambda x: jg.searchsorted(x.sort(3)[0], x.flip(3), right=True),
    "bucketize": lambda x: jg.bucketize(x[:, :, :2], x.flatten().sort()[0]),
    "median": lambda x: x.median(2).values,
    "its index": lambda x: x.median(3).indices,
    "nanmedian": lambda x: x.nanmedian(3).values,
}
EVEN = {
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "chunk": lambda x: jg.cat(x.chunk(2, dim=3)[::-1], 3) if x.shape[2] % 2 == 0 else x,
}
FIXED = {
    "rfft": lambda x: jg.fft.rfft(x, dim=2).abs(),
    "split": lambda x: x.split(2, 2)[0],
    "unbind": lambda x: x.unbind(2)[0],
}


def sized(most=None):
    return ({2: jg.Dim("h", max=most), 3: jg.Dim("w", max=most)},)


@pytest.mark.parametrize("name", [*FREE, *EVEN])
def test_sizes_that_differ(name, tmp_path):
    function = {**FREE, **EVEN}[name]
    exported = jg.export(function, jg.rand(2, 3, 8, 12), dynamic_shapes=sized(20))
    models = [lambda x: exported(x).numpy()]
    if link.find_linker() is not None:
        exported.native(tmp_path / "libnet.so")
        library = load(tmp_path / "libnet.so")
        models.append(lambda x: library(x.numpy()))
    exported.save(tmp_path / "m.jgx")
    again = jg.load_exported(tmp_path / "m.jgx")
    models.append(lambda x: again(x).numpy())
    for size in ((8, 12), (4, 20), (20, 6), *([(7, 13), (5, 5)] if name in FREE else ())):
        x = jg.rand(2, 3, *size).mul(5).round()  # ties, too
        for model in models:
            np.testing.assert_array_equal(model(x), function(x).numpy())


@pytest.mark.parametrize("name", EVEN)
def test_what_divides_a_size_is_a_condition(name, tmp_path):
    exported = jg.export(EVEN[name], jg.rand(2, 3, 8, 12), dynamic_shapes=sized(20))
    for size in ((7, 12), (8, 13)):
        with pytest.raises(ValueError, match=r"expected sizes with [hw] % 2 == 0"):
            exported(jg.rand(2, 3, *size))
    if link.find_linker() is not None:
        exported.native(tmp_path / "libnet.so")
        with pytest.raises(ValueError, match=r"expected sizes with [hw] % 2 == 0"):
            load(tmp_path / "libnet.so")(np.ones((2, 3, 7, 12), np.float32))


def test_padding_that_is_too_large_for_a_call():
    exported = jg.export(FREE["reflect"], jg.rand(2, 3, 8, 12), dynamic_shapes=sized())
    with pytest.raises(ValueError, match="expected sizes with"):
        exported(jg.rand(2, 3, 8, 2))


@pytest.mark.parametrize("name", FIXED)
def test_who_asks_for_fixed_sizes(name):
    with pytest.raises(CompileError) as error:
        jg.export(FIXED[name], jg.rand(2, 3, 8, 12), dynamic_shapes=sized())
    text = str(error.value)
    assert f"h == 8 ({name}" in text and f"{name} can do this for fixed sizes only" in text
    assert "int()" not in text


def test_python_that_asks_for_fixed_sizes():
    with pytest.raises(CompileError, match=r"h == 8 \(at .*: Python takes .* x.shape without int"):
        jg.export(lambda x: x * int(x.shape[2]), jg.rand(2, 3, 8, 12), dynamic_shapes=sized())


def test_gradients_with_sizes_that_differ():
    """Each place that padding reads, and the first of equal maxima."""
    for name in ("reflect", "replicate", "circular", "adaptive maximum"):
        function = FREE[name]

        def slope(x, function=function):
            x = x.clone().requires_grad_()
            y = function(x)
            return jg.autograd.grad((y * jg.arange(y.numel()).reshape(y.shape)).sum(), x)[0]

        exported = jg.export(slope, jg.rand(2, 3, 8, 12), dynamic_shapes=sized())
        for size in ((8, 12), (5, 7)):
            x = jg.rand(2, 3, *size).mul(5).round()
            np.testing.assert_allclose(exported(x).numpy(), slope(x).numpy(), rtol=1e-5)
