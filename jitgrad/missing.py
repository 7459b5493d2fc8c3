"""The error for a name of PyTorch's that is not there: AttributeError, which says so.

Owns the words, and modules that are lists of names from elsewhere. A module that has no lazy names
takes `missing(__name__)` as its __getattr__; one that has raises `no_such(...)` at the end of its
own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def no_such(module: str, name: str, hint: str = "") -> AttributeError:
    """What to raise for a name that a module has not."""
    if name.startswith("__"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    more = hint or "what of PyTorch is not there yet is listed in docs/limits.md"
    return AttributeError(f"module {module!r} has no attribute {name!r}; {more}")


def missing(module: str, hint: str = "") -> Callable[[str], Any]:
    """A __getattr__ for a module all of whose names are there when it has been imported."""

    def __getattr__(name: str) -> Any:
        raise no_such(module, name, hint)

    return __getattr__


class NamesModule(ModuleType):
    """A module by whose path public code imports names that are defined elsewhere."""

    def __getattr__(self, name: str) -> Any:
        raise no_such(self.__name__, name)


def names_module(path: str, names: dict[str, Any], doc: str) -> ModuleType:
    """Makes such a module, and the entry of sys.modules where `import` looks first."""
    made = NamesModule(path, doc)
    vars(made).update(names)
    vars(made)["__all__"] = [name for name in names if not name.startswith("_")]
    sys.modules[path] = made
    return made
