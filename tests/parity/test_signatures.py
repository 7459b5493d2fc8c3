"""Signatures: every public function, class and method that both libraries have takes the same
arguments: names, places, defaults, keyword-only ones.

PyTorch's are those of its Python functions, and of the stub files and schemas of its native ones,
with all overloads. Ours must bind every call that an overload takes: all arguments by place, and
all by name. What we have more, and what differs, is in EXCEPTIONS, each with its reason.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from parity.compare import torch

import jitgrad

REQUIRED = inspect.Parameter.empty
PLACES = (
    "top", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn",
    "nn.utils.parametrize", "nn.utils.parametrizations", "nn.utils.prune", "linalg", "fft",
    "special", "optim", "optim.lr_scheduler", "optim.swa_utils", "autograd",
    "autograd.functional", "autograd.forward_ad", "func", "utils.data", "utils.checkpoint",
    "distributions", "amp", "signal.windows",
)  # fmt: skip
SCHEMAS = {"linalg": "linalg_", "fft": "fft_", "special": "special_"}

# What differs on purpose: (pattern of the name, pattern of what differs, why).
EXCEPTIONS = (
    (r".*\.(unsafe_)?split(_copy)?", "split_size|input|tensor", "one for function and method"),
    (r".*\.(tensor_split|[hvd]split)", "indices|sections", "its documented name; others by name"),
    (r".*\.(mm|bmm|addmm|baddbmm)", "out_dtype", "of GPUs alone"),
    (r".*\.(var|std|var_mean|std_mean)", "unbiased|keepdim", "None is True; all by place"),
    (r"top\.(cumulative_)?trap\w*", "default of dx", "None is 1"),
    (r".*", "(default of|extra) (layout|memory_format)", "there is one layout"),
    (r"nn.functional\.conv[123]d", "default of padding", "'valid' is 0"),
    (r"nn.functional\..*pool[123]d", "default of stride", "() is None"),
    (
        r"nn.functional\..*max_pool[123]d.*", "return_indices|_random_samples|output_(size|ratio)",
        "PyTorch's public function dispatches on return_indices",
    ),
    (r"top\.(linspace|logspace)", "steps", "None is deprecated, and raises"),
    (r"top\.result_type", "scalar|tensor", "one pair of names"),
    (r"top\.(save|full)", "pickle|byteorder|names", "nothing is pickled; dims have no names"),
    (r".*\.expand(_copy)?", "no implicit", "PyTorch's own use"),
    (r"fft\.r?fftfreq", "requires_grad", "taken, though the schema does not say so"),
    (r"special\.log_softmax", "dtype is keyword-only there", "log_softmax takes it by place"),
    (r".*", "default of (activation|generator|context_fn)", "a function or object of ours"),
    (r"nn\.functional\.\w+_", "extra inplace|no generator", "made from the function"),
    (r"top\.cat|top\.concat\w*", "extra axis", "NumPy's name, which PyTorch's parser takes too"),
    (r".*\.(max|min)", "other is keyword-only here", "by place it is taken for dim"),
    (r".*\.scatter_?", "value is keyword-only here", "by place it is taken for src"),
    (r"top\.isin", "element is keyword-only here", "by place: elements and test_elements"),
    (r"top\.tensor", "is keyword-only here", "PyTorch's stub says more than its function takes"),
    (r"Tensor\.requires_grad_", "mode|requires_grad", "the stub's name is not the function's"),
    (
        r"top\.(is_\w+|detach_?|detach_copy|fill_|zero_|resize_as_|numel)",
        "(no|extra) (input|self)", "methods, as functions",
    ),
    (
        r"linalg\.(cholesky_ex|eigh|inv_ex|svd)", "no (L|info|eig\\w+|inverse|U|S|Vh)",
        "names of results",
    ),
    (r".*\.Module\.compile", r"no \*args", "its options are jit's"),
    (r"nn\.Sequential\.extend", "sequential|modules", "one function of all lists of modules"),
    (
        r"distributions\.\w+\.(icdf|cdf|log_prob|check|log_abs_det_jacobian)", "(no|extra)",
        "one name of the argument",
    ),
)  # fmt: skip


class Argument(NamedTuple):
    name: str
    kind: str  # "place", "name", "*" or "**"
    default: Any = REQUIRED


def plain(default: Any) -> Any:
    """A default that can be compared: of text, its value where it is a literal."""
    if default is REQUIRED:
        return REQUIRED
    if isinstance(default, str):
        try:
            default = ast.literal_eval(default)
        except (ValueError, SyntaxError):
            return default.rsplit(".", 1)[-1]
    if isinstance(default, (torch.dtype, torch.memory_format, torch.layout, jitgrad.DType)):
        return str(default).rsplit(".", 1)[-1]
    return tuple(default) if isinstance(default, list) else default


KINDS = {0: "place", 1: "place", 2: "*", 3: "name", 4: "**"}


def python_signature(function: Any) -> list[Argument]:
    found = inspect.signature(function).parameters.values()
    return [Argument(p.name, KINDS[int(p.kind)], plain(p.default)) for p in found]


@functools.cache
def stubs(path: str, of_class: str = "") -> dict[str, list[list[Argument]]]:
    """Of a stub file: name -> overloads."""
    tree = ast.parse((Path(torch.__file__).parent / path).read_text())
    body: list[Any] = tree.body
    if of_class:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == of_class).body
    found: dict[str, list[list[Argument]]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(_stub_arguments(node.args))
    return found


def _stub_arguments(a: ast.arguments) -> list[Argument]:
    def value(node: ast.expr | None) -> Any:
        return REQUIRED if node is None else plain(ast.unparse(node))

    by_place = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(by_place) - len(a.defaults)) + [*a.defaults]
    out = [Argument(p.arg, "place", value(d)) for p, d in zip(by_place, defaults, strict=True)]
    out += [Argument(a.vararg.arg, "*")] if a.vararg else []
    named = zip(a.kwonlyargs, a.kw_defaults, strict=True)
    return out + [Argument(p.arg, "name", value(d)) for p, d in named]


def schemas(name: str) -> list[list[Argument]]:
    out = []
    for schema in torch._C._jit_get_schemas_for_operator("aten::" + name):
        if schema.overload_name.endswith("out") or "values" in schema.overload_name:
            continue
        out.append([
            Argument(
                "input" if a.name == "self" else a.name, "name" if a.kwarg_only else "place",
                plain(a.default_value) if a.has_default_value() else REQUIRED,
            )
            for a in schema.arguments
        ])  # fmt: skip
    return out


def theirs(function: Any, place: str, name: str) -> list[list[Argument]]:
    """PyTorch's overloads, as far as it says what they are."""
    try:
        found = python_signature(function)
        if found and not all(a.kind in ("*", "**") for a in found):
            return [found]
    except (ValueError, TypeError):
        pass
    if place == "Tensor":
        return stubs("_C/__init__.pyi", "TensorBase").get(name, [])
    if place in ("top", "nn.functional"):
        own = stubs("_C/_nn.pyi") if place == "nn.functional" else {}
        return own.get(name) or stubs("_C/_VariableFunctions.pyi").get(name, [])
    return schemas(SCHEMAS[place] + name) if place in SCHEMAS else []


