"""The error classes of jitgrad that are not Python's own.

User mistakes raise Python's types (TypeError, ValueError, IndexError, RuntimeError), as PyTorch
does; the classes here are for what has no such type. `InternalError` means a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class InternalError(RuntimeError):
    """An invariant of jitgrad does not hold: a bug of ours, never the user's mistake."""


class LinAlgError(np.linalg.LinAlgError, RuntimeError):
    """A matrix that has no such inverse or factor. A RuntimeError, as PyTorch's is."""


class CompileError(RuntimeError):
    """A graph could not be compiled; jit falls back to eager with this as its reason."""


class MemoryLimitError(RuntimeError):
    """A compiled function needs more memory than its `memory_limit`: jit does not fall back."""


class ArtifactError(RuntimeError):
    """A file made by export is missing, altered, truncated, or for another machine or version."""


class NoDeviceError(RuntimeError, AssertionError):
    """A device was asked for, and there is none. An AssertionError, too, as PyTorch's is where it
    was built without CUDA."""


class OutOfMemoryError(RuntimeError):
    """A device has no memory left; a RuntimeError, as in PyTorch. It says what holds memory."""


def counted(names: Sequence[str], given: Sequence[str]) -> str:
    """Which inputs are missing, or what came beyond them, for a call with a wrong number."""
    if len(given) < len(names):
        return f"missing {', '.join(names[len(given) :])}"
    return f"too many by {', '.join(given[len(names) :])}"


class CacheWarning(UserWarning):
    """The disk cache cannot be used, or held a corrupt entry; work goes on without it."""


class FallbackWarning(UserWarning):
    """A function under @jit runs eagerly, with the reason and the user's source line."""
