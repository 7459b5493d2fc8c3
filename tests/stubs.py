"""Writes jitgrad's stub files from the objects themselves: python tests/stubs.py.

    jitgrad/__init__.pyi        the public namespace
    jitgrad/tensor_methods.pyi  the methods and operators that are attached to Tensor
    jitgrad/linalg.pyi          the functions of linalg
    jitgrad/return_types.pyi    the named tuples that functions give

Editors complete, and mypy checks, what is made from records and tables. tests/test_stubs.py fails
when the files are not what this writes.
"""

from __future__ import annotations

import builtins
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jitgrad
from jitgrad.functions import decompositions, solvers
from jitgrad.return_types import FIELDS
from jitgrad.runtime import formats
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor

ROOT = Path(__file__).resolve().parents[1]
# Names that annotations may have, and where they come from; others become Any.
IMPORTS = {
    "Any": "typing", "Callable": "collections.abc", "DType": "jitgrad.runtime.dtypes",
    "Generator": "jitgrad.random", "Iterable": "collections.abc", "Iterator": "collections.abc",
    "NoReturn": "typing", "Sequence": "collections.abc", "Size": "jitgrad.tensor",
    "Sym": "jitgrad.compiler.symbolic", "Tensor": "jitgrad.tensor",
    "Storage": "jitgrad.storage", "TypedStorage": "jitgrad.storage", "overload": "typing",
    "NamedTuple": "typing", "return_types": "jitgrad", "LinAlgError": "jitgrad.runtime.errors",
    **{
        name: module.__name__
        for module in (decompositions, solvers)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    },
}  # fmt: skip
BY_DIM = ("max", "min", "median", "nanmedian")
"""Functions that give a named tuple where there is a dim, and a tensor without one."""
JITTED = """_P = ParamSpec("_P")
_R = TypeVar("_R")
_M = TypeVar("_M", bound=Module)

class _Jitted(Generic[_P, _R]):
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def __get__(self, instance: Any, owner: Any = ...) -> Callable[..., _R]: ...
    def __getattr__(self, name: builtins.str) -> Any: ...

class _Jitting:
    @overload
    def __call__(self, function: _M) -> _M: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[_P, _R]) -> _Jitted[_P, _R]: ...
"""
"""What a function is that was compiled: called as before, with what JitFunction has besides."""
WORD = re.compile(r"[A-Za-z_][\w.]*")
OPERAND = "Tensor | Sym | builtins.complex | np.ndarray[Any, Any] | np.generic"


