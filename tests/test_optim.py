"""Optimizers: one step by hand, convergence, groups, state; compiled steps against eager ones."""

import warnings

import numpy as np
import pytest

import jitgrad as t
from jitgrad import nn, optim
from jitgrad.runtime.knobs import knob


def parameter(*numbers):
    return nn.Parameter(t.tensor(list(numbers), dtype=t.float64))


def test_sgd_by_hand():
    p = parameter(1.0, -2.0)
    o = optim.SGD([p], lr=0.1, momentum=0.5, weight_decay=0.2)
    v, x = None, p.detach().numpy().copy()
    for g in ([1.0, 1.0], [-2.0, 0.5], [0.0, 3.0]):
        p.grad = t.tensor(g, dtype=t.float64)
        o.step()
        d = np.array(g) + 0.2 * x
        v = d if v is None else 0.5 * v + d
        x = x - 0.1 * v
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-14)


def test_adam_by_hand():
    p = parameter(1.0, -2.0)
    o = optim.AdamW([p], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3, amsgrad=True)
    x, m, v, top = p.detach().numpy().copy(), 0.0, 0.0, 0.0
    for k, g in enumerate(([1.0, 1.0], [-2.0, 0.5], [0.1, 3.0]), 1):
        p.grad = t.tensor(g, dtype=t.float64)
        o.step()
        g = np.array(g)
        x = x * (1 - 0.1 * 0.3)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        top = np.maximum(top, v)
        x = x - 0.1 * (m / (1 - 0.8**k)) / (np.sqrt(top / (1 - 0.9**k)) + 1e-6)
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-13)
    assert o.state[p]["step"].item() == 3 and o.state[p]["step"].dtype is t.float32


CASES = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.05, "amsgrad": True}),
    ("NAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "decoupled_weight_decay": True, "weight_decay": 0.01}),
    ("Adamax", {"lr": 0.05}),
    ("Adagrad", {"lr": 0.3, "lr_decay": 0.01}),
    ("Adadelta", {"lr": 5.0}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.5, "centered": True}),
    ("Rprop", {"lr": 0.02}),
    ("ASGD", {"lr": 0.1, "t0": 5}),
    ("Adafactor", {"lr": 0.5}),
    ("Muon", {"lr": 0.05}),
]


class Matrices(nn.Module):
    """Parameters of one, two and three dims; matrices only where the optimizer wants those."""

    def __init__(self, name):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8, bias=False), nn.Linear(8, 3, bias=False)
        if name != "Muon":
            self.scale = nn.Parameter(t.ones(8))
            self.shift = nn.Parameter(t.zeros(1, 1, 3))

    def forward(self, x):
        h = self.a(x).tanh()
        if not hasattr(self, "scale"):
            return self.b(h)
        return (self.b(h * self.scale) + self.shift).reshape(-1, 3)


def train(name, options, compiled, schedule=None, steps=20):
    """Steps of a small classifier: losses, model, optimizer, the jitted step."""
    t.manual_seed(0)
    model = Matrices(name).double()
    optimizer = getattr(optim, name)(model.parameters(), **options)
    scheduler = None if schedule is None else schedule(optim.lr_scheduler, optimizer)
    x, y = t.randn(16, 4, dtype=t.float64), t.arange(16) % 3

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = t.jit(step, fallback="error") if compiled else step
    losses = []
    for _ in range(steps):
        losses.append(run(x, y).item())
        if scheduler is not None:
            scheduler.step()
    return losses, model, optimizer, run


def agree(a, b, tolerance):
    """Losses, parameters and all state of two runs."""
    np.testing.assert_allclose(a[0], b[0], rtol=tolerance)
    for p, q in zip(a[1].parameters(), b[1].parameters(), strict=True):
        np.testing.assert_allclose(
            p.detach().numpy(), q.detach().numpy(), rtol=tolerance, atol=1e-13
        )
        for key, value in a[2].state[p].items():
            other = b[2].state[q][key]
            assert value.dtype is other.dtype and value.shape == other.shape
            np.testing.assert_allclose(
                value.numpy(), other.numpy(), rtol=tolerance, atol=1e-13, err_msg=key
            )


