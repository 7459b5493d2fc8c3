"""`driven_by`: a driver for GPUs in the place of the one that tests have."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from jitgrad.runtime.cuda import device

T = TypeVar("T")


@contextmanager
def driven_by(made: T, why: str = "") -> Iterator[T]:
    """Inside, devices are those of the driver `made`; None: there is none, and `why`."""
    before = device.driver()
    device.use_driver(made, why)
    try:
        yield made
    finally:
        gc.collect()  # what lies on its devices goes with it
        device.use_driver(before)
