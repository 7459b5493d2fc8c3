"""The recorder's protocol, abstract mode, and lifted host numbers."""

import pytest

import jitgrad as t
from jitgrad.autograd import jvp
from jitgrad.dispatch import abstract_mode, epoch, recording
from jitgrad.hostscalar import HostScalar, lift
from jitgrad.random import draw_tensors


class Log:
    """A recorder that writes down what it is told."""

    def __init__(self):
        self.events = []
        self.specialised = []
        self.truths = []

    def op(self, op, operands, attrs, outputs, line):
        assert isinstance(outputs, tuple) and "test_dispatch.py:" in line
        self.events.append(("op", op.name))

    def write(self, target, value, line):
        assert "test_dispatch.py:" in line
        self.events.append(("write", tuple(target.shape), len(target._chain)))

    def rebind(self, owner, key, value):
        self.events.append(("rebind", key, value is None))

    def slot_read(self, owner, key):
        self.events.append(("slot_read", key))

    def raw_read(self, tensor, what):
        self.events.append(("raw_read", what))

    def constant(self, tensor, array):
        self.events.append(("constant", array is None))

    def draw(self, generator):
        self.events.append(("draw",))
        return draw_tensors(generator.initial_seed(), generator.advance())

    def lift(self, scalar):
        self.events.append(("lift", scalar.value))
        return t.full((), scalar.value, dtype=t.float64)

    def plain_tensor(self, value):
        return t.tensor(value, dtype=t.float64)

    def number_of(self, tensor):
        return None

    def compare(self, name, a, b):
        return False

    def lift_number(self, value, owner, key):
        return HostScalar(value, (owner, key), self)

    def specialise(self, scalar):
        self.specialised.append(scalar.value)

    def truth(self, scalar):
        self.truths.append(bool(scalar.value))


def names(log):
    return [e[1] for e in log.events if e[0] == "op"]


def test_ops_and_writes():
    x, w = t.zeros(2, 3), t.ones(3)
    with recording(Log()) as log:
        x[0].add_(w * 2)
    assert names(log) == ["slice", "reshape", "full", "mul", "add"]
    assert log.events[-1] == ("write", (3,), 2)


def test_backward_is_recorded():
    x = t.ones(3, requires_grad=True)
    with recording(Log()) as log:
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
    assert ("rebind", "grad", False) in log.events and ("slot_read", "grad") in log.events
    assert log.events[-1] == ("raw_read", "tolist")
    assert names(log).count("mul") >= 3


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(), lambda x: x.item(), lambda x: x.tolist(), bool, float, int,
        lambda x: x.data_ptr(), repr, lambda x: x.nonzero(), lambda x: t.allclose(x, x),
        lambda x: x.__dlpack__(), lambda x: f"{x}",
    ],
)  # fmt: skip
def test_raw_reads(read):
    x = t.tensor(1.0)
    with recording(Log()) as log:
        read(x)
    assert any(e[0] == "raw_read" for e in log.events)


def test_constants_and_draws():
    with recording(Log()) as log:
        t.tensor([1.0, 2.0])
        t.from_numpy(t.ones(1)._data)
        t.tensor(3.0)  # a number is a `full`
        t.randn(2)
    assert [e for e in log.events if e[0] == "constant"] == [
        ("constant", True),
        ("constant", False),
    ]
    assert ("draw",) in log.events and names(log)[-1] == "normal" and "full" in names(log)


def test_numbers_become_full_only_when_recorded():
    x = t.ones(2)
    with recording(Log()) as log:
        x * 3.0
        x * 3.0
    assert names(log) == ["full", "mul", "full", "mul"]


def test_epoch():
    x = t.ones(2, requires_grad=True)
    for change in (
        lambda: setattr(x, "data", t.zeros(2)),
        lambda: x.requires_grad_(False),
        lambda: t.set_default_dtype(t.float32),
    ):
        before = epoch[0]
        change()
        assert epoch[0] > before
    before = epoch[0]
    x.add_(1)
    x.grad = t.ones(2)  # compiled functions look at it themselves
    assert epoch[0] == before


def test_host_scalars():
    x = t.ones(2)
    with recording(Log()) as log:
        lr = lift(0.1, "group", "lr")
        assert type(lr) is HostScalar and isinstance(lr, float)  # as eager code would see
        step = -lr * 2 / (1 + lr**2) - 0.5
        y = x + step * x
        assert y.dtype is t.float32
        z = t.tensor([1, 2]) * lr
        assert z.dtype is t.float32
        assert log.specialised == []
        value = -0.1 * 2 / (1 + 0.1**2) - 0.5
        assert abs(y[0]._data - (1 + value)) < 1e-6
        assert step.evaluate({("group", "lr"): 1.0}) == -1.5
        assert lr > 0 and log.specialised == [0.1]
        float(lr), hash(lr), int(lr), f"{lr:.1f}"
        assert len(log.specialised) == 5
        assert lr and not lift(0.0, "group", "decay") and log.truths == [True, False]
        assert lr - 0.1 == 0 and not (lr - lr) and len(log.specialised) == 7
        betas = lift((0.9, 1, 0.99), "group", "betas")
        assert [type(b) for b in betas] == [HostScalar, int, HostScalar]
        x.mul_(1 - lr)
        t.where(x > lr, x, lr)
        t.addcmul(x, x, x, value=lr)
        t.add(x, x, alpha=lr)
    assert len(log.specialised) == 9  # what where and alpha store must fit into float32
    assert lift(0.1, "group", "lr") == 0.1
    assert type(lr * 2) is float and (x + lr).tolist() == (x + 0.1).tolist()  # kept: a number


def test_abstract_mode():
    with abstract_mode():
        x = t.zeros(4, 5).requires_grad_()
        y = (x.T.reshape(20).view(2, 10) @ t.ones(10, 3)).softmax(1) + 1
        v = y[0]
        v.add_(1)
        y.sum().backward()
        assert x.grad.shape == (4, 5) and x.grad._data is None and y._version == 1
        with pytest.raises(RuntimeError, match=r"\[add\] expected shapes that broadcast"):
            x + t.zeros(3)
    with pytest.raises(RuntimeError, match="abstract"):
        x.detach().numpy()
    assert "size=[4, 5]" in repr(x)


def test_abstract_mode_with_symbolic_dims():
    from jitgrad.compiler.symbolic import ShapeEnv
    from jitgrad.compiler.types import TensorType
    from jitgrad.runtime import dtypes
    from jitgrad.tensor import wrap

    env = ShapeEnv()
    n = env.dim("n", 8)
    with abstract_mode():
        x = wrap(None, TensorType((n, 4), dtypes.float32)).requires_grad_()
        w = t.ones(4, 3).requires_grad_()
        y = (x @ w).tanh().reshape(-1) * 2
        y.sum().backward()
        assert tuple(w.grad.shape) == (4, 3)
        assert x.grad._type.shape[0] is n or x.grad._type.shape[0].key == n.key
    assert env.guards == []


def test_forward_mode_inside_recording():
    x = t.ones(2)
    with recording(Log()) as log:
        _, tangent = jvp(lambda x: x * x, x, x)
    assert names(log).count("mul") == 3 and tangent.tolist() == [2.0, 2.0]
