"""Optimizers: parameters and state after several steps, groups, schedules, state_dict."""

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


def options(name, **axes):
    """Cases of an optimizer: every combination of the axes' values, plainly, and with weight decay
    and maximize."""
    for values in itertools.product(*axes.values()):
        plain = dict(zip(axes, values, strict=True))
        yield (name, plain)
        yield (
            name,
            {**plain, "maximize": True, **({} if name == "Rprop" else {"weight_decay": 0.1})},
        )


CASES += [
    *options("NAdam", lr=[0.05], momentum_decay=[4e-3, 0.1], decoupled_weight_decay=[False, True]),
    *options("RAdam", lr=[0.05], betas=[(0.9, 0.999), (0.8, 0.4)],
             decoupled_weight_decay=[False, True]),
    *options("Adamax", lr=[0.05], eps=[1e-8, 0.1]),
    *options("Adagrad", lr=[0.1], lr_decay=[0, 0.1], initial_accumulator_value=[0, 0.5]),
    *options("Adadelta", lr=[1.0, 0.3], rho=[0.9, 0.5]),
    *options("RMSprop", lr=[0.02], momentum=[0, 0.8], centered=[False, True]),
    *options("Rprop", lr=[0.02], etas=[(0.5, 1.2), (0.3, 2.0)],
             step_sizes=[(1e-6, 50), (0.01, 0.03)]),
    *options("ASGD", lr=[0.05], lambd=[1e-4, 0.1], t0=[1e6, 2]),
    *options("Adafactor", lr=[0.05, 1.0], eps=[(None, 1e-3), (1e-4, 0.5)], d=[1.0, 2.0]),
    *[(name, {}) for name in ("NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop",
                              "Rprop", "ASGD", "Adafactor")],
]  # fmt: skip


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


ALL = {
    "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "NAdam": {}, "RAdam": {},
    "Adamax": {}, "Adagrad": {}, "Adadelta": {}, "RMSprop": {"centered": True, "momentum": 0.5},
    "Rprop": {}, "ASGD": {"t0": 2}, "Adafactor": {},
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in ALL if n != "Rprop"])
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


def to_numpy(state):
    """A state dict, in either library's tensors, with NumPy arrays for them."""
    if isinstance(state, dict):
        return {k: to_numpy(v) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([to_numpy(v) for v in state])
    return np.array(state.detach().numpy()) if hasattr(state, "detach") else state


def to_torch(state):
    if isinstance(state, dict):
        return {k: to_torch(v) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([to_torch(v) for v in state])
    return THEIRS.t.from_numpy(state) if isinstance(state, np.ndarray) else state


@pytest.mark.parametrize(
    "source,target", [(OURS, OURS), (OURS, THEIRS), (THEIRS, OURS)], ids=lambda lib: lib.name
)
@pytest.mark.parametrize("name", ALL)
def test_loading_state_continues_the_run(name, source, target):
    """State goes from each library to each, and both runs go on alike."""
    params = start(source, np.float64)
    optimizer = getattr(source.optim, name)(params, lr=0.1, **ALL[name])
    for step in range(3):
        take_step(source, params, optimizer, step)
    state = to_numpy(optimizer.state_dict())
    copies = [
        target.nn.Parameter(target.t.from_numpy(np.array(p.detach().numpy()))) for p in params
    ]
    other = getattr(target.optim, name)(copies, lr=7.0)
    other.load_state_dict(to_torch(state) if target is THEIRS else state)
    assert other.param_groups[0]["lr"] == 0.1
    for step in (3, 4):
        take_step(source, params, optimizer, step)
        take_step(target, copies, other, step)
    for a, b in zip(copies, params, strict=True):
        if source is target:
            assert (a == b).all()
        else:
            ours, theirs = (a, b) if target is OURS else (b, a)
            # PyTorch loads NAdam's and ASGD's numbers in the parameter's dtype: it goes on with
            # more digits than either had before.
            wide = target is THEIRS and name in ("NAdam", "ASGD")
            same(ours, theirs, scale=3e6 if wide else 300)


def test_adam_loads_as_adamw():
    """The class says how weights decay, not the state."""
    for lib in LIBS:
        (p, *_) = start(lib, np.float64)
        other = lib.optim.AdamW([p])
        other.load_state_dict(lib.optim.Adam([p], weight_decay=0.1).state_dict())
        assert other.param_groups[0]["decoupled_weight_decay"] is True


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*ALL, "Muon"])
def test_low_precision_parameters(name, dtype):
    """State has the parameter's dtype, and numbers agree to some roundings."""
    runs = []
    for lib in LIBS:
        rng = np.random.default_rng(0)

        def low(lib=lib, rng=rng):
            values = lib.t.from_numpy(rng.standard_normal((4, 3)).astype(np.float32))
            return values.to(getattr(lib.t, dtype))

        p = lib.nn.Parameter(low())
        optimizer = getattr(lib.optim, name)([p], lr=0.1, **ALL.get(name, {}))
        for _ in range(4):
            p.grad = low()
            optimizer.step()
        runs.append((p, optimizer.state[p]))
    (a, state), (b, wanted) = runs
    same(a, b, scale=3)
    for key, value in wanted.items():
        same(state[key], value, key, scale=8)


