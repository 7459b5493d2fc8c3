"""From LLVM assembly to code in this process: optimise, compile, check, cache, load, unload.

Owns object bytes (made at most once for each key: in memory, then on disk through `runtime/cache`),
the refusal of undefined symbols, and `Library`, which keeps loaded code alive. What the code means
is not its business.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import struct
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from jitgrad.compiler.codegen.kernelcode import ROUTINE, Generated
from jitgrad.compiler.codegen.spent import spent
from jitgrad.compiler.codegen.target import Target, llvm_binding
from jitgrad.runtime import cache
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knobs

# What an object may leave undefined. No libm: math is polynomials (compiler/math.py).
ALLOWED_UNDEFINED = frozenset({"memcpy", "memset", "memmove"})
VERSION = 5

_lock = threading.RLock()
_objects: OrderedDict[str, bytes] = OrderedDict()  # most recent last
_MAX_OBJECTS = 2048
_loaded: weakref.WeakValueDictionary[str, _Loaded] = weakref.WeakValueDictionary()
_names = itertools.count()


def version_key(target: Target) -> str:
    """What the bytes of an object depend on besides its assembly text."""
    return f"{_target_key(target)}|O{knobs.opt}"


@lru_cache(maxsize=16)
def _target_key(target: Target) -> str:
    llvm = ".".join(map(str, llvm_binding().llvm_version_info))
    return f"{VERSION}|{llvm}|{target}"


def object_key(key: str, target: Target) -> str:
    """The cache key of the object of `Generated.key` on a target."""
    return "object-" + hashlib.sha256(f"{key}|{version_key(target)}".encode()).hexdigest()


def compile_object(
    text: str, target: Target, may_call: frozenset[str] = frozenset(), kernel: bool = False,
    driver: bool = False,
) -> bytes:  # fmt: skip
    """The object file of a module's assembly text. kernel: of code that is generated tidy. driver:
    of a driver (Generated.driver).

    Raises CompileError for text that LLVM refuses, or an object with an undefined symbol that is
    no routine's and neither in ALLOWED_UNDEFINED nor in `may_call`.
    """
    data = emit_object(optimised(text, target, kernel, driver), target, driver)
    return checked(data, target, may_call)


def checked(data: bytes, target: Target, may_call: frozenset[str]) -> bytes:
    """An object that calls nothing but what is allowed; see compile_object."""
    names = {x for x in undefined_symbols(data) if not x.startswith(ROUTINE)}
    refused = sorted(names - ALLOWED_UNDEFINED - may_call)
    if refused:
        raise CompileError(
            f"the code for {target.cpu} calls {', '.join(refused)}, which nothing provides; "
            f"allowed are {', '.join(sorted(ALLOWED_UNDEFINED))}"
        )
    return data


def assembly(text: str, target: Target) -> str:
    """The native assembly of a module's text, for people."""
    module = optimised(text, target, kernel=True)
    return str(_machine(target, threading.get_ident()).emit_assembly(module))


def optimised(text: str, target: Target, kernel: bool, driver: bool = False) -> Any:
    """A module of its assembly text, after LLVM's passes (a driver: as it is); of a context of its
    own, so that other threads may work on other modules."""
    binding = llvm_binding()
    thread = threading.get_ident()
    machine, builder = _machine(target, thread), _pipeline(target, int(knobs.opt), thread)
    with spent("optimise"):
        module = None
        try:
            module = binding.parse_assembly(text, binding.create_context())
            module.verify()
        except RuntimeError as e:
            if module is not None:
                module.close()  # before its context, in whatever order both are collected
            raise CompileError(f"LLVM refuses generated code: {e}") from e
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        # A double that is narrowed to half needs the whole pipeline: without it x86 calls a
        # routine.
        if driver and knobs.opt != "3":
            return module
        if kernel and knobs.opt != "3" and "half" not in text:
            _tidy(module, builder)
        else:
            builder.getModulePassManager().run(module, builder)
    return module


def emit_object(module: Any, target: Target, driver: bool = False) -> bytes:
    """The object file of an optimised module, which is closed; a driver's without optimisation.

    llvmlite has one lock for all of LLVM, in which other threads would wait. LLVM needs none where
    contexts and machines differ, so this goes past it.
    """
    machine = _machine(target, threading.get_ident(), 0 if driver and knobs.opt != "3" else 2)
    emit, start, size, dispose = _unlocked()
    error = ctypes.c_char_p()
    with spent("emit"):
        buffer = emit(machine._ptr, module._ptr, 1, ctypes.byref(error))
    module.close()
    if not buffer:
        raise CompileError(f"LLVM makes no object: {(error.value or b'').decode()}")
    try:
        return ctypes.string_at(start(buffer), size(buffer))
    finally:
        dispose(buffer)


