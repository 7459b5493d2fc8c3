"""Sequence mixers: Mamba's selective scan, RWKV's recurrence, retention, a TCN and WaveNet's gates,
linear attention, a GRU of cells written by hand, ALiBi, MLP-Mixer, Perceiver's cross-attention."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class MambaBlock(nn.Module):
    def __init__(self, d_model=4, d_state=3, d_conv=3, dt_rank=2):
        super().__init__()
        self.d_inner, self.d_state, self.dt_rank = 2 * d_model, d_state, dt_rank
        self.in_proj = nn.Linear(d_model, self.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(
            in_channels=self.d_inner, out_channels=self.d_inner, bias=True, kernel_size=d_conv,
            groups=self.d_inner, padding=d_conv - 1,
        )  # fmt: skip
        self.x_proj = nn.Linear(self.d_inner, dt_rank + d_state * 2, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.d_inner, bias=True)
        A = torch.arange(1, d_state + 1, dtype=torch.get_default_dtype()).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(A))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, x):
        (b, length, d) = x.shape
        x_and_res = self.in_proj(x)
        (x, res) = x_and_res.split(split_size=[self.d_inner, self.d_inner], dim=-1)
        x = x.movedim(1, 2)
        x = self.conv1d(x)[:, :, :length]
        x = F.silu(x.movedim(2, 1))
        y = self.ssm(x)
        y = y * F.silu(res)
        return self.out_proj(y)

    def ssm(self, x):
        (d_in, n) = self.A_log.shape
        A = -torch.exp(self.A_log.float()).to(x.dtype)
        (delta, B, C) = self.x_proj(x).split([self.dt_rank, n, n], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        return self.selective_scan(x, delta, A, B, C, self.D)

    def selective_scan(self, u, delta, A, B, C, D):
        (b, length, d_in) = u.shape
        n = A.shape[1]
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x = torch.zeros((b, d_in, n), device=deltaA.device)
        ys = []
        for i in range(length):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i, :]))
        y = torch.stack(ys, dim=1)
        return y + u * D


class RWKV(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-1, 0.5, n))
        self.time_first = nn.Parameter(torch.ones(n) * math.log(0.3))
        self.time_mix = nn.Parameter(torch.full((1, 1, n), 0.4))
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.receptance, self.output = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        xx = self.time_shift(x)
        mixed = x * self.time_mix + xx * (1 - self.time_mix)
        k, v, r = self.key(mixed), self.value(mixed), torch.sigmoid(self.receptance(mixed))
        w, u = -torch.exp(self.time_decay), self.time_first
        aa = bb = x.new_zeros(B, C)
        pp = torch.full_like(aa, -1e38)
        outs = []
        for t in range(T):
            ww = u + k[:, t]
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            outs.append((e1 * aa + e2 * v[:, t]) / (e1 * bb + e2))
            ww = w + pp
            p = torch.maximum(ww, k[:, t])
            e1, e2 = torch.exp(ww - p), torch.exp(k[:, t] - p)
            aa, bb, pp = e1 * aa + e2 * v[:, t], e1 * bb + e2, p
        return self.output(r * torch.stack(outs, 1))


class Retention(nn.Module):
    def __init__(self, dim=4, gamma=0.9):
        super().__init__()
        self.gamma = gamma
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(dim, dim) / dim) for _ in range(3))
        self.group_norm = nn.GroupNorm(2, dim)

    def _get_D(self, sequence_length):
        n = torch.arange(sequence_length).unsqueeze(1)
        m = torch.arange(sequence_length).unsqueeze(0)
        D = (self.gamma ** (n - m)) * (n >= m).to(torch.get_default_dtype())
        D[D != D] = 0
        return D

    def forward(self, X):
        D = self._get_D(X.shape[1])
        ret = (X @ self.W_Q @ (X @ self.W_K).permute(0, 2, 1)) * D.unsqueeze(0)
        Y = ret @ (X @ self.W_V)
        return self.group_norm(Y.reshape(-1, 4)).reshape(Y.shape)


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super(Chomp1d, self).__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class WaveBlock(nn.Module):
    def __init__(self, channels=4, dilations=(1, 2)):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, 2 * channels, 2, padding=d, dilation=d))
            for d in dilations
        )
        self.chomps = nn.ModuleList(Chomp1d(d) for d in dilations)
        self.skips = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in dilations)

    def forward(self, x):
        x, total = x.transpose(1, 2), 0
        for conv, chomp, skip in zip(self.convs, self.chomps, self.skips):
            y = F.glu(chomp(conv(x)), dim=1) * torch.tanh(x)
            total = total + skip(y)
            x = x + y
        return (total + x).mT


class LinearAttention(nn.Module):
    def __init__(self, dim=4, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        m = torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("m", m[:, None, None], persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        fq, fk = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->bhnde", fk, v).cumsum(2)
        z = 1 / (torch.einsum("bhnd,bhnd->bhn", fq, fk.cumsum(2)) + 1e-6)
        linear = torch.einsum("bhnd,bhnde,bhn->bhne", fq, kv, z)
        at = torch.arange(n)
        bias = -(at[:, None] - at[None, :]).abs() * self.m
        alibi = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(b, -1, -1, -1))
        return (linear + alibi).transpose(1, 2).flatten(2)


class Cells(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.gates = nn.Linear(2 * dim, 2 * dim)
        self.candidate = nn.Linear(2 * dim, dim)
        self.cell = nn.LSTMCell(dim, dim)

    def forward(self, x):
        h = hx = cx = torch.zeros(x.size(0), x.size(2), dtype=x.dtype)
        out = torch.empty_like(x)
        for t, step in enumerate(x.unbind(1)):
            z, r = torch.sigmoid(self.gates(torch.cat([step, h], 1))).chunk(2, 1)
            new = torch.tanh(self.candidate(torch.cat([step, r * h], 1)))
            h = torch.lerp(new, h, z)
            hx, cx = self.cell(h, (hx, cx))
            out[:, t] = hx
        return out


class MixerPerceiver(nn.Module):
    def __init__(self, tokens=4, dim=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(
            nn.Linear(tokens, 5), nn.GELU(approximate="tanh"), nn.Linear(5, tokens)
        )
        self.channel = nn.Sequential(nn.Conv1d(dim, 5, 1), nn.Mish(), nn.Conv1d(5, dim, 1))
        self.latents = nn.Parameter(torch.randn(3, dim) * 0.02)
        self.cross = nn.MultiheadAttention(dim, 1, kdim=dim, vdim=dim, batch_first=True)

    def forward(self, x):
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel(self.norm2(x).permute(0, 2, 1)).permute(0, 2, 1)
        latents = self.latents.unsqueeze(0).repeat(x.size(0), 1, 1)
        z, _ = self.cross(latents, x, x, need_weights=False)
        return torch.cat([x[:, :1], z], 1)


LAYERS = [MambaBlock, RWKV, Retention, WaveBlock, LinearAttention, Cells, MixerPerceiver]
SCALE = 2e3  # Mamba's decay is single precision


def build():
    return {layer.__name__: layer() for layer in LAYERS}


def run(models, compile):
    rng = np.random.default_rng(26)
    found = {}
    for name, model in models.items():
        optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)

        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.huber_loss(model(x), y, delta=0.7)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, losses = compile(step), []
        for _ in range(3):
            x, y = torch.tensor(rng.standard_normal((2, 2, 4, 4)), dtype=torch.get_default_dtype())
            losses.append(step(x, y).item())
        found[name] = losses
    return found
