"""First lessons: a cubic fitted to a sine by NumPy-like tensors, by autograd, by a custom Function,
by nn and by a Module with Python control flow; tensors and gradients of the 60-minute blitz."""

import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

COMPILED = "silent"  # a Module of random depth draws from Python's random


class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input**3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input**2 - 1)


class DynamicNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((), 0.1))
        self.b = torch.nn.Parameter(torch.full((), 0.2))
        self.c = torch.nn.Parameter(torch.full((), -0.1))
        self.d = torch.nn.Parameter(torch.full((), 0.05))
        self.e = torch.nn.Parameter(torch.full((), 0.01))

    def forward(self, x):
        y = self.a + self.b * x + self.c * x**2 + self.d * x**3
        for exp in range(4, random.randint(4, 6)):
            y = y + self.e * x**exp
        return y

    def string(self):
        return f"y = {self.a.item():.3f} + {self.b.item():.3f} x + {self.e.item():.3f} x^4 ?"


class LeNet(nn.Module):
    def __init__(self):
        super(LeNet, self).__init__()
        self.conv1 = nn.Conv2d(1, 3, 5)
        self.conv2 = nn.Conv2d(3, 4, 3)
        self.fc1 = nn.Linear(4 * 2 * 2, 8)
        self.fc3 = nn.Linear(8, 10)

    def forward(self, input):
        c1 = F.relu(self.conv1(input))
        s2 = F.max_pool2d(c1, (2, 2))
        c3 = F.relu(self.conv2(s2))
        x = F.max_pool2d(c3, 2)
        x = x.view(-1, self.num_flat_features(x))
        return self.fc3(F.relu(self.fc1(x)))

    def num_flat_features(self, x):
        size = x.size()[1:]
        num_features = 1
        for s in size:
            num_features *= s
        return num_features


def build():
    return {
        "fit": torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0, 1)),
        "dynamic": DynamicNet(),
        "lenet": LeNet(),
    }


def by_hand():
    dtype = torch.get_default_dtype()
    device = torch.device("cpu")
    x = torch.linspace(-math.pi, math.pi, 50, device=device, dtype=dtype)
    y = torch.sin(x)
    a, b, c, d = (torch.full((), v, device=device, dtype=dtype) for v in (0.1, -0.2, 0.3, 0.1))
    learning_rate, seen = 1e-4, []
    for t in range(20):
        y_pred = a + b * x + c * x**2 + d * x**3
        loss = (y_pred - y).pow(2).sum().item()
        if t % 5 == 4:
            seen.append(loss)
        grad_y_pred = 2.0 * (y_pred - y)
        grad_a = grad_y_pred.sum()
        grad_b = (grad_y_pred * x).sum()
        grad_c = (grad_y_pred * x**2).sum()
        grad_d = (grad_y_pred * x**3).sum()
        a -= learning_rate * grad_a
        b -= learning_rate * grad_b
        c -= learning_rate * grad_c
        d -= learning_rate * grad_d
    return seen, f"{a.item():.3f} + {b.item():.3f} x + {c.item():.3f} x^2 + {d.item():.3f} x^3"


def by_autograd(P3):
    x = torch.linspace(-math.pi, math.pi, 50)
    y = torch.sin(x)
    a = torch.full((), 0.2, requires_grad=True)
    b = torch.full((), -1.0, requires_grad=True)
    c = torch.full((), 0.1, requires_grad=True)
    d = torch.full((), 0.3, requires_grad=True)
    learning_rate, seen = 5e-4, []
    for _t in range(10):
        y_pred = a + b * P3(c + d * x)
        loss = (y_pred - y).pow(2).sum()
        seen.append(loss.item())
        loss.backward()
        with torch.no_grad():
            a -= learning_rate * a.grad
            b -= learning_rate * b.grad
            c -= learning_rate * c.grad
            d -= learning_rate * d.grad
            a.grad = None
            b.grad = None
            c.grad.zero_()
            d.grad.data.zero_()
    return seen, [p.item() for p in (a, b, c, d)]


def by_nn(model):
    x = torch.linspace(-math.pi, math.pi, 50)
    y = torch.sin(x)
    p = torch.tensor([1, 2, 3])
    xx = x.unsqueeze(-1).pow(p)
    loss_fn = torch.nn.MSELoss(reduction="sum")
    seen = [xx[:4]]
    for _ in range(5):
        loss = loss_fn(model(xx), y)
        seen.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= 1e-5 * param.grad
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(5):
        loss = loss_fn(model(xx), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    linear_layer = model[0]
    return seen, linear_layer.bias.item(), linear_layer.weight[:, 0].item()


def dynamic(model, compile):
    random.seed(5)
    x = torch.linspace(-math.pi, math.pi, 50)
    y = torch.sin(x)
    criterion = torch.nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8, momentum=0.9)

    @compile
    def step(x, y):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step(x, y).item() for _ in range(8)], model.string()


def blitz(net):
    rng = np.random.default_rng(3)
    shown = [repr(torch.ones(2, 3)), str(torch.tensor([[1, 2], [3, 4]]))]
    tensor = torch.ones(4, 4)
    tensor[:, 1] = 0
    shown += [f"{tensor}", f"First row: {tensor[0]}", f"Last column: {tensor[..., -1]}"]
    y3 = torch.rand_like(tensor)
    torch.matmul(tensor, tensor.T, out=y3)
    agg = tensor.sum()
    tensor.add_(5)
    t = torch.ones(5)
    n = t.numpy()
    t.add_(1)
    np.add(n, 1, out=n)
    result = [y3, agg.item(), tensor, t, n.sum().item(), tensor.mul(tensor), tensor.T @ tensor]
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([6.0, 4.0], requires_grad=True)
    Q = 3 * a**3 - b**2
    Q.backward(gradient=torch.tensor([1.0, 1.0]))
    result += [9 * a**2 == a.grad, -2 * b == b.grad]
    input = torch.tensor(rng.standard_normal((1, 1, 16, 16)), dtype=torch.get_default_dtype())
    out = net(input)
    net.zero_grad()
    out.backward(torch.ones(1, 10), retain_graph=True)
    result += [list(net.parameters())[0].size()[0], len(list(net.parameters()))]
    target = torch.linspace(-1, 1, 10).view(1, -1)
    loss = nn.MSELoss()(out, target)
    assert loss.grad_fn.next_functions[0][0] is not None
    net.zero_grad()
    loss.backward()
    result += [net.conv1.bias.grad]
    optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    running_loss = 0.0
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(net(input), torch.tensor([3]))
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    _, predicted = torch.max(net(input).data, 1)
    result += [running_loss, predicted]
    for p in net.parameters():
        p.data.sub_(p.grad.data * 0.01)
    return result, shown


def run(models, compile):
    return {
        "hand": by_hand(),
        "autograd": by_autograd(lambda x: 0.5 * (5 * x**3 - 3 * x)),
        "function": by_autograd(LegendrePolynomial3.apply),
        "nn": by_nn(models["fit"]),
        "dynamic": dynamic(models["dynamic"], compile),
        "blitz": blitz(models["lenet"]),
    }
