"""nn.utils.prune: masks, iterated pruning, removal, training of what is left."""

import importlib

import numpy as np
import pytest
from parity.compare import LIBS, numpy, raises_alike, same
from parity.training import pair, same_training


def prune_of(lib):
    return importlib.import_module(f"{lib.t.__name__}.nn.utils.prune")


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


STEPS = {
    "identity": [lambda P, m: P.identity(m, "weight")],
    "l1": [lambda P, m: P.l1_unstructured(m, "weight", 0.3)],
    "l1 number": [lambda P, m: P.l1_unstructured(m, "weight", 5)],
    "none": [lambda P, m: P.l1_unstructured(m, "weight", 0)],
    "l1 twice": [lambda P, m: P.l1_unstructured(m, "weight", 0.3)] * 2,
    "ln": [lambda P, m: P.ln_structured(m, "weight", 0.5, 2, 0)],
    "ln inf": [lambda P, m: P.ln_structured(m, "weight", 1, float("inf"), -1)],
    "ln twice": [
        lambda P, m: P.ln_structured(m, "weight", 1, 1, 1),
        lambda P, m: P.ln_structured(m, "weight", 1, 1, 1),
    ],
    "mixed": [
        lambda P, m: P.ln_structured(m, "weight", 0.5, 2, 0),
        lambda P, m: P.l1_unstructured(m, "weight", 4),
        lambda P, m: P.identity(m, "weight"),
    ],
}


@pytest.mark.parametrize("name", STEPS)
def test_methods(name):
    source = pair(lambda lib: lib.nn.Conv1d(3, 4, 2))
    found = []
    for lib in LIBS:
        P, module = prune_of(lib), source[lib.name]
        assert not P.is_pruned(module)
        for step in STEPS[name]:
            assert step(P, module) is module
        assert P.is_pruned(lib.nn.Sequential(module))
        results = [list(module.state_dict()), module.weight, module.weight_mask]
        results += [module.weight_orig, module(lib.t.ones(1, 3, 4).double())]
        (hook,) = module._forward_pre_hooks.values()
        results.append(type(hook).__name__)
        P.remove(module, "weight")
        results += [module.weight, list(module.state_dict()), P.is_pruned(module)]
        assert isinstance(module.weight, lib.nn.Parameter)
        found.append(results)
    for a, b in zip(*found, strict=True):
        if isinstance(b, (str, list, bool)):
            assert a == b
        else:
            same(a, b, scale=4)


def test_scores_masks_and_several_parameters():
    source = pair(lambda lib: lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.Linear(4, 2)))
    found = []
    for lib in LIBS:
        P, module = prune_of(lib), source[lib.name]
        scores = lib.t.from_numpy(values(4, 3, seed=4))
        P.l1_unstructured(module[0], "weight", 0.25, importance_scores=scores)
        results = [module[0].weight]
        P.custom_from_mask(module[1], "bias", lib.t.tensor([0, 1]))
        results.append(module[1].bias)
        places = [(module[0], "weight"), (module[1], "weight")]
        P.global_unstructured(places, P.L1Unstructured, amount=0.5)
        P.global_unstructured(places, P.L1Unstructured, amount=2)
        results += [module[0].weight_mask, module[1].weight_mask]
        x = lib.t.from_numpy(values(3, 4, seed=5))
        results.append(P.L1Unstructured(amount=0.5).prune(x))
        results.append(P.LnStructured(amount=1, n=2, dim=1).prune(x, default_mask=x > 0))
        found.append(results)
    for a, b in zip(*found, strict=True):
        same(a, b)


def test_random_methods():
    for lib in LIBS:
        P, module = prune_of(lib), lib.nn.Linear(20, 10)
        P.random_unstructured(module, "weight", 0.25)
        assert numpy(module.weight_mask).sum() == 150
        P.random_structured(module, "weight", 3, dim=0)
        assert (numpy(module.weight_mask).sum(1) == 0).sum() >= 3
        assert (numpy(module.weight) == 0).mean() < 0.7


def test_training():
    """Pruned elements stay pruned."""

    def build(lib):
        lib.t.manual_seed(0)
        module = lib.nn.Linear(5, 4)
        module.weight.data.copy_(lib.t.from_numpy(values(4, 5)))
        return prune_of(lib).l1_unstructured(module, "weight", 0.4)

    same_training(build, [values(3, 5)], lambda lib, m, x: (m(x) - 1).square().sum(), lr=0.02)


BAD = {
    "amount": lambda P, lib: P.l1_unstructured(lib.nn.Linear(2, 2), "weight", 1.5),
    "negative": lambda P, lib: P.l1_unstructured(lib.nn.Linear(2, 2), "weight", -1),
    "kind": lambda P, lib: P.l1_unstructured(lib.nn.Linear(2, 2), "weight", "half"),
    "too many": lambda P, lib: P.l1_unstructured(lib.nn.Linear(2, 2), "weight", 5),
    "name": lambda P, lib: P.l1_unstructured(lib.nn.Linear(2, 2), "wheight", 1),
    "vector": lambda P, lib: P.ln_structured(lib.nn.Linear(2, 2), "bias", 1, 2, 0),
    "dim": lambda P, lib: P.ln_structured(lib.nn.Linear(2, 2), "weight", 1, 2, 2),
    "scores": lambda P, lib: P.l1_unstructured(
        lib.nn.Linear(2, 2), "weight", 1, importance_scores=lib.t.ones(3)
    ),
    "mask": lambda P, lib: P.custom_from_mask(lib.nn.Linear(2, 2), "weight", lib.t.ones(3)),
    "remove": lambda P, lib: P.remove(lib.nn.Linear(2, 2), "weight"),
    "global kind": lambda P, lib: P.global_unstructured(
        [(lib.nn.Linear(2, 2), "weight")], P.LnStructured, amount=1, n=2
    ),
    "global": lambda P, lib: P.global_unstructured(3, P.L1Unstructured, amount=1),
    "abstract": lambda P, lib: P.BasePruningMethod(),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD[name](prune_of(lib), lib))


def test_a_mistake_leaves_the_module_as_it_was():
    for lib in LIBS:
        module = lib.nn.Linear(2, 2)
        with pytest.raises(ValueError):
            prune_of(lib).l1_unstructured(module, "weight", 5)
        assert isinstance(module.weight, lib.nn.Parameter)
        assert sorted(module.state_dict()) == ["bias", "weight"]
