"""Every environment variable of jitgrad, in one table.

Owns reading, parsing and overriding them. It does not act on any: whoever does, reads
`knobs.<name>` here and nowhere `os.environ`.

    from jitgrad.runtime.knobs import knob, knobs

    if knobs.verify: ...
    with knob(fallback="error"): ...

Variables are read once, when this module is imported; a bad value raises then. An override holds
for the current thread until its block ends; threads started inside the block do not inherit it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jitgrad.runtime.userline import warn


class Kind:
    """A type of value: what it is called in the docs, and how text becomes one.

    parse: text to value; raises ValueError.  check: whether an override's value will do.
    """

    def __init__(self, doc: str, parse: Callable[[str], Any], check: Callable[[Any], bool]) -> None:
        self.doc, self.parse, self.check = doc, parse, check


def _parse_switch(text: str) -> bool:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no"):
        return False
    raise ValueError(text)


def _parse_nbytes(text: str) -> int:
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    text = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = units.get(text[-1:], 1)
    value = int(float(text[:-1]) * unit) if unit > 1 else int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


SWITCH = Kind("0 or 1", _parse_switch, lambda value: isinstance(value, bool))
COUNT = Kind("a number", lambda text: int(text), lambda value: value is None or _is_count(value))
POSITIVE = Kind("a number above 0", COUNT.parse, lambda value: COUNT.check(value) and value != 0)
NBYTES = Kind("bytes; 512M, 2G", _parse_nbytes, _is_count)
TEXT = Kind("text", str, lambda value: value is None or isinstance(value, str))


def one_of(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return Kind(" or ".join(words), parse, lambda value: value in words)


def some_of(*words: str) -> Kind:
    """A comma list; the value is a frozenset, empty by default."""

    def parse(text: str) -> frozenset[str]:
        chosen = frozenset(word.strip() for word in text.split(",") if word.strip())
        if not chosen <= set(words):
            raise ValueError(text)
        return chosen

    def check(value: Any) -> bool:
        return isinstance(value, frozenset) and value <= set(words)

    return Kind("any of " + ",".join(words), parse, check)


class Knob:
    """One variable: `knobs.<name>`, from the environment variable JITGRAD_<NAME>."""

    def __init__(self, name: str, kind: Kind, default: Any, doc: str) -> None:
        self.name, self.kind, self.default, self.doc = name, kind, default, doc

    @property
    def variable(self) -> str:
        return "JITGRAD_" + self.name.upper()

    def parse(self, text: str) -> Any:
        try:
            value = self.kind.parse(text)
            if self.kind.check(value):
                return value
        except ValueError:
            pass
        raise ValueError(f"{self.variable}={text!r}: expected {self.kind.doc}. {self.doc}")


TABLE = [
    Knob("jit", SWITCH, True, "0: functions under @jit run eagerly, as they are written."),
    Knob(
        "fallback",
        one_of("warn", "error", "silent"),
        "warn",
        "What happens when a function cannot be compiled: it runs eagerly and warns, it raises, "
        "or it runs eagerly in silence.",
    ),
    Knob(
        "recompile",
        one_of("allow", "error"),
        "allow",
        "error: no function under @jit may be recorded: a call that compiled code does not serve "
        "raises, naming the cause.",
    ),
    Knob(
        "eager",
        one_of("auto", "numpy"),
        "auto",
        "numpy: eager code uses the NumPy references only. auto: ops that are much work run as "
        "compiled kernels, each of one op, compiled at their first use and kept on disk.",
    ),
    Knob(
        "dump",
        some_of("graph", "fused", "plan", "loops", "llvm", "asm"),
        frozenset(),
        "Print the program after these stages of the compiler.",
    ),
    Knob(
        "log",
        some_of("recompiles", "compile", "progress"),
        frozenset(),
        "Log why functions are compiled anew; how long each step of a compilation takes; the "
        "progress of compilations over a second, which a terminal shows in any case.",
    ),
    Knob(
        "segments",
        SWITCH,
        True,
        "0: functions under @jit that cannot be one graph run eagerly, not as compiled segments "
        "with Python between them.",
    ),
    Knob("verify", SWITCH, False, "Check the program after every pass of the compiler."),
    Knob("cache", SWITCH, True, "0: neither read nor write the disk cache of compiled code."),
    Knob(
        "cache_dir",
        TEXT,
        None,
        "Where compiled code is kept. Default: jitgrad in the user's cache directory "
        "(XDG_CACHE_HOME, ~/.cache). It must belong to you and be writable by you alone.",
    ),
    Knob("cache_size", NBYTES, 2**30, "Past this the least recently used entries are deleted."),
    Knob(
        "num_threads",
        POSITIVE,
        None,
        "Threads for compiled code. Default: the processors that this process may use.",
    ),
    Knob(
        "cuda",
        one_of("auto", "sim", "off"),
        "auto",
        "auto: GPUs are those of NVIDIA's driver. sim: there is one device, Numba's CUDA "
        "simulator, slow and for tests (NUMBA_ENABLE_CUDASIM=1 is set when the first kernel runs). "
        "off: none.",
    ),
    Knob(
        "cuda_pages",
        SWITCH,
        True,
        "0: GPU memory is taken in pieces that never grow, as on devices without virtual memory.",
    ),
    Knob(
        "cuda_max_split",
        NBYTES,
        0,
        "Blocks of GPU memory above this are never split, and memory is taken in pieces that never "
        "grow. 0: all are split.",
    ),
    Knob("cpu", TEXT, None, "Compile for this CPU (LLVM's name, as in -mcpu), not for the host's."),
    Knob(
        "tiles",
        one_of("auto", "plain", "off"),
        "auto",
        "How products of bfloat16 and of bytes are formed in tiles. auto: by AMX, where the "
        "processor has it. plain: as AMX does, by code that runs anywhere, slow and for tests. "
        "off: not in tiles.",
    ),
    Knob("opt", one_of("0", "1", "2", "3"), "2", "LLVM's optimization level."),
    Knob(
        "compile_threads",
        POSITIVE,
        None,
        "Threads in which LLVM makes machine code. Default: the processors that this process may "
        "use.",
    ),
]

_BY_NAME = {entry.name: entry for entry in TABLE}


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of all knobs in `environ`.

    Raises ValueError for a bad value, naming the variable and what it may be. Warns of a
    JITGRAD_ variable that does not exist, since a misspelt one would silently do nothing.
    """
    known = {entry.variable for entry in TABLE}
    for variable in environ:
        if variable.startswith("JITGRAD_") and variable not in known:
            warn(f"{variable} is no variable of jitgrad; they are {', '.join(sorted(known))}")
    return {
        entry.name: entry.parse(environ[entry.variable])
        if environ.get(entry.variable)  # an empty one is as none
        else entry.default
        for entry in TABLE
    }


