"""Training steps as people write them, that differentiate inside, make leaves of their own, or step
several optimizers: PyTorch's numbers, and under jit one graph for the whole step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from parity.compare import LIBS, OURS, copy_parameters, same, torch

KEPT: list = []


def net(lib, inputs=2, outputs=1):
    nn = lib.nn
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def wgan_gp(lib, net, other, opt, kind="detach"):
    t = lib.t

    def step(real, fake):
        net.zero_grad()
        x = 0.25 * real + 0.75 * fake
        if kind == "detach":
            x = x.detach().requires_grad_(True)
        elif kind == "variable":
            x = t.autograd.Variable(x, requires_grad=True)
        else:
            x.requires_grad_(True)
        o = net(x)
        (g,) = t.autograd.grad(o, x, t.ones_like(o), create_graph=True)
        penalty = ((g.norm(2, dim=1) - 1) ** 2).mean()
        loss = net(fake).mean() - net(real).mean() + 10 * penalty
        loss.backward()
        opt.step()
        return loss

    return step


def wgan_gp_keeps_leaf(lib, net, other, opt):
    inner = wgan_gp(lib, net, other, opt)

    def step(real, fake):
        x = real.detach().requires_grad_(True)
        KEPT.append(x)
        (net(x) ** 2).sum().backward()
        return inner(real, fake) + x.grad.sum()

    return step


def dcgan(lib, net, other, opt):
    second = lib.optim.Adam(other.parameters(), lr=1e-2)
    bce = lib.F.binary_cross_entropy_with_logits

    def step(real, noise):
        opt.zero_grad()
        fake = other(noise)
        d_real, d_fake = net(real), net(fake.detach())
        loss = bce(d_real, lib.t.ones_like(d_real)) + bce(d_fake, lib.t.zeros_like(d_fake))
        loss.backward()
        opt.step()
        second.zero_grad()
        out = net(fake)
        g_loss = bce(out, lib.t.ones_like(out))
        g_loss.backward()
        second.step()
        return loss + g_loss

    return step


def r1(lib, net, other, opt):
    def step(real, fake):
        opt.zero_grad()
        x = real.clone().requires_grad_()
        scores = net(x)
        (g,) = lib.t.autograd.grad(scores.sum(), x, create_graph=True)
        loss = lib.F.softplus(-scores).mean() + lib.F.softplus(net(fake)).mean()
        loss = loss + 5 * g.pow(2).sum(1).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def maml(lib, net, other, opt):
    func = lib.t.func.functional_call

    def step(x, y):
        opt.zero_grad()
        fast = dict(net.named_parameters())
        for _ in range(2):
            inner = (func(net, fast, (x,)) - y[:, :1]).pow(2).mean()
            grads = lib.t.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads, strict=True)}
        loss = (func(net, fast, (y,)) - x[:, :1]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def pinn(lib, net, other, opt):
    def step(x, _):
        opt.zero_grad()
        x = x.clone().requires_grad_(True)
        u = net(x)
        (du,) = lib.t.autograd.grad(u, x, lib.t.ones_like(u), create_graph=True)
        (ddu,) = lib.t.autograd.grad(du[:, 0].sum(), x, create_graph=True)
        loss = (ddu[:, 0] + du[:, 1] + u[:, 0]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def pgd(lib, net, other, opt):
    def step(x, y):
        adversarial = x.clone()
        for _ in range(2):
            adversarial = adversarial.detach()
            adversarial.requires_grad_()
            loss = (net(adversarial) - y[:, :1]).pow(2).mean()
            loss.backward()
            adversarial = adversarial + 0.1 * adversarial.grad.sign()
            adversarial = lib.t.max(lib.t.min(adversarial, x + 0.15), x - 0.15)
        opt.zero_grad()
        loss = (net(adversarial.detach()) - y[:, :1]).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def fgsm(lib, net, other, opt):
    def step(x, y):
        x = x.detach().clone()
        x.requires_grad = True
        loss = (net(x) - y[:, :1]).pow(2).mean()
        net.zero_grad()
        loss.backward()
        attacked = x + 0.1 * x.grad.sign()
        return net(attacked.detach()).detach().sum() + loss.detach()

    return step


def saliency(lib, net, other, opt):
    def step(x, _):
        x = x.clone().requires_grad_()
        score = net(x).max(1)[0].sum()
        score.backward()
        return x.grad.abs().max(dim=1)[0].sum() + score.detach()

    return step


def distillation(lib, net, other, opt):
    def step(x, y):
        opt.zero_grad()
        with lib.t.no_grad():
            soft = lib.F.softmax(other(x) / 2.0, dim=1)
        logits = lib.F.log_softmax(net(x).expand(-1, 2) / 2.0, dim=1)
        loss = lib.F.kl_div(logits, soft, reduction="batchmean") * 4 + net(y).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return step


def sam(lib, net, other, opt):
    def step(x, y):
        opt.zero_grad()
        (net(x) - y[:, :1]).pow(2).mean().backward()
        norm = lib.t.norm(lib.t.stack([p.grad.norm(2) for p in net.parameters()]), 2)
        moves = []
        with lib.t.no_grad():
            for p in net.parameters():
                move = 0.05 * p.grad / (norm + 1e-12)
                p.add_(move)
                moves.append(move)
        opt.zero_grad()
        loss = (net(x) - y[:, :1]).pow(2).mean()
        loss.backward()
        with lib.t.no_grad():
            for p, move in zip(net.parameters(), moves, strict=True):
                p.sub_(move)
        opt.step()
        return loss

    return step


def accumulation(lib, net, other, opt):
    def step(x, y):
        opt.zero_grad()
        total = 0.0
        for a, b in zip(x.split(2), y.split(2), strict=True):
            loss = (net(a) - b[:, :1]).pow(2).mean() / 2
            loss.backward()
            total = total + loss.detach()
        lib.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        return total

    return step


def ema(lib, net, other, opt):
    shadow = copy.deepcopy(net)

    def step(x, y):
        opt.zero_grad()
        loss = (net(x) - y[:, :1]).pow(2).mean()
        loss.backward()
        opt.step()
        with lib.t.no_grad():
            for s, p in zip(shadow.parameters(), net.parameters(), strict=True):
                s.mul_(0.9).add_(p, alpha=0.1)
        return loss + shadow(x).detach().mean()

    return step


STEPS = {
    "wgan_gp": wgan_gp,
    "wgan_gp variable": lambda *a: wgan_gp(*a, "variable"),
    "wgan_gp in place": lambda *a: wgan_gp(*a, "in place"),
    **{f.__name__: f for f in (
        dcgan, r1, maml, pinn, pgd, fgsm, saliency, distillation, sam, accumulation, ema,
        wgan_gp_keeps_leaf,
    )},
}  # fmt: skip
IN_SEGMENTS = {"wgan_gp_keeps_leaf"}  # the leaf outlives the call


def run(lib, make, start, batches, jit):
    nets = []
    for source, outputs in zip(start, (1, 2), strict=True):
        made = net(lib, 2, outputs)
        if lib is OURS:
            copy_parameters(source, made)
        else:
            made.load_state_dict(source.state_dict())
        nets.append(made)
    step = make(lib, *nets, lib.optim.Adam(nets[0].parameters(), lr=1e-2))
    if jit:
        step = lib.t.jit(step)
    losses = [step(*(lib.t.from_numpy(b) for b in batch)) for batch in batches]
    return losses, [p for n in nets for p in n.parameters()], step


@pytest.mark.parametrize("name", STEPS)
def test_step(name):
    torch.manual_seed(0)
    start = net(LIBS[1]), net(LIBS[1], 2, 2)
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((2, 4, 2)).astype(np.float32) for _ in range(4)]
    theirs, weights, _ = run(LIBS[1], STEPS[name], start, batches, False)
    for jit in (False, True):
        KEPT.clear()
        losses, ours, step = run(OURS, STEPS[name], start, batches, jit)
        for i, (a, b) in enumerate(zip(losses, theirs, strict=True)):
            same(a, b, f"loss {i}", 20)
        for i, (a, b) in enumerate(zip(ours, weights, strict=True)):
            same(a, b, f"parameter {i}", 100)
        if jit and name not in IN_SEGMENTS:
            assert (step.stats.fallbacks, step.stats.segments) == (0, 0), step.explain()
            assert step.stats.hits >= 2
        if jit and name in IN_SEGMENTS:
            assert len(KEPT) == len(batches) and all(x.grad is not None for x in KEPT)
    KEPT.clear()


def test_a_gradient_that_outlives_its_leaf():
    """The .grad of a leaf made inside, kept: a tensor of its own for each call."""
    layer = OURS.nn.Linear(2, 1)
    kept = []

    @OURS.t.jit
    def step(x):
        x = x.detach().requires_grad_()
        y = (layer(x) ** 2).sum()
        y.backward()
        kept.append(x.grad)
        return y

    for k in range(4):
        step(OURS.t.ones(3, 2) * k)
        wanted = 2 * layer(OURS.t.ones(3, 2) * k) * layer.weight
        np.testing.assert_allclose(kept[k].numpy(), wanted.detach().numpy(), rtol=1e-5)
    assert len({x.data_ptr() for x in kept}) == 4
