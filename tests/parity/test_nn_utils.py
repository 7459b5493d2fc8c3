"""nn.utils: clipping, parameters as a vector, fusion of batch norms, parametrizations."""

import copy
import pickle

import numpy as np
import pytest
from parity.compare import LIBS, numpy, raises_alike, same
from parity.training import pair, same_training

import jitgrad


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def given(lib, *shapes, dtype="float64", none=()):
    """Parameters with gradients (None where `none` says)."""

    def tensor(x):
        return lib.t.from_numpy(np.asarray(x)).to(getattr(lib.t, dtype))

    made = []
    for i, shape in enumerate(shapes):
        p = lib.nn.Parameter(tensor(values(*shape, seed=i)))
        if i not in none:
            p.grad = tensor(values(*shape, seed=i + 9) * 3)
        made.append(p)
    return made


# -- clipping --------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm_type", [2.0, 1, 3.5, 0, "inf", float("-inf")])
@pytest.mark.parametrize("max_norm", [0.5, 100, 0.0])
def test_clip_grad_norm(max_norm, norm_type):
    found = []
    for lib in LIBS:
        params = given(lib, (3, 4), (5,), (), (0,) if norm_type == 2.0 else (2, 1), none=(1,))
        total = lib.nn.utils.clip_grad_norm_(iter(params), max_norm, norm_type)
        again = lib.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        found.append([total, again, *(p.grad for p in params if p.grad is not None)])
        assert params[1].grad is None
    for a, b in zip(*found, strict=True):
        same(a, b, scale=4)


def test_clip_one_tensor_none_and_dtypes():
    found = []
    for lib in LIBS:
        utils = lib.nn.utils
        (one,) = given(lib, (3, 4), dtype="float32")
        results = [utils.clip_grad_norm_(one, 1.0, foreach=False), one.grad]
        mixed = given(lib, (3, 4)) + given(lib, (5,), dtype="float32")
        results += [utils.clip_grad_norm_(mixed, 1.0), *(p.grad for p in mixed)]
        results += [utils.clip_grad_norm_([], 1.0), utils.get_total_norm([])]
        clipped = given(lib, (3, 4), (2,), none=(1,))
        utils.clip_grad_value_(clipped, 0.7)
        results.append(clipped[0].grad)
        utils.clip_grads_with_norm_(clipped, 0.1, lib.t.tensor(2.0).double())
        results.append(clipped[0].grad)
        with pytest.warns(FutureWarning):
            results.append(utils.clip_grad_norm(clipped, 0.01))
        with pytest.warns(UserWarning):
            utils.clip_grad_norm_((p for p in ()), 1.0)
        found.append(results)
    for a, b in zip(*found, strict=True):
        same(a, b, scale=4)


def test_nonfinite_gradients():
    for lib in LIBS:
        (p,) = given(lib, (3,))
        p.grad[1] = np.nan
        with pytest.raises(RuntimeError, match="finite"):
            lib.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
        assert np.isnan(numpy(lib.nn.utils.clip_grad_norm_(p, 1.0)))
        assert np.isnan(numpy(p.grad)).all()


def clipped_trainer(lib, model, max_norm):
    optimizer = lib.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - 3).square().sum()
        loss.backward()
        norm = lib.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        lib.nn.utils.clip_grad_value_(model.parameters(), 0.2)
        optimizer.step()
        return loss.detach(), norm

    return step


def test_clipping_compiles():
    """Norms above and below the limit in one compiled step."""
    models = pair(lambda lib: lib.nn.Linear(3, 2))
    steps = {lib.name: clipped_trainer(lib, models[lib.name], 40.0) for lib in LIBS}
    steps["jitgrad"] = jitgrad.jit(steps["jitgrad"], fallback="error")
    norms = []
    for seed in range(6):
        x = values(4, 3, seed=seed) * (1.0 if seed % 2 else 0.01)
        results = [steps[lib.name](lib.t.from_numpy(x)) for lib in LIBS]
        for a, b in zip(*results, strict=True):
            same(a, b, scale=10)
        norms.append(float(results[1][1]))
    assert min(norms) < 40.0 < max(norms)
    assert steps["jitgrad"].stats.hits >= 3


# -- vectors ---------------------------------------------------------------------------------------
def test_parameters_as_a_vector():
    for lib in LIBS:
        params = given(lib, (2, 3), (), (4,))
        vector = lib.nn.utils.parameters_to_vector(params)
        assert vector.shape == (11,) and vector.requires_grad
        lib.nn.utils.vector_to_parameters(vector * 2, params)
        for p, start in zip(params, given(lib, (2, 3), (), (4,)), strict=True):
            np.testing.assert_array_equal(numpy(p), 2 * numpy(start))
            assert p.is_leaf and p.requires_grad
        with pytest.raises(TypeError):
            lib.nn.utils.vector_to_parameters([1.0], params)


