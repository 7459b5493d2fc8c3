"""Effects: whose code runs, and which calls are pure.

Owns the classes of code (ours, the standard library's, NumPy's, the user's) and the tables of pure
and impure C functions. `Profile` watches one recorded call; what it finds goes to the watch
(watch.py) or ends the recording. What code reads: reads.py.
"""

from __future__ import annotations

import array
import collections
import copyreg
import importlib.util
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from jitgrad import random as jitgrad_random
from jitgrad.autograd import engine, hooks
from jitgrad.backends.cuda import SDP_FLAGS
from jitgrad.cuda import is_current_stream_capturing as is_capturing
from jitgrad.cuda import memory, streams, synchronize
from jitgrad.hostscalar import make_plain
from jitgrad.reads import reads_of
from jitgrad.runtime.userline import FOLDERS, resolved
from jitgrad.settings import THREADS
from jitgrad.state import set_default_dtype

# -- whose code ----------------------------------------------------------------------------------
_STDLIB = str(Path(sysconfig.get_paths()["stdlib"]).resolve())
_NUMPY = str(Path(np.__file__).resolve().parent)


_COMPILERS = ("numba", "numba_cuda", "llvmlite", "cuda")
"""Packages that eager code on a GPU runs: they are as NumPy is."""


@cache
def owner_of(filename: str) -> str:
    """Whose code a file holds: "jitgrad", "stdlib", "numpy" (or compilers) or "user"."""
    if filename.startswith("<frozen"):
        return "stdlib"
    if filename.startswith("<"):
        return "user"
    path = resolved(filename)
    if path.startswith(tuple(f + "/" for f in FOLDERS)):
        return "jitgrad"
    if path.startswith(_NUMPY + "/") or any(f"site-packages/{c}/" in path for c in _COMPILERS):
        return "numpy"
    if path.startswith(_STDLIB + "/") and "site-packages" not in path:
        return "stdlib"
    return "user"


@cache
def attribute_names(cls: Any) -> frozenset[str]:
    """The attributes that the methods of a class of jitgrad (and of its bases there) name."""
    found: set[str] = set()
    for c in cls.__mro__:
        if owner_of_class(c) != "jitgrad":
            continue
        for value in list(vars(c).values()):
            stack = [getattr(value, "__func__", None) or getattr(value, "fget", None) or value]
            while stack:
                f = stack.pop()
                inner = getattr(f, "__wrapped__", None)
                if inner is not None:
                    stack.append(inner)
                code = f if isinstance(f, CodeType) else getattr(f, "__code__", None)
                if isinstance(code, CodeType):
                    found.update(code.co_names)
                    stack.extend(k for k in code.co_consts if isinstance(k, CodeType))
    return frozenset(found)


def owner_of_frame(frame: FrameType) -> str:
    """Whose code runs; code made by exec (a dataclass's methods) is its module's."""
    filename = frame.f_code.co_filename
    if filename.startswith("<") and not filename.startswith("<frozen"):
        return _owner_of_module(frame.f_globals.get("__name__", "__main__"))
    return owner_of(filename)


@cache
def _owner_of_module(name: str) -> str:
    root = name.partition(".")[0]
    if root == "jitgrad" or root == "numpy":
        return root
    return "stdlib" if root in _STDLIB_NAMES else "user"


def owner_of_class(cls: type) -> str:
    """Whose a class is, as owner_of says."""
    return _owner_of_module(getattr(cls, "__module__", None) or "builtins")


@cache
def _is_module_class(cls: Any) -> bool:
    return any(c.__name__ == "Module" and c.__module__ == "jitgrad.nn.module" for c in cls.__mro__)


def is_module(x: Any) -> bool:
    """Whether x is an nn.Module (asked by name: jit does not import jitgrad.nn)."""
    cls: Any = type(x)
    return _is_module_class(cls)


def owner_of_module(module: ModuleType) -> str:
    """Whose a module is, as owner_of says."""
    return _owner_of_module(module.__name__)


_STDLIB_NAMES = frozenset(sys.stdlib_module_names) - {"__main__"}


