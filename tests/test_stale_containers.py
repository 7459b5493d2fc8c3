"""jit and containers, imports and modules of settings that change between calls."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import importlib
import itertools
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from changes import Program, compare, name_of, programs

import jitgrad as jg
from jitgrad import nn

COMPILED, compiled = programs()


@pytest.mark.parametrize("program", COMPILED, ids=name_of)
def test_compiled(program: Program) -> None:
    compare(program, "error")


# -- order -----------------------------------------------------------------------------------------
# -- classes with a [] of their own ----------------------------------------------------------------
@compiled
def dict_whose_items_are_made() -> Iterator[Any]:
    """The table of activations in Hugging Face's transformers: [] makes an instance each time."""

    class Table(collections.OrderedDict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            content = super().__getitem__(key)
            made, kwargs = content if isinstance(content, tuple) else (content, {})
            return made(**kwargs)

    table = Table(gelu=nn.GELU, leaky=(nn.LeakyReLU, {"negative_slope": 0.5}))
    names = ["gelu"]

    def f(x: Any) -> Any:
        return table[names[0]](x - 2)

    yield f
    names[0] = "leaky"
    yield f
    table["leaky"] = nn.Tanh
    yield f


@compiled
def list_whose_items_are_scaled() -> Iterator[Any]:
    class Scaled(list):  # type: ignore[type-arg]
        factor = 2.0

        def __getitem__(self, i: Any) -> Any:
            return super().__getitem__(i) * self.factor

    held = Scaled([1.0, 2.0])

    def f(x: Any) -> Any:
        return x * held[1]

    yield f
    held[1] = 5.0
    yield f
    Scaled.factor = 3.0
    yield f


@compiled
def order_of_a_dict() -> Iterator[Any]:
    d = {"a": 2.0, "b": 3.0, "c": 5.0}

    def f(x: Any) -> Any:
        for v in d.values():
            x = x * 2 + v
        return x

    yield f
    d["a"] = d.pop("a")
    yield
    d["c"] = d.pop("c")
    yield


@compiled
def order_of_keywords_from_a_dict() -> Iterator[Any]:
    d = {"a": 2.0, "b": 3.0}

    def g(x: Any, **kwargs: float) -> Any:
        for v in kwargs.values():
            x = x * 2 + v
        return x

    def f(x: Any) -> Any:
        return g(x, **d)

    yield f
    d["a"] = d.pop("a")
    yield


@compiled
def first_key_of_a_nested_dict() -> Iterator[Any]:
    d = {"layers": [{"a": 2.0, "b": 3.0}]}

    def f(x: Any) -> Any:
        key, *_ = d["layers"][0]
        return x * d["layers"][0][key]

    yield f
    d["layers"][0]["a"] = d["layers"][0].pop("a")
    yield


@compiled
def order_of_an_ordered_dict() -> Iterator[Any]:
    d = collections.OrderedDict(a=2.0, b=3.0)

    def f(x: Any) -> Any:
        for v in d.values():
            x = x * 2 + v
        return x

    yield f
    d.move_to_end("a")
    yield


@compiled
def order_of_a_set() -> Iterator[Any]:
    s = {0, 8}  # they collide: the order is that of insertion

    def f(x: Any) -> Any:
        for v in s:
            x = x * 2 + v
        return x

    yield f
    s.clear()
    s.update([8])
    s.update([0])
    yield


@compiled
def types_of_elements_and_keys() -> Iterator[Any]:
    s: set[Any] = {1}
    d: dict[Any, int] = {1: 5, (2, 3): 6}

    def f(x: Any) -> Any:
        for v in [*s, *d]:
            x = x + len(repr(v))
        return x

    yield f
    s.clear()
    s.add(True)
    yield
    del d[1]
    d[1.0] = 5
    yield
    del d[2, 3]
    d[2, True] = 6
    yield


@compiled
def order_of_attributes() -> Iterator[Any]:
    c = types.SimpleNamespace(a=2.0, b=3.0)

    def f(x: Any) -> Any:
        for v in vars(c).values():
            x = x * 2 + v
        return x

    yield f
    del c.a
    c.a = 2.0
    yield


@compiled
def order_of_children() -> Iterator[Any]:
    m = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Tanh()})

    def f(x: Any) -> Any:
        for child in m.values():
            x = child(x)
        return x

    yield f
    a = m.pop("a")
    m["a"] = a
    yield


@compiled
def order_of_keywords_of_a_partial() -> Iterator[Any]:
    order = {"a": 2.0, "b": 3.0}

    @functools.partial
    def f(x: Any, **kwargs: float) -> Any:
        for v in kwargs.values():
            x = x * 2 + v
        return x

    def call(x: Any) -> Any:
        return f(x, **order)

    yield call
    order["a"] = order.pop("a")
    yield


