"""Lowered: a function compiled from the shapes of its arguments alone, before it is called.

Owns `TensorSpec`, tracing without data (the function's Python runs once; what it changed of
tensors, slots and generators is put back), and the object that `jit(f).lower(...)` gives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.codegen.cuda.target import gpu_target
from jitgrad.compiler.graph_cache import find_compiled
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.printer import kernel_text, plan_text
from jitgrad.compiler.symbolic import ShapeEnv, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.device import device as make_device
from jitgrad.effects import is_module
from jitgrad.explain import compile_options, pair_options
from jitgrad.facts import layout
from jitgrad.lifting import leaf_names
from jitgrad.pytree import flatten, tree_map, unflatten
from jitgrad.recorder import Recorder
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import CompileError
from jitgrad.state import defaults
from jitgrad.symbols import Symbols
from jitgrad.tensor import Tensor, wrap

_MISSING: Any = object()


class TensorSpec:
    """Shape and dtype of a tensor that is not there: an argument of `jit(f).lower`.

    dtype: the default dtype if None. requires_grad: as the tensor's will be.

    Raises TypeError for what is no shape or dtype, RuntimeError for a negative size.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DType | None = None,
        *,
        device: Any = "cpu",
        requires_grad: bool = False,
    ) -> None:
        if dtype is not None and not isinstance(dtype, DType):
            raise TypeError(f"[TensorSpec] expected a dtype such as jitgrad.float32; got {dtype!r}")
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(d, int) and not isinstance(d, bool) for d in sizes):
            raise TypeError(f"[TensorSpec] expected a shape of integers; got {shape!r}")
        if any(d < 0 for d in sizes):
            raise RuntimeError(f"[TensorSpec] expected sizes of 0 or more; got {sizes}")
        self.shape = sizes
        self.dtype = defaults.dtype if dtype is None else dtype
        self.device = make_device(device)
        self.requires_grad = requires_grad

    @classmethod
    def of(cls, x: Tensor) -> TensorSpec:
        """The spec of a tensor."""
        return cls(tuple(x.shape), x.dtype, device=x.device, requires_grad=x.requires_grad)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"TensorSpec({self.shape}, {self.dtype}{grad})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, str(self.device), self.requires_grad))

    def absent(self) -> Tensor:
        """A tensor of this type without data."""
        out = wrap(None, TensorType(self.shape, self.dtype, str(self.device)))
        out._requires_grad = self.requires_grad
        return out


class _Tracer(Recorder):
    """A recorder that can put back what the traced function rebound and wrote."""

    made: _Tracer | None = None

    def __init__(self, name: str, finder: Any) -> None:
        super().__init__(name, finder)
        self._undo: list[Callable[[], None]] = []

    def rebind(self, owner: Any, key: Any, value: Any) -> None:
        self._undo.append(_put_back(owner, key))
        super().rebind(owner, key, value)

    def begin_before(self, state_of: Any, make: Any) -> None:
        """State begins where it is asked for, which is put back."""

    def undo(self) -> None:
        for put_back in reversed(self._undo):
            put_back()
        for generator, count in self._draws.items():
            generator.give_back(generator.draws - count, count)
        for entry in self.entries:
            if entry.storage is not None:
                entry.storage.version -= self._counts.of(entry.storage)
                entry.storage.hidden -= self._hidden.of(entry.storage)


def _put_back(owner: Any, key: Any) -> Callable[[], None]:
    """What sets a slot to what it holds now."""
    if isinstance(owner, Tensor):
        name = {"grad": "_grad", "requires_grad": "_requires_grad"}.get(key)
        if name is None:
            raise CompileError(f"[lower] cannot trace without data: the function sets .{key}")
        before = getattr(owner, name)
        held = weakref.ref(owner)  # what the function made is let go with it

        def put_back_slot() -> None:
            x = held()
            if x is not None:
                setattr(x, name, before)

        return put_back_slot
    holder = owner
    if is_module(owner):
        holder = owner._buffers if key in owner._buffers else vars(owner)
    before = holder.get(key, _MISSING)

    def put_back() -> None:
        if before is _MISSING:
            dict.pop(holder, key, None)
        else:
            dict.__setitem__(holder, key, before)

    return put_back


