"""torch.signal.windows: windows of M points, symmetric by default (the functions of the top level,
`hann_window` and its kin, are periodic by default).

All take dtype (floating; the default dtype), layout, device and requires_grad, and raise ValueError
for a negative M. They are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from jitgrad.creation import arange, ones
from jitgrad.functions.elementwise import generated
from jitgrad.making import makes
from jitgrad.missing import missing
from jitgrad.promotion import cast
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import defaults
from jitgrad.tensor import Tensor

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine",
    "general_hamming", "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip


def _window(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A window from its rule, which gets n = 0 ... M-1 and the distance from first to last point
    (float64), and the keywords of its own."""
    own = [p for name, p in inspect.signature(rule).parameters.items() if p.kind is p.KEYWORD_ONLY]

    @functools.wraps(rule)
    def window(
        M: int, *, sym: bool = True, dtype: DType | None = None, layout: Any = None,
        device: Any = None, requires_grad: bool = False, **options: Any,
    ) -> Tensor:  # fmt: skip
        name = rule.__name__
        if M < 0:
            raise ValueError(f"[{name}] expected a non-negative M; got {M}")
        wanted = dtype or defaults.dtype
        if not wanted.is_floating_point:
            raise ValueError(f"[{name}] expected a floating dtype; got {wanted}")
        unknown = set(options) - {p.name for p in own}
        if unknown:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
        if M <= 1 and (M == 0 or options.get("center") is None):
            rule(arange(0, dtype=dtypes.float64), 1, **options)  # checks the options
            made = ones(M, dtype=wanted)
        else:
            made = cast(
                rule(arange(M, dtype=dtypes.float64), M - 1 if sym else M, **options), wanted
            )
        return made.requires_grad_() if requires_grad else made

    signature = inspect.signature(window, follow_wrapped=False)
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    window.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[fixed[0], *own, *fixed[1:]]
    )
    return makes(window)


def _cosines(n: Tensor, last: int, weights: Iterable[float]) -> Tensor:
    """The sum of (-1)^k weights[k] cos(2 pi k n / last)."""
    total: Any = 0.0
    for k, w in enumerate(weights):
        total = total + generated["cos"](n * (2 * math.pi * k / last)) * (w * (-1) ** k)
    return total + n * 0


@_window
def bartlett(n: Tensor, last: int) -> Tensor:
    """1 - |2 n / (M - 1) - 1|: a triangle."""
    return 1 - generated["abs"](n * (2 / last) - 1)


@_window
def cosine(n: Tensor, last: int) -> Tensor:
    """sin(pi (n + 1/2) / M)."""
    return generated["sin"]((n + 0.5) * (math.pi / (last + 1)))


@_window
def exponential(n: Tensor, last: int, *, center: float | None = None, tau: float = 1.0) -> Tensor:
    """exp(-|n - center| / tau). Raises ValueError unless tau > 0, and for a center of a symmetric
    window."""
    if tau <= 0:
        raise ValueError(f"[exponential] expected tau above 0; got {tau}")
    return generated["exp"](generated["abs"](n - (last / 2 if center is None else center)) / -tau)


@_window
def gaussian(n: Tensor, last: int, *, std: float = 1.0) -> Tensor:
    """exp(-((n - (M - 1) / 2) / std)^2 / 2). Raises ValueError unless std > 0."""
    if std <= 0:
        raise ValueError(f"[gaussian] expected std above 0; got {std}")
    x = (n - last / 2) / std
    return generated["exp"](x * x * -0.5)


@_window
def kaiser(n: Tensor, last: int, *, beta: float = 12.0) -> Tensor:
    """i0(beta sqrt(1 - (2 n / (M - 1) - 1)^2)) / i0(beta). ValueError for beta < 0."""
    if beta < 0:
        raise ValueError(f"[kaiser] expected beta of at least 0; got {beta}")
    inner = n * (2 / last) - 1
    whole = generated["i0"](ones((), dtype=dtypes.float64) * beta)
    root = generated["sqrt"]((1 - inner * inner).clamp(min=0))
    return generated["i0"](root * beta) / whole


@_window
def general_cosine(n: Tensor, last: int, *, a: Iterable[float]) -> Tensor:
    """The sum of (-1)^k a[k] cos(2 pi k n / (M - 1)). Raises TypeError for an a that is no
    iterable, ValueError for an empty one."""
    if not isinstance(a, Iterable):
        raise TypeError(f"[general_cosine] expected coefficients; got {type(a).__name__}")
    weights = list(a)
    if not weights:
        raise ValueError("[general_cosine] expected at least one coefficient; got none")
    return _cosines(n, last, weights)


@_window
def general_hamming(n: Tensor, last: int, *, alpha: float = 0.54) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi n / (M - 1))."""
    return _cosines(n, last, (alpha, 1 - alpha))


@_window
def hamming(n: Tensor, last: int) -> Tensor:
    """0.54 - 0.46 cos(2 pi n / (M - 1))."""
    return _cosines(n, last, (0.54, 0.46))


@_window
def hann(n: Tensor, last: int) -> Tensor:
    """(1 - cos(2 pi n / (M - 1))) / 2."""
    return _cosines(n, last, (0.5, 0.5))


@_window
def blackman(n: Tensor, last: int) -> Tensor:
    """0.42 - 0.5 cos(2 pi n / (M - 1)) + 0.08 cos(4 pi n / (M - 1))."""
    return _cosines(n, last, (0.42, 0.5, 0.08))


@_window
def nuttall(n: Tensor, last: int) -> Tensor:
    """Nuttall's four cosines (Heinzel, Ruediger and Schilling 2002)."""
    return _cosines(n, last, (0.3635819, 0.4891775, 0.1365995, 0.0106411))


__getattr__ = missing(__name__)
