"""Arrays of any strides on a GPU: read, captured and written, in eager code and under jit, as on
the CPU. Views by as_strided are drawn at random: steps that overlap, leave gaps, repeat, offsets.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import jitgrad as torch
from jitgrad.runtime.cuda.arrays import DeviceArray

_N = 24

View = tuple[tuple[int, ...], tuple[int, ...], int]


def _views(seed: int, count: int, overlapping: bool) -> list[View]:
    """Sizes, strides and offsets within _N elements."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        size = tuple(draw.randint(1, 4) for _ in range(draw.randint(0, 3)))
        stride = tuple(draw.randint(0 if overlapping else 1, 7) for _ in size)
        places = np.zeros(size, int) + draw.randint(0, 5)
        for k, step in enumerate(stride):
            places += np.arange(size[k]).reshape([-1] + [1] * (len(size) - k - 1)) * step
        fits = places.max() < _N
        if fits and (overlapping or np.unique(places).size == places.size):
            found.append((size, stride, int(places.flat[0])))
    return found


def _both(f: Any) -> tuple[Any, Any]:
    return f("cpu"), f("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_views_that_are_arguments_and_captured(dtype: Any) -> None:
    for size, stride, offset in _views(1, 6, overlapping=True):

        def run(device: str, view: View = (size, stride, offset)) -> Any:
            v = torch.arange(_N).to(dtype).to(device).as_strided(*view)
            assert device == "cpu" or isinstance(v._data, DeviceArray)
            argument = torch.jit(lambda x: x * 2 + 1, fallback="error")
            captured = torch.jit(lambda x: x + v, fallback="error")
            zero = torch.zeros(view[0], dtype=dtype, device=device)
            found = [v * 2 + 1, v.clone(), v.contiguous(), v.reshape(-1), v.sum()]
            for _ in range(3):
                found += [argument(v), captured(zero)]
            return [(x.tolist(), x.stride()) for x in (*found, v)]

        here, there = _both(run)
        assert there == here, (size, stride, offset)


@pytest.mark.parametrize("jit", [False, True])
def test_views_that_are_written(jit: bool) -> None:
    for view in _views(2, 8, overlapping=False):

        def run(device: str, view: View = view) -> Any:
            base = torch.zeros(_N, device=device)
            v = base.as_strided(*view)
            other = torch.arange(float(_N), device=device).flip(0).as_strided(*view)

            def f(x: torch.Tensor) -> torch.Tensor:
                x.add_(1)
                v.mul_(2)
                x.copy_(x + other)
                return x.sum()

            g = torch.jit(f, fallback="error") if jit else f
            sums = [g(v).item() for _ in range(3)]
            v.copy_(v.cpu() + 1)
            return sums, base.tolist(), v.cpu().tolist()

        here, there = _both(run)
        assert there == here, view


def test_results_of_views_made_inside() -> None:
    for view in _views(3, 6, overlapping=True):

        def run(device: str, view: View = view) -> Any:
            base = torch.arange(float(_N), device=device)
            f = torch.jit(lambda b: (b.as_strided(*view), b.as_strided(*view) * 2))
            found = [f(base) for _ in range(3)][-1]
            return [(x.tolist(), x.stride()) for x in found]

        here, there = _both(run)
        assert there == here, view


def test_views_in_graphs_that_are_replayed() -> None:
    for size, stride, offset in _views(4, 4, overlapping=True):
        x = torch.zeros(_N, device="cuda")
        v = x.as_strided(size, stride, offset)
        held = torch.arange(float(_N), device="cuda").as_strided(size, stride, offset)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = v + held
        x.copy_(torch.arange(float(_N)) * 10)
        graph.replay()
        assert torch.equal(out.cpu(), 11 * held.cpu())

        f = torch.compile(lambda v, held: (v + 1).cumsum(-1) * held, mode="reduce-overhead")
        want = (v.cpu() + 1).cumsum(-1) * held.cpu()
        for _ in range(4):
            assert torch.equal(f(v, held).cpu(), want)
