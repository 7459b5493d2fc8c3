"""RNN, LSTM, GRU, their cells and packed sequences: values, gradients, errors, compiled code."""

import pickle
import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, check, copy_parameters, numpy, raises_alike, same, torch
from parity.training import pair, same_training

import jitgrad

KINDS = ["RNN", "LSTM", "GRU"]


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def make(lib, name, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return getattr(lib.nn, name)(*args, **kwargs)


def flat(result):
    """Tensors in nested results; packed ones give their fields."""
    out = []
    for x in result if isinstance(result, (tuple, list)) else [result]:
        out += flat(x) if isinstance(x, (tuple, list)) else [] if x is None else [x]
    return out


def states(name, shape, projected=None):
    h = values(*shape[:-1], projected or shape[-1], seed=5)
    return (h, values(*shape, seed=6)) if name == "LSTM" else (h,)


def state(name, given):
    return None if not given else tuple(given) if name == "LSTM" else given[0]


OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"batch_first": True, "bidirectional": True},
    {"bias": False, "num_layers": 3},
]
CASES = [(name, options) for name in KINDS for options in OPTIONS]
CASES += [("RNN", {"nonlinearity": "relu", "num_layers": 2})]
CASES += [("LSTM", {"proj_size": 2, "bidirectional": True, "num_layers": 2})]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name,options", CASES, ids=str)
def test_layers(name, options, given):
    """Output, last state, gradients of parameters, input and first state."""
    models = pair(lambda lib: make(lib, name, 3, 4, **options))
    assert repr(models["jitgrad"]) == repr(models["torch"])
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    first = states(name, (rows, 2, 4), options.get("proj_size")) if given else ()

    def code(lib, x, *first):
        model = models[lib.name]
        model.zero_grad()
        return flat(model(x, state(name, first)))

    check(code, values(5, 2, 3), *first, scale=10) if not options.get("batch_first") else check(
        code, values(2, 5, 3), *first, scale=10
    )
    for a, b in zip(models["jitgrad"].parameters(), models["torch"].parameters(), strict=True):
        same(a.grad, b.grad, scale=10)


@pytest.mark.parametrize("name", KINDS)
def test_shapes(name):
    """Unbatched, one step, one sequence, no sequence, transposed input, float32."""
    models = pair(lambda lib: make(lib, name, 3, 4, bidirectional=True, batch_first=True))
    for shape in [(5, 3), (1, 1, 3), (2, 1, 3)]:
        check(lambda lib, x: flat(models[lib.name](x)), values(*shape), scale=10)
    check(lambda lib, x: flat(models[lib.name](x.transpose(0, 1))), values(5, 2, 3), scale=10)
    first = states(name, (2, 4))
    check(
        lambda lib, x, *h: flat(models[lib.name](x, state(name, h))), values(5, 3), *first, scale=10
    )
    models = pair(lambda lib: make(lib, name, 3, 4), "float32")
    check(lambda lib, x: flat(models[lib.name](x)), values(5, 2, 3).astype(np.float32), scale=10)


@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("name,options", CASES[1::2], ids=str)
def test_packed_sequences(name, options, sorted_):
    models = pair(lambda lib: make(lib, name, 3, 4, **{**options, "batch_first": False}))
    lengths = [5, 3, 3, 1] if sorted_ else [3, 5, 1, 3]
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    first = states(name, (rows, 4, 4), options.get("proj_size"))

    def code(lib, x, *first):
        pack = lib.nn.utils.rnn.pack_padded_sequence
        packed = pack(x, lengths, enforce_sorted=sorted_)
        output, end = models[lib.name](packed, state(name, first))
        padded, n = lib.nn.utils.rnn.pad_packed_sequence(output)
        assert isinstance(output, lib.nn.utils.rnn.PackedSequence)
        return flat([output.data, padded, n, end])

    check(code, values(6, 4, 3), *first, scale=10)


def test_packed_sequences_compile():
    """Lengths known to Python: packing inside the function, packed arguments, packed results."""
    model = jitgrad.nn.GRU(3, 4, bidirectional=True)
    rnn = jitgrad.nn.utils.rnn

    @jitgrad.jit(fallback="error")
    def inside(x):
        packed = rnn.pack_padded_sequence(x, [3, 5, 1], enforce_sorted=False)
        y, h = model(packed)
        (g,) = jitgrad.autograd.grad(y.data.sum() + h.sum(), x)
        return rnn.pad_packed_sequence(y)[0].detach(), h.detach(), g

    @jitgrad.jit(fallback="error")
    def through(packed):
        return model(packed)

    for seed in range(3):
        x = jitgrad.from_numpy(values(5, 3, 3, seed=seed)).float().requires_grad_()
        for a, b in zip(inside(x), inside.__wrapped__(x), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-6)
        x = x.detach()
        packed = rnn.pack_padded_sequence(x, jitgrad.tensor([5, 4, 2]))
        for a, b in zip(flat(through(packed)), flat(through.__wrapped__(packed)), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-6)
    assert inside.stats.hits == through.stats.hits == 2
    other = rnn.pack_padded_sequence(x, [4, 4, 2])  # other sizes: another specialisation
    assert through(other)[0].data.shape == (10, 8) and through.stats.traces == 2


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(bias, nonlinearity):
    for name in ("RNNCell", "LSTMCell", "GRUCell"):
        options = {"nonlinearity": nonlinearity} if name == "RNNCell" else {}
        models = pair(lambda lib, n=name, o=options: make(lib, n, 3, 4, bias=bias, **o))
        assert repr(models["jitgrad"]) == repr(models["torch"])
        for shape in [(2, 3), (3,)]:
            hidden = [values(*shape[:-1], 4, seed=s) for s in (1, 2)][: 2 if "LSTM" in name else 1]

            def code(lib, x, *h, name=name, models=models):
                given = state(name[:-4], h)
                return flat([models[lib.name](x), models[lib.name](x, given)])

            check(code, values(*shape), *hidden, scale=10)


