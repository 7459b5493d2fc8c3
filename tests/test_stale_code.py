"""jit and functions, classes and objects that change between calls."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from changes import Program, compare, name_of, programs

import jitgrad as jg

COMPILED, compiled = programs()


@pytest.mark.parametrize("program", COMPILED, ids=name_of)
def test_compiled(program: Program) -> None:
    compare(program, "error")


# -- functions -------------------------------------------------------------------------------------
@compiled
def helper_in_a_closure() -> Iterator[Any]:
    def g(x: Any) -> Any:
        return x + 1

    def f(x: Any) -> Any:
        return g(x)

    yield f

    def g(x: Any) -> Any:  # noqa: F811
        return x + 2

    yield


@compiled
def helper_in_a_table() -> Iterator[Any]:
    table = {"act": jg.tanh}

    def f(x: Any) -> Any:
        return table["act"](x)

    yield f
    table["act"] = jg.sigmoid
    yield
    table["act"] = lambda x: x * 3
    yield


@compiled
def partial() -> Iterator[Any]:
    box = [functools.partial(jg.add, alpha=2)]

    def f(x: Any) -> Any:
        return box[0](x, x)

    yield f
    box[0] = functools.partial(jg.add, alpha=3)
    yield
    box[0].keywords["alpha"] = 5
    yield


@compiled
def bound_method_that_is_kept() -> Iterator[Any]:
    class Scale:
        def __init__(self, k: float) -> None:
            self.k = k

        def apply(self, x: Any) -> Any:
            return x * self.k

    a = Scale(2.0)
    methods = [a.apply]

    def f(x: Any) -> Any:
        return methods[0](x)

    yield f
    a.k = 3.0
    yield
    methods[0] = Scale(5.0).apply
    yield
    Scale.apply = lambda self, x: x * self.k + 1
    yield


@compiled
def default_arguments() -> Iterator[Any]:
    shared = {"k": 2.0}

    def g(x: Any, c: Any = shared, *, more: Any = [1.0]) -> Any:  # noqa: B006
        return x * c["k"] + more[0]

    def f(x: Any) -> Any:
        return g(x)

    yield f
    shared["k"] = 3.0
    yield
    g.__kwdefaults__["more"][0] = 5.0
    yield
    g.__defaults__ = ({"k": 7.0},)
    yield


@compiled
def recursion() -> Iterator[Any]:
    c = types.SimpleNamespace(depth=3, k=2.0)

    def go(x: Any, n: int) -> Any:
        return x if n == 0 else go(x * c.k, n - 1)

    def f(x: Any) -> Any:
        return go(x, c.depth)

    yield f
    c.depth = 2
    yield
    c.k = 3.0
    yield


@compiled
def attributes_of_functions() -> Iterator[Any]:
    def g(x: Any) -> Any:
        return x * g.k

    g.k = 2.0

    def f(x: Any) -> Any:
        return g(x) + getattr(f, "bias", 0.0)

    yield f
    g.k = 3.0
    yield
    f.bias = 5.0
    yield


@compiled
def function_with_a_cache() -> Iterator[Any]:
    c = {"k": 2.0}

    @functools.lru_cache
    def value(n: int) -> float:
        return c["k"] * n

    def f(x: Any) -> Any:
        return x * value(1)

    yield f
    c["k"] = 3.0
    yield
    value.cache_clear()
    value(2)
    yield


@compiled
def singledispatch_and_decorators() -> Iterator[Any]:
    k = [2.0]

    def deco(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * k[0]

        return inner

    @functools.singledispatch
    def weight(v: Any) -> float:
        return 1.0

    @contextlib.contextmanager
    def twice() -> Iterator[float]:
        yield k[0] * 2

    @deco
    def g(x: Any) -> Any:
        return x * weight(k[0])

    def f(x: Any) -> Any:
        with twice() as v:
            return g(x) + v

    yield f
    k[0] = 3.0
    yield
    weight.register(float)(lambda v: 5.0)
    yield


@compiled
def names_that_appear_in_builtins() -> Iterator[Any]:
    builtins.jg_stale_name = 2.0

    def f(x: Any) -> Any:
        return x * jg_stale_name  # noqa: F821

    yield f
    builtins.jg_stale_name = 3.0
    yield
    del builtins.jg_stale_name


@compiled
def comprehension_generator_walrus_and_star() -> Iterator[Any]:
    values, args = [1.0, 2.0], [2.0, 3.0]

    def g(x: Any, a: float, b: float, *rest: float) -> Any:
        return x * a + b + len(rest)

    def gen() -> Iterator[float]:
        for v in values:
            yield v * 2
        yield from values

    def f(x: Any) -> Any:
        if (n := len(values)) > 2:
            x = x + n
        x = x * sum(v for v in gen()) + sum([v for v in values if v > 1])
        return g(x, *args) + max({k: v + 1 for k, v in enumerate(values)}.values())

    yield f
    values[0] = 4.0
    yield
    values.append(3.0)
    yield
    args.append(9.0)
    yield


@compiled
def try_except() -> Iterator[Any]:
    class Box:
        pass

    table: dict[str, float] = {}
    box: Any = Box()

    def f(x: Any) -> Any:
        try:
            x = x * table["k"]
        except KeyError:
            x = x + 1
        try:
            return x * box.k
        except AttributeError:
            return x

    yield f
    table["k"] = 2.0
    yield
    box.k = 5.0
    yield
    del table["k"], box.k
    yield


@compiled
def match_statement() -> Iterator[Any]:
    @dataclasses.dataclass
    class Point:
        x: float
        y: float

    box: list[Any] = [Point(1.0, 2.0)]

    def f(x: Any) -> Any:
        match box[0]:
            case Point(x=1.0, y=y):
                return x * y
            case Point(a, b):
                return x * a + b
            case {"k": k}:
                return x + k
            case [first, *rest]:
                return x * first + len(rest)
        return x

    yield f
    box[0].x = 3.0
    yield
    box[0].y = 4.0
    yield
    Point.__match_args__ = ("y", "x")
    yield
    box[0] = {"k": 5.0}
    yield
    box[0]["k"] = 7.0
    yield
    box[0] = [1.0, 2.0]
    yield
    box[0].append(1.0)
    yield
    box[0] = None
    yield


@compiled
def string_formatting() -> Iterator[Any]:
    c = types.SimpleNamespace(name="a", table={"w_a": 2.0, "w_b": 3.0})

    def f(x: Any) -> Any:
        return x * c.table[f"w_{c.name}"] + len(f"{c.name}") + len(str(c))

    yield f
    c.name = "b"
    yield
    c.table["w_long"] = 1.0
    c.name = "long"
    yield


# -- objects and classes ---------------------------------------------------------------------------
@compiled
def callable_object() -> Iterator[Any]:
    class Scale:
        def __init__(self, k: float) -> None:
            self.k = k

        def __call__(self, x: Any) -> Any:
            return x * self.k

    s = Scale(2.0)

    def f(x: Any) -> Any:
        return s(x)

    yield f
    s.k = 4.0
    yield
    Scale.__call__ = lambda self, x: x - self.k
    yield
    s = Scale(4.0)
    yield


@compiled
def operators_of_a_class() -> Iterator[Any]:
    class Number:
        def __init__(self, k: float) -> None:
            self.k = k

        def __add__(self, other: Number) -> Number:
            return Number(self.k + other.k)

        def __len__(self) -> int:
            return int(self.k)

        def __contains__(self, v: float) -> bool:
            return v == self.k

        def __getitem__(self, i: int) -> float:
            return self.k * i

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Number) and self.k == other.k

        __hash__ = None

        def __iter__(self) -> Iterator[float]:
            yield self.k

        def __enter__(self) -> float:
            return self.k

        def __exit__(self, *exc: object) -> None:
            pass

    a, b = Number(2.0), Number(3.0)

    def f(x: Any) -> Any:
        x = x * (a + b).k + len(a) + (2.0 in b) + a[2] + (a == b) + bool(b)
        for v in a:
            x = x * v
        with b as v:
            return x + v

    yield f
    a.k = 3.0
    yield
    b.k = 2.0
    yield
    Number.__len__ = lambda self: 7
    yield
    Number.__bool__ = lambda self: False
    yield
    Number.__enter__ = lambda self: self.k * 3
    yield


@compiled
def descriptors_and_properties() -> Iterator[Any]:
    class Twice:
        def __init__(self, n: int) -> None:
            self.n = n

        def __get__(self, obj: Any, cls: Any = None) -> Any:
            return obj.k * self.n

    class Box:
        twice = Twice(2)
        base = 1.0

        def __init__(self) -> None:
            self.k = 2.0

        @property
        def more(self) -> float:
            return self.k + 1

        @staticmethod
        def fixed() -> float:
            return 3.0

        @classmethod
        def of_class(cls) -> float:
            return cls.base

        @functools.cached_property
        def once(self) -> float:
            return self.k

    b = Box()
    b.once  # noqa: B018

    def f(x: Any) -> Any:
        return x * b.twice + b.more + b.fixed() + Box.of_class() + b.once

    yield f
    b.k = 5.0
    yield
    Box.base = 9.0
    yield
    vars(Box)["twice"].n = 7
    yield
    Box.more = property(lambda self: 0.5)
    yield
    Box.fixed = staticmethod(lambda: 11.0)
    yield
    b.once = 8.0
    yield


@compiled
def class_of_an_instance_and_bases() -> Iterator[Any]:
    class A:
        k = 2.0

        def go(self, x: Any) -> Any:
            return x * self.k

    class B:
        k = 3.0

        def go(self, x: Any) -> Any:
            return x + self.k

    class C(A):
        pass

    c = C()

    def f(x: Any) -> Any:
        return c.go(x)

    yield f
    c.__class__ = B
    yield
    c.__class__ = C
    C.__bases__ = (B,)
    yield
    B.k = 5.0
    yield
    C.k = 6.0
    yield
    C.go = lambda self, x: x - self.k
    yield


@compiled
def getattr_of_a_class() -> Iterator[Any]:
    class Lazy:
        def __init__(self) -> None:
            self.table = {"k": 2.0}

        def __getattr__(self, name: str) -> Any:
            return self.table[name]

    lazy = Lazy()

    def f(x: Any) -> Any:
        return x * lazy.k

    yield f
    lazy.table["k"] = 3.0
    yield
    lazy.k = 4.0
    yield
    del lazy.k
    Lazy.__getattr__ = lambda self, name: 9.0
    yield


@compiled
def attribute_that_comes_while_another_goes() -> Iterator[Any]:
    class Box:
        pass

    box: Any = Box()
    box.other = 1.0
    boxes = [box]

    def f(x: Any) -> Any:
        return x * (boxes[0].k if hasattr(boxes[0], "k") else 2.0)

    yield f
    del box.other
    box.k = 3.0
    yield


@compiled
def metaclass() -> Iterator[Any]:
    class Meta(type):
        @property
        def k(cls) -> float:
            return cls.base * 2

    class Settings(metaclass=Meta):
        base = 2.0

    def f(x: Any) -> Any:
        return x * Settings.k

    yield f
    Settings.base = 3.0
    yield
    Meta.k = property(lambda cls: 1.5)
    yield


@compiled
def class_of_an_object_made_inside() -> Iterator[Any]:
    @dataclasses.dataclass
    class Box:
        k: ClassVar[float] = 2.0
        t: Any = None

        def go(self, x: Any) -> Any:
            return x * self.k + Box.k

    def f(x: Any) -> Any:
        box = Box(x)
        return box.go(box.t) * box.k

    yield f
    Box.k = 3.0
    yield
    Box.go = lambda self, x: x - self.k
    yield


@compiled
def iteration_over_an_object() -> Iterator[Any]:
    class Values:
        def __init__(self) -> None:
            self.values = [1.0, 2.0]

        def __iter__(self) -> Iterator[float]:
            return iter(self.values)

    values = Values()

    def f(x: Any) -> Any:
        for v in values:
            x = x * v
        first, *rest = values
        return x + first + len(rest) + sum(values) + max(values)

    yield f
    values.values[0] = 3.0
    yield
    values.values.append(4.0)
    yield


@compiled
def enum_members() -> Iterator[Any]:
    class Mode(enum.Enum):
        A = 1
        B = 2

        @property
        def weight(self) -> float:
            return self.more

    Mode.A.more, Mode.B.more = 1.0, 2.0

    class Flag(enum.IntFlag):
        X = 1
        Y = 2

    c = types.SimpleNamespace(mode=Mode.A, flag=Flag.X)

    def f(x: Any) -> Any:
        y = x * 2 if c.mode is Mode.A else x * 3
        return y + c.mode.value + int(c.flag) + (Flag.Y in c.flag) + c.mode.weight

    yield f
    c.mode = Mode.B
    yield
    c.flag = Flag.X | Flag.Y
    yield
    Mode.B.more = 7.0
    yield


@compiled
def value_of_an_enum_member() -> Iterator[Any]:
    class Mode(enum.Enum):
        A = [2.0]

    def f(x: Any) -> Any:
        return x * Mode.A.value[0]

    yield f
    Mode.A.value[0] = 3.0
    yield


@compiled
def isinstance_hasattr_and_callable() -> Iterator[Any]:
    class A:
        pass

    class B(A):
        pass

    box: list[Any] = [A()]

    def f(x: Any) -> Any:
        if isinstance(box[0], B):
            return x * 3
        if hasattr(box[0], "k"):
            return x * box[0].k
        return x * 2 if callable(box[0]) else x

    yield f
    box[0].k = 7.0
    yield
    box[0] = B()
    yield
    box[0] = len
    yield


def _nested(form: str) -> tuple[Callable[[jg.Tensor], jg.Tensor], Callable[[Any], None]]:
    """A function whose free variable only a function nested in it names, and what changes it."""
    scale: Any = 2

    def generator(x: jg.Tensor) -> jg.Tensor:
        return sum((row * scale for row in x), jg.zeros(3))

    def comprehension(x: jg.Tensor) -> jg.Tensor:
        return jg.stack([row * scale for row in x])

    def anonymous(x: jg.Tensor) -> jg.Tensor:
        return (lambda y: y * scale)(x)

    def local(x: jg.Tensor) -> jg.Tensor:
        def g(y: jg.Tensor) -> jg.Tensor:
            def h(z: jg.Tensor) -> jg.Tensor:
                return z * scale

            return h(y)

        return g(x)

    def default(x: jg.Tensor) -> jg.Tensor:
        def g(y: jg.Tensor, by: Any = scale) -> jg.Tensor:
            return y * by

        return g(x)

    def outer(x: jg.Tensor) -> jg.Tensor:
        return local(x) + 1

    def put(value: Any) -> None:
        nonlocal scale
        scale = value

    return locals()[form], put


@pytest.mark.parametrize(
    "form", ["generator", "comprehension", "anonymous", "local", "default", "outer"]
)
@pytest.mark.parametrize("tensor", [False, True])
def test_free_variables_of_nested_functions(form: str, tensor: bool) -> None:
    f, put = _nested(form)
    compiled, x = jg.jit(f, fallback="error"), jg.arange(6.0).view(2, 3)
    for value in (2, 3, 3, 2.5, 2):
        put(jg.tensor(float(value)) if tensor else value)
        assert compiled(x).tolist() == f(x).tolist()
    if tensor:
        assert compiled.stats.traces == 1 and compiled.stats.hits == 4
