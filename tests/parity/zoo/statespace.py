"""Sequence models: Mamba, S4D by FFT, RWKV, RetNet, ALiBi and T5 biases, Performer, a neural Turing
machine, a pointer network, N-BEATS with a TCN, an extended Kalman filter, an ODE by its adjoint."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


# -- Mamba -----------------------------------------------------------------------------------------
class MambaBlock(nn.Module):
    def __init__(self, d_model=6, d_state=4, d_conv=3, expand=2):
        super().__init__()
        self.d_inner = expand * d_model
        self.dt_rank = math.ceil(d_model / 4)
        self.in_proj = nn.Linear(d_model, self.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(
            in_channels=self.d_inner,
            out_channels=self.d_inner,
            bias=True,
            kernel_size=d_conv,
            groups=self.d_inner,
            padding=d_conv - 1,
        )
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + d_state * 2, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, bias=True)
        dt_init_std = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -dt_init_std, dt_init_std)
        dt = torch.exp(
            torch.rand(self.d_inner) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
        ).clamp(min=1e-4)
        inv_dt = dt + torch.log(-torch.expm1(-dt))
        with torch.no_grad():
            self.dt_proj.bias.copy_(inv_dt)
        self.dt_proj.bias._no_reinit = True
        A = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1).to(dt.dtype)
        self.A_log = nn.Parameter(torch.log(A))
        self.A_log._no_weight_decay = True
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.norm = nn.RMSNorm(d_model, eps=1e-5)

    def forward(self, u):
        residual, length = u, u.shape[1]
        x_and_res = self.in_proj(self.norm(u))
        (x, res) = x_and_res.split(split_size=[self.d_inner, self.d_inner], dim=-1)
        x = x.transpose(1, 2)
        x = self.conv1d(x)[:, :, :length].transpose(1, 2)
        y = self.ssm(F.silu(x))
        return self.out_proj(y * F.silu(res)) + residual

    def ssm(self, x):
        (d_in, n) = self.A_log.shape
        A = -torch.exp(self.A_log.float().to(x.dtype))
        (delta, B, C) = self.x_proj(x).split(split_size=[self.dt_rank, n, n], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        return self.selective_scan(x, delta, A, B, C, self.D.to(x.dtype))

    def selective_scan(self, u, delta, A, B, C, D):
        (b, length, d_in) = u.shape
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x = torch.zeros((b, d_in, A.shape[1]), device=deltaA.device, dtype=u.dtype)
        ys = []
        for i in range(length):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i, :]))
        return torch.stack(ys, dim=1) + u * D


# -- S4D -------------------------------------------------------------------------------------------
class S4DKernel(nn.Module):
    def __init__(self, d_model, N=4, dt_min=0.001, dt_max=0.1):
        super().__init__()
        H = d_model
        log_dt = torch.rand(H) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)
        C = torch.randn(H, N // 2, 2)
        self.C = nn.Parameter(C)
        self.log_dt = nn.Parameter(log_dt)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(H, N // 2)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(N // 2).to(log_dt.dtype).repeat(H, 1))

    def forward(self, L):
        dt = torch.exp(self.log_dt)
        C = torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(L, device=A.device)
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn, hnl -> hl", C, torch.exp(K)).real


class S4D(nn.Module):
    def __init__(self, d_model=4):
        super().__init__()
        self.h = d_model
        self.D = nn.Parameter(torch.randn(self.h))
        self.kernel = S4DKernel(self.h)
        self.output_linear = nn.Sequential(
            nn.Conv1d(self.h, 2 * self.h, kernel_size=1), nn.GLU(dim=-2)
        )

    def forward(self, u):
        L = u.size(-1)
        k = self.kernel(L=L)
        k_f = torch.fft.rfft(k, n=2 * L)
        u_f = torch.fft.rfft(u, n=2 * L)
        y = torch.fft.irfft(u_f * k_f, n=2 * L)[..., :L]
        y = y + u * self.D.unsqueeze(-1)
        return self.output_linear(F.gelu(y))


# -- RWKV ------------------------------------------------------------------------------------------
class RWKVTimeMix(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-5, -1, n))
        self.time_first = nn.Parameter(torch.ones(n) * math.log(0.3))
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        for name in ("k", "v", "r"):
            setattr(self, f"time_mix_{name}", nn.Parameter(torch.rand(1, 1, n)))
        self.key, self.value = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.receptance, self.output = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, x):
        xx = self.time_shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        xv = x * self.time_mix_v + xx * (1 - self.time_mix_v)
        xr = x * self.time_mix_r + xx * (1 - self.time_mix_r)
        k, v, r = self.key(xk), self.value(xv), torch.sigmoid(self.receptance(xr))
        w = -torch.exp(self.time_decay)
        B, T, C = k.size()
        aa, bb = torch.zeros(B, C), torch.zeros(B, C)
        pp = torch.full((B, C), -1e38)
        out = []
        for t in range(T):
            kk, vv = k[:, t], v[:, t]
            ww = self.time_first + kk
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            out.append((e1 * aa + e2 * vv) / (e1 * bb + e2))
            ww = w + pp
            p = torch.maximum(ww, kk)
            e1, e2 = torch.exp(ww - p), torch.exp(kk - p)
            aa, bb, pp = e1 * aa + e2 * vv, e1 * bb + e2, p
        return self.output(r * torch.stack(out, 1))


# -- RetNet ----------------------------------------------------------------------------------------
class Retention(nn.Module):
    def __init__(self, hidden=6, gamma=0.9):
        super().__init__()
        self.gamma = gamma
        self.W_Q = nn.Parameter(torch.randn(hidden, hidden) / hidden)
        self.W_K = nn.Parameter(torch.randn(hidden, hidden) / hidden)
        self.W_V = nn.Parameter(torch.randn(hidden, hidden) / hidden)

    def _get_D(self, n):
        i = torch.arange(n).unsqueeze(1)
        m = torch.arange(n).unsqueeze(0)
        D = (self.gamma ** (i - m)) * (i >= m).to(self.W_Q.dtype)
        D[D != D] = 0
        return D

    def forward(self, X):
        Q, K, V = X @ self.W_Q, X @ self.W_K, X @ self.W_V
        return (Q @ K.permute(0, 2, 1) * self._get_D(X.shape[1]).unsqueeze(0)) @ V

    def forward_recurrent(self, x_n, s_n_1):
        Q, K, V = x_n @ self.W_Q, x_n @ self.W_K, x_n @ self.W_V
        s_n = self.gamma * s_n_1 + (K.transpose(-1, -2) @ V)
        return Q @ s_n, s_n


# -- biases and kernels of attention ---------------------------------------------------------------
def get_slopes(n):
    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


def relative_position_bucket(relative_position, bidirectional=True, num_buckets=8, max_distance=16):
    relative_buckets = 0
    if bidirectional:
        num_buckets //= 2
        relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
        relative_position = torch.abs(relative_position)
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    large = max_exact + (
        torch.log(relative_position.float() / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).to(torch.long)
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    relative_buckets += torch.where(is_small, relative_position, large)
    return relative_buckets


class Biased(nn.Module):
    def __init__(self, dim=6, heads=3):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.relative_attention_bias = nn.Embedding(8, heads)
        self.register_buffer(
            "slopes", torch.tensor(get_slopes(heads)).view(heads, 1, 1), persistent=False
        )
        self.register_buffer(
            "projection",
            torch.linalg.qr(torch.randn(dim // heads * 2, dim // heads * 2))[0][:, : dim // heads],
        )

    def heads(self, x):
        B, T, C = x.shape
        return (
            t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )

    def forward(self, x):
        q, k, v = self.heads(x)
        T = x.shape[1]
        context = torch.arange(T, dtype=torch.long)[:, None]
        memory = torch.arange(T, dtype=torch.long)[None, :]
        bias = (
            self.relative_attention_bias(relative_position_bucket(memory - context))
            .permute([2, 0, 1])
            .unsqueeze(0)
        )
        alibi = self.slopes * -(context - memory).abs()
        scores = torch.matmul(q, k.transpose(3, 2)) + bias + alibi
        scores += torch.full((T, T), torch.finfo(scores.dtype).min).triu(1)
        y = F.softmax(scores, dim=-1).type_as(scores) @ v
        return self.o(y.transpose(1, 2).reshape(*x.shape) + self.linear_attention(x))

    def linear_attention(self, x):
        """Performer's positive random features."""
        q, k, v = self.heads(x)

        def features(data, is_query, eps=1e-4):
            normalizer = data.shape[-1] ** -0.25
            dash = torch.einsum(
                "...id,...jd->...ij", normalizer * data, self.projection.type_as(data)
            )
            diag = (data**2).sum(-1, keepdim=True) / 2.0 * normalizer**2
            top = torch.amax(dash, dim=(-1, -2) if not is_query else -1, keepdim=True).detach()
            return self.projection.shape[0] ** -0.5 * (torch.exp(dash - diag - top) + eps)

        q, k = features(q, True), features(k, False)
        D_inv = 1.0 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2).type_as(q))
        out = torch.einsum(
            "...de,...nd,...n->...ne", torch.einsum("...nd,...ne->...de", k, v), q, D_inv
        )
        return out.transpose(1, 2).reshape(*x.shape)


