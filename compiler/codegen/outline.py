"""Routines: functions that kernels call, each a module of its own, and stretches of a kernel's code
that become such functions (`outlined`).

Owns how a routine is named (by its code, so that equal ones are one, over kernels and processes)
and declared in the module of a caller. Which routines there are by name is routines.py's.

What remains of a kernel when all that runs often lies in routines is its driver: calls and the
arithmetic of addresses. It needs no optimisation, which would take most of LLVM's time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import VOID
from jitgrad.compiler.codegen.kernelcode import ROUTINE, Generated
from jitgrad.compiler.codegen.target import Target

NAME = "routine"  # until its code has given it one


@dataclass(frozen=True)
class Routine:
    """A routine's code, whose key is its symbol, and the types of its parameters."""

    code: Generated
    parameters: tuple[ir.Type, ...]


def finished(function: ir.Function, target: Target) -> Routine:
    """The routine that a complete function NAME, alone in its module, is."""
    module = function.module
    module.triple = target.triple
    function.linkage = ""
    text = str(module)
    digest = hashlib.sha256((text + target.cpu + target.features).encode()).hexdigest()
    symbol = ROUTINE + digest[:32]
    text = text.replace(f'@"{NAME}"', f'@"{symbol}"')
    return Routine(Generated(symbol, text, []), tuple(function.ftype.args))


class Uses:
    """The routines that the code of a module calls."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        self.module, self.target = module, target
        self.codes: list[Generated] = []

    def __call__(self, routine: Routine) -> ir.Function:
        """The routine as a function of the module."""
        known = self.module.globals.get(routine.code.key)
        if known is not None:
            return known
        self.codes.append(routine.code)
        kind = ir.FunctionType(VOID, routine.parameters)
        function = ir.Function(self.module, kind, routine.code.key)
        function.attributes.add("nounwind")
        return function

    @contextmanager
    def outlined(self, builder: ir.IRBuilder) -> Iterator[None]:
        """What is emitted meanwhile becomes a routine, which is called here. It may use any value
        from outside; none of its own may be used outside. Inside another such stretch, or a
        routine, it stays where it is."""
        if builder.module is not self.module:
            yield
            return
        here = builder.block
        function = ir.Function(ir.Module(NAME), ir.FunctionType(VOID, []), NAME)
        function.attributes.add("nounwind")
        builder.position_at_end(function.append_basic_block("entry"))
        yield
        builder.ret_void()
        captured = _with_parameters(function)
        builder.position_at_end(here)
        builder.call(self(finished(function, self.target)), captured)


def _with_parameters(function: ir.Function) -> list[ir.Value]:
    """Gives a function a parameter for each value of other functions that it uses; returns these.
    Functions of other modules that it calls are declared."""
    captured: dict[ir.Value, ir.Argument] = {}

    def own(value: Any) -> Any:
        if isinstance(value, ir.Function):
            declared = function.module.globals.get(value.name)
            if declared is None:
                declared = ir.Function(function.module, value.ftype, value.name)
                declared.attributes.update(value.attributes)
            return declared
        outside = isinstance(value, ir.Argument) and value.parent is not function
        outside |= isinstance(value, ir.Instruction) and value.function is not function
        if not outside:
            return value
        if value not in captured:
            captured[value] = ir.Argument(function, value.type)
        return captured[value]

    for block in function.blocks:
        for instruction in block.instructions:
            if isinstance(instruction, ir.PhiInstr):
                instruction.incomings = [(own(v), b) for v, b in instruction.incomings]
                continue
            instruction.operands = [own(v) for v in instruction.operands]
            if isinstance(instruction, ir.GEPInstr):
                instruction.pointer, *instruction.indices = instruction.operands
    function.args = tuple(captured.values())
    function.ftype = ir.FunctionType(VOID, [a.type for a in function.args])
    return list(captured)
