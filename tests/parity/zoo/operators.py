"""Learned operators and equilibria: a Fourier neural operator (complex weights), a deep equilibrium
model (Anderson acceleration, its gradient by a hook), a Perceiver, a temporal convolutional net
with weight norm, DQN, gradients per sample by vmap, and a tensor class of fastai's kind.
"""

import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.autograd as autograd
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.nn.utils import weight_norm


# -- Fourier neural operator -----------------------------------------------------------------------
class SpectralConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, modes1, modes2):
        super(SpectralConv2d, self).__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.modes1, self.modes2 = modes1, modes2
        self.scale = 1 / (in_channels * out_channels)
        kind = torch.complex(torch.zeros(()), torch.zeros(())).dtype
        shape = (in_channels, out_channels, modes1, modes2)
        self.weights1 = nn.Parameter(self.scale * torch.rand(*shape, dtype=kind))
        self.weights2 = nn.Parameter(self.scale * torch.rand(*shape, dtype=kind))

    def compl_mul2d(self, input, weights):
        return torch.einsum("bixy,ioxy->boxy", input, weights)

    def forward(self, x):
        batchsize = x.shape[0]
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros(
            batchsize, self.out_channels, x.size(-2), x.size(-1) // 2 + 1,
            dtype=x_ft.dtype, device=x.device,
        )  # fmt: skip
        m1, m2 = self.modes1, self.modes2
        out_ft[:, :, :m1, :m2] = self.compl_mul2d(x_ft[:, :, :m1, :m2], self.weights1)
        out_ft[:, :, -m1:, :m2] = self.compl_mul2d(x_ft[:, :, -m1:, :m2], self.weights2)
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


class FNO2d(nn.Module):
    def __init__(self, modes=2, width=4, padding=2):
        super(FNO2d, self).__init__()
        self.padding = padding
        self.p = nn.Linear(3, width)
        self.conv = SpectralConv2d(width, width, modes, modes)
        self.w = nn.Conv2d(width, width, 1)
        self.norm = nn.InstanceNorm2d(width)
        self.q = nn.Linear(width, 1)

    def forward(self, x):
        grid = self.get_grid(x.shape, x.device).to(x.dtype)
        x = self.p(torch.cat((x, grid), dim=-1)).permute(0, 3, 1, 2)
        x = F.pad(x, [0, self.padding, 0, self.padding])
        x = F.gelu(self.norm(self.conv(self.norm(x))) + self.w(x))
        x = x[..., : -self.padding, : -self.padding].permute(0, 2, 3, 1)
        return self.q(x)

    def get_grid(self, shape, device):
        batchsize, size_x, size_y = shape[0], shape[1], shape[2]
        gridx = torch.tensor(np.linspace(0, 1, size_x), dtype=torch.float)
        gridx = gridx.reshape(1, size_x, 1, 1).repeat([batchsize, 1, size_y, 1])
        gridy = torch.tensor(np.linspace(0, 1, size_y), dtype=torch.float)
        gridy = gridy.reshape(1, 1, size_y, 1).repeat([batchsize, size_x, 1, 1])
        return torch.cat((gridx, gridy), dim=-1).to(device)


class LpLoss(object):
    def __call__(self, x, y):
        num_examples = x.size()[0]
        diff = torch.norm(x.reshape(num_examples, -1) - y.reshape(num_examples, -1), 2, 1)
        return torch.mean(diff / torch.norm(y.reshape(num_examples, -1), 2, 1))


# -- deep equilibrium ------------------------------------------------------------------------------
def anderson(f, x0, m=4, lam=1e-4, max_iter=15, beta=1.0):
    bsz, d, H, W = x0.shape
    X = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    F_ = torch.zeros(bsz, m, d * H * W, dtype=x0.dtype, device=x0.device)
    X[:, 0], F_[:, 0] = x0.reshape(bsz, -1), f(x0).reshape(bsz, -1)
    X[:, 1], F_[:, 1] = F_[:, 0], f(F_[:, 0].reshape_as(x0)).reshape(bsz, -1)
    H = torch.zeros(bsz, m + 1, m + 1, dtype=x0.dtype, device=x0.device)
    H[:, 0, 1:] = H[:, 1:, 0] = 1
    y = torch.zeros(bsz, m + 1, 1, dtype=x0.dtype, device=x0.device)
    y[:, 0] = 1
    res = []
    for k in range(2, max_iter):
        n = min(k, m)
        G = F_[:, :n] - X[:, :n]
        eye = torch.eye(n, dtype=x0.dtype, device=x0.device)[None]
        H[:, 1 : n + 1, 1 : n + 1] = torch.bmm(G, G.transpose(1, 2)) + lam * eye
        alpha = torch.linalg.solve(H[:, : n + 1, : n + 1], y[:, : n + 1])[:, 1 : n + 1, 0]
        X[:, k % m] = (
            beta * (alpha[:, None] @ F_[:, :n])[:, 0]
            + (1 - beta) * (alpha[:, None] @ X[:, :n])[:, 0]
        )
        F_[:, k % m] = f(X[:, k % m].reshape_as(x0)).reshape(bsz, -1)
        res.append((F_[:, k % m] - X[:, k % m]).norm() / (1e-5 + F_[:, k % m].norm()))
    return X[:, k % m].view_as(x0), res


