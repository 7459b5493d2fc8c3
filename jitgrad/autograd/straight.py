"""Derivatives as straight code: what backward runs, on arrays, of applications met before.

A record's vjp is Python that applies records. For one choice of types, attributes and wanted
gradients it applies the same ones each time, so it is run once on stand-ins that note them, and
becomes a function that calls their kernels one after another. Kernels are dispatch's, and so are
the bits: those of the vjp on tensors.

Owns the stand-ins and the making of functions. Who runs them, and when, is bare.py's. Updates of
parameters become such code, too (optim/straight.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.device import device
from jitgrad.dispatch import Kept, plan_of
from jitgrad.promotion import constant
from jitgrad.runtime.dtypes import DType
from jitgrad.tape.node import EVERY


class Typed:
    """Something of a tensor's type: what a vjp asks of its operands."""

    __slots__ = ("_type",)

    _type: TensorType

    @property
    def shape(self) -> Any:
        return self._type.shape

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    @property
    def dtype(self) -> DType:
        return self._type.dtype

    @property
    def device(self) -> Any:
        where = self._type.device
        return where if type(where) is device else device(where)


class NotStraight(Exception):
    """What is applied does not follow from types alone."""


class Code:
    """Steps over arrays that become a function.

    A step is (variables set, the call, variables read, whether it writes to an argument).
    """

    def __init__(self) -> None:
        self.steps: list[tuple[tuple[str, ...], str, tuple[str, ...], bool]] = []
        self.scope: dict[str, Any] = {"asarray": np.asarray, "copyto": np.copyto}
        self._fresh: dict[str, int] = {}  # variables that one of NumPy's ufuncs makes: the step
        self._types: dict[str, TensorType] = {}  # theirs
        self._stored: dict[str, set[str]] = {}  # what was written to: variables that are it now
        self._stale: set[str] = set()  # variables that were it before

    def name(self, value: Any) -> str:
        """A name for a value that the function has from the start."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def add(
        self, op: Any, attrs: dict[str, Any], plan: Any, names: tuple[str, ...]
    ) -> tuple[str, ...]:
        """A step that applies a record; the names of its results."""
        self._expect_whole(names)
        count = 1 if op.nout == 1 else len(plan.types)
        first = len(self.steps)
        targets = tuple([f"v{first}_{k}" for k in range(count)])
        kernel = plan.kernel
        if kernel is None:
            kernel = partial(op.reference, **attrs) if attrs else op.reference
        call = f"{self.name(kernel)}({', '.join(names)})"
        if plan.fresh and plan.kernel.signature is None:  # element by element
            self._fresh[targets[0]], self._types[targets[0]] = first, plan.types
        if op.nout == 1 and not plan.types.shape:  # maybe a NumPy scalar
            call = f"asarray({call})"
        self.steps.append((targets, call, names, False))
        return targets

    def write(self, target: str, value: str) -> None:
        """A step that writes a variable to an argument; from here on, reading either gives it."""
        self._expect_whole((value,))
        last = len(self.steps) - 1
        if self._fresh.get(value) == last:  # made there in the first place
            targets, call, names, _ = self.steps[last]
            call = call.removeprefix("asarray(").rstrip(")") + f", out={target})"
            self.steps[last] = (targets, call, names, True)
            stored = {value}
        else:
            self.steps.append(((), f"copyto({target}, {value})", (value,), True))
            stored = set()
        for old in self._stored.get(target, ()):  # they would show what is written now
            self._stale.add(old)
        self._stored[target] = stored

    def _expect_whole(self, names: tuple[str, ...]) -> None:
        if not self._stale.isdisjoint(names):
            raise NotStraight

    def function(self, arguments: list[str], results: list[str | None]) -> Callable[..., Any]:
        """run(*arguments) -> the tuple of results, without the steps that nothing needs. What is
        read for the last time gives its memory to a result of its type."""
        needed = {name for name in results if name is not None}
        held = needed.union(self._stale, *self._stored.values())  # what must stay as it is
        for targets, _, names, _ in self.steps:
            if not targets or targets[0] not in self._fresh:  # its result may show them
                held.update(names)
        lines: list[str] = []
        for targets, call, names, writes in reversed(self.steps):
            if writes or not needed.isdisjoint(targets):
                if not writes and targets[0] in self._fresh:
                    wanted = self._types[targets[0]]
                    for name in names:  # read here for the last time, and of the result's type
                        last = name not in needed and name not in held
                        if last and self._types.get(name) == wanted and wanted.shape:
                            call = call[:-1] + f", out={name})"
                            break
                needed.update(names)
                ends = "," * (len(targets) > 1)
                lines.append(f"    {', '.join(targets)}{ends}{' = ' * bool(targets)}{call}")
        lines.append(f"def run({', '.join(arguments)}):")
        lines.reverse()
        lines.append(f"    return ({', '.join(map(str, results))}{',' * bool(results)})")
        exec(compile("\n".join(lines), "<straight code of jitgrad>", "exec"), self.scope)
        made: Callable[..., Any] = self.scope["run"]
        return made


class StandIn(Typed):
    """An operand of a vjp that is run for its steps: `name` is its variable, None of what is not
    saved, or computed from that."""

    __slots__ = ("code", "name")

    def __init__(self, code: Code, name: str | None, type_: TensorType) -> None:
        self._type, self.code, self.name = type_, code, name

    def _constant(self, value: Any, dtype: DType) -> StandIn:
        found = constant(value, dtype)
        return StandIn(self.code, self.code.name(found._data), found._type)

    def _bind(self, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Notes an application; gives stand-ins for its results."""
        dtype = next((x.dtype for x in operands if isinstance(x, StandIn)), None)
        whole = [
            x if dtype is None or isinstance(x, StandIn) else self._constant(x, dtype)
            for x in operands
        ]
        plan = plan_of(op, tuple(whole), attrs)
        if op.random or not plan.lasts:
            raise NotStraight
        types = plan.types if op.nout != 1 else (plan.types,)
        names = tuple([x.name for x in whole if x.name is not None])
        targets: tuple[str | None, ...] = (None,) * len(types)
        if len(names) == len(whole):
            targets = self.code.add(op, attrs, plan, names)
        made = tuple([StandIn(self.code, n, t) for n, t in zip(targets, types, strict=True)])
        return made if op.nout != 1 else made[0]


