"""Speech to text: Whisper with its key-value cache in hooks; a Conformer and a GRU with CTC."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


# -- Whisper ---------------------------------------------------------------------------------------
class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).type(x.dtype)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(
            x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        )


def sinusoids(length, channels, max_timescale=10000):
    assert channels % 2 == 0
    log_timescale_increment = np.log(max_timescale) / (channels // 2 - 1)
    inv_timescales = torch.exp(-log_timescale_increment * torch.arange(channels // 2))
    scaled_time = torch.arange(length)[:, np.newaxis] * inv_timescales[np.newaxis, :]
    return torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=1)


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = Linear(n_state, n_state)
        self.key = Linear(n_state, n_state, bias=False)
        self.value = Linear(n_state, n_state)
        self.out = Linear(n_state, n_state)

    def forward(self, x, xa=None, mask=None, kv_cache=None):
        q = self.query(x)
        if kv_cache is None or xa is None or self.key not in kv_cache:
            k = self.key(x if xa is None else xa)
            v = self.value(x if xa is None else xa)
        else:
            k = kv_cache[self.key]
            v = kv_cache[self.value]
        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), qk

    def qkv_attention(self, q, k, v, mask=None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int, cross_attention: bool = False):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head) if cross_attention else None
        self.cross_attn_ln = LayerNorm(n_state) if cross_attention else None
        n_mlp = n_state * 4
        self.mlp = nn.Sequential(Linear(n_state, n_mlp), nn.GELU(), Linear(n_mlp, n_state))
        self.mlp_ln = LayerNorm(n_state)

    def forward(self, x, xa=None, mask=None, kv_cache=None):
        x = x + self.attn(self.attn_ln(x), mask=mask, kv_cache=kv_cache)[0]
        if self.cross_attn:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=kv_cache)[0]
        x = x + self.mlp(self.mlp_ln(x))
        return x


class AudioEncoder(nn.Module):
    def __init__(self, n_mels, n_ctx, n_state, n_head, n_layer):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(n_ctx, n_state))
        self.blocks = nn.ModuleList(
            [ResidualAttentionBlock(n_state, n_head) for _ in range(n_layer)]
        )
        self.ln_post = LayerNorm(n_state)

    def forward(self, x: Tensor):
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.conv2(x))
        x = x.permute(0, 2, 1)
        assert x.shape[1:] == self.positional_embedding.shape, "incorrect audio shape"
        x = (x + self.positional_embedding).to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    def __init__(self, n_vocab, n_ctx, n_state, n_head, n_layer):
        super().__init__()
        self.token_embedding = nn.Embedding(n_vocab, n_state)
        self.positional_embedding = nn.Parameter(torch.empty(n_ctx, n_state).normal_() * 0.1)
        self.blocks = nn.ModuleList(
            [ResidualAttentionBlock(n_state, n_head, cross_attention=True) for _ in range(n_layer)]
        )
        self.ln = LayerNorm(n_state)
        mask = torch.empty(n_ctx, n_ctx).fill_(-np.inf).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x, xa, kv_cache=None):
        offset = next(iter(kv_cache.values())).shape[1] if kv_cache else 0
        x = self.token_embedding(x) + self.positional_embedding[offset : offset + x.shape[-1]]
        x = x.to(xa.dtype)
        for block in self.blocks:
            x = block(x, xa, mask=self.mask, kv_cache=kv_cache)
        x = self.ln(x)
        return x @ torch.transpose(self.token_embedding.weight.to(x.dtype), 0, 1)


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = AudioEncoder(8, 6, 16, 2, 1)
        self.decoder = TextDecoder(20, 10, 16, 2, 1)

    def forward(self, mel, tokens):
        return self.decoder(tokens, self.encoder(mel))

    @property
    def device(self):
        return next(self.parameters()).device

    def install_kv_cache_hooks(self, cache=None):
        cache = {**cache} if cache is not None else {}
        hooks = []

        def save_to_cache(module, _, output):
            if module not in cache or output.shape[1] > 10:
                cache[module] = output  # the first token, or the audio
            else:
                cache[module] = torch.cat([cache[module], output], dim=1).detach()
            return cache[module]

        def install_hooks(layer: nn.Module):
            if isinstance(layer, MultiHeadAttention):
                hooks.append(layer.key.register_forward_hook(save_to_cache))
                hooks.append(layer.value.register_forward_hook(save_to_cache))

        self.decoder.apply(install_hooks)
        return cache, hooks

    @torch.no_grad()
    def generate(self, mel, start, steps):
        xa = self.encoder(mel)
        cache, hooks = self.install_kv_cache_hooks()
        tokens = start
        logits = self.decoder(tokens, xa, kv_cache=cache)
        for _ in range(steps):
            nxt = logits[:, -1].argmax(dim=-1)
            tokens = torch.cat([tokens, nxt[:, None]], dim=-1)
            logits = self.decoder(tokens[:, -1:], xa, kv_cache=cache)
        for hook in hooks:
            hook.remove()
        return tokens, logits


# -- Conformer and CTC -----------------------------------------------------------------------------
class Swish(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * inputs.sigmoid()


class ConformerBlock(nn.Module):
    def __init__(self, d=8, heads=2, kernel=3):
        super().__init__()
        self.ff1 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), Swish(), nn.Linear(2 * d, d))
        self.norm = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.conv = nn.Sequential(
            nn.Conv1d(d, 2 * d, 1),
            nn.GLU(dim=1),
            nn.Conv1d(d, d, kernel, padding=(kernel - 1) // 2, groups=d, bias=False),
            nn.BatchNorm1d(d),
            Swish(),
            nn.Conv1d(d, d, 1),
        )
        self.ff2 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), Swish(), nn.Linear(2 * d, d))
        self.final = nn.LayerNorm(d)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attn(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        x = x + self.conv(x.transpose(1, 2).masked_fill(pad[:, None], 0.0)).transpose(1, 2)
        return self.final(x + 0.5 * self.ff2(x))


class ASR(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = ConformerBlock()
        self.gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 7)

    def forward(self, x, lengths):
        pad = torch.arange(x.size(1))[None, :] >= lengths[:, None]
        y, _ = self.gru(self.block(x, pad))
        return self.head(y).log_softmax(2).transpose(0, 1)


def build():
    torch.manual_seed(1)
    return {"whisper": Whisper(), "asr": ASR()}


def run(models, compile):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    whisper = models["whisper"]
    optimizer = torch.optim.AdamW(whisper.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    mel, tokens = draw(2, 8, 12), torch.tensor(rng.integers(0, 20, (2, 7)))

    def whisper_step(mel, tokens):
        logits = whisper(mel, tokens[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whisper.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = compile(whisper_step)
    found["whisper"] = [step(mel, tokens).item() for _ in range(3)]
    found["generated"] = whisper.generate(mel, tokens[:, :2], 4)

    asr = models["asr"]
    optimizer4 = torch.optim.AdamW(asr.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer4, max_lr=1e-2, total_steps=4)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    x, lengths, targets = draw(2, 9, 8), torch.tensor([9, 7]), torch.tensor([[1, 2, 2], [3, 4, 0]])

    def asr_step(x, lengths, targets):
        optimizer4.zero_grad()
        loss = ctc(asr(x, lengths), targets, (9, 7), (3, 2))
        loss.backward()
        optimizer4.step()
        scheduler.step()
        return loss.detach()

    step = compile(asr_step)
    found["asr"] = [step(x, lengths, targets).item() for _ in range(3)]
    asr.eval()
    best = torch.argmax(asr(x, lengths), dim=2).t()
    found["decoded"] = [
        [i for i in torch.unique_consecutive(row[:n]).tolist() if i]
        for row, n in zip(best, lengths.tolist())
    ]
    return found
