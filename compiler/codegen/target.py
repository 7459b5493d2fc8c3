"""What code is generated for: triple, CPU, features, vector width, cache sizes.

Owns `Target` and how the host is found out. Knows nothing of kernels. `JITGRAD_CPU` names another
CPU of the host's architecture (for example `x86-64-v2`); its features are then LLVM's for it.
`JITGRAD_TILES` says how products are formed in tiles. Linux lets a process use the tiles of AMX
that has asked for them, once: `host` asks.
"""

from __future__ import annotations

import ctypes
import difflib
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from jitgrad.runtime.knobs import knobs

_DEFAULT_CACHES = (32 * 1024, 512 * 1024, 8 * 1024 * 1024)


@dataclass(frozen=True)
class Target:
    """A machine to generate code for.

    Attributes:
        triple: LLVM's target triple.
        cpu: LLVM's CPU name.
        features: LLVM's feature string ("+avx2,-avx512f"), on top of the CPU's.
        vector_bytes: width of a vector register in bytes.
        has_fma: fused multiply-add is one instruction.
        has_rounding: floor, ceil, trunc and rint are one instruction each.
        has_half: conversions between float16 and float32 are one instruction.
        has_masks: masked loads and stores of 4- and 8-byte elements are one instruction.
        has_small_masks: also of 1- and 2-byte elements.
        l1, l2, l3: sizes of the data caches in bytes.
        in_order: whether a worker does the points of a kernel one after the other.
        has_bfloat_dot: pairs of bfloat16 are multiplied and added to float32 by one instruction.
        has_byte_dot: so are groups of four bytes, to int32.
        has_scale: products with powers of two are one instruction (`scalef`).
        tiles: how products of tiles of bfloat16 and of bytes are formed (tile_unit.py): "amx", by
            instructions; "plain", by code for any processor; "", not in tiles.
    """

    in_order: ClassVar[bool] = True

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    has_fma: bool
    has_rounding: bool
    has_half: bool
    has_masks: bool
    has_small_masks: bool
    l1: int = _DEFAULT_CACHES[0]
    l2: int = _DEFAULT_CACHES[1]
    l3: int = _DEFAULT_CACHES[2]
    has_bfloat_dot: bool = False
    has_byte_dot: bool = False
    has_scale: bool = False
    tiles: str = ""

    @property
    def arch(self) -> str:
        return self.triple.split("-")[0]

    @property
    def level(self) -> str:
        """What people call the processors that it is for."""
        return _AMX_LEVEL if (self.cpu, self.tiles) == ("x86-64-v4", "amx") else self.cpu

    @property
    def pointer_bytes(self) -> int:
        return 4 if self.arch == "wasm32" else 8

    @property
    def is_elf(self) -> bool:
        return not self.is_wasm and "apple" not in self.triple and "windows" not in self.triple

    @property
    def is_wasm(self) -> bool:
        return self.arch.startswith("wasm")

    def machine(self, level: int = 2) -> Any:
        """A new llvmlite TargetMachine, which optimises machine code at a level of 0 to 3."""
        binding = llvm_binding()
        return binding.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.features, opt=level, codemodel="default",
            reloc="static" if self.is_wasm else "pic",
            abiname="lp64d" if self.arch == "riscv64" else "",
        )  # fmt: skip


@lru_cache(maxsize=1)
def llvm_binding() -> Any:
    """llvmlite.binding, with every target that it was built with initialised."""
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


# Features that matter here, by x86-64 level (the psABI's micro-architecture levels).
_X86_LEVELS = {
    "x86-64": frozenset[str](),
    "x86-64-v2": frozenset({"sse4.1"}),
    "x86-64-v3": frozenset({"sse4.1", "avx", "avx2", "fma", "f16c"}),
    "x86-64-v4": frozenset(
        {"sse4.1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"}
    ),
}


# Features of AMX that tile_unit.py needs, and that AMX processors have besides.
AMX = frozenset({"amx-tile", "amx-bf16", "amx-int8"})
_AMX_LEVEL = "x86-64-v4-amx"
_AMX_FEATURES = "+amx-tile,+amx-bf16,+amx-int8,+avx512bf16,+avx512vnni"

