"""Numerics by tensors: regression by hand, by lstsq and by solve, weight decay, k-means, PCA,
a Gaussian mixture by EM, Rosenbrock by several optimizers, a learning-rate finder, metrics."""

import copy
import math

import matplotlib
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RNG = np.random.default_rng


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch.get_default_dtype())


def build():
    return {"finder": nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))}


def linear_regression():
    rng = RNG(1)
    true_w, true_b = torch.tensor([2.0, -3.4, 0.5]), 4.2
    X = tensor(rng.standard_normal((40, 3)))
    y = torch.matmul(X, true_w) + true_b + tensor(0.01 * rng.standard_normal(40))
    y = y.reshape((-1, 1))

    def data_iter(batch_size, features, labels):
        num_examples = len(features)
        indices = list(range(num_examples))
        for i in range(0, num_examples, batch_size):
            batch_indices = torch.tensor(indices[i : min(i + batch_size, num_examples)])
            yield features[batch_indices], labels[batch_indices]

    def sgd(params, lr, batch_size):
        with torch.no_grad():
            for param in params:
                param -= lr * param.grad / batch_size
                param.grad.zero_()

    best = (None, math.inf)
    for weight_decay in [0.0, 0.1, 1.0]:
        w = torch.zeros((3, 1), requires_grad=True)
        b = torch.zeros(1, requires_grad=True)
        for _ in range(3):
            for Xb, yb in data_iter(10, X[:30], y[:30]):
                y_hat = torch.matmul(Xb, w) + b
                loss = (y_hat - yb.reshape(y_hat.shape)) ** 2 / 2
                (loss.sum() + weight_decay * (w**2).sum() / 2).backward()
                sgd([w, b], 0.3, 10)
        with torch.no_grad():
            valid = float(((X[30:] @ w + b - y[30:]) ** 2).mean())
        if valid < best[1]:
            best = (weight_decay, valid, w.detach().clone(), b.item())
    design = torch.cat([X, torch.ones(len(X), 1)], dim=1)
    exact = torch.linalg.lstsq(design, y).solution
    normal = torch.inverse(design.t().mm(design)).mm(design.t()).mm(y)
    ridge = torch.linalg.solve(design.T @ design + 0.1 * torch.eye(4), design.T @ y)
    r2 = 1 - ((design @ exact - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return [*best, exact, normal, ridge, r2.item()]


def polynomial_regression():
    W_target = tensor(RNG(2).standard_normal((4, 1))) * 5
    b_target = torch.tensor([1.5])

    def make_features(x):
        x = x.unsqueeze(1)
        return torch.cat([x**i for i in range(1, 5)], 1)

    def poly_desc(W, b):
        result = "y = "
        for i, w in enumerate(W):
            result += "{:+.1f} x^{} ".format(w, i + 1)
        result += "{:+.1f}".format(b[0])
        return result

    fc = torch.nn.Linear(4, 1)
    fc.weight.data.fill_(0.1)
    fc.bias.data.zero_()
    random = tensor(RNG(3).standard_normal(32))
    losses = []
    for batch_idx in range(20):
        x = make_features(random)
        y = x.mm(W_target) + b_target.item()
        fc.zero_grad()
        output = F.smooth_l1_loss(fc(x), y)
        loss = output.item()
        output.backward()
        for param in fc.parameters():
            param.data.add_(-0.1 * param.grad)
        losses.append(loss)
        if loss < 1e-3:
            break
    return losses, poly_desc(fc.weight.view(-1), fc.bias), poly_desc(W_target.view(-1), b_target)


def logistic_regression():
    rng = RNG(4)
    X = tensor(np.concatenate([rng.normal(-1, 1, (20, 2)), rng.normal(1, 1, (20, 2))]))
    y = torch.cat((torch.zeros(20), torch.ones(20)))
    w, b = torch.zeros(2), torch.zeros(())
    for _ in range(10):
        p = 1 / (1 + torch.exp(-(X @ w + b)))
        gradient = p - y
        w -= 0.1 * (X.T @ gradient) / len(y)
        b -= 0.1 * gradient.mean()
    criterion = nn.BCEWithLogitsLoss()
    weights = torch.nn.Parameter(w.clone())
    optimizer = torch.optim.LBFGS([weights], lr=1, max_iter=8, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = criterion(X @ weights + b, y) + 0.01 * weights.pow(2).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    newton = w.clone()
    for _ in range(3):  # by the Hessian
        H = torch.autograd.functional.hessian(lambda v: criterion(X @ v + b, y), newton)
        g = torch.func.grad(lambda v: criterion(X @ v + b, y))(newton)
        newton = newton - torch.linalg.solve(H + 0.1 * torch.eye(2), g)
    predicted = (torch.sigmoid(X @ weights + b) > 0.5).float()
    tp = ((predicted == 1) & (y == 1)).sum().float()
    fp = ((predicted == 1) & (y == 0)).sum().float()
    fn = ((predicted == 0) & (y == 1)).sum().float()
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    order = torch.argsort(X @ w, descending=True)
    tps = torch.cumsum(y[order], 0)
    fps = torch.cumsum(1 - y[order], 0)
    auc = torch.trapezoid(tps / tps[-1], fps / fps[-1])
    return [w, b.item(), loss.item(), weights.detach(), newton, precision, recall,
            (2 * precision * recall / (precision + recall)).item(), auc]  # fmt: skip


def kmeans():
    rng = RNG(5)
    x = tensor(np.concatenate([rng.normal(m, 0.3, (10, 2)) for m in ([0, 0], [3, 3], [0, 4])]))
    centers = x[[0, 10, 20]].clone()
    for _ in range(5):
        distances = torch.cdist(x, centers)
        assigned = distances.argmin(dim=1)
        new = torch.zeros_like(centers).index_add_(0, assigned, x)
        counts = torch.bincount(assigned, minlength=3).clamp(min=1)
        new /= counts[:, None]
        if torch.allclose(new, centers):
            break
        centers = new
    by_mask = torch.stack([x[assigned == k].mean(0) for k in range(3)])
    by_scatter = torch.zeros(3, 2).scatter_add_(0, assigned.view(-1, 1).repeat(1, 2), x)
    inertia = distances.gather(1, assigned.unsqueeze(1)).pow(2).sum()
    labels, sizes = torch.unique(assigned, return_counts=True)
    return [assigned, counts, centers, by_mask, by_scatter, inertia, labels, sizes]


def pca():
    x = tensor(RNG(6).standard_normal((12, 4)) * np.array([4, 2, 1, 0.5]))
    centered = x - x.mean(dim=0, keepdim=True)
    U, S, Vh = torch.linalg.svd(centered, full_matrices=False)
    u, s, v = torch.svd(centered)
    cov = centered.T @ centered / (len(x) - 1)
    L, Q = torch.linalg.eigh(cov)
    explained = S**2 / (S**2).sum()
    projected = (centered @ Vh[:2].T).abs()
    whitened = centered @ Q @ torch.diag(L.rsqrt())
    back = (U[:, :2] * S[:2]) @ Vh[:2] + x.mean(0)
    return [S, s, explained.cumsum(0), projected, back, L.flip(0), torch.cov(x.T), cov,
            whitened.T @ whitened, v.abs(), torch.corrcoef(x.T)]  # fmt: skip


def mixture():
    rng = RNG(7)
    x = tensor(np.concatenate([rng.normal(-2, 0.5, 20), rng.normal(1, 1, 30)]))
    pi, mu, sigma = torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 0.5]), torch.ones(2)
    likelihood = []
    for _ in range(6):
        z = (x.unsqueeze(1) - mu) / sigma
        log_joint = -0.5 * z**2 - sigma.log() - 0.5 * math.log(2 * math.pi) + pi.log()
        norm = torch.logsumexp(log_joint, dim=1, keepdim=True)
        resp = (log_joint - norm).exp()
        nk = resp.sum(0)
        pi, mu = nk / len(x), (resp * x[:, None]).sum(0) / nk
        sigma = ((resp * (x[:, None] - mu) ** 2).sum(0) / nk).sqrt()
        likelihood.append(norm.sum().item())
    return likelihood, pi, mu, sigma


def rosenbrock():
    def f(xy):
        x, y = xy
        return (1 - x) ** 2 + 100 * (y - x**2) ** 2

    found = {}
    for name, options in [("Adam", {"lr": 0.1}), ("SGD", {"lr": 1e-4, "momentum": 0.9}),
                          ("RMSprop", {"lr": 0.01}), ("Adagrad", {"lr": 0.5})]:  # fmt: skip
        xy = torch.tensor([-0.5, 1.0], requires_grad=True)
        optimizer = getattr(torch.optim, name)([xy], **options)
        path = np.empty((4, 2))
        path[0] = xy.detach().numpy()
        for i in range(1, 4):
            optimizer.zero_grad()
            loss = f(xy)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(xy, 10.0)
            optimizer.step()
            path[i, :] = xy.detach().numpy()
        found[name] = path.tolist()
    x = torch.tensor(3.0, requires_grad=True)
    first = torch.autograd.grad(x**3, x, create_graph=True)[0]
    found["second"] = torch.autograd.grad(first, x)[0]
    figure, axes = plt.subplots()
    axes.plot(np.arange(4), path[:, 0], label="x")
    axes.plot(torch.arange(4), xy.detach().repeat(2), color="r")
    axes.imshow(torch.rand(3, 4)[None].permute(1, 2, 0).numpy())
    axes.scatter(torch.zeros(2), torch.ones(2), c=torch.arange(2))
    axes.hist(torch.arange(5.0).numpy(), bins=2)
    found["drawn"] = [
        axes.lines[0].get_ydata().tolist(),
        np.asarray(axes.lines[1].get_ydata()).tolist(),
    ]
    plt.close(figure)
    return found


def lr_finder(model):
    x, y = tensor(RNG(8).standard_normal((10, 3))), tensor(RNG(9).standard_normal((10, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    init, final, beta = 1e-3, 1.0, 0.98
    mult, avg_loss, best, lrs, losses = (final / init) ** (1 / 9), 0.0, 0.0, [], []
    lr = init
    optimizer.param_groups[0]["lr"] = lr
    for batch_num in range(1, 11):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        avg_loss = beta * avg_loss + (1 - beta) * loss.data.item()
        smoothed = avg_loss / (1 - beta**batch_num)
        if batch_num > 1 and smoothed > 4 * best:
            break
        if smoothed < best or batch_num == 1:
            best = smoothed
        losses.append(smoothed)
        lrs.append(math.log10(lr))
        loss.backward()
        optimizer.step()
        lr *= mult
        for group in optimizer.param_groups:
            group["lr"] = lr
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return lrs, losses, optimizer.param_groups[0]["lr"]


class Sequences(Dataset):
    def __init__(self, lengths, transform=None):
        self.items = [torch.arange(1, n + 1) for n in lengths]
        self.transform = transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        x = self.items[i]
        return (self.transform(x) if self.transform else x), len(x) % 2


def collate_fn(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    sequences, labels = zip(*batch)
    lengths = torch.LongTensor([len(s) for s in sequences])
    padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)
    return padded, torch.tensor(labels), lengths, padded != -1


def data_and_metrics(compile):
    loader = DataLoader(Sequences([2, 4, 1, 3], lambda t: t * 2), 3, collate_fn=collate_fn)
    batches = [list(batch) for batch in loader]
    labels = np.array([0, 0, 0, 0, 1, 1, 2])
    class_count = np.bincount(labels)
    weight = 1.0 / class_count
    sampler = WeightedRandomSampler(torch.from_numpy(weight[labels]), 400, replacement=True)
    drawn = labels[np.array(list(sampler))]
    assert (np.bincount(drawn) > 70).all()
    dataset = TensorDataset(torch.arange(6.0), torch.arange(6))
    folds = []
    for fold in np.array_split(np.arange(6), 3):
        rest = np.setdiff1d(np.arange(6), fold)
        train, valid = Subset(dataset, rest.tolist()), Subset(dataset, fold)
        folds.append(
            [sum(x.sum().item() for x, _ in DataLoader(part, 4)) for part in (train, valid)]
        )
    train, valid = torch.utils.data.random_split(
        dataset, [4, 2], generator=torch.Generator().manual_seed(42)
    )
    assert sorted(train.indices + valid.indices) == list(range(6))
    rng = RNG(10)
    logits = tensor(rng.standard_normal((20, 4)))
    target = torch.from_numpy(rng.integers(0, 4, 20))
    preds = logits.argmax(1)
    confusion = torch.bincount(4 * target + preds, minlength=16).reshape(4, 4)
    other = torch.zeros(4, 4, dtype=torch.int64)
    for t, p in zip(target.view(-1), preds.view(-1)):
        other[t.long(), p.long()] += 1
    assert torch.equal(confusion, other)
    scattered = torch.zeros(16, dtype=torch.long).scatter_add_(
        0, 4 * target + preds, torch.ones_like(target)
    )

    @compile
    def metrics(confusion):
        diagonal = confusion.diag().float()
        precision = diagonal / confusion.sum(0).clamp(min=1)
        recall = diagonal / confusion.sum(1).clamp(min=1)
        f1 = 2 * precision * recall / (precision + recall + 1e-8)
        iou = diagonal / (confusion.sum(0) + confusion.sum(1) - diagonal).clamp_min(1)
        return precision, recall, f1.mean(), iou.mean(), diagonal.sum() / confusion.sum()

    _, top3 = torch.topk(logits, 3, dim=-1)
    correct = (top3 == target.unsqueeze(dim=-1)).any(dim=-1).float().mean().item() * 100
    one_hot = F.one_hot(target, num_classes=4)
    return [batches, folds, confusion, scattered, list(metrics(confusion)),
            list(metrics(confusion)), correct, one_hot.sum(0),
            list(metrics(confusion + 1))]  # fmt: skip


def run(models, compile):
    return {
        "linear": linear_regression(),
        "polynomial": polynomial_regression(),
        "logistic": logistic_regression(),
        "kmeans": kmeans(),
        "pca": pca(),
        "mixture": mixture(),
        "rosenbrock": rosenbrock(),
        "finder": lr_finder(models["finder"]),
        "data": data_and_metrics(compile),
    }
