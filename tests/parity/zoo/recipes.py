"""A training script with its usual recipes: MixUp, label smoothing, EMA of weights, gradient
accumulation, clipping, OneCycleLR and cosine restarts, early stopping, distillation,
resuming from a checkpoint in memory."""

import argparse
import copy
import io
import logging
import math
import os
import time
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, Subset

logger = logging.getLogger(__name__)


class AverageMeter(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class SyntheticDataset(Dataset):
    def __init__(self, n, rng, transform=None):
        self.x = rng.standard_normal((n, 6)).astype(np.float32)
        self.y = (self.x[:, :3].sum(1) > 0).astype(np.int64) + (self.x[:, 3] > 1)
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        sample = torch.from_numpy(self.x[idx]).to(torch.get_default_dtype())
        if self.transform:
            sample = self.transform(sample)
        return sample, int(self.y[idx])


class EarlyStopping:
    def __init__(self, patience=2, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best_score, self.early_stop = 0, None, False
        self.val_loss_min, self.best_state = np.inf, None

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None or score >= self.best_score + self.delta:
            self.best_score, self.counter = score, 0
            self.best_state = copy.deepcopy(model.state_dict())
            self.val_loss_min = val_loss
        else:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True


class LabelSmoothingLoss(nn.Module):
    def __init__(self, classes, smoothing=0.0, dim=-1):
        super(LabelSmoothingLoss, self).__init__()
        self.confidence = 1.0 - smoothing
        self.smoothing, self.cls, self.dim = smoothing, classes, dim

    def forward(self, pred, target):
        pred = pred.log_softmax(dim=self.dim)
        with torch.no_grad():
            true_dist = torch.zeros_like(pred)
            true_dist.fill_(self.smoothing / (self.cls - 1))
            true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        return torch.mean(torch.sum(-true_dist * pred, dim=self.dim))


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def loss_fn_kd(outputs, labels, teacher_outputs, alpha=0.6, T=3.0):
    return nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(outputs / T, dim=1), F.softmax(teacher_outputs / T, dim=1)
    ) * (alpha * T * T) + F.cross_entropy(outputs, labels) * (1.0 - alpha)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def lr_lambda(current_step: int):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        return max(
            0.0,
            float(num_training_steps - current_step)
            / float(max(1, num_training_steps - num_warmup_steps)),
        )

    return LambdaLR(optimizer, lr_lambda, -1)


def mlp():
    return nn.Sequential(
        nn.Linear(6, 10, bias=False), nn.BatchNorm1d(10), nn.ReLU(inplace=True), nn.Dropout(p=0.0),
        nn.Linear(10, 3),
    )  # fmt: skip


def build():
    return {"teacher": mlp(), "student": mlp()}


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def run(models, compile):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--accum", type=int, default=2)
    args = parser.parse_args([])
    rng = np.random.default_rng(17)
    np.random.seed(0)
    torch.manual_seed(0)
    os.environ["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    start, history = time.time(), defaultdict(list)
    data = SyntheticDataset(20, rng)
    train_loader = DataLoader(Subset(data, range(12)), batch_size=4, drop_last=True, num_workers=0)
    val_loader = DataLoader(Subset(data, list(range(12, 20))), batch_size=5)

    model = models["teacher"]
    criterion = LabelSmoothingLoss(3, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=6, pct_start=0.4)
    ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    stopper = EarlyStopping()

    @compile
    def forward_backward(x, y, perm, lam):
        mixed = lam * x + (1 - lam) * x[perm]
        output = model(mixed)
        loss = mixup_criterion(criterion, output, y, y[perm], lam) / args.accum
        loss.backward()
        return loss.detach(), output.detach()

    for _epoch in range(3):
        losses, top1 = AverageMeter(), AverageMeter()
        model.train()
        optimizer.zero_grad()
        for i, (x, y) in enumerate(train_loader):
            lam = float(rng.beta(1.0, 1.0))
            loss, output = forward_backward(x, y, torch.from_numpy(rng.permutation(4)), lam)
            losses.update(loss.item(), x.size(0))
            acc1, _acc2 = accuracy(output, y, topk=(1, 2))
            top1.update(acc1[0].item(), x.size(0))
            if (i + 1) % args.accum == 0 or (i + 1) == len(train_loader):
                total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                optimizer.step()
                ema_model.update_parameters(model)
                scheduler.step()
                history["norm"].append(total_norm.item())
                history["lr"].append(optimizer.param_groups[0]["lr"])
                if _epoch < 2 or (i + 1) < len(train_loader):
                    optimizer.zero_grad()
        model.eval()
        val = AverageMeter()
        with torch.no_grad():
            for x, y in val_loader:
                val.update(F.cross_entropy(model(x), y, reduction="sum").item(), 1)
        stopper(val.avg, model)
        logger.info("epoch %d took %.1f", _epoch, time.time() - start)
        history["train"].append(losses.avg)
        history["top1"].append(top1.avg)
        history["val"].append(val.avg)
    model.load_state_dict(stopper.best_state)

    student = models["student"]
    adam = torch.optim.AdamW(student.parameters(), lr=1e-2, weight_decay=1e-2)
    warm = get_linear_schedule_with_warmup(adam, 2, 6)
    model.requires_grad_(False)

    @compile
    def distill(x, y):
        student.train()
        loss = loss_fn_kd(student(x), y, model(x))
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 0.5)
        adam.step()
        return loss.detach()

    checkpoint = None
    for epoch in range(2):
        for x, y in train_loader:
            history["distill"].append(distill(x, y).item())
            warm.step()
        if epoch == 0:
            buffer = io.BytesIO()
            torch.save(
                {"epoch": epoch + 1, "state_dict": student.state_dict(),
                 "optimizer": adam.state_dict(), "scheduler": warm.state_dict()}, buffer,
            )  # fmt: skip
            buffer.seek(0)
            checkpoint = torch.load(buffer, map_location="cpu", weights_only=False)
    resumed = copy.deepcopy(student)
    resumed.load_state_dict(checkpoint["state_dict"])
    again = torch.optim.AdamW(resumed.parameters(), lr=1e-2, weight_decay=1e-2)
    again.load_state_dict(checkpoint["optimizer"])
    history["resumed lr"].append(again.param_groups[0]["lr"])
    model.requires_grad_(True)
    cosine = CosineAnnealingWarmRestarts(again, T_0=2, T_mult=2)
    for _ in range(4):
        again.step()
        cosine.step()
        history["cosine"].append(cosine.get_last_lr()[0])
    assert math.isfinite(history["val"][-1])
    return {**history, "ema": ema_model.module.state_dict(), "best": stopper.best_state,
            "resumed": resumed.state_dict(), "epoch": checkpoint["epoch"]}  # fmt: skip
