"""nn.utils.parametrizations.orthogonal by Householder reflections."""

import numpy as np
import pytest
from parity.compare import LIBS, copy_parameters, numpy, raises_alike, same
from parity.training import pair, same_training

import jitgrad


def build(shape, trivial):
    def made(lib):
        module = lib.nn.Linear(shape[1], shape[0], bias=False).double()
        return lib.nn.utils.parametrizations.orthogonal(
            module, orthogonal_map="householder", use_trivialization=trivial
        )

    return made


def defect(weight):
    w = numpy(weight)
    w = w.T if w.shape[0] < w.shape[1] else w
    return np.abs(w.T @ w - np.eye(w.shape[1])).max()


@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (1, 4), (4, 1)])
def test_values_and_training(shape, trivial):
    """From PyTorch's state: the same weight, which stays orthogonal while it is trained."""
    models = pair(build(shape, trivial))
    assert repr(models["jitgrad"]) == repr(models["torch"])
    same(models["jitgrad"].weight, models["torch"].weight, scale=50)
    x = np.random.default_rng(0).standard_normal((2, shape[1]))
    same_training(
        build(shape, trivial), [x], lambda lib, m, x: (m(x) - 1).square().sum(), lr=0.05, scale=500
    )
    assert defect(models["jitgrad"].weight) < 1e-13


@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_assigning_and_registering(shape, trivial):
    """Without the completion at random, what PyTorch computes from one value is what we do."""
    value = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0][:5, :5]
    value = np.linalg.qr(value)[0][: shape[0], : shape[1]]
    start = np.random.default_rng(2).standard_normal(shape)
    found = []
    for lib in LIBS:
        module = lib.nn.Linear(shape[1], shape[0], bias=False).double()
        module.weight.data.copy_(lib.t.from_numpy(start))
        lib.nn.utils.parametrizations.orthogonal(
            module, orthogonal_map="householder", use_trivialization=trivial
        )
        results = [module.weight]
        module.weight = lib.t.from_numpy(value.copy())
        found.append([*results, module.weight])
        assert defect(module.weight) < 1e-13
    for a, b in zip(*found, strict=True):
        same(a, b, scale=50)


def test_batches_and_default():
    module = jitgrad.nn.Module()
    module.weight = jitgrad.nn.Parameter(jitgrad.randn(2, 4, 3, dtype=jitgrad.float64))
    jitgrad.nn.utils.parametrizations.orthogonal(module)
    for matrix in module.weight:
        assert defect(matrix) < 1e-13
    other = jitgrad.nn.Linear(3, 4).double()
    jitgrad.nn.utils.parametrizations.orthogonal(other)
    theirs = build((4, 3), True)(LIBS[1])
    copy_parameters(theirs, build((4, 3), True)(LIBS[0]))
    assert sorted(other.state_dict())[1:] == sorted(theirs.state_dict())


BAD = {
    "vector": lambda P, lib: P.orthogonal(lib.nn.Linear(2, 2), "bias"),
    "map": lambda P, lib: P.orthogonal(lib.nn.Linear(2, 2), orthogonal_map="givens"),
    "name": lambda P, lib: P.orthogonal(lib.nn.Linear(2, 2), "wheight"),
    "shape": lambda P, lib: setattr(
        P.orthogonal(lib.nn.Linear(2, 3), orthogonal_map="householder"), "weight", lib.t.ones(2, 2)
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(lambda lib: BAD[name](lib.nn.utils.parametrizations, lib))


@pytest.mark.parametrize("name", ["matrix_exp", "cayley"])
def test_maps_that_are_not_there(name):
    with pytest.raises(NotImplementedError, match=f"{name}.*docs/limits.md.*householder"):
        jitgrad.nn.utils.parametrizations.orthogonal(jitgrad.nn.Linear(2, 2), orthogonal_map=name)