@pytest.mark.parametrize("name,options", CASES, ids=str)
def test_compiled_steps_are_eager_ones(name, options):
    """The whole step under @jit for 20 steps, the rate falling: no fallback, equal numbers."""
    falls = lambda s, o: s.ExponentialLR(o, 0.95)  # noqa: E731
    eager, fast = (train(name, options, compiled, falls) for compiled in (False, True))
    # Orthogonal steps are rounded to bfloat16, where an ulp of the gradient may be one of those.
    agree(eager, fast, 1e-2 if name == "Muon" else 1e-9)
    assert fast[0][-1] < fast[0][0]
    # State counts as made before the first step, the rate changes at every step.
    assert fast[3].stats.traces == 1 and fast[3].stats.hits == 19


SCHEDULES = {
    "one cycle of momentum": ("SGD", {"lr": 0.1, "momentum": 0.9},
                              lambda s, o: s.OneCycleLR(o, 0.5, total_steps=30)),
    "one cycle of betas": ("AdamW", {"lr": 0.1}, lambda s, o: s.OneCycleLR(o, 0.1, total_steps=30)),
    "cycles of betas": ("NAdam", {"lr": 0.1}, lambda s, o: s.CyclicLR(o, 0.01, 0.1, 4)),
    "plateau": ("Adam", {"lr": 0.1}, lambda s, o: Falls(s.ReduceLROnPlateau(o, patience=0))),
    "sequence": ("RMSprop", {"lr": 0.1}, lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1), s.CosineAnnealingLR(o, 10)], [5])),
    "weight decay": ("AdamW", {"lr": 0.01}, lambda s, o: Decays(o)),
}  # fmt: skip


class Falls:
    def __init__(self, schedule):
        self.schedule = schedule

    def step(self):
        self.schedule.step(1.0)


