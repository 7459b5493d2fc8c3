"""The math library in ulps, over the whole range of each dtype, against extended precision."""

from __future__ import annotations

import ctypes
import hashlib
import math
import warnings
from collections.abc import Callable

import llvmlite.ir as ir
import numpy as np
import pytest
from kernels import Run

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.scale import scale
from jitgrad.compiler.codegen.target import host, named
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    MATH,
    Array,
    axis,
    load,
    make,
)
from jitgrad.compiler.math_float32 import FLOAT32
from jitgrad.compiler.ops.error_functions import erfcx_reference
from jitgrad.runtime import dtypes

WIDE = np.longdouble
pytestmark = pytest.mark.skipif(
    np.finfo(WIDE).nmant < 60, reason="the reference needs an extended long double"
)

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


REFERENCE: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "sigmoid": _sigmoid, "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": lambda x: _erf(x.astype(np.float64)), "erfc": lambda x: _erfc(x.astype(np.float64)),
    "erfcx": erfcx_reference,
}  # fmt: skip

BOUND_F64 = {"erfc": 5, "erfcx": 4}  # measured against a reference that is itself 1 ulp off

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, math.inf, -math.inf, math.nan,
    1e-45, -1e-45, 1e-38, 5e-324, 1.1754944e-38, 2.2250738585072014e-308, 3.4028235e38,
    -3.4028235e38, 1.7976931348623157e308, 88.72283, 88.72284, -87.33655, -103.97, -104.0,
    709.782712893384, 709.7827128933841, -745.1332191019411, -745.2, 1e22, math.pi,
    math.pi / 2, math.pi / 4,
    0.9999999403953552, 1.0000001192092896, 0.625, 0.92, 0.55, 0.85, 5.877471754111438e-39,
]  # fmt: skip


