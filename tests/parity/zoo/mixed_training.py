"""A training script with all that belongs to it: datasets and a loader with worker processes, rates
that warm up and fall, accumulated gradients, clipping, an average of the weights, mixed precision
with a scaler, activation checkpointing, a stop and a resumption from a file.
"""

import copy
import io

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Subset

COMPILED = "silent"


class Points(Dataset):
    def __init__(self, count=48):
        rng = np.random.default_rng(8)
        self.x = rng.standard_normal((count, 6))
        self.y = (np.sin(self.x[:, 0]) + self.x[:, 1] * self.x[:, 2] > 0).astype(np.int64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.from_numpy(self.x[index]).to(torch.get_default_dtype())
        return {"x": x, "y": int(self.y[index]), "name": f"p{index}"}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width, bias=False)
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.norm(checkpoint(self.net, x, use_reentrant=False))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.layer_norm(x, (16,)))


def build():
    torch.manual_seed(11)
    return Net()


def groups(model, decay):
    flat = [p for p in model.parameters() if p.ndim < 2]
    deep = [p for p in model.parameters() if p.ndim >= 2]
    return [
        {"params": deep, "weight_decay": decay},
        {"params": flat, "weight_decay": 0.0, "lr": 5e-3},
    ]


class Trainer:
    def __init__(self, model, compile, accumulate=2):
        self.model, self.accumulate = model, accumulate
        self.optimizer = torch.optim.AdamW(groups(model, 0.05), lr=1e-2, betas=(0.9, 0.95))
        warm = LinearLR(self.optimizer, 0.1, total_iters=3)
        cosine = CosineAnnealingLR(self.optimizer, 6, eta_min=1e-4)
        self.scheduler = SequentialLR(self.optimizer, [warm, cosine], [3])
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.forward = compile(self.loss)

    def loss(self, x, y):
        scores = self.model(x)
        return F.cross_entropy(scores, y), scores.detach().argmax(1)

    def epoch(self, loader):
        self.model.train()
        losses, right = [], 0
        for i, batch in enumerate(loader):
            loss, guess = self.forward(batch["x"], batch["y"])
            self.scaler.scale(loss / self.accumulate).backward()
            right += (guess == batch["y"]).sum().item()
            if (i + 1) % self.accumulate == 0:
                self.scaler.unscale_(self.optimizer)
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=True)
                self.scheduler.step()
                self.average.update_parameters(self.model)
                losses.append((loss.detach(), norm, self.scheduler.get_last_lr()))
        return {"losses": losses, "right": right, "scale": self.scaler.get_scale()}

    def state(self):
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(), "scaler": self.scaler.state_dict(),
            "average": self.average.state_dict(),
        }  # fmt: skip

    def load(self, state):
        for name in ("model", "optimizer", "scheduler", "scaler", "average"):
            getattr(self, name).load_state_dict(state[name])


def run(model, compile):
    data = Points()
    train = Subset(data, [i for i in range(48) if i % 4])
    loader = DataLoader(train, batch_size=6, num_workers=2, persistent_workers=True)
    plain = DataLoader(Subset(data, range(0, 48, 4)), batch_size=5, drop_last=False)
    found = {}
    trainer = Trainer(model, compile)
    found["first"] = trainer.epoch(loader)

    file = io.BytesIO()
    torch.save(trainer.state(), file)
    file.seek(0)
    resumed = Trainer(copy.deepcopy(model), compile)
    resumed.load(torch.load(file, map_location="cpu"))
    found["second"] = trainer.epoch(loader)
    found["resumed"] = resumed.epoch(loader)

    update_bn((batch["x"] for batch in plain), trainer.average)
    plateau = ReduceLROnPlateau(trainer.optimizer, factor=0.5, patience=0)
    trainer.average.eval()
    with torch.inference_mode():
        for batch in plain:
            loss = F.cross_entropy(trainer.average(batch["x"]), batch["y"])
            plateau.step(loss.item())
    found["rates"] = [g["lr"] for g in trainer.optimizer.param_groups]
    found["names"] = [name for batch in plain for name in batch["name"]][:3]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = trainer.average(next(iter(plain))["x"])
        found["lower"] = str(scores.dtype).split(".")[1]
    found["close"] = bool(
        (scores.float() - trainer.average(next(iter(plain))["x"]).float()).abs().max() < 0.1
    )
    found["average"] = trainer.average.state_dict()
    return found
