"""The named tuples that functions with several results give: `jitgrad.return_types.max`, ...

They print as PyTorch's do: the function's name, and one field a line.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

_FIELDS = {
    "max min sort topk kthvalue median nanmedian mode cummax cummin": "values indices",
    "aminmax": "min max",
    "histogram histogramdd": "hist bin_edges",
    "frexp": "mantissa exponent",
}


_namedtuple: Any = namedtuple


def _text(self: Any) -> str:
    lines = ",\n".join(f"{k}={v!r}" for k, v in zip(self._fields, self, strict=True))
    return f"jitgrad.return_types.{type(self).__name__}(\n{lines})"


def _make(name: str, fields: str) -> Any:
    made = _namedtuple(name, fields)
    made.__doc__ = f"What {name} returns: {', '.join(fields.split())}."
    made.__repr__ = _text
    made.__module__ = __name__
    return made


TYPES: dict[str, Any] = {
    name: _make(name, fields) for names, fields in _FIELDS.items() for name in names.split()
}
"""The types, by the function's name."""

globals().update(TYPES)
