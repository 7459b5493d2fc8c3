"""AMX in exported libraries: a level of its own, chosen when the library runs.

The choice is tested by the emitted code itself, with CPUID, XGETBV and the system call replaced by
functions that answer what the test says; the level's code runs on the emulator (amx.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import llvmlite.ir as ir
import numpy as np
import pytest
from amx import running_amx

import jitgrad as jg
from jitgrad.compiler.codegen import features
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.target import AMX, Target, named, own, target_of, targets_of
from jitgrad.runtime import load
from jitgrad.runtime.knobs import knob

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 levels")
on_linux = pytest.mark.skipif(platform.system() != "Linux", reason="Linux grants the tiles")

_ALL = 0xFFFFFFFF
_REGISTERS = ("eax", "ebx", "ecx", "edx")


class Processor:
    """What the instructions answer: everything, but for what is taken away."""

    def __init__(self) -> None:
        self.leaves = {(leaf, sub): [_ALL] * 4 for leaf in (1, 7) for sub in (0, 1)}
        self.leaves |= {(0, 0): [0x20] * 4, (0x80000000, 0): [0x80000008] * 4}
        self.leaves[0x80000001, 0] = [_ALL] * 4
        self.leaves[7, 0][0] = 1  # the highest subleaf
        self.state = 0xE00E7
        self.answer = 0
        self.calls = 0

    def without(self, feature: str) -> Processor:
        bit = features._X86[feature]
        self.leaves[bit.leaf, bit.subleaf][bit.register] &= ~(1 << bit.bit)
        return self


def missing(processor: Processor, target_name: str = "x86-64-v4-amx") -> str | None:
    """The first feature that the emitted check finds missing."""
    target = target_of(target_name)
    module = ir.Module("check")
    module.triple = target.triple
    texts = []
    for feature in features.required_features(target):
        data = bytearray(feature.encode() + b"\0")
        kind = ir.ArrayType(ir.IntType(8), len(data))
        text = ir.GlobalVariable(module, kind, f"text.{feature}")
        text.global_constant, text.initializer = True, ir.Constant(kind, data)
        text.linkage = "internal"
        texts.append((feature, text.bitcast(ir.PointerType())))
    features.emit_check(module, target, texts)
    whole = re.sub(r"define internal ptr @.jg.missing.", 'define ptr @"jg_missing"', str(module))
    whole, cpuids = re.subn(r'asm sideeffect "cpuid", "[^"]*"', "@fake_cpuid", whole)
    whole, states = re.subn(r'asm sideeffect "xgetbv", "[^"]*"', "@fake_xgetbv", whole)
    whole, asked = re.subn(r'asm sideeffect "syscall", "[^"]*"', "@fake_syscall", whole)
    assert cpuids and states == 1 and asked == (target.tiles == "amx")
    number = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

    @number
    def cpuid(leaf: int, sub: int, register: int) -> int:
        return processor.leaves.get((leaf, sub), [0] * 4)[register]

    @call
    def syscall(number: int, what: int, which: int) -> int:
        assert (number, what, which) == (158, 0x1023, 18)
        processor.calls += 1
        return processor.answer

    def address(function: object) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    kind = "{i32, i32, i32, i32}"
    fake = [f"define internal {kind} @fake_cpuid(i32 %leaf, i32 %sub) {{",
            f"  %f = inttoptr i64 {address(cpuid)} to ptr"]  # fmt: skip
    last = "undef"
    for k in range(4):
        fake.append(f"  %r{k} = call i32 %f(i32 %leaf, i32 %sub, i32 {k})")
        fake.append(f"  %s{k} = insertvalue {kind} {last}, i32 %r{k}, {k}")
        last = f"%s{k}"
    fake += [f"  ret {kind} {last}", "}"]
    fake += ["define internal {i32, i32} @fake_xgetbv(i32 %n) {",
             f"  %s = insertvalue {{i32, i32}} zeroinitializer, i32 {processor.state}, 0",
             "  ret {i32, i32} %s", "}"]  # fmt: skip
    fake += ["define internal i64 @fake_syscall(i64 %a, i64 %b, i64 %c) {",
             f"  %f = inttoptr i64 {address(syscall)} to ptr",
             "  %r = call i64 %f(i64 %a, i64 %b, i64 %c)", "  ret i64 %r", "}"]  # fmt: skip
    whole += "\n" + "\n".join(fake)
    symbol = f"jg_missing_{hashlib.sha256(whole.encode()).hexdigest()[:16]}"
    code = Generated(symbol, whole.replace("jg_missing", symbol), [])
    with knob(cache=False):  # the code holds addresses
        library = Library.build([code], own())
    found = ctypes.CFUNCTYPE(ctypes.c_char_p)(library.address(symbol, symbol))()
    return None if found is None else found.decode()


# -- the choice ------------------------------------------------------------------------------------
@on_linux
def test_the_check_asks_for_the_tiles() -> None:
    able = Processor()
    assert missing(able) is None and able.calls == 1
    for feature in sorted(AMX):
        lacking = Processor().without(feature)
        assert missing(lacking) == feature and lacking.calls == 0
    system = Processor()
    system.state = 0xE7  # without the tiles' state
    assert missing(system) in AMX and system.calls == 0
    refused = Processor()
    refused.answer = -1
    assert missing(refused) == "amx-tile" and refused.calls == 1


@on_linux
def test_other_levels_do_not_ask() -> None:
    able = Processor()
    assert missing(able, "x86-64-v4") is None and able.calls == 0
    assert missing(Processor().without("amx-tile"), "x86-64-v4") is None
    assert missing(Processor().without("avx512bw"), "x86-64-v4") == "avx512bw"


def test_required_features() -> None:
    triple = own().triple
    amx = named(triple, "x86-64-v4-amx")
    assert set(features.required_features(amx)) >= AMX | {"avx512bf16", "avx512vnni", "avx512bw"}
    assert not AMX & set(features.required_features(named(triple, "x86-64-v4")))
    assert [t.level for t in targets_of("portable")][-2:] == ["x86-64-v4", "x86-64-v4-amx"]
    with knob(tiles="off"):  # nothing uses what the processor may have
        assert not AMX & set(features.required_features(target_of("host")))


# -- libraries -------------------------------------------------------------------------------------
def _products() -> tuple[Any, list[jg.Tensor], list[np.ndarray]]:
    """A function with products of each kind, its arguments, and its results in full precision."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    u, w = jg.tensor(numbers(150, 70)), jg.tensor(numbers(150, 70), dtype=jg.bfloat16)
    v = jg.tensor(rng.integers(-128, 128, (150, 70)).astype(np.int8))
    x, y = jg.tensor(numbers(200, 150), dtype=jg.bfloat16), jg.tensor(numbers(200, 150))
    z = jg.tensor(rng.integers(-128, 128, (200, 150)).astype(np.int8))

    def f(x: jg.Tensor, y: jg.Tensor, z: jg.Tensor) -> tuple[jg.Tensor, ...]:
        return (x @ w).float(), y @ u, z.to(jg.int32) @ v.to(jg.int32)

    wanted = [
        a.to(jg.float64).numpy() @ b.to(jg.float64).numpy() for a, b in ((x, w), (y, u), (z, v))
    ]
    jg.set_float32_matmul_precision("high")
    try:
        return jg.export(f, x, y, z), [x, y, z], wanted
    finally:
        jg.set_float32_matmul_precision("highest")


