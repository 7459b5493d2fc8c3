"""What jit guards: one test for each kind of Python state. A change means a new trace (or a fresh
read), never a stale answer; no change means a hit.
"""

from __future__ import annotations

import collections
import functools
import math
import types
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import JitFunction, jit
from jitgrad.runtime.knobs import knob

X = jg.tensor([1.0, 2.0, 3.0])
SCALE = 2.0
TABLE = {"scale": 2.0}
LIST = [2.0]
WEIGHT = jg.tensor([1.0, 1.0, 1.0])
CONFIG = types.SimpleNamespace(scale=2.0, unused=0, nested=types.SimpleNamespace(bias=1.0))
MODULE = types.ModuleType("settings")
MODULE.scale = 2.0  # type: ignore[attr-defined]
ARRAY = np.array([2.0], np.float32)


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def check(f: JitFunction, args: tuple[Any, ...], traces: int) -> None:
    """Two calls give what the plain function gives, and this many traces were made so far."""
    for _ in range(2):
        np.testing.assert_allclose(
            f(*args).numpy(), f.__wrapped__(*args).numpy(), rtol=2e-6, atol=1e-6
        )
    assert f.stats.traces == traces, f.explain_last_miss()


def test_global_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return x * SCALE

    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    check(f, (X,), 2)
    assert "SCALE: 2.0 -> 5.0" in f.explain_last_miss()
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    check(f, (X,), 2)


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0.0, -0.0), (2, 3), ("a", "b")])
def test_scalars_differ_by_type_and_sign(old: Any, new: Any) -> None:
    config = types.SimpleNamespace(value=old)

    @jit
    def f(x: Any) -> Any:
        v = config.value
        return x + (hash(repr(v)) % 7)

    check(f, (X,), 1)
    config.value = new
    check(f, (X,), 2)


def test_nan_is_the_same_value() -> None:
    config = types.SimpleNamespace(value=math.nan)

    @jit
    def f(x: Any) -> Any:
        return x * config.value

    check(f, (X,), 1)
    config.value = float("nan")
    check(f, (X,), 1)


def test_global_tensor_is_read_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return x * WEIGHT

    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "WEIGHT", jg.tensor([3.0, 4.0, 5.0]))
    check(f, (X,), 1)
    WEIGHT.mul_(2)
    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "WEIGHT", jg.tensor([[3.0], [4.0]]))
    check(f, (X,), 2)
    monkeypatch.setitem(globals(), "WEIGHT", jg.tensor([1.0, 2.0, 3.0], dtype=jg.float64))
    check(f, (X,), 3)


def test_closure() -> None:
    scale = 2.0
    shift = jg.tensor([1.0])

    @jit
    def f(x: Any) -> Any:
        return x * scale + shift

    check(f, (X,), 1)
    scale = 3.0
    check(f, (X,), 2)
    shift = jg.tensor([2.0])
    check(f, (X,), 2)


def test_attribute_path() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * CONFIG.scale + CONFIG.nested.bias

    check(f, (X,), 1)
    CONFIG.unused += 1
    check(f, (X,), 1)
    CONFIG.nested.bias = 4.0
    check(f, (X,), 2)
    CONFIG.nested = types.SimpleNamespace(bias=7.0)
    check(f, (X,), 3)


def test_attribute_through_a_local_and_getattr() -> None:
    @jit
    def f(x: Any) -> Any:
        c = CONFIG
        return x * c.scale + getattr(c, "unused")  # noqa: B009

    check(f, (X,), 1)
    CONFIG.scale = 9.0
    check(f, (X,), 2)
    CONFIG.unused += 5
    check(f, (X,), 3)


def test_attribute_that_was_absent() -> None:
    config = types.SimpleNamespace()

    @jit
    def f(x: Any) -> Any:
        return x + (config.bias if hasattr(config, "bias") else 0)

    check(f, (X,), 1)
    config.other = 1
    check(f, (X,), 1)
    config.bias = 3
    check(f, (X,), 2)


