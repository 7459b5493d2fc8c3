"""Glow, a masked autoregressive flow (MADE), EDM with an EMA and Heun's sampler."""

import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


# -- Glow ------------------------------------------------------------------------------------------
def logabs(x):
    return torch.log(torch.abs(x))


class ActNorm(nn.Module):
    def __init__(self, in_channel, logdet=True):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, in_channel, 1, 1))
        self.scale = nn.Parameter(torch.ones(1, in_channel, 1, 1))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))
        self.logdet = logdet

    def initialize(self, input):
        with torch.no_grad():
            flatten = input.permute(1, 0, 2, 3).contiguous().view(input.shape[1], -1)
            mean = flatten.mean(1).unsqueeze(1).unsqueeze(2).unsqueeze(3).permute(1, 0, 2, 3)
            std = flatten.std(1).unsqueeze(1).unsqueeze(2).unsqueeze(3).permute(1, 0, 2, 3)
            self.loc.data.copy_(-mean)
            self.scale.data.copy_(1 / (std + 1e-6))

    def forward(self, input):
        _, _, height, width = input.shape
        if self.initialized.item() == 0:
            self.initialize(input)
            self.initialized.fill_(1)
        log_abs = logabs(self.scale)
        logdet = height * width * torch.sum(log_abs)
        return self.scale * (input + self.loc), logdet

    def reverse(self, output):
        return output / self.scale - self.loc


class InvConv2d(nn.Module):
    def __init__(self, in_channel):
        super().__init__()
        weight = torch.randn(in_channel, in_channel)
        q, _ = torch.linalg.qr(weight)
        self.weight = nn.Parameter(q.unsqueeze(2).unsqueeze(3).contiguous())

    def forward(self, input):
        _, _, height, width = input.shape
        out = F.conv2d(input, self.weight)
        logdet = height * width * torch.slogdet(self.weight.squeeze().double())[1].to(input.dtype)
        return out, logdet

    def reverse(self, output):
        return F.conv2d(output, self.weight.squeeze().inverse().unsqueeze(2).unsqueeze(3))


class AffineCoupling(nn.Module):
    def __init__(self, in_channel, filter_size=6):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(in_channel // 2, filter_size, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(filter_size, in_channel, 3, padding=1),
        )
        self.net[0].weight.data.normal_(0, 0.05)
        self.net[0].bias.data.zero_()

    def forward(self, input):
        in_a, in_b = input.chunk(2, 1)
        log_s, t = self.net(in_a).chunk(2, 1)
        s = F.sigmoid(log_s + 2)
        out_b = (in_b + t) * s
        return torch.cat([in_a, out_b], 1), torch.sum(torch.log(s).view(input.shape[0], -1), 1)

    def reverse(self, output):
        out_a, out_b = output.chunk(2, 1)
        log_s, t = self.net(out_a).chunk(2, 1)
        return torch.cat([out_a, out_b / F.sigmoid(log_s + 2) - t], 1)


