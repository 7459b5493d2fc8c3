"""Reads: what a code object can read and write, by its bytecode.

Owns the scan: names and attribute paths, imports, names in format strings. Nothing is rewritten,
nothing is run.
"""

from __future__ import annotations

import dis
import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

Path_ = tuple[str, ...]


@dataclass
class Reads:
    """What a code object names.

    globals, locals, cells: paths from a global, an argument that is not reassigned, a free
    variable. The last name of a path may be stored to. loose: attributes of anything else.
    asked: those of them that may be absent (hasattr, getattr, try). stored: globals that it sets.
    imports: (module, level). by_name: the variables whose values it gives to `__import__`, which it
    calls if this is not None; "" for any other value but a constant, which is among the imports.
    modules: the keys that it looks for in sys.modules; "" for what is no constant, or for more
    than that. typed: arguments whose type() it asks, or that it gives to what takes
    no stand-ins of numbers; "" for any other value.
    looked: those paths that are not just handed to from_numpy or as_tensor. appended: those that
    are calls of append. sets: names that it assigns to, beside its variables; "[]" for items.
    lines: of each name, where it has it (None: anywhere). every: it may read attributes whose names
    it computes.
    """

    globals: set[Path_] = field(default_factory=set)
    locals: set[Path_] = field(default_factory=set)
    cells: set[Path_] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    imports: set[tuple[str, int]] = field(default_factory=set)
    by_name: set[str] | None = None
    modules: set[str] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)
    looked: set[Path_] = field(default_factory=set)
    appended: set[Path_] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    lines: dict[str, set[int | None]] = field(default_factory=dict)
    every: bool = False


_TENSOR_MAKERS = ("from_numpy", "as_tensor")
_NAMING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "LOAD_CLASSDEREF",
           "LOAD_FROM_DICT", "LOAD_FAST", "STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_",
           "LOAD_SUPER", "IMPORT_FROM", "LOAD_CLOSURE")  # fmt: skip
_SKIPPED = {"CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP", "RESUME", "COPY_FREE_VARS", "PRECALL"}
_METHOD_BIT = sys.version_info >= (3, 12)  # of LOAD_ATTR's argument; LOAD_METHOD before
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_ALL_NAMES = {"vars", "attrgetter", "__dict__", "__getattribute__", "dir"}
_DYNAMIC = _BY_NAME | _ALL_NAMES


_FIELD = re.compile(r"(?<=\.)[^\W\d]\w*")


def _takes_three(i: dis.Instruction) -> bool:
    """Whether this calls something with three arguments, or with as many as a list has."""
    return i.opname.startswith("CALL") and (i.opname == "CALL_FUNCTION_EX" or i.arg == 3)


def _names(argval: Any) -> tuple[str, ...]:
    return argval if isinstance(argval, tuple) else (argval,)


def _computes_names(instructions: list[dis.Instruction]) -> bool:
    """Whether getattr and its kin get a name that is no constant."""
    for k, i in enumerate(instructions):
        if i.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or i.argval not in _BY_NAME:
            continue
        constant = False  # the name, between loads that make up the object and the default
        for following in instructions[k + 1 :]:
            if following.opname.startswith("CALL"):
                break
            if not following.opname.startswith("LOAD_"):
                return True
            constant = (
                constant or isinstance(following.argval, str) and (following.opname == "LOAD_CONST")
            )
        if not constant:
            return True
    return False


def _note_import(out: Reads, i: dis.Instruction, after: list[dis.Instruction]) -> None:
    """Notes what code that names `__import__` (instruction i) imports."""
    out.by_name = out.by_name or set()
    end = next((k for k, x in enumerate(after) if x.opname.startswith("CALL")), len(after))
    given, more = after[0], after[1:end]
    simple = i.opname == "LOAD_GLOBAL" and (i.arg or 0) & 1 and end < len(after)  # it is called
    if simple and given.opname.startswith("LOAD_FAST") and not more and after[end].arg == 1:
        out.by_name.add(_names(given.argval)[0])
    elif simple and isinstance(given.argval, str) and all(x.opname in _MAKE_LISTS for x in more):
        if given.opname.startswith("LOAD_CONST"):
            out.imports.add((given.argval, 0))
            return
        out.by_name.add("")
    else:
        out.by_name.add("")


_MAKE_LISTS = ("LOAD_CONST", "BUILD_LIST", "BUILD_TUPLE", "LIST_EXTEND", "KW_NAMES")


def _note_modules(out: Reads, instructions: list[dis.Instruction], n: int) -> None:
    """Notes what code looks for in what it calls `modules` (instruction n), which may be the
    dict sys.modules."""
    before, after = instructions[max(n - 2, 0) : n], instructions[n + 1 : n + 3]
    at_sys = bool(before) and before[-1].argval == "sys"
    ops = [i.opname for i in after]
    if ops[0] == "CONTAINS_OP":
        key: Any = before[0] if at_sys else before[-1]
    else:
        found = ops[1].startswith("BINARY_") or after[0].argval == "get"
        key = (after[1] if after[0].argval == "get" else after[0]) if found else None
    if key is not None and key.opname.startswith("LOAD_CONST") and isinstance(key.argval, str):
        out.modules.add(key.argval)
    elif key is not None and key.opname == "LOAD_GLOBAL" and key.argval == "__name__":
        out.modules.add("__name__")
    elif at_sys and ops[0] != "CONTAINS_OP":  # packages look for others that they work with
        out.modules.add("")


@lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    """Scans a code object, and in the functions nested in it the free variables that it passes on
    (they are scanned when entered)."""
    out = Reads()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _SKIPPED]
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    arguments = set(code.co_varnames[:count])
    for i in instructions:
        if ("STORE_FAST" in i.opname or "DELETE_FAST" in i.opname) and i.argval is not None:
            stored = _names(i.argval)
            arguments -= set(stored[:1] if i.opname == "STORE_FAST_LOAD_FAST" else stored)
    path: Path_ = ()
    into: set[Path_] | None = None
    constants: list[Any] = []
    before = ""
    called = False  # the last name of the path, at once, as a method

    def end() -> None:
        nonlocal before
        if into is not None and path:
            into.add(path)
            if path[0] in ("int", "float") and len(path) > 1 and into is out.globals:
                out.typed.add("")  # int.__add__(a, b) takes ints alone
            if path[-1] == "append" and called:
                out.appended.add(path)
            elif path[-1] == "append":
                into.add(path[:-1])  # whose method it hands on
            if before not in _TENSOR_MAKERS or not op.startswith("CALL"):
                out.looked.add(path)
            before = path[-1]

    for n, i in enumerate(instructions):
        op = i.opname
        if i.argval is not None and op.startswith(_NAMING):
            for name in _names(i.argval):
                out.lines.setdefault(name, set()).add(i.positions and i.positions.lineno)
        if i.argval == "modules" and op.startswith(_NAMING) and not op.startswith("STORE"):
            _note_modules(out, instructions, n)
        if op.startswith("LOAD_CONST") or op == "LOAD_SMALL_INT":
            constants.append(i.argval)
        if op.startswith(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")):
            if op.startswith("STORE"):
                out.sets.add(i.argval)
            if into is not None:
                path = (*path, i.argval)
                called = op.startswith("LOAD_METHOD") or bool(
                    op.startswith("LOAD_ATTR") and _METHOD_BIT and (i.arg or 0) & 1
                )
            else:
                out.loose.add(i.argval)
                if not op.startswith("LOAD"):
                    out.asked.add(i.argval)  # which is set where it was absent
            if not op.startswith("LOAD"):
                end()
                path, into = (), None
            continue
        end()
        path, into = (), None
        if op == "LOAD_GLOBAL" or op == "LOAD_NAME":
            path, into = (i.argval,), out.globals
            if i.argval == "pow" and any(_takes_three(k) for k in instructions[n + 1 :]):
                out.typed.add("")  # pow(a, b, c) asks neither b nor c
            if i.argval == "__import__":
                _note_import(out, i, instructions[n + 1 :])
            if i.argval == "type":
                after = [(k.opname, k.argval) for k in instructions[n + 1 : n + 3]]
                name = after[0][1] if [k[:9] for k, _ in after] == ["LOAD_FAST", "CALL"] else ""
                out.typed.add(name if name in arguments else "")
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            out.stored.add(i.argval)
            out.sets.add(i.argval)
        elif op == "STORE_SUBSCR":
            out.sets.add("[]")
        elif op in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            if i.argval in code.co_freevars:
                path, into = (i.argval,), out.cells
        elif op in ("STORE_DEREF", "DELETE_DEREF"):
            out.sets.add(i.argval)
            if i.argval in code.co_freevars:
                out.cells.add((i.argval,))
        elif op.startswith("LOAD_FAST") or op == "STORE_FAST_LOAD_FAST":
            *others, name = _names(i.argval)
            out.looked.update((n,) for n in others)
            if name in arguments:
                path, into = (name,), out.locals
        elif op in ("LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"):
            out.loose.add(i.argval)
        elif op == "IMPORT_NAME":
            out.imports.add((i.argval, constants[-2]))  # level and names come before
        elif op == "MATCH_CLASS":
            keywords = set(constants[-1])
            out.loose |= keywords | {"__match_args__"}
            out.asked |= keywords
            out.every = out.every or bool(i.arg)  # names from __match_args__
    end()
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    for nested in map(reads_of, inner):
        if nested.typed:  # a comprehension over what is here
            out.typed.add("")
        for name in nested.lines:
            out.lines.setdefault(name, set()).add(None)
        passed = {p for p in nested.cells if p[0] in code.co_freevars}
        out.cells |= passed  # a free variable of this code, which only the nested one names
        out.looked |= passed & nested.looked
        out.appended |= passed & nested.appended
    if "__import__" in code.co_consts or "__import__" in out.loose:  # not by its own name
        out.by_name = {*(out.by_name or ()), ""}
    used = {p[0] for p in out.globals} | out.loose
    used |= {n for paths in (out.globals, out.locals, out.cells) for p in paths for n in p[1:]}
    out.every = out.every or bool(used & _ALL_NAMES) or _computes_names(instructions)
    if used & _DYNAMIC:
        out.asked |= {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
        out.loose |= out.asked
    if "format" in used:  # names in format strings
        found = {n for c in code.co_consts if isinstance(c, str) for n in _FIELD.findall(c)}
        out.loose |= found
        out.asked |= found
    for name in out.asked:
        out.lines.setdefault(name, set()).add(None)
    if code.co_exceptiontable:  # which may catch that an attribute is absent
        out.asked |= out.loose
    return out