@pytest.mark.parametrize("name", KINDS)
def test_training(name):
    class Net:
        def __new__(cls, lib):
            class Inner(lib.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.rnn = make(lib, name, 3, 4, num_layers=2, bidirectional=True)
                    self.out = lib.nn.Linear(8, 2)

                def forward(self, x):
                    y, end = self.rnn(x)
                    return self.out(y).mean() + flat(end)[0].square().sum()

            return Inner()

    same_training(Net, [values(4, 2, 3)], lambda lib, model, x: model(x))


def test_dropout_between_layers():
    for name in KINDS:
        model = (
            jitgrad.nn.LSTM(3, 50, 2, dropout=0.5)
            if name == "LSTM"
            else make(OURS, name, 3, 50, 2, dropout=0.5)
        )
        x = jitgrad.randn(4, 2, 3)
        jitgrad.manual_seed(1)
        a = model(x)[0]
        jitgrad.manual_seed(1)
        assert a.equal(model(x)[0]) and not a.equal(model(x)[0])
        model.eval()
        assert model(x)[0].equal(model(x)[0])
    with pytest.warns(UserWarning, match="num_layers"):
        jitgrad.nn.RNN(3, 4, dropout=0.5)


def test_initial_values_and_names():
    for name in KINDS:
        ours, theirs = (make(lib, name, 30, 64, 2, bidirectional=True) for lib in LIBS)
        assert [(n, tuple(p.shape)) for n, p in ours.named_parameters()] == [
            (n, tuple(p.shape)) for n, p in theirs.named_parameters()
        ]
        assert ours._flat_weights_names == theirs._flat_weights_names
        assert len(ours.all_weights) == 4 and ours.flatten_parameters() is None
        for p in ours.parameters():
            assert 0.11 < float(p.abs().max()) <= 0.125


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_sequences(batch_first, padding_side):
    def code(lib, *parts):
        rnn = lib.nn.utils.rnn
        padded = rnn.pad_sequence(list(parts), batch_first, -1.0, padding_side)
        packed = rnn.pack_sequence(list(parts), enforce_sorted=False)
        again, lengths = rnn.pad_packed_sequence(packed, batch_first, 2.0, total_length=7)
        return [padded, *packed, again, lengths, *rnn.unpack_sequence(packed),
                *rnn.unpad_sequence(again.clone(), lengths, batch_first)]  # fmt: skip

    check(code, values(2, 3), values(5, 3, seed=1), values(1, 3, seed=2))
    check(code, values(3), values(2, seed=1))
    check(lambda lib, x: lib.nn.utils.rnn.pad_sequence(x), values(3, 2))


def test_packed_sequence_conversions():
    for lib in LIBS:
        rnn = lib.nn.utils.rnn
        packed = rnn.pack_sequence([lib.t.ones(3), lib.t.ones(2)])
        assert packed.double().data.dtype is lib.t.float64 and packed.float() is packed
        assert packed.int().batch_sizes.tolist() == [2, 2, 1] and not packed.is_cuda
        again = pickle.loads(pickle.dumps(packed))
        assert again.batch_sizes.tolist() == [2, 2, 1]
        order = lib.t.tensor([2, 0, 1])
        assert rnn.invert_permutation(order).tolist() == [1, 2, 0]
        assert rnn.invert_permutation(None) is None
        by_hand = rnn.PackedSequence(lib.t.ones(5, 3), lib.t.tensor([2, 2, 1]))
        assert make(lib, "GRU", 3, 4)(by_hand)[0].data.shape == (5, 4)


BAD = {
    "dropout": lambda lib: lib.nn.GRU(3, 4, dropout=2),
    "dropout kind": lambda lib: lib.nn.GRU(3, 4, dropout=True),
    "bias": lambda lib: lib.nn.GRU(3, 4, bias=1),
    "sizes": lambda lib: lib.nn.GRU(3, 0),
    "size kind": lambda lib: lib.nn.GRU(3.0, 4),
    "layers": lambda lib: lib.nn.GRU(3, 4, 0),
    "projection": lambda lib: lib.nn.LSTM(3, 4, proj_size=4),
    "projection of": lambda lib: lib.nn.GRU(3, 4, proj_size=2),
    "nonlinearity": lambda lib: lib.nn.RNN(3, 4, nonlinearity="sin"),
    "cell nonlinearity": lambda lib: lib.nn.RNNCell(3, 4, nonlinearity="sin")(lib.t.ones(1, 3)),
    "mode": lambda lib: lib.nn.RNNBase("X", 3, 4),
    "dims": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 1, 1, 3)),
    "features": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 1, 2)),
    "dtype": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 1, 3).double()),
    "no steps": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(0, 1, 3)),
    "state": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 1, 3), lib.t.ones(1, 2, 4)),
    "state dims": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 1, 3), lib.t.ones(1, 4)),
    "state of unbatched": lambda lib: lib.nn.GRU(3, 4)(lib.t.ones(1, 3), lib.t.ones(1, 1, 4)),
    "cell": lambda lib: lib.nn.LSTM(3, 4)(
        lib.t.ones(1, 1, 3), (lib.t.ones(1, 1, 4), lib.t.ones(1, 1, 5))
    ),
    "cell dims": lambda lib: lib.nn.GRUCell(3, 4)(lib.t.ones(1, 1, 3)),
    "cell features": lambda lib: lib.nn.GRUCell(3, 4)(lib.t.ones(1, 2)),
    "cell state": lambda lib: lib.nn.GRUCell(3, 4)(lib.t.ones(2, 3), lib.t.ones(1, 4)),
    "cell state dims": lambda lib: lib.nn.LSTMCell(3, 4)(
        lib.t.ones(2, 3), (lib.t.ones(1, 2, 4), lib.t.ones(2, 4))
    ),
    "unsorted": lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.t.ones(3, 2), [1, 3]),
    "no length": lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.t.ones(3, 2), [3, 0]),
    "lengths": lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.t.ones(3, 2), [3]),
    "empty": lambda lib: lib.nn.utils.rnn.pack_padded_sequence(lib.t.ones(3, 0), []),
    "no sequence": lambda lib: lib.nn.utils.rnn.pad_sequence([]),
    "trailing": lambda lib: lib.nn.utils.rnn.pad_sequence([lib.t.ones(1, 2), lib.t.ones(2, 3)]),
    "side": lambda lib: lib.nn.utils.rnn.pad_sequence([lib.t.ones(1)], padding_side="up"),
    "number": lambda lib: lib.nn.utils.rnn.pad_sequence(3),
    "total": lambda lib: lib.nn.utils.rnn.pad_packed_sequence(
        lib.nn.utils.rnn.pack_sequence([lib.t.ones(3)]), total_length=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name])


