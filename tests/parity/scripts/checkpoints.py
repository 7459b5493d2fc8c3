"""Scripts around training: resuming from a file with every state, accumulation with autocast and a
GradScaler, EMA and SWA, freezing and counting, hooks, Grad-CAM, a summary, initialisation, dynamic
nets, dataclass configurations, typed code, logging, tqdm, decorators of TorchScript."""

import io
import logging
import os
import random
import tempfile
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm, trange

logger = logging.getLogger("scripts")


def set_seed(seed: int = 42) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    os.environ["PYTHONHASHSEED"] = str(seed)


@dataclass
class Config:
    lr: float = 1e-2
    epochs: int = 4
    hidden: List[int] = field(default_factory=lambda: [6, 5])
    activation: str = "relu"
    device: torch.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dtype: Optional[torch.dtype] = None


class MLP(nn.Module):
    def __init__(self, config: Config, num_inputs: int = 4, num_outputs: int = 3) -> None:
        super().__init__()
        sizes = [num_inputs, *config.hidden]
        self.blocks = nn.ModuleList(
            [nn.Linear(a, b, bias=False) for a, b in zip(sizes[:-1], sizes[1:])]
        )
        self.activations = nn.ModuleDict({"relu": nn.ReLU(), "lrelu": nn.LeakyReLU(0.1)})
        self.norms = nn.ModuleList(nn.BatchNorm1d(n) for n in sizes[1:])
        self.head = nn.Linear(sizes[-1], num_outputs)
        self.choice = config.activation

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = self.activations[self.choice](self.norms[i](block(x)))
        if mask is not None:
            x = x * mask
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(2, 4, 3, padding=1), relu1=nn.ReLU(inplace=True),
                pool=nn.MaxPool2d(2), conv2=nn.Conv2d(4, 5, 3, padding="same"),
                relu2=nn.ReLU(),
            )
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Linear(5, 3)

    @torch.jit.export
    def extract(self, x):
        return self.features(x)

    def forward(self, x):
        if torch.jit.is_scripting():
            raise AssertionError
        return self.classifier(self.avgpool(self.extract(x)).flatten(1))


def init_weights(m, gain=1.0):
    classname = m.__class__.__name__
    if classname.find("Conv2d") != -1:
        nn.init.constant_(m.weight.data, 0.02 * gain)
        nn.init.eye_(m.weight.data[:, :, 0, 0])
    elif isinstance(m, nn.Linear):
        with torch.no_grad():
            m.weight.copy_(torch.linspace(-1, 1, m.weight.numel()).view_as(m.weight))
        if m.bias is not None:
            m.bias.data.fill_(0.01)
    elif isinstance(m, (nn.BatchNorm1d, nn.GroupNorm)):
        nn.init.ones_(m.weight)
        nn.init.zeros_(m.bias)


def build():
    config = Config()
    return {"mlp": MLP(config), "amp": MLP(config), "swa": MLP(config), "conv": ConvNet()}


def loaders():
    rng = np.random.default_rng(21)
    x = torch.tensor(rng.standard_normal((16, 4)), dtype=torch.get_default_dtype())
    y = torch.as_tensor(rng.integers(0, 3, 16))
    return DataLoader(TensorDataset(x, y), batch_size=8)


