"""Nodes of the tape as programs that walk it see them: names, classes, edges, hooks."""

import pytest
from parity.compare import torch

import jitgrad
import jitgrad.nn

LIBS = (jitgrad, torch)

CALLS = """x + 1;1 - x;x * y;2 / x;-x;x**2;x**y;2**x;x.exp();x.log1p();x.square();x.clamp(0, 1)
x.clamp_min(0.0);x.clamp(y, y + 1);x.relu();x.abs();x.reciprocal()
x.sum();x.sum(0);x.mean();x.mean(1);x.prod();x.prod(0);x.max();x.max(0)[0];x.min();x.min(1).values
x.amax(0);x.var();x.std(0);x.norm();x.norm(dim=1);x.logsumexp(0);x.cumsum(0);x.median()
x.median(0)[0];x.sort()[0];x.topk(2)[0];x.kthvalue(1)[0];x.cummax(0)[0];torch.max(x, y)
x @ y.t();x.mv(x[0]);x.matmul(x[0]);x[0].dot(y[0]);torch.bmm(b, b.mT);b @ b.mT
torch.addmm(z, x, y.t());torch.baddbmm(bz, b, b.mT);F.linear(x, y);F.linear(x, y, y[:, 0])
x[0];x[:, 1];x[0:2];x[None];x[..., 0:1];x[:, 0, None];x[idx];x[x > 0];x.select(0, 1)
x.narrow(0, 0, 1);x.t();x.T;x.mT;x.transpose(0, 1);x.permute(1, 0);x.reshape(-1);x.view(-1)
x.flatten();x.unsqueeze(0);x.squeeze();x[None].squeeze(0);x.expand(2, 3, 4);x.repeat(2, 1)
x.clone();x.unbind()[0];x.split(1)[0];x.split([1, 2])[1];x.chunk(2)[0];x.flip(0);x.roll(1);x.tril()
x.gather(0, at);x.index_select(0, idx);x.scatter(0, at, y);x.scatter_add(0, at, y)
x.masked_fill(x > 0, 0.0);x.where(x > 0, y);x.masked_select(x > 0);torch.cat([x, y])
torch.stack([x, y]);x.unfold(0, 2, 1);x.take(idx);x.index_add(0, idx, y[:2]);x.to(torch.float64)
x.half();x.trace();x.diagonal();x.rot90()
F.softmax(x, 1);F.log_softmax(x, 1);F.gelu(x);F.elu(x);F.leaky_relu(x);F.silu(x);F.mish(x)
F.softplus(x);F.hardtanh(x);F.logsigmoid(x);F.hardswish(x);F.glu(x);F.dropout(x);F.normalize(x)
F.dropout(x + 1, training=False)
F.mse_loss(x, y);F.l1_loss(x, y);F.smooth_l1_loss(x, y);F.huber_loss(x, y);F.kl_div(x, y)
F.cross_entropy(x, lab);F.nll_loss(x, lab);F.binary_cross_entropy_with_logits(x, y)
F.conv2d(im, w);F.conv2d(im, w, w[:, 0, 0, 0]);F.conv_transpose2d(im, w);F.max_pool2d(im, 2)
F.avg_pool2d(im, 2);F.adaptive_avg_pool2d(im, 2);F.interpolate(im, scale_factor=2)
F.interpolate(im, scale_factor=2, mode="bilinear");F.pad(im, (1, 1))
F.pad(im, (1,) * 4, "reflect");F.unfold(im, 2);F.pixel_shuffle(im.repeat(1, 2, 1, 1), 2)
F.batch_norm(im, None, None, training=True)
F.layer_norm(x, (4,), y[0], y[1]);F.group_norm(im, 2);F.embedding(idx, x)
nn.Linear(4, 2)(x);nn.Conv2d(2, 2, 3)(im);nn.BatchNorm2d(2)(im);nn.LayerNorm(4)(x)
nn.GRU(4, 3)(b)[0];nn.RNN(4, 3)(b)[0];nn.TransformerEncoderLayer(4, 2, 8)(b)
nn.CrossEntropyLoss()(x, lab);torch.linalg.norm(x);torch.linalg.inv(z);torch.linalg.det(z)
torch.linalg.solve(z, z);torch.linalg.svd(x)[1];torch.linalg.qr(x)[0];torch.linalg.slogdet(z)[1]
torch.lerp(x, y, 0.5);torch.addcmul(x, y, y);torch.logaddexp(x, y);torch.nan_to_num(x)
(x * 1).add_(1);(x * 1).relu_();(x * 1).clamp_(0, 1);(x * 1).copy_(y);(x * 1).masked_fill_(x > 0, 0)
written(x * 1)""".replace("\n", ";").split(";")