# -- fusion ----------------------------------------------------------------------------------------
def statistics(lib, bn):
    for name, seed in (("running_mean", 1), ("running_var", 2), ("weight", 3), ("bias", 4)):
        target = getattr(bn, name)
        if target is not None:
            target.data.copy_(lib.t.from_numpy(np.abs(values(*target.shape, seed=seed)) + 0.1))
    return bn.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_fusion(affine, bias):
    models = pair(lambda lib: lib.nn.Conv2d(2, 3, 2, bias=bias))
    flat = pair(lambda lib: lib.nn.Linear(4, 3, bias=bias))
    found = []
    for lib in LIBS:
        conv, linear = models[lib.name].eval(), flat[lib.name].eval()
        bn = statistics(lib, lib.nn.BatchNorm2d(3, affine=affine).double())
        fused = lib.nn.utils.fuse_conv_bn_eval(conv, bn)
        x = lib.t.from_numpy(values(2, 2, 4, 4))
        np.testing.assert_allclose(numpy(fused(x)), numpy(bn(conv(x))), atol=1e-12)
        results = [fused.weight, fused.bias]
        turned = lib.nn.utils.fuse_conv_bn_weights(
            conv.weight.transpose(0, 1), conv.bias, bn.running_mean, bn.running_var, bn.eps,
            bn.weight, bn.bias, transpose=True,
        )  # fmt: skip
        results += list(turned)
        if affine:
            bn1 = statistics(lib, lib.nn.BatchNorm1d(3).double())
            fused = lib.nn.utils.fuse_linear_bn_eval(linear, bn1)
            results += [fused.weight, fused.bias]
        assert all(isinstance(r, lib.nn.Parameter) for r in results)
        found.append(results)
    for a, b in zip(*found, strict=True):
        same(a, b, scale=4)
        assert a.requires_grad == b.requires_grad


def test_skip_init():
    for lib in LIBS:
        made = lib.nn.utils.skip_init(lib.nn.Conv2d, 2, 3, 2, dtype=lib.t.float64)
        assert made.weight.shape == (3, 2, 2, 2) and made.weight.dtype is lib.t.float64
        made.weight.data.fill_(1.0)
        assert made(lib.t.ones(1, 2, 2, 2, dtype=lib.t.float64)).shape == (1, 3, 1, 1)
        assert isinstance(made.weight, lib.nn.Parameter) and made.weight.requires_grad
    state = jitgrad.get_rng_state()
    jitgrad.nn.utils.skip_init(jitgrad.nn.Linear, 2, 3)
    assert jitgrad.get_rng_state().equal(state)


