"""What modules of the C interface are made of: constants, public functions, the descriptor.

Owns `Port` and `Model`, which say what a library is, and `Interface`, on which capi.py (a model for
one processor) and levels.py (a choice of such) stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline
from jitgrad.compiler.codegen.pycall import emit_py_call
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.words import I32, I64, PTR, const, define, word
from jitgrad.compiler.image import Image
from jitgrad.compiler.size_limits import at_most
from jitgrad.compiler.symbolic import Dim, Guard, Sym, expression, prod, surely_le
from jitgrad.runtime import artifact_format as fmt


@dataclass(frozen=True)
class Port:
    """An input or an output of a library."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    itemsize: int

    @property
    def numel(self) -> int:
        """How many elements it has, at most."""
        return at_most(prod(self.shape))

    @property
    def vacant(self) -> list[int]:
        """Its axes whose size may be 0."""
        dims = enumerate(self.shape)
        return [k for k, d in dims if isinstance(d, Sym) and not surely_le(1, d)]

    @property
    def spare(self) -> int:
        """The most bytes of what is left of it where the index of a dim that may be 0 is 0."""
        rests = [(*self.shape[:k], *self.shape[k + 1 :]) for k in self.vacant]
        return max((at_most(prod(rest)) * self.itemsize for rest in rests), default=0)

    @property
    def labels(self) -> list[int | str]:
        """Its shape for people and loaders: numbers, and names or formulas of symbolic dims."""
        return [expression(d) if isinstance(d, Sym) else int(d) for d in self.shape]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.labels))}]"


class Size(NamedTuple):
    """A symbolic dim, and the range that its size must lie in."""

    name: str
    low: int
    high: int