class Decays:
    """A schedule of the user's, of weight decay."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.param_groups[0]["weight_decay"] *= 1.1


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_do_not_compile_anew(case):
    name, options, schedule = SCHEDULES[case]
    eager, fast = (train(name, options, compiled, schedule) for compiled in (False, True))
    agree(eager, fast, 1e-9)
    assert fast[3].stats.traces == fast[3].stats.compiles == 1, fast[3].explain_last_miss()


READS = {
    "item": lambda g: g["lr"],
    "get": lambda g: g.get("lr", 7.0),
    "items": lambda g: dict(g.items())["lr"],
    "values": lambda g: list(g.values())[1],
    "dict": lambda g: dict(g)["lr"],
    "unpacked": lambda g: {**g}["lr"],
    "copy": lambda g: g.copy()["lr"],
    "or": lambda g: (g | {})["lr"],
    "setdefault": lambda g: g.setdefault("lr", 7.0),
    "beta": lambda g: g["betas"][0],
}


@pytest.mark.parametrize("how", READS)
def test_what_users_read_of_groups_is_never_old(how):
    """The rate is an input of the step; other code of the function that reads it sees it, too."""
    p = parameter(1.0, 2.0)
    o = optim.Adam([p], lr=0.1)
    read = READS[how]

    @t.jit(fallback="error")
    def step():
        p.grad = t.ones_like(p)
        o.step()
        group = o.param_groups[0]
        return t.ones(1, dtype=t.float64) * read(group), {"rate": read(group)}

    for k, lr in enumerate((0.1, 0.1, 0.2, 0.3, 0.3)):
        o.param_groups[0]["lr"], o.param_groups[0]["betas"] = lr, (lr, 0.99)
        scaled, out = step()
        assert scaled.item() == out["rate"] == lr and type(out["rate"]) is float, (how, k)


def test_a_rate_that_the_step_sets_itself_is_used_at_once():
    p = parameter(1.0)
    o = optim.SGD([p], lr=0.5)

    @t.jit(fallback="silent")
    def step():
        p.grad = t.ones_like(p)
        o.step()
        o.param_groups[0]["lr"] = o.param_groups[0]["lr"] / 2
        o.step()

    step()
    assert p.item() == 1 - 0.5 - 0.25 and type(o.param_groups[0]["lr"]) is float
    step()
    assert p.item() == 1 - 0.5 - 0.25 - 0.25 - 0.125


@knob(segments=False)
def test_a_scheduler_inside_is_compiled_with_the_step():
    p = parameter(1.0)
    o = optim.SGD([p], lr=0.5)
    s = optim.lr_scheduler.ExponentialLR(o, 0.5)

    @t.jit
    def step():
        p.grad = t.ones_like(p)
        o.step()
        s.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        step()
    assert step.stats.fallbacks == 0
    assert p.item() == 1 - 0.5 - 0.25 and s.get_last_lr() == [0.125]
    assert all(type(lr) is float for lr in s.get_last_lr())


@knob(segments=False)
def test_an_optimizer_met_through_its_scheduler_first_is_guarded():
    p = parameter(1.0)
    opt = optim.SGD([p], lr=0.5)
    a_schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)  # free variables are met by name

    @t.jit
    def step():
        p.grad = t.ones_like(p)
        opt.step()
        a_schedule.step()

    step()
    step()
    opt.param_groups[0]["maximize"] = True
    step()
    assert p.item() == 1 - 0.5 - 0.25 + 0.125
    assert (step.stats.fallbacks, step.stats.traces) == (0, 2)


def test_user_written_steps_read_schedules_too():
    """An optimizer of the user's, without counters: its rate is an input."""

    class Signs(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @t.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad.sign(), alpha=-group["lr"])

    p = parameter(1.0, -2.0)
    o = Signs([p], lr=0.1)
    s = optim.lr_scheduler.ExponentialLR(o, 0.5)

    @t.jit(fallback="error")
    def step():
        o.zero_grad()
        (p * p).sum().backward()
        o.step()

    x, lr = np.array([1.0, -2.0]), 0.1
    for _ in range(5):
        step()
        s.step()
        x, lr = x - lr * np.sign(x), lr / 2
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-14)
    assert step.stats.traces == 1


def test_a_state_that_is_loaded_is_used_by_compiled_steps():
    """Tensors of the state are read afresh: no new trace."""
    runs = []
    for compiled in (False, True):
        p = parameter(1.0, -2.0)
        o = optim.Adam([p], lr=0.1)

        def step(p=p, o=o):
            o.zero_grad()
            (p * p).sum().backward()
            o.step()

        run = t.jit(step, fallback="error") if compiled else step
        run(), run(), run()
        saved = o.state_dict()
        saved = {**saved, "state": {0: {k: v.clone() for k, v in saved["state"][0].items()}}}
        run(), run()
        o.load_state_dict(saved)
        run()
        runs.append((p.tolist(), o.state[p]["step"].item(), run))
    (a, n, _), (b, m, fast) = runs
    assert n == m == 4 and a == pytest.approx(b, rel=1e-12)
    assert fast.stats.traces == 1, fast.explain_last_miss()


def test_adam_divides_each_element_once():
    """A division takes as long as all else that is done to an element."""
    p = parameter(1.0, -2.0, 3.0)
    o = optim.Adam([p], lr=0.1)

    @t.jit(fallback="error")
    def step():
        o.zero_grad()
        (p * p).sum().backward()
        o.step()

    step(), step(), step()
    (spec,) = [s for s in step.specialisations if s.compiled is not None]
    ops = [n.op.name for n in spec.trace.graph.nodes if n.outputs[0].type.shape == p.shape]
    assert ops.count("div") == 1 and ops.count("sqrt") == 1


