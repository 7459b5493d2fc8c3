"""Denoising diffusion: a small U-Net with time embeddings and attention, training and sampling."""

import math
from inspect import isfunction

import numpy as np
import torch
import torch.nn.functional as F
from torch import einsum, nn


def exists(x):
    return x is not None


def default(val, d):
    if exists(val):
        return val
    return d() if isfunction(d) else d


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, *args, **kwargs):
        return self.fn(x, *args, **kwargs) + x


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class WeightStandardizedConv2d(nn.Conv2d):
    def forward(self, x):
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        weight = self.weight
        mean = weight.mean(dim=(1, 2, 3), keepdim=True)
        var = weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        normalized_weight = (weight - mean) * (var + eps).rsqrt()
        return F.conv2d(
            x, normalized_weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class Block(nn.Module):
    def __init__(self, dim, dim_out, groups=2):
        super().__init__()
        self.proj = WeightStandardizedConv2d(dim, dim_out, 3, padding=1)
        self.norm = nn.GroupNorm(groups, dim_out)
        self.act = nn.SiLU()

    def forward(self, x, scale_shift=None):
        x = self.norm(self.proj(x))
        if exists(scale_shift):
            scale, shift = scale_shift
            x = x * (scale + 1) + shift
        return self.act(x)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, *, time_emb_dim=None, groups=2):
        super().__init__()
        self.mlp = (
            nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
            if exists(time_emb_dim)
            else None
        )
        self.block1 = Block(dim, dim_out, groups=groups)
        self.block2 = Block(dim_out, dim_out, groups=groups)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, time_emb=None):
        scale_shift = None
        if exists(self.mlp) and exists(time_emb):
            time_emb = self.mlp(time_emb)
            time_emb = time_emb[:, :, None, None]
            scale_shift = time_emb.chunk(2, dim=1)
        h = self.block1(x, scale_shift=scale_shift)
        h = self.block2(h)
        return h + self.res_conv(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=2, dim_head=4):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        hidden_dim = dim_head * heads
        self.to_qkv = nn.Conv2d(dim, hidden_dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(hidden_dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(x).chunk(3, dim=1))
        q = q * self.scale
        sim = einsum("b h d i, b h d j -> b h i j", q, k)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h d j -> b h i d", attn, v)
        out = out.permute(0, 1, 3, 2).reshape(b, -1, h, w)
        return self.to_out(out)


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.GroupNorm(1, dim)

    def forward(self, x):
        return self.fn(self.norm(x))


class Unet(nn.Module):
    def __init__(self, dim, init_dim=None, out_dim=None, channels=1, self_condition=False):
        super().__init__()
        self.channels = channels
        init_dim = default(init_dim, dim)
        self.init_conv = nn.Conv2d(channels, init_dim, 1, padding=0)
        time_dim = dim * 2
        self.time_mlp = nn.Sequential(
            SinusoidalPositionEmbeddings(dim), nn.Linear(dim, time_dim), nn.GELU(),
            nn.Linear(time_dim, time_dim),
        )  # fmt: skip
        self.down = ResnetBlock(init_dim, init_dim, time_emb_dim=time_dim)
        self.downsample = nn.Conv2d(init_dim, dim * 2, 4, 2, 1)
        self.mid_attn = Residual(PreNorm(dim * 2, Attention(dim * 2)))
        self.mid = ResnetBlock(dim * 2, dim * 2, time_emb_dim=time_dim)
        self.upsample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(dim * 2, dim, 3, padding=1)
        )
        self.up = ResnetBlock(dim + init_dim, dim, time_emb_dim=time_dim)
        self.final_conv = nn.Conv2d(dim, default(out_dim, channels), 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        t = self.time_mlp(time)
        h = self.down(x, t)
        x = self.mid(self.mid_attn(self.downsample(h)), t)
        x = torch.cat((self.upsample(x), h), dim=1)
        return self.final_conv(self.up(x, t))


def cosine_beta_schedule(timesteps, s=0.008):
    steps = timesteps + 1
    x = torch.linspace(0, timesteps, steps)
    alphas_cumprod = torch.cos(((x / timesteps) + s) / (1 + s) * torch.pi * 0.5) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    betas = 1 - (alphas_cumprod[1:] / alphas_cumprod[:-1])
    return torch.clip(betas, 0.0001, 0.9999)


def extract(a, t, x_shape):
    batch_size = t.shape[0]
    out = a.gather(-1, t.cpu())
    return out.reshape(batch_size, *((1,) * (len(x_shape) - 1))).to(t.device)


class Diffusion:
    def __init__(self, timesteps=5):
        self.timesteps = timesteps
        betas = cosine_beta_schedule(timesteps)
        self.betas = betas
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, axis=0)
        alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
        self.sqrt_recip_alphas = torch.sqrt(1.0 / alphas)
        self.sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
        self.sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)
        self.posterior_variance = betas * (1.0 - alphas_cumprod_prev) / (1.0 - alphas_cumprod)

    def q_sample(self, x_start, t, noise=None):
        noise = default(noise, lambda: torch.randn_like(x_start))
        a = extract(self.sqrt_alphas_cumprod, t, x_start.shape)
        return a * x_start + extract(self.sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise

    def p_losses(self, denoise_model, x_start, t, noise=None, loss_type="l1"):
        noise = default(noise, lambda: torch.randn_like(x_start))
        predicted_noise = denoise_model(self.q_sample(x_start, t, noise), t)
        if loss_type == "l1":
            return F.l1_loss(noise, predicted_noise)
        if loss_type == "huber":
            return F.smooth_l1_loss(noise, predicted_noise)
        raise NotImplementedError()

    @torch.no_grad()
    def p_sample(self, model, x, t, t_index, noise):
        betas_t = extract(self.betas, t, x.shape)
        sqrt_one_minus_alphas_cumprod_t = extract(self.sqrt_one_minus_alphas_cumprod, t, x.shape)
        sqrt_recip_alphas_t = extract(self.sqrt_recip_alphas, t, x.shape)
        model_mean = sqrt_recip_alphas_t * (
            x - betas_t * model(x, t) / sqrt_one_minus_alphas_cumprod_t
        )
        if t_index == 0:
            return model_mean
        return model_mean + torch.sqrt(extract(self.posterior_variance, t, x.shape)) * noise


def build():
    return Unet(4)


def run(model, compile):
    rng = np.random.default_rng(4)

    def draw(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).to(torch.get_default_dtype())

    diffusion = Diffusion()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    @compile
    def train_step(batch, t, noise):
        optimizer.zero_grad()
        loss = diffusion.p_losses(model, batch, t, noise, loss_type="huber")
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for _ in range(3):
        t = torch.from_numpy(rng.integers(0, diffusion.timesteps, (2,))).long()
        losses.append(train_step(draw(2, 1, 6, 6), t, draw(2, 1, 6, 6)).item())
    img = draw(1, 1, 6, 6)
    model.eval()
    for i in reversed(range(0, diffusion.timesteps)):
        t = torch.full((1,), i, dtype=torch.long)
        img = diffusion.p_sample(model, img, t, i, draw(*img.shape))
    return {"losses": losses, "image": img, "clamped": (img.clamp(-1, 1) + 1) * 0.5}
