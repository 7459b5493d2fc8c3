"""How tensors print: PyTorch's form, with options as torch.set_printoptions.

Owns the text of repr(tensor). Reading the values ends a trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.pending import fetch
from jitgrad.runtime import dtypes
from jitgrad.state import defaults
from jitgrad.storage import LevelStorage
from jitgrad.tensor import Tensor


@dataclass(eq=False, repr=False)
class _Options:
    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = _Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Sets digits after the point, when and how to abbreviate, and the width of lines.

    profile: "default", "short" (2 digits) or "full" (never abbreviate).
    """
    if profile is not None:
        chosen = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80),
                  "full": (4, math.inf, 3, 80)}  # fmt: skip
        if profile not in chosen:
            raise ValueError(f"[set_printoptions] expected one of {list(chosen)}; got {profile!r}")
        (options.precision, options.threshold, options.edgeitems, options.linewidth) = chosen[
            profile
        ]
    for name, value in (("precision", precision), ("threshold", threshold),
                        ("edgeitems", edgeitems), ("linewidth", linewidth)):  # fmt: skip
        if value is not None:
            setattr(options, name, value)
    options.sci_mode = sci_mode


class _Formatter:
    """How the numbers of one tensor print: all of one width."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.parts: tuple[_Formatter, _Formatter] | None = None
        self.max_width: int = 1
        if values.dtype.kind == "c":
            self.parts = _Formatter(values.real), _Formatter(values.imag)
            self.floating = True
            self.max_width = sum(part.max_width for part in self.parts) + 1
            return
        self.floating = values.dtype.kind == "f"
        self.int_mode = True
        self.sci_mode = False
        flat = values.reshape(-1)
        if not self.floating:
            for value in flat.tolist():
                self.max_width = max(self.max_width, len(str(value)))
            return
        wide = flat.astype(np.float64)
        finite = wide[np.isfinite(wide) & (wide != 0)]
        if finite.size == 0:
            if options.sci_mode is not None:
                self.sci_mode = options.sci_mode
            return
        size = np.abs(finite)
        high, low = float(size.max()), float(size.min())
        self.int_mode = bool((finite == np.ceil(finite)).all())
        with np.errstate(over="ignore"):
            ratio = high / low if low else math.inf
        if options.sci_mode is not None:
            self.sci_mode = options.sci_mode
        elif self.int_mode:
            self.sci_mode = ratio > 1000.0 or high > 1.0e8
        else:
            self.sci_mode = ratio > 1000.0 or high > 1.0e8 or low < 1.0e-4
        for value in finite.tolist():  # zeros and non-finite numbers do not widen, as in PyTorch
            self.max_width = max(self.max_width, len(self.format(value)))

    def format(self, value: Any) -> str:
        if self.parts:
            first, second = (
                form.padded(part)
                for form, part in zip(self.parts, (value.real, value.imag), strict=True)
            )
            sign = "" if second.lstrip().startswith("-") else "+"
            return f"{first}{sign}{second.lstrip()}j"
        if not self.floating:
            return str(value)
        if self.sci_mode:
            return f"{value:.{options.precision}e}"
        if self.int_mode:
            text = f"{value:.0f}"
            return text + "." if math.isfinite(value) else text
        return f"{value:.{options.precision}f}"

    def padded(self, value: Any) -> str:
        return self.format(value).rjust(self.max_width)


def _vector(values: np.ndarray[Any, Any], indent: int, short: bool, form: _Formatter) -> str:
    length = form.max_width + 2
    per_line = max(1, math.floor((options.linewidth - indent) / length))
    items = [form.padded(v) for v in values.tolist()]
    edge = options.edgeitems
    if short and len(items) > 2 * edge:
        items = [*items[:edge], " ...", *items[-edge:]]
    lines = [items[i : i + per_line] for i in range(0, len(items), per_line)] or [[]]
    return "[" + (",\n" + " " * (indent + 1)).join(", ".join(line) for line in lines) + "]"


def _body(values: np.ndarray[Any, Any], indent: int, short: bool, form: _Formatter) -> str:
    if values.ndim == 0:
        return form.format(values.item()) if form.floating else str(values.item())
    if values.ndim == 1:
        return _vector(values, indent, short, form)
    edge = options.edgeitems
    if short and values.shape[0] > 2 * edge:
        rows = [_body(v, indent + 1, short, form) for v in values[:edge]]
        rows.append("...")
        rows += [_body(v, indent + 1, short, form) for v in values[-edge:]]
    else:
        rows = [_body(v, indent + 1, short, form) for v in values]
    gap = ",\n" * (values.ndim - 1) if values.ndim > 1 else ", "
    return "[" + (gap[:1] + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(rows) + "]"


def _shown(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that print when abbreviated, in one vector (they set the width)."""
    edge = options.edgeitems
    for axis in range(values.ndim):
        size = values.shape[axis]
        if size > 2 * edge:
            keep = np.r_[0:edge, size - edge : size]
            values = np.take(values, keep, axis)
    return values


def tensor_text(x: Tensor, prefix: str = "tensor(") -> str:
    """repr of a tensor; inside vmap, of what lies below it."""
    if type(x._storage) is LevelStorage:
        return x._storage.level.text(x)
    dtype = x.dtype
    suffixes = []
    if x._data is None and not fetch(x):
        body = f"..., size={list(x._type.shape)}"
        suffixes.append(f"dtype={dtype}")
    else:
        values = x._array("repr")
        if values.dtype.kind not in "biufc":
            values = values.astype(np.float32)
        shown_by_default = (
            dtypes.bool_, dtypes.int64, defaults.dtype, defaults.dtype.to_complex(),
        )  # fmt: skip
        if values.size == 0:
            body = "[]"
            if values.ndim != 1:
                suffixes.append(f"size={tuple(values.shape)}")
            if dtype is not defaults.dtype:
                suffixes.append(f"dtype={dtype}")
        else:
            short = values.size > options.threshold
            form = _Formatter(_shown(values) if short else values)
            body = _body(values, len(prefix), short, form)
            if dtype not in shown_by_default:
                suffixes.append(f"dtype={dtype}")
    if x._type.device != "cpu":
        suffixes.insert(0, f"device='{x._type.device}'")
    if x.requires_grad:
        node = x.grad_fn
        suffixes.append(
            "requires_grad=True" if node is None else f"grad_fn=<{type(node).__name__}>"
        )
    return _with_suffixes(prefix + body, suffixes, len(prefix))


def _with_suffixes(text: str, suffixes: list[str], indent: int) -> str:
    last = len(text) - text.rfind("\n") + 1
    parts = [text]
    for suffix in suffixes:
        if last + len(suffix) + 2 > options.linewidth:
            parts.append(",\n" + " " * indent + suffix)
            last = indent + len(suffix)
        else:
            parts.append(", " + suffix)
            last += len(suffix) + 2
    return "".join(parts) + ")"