def test_new_betas_are_read_without_a_full_check(monkeypatch):
    """A schedule that replaces the tuple at each call costs no more than one that sets a float."""
    p = parameter(1.0, -2.0)
    o = optim.AdamW([p], lr=0.1)

    @t.jit(fallback="error")
    def step():
        o.zero_grad()
        (p * p).sum().backward()
        o.step()

    step(), step(), step()
    (spec,) = [s for s in step.specialisations if s.compiled is not None]
    refreshes = []
    monkeypatch.setitem(spec.namespace, "refresh", lambda: refreshes.append(1) or spec.refresh())
    for k in range(4):
        o.param_groups[0]["betas"] = (0.9 - k / 10, 0.99)
        step()
    assert not refreshes and step.stats.traces == 1
    o.param_groups[0]["betas"] = (0.0, 0.99)
    before = [p.detach().clone(), *(v.clone() for v in o.state[p].values())]
    step()
    q = nn.Parameter(before[0])
    other = optim.AdamW([q], lr=0.1, betas=(0.0, 0.99))
    other.state[q] = dict(zip(o.state[p], before[1:], strict=True))
    q.grad = 2 * q.detach()
    other.step()
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-12)
    o.param_groups[0]["betas"] = (0.5, 0.99, 0.1)
    with pytest.raises(ValueError, match="unpack"):
        step()


def test_a_hyper_parameter_that_turns_off_is_another_trace():
    p = parameter(1.0, -2.0)
    o = optim.SGD([p], lr=0.1, weight_decay=0.5)

    @t.jit(fallback="error")
    def step():
        o.zero_grad()
        (p * 0).sum().backward()
        o.step()

    for decay, wanted in ((0.5, 0.95), (0.2, 0.98), (0.0, 1.0), (0.4, 0.96)):
        before = p.detach().clone()
        o.param_groups[0]["weight_decay"] = decay
        step()
        np.testing.assert_allclose(p.detach().numpy(), before.numpy() * wanted, rtol=1e-14)
    assert step.stats.traces == 2


def test_hooks_are_guarded_and_run_in_compiled_steps():
    p = parameter(1.0)
    total = t.zeros((), dtype=t.float64)
    o = optim.SGD([p], lr=0.1)

    @t.jit(fallback="error")
    def step():
        o.zero_grad()
        (p * 2).sum().backward()
        o.step()

    step(), step()
    handle = o.register_step_post_hook(lambda o, args, kwargs: total.add_(p.detach().sum()))
    sums = 0.0
    for _ in range(3):
        step()
        sums += p.item()
    assert total.item() == pytest.approx(sums) and step.stats.traces == 2

    def up(o, args, kwargs):
        p.detach().add_(1)

    everywhere = optim.optimizer.register_optimizer_step_pre_hook(up)
    handle.remove()
    before = p.item()
    step(), step()
    assert p.item() == pytest.approx(before + 2 * 0.8) and total.item() == pytest.approx(sums)
    everywhere.remove()


def test_averages_compile():
    """One trace serves the first update, which copies, and the later ones."""
    p = parameter(1.0, 2.0)
    model = nn.ParameterList([p])
    for make in (lambda: {}, lambda: {"multi_avg_fn": optim.swa_utils.get_ema_multi_avg_fn(0.5)}):
        averaged = [optim.swa_utils.AveragedModel(model, **make()) for _ in range(2)]
        fast = t.jit(averaged[1].update_parameters, fallback="error")
        for k in range(5):
            p.data = t.tensor([1.0 + k * k, 2.0 - k], dtype=t.float64)
            averaged[0].update_parameters(model)
            fast(model)
            for a, b in zip(*(m.state_dict().values() for m in averaged), strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)
        assert fast.stats.traces == 1


