"""Products in tiles: AMX, and the plain code that computes the same and runs anywhere.

The instructions themselves run here, on the processor or, where it has none, emulated (amx.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from amx import running_amx, with_amx
from kernels import Run
from test_dot import (
    BF16,
    DEEP,
    F32,
    INT8,
    LAYOUTS,
    SIZES,
    UINT8,
    assert_within_bound,
    brain,
    every_byte,
    product,
)

import jitgrad as jg
from jitgrad.compiler.codegen import target as targets
from jitgrad.compiler.codegen.dot import dot_of
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import assembly
from jitgrad.compiler.codegen.target import Target, named
from jitgrad.compiler.kernels import ContractionKernel, Store
from jitgrad.compiler.loops import Array, Builder, axis, load
from jitgrad.compiler.ops.linalg import matmul
from jitgrad.explain import differs
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.knobs import knob

PLAIN = replace(targets.host(), tiles="plain")
PAIRS = replace(targets.host(), tiles="")
KINDS = [(x, y) for x in (INT8, UINT8) for y in (INT8, UINT8)]
MORE = [(33, 47, 64), (5, 40, 33), (40, 5, 100), (16, 48, 513), (18, 1100, 40), (30, 17, 2100)]
PARTS = {2: 2.0**-15, 1: 2.0**-7}
"""How far a product of two numbers may be off, relatively, by the number of parts of each: 2^-17 a
number and 2^-16 for what is left out; 2^-8 a number."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("amx")


@pytest.fixture
def amx(folder: Path) -> Iterator[Target]:
    """A target with AMX, whose code runs and is seen to use it."""
    with running_amx(folder) as count:
        before = count.value if count is not None else 0
        yield with_amx(targets.own())
        assert count is None or count.value > before


