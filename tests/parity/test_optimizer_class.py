"""The Optimizer class: hooks, named parameters, repr, user-written optimizers, pickling; averages
of models and their schedules."""

import copy
import importlib
import pickle
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, same


def parameter(lib, *numbers):
    return lib.nn.Parameter(lib.t.tensor(list(numbers), dtype=lib.t.float64))


def both(code):
    """What code(lib) returns, the same for both libraries."""
    ours, theirs = (code(lib) for lib in LIBS)
    assert ours == theirs
    return ours


def test_step_hooks_in_order():
    def code(lib):
        p = parameter(lib, 1.0)
        optimizer = lib.optim.SGD([p], lr=0.1)
        seen = []

        def log(name, result=None):
            def hook(o, args, kwargs):
                seen.append((name, o is optimizer, len(args), args[0] is optimizer, [*kwargs]))
                return None if result is None else result(args, kwargs)

            return hook

        module = importlib.import_module(f"{lib.t.__name__}.optim.optimizer")
        handles = [
            optimizer.register_step_pre_hook(log("pre")),
            module.register_optimizer_step_pre_hook(log("everywhere pre")),
            optimizer.register_step_post_hook(log("post")),
            module.register_optimizer_step_post_hook(log("everywhere post")),
            optimizer.register_step_pre_hook(
                log("changes", lambda args, kwargs: ((args[0],), {"closure": lambda: 7}))
            ),
        ]
        out = optimizer.step()
        lib.optim.Adam([p]).step()
        for handle in handles:
            handle.remove()
        optimizer.step()
        return seen, out

    seen, out = both(code)
    assert out == 7 and len(seen) == 7


def test_state_dict_hooks():
    def code(lib):
        p = parameter(lib, 1.0)
        optimizer = lib.optim.SGD([p], lr=0.1)
        seen = []
        optimizer.register_state_dict_pre_hook(lambda o: seen.append("save"))
        optimizer.register_state_dict_pre_hook(lambda o: seen.append("first"), prepend=True)
        optimizer.register_state_dict_post_hook(lambda o, d: {**d, "more": 1})
        optimizer.register_state_dict_post_hook(lambda o, d: d.update(again=d["more"] + 1))
        optimizer.register_load_state_dict_pre_hook(
            lambda o, d: {**d, "param_groups": [{**d["param_groups"][0], "lr": 0.5}]}
        )
        optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.param_groups[0]["lr"]))
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        return seen, state, optimizer.param_groups[0]["lr"]

    seen, _, lr = both(code)
    assert seen == ["first", "save", 0.5] and lr == 0.5


def test_named_parameters():
    def code(lib):
        model = lib.nn.Linear(2, 3)
        optimizer = lib.optim.SGD(model.named_parameters(), lr=0.1)
        bare = lib.optim.SGD(model.parameters(), lr=0.1)
        out = [optimizer.param_groups[0]["param_names"], optimizer.state_dict()["param_groups"]]
        optimizer.load_state_dict(bare.state_dict())
        bare.load_state_dict(optimizer.state_dict())
        return out, [o.state_dict()["param_groups"] for o in (optimizer, bare)]

    assert both(code)[0][0] == ["weight", "bias"]


@pytest.mark.parametrize("name", [
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD", "Adafactor", "LBFGS", "Muon",
])  # fmt: skip
def test_repr_and_defaults(name):
    def code(lib):
        p = lib.nn.Parameter(lib.t.ones(2, 2))
        optimizer = getattr(lib.optim, name)([p])
        return repr(optimizer), optimizer.defaults, optimizer.state_dict()["param_groups"]

    both(code)


def test_loading_fills_what_older_states_lack():
    def code(lib):
        p = parameter(lib, 1.0)
        p.grad = lib.t.ones(1, dtype=lib.t.float64)
        optimizer = lib.optim.Adam([p])
        group = {"lr": 0.5, "betas": (0.5, 0.5), "eps": 1e-8, "weight_decay": 0, "params": [0]}
        mean = lib.t.ones(1, dtype=lib.t.float64)
        optimizer.load_state_dict(
            {
                "state": {0: {"step": 3, "exp_avg": mean, "exp_avg_sq": mean}},
                "param_groups": [group],
            }
        )
        optimizer.step()
        return p.item(), optimizer.state[p]["step"].item()

    (a, n), (b, m) = (code(lib) for lib in LIBS)
    assert n == m == 4 and a == pytest.approx(b, rel=1e-14)


def lion(lib):
    class Lion(lib.optim.Optimizer):
        def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @lib.t.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                with lib.t.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                beta1, beta2 = group["betas"]
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"] = 0
                        state["exp_avg"] = lib.t.zeros_like(p)
                    state["step"] += 1
                    m = state["exp_avg"]
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    update = m.mul(beta1).add(p.grad, alpha=1 - beta1).sign_()
                    p.add_(update, alpha=-group["lr"])
                    m.lerp_(p.grad, 1 - beta2)
            return loss

    return Lion


