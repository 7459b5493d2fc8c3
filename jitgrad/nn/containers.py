"""Modules that hold modules: Sequential, ModuleList, ModuleDict, and the like of parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.state import bump_epoch
from jitgrad.tensor import Tensor


class _Numbered(Module):
    """Children named "0", "1", ..., indexed like a list."""

    def _slice(self, index: slice) -> Any:
        return type(self)(list(self._modules.values())[index])  # type: ignore[call-arg]

    def _key(self, index: int) -> str:
        index = operator.index(index)
        n = len(self._modules)
        if not -n <= index < n:
            raise IndexError(f"[{type(self).__name__}] index {index} is out of range for {n}")
        return list(self._modules)[index]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._key(index), module)

    def __delitem__(self, index: int | slice) -> None:
        keys = list(self._modules)
        gone = keys[index] if isinstance(index, slice) else [self._key(index)]
        for key in gone:
            delattr(self, key)
        self._renumber(list(self._modules.values()))

    def _renumber(self, children: list[Any]) -> None:
        """Makes these the children, numbered from 0."""
        bump_epoch()
        self._modules.clear()
        self._modules.update({str(i): m for i, m in enumerate(children)})

    def pop(self, index: int = -1) -> Any:
        """Removes a module and returns it."""
        module = self[index]
        del self[index]
        return module

    def insert(self, index: int, module: Module) -> Any:
        """Puts a module before the one at index; those behind move up by one."""
        if not isinstance(module, Module):
            raise TypeError(
                f"[{type(self).__name__}] expected a Module; got {type(module).__name__}"
            )
        children = list(self._modules.values())
        children.insert(index, module)
        self._renumber(children)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def append(self, module: Module) -> Any:
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        for m in modules:
            self.append(m)
        return self


class Sequential(_Numbered):
    """Applies modules one after another: Sequential(a, b) or Sequential(OrderedDict(...))."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def _slice(self, index: slice) -> Any:
        return type(self)(dict(list(self._modules.items())[index]))  # names stay, as in PyTorch

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input


class ModuleList(_Numbered):
    """A list of modules whose parameters are registered."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())


class ModuleDict(Module):
    """A dict of modules whose parameters are registered."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules if modules is not None else {})

    def update(self, modules: Any) -> None:
        """Adds modules from a mapping, or from (name, module) pairs."""
        for name, m in dict(modules).items():
            self[name] = m

    def pop(self, key: str) -> Any:
        """Removes a module and returns it."""
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        for key in list(self._modules):
            del self[key]

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()


class ParameterList(Module):
    """A list of parameters, named "0", "1", ...; tensors become Parameters."""

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(values if values is not None else ())

    def append(self, value: Tensor) -> ParameterList:
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> ParameterList:
        for v in values:
            self.append(v)
        return self

    def __getitem__(self, index: int | slice) -> Any:
        values = list(self._parameters.values())[index]
        return type(self)(values) if isinstance(index, slice) else values  # type: ignore[arg-type]

    def __setitem__(self, index: int, value: Tensor) -> None:
        setattr(self, list(self._parameters)[index], _parameter(value))

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))


class ParameterDict(Module):
    """A dict of parameters; tensors become Parameters."""

    def __init__(self, values: Any = None) -> None:
        super().__init__()
        self.update(values if values is not None else {})

    def update(self, values: Any) -> None:
        """Adds parameters from a mapping, or from (name, tensor) pairs."""
        for name, v in dict(values).items():
            self[name] = v

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.register_parameter(key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: str) -> bool:
        return key in self._parameters

    def keys(self) -> Iterable[str]:
        return self._parameters.keys()

    def values(self) -> Iterable[Any]:
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._parameters.items()


def _parameter(value: Tensor) -> Parameter:
    made: Parameter = value if isinstance(value, Parameter) else Parameter(value)
    return made
