"""A mixed-precision script: autocast in bfloat16 on the CPU, GradScaler off and on, seeds of every
library, gradient checkpointing, metrics, a cosine schedule with warm-up, saving and resuming."""

import io
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, random_split

COMPILED = None  # bfloat16's roundings are compared in steps that run as they are


def set_seed(seed=42):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + F.relu(self.fc(self.norm(x)))


class Net(nn.Module):
    def __init__(self, dim=8, use_checkpoint=True):
        super().__init__()
        self.stem = nn.Linear(4, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(2)])
        self.head = nn.Linear(dim, 3)
        self.use_checkpoint = use_checkpoint

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.use_checkpoint and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def build():
    return Net()


SCALE = 1e9  # bfloat16 inside; what is exact is compared by the losses of the plain steps


def run(model, compile):
    set_seed(0)
    rng = np.random.default_rng(29)
    dtype = torch.get_default_dtype()
    x = torch.tensor(rng.standard_normal((24, 4)), dtype=dtype)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    generator = torch.Generator().manual_seed(42)
    train_set, val_set = random_split(TensorDataset(x, y), [20, 4], generator=generator)
    assert len(train_set) == 20 and len(val_set) == 4
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=False, drop_last=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warmup = LinearLR(optimizer, start_factor=0.1, total_iters=2)
    cosine = CosineAnnealingLR(optimizer, T_max=4, eta_min=1e-4)
    scheduler = SequentialLR(optimizer, [warmup, cosine], milestones=[2])
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    rates, dtypes = [], []
    for _epoch in range(2):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                outputs = model(inputs)
                loss = F.cross_entropy(outputs, targets)
            dtypes.append([str(outputs.dtype).split(".")[-1], str(loss.dtype).split(".")[-1]])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
    model.eval()
    correct, total = 0, 0
    with torch.inference_mode():
        for inputs, targets in loader:
            predicted = model(inputs).argmax(dim=-1)
            total += targets.size(0)
            correct += (predicted == targets).sum().item()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "rng": torch.get_rng_state()}, buffer)  # fmt: skip
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    other = Net(use_checkpoint=False)
    missing, unexpected = other.load_state_dict(saved["model"], strict=False)
    same = all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters()))
    return {"rates": rates, "dtypes": dtypes, "total": total, "same": int(same),
            "missing": len(missing) + len(unexpected)}  # fmt: skip