def test_length_beyond_the_input():
    """PyTorch packs fewer elements than batch_sizes says."""
    with pytest.raises(RuntimeError, match=r"lengths from 1 to the 3 steps .* got \[4, 1\]"):
        jitgrad.nn.utils.rnn.pack_padded_sequence(jitgrad.ones(3, 2), [4, 1])


def test_state_dict_round_trip():
    theirs, ours = torch.nn.LSTM(3, 4, 2), jitgrad.nn.LSTM(3, 4, 2)
    copy_parameters(theirs, ours)
    with torch.no_grad():
        x = torch.ones(2, 1, 3)
        same(ours(jitgrad.ones(2, 1, 3))[0], theirs(x)[0], scale=10)
    assert numpy(ours.weight_ih_l1).shape == (16, 4)


def test_checks_that_subclasses_call():
    for lib in LIBS:
        lstm, packed = lib.nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2), lib.t.tensor([2, 1])
        x = lib.t.ones(5, 2, 3)
        h, c = lib.t.arange(16.0).reshape(4, 2, 2), lib.t.zeros(4, 2, 4)
        assert lstm.get_expected_hidden_size(x, None) == (4, 2, 2)
        assert lstm.get_expected_cell_size(x[0], packed) == (4, 2, 4)
        lstm.check_forward_args(x, (h, c), None)
        moved = lstm.permute_hidden((h, c), lib.t.tensor([1, 0]))
        assert moved[0].tolist() == h.flip(1).tolist() and moved[1].shape == c.shape
        assert lstm.permute_hidden((h, c), None)[0] is h
        gru = lib.nn.GRU(3, 4, batch_first=True)
        assert gru.get_expected_hidden_size(x, None) == (1, 5, 4)
        assert gru.permute_hidden(c, lib.t.tensor([1, 0])).shape == c.shape
        for wrong in (
            lambda m=lstm, x=x: m.check_input(x[..., :2], None),
            lambda m=lstm, x=x: m.check_input(x[0], None),
            lambda m=lstm, x=x, h=h: m.check_forward_args(x, (h, h), None),
            lambda m=gru, x=x, h=h: m.check_forward_args(x, h, None),
        ):
            with pytest.raises(RuntimeError):
                wrong()
