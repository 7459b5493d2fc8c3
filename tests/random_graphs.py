"""Random tensor graphs with concrete inputs, for comparing every level of the compiler.

`random_graph(seed)` gives (graph, input arrays). Values stay in a range where float32 is well
conditioned, so that tolerances can be tight. Shapes include 0-d, 1 and (now and then) 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jitgrad.compiler.ir import Graph, Value, Write
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.symbolic import prod
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

F = dtypes.float32
_UNARY = ["neg", "abs", "sin", "cos", "tanh", "sigmoid", "erf", "relu", "exp", "floor", "round"]
_BINARY = ["add", "sub", "mul", "maximum", "minimum"]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(name=f"g{seed}")
        self.arrays: list[np.ndarray] = []
        self.pool: list[Value] = []

    def pick(self, ok: Callable[[Value], bool] = lambda v: True) -> Value | None:
        candidates = [v for v in self.pool if ok(v)]
        if not candidates:
            return None
        # Mostly recent values, so that chains grow.
        k = min(len(candidates) - 1, int(self.rng.exponential(4)))
        return candidates[-1 - k]

    def input(self, shape: tuple[int, ...], kind: str = "arg") -> Value:
        array = self.rng.standard_normal(shape).astype(np.float32)
        self.arrays.append(np.asarray(array))
        v = self.graph.add_input(TensorType(shape, F), kind, f"x{len(self.arrays)}")
        self.pool.append(v)
        return v

    def put(self, v: Value) -> Value:
        self.pool.append(v)
        return v

    def add(self, name: str, *inputs: Value, **attrs: object) -> Value:
        return self.graph.add(OPS[name], *inputs, line=f"user.py:{len(self.graph.nodes)}", **attrs)

    def squash(self, v: Value) -> Value:
        """Keeps magnitudes near one."""
        return self.add("tanh", v)

    # -- steps -----------------------------------------------------------------------------------
    def unary(self) -> None:
        v = self.pick()
        assert v is not None
        name = str(self.rng.choice(_UNARY))
        if name == "exp":
            v = self.squash(v)
        self.put(self.add(name, v))

    def binary(self) -> None:
        a = self.pick()
        assert a is not None
        b = self.pick(lambda v: _broadcasts(a.type.shape, v.type.shape))
        assert b is not None
        name = str(self.rng.choice(_BINARY))
        out = self.add(name, a, b)
        self.put(self.squash(out) if name == "mul" else out)

    def where(self) -> None:
        a = self.pick()
        assert a is not None
        b = self.pick(lambda v: _broadcasts(a.type.shape, v.type.shape))
        assert b is not None
        self.put(self.add("where", self.add("lt", a, b), a, b))

    def reduce(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and 0 not in v.type.shape)
        if v is None:
            return
        n = v.type.ndim
        count = int(self.rng.integers(1, n + 1))
        axes = tuple(sorted(self.rng.choice(n, count, replace=False).tolist()))
        keep = bool(self.rng.integers(2))
        name = str(self.rng.choice(["sum", "amax", "amin", "logsumexp", "sum"]))
        out = self.add(name, v, axes=axes, keepdim=keep, **(
            {"dtype": F} if name == "sum" and _takes(OPS["sum"], v, axes, keep) else {}
        ))  # fmt: skip
        self.put(self.squash(out))

    def normalise(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and 0 not in v.type.shape)
        if v is None:
            return
        axis = int(self.rng.integers(v.type.ndim))
        self.put(self.add(str(self.rng.choice(["softmax", "log_softmax"])), v, axis=axis))

    def permute(self) -> None:
        v = self.pick()
        assert v is not None
        axes = tuple(int(a) for a in self.rng.permutation(v.type.ndim))
        self.put(self.add("permute", v, axes=axes))

    def reshape(self) -> None:
        v = self.pick()
        assert v is not None
        n = prod(v.type.shape)
        assert isinstance(n, int)
        shape: list[int] = []
        rest = n
        for p in (2, 3, 2, 5):
            if rest and rest % p == 0 and self.rng.integers(2):
                shape.append(p)
                rest //= p
        shape.append(rest)
        self.put(self.add("reshape", v, shape=tuple(int(s) for s in self.rng.permutation(shape))))

    def slice(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        starts, stops, steps = [], [], []
        for d in v.type.shape:
            assert isinstance(d, int)
            lo = int(self.rng.integers(0, max(d, 1)))
            hi = int(self.rng.integers(min(lo + 1, d), d + 1)) if d else 0
            starts.append(lo if d else 0)
            stops.append(hi)
            steps.append(int(self.rng.integers(1, 3)))
        self.put(self.add("slice", v, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)))

    def flip(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is not None:
            self.put(self.add("flip", v, axes=(int(self.rng.integers(v.type.ndim)),)))

    def concatenate(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        axis = int(self.rng.integers(v.type.ndim))
        other = self.pick(
            lambda u: u.type.ndim == v.type.ndim
            and all(a == b for i, (a, b) in enumerate(zip(u.type.shape, v.type.shape, strict=True))
                    if i != axis)
        )  # fmt: skip
        assert other is not None
        self.put(self.add("concatenate", v, other, axis=axis))

    def matmul(self) -> None:
        v = self.pick(lambda v: v.type.ndim == 2 and 0 not in v.type.shape)
        if v is None:
            return
        k = v.type.shape[1]
        w = self.pick(lambda u: u.type.ndim == 2 and u.type.shape[0] == k and 0 not in u.type.shape)
        if w is None or self.rng.integers(2):
            assert isinstance(k, int)
            w = self.input((k, int(self.rng.integers(1, 9))), "state")
        self.put(self.squash(self.add("matmul", v, w)))

    def expand(self) -> None:
        v = self.pick(lambda v: v.type.ndim < 3)
        if v is not None:
            shape = (int(self.rng.integers(1, 5)), *v.type.shape)
            self.put(self.add("expand", v, shape=shape))

    def cast(self) -> None:
        v = self.pick()
        assert v is not None
        half = self.add("cast", v, dtype=[dtypes.bfloat16, dtypes.float16][self.rng.integers(2)])
        self.put(self.add("cast", half, dtype=F))


_STEPS = ["unary"] * 5 + ["binary"] * 5 + ["reduce"] * 3 + [
    "where", "normalise", "permute", "reshape", "slice", "flip", "concatenate", "matmul", "expand",
    "cast",
]  # fmt: skip


def random_graph(seed: int, steps: int = 0) -> tuple[Graph, list[np.ndarray]]:
    """A graph with outputs and storage writes, and arrays for its inputs."""
    m = _Maker(seed)
    shapes = [(), (5,), (4, 6), (6, 4), (2, 3, 4), (1, 4), (33,), (3, 1), (0, 4)]
    for _ in range(int(m.rng.integers(1, 4))):
        m.input(shapes[int(m.rng.integers(len(shapes) - (m.rng.random() < 0.8)))])
    for _ in range(steps or int(m.rng.integers(3, 30))):
        getattr(m, str(m.rng.choice(_STEPS)))()
    made = [v for v in m.pool if v.node is not None] or m.pool
    count = int(m.rng.integers(1, 5))
    picked = m.rng.choice(len(made), min(count, len(made)), replace=False)
    m.graph.outputs = [made[-1], *(made[int(i)] for i in picked)]
    if m.rng.random() < 0.3:
        m.graph.outputs.append(m.pool[0])  # an input as it is
    for i, item in enumerate(m.graph.inputs):
        same = [v for v in m.pool if v.type == item.value.type]
        if m.rng.random() < 0.4:
            m.graph.writes.append(Write(i, same[int(m.rng.integers(len(same)))]))
    return m.graph, m.arrays


def _broadcasts(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b), strict=False))


def _takes(op: object, v: Value, axes: tuple[int, ...], keep: bool) -> bool:
    """Whether the record wants its result dtype stated."""
    try:
        op.infer(v.type, axes=axes, keepdim=keep, dtype=F)  # type: ignore[attr-defined]
    except TypeError:
        return False
    return True