# -- parametrizations ------------------------------------------------------------------------------
def symmetric(lib):
    class Symmetric(lib.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

        def right_inverse(self, x):
            return x.triu()

    return Symmetric()


def squared(lib):
    class Squared(lib.nn.Module):
        def forward(self, x):
            return x * x

    return Squared()


def outer(lib):
    class Outer(lib.nn.Module):
        def forward(self, a, b):
            return a.unsqueeze(-1) * b.unsqueeze(-2)

        def right_inverse(self, x):
            return x[:, 0], x[0, :]

    return Outer()


def test_register_parametrization():
    """Registering, stacking, assigning, caching, copying, removing: values and state."""
    source = pair(lambda lib: lib.nn.Linear(3, 3))
    found = []
    for lib in LIBS:
        P = lib.nn.utils.parametrize
        module = source[lib.name]
        before = module.weight
        P.register_parametrization(module, "weight", symmetric(lib))
        assert P.is_parametrized(module) and P.is_parametrized(module, "weight")
        assert not P.is_parametrized(module, "bias")
        assert P.type_before_parametrizations(module) is lib.nn.Linear
        assert module.parametrizations.weight.original is before
        results = [module.weight, module(lib.t.ones(2, 3).double())]
        module.weight = lib.t.eye(3).double() * 2
        results.append(module.weight)
        P.register_parametrization(module, "weight", squared(lib))
        results.append(module.weight)
        with pytest.raises(RuntimeError, match="right_inverse"):
            module.weight = lib.t.eye(3).double()
        with P.cached():
            assert module.weight is module.weight
            with P.cached():
                kept = module.weight
            assert kept is module.weight
        assert kept is not module.weight
        results += [repr(module), list(module.state_dict())]
        other = copy.deepcopy(module)
        with pytest.raises(RuntimeError):
            pickle.dumps(module)
        with pytest.raises(KeyError):
            module.weight = lib.nn.Parameter(lib.t.eye(3).double())
        P.remove_parametrizations(module, "weight")
        results += [module.weight, type(module).__name__, list(module.state_dict())]
        results.append([n for n, _ in module.named_parameters()])
        assert isinstance(module.weight, lib.nn.Parameter) and module.weight is before
        results.append(other.parametrizations.weight.original)
        found.append(results)
        with pytest.raises(ValueError):
            P.remove_parametrizations(module, "weight")
        with pytest.raises(ValueError):
            P.register_parametrization(module, "wheight", symmetric(lib))
    for a, b in zip(*found, strict=True):
        if isinstance(b, (str, list)):
            assert a == b
        else:
            same(a, b)


def test_copy_of_a_parametrized_module_is_its_own():
    """In PyTorch both share one class, and removing from one breaks the other."""
    P = jitgrad.nn.utils.parametrize
    module = P.register_parametrization(jitgrad.nn.Linear(3, 3), "weight", squared_ours())
    other = copy.deepcopy(module)
    P.remove_parametrizations(other, "weight")
    assert module.weight.min() >= 0 and P.is_parametrized(module)
    assert not P.is_parametrized(other) and type(other) is jitgrad.nn.Linear


def squared_ours():
    return squared(LIBS[0])


def test_several_originals_and_original_value():
    source = pair(lambda lib: lib.nn.Linear(3, 4))
    found = []
    for lib in LIBS:
        P = lib.nn.utils.parametrize
        module = P.register_parametrization(source[lib.name], "weight", outer(lib))
        results = [module.weight, *module.parameters()]
        module.weight = lib.t.ones(4, 3).double()
        results += [module.weight, module.parametrizations.weight.original1]
        with pytest.raises(ValueError):
            P.remove_parametrizations(module, "weight", leave_parametrized=False)
        target = lib.nn.Linear(3, 4).double()
        P.transfer_parametrizations_and_params(module, target)
        results.append(target.weight)
        P.remove_parametrizations(module, "weight")
        results.append(module.weight)
        assert isinstance(module.weight, lib.nn.Parameter)
        plain = P.register_parametrization(lib.nn.Linear(2, 2).double(), "weight", squared(lib))
        start = plain.parametrizations.weight.original.detach().clone()
        P.remove_parametrizations(plain, "weight", leave_parametrized=False)
        assert (plain.weight == start).all()
        buffered = lib.nn.BatchNorm1d(2).double()
        P.register_parametrization(buffered, "running_mean", squared(lib))
        results += list(buffered.state_dict().values())
        found.append(results)
    for a, b in zip(*found, strict=True):
        same(a, b)


def changed(lib, shape=False, dtype=False, none=False, inverse=None):
    class Changed(lib.nn.Module):
        def forward(self, x):
            x = x[:1] if shape else x
            return None if none else x.float() if dtype else x

    made = Changed()
    if inverse:
        type(made).right_inverse = lambda self, x: inverse(x)
    return made


BAD = {
    "shape": lambda lib: changed(lib, shape=True),
    "dtype": lambda lib: changed(lib, dtype=True),
    "nothing": lambda lib: changed(lib, none=True),
    "inverse": lambda lib: changed(lib, inverse=lambda x: 3),
    "inverse dtype": lambda lib: changed(lib, inverse=lambda x: x.float()),
    "inverse items": lambda lib: changed(lib, inverse=lambda x: [3]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("second", [False, True])
def test_parametrizations_that_do_not_fit(name, second):
    def code(lib):
        module = lib.nn.Linear(3, 3).double()
        P = lib.nn.utils.parametrize
        if second:
            P.register_parametrization(module, "weight", symmetric(lib))
        P.register_parametrization(module, "weight", BAD[name](lib))

    raises_alike(code)


def test_unsafe_allows_a_change():
    for lib in LIBS:
        module = lib.nn.Linear(3, 3).double()
        lib.nn.utils.parametrize.register_parametrization(
            module, "weight", changed(lib, shape=True, dtype=True), unsafe=True
        )
        assert module.weight.shape == (1, 3) and module.weight.dtype is lib.t.float32


NORMS = {
    "weight norm": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m),
    "weight norm dim": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m, dim=1),
    "weight norm whole": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m, dim=None),
    "spectral norm": lambda lib, m: lib.nn.utils.parametrizations.spectral_norm(m),
    "spectral norm dim": lambda lib, m: lib.nn.utils.parametrizations.spectral_norm(
        m, n_power_iterations=2, dim=1
    ),
    "older weight norm": lambda lib, m: lib.nn.utils.weight_norm(m),
    "older weight norm dim": lambda lib, m: lib.nn.utils.weight_norm(m, dim=1),
    "older spectral norm": lambda lib, m: lib.nn.utils.spectral_norm(m, n_power_iterations=2),
    "symmetric": lambda lib, m: m if hasattr(m, "kernel_size") else (
        lib.nn.utils.parametrize.register_parametrization(m, "weight", symmetric(lib))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_training_with_parametrizations(name):
    def build(lib):
        conv, linear = lib.nn.Conv1d(2, 3, 2), lib.nn.Linear(3, 3)
        return lib.nn.Sequential(NORMS[name](lib, conv), lib.nn.Tanh(), NORMS[name](lib, linear))

    models = pair(build)
    assert repr(models["jitgrad"]) == repr(models["torch"])

    def loss(lib, model, x):
        return model(x).square().sum() if "spectral" in name else (model(x) - 1).square().sum()

    same_training(build, [values(2, 2, 4)], loss, lr=0.02, scale=200)
    for model in models.values():
        model.eval()
    x = values(2, 2, 4)
    results = [models[lib.name](lib.t.from_numpy(x)) for lib in LIBS]
    same(*results, scale=50)


def test_norms_of_vectors_and_initial_values():
    found = []
    for lib in LIBS:
        module = lib.nn.Linear(5, 4).double()
        module.weight.data.copy_(lib.t.from_numpy(values(4, 5)))
        lib.nn.utils.parametrizations.spectral_norm(module, "bias")
        lib.nn.utils.parametrizations.weight_norm(module)
        bias = module.bias
        assert abs(float(bias.detach().norm()) - 1) < 1e-12
        found.append([module.weight, module.parametrizations.weight.original0])
        big = lib.nn.utils.parametrizations.spectral_norm(lib.nn.Linear(6, 5).double())
        largest = np.linalg.svd(numpy(big.weight))[1][0]
        assert abs(largest - 1) < 0.05
    for a, b in zip(*found, strict=True):
        same(a, b, scale=4)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_norms_by_hook():
    """State, the weight as an attribute, removal."""
    found = []
    for lib in LIBS:
        utils, module = lib.nn.utils, lib.nn.Linear(5, 4).double()
        module.weight.data.copy_(lib.t.from_numpy(values(4, 5)))
        module.bias.data.zero_()
        utils.weight_norm(module)
        results = [list(module.state_dict()), repr(module), module.weight, module.weight_g]
        assert not isinstance(module.weight, lib.nn.Parameter) and module.weight.requires_grad
        utils.remove_weight_norm(module)
        results += [list(module.state_dict()), module.weight]
        utils.weight_norm(module, dim=None)
        results += [module.weight_g]
        utils.remove_weight_norm(module)
        utils.spectral_norm(module, n_power_iterations=20)
        results += [sorted(module.state_dict()), repr(module)]
        for _ in range(40):
            module(lib.t.ones(1, 5).double())
        results.append(module.weight)
        module.eval()
        results.append(module(lib.t.ones(1, 5).double()))
        utils.remove_spectral_norm(module)
        results += [list(module.state_dict()), module.weight]
        assert isinstance(module.weight, lib.nn.Parameter)
        found.append(results)
    for a, b in zip(*found, strict=True):
        if isinstance(b, (str, list)):
            assert a == b
        else:
            same(a, b, scale=1e5)  # the singular vectors began at random


def test_two_forwards_before_backward():
    """As in adversarial training: the power method moves on between them."""
    source = pair(lambda lib: lib.nn.Linear(3, 3))
    start = [values(3, seed=s) for s in (4, 5)]
    found = []
    for lib in LIBS:
        module = lib.nn.utils.spectral_norm(source[lib.name])
        for name, value in zip(("weight_u", "weight_v"), start, strict=True):
            getattr(module, name).copy_(lib.t.from_numpy(value / np.linalg.norm(value)))
        x = lib.t.from_numpy(values(2, 3))
        (module(x).sum() - module(2 * x).square().sum()).backward()
        found.append([p.grad for p in module.parameters()])
    for a, b in zip(*found, strict=True):
        same(a, b, scale=50)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_state_of_the_older_weight_norm_loads_into_the_newer():
    for lib in LIBS:
        old, new = (lib.nn.Sequential(lib.nn.Linear(3, 2)) for _ in range(2))
        lib.nn.utils.weight_norm(old[0])
        lib.nn.utils.parametrizations.weight_norm(new[0])
        assert sorted(old.state_dict()) == ["0.bias", "0.weight_g", "0.weight_v"]
        keys = new.load_state_dict(old.state_dict())
        assert not keys.missing_keys and not keys.unexpected_keys
        assert lib.t.equal(new[0].weight, old[0].weight)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_place_of_functional_call():
    for lib in LIBS:
        linear, x = lib.nn.Linear(2, 2), lib.t.ones(1, 2)
        given = {"weight": lib.t.eye(2), "bias": lib.t.zeros(2)}
        assert lib.nn.utils.stateless.functional_call(linear, given, x).tolist() == [[1.0, 1.0]]


def twice(norm, lib):
    module = lib.nn.Linear(2, 2)
    for _ in range(2):
        norm(module)


BAD_NORMS = {
    "older twice": lambda lib, P: twice(lib.nn.utils.spectral_norm, lib),
    "older weight norm twice": lambda lib, P: twice(lib.nn.utils.weight_norm, lib),
    "older removed": lambda lib, P: lib.nn.utils.remove_weight_norm(lib.nn.Linear(2, 2)),
    "older spectral removed": lambda lib, P: lib.nn.utils.remove_spectral_norm(lib.nn.Linear(2, 2)),
    "older iterations": lambda lib, P: lib.nn.utils.spectral_norm(
        lib.nn.Linear(2, 2), n_power_iterations=0
    ),
    "name": lambda lib, P: P.spectral_norm(lib.nn.Linear(2, 2), "nothing"),
    "dim": lambda lib, P: P.spectral_norm(lib.nn.Linear(2, 2), dim=2),
    "iterations": lambda lib, P: P.spectral_norm(lib.nn.Linear(2, 2), n_power_iterations=0),
    "no module": lambda lib, P: lib.nn.utils.skip_init(int),
    "no device": lambda lib, P: lib.nn.utils.skip_init(lib.nn.Sequential),
    "fuse training": lambda lib, P: lib.nn.utils.fuse_conv_bn_eval(
        lib.nn.Conv1d(1, 1, 1), lib.nn.BatchNorm1d(1)
    ),
    "fuse statistics": lambda lib, P: lib.nn.utils.fuse_conv_bn_eval(
        lib.nn.Conv1d(1, 1, 1).eval(), lib.nn.BatchNorm1d(1, track_running_stats=False).eval()
    ),
    "fuse features": lambda lib, P: lib.nn.utils.fuse_linear_bn_eval(
        lib.nn.Linear(2, 3).eval(), lib.nn.BatchNorm1d(2).eval()
    ),
}


@pytest.mark.parametrize("name", BAD_NORMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD_NORMS[name](lib, lib.nn.utils.parametrizations))


def test_cached_inside_and_around_compiled_code():
    P = jitgrad.nn.utils.parametrize
    cell = jitgrad.nn.RNNCell(3, 3)
    P.register_parametrization(cell, "weight_hh", squared_ours())

    def run(x):
        h = jitgrad.zeros(2, 3)
        with P.cached():
            for _ in range(3):
                h = cell(x, h)
        return h

    compiled = jitgrad.jit(run, fallback="error")
    once = jitgrad.jit(lambda x: cell(x), fallback="error")
    x = jitgrad.from_numpy(values(2, 3)).float()
    with jitgrad.no_grad():
        for scale in (1.0, 2.0, 3.0):
            cell.parametrizations.weight_hh.original.mul_(scale)
            assert jitgrad.allclose(compiled(x), run(x), atol=1e-6)
            with P.cached():
                kept = cell(x)
                assert jitgrad.allclose(once(x), kept, atol=1e-6)
    assert compiled.stats.hits == 2 and once.stats.hits == 2


def test_compiled_and_eager_follow_parametrization_changes():
    """Registering after compiling is seen."""
    P = jitgrad.nn.utils.parametrize
    module = jitgrad.nn.Linear(3, 3)
    compiled = jitgrad.jit(lambda x: module(x), fallback="error")
    x = jitgrad.ones(1, 3)
    with jitgrad.no_grad():
        for change in (None, "add", "remove"):
            if change == "add":
                P.register_parametrization(module, "weight", squared_ours())
            if change == "remove":
                P.remove_parametrizations(module, "weight", leave_parametrized=False)
            for _ in range(2):
                assert jitgrad.allclose(compiled(x), module(x), atol=1e-6)