STRAIGHT = 3
"""The use at which a derivative is made: what runs once or twice would not pay for it."""
_NEVER = -(1 << 60)  # a count of uses that does not get there


def make(op: Any, attrs: dict[str, Any], kept: Kept) -> None:
    """Gives `kept` its straight derivative, where there is one."""
    kept.uses = _NEVER
    plan, code = kept.plan, Code()
    many = (*plan.operand_types, plan.types)
    if not plan.lasts or op.nout != 1 or any(t.device != "cpu" for t in many):
        return
    saves = op.saves
    arguments = ["g"]
    reads: list[int] = []
    operands: list[Any] = []
    for i, t in enumerate(plan.operand_types):
        saved = kept.operands is not None and kept.operands[i]
        if saved:
            arguments.append(f"x{i}")
            reads.append(i)
        if saved or i in saves or EVERY in saves:
            operands.append(StandIn(code, f"x{i}" if saved else None, t))
        else:
            operands.append(t)
    out: Any = plan.types
    if kept.results:
        arguments.append("out")
    if kept.results or "out" in saves or "out0" in saves:
        out = StandIn(code, "out" if kept.results else None, plan.types)
    g = StandIn(code, "g", plan.types)
    needs = [bool(kept.wanted >> i & 1) for i in range(len(operands))]
    chosen = {"needs": needs} if op.chooses else {}
    try:
        found = op.vjp(g, out, *operands, **chosen, **attrs)
    except Exception:  # the same error comes, with its line, where the vjp is run itself
        return
    if type(found) is not tuple or len(found) < len(operands):
        return
    names: list[str | None] = []
    types: list[TensorType | None] = []
    for want, x in zip(needs, found, strict=False):
        if not want or x is None:
            names.append(None)
            types.append(None)
        elif type(x) is StandIn and x.name is not None:
            names.append(x.name)
            types.append(x._type)
        else:
            return
    kept.reads, kept.types = tuple(reads), tuple(types)
    kept.run = code.function(arguments, names)  # last: another thread may look