def test_computed_attribute_names() -> None:
    config = types.SimpleNamespace(scale1=2.0, scale2=3.0)

    @jit
    def f(x: Any) -> Any:
        for i in (1, 2):
            x = x * getattr(config, f"scale{i}")
        return x

    @jit
    def g(x: Any) -> Any:
        return x * sum(vars(config).values())

    check(f, (X,), 1)
    check(g, (X,), 1)
    config.scale2 = 7.0
    check(f, (X,), 2)
    check(g, (X,), 2)
    config.scale3 = 1.0
    check(g, (X,), 3)


def test_module_of_settings() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * MODULE.scale

    check(f, (X,), 1)
    MODULE.scale = 4.0  # type: ignore[attr-defined]
    check(f, (X,), 2)


def test_default_argument() -> None:
    @jit
    def f(x: Any, scale: Any = 2.0, more: Any = [1.0], *, k: Any = 1) -> Any:  # noqa: B006
        return x * scale + more[0] + k

    check(f, (X,), 1)
    f.__wrapped__.__defaults__[1][0] = 4.0
    check(f, (X,), 2)
    f.__wrapped__.__defaults__ = (7.0, [1.0])
    check(f, (X,), 3)
    f.__wrapped__.__kwdefaults__["k"] = 5
    check(f, (X,), 4)


def helper(x: Any) -> Any:
    return x + 1


