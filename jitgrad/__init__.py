"""jitgrad: PyTorch's programming model, with a compiler of its own.

The public names are PyTorch's: `import jitgrad as torch` runs model code. They are namespace.py's,
and importing the package brings them. Only where it is imported on the way to `jitgrad.runtime`
(or `compiler`, `version`) do they come later, when the first is named or another module has been
imported: a program that only runs exported models does not pay for them.

Owns the way there and nothing else.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType as _Module
from typing import Any

_ALONE = ("runtime", "compiler", "version")  # these need none of the others


class _Package(_Module):
    """The package before its public names are there."""

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in ("__all__", "__version__")) or _inside():
            raise AttributeError(f"module 'jitgrad' has no attribute {name!r}")
        _complete()
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        _complete()
        return dir(self)

    def __setattr__(self, name: str, value: Any) -> None:
        """The import system sets modules: those that others of ours ask for wait, since some have
        the name of a public function."""
        if name in _ALONE or name.startswith("__"):
            super().__setattr__(name, value)
        elif not _inside():
            _complete()
            if value is not sys.modules.get(f"jitgrad.{name}"):
                setattr(self, name, value)


def _inside() -> bool:
    """Whether one of our modules is being imported in this thread."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            package, _, inner = frame.f_globals.get("__name__", "").partition(".")
            if package == "jitgrad" and inner.partition(".")[0] not in _ALONE:
                return True
        frame = frame.f_back
    return False


def _alone() -> bool:
    """Whether the package is being imported on the way to a module that needs none of the others,
    as the import system's own frames say; where they say nothing, it is not."""
    frame: Any = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        name = frame.f_locals.get("name")
        if isinstance(name, str) and name.startswith("jitgrad."):
            return name.split(".")[1] in _ALONE
        frame = frame.f_back
    return False


def _complete() -> None:
    """Brings the public names here, and makes this a module like any other."""
    public = importlib.import_module("jitgrad.namespace")
    package = sys.modules["jitgrad"]
    names = vars(public)
    if type(package) is not _Package or "__all__" not in names:
        return  # another thread was first, or is about to be done
    found = {n: m for n, m in sys.modules.items() if n.startswith("jitgrad.")}
    modules = {n.removeprefix("jitgrad."): m for n, m in found.items() if n.count(".") == 1}
    names = {n: v for n, v in names.items() if not n.startswith("__")}
    keep = {n: vars(public)[n] for n in ("__all__", "__getattr__", "__version__")}
    vars(package).update({**modules, **names, **keep})
    package.__class__ = _Module


sys.modules[__name__].__class__ = _Package
if not _alone():
    _complete()
