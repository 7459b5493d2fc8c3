"""Learning from indices: word2vec with negative samples, matrix factorization with biases, DeepFM,
fastText's EmbeddingBag, a sentence CNN, a tagger with a CRF, TransE."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SkipGramNeg(nn.Module):
    def __init__(self, vocab_size, emb_dim):
        super().__init__()
        self.in_embed = nn.Embedding(vocab_size, emb_dim)
        self.out_embed = nn.Embedding(vocab_size, emb_dim, _weight=torch.zeros(vocab_size, emb_dim))
        self.in_embed.weight.data.uniform_(-0.5, 0.5)
        self.out_embed.weight.data.uniform_(-0.5, 0.5)

    def forward(self, target, context, negatives):
        emb_v = self.in_embed(target)
        emb_u = self.out_embed(context)
        emb_neg = self.out_embed(negatives)
        score = torch.sum(torch.mul(emb_v, emb_u), dim=1)
        score = -F.logsigmoid(torch.clamp(score, max=10, min=-10))
        neg = torch.bmm(emb_neg, emb_v.unsqueeze(2)).squeeze()
        neg = -torch.sum(F.logsigmoid(-torch.clamp(neg, max=10, min=-10)), dim=1)
        return torch.mean(score + neg)


class MF(nn.Module):
    def __init__(self, num_users, num_items, emb_size=3):
        super(MF, self).__init__()
        self.user_emb = nn.Embedding(num_users, emb_size)
        self.user_bias = nn.Embedding(num_users, 1)
        self.item_emb = nn.Embedding(num_items, emb_size)
        self.item_bias = nn.Embedding(num_items, 1)
        for emb in (self.user_emb, self.item_emb):
            emb.weight.data.uniform_(0, 0.05)

    def forward(self, u, v):
        U, V = self.user_emb(u), self.item_emb(v)
        b_u, b_v = self.user_bias(u).squeeze(), self.item_bias(v).squeeze()
        return (U * V).sum(1) + b_u + b_v


class DeepFM(nn.Module):
    def __init__(self, field_dims=(4, 5, 3), dim=3):
        super().__init__()
        self.offsets = np.array((0, *np.cumsum(field_dims)[:-1]), dtype=np.int64)
        self.embedding = nn.Embedding(sum(field_dims), dim)
        self.linear = nn.Embedding(sum(field_dims), 1)
        self.bias = nn.Parameter(torch.zeros((1,)))
        self.mlp = nn.Sequential(
            nn.Linear(9, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)
        )
        nn.init.xavier_uniform_(self.embedding.weight.data)

    def forward(self, x):
        x = x + x.new_tensor(self.offsets).unsqueeze(0)
        e = self.embedding(x)
        square_of_sum = torch.sum(e, dim=1) ** 2
        sum_of_square = torch.sum(e**2, dim=1)
        fm = 0.5 * torch.sum(square_of_sum - sum_of_square, dim=1, keepdim=True)
        out = torch.sum(self.linear(x), dim=1) + self.bias + fm + self.mlp(e.view(-1, 9))
        return torch.sigmoid(out.squeeze(1))


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super(TextClassificationModel, self).__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


class TextCNN(nn.Module):
    def __init__(self, V=12, D=4, C=2, Co=3, Ks=(2, 3)):
        super().__init__()
        self.embed = nn.Embedding(V, D, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv2d(1, Co, (K, D)) for K in Ks])
        self.fc1 = nn.Linear(len(Ks) * Co, C)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(line, line.size(2)).squeeze(2) for line in x]
        return self.fc1(torch.cat(x, 1))


class CRF(nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.start_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))

    def forward(self, emissions, tags, mask):
        return (self._score(emissions, tags, mask) - self._normalizer(emissions, mask)).sum()

    def _score(self, emissions, tags, mask):
        seq_length, batch_size = tags.shape
        at, mask = torch.arange(batch_size), mask.type_as(emissions)
        score = self.start_transitions[tags[0]] + emissions[0, at, tags[0]]
        for i in range(1, seq_length):
            score = score + self.transitions[tags[i - 1], tags[i]] * mask[i]
            score = score + emissions[i, at, tags[i]] * mask[i]
        seq_ends = mask.long().sum(dim=0) - 1
        return score + self.end_transitions[tags[seq_ends, at]]

    def _normalizer(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        for i in range(1, emissions.size(0)):
            next_score = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            next_score = torch.logsumexp(next_score, dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
        return torch.logsumexp(score + self.end_transitions, dim=1)

    def decode(self, emissions):
        score, history = self.start_transitions + emissions[0], []
        for i in range(1, emissions.size(0)):
            next_score = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            score, indices = next_score.max(dim=1)
            history.append(indices)
        _, best = (score + self.end_transitions).max(dim=1)
        paths = [best]
        for hist in reversed(history):
            paths.append(hist.gather(1, paths[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(paths[::-1])


class BiLSTM_CRF(nn.Module):
    def __init__(self, vocab=9, tags=3):
        super().__init__()
        self.word_embeds = nn.Embedding(vocab, 4)
        self.lstm = nn.LSTM(4, 3, num_layers=1, bidirectional=True)
        self.hidden2tag = nn.Linear(6, tags)
        self.crf = CRF(tags)

    def features(self, sentence):
        return self.hidden2tag(self.lstm(self.word_embeds(sentence))[0])


class TransE(nn.Module):
    def __init__(self, entities=6, relations=3, dim=4):
        super().__init__()
        self.ent, self.rel = nn.Embedding(entities, dim, max_norm=1.0), nn.Embedding(relations, dim)

    def forward(self, h, r, t):
        return torch.norm(self.ent(h) + self.rel(r) - self.ent(t), p=1, dim=-1)


def build():
    return {"skipgram": SkipGramNeg(10, 4), "mf": MF(6, 7), "deepfm": DeepFM(), "cnn": TextCNN(),
            "bag": TextClassificationModel(12, 4, 3), "crf": BiLSTM_CRF(),
            "transe": TransE()}  # fmt: skip


def run(models, compile):
    rng = np.random.default_rng(23)
    dtype = torch.get_default_dtype()

    def ids(below, *shape):
        return torch.from_numpy(rng.integers(0, below, shape))

    def floats(*shape):
        return torch.from_numpy(rng.random(shape)).to(dtype)

    m = models
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 1], [0, 0, 1]]).bool()
    bce, margin = nn.BCELoss(), nn.MarginRankingLoss(margin=1.0)
    batches = {
        "skipgram": lambda: (ids(10, 5), ids(10, 5), ids(10, 5, 3)),
        "mf": lambda: (ids(6, 5), ids(7, 5), floats(5)),
        "deepfm": lambda: (ids(3, 5, 3), (floats(5) > 0.5).to(dtype)),
        "cnn": lambda: (ids(12, 4, 6), ids(2, 4)),
        "bag": lambda: (ids(12, 9), torch.tensor([0, 2, 2, 7]), ids(3, 4)),
        "crf": lambda: (ids(9, 4, 3), ids(3, 4, 3)),
        "transe": lambda: (ids(6, 4), ids(3, 4), ids(6, 4), ids(6, 4)),
    }

    def transe(h, r, t, other):
        pos, neg = m["transe"](h, r, t), m["transe"](h, r, other)
        return margin(neg, pos, torch.ones_like(pos))

    losses = {
        "skipgram": m["skipgram"],
        "mf": lambda u, v, r: F.mse_loss(m["mf"](u, v), r),
        "deepfm": lambda x, y: bce(m["deepfm"](x), y),
        "cnn": lambda x, y: F.cross_entropy(m["cnn"](x), y),
        "bag": lambda x, o, y: F.cross_entropy(m["bag"](x, o), y),
        "crf": lambda x, y: -m["crf"].crf(m["crf"].features(x), y, mask),
        "transe": transe,
    }
    found = {}
    for name, loss_of in losses.items():
        optimizer = torch.optim.Adagrad(m[name].parameters(), lr=0.05, lr_decay=1e-3)

        def step(*batch, optimizer=optimizer, loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(*batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        if name != "transe":  # max_norm renormalises by values
            step = compile(step)
        found[name] = [step(*batches[name]()).item() for _ in range(3)]
    found["tags"] = m["crf"].crf.decode(m["crf"].features(ids(9, 4, 3)))
    weight = m["skipgram"].in_embed.weight
    similar = F.cosine_similarity(weight[:3].unsqueeze(1), weight.unsqueeze(0), dim=-1)
    found["similar"] = similar.topk(2, dim=1).indices
    return found