class Glow(nn.Module):
    def __init__(self, channels=4, n_flow=2):
        super().__init__()
        self.flows = nn.ModuleList()
        for _ in range(n_flow):
            self.flows.extend([ActNorm(channels), InvConv2d(channels), AffineCoupling(channels)])

    def forward(self, input):
        b, c, h, w = input.shape
        x = (
            input.view(b, c, h // 2, 2, w // 2, 2)
            .permute(0, 1, 3, 5, 2, 4)
            .contiguous()
            .view(b, c * 4, h // 2, w // 2)
        )
        logdet = 0
        for flow in self.flows:
            x, det = flow(x)
            logdet = logdet + det
        log_p = (-0.5 * math.log(2 * math.pi) - 0.5 * x**2).reshape(b, -1).sum(1)
        return log_p, logdet, x

    @torch.no_grad()
    def reverse(self, z):
        for flow in reversed(self.flows):
            z = flow.reverse(z)
        return z


# -- MAF -------------------------------------------------------------------------------------------
class MaskedLinear(nn.Linear):
    def __init__(self, in_features, out_features, mask):
        super().__init__(in_features, out_features)
        self.register_buffer("mask", mask)

    def forward(self, input):
        return F.linear(input, self.mask * self.weight, self.bias)


class MADE(nn.Module):
    def __init__(self, nin=4, hidden=9):
        super().__init__()
        rng = np.random.RandomState(0)
        first, second = np.arange(nin), rng.randint(0, nin - 1, size=hidden)
        masks = [torch.from_numpy((second[:, None] >= first[None, :]).astype(np.uint8))]
        out = torch.from_numpy((first[:, None] > second[None, :]).astype(np.uint8))
        masks += [torch.cat([out] * 2)]
        self.net = nn.Sequential(
            MaskedLinear(nin, hidden, masks[0]), nn.Tanh(), MaskedLinear(hidden, 2 * nin, masks[1])
        )

    def forward(self, x):
        m, loga = torch.chunk(self.net(x), 2, dim=1)
        u = (x - m) * torch.exp(-loga)
        return u, -loga.sum(dim=1)

    def sample(self, u):
        x = torch.zeros_like(u)
        for i in range(u.shape[1]):
            m, loga = self.net(x).chunk(2, dim=1)
            x[:, i] = u[:, i] * torch.exp(loga)[:, i] + m[:, i]
        return x


# -- EDM and SDE -----------------------------------------------------------------------------------
class GaussianFourierProjection(nn.Module):
    def __init__(self, embed_dim, scale=3.0):
        super().__init__()
        self.W = nn.Parameter(torch.randn(embed_dim // 2) * scale, requires_grad=False)

    def forward(self, x):
        x_proj = x[:, None] * self.W[None, :] * 2 * np.pi
        return torch.cat([torch.sin(x_proj), torch.cos(x_proj)], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=2, hidden=12):
        super().__init__()
        self.embed = nn.Sequential(GaussianFourierProjection(8), nn.Linear(8, hidden))
        self.inp, self.mid, self.out = (
            nn.Linear(dim, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, dim),
        )

    def forward(self, x, noise_labels):
        h = F.silu(self.inp(x) + self.embed(noise_labels))
        return self.out(F.silu(self.mid(h)) + h)


class EDMPrecond(nn.Module):
    def __init__(self, sigma_data=0.5):
        super().__init__()
        self.sigma_data = sigma_data
        self.model = Denoiser()

    def forward(self, x, sigma):
        sigma = torch.as_tensor(sigma, dtype=x.dtype).reshape(-1, 1)
        c_skip = self.sigma_data**2 / (sigma**2 + self.sigma_data**2)
        c_out = sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()
        c_in = 1 / (self.sigma_data**2 + sigma**2).sqrt()
        c_noise = sigma.log() / 4
        return c_skip * x + c_out * self.model(c_in * x, c_noise.flatten())

    def round_sigma(self, sigma):
        return torch.as_tensor(sigma)


@torch.no_grad()
def heun_sampler(net, latents, num_steps=4, sigma_min=0.002, sigma_max=8.0, rho=7):
    step_indices = torch.arange(num_steps, dtype=torch.float64)
    t_steps = (
        sigma_max ** (1 / rho)
        + step_indices / (num_steps - 1) * (sigma_min ** (1 / rho) - sigma_max ** (1 / rho))
    ) ** rho
    t_steps = torch.cat([net.round_sigma(t_steps), torch.zeros_like(t_steps[:1])])
    x_next = latents.to(torch.float64) * t_steps[0]
    dtype = latents.dtype
    for i, (t_cur, t_next) in enumerate(zip(t_steps[:-1], t_steps[1:])):
        x_hat = x_next
        denoised = net(x_hat.to(dtype), t_cur).to(torch.float64)
        d_cur = (x_hat - denoised) / t_cur
        x_next = x_hat + (t_next - t_cur) * d_cur
        if i < num_steps - 1:
            denoised = net(x_next.to(dtype), t_next).to(torch.float64)
            d_prime = (x_next - denoised) / t_next
            x_next = x_hat + (t_next - t_cur) * (0.5 * d_cur + 0.5 * d_prime)
    return x_next.to(dtype)


def build():
    torch.manual_seed(3)
    return {"glow": Glow(), "made": MADE(), "edm": EDMPrecond()}


def run(models, compile):
    rng = np.random.default_rng(4)
    random.seed(4)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # Glow
    glow = models["glow"]
    optimizer3 = torch.optim.Adam(glow.parameters(), lr=1e-3)
    x, losses = draw(3, 1, 4, 4), []
    for _ in range(3):
        log_p, logdet, z = glow(x)
        loss = -(log_p + logdet).mean() / (math.log(2) * 16)
        glow.zero_grad()
        loss.backward()
        optimizer3.step()
        losses.append(loss.item())
    with torch.no_grad():
        z = glow(x)[2]
    found["glow"] = losses, glow.reverse(z)
    # MAF
    made = models["made"]
    optimizer4 = torch.optim.Adam(made.parameters(), lr=1e-2, weight_decay=1e-6)
    prior = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))
    data = draw(5, 4)

    def made_step(data):
        u, logdet = made(data)
        loss = -torch.mean(prior.log_prob(u) + logdet)
        optimizer4.zero_grad()
        loss.backward()
        optimizer4.step()
        return loss.detach()

    step = compile(made_step)
    found["made"] = [step(data) for _ in range(3)]
    with torch.no_grad():
        found["made sample"] = made.sample(data)
    # EDM with an EMA
    edm = models["edm"]
    ema = torch.optim.swa_utils.AveragedModel(
        edm, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer5 = torch.optim.Adam(params=edm.parameters(), lr=1e-2, betas=[0.9, 0.999], eps=1e-8)
    points, noise, rnd = draw(6, 2), draw(6, 2), draw(6)

    def edm_step(images, n, rnd_normal):
        sigma = (rnd_normal * 1.2 - 1.2).exp()
        weight = (sigma**2 + 0.5**2) / (sigma * 0.5) ** 2
        optimizer5.zero_grad(set_to_none=True)
        loss = (weight[:, None] * ((edm(images + n * sigma[:, None], sigma) - images) ** 2)).sum()
        loss.mul(1.0 / 6).backward()
        for param in edm.parameters():
            if param.grad is not None:
                torch.nan_to_num(param.grad, nan=0, posinf=1e5, neginf=-1e5, out=param.grad)
        optimizer5.step()
        return loss.detach()

    step = compile(edm_step)
    for _ in range(3):
        loss = step(points, noise, rnd)
        ema.update_parameters(edm)
    found["edm"] = loss, heun_sampler(ema.module, noise)
    return found
