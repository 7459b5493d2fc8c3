"""Layers and losses: values against NumPy and SciPy, gradients against finite differences, compiled
against eager, and what a Module promises. (Parity with PyTorch: tests/parity.)"""

import copy
import itertools
import pickle

import numpy as np
import pytest
from scipy import special

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.autograd import gradcheck, gradgradcheck
from jitgrad.state import epoch


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0, grad=False):
    x = t.from_numpy(values(*shape, seed=seed))
    return x.requires_grad_() if grad else x


FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_against_formulas(name):
    x = np.concatenate([values(200) * 4, [0.0, -3.0, 3.0, 30.0, -30.0]])
    got = getattr(F, name)(t.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, FORMULAS[name](x), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", [*FORMULAS, "selu"])
def test_derivatives_of_activations(name):
    x = tensor(30, grad=True, seed=3)  # no kink within a finite difference
    assert gradcheck(getattr(F, name), (x,))
    assert gradgradcheck(getattr(F, name), (x,))


@pytest.mark.parametrize("name,at_zero", [("logsigmoid", 0.5), ("softplus", 0.5), ("relu", 0.0)])
def test_derivative_at_zero(name, at_zero):
    x = t.zeros(1, dtype=t.float64, requires_grad=True)
    getattr(F, name)(x).sum().backward()
    assert x.grad.item() == at_zero


def test_derivative_of_logits_at_zero():
    """What a network with zero weights starts from."""
    x = t.zeros(2, dtype=t.float64, requires_grad=True)
    F.binary_cross_entropy_with_logits(x, t.tensor([0.0, 1.0]).double(), reduction="sum").backward()
    assert x.grad.tolist() == [0.5, -0.5]
    assert gradgradcheck(F.logsigmoid, (x.detach().requires_grad_(),))


# -- compiled against eager ------------------------------------------------------------------------
LABELS = t.tensor([0, 2, 1, -100])
BAGGED, OFFSETS = t.tensor([0, 3, 1, 3, 2]), t.tensor([0, 2, 2])
COMPILED = {
    "celu": lambda x: F.celu(x, 0.5),
    "shrink": lambda x: F.hardshrink(x) + F.softshrink(x, 0.3) + F.tanhshrink(x),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0) + F.softsign(x),
    "prelu": lambda x: F.prelu(x, x[0] * 0.1),
    "glu": lambda x: F.glu(x, 0),
    "softmin": lambda x: F.softmin(x, 1),
    "rrelu": lambda x: F.rrelu(x),
    **{name: lambda x, name=name: getattr(F, name)(x) for name in [*FORMULAS, "selu"]},
    "softmax": lambda x: F.softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "normalize": lambda x: F.normalize(x),
    "reflect": lambda x: F.pad(x, (2, 1), "reflect"),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "weighted": lambda x: F.cross_entropy(x, LABELS, weight=x[0].detach().abs()),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 0).to(x.dtype)),
    "bce logits": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype)),
    "kl_div": lambda x: F.kl_div(x, x.detach().softmax(1)),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 0),
    "huber": lambda x: F.huber_loss(x, x.detach() * 0, delta=0.5),
    "margins": lambda x: F.multi_margin_loss(x, LABELS.abs() % 3) + F.soft_margin_loss(x, x.sign()),
    "labels": lambda x: F.multilabel_margin_loss(x[:, :3], LABELS[:3].expand(4, 3)),
    "triplet": lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0), swap=True),
    "cosine": lambda x: F.cosine_embedding_loss(x, x.flip(0), LABELS.clamp(-1, 1)),
    "gaussian": lambda x: F.gaussian_nll_loss(x, x.detach() * 0, x * x, full=True),
    "poisson": lambda x: F.poisson_nll_loss(x, x.detach().abs() * 3, full=True),
    "cdist": lambda x: t.cdist(x, x[:2] + 1) + t.cdist(x, x[:2] + 1, 2.0, "use_mm_for_euclid_dist"),
    "pdist": lambda x: F.pdist(x, 3.0),
    "similarity": lambda x: F.cosine_similarity(x, x.flip(0)) + F.pairwise_distance(x, x.flip(1)),
    "max_pool": lambda x: F.max_pool1d(x, 2, padding=1),
    "avg_pool": lambda x: F.avg_pool1d(x, 2, padding=1),
    "group_norm": lambda x: F.group_norm(x.reshape(2, 6, 1), 2, x[0, :1].expand(6)),
    "instance_norm": lambda x: F.instance_norm(x.reshape(2, 2, 3)),
    "rms_norm": lambda x: F.rms_norm(x, (3,), x[0]),
    "lrn": lambda x: F.local_response_norm(x.unsqueeze(-1), 2, 0.5),
    "bilinear": lambda x: F.bilinear(x[:2], x[2:], x[:3, :, None].expand(3, 3, 3), x[0]),
    "bags": lambda x: F.embedding_bag(BAGGED, x, OFFSETS, mode="sum", padding_idx=1),
    "mean bags": lambda x: F.embedding_bag(BAGGED, x, OFFSETS, scale_grad_by_freq=True),
    "max bags": lambda x: F.embedding_bag(BAGGED, x, OFFSETS, mode="max"),
    "frequency": lambda x: F.embedding(BAGGED, x, scale_grad_by_freq=True),
    "embedding": lambda x: F.embedding(LABELS.abs() % 4, x, padding_idx=1),
    "conv": lambda x: F.conv1d(x, x[:2, None, :2].expand(2, 4, 2), padding=1),
    "linear": lambda x: F.linear(x, x[:2], x[2, :2]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [t.float32, t.float64])