def _run(path: Path, given: list[jg.Tensor]) -> tuple[list[np.ndarray], str]:
    library = load(path, threads=2)
    got = library(*(x.numpy() for x in given))
    return [np.asarray(x) for x in (got if isinstance(got, tuple) else [got])], library.info["cpu"]


def assert_close(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    np.testing.assert_allclose(got[0], wanted[0], atol=0.02, rtol=2.0**-7)
    np.testing.assert_allclose(got[1], wanted[1], atol=1e-3)
    np.testing.assert_array_equal(got[2], wanted[2])


def test_a_portable_library_has_the_level_if_it_uses_tiles(tmp_path: Path) -> None:
    exported, given, wanted = _products()
    exported.native(tmp_path / "libproducts.so", target="portable")
    got, cpu = _run(tmp_path / "libproducts.so", given)  # on whatever this processor has
    assert_close(got, wanted)
    assert cpu == "x86-64-v2, x86-64-v3, x86-64-v4, x86-64-v4-amx"
    plain = jg.export(lambda x: x + 1, jg.rand(3))
    plain.native(tmp_path / "libplain.so", target="portable")
    assert load(tmp_path / "libplain.so").info["cpu"] == "x86-64-v2, x86-64-v3, x86-64-v4"
    if shutil.which("objdump") is not None:
        for name, there in (("products", True), ("plain", False)):
            command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / f"lib{name}.so")]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for instruction in ("ldtilecfg", "tdpbf16ps", "tdpbssd", "tileload", "tilerelease"):
                assert (instruction in text) is there
            assert ("syscall" in text) is there


def test_a_library_for_amx_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX or the emulator; of what the latter cannot do, the check is left out."""
    exported, given, wanted = _products()
    real = features.required_features

    def without_amx(target: Target) -> list[str]:
        return [f for f in real(target) if f not in AMX]

    if own().tiles != "amx":
        monkeypatch.setattr(features, "required_features", without_amx)
    if not (own().has_bfloat_dot and own().has_byte_dot):
        pytest.skip("the level needs AVX512-BF16 and AVX512-VNNI")
    with running_amx(tmp_path) as count:
        exported.native(tmp_path / "libproducts.so", target="x86-64-v4-amx")
        got, cpu = _run(tmp_path / "libproducts.so", given)
        assert cpu == "x86-64-v4-amx" and (count is None or count.value > 10)
        again, _ = _run(tmp_path / "libproducts.so", given)
    assert_close(got, wanted)
    assert np.abs(got[1] - wanted[1]).max() > 1e-6  # of parts
    for a, b in zip(got, again, strict=True):
        assert a.tobytes() == b.tobytes()


def test_precision_goes_with_the_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = jg.tensor(rng.standard_normal((64, 40)), dtype=jg.float32)
    x = jg.tensor(rng.standard_normal((33, 64)), dtype=jg.float32)
    jg.set_float32_matmul_precision("high")
    try:
        exported = jg.export(lambda x: x @ w, x)
    finally:
        jg.set_float32_matmul_precision("highest")
    exported.save(tmp_path / "m.jgx")
    loaded = jg.load_exported(tmp_path / "m.jgx")
    wanted = x.double().numpy() @ w.double().numpy()
    with knob(tiles="plain"):
        loaded.native(tmp_path / "libm.so")
        (got,), _ = _run(tmp_path / "libm.so", [x])
    assert 1e-6 < np.abs(got - wanted).max() < 1e-3