class ResNetLayer(nn.Module):
    def __init__(self, n_channels, n_inner, kernel_size=3, num_groups=2):
        super().__init__()
        pad = kernel_size // 2
        self.conv1 = nn.Conv2d(n_channels, n_inner, kernel_size, padding=pad, bias=False)
        self.conv2 = nn.Conv2d(n_inner, n_channels, kernel_size, padding=pad, bias=False)
        self.norm1 = nn.GroupNorm(num_groups, n_inner)
        self.norm2 = nn.GroupNorm(num_groups, n_channels)
        self.norm3 = nn.GroupNorm(num_groups, n_channels)
        self.conv1.weight.data.normal_(0, 0.01)
        self.conv2.weight.data.normal_(0, 0.01)

    def forward(self, z, x):
        y = self.norm1(F.relu(self.conv1(z)))
        return self.norm3(F.relu(z + self.norm2(x + self.conv2(y))))


class DEQFixedPoint(nn.Module):
    def __init__(self, f, solver, **kwargs):
        super().__init__()
        self.f, self.solver, self.kwargs = f, solver, kwargs

    def forward(self, x):
        with torch.no_grad():
            z, self.forward_res = self.solver(
                lambda z: self.f(z, x), torch.zeros_like(x), **self.kwargs
            )
        z = self.f(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.f(z0, x)

        def backward_hook(grad):
            g, self.backward_res = self.solver(
                lambda y: autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad, **self.kwargs
            )
            return g

        z.register_hook(backward_hook)
        return z


# -- Perceiver -------------------------------------------------------------------------------------
def fourier_encode(x, max_freq, num_bands=3):
    x = x.unsqueeze(-1)
    orig_x = x
    scales = torch.linspace(1.0, max_freq / 2, num_bands, device=x.device, dtype=x.dtype)
    scales = scales[(*((None,) * (len(x.shape) - 1)), Ellipsis)]
    x = x * scales * torch.pi
    x = torch.cat([x.sin(), x.cos()], dim=-1)
    return torch.cat((x, orig_x), dim=-1)


class PerceiverAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=2, dim_head=4):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = context_dim if context_dim is not None else query_dim
        self.scale, self.heads = dim_head**-0.5, heads
        self.norm, self.norm_context = nn.LayerNorm(query_dim), nn.LayerNorm(context_dim)
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, mask=None):
        x = self.norm(x)
        context = self.norm_context(context if context is not None else x)
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        b, h = x.shape[0], self.heads
        q, k, v = (t.reshape(b, -1, h, t.shape[-1] // h).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            sim.masked_fill_(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class Perceiver(nn.Module):
    def __init__(self, channels=2, dim=6, latents=5, classes=3, depth=2):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        fourier = 2 * (3 * 2 + 1)
        self.layers = nn.ModuleList([])
        shared = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * 4), GEGLU(), nn.Linear(dim * 2, dim)
        )
        for _ in range(depth):
            cross = PerceiverAttention(dim, channels + fourier)
            self.layers.append(nn.ModuleList([cross, shared, PerceiverAttention(dim)]))
        self.to_logits = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, data, mask=None):
        b, *axis, _ = data.shape
        axis_pos = [torch.linspace(-1.0, 1.0, steps=size, dtype=data.dtype) for size in axis]
        pos = torch.stack(torch.meshgrid(*axis_pos, indexing="ij"), dim=-1)
        enc = fourier_encode(pos, 10.0).flatten(-2)
        data = torch.cat((data, enc.expand(b, *enc.shape)), dim=-1)
        data = data.reshape(b, -1, data.shape[-1])
        x = self.latents.unsqueeze(0).repeat(b, 1, 1)
        for cross, ff, attention in self.layers:
            x = cross(x, context=data, mask=mask) + x
            x = attention(ff(x) + x) + x
        return self.to_logits(x.mean(dim=-2))


# -- temporal convolutions -------------------------------------------------------------------------
class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super(Chomp1d, self).__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation):
        super(TemporalBlock, self).__init__()
        pad = (kernel_size - 1) * dilation
        self.conv1 = weight_norm(
            nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=pad, dilation=dilation)
        )
        self.conv2 = weight_norm(
            nn.Conv1d(n_outputs, n_outputs, kernel_size, padding=pad, dilation=dilation)
        )
        self.net = nn.Sequential(
            self.conv1, Chomp1d(pad), nn.ReLU(), self.conv2, Chomp1d(pad), nn.ReLU()
        )
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


# -- DQN -------------------------------------------------------------------------------------------
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)


class DQN(nn.Module):
    def __init__(self):
        super(DQN, self).__init__()
        self.layer1, self.layer2 = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


