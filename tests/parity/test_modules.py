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


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_what_copies_keep(copier):
    """.grad and attributes: of a parameter, of a plain leaf, of a module's parameter."""
    found = []
    for lib in LIBS:
        for x in (lib.nn.Parameter(lib.t.ones(3)), lib.t.ones(3, requires_grad=True)):
            x.tag = "mine"
            (x * 2).sum().backward()
            y = copier(x)
            found.append((lib.name, y.grad is None, hasattr(y, "tag"), y.requires_grad))
            assert x.grad.tolist() == [2, 2, 2]
        layer = lib.nn.Linear(2, 2)
        layer(lib.t.ones(1, 2)).sum().backward()
        found.append((lib.name, copier(layer).weight.grad is None))
    half = len(found) // 2
    assert [f[1:] for f in found[:half]] == [f[1:] for f in found[half:]]


def test_state_dict_hooks_and_versions():
    """Pre-, post- and load hooks, extra state, _metadata, overridden methods, in their order."""
    logs = []
    for lib in LIBS:
        log = []

        class Counter(lib.nn.Module):
            _version = 3

            def __init__(self, lib=lib):
                super().__init__()
                self.count = 1
                self.weight = lib.nn.Parameter(lib.t.ones(2))

            def get_extra_state(self):
                return {"count": self.count}

            def set_extra_state(self, state):
                self.count = state["count"]

            def _load_from_state_dict(self, state, prefix, metadata, *rest, log=log):
                log.append(("load", prefix, metadata.get("version"), sorted(state)))
                super()._load_from_state_dict(state, prefix, metadata, *rest)

        def make(nn=lib.nn, cls=Counter):
            return nn.Sequential(cls(), nn.Sequential(cls(), nn.BatchNorm1d(2)))

        net, other = make(), make()
        net[0].count = 7
        net.register_state_dict_pre_hook(lambda m, p, k, log=log: log.append(("pre", p, k)))
        net[1][0].register_state_dict_post_hook(
            lambda m, s, p, meta, log=log: log.append(("post", sorted(s), p, meta))
        )
        net[1][0]._register_state_dict_hook(lambda m, s, p, meta: s.update(added=1))
        state = net.state_dict()
        log += [list(state), {k: dict(v) for k, v in state._metadata.items()}]
        other[0].register_load_state_dict_pre_hook(
            lambda m, s, p, *rest, log=log: log.append((type(m).__name__, p, len(rest)))
        )
        other[1].register_load_state_dict_post_hook(
            lambda m, keys, log=log: (log.append(list(keys.unexpected_keys)), None)[1]
        )
        other.register_load_state_dict_post_hook(lambda m, keys: keys.unexpected_keys.clear())
        log.append(str(other.load_state_dict(state)))
        log.append(other[0].count)
        del state["0._extra_state"], state["1.1.num_batches_tracked"], state["added"]
        keys = make().load_state_dict(state, strict=False)
        log.append((keys.missing_keys, keys.unexpected_keys, repr(keys)))
        log.append(list(net.state_dict(prefix="x.", keep_vars=True)))
        log.append(net.state_dict(keep_vars=True)["0.weight"] is net[0].weight)
        logs.append(log)
    assert logs[0] == logs[1]


def test_loading_an_old_batch_norm():
    for lib in LIBS:
        m = lib.nn.BatchNorm1d(2)
        state = {k: v for k, v in m.state_dict().items() if k != "num_batches_tracked"}
        m.load_state_dict(state)  # a plain dict: no version
        with pytest.raises(RuntimeError, match="Missing key.*num_batches_tracked"):
            state = m.state_dict()
            del state["num_batches_tracked"]
            m.load_state_dict(state)


def test_assign():
    for lib in LIBS:
        m = lib.nn.Linear(2, 2).double()
        w = lib.t.ones(2, 2)
        b = lib.nn.Parameter(lib.t.ones(2))
        m.bias.requires_grad_(False)
        m.load_state_dict({"weight": w, "bias": b}, assign=True)
        assert m.weight.dtype is lib.t.float32 and m.weight.data_ptr() == w.data_ptr()
        assert m.bias is b and not b.requires_grad and m.weight.requires_grad


