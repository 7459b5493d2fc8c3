"""Tutorials and examples as beginners meet them: a net of bare tensors with `w.data -=`, a
polynomial Module, a net with Python control flow, MNIST's script, sine waves by LSTMCell and LBFGS,
a Gaussian process by Cholesky, k-means, PCA, evolution strategies."""

from __future__ import print_function

import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.parameter import Parameter
from torch.optim.lr_scheduler import StepLR


class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return 0.5 * (5 * input**3 - 3 * input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        return grad_output * 1.5 * (5 * input**2 - 1)


class Polynomial3(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(()))
        self.b = torch.nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.a + self.b * LegendrePolynomial3.apply(x)

    def string(self):
        return f"y = {self.a.item()} + {self.b.item()} P3(x)"


class DynamicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.middle, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x, depth):
        h_relu = self.inp(x).clamp(min=0)
        for _ in range(depth):
            h_relu = self.middle(h_relu).clamp(min=0)
            if h_relu.sum() > 1e6:
                break
        return self.out(h_relu)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 3, 3, 1)
        self.conv2 = nn.Conv2d(3, 4, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.0), nn.Dropout2d(0.0)
        self.fc1, self.fc2 = nn.Linear(16, 8), nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 4), nn.LSTMCell(4, 4)
        self.linear = nn.Linear(4, 1)

    def forward(self, input, future=0):
        outputs, dtype = [], input.dtype
        h_t = torch.zeros(input.size(0), 4, dtype=dtype)
        c_t, h_t2, c_t2 = (torch.zeros_like(h_t) for _ in range(3))
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


class GP(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw_lengthscale = Parameter(torch.zeros(1))
        self.raw_noise = Parameter(torch.tensor([-1.0]))

    def kernel(self, a, b):
        return torch.exp(-0.5 * torch.cdist(a, b) ** 2 / F.softplus(self.raw_lengthscale) ** 2)

    def forward(self, x, y):
        K = self.kernel(x, x) + (F.softplus(self.raw_noise) + 1e-2) * torch.eye(len(x))
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(y[:, None], L)
        nll = 0.5 * y[None] @ alpha + torch.log(torch.diagonal(L)).sum()
        return (nll + 0.5 * len(x) * math.log(2 * math.pi)).squeeze()


def build():
    return {"polynomial": Polynomial3(), "dynamic": DynamicNet(), "mnist": Net(),
            "waves": Sequence(), "gp": GP()}  # fmt: skip


COMPILED = "silent"  # DynamicNet looks at a sum
SCALE = 1e3


def train(args, model, device, batches, optimizer, epoch, step):
    model.train()
    logged = []
    for batch_idx, (data, target) in enumerate(batches):
        data, target = data.to(device), target.to(device)
        loss = step(data, target)
        if batch_idx % args.log_interval == 0:
            logged.append(loss.item())
            "Train Epoch: {} [{}/{}]\tLoss: {:.6f}".format(epoch, batch_idx, 2, loss.item())
    return logged


def test(model, device, batches):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in batches:
            output = model(data.to(device))
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return test_loss, correct


def run(models, compile):
    rng = np.random.default_rng(30)
    dtype, device, found = torch.get_default_dtype(), torch.device("cpu"), {}

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=dtype)

    x, y, w1, w2 = draw(5, 4), draw(5, 2), draw(4, 6), draw(6, 2)
    w1.requires_grad_()
    w2.requires_grad = True

    @compile
    def bare(x, y):
        y_pred = x.mm(w1).clamp(min=0).mm(w2)
        loss = (y_pred - y).pow(2).sum()
        loss.backward()
        w1.data -= 1e-3 * w1.grad.data
        w2.data -= 1e-3 * w2.grad.data
        w1.grad.data.zero_()
        w2.grad.data.zero_()
        return loss.data

    found["bare"] = [[bare(x, y).item() for _ in range(4)], w1, w2]

    model = models["polynomial"]
    x = torch.linspace(-math.pi, math.pi, 20)
    criterion = torch.nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(3):
        loss = criterion(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found["polynomial"] = [loss.item(), model.string()[:6]]

    model = models["dynamic"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    @compile
    def dynamic(x, y, depth):
        loss = criterion(model(x, depth), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    found["dynamic"] = [dynamic(draw(4, 3), draw(4, 1), depth) for depth in (1, 3, 1, 0)]

    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("--lr", type=float, default=1.0, metavar="LR")
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=1)
    args = parser.parse_args([])
    model = models["mnist"].to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    batches = [(draw(3, 1, 8, 8), torch.from_numpy(rng.integers(0, 10, 3))) for _ in range(2)]

    def step(data, target, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile(step)
    found["mnist"] = []
    for epoch in range(1, 3):
        found["mnist"] += train(args, model, device, batches, optimizer, epoch, step)
        found["mnist"] += test(model, device, batches)
        scheduler.step()

    seq = models["waves"]
    data = torch.sin(torch.arange(10).to(dtype)[None] * 0.7 + draw(3, 1))
    criterion, optimizer = nn.MSELoss(), optim.LBFGS(seq.parameters(), lr=0.5, max_iter=3)

    def closure():
        optimizer.zero_grad()
        out = seq(data[:, :-1])
        loss = criterion(out, data[:, 1:])
        loss.backward()
        return loss

    found["waves"] = [optimizer.step(closure).item() for _ in range(2)]
    with torch.no_grad():
        found["future"] = seq(data[:, :-1], future=3)[:, -3:]

    gp, x = models["gp"], draw(7, 1)
    y = torch.sin(2 * x[:, 0])
    adam = torch.optim.Adam(gp.parameters(), lr=0.05)

    @compile
    def gp_step():
        adam.zero_grad()
        loss = gp(x, y)
        loss.backward()
        adam.step()
        return loss.detach()

    found["gp"] = [gp_step().item() for _ in range(3)]

    points = torch.cat([draw(6, 2), draw(6, 2) + 4])
    centers = points[[0, 6]].clone()
    for _ in range(3):
        assigned = torch.cdist(points, centers).argmin(dim=1)
        for k in range(2):
            centers[k] = points[assigned == k].mean(0)
    found["kmeans"] = [assigned, centers]
    _, S, Vh = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    found["pca"] = [S, (points @ Vh.mH).abs()]

    theta = torch.zeros(3)
    for _ in range(3):
        eps = draw(8, 3)
        rewards = -((theta + 0.1 * eps - torch.tensor([1.0, -1.0, 0.5])) ** 2).sum(1)
        theta += 0.5 / (8 * 0.1) * (eps.T @ ((rewards - rewards.mean()) / rewards.std()))
    found["evolution"] = theta
    return found