@lru_cache(maxsize=1)
def _unlocked() -> tuple[Any, Any, Any, Any]:
    """llvmlite's functions that emit an object and read a buffer, without its lock. Only the first
    lets other Python threads run: it alone takes long."""
    ffi = llvm_binding().ffi
    library, short = ctypes.CDLL(ffi.lib._name), ctypes.PyDLL(ffi.lib._name)
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    emit = library.LLVMPY_TargetMachineEmitToMemory
    emit.argtypes, emit.restype = [pointer, pointer, integer, pointer], pointer
    start, size = short.LLVMPY_GetBufferStart, short.LLVMPY_GetBufferSize
    start.argtypes, start.restype = [pointer], pointer
    size.argtypes, size.restype = [pointer], ctypes.c_size_t
    dispose = short.LLVMPY_DisposeMemoryBuffer
    dispose.argtypes, dispose.restype = [pointer], None
    return emit, start, size, dispose


def _tidy(module: Any, builder: Any) -> None:
    """The passes that a kernel needs: variables to registers, tests to the ends of loops.

    The generator hoists, shares, vectorises and unrolls by itself. LLVM's whole pipeline makes
    kernels 2 % faster in ten times the time (the digits training step of benchmarks/).
    """
    if knobs.opt == "0":
        return
    for function in module.functions:
        if function.is_declaration:
            continue
        manager = llvm_binding().create_new_function_pass_manager()
        manager.add_sroa_pass()
        manager.add_simplify_cfg_pass()
        manager.add_loop_simplify_pass()
        manager.add_lcssa_pass()
        manager.add_loop_rotate_pass()
        manager.add_simplify_cfg_pass()
        manager.run(function, builder)


@lru_cache(maxsize=16)
def _machine(target: Target, thread: int, level: int = 2) -> Any:
    return target.machine(level)


@lru_cache(maxsize=16)
def _pipeline(target: Target, level: int, thread: int) -> Any:
    binding = llvm_binding()
    options = binding.create_pipeline_tuning_options(speed_level=level)
    # Loops are vectorised where they are generated; LLVM's own vectorisers find nothing to do.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    return binding.create_pass_builder(_machine(target, thread), options)


def object_bytes(code: Generated, target: Target) -> bytes:
    """The object of a kernel, compiled if neither memory nor disk has it."""
    data = _find(object_key(code.key, target))
    if data is None:
        # What calls outside is no kernel: the pool, made once for a machine.
        data = compile_object(
            code.module_text, target, code.may_call, not code.may_call, code.driver
        )
        keep_object(code, target, data)
    return data


def has_object(code: Generated, target: Target) -> bool:
    """Whether the object of a kernel is in memory or on disk."""
    return _find(object_key(code.key, target)) is not None


def keep_object(code: Generated, target: Target, data: bytes) -> None:
    """Keeps an object that was compiled, in memory and on disk."""
    key = object_key(code.key, target)
    cache.put(key, data)
    _remember(key, data)


def _find(key: str) -> bytes | None:
    with _lock:
        data = _objects.get(key)
        if data is not None:
            _objects.move_to_end(key)
            return data
    data = cache.get(key)
    if data is not None:
        _remember(key, data)
    return data


def remember(objects: Mapping[str, bytes]) -> None:
    """Keeps objects, by what the cache calls them, in memory: an image came with them."""
    for key, data in objects.items():
        _remember(key, data)


def _remember(key: str, data: bytes) -> None:
    with _lock:
        _objects[key] = data
        while len(_objects) > _MAX_OBJECTS:
            _objects.popitem(last=False)


class _Loaded:
    """Objects in memory, loaded at once and linked to each other and to the routines that they
    call; unloaded when nothing refers to it."""

    def __init__(self, objects: Iterable[bytes], routines: Mapping[str, _Loaded]) -> None:
        binding = llvm_binding()
        self.routines = routines
        builder = binding.JITLibraryBuilder().add_current_process()
        for data in objects:
            builder.add_object_img(data)
            for symbol in defined_symbols(data):
                builder.export_symbol(symbol)
        for symbol, loaded in routines.items():
            builder.import_symbol(symbol, loaded.tracker[symbol])
        self.tracker: Any = builder.link(_jit(os.getpid()), f"jitgrad{next(_names)}")


@lru_cache(maxsize=1)
def _jit(pid: int) -> Any:
    """The linker; a forked child makes its own (what the parent loaded stays mapped)."""
    return llvm_binding().create_lljit_compiler(use_jit_link=True)