def resume(model):
    set_seed(3)
    loader = loaders()

    def fresh():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        schedulers = [
            LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3)),
            ReduceLROnPlateau(optimizer, "min", factor=0.5, patience=0, threshold=1e-2),
        ]
        return optimizer, schedulers

    def epoch(optimizer, schedulers):
        total = 0.0
        for x, y in loader:
            keep = torch.rand(5) > 0.3  # the state of the generator counts
            noise = random.random() + np.random.rand()
            loss = F.cross_entropy(model(x, keep.to(x.dtype)), y) * (1 + noise)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedulers[0].step()
        schedulers[1].step(total)
        return total

    optimizer, schedulers = fresh()
    start = {k: v.clone() for k, v in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        totals = []
        for e in range(4):
            totals.append(epoch(optimizer, schedulers))
            if e == 1:
                torch.save(
                    {
                        "epoch": e + 1,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "schedulers": [s.state_dict() for s in schedulers],
                        "rng": torch.get_rng_state(),
                        "python": random.getstate(),
                        "numpy": np.random.get_state(),
                        "best": min(totals),
                        "config": asdict(Config()),
                    },
                    path,
                )
        expected = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(start)
        torch.rand(3)
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    optimizer, schedulers = fresh()
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    for scheduler, state in zip(schedulers, checkpoint["schedulers"]):
        scheduler.load_state_dict(state)
    torch.set_rng_state(checkpoint["rng"])
    random.setstate(checkpoint["python"])
    np.random.set_state(checkpoint["numpy"])
    again = [epoch(optimizer, schedulers) for _ in range(checkpoint["epoch"], 4)]
    assert again == totals[2:]
    for key, value in model.state_dict().items():
        assert torch.equal(value, expected[key]), key
    model.zero_grad()
    model.load_state_dict(start)  # the draws differ between libraries
    return [sorted(checkpoint), checkpoint["config"]["hidden"], checkpoint["epoch"]]


def accumulate(model):
    loader, losses = loaders(), []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    use_amp = device == "cuda"
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, T_max=4, eta_min=1e-3)
    accumulation_steps = 2
    for _epoch in range(2):
        optimizer.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=use_amp):
                loss = F.cross_entropy(model(x), y) / accumulation_steps
            scaler.scale(loss).backward()
            if (i + 1) % accumulation_steps == 0:
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
                losses.append(norm.item())
            losses.append(loss.item() * accumulation_steps)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        half = model(x)
    assert scaler.get_scale() == 1.0
    return losses, scheduler.get_last_lr(), str(half.dtype).split(".")[-1]  # float64 stays


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow, self.backup = {}, {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                assert name in self.shadow
                average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = average.clone()

    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.backup[name] = param.data
                param.data = self.shadow[name]

    def restore(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                param.data = self.backup[name]
        self.backup = {}


def averages(model, compile):
    loader = loaders()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ema, swa_model = EMA(model, 0.9), AveragedModel(model)
    swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

    @compile
    def train_step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    bar = tqdm(range(3), disable=True, desc="swa")
    for epoch in bar:
        for x, y in tqdm(loader, leave=False, file=io.StringIO(), total=len(loader)):
            losses.append(train_step(x, y).item())
            ema.update()
        if epoch > 0:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        bar.set_postfix(loss=losses[-1], lr=optimizer.param_groups[0]["lr"])
        logger.info("epoch %d: loss %.4f, norm %s", epoch, losses[-1], model.head.weight.norm())
    update_bn(loader, swa_model)
    model.eval()
    with torch.inference_mode():
        plain = model(x)
        ema.apply_shadow()
        shadow = model(x)
        ema.restore()
        back = model(x)
    swa_model.eval()
    for _ in trange(1, disable=True):
        averaged = swa_model(x)
    return losses, plain, shadow, back, averaged.detach(), swa_model.module.state_dict()


class GradCAM:
    def __init__(self, model: nn.Module, layer: nn.Module) -> None:
        self.model = model
        self.activations: Dict[str, Tensor] = {}
        self.gradients: Optional[Tensor] = None
        self.handles = [
            layer.register_forward_hook(self.save_activation),
            layer.register_full_backward_hook(self.save_gradient),
        ]

    def save_activation(self, module: nn.Module, input: Tuple[Tensor, ...], output: Tensor) -> None:
        self.activations["value"] = output.detach().clone()

    def save_gradient(self, module, grad_input, grad_output):
        self.gradients = grad_output[0].detach()

    def __call__(self, x: Tensor, class_idx: Optional[int] = None) -> Tensor:
        logit = self.model(x)
        score = logit[:, logit.max(1)[-1]].squeeze() if class_idx is None else logit[:, class_idx]
        self.model.zero_grad()
        score.sum().backward(retain_graph=False)
        b, k, u, v = self.gradients.size()
        alpha = self.gradients.view(b, k, -1).mean(2)
        weights = alpha.view(b, k, 1, 1)
        saliency = (weights * self.activations["value"]).sum(1, keepdim=True)
        saliency = F.relu(saliency)
        saliency = F.interpolate(saliency, size=x.shape[2:], mode="bilinear", align_corners=False)
        low, high = saliency.min(), saliency.max()
        return (saliency - low).div(high - low + 1e-6).data

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def summary(model: nn.Module, input_size: Tuple[int, ...]) -> Dict[str, Any]:
    rows: "OrderedDict[str, Dict[str, Any]]" = OrderedDict()
    hooks: List[Any] = []

    def register_hook(module):
        def hook(module, input, output):
            class_name = str(module.__class__).split(".")[-1].split("'")[0]
            key = "%s-%i" % (class_name, len(rows) + 1)
            params = 0
            if hasattr(module, "weight") and hasattr(module.weight, "size"):
                params += torch.prod(torch.LongTensor(list(module.weight.size()))).item()
            if hasattr(module, "bias") and hasattr(module.bias, "size"):
                params += int(torch.prod(torch.LongTensor(list(module.bias.size()))))
            rows[key] = {
                "in": list(input[0].size()), "out": [-1] + list(output.size())[1:], "n": params,
            }  # fmt: skip

        if not isinstance(module, (nn.Sequential, nn.ModuleList)) and not (module == model):
            hooks.append(module.register_forward_hook(hook))

    model.apply(register_hook)
    x = torch.rand(2, *input_size).type(torch.get_default_dtype())
    with torch.no_grad():
        model(x)
    for h in hooks:
        h.remove()
    return rows


@torch.jit.script
def fused_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


@torch.jit.ignore
def ignored(x: Tensor) -> Tensor:
    return x + 1


def inspect(model):
    model.apply(partial(init_weights, gain=2.0))
    total = sum(p.numel() for p in model.parameters())
    for name, param in model.named_parameters():
        if name.startswith("features.conv1"):
            param.requires_grad = False
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
    x = torch.tensor(np.random.default_rng(22).standard_normal((1, 2, 6, 6))).to(
        next(model.parameters()).dtype
    )
    features: Dict[str, Tensor] = {}

    def get_features(name: str) -> Callable:
        def hook(model, input, output):
            features[name] = output.detach()

        return hook

    handles = [m.register_forward_hook(get_features(n)) for n, m in model.features.named_children()]
    out: Union[Tensor, List[Tensor]] = model(x)
    for handle in handles:
        handle.remove()
    F.cross_entropy(out, torch.tensor([1])).backward()
    grads = {
        n: p.grad.abs().mean().item() for n, p in model.named_parameters() if p.grad is not None
    }
    optimizer.step()
    cam = GradCAM(model, model.features.conv2)
    maps = [cam(x), cam(x, 1)]
    cam.remove()
    model.classifier = nn.Linear(model.classifier.in_features, 2)  # a new head
    model.classifier.apply(init_weights)
    children = nn.Sequential(*list(model.children())[:-1])
    scripted = torch.jit.script(model.eval()) if False else model.eval()
    with torch.no_grad():
        embedding = children(x).squeeze()
        head = scripted(x)
        activated = ignored(fused_gelu(head))
    assert not any(m._forward_hooks for m in model.modules())
    return [total, trainable, len(optimizer.param_groups[0]["params"]), features, grads, maps,
            summary(model, (2, 6, 6)), embedding, head, activated]  # fmt: skip


def run(models, compile):
    logging.basicConfig(level=logging.WARNING)
    return {
        "resume": resume(models["mlp"]),
        "amp": accumulate(models["amp"]),
        "averages": averages(models["swa"], compile),
        "inspect": inspect(models["conv"]),
    }
