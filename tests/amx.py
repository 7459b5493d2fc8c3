"""AMX for tests: the processor's, or `amx_emulator.c` in its place."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from jitgrad.compiler.codegen.target import AMX, Target, own

_SOURCE = Path(__file__).with_name("amx_emulator.c")


def with_amx(target: Target) -> Target:
    """A target that has AMX besides."""
    features = [f for f in target.features.split(",") if f and f[1:] not in AMX]
    features += [f"+{name}" for name in sorted(AMX)]
    return replace(target, features=",".join(features), tiles="amx")


@contextmanager
def running_amx(folder: Path) -> Iterator[ctypes.c_long | None]:
    """Code with AMX runs in this block. Gives the number of instructions that were emulated, or
    None where the processor has them. Skips the test where neither is possible."""
    if own().tiles == "amx":
        yield None
        return
    if platform.machine() != "x86_64" or sys.platform != "linux" or not own().has_fma:
        pytest.skip("the emulator of AMX is for x86-64 Linux with FMA")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library = folder / "amx.so"
    if not library.exists():
        flags = ["-O2", "-mfma", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", str(library), str(_SOURCE)], check=True)
    emulator = ctypes.CDLL(str(library))
    assert emulator.amx_install() == 0
    try:
        yield ctypes.c_long.in_dll(emulator, "amx_count")
    finally:
        assert emulator.amx_remove() == 0
