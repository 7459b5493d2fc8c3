"""Which processor features compiled code needs, and code that looks whether they are there.

Owns the table of x86 features that LLVM may use for plain code, with their CPUID bits (Intel SDM
volume 2, CPUID; AMD APM volume 3, appendix E), and the emission of the check, which asks Linux for
the tiles of AMX where code needs them. Other architectures are not checked: the triple must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import llvmlite.ir as ir

from jitgrad.compiler.codegen.target import (
    AMX,
    ARCH_PRCTL,
    REQUEST_PERMISSION,
    TILE_DATA,
    Target,
)
from jitgrad.compiler.codegen.words import I1, I32, I64, PTR, const, define
from jitgrad.runtime.errors import CompileError


class _Bit(NamedTuple):
    leaf: int
    subleaf: int
    register: int  # eax, ebx, ecx, edx
    bit: int
    state: int = 0  # bits of XCR0 that the operating system must have set


_YMM, _ZMM, _TILES = 0x06, 0xE6, 0x60000
_EXTENDED = 0x80000001

_X86: dict[str, _Bit] = {
    "sse3": _Bit(1, 0, 2, 0),
    "ssse3": _Bit(1, 0, 2, 9),
    "fma": _Bit(1, 0, 2, 12, _YMM),
    "cx16": _Bit(1, 0, 2, 13),
    "sse4.1": _Bit(1, 0, 2, 19),
    "sse4.2": _Bit(1, 0, 2, 20),
    "movbe": _Bit(1, 0, 2, 22),
    "popcnt": _Bit(1, 0, 2, 23),
    "avx": _Bit(1, 0, 2, 28, _YMM),
    "f16c": _Bit(1, 0, 2, 29, _YMM),
    "bmi": _Bit(7, 0, 1, 3),
    "avx2": _Bit(7, 0, 1, 5, _YMM),
    "bmi2": _Bit(7, 0, 1, 8),
    "avx512f": _Bit(7, 0, 1, 16, _ZMM),
    "avx512dq": _Bit(7, 0, 1, 17, _ZMM),
    "avx512ifma": _Bit(7, 0, 1, 21, _ZMM),
    "avx512cd": _Bit(7, 0, 1, 28, _ZMM),
    "avx512bw": _Bit(7, 0, 1, 30, _ZMM),
    "avx512vl": _Bit(7, 0, 1, 31, _ZMM),
    "avx512vbmi": _Bit(7, 0, 2, 1, _ZMM),
    "avx512vbmi2": _Bit(7, 0, 2, 6, _ZMM),
    "gfni": _Bit(7, 0, 2, 8),
    "avx512vnni": _Bit(7, 0, 2, 11, _ZMM),
    "avx512bitalg": _Bit(7, 0, 2, 12, _ZMM),
    "avx512vpopcntdq": _Bit(7, 0, 2, 14, _ZMM),
    "avx512vp2intersect": _Bit(7, 0, 3, 8, _ZMM),
    "amx-bf16": _Bit(7, 0, 3, 22, _TILES),
    "avx512fp16": _Bit(7, 0, 3, 23, _ZMM),
    "amx-tile": _Bit(7, 0, 3, 24, _TILES),
    "amx-int8": _Bit(7, 0, 3, 25, _TILES),
    "avxvnni": _Bit(7, 1, 0, 4, _YMM),
    "avx512bf16": _Bit(7, 1, 0, 5, _ZMM),
    "avxifma": _Bit(7, 1, 0, 23, _YMM),
    "avxvnniint8": _Bit(7, 1, 3, 4, _YMM),
    "avxneconvert": _Bit(7, 1, 3, 5, _YMM),
    "avxvnniint16": _Bit(7, 1, 3, 10, _YMM),
    "lzcnt": _Bit(_EXTENDED, 0, 2, 5),
    "sse4a": _Bit(_EXTENDED, 0, 2, 6),
    "xop": _Bit(_EXTENDED, 0, 2, 11, _YMM),
    "fma4": _Bit(_EXTENDED, 0, 2, 16, _YMM),
    "tbm": _Bit(_EXTENDED, 0, 2, 21),
}
# What LLVM takes each level to have (the psABI's levels), where it can be seen in plain code.
_V2 = {"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16"}
_V3 = _V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = {"x86-64": set[str](), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
# Features of newer processors that change plain code and that no check here knows.
_UNKNOWN = {"egpr", "ndd", "nf", "ccmp", "push2pop2", "ppx", "zu", "cf", "avx10.1", "avx10.2"}

_IS_X86 = ("x86_64", "amd64")


def required_features(target: Target) -> list[str]:
    """The x86 features that code for a target may use and that every processor need not have.

    Empty for other architectures. Raises CompileError for a CPU whose features are not known.
    """
    if target.arch not in _IS_X86:
        return []
    named = {f[1:] for f in target.features.split(",") if f.startswith("+")}
    unknown = sorted(named & _UNKNOWN)
    if unknown or (target.cpu not in _LEVELS and "64bit" not in named):
        what = f"features {', '.join(unknown)}" if unknown else f"CPU {target.cpu!r}"
        raise CompileError(
            f"[native] expected a target whose features a library can check when it starts; got "
            f"{what}; name one of {', '.join(_LEVELS)} (JITGRAD_CPU)"
        )
    named |= _LEVELS.get(target.cpu, set())
    if target.tiles != "amx":  # LLVM has no other use for them
        named -= AMX
    return [f for f in _X86 if f in named]


def older_level(feature: str) -> str:
    """The level of x86-64 processors to compile for where this feature is missing."""
    return "x86-64" if feature in _V2 else "x86-64-v2"


def baseline(function: ir.Function, target: Target) -> None:
    """Compiles a function for any processor of the architecture, and inlines it nowhere.

    For what runs before the features were checked.
    """
    function.attributes.add("noinline")
    if target.arch in _IS_X86:
        for attribute in ('"target-cpu"="x86-64"', '"target-features"=""'):
            # llvmlite's own add() knows enumerated attributes only; these are LLVM's string ones.
            set.add(function.attributes, attribute)


def emit_check(module: ir.Module, target: Target, texts: Sequence[tuple[str, ir.Value]]) -> None:
    """Emits ptr jg.missing(): the text of the first feature that this processor lacks, or null.

    texts: (feature, what to answer when it is missing), of `required_features`.
    """
    function, b = define(module, "jg.missing", PTR, [])
    baseline(function, target)
    regs: dict[tuple[int, int], ir.Value] = {}
    query = ir.FunctionType(ir.LiteralStructType([I32] * 4), [I32, I32])

    def cpuid(leaf: int, subleaf: int) -> ir.Value:
        if (leaf, subleaf) not in regs:
            asm = ir.InlineAsm(query, "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}", True)
            regs[leaf, subleaf] = b.call(asm, [ir.Constant(I32, leaf), ir.Constant(I32, subleaf)])
        return regs[leaf, subleaf]

    def register(leaf: int, subleaf: int, number: int) -> ir.Value:
        """A register of a leaf, or 0 where the processor has no such leaf."""
        highest = b.extract_value(cpuid(leaf & 0x80000000, 0), 0)
        known = b.icmp_unsigned(">=", highest, ir.Constant(I32, leaf))
        if subleaf:
            most = b.extract_value(cpuid(leaf, 0), 0)
            known = b.and_(known, b.icmp_unsigned(">=", most, ir.Constant(I32, subleaf)))
        value = b.extract_value(cpuid(leaf, subleaf), number)
        return b.select(known, value, ir.Constant(I32, 0))

    state: ir.Value = ir.Constant(I32, 0)
    if any(_X86[f].state for f, _ in texts):
        # xgetbv faults unless the operating system has switched it on (OSXSAVE).
        has = b.trunc(b.lshr(register(1, 0, 2), ir.Constant(I32, 27)), I1)
        before, read, after = b.block, b.append_basic_block("xcr"), b.append_basic_block("check")
        b.cbranch(has, read, after)
        b.position_at_end(read)
        pair = ir.FunctionType(ir.LiteralStructType([I32] * 2), [I32])
        asm = ir.InlineAsm(pair, "xgetbv", "={ax},={dx},{cx}", True)
        xcr0 = b.extract_value(b.call(asm, [ir.Constant(I32, 0)]), 0)
        b.branch(after)
        b.position_at_end(after)
        state = b.phi(I32)
        state.add_incoming(ir.Constant(I32, 0), before)
        state.add_incoming(xcr0, read)
    for feature, text in texts:
        want = _X86[feature]
        bit = b.lshr(register(want.leaf, want.subleaf, want.register), ir.Constant(I32, want.bit))
        there = b.trunc(bit, I1)
        if want.state:
            mask = ir.Constant(I32, want.state)
            there = b.and_(there, b.icmp_unsigned("==", b.and_(state, mask), mask))
        with b.if_then(b.not_(there), likely=False):
            b.ret(text)
    tile_texts = [text for feature, text in texts if feature == "amx-tile"]
    if tile_texts and "linux" in target.triple:
        # Linux lets a process use the tiles that has asked for them; to ask again does no harm.
        kind = ir.FunctionType(I64, [I64, I64, I64])
        asm = ir.InlineAsm(kind, "syscall", "={ax},{ax},{di},{si},~{rcx},~{r11},~{memory}", True)
        answer = b.call(asm, [const(x) for x in (ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)])
        with b.if_then(b.icmp_unsigned("!=", answer, const(0)), likely=False):
            b.ret(tile_texts[0])
    b.ret(ir.Constant(PTR, None))