# -- contents --------------------------------------------------------------------------------------
@compiled
def objects_in_a_set_and_as_keys() -> Iterator[Any]:
    class Box:
        def __init__(self, k: float) -> None:
            self.k = k

    a, b = Box(2.0), Box(3.0)
    s, d = {a}, {b: 1.0}

    def f(x: Any) -> Any:
        for box in s:
            x = x * box.k
        for box in d:
            x = x + box.k
        return x

    yield f
    a.k = 5.0
    yield
    b.k = 7.0
    yield


@compiled
def dataclass_contents() -> Iterator[Any]:
    @dataclasses.dataclass
    class Config:
        k: float = 2.0
        items: list[float] = dataclasses.field(default_factory=lambda: [1.0])
        more: tuple[Any, ...] = ((1, {"a": 2.0}),)

    c = Config()

    def f(x: Any) -> Any:
        return x * c.k + sum(c.items) + c.more[0][1]["a"]

    yield f
    c.k = 3.0
    yield
    c.items.append(4.0)
    yield
    c.more[0][1]["a"] = 9.0
    yield


@compiled
def frozen_dataclass_and_repr() -> Iterator[Any]:
    @dataclasses.dataclass(frozen=True)
    class Config:
        k: float = 2.0

    box = [Config()]

    def f(x: Any) -> Any:
        return x * len(repr(box[0])) + (box[0] == Config(2.0))

    yield f
    box[0] = dataclasses.replace(box[0], k=22.25)
    yield


@compiled
def named_tuples() -> Iterator[Any]:
    class Pair(NamedTuple):
        a: float
        b: Any

    box = [Pair(2.0, [1.0])]

    def f(x: Any) -> Any:
        return x * box[0].a + box[0].b[0]

    yield f
    box[0].b[0] = 4.0
    yield
    box[0] = box[0]._replace(a=5.0)
    yield


@compiled
def subclass_of_dict() -> Iterator[Any]:
    class Config(dict):
        scale = 2.0

        def __missing__(self, key: str) -> float:
            return self.scale

    c = Config(a=1.0)

    def f(x: Any) -> Any:
        return x * c["b"] + c["a"]

    yield f
    Config.scale = 3.0
    yield
    c["b"] = 9.0
    yield
    c.scale = 4.0
    del c["b"]
    yield


@compiled
def subclasses_of_numbers_and_strings() -> Iterator[Any]:
    class Name(str):
        def long(self) -> int:
            return len(self) + self.more

    class Level(int):
        pass

    name, level = Name("ab"), Level(2)
    name.more, level.k = 1, 2.0

    def f(x: Any) -> Any:
        return x * name.long() + level * level.k

    yield f
    name.more = 5
    yield
    level.k = 7.0
    yield


@compiled
def attrgetter_and_itertools() -> Iterator[Any]:
    c = types.SimpleNamespace(a=types.SimpleNamespace(b=2.0))
    rows = [[1.0, 2.0], [3.0]]
    get = operator.attrgetter("a.b")

    def f(x: Any) -> Any:
        return x * get(c) + sum(itertools.chain.from_iterable(rows))

    yield f
    c.a.b = 3.0
    yield
    rows[1].append(7.0)
    yield


@compiled
def objects_given_to_the_standard_library() -> Iterator[Any]:
    @dataclasses.dataclass
    class Config:
        k: float = 2.0

    class Cell:
        def __init__(self) -> None:
            self.hidden = 2.0

        def value(self) -> float:
            return self.hidden

    c, cell = Config(), Cell()

    def f(x: Any) -> Any:
        x = x * sum(dataclasses.asdict(c).values()) + dataclasses.astuple(c)[0]
        return x * copy.deepcopy(cell).value() + len(copy.copy(cell).__dict__)

    yield f
    c.k = 3.0
    yield
    cell.hidden = 4.0
    yield
    cell.more = 1
    yield


@compiled
def names_in_a_format_string() -> Iterator[Any]:
    c = types.SimpleNamespace(name="a")

    def f(x: Any) -> Any:
        return x * len(f"{c.name}")

    yield f
    c.name = "abc"
    yield


@compiled
def tensors_as_keys_and_their_ids() -> Iterator[Any]:
    a, b = jg.ones(3), jg.full((3,), 2.0)
    current, d, ids = [a], {a: 2.0}, {id(a): 3.0}

    def f(x: Any) -> Any:
        return x * current[0] * d.get(current[0], 5.0)

    def g(x: Any) -> Any:
        return f(x) + ids.get(id(current[0]), 7.0)

    yield g
    current[0] = b
    yield
    d[b] = 7.0
    yield
    ids[id(b)] = 4.0
    yield
    current[0] = a
    yield


@compiled
def two_ways_to_a_dict_and_a_cycle() -> Iterator[Any]:
    inner: dict[str, Any] = {"k": 2.0}
    inner["self"] = inner
    a, b = {"i": inner}, {"i": inner}

    def f(x: Any) -> Any:
        return x * a["i"]["k"] + b["i"]["k"] + a["i"]["self"]["self"]["k"]

    yield f
    inner["k"] = 3.0
    yield
    b["i"] = {"k": 4.0}
    yield
    b["i"]["k"] = 5.0
    yield
    a["i"]["k"] = 6.0
    yield