# -- which calls are pure ------------------------------------------------------------------------
_IMPURE_BUILTINS = {
    "print", "input", "open", "exec", "eval", "compile", "__import__", "breakpoint",
    "globals", "locals", "aiter", "anext",
}  # fmt: skip
_PURE_MODULES = {
    "math", "cmath", "_operator", "operator", "_functools", "_collections", "_bisect", "_heapq",
    "itertools", "_struct", "_abc", "_statistics", "unicodedata", "binascii", "zlib", "numpy",
    "numpy.core._multiarray_umath", "numpy._core._multiarray_umath", "_weakref", "_thread_local",
    "_typing", "_copy",
}  # fmt: skip
_IMPURE_MODULES = {
    "time", "random", "_random", "posix", "nt", "io", "_io", "_socket", "select", "mmap", "_uuid",
    "secrets", "signal", "_asyncio", "fcntl", "readline", "termios", "_posixsubprocess",
}  # fmt: skip
_PURE_SELF: tuple[type, ...] = (
    list, tuple, dict, set, frozenset, str, bytes, bytearray, int, float, complex, bool, slice,
    range, type, np.ndarray, np.generic, np.ufunc, np.dtype, type(None), type({}.keys()),
    type({}.values()), type({}.items()),
)  # fmt: skip
_PURE_OWNERS = ("collections", "functools", "itertools", "re")
_IMPURE_ARRAY = {"fill", "sort", "put", "itemset", "resize", "partition", "setfield", "setflags",
                 "tofile", "dump", "byteswap"}  # fmt: skip


# C modules of other names than users import, and what is pure in modules that are not.
_PUBLIC = {
    "posix": "os", "nt": "os", "posixpath": "os.path", "ntpath": "os.path", "_io": "io",
    "_random": "random", "_operator": "operator", "_socket": "socket", "_thread": "threading",
    "_uuid": "uuid", "_asyncio": "asyncio", "genericpath": "os.path", "pathlib._local": "pathlib",
}  # fmt: skip
_PURE_CALLS = {("posix", "fspath"), ("nt", "fspath")}


def public_name(module: str, name: str) -> str:
    """What users call a function of a module."""
    return f"{_PUBLIC.get(module, module)}.{name}"


def called_by_user(frame: FrameType) -> str:
    """The library's function that the user's code called, under which a frame runs; "" for none."""
    name = ""
    walk: FrameType | None = frame
    while walk is not None and owner_of_frame(walk) != "user":
        code = walk.f_code
        name = public_name(walk.f_globals.get("__name__", "?"), code.co_qualname)
        walk = walk.f_back
    return name


def impure_call(function: Any, caller: str) -> str:
    """Why a call of a C function from `caller`'s code is no pure one; "" where it is."""
    name = getattr(function, "__name__", repr(function))
    own = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or ""
    if own is None or isinstance(own, ModuleType):
        module = module or (own.__name__ if own is not None else "")
        if module == "builtins":
            if name in _IMPURE_BUILTINS:
                return f"calls {name}()"
            return ""
        if (module, name) in _PURE_CALLS:
            return ""
        if module in _IMPURE_MODULES or (module == "_thread" and "start" in name):
            return f"calls {public_name(module, name)}()"
        if caller != "user" or module in _PURE_MODULES or module.startswith("numpy"):
            return ""
        return f"calls {public_name(module or '?', name)}(), which is not known to be pure"
    kind = own if isinstance(own, type) else type(own)
    if is_random(own):
        return f"calls {name}() of {type(own).__name__}, a random generator jit does not follow"
    owner = getattr(kind, "__module__", "")
    if owner in _IMPURE_MODULES:
        return f"calls {name}() of {kind.__name__}"
    if isinstance(own, np.ndarray) and name in _IMPURE_ARRAY:
        return f"changes a NumPy array in place ({name})"
    if caller != "user" or issubclass(kind, _PURE_SELF) or owner in _PURE_OWNERS:
        return ""
    if isinstance(own, type) and name in ("fromkeys", "__new__", "__subclasses__", "mro"):
        return ""
    return f"calls {name}() of {kind.__name__}, which is not known to be pure"


def is_random(x: Any) -> bool:
    """Whether x is a random generator of Python's or of NumPy's."""
    kind = type(x)
    module = getattr(kind, "__module__", "")
    return module.startswith("numpy.random") or any(c.__module__ == "_random" for c in kind.__mro__)


# Standard-library objects that hold contents which code of theirs, or C code, reads.
_UNGUARDED: tuple[Any, ...] = (
    collections.UserDict, collections.UserList, collections.ChainMap,
    MappingProxyType, weakref.ref, array.array, bytearray, memoryview, type({}.keys()),
    type({}.values()), type({}.items()),
)  # fmt: skip


