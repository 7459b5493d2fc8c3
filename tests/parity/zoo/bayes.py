"""Bayes by backprop, EWC, Hessian products, SVGD and HMC, vmapped ensembles, Reptile."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.functional import hvp, jacobian
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint_sequential


# -- Bayes -----------------------------------------------------------------------------------------
class BayesLinear(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.mu, self.rho = (
            nn.Parameter(torch.randn(out, inp) * 0.1),
            nn.Parameter(torch.full((out, inp), -3.0)),
        )

    def forward(self, x, eps):
        return F.linear(x, self.mu + F.softplus(self.rho) * eps)

    def kl(self):
        return kl_divergence(
            Normal(self.mu, F.softplus(self.rho)), Normal(torch.zeros_like(self.mu), 1.0)
        ).sum()


class SVGD:
    def __init__(self, log_prob, optimizer):
        self.log_prob, self.optim = log_prob, optimizer

    def phi(self, X):
        X = X.detach().requires_grad_(True)
        score = torch.autograd.grad(self.log_prob(X).sum(), X)[0]
        dnorm2 = torch.cdist(X, X.detach()) ** 2
        sigma = torch.median(dnorm2.detach()) / (2 * math.log(X.size(0) + 1))
        K = (-dnorm2 / sigma / 2).exp()
        grad_K = -torch.autograd.grad(K.sum(), X)[0]
        return (K.detach().matmul(score) + grad_K) / X.size(0)

    def step(self, X):
        self.optim.zero_grad()
        X.grad = -self.phi(X)
        self.optim.step()


def hmc(log_prob, q, momentum, eps=0.1, steps=4):
    q, p = q.clone(), momentum.clone()
    gradient = grad(log_prob)
    p = p + 0.5 * eps * gradient(q)
    for i in range(steps):
        q = q + eps * p
        if i != steps - 1:
            p = p + eps * gradient(q)
    return q, -(p + 0.5 * eps * gradient(q))


def build():
    torch.manual_seed(7)
    return {
        "bayes": BayesLinear(5, 3),
        **{f"net{i}": nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)) for i in range(3)},
    }


COMPILED = None


def run(models, compile):
    rng = np.random.default_rng(8)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # Bayes by backprop, EWC, Hessian products
    bayes = models["bayes"]
    optimizer = torch.optim.Adam(bayes.parameters(), lr=1e-2)
    x, y, eps = draw(7, 5), draw(7, 3), draw(3, 5)
    for _ in range(2):
        optimizer.zero_grad()
        loss = -Normal(bayes(x, eps), 0.5).log_prob(y).sum() + 0.1 * bayes.kl()
        loss.backward()
        optimizer.step()
    fisher = {n: p.grad.data.clone().pow(2) / len(x) for n, p in bayes.named_parameters()}
    old = {n: p.data.clone() for n, p in bayes.named_parameters()}
    ewc = sum((fisher[n] * (p - old[n] - 0.1) ** 2).sum() for n, p in bayes.named_parameters())
    found["bayes"] = loss.item(), ewc.item()
    found["hvp"] = hvp(lambda w: F.mse_loss(x @ w.t(), y), bayes.mu.detach(), eps)[1]
    found["jacobian"] = jacobian(lambda v: torch.tanh(bayes.mu.detach() @ v), x[0])
    # samplers
    target = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.3, 0.7])),
        torch.distributions.Independent(
            Normal(torch.tensor([[-2.0, 0.0], [2.0, 1.0]]), torch.ones(2, 2)), 1
        ),
    )
    particles = draw(5, 2).requires_grad_(False)
    svgd = SVGD(target.log_prob, torch.optim.Adagrad([particles], lr=0.1))
    for _ in range(3):
        svgd.step(particles)
    particles.grad = None
    found["svgd"] = particles, hmc(target.log_prob, particles[0], draw(2))
    # ensembles and meta-learning
    nets = [models[f"net{i}"] for i in range(3)]
    params, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta") if hasattr(torch, "never") else copy.deepcopy(nets[0])

    def loss_of(params, buffers, x, y):
        return F.mse_loss(functional_call(base, (params, buffers), (x,)), y)

    x, y = draw(6, 5), draw(6, 1)
    grads = vmap(grad(loss_of), in_dims=(0, 0, None, None))(params, buffers, x, y)
    found["ensemble"] = {k: v for k, v in grads.items()}
    meta = nets[0]
    weights_before = copy.deepcopy(meta.state_dict())
    inner = torch.optim.SGD(meta.parameters(), lr=0.1)
    for _ in range(3):
        inner.zero_grad()
        F.mse_loss(meta(x), y).backward()
        inner.step()
    after = meta.state_dict()
    meta.load_state_dict(
        {
            name: weights_before[name] + (after[name] - weights_before[name]) * 0.5
            for name in weights_before
        }
    )
    found["sequential"] = checkpoint_sequential(meta, 2, x, use_reentrant=False).detach()
    return found
