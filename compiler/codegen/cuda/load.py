"""From the source of kernels to functions that a driver launches.

Owns compilation to PTX by Numba (`to_ptx`), which needs no GPU, and kernels of Numba's simulator
(`simulated_kernel`). Compiled text is kept in the disk cache.
"""

from __future__ import annotations

import itertools
import json
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.compiler.codegen.cuda import simulated
from jitgrad.compiler.codegen.cuda.generate import Shape, version_key
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.runtime import cache
from jitgrad.runtime.errors import CompileError, InternalError
from jitgrad.runtime.knobs import knobs

_lock = threading.RLock()
_SWITCH = 5e-5  # seconds
_HEADER = "# jitgrad: a kernel for Numba CUDA; its functions are those of codegen/cuda/device.py\n"


def python_source(text: str) -> str:
    """The source of a kernel's module as a reader sees it."""
    return f"{_HEADER}from numba import cuda\n\n\n{text}"


def _run(text: str, symbol: str, names: dict[str, Any]) -> Any:
    """The plain function `symbol` of a kernel's source."""
    file = f"<jitgrad kernel {symbol}>"
    plain = text.replace("@cuda.jit\n", "")
    linecache.cache[file] = (len(plain), None, plain.splitlines(True), file)
    exec(compile(plain, file, "exec"), names)
    return names[symbol]


# -- the simulator ---------------------------------------------------------------------------------
def simulated_kernel(text: str, symbol: str, shape: Shape) -> Any:
    """A kernel of the simulator: `kernel[grid, block](*args)` runs it on arrays in host memory, of
    the very types that its machine code would be made for."""
    with _lock:
        module = _simulator()
        names = simulated.namespace(module)
        # The simulator makes an array for each thread that asks while the first is being made.
        numbers = itertools.count()
        text = re.sub(r"cuda\.shared\.array\(", lambda _: f"shared_array({next(numbers)}, ", text)
        inner = _run(text, symbol, names)
        names["quiet"], names["inner"] = np.errstate, inner
        # NumPy's warnings are set for each thread, and each GPU thread is one.
        exec("def outer(*args):\n    with quiet(all='ignore'):\n        inner(*args)\n", names)
        return _Simulated(module.jit(names["outer"]), symbol, shape)