def same_default(a: Any, b: Any) -> bool:
    return a is b or a == b or str(a) == str(b) or {a, b} <= {None, False}


def binds(signature: inspect.Signature, args: list[Any], kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def differences(function: Any, overloads: list[list[Argument]], method: bool) -> list[str]:
    """What our function does not take as one of the overloads says, and what it has more."""
    ours = python_signature(function)
    if _takes_out(function):
        ours.append(Argument("out", "name", None))
    known = {a.name: (i, a) for i, a in enumerate(ours)}
    open_places, open_names = ("*" in [a.kind for a in ours]), ("**" in [a.kind for a in ours])
    signature = inspect.signature(function)
    out = []
    for overload in overloads:
        arguments = [a for a in overload if not (method and a.name == "out")]
        if not method:  # the stubs' name of a number
            arguments = [Argument("input", *a[1:]) if a.name == "self" else a for a in arguments]
        if method:
            arguments = [Argument(ours[0].name, "place"), *arguments[1:]]
        by_place = [a for a in arguments if a.kind == "place"]
        if not binds(signature, [0] * sum(a.default is REQUIRED for a in by_place), {}) and not (
            any(a.kind == "name" and a.default is REQUIRED for a in arguments)
        ):
            out.append(f"does not bind {[a.name for a in by_place]}")
        for i, a in enumerate(arguments):
            if a.kind == "*":
                out += [] if open_places else [f"no *{a.name}"]
            elif a.kind == "**":
                out += [] if open_names else [f"no **{a.name}"]
            elif a.name not in known:
                out += [] if open_names else [f"no {a.name}"]
            else:
                j, mine = known[a.name]
                if a.kind == "name" and mine.kind == "place" and len(overloads) == 1:
                    out.append(f"{a.name} is keyword-only there")
                if a.kind == "place" and mine.kind == "name" and not open_places:
                    out.append(f"{a.name} is keyword-only here")
                if a.kind == mine.kind == "place" and i != j and len(overloads) == 1:
                    out.append(f"{a.name} is argument {i} there, {j} here")
                if a.default is not REQUIRED and mine.default is REQUIRED:
                    out.append(f"{a.name} is required here")
                elif a.default is REQUIRED and mine.default is not REQUIRED:
                    pass  # of another overload, or of no use without it
                elif not same_default(a.default, mine.default) and a.default is not ...:
                    out.append(f"default of {a.name}: {a.default!r} there, {mine.default!r} here")
    there = {a.name for overload in overloads for a in overload} | {"out", "older", "input"}
    out += [
        f"extra {a.name}"
        for a in ours[method:]
        if a.name not in there and a.kind in ("place", "name")
    ]
    return list(dict.fromkeys(out))


def _takes_out(function: Any) -> bool:
    while function is not None:
        if getattr(function, "takes_out", False):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def pairs(place: str) -> list[tuple[str, Any, list[list[Argument]], bool]]:
    """(name, our callable, PyTorch's overloads, whether it is a method)."""
    roots = [jitgrad, torch]
    if place == "Tensor":
        roots = [jitgrad.Tensor, torch.Tensor]
    elif place != "top":
        roots = [importlib.import_module(f"{root.__name__}.{place}") for root in roots]
    found = []
    for name in sorted(set(dir(roots[0])) & set(dir(roots[1]))):
        a, b = (getattr(root, name) for root in roots)
        if (
            name.startswith("_")
            or not callable(a)
            or isinstance(a, (types.ModuleType, jitgrad.DType))
        ):
            continue
        if getattr(b, "__module__", None) in ("typing", "collections.abc"):
            continue
        found.append((f"{place}.{name}", a, theirs(b, place, name), place == "Tensor"))
        if not (isinstance(a, type) and isinstance(b, type)) or issubclass(b, torch.Tensor):
            continue
        for method in sorted(vars(b)):
            k, h = vars(b)[method], getattr(a, method, None)
            if method.startswith("_") or not isinstance(k, types.FunctionType) or not callable(h):
                continue
            found.append((f"{place}.{name}.{method}", h, [python_signature(k)], True))
    return found


used: set[int] = set()
seen: set[str] = set()


@pytest.mark.parametrize("place", PLACES)
def test_signatures(place: str) -> None:
    compared, wrong = 0, []
    seen.add(place)
    for name, function, overloads, method in pairs(place):
        if not overloads:
            continue
        try:
            found = differences(function, overloads, method)
        except (ValueError, TypeError):
            continue  # a builtin of ours
        compared += 1
        for text in found:
            kept = [
                k
                for k, (names, texts, _) in enumerate(EXCEPTIONS)
                if re.fullmatch(names, name) and re.search(texts, text)
            ]
            used.update(kept)
            if not kept:
                wrong.append(f"{name}: {text}")
    assert compared >= 2
    assert not wrong, "\n".join(wrong)


def test_each_exception_is_needed() -> None:
    if len(seen) < len(PLACES):
        pytest.skip("not all places were compared")
    assert [EXCEPTIONS[k] for k in range(len(EXCEPTIONS)) if k not in used] == []
