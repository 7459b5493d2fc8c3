"""Fourier transforms on the samples of PyTorch's op database."""

import pytest
from parity.op_database import entries, examine, label

BY_LABEL = {label(e): e for e in entries()}


@pytest.mark.parametrize("name", sorted(name for name in BY_LABEL if name.startswith("fft.")))
def test_entry(name):
    found = examine(BY_LABEL[name], 3)
    assert not found.missing and not found.failed()
