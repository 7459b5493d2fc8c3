"""`__torch_function__`: subclasses of Tensor and other objects that override functions, in both
libraries. The same calls reach them, under the same names, and results have the same class."""

from __future__ import annotations

import contextlib
import functools
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, same

import jitgrad


def logging_class(lib):
    class Logged(lib.t.Tensor):
        calls: list = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Logged.calls.append((func.__name__, [type(a).__name__ for a in args]))
            return super().__torch_function__(func, types, args, kwargs or {})

    return Logged


CALLS = """
x + 1; 1 + x; y + x; x - 1; 1 - x; y - x; x * 2; 2 * x; x / 2; x // 2; 2 // x; x % 2; x**2; 2**x
x @ y; y @ x; -x; +x; abs(x); ~(x > 0); x == 1; x != y; x < 1; y < x; x[0]; x[0:2]; x.shape
x.size(); x.ndim; x.grad; x.requires_grad; x.is_leaf; len(x); float(x.sum()); repr(x); x.add_(1)
t.add(x, 1); t.cat([y, x]); t.stack((x, y)); F.relu(x); nn.Linear(3, 2)(x); t.sum(x, dim=0)
F.linear(x.reshape(1, 3), t.ones(2, 3)); x.sum(0); x.detach(); x.numpy(); x.tolist(); x.data
t.zeros_like(x); t.is_tensor(x); t.where(x > 0, x, y); t.max(x, 0); x.max(0); y.add(x); y.add_(x)
y[0:1].copy_(x[0:1]); x.clone(); t.einsum("i,i->", x, y); x.new_zeros(3); bool(x.all()); int(x[0])
hash(x) and None; F.layer_norm(x, (3,)); t.softmax(x, 0); x.softmax(0); x.requires_grad_()
x.to(t.float64); x.float(); x.view(3); x.is_cuda; x.stride()
x.is_contiguous(); t.broadcast_tensors(x, y); t.split(x, 1); x.split(1); x.unbind(); t.equal(x, y)
t.allclose(x, y); x.numel(); t.rand_like(x); F.mse_loss(x, y); nn.MSELoss()(x, y); x.exp().log()
nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))(x); x.register_hook
x.view(1, 3).T; t.clamp(x, 0, 1); x.sigmoid_()
F.cross_entropy(x[None], t.tensor([1]))
isinstance(x + 1, t.Tensor); t.atleast_2d(x); t.meshgrid(x, x)
"""
CALLS = [call.strip() for line in CALLS.strip().split("\n") for call in line.split(";")]


def outcome(lib, call):
    kind = logging_class(lib)
    x, y = lib.t.tensor([1.0, 2.0, 3.0]).as_subclass(kind), lib.t.tensor([2.0, 1.0, 0.5])
    kind.calls.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = eval(call, {"t": lib.t, "F": lib.F, "nn": lib.nn, "x": x, "y": y})
    given = ("bool", "int", "float")  # by place or by name
    calls = [(name, [k for k in args if k not in given]) for name, args in kind.calls]
    return classes(result), calls, result


def classes(x):
    if isinstance(x, (tuple, list)):
        return [classes(v) for v in x]
    return {"DType": "dtype"}.get(type(x).__name__, type(x).__name__)


@pytest.mark.parametrize("call", CALLS)
def test_calls_reach_a_subclass(call) -> None:
    (ours, our_calls, a), (theirs, their_calls, b) = (outcome(lib, call) for lib in LIBS)
    assert our_calls == [
        (name, ["DType" if k == "dtype" else k for k in args]) for name, args in their_calls
    ]
    if not call.startswith("x.register_hook"):
        assert ours == theirs
    if isinstance(b, LIBS[1].t.Tensor) and not any(w in call for w in ("rand", "nn.Lin", "nn.Seq")):
        plain = [v.detach().as_subclass(lib.t.Tensor) for v, lib in zip((a, b), LIBS, strict=True)]
        same(*plain, call, scale=30)


