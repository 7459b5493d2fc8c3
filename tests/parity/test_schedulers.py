"""Learning-rate schedules: rates (and momenta) of every epoch, state, warnings, mistakes."""

import math
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, raises_alike

S = OURS.optim.lr_scheduler


class Warmup:
    """A callable object, whose attributes are saved."""

    def __init__(self, n):
        self.n = n

    def __call__(self, epoch):
        return min(1.0, (epoch + 1) / self.n)


CASES = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda e: 0.9**e),
    "lambda of two": lambda s, o: s.LambdaLR(o, [lambda e: 1 / (e + 1), Warmup(4)]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.5 + 0.1 * (e % 3)),
    "step": lambda s, o: s.StepLR(o, 3, gamma=0.5),
    "multi-step": lambda s, o: s.MultiStepLR(o, [2, 5, 5, 9], gamma=0.3),
    "constant": lambda s, o: s.ConstantLR(o, factor=0.25, total_iters=4),
    "linear": lambda s, o: s.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=6),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.8),
    "polynomial": lambda s, o: s.PolynomialLR(o, total_iters=7, power=1.7),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, T_max=5, eta_min=0.01),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2, eta_min=0.001),
    "restarts of one length": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=4),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.1, step_size_up=3, step_size_down=4),
    "cyclic, halved": lambda s, o: s.CyclicLR(o, [0.01, 0.02], 0.1, 2, mode="triangular2"),
    "cyclic, exponential": lambda s, o: s.CyclicLR(
        o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "cyclic, scaled": lambda s, o: s.CyclicLR(
        o, 0.01, 0.1, 3, scale_fn=Warmup(7), scale_mode="iterations", base_momentum=[0.5, 0.6]),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=14),
    "one cycle, linear": lambda s, o: s.OneCycleLR(
        o, [0.5, 0.2], epochs=7, steps_per_epoch=2, anneal_strategy="linear", pct_start=0.5,
        base_momentum=0.7, max_momentum=[0.9, 0.95], div_factor=5.0, final_div_factor=10.0),
    "one cycle, three phases": lambda s, o: s.OneCycleLR(
        o, 0.5, total_steps=14, three_phase=True, cycle_momentum=False),
    "sequence": lambda s, o: s.SequentialLR(o, [
        s.LinearLR(o, 0.1, total_iters=3), s.CosineAnnealingLR(o, 5), s.ExponentialLR(o, 0.9),
    ], [3, 8]),
    "sequence of sequences": lambda s, o: s.SequentialLR(
        o,
        [s.SequentialLR(o, [s.ConstantLR(o), s.StepLR(o, 2)], [3]), s.ExponentialLR(o, 0.9)],
        [7],
    ),
    "chain": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 3), s.ExponentialLR(o, 0.9)], o),
}  # fmt: skip


def optimizer_of(lib, name="SGD", lrs=(0.1, 0.05)):
    options = {"SGD": {"momentum": 0.9}, "Adam": {}}[name]
    groups = [{"params": [lib.nn.Parameter(lib.t.ones(1))], "lr": lr} for lr in lrs]
    return getattr(lib.optim, name)(groups, lr=0.3, **options)


def settings(optimizer):
    """What a schedule may write of each group."""
    out = []
    for group in optimizer.param_groups:
        out.append([group["lr"], group.get("momentum", 0), *group.get("betas", ())])
    return out


def run(lib, make, name="SGD", steps=13):
    optimizer = optimizer_of(lib, name)
    schedule = make(lib.optim.lr_scheduler, optimizer)
    seen = [settings(optimizer)]
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        seen.append(settings(optimizer))
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    return optimizer, schedule, seen


def plain(state):
    """A schedule's state to compare: functions and NumPy-free."""
    if isinstance(state, dict):
        return {k: plain(v) for k, v in state.items() if k != "_scale_fn_ref"}
    if isinstance(state, (list, tuple)):
        return [plain(v) for v in state]
    return pytest.approx(state, rel=1e-12) if isinstance(state, float) else state


def same_state(ours, theirs):
    known = {"_get_lr_called_within_step", "_is_initial"}
    drop = lambda d: {k: v for k, v in d.items() if k not in known}  # noqa: E731
    assert drop(ours) == plain(drop(theirs))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", CASES)
