"""The named tuples that functions with several results give: `jitgrad.return_types.max`, ...

They print as PyTorch's do: the function's name, and one field a line.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_FIELDS = {
    "max min sort topk kthvalue median nanmedian mode cummax cummin": "values indices",
    "aminmax": "min max",
    "histogram histogramdd": "hist bin_edges",
    "frexp": "mantissa exponent",
}
FIELDS = {name: fields.split() for names, fields in _FIELDS.items() for name in names.split()}
"""function -> the fields of what it returns."""

_namedtuple: Any = namedtuple


def prints_as(name: str) -> Callable[[type[T]], type[T]]:
    """A decorator of the named tuple that the function of this name returns."""

    def text(self: Any) -> str:
        lines = ",\n".join(f"{k}={v!r}" for k, v in zip(self._fields, self, strict=True))
        return f"jitgrad.return_types.{name}(\n{lines})"

    def decorate(cls: type[T]) -> type[T]:
        cls.__repr__ = text  # type: ignore[method-assign]
        return cls

    return decorate


def _make(name: str, fields: list[str]) -> Any:
    made = _namedtuple(name, fields)
    made.__doc__ = f"What {name} returns: {', '.join(fields)}."
    made.__module__ = __name__
    return prints_as(name)(made)


class _Types(dict[str, Any]):
    """The types by the function's name, each made when it is first asked for."""

    def __missing__(self, name: str) -> Any:
        made = self[name] = globals()[name] = _make(name, FIELDS[name])
        return made


TYPES = _Types()


def __getattr__(name: str) -> Any:
    try:
        return TYPES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*globals(), *FIELDS]
