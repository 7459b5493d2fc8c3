"""StyleGAN2: modulated convolutions, R1 and path length penalties (gradients of gradients)."""

import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd


# -- StyleGAN2 -------------------------------------------------------------------------------------
def fused_leaky_relu(input, bias, negative_slope=0.2, scale=2**0.5):
    rest_dim = [1] * (input.ndim - bias.ndim - 1)
    return (
        F.leaky_relu(input + bias.view(1, bias.shape[0], *rest_dim), negative_slope=negative_slope)
        * scale
    )


def upfirdn2d(input, kernel, up=1, down=1, pad=(0, 0)):
    _, channel, in_h, in_w = input.shape
    input = input.reshape(-1, in_h, in_w, 1)
    _, in_h, in_w, minor = input.shape
    kernel_h, kernel_w = kernel.shape
    out = input.view(-1, in_h, 1, in_w, 1, minor)
    out = F.pad(out, [0, 0, 0, up - 1, 0, 0, 0, up - 1])
    out = out.view(-1, in_h * up, in_w * up, minor)
    out = F.pad(out, [0, 0, max(pad[0], 0), max(pad[1], 0), max(pad[0], 0), max(pad[1], 0)])
    out = out[
        :,
        max(-pad[0], 0) : out.shape[1] - max(-pad[1], 0),
        max(-pad[0], 0) : out.shape[2] - max(-pad[1], 0),
        :,
    ]
    out = out.permute(0, 3, 1, 2)
    out = out.reshape([-1, 1, in_h * up + sum(pad), in_w * up + sum(pad)])
    w = torch.flip(kernel, [0, 1]).view(1, 1, kernel_h, kernel_w)
    out = F.conv2d(out, w)
    out = out[:, :, ::down, ::down]
    return out.reshape(-1, channel, out.shape[2], out.shape[3])


class EqualLinear(nn.Module):
    def __init__(self, in_dim, out_dim, bias_init=0, lr_mul=1.0, activation=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_dim, in_dim).div_(lr_mul))
        self.bias = nn.Parameter(torch.zeros(out_dim).fill_(bias_init))
        self.activation = activation
        self.scale = (1 / math.sqrt(in_dim)) * lr_mul
        self.lr_mul = lr_mul

    def forward(self, input):
        if self.activation:
            return fused_leaky_relu(
                F.linear(input, self.weight * self.scale), self.bias * self.lr_mul
            )
        return F.linear(input, self.weight * self.scale, bias=self.bias * self.lr_mul)


class ModulatedConv2d(nn.Module):
    def __init__(self, in_channel, out_channel, kernel_size, style_dim, upsample=False):
        super().__init__()
        self.upsample = upsample
        self.out_channel, self.in_channel, self.kernel_size = out_channel, in_channel, kernel_size
        k = torch.tensor([1.0, 3.0, 3.0, 1.0])
        k = k[None, :] * k[:, None]
        self.register_buffer("blur", k / k.sum() * 4)
        self.scale = 1 / math.sqrt(in_channel * kernel_size**2)
        self.padding = kernel_size // 2
        self.weight = nn.Parameter(
            torch.randn(1, out_channel, in_channel, kernel_size, kernel_size)
        )
        self.modulation = EqualLinear(style_dim, in_channel, bias_init=1)

    def forward(self, input, style):
        batch, in_channel, height, width = input.shape
        style = self.modulation(style).view(batch, 1, in_channel, 1, 1)
        weight = self.scale * self.weight * style
        demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
        weight = weight * demod.view(batch, self.out_channel, 1, 1, 1)
        weight = weight.view(
            batch * self.out_channel, in_channel, self.kernel_size, self.kernel_size
        )
        if self.upsample:
            input = input.view(1, batch * in_channel, height, width)
            weight = weight.view(
                batch, self.out_channel, in_channel, self.kernel_size, self.kernel_size
            )
            weight = weight.transpose(1, 2).reshape(
                batch * in_channel, self.out_channel, self.kernel_size, self.kernel_size
            )
            out = F.conv_transpose2d(input, weight, padding=0, stride=2, groups=batch)
            _, _, height, width = out.shape
            out = out.view(batch, self.out_channel, height, width)
            return upfirdn2d(out, self.blur, pad=(1, 1))
        input = input.view(1, batch * in_channel, height, width)
        out = F.conv2d(input, weight, padding=self.padding, groups=batch)
        _, _, height, width = out.shape
        return out.view(batch, self.out_channel, height, width)