def impure_value(x: Any) -> str:
    """Why a function that reaches this object is not pure; "" for most objects.

    For what shows no call to a profiler: NumPy's random functions, and iterators.
    """
    if owner_of_class(type(x)) == "user" and not isinstance(
        x, _UNGUARDED
    ):  # whose attributes may be computed
        if hasattr(type(x), "__next__"):
            return f"reaches an iterator ({type(x).__name__}), whose position changes"
        return ""
    own = None if isinstance(x, ModuleType) else getattr(x, "__self__", None)
    places = (
        getattr(type(x), "__module__", ""),
        getattr(type(own), "__module__", ""),
        x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", ""),
    )
    if any(isinstance(p, str) and p.startswith("numpy.random") for p in places):
        name = getattr(x, "__name__", type(x).__name__).removeprefix("numpy.")
        return f"uses numpy.random ({name}); use jitgrad's random functions"
    if isinstance(x, _UNGUARDED):
        return (
            f"reaches a {type(x).__name__}, whose contents cannot be guarded; use a dict, a list "
            "or a tensor, or pass what it needs as an argument"
        )
    for it in (x, own):  # own: of a bound __next__
        if hasattr(type(it), "__next__") and not isinstance(it, type):
            return f"reaches an iterator ({type(it).__name__}), whose position changes"
    return ""


_LIBRARY_EFFECTS: dict[CodeType, str] = {
    jitgrad_random.Generator.manual_seed.__code__: "seeds a random generator",
    jitgrad_random.Generator.set_state.__code__: "sets the state of a random generator",
    **dict.fromkeys(
        (getattr(f, "fget", f).__code__ for f in jitgrad_random.READS),
        "reads the state of a random generator",
    ),
    set_default_dtype.__code__: "sets the default dtype",
    **{
        f.__code__: f"calls {f.__qualname__.replace('._', '.')}()"
        for f in (
            *THREADS,
            *streams.EFFECTS,
            *memory.EFFECTS,
            is_capturing,
            synchronize,
            *SDP_FLAGS,
        )
    },
    hooks.register_hook.__code__: "registers a hook",
    hooks.register_post_accumulate_grad_hook.__code__: "registers a hook",
    hooks.retain_grad.__code__: "calls retain_grad()",
}
# Reads that show in the standard library's own code only.
_NEW_OBJECT: CodeType = copyreg.__newobj__.__code__  # type: ignore[attr-defined]
_VARIABLE: CodeType = type(os.environ).__getitem__.__code__
_ENVIRONMENT = {type(os.environ).__iter__.__code__, type(os.environ).__len__.__code__}
# Modules of the standard library that do nothing with arguments but pass them on (an Enum's member
# reads its own value; watch.py knows).
_PASSES_ON = {"abc", "contextlib", "enum", "functools", "types", "typing"}
# What weak containers run when something of theirs dies, wherever that happens.
_CALLBACKS = {("weakref", "remove"), ("_weakrefset", "_remove")}
_IMPORTLIB, _IMPORT = "<frozen importlib._bootstrap>", "_find_and_load"
_FIND_SPEC: CodeType = importlib.util.find_spec.__code__
_RUN_NODE: CodeType = engine._run_node.__code__

# Code of ours in which nothing need be seen, by id (hashing a code object takes a microsecond).
_quiet: dict[int, CodeType] = {}


