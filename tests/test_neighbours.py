"""What neighbouring lanes have in common is computed once for them: the numbers stay the same.

Blocks of random words and copies of elements (nearest interpolation) are read through axis // 2,
axis // 3, ...; lengths that are no multiple of anything, rows, tails and threads.
"""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.compiler.ops import op
from jitgrad.runtime.knobs import knob

SHAPES = [(7,), (64,), (1000,), (33, 100), (17, 5, 12), (3, 129), (2, 2), (100003,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", [jg.float32, jg.float64, jg.float16])
def test_random_numbers_are_those_of_the_reference(
    shape: tuple[int, ...], name: str, dtype: jg.dtype
) -> None:
    record = getattr(op, name)
    attrs = {"shape": shape, "dtype": dtype, "device": "cpu"}
    seed, number = np.asarray(5), np.asarray(3)
    f = jg.jit(lambda s, d: record(s, d, **attrs), fallback="error")
    f(jg.from_numpy(seed), jg.from_numpy(number))
    found = f(jg.from_numpy(seed), jg.from_numpy(number)).numpy()
    np.testing.assert_array_equal(found, record.reference(seed, number, **attrs))


@pytest.mark.parametrize("scale", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("shape", [(4, 8, 20, 20), (1, 2, 7, 5), (2, 3, 1, 1), (1, 1, 3, 64)])
def test_copies_of_elements(scale: int, shape: tuple[int, ...]) -> None:
    x = jg.randn(*shape)
    f = jg.jit(lambda x: F.interpolate(x, scale_factor=scale) * 2, fallback="error")
    g = jg.jit(lambda x: x.repeat_interleave(scale, -1) + 1, fallback="error")
    f(x), g(x)
    wide = np.repeat(x.numpy(), scale, -1)
    np.testing.assert_array_equal(f(x).numpy(), np.repeat(wide, scale, -2) * 2)
    np.testing.assert_array_equal(g(x).numpy(), wide + 1)


@pytest.mark.parametrize("count", [3, 5, 7])
@pytest.mark.parametrize("dtype", [jg.float32, jg.float64, jg.int16, jg.bool])
def test_odd_copies_on_any_number_of_threads(count: int, dtype: jg.dtype) -> None:
    for shape in ((100_003,), (211, 601), (3, 7, 4999)):
        x = (jg.randn(*shape) * 9).to(dtype)
        f = jg.jit(lambda x: x.repeat_interleave(count, -1), fallback="error")

        def parity(x: jg.Tensor, n: int = shape[-1] * count) -> jg.Tensor:
            return x.repeat_interleave(count, -1) + jg.arange(n) % 2

        mixed = jg.jit(parity, fallback="error")
        f(x), mixed(x)
        want, both = np.repeat(x.numpy(), count, -1), parity(x).numpy()
        for threads in (1, 2, 8):
            with knob(num_threads=threads):
                np.testing.assert_array_equal(f(x).numpy(), want)
                np.testing.assert_array_equal(mixed(x).numpy(), both)


def test_threads_draw_the_same_numbers() -> None:
    f = jg.jit(lambda: (jg.randn(300_001), jg.rand(77, 1236)), fallback="error")
    f()
    threads = jg.get_num_threads()
    results = []
    try:
        for n in (1, 2, 8):
            jg.set_num_threads(n)
            jg.manual_seed(1)
            results.append([t.numpy() for t in f()])
    finally:
        jg.set_num_threads(threads)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 28, 31, 33, 63, 100])
def test_every_second_element(length: int) -> None:
    """Strided reads in the tail of a row go no further than its last element."""
    x = jg.randn(3, 2 * length - 1)
    f = jg.jit(lambda x: x[:, ::2] * 2 + 1, fallback="error")
    pooled = jg.jit(lambda x: F.max_pool1d(x, 2, ceil_mode=True), fallback="error")
    f(x), pooled(x)
    np.testing.assert_array_equal(f(x).numpy(), x.numpy()[:, ::2] * 2 + 1)
    padded = np.concatenate([x.numpy(), np.full((3, 1), -np.inf, np.float32)], 1)
    np.testing.assert_array_equal(pooled(x).numpy(), padded.reshape(3, length, 2).max(-1))


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 4, 3, 16), (3, 16, 2, 33)])
def test_interleaved_elements(shape: tuple[int, ...]) -> None:
    """pixel_shuffle, and pairs stacked along a last dim: short dims that are joined."""
    x = jg.randn(*shape)
    f = jg.jit(lambda x: F.pixel_shuffle(x, 2), fallback="error")
    g = jg.jit(lambda x: jg.stack([x, -x], -1).flatten(-2), fallback="error")
    f(x), g(x)
    n, c, h, w = shape
    parts = x.numpy().reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3)
    np.testing.assert_array_equal(f(x).numpy(), parts.reshape(n, c // 4, 2 * h, 2 * w))
    both = np.stack([x.numpy(), -x.numpy()], -1).reshape(n, c, h, 2 * w)
    np.testing.assert_array_equal(g(x).numpy(), both)


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("size", [(5, 7), (3, 16), (40, 61)])
def test_odd_numbers_of_interleaved_elements(count: int, size: tuple[int, int]) -> None:
    x = jg.randn(2, count * count * 2, *size)
    f = jg.jit(lambda x: F.pixel_shuffle(x, count), fallback="error")
    g = jg.jit(lambda x: jg.stack([x * k for k in range(count)], -1).flatten(-2), fallback="error")
    f(x), g(x)
    (h, w), data = size, x.numpy()
    parts = data.reshape(2, 2, count, count, h, w).transpose(0, 1, 4, 2, 5, 3)
    np.testing.assert_array_equal(f(x).numpy(), parts.reshape(2, 2, count * h, count * w))
    every = np.stack([data * np.float32(k) for k in range(count)], -1)
    np.testing.assert_array_equal(g(x).numpy(), every.reshape(*data.shape[:-1], -1))
