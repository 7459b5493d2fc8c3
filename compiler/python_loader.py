"""The Python module that goes with a shared library: loads it with ctypes, needs NumPy only.

Owns the text, which stands by itself: it imports nothing of jitgrad, and has the source of the
checksum in it. `jitgrad.runtime.load` does more (errors say more, and it calls without ctypes).
"""

from __future__ import annotations

import inspect

from jitgrad.compiler.codegen.capi import Model, Port
from jitgrad.runtime import artifact_format as fmt

_TEMPLATE = '''\
"""@VERSION@

    import @MODULE@
    model = @MODULE@.load()          # @LIBRARY@, in this file's folder
    y = model(x)                     # NumPy arrays in and out; a tuple of several results

Needs Python and NumPy only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
import zlib
from typing import Any

import numpy as np

try:  # hashlib takes longer to import
    from _sha256 import sha256
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256

INPUTS = @INPUTS@
OUTPUTS = @OUTPUTS@
STATES = @STATES@
SIZES = @SIZES@
_PREFIX = "jg_@NAME@_"
_LIBRARY = "@LIBRARY@"
_WEIGHTS = @WEIGHTS@
_FAULT, _BAD_ARGUMENT = @FAULT@, @BAD_ARGUMENT@
_SEAL, _SEALED = @SEAL@, @SEALED@
PIECE, WORKERS = @PIECE@, @WORKERS@


def load(path=None, threads=1, weights=None, verify=True):
    """The model of a library; default: the one beside this file. threads: for each call, 1 to
    @THREADS@. weights: their file, of a library that keeps them in one; default: the one beside the
    library. verify: whether checksums are computed first (`strip` removes the library's).

    Raises TypeError or ValueError for another number of threads, OSError when a file cannot be
    opened, RuntimeError when one is truncated or altered, the file of weights is another library's,
    or the processor lacks what the code needs.
    """
    if not isinstance(threads, int) or isinstance(threads, bool):
        raise TypeError(f"[@NAME@] expected threads to be an int; got {threads!r}")
    if not 1 <= threads <= @THREADS@:
        raise ValueError(f"[@NAME@] expected 1 to @THREADS@ threads; got {threads}")
    path = path or os.path.join(os.path.dirname(os.path.abspath(__file__)), _LIBRARY)
    if _WEIGHTS and weights is None:
        weights = os.path.join(os.path.dirname(os.path.abspath(path)), _WEIGHTS)
    if _SEALED and verify:
        _verify(path)
    model = Model(path, threads, weights)
    if _WEIGHTS and verify:
        if checksum(model.weights[@HEAD@:]) != model.weights[@DIGEST@].tobytes():
            raise RuntimeError(f"{weights} was altered; copy or export it again")
    return model


def _verify(path):
    with open(path, "rb") as file:
        seal = b""
        if os.fstat(file.fileno()).st_size > @SEAL_BYTES@:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            start = len(data) - @SEAL_BYTES@
            seal = data[start:]
            with memoryview(data) as view, view[:start] as content:
                found = checksum(content) if seal[:8] == _SEAL else b""
            head = struct.pack("<8sQ", _SEAL, start)
    if not seal or seal != head + sha256(found + head).digest() + bytes(16):
        raise RuntimeError(f"{path} is no library that jitgrad wrote, or is truncated, altered or "
                           "stripped; copy or export it again")


@CHECKSUM@
def _dtype(name):
    return np.dtype({"bfloat16": "uint16"}.get(name, name))  # bfloat16: its bits


class Model:
    """Call it with one array for each of INPUTS, in order or by name, of that dtype and shape. A
    size that has a name may be any in its range of SIZES. Thread-safe."""

    def __init__(self, path, threads, weights=None):
        library = ctypes.CDLL(os.path.abspath(path))
        self.weights = None
        if _WEIGHTS:
            with open(weights, "rb") as file:
                self.weights = np.frombuffer(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            self._create = self._function(
                library, "create_with", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
                ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p))
        else:
            self._create = self._function(library, "create", ctypes.c_void_p, ctypes.c_int)
        self._destroy = self._function(library, "destroy", None, ctypes.c_void_p)
        self._run = self._function(library, "run", ctypes.c_int, *[ctypes.c_void_p] * 3)
        self._error = self._function(library, "last_error", ctypes.c_char_p, ctypes.c_void_p)
        status = self._function(library, "status", ctypes.c_char_p)()
        if status != b"ready":
            raise RuntimeError(f"{path}: {status.decode()}")
        if STATES:
            exchange = ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
            self._get_state = self._function(library, "get_state", *exchange)
            self._set_state = self._function(library, "set_state", *exchange)
        if SIZES:
            pointer = ctypes.POINTER(ctypes.c_int64)
            self._set_sizes = self._function(
                library, "set_sizes", ctypes.c_int, ctypes.c_void_p, pointer)
            self._output_shape = self._function(
                library, "output_shape", pointer, ctypes.c_void_p, ctypes.c_int)
        self._threads = threads
        self._idle = [self._new()]
        self._all = list(self._idle)
        self._lock = threading.Lock()  # of the one instance of a model with state

    def _function(self, library, name, result, *arguments):
        function = getattr(library, _PREFIX + name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _new(self):
        if self.weights is None:
            instance = self._create(self._threads)
            if not instance:
                raise MemoryError("[@NAME@] no memory for an instance")
        else:
            why, given = ctypes.c_char_p(), self.weights
            instance = self._create(self._threads, given.ctypes.data, given.nbytes, why)
            if not instance:
                raise RuntimeError(why.value.decode())
        return instance

    def __del__(self):
        for instance in getattr(self, "_all", []):
            self._destroy(instance)

    def __call__(self, /, *arrays, **named):
        names = [n for n, *_ in INPUTS]
        if named:
            odd = named.keys() ^ set(names[len(arrays):])
            if odd:
                raise TypeError(f"[@NAME@] expected inputs {', '.join(names)}, each once; missing, "
                                f"given twice or none of them: {', '.join(sorted(odd))}")
            arrays = (*arrays, *(named[n] for n in names[len(arrays):]))
        if len(arrays) != len(INPUTS):
            raise TypeError(f"[@NAME@] expected {len(INPUTS)} inputs "
                            f"({', '.join(names)}); got {len(arrays)}")
        sizes = {}
        given = [_checked(a, *port, sizes) for a, port in zip(arrays, INPUTS)]
        if STATES:
            with self._lock:
                results = self._call(self._idle[0], given, sizes)
        else:
            try:
                instance = self._idle.pop()
            except IndexError:
                instance = self._new()
                self._all.append(instance)
            try:
                results = self._call(instance, given, sizes)
            finally:
                self._idle.append(instance)
        return results[0] if len(results) == 1 else tuple(results)

    def _call(self, instance, given, sizes):
        shapes = [shape for _, _, shape in OUTPUTS]
        if SIZES:
            words = (ctypes.c_int64 * len(SIZES))(*[sizes[name] for name in SIZES])
            if self._set_sizes(instance, words):
                raise ValueError(f"[@NAME@] {self._error(instance).decode()}; got {sizes}")
            places = [self._output_shape(instance, i) for i in range(len(OUTPUTS))]
            shapes = [place[:len(shape)] for place, shape in zip(places, shapes)]
        results = [np.empty(shape, _dtype(p[1])) for shape, p in zip(shapes, OUTPUTS)]
        inputs = (ctypes.c_void_p * max(1, len(given)))(*[a.ctypes.data for a in given])
        outputs = (ctypes.c_void_p * max(1, len(results)))(*[a.ctypes.data for a in results])
        status = self._run(instance, inputs, outputs)
        if status in (_FAULT, _BAD_ARGUMENT):
            raise RuntimeError(f"[@NAME@] {self._error(instance).decode()}")
        if status:
            raise RuntimeError(f"[@NAME@] run returned status {status}")
        return results

    def get_state(self):
        """Copies of the state, by name."""
        found = {}
        for i, (name, dtype, shape) in enumerate(STATES):
            array = np.empty(shape, _dtype(dtype))
            with self._lock:
                self._get_state(self._idle[0], i, array.ctypes.data)
            found[name] = array
        return found

    def set_state(self, state):
        """Replaces state by name, with arrays, or numbers where NumPy makes its dtype of them.
        Raises KeyError, TypeError, ValueError for what does not fit; then nothing has changed."""
        if not isinstance(state, dict):
            kind = type(state).__name__
            raise TypeError(f"[@NAME@] expected a dict of arrays by name; got {kind}")
        numbers = {name: i for i, (name, *_) in enumerate(STATES)}
        for name in state:
            if name not in numbers:
                raise KeyError(f"[@NAME@] no state is called {name!r}; there is {[*numbers]}")
        checked = [(numbers[k], _checked(np.asarray(a), *STATES[numbers[k]]))
                   for k, a in state.items()]
        for i, array in checked:
            with self._lock:
                self._set_state(self._idle[0], i, array.ctypes.data)


def _checked(array, name, dtype, shape, sizes=None):
    if not isinstance(array, np.ndarray) or array.dtype != _dtype(dtype):
        got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"[@NAME@] expected {name} to be an array of {_dtype(dtype)}; got {got}")
    wanted = list(shape)
    if sizes is not None and len(array.shape) == len(shape):
        wanted = [sizes.setdefault(n, k) if isinstance(n, str) else n
                  for n, k in zip(shape, array.shape)]
    if list(array.shape) != wanted:
        where = f", where {sizes}" if sizes else ""
        raise ValueError(f"[@NAME@] expected {name} to have shape {list(shape)}{where}; got "
                         f"{list(array.shape)}")
    return np.require(array, requirements=["C", "ALIGNED"])
'''


