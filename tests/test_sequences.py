"""Recurrent layers, attention, nn.utils: against NumPy and finite differences, compiled against
eager. (Parity with PyTorch: tests/parity.)"""

import numpy as np
import pytest
from scipy import special

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.autograd import gradcheck, gradgradcheck
from jitgrad.nn.utils import parametrizations, parametrize, rnn


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0, grad=False):
    x = t.from_numpy(values(*shape, seed=seed))
    return x.requires_grad_() if grad else x


def arrays(module):
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


# -- recurrent layers against loops in NumPy -------------------------------------------------------
def lstm(x, h, c, w):
    out = []
    for row in x:
        gates = row @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"]
        i, f, g, o = np.split(gates, 4, -1)
        c = special.expit(f) * c + special.expit(i) * np.tanh(g)
        h = special.expit(o) * np.tanh(c)
        out.append(h)
    return np.stack(out), h, c


def gru(x, h, w):
    out = []
    for row in x:
        a, b = row @ w["weight_ih"].T + w["bias_ih"], h @ w["weight_hh"].T + w["bias_hh"]
        (ar, az, an), (br, bz, bn) = np.split(a, 3, -1), np.split(b, 3, -1)
        z = special.expit(az + bz)
        h = (1 - z) * np.tanh(an + special.expit(ar + br) * bn) + z * h
        out.append(h)
    return np.stack(out), h


def elman(x, h, w):
    out = []
    for row in x:
        h = np.tanh(row @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"])
        out.append(h)
    return np.stack(out), h


LOOPS = {"RNN": elman, "GRU": gru, "LSTM": lstm}


@pytest.mark.parametrize("name", LOOPS)
def test_layers_against_loops(name):
    """Two directions: the second reads the sequence from its end."""
    model = getattr(nn, name)(3, 4, bidirectional=True).double()
    x, found = values(5, 2, 3), arrays(model)
    y, end = model(t.from_numpy(x))
    start = [np.zeros((2, 4))] * (2 if name == "LSTM" else 1)
    halves, ends = [], []
    for suffix, turn in (("", slice(None)), ("_reverse", slice(None, None, -1))):
        w = {k: found[f"{k}_l0{suffix}"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        out, *last = LOOPS[name](x[turn], *start, w)
        halves.append(out[turn])
        ends.append(last)
    np.testing.assert_allclose(y.detach().numpy(), np.concatenate(halves, -1), atol=1e-14)
    for got, *want in zip(end if name == "LSTM" else [end], *ends, strict=True):
        np.testing.assert_allclose(got.detach().numpy(), np.stack(want), atol=1e-14)


@pytest.mark.parametrize("name", LOOPS)
def test_derivatives_of_recurrent_layers(name):
    model = getattr(nn, name)(2, 3).double()

    def last(x):
        y, end = model(x)
        return y, (end[1] if name == "LSTM" else end)

    x = tensor(3, 2, 2, grad=True)
    assert gradcheck(last, (x,))
    assert gradgradcheck(last, (x,))
    weight = model.weight_hh_l0
    with_weight = lambda w: t.func.functional_call(model, {"weight_hh_l0": w}, x.detach())[0]  # noqa: E731
    assert gradcheck(with_weight, (weight.detach().clone().requires_grad_(),))


def test_each_packed_sequence_is_as_alone():
    """Ragged batches: outputs and states do not see the padding or the other sequences."""
    model = nn.GRU(3, 4, num_layers=2, bidirectional=True).double()
    parts = [tensor(n, 3, seed=n) for n in (2, 5, 1, 3)]
    packed = rnn.pack_sequence(parts, enforce_sorted=False)
    y, h = model(packed)
    for k, (x, out) in enumerate(zip(parts, rnn.unpack_sequence(y), strict=True)):
        want, state = model(x)
        np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), atol=1e-14)
        np.testing.assert_allclose(h[:, k].detach().numpy(), state.detach().numpy(), atol=1e-14)


def test_packing_is_undone():
    x = tensor(4, 3, 2)
    packed = rnn.pack_padded_sequence(x, [4, 2, 1])
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    np.testing.assert_array_equal(packed.data[:3].numpy(), x[0].numpy())
    padded, lengths = rnn.pad_packed_sequence(packed, padding_value=-1.0)
    assert lengths.tolist() == [4, 2, 1]
    for t_, row in enumerate(padded.numpy()):
        for k, n in enumerate(lengths.tolist()):
            np.testing.assert_array_equal(row[k], x.numpy()[t_, k] if t_ < n else -1.0)


# -- attention -------------------------------------------------------------------------------------
def attention(q, k, v, bias):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + bias
    return special.softmax(scores, axis=-1) @ v


def test_attention_against_its_formula():
    q, k, v = values(2, 3, 4, 5), values(2, 3, 6, 5, seed=1), values(2, 3, 6, 7, seed=2)
    causal = np.where(np.tri(4, 6), 0.0, -np.inf)
    seen = np.random.default_rng(3).random((2, 1, 4, 6)) < 0.6
    seen[..., 0] = True
    tensors = [t.from_numpy(x) for x in (q, k, v)]
    for options, bias in [
        ({}, 0.0),
        ({"is_causal": True}, causal),
        ({"attn_mask": t.from_numpy(seen)}, np.where(seen, 0.0, -np.inf)),
        ({"attn_mask": t.from_numpy(causal)}, causal),
    ]:
        got = F.scaled_dot_product_attention(*tensors, **options).numpy()
        np.testing.assert_allclose(got, attention(q, k, v, bias), atol=1e-14)


def test_derivatives_of_attention():
    """With a query that sees nothing: no NaN."""
    seen = t.tensor([[True, False, True], [False, False, False]])
    parts = [tensor(2, n, 3, seed=n, grad=True) for n in (2, 3, 3)]

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, seen)

    assert gradcheck(f, tuple(parts)) and gradgradcheck(f, tuple(parts))
    assert not f(*parts)[:, 1].any()