_process_values = read(os.environ)


class Knobs(threading.local):
    """`knobs.<name>` is the value in force in this thread: see TABLE for what each one does.

    A thread-local object, because reading it is as cheap as reading any attribute (under 0.1 us);
    a property over a context variable costs twice that, and jit reads a knob at every call.
    """

    jit: bool
    fallback: str
    recompile: str
    eager: str
    dump: frozenset[str]
    log: frozenset[str]
    segments: bool
    verify: bool
    cache: bool
    cache_dir: str | None
    cache_size: int
    num_threads: int | None
    cuda: str
    cuda_pages: bool
    cuda_max_split: int
    cpu: str | None
    tiles: str
    opt: str
    compile_threads: int | None

    def __init__(self) -> None:
        """Runs in each thread at its first read."""
        vars(self).update(_process_values)


knobs = Knobs()


@contextmanager
def knob(**values: Any) -> Iterator[None]:
    """Sets knobs for a block of code: `with knob(fallback="error", verify=True):`.

    Comma lists may be given as text or as any collection of words. Raises TypeError for a name
    that is not in TABLE and ValueError for a value that does not fit.
    """
    new = {}
    for name, value in values.items():
        entry = _BY_NAME.get(name)
        if entry is None:
            raise TypeError(f"knob: there is no knob {name!r}; there are {', '.join(_BY_NAME)}")
        if isinstance(value, str):
            value = entry.parse(value)
        elif isinstance(value, (set, list, tuple)):
            value = frozenset(value)
        if not entry.kind.check(value):
            raise ValueError(f"knob: {name}={value!r}: expected {entry.kind.doc}. {entry.doc}")
        new[name] = value
    old = {name: getattr(knobs, name) for name in new}
    vars(knobs).update(new)
    try:
        yield
    finally:
        vars(knobs).update(old)


def markdown() -> str:
    """The table of all variables, for the documentation."""
    lines = ["| variable | value | default | what it does |", "| --- | --- | --- | --- |"]
    for entry in TABLE:
        default = entry.default
        if isinstance(default, bool):
            default = int(default)
        elif entry.kind is NBYTES:
            default = f"{default >> 20}M"
        elif default is None or default == frozenset():
            default = ""
        lines.append(f"| `{entry.variable}` | {entry.kind.doc} | {default} | {entry.doc} |")
    return "\n".join(lines) + "\n"