def python_loader(model: Model, module: str, library: str, sealed: bool) -> str:
    """The text of the module `module` for a library file. sealed: whether that ends with a seal."""

    def describe(ports: list[Port]) -> str:
        rows = [f"    ({p.name!r}, {p.dtype!r}, {p.labels})," for p in ports]
        return "[\n" + "\n".join(rows) + "\n]" if rows else "[]"

    fill = {
        "VERSION": model.version, "MODULE": module, "LIBRARY": library, "NAME": model.name,
        "WEIGHTS": repr(model.weights_file or None), "HEAD": str(fmt.WEIGHTS_HEAD),
        "DIGEST": f"{fmt.WEIGHTS_DIGEST.start}:{fmt.WEIGHTS_DIGEST.stop}",
        "INPUTS": describe([p for _, p in model.inputs]),
        "OUTPUTS": describe([p for _, p in model.outputs]), "STATES": describe(model.own),
        "SIZES": repr({s.name: (s.low, s.high) for s in model.sizes}),
        "THREADS": str(fmt.MAX_THREADS),
        "FAULT": str(fmt.FAULT), "BAD_ARGUMENT": str(fmt.BAD_ARGUMENT),
        "SEAL": repr(fmt.SEAL_MAGIC), "SEALED": repr(sealed), "SEAL_BYTES": str(fmt.SEAL_BYTES),
        "PIECE": str(fmt.PIECE), "WORKERS": str(fmt.WORKERS),
        "CHECKSUM": inspect.getsource(fmt.checksum),
    }  # fmt: skip
    text = _TEMPLATE
    for key, value in fill.items():
        text = text.replace(f"@{key}@", value)
    return text
