"""Derivatives by inputs: a physics-informed net for Burgers' equation, a Hamiltonian net, a neural
ODE by RK4, springs whose rest lengths are learned, a normalizing flow (RealNVP and planar)."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class PINN(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.activation = nn.Tanh()
        self.linears = nn.ModuleList(
            [nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)]
        )
        for i in range(len(layers) - 1):
            nn.init.xavier_normal_(self.linears[i].weight.data, gain=1.0)
            nn.init.zeros_(self.linears[i].bias.data)
        self.lambda_1 = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x, t):
        a = torch.cat([x, t], dim=1)
        for i in range(len(self.linears) - 1):
            a = self.activation(self.linears[i](a))
        return self.linears[-1](a)

    def residual(self, x, t):
        x.requires_grad = True
        t.requires_grad = True
        u = self.forward(x, t)
        ones = torch.ones_like(u)
        u_t = torch.autograd.grad(u, t, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(
            u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True
        )[0]
        return u_t + self.lambda_1 * u * u_x - (0.01 / np.pi) * u_xx


class HNN(nn.Module):
    def __init__(self, dim=2, hidden=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.Softplus(), nn.Linear(hidden, 1))
        self.M = torch.eye(dim)
        self.M = torch.cat([self.M[dim // 2 :], -self.M[: dim // 2]])

    def time_derivative(self, x):
        H = self.net(x)
        dH = torch.autograd.grad(H.sum(), x, create_graph=True)[0]
        return dH @ self.M.t()


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.3)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


def rk4(func, y0, t):
    ys = [y0]
    for t0, t1 in zip(t[:-1], t[1:]):
        dt, y = t1 - t0, ys[-1]
        k1 = func(t0, y)
        k2 = func(t0 + dt / 2, y + dt * k1 / 2)
        k3 = func(t0 + dt / 2, y + dt * k2 / 2)
        k4 = func(t1, y + dt * k3)
        ys.append(y + (k1 + 2 * k2 + 2 * k3 + k4) * (dt / 6))
    return torch.stack(ys)


class AffineCoupling(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", torch.tensor(mask))
        self.s = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(), nn.Linear(5, 2), nn.Tanh())
        self.t = nn.Sequential(nn.Linear(2, 5), nn.LeakyReLU(), nn.Linear(5, 2))

    def forward(self, x):
        x_ = x * self.mask
        s, t = self.s(x_) * (1 - self.mask), self.t(x_) * (1 - self.mask)
        return x_ + (1 - self.mask) * (x * torch.exp(s) + t), s.sum(dim=1)

    def inverse(self, z):
        z_ = self.mask * z
        s, t = self.s(z_) * (1 - self.mask), self.t(z_) * (1 - self.mask)
        return (1 - self.mask) * (z - t) * torch.exp(-s) + z_


class PlanarFlow(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.Tensor(1, dim))
        self.bias = nn.Parameter(torch.Tensor(1))
        self.scale = nn.Parameter(torch.Tensor(1, dim))
        for p in self.parameters():
            p.data.uniform_(-0.4, 0.4)

    def forward(self, z):
        activation = F.linear(z, self.weight, self.bias)
        psi = (1 - torch.tanh(activation) ** 2) * self.weight
        det = 1 + torch.mm(psi, self.scale.t())
        return z + self.scale * torch.tanh(activation), torch.log(det.abs() + 1e-6).squeeze(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(
            [AffineCoupling([0.0, 1.0]), PlanarFlow(2), AffineCoupling([1.0, 0.0])]
        )

    def log_prob(self, x):
        total = x.new_zeros(x.shape[0])
        for part in self.parts:
            x, log_det = part(x)
            total += log_det
        return total - 0.5 * (x**2).sum(1) - np.log(2 * np.pi)


class Springs(nn.Module):
    def __init__(self):
        super().__init__()
        self.lengths = nn.Parameter(torch.tensor([0.8, 1.1, 0.9]))
        self.log_k = nn.Parameter(torch.zeros(()))

    def forward(self, x, steps=6, dt=0.05):
        v, i, j = torch.zeros_like(x), [0, 1, 2], [1, 2, 3]
        free = torch.ones(4, 1)
        free[0] = 0
        for _ in range(steps):
            d = x[j] - x[i]
            length = d.norm(dim=-1, keepdim=True)
            f = self.log_k.exp() * (length - self.lengths[:, None]) * d / length
            force = torch.zeros_like(x).index_add(0, torch.tensor(i), f)
            force = force.index_add(0, torch.tensor(j), f, alpha=-1)
            v = (v + dt * force * free) * 0.99
            x = x + dt * v
        return x


def build():
    return {"pinn": PINN([2, 6, 6, 1]), "hnn": HNN(), "ode": ODEFunc(), "flow": Flow(),
            "springs": Springs()}  # fmt: skip


def run(models, compile):
    rng = np.random.default_rng(15)
    dtype = torch.get_default_dtype()

    def points(*shape):
        return torch.tensor(rng.uniform(-1, 1, shape), dtype=dtype)

    def stepper(model, loss_of, lr=1e-2):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)

        def step(*args):
            optimizer.zero_grad()
            loss = loss_of(*args)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return compile(step)

    pinn = models["pinn"]

    def pinn_loss(x, t, u):
        fit = F.mse_loss(pinn(x, t), u)
        return fit + (pinn.residual(x.clone(), t.clone()) ** 2).mean()

    step = stepper(pinn, pinn_loss)
    found = {"pinn": [step(points(6, 1), points(6, 1), points(6, 1)).item() for _ in range(3)]}

    hnn = models["hnn"]
    step = stepper(hnn, lambda x, dx: (dx - hnn.time_derivative(x)).pow(2).mean())
    found["hnn"] = [step(points(5, 2).requires_grad_(True), points(5, 2)).item() for _ in range(3)]

    func, t = models["ode"], torch.linspace(0.0, 1.0, 4)
    step = stepper(func, lambda y0, y: torch.mean(torch.abs(rk4(func, y0, t) - y)))
    found["ode"] = [step(points(3, 2), points(4, 3, 2)).item() for _ in range(3)]

    flow = models["flow"]
    step = stepper(flow, lambda x: -flow.log_prob(x).mean())
    found["flow"] = [step(points(6, 2)).item() for _ in range(3)]
    x = points(3, 2)
    found["inverse"] = flow.parts[0].inverse(flow.parts[0](x)[0]) - x + 1

    springs, at = models["springs"], torch.tensor([[0.0, 0], [1, 0.1], [2, -0.1], [3, 0]])
    goal = at * 0.9
    step = stepper(springs, lambda: ((springs(at) - goal) ** 2).sum(), 0.05)
    found["springs"] = [step().item() for _ in range(3)]
    return found
