"""Fourier transforms on the samples of PyTorch's op database; spectrograms."""

import numpy as np
import pytest
from parity.compare import check, raises_alike
from parity.op_database import entries, examine, label

BY_LABEL = {label(e): e for e in entries()}
ENTRIES = [*sorted(name for name in BY_LABEL if name.startswith("fft.")), "stft", "istft"]


@pytest.mark.parametrize("name", ENTRIES)
def test_entry(name):
    found = examine(BY_LABEL[name], 3)
    # Factorizations and transforms have no ONNX form (docs/coverage.md).
    assert not found.missing and not set(found.failed()) - {"onnx"}


@pytest.mark.parametrize(
    "options",
    [
        {}, {"hop_length": 3}, {"win_length": 6}, {"center": False}, {"normalized": True},
        {"onesided": False}, {"pad_mode": "constant"},
    ],
)  # fmt: skip
def test_there_and_back(options):
    def code(lib, x, window):
        there = lib.t.stft(x, 8, window=window, return_complex=True, **options)
        back = {k: v for k, v in options.items() if k != "pad_mode"}
        back = lib.t.istft(there * there.abs(), 8, window=window, **back)
        return lib.t.view_as_real(there), back

    rng = np.random.default_rng(0)
    window = rng.uniform(0.5, 1, options.get("win_length", 8))
    check(code, rng.standard_normal((2, 40)), window, scale=100)


def test_errors():
    x = np.ones(20)
    for code in (
        lambda lib, x: lib.t.stft(x, 8),
        lambda lib, x: lib.t.stft(x, 80, return_complex=True),
        lambda lib, x: lib.t.stft(x, 8, hop_length=0, return_complex=True),
        lambda lib, x: lib.t.stft(x, 8, window=x, return_complex=True),
        lambda lib, x: lib.t.istft(x.reshape(5, 4), 8, window=lib.t.ones(8)),
        lambda lib, x: lib.t.istft(x.reshape(5, 4) * 1j, 8, window=lib.t.zeros(8)),
    ):
        raises_alike(code, x)
