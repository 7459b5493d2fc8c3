"""A library for several levels of processors: the best one that the processor offers is chosen.

Owns the public functions of such a library, which hand each call to a part: the whole C interface
(capi.py), compiled for one level. An instance remembers its part in a word of its own. And
`marked`, which says in a module's text for which processor its functions are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline
from jitgrad.compiler.codegen.interface import Interface, Model
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.words import I32, I64, PTR, VOID, const, get, put
from jitgrad.runtime import artifact_format as fmt

_PART = 4  # the word of an instance that capi.py leaves free


def part_name(name: str, part: int) -> str:
    """What the model is called inside, for the level of this number."""
    return f"{name}.level{part}"


def marked(text: str, target: Target) -> str:
    """A module's text, its functions for the target's processor but those that say otherwise."""
    features = f' "target-features"="{target.features}"' if target.features else ""
    attributes = f'"target-cpu"="{target.cpu}"{features} '

    def mark(found: re.Match[str]) -> str:
        head = found.group(0)
        return head if '"target-cpu"' in head else f"{head[:-1]}{attributes}{{"

    return re.sub(r"^define [^{]*\{", mark, text, flags=re.MULTILINE)


def uses_tiles(texts: Iterable[str]) -> bool:
    """Whether the code of a part uses AMX; if not, the part is no better than that below it."""
    return any("@llvm.x86.tile" in text or '@"llvm.x86.tile' in text for text in texts)


def emit_choice(model: Model, count: int, target: Target) -> ir.Module:
    """The module of the public functions of `model`, for `count` parts, the last the best."""
    return _Choice(model, count, target).emit()


class _Choice(Interface):
    """Each function looks at the instance, or takes part 0 where it has none."""

    def __init__(self, model: Model, count: int, target: Target) -> None:
        super().__init__(model, target)
        self.count = count

    def emit(self) -> ir.Module:
        null, bad = ir.Constant(PTR, None), ir.Constant(I32, fmt.BAD_ARGUMENT)
        made = {
            "status": self._of_first("status", PTR, []),
            **self._creates(),
            "destroy": self._by_instance("destroy", VOID, [PTR], None),
            "run": self._by_instance("run", I32, [PTR, PTR, PTR], bad),
            "last_error": self._by_instance("last_error", PTR, [PTR], null),
        }
        if self.model.sizes:
            for name in ("set_sizes", "set_shapes"):
                made[name] = self._by_instance(name, I32, [PTR, PTR], bad)
            made["output_shape"] = self._by_instance("output_shape", PTR, [PTR, I32], null)
            self._of_first("n_sizes", I32, [])
            for column, result in (("name", PTR), ("min", I64), ("max", I64)):
                self._of_first(f"size_{column}", result, [I32])
        self._emit_descriptor(**made, py_call=self._emit_py_call())
        kinds = ["input", "output"]
        if self.model.own:
            kinds.append("state")
            self._by_instance("get_state", I32, [PTR, I32, PTR], bad)
            self._by_instance("set_state", I32, [PTR, I32, PTR], bad)
        for kind in kinds:
            self._of_first(f"n_{kind}s", I32, [])
            for column, result in (("name", PTR), ("dtype", I32), ("rank", I32), ("dims", PTR)):
                self._of_first(f"{kind}_{column}", result, [I32])
        self._return_text("version", self.model.version)
        return self.module

    def _part(self, part: int, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
        symbol = f"jg_{part_name(self.model.name, part)}_{name}"
        known = self.module.globals.get(symbol)
        return known or self._declare(symbol, result, params)

    def _of_first(self, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
        function, b = self.public(name, result, params)
        baseline(function, self.target)
        b.ret(b.call(self._part(0, name, result, params), function.args))
        return function

    def _creates(self) -> dict[str, ir.Function]:
        if self.model.side:
            return {"create_with": self._create("create_with", [I32, PTR, I64, PTR])}
        return {"create": self._create("create", [I32])}

    def _create(self, name: str, params: list[ir.Type]) -> ir.Function:
        """The best part that can make an instance: each looks at the processor first."""
        function, b = self.public(name, PTR, params)
        baseline(function, self.target)
        for part in reversed(range(self.count)):
            made = b.call(self._part(part, name, PTR, params), function.args)
            with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(made, I64), const(0))):
                put(b, made, _PART, const(part))
                b.ret(made)
        b.ret(ir.Constant(PTR, None))
        return function

    def _by_instance(
        self, name: str, result: ir.Type, params: list[ir.Type], without: ir.Constant | None
    ) -> ir.Function:
        """Hands on to the instance's part; to part 0, which refuses it, where it is NULL."""
        function, b = self.public(name, result, params)
        baseline(function, self.target)
        me = function.args[0]
        there = b.icmp_unsigned("!=", b.ptrtoint(me, I64), const(0))

        def hand_on(part: int) -> None:
            answer = b.call(self._part(part, name, result, params), function.args)
            b.ret_void() if without is None else b.ret(answer)

        with b.if_then(b.not_(there), likely=False):
            hand_on(0)
        mine = get(b, me, _PART)
        for part in reversed(range(1, self.count)):
            with b.if_then(b.icmp_unsigned("==", mine, const(part))):
                hand_on(part)
        hand_on(0)
        return function