class _Simulated:
    def __init__(self, kernel: Any, symbol: str, shape: Shape) -> None:
        self._kernel, self._symbol = kernel, symbol
        self._kinds = [*shape.kinds, *["*int64"] * shape.sites]
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        self._wrap = FakeCUDAArray

    def __getitem__(self, configuration: tuple[int, int]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            wrap = self._wrap
            given = [f"*{a.dtype}" if isinstance(a, np.ndarray) else "" for a in args]
            if given != [kind if kind[0] == "*" else "" for kind in self._kinds]:
                raise InternalError(
                    f"kernel {self._symbol} is made for {self._kinds}; it was launched with {given}"
                )
            with _lock:  # the simulator runs one kernel at a time
                # Its main thread looks at the others in a loop: it must let them run soon.
                interval = sys.getswitchinterval()
                sys.setswitchinterval(_SWITCH)
                try:
                    self._kernel[configuration](
                        *[wrap(a) if isinstance(a, np.ndarray) else a for a in args]
                    )
                finally:
                    sys.setswitchinterval(interval)

        return run


def _simulator() -> Any:
    """numba.cuda in its simulated form."""
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
    with _explained():
        from numba import cuda, types  # noqa: F401
        from numba.core import config
    if not config.ENABLE_CUDASIM:
        raise CompileError(
            "[cuda] expected Numba's CUDA simulator; numba was imported without it: set "
            "NUMBA_ENABLE_CUDASIM=1 before the program starts"
        )
    return cuda


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CompileError(
            f"[cuda] expected numba-cuda to compile GPU kernels; it cannot be imported ({error}); "
            'install it with: pip install "jitgrad[cuda]"'
        ) from error


# (architecture from which on, version of PTX that has it), of the PTX ISA's "Release Notes"; the
# oldest drivers that we take, of CUDA 12, read 8.0. None: what NVVM writes.
_PTX_VERSIONS: tuple[tuple[int, tuple[int, int] | None], ...] = (
    (122, None), (121, (8, 8)), (120, (8, 7)), (104, None), (103, (8, 8)), (100, (8, 6)),
    (91, None), (75, (8, 0)),
)  # fmt: skip


# -- PTX -------------------------------------------------------------------------------------------
def to_ptx(text: str, symbol: str, shape: Shape, target: CudaTarget) -> tuple[str, str]:
    """(PTX, name of the entry) of a kernel. Needs Numba and NVIDIA's NVVM, no GPU.

    Raises CompileError where they are missing or refuse the kernel.
    """
    ptx, entry = _kept_ptx(text, symbol, shape, target)
    return for_old_drivers(ptx, target), entry


def for_old_drivers(ptx: str, target: CudaTarget) -> str:
    """PTX that says it is of the oldest version that has the target: NVVM writes its own newest
    one, which a driver that is older than the wheels refuses to load. (That the kernels use nothing
    newer, ptxas checks.)"""
    number = int(target.arch.removeprefix("sm_"))
    oldest = next((v for least, v in _PTX_VERSIONS if number >= least), None)
    found = re.search(r"^\.version (\d+)\.(\d+)$", ptx, re.MULTILINE)
    if oldest is None or found is None or (int(found[1]), int(found[2])) <= oldest:
        return ptx
    return f"{ptx[: found.start()]}.version {oldest[0]}.{oldest[1]}{ptx[found.end() :]}"


def _kept_ptx(text: str, symbol: str, shape: Shape, target: CudaTarget) -> tuple[str, str]:
    key = (
        "ptx-"
        + sha256(
            "\0".join([text, symbol, version_key(target), _numba_version(), _sources()]).encode()
        ).hexdigest()
    )
    data = cache.get(key) if knobs.cache else None
    if data is not None:
        ptx, entry = json.loads(data)
        return ptx, entry
    ptx = _compile(text, symbol, shape, target)
    found = re.search(r"\.visible \.entry (\w+)\(", ptx)
    if found is None:
        raise CompileError(f"[cuda] the PTX of kernel {symbol} has no entry")
    ptx = ptx.replace(found[1], symbol)
    if knobs.cache:
        cache.put(key, json.dumps([ptx, symbol]).encode())
    return ptx, symbol


def _numba_version() -> str:
    with _explained():
        import numba_cuda
    return str(numba_cuda.__version__)


def _sources() -> str:
    files = [Path(__file__).with_name(name) for name in ("device.py", "intrinsics.py")]
    return sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def _compile(text: str, symbol: str, shape: Shape, target: CudaTarget) -> str:
    with _explained():
        from numba.core import config
        from numba.cuda import compiler, dispatcher, types
    if config.ENABLE_CUDASIM:
        raise CompileError(
            "[cuda] PTX cannot be compiled while Numba's CUDA simulator is on "
            "(NUMBA_ENABLE_CUDASIM)"
        )
    with _lock:
        from jitgrad.compiler.codegen.cuda import device

        names = dict(vars(device))
        names["np"] = np
        function = _run(text, symbol, names)
        words = [_numba_type(kind, types) for kind in shape.kinds]
        if shape.sites:
            words.append(_numba_type("*int64", types))
        # Numba asks a device for its capability when it meets a device function.
        standing_in = SimpleNamespace(compute_capability=target.capability)
        asked = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: standing_in
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(max(limit, 20000))
            result = compiler.compile_cuda(
                function, types.void, tuple(words), fastmath=False,
                nvvm_options={"opt": 3, "fma": 0}, cc=target.capability, abi="numba", abi_info={},
            )  # fmt: skip
            library = result.library
            name = result.fndesc.llvm_func_name
            kernel = library.get_function(name)
            library._entry_name = name
            compiler.kernel_fixup(kernel, False)
            # No launch bounds: 256 threads of 255 registers fit, and with bounds ptxas spills.
            return str(library.get_asm_str(cc=target.capability))
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(
                f"[cuda] kernel {symbol} cannot be compiled for {target.arch}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            dispatcher.get_current_device = asked
            sys.setrecursionlimit(limit)


def _numba_type(kind: str, types: Any) -> Any:
    if not kind.startswith("*"):
        return types.int64
    return types.CPointer(getattr(types, kind[1:]))


def loader(
    texts: Mapping[str, str], shapes: Mapping[str, Shape], target: CudaTarget
) -> Callable[[str], Any]:
    """What a driver's `load` asks for the code of a symbol; texts: the source that has it."""

    def code(symbol: str) -> Any:
        if target.simulated:
            return simulated_kernel(texts[symbol], symbol, shapes[symbol])
        return to_ptx(texts[symbol], symbol, shapes[symbol], target)

    return code
