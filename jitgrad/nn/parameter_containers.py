"""Modules that hold parameters: ParameterList, ParameterDict.

Tensors become Parameters; other objects are kept as they are, as in PyTorch.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jitgrad.nn.containers import pairs_of
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


def _held(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        return Parameter(value)
    return value


def _line(key: Any, value: Any, kind: str) -> str:
    if not isinstance(value, Tensor):
        return f"  ({key}): Object of type: {type(value).__name__}"
    size = "x".join(map(str, value.shape))
    name = "Parameter" if isinstance(value, Parameter) else "Tensor"
    return f"  ({key}): {name} containing: [{kind} of size {size}]"


class _Uncallable(Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{type(self).__name__} should not be called.")


class ParameterList(_Uncallable):
    """A list of parameters, named "0", "1", ...; tensors become Parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _key(self, index: int) -> str:
        index = operator.index(index)
        if not -self._size <= index < self._size:
            raise IndexError(f"[ParameterList] index {index} is out of range for {self._size}")
        return str(index % self._size)

    def append(self, value: Any) -> ParameterList:
        """Adds a value at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds values at the end. Raises TypeError for what is no iterable, or a Tensor."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                "ParameterList.extend should be called with an iterable, but got "
                f"{type(values).__name__}"
            )
        for v in list(values):
            self.append(v)
        return self

    __iadd__ = extend

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, self._key(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._key(index), _held(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(self._size)])

    def extra_repr(self) -> str:
        kinds = [str(v.dtype) if isinstance(v, Tensor) else "" for v in self]
        return "\n".join(_line(k, v, kinds[k]) for k, v in enumerate(self))


class ParameterDict(_Uncallable):
    """A dict of parameters; tensors become Parameters. A plain dict is taken over in the order of
    its sorted keys, as in PyTorch."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def update(self, parameters: Any) -> None:
        """Adds parameters from a mapping, or from (name, value) pairs."""
        pairs = pairs_of("ParameterDict", parameters)
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            pairs.sort()
        for name, v in pairs:
            self[name] = v

    def __getitem__(self, key: str) -> Any:
        self._expect_key(key)
        return getattr(self, key)

    def _expect_key(self, key: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(
                f"[ParameterDict] expected a string as key; got {key!r}, a {type(key).__name__}"
            )

    def __setitem__(self, key: str, value: Any) -> None:
        self._expect_key(key)
        setattr(self, key, _held(value))
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def copy(self) -> ParameterDict:
        """Another dict of the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of key, which becomes default if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Removes all."""
        for k in list(self._keys):
            del self[k]

    def pop(self, key: str) -> Any:
        """Removes a value and returns it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Removes the last (key, value) and returns it."""
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of key, or default."""
        return getattr(self, key) if key in self._keys else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A dict with these keys and one value."""
        return ParameterDict([(k, default) for k in keys])

    def keys(self) -> Iterable[str]:
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        return [self[k] for k in self._keys]

    def items(self) -> Iterable[tuple[str, Any]]:
        return [(k, self[k]) for k in self._keys]

    def __or__(self, other: ParameterDict) -> ParameterDict:
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        made = ParameterDict(OrderedDict(other.items()))
        made.update(self)
        return made

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        self.update(other)
        return self

    def extra_repr(self) -> str:
        kinds = {k: v.type() if isinstance(v, Tensor) else "" for k, v in self.items()}
        return "\n".join(_line(k, v, kinds[k]) for k, v in self.items())
