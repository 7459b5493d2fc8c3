"""Networks as functions of coordinates: NeRF with stratified and importance samples and volume
rendering, SIREN with its gradient and Laplacian, Fourier features, KAN's splines, deep sets."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def img2mse(x, y):
    return torch.mean((x - y) ** 2)


def mse2psnr(x):
    return -10.0 * torch.log(x) / torch.log(torch.Tensor([10.0]))


class Embedder:
    def __init__(self, **kwargs):
        self.kwargs = kwargs
        self.create_embedding_fn()

    def create_embedding_fn(self):
        embed_fns = []
        d = self.kwargs["input_dims"]
        out_dim = 0
        if self.kwargs["include_input"]:
            embed_fns.append(lambda x: x)
            out_dim += d
        max_freq, N_freqs = self.kwargs["max_freq_log2"], self.kwargs["num_freqs"]
        freq_bands = 2.0 ** torch.linspace(0.0, max_freq, steps=N_freqs)
        for freq in freq_bands:
            for p_fn in self.kwargs["periodic_fns"]:
                embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
                out_dim += d
        self.embed_fns = embed_fns
        self.out_dim = out_dim

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)


class NeRF(nn.Module):
    def __init__(self, D=3, W=8, skips=(1,)):
        super(NeRF, self).__init__()
        self.embedder = Embedder(
            include_input=True, input_dims=3, max_freq_log2=1, num_freqs=2,
            periodic_fns=[torch.sin, torch.cos],
        )  # fmt: skip
        input_ch = self.embedder.out_dim
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)]
            + [
                nn.Linear(W, W) if i not in skips else nn.Linear(W + input_ch, W)
                for i in range(D - 1)
            ]
        )
        self.alpha_linear = nn.Linear(W, 1)
        self.views_linear = nn.Linear(W + 3, W // 2)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, pts, views):
        input_pts = self.embedder.embed(pts)
        h = input_pts
        for i, _ in enumerate(self.pts_linears):
            h = F.relu(self.pts_linears[i](h))
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)
        alpha = self.alpha_linear(h)
        h = F.relu(self.views_linear(torch.cat([h, views], -1)))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def get_rays(H, W, K, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing="ij")
    i, j = i.t(), j.t()
    dirs = torch.stack([(i - K[0][2]) / K[0][0], -(j - K[1][2]) / K[1][1], -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d


def raw2outputs(raw, z_vals, rays_d, white_bkgd=False):
    raw2alpha = lambda raw, dists, act_fn=F.relu: 1.0 - torch.exp(-act_fn(raw) * dists)  # noqa: E731
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    far = torch.Tensor([1e10]).expand(dists[..., :1].shape)
    dists = torch.cat([dists, far], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
    rgb = torch.sigmoid(raw[..., :3])
    alpha = raw2alpha(raw[..., 3], dists)
    weights = (
        alpha
        * torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)), 1.0 - alpha + 1e-10], -1), -1)[
            :, :-1
        ]
    )
    rgb_map = torch.sum(weights[..., None] * rgb, -2)
    depth_map = torch.sum(weights * z_vals, -1)
    total = torch.sum(weights, -1)
    disp_map = 1.0 / torch.max(1e-10 * torch.ones_like(depth_map), depth_map / (total + 1e-10))
    if white_bkgd:
        rgb_map = rgb_map + (1.0 - total[..., None])
    return rgb_map, disp_map, weights, depth_map


def sample_pdf(bins, weights, N_samples):
    weights = weights + 1e-5
    pdf = weights / torch.sum(weights, -1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    u = torch.linspace(0.05, 0.95, steps=N_samples)
    u = u.expand(list(cdf.shape[:-1]) + [N_samples])
    u = u.contiguous()
    inds = torch.searchsorted(cdf, u, right=True)
    below = torch.max(torch.zeros_like(inds - 1), inds - 1)
    above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    inds_g = torch.stack([below, above], -1)
    matched_shape = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
    cdf_g = torch.gather(cdf.unsqueeze(1).expand(matched_shape), 2, inds_g)
    bins_g = torch.gather(bins.unsqueeze(1).expand(matched_shape), 2, inds_g)
    denom = cdf_g[..., 1] - cdf_g[..., 0]
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    t = (u - cdf_g[..., 0]) / denom
    return bins_g[..., 0] + t * (bins_g[..., 1] - bins_g[..., 0])


class SineLayer(nn.Module):
    def __init__(self, in_features, out_features, bias=True, is_first=False, omega_0=3):
        super().__init__()
        self.omega_0, self.is_first, self.in_features = omega_0, is_first, in_features
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.init_weights()

    def init_weights(self):
        with torch.no_grad():
            bound = (
                1 / self.in_features
                if self.is_first
                else np.sqrt(6 / self.in_features) / self.omega_0
            )
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, input):
        return torch.sin(self.omega_0 * self.linear(input))


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(SineLayer(2, 6, is_first=True), SineLayer(6, 6), nn.Linear(6, 1))

    def forward(self, coords):
        coords = coords.clone().detach().requires_grad_(True)
        return self.net(coords), coords


def gradient(y, x, grad_outputs=None):
    if grad_outputs is None:
        grad_outputs = torch.ones_like(y)
    return torch.autograd.grad(y, [x], grad_outputs=grad_outputs, create_graph=True)[0]


def divergence(y, x):
    div = 0.0
    for i in range(y.shape[-1]):
        div += torch.autograd.grad(y[..., i], x, torch.ones_like(y[..., i]), create_graph=True)[0][
            ..., i : i + 1
        ]
    return div


def laplace(y, x):
    return divergence(gradient(y, x), x)


class KANLinear(nn.Module):
    def __init__(self, in_features, out_features, grid_size=3, spline_order=2):
        super().__init__()
        self.in_features, self.spline_order = in_features, spline_order
        h = 2.0 / grid_size
        grid = torch.arange(-spline_order, grid_size + spline_order + 1) * h - 1
        self.register_buffer("grid", grid.expand(in_features, -1).contiguous())
        self.base_weight = nn.Parameter(torch.empty(out_features, in_features))
        self.spline_weight = nn.Parameter(
            torch.empty(out_features, in_features, grid_size + spline_order)
        )
        nn.init.kaiming_uniform_(self.base_weight, a=np.sqrt(5))
        nn.init.normal_(self.spline_weight, std=0.1)

    def b_splines(self, x):
        grid, x = self.grid, x.unsqueeze(-1)
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.spline_order + 1):
            bases = (
                (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * bases[:, :, :-1]
            ) + ((grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)]) * bases[:, :, 1:])
        return bases.contiguous()

    def forward(self, x):
        base = F.linear(F.silu(x), self.base_weight)
        spline = F.linear(
            self.b_splines(x).view(x.size(0), -1), self.spline_weight.view(base.size(1), -1)
        )
        return base + spline


def build():
    kan = nn.Sequential(KANLinear(2, 4), nn.LayerNorm(4), nn.Tanh(), KANLinear(4, 1))
    return {"nerf": NeRF(), "siren": Siren(), "kan": kan}


def run(models, compile):
    rng = np.random.default_rng(25)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.uniform(-1, 1, shape), dtype=dtype)

    nerf, found = models["nerf"], {}
    K = np.array([[4.0, 0, 1.5], [0, 4.0, 1.0], [0, 0, 1]])
    pose = torch.eye(4) + 0.1 * draw(4, 4)
    rays_o, rays_d = get_rays(2, 3, K, pose)
    rays_o, rays_d = torch.reshape(rays_o, [-1, 3]), torch.reshape(rays_d, [-1, 3])
    target = draw(6, 3).abs()
    optimizer = torch.optim.Adam(params=list(nerf.parameters()), lr=5e-3, betas=(0.9, 0.999))

    @compile
    def render_step(t_rand):
        viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
        t_vals = torch.linspace(0.0, 1.0, steps=5)
        z_vals = 2.0 * (1.0 - t_vals) + 6.0 * t_vals
        z_vals = z_vals.expand([6, 5])
        mids = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        z_vals = lower + (upper - lower) * t_rand
        outs, weights = [], None
        for fine in (False, True):
            if fine:
                z_mid = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
                z_samples = sample_pdf(z_mid, weights[..., 1:-1], 3).detach()
                z_vals, _ = torch.sort(torch.cat([z_vals, z_samples], -1), -1)
            pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
            dirs = viewdirs[:, None].expand(pts.shape)
            raw = nerf(pts, dirs)
            rgb, disp, weights, _ = raw2outputs(raw, z_vals, rays_d, white_bkgd=True)
            outs.append(rgb)
        optimizer.zero_grad()
        img_loss = img2mse(outs[1], target)
        loss = img_loss + img2mse(outs[0], target)
        loss.backward()
        optimizer.step()
        return loss.detach(), mse2psnr(img_loss.detach()), disp.detach()

    found["nerf"] = [render_step(draw(6, 5).abs()) for _ in range(3)]
    for group in optimizer.param_groups:
        group["lr"] = 5e-3 * (0.1 ** (3 / 100))

    siren = models["siren"]
    adam = torch.optim.Adam(lr=1e-3, params=siren.parameters())

    @compile
    def siren_step(coords, values):
        out, at = siren(coords)
        loss = ((out - values) ** 2).mean() + 0.01 * ((laplace(out, at) - 1) ** 2).mean()
        loss = loss + 0.1 * (gradient(out, at).norm(dim=-1) - 1).abs().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.detach()

    found["siren"] = [siren_step(draw(5, 2), draw(5, 1)).item() for _ in range(3)]

    kan = models["kan"]
    adamw = torch.optim.AdamW(kan.parameters(), lr=1e-2, weight_decay=1e-4)

    @compile
    def kan_step(x):
        y = torch.exp(torch.sin(torch.pi * x[:, [0]]) + x[:, [1]] ** 2)
        adamw.zero_grad()
        loss = F.mse_loss(kan(x), y)
        loss.backward()
        adamw.step()
        return loss.detach()

    found["kan"] = [kan_step(draw(7, 2) * 0.9).item() for _ in range(3)]
    return found
