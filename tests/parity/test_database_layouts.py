"""Strides of results on operands that are not row-major are PyTorch's, by its op database.

The list of what differs is exact: an entry that is listed and agrees fails here too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parity.compare import torch
from parity.op_database import (
    array_of,
    convert,
    entries,
    is_tensor,
    label,
    leaves,
    ours,
    samples_of,
)

import jitgrad

FIRST = (torch.float32, torch.int64, torch.complex64)
SAMPLES = 3

# PyTorch's are column-major, or by the dims that it computed last; ours are row-major.
COLUMNS = """
    argwhere cholesky fft.fft fft.fft2 fft.fftn fft.hfft fft.hfftn fft.ifft fft.ifft2
    fft.ifftn fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft fft.irfftn fft.rfft fft.rfftn geqrf
    linalg.cholesky linalg.cholesky_ex linalg.eig linalg.eigh linalg.householder_product
    linalg.inv linalg.inv_ex linalg.lstsq linalg.lstsq.grad_oriented linalg.lu_factor
    linalg.lu_factor_ex linalg.lu_solve linalg.qr linalg.solve linalg.solve_ex
    linalg.tensorinv lu lu_solve ormqr pca_lowrank qr svd_lowrank triangular_solve
"""
# channels_last is one layout among others here, which these do not keep (docs/limits.md).
CHANNELS = """
    nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d
    nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.channel_shuffle
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.interpolate.area
    nn.functional.interpolate.bicubic nn.functional.interpolate.bilinear
    nn.functional.interpolate.trilinear nn.functional.max_pool2d nn.functional.max_pool3d
    nn.functional.max_unpool2d nn.functional.max_unpool2d.grad
    nn.functional.pad.replicate_negative nn.functional.pixel_shuffle
    nn.functional.upsample_bilinear
"""
# PyTorch's follow from how it computes them, or from memory_format.
OTHERS = """
    __getitem__ addr as_strided as_strided_copy as_strided_scatter chalf kthvalue
    nn.functional.alpha_dropout nn.functional.feature_alpha_dropout.with_train
    nn.functional.scaled_dot_product_attention to unravel_index view_copy
"""
KNOWN = {*COLUMNS.split(), *CHANNELS.split(), *OTHERS.split()}


def _reversed(x: Any) -> Any:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order) if x.dim() > 1 else x


def _swapped(x: Any) -> Any:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() > 1 else x


def _channels_last(x: Any) -> Any:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return function(x)
    if type(x) in (tuple, list):
        return type(x)(mapped(function, y) for y in x)
    return {k: mapped(function, v) for k, v in x.items()} if isinstance(x, dict) else x


def lies_alike(x: Any) -> Any:
    """PyTorch's tensor as ours, which lies in memory as it does."""
    array = np.array(array_of(x), order="C")
    if x.dim() > 1:
        order = sorted(range(x.dim()), key=lambda k: -x.stride(k))
        array = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    made = jitgrad.from_numpy(array)
    return made.bfloat16() if x.dtype is torch.bfloat16 else made


def as_ours(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return lies_alike(x)
    if type(x) in (tuple, list):
        return type(x)(map(as_ours, x))
    return {k: as_ours(v) for k, v in x.items()} if isinstance(x, dict) else convert(x)


def steps(x: Any) -> list[int]:
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n != 1]


def difference(entry: Any, function: Any, dtype: Any) -> str | None:
    for sample in samples_of(entry, dtype, False, SAMPLES):
        for lay in (_reversed, _swapped, _channels_last):
            given = mapped(lay, (sample.input, sample.args, sample.kwargs))
            mine = as_ours(given)
            try:
                theirs = entry.op(given[0], *given[1], **given[2])
            except RuntimeError:
                continue
            try:
                made = function(mine[0], *mine[1], **mine[2])
            except Exception as error:
                return f"{lay.__name__}: {error}"
            pairs = zip(filter(is_tensor, leaves(theirs)), filter(is_tensor, leaves(made)))
            for x, y in pairs:
                if x.numel() and steps(x) != steps(y):
                    return f"{lay.__name__}, {tuple(x.shape)}: {y.stride()}, not {x.stride()}"
    return None


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_strides_of_results():
    found = {}
    for entry in entries():
        function = ours(entry.op, entry.name)
        supported = entry.supported_dtypes("cpu")
        dtype = next((d for d in FIRST if d in supported), None)
        if function is not None and dtype is not None:
            text = difference(entry, function, dtype)
            if text is not None:
                found[label(entry)] = text
    assert {name: text for name, text in found.items() if name not in KNOWN} == {}
    assert sorted(set(KNOWN) - set(found)) == []
