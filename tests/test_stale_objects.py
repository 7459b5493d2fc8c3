"""jit and inheritance, slots, closures, Modules that are walked: what changes between calls."""

from __future__ import annotations

import collections
import contextvars
import functools
import re
import string
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from changes import Program, compare, name_of, programs

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import jit

COMPILED, compiled = programs()
EAGER, eager = programs()


@pytest.mark.parametrize("program", COMPILED, ids=name_of)
def test_compiled(program: Program) -> None:
    compare(program, "error")


@pytest.mark.parametrize("program", EAGER, ids=name_of)
def test_eager(program: Program) -> None:
    compare(program, "silent")


# -- classes ---------------------------------------------------------------------------------------
@compiled
def attributes_of_bases_in_between() -> Iterator[Any]:
    class A:
        k = 2.0

        def go(self, x: Any) -> Any:
            return x * 2

    class B(A):
        pass

    class C(B):
        def go(self, x: Any) -> Any:
            return super().go(x) + 1

    c: Any = C()

    def f(x: Any) -> Any:
        return c.go(x) * c.k * C.k

    yield f
    B.k = 3.0
    yield
    C.k = 4.0
    yield
    c.k = 5.0
    yield
    A.go = lambda self, x: x * 3
    yield
    B.go = lambda self, x: x * 7
    yield
    del B.k, C.k, c.k
    yield


@compiled
def classes_that_are_replaced_and_init() -> Iterator[Any]:
    class Box:
        def __init__(self) -> None:
            self.k = 2.0

    def f(x: Any) -> Any:
        return x * Box().k

    yield f
    Box.__init__ = lambda self: setattr(self, "k", 3.0)
    yield

    class Box:
        k = 4.0

    yield
    Box.k = 5.0
    yield


@compiled
def slots() -> Iterator[Any]:
    class A:
        __slots__ = ("a",)

    class B(A):
        __slots__ = ("b",)

    boxes = [B(), B()]
    for box in boxes:
        box.a, box.b = 1.0, 2.0

    def f(x: Any) -> Any:
        for box in boxes:
            x = x * box.a + box.b
        return x

    yield f
    boxes[1].a = 5.0
    yield
    boxes[0].b = 6.0
    yield


@compiled
def methods_with_a_cache() -> Iterator[Any]:
    class A:
        k = 2.0

        @staticmethod
        @functools.lru_cache
        def value(n: int) -> float:
            return A.k * n

    def f(x: Any) -> Any:
        return x * A().value(2)

    yield f
    A.k = 3.0
    A.value.cache_clear()
    yield


@compiled
def names_that_are_computed() -> Iterator[Any]:
    box, names = types.SimpleNamespace(k0=1.0, k1=2.0), ["k0", "k1"]

    def f(x: Any) -> Any:
        for name in names:
            x = x * getattr(box, name)
        return x

    yield f
    box.k1 = 3.0
    yield
    names.pop()
    yield


# -- functions -------------------------------------------------------------------------------------
@compiled
def jitted_functions_inside() -> Iterator[Any]:
    k = [2.0]

    @jit
    def inner(x: Any) -> Any:
        return x * k[0]

    def f(x: Any) -> Any:
        return inner(x) + 1

    yield f
    k[0] = 3.0
    yield
    inner = jit(lambda x: x * 9)  # noqa: F811
    yield
    inner.__wrapped__ = lambda x: x * 11
    yield


@compiled
def closures_in_lists_and_shared_cells() -> Iterator[Any]:
    def make() -> tuple[Any, Any]:
        k = 2.0

        def put(v: float) -> None:
            nonlocal k
            k = v

        return put, lambda: k

    put, get = make()
    ks = [1.0, 2.0]
    functions = [(lambda y, i=i: y * ks[i]) for i in range(2)]

    def f(x: Any) -> Any:
        return functools.reduce(lambda y, g: g(y), functions, x) * get()

    yield f
    put(3.0)
    yield
    ks[1] = 7.0
    yield
    functions.append(jg.tanh)
    yield


@compiled
def default_that_is_filled() -> Iterator[Any]:
    def g(x: Any, cache: dict[str, float] = {"k": 2.0}) -> Any:  # noqa: B006
        if "k" not in cache:
            return x
        return x * cache["k"]

    def f(x: Any) -> Any:
        return g(x)

    yield f
    g.__defaults__[0]["k"] = 5.0
    yield
    g.__defaults__[0].clear()
    yield