# -- memory and pointers ---------------------------------------------------------------------------
class NTM(nn.Module):
    def __init__(self, N=5, M=4, size=6):
        super().__init__()
        self.N, self.M = N, M
        self.controller = nn.GRUCell(3 + M, size)
        self.head = nn.Linear(size, M + 1 + 1 + 3 + 1 + 2 * M)
        self.out = nn.Linear(size + M, 2)
        self.register_buffer("mem_bias", torch.randn(N, M).uniform_(-0.5, 0.5))

    def address(self, o, memory, w_prev):
        k, beta, g, s, gamma, e, a = torch.split(o, [self.M, 1, 1, 3, 1, self.M, self.M], dim=1)
        beta, g, s, gamma = (
            F.softplus(beta),
            torch.sigmoid(g),
            F.softmax(s, dim=1),
            1 + F.softplus(gamma),
        )
        k = k.unsqueeze(1)
        wc = F.softmax(beta * F.cosine_similarity(memory + 1e-16, k + 1e-16, dim=-1), dim=1)
        wg = g * wc + (1 - g) * w_prev
        result = torch.zeros(wg.size())
        for b in range(len(wg)):
            t = torch.cat([wg[b, -1:], wg[b], wg[b, :1]])
            result[b] = F.conv1d(t.view(1, 1, -1), s[b].view(1, 1, -1)).view(-1)
        w = result**gamma
        w = torch.div(w, torch.sum(w, dim=1).view(-1, 1) + 1e-16)
        return w, torch.sigmoid(e), a

    def forward(self, xs):
        batch = xs.shape[1]
        memory = self.mem_bias.clone().repeat(batch, 1, 1)
        w, h = torch.zeros(batch, self.N), torch.zeros(batch, self.controller.hidden_size)
        w[:, 0] = 1
        read, outs = torch.zeros(batch, self.M), []
        for x in xs:
            h = self.controller(torch.cat([x, read], dim=1), h)
            w, e, a = self.address(self.head(h), memory, w)
            erase = torch.matmul(w.unsqueeze(-1), e.unsqueeze(1))
            add = torch.matmul(w.unsqueeze(-1), a.unsqueeze(1))
            memory = memory * (1 - erase) + add
            read = torch.matmul(w.unsqueeze(1), memory).squeeze(1)
            outs.append(torch.sigmoid(self.out(torch.cat([h, read], dim=1))))
        return torch.stack(outs)


