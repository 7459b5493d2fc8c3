"""`TorchFunctionMode`: modes that see the calls of public functions, in both libraries. The same
calls reach them, under the same names, from user code, modules and factories."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from types import SimpleNamespace

import pytest
from parity.compare import LIBS, OURS

import jitgrad
from jitgrad import function_modes
from jitgrad.overrides import TorchFunctionMode
from jitgrad.runtime.errors import CompileError


def same(ours, theirs):
    assert ours == theirs


def overrides_of(lib):
    return importlib.import_module(lib.t.__name__ + ".overrides")


def _name(func, lib):
    if func.__name__ in ("__get__", "__set__"):
        return overrides_of(lib).resolve_name(func).partition(".Tensor.")[2]
    return func.__name__


def mode_classes(lib):
    base = overrides_of(lib).TorchFunctionMode

    class Log(base):
        def __init__(self, calls, name=""):
            self.calls, self.name = calls, name

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls.append(self.name + _name(func, lib))
            return func(*args, **(kwargs or {}))

    class Plus(base):
        """Adds 1 to what sin gives."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out + 1 if func in (lib.t.sin, lib.t.Tensor.sin) else out

    class Double(base):
        """Makes factories' results double."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func in (lib.t.empty, lib.t.zeros, lib.t.ones, lib.t.tensor):
                kwargs = {**kwargs, "dtype": lib.t.float64}
            return func(*args, **kwargs)

    return SimpleNamespace(Log=Log, Plus=Plus, Double=Double, base=base)


def logged(lib, run):
    calls = []
    with mode_classes(lib).Log(calls):
        run()
    return calls


CALLS = """
x + 1; 1 + x; x - 1; 2 - x; x / 2; x**2; 2**x; x @ w; -x; abs(x); x == 1; x != 1; x < 1; x[0]; +x
~(x > 0); x // 2; x % 2; 3 % x; 3 // x; x.clone(); x.add_(1); x.zero_(); x.fill_(2)
x.shape; x.dtype; x.device; x.ndim; x.T; x.mT; x.grad; x.requires_grad; x.is_leaf; x.data
x.grad_fn; x.is_cuda; x.layout; x.size(); x.dim(); x.numel(); x.stride(); x.sum().item(); len(x)
x.tolist(); x.numpy(); x.contiguous(); bool(x.sum()); float(x.sum()); int(x.sum()); repr(x); str(x)
f"{x.sum():.2f}"; t.ones(2); t.zeros(2); t.empty(2); t.rand(2); t.randn(2); t.randint(3, (2,))
t.randperm(3); t.arange(3); t.linspace(0, 1, 3); t.eye(2); t.full((2,), 1.0); t.tensor([1.0])
t.as_tensor([1.0]); t.ones_like(x); t.zeros_like(x); t.empty_like(x); t.rand_like(x)
t.full_like(x, 2.0); t.normal(0.0, 1.0, (2,)); t.asarray([1.0]); t.scalar_tensor(1.0)
t.tril_indices(2, 2); x.new_zeros(2); x.new_tensor([1.0]); t.complex(x, x); t.hann_window(4)
t.logspace(0, 1, 3); t.bernoulli(x); t.empty_strided((2,), (1,)); t.sin(x); x.sin(); t.add(x, 1)
t.cat([x, x]); t.stack([x, x]); t.where(x > 0, x, 0); t.einsum("ij->j", x); t.matmul(x, w)
t.max(x, 1); t.split(x, 1); t.norm(x); t.is_tensor(x); t.is_floating_point(x); t.numel(x)
t.result_type(x, 1); t.can_cast(t.int32, t.int64); t.broadcast_tensors(x, x); t.allclose(x, x)
t.equal(x, x); t.detach(x); t.topk(x, 1); t.tensordot(x, w, 1); t.get_default_dtype()
F.relu(x); F.linear(x, w); F.softmax(x, 1); F.dropout(x, 0.5); F.layer_norm(x, (3,))
F.mse_loss(x, x); F.pad(x, (1, 1)); F.gelu(x); F.normalize(x); F.max_pool1d(x, 2)
F.interpolate(x[None], scale_factor=2); F.batch_norm(x, None, None, training=True)
F.cross_entropy(x, t.tensor([0, 1])); F.embedding(t.tensor([1]), w); F.one_hot(t.tensor([1]))
m(x); nn.Sequential(nn.Tanh(), nn.Dropout(0.0))(x); t.autograd.grad((w * 2).sum(), w)
x.requires_grad_(False); x.to(t.float64); x.double(); x.cpu(); x.type(t.float64); x.half()
x.view(6); x.reshape(6); x.expand(2, 3); x.is_contiguous(); x.copy_(x); x.detach_(); x.uniform_()
x.normal_(); x.clamp_(0, 1); x.diagonal(); x.where(x > 0, x); x.polygamma(1); x.split(1); x.t()
nn.init.uniform_(x); nn.init.kaiming_uniform_(x); nn.init.constant_(x, 1.0); nn.Parameter(x)
"""


@pytest.mark.parametrize("call", [c.strip() for c in CALLS.replace("\n", ";").split(";") if c])
def test_a_mode_sees_what_pytorchs_sees(call):
    found = []
    for lib in LIBS:
        t = lib.t
        x, w = t.ones(2, 3), t.ones(3, 3, requires_grad=True)
        names = {"t": t, "x": x, "w": w, "nn": lib.nn, "F": lib.F, "m": lib.nn.Linear(3, 2)}
        code = compile(call, __file__, "eval")
        found.append(logged(lib, lambda code=code, names=names: eval(code, names)))
    same(*found)


def statements(lib):
    t = lib.t
    x = t.ones(2, 3, requires_grad=True)
    y = x.clone()
    y += 1
    y *= 2
    y[0] = 3
    z = t.ones(2)
    z.requires_grad = True
    z.grad = t.zeros(2)
    z.data = t.zeros(2)
    y.sum().backward()


def test_statements_are_seen_in_order():
    same(*[logged(lib, lambda lib=lib: statements(lib)) for lib in LIBS])


def test_modes_nest():
    for_both = []
    for lib in LIBS:
        m, calls, x = mode_classes(lib), [], lib.t.ones(3)
        with m.Log(calls, "outer "), m.Plus(), m.Log(calls, "inner "):
            y = lib.t.sin(x)
        with m.Plus(), m.Plus():
            z = x.sin()
        for_both.append([calls, y.tolist(), z.tolist()])
    same(*for_both)
    assert for_both[0][0] == ["inner sin", "outer sin", "outer add"]


def test_factories_of_users_and_modules():
    for_both = []
    for lib in LIBS:
        with mode_classes(lib).Double():
            made = [lib.t.ones(2), lib.t.tensor([1, 2]), *lib.nn.Linear(2, 3).parameters()]
            made += lib.nn.BatchNorm1d(2).state_dict().values()
        for_both.append([str(x.dtype).partition(".")[2] for x in made])
    same(*for_both)


def test_what_a_mode_raises_or_refuses():
    for_both = []
    for lib in LIBS:
        m = mode_classes(lib)

        class No(m.base):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return NotImplemented

        class Fails(m.base):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                raise KeyError("mine")

        x, found = lib.t.ones(2), []
        for mode in (No, Fails, m.base):
            for call in (lib.t.sin, lambda x: x + 1, lambda x: x.sum()):
                try:
                    with mode():
                        call(x)
                except Exception as error:
                    found.append(type(error).__name__)
        found.append(round(float(lib.t.sin(x).sum()), 5))
        for_both.append(found)
    same(*for_both)


def test_subclasses_are_asked_after_modes():
    for_both = []
    for lib in LIBS:
        calls = []

        class Sub(lib.t.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None, calls=calls):
                calls.append("class " + func.__name__)
                return super().__torch_function__(func, types, args, kwargs or {})

        class Types(mode_classes(lib).base):
            def __torch_function__(self, func, types, args=(), kwargs=None, calls=calls):
                calls.append(["mode " + func.__name__, [c.__name__ for c in types]])
                return func(*args, **(kwargs or {}))

        x = lib.t.ones(3).as_subclass(Sub)
        with Types():
            y = lib.t.sin(x)
            z = x.cos() + lib.t.ones(3)
        C = importlib.import_module(lib.t.__name__ + "._C")
        with Types(), C.DisableTorchFunctionSubclass():
            lib.t.sin(lib.t.ones(1))
        with Types(), C.DisableTorchFunction():
            lib.t.sin(lib.t.ones(1))
        for_both.append([calls, type(y).__name__, type(z).__name__])
    same(*for_both)


def test_functions_of_users_that_ask():
    for_both = []
    for lib in LIBS:
        o = overrides_of(lib)
        calls = []

        def scaled_mul(a, b, o=o):
            if o.has_torch_function((a, b)):
                return o.handle_torch_function(scaled_mul, (a, b), a, b)
            return a * b + 1

        @o.wrap_torch_function(lambda a: (a,))
        def wrapped(a):
            return a * 2

        class Nested(o.TorchFunctionMode):
            depth = 0

            def __torch_function__(self, func, types, args=(), kwargs=None, calls=calls, o=o):
                calls.append((self.depth, func.__name__))
                self.depth += 1
                with self:
                    out = o.redispatch_function(func, types, args, kwargs)
                self.depth -= 1
                return out

        m = mode_classes(lib)
        a = lib.t.full((2,), 3.0)
        with Nested():
            y = scaled_mul(a, a)
        with m.Log(calls):
            wrapped(a)
        stack = []
        with m.Log(calls) as first, m.Plus() as second:
            stack.append(o._get_current_function_mode() is second)
            stack.append(o._get_current_function_mode_stack() == [first, second])
            with o._pop_mode_temporarily() as popped:
                stack.append(popped is second)
                stack.append(o._get_current_function_mode() is first)
            stack.append(o._get_current_function_mode() is second)
        stack.append(o._get_current_function_mode())
        with o.BaseTorchFunctionMode():
            z = lib.t.sin(a)
        for_both.append([calls, y.tolist(), z.tolist(), stack])
    same(*for_both)


# -- jitgrad only ----------------------------------------------------------------------------------
M = mode_classes(OURS)


def test_functions_stay_what_they_are():
    from jitgrad import sin  # however the user's code came by it

    for _ in range(function_modes._IDLE):  # other tests' modes
        sin(jitgrad.ones(2))
    calls, code = [], sin.__code__
    with M.Log(calls):
        assert sin is jitgrad.sin
        jitgrad.Tensor.sin(sin(jitgrad.ones(2)))
        map_of = {jitgrad.sin: 1}
        assert map_of[sin] == 1
    assert calls == ["ones", "sin", "sin"]
    for _ in range(function_modes._IDLE):
        sin(jitgrad.ones(2))
    assert sin.__code__ is code and sin.__kwdefaults__ == {"out": None}
    assert not function_modes._counts.asking
    with M.Plus():
        assert sin(jitgrad.zeros(1)).item() == 1
    assert sin(jitgrad.zeros(1)).item() == 0


def test_a_mode_is_of_its_thread():
    calls = []
    with M.Log(calls):
        thread = threading.Thread(target=lambda: jitgrad.cos(jitgrad.ones(2)))
        thread.start()
        thread.join()
        assert not calls
        jitgrad.ones(2)
    assert calls == ["ones"]


def test_leaving_by_an_error():
    with contextlib.suppress(ValueError), M.Plus():
        raise ValueError
    assert jitgrad.sin(jitgrad.zeros(1)).item() == 0
    with pytest.raises(RuntimeError, match="there is none"):
        jitgrad.overrides._pop_mode()


def test_jitted_functions_run_eagerly_in_a_mode():
    @jitgrad.jit(fallback="error")
    def f(x):
        return jitgrad.sin(x) * 2

    x = jitgrad.zeros(2)
    for _ in range(2):
        assert f(x).tolist() == [0, 0]
    with M.Plus():
        assert f(x).tolist() == [2, 2]
    calls = []
    with M.Log(calls):
        f(x)
    assert calls == ["sin", "mul"]
    assert f(x).tolist() == [0, 0]
    assert f.stats.hits == 2 and f.stats.fallbacks == 0


def test_a_mode_that_a_jitted_function_enters():
    calls = []

    @jitgrad.jit(fallback="error")
    def f(x):
        with M.Log(calls), M.Plus():
            y = jitgrad.sin(x)
        return y * 2 + jitgrad.sin(x)

    for _ in range(4):
        assert f(jitgrad.zeros(2)).tolist() == [2, 2]
    assert calls == ["sin", "add"] * 4 and f.stats.segments > 0

    @jitgrad.jit(fallback="error", segments=False)
    def g(x):
        with M.Plus():
            return jitgrad.sin(x)

    with pytest.raises(CompileError, match="enters the mode Plus"):
        g(jitgrad.zeros(2))


def test_transforms_and_training_in_a_mode():
    calls = []
    model = jitgrad.nn.Linear(2, 1)
    optimizer = jitgrad.optim.Adam(model.parameters())
    with M.Log(calls):
        for _ in range(2):
            optimizer.zero_grad()
            model(jitgrad.ones(3, 2)).pow(2).mean().backward()
            optimizer.step()
        per_example = jitgrad.vmap(jitgrad.func.grad(lambda x: x.sin().sum()))(jitgrad.zeros(2, 2))
    assert per_example.tolist() == [[1, 1], [1, 1]]
    assert [c for c in calls if c in ("linear", "pow", "mean", "backward", "sin")] == [
        *("linear", "pow", "mean", "backward") * 2, "sin",
    ]  # fmt: skip


def test_names():
    resolve = jitgrad.overrides.resolve_name
    assert resolve(jitgrad.sin) == "jitgrad.sin"
    assert resolve(jitgrad.Tensor.shape.__get__) == "jitgrad.Tensor.shape.__get__"
    ignored = jitgrad.overrides.get_ignored_functions()
    assert jitgrad.manual_seed in ignored and jitgrad.sin not in ignored
    assert issubclass(jitgrad.overrides.BaseTorchFunctionMode, TorchFunctionMode)
    stand_ins = jitgrad.overrides.get_testing_overrides()
    assert stand_ins[jitgrad.sin](jitgrad.ones(1)) == -1
    found = inspect.signature(stand_ins[jitgrad.clamp]).parameters
    assert list(found) == list(inspect.signature(jitgrad.clamp).parameters)