@pytest.mark.parametrize("kind", ["full", "replacing", "no input", "legacy"])
def test_backward_hooks(kind):
    logs = []
    for lib in LIBS:
        log = []

        class Two(lib.nn.Module):
            def forward(self, x, k, y):
                return x * y, x * 2 + k

        m, n = Two(), lib.nn.Linear(2, 2)
        with lib.t.no_grad():
            n.weight.fill_(0.5)
            n.bias.fill_(1.0)

        def text(grads):
            return [None if g is None else numpy(g).tolist() for g in grads]

        def note(m, gi, go, log=log, text=text):
            log.append((type(m).__name__, text(gi), text(go)))

        def double(m, gi, go):
            return tuple(None if g is None else g * 2 for g in gi)

        x = lib.t.tensor([[1.0, 2.0]], requires_grad=kind != "no input")
        y = lib.t.tensor([[3.0, 5.0]])
        if kind == "legacy":
            n.register_backward_hook(lambda m, gi, go, log=log, text=text: log.append(text(go)))
        else:
            for hooked in (m, n):
                hooked.register_full_backward_pre_hook(
                    lambda m, go, log=log, text=text: log.append(("pre", text(go)))
                )
                handle = hooked.register_full_backward_hook(note)
                hooked.register_full_backward_hook(note, prepend=True)
                handle.remove()
        if kind == "replacing":
            m.register_full_backward_hook(double)
            n.register_full_backward_pre_hook(lambda m, go: (go[0] * 10,))
        a, b = m(n(x), 3, y)
        (a.sum() + (b * b).sum()).backward()
        log.append(text([x.grad, n.weight.grad, n.bias.grad, y.grad]))
        logs.append(log)
    assert logs[0] == logs[1]


def test_hooks_that_are_always_called():
    for lib in LIBS:

        class Fails(lib.nn.Module):
            def forward(self, x):
                raise KeyError(x)

        log, m = [], Fails()
        m.register_forward_hook(lambda m, a, y, log=log: log.append(("never", y)))
        m.register_forward_hook(
            lambda m, a, k, y, log=log: log.append(("always", a, y)),
            always_call=True, with_kwargs=True,
        )  # fmt: skip
        with pytest.raises(KeyError):
            m(1)
        assert log == [("always", (1,), None)]


def test_containers_of_parameters():
    found = []
    for lib in LIBS:
        nn, t = lib.nn, lib.t
        p = nn.ParameterList([t.ones(2, 3), nn.Parameter(t.zeros(())), "text"])
        p.append(t.ones(1))
        p += [t.zeros(2)]
        names = [[n for n, _ in p.named_parameters()], len(p), len(p[1:3]), repr(p), p[2]]
        p[-1] = t.ones(4)
        names += [list(p[4].shape), type(p[4]).__name__]
        d = nn.ParameterDict({"b": t.ones(2), "a": t.zeros(1)})
        names += [list(d), list(d.state_dict()), repr(d), "a" in d]
        d["c"] = nn.Parameter(t.ones(3))
        e = d | nn.ParameterDict({"z": t.ones(1)})
        names += [list(e), d.get("q", 5), d.setdefault("a", 3) is d["a"], list(reversed(d))]
        names += [d.popitem()[0], type(d.pop("a")).__name__, list(d.keys()), len(d.copy())]
        e.update([("k", t.ones(1))])
        names += [list(e), list(e.fromkeys(["u", "v"]).keys())]
        e.clear()
        names += [len(e), list(e.state_dict())]
        found.append([str(n).replace("jitgrad.", "torch.") for n in names])
    assert found[0] == found[1]


def test_operators_and_text_of_containers():
    found = []
    for lib in LIBS:
        nn = lib.nn
        a = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
        b = a + nn.Sequential(nn.Linear(2, 2))
        b += a
        c = a * 2
        c *= 2
        ml = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), a, a, nn.ReLU()])
        ml += [nn.Tanh()]
        sum_ = ml + [nn.Tanh()]
        found.append(
            [repr(x) for x in (b, c, 2 * a, ml, sum_, nn.ModuleList(), nn.ModuleDict({"a": a}))]
            + [c[0] is c[2], len(list(c.parameters()))]
        )
    assert found[0] == found[1]


