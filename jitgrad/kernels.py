"""Compiled kernels of single ops, which eager code runs where they pay (JITGRAD_EAGER=auto).

Owns when one is made, how its graph of one node is formed, and the fall back to the record's
reference. How much work an application is, the record says (`Op.work`); the compiler's pipeline and
its disk cache do the rest, as for jit, so the bits are those of compiled code.

Elementwise ops are compiled once for all shapes: axes along which every operand advances alike are
one symbolic dim. Other ops are compiled for the shapes they meet; after three that differ in one
size only, with a symbolic dim for it. Whether a kernel runs is decided by types alone, and its bits
do not depend on symbolic dims: what a program computes depends neither on time nor on what ran
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.ops.record import Elementwise
from jitgrad.compiler.symbolic import ShapeEnv, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.buffers import empty_array
from jitgrad.runtime.knobs import knobs
from jitgrad.runtime.userline import warn
from jitgrad.state import state

if TYPE_CHECKING:
    from jitgrad.compiler.compiled import Compiled

WORTH = 2**17
"""The work (`Op.work`) from which on a kernel is compiled: about 0.1 ms of NumPy's time."""

MUCH = 2**26
"""The work from which on a kernel of an op that is slow (`Op.slow`) pays in a function that is
being recorded: what the reference needs longer in two recordings is what compiling takes."""

DRAWS = 256
"""So many times NumPy draws few numbers of one shape, which takes it 0.1 ms, too, before a kernel
is compiled: they are drawn at each step (dropout) or, where weights are made, once. Random records
are made of exact operations only, so a kernel's bits are the reference's."""

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def kernel_of(
    op: Any, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any],
    plain: Function,
) -> Function | None:  # fmt: skip
    """What runs an op on arrays of these types by a compiled kernel, else by `plain`; None where
    none pays. Nothing is compiled before the first call."""
    if op.view or op.host or not types or _has_float(tuple(attrs.values())):
        return None
    if any(t.dtype.is_complex for t in (*types, *outs)) or any(t.numel == 0 for t in outs):
        return None
    if op.graph is not None:
        return _OneGraph(op, types, outs, attrs, plain)
    much = op.work(types, outs, attrs) >= WORTH
    if op.random:
        return _Draw(op, types, outs, attrs, plain, 0 if much else DRAWS)
    if not much:
        return None
    if isinstance(op, Elementwise):
        return _EachElement(op, types, outs, attrs, plain)
    return _OneOp(op, types, outs, attrs, plain)


def _has_float(values: Any) -> bool:
    """Whether there is a float among attributes: 0.0 and -0.0 are one key of a plan."""
    return any(isinstance(v, float) or (isinstance(v, tuple) and _has_float(v)) for v in values)


class _OneOp:
    """An op's kernel for arrays of certain types. Calls take arrays of any strides."""

    def __init__(
        self, op: Any, types: Sequence[TensorType], outs: Sequence[TensorType],
        attrs: dict[str, Any], plain: Function,
    ) -> None:  # fmt: skip
        self.op, self.types, self.attrs, self.plain = op, tuple(types), dict(attrs), plain
        self.outs = [(tuple(map(int, t.shape)), t.dtype.np) for t in outs]
        self.compiled: Compiled | None = None
        self.failed = False
        # A function that is being recorded runs once like this, so a kernel seldom pays.
        self.pays_once = op.slow and op.work(types, outs, attrs) >= MUCH

    def __call__(self, *arrays: Array) -> Any:
        if self.failed or knobs.eager == "numpy":
            return self.plain(*arrays)
        if self.compiled is None:
            if state.recorder and not self.pays_once:
                return self.plain(*arrays)
            self.compiled = self._compile()
            if self.compiled is None:
                self.failed = True
                return self.plain(*arrays)
        dense = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
        results = [empty_array(shape, dtype) for shape, dtype in self.outs]
        try:
            self._run(self.compiled, dense, results)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return self.plain(*arrays)  # an element that is not as asked: the reference says so
        return results[0] if self.op.nout == 1 else tuple(results)

    def _run(self, compiled: Compiled, arrays: list[Array], results: list[Array]) -> None:
        compiled.run(arrays, results=results)

    def _compile(self) -> Compiled | None:
        key = (self.op, tuple([(t.dtype, t.ndim) for t in self.types]), tuple(self.attrs.items()))
        family = _families.get(key)
        if family is None:
            op, attrs = self.op, self.attrs
            family = _families[key] = Family(
                lambda types, env: compile_node(op, types, attrs, env), self.types
            )
        return family.find([tuple(map(int, t.shape)) for t in self.types])