def test_heads_share_keys():
    q, k = tensor(1, 4, 3, 5), tensor(1, 2, 3, 5, seed=1)
    got = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    for head in range(4):
        one = F.scaled_dot_product_attention(q[:, head], k[:, head // 2], k[:, head // 2])
        np.testing.assert_allclose(got[:, head].numpy(), one.numpy(), atol=1e-15)


# -- compiled against eager ------------------------------------------------------------------------
CAUSAL = nn.Transformer.generate_square_subsequent_mask(4)
PADDING = t.tensor([[False] * 4, [False, False, True, True]])


def compiled_cases():
    t.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=True)
    heads = nn.MultiheadAttention(6, 3, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    lstm_ = nn.LSTM(6, 5, 2, batch_first=True, proj_size=3)
    cell = nn.LSTMCell(6, 5)
    normed = parametrizations.weight_norm(nn.Linear(6, 3))
    spectral = parametrizations.spectral_norm(nn.Linear(6, 3)).eval()
    blind = PADDING[:, None].expand(2, 4, 4) | t.eye(4).bool()
    return {
        "encoder": lambda x: encoder(x, CAUSAL, PADDING.to(x.dtype)),
        "heads": lambda x: heads(x, x, x, PADDING)[0],
        "weights": lambda x: heads(x, x * 2, x, attn_mask=CAUSAL)[1],
        "blind": lambda x: F.scaled_dot_product_attention(x, x, x, ~blind),
        "lstm": lambda x: lstm_(x)[1][1],
        "cell": lambda x: cell(x[:, 0])[1],
        "packed": lambda x: lstm_(rnn.pack_padded_sequence(x, [4, 2], True))[0].data,
        "padded": lambda x: rnn.pad_sequence([x[0], x[1, :2]], padding_side="left"),
        "weight norm": normed,
        "spectral norm": spectral,
    }  # fmt: skip


COMPILED = compiled_cases()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_is_eager(name):
    def step(x):
        y = COMPILED[name](x)
        (g,) = t.autograd.grad((y * y).sum(), x)
        return y.detach(), g

    compiled = t.jit(step, fallback="error")
    for seed in range(3):
        x = tensor(2, 4, 6, seed=seed).float().requires_grad_()
        for got, want in zip(compiled(x), step(x), strict=True):
            scale = float(want.abs().max())
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=4e-5, atol=2e-6 * scale)
    assert compiled.stats.hits == 2


# -- nn.utils --------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [1, 2, 3, float("inf")])
def test_clipped_norm(p):
    grads = [values(3, 4), values(5, seed=1)]
    params = [nn.Parameter(t.zeros(*g.shape, dtype=t.float64)) for g in grads]
    for limit in (0.5, 1000.0):
        for param, g in zip(params, grads, strict=True):
            param.grad = t.from_numpy(g.copy())
        total = nn.utils.clip_grad_norm_(params, limit, p).item()
        whole = np.concatenate([g.ravel() for g in grads])
        assert abs(total - np.linalg.norm(whole, p)) < 1e-12
        after = np.concatenate([param.grad.numpy().ravel() for param in params])
        np.testing.assert_allclose(after, whole * min(1, limit / (total + 1e-6)), rtol=1e-12)


def test_norms_of_weights():
    linear = nn.Linear(6, 4).double()
    before = linear.weight.detach().numpy().copy()
    parametrizations.weight_norm(linear)
    np.testing.assert_allclose(linear.weight.detach().numpy(), before, atol=1e-15)
    linear.parametrizations.weight.original0.data.fill_(2.0)
    rows = np.linalg.norm(linear.weight.detach().numpy(), axis=1)
    np.testing.assert_allclose(rows, 2.0, atol=1e-14)
    parametrize.remove_parametrizations(linear, "weight")
    np.testing.assert_allclose(np.linalg.norm(linear.weight.detach().numpy(), axis=1), 2.0)
    spectral = parametrizations.spectral_norm(nn.Linear(6, 4).double(), n_power_iterations=200)
    largest = np.linalg.svd(spectral.weight.detach().numpy())[1][0]
    assert abs(largest - 1) < 1e-3


def test_derivative_of_weight_norm():
    module = parametrizations.weight_norm(nn.Linear(3, 2).double())
    x = tensor(2, 3)

    def f(g, v):
        names = ("parametrizations.weight.original0", "parametrizations.weight.original1")
        return t.func.functional_call(module, dict(zip(names, (g, v), strict=True)), x)

    inputs = (tensor(2, 1, grad=True), tensor(2, 3, seed=1, grad=True))
    assert gradcheck(f, inputs) and gradgradcheck(f, inputs)


def test_power_method_in_a_compiled_step():
    """The singular vectors move on in compiled calls as in eager ones."""
    models = [parametrizations.spectral_norm(nn.Linear(5, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    step = t.jit(lambda x: models[0](x).detach(), fallback="error")
    for seed in range(4):
        x = tensor(2, 5, seed=seed).float()
        np.testing.assert_allclose(step(x).numpy(), models[1](x).detach().numpy(), atol=1e-6)
    for a, b in zip(models[0].buffers(), models[1].buffers(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)
    assert step.stats.hits == 3


def test_long_sequence_compiles_to_its_numbers():
    """60 steps: long enough that the sum of the steps' gradients is a heavy body."""
    model = nn.LSTM(3, 4, batch_first=True)

    def step(x):
        model.zero_grad()
        y, _ = model(x)
        (y * y).sum().backward()
        return [p.grad for p in model.parameters()]

    compiled = t.jit(step, fallback="error")
    for seed in range(2):
        x = tensor(2, 60, 3, seed=seed).float()
        got = [g.clone() for g in compiled(x)]
        for a, b in zip(got, step(x), strict=True):
            np.testing.assert_allclose(
                a.numpy(), b.numpy(), rtol=1e-4, atol=2e-6 * float(b.abs().max())
            )


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("compiled", [False, True])
def test_recurrent_layers_under_autocast(kind, compiled):
    """The state of a loop has one dtype from its first step on."""
    layer = getattr(nn, kind)(4, 5)
    x = t.rand(6, 2, 4)

    def f(x):
        with t.autocast("cpu", dtype=t.bfloat16):
            return layer(x)[0].float()

    run = t.jit(f, fallback="error") if compiled else f
    for _ in range(2):
        got = run(x)
    np.testing.assert_allclose(got.detach().numpy(), layer(x)[0].detach().numpy(), atol=0.05)