def test_several_base_classes():
    for lib in LIBS:

        class Named:
            def __init__(self, name):
                self.name = name

        class Both(lib.nn.Module, Named):
            call_super_init = True

            def __init__(self, lib=lib):
                super().__init__(name="both")
                self.layer = lib.nn.Linear(1, 1)

        m = Both()
        assert m.name == "both" and len(list(m.parameters())) == 2


def test_submodules_and_attributes():
    found = []
    for lib in LIBS:
        m = net(lib)
        m.set_submodule("stem.1", lib.nn.ReLU())
        m.set_submodule("stem.extra", lib.nn.Tanh())
        names = [type(m.get_submodule("stem.1")).__name__, len(m.stem)]
        names += [tuple(m.get_parameter("blocks.0.scale").shape)]
        names += [tuple(m.get_buffer("blocks.1.lost").shape)]
        names += [{"stem", "norm", "extra", "training"} <= set(dir(m)), "0" in dir(m.blocks)]
        names += [[n for n, _ in m.named_parameters(prefix="net", recurse=False)]]
        names += [[n for n, _ in m.named_parameters(remove_duplicate=False)]]
        names += [[n for n, _ in m.named_buffers(prefix="b")]]
        names += [[n for n, _ in m.named_modules(prefix="m", remove_duplicate=False)]]
        m.half()
        names += [str(m.stem[0].weight.dtype).split(".")[1], m._version, m._get_name()]
        m.to_empty(device="cpu")
        names += [str(m.stem[0].weight.dtype).split(".")[1]]
        m.type(lib.t.float64)
        names += [str(m.stem[0].weight.dtype).split(".")[1]]
        found.append(names)
    assert found[0] == found[1]


BAD = {
    "arguments": lambda lib: lib.nn.Module(1),
    "keywords": lambda lib: lib.nn.Module(width=1),
    "set nothing": lambda lib: net(lib).set_submodule("", lib.nn.ReLU()),
    "set no module": lambda lib: net(lib).set_submodule("stem", 3),
    "set strict": lambda lib: net(lib).set_submodule("stem.new", lib.nn.ReLU(), strict=True),
    "set over": lambda lib: net(lib).set_submodule("norm.eps", lib.nn.ReLU()),
    "get_parameter": lambda lib: net(lib).get_parameter("norm.eps"),
    "get_buffer": lambda lib: net(lib).get_buffer("norm.weight"),
    "get none": lambda lib: net(lib).get_parameter("norm.none"),
    "add": lambda lib: lib.nn.Sequential() + [lib.nn.ReLU()],
    "times": lambda lib: lib.nn.Sequential() * 0,
    "insert": lambda lib: lib.nn.Sequential().insert(0, 3),
    "insert far": lambda lib: lib.nn.Sequential().insert(2, lib.nn.ReLU()),
    "extend": lambda lib: lib.nn.ModuleList(3),
    "update": lambda lib: lib.nn.ModuleDict([(1, 2, 3)]),
    "update number": lambda lib: lib.nn.ModuleDict(3),
    "list index": lambda lib: lib.nn.ParameterList([lib.t.ones(1)])[1],
    "list of a tensor": lambda lib: lib.nn.ParameterList(lib.t.ones(1)),
    "list call": lambda lib: lib.nn.ParameterList()(1),
    "dict key": lambda lib: lib.nn.ParameterDict()[1],
    "mixed hooks": lambda lib: [
        lib.nn.Linear(1, 1).register_backward_hook(print),
        (m := lib.nn.Linear(1, 1)).register_full_backward_hook(print),
        m.register_backward_hook(print),
    ],
    "load text": lambda lib: lib.nn.Linear(2, 2).load_state_dict({"weight": 1, "bias": "x"}),
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
        for lib in LIBS:
            lib.t.manual_seed(1)
        ours, theirs = make(OURS.nn), make(THEIRS.nn)
        for (name, a), (_, b) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            a, b = numpy(a), numpy(b)
            assert abs(a.std() / b.std() - 1) < 0.12, name
            if "weight" in name and not isinstance(theirs, torch.nn.Embedding):
                assert abs(np.abs(a).max() / np.abs(b).max() - 1) < 0.01
            assert abs(a.mean()) < 4 * b.std() / np.sqrt(a.size) + 1e-12