class Stub:
    """The lines of a stub file, and the names that they import."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.used: set[str] = {"Any", "Tensor", "DType"}

    def annotation(self, text: Any) -> str:
        """An annotation in the stub's words."""
        if text is inspect.Parameter.empty:
            return "Any"
        text = text if isinstance(text, str) else inspect.formatannotation(text)
        found = set()

        def word(match: re.Match[str]) -> str:
            name = match[0]
            if name in ("None", "np.ndarray", "_P", "_R"):
                return name
            if name in IMPORTS:
                found.add(name)
                return name
            if hasattr(builtins, name):
                return f"builtins.{name}"
            raise KeyError(name)

        try:
            new = WORD.sub(word, text)
        except KeyError:
            return "Any"
        self.used |= found
        return new

    def function(self, name: str, function: Any, method: bool = False, indent: str = "") -> None:
        """A function's line, from its signature."""
        if name in BY_DIM:
            return self.by_dim(name, function, method, indent)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            self.lines.append(f"{indent}{name}: Any")
            return
        kinds = inspect.Parameter
        parts, slash, star = [], False, False
        parameters = [p for p in signature.parameters.values() if p.name != "older"]
        if method:
            parameters = parameters[1:]
            parts.append("self")
        for p in parameters:
            text = p.name
            if slash and p.kind is not kinds.POSITIONAL_ONLY:
                parts.append("/")
            slash = p.kind is kinds.POSITIONAL_ONLY
            if p.kind is kinds.VAR_POSITIONAL:
                text, star = "*" + text, True
            elif p.kind is kinds.VAR_KEYWORD:
                text = "**" + text
            elif p.kind is kinds.KEYWORD_ONLY and not star:
                parts.append("*")
                star = True
            text += f": {self.annotation(p.annotation)}"
            parts.append(text if p.default is kinds.empty else f"{text} = ...")
        if slash:
            parts.append("/")
        extra = []
        if getattr(function, "numpy_names", False):
            for ours, theirs in (("dim", "axis"), ("keepdim", "keepdims")):
                p = signature.parameters.get(ours)
                if p is not None and p.default is not kinds.empty:
                    extra.append(f"{theirs}: {self.annotation(p.annotation)} = ...")
        open_ended = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        if getattr(function, "takes_out", False):
            extra.append("out: Any = ...")
        if extra and not open_ended:
            parts += extra if star else ["*", *extra]
        result = self.annotation(signature.return_annotation)
        if name in FIELDS:
            result = f"return_types.{name}"
            self.used.add("return_types")
        self.lines.append(f"{indent}def {name}({', '.join(parts)}) -> {result}: ...")

    def by_dim(self, name: str, function: Any, method: bool = False, indent: str = "") -> None:
        """The forms of one of BY_DIM: of all elements, along a dim, of two tensors."""
        first = "self" if method else "input: Tensor"
        out = "out: Any = ..."
        keep = "builtins.bool = ..."
        forms = [
            (f"{first}, *, {out}", "Tensor"),
            (f"{first}, dim: builtins.int, keepdim: {keep}, *, keepdims: {keep}, {out}", ""),
            (f"{first}, *, axis: builtins.int, keepdim: {keep}, keepdims: {keep}, {out}", ""),
        ]
        if "other" in inspect.signature(function).parameters:
            forms.append((f"{first}, other: Tensor, *, {out}", "Tensor"))
        for parameters, result in forms:
            self.lines.append(f"{indent}@overload")
            result = result or f"return_types.{name}"
            self.lines.append(f"{indent}def {name}({parameters}) -> {result}: ...")
        self.used |= {"overload", "return_types"}

    def jitting(self, function: Any, method: bool = False, indent: str = "") -> None:
        """The forms of what compiles: of a Module, of a function, and as a decorator that has
        arguments."""
        first, *rest = inspect.signature(function).parameters.values()
        more = [
            f"{'**' if p.kind is p.VAR_KEYWORD else ''}{p.name}: {self.annotation(p.annotation)}"
            + ("" if p.kind is p.VAR_KEYWORD else " = ...")
            for p in rest
        ]
        own = "self, " if method else ""
        for kind, result in (
            ("_M", "_M"), ("Callable[_P, _R]", "_Jitted[_P, _R]"), ("None = ...", "_Jitting"),
        ):  # fmt: skip
            name = "__call__" if method else function.__name__
            parts = f"{own}{first.name}: {kind}, *, {', '.join(more)}"
            line = f"{indent}def {name}({parts}) -> {result}: ..."
            if method and kind == "_M":  # a Module is a function, too
                line += "  # type: ignore[overload-overlap]"
            self.lines += [f"{indent}@overload", line]

    def text(self, doc: str) -> str:
        """The file."""
        by_module: dict[str, set[str]] = {}
        for name in self.used:
            by_module.setdefault(IMPORTS[name], set()).add(name)
        head = [f'"""{doc} Made by tests/stubs.py."""', "", "import builtins"]
        standard = [m for m in by_module if not m.startswith("jitgrad")]
        ours = [m for m in by_module if m.startswith("jitgrad")]
        for group in (standard, ours):
            head += [
                f"from {m} import {', '.join(f'{n} as {n}' for n in sorted(by_module[m]))}"
                for m in sorted(group)
            ]
            head += ["", "import numpy as np", ""] if group is standard else []
        return "\n".join([*head, "", *self.lines, ""])


def tensor_methods() -> str:
    """The stub of what methods.py attaches to Tensor."""
    stub = Stub()
    stub.used.add("Sym")
    stub.lines += [f"Operand = {OPERAND}", "", "class TensorMethods:"]
    for name in sorted(vars(Tensor)):
        value = vars(Tensor)[name]
        if name in OPERATORS or (name.startswith("_") and not name.endswith("__")):
            continue
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, property):
            if getattr(value.fget, "__module__", "") != "jitgrad.tensor":
                stub.lines.append("    @property")
                stub.lines.append(f"    def {name}(self) -> Tensor: ...")
                if value.fset is not None:
                    stub.lines.append(f"    @{name}.setter")
                    stub.lines.append(f"    def {name}(self, value: Any) -> None: ...")
        elif inspect.isfunction(value) and value.__module__ != "jitgrad.tensor":
            stub.function(name, value, method=True, indent="    ")
    for name in OPERATORS:
        if not hasattr(Tensor, name):
            continue
        if name in ("__neg__", "__pos__", "__abs__", "__invert__"):
            stub.lines.append(f"    def {name}(self) -> Tensor: ...")
        elif name in ("__eq__", "__ne__"):
            line = f"    def {name}(self, other: builtins.object) -> Tensor: ..."
            stub.lines.append(line + "  # type: ignore[override]")
        elif name == "__getitem__":
            stub.lines.append(f"    def {name}(self, index: Any) -> Tensor: ...")
        elif name == "__setitem__":
            stub.lines.append(f"    def {name}(self, index: Any, value: Any) -> None: ...")
        else:
            stub.lines.append(f"    def {name}(self, other: Operand) -> Tensor: ...")
    return stub.text("The methods of Tensor that are made from records and tables.")


