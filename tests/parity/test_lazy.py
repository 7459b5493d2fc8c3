"""Lazy layers: what they become, their state before and after, loading, copies, mistakes."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from parity.compare import LIBS, OURS, copy_parameters, raises_alike, same

MAKE = {
    "LazyLinear": ({"out_features": 4}, (2, 3)),
    "LazyConv1d": ({"out_channels": 4, "kernel_size": 2}, (2, 6, 5)),
    "LazyConv2d": ({"out_channels": 4, "kernel_size": 2, "groups": 2, "bias": False}, (2, 6, 5, 4)),
    "LazyConv3d": ({"out_channels": 4, "kernel_size": 1, "padding": 1}, (6, 2, 2, 3)),
    "LazyConvTranspose1d": ({"out_channels": 4, "kernel_size": 2, "stride": 2}, (2, 6, 5)),
    "LazyConvTranspose2d": ({"out_channels": 4, "kernel_size": 2, "groups": 2}, (6, 5, 4)),
    "LazyConvTranspose3d": ({"out_channels": 4, "kernel_size": 1}, (2, 6, 2, 2, 3)),
    "LazyBatchNorm1d": ({}, (3, 5)), "LazyBatchNorm2d": ({"affine": False}, (3, 5, 2, 2)),
    "LazyBatchNorm3d": ({"track_running_stats": False}, (3, 5, 2, 2, 1)),
    "LazyInstanceNorm1d": ({"affine": True}, (3, 5, 4)),
    "LazyInstanceNorm2d": ({"momentum": 0.3}, (3, 5, 2, 2)),
    "LazyInstanceNorm3d": ({"bias": False}, (3, 5, 2, 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKE)
def test_lazy(name):
    options, shape = MAKE[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    ours, theirs = modules = [getattr(lib.nn, name)(**options) for lib in LIBS]
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    signatures = [inspect.signature(type(m)).parameters.values() for m in modules]
    assert [(p.name, p.default) for p in signatures[0]] == [
        (p.name, p.default) for p in signatures[1]
    ]
    kept = [list(m.parameters()) for m in modules]
    copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    for lib, m in zip(LIBS, modules, strict=True):
        assert m.has_uninitialized_params() == bool(list(m.state_dict()))
        m(lib.t.from_numpy(x))
        assert type(m).__name__ == name[4:]
        assert not m._forward_pre_hooks and not m._load_state_dict_pre_hooks
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    for m, before in zip(modules, kept, strict=True):
        assert all(a is b for a, b in zip(m.parameters(), before, strict=True))
    copy_parameters(theirs, ours)
    for m in modules:
        m.eval()
    y = [m(lib.t.from_numpy(x)) for lib, m in zip(LIBS, modules, strict=True)]
    same(*y, scale=30)
    for other in copies:
        assert type(other).__name__ == name
        if list(ours.state_dict()):
            other.load_state_dict(ours.state_dict())
        other.eval()
        same(other(OURS.t.from_numpy(x)), y[1], scale=30)
        same(other(OURS.t.from_numpy(x)), y[1], scale=30)


def test_a_lazy_network_trains():
    """The optimizer has the parameters before they have shapes; then the step compiles."""
    for lib in LIBS:
        lib.t.manual_seed(0)
        nn = lib.nn
        net = nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
        )
        net.double()
        optimizer = lib.optim.SGD(net.parameters(), lr=0.1)
        x = lib.t.from_numpy(np.random.default_rng(0).standard_normal((8, 2, 6, 6)))

        def step(x, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = lib.t.jit(step, fallback="error") if lib is OURS else step
        losses = [float(run(x)) for _ in range(6)]  # the first call, which is not recorded, too
        assert net[0].weight.dtype is lib.t.float64 and net[4].in_features == 64
        assert losses[-1] < losses[0]
        if lib is OURS:
            assert run.stats.hits >= 3 and run.stats.fallbacks == 0


def test_uninitialized_parameters():
    for lib in LIBS:
        p = lib.nn.UninitializedParameter(dtype=lib.t.float64)
        assert repr(p) == "<UninitializedParameter>" and isinstance(p, lib.nn.Parameter)
        assert p.dtype is lib.t.float64 and p.requires_grad
        with pytest.raises(RuntimeError, match="Can't access the shape"):
            assert p.shape
        with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
            p + 1
        for size in (p.numel, p.nelement):
            with pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"):
                size()
        p.materialize((2, 3))
        assert type(p) is lib.nn.Parameter and tuple(p.shape) == (2, 3)
        assert p.dtype is lib.t.float64 and p.requires_grad and p.is_leaf
        b = lib.nn.UninitializedBuffer()
        b.materialize((2,))
        assert type(b) is lib.t.Tensor and b.dtype is lib.t.float32 and not b.requires_grad
        lazy = lib.nn.LazyLinear(2)
        lazy.half()
        assert lazy.weight.dtype is lib.t.float16
        lazy.load_state_dict(lib.nn.LazyLinear(2).state_dict())
        assert lazy.has_uninitialized_params()


BAD = {
    "into plain": lambda lib: lib.nn.Linear(2, 2).load_state_dict(
        lib.nn.LazyLinear(2).state_dict()
    ),
    "rank": lambda lib: lib.nn.LazyConv2d(2, 2)(lib.t.ones(2, 2)),
    "groups": lambda lib: lib.nn.LazyConv2d(2, 2, groups=2)(lib.t.ones(1, 3, 4, 4)),
    "norm rank": lambda lib: lib.nn.LazyBatchNorm1d()(lib.t.ones(2, 3, 4, 4)),
    "other size": lambda lib: [
        m := lib.nn.LazyLinear(2), m.load_state_dict(lib.nn.Linear(3, 2).state_dict()),
        m(lib.t.ones(1, 4)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name])