class PointerNet(nn.Module):
    def __init__(self, hidden=6):
        super().__init__()
        self.encoder = nn.LSTM(2, hidden, batch_first=True)
        self.decoder = nn.LSTMCell(2, hidden)
        self.W1, self.W2 = (
            nn.Linear(hidden, hidden, bias=False),
            nn.Linear(hidden, hidden, bias=False),
        )
        self.vt = nn.Linear(hidden, 1, bias=False)

    def forward(self, inputs):
        batch, n, _ = inputs.shape
        outputs, (h, c) = self.encoder(inputs)
        h, c = h.squeeze(0), c.squeeze(0)
        mask = torch.zeros(batch, n, dtype=torch.bool)
        x, logs, pointers = torch.zeros(batch, 2), [], []
        for _ in range(n):
            h, c = self.decoder(x, (h, c))
            u = self.vt(torch.tanh(self.W1(outputs) + self.W2(h).unsqueeze(1))).squeeze(-1)
            log_score = F.log_softmax(u.masked_fill(mask, -1e9), dim=-1)
            index = log_score.argmax(dim=1)
            logs.append(log_score)
            pointers.append(index)
            mask = mask.scatter(1, index.unsqueeze(1), True)
            x = torch.gather(inputs, 1, index.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
        return torch.stack(logs, 1), torch.stack(pointers, 1)


# -- time series -----------------------------------------------------------------------------------
class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super(Chomp1d, self).__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation):
        super().__init__()
        pad = (kernel_size - 1) * dilation
        self.conv1 = weight_norm(
            nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=pad, dilation=dilation)
        )
        self.net = nn.Sequential(self.conv1, Chomp1d(pad), nn.ReLU())
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None
        self.relu = nn.ReLU()

    def forward(self, x):
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(self.net(x) + res)