class PixelNorm(nn.Module):
    def forward(self, input):
        return input * torch.rsqrt(torch.mean(input**2, dim=1, keepdim=True) + 1e-8)


class StyleGenerator(nn.Module):
    def __init__(self, style_dim=6):
        super().__init__()
        self.style = nn.Sequential(
            PixelNorm(), EqualLinear(style_dim, style_dim, lr_mul=0.01, activation="fused_lrelu")
        )
        self.input = nn.Parameter(torch.randn(1, 4, 3, 3))
        self.conv1 = ModulatedConv2d(4, 4, 3, style_dim)
        self.conv2 = ModulatedConv2d(4, 4, 3, style_dim, upsample=True)
        self.bias = nn.Parameter(torch.zeros(4))
        self.noise = nn.Parameter(torch.zeros(1))
        self.to_rgb = nn.Conv2d(4, 1, 1)

    def forward(self, z, noise):
        style = self.style(z)
        x = self.conv1(self.input.repeat(z.shape[0], 1, 1, 1), style)
        x = self.conv2(x, style)
        x = fused_leaky_relu(x + self.noise * noise, self.bias)
        return self.to_rgb(x), style


class StyleDiscriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.final = nn.Linear(5 * 36, 1)

    def forward(self, x):
        out = F.leaky_relu(self.conv(x), 0.2)
        batch, channel, height, width = out.shape
        group = min(batch, 2)
        stddev = out.view(group, -1, 1, channel // 1, height, width)
        stddev = torch.sqrt(stddev.var(0, unbiased=False) + 1e-8)
        stddev = stddev.mean([2, 3, 4], keepdim=True).squeeze(2)
        stddev = stddev.repeat(group, 1, height, width)
        return self.final(torch.cat([out, stddev], 1).view(batch, -1))


def d_r1_loss(real_pred, real_img):
    (grad_real,) = autograd.grad(outputs=real_pred.sum(), inputs=real_img, create_graph=True)
    return grad_real.pow(2).reshape(grad_real.shape[0], -1).sum(1).mean()


def g_path_regularize(fake_img, latents, noise, mean_path_length, decay=0.01):
    noise = noise / math.sqrt(fake_img.shape[2] * fake_img.shape[3])
    (grad,) = autograd.grad(outputs=(fake_img * noise).sum(), inputs=latents, create_graph=True)
    path_lengths = torch.sqrt(grad.pow(2).sum(1) + 1e-12)
    path_mean = mean_path_length + decay * (path_lengths.mean() - mean_path_length)
    return (path_lengths - path_mean).pow(2).mean(), path_mean.detach()


def build():
    torch.manual_seed(3)
    return {"g": StyleGenerator(), "d": StyleDiscriminator()}


def run(models, compile):
    rng = np.random.default_rng(4)
    random.seed(4)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # StyleGAN2
    g, d = models["g"], models["d"]
    g_optim = torch.optim.Adam(g.parameters(), lr=0.002, betas=(0.0, 0.99))
    d_optim = torch.optim.Adam(d.parameters(), lr=0.002, betas=(0.0, 0.99))
    z, real, noise, path = draw(4, 6), draw(4, 1, 6, 6), draw(4, 1, 6, 6), draw(4, 1, 6, 6)

    def style_step(z, real, noise, path, mean_path_length):
        fake, _ = g(z, noise)
        real = real.detach().requires_grad_()
        real_pred = d(real)
        d_loss = F.softplus(-real_pred).mean() + F.softplus(d(fake.detach())).mean()
        d_loss = d_loss + 5.0 * d_r1_loss(real_pred, real)
        d.zero_grad()
        d_loss.backward()
        d_optim.step()
        fake, style = g(z, noise)
        g_loss = F.softplus(-d(fake)).mean()
        path_loss, mean = g_path_regularize(fake, style, path, mean_path_length)
        g.zero_grad()
        (g_loss + 2 * path_loss).backward()
        g_optim.step()
        return d_loss.detach(), g_loss.detach(), mean

    step, mean = compile(style_step), torch.zeros(())
    for _ in range(3):
        *losses, mean = step(z, real, noise, path, mean)
    found["style"] = losses, mean
    return found
