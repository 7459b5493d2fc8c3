"""The named tuples that functions give. Made by tests/stubs.py."""

import builtins
from collections.abc import Callable as Callable
from typing import Any as Any, NamedTuple as NamedTuple

import numpy as np

from jitgrad.runtime.dtypes import DType as DType
from jitgrad.tensor import Tensor as Tensor

class max(NamedTuple):
    values: Tensor
    indices: Tensor
class min(NamedTuple):
    values: Tensor
    indices: Tensor
class sort(NamedTuple):
    values: Tensor
    indices: Tensor
class topk(NamedTuple):
    values: Tensor
    indices: Tensor
class kthvalue(NamedTuple):
    values: Tensor
    indices: Tensor
class median(NamedTuple):
    values: Tensor
    indices: Tensor
class nanmedian(NamedTuple):
    values: Tensor
    indices: Tensor
class mode(NamedTuple):
    values: Tensor
    indices: Tensor
class cummax(NamedTuple):
    values: Tensor
    indices: Tensor
class cummin(NamedTuple):
    values: Tensor
    indices: Tensor
class aminmax(NamedTuple):
    min: Tensor
    max: Tensor
class histogram(NamedTuple):
    hist: Tensor
    bin_edges: Tensor
class histogramdd(NamedTuple):
    hist: Tensor
    bin_edges: builtins.tuple[Tensor, ...]
class frexp(NamedTuple):
    mantissa: Tensor
    exponent: Tensor
FIELDS: builtins.dict[builtins.str, builtins.list[builtins.str]]
TYPES: builtins.dict[builtins.str, Any]
def prints_as(name: builtins.str) -> Callable[[Any], Any]: ...
