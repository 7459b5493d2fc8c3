"""PyTorch's own database of layers and losses, every entry (see module_database.py)."""

from __future__ import annotations

import pytest
from parity.module_database import entries, examine, name_of

# (class, mode): why it differs.
CTC = "PyTorch's gradient is that of log_softmax before it as well (docs/differences.md)"
EXCEPTIONS: dict[tuple[str, str], str] = {
    **{("CTCLoss", mode): CTC for mode in ("train", "float32", "strided", "jit")},
    ("Tanh", "float32"): "the gradient at 1 - 2e-7 is what rounding leaves of 1 - y * y",
}
SAMPLES = 3


def check(entry, limit):
    found = examine(entry, limit)
    left = {m: text for m, text in found.items() if (name_of(entry), m) not in EXCEPTIONS}
    assert not left, "\n".join(f"{m}: {text}" for m, text in left.items())


@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_some_samples(entry):
    check(entry, SAMPLES)


@pytest.mark.long
@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_all_samples(entry):
    check(entry, 1000)
