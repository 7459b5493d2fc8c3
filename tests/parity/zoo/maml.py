"""Learning to learn: MAML with functional_call, with grad of grad, and by func's transforms; a
hypernetwork that makes another's weights."""

from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.net = nn.Sequential(OrderedDict([
            ("l1", nn.Linear(1, 8)), ("relu1", nn.Tanh()), ("l2", nn.Linear(8, 8)),
            ("relu2", nn.ReLU()), ("l3", nn.Linear(8, 1)),
        ]))  # fmt: skip

    def forward(self, x):
        return self.net(x)

    def argforward(self, x, weights):
        x = torch.tanh(F.linear(x, weights[0], weights[1]))
        x = F.relu(F.linear(x, weights[2], weights[3]))
        return F.linear(x, weights[4], weights[5])


class HyperNetwork(nn.Module):
    def __init__(self, z_dim=3, shape=(4, 2)):
        super().__init__()
        self.shape = shape
        self.z = nn.Parameter(torch.fmod(torch.randn(z_dim), 2))
        self.w1 = nn.Parameter(torch.fmod(torch.randn((z_dim, 5)), 2))
        self.b1 = nn.Parameter(torch.zeros(5))
        self.out = nn.Linear(5, int(np.prod(shape)))

    def forward(self, x):
        h = torch.matmul(self.z, self.w1) + self.b1
        kernel = self.out(F.leaky_relu(h)).view(*self.shape)
        return F.linear(x, kernel)


def build():
    return {"maml": Net(), "func": Net(), "hyper": HyperNetwork()}


def run(models, compile):
    rng = np.random.default_rng(14)
    dtype = torch.get_default_dtype()

    def sample_task(n_tasks, k):
        amplitude, phase = rng.uniform(0.1, 5, (n_tasks, 1)), rng.uniform(0, np.pi, (n_tasks, 1))
        x = rng.uniform(-5, 5, (n_tasks, 2 * k))
        y = amplitude * np.sin(x + phase)
        parts = (x[:, :k], y[:, :k], x[:, k:], y[:, k:])
        return [torch.tensor(p, dtype=dtype).unsqueeze(-1) for p in parts]

    net, criterion, inner_lr = models["maml"], nn.MSELoss(), 0.01
    weights = list(net.parameters())
    meta_optimiser = torch.optim.Adam(weights, 1e-2)

    @compile
    def meta_step(x1, y1, x2, y2):
        meta_loss = 0
        for task in range(2):
            temp_weights = [w.clone() for w in weights]
            for _step in range(2):
                loss = criterion(net.argforward(x1[task], temp_weights), y1[task])
                grads = torch.autograd.grad(loss, temp_weights, create_graph=True)
                temp_weights = [w - inner_lr * g for w, g in zip(temp_weights, grads)]
            meta_loss += criterion(net.argforward(x2[task], temp_weights), y2[task])
        meta_grads = torch.autograd.grad(meta_loss / 2, weights)
        for w, g in zip(weights, meta_grads):
            w.grad = g
        meta_optimiser.step()
        return meta_loss.detach() / 2

    first = [meta_step(*sample_task(2, 4)).item() for _ in range(3)]

    model = models["func"]
    params = dict(model.named_parameters())
    outer = torch.optim.SGD(params.values(), lr=1e-3, momentum=0.9)

    def compute_loss(params, x, y):
        return ((functional_call(model, params, (x,)) - y) ** 2).mean()

    def task_loss(params, x1, y1, x2, y2):
        grads = grad(compute_loss)(params, x1, y1)
        new_params = {k: params[k] - inner_lr * grads[k] for k in params}
        return compute_loss(new_params, x2, y2)

    @compile
    def func_step(*task):
        losses = vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *task)
        loss = losses.mean()
        outer.zero_grad()
        loss.backward()
        outer.step()
        return losses.detach()

    second = [func_step(*sample_task(3, 4)) for _ in range(3)]
    per_sample = vmap(grad(compute_loss), in_dims=(None, 0, 0))(
        {k: v.detach() for k, v in params.items()}, *sample_task(3, 2)[:2]
    )

    hyper = models["hyper"]
    sgd = torch.optim.SGD(hyper.parameters(), lr=0.05)

    @compile
    def hyper_step(x, y):
        loss = F.mse_loss(hyper(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        return loss.detach()

    third = []
    for _ in range(3):
        x = torch.tensor(rng.standard_normal((5, 2)), dtype=dtype)
        third.append(hyper_step(x, torch.tensor(rng.standard_normal((5, 4)), dtype=dtype)).item())
    return {"maml": first, "func": second, "per sample": dict(per_sample), "hyper": third}
