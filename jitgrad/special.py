"""jitgrad.special: functions of torch.special (docs/limits.md names those that are not there)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.functions import special
from jitgrad.functions.elementwise import generated, records_in
from jitgrad.methods import FUNCTIONS
from jitgrad.missing import missing
from jitgrad.public import with_out

# name here -> name at the top
_SHARED = {
    "digamma": "digamma", "psi": "digamma", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv",
    "gammainc": "igamma", "gammaincc": "igammac", "exp2": "exp2",
    "expit": "sigmoid", "expm1": "expm1", "gammaln": "lgamma", "i0": "i0",
    "modified_bessel_i0": "i0",
    "log1p": "log1p", "log_softmax": "log_softmax", "logit": "logit", "logsumexp": "logsumexp",
    "multigammaln": "mvlgamma", "polygamma": "polygamma", "round": "round", "sinc": "sinc",
    "softmax": "softmax", "xlogy": "xlogy",
}  # fmt: skip
_OWN = (
    special.entr, special.log_ndtr, special.ndtr, special.xlog1py,
)  # fmt: skip

_ALL: dict[str, Callable[..., Any]] = {
    **{name: with_out(FUNCTIONS[source]) for name, source in _SHARED.items()},
    **{function.__name__: with_out(function) for function in _OWN},
    **{r.name: with_out(generated[r.name]) for r in records_in("special")},
    "modified_bessel_i1": with_out(generated["i1"]),
}
globals().update(_ALL)
__all__ = sorted(_ALL)


__getattr__ = missing(__name__)
