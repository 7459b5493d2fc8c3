"""What a GPU kernel takes of a multiprocessor: registers, shared memory, spills, occupancy.

Owns calls of ptxas, NVIDIA's assembler, which comes with the CUDA wheels and needs no GPU, and the
arithmetic of occupancy. Limits per multiprocessor are those of the CUDA programming guide's table
of compute capabilities.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jitgrad.compiler.codegen.cuda.generate import Shape
from jitgrad.runtime.errors import CompileError

# architecture -> threads, blocks, registers and bytes of shared memory of a multiprocessor
_LIMITS = {
    75: (1024, 16, 65536, 64 << 10),
    80: (2048, 32, 65536, 164 << 10),
    86: (1536, 16, 65536, 100 << 10),
    89: (1536, 24, 65536, 100 << 10),
    90: (2048, 32, 65536, 228 << 10),
    100: (2048, 32, 65536, 228 << 10),
    120: (1536, 24, 65536, 100 << 10),
}
_REGISTER_UNIT = 256  # registers are given to warps in units of this
_SHARED_SYSTEM = 1024  # bytes that each block takes besides its own


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers of a thread, bytes of shared memory of a block, bytes spilled to and
    from memory, bytes of a thread's stack, and the share of a multiprocessor's threads that can be
    resident at its block size."""

    symbol: str
    threads: int
    registers: int
    shared: int
    spills: int
    stack: int
    occupancy: float


def find_ptxas() -> str | None:
    """The path of ptxas: in NVIDIA's wheels (of the version of their NVVM), or on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else (spec.submodule_search_locations or []):
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


def assemble(ptx: str, symbol: str, shape: Shape, arch: str) -> Resources:
    """Assembles a kernel's PTX. Raises CompileError where ptxas is missing or refuses it."""
    ptxas = find_ptxas()
    if ptxas is None:
        raise CompileError(
            "[ptxas] expected NVIDIA's assembler; it is neither on PATH nor in a wheel: install it "
            "with: pip install nvidia-cuda-nvcc"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run(
            [ptxas, "-v", f"-arch={arch}", str(source), "-o", str(Path(folder) / "kernel.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise CompileError(f"[ptxas] {symbol}: {done.stderr.strip()}")
    return read_report(done.stderr, symbol, shape, arch)


def read_report(text: str, symbol: str, shape: Shape, arch: str) -> Resources:
    """The numbers of ptxas -v."""

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, text)))

    registers, shared = number(r"Used (\d+) registers"), number(r"(\d+) bytes smem")
    spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    stack = number(r"(\d+) bytes stack frame")
    return Resources(
        symbol, shape.threads, registers, shared, spills, stack,
        occupancy(arch, shape.threads, registers, shared),
    )  # fmt: skip


def occupancy(arch: str, threads: int, registers: int, shared: int) -> float:
    """The share of a multiprocessor's threads that blocks of this kind can fill."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    most, blocks, file, memory = _LIMITS[max(k for k in _LIMITS if k <= number)]
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    fits = min(
        blocks, most // (warps * 32), file // per_warp // warps,
        memory // (shared + _SHARED_SYSTEM),
    )  # fmt: skip
    return fits * warps * 32 / most


def table(rows: list[tuple[Resources, Shape]]) -> str:
    """A line for each kernel, for people. coalesced: of its loads and stores at a place that is
    known, those where neighbouring threads touch neighbouring elements or one element. wide: loads
    and stores of up to 128 bits."""
    lines = [
        "kernel                    threads  registers  shared  spills  occupancy  coalesced  wide"
    ]
    for r, shape in rows:
        lines.append(
            f"{r.symbol:<25} {r.threads:>7}  {r.registers:>9}  {r.shared:>6}  {r.spills:>6}  "
            f"{r.occupancy:>8.0%}   {coalesced(shape):<9}  {shape.wide:>4}"
        )
    return "\n".join(lines)


def coalesced(shape: Shape) -> str:
    """ "3 of 4": accesses that are coalesced or broadcast, of all."""
    if not shape.strides:
        return "-"
    good = sum(s in (0, 1, -1) for s in shape.strides)
    return f"{good} of {len(shape.strides)}"
