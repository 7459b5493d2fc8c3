"""Mixed precision under jit: autocast is a guard and works inside; GradScaler's skips compile."""

import numpy as np
import pytest

import jitgrad as t
from jitgrad import nn, optim
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def _strict():
    with knob(fallback="error"):
        yield


X = t.randn(4, 4)


def test_autocast_is_guarded():
    """A trace of one mode is not used in another; each is compiled once."""

    @t.jit
    def f(x):
        return x @ x

    for _ in range(3):
        assert f(X).dtype is t.float32
        with t.autocast("cpu"):
            assert f(X).dtype is t.bfloat16
            assert f(X).equal(X.bfloat16() @ X.bfloat16())
        with t.autocast("cpu", dtype=t.float16):
            assert f(X).dtype is t.float16
    assert f.stats.traces == 3
    f(X)
    with t.autocast("cpu", cache_enabled=False):
        f(X)
    assert "casting" in f.explain_last_miss()


def test_questions_are_guarded():
    @t.jit
    def f(x):
        if t.is_autocast_enabled("cpu"):
            return x.to(t.get_autocast_dtype("cpu"))
        return x

    for _ in range(2):
        assert f(X).dtype is t.float32
        with t.autocast("cpu", dtype=t.float16):
            assert f(X).dtype is t.float16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 3)

    @t.autocast("cpu")
    def forward(self, x):
        x = self.norm(self.conv(x)).relu().flatten(1)
        return self.b(nn.functional.gelu(self.a(x)))


def train(compiled, where, scaled, steps=8, name="AdamW"):
    """Losses, parameters and scales; the jitted function. where: what is under autocast."""
    t.manual_seed(0)
    net = Net()
    optimizer = getattr(optim, name)(net.parameters(), lr=1e-2)
    scaler = t.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3, enabled=scaled)
    x, y = t.randn(6, 1, 4, 4), t.arange(6) % 3
    low = t.float16 if scaled else t.bfloat16

    def step(x, y):
        optimizer.zero_grad()
        if where == "inside":
            with t.autocast("cpu", dtype=low):
                loss = nn.functional.cross_entropy(net(x), y)
        else:
            loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    run = t.jit(step) if compiled else step
    losses, scales = [], []
    for _ in range(steps):
        losses.append(run(x, y).item())
        scales.append(scaler.get_scale())
    return losses, [p.detach().numpy() for p in net.parameters()], scales, run


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 scaled"])
@pytest.mark.parametrize("where", ["inside", "in forward"])
def test_a_training_step_under_jit(where, scaled):
    eager, fast = train(False, where, scaled), train(True, where, scaled)
    assert fast[3].stats.hits >= 5 and fast[3].stats.traces <= 3
    np.testing.assert_allclose(eager[0], fast[0], rtol=2e-2)
    assert eager[2] == fast[2] and (not scaled or len(set(eager[2])) > 1)
    for p, q in zip(eager[1], fast[1], strict=True):
        np.testing.assert_allclose(p, q, atol=2e-2)


NAMES = {
    "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "NAdam": {}, "RAdam": {}, "Adamax": {},
    "Adagrad": {}, "Adadelta": {}, "RMSprop": {"momentum": 0.5, "centered": True}, "Rprop": {},
    "ASGD": {}, "Adafactor": {}, "Muon": {},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_compiled_skips_are_eager_ones(name):
    """Overflows in the first step, where state is made, and later: parameters and state agree."""
    runs = []
    for compiled in (False, True):
        p = nn.Parameter(t.tensor([[1.0, -2.0], [0.5, 3.0]]))
        optimizer = getattr(optim, name)([p], lr=0.1, **NAMES[name])
        scaler = t.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(g, p=p, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            scaler.scale((p * g).sum() + (p * p).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        run = t.jit(step) if compiled else step
        scales = []
        for g in (np.inf, 1.0, 2.0, np.nan, 0.5, -1.0, np.inf, 1.5):
            run(t.tensor([[1.0, g], [0.3, -0.2]]))
            scales.append(scaler.get_scale())
        runs.append((p, optimizer.state[p], scales, run))
    (p, state, scales, _), (q, other, found, run) = runs
    assert scales == found and set(scales) == {2.0, 4.0} and run.stats.traces <= 2
    tolerance = 2e-2 if name == "Muon" else 1e-5
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=tolerance, atol=1e-6)
    assert set(state) == set(other)
    for key, value in state.items():
        np.testing.assert_allclose(
            value.numpy(), other[key].numpy(), rtol=tolerance, atol=1e-6, err_msg=key
        )


@pytest.mark.parametrize("name", ["Muon", "Adafactor", "Adam"])
def test_steps_inside_autocast_are_those_outside(name):
    ends = []
    for on in (False, True):
        t.manual_seed(0)
        p = nn.Parameter(t.randn(5, 4))
        optimizer = getattr(optim, name)([p], lr=0.1)
        for _ in range(3):
            p.grad = t.randn(5, 4)
            with t.autocast("cpu", enabled=on):
                optimizer.step()
        ends.append(p.detach())
    assert ends[0].equal(ends[1])


def test_what_cannot_be_skipped_says_so():
    """A first step with dampening: the buffer would begin otherwise than PyTorch's."""
    p = nn.Parameter(t.ones(2))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    scaler = t.amp.GradScaler("cpu")

    def step():
        optimizer.zero_grad()
        scaler.scale((p * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with pytest.raises(RuntimeError, match="first step outside of jit"):
        t.jit(step)()


def test_results_differentiated_outside():
    """A compiled forward under autocast: its backward, outside, gives float32 gradients."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    fast = t.jit(lambda x: net(x).float().pow(2).sum())
    grads = []
    for f in (fast.__wrapped__, fast, fast, fast):
        net.zero_grad()
        with t.autocast("cpu"):
            loss = f(X)
        loss.backward()
        grads.append([p.grad.numpy() for p in net.parameters()])
    assert fast.stats.traces == 1 and fast.stats.hits == 2
    for got in grads[1:]:
        for a, b in zip(got, grads[0], strict=True):
            assert a.dtype == np.float32
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2 * np.abs(b).max())


def test_casts_kept_outside_are_not_part_of_a_trace():
    """The eager code around shares its casts of weights, the compiled function makes its own."""
    net = nn.Linear(4, 4)
    fast = t.jit(lambda x: net(x) * 2)
    for _ in range(3):
        net.zero_grad()
        with t.autocast("cpu"):
            a = net(X)
            b = fast(X)
            c = net(X)
        assert a.equal(c) and b.equal(a * 2)
        (a + b + c).float().sum().backward()
    assert fast.stats.hits >= 1
    assert net.weight.grad.dtype is t.float32


def test_vmap_and_forward_mode_under_autocast():
    with t.autocast("cpu"):
        y = t.vmap(lambda x: x @ x)(t.stack([X, X + 1]))
        assert y.dtype is t.bfloat16
        assert y[0].equal(X @ X)
