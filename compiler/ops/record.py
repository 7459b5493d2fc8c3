"""Op: one record per op, with every facet the rest of the system needs. And the registry.

A record is a subclass of `Op` (or of one of the families: `Elementwise`, `View`) with one
instance; making the instance registers it: `exp = Exp()`. Nothing outside an op's record may
depend on its name. Facets (see docs/architecture.md for who uses which):

infer      result types from operand types and attributes; raises the user's error
reference  the NumPy kernel: arrays in, arrays out (never NumPy scalars); obviously right. Whoever
           runs it turns NumPy's floating-point warnings off (ops/quiet.py), for IEEE results
           (inf, NaN) are no errors here
vjp        g (cotangent of each output), out, operands -> cotangent for each operand or None
jvp        tangents (None where zero), out, operands -> tangent of each output
batch      how it maps over a new leading axis
lower      its loop definition, through a `compiler.loops.Builder`
onnx       its ONNX form: adds nodes through an `OnnxContext`, returns the names of its outputs
samples    example arguments for the tests, awkward ones included
accuracy   how far an approximated elementwise function may be off
put        for views: the base with the viewed region replaced

Overrides name the attributes they take, as keywords; the base's `*_: Any` is there to let them.

vjp, jvp, and batch are written with calls of other records: `record(x, y, attr=...)` asks the
first operand that has `_bind` to apply it (a number among the operands, as in `op.mul(x, 2.0)`,
becomes a 0-d constant of x's dtype). So they run on tensors with or without data, and record into
graphs, and differentiate again. `op.exp(x)` calls the record named "exp" whatever module it is in
(`op` is filled as records are made), which needs no import and so makes no cycle of imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.compiler.types import TensorType, broadcast_shapes
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import InternalError

if TYPE_CHECKING:
    from jitgrad.compiler.loops import (
        Array,
        Builder,
        Expr,
    )

Types = TensorType | tuple[TensorType, ...]

MANY = 1 << 30
"""`Op.nout` of records whose number of outputs depends on their attributes."""


class Records(dict[str, "Op"]):
    """All records by name. Those of rare ops are made when they are first asked for.

    late: name -> the module of this package that makes the record. Iterating makes them all;
    `early()` gives what is there already.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[str, str] = {}

    def __missing__(self, name: str) -> Op:
        if name not in self.late:
            raise KeyError(name)
        getattr(sys.modules[__package__], self.late[name])  # imports it (PEP 562)
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self.late

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def made(self, name: str) -> bool:
        """Whether the record is there already."""
        return dict.__contains__(self, name)

    def early(self) -> list[Op]:
        """The records that are made by now."""
        return list(dict.values(self))

    def _all(self) -> None:
        for name in self.late:
            if not self.made(name):
                self.__missing__(name)

    def __iter__(self) -> Iterator[str]:
        self._all()
        return super().__iter__()

    def __len__(self) -> int:
        self._all()
        return super().__len__()

    def keys(self) -> Any:
        self._all()
        return super().keys()

    def values(self) -> Any:
        self._all()
        return super().values()

    def items(self) -> Any:
        self._all()
        return super().items()


class _Names:
    """The records as attributes."""

    def __getattr__(self, name: str) -> Op:
        if name in OPS:
            return OPS[name]
        raise AttributeError(f"there is no op {name!r}")


OPS = Records()
op: Any = _Names()