def quadratic(lib, dtype=np.float64):
    """A badly scaled least-squares problem: parameters, and a closure for an optimizer."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((6, 4)) * [1, 3, 10, 0.3], rng.standard_normal(6)
    a, b = (lib.t.from_numpy(x.astype(dtype)) for x in (a, b))
    w = lib.nn.Parameter(lib.t.from_numpy(np.full(4, 0.5, dtype)))
    c = lib.nn.Parameter(lib.t.from_numpy(np.zeros((1, 1), dtype)))

    def closure(optimizer):
        optimizer.zero_grad()
        r = (a @ w + c.reshape(()) - b).sin() * 2 + (a @ w - b) * 0.5
        loss = (r * r).sum()
        loss.backward()
        return loss

    return [w, c], closure


@pytest.mark.parametrize("options", [
    {}, {"lr": 0.5, "max_iter": 7}, {"history_size": 2, "max_iter": 4},
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "max_iter": 8, "history_size": 3, "lr": 0.7},
    {"line_search_fn": "strong_wolfe", "max_eval": 6}, {"tolerance_grad": 1e3},
    {"tolerance_change": 0.5},
], ids=str)  # fmt: skip
def test_lbfgs(options):
    runs = []
    for lib in LIBS:
        params, closure = quadratic(lib)
        optimizer = lib.optim.LBFGS(params, **options)
        losses = [float(optimizer.step(lambda o=optimizer, f=closure: f(o))) for _ in range(3)]
        runs.append((params, losses, optimizer))
    (ours, our_losses, o), (theirs, their_losses, t) = runs
    # Rounding grows along an iteration that follows curvature.
    np.testing.assert_allclose(our_losses, their_losses, rtol=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-7)
    a, b = (x.state_dict()["state"][0] for x in (o, t))
    assert set(a) == set(b)
    assert {k: a[k] for k in ("func_evals", "n_iter")} == {
        k: b[k] for k in ("func_evals", "n_iter")
    }
    if "old_dirs" in b:
        assert len(a["old_dirs"]) == len(b["old_dirs"]) and len(a["ro"]) == len(b["ro"])


@pytest.mark.parametrize("target", LIBS, ids=lambda lib: lib.name)
def test_lbfgs_state_loads(target):
    source = OURS if target is THEIRS else THEIRS
    params, closure = quadratic(source)
    optimizer = source.optim.LBFGS(params, max_iter=4, line_search_fn="strong_wolfe")
    optimizer.step(lambda: closure(optimizer))
    copies, closure2 = quadratic(target)
    for p, q in zip(copies, params, strict=True):
        p.data = target.t.from_numpy(np.array(q.detach().numpy()))
    other = target.optim.LBFGS(copies)
    state = to_numpy(optimizer.state_dict())
    other.load_state_dict(to_torch(state) if target is THEIRS else state)
    a = float(optimizer.step(lambda: closure(optimizer)))
    b = float(other.step(lambda: closure2(other)))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(copies[0].detach().numpy(), params[0].detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("options", [
    {}, {"nesterov": False, "weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw"},
    {"ns_steps": 2, "momentum": 0.5, "adjust_lr_fn": "original"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (1, 3)], ids=str)
def test_muon(shape, options):
    """The orthogonal step is computed in bfloat16: its rounding is what the tolerance allows."""
    runs = []
    for lib in LIBS:
        rng = np.random.default_rng(5)
        p = lib.nn.Parameter(lib.t.from_numpy(rng.standard_normal(shape).astype(np.float32)))
        begin = np.array(p.detach().numpy())
        optimizer = lib.optim.Muon([p], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            c = lib.t.from_numpy(rng.standard_normal(shape).astype(np.float32))
            (c * p + p * p).sum().backward()
            optimizer.step()
        runs.append((p, optimizer, begin))
    (a, o, begin), (b, t, _) = runs
    moved = np.abs(b.detach().numpy() - begin).max()
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=0.03 * moved)
    same(o.state[a]["momentum_buffer"], t.state[b]["momentum_buffer"], scale=3e4)
    assert o.state_dict()["param_groups"] == t.state_dict()["param_groups"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adafactor"])
def test_a_tensor_as_rate(name):
    runs = []
    for lib in LIBS:
        params = start(lib, np.float32)
        lr = lib.t.tensor([0.05])
        optimizer = getattr(lib.optim, name)(params, lr=lr, **ALL[name])
        schedule = lib.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(3):
            take_step(lib, params, optimizer, step)
            schedule.step()
        same(lr.squeeze(), THEIRS.t.tensor(0.05 / 8), scale=10) if lib is OURS else None
        runs.append(params)
    for a, b in zip(*runs, strict=True):
        same(a, b, scale=300)


# PyTorch's own steps of these cannot be differentiated twice in a row: they write what they saved.
ONCE = ("Adam", "Adamax", "RMSprop", "Rprop")


@pytest.mark.parametrize("name", [n for n in ALL if n != "Adafactor"])
def test_differentiable(name):
    """Gradients go through the steps, to what the gradients are made of, and to the start."""
    results = []
    for lib in LIBS:
        before = lib.t.get_default_dtype()
        lib.t.set_default_dtype(lib.t.float64)  # so that PyTorch counts steps in float64
        try:
            rng = np.random.default_rng(0)
            leaf = lib.t.from_numpy(rng.standard_normal((3, 2))).requires_grad_()
            scale = lib.t.tensor(1.5, requires_grad=True)
            p = leaf.clone()
            # A first step that is no mere sign of the gradient.
            options = {**ALL[name], **({"eps": 0.1} if name in ONCE[:3] else {})}
            optimizer = getattr(lib.optim, name)([p], lr=0.1, differentiable=True, **options)
            for _ in range(1 if name in ONCE else 3):
                p.grad = scale * lib.t.from_numpy(rng.standard_normal((3, 2))) + 0.1 * scale**2
                optimizer.step()
            (p * p).sum().backward()
        finally:
            lib.t.set_default_dtype(before)
        results.append((leaf.grad, scale.grad))
    for a, b in zip(*results, strict=True):
        same(a, b, scale=1e3)


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


def hooked(lib, p):
    optimizer = lib.optim.SGD([p])
    optimizer.register_step_pre_hook(lambda o, args, kwargs: 3)
    optimizer.step()


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
    "lr of many": lambda lib, p: lib.optim.RMSprop([p], lr=lib.t.ones(2)),
    "betas of two kinds": lambda lib, p: lib.optim.Adam([p], betas=(0.9, lib.t.tensor(0.9))),
    "betas of ints": lambda lib, p: lib.optim.Adam([p], betas=(0, 0)),
    "foreach and tensors": lambda lib, p: lib.optim.Adam([p], lr=lib.t.tensor(0.1), foreach=True),
    "fused and foreach": lambda lib, p: lib.optim.SGD([p], fused=True, foreach=True),
    "fused and differentiable": lambda lib, p: lib.optim.Adam([p], fused=True, differentiable=True),
    "rho": lambda lib, p: lib.optim.Adadelta([p], rho=1.5),
    "etas": lambda lib, p: lib.optim.Rprop([p], etas=(0.5, 0.9)),
    "lr_decay": lambda lib, p: lib.optim.Adagrad([p], lr_decay=-1.0),
    "momentum_decay": lambda lib, p: lib.optim.NAdam([p], momentum_decay=-1.0),
    "alpha": lambda lib, p: lib.optim.RMSprop([p], alpha=-1.0),
    "beta2_decay": lambda lib, p: lib.optim.Adafactor([p], beta2_decay=0.1),
    "d": lambda lib, p: lib.optim.Adafactor([p], d=0.5),
    "eps of two": lambda lib, p: lib.optim.Adafactor([p], eps=(-1.0, 1.0)),
    "muon of a vector": lambda lib, p: lib.optim.Muon([p]),
    "muon's rate": lambda lib, p: lib.optim.Muon([p.reshape(1, 3)], adjust_lr_fn="other"),
    "lbfgs groups": lambda lib, p: lib.optim.LBFGS([{"params": [p]}, {"params": [p * 1]}]),
    "lbfgs search": lambda lib, p: (
        lib.optim.LBFGS([p.requires_grad_()], line_search_fn="other").step(
            lambda: (p * p).sum().backward() or p.sum()
        )
    ),
    "names for some": lambda lib, p: lib.optim.SGD([("a", p), p * 1]),
    "names for one group": lambda lib, p: lib.optim.SGD(
        [{"params": [("a", p)]}, {"params": [p * 1]}]),
    "group": lambda lib, p: lib.optim.SGD([p]).add_param_group([p * 1]),
    "no params": lambda lib, p: lib.optim.SGD([p]).add_param_group({"lr": 1.0}),
    "required": lambda lib, p: lib.optim.Optimizer(
        [p], {"lr": __import__(lib.t.__name__ + ".optim.optimizer",
                               fromlist=["required"]).required}),
    "hook's result": lambda lib, p: hooked(lib, p),
    "no rule": lambda lib, p: lib.optim.Optimizer([p], {"differentiable": False}).step(
        lambda: p.__setattr__("grad", p * 1)),
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
