"""Slots: the dicts of a Module's parameters, buffers and children."""

from __future__ import annotations

from typing import Any

from jitgrad.state import bump_epoch


class Slots(dict[str, Any]):
    """Parameters, buffers or children by name. Writing to it, too, bumps the epoch."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        bump_epoch()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        bump_epoch()
        super().__delitem__(key)

    def __ior__(self, other: Any) -> Slots:  # type: ignore[override,misc]
        self.update(other)
        return self

    def pop(self, *args: Any) -> Any:
        bump_epoch()
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        bump_epoch()
        return super().popitem()

    def clear(self) -> None:
        bump_epoch()
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        bump_epoch()
        super().update(*args, **kwargs)

    def setdefault(self, key: str, default: Any = None) -> Any:
        bump_epoch()
        return super().setdefault(key, default)