def scalars(lib):
    """The example of an object that is no tensor: N numbers on a diagonal."""
    handled = {}

    class Scalar:
        def __init__(self, n, value):
            self.n, self.value = n, value

        def tensor(self):
            return self.value * lib.t.eye(self.n)

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func not in handled:
                return NotImplemented
            return handled[func](*args, **(kwargs or {}))

    def implements(function):
        def register(own):
            functools.update_wrapper(own, function)
            handled[function] = own
            return own

        return register

    @implements(lib.t.mean)
    def mean(x):
        return x.value / x.n

    @implements(lib.t.add)
    def add(x, other, **kwargs):
        if isinstance(x, Scalar) and isinstance(other, Scalar):
            return Scalar(x.n, x.value + other.value)
        parts = [v.tensor() if isinstance(v, Scalar) else v for v in (x, other)]
        return lib.t.add(*parts, **kwargs)

    @implements(lib.F.linear)
    def linear(x, weight, bias=None):
        return lib.F.linear(x.tensor(), weight, bias)

    return Scalar


def test_objects_that_are_no_tensors() -> None:
    for lib in LIBS:
        scalar = scalars(lib)
        d, ones = scalar(3, 2.0), lib.t.ones(3, 3)
        assert lib.t.mean(d) == 2 / 3 and lib.t.add(d, d).value == 4.0
        for x in (lib.t.add(d, ones), lib.t.add(ones, d), lib.t.add(ones, other=d, alpha=1)):
            assert x.tolist() == [[3, 1, 1], [1, 3, 1], [1, 1, 3]]
        layer = lib.nn.Linear(3, 3)
        assert lib.t.equal(layer(d), 2 * layer.weight.T + layer.bias)
        for refused in (
            lambda d=d, t=lib.t: t.mul(d, 3), lambda d=d, t=lib.t: t.cat([d, d]),
            lambda d=d, t=lib.t: t.exp(d), lambda d=d, t=lib.t: t.ones(3).add(d),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=r"no implementation found|Multiple dispatch"):
                refused()
        assert lib.t.overrides.is_tensor_like(d) and not lib.t.overrides.is_tensor_like(3)
        assert lib.t.overrides.has_torch_function((ones, d))


def test_who_is_asked() -> None:
    """Subclasses before their bases, and the next one after NotImplemented; nobody while off."""
    for lib in LIBS:
        asked = []

        def override(cls, func, types, args=(), kwargs=None, asked=asked):
            asked.append(cls.__name__)
            return NotImplemented

        base = type("Base", (lib.t.Tensor,), {"__torch_function__": classmethod(override)})
        derived = type("Derived", (base,), {})
        other = type("Other", (lib.t.Tensor,), {"__torch_function__": classmethod(override)})
        x, y, z = (lib.t.ones(2).as_subclass(c) for c in (base, derived, other))
        with pytest.raises(TypeError):
            lib.t.cat([x, z, y])
        assert asked == ["Derived", "Base", "Other"]
        asked.clear()
        with lib.t._C.DisableTorchFunctionSubclass():
            assert not lib.t.overrides.has_torch_function((x,))
            assert (x + 1).tolist() == [2, 2]
        silent = type(
            "Silent",
            (lib.t.Tensor,),
            {"__torch_function__": lib.t._C._disabled_torch_function_impl},
        )
        assert type(lib.t.ones(2).as_subclass(silent) + 1) is lib.t.Tensor
        assert asked == []


def test_functions_of_users() -> None:
    for lib in LIBS:
        kind = logging_class(lib)
        overrides = lib.t.overrides

        def public(a, b, overrides=overrides):
            if overrides.has_torch_function((a, b)):
                return overrides.handle_torch_function(public, (a, b), a, b)
            return a * b

        wrapped = overrides.wrap_torch_function(lambda a, b: (a, b))(lambda a, b: a + b)
        x = lib.t.ones(2).as_subclass(kind)
        assert type(public(x, 3)) is kind and public(2, 3) == 6
        assert type(wrapped(x, 1)) is kind and wrapped(1, 2) == 3
        functions = overrides.get_overridable_functions()
        assert lib.t.add in functions[lib.t] and lib.F.linear in functions[lib.F]
        assert overrides.is_tensor_method_or_property(lib.t.Tensor.shape.__get__)
        assert overrides.resolve_name(lib.F.linear).endswith("nn.functional.linear")


