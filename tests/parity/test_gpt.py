"""GPT, written as minGPT and nanoGPT are: training, generation, and a cache of keys and values."""

import inspect
import math
from dataclasses import dataclass

import numpy as np
import pytest
from parity.compare import LIBS, numpy, same
from parity.training import batch, pair, same_training

import jitgrad


@dataclass
class Config:
    block_size: int = 12
    vocab_size: int = 17
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 8
    dropout: float = 0.0
    bias: bool = True
    flash: bool = True


def gpt(lib, config):
    """The model's classes, with `torch`, `nn` and `F` of the library."""
    torch, nn, F = lib.t, lib.nn, lib.F

    class LayerNorm(nn.Module):
        def __init__(self, ndim, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(ndim))
            self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

        def forward(self, input):
            return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)

    class CausalSelfAttention(nn.Module):
        def __init__(self, config):
            super().__init__()
            assert config.n_embd % config.n_head == 0
            self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
            self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
            self.attn_dropout = nn.Dropout(config.dropout)
            self.resid_dropout = nn.Dropout(config.dropout)
            self.n_head, self.n_embd = config.n_head, config.n_embd
            self.dropout = config.dropout
            self.flash = config.flash and hasattr(F, "scaled_dot_product_attention")
            if not self.flash:
                mask = torch.tril(torch.ones(config.block_size, config.block_size))
                self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

        def forward(self, x, past=None):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
            k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            if past is not None:
                k = torch.cat([past[0], k], dim=2)
                v = torch.cat([past[1], v], dim=2)
            if self.flash:
                y = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0,
                    is_causal=past is None,
                )  # fmt: skip
            else:
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
                if past is None:
                    att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
                att = F.softmax(att, dim=-1)
                att = self.attn_dropout(att)
                y = att @ v
            y = y.transpose(1, 2).contiguous().view(B, T, C)
            return self.resid_dropout(self.c_proj(y)), (k, v)

    class MLP(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
            self.gelu = nn.GELU()
            self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
            self.dropout = nn.Dropout(config.dropout)

        def forward(self, x):
            return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))

    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
            self.attn = CausalSelfAttention(config)
            self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
            self.mlp = MLP(config)

        def forward(self, x, past=None):
            y, present = self.attn(self.ln_1(x), past)
            x = x + y
            return x + self.mlp(self.ln_2(x)), present

    class GPT(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.transformer = nn.ModuleDict({
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd, bias=config.bias),
            })  # fmt: skip
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
            self.transformer.wte.weight = self.lm_head.weight
            self.apply(self._init_weights)
            for pn, p in self.named_parameters():
                if pn.endswith("c_proj.weight"):
                    torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.3)
                if module.bias is not None:
                    torch.nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.3)

        def get_num_params(self, non_embedding=True):
            n_params = sum(p.numel() for p in self.parameters())
            if non_embedding:
                n_params -= self.transformer.wpe.weight.numel()
            return n_params

        def forward(self, idx, targets=None, past=None):
            device = idx.device
            b, t = idx.size()
            start = 0 if past is None else past[0][0].size(2)
            assert start + t <= self.config.block_size
            pos = torch.arange(start, start + t, dtype=torch.long, device=device)
            x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
            presents = []
            for i, block in enumerate(self.transformer.h):
                x, present = block(x, None if past is None else past[i])
                presents.append(present)
            x = self.transformer.ln_f(x)
            if targets is not None:
                logits = self.lm_head(x)
                loss = F.cross_entropy(
                    logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
                )
                return logits, loss
            return self.lm_head(x[:, [-1], :]), presents

        def configure_optimizers(self, weight_decay, learning_rate, betas):
            param_dict = {pn: p for pn, p in self.named_parameters() if p.requires_grad}
            decay = [p for p in param_dict.values() if p.dim() >= 2]
            nodecay = [p for p in param_dict.values() if p.dim() < 2]
            groups = [
                {"params": decay, "weight_decay": weight_decay},
                {"params": nodecay, "weight_decay": 0.0},
            ]
            assert "fused" in inspect.signature(lib.optim.AdamW).parameters
            return lib.optim.AdamW(groups, lr=learning_rate, betas=betas)

        @torch.no_grad()
        def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, cached=False):
            past, fed = None, idx
            for _ in range(max_new_tokens):
                logits, presents = self(fed, past=past)
                logits = logits[:, -1, :] / temperature
                if top_k is not None:
                    v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                    logits[logits < v[:, [-1]]] = -float("Inf")
                probs = F.softmax(logits, dim=-1)
                if top_k == 1:
                    idx_next = torch.argmax(probs, dim=-1, keepdim=True)
                else:
                    idx_next = torch.multinomial(probs, num_samples=1)
                idx = torch.cat((idx, idx_next), dim=1)
                past, fed = (presents, idx_next) if cached else (None, idx)
            return idx

    return GPT(config)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 17, shape)