def compile_node(
    op: Any, types: Sequence[TensorType], attrs: dict[str, Any], env: ShapeEnv | None = None
) -> Compiled | None:
    """The op compiled for these types; None, with a warning, where that fails."""
    from jitgrad.compiler.one_node import compile_op

    return attempt(op.name, types, lambda: compile_op(op, types, attrs, env))


def attempt(
    name: str, types: Sequence[TensorType], make: Callable[[], Compiled]
) -> Compiled | None:
    """What `make` compiles for operands of these types; None, with a warning, where it fails."""
    try:
        return make()
    except Exception as error:
        warn(
            f"[{name}] expected to compile a kernel for {', '.join(map(str, types))}, but: "
            f"{type(error).__name__}: {error}; eager code goes on with NumPy "
            "(JITGRAD_EAGER=numpy never compiles)"
        )
        return None


# -- sizes that change -----------------------------------------------------------------------------
Shapes = list[tuple[int, ...]]
_EXACT = 3
"""So many shapes that differ in one size get code of their own; then it is symbolic."""
_MOST_EXACT = 64
"""So many shapes of a family get code of their own; then all that changed is symbolic."""


class Family:
    """What is made for operands of the dtypes and ranks of `types`: make(types, env), or None. env
    has the symbolic dims of the types; None where there are none."""

    def __init__(self, make: Callable[..., Any], types: Sequence[TensorType]) -> None:
        self.make = make
        self.like = [(t.dtype, t.device) for t in types]
        self.seen: list[Shapes] = []
        self.exact: dict[tuple[Any, ...], Any] = {}
        self.general: list[tuple[ShapeEnv, list[tuple[Any, ...]], Any]] = []

    def find(self, shapes: Shapes) -> Any:
        """What was made for these shapes, or for sizes that they have."""
        key = tuple(shapes)
        if key not in self.exact:
            self.exact[key] = self._find(shapes)
        return self.exact[key]

    def _find(self, shapes: Shapes) -> Any:
        for env, form, made in self.general:
            if _fits(env, form, shapes):
                return made
        relatives = self._relatives(shapes)
        self.seen.append(shapes)
        if len(self.seen) > _MOST_EXACT:
            relatives = self.seen[:-1]
        elif len(relatives) < _EXACT:
            return self.make(self._types(shapes), None)
        env = ShapeEnv()
        form = _form(env, [*relatives, shapes])
        if not _fits(env, form, shapes):  # a size of 0 or 1, which code is made for
            return self.make(self._types(shapes), None)
        found = self.make(self._types(form), env)
        if found is not None:
            self.general.append((env, form, found))
        return found

    def _types(self, shapes: Sequence[tuple[Any, ...]]) -> list[TensorType]:
        return [TensorType(shape, *like) for shape, like in zip(shapes, self.like, strict=True)]

    def _relatives(self, shapes: Shapes) -> list[Shapes]:
        """The shapes seen that differ from these in one size, wherever it shows (a batch, say): of
        several such sizes, that which changed most often."""
        found: dict[tuple[tuple[int, int], ...], list[Shapes]] = {}
        for seen in self.seen:
            places = tuple(
                [(i, k) for i, s in enumerate(seen) for k in range(len(s)) if s[k] != shapes[i][k]]
            )
            if all(len({s[i][k] for i, k in places}) == 1 for s in (seen, shapes)):
                found.setdefault(places, []).append(seen)
        return max(found.values(), key=len, default=[])


def _form(env: ShapeEnv, group: Sequence[Shapes]) -> list[tuple[Any, ...]]:
    """The last shapes of a group, with a symbolic dim for what changed in it: one for all places
    that changed alike."""
    dims: dict[tuple[int, ...], Any] = {}
    form = []
    for i, shape in enumerate(group[-1]):
        sizes: list[Any] = []
        for k, size in enumerate(shape):
            ever = tuple([shapes[i][k] for shapes in group])
            if len(set(ever)) > 1:
                if ever not in dims:
                    dims[ever] = env.dim(f"n{len(dims)}", size)
                sizes.append(dims[ever])
            else:
                sizes.append(size)
        form.append(tuple(sizes))
    return form


