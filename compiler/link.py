"""From an object file to a shared library, with whatever linker the machine has.

Owns the search for a linker and its command lines. Looks, in this order, for: $CC, cc, gcc, clang;
ld.lld, ld; the `ziglang` wheel (`pip install "jitgrad[export]"`). For other systems than this:
their gcc (aarch64-linux-gnu-gcc), the wheel, ld.lld; for WebAssembly wasm-ld, the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from jitgrad.compiler.codegen.target import Target, host
from jitgrad.runtime.errors import CompileError

# Compiler drivers, which know where libc is; then bare linkers, which are told.
_DRIVERS = ("cc", "gcc", "clang")
_LINKERS = ("ld.lld", "ld")
_FLAGS = ("-shared", "-z", "noexecstack", "-z", "relro", "-z", "now")
_WASM_FLAGS = ("--no-entry", "--export-dynamic", "--export-memory", "--gc-sections", "--strip-all")
_ZIG = (sys.executable, "-m", "ziglang")
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Linker:
    """A program that links. `driver`: it takes a C compiler's arguments."""

    command: tuple[str, ...]
    driver: bool

    def arguments(self, objects: list[str], output: str, soname: str) -> list[str]:
        """The command line that makes a shared library of objects."""
        if output.endswith(".wasm"):
            return [*self.command, *_WASM_FLAGS, "-o", output, *objects]
        if output.endswith(".dylib"):
            name = f"-Wl,-install_name,@rpath/{soname}"
            return [*self.command, "-shared", name, "-o", output, *objects]
        flags = [*_FLAGS, "-soname", soname]
        if not self.driver:
            return [*self.command, *flags, "-o", output, *objects, *_libc()]
        # "-z now" is one flag in two words, and each word has its own -Wl.
        passed = [f"-Wl,{','.join(flags[1:])}"]
        return [*self.command, "-shared", *passed, "-pthread", "-o", output, *objects]


def find_linker(target: Target | None = None) -> Linker | None:
    """The linker that `link_shared` would use, or None when the machine has none."""
    if target is not None and target.triple != host().triple:
        return _find_cross(target)
    words = shlex.split(os.environ.get("CC", ""))
    if words:
        program = shutil.which(words[0])
        return Linker((program, *words[1:]), True) if program else None
    for names, driver in ((_DRIVERS, True), (_LINKERS, False)):
        for name in names:
            program = shutil.which(name)
            if program:
                return Linker((program,), driver)
    if _has_zig():
        return Linker((*_ZIG, "cc"), True)
    return None


def _has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def _find_cross(target: Target) -> Linker | None:
    """A linker for another system."""
    if target.is_wasm:
        program = shutil.which("wasm-ld")
        if program:
            return Linker((program,), False)
        return Linker((*_ZIG, "wasm-ld"), False) if _has_zig() else None
    system = f"{target.arch}-linux-gnu"
    program = shutil.which(f"{system}-gcc") if target.is_elf else None
    if program:
        return Linker((program,), True)
    if _has_zig():
        arch = "aarch64" if target.arch == "arm64" else target.arch
        zig = f"{arch}-macos" if "apple" in target.triple else f"{arch}-linux-gnu"
        return Linker((*_ZIG, "cc", "-target", zig), True)
    program = shutil.which("ld.lld") if target.is_elf else None
    return Linker((program,), False) if program else None


def link_shared(object_file: Path, output: Path, soname: str, target: Target | None = None) -> None:
    """Links one object file into a shared library that needs libc only, or a WebAssembly module.

    Raises CompileError when there is no linker, naming the object file and a command that links
    it elsewhere, or with what the linker said when it fails.
    """
    by_hand = " ".join(
        Linker(("wasm-ld" if output.suffix == ".wasm" else "cc",), True).arguments(
            [shlex.quote(str(object_file))], shlex.quote(soname), soname
        )
    )
    linker = find_linker(target)
    if linker is None and target is not None and target.triple != host().triple:
        raise CompileError(
            f"[native] expected a linker for {target.triple}; found none. The object file "
            f"{object_file} is written: link it on such a machine with `{by_hand}`, or "
            'pip install "jitgrad[export]" (the ziglang wheel) and export again'
        )
    if linker is None:
        wanted = os.environ.get("CC")
        looked = f"$CC ({wanted})" if wanted else ", ".join((*_DRIVERS, *_LINKERS, "ziglang"))
        raise CompileError(
            f"[native] expected a linker; found none of {looked}. The object file {object_file} "
            f"is written: link it with `{by_hand}` where there is a C compiler, or "
            'pip install "jitgrad[export]" (the ziglang wheel) and export again'
        )
    command = linker.arguments([str(object_file)], str(output), soname)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace"
        )
        said, code = done.stderr.strip() or done.stdout.strip(), done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        said, code = str(error), -1
    if code:
        raise CompileError(
            f"[native] the linker failed (status {code}): {shlex.join(command)}\n{said}\n"
            f"The object file {object_file} is written: link it with `{by_hand}`"
        )


def _libc() -> list[str]:
    """The C library of this process, for linkers that know no directories.

    Linking with the library itself gives symbols their versions; unversioned, the pthread
    conditions of old glibc would be picked.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = {line.split()[-1] for line in lines if line.split()[-1].startswith("/")}
    names = ("libc.so.", "libc-", "ld-musl", "libpthread")
    return sorted(p for p in found if os.path.basename(p).startswith(names))
