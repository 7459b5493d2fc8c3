"""Group: one of an optimizer's param_groups, a dict whose floats are inputs of compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jitgrad.hostscalar import HostScalar, lift
from jitgrad.state import state


class Group(dict[str, Any]):
    """A dict. While a function is recorded, floats (and those in tuples) are lifted where they are
    read, by whomever: a schedule that sets them changes an input, and no reader sees an old value.
    """

    __slots__ = ()
    lifts_floats = True

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        return value if state.recorder is None else lift(value, self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self, key, value.specialise() if type(value) is HostScalar else value)

    def __iter__(self) -> Iterator[str]:
        # Being overridden, it makes dict(group) and {**group} read by __getitem__.
        return dict.__iter__(self)

    def _seen(self) -> dict[str, Any]:
        """The contents, as reading one by one gives them."""
        return {key: self[key] for key in self}

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def items(self) -> Any:
        return dict.items(self) if state.recorder is None else self._seen().items()

    def values(self) -> Any:
        return dict.values(self) if state.recorder is None else self._seen().values()

    def copy(self) -> dict[str, Any]:
        return self._seen()

    def setdefault(self, key: str, default: Any = None) -> Any:
        dict.setdefault(self, key, default)
        return self[key]