def samples(name: str) -> np.ndarray:
    """Bit patterns over the whole range, special values, and dense stretches where it matters."""
    rng = np.random.default_rng(7)
    if name == "float32":
        whole = np.arange(0, 2**32, 16381, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        whole = rng.integers(0, 2**63, 60_000, dtype=np.uint64).view(np.float64)
        whole = np.concatenate([whole, -whole])
    near = [rng.uniform(-s, s, 20_000) for s in (1e-3, 1.0, 4.0, 30.0, 110.0, 1000.0)]
    around = [1 + rng.uniform(-1, 1, 10_000) * s for s in (1e-6, 1e-2, 0.5)]
    multiples = np.arange(-3000, 3000) * (math.pi / 2)
    dtype = np.dtype(name)
    with np.errstate(all="ignore"):
        parts = [whole, *near, *around, multiples, np.array(SPECIAL)]
        return np.concatenate([p.astype(dtype) for p in parts])


def evaluate(op: str, dtype: dtypes.DType, args: list[np.ndarray], cpu: str = "") -> np.ndarray:
    return evaluator(op, dtype, args, cpu)()


def evaluator(
    op: str, dtype: dtypes.DType, args: list[np.ndarray], cpu: str = ""
) -> Callable[[], np.ndarray]:
    """Compiles op; what is returned runs it on args."""
    n = len(args[0])
    arrays = [Array(f"x{k}", (n,), dtype) for k in range(len(args))]
    out = Array("out", (n,), dtype)
    body = make(op, *(load(a, (axis(0),)) for a in arrays))
    kernel = LoopKernel((n,), [Stage((), (Store(out, (axis(0),), body),))])
    result = np.empty(n, dtype.np)
    run = Run(kernel, named(host().triple, cpu) if cpu else host())

    def call() -> np.ndarray:
        run({**dict(zip(arrays, args, strict=True)), out: result})
        return result

    return call


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the dtype; infinite where the kind differs."""
    dtype = got.dtype
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounded = want.astype(dtype)
        unit = np.spacing(np.abs(np.clip(rounded, -np.finfo(dtype).max, np.finfo(dtype).max)))
        distance = (np.abs(got.astype(WIDE) - want.astype(WIDE)) / unit).astype(np.float64)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        zero = (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
        bad = ~np.isfinite(got) | ~np.isfinite(rounded)
        # the last finite number and infinity are neighbours
        edge = np.abs(want) > np.finfo(dtype).max * (1 - WIDE(4) * np.finfo(dtype).eps)
        edge &= np.abs(got) >= np.finfo(dtype).max * (1 - 4 * np.finfo(dtype).eps)
        edge &= np.signbit(got) == np.signbit(want)
    distance = np.where(bad, np.where(same | edge, 0.0, np.inf), distance)
    return np.where(zero, np.inf, distance)


def worst(op: str, dtype: dtypes.DType, args: list[np.ndarray], cpu: str = "") -> float:
    got = evaluate(op, dtype, args, cpu)
    with np.errstate(all="ignore"):
        want = REFERENCE[op](*(a.astype(WIDE) for a in args))
    error = ulps(got, want)
    k = int(np.argmax(error))
    where = [float(a[k]) for a in args]
    print(f"{op} {dtype.name} {cpu}: {error[k]:.3f} ulp at {where}: {got[k]!r}, not {want[k]!r}")
    return float(error[k])


def arguments(op: str, name: str) -> list[np.ndarray]:
    x = samples(name)
    if MATH[op] == 1:
        return [x]
    rng = np.random.default_rng(3)
    y = rng.permutation(x)
    if op == "pow":  # results within range, whole exponents, every special value against each
        n = 40_000
        size = np.exp(rng.uniform(-20, 20, n))
        limit = 88.0 if name == "float32" else 709.0
        exponents = rng.uniform(-1, 1, n) * limit / np.maximum(np.abs(np.log(size)), 1e-3)
        exponents[::4] = np.rint(np.clip(exponents[::4], -50, 50))
        close = 1 + rng.uniform(-1, 1, n) * 1e-3
        x = np.concatenate([x[::16], size, -size, close])
        y = np.concatenate(
            [y[::16], exponents, np.rint(np.clip(exponents, -40, 40)), exponents * 9]
        )
    special = np.array(SPECIAL)
    with np.errstate(all="ignore"):
        return [
            np.concatenate([x, np.repeat(special, len(special))]).astype(name),
            np.concatenate([y, np.tile(special, len(special))]).astype(name),
        ]


@pytest.mark.parametrize("op", sorted(MATH))
def test_float32(op: str) -> None:
    assert worst(op, dtypes.float32, arguments(op, "float32")) <= 2


@pytest.mark.parametrize("op", sorted(MATH))
def test_float64(op: str) -> None:
    assert worst(op, dtypes.float64, arguments(op, "float64")) <= BOUND_F64.get(op, 3)


@pytest.mark.parametrize("op", sorted(FLOAT32))
def test_float32_without_fma(op: str) -> None:
    if not host().triple.startswith("x86_64"):
        pytest.skip("names an x86-64 level")
    assert worst(op, dtypes.float32, arguments(op, "float32"), "x86-64-v2") <= 2


@pytest.mark.parametrize("op", sorted(MATH))
def test_float64_without_fma(op: str) -> None:
    if not host().triple.startswith("x86_64"):
        pytest.skip("names an x86-64 level")
    args = [np.ascontiguousarray(a[::7]) for a in arguments(op, "float64")]
    assert worst(op, dtypes.float64, args, "x86-64-v2") <= BOUND_F64.get(op, 3)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("op", ["exp", "tanh", "log", "erf"])
def test_halves(op: str, dtype: dtypes.DType) -> None:
    """Every number of the dtype: float32's result, rounded."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype.np)
    got = evaluate(op, dtype, [x])
    with np.errstate(all="ignore"):
        want = REFERENCE[op](x.astype(np.float64)).astype(dtype.np)
    close = np.abs(got.view(np.int16).astype(int) - want.view(np.int16).astype(int)) <= 1
    assert np.all(close | (np.isnan(got.astype("f")) & np.isnan(want.astype("f"))))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(
    "op", ["asin", "asinh", "atan", "atanh", "expm1", "log1p", "sin", "sinh", "tan", "tanh"]
)
def test_numbers_below_the_normal_ones_stay_as_they_are(op: str, dtype: dtypes.DType) -> None:
    """f(x) rounds to x there; 0 instead would change what `f(x) > 0` says."""
    least, tiny = np.finfo(dtype.np).smallest_subnormal, np.finfo(dtype.np).tiny
    x = np.concatenate([np.arange(9) * least, tiny * np.array([0.3, 0.75, 1, 1.5])])
    x = np.concatenate([x, -x]).astype(dtype.np)
    np.testing.assert_array_equal(evaluate(op, dtype, [x]), x)


@pytest.mark.skipif(not host().triple.startswith("x86_64-unknown-linux"), reason="asks its libm")
@pytest.mark.parametrize("level", ["", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("op", ["exp", "exp2", "sigmoid", "log1p"])
def test_what_is_zero_anyhow_does_not_underflow(op: str, dtype: dtypes.DType, level: str) -> None:
    """exp(-inf) is as common as masks are, and a product that underflows is slow on some CPUs."""
    underflow = 0x10
    libm = ctypes.CDLL("libm.so.6")
    x = np.array([-math.inf, -1e30, -1e4, -1100, *(dtype is dtypes.float32) * [-200, -151]])
    if op == "log1p":
        x = np.array([0.0, 1e-18, -1e-18, 1e-25, 1e-30])
    x = np.tile(x, 8).astype(dtype.np)
    call = evaluator(op, dtype, [x], level)
    libm.feclearexcept(underflow)
    got = call()
    assert not libm.fetestexcept(underflow)
    np.testing.assert_array_equal(got, x if op == "log1p" else np.zeros_like(x))


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_scaling_of_any_number_of_lanes(dtype: dtypes.DType, lanes: int) -> None:
    """Vectors are 3, 5 or 7 registers long where so many neighbours are alike, and end anywhere."""
    target = host()
    number = ir.FloatType() if dtype is dtypes.float32 else ir.DoubleType()
    kind = number if lanes == 1 else ir.VectorType(number, lanes)
    module = ir.Module()
    module.triple = target.triple
    pointer = ir.PointerType()
    f = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * 3), "f")
    b = ir.IRBuilder(f.append_basic_block())
    x, n = (b.load(p, typ=kind, align=dtype.itemsize) for p in f.args[:2])
    b.store(scale(b, target, dtype, x, n), f.args[2], align=dtype.itemsize)
    b.ret_void()
    key = hashlib.sha256(str(module).encode()).hexdigest()[:32]
    text = str(module).replace('@"f"', f'@"f{key}"')
    library = Library.build([Generated(key, text, [], [], 0)], target)
    rng = np.random.default_rng(lanes)
    size, power = rng.random(lanes).astype(dtype.np) + 1, rng.integers(-20, 20, lanes)
    out = np.zeros(lanes, dtype.np)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library.address(key, f"f{key}"))
    call(size.ctypes.data, power.astype(dtype.np).ctypes.data, out.ctypes.data)
    np.testing.assert_array_equal(out, np.ldexp(size, power))
