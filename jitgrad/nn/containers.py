"""Modules that hold modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jitgrad.nn.module import Module
from jitgrad.state import bump_epoch


class _Numbered(Module):
    """Children named "0", "1", ..., indexed like a list."""

    def _slice(self, index: slice) -> Any:
        return type(self)(list(self._modules.values())[index])

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

    def pop(self, key: int = -1) -> Any:
        """Removes a module and returns it."""
        module = self[key]
        del self[key]
        return module

    def insert(self, index: int, module: Module) -> Any:
        """Puts a module before the one at index; those behind move up by one."""
        if not isinstance(module, Module):
            raise AssertionError(
                f"[{type(self).__name__}] module should be of type: {Module}; got {type(module)}"
            )
        children = list(self._modules.values())
        if not -len(children) <= index <= len(children):
            raise IndexError(f"[{type(self).__name__}] Index out of range: {index}")
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
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"[{type(self).__name__}] extend should be called with an iterable, but got "
                f"{type(modules).__name__}"
            )
        for m in list(modules):
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

    def _expect_sequential(self, other: Any) -> None:
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other)} is given."
            )

    def __add__(self, other: Sequential) -> Sequential:
        self._expect_sequential(other)
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Sequential:
        self._expect_sequential(other)
        made: Sequential = self.extend(other)
        return made

    def _expect_factor(self, factor: int) -> None:
        if not isinstance(factor, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(factor)}")
        if factor <= 0:
            raise ValueError(f"Non-positive multiplication factor {factor} for {type(self)}")

    def __mul__(self, factor: int) -> Sequential:
        self._expect_factor(factor)
        return Sequential(*list(self) * factor)

    __rmul__ = __mul__

    def __imul__(self, factor: int) -> Sequential:
        self._expect_factor(factor)
        made: Sequential = self.extend(list(self) * (factor - 1))
        return made

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input


class ModuleList(_Numbered):
    """A list of modules whose parameters are registered."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        made: ModuleList = self.extend(other)
        return made

    def __repr__(self) -> str:
        """One line for each run of modules with the same text."""
        runs: list[tuple[int, int, str]] = []
        for k, text in enumerate(map(repr, self)):
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], k, text)
            else:
                runs.append((k, k, text))
        lines = [
            f"({a}): {text}" if a == b else f"({a}-{b}): {b - a + 1} x {text}"
            for a, b, text in runs
        ]
        inside = "".join("\n  " + line.replace("\n", "\n  ") for line in lines)
        return f"{self._get_name()}({inside}\n)" if lines else f"{self._get_name()}()"


def pairs_of(owner: str, items: Any) -> list[tuple[str, Any]]:
    """(key, value) pairs of a mapping, or of a sequence of them. Raises TypeError and ValueError
    as PyTorch does for what is neither."""
    if isinstance(items, (Mapping, Module)):
        return list(items.items())
    if not isinstance(items, Iterable):
        raise TypeError(
            f"{owner}.update should be called with an iterable of key/value pairs, but got "
            f"{type(items).__name__}"
        )
    pairs = []
    for k, pair in enumerate(items):
        if not isinstance(pair, Iterable):
            raise TypeError(
                f"{owner} update sequence element #{k} should be Iterable; is {type(pair).__name__}"
            )
        pair = tuple(pair)
        if len(pair) != 2:
            raise ValueError(
                f"{owner} update sequence element #{k} has length {len(pair)}; 2 is required"
            )
        pairs.append(pair)
    return pairs


class ModuleDict(Module):
    """A dict of modules whose parameters are registered."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules if modules is not None else {})

    def update(self, modules: Any) -> None:
        """Adds modules from a mapping, or from (name, module) pairs."""
        for name, m in pairs_of(type(self).__name__, modules):
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
