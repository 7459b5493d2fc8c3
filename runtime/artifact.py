"""Runs an exported library from Python, with NumPy and nothing else: `load(path)`.

Owns the checks of arguments, and the instances that calls borrow. Files are artifact_file.py's; the
words shared with the library are in artifact_format.py.

One instance runs one call at a time. A model keeps idle instances and makes another when all are
taken, so that calls from several threads never wait for each other; a warm call allocates its
outputs only. Libraries stay loaded until the process ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitgrad.runtime import abi, buffers, dtypes, threads
from jitgrad.runtime import artifact_format as fmt
from jitgrad.runtime.artifact_file import (
    after_fork_in_child,
    check_elf,
    map_weights,
    open_library,
    read_file,
)
from jitgrad.runtime.by_name import in_order
from jitgrad.runtime.errors import ArtifactError, counted

if TYPE_CHECKING:  # importing it takes a millisecond
    from numpy.typing import NDArray

_MAX_IDLE = 8
_MAX_KNOWN = 1024  # sizes whose results' shapes are kept

_Address = ctypes.c_void_p


class Port(NamedTuple):
    """An input or output of a model: `name`, `dtype` (its name), `shape`, in which a size that may
    differ from call to call is its name or formula."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def fixed(self) -> tuple[int, ...]:
        """The shape, of a port all of whose sizes are numbers."""
        return tuple([int(d) for d in self.shape])

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Model:
    """Loads a library that `jitgrad.export(...).native("lib.so")` wrote.

    threads: how many threads a call may use, at least 1; None: as many as the process may.
    weights: the file of a library that keeps its weights in one; default: in the library's folder,
    under the name that it was written with. It is mapped, not read. verify: whether its checksum is
    computed, for which all of it is read; its size, and that it is this library's, are checked
    anyway.

    Needs neither the compiler nor the model's source. Raises FileNotFoundError or
    IsADirectoryError for a path that is no file; ArtifactError when the file is no such library,
    is altered, truncated, of another format version, for another machine, or needs processor
    features that are not here. A file is opened as a library only after its checksum was found
    right, so a damaged one cannot crash. The checksum is no signature: load only what you trust.
    """
    count = _thread_count(threads)
    path = os.path.abspath(os.fspath(path))
    data = read_file(path)
    check_elf(data, path)
    digest = fmt.check_seal(data, path)
    library = open_library(path, digest, data)
    functions = _functions(library, path)
    functions.weights = map_weights(functions.info, path, weights, verify)
    return Model(path, functions, count)


