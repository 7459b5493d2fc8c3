"""Text to speech: Tacotron 2's location-sensitive attention, WaveNet with its generation queue,
HiFi-GAN's generator, one discriminator and mel loss.
"""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import remove_weight_norm, weight_norm


# -- Tacotron 2 ------------------------------------------------------------------------------------
class LinearNorm(torch.nn.Module):
    def __init__(self, in_dim, out_dim, bias=True, w_init_gain="linear"):
        super(LinearNorm, self).__init__()
        self.linear_layer = torch.nn.Linear(in_dim, out_dim, bias=bias)
        torch.nn.init.xavier_uniform_(
            self.linear_layer.weight, gain=torch.nn.init.calculate_gain(w_init_gain)
        )

    def forward(self, x):
        return self.linear_layer(x)


class LocationLayer(nn.Module):
    def __init__(self, n_filters, kernel_size, attention_dim):
        super(LocationLayer, self).__init__()
        self.location_conv = nn.Conv1d(
            2, n_filters, kernel_size, padding=int((kernel_size - 1) / 2), bias=False
        )
        self.location_dense = LinearNorm(n_filters, attention_dim, bias=False, w_init_gain="tanh")

    def forward(self, attention_weights_cat):
        processed = self.location_conv(attention_weights_cat)
        return self.location_dense(processed.transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, rnn_dim, embedding_dim, attention_dim):
        super(Attention, self).__init__()
        self.query_layer = LinearNorm(rnn_dim, attention_dim, bias=False, w_init_gain="tanh")
        self.memory_layer = LinearNorm(embedding_dim, attention_dim, bias=False, w_init_gain="tanh")
        self.v = LinearNorm(attention_dim, 1, bias=False)
        self.location_layer = LocationLayer(4, 5, attention_dim)
        self.score_mask_value = -float("inf")

    def forward(self, state, memory, processed_memory, weights_cat, mask):
        processed_query = self.query_layer(state.unsqueeze(1))
        located = self.location_layer(weights_cat)
        energies = self.v(torch.tanh(processed_query + located + processed_memory)).squeeze(-1)
        if mask is not None:
            energies.data.masked_fill_(mask, self.score_mask_value)
        weights = F.softmax(energies, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights


def get_mask_from_lengths(lengths):
    max_len = torch.max(lengths).item()
    ids = torch.arange(0, max_len, out=torch.LongTensor(max_len))
    return (ids < lengths.unsqueeze(1)).bool()


class Tacotron(nn.Module):
    def __init__(self, dim=8, mel=5):
        super().__init__()
        self.embedding = nn.Embedding(12, dim)
        std = math.sqrt(2.0 / (12 + dim))
        val = math.sqrt(3.0) * std
        self.embedding.weight.data.uniform_(-val, val)
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv1d(dim, dim, 3, padding=1), nn.BatchNorm1d(dim)) for _ in range(2)
        )
        self.lstm = nn.LSTM(dim, dim // 2, 1, batch_first=True, bidirectional=True)
        self.prenet = nn.ModuleList([LinearNorm(mel, dim, bias=False), LinearNorm(dim, dim, False)])
        self.attention_rnn = nn.LSTMCell(2 * dim, dim)
        self.attention = Attention(dim, dim, 6)
        self.projection = LinearNorm(2 * dim, mel)
        self.gate = LinearNorm(2 * dim, 1, bias=True, w_init_gain="sigmoid")

    def forward(self, text, lengths, mels):
        x = self.embedding(text).transpose(1, 2)
        for conv in self.convolutions:
            x = F.relu(conv(x))
        x = nn.utils.rnn.pack_padded_sequence(x.transpose(1, 2), lengths.tolist(), batch_first=True)
        self.lstm.flatten_parameters()
        memory, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(x)[0], batch_first=True)
        mask = ~get_mask_from_lengths(lengths)
        h = memory.new_zeros(memory.size(0), self.attention_rnn.hidden_size)
        c = torch.zeros_like(h)
        weights = memory.new_zeros(memory.size(0), memory.size(1))
        cumulative, context = torch.zeros_like(weights), torch.zeros_like(h)
        processed = self.attention.memory_layer(memory)
        frames = torch.cat((mels.new_zeros(1, *mels.shape[1:]), mels), dim=0)
        outputs, gates, alignments = [], [], []
        while len(outputs) < frames.size(0) - 1:
            frame = frames[len(outputs)]
            for layer in self.prenet:
                frame = F.relu(layer(frame))
            h, c = self.attention_rnn(torch.cat((frame, context), -1), (h, c))
            both = torch.cat((weights.unsqueeze(1), cumulative.unsqueeze(1)), dim=1)
            context, weights = self.attention(h, memory, processed, both, mask)
            cumulative += weights
            hidden = torch.cat((h, context), dim=1)
            outputs += [self.projection(hidden).squeeze(1)]
            gates += [self.gate(hidden).squeeze(1)]
            alignments += [weights]
        return torch.stack(outputs).transpose(0, 1), torch.stack(gates), torch.stack(alignments)


