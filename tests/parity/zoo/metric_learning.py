"""Learning of embeddings: contrastive and triplet nets, SimCLR, Barlow twins, BYOL's averages."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class EmbeddingNet(nn.Module):
    def __init__(self):
        super(EmbeddingNet, self).__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.PReLU(), nn.MaxPool2d(2, stride=2),
            nn.Conv2d(3, 4, 2), nn.PReLU(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.fc = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 4))

    def forward(self, x):
        output = self.convnet(x)
        output = output.view(output.size()[0], -1)
        return self.fc(output)

    def get_embedding(self, x):
        return self.forward(x)


class TripletNet(nn.Module):
    def __init__(self, embedding_net):
        super(TripletNet, self).__init__()
        self.embedding_net = embedding_net

    def forward(self, x1, x2, x3):
        return self.embedding_net(x1), self.embedding_net(x2), self.embedding_net(x3)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin):
        super(ContrastiveLoss, self).__init__()
        self.margin = margin
        self.eps = 1e-9

    def forward(self, output1, output2, target, size_average=True):
        distances = (output2 - output1).pow(2).sum(1)
        losses = 0.5 * (
            target.to(distances.dtype) * distances
            + (1 + -1 * target).to(distances.dtype)
            * F.relu(self.margin - (distances + self.eps).sqrt()).pow(2)
        )
        return losses.mean() if size_average else losses.sum()


def info_nce_loss(features, n_views=2, temperature=0.5):
    batch = features.shape[0] // n_views
    labels = torch.cat([torch.arange(batch) for i in range(n_views)], dim=0)
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(features.dtype)
    features = F.normalize(features, dim=1)
    similarity_matrix = torch.matmul(features, features.T)
    mask = torch.eye(labels.shape[0], dtype=torch.bool)
    labels = labels[~mask].view(labels.shape[0], -1)
    similarity_matrix = similarity_matrix[~mask].view(similarity_matrix.shape[0], -1)
    positives = similarity_matrix[labels.bool()].view(labels.shape[0], -1)
    negatives = similarity_matrix[~labels.bool()].view(similarity_matrix.shape[0], -1)
    logits = torch.cat([positives, negatives], dim=1)
    labels = torch.zeros(logits.shape[0], dtype=torch.long)
    return F.cross_entropy(logits / temperature, labels)


def nt_xent(z_i, z_j, temperature=0.5):
    z = F.normalize(torch.cat([z_i, z_j]), dim=1)
    n = z.shape[0]
    sim = torch.mm(z, z.t()) / temperature
    sim = sim.masked_fill(torch.eye(n, device=z.device).bool(), float("-inf"))
    target = torch.arange(n, device=z.device).roll(n // 2)
    return F.cross_entropy(sim, target)


def off_diagonal(x):
    n, m = x.shape
    assert n == m
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class BarlowTwins(nn.Module):
    def __init__(self, lambd=0.005):
        super().__init__()
        self.lambd = lambd
        self.projector = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(inplace=True),
            nn.Linear(6, 5, bias=False),
        )  # fmt: skip
        self.bn = nn.BatchNorm1d(5, affine=False)

    def forward(self, y1, y2):
        z1, z2 = self.projector(y1), self.projector(y2)
        c = self.bn(z1).T @ self.bn(z2)
        c.div_(y1.shape[0])
        on_diag = torch.diagonal(c).add_(-1).pow_(2).sum()
        off_diag = off_diagonal(c).pow_(2).sum()
        return on_diag + self.lambd * off_diag


class EMA:
    def __init__(self, beta):
        self.beta = beta

    def update_average(self, old, new):
        return old * self.beta + (1 - self.beta) * new


def build():
    return {
        "triplet": TripletNet(EmbeddingNet()),
        "twins": BarlowTwins(),
        "siamese": EmbeddingNet(),
    }


def run(models, compile):
    rng = np.random.default_rng(10)

    def images():
        return torch.tensor(rng.standard_normal((5, 1, 8, 8)), dtype=torch.get_default_dtype())

    net = models["triplet"]
    triplet_loss = nn.TripletMarginLoss(margin=1.0, p=2)
    cosine = nn.CosineEmbeddingLoss(margin=0.2)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)

    @compile
    def triplet_step(a, p, n, target):
        optimizer.zero_grad(set_to_none=False)
        ea, ep, en = net(a, p, n)
        loss = triplet_loss(ea, ep, en) + cosine(ea, ep, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    target = torch.tensor([1, -1, 1, -1, 1])
    triplet = [triplet_step(images(), images(), images(), target).item() for _ in range(3)]

    net = models["siamese"]
    contrastive = ContrastiveLoss(1.0)
    teacher = copy.deepcopy(net)
    for p in teacher.parameters():
        p.requires_grad = False
    ema = EMA(0.9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

    @compile
    def siamese_step(x1, x2, same):
        z1, z2 = net(x1), net.get_embedding(x2)
        with torch.no_grad():
            t1 = teacher(x1)
        byol = 2 - 2 * (F.normalize(z2, dim=-1, p=2) * F.normalize(t1, dim=-1, p=2)).sum(dim=-1)
        loss = contrastive(z1, z2, same) + nt_xent(z1, z2) + byol.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for current, old in zip(net.parameters(), teacher.parameters()):
            old.data.copy_(ema.update_average(old.data, current.data))
        return loss.detach()

    siamese = [siamese_step(images(), images(), target == 1).item() for _ in range(3)]
    simclr = info_nce_loss(net(torch.cat([images(), images()])))
    simclr.backward()

    twins = models["twins"]
    lars = torch.optim.SGD(twins.parameters(), lr=0.01, weight_decay=1e-6)

    @compile
    def twins_step(y1, y2):
        lars.zero_grad()
        loss = twins(y1, y2)
        loss.backward()
        lars.step()
        return loss.detach()

    y = torch.tensor(rng.standard_normal((2, 6, 4)), dtype=torch.get_default_dtype())
    barlow = [twins_step(y[0], y[1]).item() for _ in range(3)]
    return {"triplet": triplet, "siamese": siamese, "simclr": simclr, "barlow": barlow,
            "teacher": list(teacher.parameters())}  # fmt: skip
