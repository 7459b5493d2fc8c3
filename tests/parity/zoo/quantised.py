"""Training for low precision: fake quantisation with straight-through gradients and learned steps
(LSQ), ternary weights, pruning by magnitude with masks, BatchNorm folded for inference, layers with
parametrizations, weights clustered, distillation.
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

SCALE = 10.0


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class FakeQuantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zero, low, high):
        q = torch.clamp(torch.round(x / scale) + zero, low, high)
        ctx.save_for_backward((q > low) & (q < high))
        return (q - zero) * scale

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None, None


class Observer(nn.Module):
    """Affine, per tensor, by a moving range."""

    def __init__(self, bits=8, momentum=0.1):
        super().__init__()
        self.low, self.high, self.momentum = 0, 2**bits - 1, momentum
        self.register_buffer("least", torch.zeros(()))
        self.register_buffer("most", torch.zeros(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.least.lerp_(torch.minimum(x.min(), torch.zeros(())), self.momentum)
                self.most.lerp_(torch.maximum(x.max(), torch.zeros(())), self.momentum)
        scale = ((self.most - self.least) / (self.high - self.low)).clamp(min=1e-6)
        zero = torch.round(-self.least / scale)
        return FakeQuantise.apply(x, scale, zero, self.low, self.high)


class LSQLinear(nn.Linear):
    """Learned step size quantisation."""

    def __init__(self, *args, bits=4, **kwargs):
        super().__init__(*args, **kwargs)
        self.low, self.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.step = nn.Parameter(2 * self.weight.detach().abs().mean() / self.high**0.5)

    def forward(self, x):
        g = 1.0 / (self.weight.numel() * self.high) ** 0.5
        step = (self.step - self.step * g).detach() + self.step * g
        q = RoundSTE.apply((self.weight / step).clamp(self.low, self.high))
        return F.linear(x, q * step, self.bias)


class Ternary(nn.Module):
    """A parametrization: -1, 0, 1 times a scale of each row."""

    def forward(self, w):
        threshold = 0.7 * w.abs().mean(1, keepdim=True)
        mask = (w.abs() > threshold).to(w.dtype)
        scale = (w.abs() * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        hard = w.sign() * mask * scale
        return w + (hard - w).detach()

    def right_inverse(self, w):
        return w


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.observer = Observer()
        self.fc = LSQLinear(4 * 9, 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.ternary = nn.Linear(12, 12)
        parametrize.register_parametrization(self.ternary, "weight", Ternary())
        self.weighted = parametrizations.weight_norm(nn.Linear(12, 12))
        self.bounded = parametrizations.spectral_norm(nn.Linear(12, 12), n_power_iterations=2)
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        x = self.observer(F.adaptive_avg_pool2d(x, 3)).flatten(1)
        x = F.hardswish(self.norm(self.fc(x)))
        x = x + F.relu6(self.ternary(x))
        x = x + torch.tanh(self.bounded(F.silu(self.weighted(x))))
        return self.out(x)


def build():
    torch.manual_seed(9)
    teacher = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3))
    return {"student": Student().double(), "teacher": teacher.double()}


def run(models, compile):
    student, teacher = models["student"], models["teacher"].eval().requires_grad_(False)
    rng = np.random.default_rng(4)
    dtype = torch.float64  # a rounding of float32 would move activations by whole levels
    images = torch.from_numpy(rng.standard_normal((4, 6, 1, 8, 8))).to(dtype)
    labels = torch.from_numpy(rng.integers(0, 3, (4, 6)))
    optimizer = torch.optim.RMSprop(student.parameters(), lr=1e-3, momentum=0.5, centered=True)

    def step(x, y):
        optimizer.zero_grad()
        soft = F.log_softmax(teacher(x) / 2, 1)
        scores = student(x)
        loss = F.kl_div(F.log_softmax(scores / 2, 1), soft, reduction="batchmean", log_target=True)
        loss = 4 * loss + F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile(step)
    found = {"losses": [step(x, y) for x, y in zip(images, labels)]}
    student.eval()
    with torch.no_grad():
        found["scores"] = student(images[0])
        folded = fuse_conv_bn_eval(student.conv, student.bn)
        found["folded"] = folded(images[0])
        dense = nn.Linear(36, 12, bias=False).double().eval()
        dense.load_state_dict({"weight": student.fc.weight})
        found["dense"] = fuse_linear_bn_eval(dense, student.norm)(torch.ones(2, 36, dtype=dtype))
    parametrize.remove_parametrizations(student.ternary, "weight")
    found["levels"] = (student.ternary.weight != 0).sum()
    prune.l1_unstructured(student.out, "weight", amount=0.5)
    found["mask"] = student.out.weight_mask.sum()
    student.train()
    F.mse_loss(student(images[1]), teacher(images[1])).backward()
    found["pruned gradient"] = student.out.weight_orig.grad
    prune.remove(student.out, "weight")
    centres = torch.linspace(-0.3, 0.3, 4, dtype=dtype)
    nearest = torch.cdist(
        student.out.weight.detach().reshape(-1, 1), centres.reshape(-1, 1)
    ).argmin(1)
    found["clustered"] = (centres[nearest] == 0).sum()
    packed = torch.round(student.out.weight / 0.01).clamp(-128, 127)
    found["int8"] = bool((packed.to(torch.int8) == packed).all())
    return found
