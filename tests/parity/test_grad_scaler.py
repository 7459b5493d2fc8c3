"""GradScaler: scales, skipped steps, states and mistakes, beside PyTorch's."""

import copy
import pickle

import numpy as np
import pytest
from parity.compare import LIBS, OURS, same


def scaler_of(lib, **options):
    return lib.t.amp.GradScaler("cpu", **{"init_scale": 8.0, "growth_interval": 2, **options})


def parameter(lib, *numbers):
    return lib.nn.Parameter(lib.t.tensor(list(numbers), dtype=lib.t.float32))


GRADIENTS = [1.0, 2.0, float("inf"), 1.0, float("nan"), 0.5, 1.0, 2.0, 1.0, -float("inf"), 3.0]


@pytest.mark.parametrize("name,options", [
    ("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"amsgrad": True}), ("RMSprop", {}),
    ("NAdam", {}), ("Adafactor", {}),
])  # fmt: skip
@pytest.mark.parametrize("settings", [
    {}, {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3},
    {"init_scale": 2.0**127, "growth_interval": 1},
], ids=str)  # fmt: skip
def test_steps_are_skipped_and_scales_follow(name, options, settings):
    runs = []
    for lib in LIBS:
        p, q = parameter(lib, 1.0, -2.0), parameter(lib, 0.5)
        optimizer = getattr(lib.optim, name)([p, q], lr=0.1, **options)
        scaler = scaler_of(lib, **settings)
        seen = []
        for k, g in enumerate(GRADIENTS):
            optimizer.zero_grad()
            loss = (p * lib.t.tensor([1.0, g])).sum() + (q * 2).sum()
            scaler.scale(loss * 0.5).backward()
            if k % 3 == 0:
                scaler.unscale_(optimizer)
                lib.nn.utils.clip_grad_norm_([p, q], 1.5)
            out = scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"], out))
        runs.append((p, q, seen, optimizer))
    (p, q, ours, o), (a, b, theirs, t) = runs
    assert ours == theirs
    same(p, a, scale=100), same(q, b, scale=100)
    for x, y in ((p, a), (q, b)):
        for key, value in t.state[y].items():
            same(o.state[x][key], value, key, scale=100)


def test_several_optimizers_and_losses():
    """One overflow shrinks the scale, and skips the steps of the optimizers that saw it."""

    def code(lib):
        p, q = parameter(lib, 1.0), parameter(lib, 2.0)
        a, b = lib.optim.SGD([p], lr=0.1), lib.optim.SGD([q], lr=0.1)
        scaler = scaler_of(lib, growth_interval=1)
        seen = []
        for g in (1.0, float("inf"), 2.0):
            losses = scaler.scale([(p * 3).sum(), ((q * g).sum(),)])
            losses[0].backward()
            losses[1][0].backward()
            for o in (a, b):
                scaler.step(o)
                o.zero_grad()
            scaler.update()
            seen.append((scaler.get_scale(), p.item(), q.item()))
        return seen, [type(x).__name__ for x in losses]

    ours, theirs = (code(lib) for lib in LIBS)
    assert ours[1] == theirs[1]
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)


def test_state_settings_and_new_scales():
    def code(lib):
        scaler = scaler_of(lib)
        before = scaler.get_scale()
        p = parameter(lib, 1.0)
        optimizer = lib.optim.SGD([p], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((p * 2).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        state = scaler.state_dict()
        other = scaler_of(lib, init_scale=1.0)
        other.load_state_dict(state)
        third = copy.deepcopy(other) if lib is OURS else pickle.loads(pickle.dumps(other))
        third.scale(p.sum())
        third.set_growth_factor(5.0)
        third.set_backoff_factor(0.125)
        third.set_growth_interval(7)
        settings = (third.get_growth_factor(), third.get_backoff_factor(),
                    third.get_growth_interval(), third.is_enabled())  # fmt: skip
        third.update(3.0)
        scales = [third.get_scale()]
        third.update(lib.t.tensor(4.0))
        off = scaler_of(lib, enabled=False)
        loss = p.sum()
        alone = (off.scale(loss) is loss, off.get_scale(), off.state_dict(), off.is_enabled())
        off.load_state_dict({})
        off.update()
        off.unscale_(optimizer)
        off.step(optimizer)
        return before, state, other.state_dict(), settings, [*scales, third.get_scale()], alone

    ours, theirs = (code(lib) for lib in LIBS)
    assert ours == theirs


def low_precision(lib):
    p = lib.nn.Parameter(lib.t.ones(2, dtype=lib.t.float16))
    optimizer = lib.optim.SGD([p], lr=0.1)
    scaler = scaler_of(lib)
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)


def started(lib):
    p = parameter(lib, 1.0)
    optimizer, scaler = lib.optim.SGD([p], lr=0.1), scaler_of(lib)
    scaler.scale(p.sum()).backward()
    return p, optimizer, scaler


def twice(lib, *calls):
    _, optimizer, scaler = started(lib)
    for name in calls:
        f = getattr(scaler, name)
        f() if name == "update" else f(optimizer)


MISTAKES = {
    "growth": lambda lib: scaler_of(lib, growth_factor=1.0),
    "backoff": lambda lib: scaler_of(lib, backoff_factor=1.0),
    "step first": lambda lib: scaler_of(lib).step(started(lib)[1]),
    "unscale first": lambda lib: scaler_of(lib).unscale_(started(lib)[1]),
    "update first": lambda lib: scaler_of(lib).update(),
    "unscale twice": lambda lib: twice(lib, "unscale_", "unscale_"),
    "unscale after step": lambda lib: twice(lib, "step", "unscale_"),
    "step twice": lambda lib: twice(lib, "step", "step"),
    "update without steps": lambda lib: twice(lib, "update"),
    "closure": lambda lib: started(lib)[2].step(started(lib)[1], closure=lambda: 0),
    "no gradients": lambda lib: started(lib)[2].step(lib.optim.SGD([parameter(lib, 1.0)], lr=0.1)),
    "float16": low_precision,
    "outputs": lambda lib: scaler_of(lib).scale(3.0),
    "empty state": lambda lib: scaler_of(lib).load_state_dict({}),
    "new scale": lambda lib: started(lib)[2].update(lib.t.ones(2)),
    "pickled in between": lambda lib: (lambda run: (run[2].unscale_(run[1]), pickle.dumps(run[2])))(
        started(lib)
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_raise_alike(name):
    errors = []
    for lib in LIBS:
        with pytest.raises(Exception) as caught:
            MISTAKES[name](lib)
        errors.append(caught.type)
    assert errors[0] is errors[1]
