"""Handlers of ONNX's signal ops: windows, mel weights, DFT and STFT.

A complex number is a last dim of size 2, as ONNX has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.onnx.importing.calls import Call, axis_of, check_size, handler
from jitgrad.tensor import Tensor


@handler("HannWindow", "HammingWindow", "BlackmanWindow")
def window(c: Call) -> Any:
    (n,) = c.ints(0)
    check_size((n,), 8)
    i = np.arange(n)
    period = n if c.attr("periodic", 1) else n - 1
    angle = 2 * np.pi * i / max(period, 1)
    y = {
        "HannWindow": lambda: 0.5 - 0.5 * np.cos(angle),
        "HammingWindow": lambda: 25 / 46 - 21 / 46 * np.cos(angle),
        "BlackmanWindow": lambda: 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle),
    }[c.node.op_type]()
    return y.astype(c.dtype("output_datatype", 1).np)


@handler("MelWeightMatrix")
def mel_weights(c: Call) -> Any:
    bins, length, rate = c.ints(0)[0], c.ints(1)[0], c.ints(2)[0]
    low, high = (float(c.array(i).reshape(())) for i in (3, 4))
    check_size((length // 2 + 1, bins), 8)
    mel = 2595 * np.log10(1 + np.array([low, high]) / 700)
    step = (mel[1] - mel[0]) / (bins + 2)
    edges = 700 * (10 ** ((np.arange(bins + 2) * step + mel[0]) / 2595) - 1)
    places = ((length + 1) * edges // rate).astype(int)
    out = np.zeros((length // 2 + 1, bins))
    for k in range(bins):
        first, middle, last = places[k], places[k + 1], places[k + 2]
        if first == middle:
            out[middle, k] = 1
        else:
            for j in range(first, middle + 1):
                out[j, k] = (j - first) / (middle - first)
        for j in range(middle, last):
            out[j, k] = (last - j) / (last - middle)
    return out.astype(c.dtype("output_datatype", 1).np)


def _dft(x: Tensor, axis: int, n: int, inverse: bool, onesided: bool) -> Tensor:
    """x: (..., 1 or 2), along an axis, cut or filled to n elements."""
    z = jg.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    if inverse and onesided:
        return jg.fft.irfft(z, n, axis).unsqueeze(-1)
    f = jg.fft.ifft if inverse else jg.fft.rfft if onesided else jg.fft.fft
    return jg.view_as_real(f(z, n, axis))


@handler("DFT")
def dft(c: Call) -> Tensor:
    x = c.tensor(0)
    c.ignore("axis")
    axis = c.ints(2)[0] if c.has(2) else (c.attr("axis", 1) if c.opset < 20 else -2)
    axis = axis_of(axis, x.ndim)
    inverse, onesided = bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    n = x.shape[axis]
    if inverse and onesided:
        n = 2 * (n - 1)
    if c.has(1):
        n = c.ints(1)[0]
    check_size((*x.shape, n), 8)
    return _dft(x, axis, n, inverse, onesided)


@handler("STFT")
def stft(c: Call) -> Tensor:
    x, step = c.tensor(0), c.ints(1)[0]
    weights = c.optional(2)
    n = c.ints(3)[0] if c.has(3) else int(c.tensor(2).shape[0])
    x = x if x.ndim == 3 else x.unsqueeze(-1)
    frames = x.unfold(1, n, step).transpose(2, 3)  # (batch, frames, n, 1 or 2)
    if weights is not None:
        frames = frames * weights.reshape(-1, 1)
    return _dft(frames, 2, n, False, bool(c.attr("onesided", 1)))
