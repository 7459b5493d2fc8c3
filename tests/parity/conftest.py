"""Parity with PyTorch: every module here is skipped where PyTorch is not installed."""

import pytest


@pytest.fixture(autouse=True)
def _eager_errors(monkeypatch):
    """A compiled function that falls back is a failure here, too."""
    monkeypatch.setenv("JITGRAD_FALLBACK", "error")
