"""jitgrad.fft: functions of torch.fft. `jitgrad.fft` is this module, as `torch.fft` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.functions import fourier
from jitgrad.functions.args import numpy_names
from jitgrad.making import makes
from jitgrad.missing import missing
from jitgrad.public import with_out
from jitgrad.runtime.arguments import located

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    fourier.fft, fourier.fft2, fourier.fftn, fourier.hfft, fourier.hfft2,
    fourier.hfftn, fourier.ifft, fourier.ifft2, fourier.ifftn, fourier.ihfft, fourier.ihfft2,
    fourier.ihfftn, fourier.irfft, fourier.irfft2, fourier.irfftn, fourier.rfft, fourier.rfft2,
    fourier.rfftn,
)  # fmt: skip

_ALL: dict[str, Callable[..., Any]] = {
    **{function.__name__: with_out(numpy_names(function)) for function in _FUNCTIONS},
    **{f.__name__: with_out(makes(f)) for f in (fourier.fftfreq, fourier.rfftfreq)},
    "fftshift": located(fourier.fftshift),
    "ifftshift": located(fourier.ifftshift),
}
globals().update(_ALL)
__all__ = sorted(_ALL)


__getattr__ = missing(__name__)