class OnnxContext(Protocol):
    """What `Op.onnx` builds with. Values are ONNX names."""

    def node(self, op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns its output's name (a tuple of names when outputs > 1)."""

    def constant(self, array: np.ndarray) -> str:
        """A value that holds the array."""

    def shape(self, dims: Sequence[Dim]) -> str:
        """An int64 vector of these dims: a constant, computed where some are symbolic."""

    def inline(self, graph: Any, inputs: Sequence[str]) -> list[str]:
        """Adds the nodes of a Graph on these values; returns the names of its outputs."""

    def subgraph(
        self, types: Sequence[TensorType], outputs: Sequence[TensorType],
        build: Callable[..., Sequence[str]],
    ) -> Any:  # fmt: skip
        """An ONNX graph for an attribute, with inputs and outputs of these types, of what
        `build(context, names of the inputs)` adds and returns. It may read values around it."""

    def type(self, name: str) -> TensorType:
        """The type of an input of the op being exported."""

    def onnx_dtype(self, dtype: DType) -> int:
        """ONNX's number of a dtype (TensorProto.DataType)."""


@dataclass(frozen=True)
class Check:
    """What a checked op asks of every element of one operand: low <= element <= high.

    operand: its position. low, high: numbers or symbolic dims; NaN is out of range. zero: whether
    0 is allowed. dim: the dim of operand 0 that positions are in, for the message. allowed: a
    number that is as asked although it is out of range.
    """

    operand: int
    low: Any = None
    high: Any = None
    zero: bool = True
    dim: int = 0
    allowed: int | None = None

    def first(self, x: np.ndarray) -> Any:
        """The first element, in row-major order, that is not as asked; None when all are."""
        good: Any = True if self.zero else x != 0
        if self.low is not None:
            good = good & (x >= self.low)
        if self.high is not None:
            good = good & (x <= self.high)
        if self.allowed is not None:
            good = good | (x == self.allowed)
        return None if good is True or good.all() else x[~good].reshape(-1)[0].item()


@dataclass(eq=False)
class Sample:
    """Example operands (NumPy arrays) and attributes. `note` says what is awkward about it.

    `grad`: whether derivatives are checked on it (away from kinks and poles); gradient checks run
    in float64 on operands that are floating.
    """

    args: tuple[np.ndarray, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    grad: bool = True


@dataclass(eq=False)
class Accuracy:
    """How far a compiled elementwise op may be from its reference in float64, on these operands.

    bound: in ulp where `relative`, else in units of 2^-52 max(1, |value|) (functions with zeros).
    float32 results, computed in float64, are within 1 of the same units. where: in words.
    """

    args: tuple[np.ndarray, ...]
    bound: float
    relative: bool = True
    attrs: dict[str, Any] = field(default_factory=dict)
    where: str = ""


class Op:
    """Base of all records. Class attributes say what passes and dispatch ask of an op.

    Attributes:
        name: unique; what prints in graphs.
        nout: number of outputs; MANY where it depends on the attributes (then always a tuple).
        saves: what vjp reads the data of: operand positions and "out" (or "out0", ...). Any other
            operand reaches vjp with its type only (reading its data there is an error). Ops with
            any number of operands list more positions than there are: the rest is ignored.
        view: the result is a view of operand 0 (shares its storage in eager mode).
        random: draws from the generator: takes attributes `draw` and operand key; never merged.
        checked: kernels may flag an error at run time (an index out of range); `checks` says what
            is asked of which operand, and passes see to it that all of it is checked.
        differentiable: False where every derivative is zero or undefined (comparisons, argmax).
        identity: the result is operand 0, element by element, whenever there is a result (a check).
        host: has no loop form: compiled code calls `reference`, on the thread of the caller. With
            `checked`, the reference may raise, and is run for that even if its result is unused.
        noop: when the result has the very type of operand 0, it is operand 0 (reshape, cast, ...).
        exact: the result is correctly rounded, so that folding constants by the reference gives
            the bits that a kernel gives (add, mul, cast, ...; not exp).
        chooses: vjp can be told which cotangents are wanted.
        bodies: the names of attributes that hold graphs (compiler/body.py).
        inlined: is what its graph computes, and compiled as that (passes/simplify.py).
        sparse: vjp of several outputs gets None for those that nothing depends on, not zeros.
        linear: linear in its one operand, with attributes that a new leading axis leaves valid
            through `batch` (movement): the sum over that axis may be taken before or after.
        precise: the setting of how precise products must be is an attribute of what is recorded
            (`with_precision`), where it allows less than the highest precision.
        slow: the reference takes several times as long as a kernel, also where it is much work.
        flat: linear in pieces in its one operand: the second derivative is zero, not absent.
        keeps_layout: the result lies in memory as the operands do, as an elementwise one does.
            Others are row-major. None: as the reference lays it.
        graph: what it computes, where it stands for other records (jitgrad/composites.py).
    """

    name: str = ""
    nout: int = 1
    saves: tuple[int | str, ...] = ()
    view: bool = False
    random: bool = False
    checked: bool = False
    host: bool = False
    identity: bool = False
    noop: bool = False
    exact: bool = False
    differentiable: bool = True
    chooses: bool = False
    bodies: tuple[str, ...] = ()
    inlined: bool = False
    sparse: bool = False
    linear: bool = False
    precise: bool = False
    slow: bool = False
    flat: bool = False
    keeps_layout: bool | None = False
    graph: Any = None

    def __init__(self) -> None:
        if not self.name or OPS.made(self.name):
            raise InternalError(f"op record {type(self).__name__}: name {self.name!r} is taken")
        OPS[self.name] = self
        setattr(op, self.name, self)

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        """Applies the op to tensors (of whatever kind the operands are)."""
        if operands:
            bind = getattr(operands[0], "_bind", None)
            if bind is not None:
                return bind(self, operands, attrs)
        for x in operands:  # operands are tensors; only create ops have none (see `apply_like`)
            bind = getattr(x, "_bind", None)
            if bind is not None:
                return bind(self, operands, attrs)
        raise TypeError(f"[{self.name}] expected a tensor operand; got {operands!r}")

    # -- facets --------------------------------------------------------------------------------
    def infer(self, *types: Any, **attrs: Any) -> Types:
        raise InternalError(f"op {self.name} has no infer")

    def reference(self, *arrays: Any, **attrs: Any) -> Any:
        raise InternalError(f"op {self.name} has no reference")

    def with_precision(
        self, types: Sequence[TensorType], attrs: dict[str, Any], precision: str
    ) -> dict[str, Any]:
        """The attributes of an application for which this precision ("high", "medium") will do."""
        return attrs

    def slack(self, attrs: dict[str, Any]) -> float:
        """How far compiled results may be off because attributes allow it, relative to the largest
        one; rounding comes on top."""
        return 0.0

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        """What eager code runs on arrays of these types in the place of `reference`, called without
        the attributes: a ufunc, or a function made for them, that gives the same bits (maybe as a
        NumPy scalar). None: the reference is run.

        It is kept for all attributes that are equal to these: so 0.0 and -0.0, 1 and True must
        mean the same in every attribute that it was made of.
        """
        return None

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        """How much a compiled kernel of this op alone has over NumPy, in elements of an addition
        (some 0.5 ns each); eager code compiles one where it is much (jitgrad/kernels.py). 0: never.
        """
        return 0

    def products(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        """How many products of two numbers it sums up (jitgrad/utils/flop_counter.py)."""
        return 0

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """Cotangents of the operands; g and out are tuples when nout > 1.

        Records with `chooses` also take `needs`, a flag for each operand: the cotangents of others
        may be None.
        """
        raise RuntimeError(f"[{self.name}] has no derivative")

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        """Tangent of the output (a tuple when nout > 1); None where it is zero."""
        raise RuntimeError(f"[{self.name}] has no forward-mode derivative")

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *_: Any, **attrs: Any) -> Any:
        """Applies the op with a new leading axis on operands where `batched`; the result (every
        output) has the axis leading."""
        raise RuntimeError(f"[{self.name}] has no batching rule")

    def total(self, operands: Sequence[Any], batched: Sequence[bool], *_: Any, **attrs: Any) -> Any:
        """The sum over a new leading axis of the results, without making them all: of operands
        that have the axis where `batched`. None where there is no better way than adding."""
        return None

    def lower(self, b: Builder, *operands: Any, **attrs: Any) -> Any:
        """The output Array (a tuple when nout > 1), defined through the builder."""
        raise RuntimeError(f"[{self.name}] has no lowering")

    def slim(
        self, attrs: dict[str, Any], used: Sequence[bool]
    ) -> tuple[dict[str, Any], list[int], list[int]] | None:
        """Of records that hold graphs: attributes that compute only the results that are used, the
        positions of the operands that are left, and of the results. None: nothing to leave out."""
        return None

    def put(self, base: Any, update: Any, *_: Any, **attrs: Any) -> Any:
        """For views: `base` with the region that the view shows replaced by `update`."""
        raise InternalError(f"op {self.name} is no view")

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *_: Any, **attrs: Any) -> Any:
        raise RuntimeError(f"[{self.name}] has no ONNX form")

    def symbolic_name(self, attrs: dict[str, Any]) -> str:
        """The name by which users' symbolic functions say how an application goes to ONNX."""
        return self.name

    def symbolic_arguments(
        self, inputs: Sequence[str], attrs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """What such a function is called with, besides the graph."""
        return inputs, attrs

    def samples(self) -> Iterable[Sample]:
        return ()

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        """What a checked op asks of the elements of its operands."""
        return ()

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        """The user's error for an element that is not as asked; eager code raises the same.

        value: the element; None where it is not known (exported libraries).
        """
        raise InternalError(f"op {self.name} checks nothing")

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    # -- helpers for infer ---------------------------------------------------------------------
    def expect(self, ok: bool, message: str, kind: type[Exception] = RuntimeError) -> None:
        """Raises the user's error unless `ok`."""
        if not ok:
            raise kind(f"[{self.name}] {message}")

    def same_device(self, types: Sequence[TensorType]) -> str:
        devices = {t.device for t in types}
        if len(devices) > 1:  # numbers may be the host's
            devices = {t.device for t in types if t.shape or t.device != "cpu"} or devices
        if len(devices) > 1:
            raise RuntimeError(same_device_text(self.name, devices))
        return devices.pop() if devices else "cpu"


def same_device_text(name: str, devices: Iterable[str]) -> str:
    """The text of the error of an op, or a function, on tensors that are on several devices."""
    return (
        f"[{name}] Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(sorted(devices))}! Move them with .to(device)"
    )


class Elementwise(Op):
    """Ops that act on each element: operands broadcast implicitly, and have one dtype.

    A record gives `reference`, `scalar` (the body of its loop), vjp, jvp, and says by
    `promotes` how the public function prepares operands:
      "same"   numbers promoted to their common dtype, result of that dtype (add, maximum)
      "float"  integers and bools become the default float dtype (exp, true division)
      "int"    bools and integers only (bitwise)
      "bool"   promoted to a common dtype, result bool (comparisons)
    Its public forms follow from it: a function and a Tensor method of its name, the method `name_`
    (not when `in_place` is False), and the function `name_` of ops of one operand. `namespace`
    "special" makes it the function `special.name` instead; `public` False makes no function;
    `arguments`: the names of its arguments.
    float16 and bfloat16 compute in float32 and round once, in `reference` and in `lower` alike
    (not when `widens` is False: bodies that only choose or move values). `complex_too`: complex
    operands are taken as well (ops/complex_parts.py says how derivatives follow). `effort`: what
    one element costs NumPy, in additions (see `work`).
    """

    arity: int = 1
    promotes: str = "same"
    public: bool = True
    namespace: str = ""
    arguments: tuple[str, ...] = ("input", "other")
    in_place: bool = True
    widens: bool = True
    complex_too: bool = False
    effort: int = 1
    keeps_layout: bool | None = True

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        self.expect(
            len(types) == self.arity, f"expected {self.arity} operands; got {len(types)}", TypeError
        )
        device = self.same_device(types)
        dtype = self.typed(types)[0].dtype
        if any(t.dtype is not dtype for t in self.typed(types)):
            raise InternalError(
                f"[{self.name}] operands must be promoted first; got "
                f"{', '.join(str(t) for t in types)}"
            )
        self.check_dtype(dtype)
        try:
            shape = broadcast_shapes(*(t.shape for t in types))
        except ValueError as e:
            raise RuntimeError(
                f"[{self.name}] expected shapes that broadcast; got "
                f"{' and '.join(str(t) for t in types)} ({e})"
            ) from None
        return TensorType(shape, self.out_dtype(dtype), device)

    def typed(self, types: Sequence[TensorType]) -> Sequence[TensorType]:
        """The operands that share the dtype (all, but e.g. not the condition of where)."""
        return types

    def check_dtype(self, dtype: DType) -> None:
        if dtype.is_complex and self.complex_too:
            return
        if self.promotes == "float" and not dtype.is_floating_point:
            raise NotImplementedError(
                f"[{self.name}] expected a floating dtype; got {dtype}; convert with .to(dtype)"
            )
        if self.promotes == "int" and dtype.category > dtypes.Category.INT:
            raise NotImplementedError(
                f"[{self.name}] expected an integer or bool dtype; got {dtype}"
            )
        if dtype.is_complex:
            raise NotImplementedError(  # a RuntimeError, too
                f'[{self.name}] "{self.name}" is not defined for complex dtypes; got {dtype}; use '
                "its real, imag or abs"
            )

    def out_dtype(self, dtype: DType) -> DType:
        return dtypes.bool_ if self.promotes == "bool" else dtype

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return outs[0].numel * self.effort

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        """The result element from the operands' elements."""
        raise InternalError(f"op {self.name} has no scalar body")

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        shape = broadcast_shapes(*(x.shape for x in operands))
        dtype = self.out_dtype(operands[-1].dtype)
        reads = [b.broadcast_read(x, len(shape)) for x in operands]
        if self.widens:
            reads = [r.cast(dtypes.float32) if is_half(r.dtype) else r for r in reads]
        body = self.scalar(b, *reads, **attrs)
        return b.pointwise(shape, dtype, body.cast(dtype) if is_half(dtype) else body)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        return self(*align_ranks(operands, batched), **attrs)

    def accuracy(self) -> Iterable[Accuracy]:
        """The bounds of functions that are approximated: docs/numerics.md lists them all, and
        tests/test_special.py holds kernels to them."""
        return ()


def align_ranks(operands: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """Operands of ops that broadcast, with axes of size 1 behind a new leading axis, so that it
    stays in front of every other operand's axes."""
    rank = max(x.ndim - is_b for x, is_b in zip(operands, batched, strict=True))
    aligned = []
    for x, is_b in zip(operands, batched, strict=True):
        missing = rank - (x.ndim - is_b)
        if is_b and missing:
            x = op.reshape(x, shape=(x.shape[0], *([1] * missing), *x.shape[1:]))
        aligned.append(x)
    return aligned


def reduce_like(g: Any, like: Any) -> Any:
    """Sums g over the axes along which `like` was broadcast, so that it has like's shape."""
    if g is None:
        return g
    shape, wanted = g.shape, like.shape
    if shape is wanted or same_shape(shape, wanted):
        return g
    lead = len(shape) - len(wanted)
    axes = tuple(range(lead)) + tuple(
        i + lead
        for i, d in enumerate(wanted)
        if not isinstance(d, Sym) and d == 1 and not _one(shape[i + lead])
    )
    if lead and len(axes) == lead:
        return op.sum(g, axes=axes, keepdim=False)
    if axes:
        g = op.sum(g, axes=axes, keepdim=True)
    return op.reshape(g, shape=wanted) if lead else g


def broadcast_like(t: Any, like: Any) -> Any:
    """Broadcasts a tangent to the shape of its output."""
    return t if t is None or same_shape(t.shape, like.shape) else op.expand(t, shape=like.shape)


def apply_like(record: Op, like: Any, **attrs: Any) -> Any:
    """Applies a record that has no operands (full, iota) the way tensor `like` applies ops."""
    return like._bind(record, (), attrs)


def scalar_like(x: Any, value: float, dtype: DType | None = None) -> Any:
    """A 0-d constant of x's dtype and device, for calls of records beside x.

    Only as an operand: in eager mode it is one that is kept (`_constant`), and not to be written.
    """
    constant = getattr(x, "_constant", None)
    if constant is not None:
        return constant(value, dtype or x.dtype)
    return apply_like(
        op.full, x, shape=(), value=value, dtype=dtype or x.dtype, device=str(x.device)
    )


def zeros_like(x: Any) -> Any:
    """Zeros of x's shape, dtype and device."""
    return apply_like(op.full, x, shape=x.shape, value=0, dtype=x.dtype, device=str(x.device))


def direct_reference(record: Op, family: type[Op]) -> bool:
    """Whether a record's reference is its family's own, so that a kernel of the family stands for
    it (a subclass or a test may have replaced it)."""
    return type(record).reference is family.reference and "reference" not in vars(record)


def is_half(dtype: DType) -> bool:
    """True for float16 and bfloat16, which compute in float32."""
    return dtype is dtypes.float16 or dtype is dtypes.bfloat16


def _one(d: Dim) -> bool:
    return not isinstance(d, Sym) and d == 1


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Equality of shapes; dims that differ in form are compared (which may add a guard)."""
    return a is b or (len(a) == len(b) and all(x is y or x == y for x, y in zip(a, b, strict=True)))