def numbers(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def assert_within_parts(got: np.ndarray, a: np.ndarray, b: np.ndarray, parts: int) -> None:
    """The bound of operands in parts, and of the sums of their products."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    terms = a.shape[1] * (2 * parts - 1) + 8
    bound = (PARTS[parts] + terms * 2.0**-24) * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(got - a @ b) <= bound)


# -- every layout, size and tail -------------------------------------------------------------------
@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("m,n,k", SIZES + MORE)
def test_bfloat16(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(m)
    a, b = brain(rng, m, k), brain(rng, k, n)
    assert_within_bound(product(a, b, (BF16, BF16), turned, PLAIN), a, b)


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("m,n,k", SIZES + MORE + DEEP)
def test_bytes_are_exact(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(m)
    kinds = KINDS[(m + n) % len(KINDS)]
    a, b = every_byte(rng, kinds[0], m, k), every_byte(rng, kinds[1], k, n)
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(product(a, b, kinds, turned, PLAIN), wanted)


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("m,n,k", [(17, 16, 2), (29, 35, 300), (70, 67, 531), *MORE])
@pytest.mark.parametrize("parts", PARTS)
def test_float32_in_parts(m: int, n: int, k: int, parts: int, turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(m)
    for scale in (1.0, 1e30)[: 1 + (turned == LAYOUTS[1])]:
        a, b = numbers(rng, m, k, scale=scale), numbers(rng, k, n)
        got = product(a, b, (F32, F32), turned, PLAIN, parts=parts)
        assert_within_parts(got, a, b, parts)
        if parts == 1:  # in pairs, where the processor has them
            pairs = product(a, b, (F32, F32), turned, PAIRS, parts=parts)
            assert_within_parts(pairs, a, b, parts)


@pytest.mark.parametrize("turned", LAYOUTS[1:3])
@pytest.mark.parametrize("m,n,k", [(17, 16, 2), (29, 35, 300), (40, 5, 100), (5, 70, 70)])
def test_amx_gives_the_bits_of_plain_code(
    amx: Target, m: int, n: int, k: int, turned: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(m)
    cases = [((BF16, BF16), brain(rng, m, k), brain(rng, k, n), 0)]
    cases += [((F32, F32), numbers(rng, m, k), numbers(rng, k, n), p) for p in PARTS]
    cases += [(x, every_byte(rng, x[0], m, k), every_byte(rng, x[1], k, n), 0) for x in KINDS]
    for kinds, a, b, parts in cases:
        found = product(a, b, kinds, turned, amx, parts=parts)
        assert found.tobytes() == product(a, b, kinds, turned, PLAIN, parts=parts).tobytes()


def test_small_numbers_count_as_zero(amx: Target) -> None:
    """Below the normal range: operands, products, sums."""
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((20, 64)) * 10.0 ** rng.integers(-42, -20, (20, 64))).astype(BF16.np)
    b = (rng.standard_normal((64, 18)) * 10.0 ** rng.integers(-22, 0, (64, 18))).astype(BF16.np)
    got = product(a, b, (BF16, BF16), (False, False), amx)
    assert got.tobytes() == product(a, b, (BF16, BF16), (False, False), PLAIN).tobytes()
    least = np.finfo(np.float32).smallest_normal
    assert np.all((got == 0) | (np.abs(got) >= least))
    exact = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.all(np.abs(got - wanted) <= 65 * 2.0**-24 * exact + 300 * float(least))


# -- special values --------------------------------------------------------------------------------
def _special(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    a, b = numbers(rng, 40, 70), numbers(rng, 70, 35)
    a[0, 1], a[17, 69], a[39, 3], b[2, 34] = np.nan, np.inf, -np.inf, np.inf
    return a, b


@pytest.mark.parametrize("parts", [0, *PARTS])
def test_nan_and_infinity(parts: int) -> None:
    a, b = _special(np.random.default_rng(0))
    kind = F32 if parts else BF16
    a, b = a.astype(kind.np), b.astype(kind.np)
    got = product(a, b, (kind, kind), (False, False), PLAIN, parts=parts)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    finite = np.isfinite(wanted)
    assert finite.sum() > 1000
    np.testing.assert_allclose(got[finite], wanted[finite], atol=0.3 if parts == 1 else 2e-3)


@pytest.mark.parametrize("parts", PARTS)
def test_infinity_by_powers_of_two(parts: int) -> None:
    """The second part of such a number is 0: an infinity times it says nothing."""
    a = np.full((4, 40), 2.0, np.float32)
    a[1, 7], a[2, 39] = np.inf, -np.inf
    b = np.full((40, 30), 0.5, np.float32)
    a = np.tile(a, (8, 1))
    wanted = np.tile([40, np.inf, -np.inf, 40], 8)[:, None] * np.ones(30)
    for target in (PLAIN, PAIRS):
        got = product(a, b, (F32, F32), (False, False), target, parts=parts)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("parts", PARTS)
def test_the_largest_numbers_stay_finite(parts: int) -> None:
    """The nearest bfloat16 of the largest float32 is infinite."""
    most = np.finfo(np.float32).max
    a = np.tile(np.array([[most, 0.0], [-most, 1.0]], np.float32), (8, 1))
    b = np.tile(np.array([[1.0, 0.5], [0.0, 0.25]], np.float32), (1, 8))
    for target in (PLAIN, PAIRS):
        got = product(a, b, (F32, F32), (False, False), target, parts=parts)
        assert_within_parts(got, a, b, parts)
        assert not np.array_equal(got, a @ b) or (parts, target.tiles) == (2, "")


# -- what bits do not depend on --------------------------------------------------------------------
@pytest.mark.parametrize("kind,parts", [(BF16, 0), (INT8, 0), (F32, 1), (F32, 2)])
def test_bits_do_not_depend_on_threads_layouts_or_symbolic_dims(kind: DType, parts: int) -> None:
    rng = np.random.default_rng(0)
    made = [numbers(rng, 90, 301).astype(kind.np), numbers(rng, 301, 70).astype(kind.np)]
    if kind is INT8:
        made = [every_byte(rng, INT8, *x.shape) for x in made]
    first = product(*made, (kind, kind), (False, False), PLAIN, parts=parts)
    for turned, workers, symbolic in (((True, True), 3, False), ((False, True), 1, True)):
        other = product(*made, (kind, kind), turned, PLAIN, workers, symbolic, parts)
        assert first.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind,parts", [(BF16, 0), (F32, 2)])
def test_bits_of_a_row_do_not_depend_on_the_others(kind: DType, parts: int) -> None:
    """So not on the tile that it is in."""
    rng = np.random.default_rng(0)
    a, b = numbers(rng, 70, 200).astype(kind.np), numbers(rng, 200, 60).astype(kind.np)
    whole = product(a, b, (kind, kind), (False, False), PLAIN, parts=parts)
    for rows, cols in ((slice(3, 20), slice(0, 60)), (slice(0, 70), slice(41, 57))):
        part = product(a[rows], b[:, cols], (kind, kind), (False, False), PLAIN, parts=parts)
        assert whole[rows, cols].tobytes() == part.tobytes()


@pytest.mark.parametrize("kind,parts", [(BF16, 0), (F32, 1), (F32, 2)])
def test_narrow_vectors(kind: DType, parts: int) -> None:
    """Plain code for processors without AVX-512, which has no instruction that rounds either."""
    if not targets.host().triple.startswith("x86_64") or not targets.host().has_fma:
        pytest.skip("for x86-64-v3")
    level = replace(named(targets.host().triple, "x86-64-v3"), tiles="plain")
    rng = np.random.default_rng(0)
    a, b = numbers(rng, 37, 75), numbers(rng, 75, 30)
    a *= 10.0 ** rng.integers(-44, 38, (37, 1))
    a[0, :3], a[9, 1], a[12, 1] = np.finfo(np.float32).max, np.inf, np.nan
    a, b = a.astype(kind.np), b.astype(kind.np)
    for turned in LAYOUTS:
        got, same = (product(a, b, (kind, kind), turned, t, parts=parts) for t in (level, PLAIN))
        np.testing.assert_array_equal(got, same)


# -- which, and what code --------------------------------------------------------------------------
def _kernel(kind: DType, parts: int = 0) -> ContractionKernel:
    arrays = [Array(name, (64, 64), kind) for name in "xy"]
    i, j, r = axis(0), axis(1), axis(2)
    acc = F32 if kind.is_floating_point else jg.int32
    made = Builder().contraction(
        (64, 64), acc, batch=(), m=(0,), n=(1,), k=(64,), a=load(arrays[0], (i, r)).cast(acc),
        b=load(arrays[1], (r, j)).cast(acc), acc=acc, parts=parts,
    )  # fmt: skip
    return ContractionKernel(made, [Store(made, (i, j), load(made, (i, j)))])


def test_which_products() -> None:
    able = named("x86_64-unknown-linux-gnu", "x86-64-v4-amx")
    assert (able.tiles, able.cpu, able.level) == ("amx", "x86-64-v4", "x86-64-v4-amx")
    plain = named("x86_64-unknown-linux-gnu", "x86-64-v4")
    for kind, parts, depth in ((BF16, 0, 32), (INT8, 0, 64), (F32, 2, 32), (F32, 1, 32)):
        c = _kernel(kind, parts).contraction
        found = dot_of(c, c.a, c.b, able)
        assert found is not None and found.tiles and (found.depth, found.parts) == (depth, parts)
        one = dot_of(c, c.a, c.b, able, least=1)
        assert one is None or not (one.tiles or one.parts)
        few = dot_of(c, c.a, c.b, able, least=15)
        assert few is None if parts else few == found
        assert dot_of(c, c.a, c.b, plain) is None
    c = _kernel(F32).contraction
    assert dot_of(c, c.a, c.b, able) is None
    pairs = named("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512bf16")
    for parts, there in ((1, True), (2, False)):  # in pairs, three products would be slower
        c = _kernel(F32, parts).contraction
        found = dot_of(c, c.a, c.b, pairs)
        assert (found is not None and not found.tiles and found.parts == 1) if there else not found


@pytest.mark.parametrize(
    "kind,parts,name", [(BF16, 0, "tdpbf16ps"), (INT8, 0, "tdpbssd"), (UINT8, 0, "tdpbuud"),
                        (F32, 2, "tdpbf16ps")],
)  # fmt: skip
def test_the_instructions(kind: DType, parts: int, name: str) -> None:
    """Found in the assembly; tiles stay in their registers."""
    from jitgrad.compiler.codegen import llvm

    able = named("x86_64-unknown-linux-gnu", "x86-64-v4-amx")
    made: Generated = llvm.generate(_kernel(kind, parts), able)
    texts = [assembly(g.module_text, able) for g in made.with_routines()]
    kernel = texts[-1]
    assert kernel.count("ldtilecfg") == 1 and kernel.count("tilerelease") == 1
    (micro,) = [t for t in texts if name in t]
    products = len(re.findall(rf"\b{name}\b", micro))
    assert products == 4 * (4 if parts == 2 else 1)  # hi by lo, hi by hi, lo by hi; hi by hi again
    assert "tilestored" in micro and "ldtilecfg" not in micro
    loads = len(re.findall(r"\btileloadd\b", micro))
    assert loads == (8 + 4 if parts == 2 else 4 + 4)  # operands; again, or results


def test_fused_operands_and_results() -> None:
    """Operands that are computed, a batch, a bias along rows, a residual."""
    rng = np.random.default_rng(0)
    a, b = Array("a", (3, 35, 50), F32), Array("b", (3, 50, 40), F32)
    bias, rest = Array("bias", (35,), F32), Array("rest", (3, 35, 40), F32)
    n, i, j, r = (axis(k) for k in range(4))
    made = Builder().contraction(
        (3, 35, 40), F32, batch=(0,), m=(1,), n=(2,), k=(50,), a=load(a, (n, i, r)) * 2.0,
        b=load(b, (n, r, j)) + load(b, (n, r, j)) * load(b, (n, r, j)), acc=F32, parts=2,
    )  # fmt: skip
    index = (n, i, j)
    value = load(made, index) + load(bias, (i,)) + load(rest, index)
    kernel = ContractionKernel(made, [Store(made, index, value)])
    given = {x: numbers(rng, *x.shape) for x in (a, b, bias, rest)}  # type: ignore[arg-type]
    out = np.full((3, 35, 40), 77, np.float32)
    assert Run(kernel, PLAIN)({**given, made: out}, workers=2) < 0
    x, y = given[a] * 2.0, given[b] + given[b] * given[b]
    added = given[bias][:, None] + given[rest]
    for k in range(3):
        assert np.all(np.isfinite(out[k]))
        np.testing.assert_allclose(
            out[k], x[k].astype(np.float64) @ y[k] + added[k],
            atol=2.0**-14 * float((np.abs(x[k]) @ np.abs(y[k])).max()),
        )  # fmt: skip


# -- as users see it -------------------------------------------------------------------------------
@pytest.fixture
def precision() -> Iterator[None]:
    yield
    jg.set_float32_matmul_precision("highest")


def test_compiled_functions(precision: None) -> None:
    """Values and gradients, forward and backward, with the precision that is set."""
    rng = np.random.default_rng(0)
    x = jg.tensor(numbers(rng, 70, 130))
    w = jg.tensor(numbers(rng, 130, 45), requires_grad=True)

    @jg.jit(fallback="error")
    def f(x: jg.Tensor, w: jg.Tensor) -> jg.Tensor:
        y = x @ w
        (y * y).sum().backward()
        return y

    def errors() -> tuple[float, float]:
        for _ in range(2):  # the first call records
            w.grad = None
            y = f(x, w)
        exact = x.numpy().astype(np.float64) @ w.detach().numpy()
        slope = 2 * x.numpy().T.astype(np.float64) @ exact
        assert w.grad is not None
        return tuple(
            float(np.abs(found.detach().numpy() - wanted).max() / np.abs(wanted).max())
            for found, wanted in ((y, exact), (w.grad, slope))
        )  # type: ignore[return-value]

    with knob(tiles="plain"):
        for word, low, high in (("highest", 0, 1e-6), ("high", 1e-7, 4e-5), ("medium", 1e-4, 0.02)):
            jg.set_float32_matmul_precision(word)
            for error in errors():
                assert low <= error <= high, word
        jg.set_float32_matmul_precision("highest")
        assert max(errors()) <= 1e-6
    assert f.stats.traces == 3


@pytest.mark.parametrize("word", ["high", "medium"])
def test_checked_functions_know_the_precision(precision: None, word: str) -> None:
    """What it takes off is no fault of the compiler; a fault is found all the same."""
    rng = np.random.default_rng(0)
    x, w = jg.tensor(numbers(rng, 40, 300)), jg.tensor(numbers(rng, 300, 33))
    jg.set_float32_matmul_precision(word)
    with knob(tiles="plain"):
        f = jg.jit(lambda x, w: (x @ w).relu(), check=True)
        for _ in range(2):
            got = f(x, w)
    assert np.abs(got.numpy() - np.maximum(x.numpy() @ w.numpy(), 0)).max() > 1e-5
    assert f.stats.hits == 1
    slack = matmul.slack({"precision": word})
    assert 0 < slack < 0.05 and matmul.slack({}) == 0
    a = np.array([1.0, 2.0], np.float32)
    assert differs(a, a * 1.1, slack) and not differs(a, a * (1 + slack / 2), slack)


def test_precision_belongs_to_each_product(precision: None) -> None:
    """What is set when a product is formed; it is part of an exported graph."""
    rng = np.random.default_rng(0)
    x, w = jg.tensor(numbers(rng, 40, 64)), jg.tensor(numbers(rng, 64, 33))
    exact = x.numpy().astype(np.float64) @ w.numpy()

    def f(x: jg.Tensor, w: jg.Tensor) -> tuple[jg.Tensor, jg.Tensor]:
        jg.set_float32_matmul_precision("high")
        first = x @ w
        jg.set_float32_matmul_precision("highest")
        return first, x @ w

    with knob(tiles="plain"):
        compiled, exported = jg.jit(f, fallback="error"), jg.export(f, x, w)
        compiled(x, w)
        for first, second in (compiled(x, w), exported(x, w)):
            assert 1e-6 < np.abs(first.numpy() - exact).max() < 1e-3
            assert np.abs(second.numpy() - exact).max() < 3e-5
    assert str(exported.graph).count('precision="high"') == 1


def test_flags_of_cuda_choose_nothing_on_the_cpu(precision: None) -> None:
    rng = np.random.default_rng(0)
    x, w = jg.tensor(numbers(rng, 40, 64)), jg.tensor(numbers(rng, 64, 33))
    jg.backends.cuda.matmul.allow_tf32 = True
    assert jg.get_float32_matmul_precision() == "high"
    assert "precision" not in str(jg.export(lambda x: x @ w, x).graph)
    jg.set_float32_matmul_precision("medium")
    jg.backends.cuda.matmul.allow_tf32 = False
    assert jg.get_float32_matmul_precision() == "highest"
    assert 'precision="medium"' in str(jg.export(lambda x: x @ w, x).graph)


def test_other_products_are_not_less_precise(precision: None) -> None:
    """Vectors, few columns, convolutions, doubles, eager code."""
    rng = np.random.default_rng(0)
    x, w = jg.tensor(numbers(rng, 33, 64)), jg.tensor(numbers(rng, 64))
    image, kernel = jg.tensor(numbers(rng, 2, 5, 9, 9)), jg.tensor(numbers(rng, 6, 5, 2, 2))

    def f(x, w, image, kernel):  # type: ignore[no-untyped-def]
        few = x @ x[:15].T
        return x @ w, few, jg.nn.functional.conv2d(image, kernel), x.double() @ x.double().T

    with knob(tiles="plain"):
        compiled = jg.jit(f, fallback="error")
        plain = [compiled(x, w, image, kernel) for _ in range(2)][1]
        jg.set_float32_matmul_precision("medium")
        for _ in range(2):
            now = compiled(x, w, image, kernel)
        for a, b in zip(plain, now, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
        eager = (x @ x.T).numpy()
    jg.set_float32_matmul_precision("highest")
    assert eager.tobytes() == (x @ x.T).numpy().tobytes()


@pytest.mark.parametrize("turned", [False, True])
def test_weights_that_stay(turned: bool) -> None:
    """Panels of a module's weights, made once; symbolic sizes of the batch."""
    rng = np.random.default_rng(0)
    layer = jg.nn.Linear(90, 50).to(jg.bfloat16).eval()
    with knob(tiles="plain"), jg.no_grad():
        f = jg.jit(layer, fallback="error", dynamic=True)
        for rows in (3, 20, 41, 7):
            x = jg.tensor(numbers(rng, rows, 90), dtype=jg.bfloat16)
            if turned:
                x = x.T.contiguous().T
            wide = x.double() @ layer.weight.double().T + layer.bias.double()
            np.testing.assert_allclose(f(x).double().numpy(), wide.numpy(), atol=0.02, rtol=2.0**-7)


def test_convolution() -> None:
    """Windows are gathered into tiles."""
    rng = np.random.default_rng(0)
    for shape, weight in (((2, 5, 9, 11), (7, 5, 3, 2)), ((1, 16, 8, 8), (16, 16, 3, 3))):
        x, w = (jg.tensor(numbers(rng, *s), dtype=jg.bfloat16) for s in (shape, weight))
        conv = jg.jit(lambda x, w: jg.nn.functional.conv2d(x, w, padding=1), fallback="error")
        wide = [t.to(jg.float64) for t in (x, w)]
        wanted = jg.nn.functional.conv2d(*wide, padding=1).numpy()
        with knob(tiles="plain"):
            got = [conv(x, w) for _ in range(2)][1].to(jg.float64).numpy()
        scale = jg.nn.functional.conv2d(*(t.abs() for t in wide), padding=1).numpy()
        assert np.all(np.abs(got - wanted) <= 2.0**-8 * np.abs(wanted) + 2.0**-16 * scale)