class Lowered:
    """A function's graph for arguments of given types; nothing has run on data.

    Attributes:
        graph: the recorded graph (compiler/ir.py); `str()` of the object is its text.
        backward: the graph of the results' gradients, where some result requires grad; or None.
    """

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
        env: ShapeEnv | None = None,
    ) -> None:  # fmt: skip
        self.function = function
        absent = tree_map(_without_data, (args, kwargs))
        symbols = None
        if env is None:
            absent, symbols = _symbolic(function, *absent)
            env = ShapeEnv() if symbols is None else symbols.env
        self.args, self.kwargs = tree_map(_spec, absent)
        made: list[_Tracer] = []

        def recorder(name: str, finder: Any) -> _Tracer:
            made.append(_Tracer(name, finder))
            return made[0]

        try:
            self.trace = function.symbolic_trace(absent[0], env, absent[1], recorder)
        except RuntimeError as error:
            if "is abstract" not in str(error):
                raise
            where = f" at {made[0].line}" if made and made[0].line else ""
            raise CompileError(
                f"[lower] {function.name} needs a tensor's value{where}, which is not there: "
                f"{error}; call the function instead"
            ) from error
        finally:
            for tracer in made:
                tracer.undo()
        if symbols is not None and (fixed := symbols.fixed()):
            raise CompileError(f"[lower] {function.name}: {fixed}")
        self.graph: Graph = self.trace.graph
        pair = self.trace.pair
        self.backward: Graph | None = None if pair is None else pair.backward
        for entry in self.trace.entries:
            entry.strides = None if entry.array is None else layout(entry.array)
        options = compile_options(self.trace)
        self.options = replace(options, memory_limit=function.memory_limit)
        self._stages: Any = None
        self._held: list[Any] = []

    def __str__(self) -> str:
        parts = [str(self.graph)] + ([str(self.backward)] if self.backward is not None else [])
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<lowered {self.function.name}: {len(self.graph.nodes)} nodes>"

    @property
    def stages(self) -> Any:
        """The graph at every level of the compiler (pipeline.Stages); nothing is loaded."""
        if self._stages is None:
            from jitgrad.compiler.pipeline import stages_of

            self._stages = stages_of(self.graph, self.options)[1]
        return self._stages

    @property
    def kernels(self) -> list[Any]:
        """The kernels, in the order in which they run; `loops()` prints them."""
        return list(self.stages.kernels)

    def memory_plan(self) -> str:
        """Peak of the arena, its lower bound, and where every buffer lies, in bytes."""
        return plan_text(self.stages.plan)

    def loops(self) -> str:
        """The loops of each kernel."""
        return "\n\n".join(map(kernel_text, self.kernels))

    def llvm(self) -> str:
        """The LLVM assembly of each distinct kernel."""
        texts = dict.fromkeys(g.module_text for g in self.stages.generated.values())
        return "\n".join(texts)

    def _cuda(self, arch: str) -> Iterator[tuple[str, str, Any]]:
        """(source of its module, symbol, Shape) of each distinct GPU kernel, backward ones too."""
        from jitgrad.compiler.pipeline import cuda_stages

        target = gpu_target(arch)
        graphs = [(self.graph, self.options)]
        if self.trace.pair is not None:
            graphs.append((self.trace.pair.backward, pair_options(self.trace)))
        seen: set[str] = set()
        for graph, options in graphs:
            for code in cuda_stages(graph, options, target).all_generated():
                for symbol, shape in code.shapes.items():
                    if symbol not in seen:
                        seen.add(symbol)
                        yield code.module_text, symbol, shape

    def cuda(self, arch: str = "sm_80") -> str:
        """The Python source of each distinct GPU kernel, as Numba CUDA compiles it; no GPU needed.

        Raises CompileError where an op has no GPU kernel.
        """
        from jitgrad.compiler.codegen.cuda.load import python_source

        return python_source("\n\n".join(dict.fromkeys(text for text, _, _ in self._cuda(arch))))

    def ptx(self, arch: str = "sm_80") -> str:
        """The PTX of each distinct GPU kernel, a module each; no GPU needed.

        Raises CompileError where an op has no GPU kernel, or numba-cuda or NVVM is not installed.
        """
        from jitgrad.compiler.codegen.cuda.load import to_ptx

        target = gpu_target(arch)
        return "\n".join(to_ptx(*kernel, target)[0] for kernel in self._cuda(arch))

    def resources(self, arch: str = "sm_80") -> list[Any]:
        """What each distinct GPU kernel takes: registers, shared memory, spills, occupancy.

        Raises CompileError as `ptx` does, and where ptxas is not installed.
        """
        return [r for r, _ in self._resources(arch)]

    def _resources(self, arch: str) -> list[tuple[Any, Any]]:
        from jitgrad.compiler.codegen.cuda.load import to_ptx
        from jitgrad.compiler.codegen.cuda.resources import assemble

        target = gpu_target(arch)
        found = []
        for text, symbol, shape in self._cuda(arch):
            ptx, entry = to_ptx(text, symbol, shape, target)
            found.append((assemble(ptx, entry, shape, arch), shape))
        return found

    def explain(self, arch: str | None = None) -> str:
        """What was recorded, and what the compiler makes of it.

        arch: a GPU's architecture, "sm_90", say: adds a table of what its kernels take
        (`resources`) and how many of their loads and stores are coalesced.
        """
        plan = self.stages.plan
        lines = [
            f"{self.function.name}: {len(self.graph.nodes)} nodes, "
            f"{len(self.stages.graph.nodes)} after simplification; {len(self.kernels)} kernels; "
            f"peak {plan.peak} bytes, lower bound {plan.lower_bound} bytes"
        ]
        if self.trace.pair is not None:
            lines.append(f"keeps {self.trace.pair.kept_bytes} bytes for backward")
        if arch is not None:
            from jitgrad.compiler.codegen.cuda.resources import table

            lines.append(table(self._resources(arch)))
        return "\n".join([*lines, str(self)])

    def compile(self) -> Callable[..., Any]:
        """Compiles now; returns the jitted function, for arguments of these types only.

        Its first call runs eagerly and is recorded, as ever, but then finds the code made here.
        Raises TypeError for arguments of other types, CompileError for what cannot be compiled.
        """
        options = [(self.graph, self.options)]
        if self.trace.pair is not None:
            options.append((self.trace.pair.backward, pair_options(self.trace)))
        for graph, chosen in options:
            code = find_compiled(graph, chosen)
            if code is None:
                from jitgrad.compiler.pipeline import compile_graph

                code = compile_graph(graph, chosen)
            self._held.append(code)
        lowered = self

        def call(*args: Any, **kwargs: Any) -> Any:
            lowered._check((lowered.args, lowered.kwargs), (args, kwargs))
            return lowered.function(*args, **kwargs)

        call.__name__ = call.__qualname__ = self.function.name
        return call

    def _check(self, expected: Any, given: Any) -> None:
        wanted, shape = flatten(expected)
        got, other = flatten(tree_map(_spec, given))
        if shape != other:
            raise TypeError(
                f"[{self.function.name}] expected arguments of the structure {shape}, as lowered; "
                f"got {other}; lower it for these as well"
            )
        for a, b in zip(wanted, got, strict=True):
            if a is not b and (type(a) is not type(b) or a != b) and not _takes(a, b):
                raise TypeError(
                    f"[{self.function.name}] expected {a!r}, as lowered; got {b!r}; lower it for "
                    "this type as well, or call the jitted function itself"
                )