def test_rates_and_state(name, optimizer):
    (_, a, ours), (_, b, theirs) = (run(lib, CASES[name], optimizer) for lib in LIBS)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-12, atol=1e-18)
    assert a.last_epoch == b.last_epoch if hasattr(b, "last_epoch") else True
    if "lambda" in name or "sequence" in name or "chain" in name or "cyclic" in name:
        assert set(a.state_dict()) == set(b.state_dict())
    else:
        same_state(a.state_dict(), b.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_loading_goes_on(name):
    """A new schedule on a new optimizer, both loaded after 5 steps, gives the rates of 13."""
    _, _, whole = run(OURS, CASES[name])
    first, schedule, _ = run(OURS, CASES[name], steps=5)
    for source in (OURS, THEIRS):
        if source is THEIRS:
            first, schedule, _ = run(THEIRS, CASES[name], steps=5)
        optimizer = optimizer_of(OURS)
        again = CASES[name](S, optimizer)
        again.load_state_dict(schedule.state_dict())
        optimizer.load_state_dict(first.state_dict())
        for step in range(6, 14):
            optimizer.step()
            again.step()
            np.testing.assert_allclose(settings(optimizer), whole[step], rtol=1e-12)


@pytest.mark.parametrize("name", [
    "step", "multi-step", "constant", "linear", "exponential", "polynomial", "cosine", "lambda",
])  # fmt: skip
def test_steps_to_an_epoch(name):
    found = []
    for lib in LIBS:
        optimizer, schedule, _ = run(lib, CASES[name], steps=2)
        for epoch in (7, 3):
            with pytest.warns(UserWarning, match="The epoch parameter in `scheduler.step"):
                schedule.step(epoch)
            found.append((settings(optimizer), schedule.last_epoch))
    ours, theirs = found[:2], found[2:]
    for (a, m), (b, n) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert m == n


@pytest.mark.parametrize("name", ["restarts", "restarts of one length"])
def test_fractions_of_epochs(name):
    found = []
    for lib in LIBS:
        optimizer, schedule, _ = run(lib, CASES[name], steps=1)
        for epoch in (0.5, 2.75, 3.0, 8.25, 20.0, 1.5):
            schedule.step(epoch)
            found.append([*settings(optimizer)[0], schedule.last_epoch, schedule.T_i])
        with pytest.raises(ValueError, match="non-negative"):
            schedule.step(-1)
    np.testing.assert_allclose(found[:6], found[6:], rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["step", "cosine", "linear", "exponential", "lambda", "polynomial"]
)
def test_resuming_at_an_epoch(name):
    """last_epoch=4 on groups that have "initial_lr"."""
    make = {
        "step": lambda s, o: s.StepLR(o, 3, last_epoch=4),
        "cosine": lambda s, o: s.CosineAnnealingLR(o, 5, last_epoch=4),
        "linear": lambda s, o: s.LinearLR(o, last_epoch=4),
        "exponential": lambda s, o: s.ExponentialLR(o, 0.9, last_epoch=4),
        "lambda": lambda s, o: s.LambdaLR(o, lambda e: 0.9**e, last_epoch=4),
        "polynomial": lambda s, o: s.PolynomialLR(o, 9, last_epoch=4),
    }[name]
    found = []
    for lib in LIBS:
        optimizer = optimizer_of(lib)
        with pytest.raises(KeyError, match="initial_lr"):
            make(lib.optim.lr_scheduler, optimizer)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"] * 2
        schedule = make(lib.optim.lr_scheduler, optimizer)
        for _ in range(3):
            optimizer.step()
            found.append(settings(optimizer))
            schedule.step()
    np.testing.assert_allclose(found[:3], found[3:], rtol=1e-12)


PLATEAUS = [
    {"patience": 1}, {"patience": 0, "cooldown": 2, "factor": 0.5}, {"mode": "max", "patience": 1},
    {"threshold_mode": "abs", "threshold": 0.3, "patience": 1},
    {"mode": "max", "threshold_mode": "abs", "threshold": 0.2, "patience": 2},
    {"patience": 0, "min_lr": [0.01, 0.03]}, {"patience": 0, "min_lr": 0.04, "eps": 0.02},
]  # fmt: skip


@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_plateau(options):
    found = []
    metrics = [1.0, 0.5, 0.6, 0.7, 0.45, 0.449, math.nan, 0.8, 0.9, 1.2, 0.1, 0.2, 0.3, math.inf]
    for lib in LIBS:
        optimizer = optimizer_of(lib)
        schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        for i, metric in enumerate(metrics):
            optimizer.step()
            schedule.step(lib.t.tensor(metric, dtype=lib.t.float64) if i % 2 else metric)
            found.append([*np.ravel(settings(optimizer)), *schedule.get_last_lr()])
            if i == 6:
                state = schedule.state_dict()
                schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
                schedule.load_state_dict(state)
        found.append([schedule.best, schedule.num_bad_epochs, schedule.last_epoch, 0, 0, 0])
    n = len(metrics) + 1
    np.testing.assert_allclose(found[:n], found[n:], rtol=1e-12)


def test_groups_added_after_a_plateau_schedule():
    for lib in LIBS:
        optimizer = optimizer_of(lib)
        schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.04)
        fixed = lib.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.1, 0.1])
        optimizer.add_param_group({"params": [lib.nn.Parameter(lib.t.ones(1))], "lr": 1.0})
        for metric in (1.0, 2.0):
            schedule.step(metric)
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.04, 0.04, 0.1])
        fixed.step(1.0)
        with pytest.raises(RuntimeError, match="param groups"):
            fixed.step(2.0)


def messages(code):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code()
    return [(w.category, str(w.message)[:48]) for w in caught]


