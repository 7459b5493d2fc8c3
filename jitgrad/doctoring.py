"""doctor: what this installation can do on this machine, and what it cannot, with the way out.

Owns the checks and their words. Each check looks (versions, the CPU, the cache directory, a linker,
a GPU's driver) or tries (one function is compiled, loaded and run); none of them changes anything
but the disk cache.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitgrad.compiler.codegen.target import Target, host, llvm_binding
from jitgrad.compiler.link import find_linker
from jitgrad.creation import arange
from jitgrad.jit import jit
from jitgrad.runtime import cache, threads
from jitgrad.runtime.knobs import TABLE, knob
from jitgrad.version import jitgrad as own_version

OK, LIMIT, FAULT = "ok", "limit", "fault"

_OPTIONAL = {
    "onnx": "exporting to ONNX and reading it",
    "onnxruntime": "running exported ONNX models",
    "safetensors": "reading safetensors by their own library",
    "mpi4py": "more than one process by MPI",
    "numba": "kernels for NVIDIA GPUs",
    "ziglang": "linking without a system compiler, and for other platforms",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. state: OK, LIMIT (something will not work) or FAULT."""

    what: str
    state: str
    text: str
    advice: str = ""


@dataclass
class Diagnosis:
    """What doctor() found. `str()` is the report; `ok` is False where something is at fault."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(f.state != FAULT for f in self.findings)

    def __getitem__(self, what: str) -> Finding:
        for finding in self.findings:
            if finding.what == what:
                return finding
        raise KeyError(what)

    def __str__(self) -> str:
        width = max(len(f.what) for f in self.findings)
        mark = {OK: "   ", LIMIT: " - ", FAULT: "!! "}
        lines = []
        for f in self.findings:
            lines.append(f"{mark[f.state]}{f.what:{width}}  {f.text}")
            if f.advice:
                lines.append(f"{'':{width + 5}}{f.advice}")
        lines.append("everything works" if self.ok else "marked with !!: does not work")
        return "\n".join(lines)

    __repr__ = __str__


def doctor() -> Diagnosis:
    """Versions, the CPU and its features, compiling, the cache, a linker, a GPU: what works here.

    The report prints as text; `doctor().ok` says whether compiled code works at all.
    """
    checks: list[Callable[[], Finding]] = [
        _versions, _llvm, _cpu, _memory, _threads, _compiling, _disk_cache, _linker, _gpu,
        _optional, _variables,
    ]  # fmt: skip
    return Diagnosis([_tried(check) for check in checks])


def _tried(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        what = check.__name__.strip("_").replace("_", " ")
        return Finding(what, FAULT, f"{type(error).__name__}: {error}")


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> Finding:
    text = (
        f"jitgrad {own_version}, Python {platform.python_version()} "
        f"({platform.python_implementation()}), NumPy {_version_of('numpy')}, "
        f"{platform.system()} on {platform.machine()}"
    )
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return Finding("versions", OK, text)
    advice = "this platform is not tested (docs/limits.md)"
    if sys.platform == "win32":
        advice += "; compiled code runs on one thread, and loaders without workers"
    return Finding("versions", LIMIT, text, advice)


def _llvm() -> Finding:
    version = _version_of("llvmlite")
    if version is None:
        return Finding(
            "LLVM", FAULT, "llvmlite is not installed: nothing can be compiled",
            "pip install llvmlite; until then JITGRAD_JIT=0 runs everything eagerly",
        )  # fmt: skip
    numbers = ".".join(map(str, llvm_binding().llvm_version_info))
    return Finding("LLVM", OK, f"{numbers} (llvmlite {version})")


def _cpu() -> Finding:
    target: Target = host()
    has = {
        "FMA": target.has_fma, "half conversions": target.has_half, "masks": target.has_masks,
    }  # fmt: skip
    features = [name for name, there in has.items() if there]
    amx = [f for f in ("amx-bf16", "amx-int8") if f"+{f}" in target.features]
    text = (
        f"{target.cpu}, vectors of {8 * target.vector_bytes} bits"
        f"{', ' if features or amx else ''}{', '.join([*features, *amx])}; caches "
        f"{target.l1 >> 10} KB, {target.l2 >> 10} KB, {target.l3 >> 10} KB"
    )
    if target.has_fma:
        return Finding("CPU", OK, text)
    return Finding("CPU", LIMIT, text, "no fused multiply-add: same bounds, other bits, slower")


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return Finding("memory", OK, "of unknown size")
    return Finding("memory", OK, f"{total / 2**30:.1f} GiB in the machine")


def _threads() -> Finding:
    text = (
        f"{threads.get_num_threads()} for compiled code, of {threads.available_processors()} "
        f"processors that this process may use ({os.cpu_count()} in the machine)"
    )
    if sys.platform == "win32":
        return Finding("threads", LIMIT, "1 for compiled code", "the thread pool needs pthreads")
    return Finding("threads", OK, text)


def _compiling() -> Finding:
    n = os.getpid()  # so that no cache has it

    def probe(x: Any) -> Any:
        return (x * n).exp().sum()

    with knob(fallback="error", cache=False, jit=True, recompile="allow"):
        fast = jit(probe)
        x = arange(64.0) * (-1 / 64 / n)
        fast(x)
        start = time.perf_counter()
        got = fast(x).item()
        micros = (time.perf_counter() - start) * 1e6
    wanted = sum(2.718281828459045 ** (-i / 64) for i in range(64))
    if abs(got - wanted) > 1e-4 * wanted:
        return Finding("compiling", FAULT, f"compiled code gave {got}, expected {wanted}",
                       "please report this")  # fmt: skip
    took = fast.specialisations[0].compiled.report.compile_ms
    return Finding(
        "compiling", OK, f"a kernel compiled in {took:.0f} ms, and ran in {micros:.0f} us"
    )


def _disk_cache() -> Finding:
    found = cache.stats()
    if not found.enabled:
        return Finding(
            "cache", LIMIT, f"not used: {found.directory}",
            "JITGRAD_CACHE=0 is set, or the directory is not yours alone: code is compiled anew in "
            "each process; set JITGRAD_CACHE_DIR",
        )  # fmt: skip
    return Finding(
        "cache", OK,
        f"{found.entries} entries, {found.nbytes / 2**20:.0f} MB, in {found.directory}",
    )  # fmt: skip


def _linker() -> Finding:
    found = find_linker()
    if found is not None:
        return Finding("linker", OK, f"{' '.join(found.command)}: export makes shared libraries")
    return Finding(
        "linker", LIMIT, "none: export makes object files only",
        "install a C compiler or lld, or pip install ziglang; nothing else needs one",
    )  # fmt: skip


def _gpu() -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists() or find_library("cuda"):
        return Finding("GPU", LIMIT, "an NVIDIA driver is there; jitgrad computes on the CPU")
    return Finding("GPU", LIMIT, "none; jitgrad computes on the CPU")


def _optional() -> Finding:
    missing = [f"{name} ({what})" for name, what in _OPTIONAL.items() if not _version_of(name)]
    there = [name for name in _OPTIONAL if _version_of(name)]
    text = f"installed: {', '.join(there) or 'none'}"
    if not missing:
        return Finding("optional packages", OK, text)
    return Finding("optional packages", LIMIT, text, f"not installed: {', '.join(missing)}")


def _variables() -> Finding:
    given = [e.variable for e in TABLE if os.environ.get(e.variable)]
    text = ", ".join(f"{name}={os.environ[name]}" for name in given)
    return Finding("variables", OK, text or "none set")
