"""Runs compiled code that keeps what it made of parameters: packed weights, transformed filters.

Owns when that is made anew: a parameter is another array, or its storage's version has grown. Where
others than tensors see a parameter's memory (NumPy, DLPack), it is made at every call.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from jitgrad.outside import shown_now, watch
from jitgrad.sources import Captured, is_array
from jitgrad.tensor import Tensor

_ALWAYS = ((0, None, None, -1),)


def constants_of(trace: Any) -> frozenset[int]:
    """Numbers of the inputs of a trace that seldom change: captured tensors that it does not write.
    There are none where gradients follow, since parameters then change from call to call."""
    if trace.pair is not None or trace.leaf is not None:
        return frozenset()
    written = {w.input for w in trace.graph.writes}
    return frozenset(
        i
        for i, entry in enumerate(trace.entries)
        if i not in written
        and isinstance(entry.source, Captured)
        and not is_array(entry.source)
        and isinstance(entry.source.item.now, Tensor)
    )


class KeptRun:
    """`run(arrays, dims)`: as Compiled.run, but what is kept is made when it must be."""

    def __init__(self, compiled: Any, entries: Sequence[Any]) -> None:
        self._compiled = compiled
        self._items = [(i, entries[i].source.item) for i in compiled.image.constants]
        self._seen: tuple[tuple[int, Any, Any, int], ...] = _ALWAYS
        self._shown = -1
        self._lock = threading.Lock()

    def __call__(self, arrays: Sequence[Any], dims: tuple[int, ...] | None = None) -> Any:
        if self._shown != shown_now[0]:
            self._prepare(arrays)
        else:
            for i, array, storage, version in self._seen:
                if arrays[i] is not array or storage.version != version:
                    self._prepare(arrays)
                    break
        return self._compiled.run_prepared(arrays, dims)

    def _prepare(self, arrays: Sequence[Any]) -> None:
        with self._lock:
            seen: tuple[tuple[int, Any, Any, int], ...] = ()
            shown = shown_now[0]
            for i, item in self._items:
                x = item.now
                if x._data is not arrays[i] or not watch(x._storage):
                    seen = _ALWAYS
                    break
                seen += ((i, arrays[i], x._storage, x._storage.version),)
            self._compiled.prepare(arrays)
            self._seen, self._shown = seen, shown
