"""A vision transformer, and a BERT whose state dict has the names of Hugging Face's."""

import math

import numpy as np
import pytest
from parity.compare import LIBS, check, same
from parity.training import pair, same_training


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tokens(*shape, seed=0, below=13):
    return np.random.default_rng(seed).integers(0, below, shape)


# -- vision ----------------------------------------------------------------------------------------
def vit(lib, dropout=0.0):
    torch, nn = lib.t, lib.nn

    class PatchEmbed(nn.Module):
        def __init__(self, img_size, patch_size, in_chans, embed_dim):
            super().__init__()
            self.num_patches = (img_size // patch_size) ** 2
            self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

        def forward(self, x):
            return self.proj(x).flatten(2).transpose(1, 2)

    class Attention(nn.Module):
        def __init__(self, dim, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.scale = (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3)
            self.attn_drop, self.proj = nn.Dropout(dropout), nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            attn = (q @ k.transpose(-2, -1)) * self.scale
            attn = self.attn_drop(attn.softmax(dim=-1))
            return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))

    class Block(nn.Module):
        def __init__(self, dim, num_heads, mlp_ratio=2):
            super().__init__()
            self.norm1 = nn.LayerNorm(dim, eps=1e-6)
            self.attn = Attention(dim, num_heads)
            self.norm2 = nn.LayerNorm(dim, eps=1e-6)
            self.mlp = nn.Sequential(
                nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Dropout(dropout),
                nn.Linear(dim * mlp_ratio, dim), nn.Dropout(dropout),
            )  # fmt: skip

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class VisionTransformer(nn.Module):
        def __init__(self, img_size=8, patch_size=4, in_chans=3, num_classes=5, dim=8, depth=2):
            super().__init__()
            self.patch_embed = PatchEmbed(img_size, patch_size, in_chans, dim)
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
            self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.patch_embed.num_patches, dim))
            self.pos_drop = nn.Dropout(p=dropout)
            self.blocks = nn.ModuleList([Block(dim, 2) for _ in range(depth)])
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.head = nn.Linear(dim, num_classes)
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
            nn.init.trunc_normal_(self.cls_token, std=0.02)
            self.apply(self._init_weights)

        def _init_weights(self, m):
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.2)
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

        def forward(self, x):
            B = x.shape[0]
            x = self.patch_embed(x)
            x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1)
            x = self.pos_drop(x + self.pos_embed)
            for blk in self.blocks:
                x = blk(x)
            return self.head(self.norm(x)[:, 0])

    return VisionTransformer()


def test_vision_transformer():
    same_training(
        vit, (values(2, 3, 8, 8), tokens(2, below=5)),
        lambda lib, model, x, y: lib.F.cross_entropy(model(x), y, label_smoothing=0.1),
        optimizer=lambda lib, model: lib.optim.AdamW(model.parameters(), lr=3e-3), clip=1.0,
        scale=2000,
    )  # fmt: skip


