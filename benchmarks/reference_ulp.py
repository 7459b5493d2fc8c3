"""Prints the error in ulp of the references of elementwise ops: the table in docs/numerics.md.

float32 against the same function in float64, float64 against NumPy's long double (80 bits on
x86-64; skipped where long double is float64), on random arguments: uniform in the op's domain, and
of every magnitude that it takes. Run: python benchmarks/reference_ulp.py
"""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.quiet import Quiet

COUNT = 200_000
SKIP = {"erf", "erfc"}  # from math, in float64: no wider reference in NumPy


def arguments(dtype: type, seed: int) -> np.ndarray:
    """Random floats: half uniform in [-4, 4), half with a uniform exponent."""
    rng = np.random.default_rng(seed)
    exponent = rng.uniform(*{np.float32: (-125, 125), np.float64: (-1020, 1020)}[dtype], COUNT)
    wide = np.exp2(exponent) * rng.choice([-1.0, 1.0], COUNT)
    return np.concatenate([rng.uniform(-4, 4, COUNT), wide]).astype(dtype)


def worst(found: np.ndarray, exact: np.ndarray, dtype: type) -> float:
    """The largest error in ulp of the exact result, where that is a finite normal number."""
    tiny, top = np.finfo(dtype).tiny, np.finfo(dtype).max
    ok = np.isfinite(exact) & (np.abs(exact) >= tiny) & (np.abs(exact) <= top)
    if not ok.any():
        return 0.0
    unit = np.spacing(np.abs(exact[ok]).astype(dtype)).astype(exact.dtype)
    return float(np.max(np.abs(found[ok].astype(exact.dtype) - exact[ok]) / unit))


def main() -> None:
    long_is_wider = np.finfo(np.longdouble).nmant > 60
    print("| op | float32 | float64 |")
    print("| --- | --- | --- |")
    for op in OPS.values():
        if not isinstance(op, Unary | Binary) or not op.differentiable or op.name in SKIP:
            continue
        count = 1 if isinstance(op, Unary) else 2
        cells = []
        for dtype, wider in ((np.float32, np.float64), (np.float64, np.longdouble)):
            if wider is np.longdouble and not long_is_wider:
                cells.append("-")
                continue
            args = [arguments(dtype, k) for k in range(count)]
            with Quiet():
                found = op.reference(*args)
                exact = op.reference(*(a.astype(wider) for a in args))
            cells.append(f"{worst(found, exact, dtype):.2f}")
        print(f"| {op.name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