def _spec(x: Any) -> Any:
    return TensorSpec.of(x) if isinstance(x, Tensor) else x


def _symbolic(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Symbols | None]:
    """The arguments with the symbolic sizes that are declared of the jitted function; and these."""
    leaves, structure = flatten((args, kwargs))
    names = leaf_names(function.__wrapped__, args, structure)
    symbols: Symbols = function.declared_sizes(leaves, names)
    for i, shape in symbols.shapes.items():
        x = leaves[i]
        leaves[i] = wrap(None, TensorType(shape, x.dtype, str(x.device)))
        leaves[i]._requires_grad = x._requires_grad
    return unflatten(structure, leaves), symbols


def _takes(a: Any, b: Any) -> bool:
    """Whether a spec with symbolic sizes is for another's sizes, too."""
    if not (isinstance(a, TensorSpec) and isinstance(b, TensorSpec)):
        return False
    if len(a.shape) != len(b.shape):
        return False
    sizes = [d if isinstance(c, Sym) else c for c, d in zip(a.shape, b.shape, strict=True)]
    return TensorSpec(sizes, a.dtype, device=a.device, requires_grad=a.requires_grad) == b


def _without_data(x: Any) -> Any:
    if isinstance(x, TensorSpec):
        return x.absent()
    if not isinstance(x, Tensor):
        return x
    absent = TensorSpec.of(x).absent()
    if "_dynamic_dims" in x.__dict__:
        absent.__dict__["_dynamic_dims"] = x.__dict__["_dynamic_dims"]
    return absent