# -- BERT ------------------------------------------------------------------------------------------
def bert(lib):
    torch, nn = lib.t, lib.nn
    hidden, heads, layers, width, vocab, places, eps = 8, 2, 2, 12, 13, 10, 1e-12

    class BertEmbeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(vocab, hidden, padding_idx=0)
            self.position_embeddings = nn.Embedding(places, hidden)
            self.token_type_embeddings = nn.Embedding(2, hidden)
            self.LayerNorm = nn.LayerNorm(hidden, eps=eps)
            self.dropout = nn.Dropout(0.0)
            self.register_buffer(
                "position_ids", torch.arange(places).expand((1, -1)), persistent=False
            )

        def forward(self, input_ids, token_type_ids):
            position_ids = self.position_ids[:, : input_ids.size(1)]
            x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
            x = x + self.position_embeddings(position_ids)
            return self.dropout(self.LayerNorm(x))

    class BertSelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(hidden, hidden)
            self.key = nn.Linear(hidden, hidden)
            self.value = nn.Linear(hidden, hidden)
            self.dropout = nn.Dropout(0.0)

        def transpose_for_scores(self, x):
            return x.view(x.size()[:-1] + (heads, hidden // heads)).permute(0, 2, 1, 3)

        def forward(self, x, mask):
            q, k, v = (self.transpose_for_scores(p(x)) for p in (self.query, self.key, self.value))
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(hidden // heads)
            probs = self.dropout(nn.functional.softmax(scores + mask, dim=-1))
            context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
            return context.view(context.size()[:-2] + (hidden,)), probs

    class BertOutput(nn.Module):
        def __init__(self, features):
            super().__init__()
            self.dense = nn.Linear(features, hidden)
            self.LayerNorm = nn.LayerNorm(hidden, eps=eps)
            self.dropout = nn.Dropout(0.0)

        def forward(self, x, residual):
            return self.LayerNorm(self.dropout(self.dense(x)) + residual)

    class BertAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.self = BertSelfAttention()
            self.output = BertOutput(hidden)

        def forward(self, x, mask):
            return self.output(self.self(x, mask)[0], x)

    class BertIntermediate(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(hidden, width)
            self.intermediate_act_fn = nn.functional.gelu

        def forward(self, x):
            return self.intermediate_act_fn(self.dense(x))

    class BertLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = BertAttention()
            self.intermediate = BertIntermediate()
            self.output = BertOutput(width)

        def forward(self, x, mask):
            x = self.attention(x, mask)
            return self.output(self.intermediate(x), x)

    class BertEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ModuleList([BertLayer() for _ in range(layers)])

        def forward(self, x, mask):
            for layer_module in self.layer:
                x = layer_module(x, mask)
            return x

    class BertPooler(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(hidden, hidden)
            self.activation = nn.Tanh()

        def forward(self, x):
            return self.activation(self.dense(x[:, 0]))

    class BertModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = BertEmbeddings()
            self.encoder = BertEncoder()
            self.pooler = BertPooler()

        def forward(self, input_ids, attention_mask, token_type_ids):
            x = self.embeddings(input_ids, token_type_ids)
            mask = attention_mask[:, None, None, :].to(dtype=x.dtype)
            mask = (1.0 - mask) * torch.finfo(x.dtype).min
            x = self.encoder(x, mask)
            return x, self.pooler(x)

    class BertForPreTraining(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel()
            self.transform = nn.Sequential(
                nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=eps)
            )
            self.decoder = nn.Linear(hidden, vocab)
            self.seq_relationship = nn.Linear(hidden, 2)
            self.decoder.weight = self.bert.embeddings.word_embeddings.weight

        def forward(self, input_ids, attention_mask, token_type_ids, labels, next_labels):
            x, pooled = self.bert(input_ids, attention_mask, token_type_ids)
            scores = self.decoder(self.transform(x))
            loss_fct = nn.CrossEntropyLoss()
            masked = loss_fct(scores.view(-1, vocab), labels.view(-1))
            return masked + loss_fct(self.seq_relationship(pooled), next_labels.view(-1))

    return BertForPreTraining()


# A few of the names of transformers.BertModel's state dict, and how many a layer has.
NAMES = [
    "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.LayerNorm.bias",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.1.attention.output.dense.bias",
    "bert.encoder.layer.1.attention.output.LayerNorm.weight",
    "bert.encoder.layer.0.output.dense.weight",
    "bert.encoder.layer.0.intermediate.dense.weight",
    "bert.pooler.dense.bias",
]


def text_batch(step):
    mask = np.ones((3, 6), np.int64)
    mask[0, 4:] = mask[2, 3:] = 0
    ids = np.where(mask == 1, np.maximum(tokens(3, 6, seed=step), 1), 0)
    labels = np.where(tokens(3, 6, seed=step + 5) % 3 == 0, ids, -100)
    labels[:, 1] = ids[:, 1]
    types = np.repeat([[0, 0, 0, 1, 1, 1]], 3, 0)
    return ids, mask, types, labels, tokens(3, seed=step, below=2)


def test_bert():
    ours = bert(LIBS[0]).state_dict()
    assert set(NAMES) <= set(ours) and "bert.embeddings.position_ids" not in ours
    assert sum("encoder.layer.0." in name for name in ours) == 16
    same_training(
        bert, text_batch, lambda lib, model, *x: model(*x),
        optimizer=lambda lib, model: lib.optim.AdamW(model.parameters(), lr=1e-3), clip=1.0,
        scale=2000,
    )  # fmt: skip


@pytest.mark.parametrize("build", [vit, bert])
def test_single_precision(build):
    models = pair(build, "float32")
    if build is vit:
        x = values(2, 3, 8, 8).astype(np.float32)
        check(lambda lib, x: models[lib.name](x), x, scale=100)
        return
    results = [
        models[lib.name](*[lib.t.from_numpy(np.array(x)) for x in text_batch(0)]) for lib in LIBS
    ]
    same(*results, scale=20)
