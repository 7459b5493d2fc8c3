"""Copies of tensors: copy.copy, copy.deepcopy, pickle.

Tensors that share memory share it in the copy, too, within one deepcopy or one pickle: the storage
is copied once, and a view is rebuilt on it by the view ops that made it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor, _new, intern_type, static_type, wrap_array

_OWN = ("_was", "_below", "_grad", "_hooks", "_post_hooks")


def deepcopy_tensor(self: Tensor, memo: dict[int, Any]) -> Any:
    """copy.deepcopy: with .grad and attributes. Raises RuntimeError for what an op made on the
    tape."""
    if id(self) in memo:
        return memo[id(self)]
    out = deepcopy_values(self, memo)
    for key, value in self.__dict__.items():
        if key not in _OWN:
            setattr(out, key, copy.deepcopy(value, memo))
    if self._grad is not None:
        out._grad = copy.deepcopy(self._grad, memo)
    return out


def deepcopy_values(self: Tensor, memo: dict[int, Any]) -> Any:
    """copy.deepcopy of a Parameter: its values and requires_grad. Raises as deepcopy_tensor."""
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment; use detach() or clone() first"
        )
    if id(self) in memo:
        return memo[id(self)]
    self._array("deepcopy")
    out = _on_storage(type(self), copy.deepcopy(self._storage, memo), self._chain, self)
    out._requires_grad = self._requires_grad
    memo[id(self)] = out
    return out


def _on_storage(cls: type, storage: Storage, chain: Any, like: Tensor | None) -> Any:
    """A tensor of class `cls` that shows a storage through a chain of view ops."""
    out: Any = _new(cls)
    data: Any = storage.array
    for op, attrs in chain:
        data = op.reference(data, **attrs)
    wrong = like is not None and data.shape != like._data.shape
    if wrong or not _shares(data, storage):
        storage, chain = wrap_array(np.array(data))._storage, ()
        data = storage.array
    out._data, out._storage, out._chain = data, storage, chain
    out._type = static_type(data.shape, dtypes.from_numpy(data.dtype))
    if storage.type.device != "cpu":
        out._type = intern_type(TensorType(out._type.shape, out._type.dtype, storage.type.device))
    out._node, out._out, out._requires_grad, out._view = None, 0, False, None
    return out


def _shares(data: Any, storage: Storage) -> bool:
    return data is storage.array or not data.size or np.may_share_memory(data, storage.array)


def copy_tensor(self: Tensor) -> Any:
    """copy.copy: another tensor on the same memory, at the same place of the tape; no .grad."""
    out = self._alias(type(self))
    out._node, out._out, out._requires_grad = self._node, self._out, self._requires_grad
    out._view = self._view
    out.__dict__.update(self.__dict__)
    out._grad = None
    return out


def reduce_tensor(self: Tensor, protocol: Any) -> tuple[Any, ...]:
    """pickle: the storage (once for all tensors on it), the view ops, and plain attributes."""
    self._array("pickle")
    extra = {k: v for k, v in self.__dict__.items() if not k.startswith("_")}
    chain = tuple((op.name, attrs) for op, attrs in self._chain)
    return rebuild_tensor, (type(self), self._storage, chain, self.requires_grad, extra)


def rebuild_tensor(
    cls: type, storage: Storage, chain: Any, requires_grad: bool, extra: dict[str, Any]
) -> Any:
    """The inverse of reduce_tensor."""
    out = _on_storage(cls, storage, tuple((OPS[name], attrs) for name, attrs in chain), None)
    out._requires_grad = requires_grad
    out.__dict__.update(extra)
    return out


COPYING: dict[str, Callable[..., Any]] = {
    "__copy__": copy_tensor,
    "__deepcopy__": deepcopy_tensor,
    "__reduce_ex__": reduce_tensor,
}
"""The methods made here, by name."""