def test_warnings_of_order():
    """Each library warns where the other does, about the same thing."""

    def early(lib):
        optimizer = optimizer_of(lib)
        schedule = lib.optim.lr_scheduler.StepLR(optimizer, 2)
        schedule.step()
        schedule.step()

    def right(lib):
        optimizer = optimizer_of(lib)
        schedule = lib.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.step()
        schedule.step()
        schedule.step()

    def overridden(lib):
        optimizer = optimizer_of(lib)
        schedule = lib.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.step = lambda: None
        optimizer.step()
        schedule.step()

    def outside(lib):
        lib.optim.lr_scheduler.StepLR(optimizer_of(lib), 2).get_lr()

    for code, count in ((early, 1), (right, 0), (overridden, 1), (outside, 1)):
        ours, theirs = (messages(lambda lib=lib, code=code: code(lib)) for lib in LIBS)
        assert ours == theirs and len(ours) == count, code


def test_a_compiled_step_counts_as_a_step():
    """It runs no Python: what it wrote tells."""
    optimizer = optimizer_of(OURS)
    p = optimizer.param_groups[0]["params"][0]

    @OURS.t.jit(fallback="error")
    def train():
        optimizer.zero_grad()
        (p * 2).sum().backward()
        optimizer.step()

    for _ in range(3):
        train()
    schedule = S.StepLR(optimizer, 2)
    assert train.stats.hits == 2 and not messages(lambda: (train(), schedule.step()))
    schedule = S.StepLR(optimizer, 2)
    assert len(messages(schedule.step)) == 1


BAD = {
    "optimizer": lambda s, o: s.StepLR(3, 2),
    "lambdas": lambda s, o: s.LambdaLR(o, [abs]),
    "no function": lambda s, o: s.MultiplicativeLR(o, 3),
    "factor": lambda s, o: s.ConstantLR(o, factor=2.0),
    "start": lambda s, o: s.LinearLR(o, start_factor=0.0),
    "end": lambda s, o: s.LinearLR(o, end_factor=-1.0),
    "T_0": lambda s, o: s.CosineAnnealingWarmRestarts(o, 0),
    "T_mult": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 1.5),
    "eta_min": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 1, "0"),
    "mode": lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="no"),
    "max_lr": lambda s, o: s.CyclicLR(o, 0.1, [0.2]),
    "steps": lambda s, o: s.OneCycleLR(o, 0.1),
    "total_steps": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=0),
    "epochs": lambda s, o: s.OneCycleLR(o, 0.1, epochs=1.5, steps_per_epoch=2),
    "pct": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=3, pct_start=2.0),
    "anneal": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=3, anneal_strategy="no"),
    "too far": lambda s, o: [s.OneCycleLR(o, 0.1, total_steps=2).step() for _ in range(1)]
    + [(lambda c: [c.step() for _ in range(3)])(s.OneCycleLR(o, 0.1, total_steps=2))],
    "no schedulers": lambda s, o: s.SequentialLR(o, [], []),
    "milestones": lambda s, o: s.SequentialLR(o, [s.StepLR(o, 2)], [1]),
    "plateau inside": lambda s, o: s.SequentialLR(o, [s.ReduceLROnPlateau(o)], []),
    "others": lambda s, o: s.SequentialLR(o, [3], []),
    "an empty chain": lambda s, o: s.ChainedScheduler([]),
    "plateau in a chain": lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)], o),
    "plateau's factor": lambda s, o: s.ReduceLROnPlateau(o, factor=1.0),
    "plateau's mode": lambda s, o: s.ReduceLROnPlateau(o, mode="no"),
    "plateau's threshold": lambda s, o: s.ReduceLROnPlateau(o, threshold_mode="no"),
    "plateau's min_lr": lambda s, o: s.ReduceLROnPlateau(o, min_lr=[0.1]),
    "no get_lr": lambda s, o: s.LRScheduler(o),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore")
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD[name](lib.optim.lr_scheduler, optimizer_of(lib)))


def test_optimizers_without_momentum_do_not_cycle_it():
    for lib in LIBS:
        optimizer = lib.optim.Adagrad([lib.nn.Parameter(lib.t.ones(1))])
        for make in ("CyclicLR", "OneCycleLR"):
            options = {"total_steps": 3} if make == "OneCycleLR" else {"base_lr": 0.1}
            with pytest.raises(ValueError, match="cycle_momentum"):
                getattr(lib.optim.lr_scheduler, make)(optimizer, max_lr=0.5, **options)


def test_schedulers_of_two_optimizers():
    for lib in LIBS:
        s = lib.optim.lr_scheduler
        a, b = optimizer_of(lib), optimizer_of(lib)
        with pytest.raises(ValueError, match="same optimizer"):
            s.SequentialLR(a, [s.StepLR(b, 2)], [])
        with pytest.raises(ValueError, match="same optimizer"):
            s.ChainedScheduler([s.StepLR(a, 2), s.StepLR(b, 2)])


def test_user_written_schedule():
    found = []
    for lib in LIBS:

        class Halves(lib.optim.lr_scheduler._LRScheduler):
            def get_lr(self):
                return [base / 2**self.last_epoch for base in self.base_lrs]

        found.append(run(lib, lambda s, o, c=Halves: c(o), steps=4)[2])
    assert found[0] == found[1] and found[0][4][0][0] == 0.1 / 16