def test_compiled_is_eager(name, dtype):
    """Value and gradient of each composite under @jit, with no fallback."""
    leaf = tensor(4, 3, seed=1).to(dtype)

    def step(x):
        y = COMPILED[name](x)
        (g,) = t.autograd.grad((y * y * y).sum(), x)
        return y, g

    compiled = t.jit(step, fallback="error")
    for seed in (2, 3, 4):
        x = (leaf * seed).requires_grad_()
        for got, want in zip(compiled(x), step(x), strict=True):
            scale = float(want.detach().abs().max())
            tol = 2e-6 if dtype is t.float32 else 1e-14
            np.testing.assert_allclose(
                got.detach().numpy(), want.detach().numpy(), rtol=20 * tol, atol=tol * scale
            )


def test_compiled_noise_is_eager_noise():
    def noisy(x):
        return F.rrelu(x, training=True), F.gumbel_softmax(x, hard=True), F.gumbel_softmax(x)

    compiled = t.jit(noisy, fallback="error")
    x = tensor(20, 5)
    for f in (compiled, compiled, noisy):
        t.manual_seed(1)
        found = f(x)
    t.manual_seed(1)
    for a, b in zip(compiled(x), found, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-15)


def test_compiled_class_out_of_range_raises():
    compiled = t.jit(lambda x, y: F.cross_entropy(x, y), fallback="error")
    x = tensor(3, 4)
    good = t.tensor([0, 1, 2])
    for _ in range(3):
        assert compiled(x, good).item() == pytest.approx(F.cross_entropy(x, good).item())
    for bad in ([0, 1, 4], [0, -1, 2]):
        with pytest.raises(IndexError):
            compiled(x, t.tensor(bad))


def test_ctc_sums_over_alignments():
    """Against the sum over all sequences of labels that give the target; and its derivative."""
    x = tensor(4, 1, 3, grad=True)
    p = F.softmax(x, 2).detach().numpy()[:, 0]

    def collapse(path):
        return [c for k, c in enumerate(path) if c and (k == 0 or path[k - 1] != c)]

    for target in ([], [1], [2, 1], [1, 1], [1, 2, 1]):
        total = sum(
            np.prod([p[k, c] for k, c in enumerate(path)])
            for path in itertools.product(range(3), repeat=4)
            if collapse(path) == target
        )

        def loss(x, target=target):
            labels = t.tensor(target, dtype=t.int64).reshape(1, -1)
            return F.ctc_loss(x.log_softmax(2), labels, (4,), (len(target),), reduction="sum")

        assert loss(x).item() == pytest.approx(-np.log(total), rel=1e-12)
        assert gradcheck(loss, (x,))


def test_compiled_negative_embedding_index_raises():
    compiled = t.jit(lambda i, w: F.embedding(i, w), fallback="error")
    w = tensor(5, 2)
    for _ in range(3):
        compiled(t.tensor([0, 4]), w)
    with pytest.raises(IndexError):
        compiled(t.tensor([0, -1]), w)


# -- layers ----------------------------------------------------------------------------------------
def test_derivatives_of_layers():
    x = tensor(2, 3, 5, 5, grad=True)
    w = tensor(4, 3, 2, 2, seed=1, grad=True)
    b = tensor(4, seed=2, grad=True)
    assert gradcheck(lambda x, w, b: F.conv2d(x, w, b, 2, 1), (x, w, b))
    assert gradcheck(lambda x: F.batch_norm(x, None, None, training=True), (x,))
    assert gradcheck(lambda x: F.layer_norm(x, (5, 5)), (x,))
    assert gradcheck(lambda x: F.max_pool2d(x, 2), (x,))
    assert gradcheck(lambda x: F.avg_pool2d(x, 3, 2, 1), (x,))
    assert gradcheck(lambda x: F.cross_entropy(x, t.zeros(2, 5, 5, dtype=t.int64)), (x,))