# -- a tensor that knows what it is ----------------------------------------------------------------
class TensorBase(torch.Tensor):
    def __new__(cls, x, **kwargs):
        res = x.as_subclass(cls)
        res._meta = kwargs
        return res

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if all(issubclass(cls, t) or t is torch.Tensor for t in types) is False:
            return NotImplemented
        res = super().__torch_function__(func, types, args, kwargs or {})
        source = next((a for a in args if isinstance(a, TensorBase) and hasattr(a, "_meta")), None)
        if isinstance(res, TensorBase) and source is not None:
            res._meta = dict(source._meta)
        return res


class TensorImage(TensorBase):
    def flip_lr(self):
        return self.flip(-1)


def build():
    torch.manual_seed(0)
    return {
        "fno": FNO2d(),
        "deq": nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4),
            DEQFixedPoint(ResNetLayer(4, 6), anderson), nn.AvgPool2d(4), nn.Flatten(),
            nn.Linear(4, 3),
        ),
        "perceiver": Perceiver(),
        "tcn": nn.Sequential(TemporalBlock(2, 3, 2, 1), TemporalBlock(3, 3, 2, 2)),
        "dqn": DQN(),
    }  # fmt: skip


def run(models, compile):
    rng = np.random.default_rng(11)
    dtype = torch.get_default_dtype()

    def normal(*shape):
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)

    fno, losses = models["fno"], []
    parts = [p for p in fno.parameters() if not p.is_complex()]
    optimizer = torch.optim.Adam(parts, lr=1e-2)
    loss_of = LpLoss()

    @compile
    def fno_step(x, y):
        optimizer.zero_grad()
        loss = loss_of(fno(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses += [fno_step(normal(2, 6, 5, 1), normal(2, 6, 5, 1)).item() for _ in range(3)]

    deq = models["deq"]
    optimizer = torch.optim.SGD(deq.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        loss = F.cross_entropy(deq(normal(3, 1, 4, 4)), torch.from_numpy(rng.integers(0, 3, 3)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), deq[2].forward_res[-1].item(), deq[2].backward_res[-1].item()]

    perceiver, tcn = models["perceiver"], models["tcn"]
    both = list(perceiver.parameters()) + list(tcn.parameters())
    optimizer = torch.optim.NAdam(both, lr=5e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=6)

    @compile
    def sequence_step(image, mask, signal, label):
        optimizer.zero_grad()
        out = tcn(signal)
        loss = F.cross_entropy(perceiver(image, mask), label) + F.huber_loss(
            out[..., :-1], out[..., 1:]
        )
        loss.backward()
        nn.utils.clip_grad_norm_(both, 1.0)
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        mask = torch.from_numpy(rng.random((2, 12)) > 0.3)
        label = torch.from_numpy(rng.integers(0, 3, 2))
        losses.append(sequence_step(normal(2, 4, 3, 2), mask, normal(2, 2, 7), label).item())
        scheduler.step()

    policy = models["dqn"]
    target = copy.deepcopy(policy)
    memory = ReplayMemory(50)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, amsgrad=True)
    random.seed(4)
    for k in range(14):
        state = normal(1, 4)
        with torch.no_grad():
            action = policy(state).max(1).indices.view(1, 1)
        after = None if k % 5 == 4 else normal(1, 4)
        memory.push(state, action, after, torch.tensor([1.0 if k % 3 else -1.0], dtype=dtype))
        if k < 8:
            continue
        batch = Transition(*zip(*memory.sample(6)))
        non_final_mask = torch.tensor(
            tuple(map(lambda s: s is not None, batch.next_state)), dtype=torch.bool
        )
        non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
        values = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
        following = torch.zeros(6, dtype=dtype)
        with torch.no_grad():
            following[non_final_mask] = target(non_final_next_states).max(1).values
        expected = (following * 0.9) + torch.cat(batch.reward)
        loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        losses.append(loss.item())
        target_state, policy_state = target.state_dict(), policy.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * 0.1 + target_state[key] * 0.9
        target.load_state_dict(target_state)

    params = {k: v.detach() for k, v in policy.named_parameters()}

    def compute_loss(params, sample, label):
        predictions = functional_call(policy, (params,), (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, label.unsqueeze(0))

    per_sample = compile(vmap(grad(compute_loss), in_dims=(None, 0, 0)))
    for _ in range(2):
        grads = per_sample(params, normal(5, 4), torch.from_numpy(rng.integers(0, 2, 5)))
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    clipped = [torch.einsum("i,i...->...", (1.0 / norms).clamp(max=1.0), g) for g in grads.values()]

    image = TensorImage(normal(2, 3, 4), path="a.png")
    moved = (image.flip_lr() * 2 + 1).clamp(-1, 1)
    mean = torch.stack([moved, moved]).mean()
    names = [
        type(moved).__name__,
        moved._meta["path"],
        type(mean).__name__,
        type(moved.shape[0]).__name__,
    ]
    return {
        "losses": losses,
        "clipped": clipped,
        "moved": moved.as_subclass(torch.Tensor),
        "names": names,
    }


SCALE = 30