class Library:
    """Loaded kernels: addresses by key and symbol. The code stays while the Library lives."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._loaded: dict[str, _Loaded] = {}
        self._sizes: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    @classmethod
    def build(cls, codes: Iterable[Generated], target: Target) -> Library:
        """Compiles (or finds) and loads kernels, and their routines."""
        library = cls(target)
        parts = {part.key: part for code in codes for part in code.with_routines()}
        library._texts = {key: part.module_text for key, part in parts.items()}
        library._load({key: object_bytes(part, target) for key, part in parts.items()})
        return library

    def _load(self, objects: Mapping[str, bytes]) -> bool:
        """Loads objects, by key, and the routines that they call; False if one of those is not
        cached. What is not loaded yet is linked at once: that takes half the time."""
        waiting, new = dict(objects), dict[str, bytes]()
        calls: set[str] = set()
        with _lock:
            while waiting:
                key, data = waiting.popitem()
                self._sizes[key] = len(data)
                loaded = _loaded.get(object_key(key, self.target))
                if loaded is not None:
                    self._loaded[key] = loaded
                    continue
                new[key] = data
                for symbol in undefined_symbols(data):
                    if not symbol.startswith(ROUTINE):
                        continue
                    calls.add(symbol)
                    if symbol not in new and symbol not in waiting and symbol not in self._loaded:
                        found = _find(object_key(symbol, self.target))
                        if found is None:
                            return False
                        waiting[symbol] = found
            if new:
                routines = {symbol: self._loaded[symbol] for symbol in calls - set(new)}
                with spent("load"):
                    made = _Loaded(new.values(), routines)
                for key in new:
                    self._loaded[key] = _loaded[object_key(key, self.target)] = made
        return True

    def address(self, key: str, symbol: str) -> int:
        """The address of a kernel function."""
        return int(self._loaded[key].tracker[symbol])

    def objects(self) -> dict[str, bytes]:
        """The object files, by what the cache calls them; without those that it has let go of."""
        names = [object_key(key, self.target) for key in self._loaded]
        return {name: data for name in names if (data := _find(name)) is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the object code."""
        return sum(self._sizes.values())

    def assembly(self) -> str:
        """Native assembly of the kernels that were built here (not of those found by key)."""
        return "\n".join(assembly(text, self.target) for text in self._texts.values())


def load_objects(keys: Iterable[str], target: Target) -> Library | None:
    """Loads kernels by key; None if the object of any is not cached."""
    library = Library(target)
    found: dict[str, bytes] = {}
    for key in dict.fromkeys(keys):
        data = _find(object_key(key, target))
        if data is None:
            return None
        found[key] = data
    return library if library._load(found) else None


# -- object files ----------------------------------------------------------------------------------
def undefined_symbols(data: bytes) -> set[str]:
    """Names that an object needs from elsewhere. ELF64, Mach-O 64, COFF and WebAssembly."""
    return {name for name, defined in _symbols(data) if not defined and name}


def defined_symbols(data: bytes) -> list[str]:
    """Global functions and data that an ELF64 object defines."""
    return [name for name, defined in _symbols(data) if defined and name]


def _symbols(data: bytes) -> list[tuple[str, bool]]:
    """(name, defined) of the global symbols of an object."""
    if data[:4] == b"\x7fELF":
        return _elf_symbols(data)
    if data[:4] == b"\0asm":
        return _wasm_imports(data)
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return _macho_symbols(data)
    raise CompileError("the object format of this target is not known: symbols cannot be checked")


def _elf_symbols(data: bytes) -> list[tuple[str, bool]]:
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + k * size) for k in range(count)]
    out = []
    for kind, start, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 2:  # SHT_SYMTAB
            continue
        names = sections[link][4]
        for at in range(start + 24, start + length, 24):  # the first symbol is void
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            if info >> 4 in (1, 2):  # global, weak
                end = data.index(b"\0", names + name)
                out.append((data[names + name : end].decode(), section != 0))
    return out


def _macho_symbols(data: bytes) -> list[tuple[str, bool]]:
    count = struct.unpack_from("<I", data, 16)[0]
    at, out = 32, []
    for _ in range(count):
        command, length = struct.unpack_from("<II", data, at)
        if command == 2:  # LC_SYMTAB
            symbols, n, strings, _ = struct.unpack_from("<IIII", data, at + 8)
            for k in range(n):
                name, kind = struct.unpack_from("<IB", data, symbols + 16 * k)
                if kind & 1:  # external; names carry a leading underscore
                    end = data.index(b"\0", strings + name)
                    text = data[strings + name : end].decode().removeprefix("_")
                    out.append((text, kind & 0x0E != 0))
        at += length
    return out


def _wasm_imports(data: bytes) -> list[tuple[str, bool]]:
    def leb(at: int) -> tuple[int, int]:
        value, shift = 0, 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                return value, at

    def text(at: int) -> tuple[str, int]:
        n, at = leb(at)
        return data[at : at + n].decode(), at + n

    at, out = 8, []
    while at < len(data):
        section = data[at]
        length, at = leb(at + 1)
        end = at + length
        if section == 2:
            count, at = leb(at)
            for _ in range(count):
                _, at = text(at)
                name, at = text(at)
                kind = data[at]
                at += 1
                if kind == 0:
                    _, at = leb(at)
                    out.append((name, False))
                elif kind == 1:
                    flags, at = leb(at + 1)
                    _, at = leb(at)
                    at = leb(at)[1] if flags & 1 else at
                elif kind == 2:
                    flags, at = leb(at)
                    _, at = leb(at)
                    at = leb(at)[1] if flags & 1 else at
                else:
                    at += 2
        at = end
    return out
