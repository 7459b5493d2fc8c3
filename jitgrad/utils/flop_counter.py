"""torch.utils.flop_counter: the operations of products, convolutions and their gradients.

Owns FlopCounterMode. Counts are those of op records (`Op.products`), twice: a product and a sum.
While a count is on, dispatch makes plans whose kernels are counted, and jitted functions run
eagerly; without one, nothing is asked.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jitgrad import dispatch
from jitgrad.jit import disable_jit
from jitgrad.missing import missing
from jitgrad.nn.global_hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from jitgrad.tensor import Tensor


class FlopCounterMode:
    """`with FlopCounterMode() as counter:` counts floating point operations, forward and backward,
    by module: `get_total_flops()`, `get_flop_counts()[name of module][name of op]`.

    Args:
        mods: not needed.
        depth: how deep in modules the table goes.
        display: whether the table is printed at the end.
        custom_mapping: name of an op -> a function of its operands' shapes, and of the result's as
            `out_shape`, that gives its operations.

    Raises RuntimeError while a profile or another count is on.
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True,
        custom_mapping: dict[str, Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        self.depth, self.display = depth, display
        self._mapping = dict(custom_mapping or {})
        self._counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._running: list[str] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FlopCounterMode:
        if dispatch.timing is not None:
            raise RuntimeError("[FlopCounterMode] expected no profile or count to be on; one is")
        self._counts.clear()
        self._running = ["Global"]
        self._stack.enter_context(disable_jit())
        for handle in (
            register_module_forward_pre_hook(self._began),
            register_module_forward_hook(self._ended),
        ):
            self._stack.callback(handle.remove)
        dispatch.timing = self
        dispatch.forget_plans()
        return self

    def __exit__(self, *error: object) -> None:
        dispatch.timing = None
        dispatch.forget_plans()
        self._stack.close()
        if self.display:
            print(self.get_table(self.depth))

    # -- modules -----------------------------------------------------------------------------------
    def _name(self, module: Any) -> str:
        """The module's path below the one that called it, or its class."""
        for name, parent in reversed(self._open):
            found = next((n for n, m in parent.named_modules() if m is module and n), None)
            if found is not None:
                return f"{name}.{found}"
        return type(module).__name__

    _open: list[tuple[str, Any]] = []

    def _began(self, module: Any, args: Any) -> None:
        name = self._name(module)
        self._open = [*self._open, (name, module)]
        self._enter(name)
        for x in _tensors(args):
            if x.requires_grad:  # its gradient is there: backward has left the module
                x.register_hook(partial(self._leave, name))

    def _ended(self, module: Any, args: Any, output: Any) -> None:
        name, _ = self._open[-1]
        self._open = self._open[:-1]
        self._leave(name)
        for x in _tensors((output,)):
            if x.requires_grad:
                x.register_hook(partial(self._enter, name))

    def _enter(self, name: str, grad: Any = None) -> None:
        if name not in self._running:
            self._running.append(name)

    def _leave(self, name: str, grad: Any = None) -> None:
        if name in self._running:
            self._running.remove(name)

    # -- counting ----------------------------------------------------------------------------------
    def timed(
        self, op: Any, operands: Sequence[Any], outs: Sequence[Any], attrs: dict[str, Any],
        kernel: Callable[..., Any],
    ) -> Callable[..., Any]:  # fmt: skip
        """kernel, that is counted (dispatch calls this where it makes a plan)."""
        formula = self._mapping.get(op.name)
        if formula is not None:
            shapes = [tuple(t.shape) for t in operands]
            flops = int(formula(*shapes, out_shape=tuple(outs[0].shape)))
        else:
            flops = 2 * int(op.products(operands, outs, attrs))
        if not flops:
            return kernel

        def run(*arrays: Any, **attrs: Any) -> Any:
            for name in self._running:
                self._counts[name][op.name] += flops
            return kernel(*arrays, **attrs)

        return run

    def _note(self, *args: Any, **kwargs: Any) -> None:
        """Ranges (record_function) have no operations of their own."""

    # -- results -----------------------------------------------------------------------------------
    def get_total_flops(self) -> int:
        """The operations of all."""
        return sum(self._counts["Global"].values())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """Name of a module ("Global": all) -> name of an op -> its operations."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """Operations by module, and what part of all they are."""
        depth = self.depth if depth is None else depth
        total = self.get_total_flops() or 1
        rows = [("Module", "FLOP", "% Total")]
        for name in sorted(self._counts, key=lambda n: (n != "Global", n)):
            level = name.count(".") + (name != "Global")
            if level > depth:
                continue
            count = sum(self._counts[name].values())
            rows.append((" " * level + name, _text(count), f"{count / total:.2%}"))
            for op, part in self._counts[name].items():
                rows.append((f"{' ' * level} - {op}", _text(part), f"{part / total:.2%}"))
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = [
            f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows
        ]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, dict):
        x = tuple(x.values())
    return [t for item in x for t in _tensors(item)] if isinstance(x, (tuple, list)) else []


def _text(count: int) -> str:
    """1234567 as 1.235M."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        if count >= 10**power:
            return f"{count / 10**power:.3f}{letter}"
    return str(count)


__getattr__ = missing(__name__)