@dataclass
class Model:
    """What a library holds besides the kernels' code.

    Attributes:
        name: a C identifier; functions are called jg_<name>_run and so on.
        inputs, outputs: with their slots in the pointer table, in the caller's order.
        state: {slot: byte offset in the weights}; weights_bytes: their size, all told.
        own: the state of a graph that writes to it, in the order of `state`: each instance has a
            copy of all weights. Empty where instances share them.
        faults: the text for each error site.
        features: (feature, text when it is missing) that the code needs.
        metadata: JSON text for the loader. version: one line for people.
        weights: the bytes, where an object of the target cannot be filled later.
        side: the layout of the file that the weights are in, b"" where the library has them;
            weights_file: what it is called.
        sizes: the symbolic dims; empty: those at whose size of 0 there is nothing to compute.
        conditions: what else must hold of them. syms: what kernels read, in the order of the
        instance's words.
    """

    name: str
    image: Image
    inputs: list[tuple[int, Port]]
    outputs: list[tuple[int, Port]]
    state: Mapping[int, int] = field(default_factory=dict)
    weights_bytes: int = 0
    faults: list[str] = field(default_factory=list)
    features: list[tuple[str, str]] = field(default_factory=list)
    metadata: str = "{}"
    version: str = ""
    weights: bytes = b""
    own: list[Port] = field(default_factory=list)
    side: bytes = b""
    weights_file: str = ""
    sizes: list[Size] = field(default_factory=list)
    empty: Sequence[str] = ()
    conditions: list[Guard] = field(default_factory=list)
    syms: list[Sym] = field(default_factory=list)

    @property
    def ports(self) -> list[Port]:
        """The inputs, then the outputs."""
        return [p for _, p in (*self.inputs, *self.outputs)]

    @property
    def spare(self) -> int:
        """The bytes that kernels may read of an array without elements (`ops/regions.readable`);
        0 where none has no elements."""
        return max((p.spare for p in self.ports), default=0)

    @property
    def useful_threads(self) -> int:
        """The most blocks that a wave has: more threads than that would find no work."""
        most, blocks = 1, 0
        for kernel, _, total, grain, last in self.image.launches[self.image.n_once :]:
            total = at_most(self.syms[-total - 1]) if total < 0 else total
            blocks += 0 if kernel < 0 else -(-total // grain)
            most = max(most, blocks)
            if last or kernel < 0:
                blocks = 0
        return min(most, 1024)


class Interface:
    """A module under construction."""

    def __init__(self, model: Model, target: Target) -> None:
        self.model, self.target = model, target
        self.module = ir.Module(f"jitgrad_{model.name}")
        self.module.triple = target.triple
        self._texts: dict[str, ir.GlobalVariable] = {}

    # -- constants -----------------------------------------------------------------------------
    def _declare(self, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
        return ir.Function(self.module, ir.FunctionType(result, params), name)

    def _constant(self, value: ir.Constant, name: str = "data") -> ir.GlobalVariable:
        made = ir.GlobalVariable(self.module, value.type, self.module.get_unique_name(f"jg.{name}"))
        made.initializer, made.linkage, made.global_constant = value, "internal", True
        return made

    def text(self, text: str) -> ir.GlobalVariable:
        """A C string."""
        if text not in self._texts:
            data = bytearray(text.encode().replace(b"\0", b"") + b"\0")
            array = ir.Constant(ir.ArrayType(ir.IntType(8), len(data)), data)
            self._texts[text] = self._constant(array, "text")
        return self._texts[text]

    def array(self, element: ir.Type, values: Sequence[ir.Value], name: str) -> ir.GlobalVariable:
        # Never empty: an index of 0 is then always inside.
        items = list(values) or [ir.Constant(element, None if element is PTR else 0)]
        return self._constant(ir.Constant(ir.ArrayType(element, len(items)), items), name)

    def words(self, values: Sequence[int], name: str) -> ir.GlobalVariable:
        return self.array(I64, [const(v) for v in values], name)

    def struct_array(self, rows: list[list[ir.Value]], name: str) -> ir.GlobalVariable:
        """Rows of words. A pointer of 4 bytes gets 4 of zeros, so that it reads as a word."""
        if self.target.pointer_bytes == 4:
            zero = ir.Constant(I32, 0)
            rows = [[y for x in row for y in ([x, zero] if type_of(x) is PTR else [x])]
                    for row in rows]  # fmt: skip
        kind = ir.LiteralStructType([type_of(x) for x in rows[0]])
        values = [ir.Constant(kind, [reference(x) for x in row]) for row in rows]
        return self._constant(ir.Constant(ir.ArrayType(kind, len(values)), values), name)

    def public(
        self, name: str, result: ir.Type, params: list[ir.Type]
    ) -> tuple[ir.Function, ir.IRBuilder]:
        symbol = f"jg_{self.model.name}_{name}"
        function, b = define(self.module, symbol, result, params, public=True)
        return function, b

    def _return_text(self, name: str, text: str) -> ir.Function:
        function, b = self.public(name, PTR, [])
        baseline(function, self.target)
        b.ret(reference(self.text(text)))
        return function

    def _emit_py_call(self) -> ir.Function:
        """`jg_py_call` (see pycall.py) whose arguments are the inputs, then the outputs.

        Its Ctx is the instance, its bufs a table of pointers, its nrows the number of inputs.
        """
        function, b = define(self.module, "jg.run_all", I32, [PTR, PTR, PTR, I64])
        me, pointers, _, n_inputs = function.args
        run = self.module.get_global(f"jg_{self.model.name}_run")
        b.ret(b.call(run, [me, pointers, word(b, pointers, n_inputs)]))
        emit_py_call(self.module, function)
        return self.module.get_global("jg_py_call")

    def _emit_descriptor(self, **functions: ir.Function) -> None:
        magic = int.from_bytes(fmt.DESCRIPTOR_MAGIC, "little")
        row = [const(magic), const(fmt.FORMAT_VERSION), self.text(self.model.metadata)]
        order = ("status", "create", "destroy", "run", "last_error", "py_call", "set_sizes",
                 "output_shape", "create_with")  # fmt: skip
        row += [functions.get(name, ir.Constant(PTR, None)) for name in order]
        assert len(row) == fmt.DESC_WORDS
        value = ir.Constant(
            ir.LiteralStructType([type_of(x) for x in row]), [reference(x) for x in row]
        )
        table = ir.GlobalVariable(self.module, value.type, fmt.DESCRIPTOR)
        table.initializer, table.global_constant = value, True
        # Weak: two models linked into one program do not clash; the loader opens one at a time.
        table.linkage = "weak"


def type_of(x: ir.Value) -> ir.Type:
    return PTR if isinstance(x, (ir.Function, ir.GlobalVariable)) else x.type


def reference(x: ir.Value) -> ir.Value:
    """The address of a function or global as a plain `ptr` constant."""
    if isinstance(x, (ir.Function, ir.GlobalVariable)):
        return ir.FormattedConstant(PTR, x.get_reference())
    return x