# What users call targets -> triple, CPU, features.
_TARGETS = {
    "x86_64-linux-gnu": ("x86_64-unknown-linux-gnu", "x86-64", ""),
    "aarch64-linux-gnu": ("aarch64-unknown-linux-gnu", "generic", "+neon"),
    "riscv64-linux-gnu": ("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c"),
    "wasm32": (
        "wasm32-unknown-unknown", "generic",
        "+simd128,+bulk-memory,+sign-ext,+mutable-globals,+nontrapping-fptoint",
    ),
    "aarch64-macos": ("arm64-apple-macosx11.0.0", "apple-m1", "+neon"),
    "x86_64-macos": ("x86_64-apple-macosx11.0.0", "x86-64-v2", ""),
}  # fmt: skip


def target_of(name: str | Target | None) -> Target:
    """The target that a user names: None or "host"; an x86-64 level ("x86-64-v3"), for this system;
    a system ("aarch64-linux-gnu"), and which CPU if one follows ("aarch64-linux-gnu:cortex-a76").

    Raises ValueError, which lists them, for a name that is none; TypeError for what is no name.
    """
    if isinstance(name, Target):
        return name
    if name is None or name == "host":
        return host()
    if not isinstance(name, str):
        raise TypeError(
            f"[native] expected the name of one target; got {type(name).__name__}; 'portable' is a "
            "library for several levels of x86-64 processors"
        )
    system, _, cpu = name.partition(":")
    if name in _X86_LEVELS or name == _AMX_LEVEL:
        here = llvm_binding().get_process_triple()
        triple = here if here.startswith("x86_64") else _TARGETS["x86_64-linux-gnu"][0]
        return named(triple, name)
    if system not in _TARGETS:
        known = ", ".join(["host", "portable", *_X86_LEVELS, _AMX_LEVEL, *_TARGETS])
        raise ValueError(f"[native] expected a target of {known}; got {name!r}")
    triple, default, features = _TARGETS[system]
    if cpu and known_cpus(triple) and cpu not in known_cpus(triple) and cpu not in _X86_LEVELS:
        raise ValueError(f"[native] LLVM knows no CPU {cpu!r} for {system}")
    return named(triple, cpu or default, "" if cpu and system.startswith("x86") else features)


PORTABLE = ("x86-64-v2", "x86-64-v3", "x86-64-v4", _AMX_LEVEL)


def targets_of(name: str | Target | None) -> list[Target]:
    """The targets that one library is made for: several for "portable", the x86-64 levels from v2
    on, of which the best is chosen when the library runs. Else one, as `target_of` says."""
    if name == "portable":
        return [target_of(level) for level in PORTABLE]
    return [target_of(name)]


def host() -> Target:
    """The target of this machine, or of its architecture and the CPU that `JITGRAD_CPU` names."""
    return _host(knobs.cpu or "", knobs.tiles)


def own() -> Target:
    """The target of this very machine, whatever `JITGRAD_CPU` says: its code runs here."""
    return _host("", "auto")


@lru_cache(maxsize=8)
def _host(cpu: str, tiles: str) -> Target:
    target = _host_of(cpu)
    if tiles == "auto":
        return target
    return replace(target, tiles="plain" if tiles == "plain" else "")


