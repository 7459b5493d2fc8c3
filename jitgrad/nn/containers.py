"""Modules that hold modules: Sequential, ModuleList, ModuleDict, ParameterList."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


class _Numbered(Module):
    """Children named "0", "1", ..., indexed like a list."""

    def _key(self, index: int) -> str:
        n = len(self._modules)
        if not -n <= index < n:
            raise IndexError(f"[{type(self).__name__}] index {index} is out of range for {n}")
        return list(self._modules)[index]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            children = list(self._modules.values())[index]
            return type(self)(*children) if isinstance(self, Sequential) else type(self)(children)  # type: ignore[call-arg]
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._key(index), module)

    def __delitem__(self, index: int) -> None:
        delattr(self, self._key(index))
        children = list(self._modules.values())
        self._modules.clear()
        self._modules.update({str(i): m for i, m in enumerate(children)})

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

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input


class ModuleList(_Numbered):
    """A list of modules whose parameters are registered."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def insert(self, index: int, module: Module) -> None:
        children = list(self._modules.values())
        children.insert(index, module)
        self._modules.clear()
        for m in children:
            self.append(m)  # type: ignore[arg-type]


class ModuleDict(Module):
    """A dict of modules whose parameters are registered."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        for name, m in modules.items():
            self[name] = m

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
    """A list of parameters."""

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        for v in values or ():
            self.append(v)

    def append(self, value: Tensor) -> ParameterList:
        param = value if isinstance(value, Parameter) else Parameter(value)
        self.register_parameter(str(len(self)), param)
        return self

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))
