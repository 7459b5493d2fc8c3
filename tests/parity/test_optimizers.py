"""Optimizers: parameters and state after several steps, groups, schedules, state_dict."""

import copy
import itertools

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, raises_alike, same

SGD = [
    {"lr": 0.1, "momentum": m, "dampening": d, "weight_decay": w, "nesterov": n, "maximize": x}
    for m, d, w, n, x in itertools.product(
        [0, 0.9], [0, 0.3], [0, 0.02], [False, True], [False, True]
    )
    if not n or (m and not d)
]
ADAM = [
    {"lr": 0.05, "betas": b, "eps": e, "weight_decay": w, "amsgrad": a, "maximize": x}
    for b, e, w, a, x in itertools.product(
        [(0.9, 0.999), (0.5, 0.7), (0.0, 0.0)], [1e-8], [0, 0.1], [False, True], [False, True]
    )
]
CASES = [
    *[("SGD", o) for o in SGD],
    *[("Adam", o) for o in ADAM],
    *[("AdamW", o) for o in ADAM],
    ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adam", {"eps": 0.1}),
    ("SGD", {}),
    ("AdamW", {}),
]


def start(lib, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(dtype) for s in [(4, 3), (3,), ()]]
    return [lib.nn.Parameter(lib.t.from_numpy(np.asarray(a))) for a in arrays]


def take_step(lib, params, optimizer, step):
    """One step of a loss whose gradients change sign; the last parameter misses some."""
    rng = np.random.default_rng(100 + step)
    optimizer.zero_grad()
    loss = 0
    for i, p in enumerate(params):
        if i == 2 and step % 2:
            continue
        c = lib.t.from_numpy(np.asarray(rng.standard_normal(tuple(p.shape)))).to(p.dtype)
        loss = loss + (c * p + 0.1 * p * p).sum()
    loss.backward()
    optimizer.step()


def compare_state(ours, theirs, scale):
    a, b = ours.state_dict(), theirs.state_dict()
    assert list(a["state"]) == list(b["state"])
    for number, values in b["state"].items():
        assert sorted(a["state"][number]) == sorted(values)
        for key, value in values.items():
            if value is None:
                assert a["state"][number][key] is None
            else:
                same(a["state"][number][key], value, f"{number}.{key}", scale)
    assert a["param_groups"] == b["param_groups"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name,options", CASES, ids=str)
def test_steps(name, options, dtype):
    runs = []
    for lib in LIBS:
        params = start(lib, dtype)
        optimizer = getattr(lib.optim, name)(params, **options)
        for step in range(5):
            if step == 3:
                optimizer.param_groups[0]["lr"] *= 0.5
            take_step(lib, params, optimizer, step)
        runs.append((params, optimizer))
    (ours, our_optimizer), (theirs, their_optimizer) = runs
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        same(a, b, f"parameter {i}", 300)
    compare_state(our_optimizer, their_optimizer, 300)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_groups_and_added_groups(name):
    runs = []
    for lib in LIBS:
        a, b, c = start(lib, np.float64)
        optimizer = getattr(lib.optim, name)(
            [{"params": [a], "lr": 0.2}, {"params": b, "weight_decay": 0.1}], lr=0.01
        )
        take_step(lib, [a, b, c], optimizer, 0)
        optimizer.add_param_group({"params": [c], "lr": 0.5})
        for step in (2, 4):
            take_step(lib, [a, b, c], optimizer, step)
        runs.append(([a, b, c], optimizer))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        same(a, b, scale=30)
    compare_state(runs[0][1], runs[1][1], 30)


@pytest.mark.parametrize("name,options", [
    ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("AdamW", {}),
])  # fmt: skip
def test_loading_state_continues_the_run(name, options):
    """Into a fresh optimizer of ours; and PyTorch's own state loads into ours."""
    for source in LIBS:
        params = start(source, np.float64)
        optimizer = getattr(source.optim, name)(params, lr=0.1, **options)
        for step in range(3):
            take_step(source, params, optimizer, step)
        state = copy.deepcopy(optimizer.state_dict())
        if source is THEIRS:
            for values in state["state"].values():
                for key, v in values.items():
                    values[key] = OURS.t.from_numpy(v.numpy().copy())
        copies = [
            OURS.nn.Parameter(OURS.t.from_numpy(np.array(p.detach().numpy()))) for p in params
        ]
        other = getattr(OURS.optim, name)(copies, lr=7.0)
        other.load_state_dict(state)
        assert other.param_groups[0]["lr"] == 0.1
        take_step(source, params, optimizer, 4)
        take_step(OURS, copies, other, 4)
        for a, b in zip(copies, params, strict=True):
            if source is THEIRS:
                same(a, b, scale=30)
            else:
                assert (a == b).all()


def test_closure_and_zero_grad():
    for lib in LIBS:
        (p, *_) = start(lib, np.float64)
        optimizer = lib.optim.SGD([p], lr=0.1)

        def closure(optimizer=optimizer, p=p):
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        first = optimizer.step(closure)
        assert optimizer.step(closure) < first
        optimizer.zero_grad(set_to_none=False)
        assert (p.grad == 0).all()
        optimizer.zero_grad()
        assert p.grad is None


BAD = {
    "lr": lambda lib, p: lib.optim.SGD([p], lr=-1.0),
    "momentum": lambda lib, p: lib.optim.SGD([p], lr=0.1, momentum=-1.0),
    "weight_decay": lambda lib, p: lib.optim.Adam([p], weight_decay=-1.0),
    "nesterov": lambda lib, p: lib.optim.SGD([p], lr=0.1, nesterov=True),
    "betas": lambda lib, p: lib.optim.Adam([p], betas=(1.0, 0.9)),
    "eps": lambda lib, p: lib.optim.Adam([p], eps=-1e-8),
    "empty": lambda lib, p: lib.optim.SGD([], lr=0.1),
    "tensor": lambda lib, p: lib.optim.SGD(p, lr=0.1),
    "number": lambda lib, p: lib.optim.SGD([1.0], lr=0.1),
    "non-leaf": lambda lib, p: lib.optim.SGD([p.requires_grad_() * 2], lr=0.1),
    "set": lambda lib, p: lib.optim.SGD([{"params": {p}}], lr=0.1),
    "twice": lambda lib, p: lib.optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1),
    "sizes": lambda lib, p: lib.optim.SGD([p], lr=0.1).load_state_dict(
        lib.optim.SGD([p, p * 1], lr=0.1).state_dict()
    ),
    "groups": lambda lib, p: lib.optim.SGD([p], lr=0.1).load_state_dict(
        lib.optim.SGD([{"params": [p]}, {"params": [p * 1]}], lr=0.1).state_dict()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], np.ones(3))