_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_OTHERS = "lt le gt ge eq ne neg pos abs invert getitem setitem"
OPERATORS = [
    *(f"__{p}{n}__" for n in _ARITHMETIC.split() for p in ("", "r", "i")),
    *(f"__{n}__" for n in _OTHERS.split()),
]


def namespace() -> str:
    """The stub of `import jitgrad`."""
    stub = Stub()
    imports, values, functions = [], [], Stub()
    names = {n for n in vars(jitgrad) if not n.startswith("_")}
    modules = {m.name for m in pkgutil.iter_modules(jitgrad.__path__)} | {"compiler", "runtime"}
    names = {n for n in names if not isinstance(getattr(jitgrad, n), ModuleType)}
    names |= {*jitgrad._LAZY, *jitgrad._SUBMODULES, "__version__"}
    imports += [f"from jitgrad import {m} as {m}" for m in sorted(modules - names)]
    names -= {"importlib", "annotations", "TYPE_CHECKING", "Any", "math", "missing", "no_such"}
    for name in sorted(names):
        value = getattr(jitgrad, name)
        if isinstance(value, ModuleType):
            if callable(value):
                values.append(f"class _{name.title()}:")
                inner = Stub()
                call = getattr(value, name)
                inner.lines.append("    def __getattr__(self, name: builtins.str) -> Any: ...")
                if name == "jit":
                    inner.jitting(call, method=True, indent="    ")
                else:
                    inner.function("__call__", _with_self(call), method=True, indent="    ")
                stub.used |= inner.used
                values += [*inner.lines, f"{name}: _{name.title()}"]
            else:
                imports.append(f"from jitgrad import {name} as {name}")
        elif isinstance(value, DType):
            values.append(f"{name}: DType")
        elif isinstance(value, formats.TYPES):
            values.append(f"{name}: {type(value).__name__}")
        elif isinstance(value, type):
            home = value.__module__
            if getattr(sys.modules.get(home), value.__qualname__, None) is value and (
                home.startswith("jitgrad.")
            ):
                own = value.__qualname__
                imports.append(f"from {home} import {own} as {own}")
                if own != name:
                    values.append(f"{name} = {own}")
            else:
                values.append(f"{name}: builtins.type[Any]")
        elif name == "compile":
            functions.jitting(value)
        elif inspect.isroutine(value):
            functions.function(name, value)
        else:
            kind = type(value)
            known = kind.__module__ == "builtins" and value is not None
            values.append(f"{name}: {f'builtins.{kind.__name__}' if known else 'Any'}")
    stub.used |= functions.used | {"overload", "Callable"}
    imports.append("from jitgrad.nn.module import Module")
    imports.append("from typing import Generic, ParamSpec, TypeVar")
    stub.lines = [*sorted(imports), "", JITTED, *values, "", *functions.lines]
    return stub.text("The public namespace.")


def linalg_functions() -> str:
    """The stub of `jitgrad.linalg`."""
    stub = Stub()
    for name in jitgrad.linalg.__all__:
        if name in IMPORTS:
            stub.used.add(name)
        else:
            stub.function(name, getattr(jitgrad.linalg, name))
    return stub.text("The functions of linalg.")


def named_tuples() -> str:
    """The stub of `jitgrad.return_types`."""
    stub = Stub()
    stub.used.add("NamedTuple")
    for name, fields in FIELDS.items():
        stub.lines.append(f"class {name}(NamedTuple):")
        for field in fields:
            many = name == "histogramdd" and field == "bin_edges"
            stub.lines.append(f"    {field}: {'builtins.tuple[Tensor, ...]' if many else 'Tensor'}")
    stub.used.add("Callable")
    stub.lines += [
        "FIELDS: builtins.dict[builtins.str, builtins.list[builtins.str]]",
        "TYPES: builtins.dict[builtins.str, Any]",
        "def prints_as(name: builtins.str) -> Callable[[Any], Any]: ...",
    ]
    return stub.text("The named tuples that functions give.")


def _with_self(function: Any) -> Any:
    """A callable whose signature has one more parameter, first."""

    def bound(self: Any) -> None: ...

    signature = inspect.signature(function)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(bound)["__signature__"] = signature.replace(
        parameters=[first, *signature.parameters.values()]
    )
    return bound


FILES = {
    ROOT / "jitgrad" / "__init__.pyi": namespace,
    ROOT / "jitgrad" / "tensor_methods.pyi": tensor_methods,
    ROOT / "jitgrad" / "linalg.pyi": linalg_functions,
    ROOT / "jitgrad" / "return_types.pyi": named_tuples,
}

if __name__ == "__main__":
    for path, make in FILES.items():
        path.write_text(make(), encoding="utf-8")