@compiled
def text_and_patterns() -> Iterator[Any]:
    c = types.SimpleNamespace(p=re.compile("a+"), t="aaa,a", template=string.Template("$x"))

    def f(x: Any) -> Any:
        x = x * len(c.p.match(c.t).group()) * len(c.t.split(","))
        return x + len(c.template.substitute(x=c.t))

    yield f
    c.t = "aaaa"
    yield
    c.p = re.compile("a")
    yield
    c.template.template = "$x!"
    yield


# -- containers ------------------------------------------------------------------------------------
@compiled
def deep_and_mixed() -> Iterator[Any]:
    tree = {"a": [1, ({"c": 2.0}, [3.0])], "d": collections.Counter("aab")}
    default = collections.defaultdict(lambda: 2.0)

    class Values(list):
        k = 1.0

    values = Values([1.0, 2.0])

    def f(x: Any) -> Any:
        x = x * tree["a"][1][0]["c"] + tree["a"][1][1][0] + tree["d"].most_common(1)[0][1]
        return x * default["a"] + sum(values) * values.k

    yield f
    tree["a"][1][0]["c"] = 3.0
    yield
    tree["a"][1] = ({"c": 3.0}, [4.0])
    yield
    tree["a"][1][1][0] = 5.0
    yield
    tree["d"]["z"] = 9
    yield
    default["a"] = 3.0
    yield
    default.clear()
    default.default_factory = lambda: 5.0
    yield
    values[0] = 3.0
    yield
    values.k = 4.0
    yield


@compiled
def thread_locals() -> Iterator[Any]:
    local = threading.local()
    local.k = 2.0

    def f(x: Any) -> Any:
        return x * local.k

    yield f
    local.k = 3.0
    yield


# -- Modules that are walked -----------------------------------------------------------------------
@compiled
def walks_over_modules() -> Iterator[Any]:
    m = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3)))

    def f(x: Any) -> Any:
        total = 0.0
        for name, p in m.named_parameters():
            total = total + p.sum() + len(name) + p.requires_grad
        for name, b in m.named_buffers():
            total = total + b.sum() * len(name)
        for child in m.modules():
            total = total + len(child._parameters)
        return x * total + sum(v.double().sum() for v in m.state_dict().values())

    yield f
    m[1].append(nn.Linear(3, 3))
    yield
    m[0].register_parameter("z", nn.Parameter(jg.ones(2)))
    yield
    m.requires_grad_(False)
    yield
    m[1][0].running_mean.fill_(3.0)
    yield
    m.register_buffer("more", jg.ones(2))
    yield
    del m[0].z, m.more
    yield


@compiled
def module_with_getattr() -> Iterator[Any]:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.inner.k = 2.0

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.k

    m: Any = Wrapper()

    def f(x: Any) -> Any:
        return m(x)

    yield f
    m.inner.k = 3.0
    yield
    m.k = 4.0
    yield


@compiled
def tensors_by_index_and_leaves() -> Iterator[Any]:
    a = jg.ones(3, requires_grad=True)
    ws, c = [a, jg.full((3,), 2.0), jg.full((3,), 3.0)], types.SimpleNamespace(i=0)

    def f(x: Any) -> Any:
        return x * ws[c.i].detach() * (ws[0].is_leaf + 1)

    yield f
    c.i = 1
    yield
    c.i = -1
    yield
    ws[0] = a * 2
    yield


# -- what cannot be guarded ------------------------------------------------------------------------
@eager
def arrays_of_objects() -> Iterator[Any]:
    objects = np.array([{"k": 2.0}], dtype=object)

    def f(x: Any) -> Any:
        return x * objects[0]["k"]

    yield f
    objects[0]["k"] = 3.0
    yield


@eager
def context_variables_and_weak_dicts() -> Iterator[Any]:
    class Key:
        pass

    key, weak = Key(), weakref.WeakKeyDictionary()
    weak[key] = 2.0
    variable = contextvars.ContextVar("variable", default=2.0)

    def f(x: Any) -> Any:
        return x * variable.get() + weak[key]

    yield f
    variable.set(3.0)
    yield
    weak[key] = 5.0
    yield


@eager
def class_with_getattribute() -> Iterator[Any]:
    class Box:
        def __init__(self) -> None:
            object.__setattr__(self, "table", {"k": 2.0})

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, "table")[name]

    box: Any = Box()

    def f(x: Any) -> Any:
        return x * box.k

    yield f
    object.__getattribute__(box, "table")["k"] = 3.0
    yield