# -- WaveNet ---------------------------------------------------------------------------------------
class CausalConv1d(nn.Conv1d):
    def __init__(self, in_channels, out_channels, kernel_size, dilation=1, **kwargs):
        self.left = (kernel_size - 1) * dilation
        super().__init__(in_channels, out_channels, kernel_size, dilation=dilation, **kwargs)

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class WaveNet(nn.Module):
    def __init__(self, classes=16, channels=6, skip=7, dilations=(1, 2, 4)):
        super().__init__()
        self.classes, self.dilations = classes, dilations
        self.start = nn.Conv1d(classes, channels, 1)
        self.filters = nn.ModuleList(CausalConv1d(channels, channels, 2, d) for d in dilations)
        self.gates = nn.ModuleList(CausalConv1d(channels, channels, 2, d) for d in dilations)
        self.residuals = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in dilations)
        self.skips = nn.ModuleList(nn.Conv1d(channels, skip, 1) for _ in dilations)
        self.end = nn.Sequential(
            nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, classes, 1)
        )

    def forward(self, x):
        x, total = self.start(x), 0
        for f, g, r, s in zip(self.filters, self.gates, self.residuals, self.skips):
            z = torch.tanh(f(x)) * torch.sigmoid(g(x))
            total = s(z) + total
            x = r(z) + x
        return self.end(total)

    @torch.no_grad()
    def generate_fast(self, first, steps):
        """One sample at a time, with a queue for each layer."""
        self.eval()
        queues = [x_new for x_new in ([None] * d for d in self.dilations)]
        out = list(first)
        for t in range(len(first) + steps):
            value = out[t] if t < len(first) else out[-1]
            x = self.start(
                F.one_hot(torch.tensor([[value]]), self.classes).to(self.start.weight.dtype).mT
            )
            total = 0
            for k, (f, g, r, s) in enumerate(
                zip(self.filters, self.gates, self.residuals, self.skips)
            ):
                old = queues[k].pop(0)
                queues[k].append(x)
                old = torch.zeros_like(x) if old is None else old
                pair = torch.cat([old, x], 2)
                z = torch.tanh(F.conv1d(pair, f.weight, f.bias)) * torch.sigmoid(
                    F.conv1d(pair, g.weight, g.bias)
                )
                total = total + s(z)
                x = r(z) + x
            probabilities = F.softmax(self.end(total)[0, :, 0], dim=0)
            if t >= len(first) - 1 and len(out) < len(first) + steps:
                out.append(int(torch.argmax(probabilities)))
        self.train()
        return out, probabilities


def mu_law_encode(x, channels=16):
    mu = torch.tensor(channels - 1.0)
    x_mu = torch.sign(x) * torch.log1p(mu * torch.abs(x)) / torch.log1p(mu)
    return ((x_mu + 1) / 2 * mu + 0.5).to(torch.int64)


# -- HiFi-GAN --------------------------------------------------------------------------------------
LRELU_SLOPE = 0.1


def get_padding(kernel_size, dilation=1):
    return int((kernel_size * dilation - dilation) / 2)