class Model:
    """A loaded model. Call it with NumPy arrays; see `__call__`.

    Attributes: `name`; `inputs` and `outputs`, tuples of Port; `sizes`, the range of each size that
    may differ from call to call, by name; `threads`; `info`, what the library says of itself
    (target, features, bytes); `path`.
    """

    def __init__(self, path: str, functions: _Functions, threads: int) -> None:
        self.path, self._functions = path, functions
        self.info = functions.info
        self.name: str = self.info["name"]
        self.inputs, self.outputs = functions.inputs, functions.outputs
        self.threads = min(threads, int(self.info["threads"]))
        self.sizes = functions.sizes
        self._expected = tuple((dtypes.BY_NAME[p.dtype].np, p.shape) for p in self.inputs)
        self._known: dict[tuple[int, ...], _Results] = {}  # by sizes
        if not self.sizes:
            self._fixed = _Results([p.fixed for p in self.outputs], self.outputs)
        self._count = len(self.inputs)
        self._single = len(self.outputs) == 1
        self.states = functions.states
        self._before_fork: list[_Instance] = []
        self._one = threading.Lock() if self.states else None  # of an instance that has state
        self._idle: list[_Instance] = [_Instance(self)]
        self._out_is_input = any(p.name == "out" for p in self.inputs)
        _models.add(self)

    def __call__(
        self,
        /,
        *arrays: NDArray[Any],
        out: NDArray[Any] | Sequence[NDArray[Any]] | None = None,
        **named: NDArray[Any],
    ) -> Any:
        """Runs the model on one array for each of `inputs`, in order or by name, of its very dtype
        and shape. Sizes of one name must be equal, and lie in their range.

        Arrays that are not dense row-major are copied first; others are read where they are.
        Returns an array, or a tuple of arrays when the model has several outputs (or none). out:
        arrays to write to instead of fresh ones: dense, writable, overlapping nothing; of a model
        with an input that is called so, that input.

        Raises TypeError and ValueError for arguments that do not fit, naming the input;
        RuntimeError when the model found bad values (such as an index out of range).
        """
        by_name: dict[str, Any] = named
        if out is not None and self._out_is_input:
            by_name, out = {**named, "out": out}, None
        if by_name:
            arrays = in_order(self.name, [p.name for p in self.inputs], arrays, by_name)
        if len(arrays) != self._count:
            raise self._wrong_count(arrays)
        if self.sizes:
            return self._call_sized(arrays, out)
        for array, (dtype, shape) in zip(arrays, self._expected):
            if (
                type(array) is not np.ndarray
                or array.dtype is not dtype
                or array.shape != shape
                or not (flags := array.flags).c_contiguous
                or not flags.aligned
            ):
                arrays = tuple([self._fit(i, x) for i, x in enumerate(arrays)])
                break
        fixed = self._fixed
        if out is not None:
            results = self._own_out(out, arrays, fixed) or self._check_out(out, arrays, fixed)
        elif self._single:
            results = [fixed.makers[0]()]
        else:
            results = [make() for make in fixed.makers]
        if self._one is not None:
            with self._one:
                return self._step(arrays, results)
        try:
            instance = self._idle.pop()
        except IndexError:
            instance = _Instance(self)
        status = instance.call(*arrays, *results)
        if status:
            self._fail(instance, status)
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(instance)
        return results[0] if self._single else tuple(results)

    # -- sizes --------------------------------------------------------------------------------
    def _call_sized(self, arrays: Sequence[NDArray[Any]], out: Any) -> Any:
        """A call of a model with symbolic sizes, which the arrays show."""
        sizes: dict[str, int] = {}
        arrays = [self._fit(i, x, sizes) for i, x in enumerate(arrays)]
        key = tuple([sizes[name] for name in self.sizes])
        for name, size in sizes.items():
            low, high = self.sizes[name]
            if not low <= size <= high:
                do = f"export the model with another range of Dim({name!r})"
                if size == 0 and low == 1:
                    do = f"export the model with Dim({name!r}, min=0, max={high}) for 0"
                raise ValueError(
                    f"[{self.name}] expected {name} to be {low} to {high}; got {size}; {do}"
                )
        try:
            instance = self._idle.pop()
        except IndexError:
            instance = _Instance(self)
        if instance.sizes != key:
            self._set_sizes(instance, key)
        known = self._known.get(key)
        if known is None:
            known = self._learn(instance, key)
        try:
            results = [m() for m in known.makers] if out is None else self._check_out(
                out, arrays, known
            )  # fmt: skip
            status = instance.call(*arrays, *results)
        except BaseException:
            self._idle.append(instance)
            raise
        if status:
            self._fail(instance, status)
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(instance)
        return results[0] if self._single else tuple(results)

    def _set_sizes(self, instance: _Instance, key: tuple[int, ...]) -> None:
        words = np.array(key, np.int64)
        instance.sizes = ()
        if self._functions.set_sizes(instance.handle, buffers.address(words)):
            text = (self._functions.last_error(instance.handle) or b"").decode(errors="replace")
            self._idle.append(instance)
            got = ", ".join(f"{n} = {k}" for n, k in zip(self.sizes, key, strict=True))
            raise ValueError(f"[{self.name}] {text}; got {got}")
        instance.sizes = key

    def _learn(self, instance: _Instance, key: tuple[int, ...]) -> _Results:
        """The shapes of the results for these sizes, which the instance has."""
        shapes = []
        for i, port in enumerate(self.outputs):
            place = self._functions.output_shape(instance.handle, i)
            shapes.append(tuple((ctypes.c_int64 * len(port.shape)).from_address(place)))
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = _Results(shapes, self.outputs)
        return self._known[key]

    def _wrong_count(self, arrays: Sequence[Any]) -> TypeError:
        names = ", ".join(map(str, self.inputs)) or "none"
        given = [_describe(a) if isinstance(a, np.ndarray) else type(a).__name__ for a in arrays]
        return TypeError(
            f"[{self.name}] expected {self._count} inputs ({names}); got {len(arrays)}: "
            + counted([p.name for p in self.inputs], given)
        )

    def _fit(self, index: int, array: Any, sizes: dict[str, int] | None = None) -> NDArray[Any]:
        """The argument as a dense array of the right type; raises where it has another type.
        sizes: collects the symbolic ones, which must be the same wherever they stand."""
        port = self.inputs[index]
        dtype, shape = self._expected[index]
        what = f"[{self.name}] expected input {index} ({port})"
        if not isinstance(array, (np.ndarray, np.generic)):
            raise TypeError(
                f"{what} as a NumPy array; got {type(array).__name__}; convert it with "
                f"np.asarray(x, {port.dtype!r})"
            )
        array = np.asarray(array)
        if array.dtype != dtype:
            raise TypeError(
                f"{what}; got dtype {_describe(array)}; convert it with .astype({port.dtype!r})"
            )
        if sizes is not None and len(array.shape) == len(shape):
            found = zip(shape, array.shape, strict=True)
            shape = tuple([sizes.setdefault(n, k) if isinstance(n, str) else n for n, k in found])
        if array.shape != shape:
            if sizes:
                known = ", ".join(f"{n} = {k}" for n, k in sizes.items())
                raise ValueError(f"{what}, where {known}; got {_describe(array)}")
            raise ValueError(
                f"{what}; got {_describe(array)}; the library was compiled for this shape: reshape "
                "or pad the array, or export the model for the other shape"
            )
        return np.require(array, requirements=["C", "ALIGNED"])

    @staticmethod
    def _own_out(
        out: Any, arrays: Sequence[NDArray[Any]], results: _Results
    ) -> list[NDArray[Any]] | None:
        """The result that is given, if it is the only one and is seen at once to fit: arrays that
        have memory of their own overlap nothing."""
        if type(out) is not np.ndarray or len(results.types) != 1:
            return None
        ((shape, dtype),) = results.types
        flags = out.flags
        if (
            out.dtype is not dtype
            or out.shape != shape
            or not (flags.owndata and flags.c_contiguous and flags.aligned and flags.writeable)
        ):
            return None
        for x in arrays:
            if x is out or not x.flags.owndata:
                return None
        return [out]

    def _check_out(
        self, out: Any, arrays: Sequence[NDArray[Any]], results: _Results
    ) -> list[NDArray[Any]]:
        given = [out] if isinstance(out, np.ndarray) else list(out)
        if len(given) != len(self.outputs):
            raise TypeError(
                f"[{self.name}] expected {len(self.outputs)} arrays as out; got {len(given)}"
            )
        spans = [(a := buffers.address(x), a + x.nbytes) for x in arrays]
        for index, (array, (shape, dtype)) in enumerate(zip(given, results.types)):
            problem = _problem(array, shape, dtype, spans)
            if problem is not None:
                port = self.outputs[index]
                problem.args = (f"[{self.name}] expected out {index} ({port}) {problem}",)
                raise problem
            if index + 1 < len(given):
                start = buffers.address(array)
                spans.append((start, start + array.nbytes))
        return [x if type(x) is np.ndarray else x.view(np.ndarray) for x in given]

    # -- state --------------------------------------------------------------------------------
    def _step(self, arrays: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> Any:
        """A call of the one instance that holds the state."""
        instance = self._holder()
        status = instance.call(*arrays, *results)
        if status:
            self._idle = []
            self._fail(instance, status)
        return results[0] if self._single else tuple(results)

    def _holder(self) -> _Instance:
        """The instance with the state; in a forked child a new one, with the state as it was."""
        if not self._idle:
            instance, before = _Instance(self), self._before_fork
            for i, port in enumerate(self.states):
                array = np.empty(port.fixed, dtypes.BY_NAME[port.dtype].np)
                place = buffers.address(array)
                if self._functions.get_state(before[0].handle, i, place):
                    raise RuntimeError(f"[{self.name}] the process forked in the middle of a step")
                self._functions.set_state(instance.handle, i, place)
            self._idle = [instance]
        return self._idle[0]

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of the state, by name; {} for a model whose calls change nothing."""
        found = {}
        for i, port in enumerate(self.states):
            array = np.empty(port.fixed, dtypes.BY_NAME[port.dtype].np)
            self._exchange(self._functions.get_state, i, array)
            found[port.name] = array
        return found

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replaces state by name. Raises KeyError for a name that is none, TypeError or ValueError
        for an array of another dtype or shape; then nothing has changed."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"[{self.name}] expected a dict of arrays by name; got {type(state).__name__}"
            )
        numbers = {port.name: i for i, port in enumerate(self.states)}
        checked = []
        for name, array in state.items():
            if name not in numbers:
                raise KeyError(f"[{self.name}] no state is called {name!r}; there is {[*numbers]}")
            port = self.states[numbers[name]]
            dtype = dtypes.BY_NAME[port.dtype].np
            problem = _problem(np.array(array, order="C"), port.fixed, dtype, ())
            if problem is not None:
                problem.args = (f"[{self.name}] expected state {name!r} ({port}) {problem}",)
                raise problem
            checked.append((numbers[name], np.array(array, order="C")))
        for i, array in checked:
            self._exchange(self._functions.set_state, i, array)

    def _exchange(self, function: Callable[..., int], i: int, array: NDArray[Any]) -> None:
        assert self._one is not None
        with self._one:
            status = function(self._holder().handle, i, buffers.address(array))
        if status:
            raise RuntimeError(f"[{self.name}] state {i}: status {status}")

    def _fail(self, instance: _Instance, status: int) -> None:
        text = (self._functions.last_error(instance.handle) or b"").decode(errors="replace")
        instance.words[abi.CALL_BUSY] = 0
        self._idle.append(instance)
        if status == fmt.FAULT:
            raise RuntimeError(f"[{self.name}] {text or 'the model found bad values'}")
        raise RuntimeError(f"[{self.name}] run returned status {status}: {text}")

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        signature = f"({inputs}) -> ({outputs})"
        return f"<jitgrad.runtime.Model {self.name}: {signature}; threads: {self.threads}>"


class _Results:
    """The types of a call's results, and what makes arrays for them."""

    __slots__ = ("makers", "types")

    def __init__(self, shapes: Sequence[tuple[int, ...]], ports: Sequence[Port]) -> None:
        kinds = [dtypes.BY_NAME[p.dtype].np for p in ports]
        self.types = tuple(zip(shapes, kinds, strict=True))
        self.makers = tuple(buffers.array_maker(shape, dtype) for shape, dtype in self.types)


class _Instance:
    """What one call in flight has for itself: an instance of the library, a table of pointers, and
    the sizes that it was told last."""

    __slots__ = ("call", "destroy", "handle", "pid", "sizes", "words")

    def __init__(self, model: Model) -> None:
        functions = model._functions
        self.sizes: tuple[int, ...] = ()
        self.pid, self.handle, self.destroy = os.getpid(), 0, functions.destroy
        self.handle = functions.create(model.threads) or 0
        if not self.handle:
            raise MemoryError(
                f"[{model.name}] no memory for an instance "
                f"({functions.info['arena_bytes']} bytes of temporaries)"
            )
        n_inputs, n_arrays = len(model.inputs), len(model.inputs) + len(model.outputs)
        self.words = np.zeros(abi.CALL_WORDS + n_arrays, np.int64)
        if functions.bind is None:
            pointers = self.words[abi.CALL_WORDS :]
            start = buffers.address(pointers)
            arguments = tuple(map(_Address, (self.handle, start, start + 8 * n_inputs)))
            self.call = _plain_call(functions.run, arguments, pointers)
            return
        self.words[abi.CALL_CTX] = self.handle
        self.words[abi.CALL_BUFS] = buffers.address(self.words) + 8 * abi.CALL_WORDS
        self.words[abi.CALL_NROWS] = n_inputs
        self.words[abi.CALL_NARGS] = n_arrays
        release_gil = functions.info["bytes_moved"] >= threads.WORTH_RELEASING
        threads.fill_call_words(self.words, release_gil)
        self.call = functions.bind(self.words)

    def __del__(self, _getpid: Callable[[], int] = os.getpid) -> None:
        # A forked child has the memory but not the threads: joining them would never end.
        if self.handle and self.pid == _getpid():
            self.destroy(self.handle)


_models: weakref.WeakSet[Model] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    after_fork_in_child()
    for model in _models:
        model._before_fork = model._idle
        model._idle = []
        if model._one is not None:
            model._one = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _plain_call(
    run: Callable[..., int], arguments: Sequence[Any], pointers: NDArray[Any]
) -> Callable[..., int]:
    """The call through ctypes, where objects do not look as jg_py_call needs them."""

    def call(*arrays: NDArray[Any]) -> int:
        for i, array in enumerate(arrays):
            pointers[i] = buffers.address(array)
        return run(*arguments)

    return call


def _problem(
    array: Any, shape: tuple[int, ...], dtype: np.dtype[Any], spans: Sequence[tuple[int, int]]
) -> Exception | None:
    """Why a result cannot be written to an array of the caller's, or None."""
    if not isinstance(array, np.ndarray):
        return TypeError(f"as a NumPy array; got {type(array).__name__}")
    if (array.dtype is not dtype and array.dtype != dtype) or array.shape != shape:
        wrong = TypeError if array.dtype != dtype else ValueError
        return wrong(f"of that dtype and shape; got {_describe(array)}")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        return ValueError("to be dense row-major, aligned and writable; it is not")
    if spans:
        start = buffers.address(array)
        end = start + array.nbytes
        for low, high in spans:
            if start < high and low < end:
                return ValueError("to overlap no input and no other output; it does")
    return None


def _describe(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _thread_count(count: int | None) -> int:
    if count is None:
        return threads.available_processors()
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"[load] expected threads to be an int or None; got {count!r}")
    if not 1 <= count <= fmt.MAX_THREADS:
        raise ValueError(f"[load] expected 1 to {fmt.MAX_THREADS} threads; got {count}")
    return count


class _Functions:
    """The functions and the description of an opened library."""

    def __init__(self, words: Sequence[int], info: dict[str, Any], owner: Any) -> None:
        self.owner, self.info = owner, info
        self.inputs, self.outputs = _ports(info["inputs"]), _ports(info["outputs"])
        if not isinstance(info["name"], str):
            raise TypeError("name is no text")
        int(info["threads"]), int(info["arena_bytes"]), int(info["bytes_moved"])
        self.weights: NDArray[Any] | None = None  # those of a file, with its head
        make = _Address, ctypes.c_int, _Address, ctypes.c_int64, _Address
        self._create_with = ctypes.CFUNCTYPE(*make)(words[fmt.DESC_CREATE_WITH])
        self._create = ctypes.CFUNCTYPE(_Address, ctypes.c_int)(words[fmt.DESC_CREATE])
        self.destroy = ctypes.CFUNCTYPE(None, _Address)(words[fmt.DESC_DESTROY])
        run = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address, _Address)
        self.run = run(words[fmt.DESC_RUN])
        last_error = ctypes.CFUNCTYPE(ctypes.c_char_p, _Address)
        self.last_error = last_error(words[fmt.DESC_LAST_ERROR])
        self.bind = threads.make_bind(words[fmt.DESC_PY_CALL]) if buffers.LAYOUT_HOLDS else None
        self.states = _ports(info.get("states", []))
        self.sizes = {str(s["name"]): (int(s["low"]), int(s["high"])) for s in info["sizes"]}
        if self.sizes:
            set_sizes = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address)
            self.set_sizes = set_sizes(words[fmt.DESC_SET_SIZES])
            output_shape = ctypes.CFUNCTYPE(_Address, _Address, ctypes.c_int)
            self.output_shape = output_shape(words[fmt.DESC_OUTPUT_SHAPE])
        exchange = ctypes.CFUNCTYPE(ctypes.c_int, _Address, ctypes.c_int, _Address)
        if self.states:
            self.get_state = exchange((f"jg_{info['name']}_get_state", owner))
            self.set_state = exchange((f"jg_{info['name']}_set_state", owner))

    def create(self, threads: int) -> int | None:
        """The address of a new instance; None where there is no memory."""
        if self.weights is None:
            return self._create(threads)
        place, nbytes = buffers.address(self.weights), self.weights.nbytes
        return self._create_with(threads, place, nbytes, None)


