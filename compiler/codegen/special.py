"""Scan, Scatter and Sort kernels."""

from __future__ import annotations

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import SpecialKernel


def generate_special(kernel: SpecialKernel, target: Target) -> Generated:
    raise NotImplementedError