def test_replaced_function(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return helper(x)

    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    check(f, (X,), 2)


def test_replaced_code() -> None:
    def inner(x: Any) -> Any:
        return x + 1

    @jit
    def f(x: Any) -> Any:
        return inner(x)

    check(f, (X,), 1)
    inner.__code__ = (lambda x: x + 5).__code__
    check(f, (X,), 2)


def test_builtin_that_is_shadowed(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return x * abs(-2)

    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "abs", lambda v: 11)
    check(f, (X,), 2)


def test_helper_of_a_helper_and_its_global(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return outer(x)

    check(f, (X,), 1)
    monkeypatch.setitem(globals(), "FLAG", True)
    check(f, (X,), 2)


FLAG = False


def outer(x: Any) -> Any:
    return x * 10 if FLAG else x


def test_mutated_dict_and_list(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return x * TABLE["scale"] + sum(LIST)

    check(f, (X,), 1)
    TABLE["scale"] = 3.0
    check(f, (X,), 2)
    LIST.append(1.0)
    check(f, (X,), 3)
    LIST[0] = 6.0
    check(f, (X,), 4)
    monkeypatch.setitem(globals(), "LIST", list(LIST))
    check(f, (X,), 4)
    monkeypatch.setitem(globals(), "LIST", tuple(LIST))
    check(f, (X,), 5)


def test_nested_containers() -> None:
    state = {"layers": [{"w": jg.tensor([1.0]), "on": True}, {"w": jg.tensor([2.0]), "on": True}]}

    @jit
    def f(x: Any) -> Any:
        for layer in state["layers"]:
            if layer["on"]:
                x = x * layer["w"]
        return x

    check(f, (X,), 1)
    state["layers"][0]["w"] = jg.tensor([5.0])
    check(f, (X,), 1)
    state["layers"][1]["on"] = False
    check(f, (X,), 2)
    state["layers"].append({"w": jg.tensor([4.0]), "on": True})
    check(f, (X,), 3)


def test_set() -> None:
    names = {"a"}

    @jit
    def f(x: Any) -> Any:
        return x + len(names)

    check(f, (X,), 1)
    names.add("b")
    check(f, (X,), 2)


class Scale:
    factor = 2.0

    def __init__(self, power: int) -> None:
        self.power = power

    @property
    def doubled(self) -> int:
        return self.power * 2

    def __call__(self, x: Any) -> Any:
        return self.helper(x) + self.doubled

    def helper(self, x: Any) -> Any:
        return x * self.factor + self.power


def test_instance_class_attribute_property_and_method(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Scale(3)

    @jit
    def f(x: Any) -> Any:
        return scale(x)

    check(f, (X,), 1)
    scale.power = 5
    check(f, (X,), 2)
    monkeypatch.setattr(Scale, "factor", 7.0)
    check(f, (X,), 3)
    monkeypatch.setattr(Scale, "helper", lambda self, x: x - 1)
    check(f, (X,), 4)
    scale.helper = lambda x: x - 2  # type: ignore[method-assign]
    check(f, (X,), 5)


def test_subclass_that_begins_to_override(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Scale):
        pass

    scale = Twice(3)

    @jit
    def f(x: Any) -> Any:
        return scale(x)

    check(f, (X,), 1)
    monkeypatch.setattr(Twice, "helper", lambda self, x: x - 1, raising=False)
    check(f, (X,), 2)


def test_method_under_jit_and_its_instances() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = jg.tensor([w])
            self.calls = 0

        @jit
        def run(self, x: Any) -> Any:
            return x * self.w

    a, b = Model(2.0), Model(3.0)
    for _ in range(3):
        a.calls += 1  # never read by run
        np.testing.assert_array_equal(a.run(X).numpy(), 2 * X.numpy())
        np.testing.assert_array_equal(b.run(X).numpy(), 3 * X.numpy())
    assert Model.run.stats.traces == 2
    a.w = jg.tensor([9.0])
    np.testing.assert_array_equal(a.run(X).numpy(), 9 * X.numpy())
    assert Model.run.stats.traces == 2


def test_partial_lambda_and_bound_method() -> None:
    def base(x: Any, k: Any) -> Any:
        return x * k

    part = functools.partial(base, k=3)
    check(jit(part), (X,), 1)
    check(jit(lambda x: x + 1), (X,), 1)
    scale = Scale(3)
    f = jit(scale.helper)
    check(f, (X,), 1)
    scale.power = 8
    check(f, (X,), 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.scale = 2.0
        self.steps = 0
        self.extras = [1.0]
        self.register_buffer("shift", jg.tensor([1.0, 1.0]))

    def forward(self, x: Any) -> Any:
        y = self.fc(x) * self.scale + self.shift + self.extras[0]
        return y * 2 if self.training else y


def test_module_attribute_parameter_and_mode() -> None:
    net = Net()

    @jit
    def f(x: Any) -> Any:
        with jg.no_grad():
            return net(x)

    check(f, (X,), 1)
    net.scale = 3.0
    check(f, (X,), 2)
    net.eval()
    check(f, (X,), 3)
    net.train()
    check(f, (X,), 3)
    net.steps += 1
    check(f, (X,), 3)
    net.extras[0] = 5.0
    check(f, (X,), 4)
    net.fc.weight.data = jg.randn(2, 3)
    check(f, (X,), 4)
    net.fc.weight = nn.Parameter(jg.randn(2, 3))
    check(f, (X,), 4)
    net.shift = jg.tensor([4.0, 5.0])
    check(f, (X,), 4)
    net.fc = nn.Linear(3, 2)
    check(f, (X,), 5)
    net.fc.register_forward_hook(lambda m, a, out: out * 2)
    check(f, (X,), 6)


def test_epoch_mismatch_is_no_trace() -> None:
    net, other = Net(), Net()

    @jit
    def f(x: Any) -> Any:
        with jg.no_grad():
            return net(x)

    check(f, (X,), 1)
    for _ in range(3):
        other.scale += 1.0
        check(f, (X,), 1)


def test_replaced_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()

    @jit
    def f(x: Any) -> Any:
        with jg.no_grad():
            return net(x)

    check(f, (X,), 1)
    monkeypatch.setattr(Net, "forward", lambda self, x: x - 1)
    check(f, (X,), 2)


def test_jitted_module_shares_state() -> None:
    net = Net()
    fast = jit(net)
    assert isinstance(fast, Net)
    with jg.no_grad():
        for _ in range(2):
            np.testing.assert_allclose(fast(X).numpy(), net(X).numpy(), rtol=2e-6)
    assert fast.jitted.stats.traces == 1
    assert list(fast.state_dict()) == list(net.state_dict())
    fast.eval()
    assert not net.training
    with jg.no_grad():
        np.testing.assert_allclose(fast(X).numpy(), net(X).numpy(), rtol=2e-6)
    assert fast.jitted.stats.traces == 2


def test_arguments() -> None:
    @jit
    def f(x: Any, y: Any = None, **more: Any) -> Any:
        out = x * 2 if y is None else x + y
        return out + more.get("k", 0)

    check(f, (X,), 1)
    check(f, (X, X.clone()), 2)
    check(f, (X.double(),), 3)
    check(f, (jg.ones(2, 3),), 4)
    check(f, (jg.ones(3, 2).t(),), 5)
    check(f, (X, X), 6)
    np.testing.assert_array_equal(f(X, k=3).numpy(), 2 * X.numpy() + 3)
    np.testing.assert_array_equal(f(X, k=4).numpy(), 2 * X.numpy() + 4)
    assert f.stats.traces == 8
    assert "k: 3 -> 4" in f.explain_last_miss()


def test_slices_of_one_tensor_are_one_signature() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * 2

    data = jg.arange(12.0).reshape(6, 2)
    for i in range(0, 6, 2):
        check(f, (data[i : i + 2],), 1)


def test_modes() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * (2.0 if jg.is_grad_enabled() else 3.0) + jg.ones(3)

    check(f, (X,), 1)
    with jg.no_grad():
        check(f, (X,), 2)
    before = jg.get_default_dtype()
    try:
        jg.set_default_dtype(jg.float64)
        check(f, (X,), 3)
        assert f(X).dtype is jg.float64
    finally:
        jg.set_default_dtype(before)
    check(f, (X,), 3)


def test_captured_tensors_that_begin_to_share() -> None:
    state = {"a": jg.tensor([1.0]), "b": jg.tensor([2.0])}

    @jit
    def f(x: Any) -> Any:
        return x * state["a"] + state["b"]

    check(f, (X,), 1)
    state["b"] = state["a"]
    check(f, (X,), 2)
    state["a"] = jg.tensor([5.0])
    check(f, (X,), 2)


def test_argument_that_is_also_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def f(x: Any) -> Any:
        return x * WEIGHT

    check(f, (WEIGHT,), 1)
    check(f, (jg.tensor([4.0, 5.0, 6.0]),), 2)
    check(f, (WEIGHT,), 2)


def test_numpy_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    @jit
    def shared(x: Any) -> Any:
        return x * jg.from_numpy(ARRAY)

    @jit
    def copied(x: Any) -> Any:
        return x * float(ARRAY[0])

    for f in (shared, copied):
        check(f, (X,), 1)
    ARRAY[0] = 6.0
    check(shared, (X,), 1)
    check(copied, (X,), 2)
    monkeypatch.setitem(globals(), "ARRAY", np.array([9.0], np.float32))
    check(shared, (X,), 1)
    check(copied, (X,), 3)


class Slots:
    __slots__ = ("v", "w")

    def __init__(self) -> None:
        self.v = 2.0


class OneSlot:
    __slots__ = "value"  # a string is one name

    def __init__(self) -> None:
        self.value = 2.0


def test_one_slot_named_by_a_string() -> None:
    s = OneSlot()

    @jit
    def f(x: Any) -> Any:
        return x * s.value

    check(f, (X,), 1)
    s.value = 3.0
    check(f, (X,), 2)


def test_slots_and_a_slot_that_was_empty() -> None:
    s = Slots()

    @jit
    def f(x: Any) -> Any:
        return x * s.v if not hasattr(s, "w") else x * s.w

    check(f, (X,), 1)
    s.v = 3.0
    check(f, (X,), 2)
    s.w = 7.0
    check(f, (X,), 3)


def test_object_reached_through_a_method_result() -> None:
    class Holder:
        def __init__(self) -> None:
            self.all = {"a": Slots()}

        def get(self, name: str) -> Slots:
            return self.all[name]

    holder = Holder()

    @jit
    def f(x: Any) -> Any:
        return x * holder.get("a").v

    check(f, (X,), 1)
    holder.all["a"].v = 9.0
    check(f, (X,), 2)
    holder.all["a"] = Slots()
    check(f, (X,), 3)


class Attributes(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_other_containers() -> None:
    queue = collections.deque([2.0])
    counter = collections.Counter(a=2)
    attributes = Attributes(k=2.0)

    @jit
    def f(x: Any) -> Any:
        return x * queue[0] * counter["a"] * attributes.k

    check(f, (X,), 1)
    queue.appendleft(5.0)
    check(f, (X,), 2)
    counter["a"] += 1
    check(f, (X,), 3)
    attributes["k"] = 4.0
    check(f, (X,), 4)


def test_class_in_a_class_and_a_lambda_in_map(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings:
        class Inner:
            k = 2.0

    @jit
    def f(x: Any) -> Any:
        return sum(map(lambda t: t * SCALE * Settings.Inner.k, [x, x]))  # noqa: C417

    check(f, (X,), 1)
    Settings.Inner.k = 4.0
    check(f, (X,), 2)
    monkeypatch.setitem(globals(), "SCALE", 11.0)
    check(f, (X,), 3)


def test_parameters_that_are_swapped_and_tied() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)

    @jit
    def f(x: Any) -> Any:
        with jg.no_grad():
            return a(x) * 4 + b(x)

    check(f, (X,), 1)
    a.weight, b.weight = b.weight, a.weight
    check(f, (X,), 1)
    b.weight = a.weight
    check(f, (X,), 2)


def test_captured_tensor_that_becomes_a_view_in_place() -> None:
    w = jg.ones(1, 3)

    @jit
    def f(x: Any) -> Any:
        return x * w

    check(f, (jg.ones(3, 3),), 1)
    w.t_()
    check(f, (jg.ones(3, 3),), 2)


def test_requires_grad_of_a_capture() -> None:
    p = jg.ones(3)

    @jit
    def f(x: Any) -> Any:
        return x * p

    assert not f(X).requires_grad and not f(X).requires_grad
    p.requires_grad_()
    for _ in range(2):
        assert f(X).requires_grad
    assert f.stats.traces == 2


def test_which_arguments_are_one_tensor() -> None:
    @jit
    def f(x: Any, y: Any) -> Any:
        return x * (1 if x is y else 2)

    check(f, (X, X), 1)
    check(f, (X, X.detach()), 2)
    check(f, (X, X), 2)


def test_which_captured_tensors_are_one() -> None:
    state = {"a": X.clone(), "b": None}
    state["b"] = state["a"]

    @jit
    def f(x: Any) -> Any:
        return x * state["a"] * (1 if state["a"] is state["b"] else 2)

    check(f, (X,), 1)
    state["b"] = state["a"].detach()
    check(f, (X,), 2)


def test_guards_print_and_explain() -> None:
    @jit
    def f(x: Any) -> Any:
        return x * SCALE

    f(X)
    f(X)
    assert "# SCALE" in f.guards()
    text = str(f.explain())
    assert "mul(" in text and "1 hits" in text and "peak" in f.memory_plan()


def test_state_that_cannot_be_guarded_is_read_at_every_call(monkeypatch: Any) -> None:
    """Environment, wrappers of mappings, weak references, raw buffers, versions."""
    import array
    import collections
    import os
    import types
    import weakref

    class Box:
        k = 1.0

    base = {"k": 1.0}
    box, user, chain = Box(), collections.UserDict(k=1.0), collections.ChainMap({}, base)
    proxy, ref, raw, view = types.MappingProxyType(base), weakref.ref(box), array.array("d", [1]), 0
    view = memoryview(raw)
    w = jg.zeros(2)

    def change(value: float) -> None:
        monkeypatch.setenv("JG_TEST_VALUE", str(value))
        base["k"] = user["k"] = box.k = raw[0] = value
        w.add_(1)

    programs = [
        lambda x: x * float(os.environ["JG_TEST_VALUE"]),
        lambda x: x * float(os.getenv("JG_TEST_VALUE") or 0),
        lambda x: x * user["k"],
        lambda x: x * chain["k"],
        lambda x: x * proxy["k"],
        lambda x: x * ref().k,
        lambda x: x * raw[0],
        lambda x: x * view[0],
        lambda x: x * w._version,
    ]
    for number, program in enumerate(programs):
        compiled = jit(program, fallback="silent")
        for value in (1.0, 2.0, 3.0, 3.0):
            change(value)
            x = jg.ones(2)
            assert compiled(x).tolist() == program(x).tolist(), number


def test_a_container_of_two_ways_is_replaced_again_and_again() -> None:
    """The second way is guarded by being the first: each call may replace both."""
    here: dict[str, Any] = {"a": [2], "b": None}
    here["b"] = here["a"]

    @jit
    def f(x: Any) -> Any:
        return x * here["a"][0] + here["b"][0]

    for value in (2, 2, 2, 3):
        here["a"] = here["b"] = [value]
        assert f(X).equal(X * value + value)
    assert f.stats.traces == 2
    here["b"] = [3]
    assert f(X).equal(X * 3 + 3) and f.stats.traces == 3


def test_local_functions_that_call_each_other_are_no_state() -> None:
    """They are made anew by each call, and so are the cells that hold the arguments."""

    @jit
    def f(x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            return (p * y).sum()

        def along(p: Any) -> Any:
            return sum([loss(p), loss(p + 1)])

        return along(x * 2)

    for _ in range(3):
        x, y = X.clone(), X + 1
        assert f(x, y).equal(2 * (2 * x * y).sum() + y.sum())
    assert f.stats.traces == 1 and f.stats.hits == 2


def test_a_closure_made_before_is_state_even_where_its_maker_runs_again() -> None:
    def make(k: float) -> Any:
        def inner(p: Any) -> Any:
            return p * k

        return inner

    here = {"f": make(2.0)}

    @jit
    def f(x: Any) -> Any:
        own, old = make(3.0), here["f"]
        both = lambda v: own(v) + old(v)  # noqa: E731
        return both(x)

    assert f(X).equal(X * 5.0) and f(X).equal(X * 5.0)
    here["f"] = make(7.0)
    assert f(X).equal(X * 10.0) and f.stats.traces == 2


def test_a_tuple_that_grows_or_shrinks() -> None:
    """Its elements are guarded, and so is their number."""
    here: dict[str, Any] = {"a": (1, 2), "b": (0.5, (3,))}

    @jit
    def f(x: Any) -> Any:
        return x * len(here["a"]) + len(here["b"][1])

    for a, inner in (((1, 2), (3,)), ((1, 2, 3), (3,)), ((1,), (3,)), ((1,), (3, 4)), ((1,), ())):
        here["a"], here["b"] = a, (0.5, inner)
        for _ in range(2):
            assert f(X).equal(X * len(a) + len(inner))


def test_a_training_loop_around_a_compiled_model_checks_no_state_anew() -> None:
    """Setting .grad is no reason for the full check of what Modules hold."""
    model = jg.nn.Sequential(jg.nn.Linear(4, 4), jg.nn.ReLU(), jg.nn.Linear(4, 2))
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)
    fast = jit(model)
    x = jg.ones(3, 4)
    fast(x), fast(x)
    spec = fast.jitted.specialisations[0]
    stamp = spec.stamp[0]
    for _ in range(3):
        optimizer.zero_grad()
        fast(x).sum().backward()
        optimizer.step()
    assert spec.stamp[0] == stamp and fast.stats.traces == 1
    model[0].weight.requires_grad_(False)  # this is
    assert fast(x).grad_fn is not None and fast.stats.traces == 2


def test_weak_containers_of_ours_add_no_guards() -> None:
    """Their callbacks run in the user's frames, when a tensor dies there."""

    def f(x: Any) -> Any:
        y = x * 2
        y = y + 1
        return y.sin()

    fast = jit(f)
    fast(jg.ones(3))
    for name in ("_pending_removals", "_iterating", "append", "'data'"):
        assert name not in fast.guards()
