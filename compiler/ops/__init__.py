"""All op records: importing this package fills `OPS`; rare ones come at their first use."""

import importlib
from typing import Any

from jitgrad.compiler.ops import (
    along_axis,
    arithmetic,
    bessel,
    bitwise,
    comparison,
    complex_parts,
    convert,
    create,
    discrete,
    elementwise,
    error_functions,
    expect,
    gamma,
    incomplete_gamma,
    indexing,
    linalg,
    movement,
    pad,
    pick,
    random,
    reduce,
    reinterpret,
    scan,
    select_at,
    slicing,
    softmax,
    transcendental,
)
from jitgrad.compiler.ops.record import OPS, Op, op

# module -> the records that it makes
_LATE = {
    "control": "call cond scan while_loop",
    "airy": "airy_ai",
    "bessel_k": (
        "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1"
    ),
    "bessel_jy": "bessel_j0 bessel_j1 bessel_y0 bessel_y1",
    "polynomials": (
        "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v "
        "chebyshev_polynomial_w shifted_chebyshev_polynomial_t "
        "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
        "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
        "laguerre_polynomial_l legendre_polynomial_p"
    ),
    "avg_pool": "avg_pool avg_pool_grad",
    "max_pool": "max_pool max_pool_grad",
    "conv": "conv conv_input_grad conv_weight_grad",
    "factor": "cholesky cholesky_ex solve_triangular",
    "fourier": "fft rfft irfft",
    "solving": "solve inverse det cofactor slogdet lu permutation",
    "spectral": "qr qr_r geqrf svd svdvals pseudoinverse eigh eigvalsh eig matrix_exp",
    "sampling": "standard_gamma poisson binomial von_mises",
    "stretches": "take_stretches add_stretches",
    "windows": "unfold fold",
    "scatter_reduce": "scatter_amax scatter_amin scatter_prod",
}
OPS.late.update({name: module for module, names in _LATE.items() for name in names.split()})


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return importlib.import_module(f"jitgrad.compiler.ops.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "OPS",
    "Op",
    "along_axis",
    "arithmetic",
    "bessel",
    "bitwise",
    "comparison",
    "complex_parts",
    "convert",
    "create",
    "discrete",
    "elementwise",
    "error_functions",
    "expect",
    "gamma",
    "incomplete_gamma",
    "indexing",
    "linalg",
    "movement",
    "op",
    "pad",
    "pick",
    "random",
    "reduce",
    "reinterpret",
    "scan",
    "select_at",
    "slicing",
    "softmax",
    "transcendental",
]