@lru_cache(maxsize=8)
def _host_of(cpu: str) -> Target:
    binding = llvm_binding()
    triple = binding.get_process_triple()
    if cpu:
        known = known_cpus(triple)
        if known and cpu not in known and cpu not in (*_X86_LEVELS, _AMX_LEVEL):
            near = difflib.get_close_matches(cpu, known, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see clang -mcpu=help"
            raise ValueError(
                f"JITGRAD_CPU={cpu!r}: expected a CPU that LLVM knows for {triple}; {hint}"
            )
        target = named(triple, cpu, caches=_cache_sizes())
        if target.tiles:
            may_use_tiles()
        return target
    found = binding.get_host_cpu_features()
    if not (found.get("amx-tile") and may_use_tiles()):
        found.update({name: False for name in found if name.startswith("amx-")})
    has = {k for k, on in found.items() if on}
    flags = found.flatten()
    return _describe(triple, binding.get_host_cpu_name(), flags, has, _cache_sizes())


ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""Of Linux on x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)."""


def may_use_tiles() -> bool:
    """Asks the operating system for AMX's tiles, for this process and what it forks."""
    if not sys.platform.startswith("linux"):
        return True  # who has no such call has no such rule
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes, call.restype = [ctypes.c_long] * 3, ctypes.c_long
    return bool(call(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)


@lru_cache(maxsize=8)
def known_cpus(triple: str) -> frozenset[str]:
    """The CPUs that LLVM knows for an architecture; empty where it cannot be asked.

    LLVM prints its list on stderr, and ends the process at code for a name that is not in it: a
    process of its own is asked.
    """
    code = (
        "import sys, llvmlite.binding as b; b.initialize_all_targets(); "
        "b.Target.from_triple(sys.argv[1]).create_target_machine(cpu='help')"
    )
    try:
        run = subprocess.run(
            [sys.executable, "-c", code, triple], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(re.findall(r"^\s+(\S+)\s+- Select the", run.stderr, re.MULTILINE))


def named(
    triple: str, cpu: str = "", features: str = "", caches: tuple[int, int, int] = _DEFAULT_CACHES
) -> Target:
    """A target by name.

    x86-64 CPUs: the levels `x86-64`, `x86-64-v2`, `x86-64-v3`, `x86-64-v4`, and `x86-64-v4-amx`,
    which has AMX, AVX512-BF16 and AVX512-VNNI too; another name is taken as baseline for vector
    width, unless `features` says more ("+avx2,+fma").
    """
    arch = triple.split("-")[0]
    if cpu == _AMX_LEVEL:
        cpu, features = "x86-64-v4", ",".join(filter(None, (_AMX_FEATURES, features)))
    has = set(_X86_LEVELS.get(cpu, frozenset())) if arch in ("x86_64", "amd64") else set()
    has |= {f[1:] for f in features.split(",") if f.startswith("+")}
    if not cpu:
        cpu = "x86-64" if arch in ("x86_64", "amd64") else "generic"
    return _describe(triple, cpu, features, has, caches)


def _describe(
    triple: str, cpu: str, features: str, has: set[str], caches: tuple[int, int, int]
) -> Target:
    arch = triple.split("-")[0]
    l1, l2, l3 = caches
    if arch in ("x86_64", "amd64"):
        wide = {"avx512f", "avx512bw", "avx512vl"} <= has
        vector_bytes = 64 if wide else 32 if "avx2" in has else 16
        return Target(
            triple, cpu, features, vector_bytes, "fma" in has, "sse4.1" in has, "f16c" in has,
            "avx2" in has, wide, l1, l2, l3, wide and "avx512bf16" in has,
            wide and "avx512vnni" in has, wide, "amx" if wide and has >= AMX else "",
        )  # fmt: skip
    if arch in ("aarch64", "arm64"):
        return Target(
            triple, cpu, features, 16, True, True, True, False, False, l1, l2, l3
        )  # fmt: skip
    if arch.startswith("wasm"):
        simd = "simd128" in has
        return Target(
            triple, cpu, features, 16 if simd else 8, False, True, False, False, False, l1, l2, l3
        )  # fmt: skip
    return Target(triple, cpu, features, 16, False, False, False, False, False, l1, l2, l3)


def _cache_sizes() -> tuple[int, int, int]:
    """Data cache sizes of processor 0 from sysfs; defaults where it does not say."""
    sizes = list(_DEFAULT_CACHES)
    base = Path("/sys/devices/system/cpu/cpu0/cache")
    for entry in sorted(base.glob("index*")) if base.is_dir() else []:
        try:
            level = int((entry / "level").read_text())
            kind = (entry / "type").read_text().strip()
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        scale = {"K": 1024, "M": 1024**2}.get(size[-1:], 1)
        digits = size.rstrip("KM")
        if kind != "Instruction" and 1 <= level <= 3 and digits.isdigit():
            sizes[level - 1] = int(digits) * scale
    return sizes[0], sizes[1], sizes[2]