class NBeatsBlock(nn.Module):
    def __init__(self, backcast=6, forecast=3, theta=3):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(backcast, 8), nn.ReLU(), nn.Linear(8, 2 * theta))
        steps = np.arange(backcast + forecast) / forecast
        T = torch.tensor(np.array([steps**i for i in range(theta)])).to(torch.get_default_dtype())
        self.register_buffer("T_b", T[:, :backcast])
        self.register_buffer("T_f", T[:, backcast:])

    def forward(self, x):
        theta_b, theta_f = self.fc(x).tensor_split(2, dim=-1)
        return theta_b.mm(self.T_b), theta_f.mm(self.T_f)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.tcn = nn.Sequential(TemporalBlock(1, 3, 2, 1), TemporalBlock(3, 3, 2, 2))
        self.blocks = nn.ModuleList([NBeatsBlock(), NBeatsBlock()])
        self.mixing = nn.Linear(3, 3)

    def forward(self, x):
        seasonal = x - F.avg_pool1d(F.pad(x[:, None], (1, 1), mode="replicate"), 3, stride=1)[:, 0]
        forecast = self.mixing(self.tcn(seasonal[:, None])[:, :, -1])
        for block in self.blocks:
            b, f = block(x)
            x = x - b
            forecast = forecast + f
        return forecast


# -- filters and flows -----------------------------------------------------------------------------
class ExtendedKalman(nn.Module):
    """A pendulum; the noise's covariances are learned."""

    def __init__(self):
        super().__init__()
        self.log_q = nn.Parameter(torch.tensor([-3.0, -2.0]))
        self.log_r = nn.Parameter(torch.tensor(-1.0))
        self.g = nn.Parameter(torch.tensor(9.0))

    def transition(self, x, dt=0.05):
        return torch.stack([x[0] + x[1] * dt, x[1] - self.g * torch.sin(x[0]) * dt])

    def forward(self, observations):
        x, P = torch.tensor([0.5, 0.0]), torch.eye(2)
        Q, R = torch.diag(self.log_q.exp()), self.log_r.exp().reshape(1, 1)
        H = torch.tensor([[1.0, 0.0]])
        total, means = 0.0, []
        for y in observations:
            A = torch.func.jacrev(self.transition)(x)
            x, P = self.transition(x), A @ P @ A.mT + Q
            S = H @ P @ H.T + R
            K = torch.linalg.solve(S, H @ P).T
            residual = y - H @ x
            x = x + K @ residual
            I_KH = torch.eye(2) - K @ H
            P = I_KH @ P @ I_KH.T + K @ R @ K.T
            total = total + 0.5 * (residual @ torch.linalg.inv(S) @ residual + torch.logdet(S))
            means.append(x)
        return total, torch.stack(means)


