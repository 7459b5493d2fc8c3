"""Modules: names, order and shapes of state, hooks, containers, a whole training run."""

import copy

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, copy_parameters, numpy, raises_alike, same, torch


def net(lib):
    """A module of each kind, nested, with a shared layer."""
    nn = lib.nn

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(channels)
            self.scale = nn.Parameter(lib.t.ones(1))
            self.register_buffer("kept", lib.t.zeros(2))
            self.register_buffer("lost", lib.t.zeros(2), persistent=False)

        def forward(self, x):
            return x + self.scale * lib.F.relu(self.norm(self.conv(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.MaxPool2d(2))
            self.blocks = nn.ModuleList([Block(4), Block(4)])
            self.heads = nn.ModuleDict({"a": nn.Linear(36, 5), "b": nn.Linear(36, 5)})
            self.norm = nn.LayerNorm(36)
            self.extra = nn.ParameterList([lib.t.zeros(3), lib.t.zeros(2)])
            self.same = self.heads["a"]

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            x = self.norm(x.flatten(1))
            return self.heads["a"](x) + self.heads["b"](x) * 0.5

    return Net()


def test_names_shapes_and_repr():
    ours, theirs = net(OURS), net(THEIRS)
    a, b = ours.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    assert [tuple(v.shape) for v in a.values()] == [tuple(v.shape) for v in b.values()]
    for method in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        assert [n for n, _ in getattr(ours, method)()] == [n for n, _ in getattr(theirs, method)()]
    assert repr(ours.stem) == repr(theirs.stem) and repr(ours.norm) == repr(theirs.norm)
    assert repr(ours.heads) == repr(theirs.heads)


def test_training_run():
    """Same start, same batches: losses and all state agree over 8 steps, then in evaluation."""
    theirs = net(THEIRS).double()
    ours = net(OURS).double()
    assert not any(copy_parameters(theirs, ours))
    rng = np.random.default_rng(0)
    optimizers = [
        lib.optim.AdamW(m.parameters(), lr=1e-2) for lib, m in ((OURS, ours), (THEIRS, theirs))
    ]
    for _ in range(8):
        x, y = rng.standard_normal((8, 1, 8, 8)), rng.integers(0, 5, 8)
        losses = []
        for lib, model, optimizer in zip(LIBS, (ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            loss = lib.F.cross_entropy(model(lib.t.from_numpy(x)), lib.t.from_numpy(y))
            loss.backward()
            optimizer.step()
            losses.append(loss)
        same(*losses, scale=1e4)
    for key, value in theirs.state_dict().items():
        same(ours.state_dict()[key], value, key, scale=1e6)
    ours.eval(), theirs.eval()
    same(ours(OURS.t.from_numpy(x)), theirs(torch.from_numpy(x)), scale=1e6)


def test_hooks_and_their_order():
    logs = []
    for lib in LIBS:
        log = []
        m = lib.nn.Linear(2, 2)
        with lib.t.no_grad():
            m.weight.fill_(1.0)
            m.bias.fill_(0.0)
        m.register_forward_pre_hook(lambda m, a, log=log: log.append("pre"))
        m.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
        handle = m.register_forward_hook(lambda m, a, y, log=log: log.append("post"))
        m.register_forward_hook(lambda m, a, y: y + 1)
        m.register_forward_hook(lambda m, a, y, log=log: log.append("first"), prepend=True)
        m.register_forward_hook(lambda m, a, k, y, log=log: log.append(len(k)), with_kwargs=True)
        log.append(numpy(m(lib.t.ones(1, 2))).tolist())
        handle.remove()
        log.append(numpy(m(lib.t.ones(1, 2))).tolist())
        logs.append(log)
    assert logs[0] == logs[1]


def test_replaced_attributes_keep_their_place():
    orders = []
    for lib in LIBS:
        m = net(lib)
        m.norm.weight = lib.nn.Parameter(lib.t.zeros(36))
        m.stem = lib.nn.Linear(2, 2)
        m.blocks[0] = lib.nn.Linear(2, 2)
        m.blocks[1].kept = lib.t.ones(2)
        m.norm.bias = None
        m.later = lib.nn.Linear(1, 1)
        m.plain = 3
        del m.same
        orders.append(list(m.state_dict()))
    assert orders[0] == orders[1]


def test_containers():
    found = []
    for lib in LIBS:
        nn = lib.nn
        seq = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3), nn.ReLU())
        names = [list(seq[1:].state_dict()), list(seq[:3].state_dict())]
        del seq[1]
        names.append(list(seq.state_dict()))
        seq.append(nn.Linear(3, 4))
        seq.insert(0, nn.ReLU())
        names += [list(seq.state_dict()), len(seq), type(seq[-1]).__name__]
        listed = nn.ModuleList([nn.Linear(1, 1)])
        listed.insert(0, nn.ReLU())
        listed.extend([nn.Linear(2, 2)])
        names += [list(listed.state_dict()), len(listed[1:])]
        named = nn.ModuleDict({"x": nn.Linear(1, 1)})
        named["y"] = nn.ReLU()
        named.update({"z": nn.Linear(1, 1)})
        names += [list(named), "y" in named, list(named.state_dict())]
        named.pop("x")
        names.append(list(named.keys()))
        params = nn.ParameterDict({"k": lib.t.ones(2)})
        names.append(list(params.state_dict()))
        found.append(names)
    assert found[0] == found[1]


def test_conversion_and_copies():
    for lib in LIBS:
        m = net(lib)
        weight = m.norm.weight
        m.double()
        assert m.norm.weight is weight and weight.dtype is lib.t.float64
        assert m.blocks[0].norm.num_batches_tracked.dtype is lib.t.int64
        other = copy.deepcopy(m)
        assert list(other.state_dict()) == list(m.state_dict())
        assert other.same is other.heads["a"] and other.same is not m.same
        with lib.t.no_grad():
            other.norm.weight.add_(1)
        assert (m.norm.weight == 1).all() and (other.norm.weight == 2).all()
        m.requires_grad_(False)
        assert not any(p.requires_grad for p in m.parameters())
        m.eval()
        assert not m.blocks[1].norm.training


BAD = {
    "missing": lambda lib: lib.nn.Linear(2, 2).load_state_dict({"weight": lib.t.ones(2, 2)}),
    "unexpected": lambda lib: lib.nn.Linear(2, 2, bias=False).load_state_dict(
        {"weight": lib.t.ones(2, 2), "w": lib.t.ones(1)}
    ),
    "size": lambda lib: lib.nn.Linear(2, 2, bias=False).load_state_dict(
        {"weight": lib.t.ones(2, 3)}
    ),
    "no dict": lambda lib: lib.nn.Linear(2, 2).load_state_dict([1]),
    "name": lambda lib: lib.nn.Linear(2, 2).register_buffer("a.b", None),
    "taken": lambda lib: lib.nn.Linear(2, 2).register_buffer("forward", None),
    "parameter": lambda lib: setattr(lib.nn.Linear(2, 2), "weight", lib.t.ones(2, 2)),
    "to int": lambda lib: lib.nn.Linear(2, 2).to(lib.t.int64),
    "no forward": lambda lib: lib.nn.Module()(1),
    "attribute": lambda lib: lib.nn.Linear(2, 2).nothing,
    "child": lambda lib: lib.nn.Linear(2, 2).add_module("x", 3),
    "index": lambda lib: lib.nn.Sequential(lib.nn.ReLU())[1],
    "int parameter": lambda lib: lib.nn.Parameter(lib.t.ones(2, dtype=lib.t.int64)),
    "train": lambda lib: lib.nn.ReLU().train("yes"),
    "submodule": lambda lib: net(lib).get_submodule("stem.9"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    ours, theirs = raises_alike(BAD[name])
    if name in ("missing", "unexpected"):
        assert " ".join(ours.split()) == " ".join(theirs.split())


def test_initial_values_have_the_same_distribution():
    makers = [
        lambda nn: nn.Linear(400, 300), lambda nn: nn.Conv2d(20, 60, 5, groups=2),
        lambda nn: nn.Embedding(300, 100, padding_idx=3),
    ]  # fmt: skip
    for make in makers:
        ours, theirs = make(OURS.nn), make(THEIRS.nn)
        for (name, a), (_, b) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            a, b = numpy(a), numpy(b)
            assert abs(a.std() / b.std() - 1) < 0.12, name
            if "weight" in name and not isinstance(theirs, torch.nn.Embedding):
                assert abs(np.abs(a).max() / np.abs(b).max() - 1) < 0.01
            assert abs(a.mean()) < 4 * b.std() / np.sqrt(a.size) + 1e-12