def test_training_with_a_subclass() -> None:
    found = []
    for lib in LIBS:
        kind = logging_class(lib)
        w = lib.t.tensor([1.0, -1.0, 2.0]).as_subclass(kind)
        w.requires_grad = True
        optimizer = lib.optim.Adam([w], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (w * lib.t.tensor([1.0, 2.0, 3.0])).pow(2).sum().backward()
            optimizer.step()
        assert type(w) is kind and type(w.grad) is lib.t.Tensor
        with lib.t.no_grad():
            w[0] = 5
            w += 1
        found.append(w.tolist())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_compiled_calls_ask_at_each_call() -> None:
    kind = logging_class(OURS)

    @jitgrad.jit
    def f(x, y):
        return (x * y).sum() + 1

    x, y = jitgrad.ones(3), jitgrad.ones(3)
    for _ in range(3):
        kind.calls.clear()
        result = f(x.as_subclass(kind), y)
        assert type(result) is kind and "mul" in [name for name, _ in kind.calls]
        assert type(f(x, y)) is jitgrad.Tensor and f(x, y).item() == 4


def test_errors_are_the_functions_own() -> None:
    x = jitgrad.ones(3).as_subclass(logging_class(OURS))
    with pytest.raises(RuntimeError, match=r"\(3,\)|\[3\]"):
        jitgrad.add(x, jitgrad.ones(4))
    with pytest.raises(TypeError, match="__torch_dispatch__"):
        x.as_subclass(type("Kernels", (jitgrad.Tensor,), {"__torch_dispatch__": None}))


def test_names_of_subclasses_print() -> None:
    for lib in LIBS:
        kind = type("Mine", (lib.t.Tensor,), {})
        assert repr(lib.t.ones(2).as_subclass(kind)) == "Mine([1., 1.])"
        assert repr(lib.nn.Parameter(lib.t.ones(1))).endswith("tensor([1.], requires_grad=True)")


# What stands beside x where a method needs more than one tensor, and the methods that are not
# called here: of Python's protocols, and those that PyTorch does not ask about.
MORE = {
    "": (), "tensor": ("x",), "int": (0,), "ints": (0, 1), "shape": ((2, 2),),
    "index": (0, "i", "x"), "name": ("float",),
}  # fmt: skip
LEFT = """__class__ __delattr__ __dir__ __getattribute__ __getstate__ __init__ __init_subclass__
    __new__ __reduce__ __setattr__ __sizeof__ __subclasshook__ __torch_dispatch__ __torch_function__
    __setstate__ __iter__ __hash__ __deepcopy__ __reduce_ex__ __dlpack__ __cuda_array_interface__
    backward map2_ map_ apply_ module_load cuda xpu share_memory_ record_stream"""


def asked(lib, name):
    """Under which name x's class is asked by `Tensor.name(x, ...)`, for the arguments that the
    method takes; None where it is not."""
    for values in MORE.values():
        kind = logging_class(lib)
        x = lib.t.ones(2, 2).as_subclass(kind)
        given = {"x": lib.t.ones(2, 2), "i": lib.t.zeros(2, 2, dtype=lib.t.int64)}
        kind.calls.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = (given.get(v, v) if isinstance(v, str) else v for v in values)
            with contextlib.suppress(Exception):  # of the arguments: who is asked is asked before
                getattr(lib.t.Tensor, name)(x, *arguments)
        if kind.calls:
            return kind.calls[0][0]
    return None


METHODS = sorted(
    name
    for name in dir(LIBS[1].t.Tensor)
    if callable(getattr(LIBS[1].t.Tensor, name))
    and not isinstance(getattr(LIBS[1].t.Tensor, name), type)
    and callable(getattr(jitgrad.Tensor, name, None))
    and (not name.startswith("_") or name.endswith("__"))
    and name not in LEFT.split()
)


@pytest.mark.parametrize("name", METHODS)
def test_methods_taken_from_the_class(name) -> None:
    """Tensor.cos(x) asks the class of x, under the name that PyTorch gives it."""
    ours, theirs = (asked(lib, name) for lib in LIBS)
    assert theirs is None or ours is not None
    if theirs == getattr(jitgrad.Tensor, name).__name__ == name:  # not another one's alias
        assert ours == name


def test_plain_tensors_are_not_asked() -> None:
    logging_class(OURS)
    x = jitgrad.ones(2)
    assert jitgrad.Tensor.cos(x).tolist() == x.cos().tolist()
    with jitgrad._C.DisableTorchFunctionSubclass():
        made = jitgrad.Tensor.cos(x.as_subclass(logging_class(OURS)))
    assert type(made) is jitgrad.Tensor

    class Passing(jitgrad.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Passing():  # modes are asked first, and leave the classes
        assert jitgrad.Tensor.cos(x).tolist() == x.cos().tolist()
    kind = logging_class(OURS)
    y = x.as_subclass(kind)
    kind.calls.clear()
    jitgrad.Tensor.cos(y)
    assert [name for name, _ in kind.calls] == ["cos"]