@compiled
def chain_of_objects() -> Iterator[Any]:
    class Cell:
        pass

    a: Any = Cell()
    a.next = Cell()
    a.next.v = 2.0

    def f(x: Any) -> Any:
        cell = a
        while hasattr(cell, "next"):
            cell = cell.next
        return x * cell.v

    yield f
    a.next.v = 3.0
    yield
    a.next.next = Cell()
    a.next.next.v = 7.0
    yield


# -- imports and modules of settings ---------------------------------------------------------------
def fake_module(name: str, **fields: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(fields)
    sys.modules[name] = module
    return module


@pytest.fixture(autouse=True)
def _no_fake_modules() -> Iterator[None]:
    yield
    for name in [n for n in sys.modules if n.startswith("jg_stale")]:
        del sys.modules[name]


@compiled
def module_imported_in_the_function() -> Iterator[Any]:
    m = fake_module("jg_stale_m", flag=2.0, inner=types.SimpleNamespace(k=1.0))

    def f(x: Any) -> Any:
        import jg_stale_m as settings

        return x * settings.flag + settings.inner.k

    yield f
    m.flag = 3.0
    yield
    m.inner.k = 7.0
    yield
    fake_module("jg_stale_m", flag=9.0, inner=m.inner)
    yield


@compiled
def names_imported_in_the_function() -> Iterator[Any]:
    m = fake_module("jg_stale_n", flag=2.0, box=types.SimpleNamespace(k=1.0))

    def f(x: Any) -> Any:
        from jg_stale_n import box, flag

        return x * flag + box.k

    yield f
    m.flag = 3.0
    yield
    m.box.k = 5.0
    yield
    m.box = types.SimpleNamespace(k=9.0)
    yield


@compiled
def submodule_imported_in_a_helper() -> Iterator[Any]:
    package = fake_module("jg_stale_p", __path__=[])
    sub = package.sub = fake_module("jg_stale_p.sub", flag=2.0)

    def helper() -> Any:
        import jg_stale_p.sub

        return jg_stale_p.sub.flag

    def f(x: Any) -> Any:
        import jg_stale_p.sub as other

        return x * helper() + other.flag

    yield f
    sub.flag = 3.0
    yield


@compiled
def module_of_a_name_that_is_computed() -> Iterator[Any]:
    m = fake_module("jg_stale_q", flag=2.0)

    def f(x: Any) -> Any:
        return x * importlib.import_module("jg_stale_q").flag

    yield f
    m.flag = 3.0
    yield


@compiled
def function_of_an_imported_module() -> Iterator[Any]:
    m = fake_module("jg_stale_r", double=lambda x: x * 2)

    def f(x: Any) -> Any:
        import jg_stale_r

        return jg_stale_r.double(x)

    yield f
    m.double = lambda x: x * 3
    yield


@compiled
def import_that_fails() -> Iterator[Any]:
    def f(x: Any) -> Any:
        try:
            import jg_stale_absent
        except ImportError:
            return x
        return x * jg_stale_absent.k

    yield f
    fake_module("jg_stale_absent", k=3.0)
    yield


def test_module_that_is_loaded_by_the_recorded_call(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "jg_stale_loaded.py").write_text("flag = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> Iterator[Any]:
        def f(x: Any) -> Any:
            import jg_stale_loaded

            return x * jg_stale_loaded.flag

        yield f
        sys.modules["jg_stale_loaded"].flag = 3.0
        yield

    compare(program, "error")


@compiled
def modules_and_classes_in_a_dict() -> Iterator[Any]:
    m = types.ModuleType("jg_stale_s")
    m.flag = 2.0

    class Settings:
        k = 2.0

    table: dict[str, Any] = {"m": m, "c": Settings}

    def f(x: Any) -> Any:
        return x * table["m"].flag + table["c"].k + hasattr(table["m"], "more")

    yield f
    m.flag = 3.0
    yield
    Settings.k = 3.0
    yield
    m.more = 1
    yield


@compiled
def data_in_modules_of_libraries() -> Iterator[Any]:
    jg.stale_flag = 2.0

    def f(x: Any) -> Any:
        return x * jg.stale_flag + getattr(jg, "stale_other", 0) + len(sys.argv)

    yield f
    jg.stale_flag = 3.0
    yield
    jg.stale_other = 3.0
    yield
    sys.argv.append("--more")
    yield
    del jg.stale_flag, jg.stale_other, sys.argv[-1]


@compiled
def module_with_getattr() -> Iterator[Any]:
    values = {"flag": 2.0}
    m = types.ModuleType("jg_stale_t")
    m.__getattr__ = lambda name: values[name]

    def f(x: Any) -> Any:
        return x * m.flag

    yield f
    values["flag"] = 3.0
    yield
    m.__getattr__ = lambda name: 7.0
    yield
    m.flag = 4.0
    yield