class ResBlock(nn.Module):
    def __init__(self, channels, kernel_size=3, dilation=(1, 3)):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(
                nn.Conv1d(
                    channels,
                    channels,
                    kernel_size,
                    1,
                    dilation=d,
                    padding=get_padding(kernel_size, d),
                )
            )
            for d in dilation
        )

    def forward(self, x):
        for c in self.convs:
            xt = F.leaky_relu(x, LRELU_SLOPE)
            x = c(xt) + x
        return x

    def remove_weight_norm(self):
        for c in self.convs:
            remove_weight_norm(c)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_pre = weight_norm(nn.Conv1d(5, 8, 7, 1, padding=3))
        self.ups = nn.ModuleList(
            [
                weight_norm(nn.ConvTranspose1d(8, 4, 4, 2, padding=1)),
                weight_norm(nn.ConvTranspose1d(4, 2, 4, 2, padding=1)),
            ]
        )
        self.resblocks = nn.ModuleList(ResBlock(ch, k) for ch in (4, 2) for k in (3, 5))
        self.conv_post = weight_norm(nn.Conv1d(2, 1, 7, 1, padding=3))

    def forward(self, x):
        x = self.conv_pre(x)
        for i in range(2):
            x = F.leaky_relu(x, LRELU_SLOPE)
            x = self.ups[i](x)
            xs = None
            for j in range(2):
                if xs is None:
                    xs = self.resblocks[i * 2 + j](x)
                else:
                    xs += self.resblocks[i * 2 + j](x)
            x = xs / 2
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class DiscriminatorP(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList([weight_norm(nn.Conv2d(1, 4, (5, 1), (3, 1), padding=(2, 0)))])
        self.conv_post = weight_norm(nn.Conv2d(4, 1, (3, 1), 1, padding=(1, 0)))

    def forward(self, x):
        fmap = []
        b, c, t = x.shape
        if t % self.period != 0:
            n_pad = self.period - (t % self.period)
            x = F.pad(x, (0, n_pad), "reflect")
            t = t + n_pad
        x = x.view(b, c, t // self.period, self.period)
        for layer in self.convs:
            x = F.leaky_relu(layer(x), LRELU_SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


def feature_loss(fmap_r, fmap_g):
    loss = 0
    for rl, gl in zip(fmap_r, fmap_g):
        loss += torch.mean(torch.abs(rl - gl))
    return loss * 2


def log_mel(y, filters, n_fft=16, hop=4):
    y = F.pad(y.unsqueeze(1), ((n_fft - hop) // 2, (n_fft - hop) // 2), mode="reflect").squeeze(1)
    spec = torch.stft(
        y,
        n_fft,
        hop_length=hop,
        win_length=n_fft,
        window=torch.hann_window(n_fft),
        center=False,
        pad_mode="reflect",
        normalized=False,
        onesided=True,
        return_complex=True,
    )
    spec = torch.sqrt(torch.view_as_real(spec).pow(2).sum(-1) + 1e-9)
    return torch.log(torch.clamp(torch.matmul(filters, spec), min=1e-5) * 1)


def build():
    torch.manual_seed(1)
    return {
        "tacotron": Tacotron(),
        "wavenet": WaveNet(),
        "hifi": Generator(),
        "period": DiscriminatorP(3),
    }


def run(models, compile):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    tacotron = models["tacotron"]
    optimizer2 = torch.optim.Adam(tacotron.parameters(), lr=1e-3, weight_decay=1e-6)
    text, lengths, mels = (
        torch.tensor(rng.integers(0, 12, (3, 6))),
        torch.tensor([6, 4, 3]),
        draw(4, 3, 5),
    )
    losses = []
    for _ in range(2):
        out, gates, alignments = tacotron(text, lengths, mels)
        target = torch.zeros_like(gates)
        target[-1:] = 1
        loss = nn.MSELoss()(out, mels.transpose(0, 1)) + nn.BCEWithLogitsLoss()(gates, target)
        tacotron.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tacotron.parameters(), 1.0)
        optimizer2.step()
        losses.append(loss.item())
    found["tacotron"] = losses, alignments.detach()

    wavenet = models["wavenet"]
    optimizer3 = torch.optim.SGD(wavenet.parameters(), lr=0.1)
    wave = mu_law_encode(torch.sin(torch.arange(20.0) * 0.7))

    def wave_step(wave):
        x = F.one_hot(wave, 16).to(torch.get_default_dtype()).t()[None]
        loss = F.cross_entropy(wavenet(x[:, :, :-1]), wave[None, 1:])
        optimizer3.zero_grad()
        loss.backward()
        optimizer3.step()
        return loss.detach()

    step = compile(wave_step)
    found["wavenet"] = [step(wave).item() for _ in range(3)], wave
    found["queue"] = wavenet.generate_fast(wave[:3].tolist(), 4)

    generator, disc = models["hifi"], models["period"]
    optim_g = torch.optim.AdamW(generator.parameters(), 2e-3, betas=(0.8, 0.99))
    optim_d = torch.optim.AdamW(disc.parameters(), 2e-3, betas=(0.8, 0.99))
    mel5, y, filters = draw(2, 5, 8), draw(2, 1, 32).tanh(), draw(4, 9).abs()

    def gan_step(mel5, y):
        y_hat = generator(mel5)
        optim_d.zero_grad()
        real, _ = disc(y)
        fake, _ = disc(y_hat.detach())
        loss_d = torch.mean((1 - real) ** 2) + torch.mean(fake**2)
        loss_d.backward()
        optim_d.step()
        optim_g.zero_grad()
        loss_mel = (
            F.l1_loss(log_mel(y.squeeze(1), filters), log_mel(y_hat.squeeze(1), filters)) * 45
        )
        real, fmap_r = disc(y)
        fake, fmap_g = disc(y_hat)
        loss_g = torch.mean((1 - fake) ** 2) + feature_loss(fmap_r, fmap_g) + loss_mel
        loss_g.backward()
        optim_g.step()
        return torch.stack([loss_d, loss_g]).detach()

    step = compile(gan_step)
    found["hifi"] = [step(mel5, y) for _ in range(3)]
    for block in generator.resblocks:
        block.remove_weight_norm()
    found["without norm"] = generator(mel5).detach()
    return found
