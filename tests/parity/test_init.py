"""nn.init: exact results where nothing is drawn, distributions elsewhere, signatures, mistakes."""

import inspect

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, numpy, raises_alike, same

NAMES = [n for n in dir(THEIRS.nn.init) if n.endswith("_") and not n.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name):
    ours, theirs = (
        inspect.signature(getattr(lib.nn.init, name)).parameters.values() for lib in LIBS
    )
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


EXACT = {
    "eye": lambda lib: lib.nn.init.eye_(lib.t.empty(3, 5)),
    "eye tall": lambda lib: lib.nn.init.eye_(lib.t.empty(4, 2, dtype=lib.t.float64)),
    "dirac 1": lambda lib: lib.nn.init.dirac_(lib.t.empty(3, 4, 5)),
    "dirac 2": lambda lib: lib.nn.init.dirac_(lib.t.empty(6, 2, 3, 4), groups=2),
    "dirac 3": lambda lib: lib.nn.init.dirac_(lib.t.empty(4, 4, 1, 3, 2), 4),
    "constant": lambda lib: lib.nn.init.constant_(lib.t.empty(2, 3), 0.3),
    "ones": lambda lib: lib.nn.init.ones_(lib.t.empty(2, 3)),
    "gain": lambda lib: lib.t.tensor(
        [lib.nn.init.calculate_gain(n) for n in ("tanh", "relu", "selu", "conv2d", "leaky_relu")]
        + [lib.nn.init.calculate_gain("leaky_relu", 0.3)],
        dtype=lib.t.float64,
    ),
    "fans": lambda lib: lib.t.tensor(
        lib.nn.init._calculate_fan_in_and_fan_out(lib.t.empty(6, 4, 3, 2))
        + (lib.nn.init._calculate_correct_fan(lib.t.empty(6, 4), "fan_out"),)
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(name):
    same(EXACT[name](OURS), EXACT[name](THEIRS))


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (6, 4, 2), (1, 5), (5, 1)])
def test_orthogonal(shape):
    for lib in LIBS:
        w = lib.t.empty(*shape, dtype=lib.t.float64)
        assert lib.nn.init.orthogonal_(w, gain=2.0) is w
        m = numpy(w).reshape(shape[0], -1) / 2
        gram = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)


def test_orthogonal_has_no_preferred_sign():
    OURS.t.manual_seed(0)
    total = sum(numpy(OURS.nn.init.orthogonal_(OURS.t.empty(3, 3))) for _ in range(400))
    assert np.abs(total / 400).max() < 0.12


def test_sparse():
    for lib in LIBS:
        w = lib.nn.init.sparse_(lib.t.empty(50, 40), 0.25, std=2.0)
        zeros = numpy(w) == 0
        assert (zeros.sum(0) == 13).all() and len({tuple(c) for c in zeros.T}) > 30
        assert 1.8 < numpy(w)[~zeros].std() < 2.2


def test_generator():
    for lib in LIBS:
        for name in ("uniform_", "normal_", "xavier_uniform_", "kaiming_normal_", "trunc_normal_"):
            fill = getattr(lib.nn.init, name)
            draws = [
                numpy(fill(lib.t.empty(4, 5), generator=lib.t.Generator().manual_seed(s)))
                for s in (3, 3, 4)
            ]
            assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()


def test_old_names():
    for lib in LIBS:
        for name in ("uniform", "constant", "xavier_normal", "kaiming_uniform", "orthogonal"):
            w = lib.t.full((3, 4), 7.0)
            with pytest.warns(FutureWarning, match=f"nn.init.{name}_"):
                getattr(lib.nn.init, name)(w, *([1.0] if name == "constant" else []))
            assert (w != 7).all()


BAD = {
    "eye": lambda lib: lib.nn.init.eye_(lib.t.empty(3)),
    "dirac": lambda lib: lib.nn.init.dirac_(lib.t.empty(3, 3)),
    "dirac groups": lambda lib: lib.nn.init.dirac_(lib.t.empty(3, 3, 3), 2),
    "orthogonal": lambda lib: lib.nn.init.orthogonal_(lib.t.empty(3)),
    "sparse": lambda lib: lib.nn.init.sparse_(lib.t.empty(3), 0.1),
    "fan": lambda lib: lib.nn.init.xavier_uniform_(lib.t.empty(3)),
    "mode": lambda lib: lib.nn.init.kaiming_uniform_(lib.t.empty(3, 3), mode="fan"),
    "gain": lambda lib: lib.nn.init.calculate_gain("sine"),
    "slope": lambda lib: lib.nn.init.calculate_gain("leaky_relu", "a"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name])