def test_differentiable_steps_by_finite_differences():
    """The derivative of three steps by the gradient's scale, for rules PyTorch does it once for."""
    for name in ("Adam", "Adamax", "RMSprop", "NAdam"):

        def end(scale, name=name):
            x = t.tensor([1.0, -2.0], dtype=t.float64, requires_grad=True)
            p = x.clone()
            o = getattr(optim, name)([p], lr=0.1, eps=0.1, differentiable=True)
            for k in range(3):
                p.grad = scale * t.tensor([0.3, k - 0.8], dtype=t.float64) + scale**2 * 0.1
                o.step()
            return (p * t.tensor([1.0, 2.0], dtype=t.float64)).sum()

        s = t.tensor(1.3, dtype=t.float64, requires_grad=True)
        end(s).backward()
        h = 1e-6
        with t.no_grad():
            slope = (end(s + h).item() - end(s - h).item()) / (2 * h)
        assert s.grad.item() == pytest.approx(slope, rel=2e-4), name  # steps counted in float32


def test_lbfgs_minimises():
    """The Rosenbrock function, whose valley bends."""
    for search, steps in (("strong_wolfe", 3), (None, 60)):
        p = parameter(-1.2, 1.0)
        o = optim.LBFGS([p], lr=1 if search else 0.05, max_iter=30, line_search_fn=search)

        def closure(o=o, p=p):
            o.zero_grad()
            loss = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2
            loss.backward()
            return loss

        for _ in range(steps):
            o.step(closure)
        np.testing.assert_allclose(p.detach().numpy(), 1, atol=1e-4, err_msg=str(search))


@pytest.mark.parametrize("name,options", CASES[:4], ids=str)
def test_minimises(name, options):
    p = parameter(3.0, -4.0)
    o = getattr(optim, name)([p], **{**options, "weight_decay": 0.0})
    for _ in range(400):
        o.zero_grad()
        ((p - 1) ** 2).sum().backward()
        o.step()
    np.testing.assert_allclose(p.detach().numpy(), 1, atol=1e-3)


def test_parameters_without_gradient_stay():
    a, b = parameter(1.0), parameter(2.0)
    o = optim.Adam([a, b])
    (a * 2).sum().backward()
    o.step()
    assert b.item() == 2.0 and b not in {k for k, s in o.state.items() if s}
    assert list(o.state_dict()["state"]) == [0]


def test_state_dict_is_separate_from_what_loads_it():
    p, q = parameter(1.0), parameter(1.0)
    a, b = optim.SGD([p], lr=0.1, momentum=0.9), optim.SGD([q], lr=0.2, momentum=0.9)
    (p * 2).sum().backward()
    a.step()
    b.load_state_dict(a.state_dict())
    (q * 2).sum().backward()
    b.step()
    assert a.state[p]["momentum_buffer"].item() == 2.0
    assert b.state[q]["momentum_buffer"].item() == 2.0 * 0.9 + 2.0
    b.param_groups[0]["lr"] = 5.0
    assert a.param_groups[0]["lr"] == 0.1


def test_groups():
    a, b = parameter(1.0), parameter(1.0)
    o = optim.SGD([{"params": a, "lr": 1.0}, {"params": [b]}], lr=0.5)
    (a + b).sum().backward()
    o.step()
    assert a.item() == 0.0 and b.item() == 0.5
    text = repr(o)
    assert "Parameter Group 1" in text and "lr: 0.5" in text


def test_named_parameters():
    m = nn.Linear(2, 2)
    o = optim.SGD(m.named_parameters(), lr=0.1)
    assert [p is q for p, q in zip(o.param_groups[0]["params"], m.parameters(), strict=True)]


def test_a_wrapper_that_does_not_call_init_of_optimizer():
    """Published wrappers (Lookahead) set the attributes they need and no more."""

    class Wrapper(optim.Optimizer):
        def __init__(self, inner):
            self.inner, self.param_groups = inner, inner.param_groups

        def step(self, closure=None):
            return self.inner.step(closure)

    w = t.ones(2, requires_grad=True)
    wrapper, seen = Wrapper(optim.SGD([w], lr=0.5)), []
    wrapper.register_step_post_hook(lambda *args: seen.append(args[0]))
    (w * 2).sum().backward()
    wrapper.step()
    wrapper.zero_grad()
    assert w.tolist() == [0.0, 0.0] and w.grad is None and seen == [wrapper]
