"""The values that a run must give: results on new memory, each storage once."""

from __future__ import annotations

from jitgrad.compiler.ir import Value
from jitgrad.compiler.ops.record import OPS
from jitgrad.storage import Storage
from jitgrad.tensor import Tensor
from jitgrad.values import ValueMap


class Roots:
    """The storages of results that are new memory, each once; and other values to be kept.

    Attributes: `values`, what the run must give; `tensors`, the results on the tape, by slot;
    `apart`, storages whose results on the tape got memory of their own.
    """

    def __init__(self, recorder: ValueMap) -> None:
        self.recorder = recorder
        self.values: list[Value] = []
        self.tensors: list[Tensor] = []
        self.apart: list[Storage] = []
        self._index: dict[Storage, int] = {}
        self._numbers: dict[int, tuple[int, Tensor]] = {}

    def add(self, storage: Storage) -> int:
        if storage not in self._index:
            self._index[storage] = self.add_value(self.recorder._values[storage])
        return self._index[storage]

    def add_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def number(self, x: Tensor) -> int:
        return self._numbers.setdefault(id(x), (len(self._numbers), x))[0]

    def slot(self, x: Tensor) -> int:
        for i, y in enumerate(self.tensors):
            if x is y:
                return i
        self.tensors.append(x)
        return len(self.tensors) - 1

    def shared(self) -> bool:
        """Whether a storage of `apart` has another result."""
        return len(set(self.apart)) < len(self.apart) or any(s in self._index for s in self.apart)

    def distinct(self) -> list[Value]:
        """The values, copied where one is an input or stands for two storages."""
        graph = self.recorder.graph
        taken = {item.value for item in graph.inputs}
        out = []
        for v in self.values:
            if v in taken:
                v = graph.add(OPS["clone"], v)
            taken.add(v)
            out.append(v)
        return out
