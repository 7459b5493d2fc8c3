"""torch.types: names for annotations."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import IO, Any, TypeAlias

from jitgrad.device import device
from jitgrad.missing import missing
from jitgrad.runtime.dtypes import DType
from jitgrad.storage import Storage as Storage
from jitgrad.tensor import Size, Tensor

Number: TypeAlias = builtins.int | builtins.float | builtins.bool
PyNumber: TypeAlias = Number
Device: TypeAlias = device | str | builtins.int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
_TensorOrTensorsOrGradEdge: TypeAlias = _TensorOrTensors
_dtype, _device, _size = DType, device, Size | list[builtins.int] | tuple[builtins.int, ...]
_int, _float, _bool = builtins.int, builtins.float, builtins.bool
_symint = SymInt = builtins.int
_layout: Any = str
IntLikeType: TypeAlias = builtins.int
FloatLikeType: TypeAlias = builtins.float
BoolLikeType: TypeAlias = builtins.bool

__getattr__ = missing(__name__)