class OdeintAdjoint(torch.autograd.Function):
    """Euler steps forward; the adjoint equation backward (Chen et al. 2018)."""

    @staticmethod
    def forward(ctx, func, y0, t, *params):
        ctx.func = func
        with torch.no_grad():
            ys = [y0]
            for t0, t1 in zip(t[:-1], t[1:]):
                ys.append(ys[-1] + (t1 - t0) * func(t0, ys[-1]))
        out = torch.stack(ys)
        ctx.save_for_backward(t, out, *params)
        return out

    @staticmethod
    def backward(ctx, grad):
        t, ys, *params = ctx.saved_tensors
        func, adjoint = ctx.func, grad[-1]
        totals = [torch.zeros_like(p) for p in params]
        for i in range(len(t) - 1, 0, -1):
            h = t[i] - t[i - 1]
            with torch.enable_grad():
                y = ys[i - 1].detach().requires_grad_(True)
                f = func(t[i - 1], y)
                gs = torch.autograd.grad(f, (y, *params), adjoint * h, allow_unused=True)
            adjoint = adjoint + gs[0] + grad[i - 1]
            totals = [a if g is None else a + g for a, g in zip(totals, gs[1:])]
        return (None, adjoint, None, *totals)


class ODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def func(self, t, y):
        return self.net(y**3) * torch.cos(t)

    def forward(self, y0, t):
        return OdeintAdjoint.apply(self.func, y0, t, *self.net.parameters())


def build():
    torch.manual_seed(5)
    return {
        "mamba": MambaBlock(),
        "s4d": S4D(),
        "rwkv": RWKVTimeMix(),
        "retention": Retention(),
        "biased": Biased(),
        "ntm": NTM(),
        "pointer": PointerNet(),
        "forecaster": Forecaster(),
        "kalman": ExtendedKalman(),
        "ode": ODE(),
    }


def run(models, compile):
    rng = np.random.default_rng(6)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    def train(model, loss_of, inputs, steps=3, lr=1e-2, clip=None):
        decay, no_decay = [], []
        for name, p in model.named_parameters():
            (no_decay if p.ndim < 2 or getattr(p, "_no_weight_decay", False) else decay).append(p)
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)

        def step(*inputs):
            optimizer.zero_grad()
            loss = loss_of(*inputs)
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_value_(model.parameters(), clip)
            optimizer.step()
            return loss.detach()

        compiled = compile(step)
        return [compiled(*inputs).item() for _ in range(steps)]

    found, x = {}, draw(2, 4, 6)
    for name in ("mamba", "rwkv", "retention", "biased"):
        model = models[name]
        found[name] = train(
            model, lambda x, model=model: (model(x)[:, :-1] - x[:, 1:]).pow(2).mean(), (x,)
        )
    retention = models["retention"]
    state, outs = torch.zeros(2, 6, 6), []
    with torch.no_grad():
        for i in range(4):
            y, state = retention.forward_recurrent(x[:, i : i + 1], state)
            outs.append(y)
        found["recurrent"] = torch.cat(outs, 1), retention(x)
    s4d = models["s4d"]
    found["s4d"] = train(s4d, lambda u: (s4d(u) - u.roll(1, -1)).abs().mean(), (draw(2, 4, 8),))
    ntm = models["ntm"]
    bits = torch.tensor(rng.integers(0, 2, (2, 2, 3)), dtype=torch.get_default_dtype())
    found["ntm"] = train(
        ntm, lambda x: F.binary_cross_entropy(ntm(x), x[..., :2]), (bits,), clip=10
    )
    pointer = models["pointer"]

    def pointer_loss(x):
        logs, _ = pointer(x)
        return F.nll_loss(logs.reshape(-1, 3), x[..., 0].argsort(1).reshape(-1))

    cities = draw(3, 3, 2)
    found["pointer"] = train(pointer, pointer_loss, (cities,)), pointer(cities)[1]
    forecaster = models["forecaster"]
    series = draw(4, 9).cumsum(1)
    found["forecast"] = train(
        forecaster, lambda s: F.smooth_l1_loss(forecaster(s[:, :6]), s[:, 6:], beta=0.5), (series,)
    )
    kalman = models["kalman"]
    found["kalman"] = train(kalman, lambda y: kalman(y)[0], (draw(3, 1),), lr=1e-3)
    found["filtered"] = kalman(draw(3, 1))[1].detach()
    ode = models["ode"]
    t = torch.linspace(0.0, 1.0, 4)
    found["ode"] = train(ode, lambda y: (ode(y, t) - y).abs().mean(), (draw(3, 2),))
    return found