class Profile:
    """A profile function (sys.setprofile) for one recorded call.

    entered: told of each frame of the user's that is entered; gives whether its arguments are to be
    plain numbers. library: of the standard library's and NumPy's code that the user's calls.
    imported: of each module that was imported, or looked for, by name, and whether it was loaded
    now. identities: that id() was called. appended: of each list that is appended to. variable: of
    each one of the environment that is read. made: of each object that copy or pickle made. impure:
    of each effect, with the user's line. first_node: tape nodes with smaller numbers are older than
    the recording.

    Attributes: threads, whether threads were started.
    """

    def __init__(
        self,
        entered: Callable[[FrameType], bool],
        impure: Callable[[str, str], None],
        foreign: Callable[[str, str], None],
        imported: Callable[[str, bool], None],
        library: Callable[[CodeType], None],
        identities: Callable[[], None],
        appended: Callable[[list[Any]], None],
        variable: Callable[[str], None],
        made: Callable[[Any], None],
        first_node: int,
    ) -> None:
        self._entered = entered
        self._imported = imported
        self._library = library
        self._identities = identities
        self._appended = appended
        self._variable = variable
        self._made = made
        self._impure = impure
        self._foreign = foreign
        self._first_node = first_node
        self._importing = 0
        self._finding = 0
        self._loaded = False
        self.threads = False

    def function(self) -> Callable[[FrameType, str, Any], None]:
        """What sys.setprofile takes. Most events come from our own code, and end here."""
        quiet, see = _quiet, self._see

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            if id(frame.f_code) not in quiet:
                see(frame, event, arg)

        return profile

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "return":
            if frame.f_code is _NEW_OBJECT and arg is not None:
                self._made(arg)
            if frame.f_code.co_filename == _IMPORTLIB and frame.f_code.co_name == _IMPORT:
                self._importing -= 1
                if not self._importing:
                    self._imported(frame.f_locals["name"], not self._loaded)
            elif frame.f_code is _FIND_SPEC and not self._importing:
                self._finding -= 1
                name = frame.f_locals.get("fullname")
                if not self._finding and isinstance(name, str):
                    self._imported(name, False)
            return
        if event == "call":
            code = frame.f_code
            if code.co_filename == _IMPORTLIB and code.co_name == _IMPORT:
                if not self._importing:
                    self._loaded = frame.f_locals["name"] in sys.modules
                self._importing += 1
            elif code is _FIND_SPEC and not self._importing:
                self._finding += 1
            if self._importing or self._finding:
                return  # what modules and finders do on an import, they do once in any case
            owner = owner_of_frame(frame)
            if owner == "user":
                if code.co_name != "<module>":
                    outlives = self._entered(frame)
                    typed = {""} if outlives else reads_of(code).typed
                    if typed:
                        make_plain(frame, None if "" in typed else typed)
            elif owner == "jitgrad":
                if code is _RUN_NODE:
                    if frame.f_locals["node"].seq < self._first_node:
                        self._foreign(
                            "differentiates through operations made before the call", _line(frame)
                        )
                elif code in _LIBRARY_EFFECTS:
                    self._impure(_LIBRARY_EFFECTS[code], _line(frame))
                else:
                    _quiet[id(code)] = code
            else:
                if _is_callback(frame):
                    return
                if frame.f_globals.get("__name__") not in _PASSES_ON and not _for_us(frame):
                    make_plain(frame, None)
                    self._library(code)
                if code is _VARIABLE and not _for_us(frame):
                    self._variable(frame.f_locals["key"])
                elif code in _ENVIRONMENT and not _for_us(frame):
                    self._impure("reads the environment (os.environ)", _line(frame))
        elif event == "c_call" and not self._importing and not self._finding:
            owner = owner_of_frame(frame)
            if arg is id and owner == "user":
                self._identities()
            if type(getattr(arg, "__self__", None)) is list and arg.__name__ == "append":
                self._appended(arg.__self__)
            if arg is __import__ and owner == "user" and self._imports(frame):
                return
            if owner != "jitgrad" and not _is_callback(frame):
                reason = impure_call(arg, owner)
                if reason and not _for_us(frame):
                    if reason.startswith("calls threading."):
                        self.threads = True
                    through = called_by_user(frame)
                    self._impure(f"calls {through}(), which {reason}" if through else reason,
                                 _line(frame))  # fmt: skip

    def _imports(self, frame: FrameType) -> bool:
        """Tells of the modules that code may be about to import by `__import__`. Gives whether it
        is known which ones these are."""
        variables = reads_of(frame.f_code).by_name
        if variables is None or "" in variables:
            return False
        for name in map(frame.f_locals.get, variables):
            if isinstance(name, str) and name in sys.modules:  # else the import itself tells
                self._imported(name, False)
        return True


def _is_callback(frame: FrameType) -> bool:
    """Whether a weak container is told that something of its died: nothing that the user does."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CALLBACKS


def _for_us(frame: FrameType | None) -> bool:
    """Whether jitgrad's code called this (code of the standard library or NumPy)."""
    while frame is not None:
        owner = owner_of_frame(frame)
        if owner in ("jitgrad", "user"):
            return owner == "jitgrad"
        frame = frame.f_back
    return False


def typed_caller() -> bool:
    """Whether the user's code that is running asks for the type() of values."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of_frame(frame) != "user":
        frame = frame.f_back
    return frame is not None and typed(frame)


def typed(frame: FrameType) -> bool:
    """Whether a frame is the user's, and its code asks for the type() of values."""
    return owner_of_frame(frame) == "user" and bool(reads_of(frame.f_code).typed)


def _line(frame: FrameType | None) -> str:
    while frame is not None and owner_of_frame(frame) != "user":
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
