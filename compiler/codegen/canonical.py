"""Generates code once for kernels that are equal but for the names of their arrays.

Owns the canonical form of a kernel (arrays and fault sites numbered by first appearance, constant
places lifted to arguments) and the table of what was generated for it. A training step has many
equal kernels: one for each parameter, or for each step of an unrolled loop. Kernels with symbolic
dims are generated each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.codegen import llvm
from jitgrad.compiler.codegen.cuda import generate as cuda
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.kernelcode import Generated, Launch, Operand, Site, Size
from jitgrad.compiler.codegen.offsets import MARK, lift_offsets
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.host_call import KEY as HOST
from jitgrad.compiler.host_call import call_of, operands_of
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
)
from jitgrad.compiler.loops import (
    Array,
    Contraction,
    Expr,
    Scan,
    Scatter,
    Sort,
    definition_exprs,
    postorder,
)
from jitgrad.compiler.symbolic import Sym

_MAX_KEPT = 512
_lock = threading.Lock()
_kept: OrderedDict[Hashable, tuple[Generated, list[Array], list[Any]]] = OrderedDict()


def _fresh(kernel: Kernel, target: Target | CudaTarget) -> Generated:
    if isinstance(target, CudaTarget):
        return cuda.generate(kernel, target)
    return llvm.generate(kernel, target)


def _version(target: Target | CudaTarget) -> str:
    return cuda.version_key(target) if isinstance(target, CudaTarget) else llvm.version_key(target)


def generate(kernel: Kernel, target: Target | CudaTarget, path: str = "") -> Generated:
    """As the target's own, from the table where an equal kernel was generated before. A call into
    Python is a row of the launch table without code of its own; its symbol is the number of its
    node behind the path of the node's graph (nested.py)."""
    call = call_of(kernel)
    if call is not None:
        words: list[Operand] = [*operands_of(kernel), Site(call.site)]  # type: ignore[arg-type]
        return Generated(HOST, "", [Launch(f"{path}{call.number}", words, 1, 1)])
    if _Form(kernel).symbolic:
        return _fresh(kernel, target)
    lifted, values, own = lift_offsets(kernel)
    form = _Form(lifted)
    key = (tuple(form.words), _version(target))
    with _lock:
        found = _kept.get(key)
    if found is None:
        found = _fresh(lifted, target), form.arrays, form.sites
        with _lock:
            _kept[key] = found
            while len(_kept) > _MAX_KEPT:
                _kept.popitem(last=False)
    return _renamed(found, form, values, own)


def _renamed(
    found: tuple[Generated, list[Array], list[Any]],
    form: _Form,
    values: Sequence[int],
    own: Mapping[Array, Array],
) -> Generated:
    """Generated code with the operands of a kernel that is equal, the lifted numbers among them."""
    code, arrays, sites = found
    mine = [own.get(a, a) for a in form.arrays]
    new: dict[Array, Array] = dict(zip(arrays, mine, strict=True))
    for w in (*code.workspace, *code.kept):
        new[w] = Array(w.name, w.shape, w.dtype, None, w.line, w.strides)
    tags = dict(zip(sites, form.sites, strict=True))

    def operand(x: Operand) -> Operand:
        if isinstance(x, Array):
            return new[x]
        if isinstance(x, Size) and x.name.startswith(MARK):
            return values[int(x.name.removeprefix(MARK))]
        return Site(tags[x.tag]) if isinstance(x, Site) else x

    launches = [replace(n, operands=[operand(x) for x in n.operands]) for n in code.launches]
    workspace, kept = [new[w] for w in code.workspace], tuple(new[w] for w in code.kept)
    return replace(code, launches=launches, workspace=workspace, kept=kept)


class _Form:
    """The canonical form: `words`, and the arrays and sites behind its numbers."""

    def __init__(self, kernel: Kernel) -> None:
        self.words: list[Hashable] = [type(kernel).__name__]
        self.arrays: list[Array] = []
        self.sites: list[Any] = []
        self.symbolic = False
        self._array: dict[Array, int] = {}
        self._site: dict[Any, int] = {}
        self._expr: dict[Expr, int] = {}
        self._kernel(kernel)

    def _kernel(self, kernel: Kernel) -> None:
        if isinstance(kernel, ChainKernel):
            self._dims(kernel.tiles)
            for k in kernel.kernels:
                self.words.append(type(k).__name__)
                self._kernel(k)
            self.words += [self._number(a) for a in kernel.locals]
        elif isinstance(kernel, LoopKernel):
            self._loop(kernel)
        elif isinstance(kernel, ContractionKernel):
            self._definition(kernel.array)
            for s in kernel.stores:
                self._store(s.array, s.index, s.value)
        else:
            for a in kernel.arrays:
                self._definition(a)

    def _loop(self, kernel: LoopKernel) -> None:
        self._dims(kernel.outer)
        for a in kernel.locals:
            self.words.append(self._number(a))
        for stage in kernel.stages:
            self.words.append("stage")
            self._dims(stage.inner)
            for s in stage.stores:
                self.words.append(s.combine)
                self._store(s.array, s.index, s.value)
            for r in stage.reduces:
                self.words += ["reduce", self._number(r.array), r.combine, r.order]
                self.words.append(self._root(r.value))

    def _store(self, array: Array, index: tuple[Expr, ...], value: Expr) -> None:
        self.words += ["store", self._number(array)]
        self.words += [self._root(e) for e in (*index, value)]

    def _definition(self, array: Array) -> None:
        d = array.define
        self.words += ["define", self._number(array), type(d).__name__]
        if isinstance(d, Contraction):
            self.words += [d.batch, d.m, d.n, d.acc.name, d.winograd, d.parts]
            self._dims(d.k)
        elif isinstance(d, Scan):
            self.words += [d.along, d.combine, d.reverse, d.factor is None]
        elif isinstance(d, Scatter):
            self.words.append(d.combine)
            self._dims(d.extents)
        elif isinstance(d, Sort):
            self.words += [d.along, d.descending, d.part]
            self._dims((d.extent,))
        self.words += [self._root(e) for e in definition_exprs(array)]

    def _dims(self, dims: tuple[Any, ...]) -> None:
        self.symbolic |= any(isinstance(d, Sym) for d in dims)
        self.words.append(dims if not self.symbolic else "symbolic")

    def _number(self, array: Array) -> int:
        number = self._array.get(array)
        if number is None:
            number = self._array[array] = len(self.arrays)
            self.arrays.append(array)
            self.words += ["array", number, array.dtype.name]
            self._dims(array.shape)
            self._dims(array.strides or ())
            self.words += [array.strides is None, array.constant]
        return number

    def _root(self, root: Expr) -> int:
        for e in postorder([root]):
            if e in self._expr:
                continue
            attr: Hashable = e.attr
            if e.op == "load":
                attr = self._number(e.attr)
            elif e.op == "check":
                attr = self._site.setdefault(e.attr, len(self._site))
                if attr == len(self.sites):
                    self.sites.append(e.attr)
            elif e.op == "const":
                attr = repr(e.attr)  # tells 0.0 from -0.0, and NaN is itself
            elif e.op == "size":
                self.symbolic |= not e.attr.startswith(MARK)
            self._expr[e] = len(self._expr)
            self.words.append((e.op, e.dtype.name, attr, *(self._expr[a] for a in e.args)))
        return self._expr[root]
