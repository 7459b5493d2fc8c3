"""Encoders and encoder-decoders: the nn.Transformer tutorial's translation model with its masks, a
T5 layer with relative buckets, a ViT of nn.MultiheadAttention, BERT's masked-language step, a time
series forecaster."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn import Transformer

PAD_IDX, BOS_IDX, EOS_IDX = 1, 2, 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 20):
        super(PositionalEncoding, self).__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding)

    def forward(self, token_embedding):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size):
        super(TokenEmbedding, self).__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, layers, emb_size, nhead, src_vocab, tgt_vocab, dim_feedforward=8):
        super(Seq2SeqTransformer, self).__init__()
        self.transformer = Transformer(
            d_model=emb_size, nhead=nhead, num_encoder_layers=layers, num_decoder_layers=layers,
            dim_feedforward=dim_feedforward, dropout=0.0,
        )  # fmt: skip
        self.generator = nn.Linear(emb_size, tgt_vocab)
        self.src_tok_emb = TokenEmbedding(src_vocab, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout=0.0)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding, tgt_padding, memory_padding):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(
            src_emb, tgt_emb, src_mask, tgt_mask, None, src_padding, tgt_padding, memory_padding
        )
        return self.generator(outs)

    def encode(self, src, src_mask):
        return self.transformer.encoder(self.positional_encoding(self.src_tok_emb(src)), src_mask)

    def decode(self, tgt, memory, tgt_mask):
        return self.transformer.decoder(
            self.positional_encoding(self.tgt_tok_emb(tgt)), memory, tgt_mask
        )


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz), device=DEVICE)) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, float(0.0))
    return mask.to(torch.get_default_dtype())


def create_mask(src, tgt):
    src_seq_len, tgt_seq_len = src.shape[0], tgt.shape[0]
    tgt_mask = generate_square_subsequent_mask(tgt_seq_len)
    src_mask = torch.zeros((src_seq_len, src_seq_len), device=DEVICE).type(torch.bool)
    src_padding_mask = (src == PAD_IDX).transpose(0, 1)
    tgt_padding_mask = (tgt == PAD_IDX).transpose(0, 1)
    return src_mask, tgt_mask, src_padding_mask, tgt_padding_mask


@torch.no_grad()
def greedy_decode(model, src, src_mask, max_len, start_symbol):
    memory = model.encode(src, src_mask)
    ys = torch.ones(1, 1).fill_(start_symbol).type(torch.long)
    for _ in range(max_len - 1):
        tgt_mask = generate_square_subsequent_mask(ys.size(0)).type(torch.bool)
        out = model.decode(ys, memory, tgt_mask.logical_not() & (tgt_mask != tgt_mask))
        out = out.transpose(0, 1)
        _, next_word = torch.max(model.generator(out[:, -1]), dim=1)
        next_word = next_word.item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
        if next_word == EOS_IDX:
            break
    return ys


class T5Attention(nn.Module):
    def __init__(self, d_model=8, n_heads=2, buckets=8, max_distance=16):
        super().__init__()
        self.n_heads, self.buckets, self.max_distance = n_heads, buckets, max_distance
        self.q, self.k = (
            nn.Linear(d_model, d_model, bias=False),
            nn.Linear(d_model, d_model, bias=False),
        )
        self.v, self.o = (
            nn.Linear(d_model, d_model, bias=False),
            nn.Linear(d_model, d_model, bias=False),
        )
        self.relative_attention_bias = nn.Embedding(buckets, n_heads)

    @staticmethod
    def _relative_position_bucket(
        relative_position, bidirectional=True, num_buckets=8, max_distance=16
    ):
        relative_buckets = 0
        if bidirectional:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        if_large = max_exact + (
            torch.log(relative_position.float() / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        if_large = torch.min(if_large, torch.full_like(if_large, num_buckets - 1))
        relative_buckets += torch.where(is_small, relative_position, if_large)
        return relative_buckets

    def compute_bias(self, query_length, key_length):
        context = torch.arange(query_length, dtype=torch.long)[:, None]
        memory = torch.arange(key_length, dtype=torch.long)[None, :]
        bucket = self._relative_position_bucket(
            memory - context, num_buckets=self.buckets, max_distance=self.max_distance
        )
        return self.relative_attention_bias(bucket).permute([2, 0, 1]).unsqueeze(0)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, -1, self.n_heads, c // self.n_heads).transpose(1, 2)
                   for f in (self.q, self.k, self.v))  # fmt: skip
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += self.compute_bias(t, t)
        attn = F.softmax(scores.float(), dim=-1).type_as(scores)
        return self.o(torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, -1, c))


class ViT(nn.Module):
    def __init__(self, dim=8, classes=3):
        super().__init__()
        self.conv_proj = nn.Conv2d(1, dim, 2, 2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embedding = nn.Parameter(torch.empty(1, 5, dim).normal_(std=0.02))
        self.ln = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, 2, dropout=0.0, batch_first=True)
        layer = nn.TransformerEncoderLayer(
            dim, 2, 12, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        n = x.shape[0]
        x = self.conv_proj(x).reshape(n, -1, 4).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        y = self.ln(x)
        y, weights = self.attention(y, y, y, need_weights=True)
        return self.head(self.encoder(x + y)[:, 0]), weights


class Forecaster(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.input = nn.Linear(1, d)
        self.time2vec = nn.Parameter(torch.linspace(0.1, 1, d))
        layer = nn.TransformerEncoderLayer(d_model=d, nhead=2, dim_feedforward=8, dropout=0)
        self.transformer_encoder = nn.TransformerEncoder(layer, num_layers=1)
        self.lstm = nn.LSTM(d, 4, batch_first=False)
        self.quantiles = nn.Linear(4, 3)

    def forward(self, src, mask):
        t = torch.arange(src.size(0)).to(src.dtype)
        x = self.input(src) + torch.sin(torch.outer(t, self.time2vec)).unsqueeze(1)
        x, _ = self.lstm(self.transformer_encoder(x, mask))
        return self.quantiles(x[-1])


def quantile_loss(preds, target, quantiles=(0.1, 0.5, 0.9)):
    assert not target.requires_grad
    losses = []
    for i, q in enumerate(quantiles):
        errors = target - preds[:, i]
        losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(1))
    return torch.mean(torch.sum(torch.cat(losses, dim=1), dim=1))


def build():
    return {"translation": Seq2SeqTransformer(1, 8, 2, 11, 12), "t5": T5Attention(), "vit": ViT(),
            "series": Forecaster()}  # fmt: skip


SCALE = 2e4  # parts of T5 are single precision


def run(models, compile):
    rng = np.random.default_rng(21)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=dtype)

    def stepper(model, loss_of, **options):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, **options)

        def step(*args):
            optimizer.zero_grad()
            loss = loss_of(*args)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return compile(step)

    transformer = models["translation"]
    loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD_IDX)

    def translation_loss(src, tgt):
        tgt_input = tgt[:-1, :]
        src_mask, tgt_mask, src_padding, tgt_padding = create_mask(src, tgt_input)
        logits = transformer(
            src, tgt_input, src_mask, tgt_mask, src_padding, tgt_padding, src_padding
        )
        return loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[1:, :].reshape(-1))

    step = stepper(transformer, translation_loss, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for _ in range(3):
        src, tgt = rng.integers(4, 11, (5, 3)), rng.integers(4, 11, (4, 3))
        src[3:, 0] = PAD_IDX
        tgt[3:, 1] = PAD_IDX
        losses.append(step(torch.from_numpy(src), torch.from_numpy(tgt)).item())
    transformer.eval()
    src = torch.from_numpy(rng.integers(4, 11, (4, 1)))
    found = {
        "translation": losses,
        "decoded": greedy_decode(transformer, src, torch.zeros(4, 4).type(torch.bool), 5, BOS_IDX),
    }

    t5 = models["t5"]
    step = stepper(t5, lambda x, y: F.mse_loss(t5(x), y))
    found["t5"] = [step(draw(2, 10, 8), draw(2, 10, 8)).item() for _ in range(3)]
    found["buckets"] = t5._relative_position_bucket(torch.arange(-9, 9), bidirectional=False)

    vit = models["vit"]

    def vit_loss(x, y):
        logits, weights = vit(x)
        return F.cross_entropy(logits, y) + (weights * weights.clamp(min=1e-6).log()).sum() * 0.01

    step = stepper(vit, vit_loss)
    found["vit"] = [step(draw(3, 1, 4, 4), torch.tensor([0, 2, 1])).item() for _ in range(3)]

    series = models["series"]
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    step = stepper(series, lambda x, y: quantile_loss(series(x, mask), y))
    found["series"] = [step(draw(6, 4, 1), draw(4)).item() for _ in range(3)]
    return found
