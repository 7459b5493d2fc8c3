"""The loop language: what lowering produces, fusion rearranges, code generators consume.

An `Array` is a tensor-shaped value, defined by a function from an index to a scalar expression
(`Pointwise`), by a `Reduction`, `Contraction`, `Scan`, `Scatter`, `Sort` or `Call`, or an input (no
definition). `Expr` is a node of a hash-consed DAG of scalar operations: equal expressions are the
same object, so comparing is `is`, and walks must be iterative and visit each node once
(`postorder`, `rewrite`). Fusion groups arrays into kernels (kernels.py).

Axes are numbered: in a definition, 0..rank-1 index the array itself, rank.. the inner space
(reduced or contracted axes). In a `LoopKernel`, 0..p-1 index the parallel outer space, and p.. the
inner loop of the stage at hand.

Index expressions are Exprs of dtype INDEX (64-bit, never negative where they address memory).
Math functions stay single nodes ("exp"); `compiler/math.py` expands them to polynomials just
before code generation. Every op rounds to its dtype.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jitgrad.compiler.symbolic import Dim, Func, Sym, prod
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.runtime.errors import InternalError

INDEX = DType("index", 8, Category.INT)

# Scalar ops: name -> arity. All arguments have the result's dtype, but for the groups noted.
ARITHMETIC = {
    "add": 2, "sub": 2, "mul": 2, "neg": 1, "abs": 1,
    "div": 2,  # floats: IEEE; integers: truncating, by a divisor that is not 0
    "floordiv": 2, "mod": 2,  # integers and INDEX: Python's floor semantics, divisor not 0
    "min": 2, "max": 2,  # floats: NaN if either is NaN
    "fma": 3, "sqrt": 1, "floor": 1, "ceil": 1, "trunc": 1,
    "rint": 1,  # to nearest, ties to even
    "copysign": 2,
    "ldexp": 2,  # floats: x * 2^n for a whole n below 2^20 in size, rounded once
    "and": 2, "or": 2, "xor": 2, "not": 1,  # integers, bool
    "shl": 2, "shr": 2,  # shr is arithmetic for signed dtypes, logical for unsigned
}  # fmt: skip
COMPARE = {"lt": 2, "le": 2, "eq": 2, "ne": 2}  # result bool; eq/lt/le false on NaN, ne true
# "select": (bool, x, x); "cast": to dtype (docs/numerics.md has out-of-range rules);
# "bitcast": same size; "check": (index, extent) -> index clamped to [0, extent), flags `site`
OTHER = {"select": 3, "cast": 1, "bitcast": 1, "check": 2}
# Expanded by compiler/math.py. Floats only.
MATH = {
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "atan2": 2,
    "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "sigmoid": 1, "erf": 1, "erfc": 1, "erfcx": 1, "pow": 2, "rsqrt": 1,
}  # fmt: skip
LEAVES = {"const", "axis", "size", "load"}


class Expr:
    """A scalar expression: `op` applied to `args`, of `dtype`. Hash-consed: compare with `is`.

    Leaves: const (attr: Python number), axis (attr: axis number, INDEX), size (attr: name of a
    symbolic dim, INDEX), load (attr: Array; args: one INDEX expression per dim).
    Operators build checked nodes: `a + b`, `-a`, `a * 2.0` (numbers take the dtype of the Expr).
    """

    __slots__ = ("__weakref__", "args", "attr", "axes", "below", "dtype", "has_check", "op")

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    attr: Any
    axes: int
    """Bit k is set where axis k is among the leaves."""
    has_check: bool
    """Whether it is a check, or one is below."""
    below: tuple[Expr, ...] | None
    """What `postorder` gives before this node, once it was asked for and is short."""

    def __add__(self, o: Expr | float) -> Expr:
        return make("add", self, _lift(o, self))

    def __radd__(self, o: float) -> Expr:
        return make("add", _lift(o, self), self)

    def __sub__(self, o: Expr | float) -> Expr:
        return make("sub", self, _lift(o, self))

    def __rsub__(self, o: float) -> Expr:
        return make("sub", _lift(o, self), self)

    def __mul__(self, o: Expr | float) -> Expr:
        return make("mul", self, _lift(o, self))

    def __rmul__(self, o: float) -> Expr:
        return make("mul", _lift(o, self), self)

    def __truediv__(self, o: Expr | float) -> Expr:
        return make("div", self, _lift(o, self))

    def __rtruediv__(self, o: float) -> Expr:
        return make("div", _lift(o, self), self)

    def __floordiv__(self, o: Expr | int) -> Expr:
        return make("floordiv", self, _lift(o, self))

    def __mod__(self, o: Expr | int) -> Expr:
        return make("mod", self, _lift(o, self))

    def __and__(self, o: Expr | int) -> Expr:
        return make("and", self, _lift(o, self))

    def __or__(self, o: Expr | int) -> Expr:
        return make("or", self, _lift(o, self))

    def __xor__(self, o: Expr | int) -> Expr:
        return make("xor", self, _lift(o, self))

    def __lshift__(self, o: Expr | int) -> Expr:
        return make("shl", self, _lift(o, self))

    def __rshift__(self, o: Expr | int) -> Expr:
        return make("shr", self, _lift(o, self))

    def __invert__(self) -> Expr:
        return make("not", self)

    def __neg__(self) -> Expr:
        return make("neg", self)

    def __lt__(self, o: Expr | float) -> Expr:
        return make("lt", self, _lift(o, self))

    def __le__(self, o: Expr | float) -> Expr:
        return make("le", self, _lift(o, self))

    def __gt__(self, o: Expr | float) -> Expr:
        return make("lt", _lift(o, self), self)

    def __ge__(self, o: Expr | float) -> Expr:
        return make("le", _lift(o, self), self)

    def eq(self, o: Expr | float) -> Expr:
        return make("eq", self, _lift(o, self))

    def ne(self, o: Expr | float) -> Expr:
        return make("ne", self, _lift(o, self))

    def cast(self, dtype: DType) -> Expr:
        if dtype is self.dtype:
            return self
        if dtype is INDEX and self.dtype is dtypes.int64:
            found = _as_index(self, 4)
            if found is not None:
                return found
        return _intern("cast", (self,), dtype, None)

    def bitcast(self, dtype: DType) -> Expr:
        return self if dtype is self.dtype else _intern("bitcast", (self,), dtype, None)

    def __repr__(self) -> str:
        return f"<Expr {self.op} {self.dtype.name}>"


def _as_index(e: Expr, depth: int) -> Expr | None:
    """An int64 expression that is made of indices and constants alone (as those of `arange` are),
    as an INDEX expression, which has as many bits; None for others, and for deep ones."""
    if e.op == "const":
        return const(e.attr, INDEX)
    if e.op == "cast":
        return e.args[0] if e.args[0].dtype is INDEX else None
    if depth == 0 or e.op not in ("add", "sub", "mul"):
        return None
    args = [_as_index(a, depth - 1) for a in e.args]
    return None if None in args else make(e.op, *args)  # type: ignore[arg-type]


def _lift(x: Expr | float, like: Expr) -> Expr:
    return x if isinstance(x, Expr) else const(x, like.dtype)


_table: dict[tuple[Any, ...], weakref.ref[Expr]] = {}
"""What lives, by what it is made of. An entry goes with its expression: a WeakValueDictionary does
the same in Python, which is slow for so many."""


def _intern(op: str, args: tuple[Expr, ...], dtype: DType, attr: Any) -> Expr:
    # repr tells -0.0 from 0.0 and 1 from 1.0 and True, and makes nan equal to itself
    mark = repr(attr) if op == "const" else (id(attr) if isinstance(attr, Array) else attr)
    key = (op, tuple(map(id, args)), dtype.name, mark)
    known = _table.get(key)
    found = None if known is None else known()
    if found is None:
        found = Expr()
        found.op, found.args, found.dtype, found.attr = op, args, dtype, attr
        found.below = None if args else ()
        found.axes = 1 << attr if op == "axis" else 0
        found.has_check = op == "check"
        for a in args:
            found.axes |= a.axes
            found.has_check |= a.has_check
        _table[key] = weakref.ref(found, partial(_table.pop, key))
    return found


def const(value: Any, dtype: DType) -> Expr:
    """A number of the dtype. Floats of any width are held as Python floats."""
    if dtype.is_floating_point:
        value = float(value)
    elif dtype is dtypes.bool_:
        value = bool(value)
    elif dtype.is_complex:
        value = complex(value)
    else:
        value = int(value)
    return _intern("const", (), dtype, value)


def axis(k: int) -> Expr:
    """The loop variable of axis k."""
    return _intern("axis", (), INDEX, k)


def dim(d: Dim) -> Expr:
    """A dim as an INDEX expression: a constant, or arithmetic on sizes."""
    if not isinstance(d, Sym):
        return const(d, INDEX)
    total: Expr | None = None
    for monomial, c in d.key:
        term: Expr | None = None
        for atom in monomial:
            if isinstance(atom, Func):
                a, b = dim(atom.a), dim(atom.b)
                f = make(atom.name, a, b)
            else:
                f = size(atom)
            term = f if term is None else term * f
        term = const(c, INDEX) if term is None else (term if c == 1 else term * c)
        total = term if total is None else total + term
    assert total is not None
    return total


def size(name: str) -> Expr:
    """The value of a named dim, or of a number that each launch brings (codegen/offsets.py)."""
    return _intern("size", (), INDEX, name)


def load(array: Array, index: Sequence[Expr]) -> Expr:
    """The element of `array` at `index`."""
    if len(index) != len(array.shape):
        raise InternalError(f"load of {array} with {len(index)} indices")
    return _intern("load", tuple(index), array.dtype, array)


def select(c: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """a where c else b."""
    if not isinstance(a, Expr):
        assert isinstance(b, Expr)
        a = _lift(a, b)
    b = _lift(b, a)
    if a is b:
        return a
    if c.op == "const":
        return a if c.attr else b
    if a.dtype is not b.dtype or c.dtype is not dtypes.bool_:
        raise InternalError(f"select of {c.dtype}, {a.dtype}, {b.dtype}")
    return _intern("select", (c, a, b), a.dtype, None)


def rare(c: Expr, a: Expr, b: Expr) -> Expr:
    """select(c, a, b) where c is nearly always false: code may branch around computing a."""
    e = select(c, a, b)
    return _intern("select", e.args, e.dtype, "rare") if e.op == "select" else e


def check(index: Expr, extent: Dim, site: Any) -> Expr:
    """`index` clamped to [0, extent); a value outside raises the error flag of `site`.

    `site` is hashable and names the fault for the caller (the recording node's number).
    """
    return _check(index, dim(extent), site)


def _check(index: Expr, extent: Expr, site: Any) -> Expr:
    if index.op == "check" and index.args[1] is extent:
        return index
    return _intern("check", (index, extent), INDEX, site)


def make(op: str, *args: Expr) -> Expr:
    """A checked node of ARITHMETIC, COMPARE or MATH, with INDEX constants folded."""
    arity = ARITHMETIC.get(op) or COMPARE.get(op) or MATH.get(op)
    if arity != len(args) or any(a.dtype is not args[0].dtype for a in args):
        raise InternalError(f"{op} of {[a.dtype.name for a in args]}")
    dtype = dtypes.bool_ if op in COMPARE else args[0].dtype
    if args[0].dtype is INDEX:
        folded = _fold_index(op, args)
        if folded is not None:
            return folded
    return _intern(op, args, dtype, None)


_INDEX_FOLD: dict[str, Callable[[int, int], int | bool]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip


def _fold_index(op: str, args: tuple[Expr, ...]) -> Expr | None:
    """Exact integer identities; the rules that need ranges are in compiler/index.py."""
    if op not in _INDEX_FOLD:
        return None
    a, b = args
    dtype = dtypes.bool_ if op in COMPARE else INDEX
    if a.op == "const" and b.op == "const":
        return const(_INDEX_FOLD[op](a.attr, b.attr), dtype)
    zero_a, zero_b = a.op == "const" and a.attr == 0, b.op == "const" and b.attr == 0
    if op == "lt" and a.op == "check" and zero_b:
        return const(False, dtype)
    one_a, one_b = a.op == "const" and a.attr == 1, b.op == "const" and b.attr == 1
    if op == "add" and (zero_a or zero_b):
        return b if zero_a else a
    if op == "sub" and zero_b:
        return a
    if op == "mul" and (zero_a or zero_b):
        return const(0, INDEX)
    if op == "mul" and (one_a or one_b):
        return b if one_a else a
    if op == "floordiv" and (one_b or zero_a):
        return a
    if op == "mod" and (one_b or zero_a):
        return const(0, INDEX)
    return None


# -- arrays and their definitions --------------------------------------------------------------
class Array:
    """A tensor-shaped value of the loop program. Compared by identity.

    `define` is None for inputs; an input's memory is dense row-major unless `strides` (in
    elements) says otherwise. `line` is the user's source line. `constant`: an input that seldom
    changes between calls, so that what is made of it alone is worth keeping.
    """

    __slots__ = ("__weakref__", "constant", "define", "dtype", "line", "name", "shape", "strides")

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: DType,
        define: Definition | None = None,
        line: str = "",
        strides: tuple[Dim, ...] | None = None,
        constant: bool = False,
    ) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.define = define
        self.line = line
        self.strides = strides
        self.constant = constant

    def __getitem__(self, index: Expr | tuple[Expr, ...]) -> Expr:
        return load(self, index if isinstance(index, tuple) else (index,))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"<Array {self.name}: {self.dtype.name}{list(self.shape)}>"


@dataclass(eq=False, repr=False)
class Pointwise:
    """out[axes] = body."""

    body: Expr


@dataclass(eq=False, repr=False)
class Reduction:
    """out[axes] = combine over the extents (axes rank..) of body.

    combine: a name in COMBINES. For argmax/argmin the result is the int64 index into the flattened
    reduced space, of the first best element (NaN is best); argpool is argmax, but for the last of
    several NaNs (what PyTorch's max pooling takes).
    order: "lanes" where the last logical axis of the operand is reduced, else "columns"; a
    function of the logical shape, so that the order of additions, and so the bits, never depend
    on how the kernel is scheduled (docs/numerics.md states both orders).
    """

    extents: tuple[Dim, ...]
    body: Expr
    combine: str
    order: str = "lanes"


COMBINES = ("sum", "prod", "max", "min", "argmax", "argmin", "argpool", "any", "all")


@dataclass(eq=False, repr=False)
class Contraction:
    """out[axes] = sum over k extents (axes rank..) of a * b, accumulated in `acc` dtype.

    Every output axis is in exactly one of batch, m, n (tuples of axis numbers; may be empty): `a`
    does not depend on the n axes, nor `b` on the m axes.

    winograd: a 3x3 convolution with stride 1 (batch (), m (channel), n (image, height, width), k
    (channels, 3, 3); b depends on height + k1 and width + k2, and may be read for tiles of 4 x 4
    results up to the end of the last one) whose sums are those of Winograd's algorithm.

    parts: 0, or how many bfloat16 each float32 operand may be taken for the sum of where that is
    faster; of the products of parts those of two that are not the first are left out.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[Dim, ...]
    a: Expr
    b: Expr
    acc: DType
    winograd: bool = False
    parts: int = 0


@dataclass(eq=False, repr=False)
class Scan:
    """Inclusive scan along output axis `along` of body, by combine ("sum", "prod", "max", ...).

    factor: what the sum of all earlier elements is multiplied by before an element is added (with
    "sum" alone); None: nothing.
    """

    along: int
    body: Expr
    combine: str
    reverse: bool = False
    factor: Expr | None = None


@dataclass(eq=False, repr=False)
class Scatter:
    """out = base (an Expr over the output axes); then for each point of `extents` (axes rank..) in
    row-major order: out[index] = combine(out[index], value). combine: "set", "sum", "prod",
    "max", "min". The order is part of the meaning (bits; the last "set" wins)."""

    base: Expr
    extents: tuple[Dim, ...]
    index: tuple[Expr, ...]
    value: Expr
    combine: str


@dataclass(eq=False, repr=False)
class Sort:
    """The first elements of a stable sort along output axis `along` of body, whose extent there is
    `extent`; as many as the output is long. Two outputs (values, int64 indices): `part` says which
    one this array is; the other shares the same `key` object. NaN sorts last (ascending) or first
    (descending)."""

    along: int
    extent: Dim
    body: Expr
    descending: bool
    part: int
    key: object


@dataclass(eq=False, repr=False)
class Call:
    """The result number `part` of calling a record's reference (host_call.py) with whole arrays:
    `operands` are loads of each at its own axes. All parts share the `key` object. `number` and
    `site` are the node's number in its graph and its fault site; `node` is the node itself."""

    operands: tuple[Expr, ...]
    part: int
    key: object
    node: Any
    number: int
    site: Any


Definition = Pointwise | Reduction | Contraction | Scan | Scatter | Sort | Call
JOINT = (Sort, Call)
"""Definitions of which several arrays, those with one `key`, come from one kernel."""


class Builder:
    """What a record's `lower` builds with: makes Arrays in order, and reads of operands.

    `site` is the fault site of the node being lowered, for `check`; `line` its source line.
    """

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.line = ""
        self.site: Any = None
        self.prefix = "t"

    def _array(self, shape: Sequence[Dim], dtype: DType, define: Definition) -> Array:
        name = f"{self.prefix}{len(self.arrays)}"
        array = Array(name, shape, dtype, define, self.line)
        self.arrays.append(array)
        return array

    def axes(self, n: int, start: int = 0) -> tuple[Expr, ...]:
        return tuple(axis(k) for k in range(start, start + n))

    def pointwise(self, shape: Sequence[Dim], dtype: DType, body: Expr) -> Array:
        if body.dtype is not dtype:
            raise InternalError(f"pointwise body has {body.dtype}, not {dtype}")
        return self._array(shape, dtype, Pointwise(body))

    def reduction(
        self,
        shape: Sequence[Dim],
        extents: Sequence[Dim],
        body: Expr,
        combine: str,
        order: str = "lanes",
    ) -> Array:
        dtype = dtypes.int64 if combine.startswith("arg") else body.dtype
        return self._array(shape, dtype, Reduction(tuple(extents), body, combine, order))

    def contraction(
        self,
        shape: Sequence[Dim],
        dtype: DType,
        *,
        batch: Sequence[int],
        m: Sequence[int],
        n: Sequence[int],
        k: Sequence[Dim],
        a: Expr,
        b: Expr,
        acc: DType,
        winograd: bool = False,
        parts: int = 0,
    ) -> Array:
        """acc is the accumulator's dtype; the result is rounded once to `dtype`."""
        define = Contraction(tuple(batch), tuple(m), tuple(n), tuple(k), a, b, acc, winograd, parts)
        return self._array(shape, dtype, define)

    def scan(
        self, shape: Sequence[Dim], along: int, body: Expr, combine: str, reverse: bool = False,
        factor: Expr | None = None,
    ) -> Array:  # fmt: skip
        return self._array(shape, body.dtype, Scan(along, body, combine, reverse, factor))

    def scatter(
        self,
        shape: Sequence[Dim],
        base: Expr,
        extents: Sequence[Dim],
        index: Sequence[Expr],
        value: Expr,
        combine: str,
    ) -> Array:
        define = Scatter(base, tuple(extents), tuple(index), value, combine)
        return self._array(shape, base.dtype, define)

    def sort(
        self, shape: Sequence[Dim], along: int, body: Expr, descending: bool,
        count: Dim | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """shape: of body. count: of the first elements that are wanted (None: all)."""
        key, extent = object(), shape[along]
        shape = [count if k == along and count is not None else d for k, d in enumerate(shape)]
        values, indices = (
            self._array(shape, dtype, Sort(along, extent, body, descending, part, key))
            for part, dtype in enumerate((body.dtype, dtypes.int64))
        )
        return values, indices

    def call(
        self, operands: Sequence[Array], types: Sequence[Any], node: Any, number: int
    ) -> tuple[Array, ...]:
        """The results, of these types (shape, dtype), of a node's reference."""
        key = object()
        reads = []
        for x in operands:
            if x.strides is not None:  # references get dense arrays
                x = self.pointwise(x.shape, x.dtype, load(x, self.axes(x.ndim)))
            reads.append(load(x, self.axes(x.ndim)))
        return tuple(
            self._array(t.shape, t.dtype, Call(tuple(reads), k, key, node, number, self.site))
            for k, t in enumerate(types)
        )

    def broadcast_read(self, x: Array, rank: int) -> Expr:
        """x read at the output's axes, aligned at the last; dims of size 1 read index 0."""
        lead = rank - x.ndim
        zero = const(0, INDEX)
        return load(
            x,
            tuple(
                zero if not isinstance(d, Sym) and d == 1 else axis(lead + i)
                for i, d in enumerate(x.shape)
            ),
        )

    def flat_index(self, index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
        """The row-major offset of `index` in `shape`."""
        total = const(0, INDEX)
        for i, d in zip(index, shape, strict=True):
            total = total * dim(d) + i
        return total

    def unflatten(self, flat: Expr, shape: Sequence[Dim]) -> tuple[Expr, ...]:
        """The index in `shape` of a row-major offset."""
        out: list[Expr] = []
        for k in range(len(shape) - 1, -1, -1):
            out.append(flat if k == 0 else flat % dim(shape[k]))
            flat = flat // dim(shape[k])
        return tuple(reversed(out))

    def check(self, index: Expr, extent: Dim) -> Expr:
        """index clamped to [0, extent), flagging this node's site when it was outside."""
        return check(index, extent, self.site)


# -- walking -------------------------------------------------------------------------------------
_SHORT = 512  # nodes; a walk that is kept with its root. Longer ones would add up.


def postorder(roots: Iterable[Expr]) -> list[Expr]:
    """Every node reachable from roots, once, arguments first."""
    found: dict[Expr, None] = {}
    for root in roots:
        if root not in found:
            below = root.below
            found |= _walk(root) if below is None else dict.fromkeys(below)
            found[root] = None
    return list(found)


def _walk(root: Expr) -> dict[Expr, None]:
    """What is below a node, in postorder; kept with it, since nodes never change."""
    seen: dict[Expr, None] = {}
    stack = [root]
    while stack:
        e = stack[-1]
        if e in seen:
            stack.pop()
            continue
        if e.below is not None:
            if e.below:
                seen |= dict.fromkeys(e.below)
            seen[e] = None
            stack.pop()
            continue
        waiting = [a for a in e.args if a not in seen]
        if waiting:
            waiting.reverse()
            stack += waiting
        else:
            seen[e] = None
            stack.pop()
    del seen[root]
    if len(seen) <= _SHORT:
        root.below = tuple(seen)
    return seen


def rebuild(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """e with other arguments (folded and interned)."""
    if args == e.args:  # the same objects: expressions have no equality of their own
        return e
    if e.op == "select":
        return rare(*args) if e.attr == "rare" else select(*args)
    if e.op in ARITHMETIC or e.op in COMPARE or e.op in MATH:
        return make(e.op, *args)
    if e.op == "cast":
        return args[0].cast(e.dtype)
    if e.op == "check":
        return _check(args[0], args[1], e.attr)
    return _intern(e.op, args, e.dtype, e.attr)


def rewrite(
    root: Expr, leaf: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None
) -> Expr:
    """Rewrites bottom-up: `leaf(e)` (e with rewritten arguments) gives a replacement or None.

    Pass one `memo` for several roots that are rewritten by the same function.
    """
    memo = {} if memo is None else memo
    for e in postorder([root]):
        if e in memo:
            continue
        new = rebuild(e, tuple([memo[a] for a in e.args])) if e.args else e
        replaced = leaf(new)
        memo[e] = new if replaced is None else replaced
    return memo[root]


def substitute_axes(root: Expr, axes: Mapping[int, Expr]) -> Expr:
    """root with axis variables replaced."""
    asked = 0
    for k in axes:
        asked |= 1 << k
    if not root.axes & asked:
        return root
    memo: dict[Expr, Expr] = {}
    for e in postorder([root]):
        if not e.axes & asked:
            memo[e] = e
        elif e.op == "axis":
            memo[e] = axes[e.attr]
        else:
            memo[e] = rebuild(e, tuple([memo[a] for a in e.args]))
    return memo[root]


def loads(roots: Iterable[Expr]) -> list[Expr]:
    """All distinct load nodes under roots, in a fixed order."""
    return [e for e in postorder(roots) if e.op == "load"]


def definition_exprs(array: Array) -> list[Expr]:
    """The root expressions of an array's definition."""
    d = array.define
    if d is None:
        return []
    if isinstance(d, Contraction):
        return [d.a, d.b]
    if isinstance(d, Scatter):
        return [d.base, *d.index, d.value]
    if isinstance(d, Call):
        return list(d.operands)
    if isinstance(d, Scan) and d.factor is not None:
        return [d.body, d.factor]
    return [d.body]