CONFIGS = {
    "fused attention": Config(),
    "attention by hand": Config(flash=False, bias=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_training(name):
    """AdamW with two groups and clipped gradients; targets that do not count."""

    def arrays(step):
        targets = tokens(3, 10, seed=step + 50)
        targets[:, :2] = -1
        return tokens(3, 10, seed=step), targets

    same_training(
        lambda lib: gpt(lib, CONFIGS[name]),
        arrays,
        lambda lib, model, x, y: model(x, y)[1],
        optimizer=lambda lib, model: model.configure_optimizers(0.1, 0.01, (0.9, 0.95)),
        clip=1.0,
        scale=1000,
    )


def test_training_in_single_precision():
    same_training(
        lambda lib: gpt(lib, Config()), (tokens(3, 12), tokens(3, 12, seed=1)),
        lambda lib, model, x, y: model(x, y)[1], dtype="float32", lr=0.5, scale=100,
    )  # fmt: skip


def test_generation():
    """Greedy: equal PyTorch's, with and without the cache. Sampled: within the k best."""
    models = pair(lambda lib: gpt(lib, Config()))
    found = []
    for lib in LIBS:
        model = models[lib.name].eval()
        assert model.get_num_params() == sum(
            p.numel() for n, p in model.named_parameters() if "wpe" not in n
        )
        (prompt,) = batch(lib, [tokens(2, 4)], "float64")
        plain = model.generate(prompt, 8, top_k=1)
        same(plain, model.generate(prompt, 8, top_k=1, cached=True))
        assert model.generate(prompt, 3, temperature=0.8, top_k=4, cached=True).shape == (2, 7)
        found.append(plain)
    same(*found)


def decoder(model):
    """One token at a time with keys and values in buffers of fixed size, as servers do."""
    config = model.config
    head = config.n_embd // config.n_head
    F = jitgrad.nn.functional

    def attend(block, x, keys, values, at, seen):
        q, k, v = block.attn.c_attn(x).split(config.n_embd, dim=2)
        q, k, v = (y.view(x.shape[0], 1, config.n_head, head).transpose(1, 2) for y in (q, k, v))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return block.attn.c_proj(y.transpose(1, 2).reshape(x.shape))

    def step(token, at, cache):
        seen = jitgrad.arange(config.block_size) <= at
        x = model.transformer.wte(token) + model.transformer.wpe(at)
        for block, (keys, values) in zip(model.transformer.h, cache, strict=True):
            x = x + attend(block, block.ln_1(x), keys, values, at, seen)
            x = x + block.mlp(block.ln_2(x))
        return model.lm_head(model.transformer.ln_f(x))[:, -1]

    return step


def test_cache_of_fixed_size_compiles_once():
    config = Config()
    model = gpt(LIBS[0], config).eval()
    step = jitgrad.jit(decoder(model), fallback="error")
    shape = (2, config.n_head, config.block_size, config.n_embd // config.n_head)
    cache = [(jitgrad.zeros(shape), jitgrad.zeros(shape)) for _ in range(config.n_layer)]
    ids = jitgrad.from_numpy(tokens(2, config.block_size))
    with jitgrad.no_grad():
        whole, _ = model(ids, ids)
        for t in range(config.block_size):
            logits = step(ids[:, t : t + 1].clone(), jitgrad.tensor([t]), cache)
            np.testing.assert_allclose(numpy(logits), numpy(whole[:, t]), atol=2e-5)
    assert step.stats.compiles == 1 and step.stats.hits == config.block_size - 1