def test_a_user_written_optimizer():
    def code(lib):
        p = parameter(lib, 1.0, -2.0)
        optimizer = lion(lib)([p], lr=0.1, weight_decay=0.1)
        schedule = lib.optim.lr_scheduler.StepLR(optimizer, 2)
        calls = []
        optimizer.register_step_post_hook(lambda *args: calls.append(1))
        for _ in range(4):

            def closure():
                optimizer.zero_grad()
                loss = (p * p).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
        state = optimizer.state_dict()["state"][0]
        return p.tolist(), state["step"], len(calls), optimizer.param_groups[0]["lr"]

    (a, *x), (b, *y) = (code(lib) for lib in LIBS)
    np.testing.assert_allclose(a, b, rtol=1e-14)
    assert x == y and x[:2] == [4, 4]


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies(copier):
    """A copy has parameters and state of its own, and goes on alike."""

    def code(lib):
        p = parameter(lib, 1.0, -2.0)
        optimizer = lib.optim.Adam([p], lr=0.1)
        p.grad = p.detach() * 2
        optimizer.step()
        other = copier(optimizer)
        q = other.param_groups[0]["params"][0]
        q.grad = p.grad
        for o in (optimizer, other):
            o.step()
        return p.tolist(), q.tolist(), len(other.state), q is not p

    (p, q, *x), (_, _, *y) = (code(lib) for lib in LIBS)
    assert p == q and x == y == [1, True]


def test_duplicates_warn():
    for lib in LIBS:
        p = parameter(lib, 1.0)
        with pytest.warns(UserWarning, match="duplicate parameters"):
            lib.optim.SGD([p, p], lr=0.1)


def test_retained_gradients_are_optimized():
    def code(lib):
        p = parameter(lib, 1.0) * 2
        p.retain_grad()
        optimizer = lib.optim.SGD([p], lr=0.1)
        (p * 3).sum().backward()
        optimizer.step()
        return p.tolist()

    (a,), (b,) = (code(lib) for lib in LIBS)
    assert a == pytest.approx(b)


# -- averages ------------------------------------------------------------------------------------
def net(lib):
    rng = np.random.default_rng(0)
    model = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4), lib.nn.Linear(4, 2))
    model = model.double()
    for p in model.parameters():
        p.data = lib.t.from_numpy(rng.standard_normal(tuple(p.shape)))
    return model, rng


AVERAGES = {
    "mean": lambda u: {},
    "ema": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.9)},
    "ema of one": lambda u: {"avg_fn": u.get_ema_avg_fn(0.8)},
    "mean of one": lambda u: {"avg_fn": u.get_swa_avg_fn()},
    "mean of lists": lambda u: {"multi_avg_fn": u.get_swa_multi_avg_fn()},
    "user's": lambda u: {"avg_fn": lambda a, p, n: a * 0.5 + p / (n + 1)},
    "buffers": lambda u: {"use_buffers": True, "avg_fn": lambda a, p, n: (a + p * n) / (n + 1)},
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averaged_model(name):
    found = []
    for lib in LIBS:
        utils = lib.optim.swa_utils
        model, rng = net(lib)
        averaged = utils.AveragedModel(model, **AVERAGES[name](utils))
        optimizer = lib.optim.SGD(model.parameters(), lr=0.05)
        schedule = utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
        for _ in range(4):
            x = lib.t.from_numpy(rng.standard_normal((5, 3)))
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
            schedule.step()
        batches = [lib.t.from_numpy(rng.standard_normal((5, 3))) for _ in range(3)]
        averaged.train(False)
        utils.update_bn([(b, 0) for b in batches], averaged)
        assert not averaged.training and averaged.module[1].momentum == 0.1
        found.append((averaged.state_dict(), averaged(batches[0])))
    (ours, y), (theirs, z) = found
    assert list(ours) == list(theirs) and ours["n_averaged"] == 4
    # PyTorch rounds the weight 1 / (n + 1) of its mean of lists to float32.
    scale = 1e6 if name == "mean of lists" else 100
    for key, value in theirs.items():
        same(ours[key], value, key, scale)
    same(y, z, scale=scale)


def test_bad_averages():
    for lib in LIBS:
        utils = lib.optim.swa_utils
        with pytest.raises(ValueError, match="decay"):
            utils.get_ema_avg_fn(1.5)
        with pytest.raises(AssertionError):
            utils.AveragedModel(net(lib)[0], avg_fn=min, multi_avg_fn=min)
        optimizer = lib.optim.SGD(net(lib)[0].parameters())
        for bad in ({"anneal_strategy": "no"}, {"anneal_epochs": -1}, {"anneal_epochs": 1.5}):
            with pytest.raises(ValueError, match="anneal"):
                utils.SWALR(optimizer, 0.1, **bad)
        with pytest.raises(ValueError, match="swa_lr"):
            utils.SWALR(optimizer, [0.1, 0.2])


def test_sparse_adam_says_what_to_do():
    with pytest.raises(RuntimeError, match="use Adam"):
        OURS.optim.SparseAdam([parameter(OURS, 1.0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = parameter(THEIRS, 1.0)
        p.grad = p.detach()
        with pytest.raises(RuntimeError, match="dense gradients"):
            THEIRS.optim.SparseAdam([p]).step()