def _names(t):
    def leaf(*shape):
        size = t.Size(shape).numel()
        return (t.arange(size).reshape(shape) % 7 * 0.1 + 0.05).requires_grad_()

    def written(x):
        x[0] = 1.0
        return x

    return {
        "torch": t, "F": t.nn.functional, "nn": t.nn, "x": leaf(3, 4), "y": leaf(3, 4),
        "b": leaf(2, 3, 4), "bz": leaf(2, 3, 3), "im": leaf(2, 2, 6, 6), "w": leaf(2, 2, 3, 3),
        "z": (leaf(3, 3) * 0.1 + t.eye(3)).detach().requires_grad_(), "idx": t.tensor([0, 1]),
        "at": t.zeros(3, 4, dtype=t.int64), "lab": t.tensor([0, 1, 2]), "written": written,
    }  # fmt: skip


@pytest.fixture(scope="module")
def names():
    return [_names(t) for t in LIBS]


@pytest.mark.parametrize("call", CALLS)
def test_name_and_class(call, names):
    ours, theirs = (eval(call, n).grad_fn for n in names)
    assert ours.name() == theirs.name()
    assert type(ours).__name__ == type(theirs).__name__
    assert repr(ours).split(" at ")[0] == repr(theirs).split(" at ")[0]
    assert type(ours) is type(ours.shown())


def _walk(x):
    """The names of the graph's nodes and the shapes of its leaves, depth first."""
    found, seen, stack = [], set(), [x.grad_fn]
    while stack:
        fn = stack.pop()
        if fn is None or fn in seen:
            continue
        seen.add(fn)
        leaf = tuple(fn.variable.shape) if hasattr(fn, "variable") else None
        found.append((type(fn).__name__, leaf, [slot for _, slot in fn.next_functions]))
        stack += [f for f, _ in fn.next_functions]
    return found


def test_walk():
    """A model's graph: the same nodes, edges and leaves."""

    def graph(t):
        x, w, b = t.ones(2, 3), t.ones(4, 3, requires_grad=True), t.ones(4, requires_grad=True)
        h = (x.matmul(w.t()) + b).relu()
        low, high = h.narrow(1, 0, 2), h[:, 2:].t().t()
        y = t.cat([low.exp(), high * high], 1)
        return _walk(y.sum())

    assert graph(jitgrad) == graph(torch)


def test_class_is_of_the_name():
    x = jitgrad.ones(2, requires_grad=True)
    a, b = (x * 2).grad_fn, (x * 3).grad_fn
    assert type(a) is type(b) is not type((x + 1).grad_fn)
    y = x * 2
    node = y.grad_fn
    y.sum().backward()  # a node that was looked at runs as others do
    assert x.grad.tolist() == [2.0, 2.0] and y.grad_fn is node


@pytest.mark.parametrize("t", LIBS)
def test_accumulate_grad(t):
    """One object for a leaf, with hooks before and after the gradient is added to .grad."""
    x = t.ones(2, requires_grad=True)
    y = x.expand_as(x) * 3
    (leaf, slot), none = (
        y.grad_fn.next_functions[0][0].next_functions[0],
        y.grad_fn.next_functions[1],
    )
    assert slot == 0 and none == (None, 0)
    assert leaf is y.grad_fn.next_functions[0][0].next_functions[0][0] and leaf.variable is x
    assert leaf.name() == "torch::autograd::AccumulateGrad" and leaf.next_functions == ()
    assert type(leaf).__name__ == "AccumulateGrad"
    leaf.metadata["note"] = 1
    log = []
    before = leaf.register_prehook(lambda gs: (log.append(("pre", x.grad)), (gs[0] * 10,))[1])
    after = leaf.register_hook(
        lambda to, gs: log.append((to, gs[0].tolist(), None if x.grad is None else x.grad.tolist()))
    )
    y.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [30.0, 30.0]
    assert log == [("pre", None), ((), [30.0, 30.0], [30.0, 30.0])]
    before.remove()
    after.remove()
    y.sum().backward()
    assert x.grad.tolist() == [33.0, 33.0] and len(log) == 2 and leaf.metadata == {"note": 1}


def test_function_node():
    class Double(jitgrad.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = jitgrad.ones(2, requires_grad=True)
    node = Double.apply(x).grad_fn
    assert type(node).__name__ == node.name() == "DoubleBackward"
    assert node.saved_tensors[0] is x