def _fits(env: ShapeEnv, form: Sequence[tuple[Any, ...]], shapes: Shapes) -> bool:
    """Whether code for this form runs these shapes."""
    values: dict[str, int] = {}
    for wanted, shape in zip(form, shapes, strict=True):
        for d, size in zip(wanted, shape, strict=True):
            if not isinstance(d, Sym):
                if d != size:
                    return False
            elif size < 2 or values.setdefault(str(d), size) != size:
                return False
    return env.holds(values)


_families: dict[Any, Family] = {}


# -- composites ------------------------------------------------------------------------------------
class _OneGraph(_OneOp):
    """What a record that stands for a graph (composites.py) runs, compiled."""

    def __call__(self, *arrays: Array) -> Any:
        return self.op.laid(super().__call__(*arrays))

    def _compile(self) -> Compiled | None:
        compiled: Compiled | None = self.op.compiled
        return compiled


# -- random ops ------------------------------------------------------------------------------------
class _Draw(_OneOp):
    """A random op's kernel. An element depends on its row-major number only, so one that makes
    some more elements (less than an eighth) serves many shapes."""

    def __init__(
        self, op: Any, types: Sequence[TensorType], outs: Sequence[TensorType],
        attrs: dict[str, Any], plain: Function, before: int,
    ) -> None:  # fmt: skip
        super().__init__(op, types, outs, attrs, plain)
        self.before = before  # draws by NumPy that come first
        ((self.shape, dtype),) = self.outs
        self.count = math.prod(self.shape)
        step = 1 << max(self.count.bit_length() - 4, 0)
        more = -(-self.count // step) * step
        self.attrs["shape"] = (more,)
        self.outs = [((more,), dtype)]

    def __call__(self, *arrays: Array) -> Any:
        if self.before > 0:
            self.before -= 1
            return self.plain(*arrays)
        found = super().__call__(*arrays)
        if found.shape == self.shape:  # by `plain`, say
            return found
        return found[: self.count].reshape(self.shape)


# -- elementwise ops -------------------------------------------------------------------------------
_each: dict[Any, Compiled | None] = {}
"""Kernels of elementwise ops by op, dtypes, attributes and the pattern of broadcasting."""


class _EachElement(_OneOp):
    """An elementwise op's kernel. Its arrays are shown with fewer dims: axes of size 1 go, and
    neighbours along which the same operands advance are one."""

    def __init__(
        self, op: Any, types: Sequence[TensorType], outs: Sequence[TensorType],
        attrs: dict[str, Any], plain: Function,
    ) -> None:  # fmt: skip
        super().__init__(op, types, outs, attrs, plain)
        whole = self.outs[0][0]
        sizes: list[int] = []
        moves: list[tuple[bool, ...]] = []  # for each axis, which operands advance along it
        for k, size in enumerate(whole):
            if size == 1:
                continue
            here = tuple([_size(t, k - len(whole)) != 1 for t in types])
            if moves and moves[-1] == here:
                sizes[-1] *= size
            else:
                sizes.append(size)
                moves.append(here)
        self.sizes, self.moves = sizes, moves
        self.shapes = [self._shown(i, sizes) for i in range(len(types))]

    def _shown(self, i: int, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """Operand i's shape for these sizes: 1 where it does not advance; () if it never does."""
        if not any(m[i] for m in self.moves):
            return ()
        return tuple([n if m[i] else 1 for n, m in zip(sizes, self.moves, strict=True)])

    def _run(self, compiled: Compiled, arrays: list[Array], results: list[Array]) -> None:
        shown = [x.reshape(shape) for x, shape in zip(arrays, self.shapes, strict=True)]
        compiled.run(shown, results=[results[0].reshape(self.sizes)])

    def _compile(self) -> Compiled | None:
        dtypes = tuple([t.dtype for t in self.types])
        key = (self.op, dtypes, tuple(self.attrs.items()), tuple(self.moves))
        if key in _each:
            return _each[key]
        env = ShapeEnv()
        dims = [env.dim(f"n{k}", n) for k, n in enumerate(self.sizes)]
        found = compile_node(self.op, self._types(dims), self.attrs, env)
        if env.guards:  # the code holds for some sizes only
            return compile_node(self.op, self._types(self.sizes), self.attrs)
        _each[key] = found
        return found

    def _types(self, sizes: Sequence[Any]) -> list[TensorType]:
        return [
            TensorType(self._shown(i, sizes), t.dtype, t.device) for i, t in enumerate(self.types)
        ]


def _size(t: TensorType, k: int) -> Any:
    """The size of the axis that is -k-th from the back; 1 where there is none."""
    return t.shape[k] if -k <= len(t.shape) else 1