def test_batch_norm_of_an_empty_batch_leaves_the_statistics():
    norm = nn.BatchNorm2d(3)
    for _ in range(2):
        norm(t.zeros(0, 3, 2, 2)).sum().backward()
    assert norm.running_mean.tolist() == [0.0] * 3 and norm.running_var.tolist() == [1.0] * 3
    assert norm.weight.grad.tolist() == [0.0] * 3 and norm.num_batches_tracked == 2
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(t.zeros(1, 3, 1, 1))


def test_batch_norm_statistics():
    m = nn.BatchNorm1d(2, momentum=0.25).double()
    x = values(10, 2) * 3 + 1
    y = m(t.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(m.running_mean.numpy(), 0.25 * x.mean(0))
    np.testing.assert_allclose(m.running_var.numpy(), 0.75 + 0.25 * x.var(0, ddof=1))
    assert m.num_batches_tracked.item() == 1
    m.eval()
    before = m.running_mean.clone()
    m(t.from_numpy(x))
    assert (m.running_mean == before).all() and m.num_batches_tracked.item() == 1
    m.reset_running_stats()
    assert m.running_mean.tolist() == [0, 0] and m.num_batches_tracked.item() == 0


def test_dropout():
    t.manual_seed(0)
    m = nn.Dropout(0.3)
    x = t.ones(100, 100, requires_grad=True)
    y = m(x)
    kept = (y != 0).double().mean().item()
    assert 0.68 < kept < 0.72
    assert y.max().item() == pytest.approx(1 / 0.7)
    y.sum().backward()
    assert (x.grad == y).all()
    assert m.eval()(x) is x
    assert not (F.dropout(x) == F.dropout(x)).all()


def test_embedding_padding_row():
    m = nn.Embedding(4, 3, padding_idx=-2)
    assert m.padding_idx == 2 and (m.weight[2] == 0).all()
    m(t.tensor([[0, 2], [2, 3]])).sum().backward()
    assert m.weight.grad.sum(1).tolist() == [3, 0, 0, 3]


def test_gradient_scaled_by_frequency():
    index = t.tensor([[0, 2, 2], [2, 1, 0]])
    for bag in (False, True):
        table = (nn.EmbeddingBag if bag else nn.Embedding)(4, 1, scale_grad_by_freq=True)
        weights = t.tensor([[1.0], [10.0]]) if bag else t.tensor([[1.0, 2, 4], [8, 16, 32]])
        (table(index).squeeze(-1) * (weights.squeeze(-1) if bag else weights)).sum().backward()
        got = table.weight.grad.squeeze(1)
        want = [11 / 6, 10 / 3, (2 + 10) / 9, 0] if bag else [33 / 2, 16, 14 / 3, 0]
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    assert F.embedding_bag(t.zeros(2, 0, dtype=t.int64), t.ones(3, 4)).tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize("make", [
    lambda: nn.InstanceNorm1d(3, track_running_stats=True), lambda: nn.Dropout1d(0.4),
    lambda: nn.AlphaDropout(0.4), lambda: nn.FeatureAlphaDropout(0.4),
    lambda: nn.Sequential(nn.Dropout2d(0.3, inplace=True), nn.GroupNorm(3, 3)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*dropout2d.*:UserWarning")
def test_compiled_layers_keep_state_and_noise(make):
    t.manual_seed(0)
    ours, eager = make(), make()
    compiled = t.jit(ours, fallback="error")
    for seed in range(3):
        x = tensor(2, 3, 5, seed=seed).float()
        found = []
        for m in (compiled, eager):
            t.manual_seed(seed)
            found.append(m(x * 1).detach().numpy())
        np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    for a, b in zip(ours.buffers(), eager.buffers(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_initialisation():
    t.manual_seed(0)
    w = t.empty(200, 300)
    bound = np.sqrt(6 / 500)
    nn.init.xavier_uniform_(w)
    assert 0.98 * bound < w.abs().max().item() <= bound
    nn.init.kaiming_normal_(w, nonlinearity="relu", mode="fan_out")
    assert w.std().item() == pytest.approx(np.sqrt(2 / 200), rel=0.02)
    nn.init.xavier_normal_(w, gain=2.0)
    assert w.std().item() == pytest.approx(2 * np.sqrt(2 / 500), rel=0.02)
    nn.init.trunc_normal_(w, 1.0, 2.0, 0.0, 3.0)
    assert w.min().item() >= 0 and w.max().item() <= 3
    assert w.mean().item() == pytest.approx(1.4016, abs=0.02)  # the truncated distribution's
    nn.init.constant_(w, 3)
    assert (w == 3).all()
    assert nn.Linear(0, 3)(t.ones(2, 0)).shape == (2, 3)


# -- Module ----------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.counter = nn.Buffer(t.zeros(1))

    def forward(self, x):
        return self.rest(self.first(x))


def test_state_goes_through_copy_and_pickle():
    net = Net()
    x = t.randn(5, 3)
    net(x)
    net.eval()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert (other(x) == net(x)).all()
        assert [n for n, _ in other.named_parameters()] == [n for n, _ in net.named_parameters()]
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in other.parameters())
        assert not {id(p) for p in other.parameters()} & {id(p) for p in net.parameters()}


def test_load_state_dict_is_all_or_nothing():
    net = Net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = {k: v + 1 for k, v in before.items()}
    state["rest.2.bias"] = t.zeros(7)
    with pytest.raises(RuntimeError, match="size mismatch for rest.2.bias"):
        net.load_state_dict(state)
    assert all((net.state_dict()[k] == v).all() for k, v in before.items())
    del state["rest.2.bias"]
    keys = net.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["rest.2.bias"] and keys.unexpected_keys == []
    assert (net.first.weight == before["first.weight"] + 1).all()


def test_load_with_post_hooks_checks_shapes_first():
    net = Net()
    net.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    before = net.first.weight.clone()
    state = {"first.weight": t.ones(4, 3), "rest.2.bias": t.zeros(7)}
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(state)
    assert (net.first.weight == before).all()
    del state["rest.2.bias"]
    net.load_state_dict(state)
    assert (net.first.weight == 1).all()


def test_hooks_under_jit():
    """Compiled calls run what hooks do to tensors; a hook added later is not missed."""
    net = nn.Linear(3, 2)
    step = t.jit(lambda x: net(x).sum(), fallback="error")
    x = t.ones(2, 3)
    plain = [step(x).item() for _ in range(2)][1]
    double = net.register_forward_hook(lambda m, a, y: y * 2)
    assert [step(x).item() for _ in range(3)] == pytest.approx([2 * plain] * 3)
    net.register_forward_pre_hook(lambda m, a, k: (a, {**k}), with_kwargs=True)
    assert step(x).item() == pytest.approx(2 * plain)
    double.remove()
    assert [step(x).item() for _ in range(3)] == pytest.approx([plain] * 3)

    def train(x):
        net.zero_grad()
        net(x).sum().backward()
        return net.weight.grad * 1

    compiled = t.jit(train, fallback="error")
    before = [compiled(x) for _ in range(3)][2]
    net.register_full_backward_pre_hook(lambda m, g: (g[0] * 3,))
    net.register_full_backward_hook(lambda m, gi, go: None)
    for _ in range(3):
        np.testing.assert_allclose(compiled(x).numpy(), 3 * before.numpy(), rtol=1e-6)


def test_module_compile():
    net = Net().eval()
    x = t.ones(2, 3)
    want = net(x)
    net.compile(fallback="error")
    for _ in range(3):
        assert t.allclose(net(x), want)
    assert copy.deepcopy(net)(x).shape == (2, 2) and pickle.loads(pickle.dumps(net))(x).shape == (
        2,
        2,
    )


def test_load_with_assign():
    net, other = Net(), Net()
    net.load_state_dict(other.state_dict(), assign=True)
    assert isinstance(net.first.weight, nn.Parameter)
    assert net.first.weight._storage is other.first.weight._storage


def test_attribute_writes_bump_the_epoch():
    net = Net()
    for write in (
        lambda: setattr(net, "k", 1),
        lambda: setattr(net, "first", nn.Linear(3, 4)),
        lambda: net.eval(),
        lambda: net.register_buffer("b", t.ones(1)),
        lambda: delattr(net, "b"),
        lambda: net.rest.append(nn.ReLU()),
        lambda: net.rest.pop(),
        lambda: net.double(),
        lambda: net.register_forward_hook(print).remove(),
        lambda: net.load_state_dict(net.state_dict()),
    ):
        before = epoch[0]
        write()
        assert epoch[0] > before


def test_reassigned_parameter_keeps_its_place():
    m = nn.Linear(2, 2)
    m.weight = nn.Parameter(t.zeros(2, 2))
    assert list(m.state_dict()) == ["weight", "bias"]
    assert [n for n, _ in m.named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("shape", [(0, 2, 2, 2), (1, 0, 3, 2), (1, 2, 0, 2)])
def test_grid_sample_of_empty_batches_and_grids(mode, shape):
    x = t.zeros(shape[0], 1, 4, 4, requires_grad=True)
    y = F.grid_sample(x, t.zeros(*shape), mode=mode, align_corners=False)
    assert tuple(y.shape) == (shape[0], 1, *shape[1:3])
    y.sum().backward()
    assert x.grad.shape == x.shape and not x.grad.any()


@pytest.mark.parametrize("function", [F.elu, F.celu])
def test_gradients_of_exponential_units_far_left(function):
    """exp(x), not expm1(x) + 1, which is 0 there."""
    x = t.tensor([-80.0, -50.0, -20.0], requires_grad=True)
    function(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(x.detach().numpy()), rtol=1e-5)