def _ports(rows: Any) -> tuple[Port, ...]:
    made = tuple(
        Port(str(r["name"]), str(r["dtype"]),
             tuple([d if isinstance(d, str) else int(d) for d in r["shape"]]))
        for r in rows
    )  # fmt: skip
    for port in made:
        dtypes.BY_NAME[port.dtype]
    return made


def _functions(library: ctypes.CDLL, path: str) -> _Functions:
    try:
        words = list((ctypes.c_int64 * fmt.DESC_WORDS).in_dll(library, fmt.DESCRIPTOR))
    except ValueError:
        raise ArtifactError(f"[load] {path!r} has no symbol {fmt.DESCRIPTOR}") from None
    magic = words[fmt.DESC_MAGIC].to_bytes(8, "little", signed=True)
    if magic != fmt.DESCRIPTOR_MAGIC or words[fmt.DESC_FORMAT] != fmt.FORMAT_VERSION:
        raise ArtifactError(
            f"[load] expected a library of format {fmt.FORMAT_VERSION}; {path!r} has format "
            f"{words[fmt.DESC_FORMAT]}; export it again with this version of jitgrad"
        )
    status = ctypes.CFUNCTYPE(ctypes.c_char_p)(words[fmt.DESC_STATUS])()
    if status != b"ready":
        raise ArtifactError(f"[load] {path!r}: {(status or b'').decode(errors='replace')}")
    text = ctypes.string_at(words[fmt.DESC_METADATA])
    try:
        return _Functions(words, json.loads(text), library)
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"[load] the description inside {path!r} is malformed: {error}"
        ) from None
