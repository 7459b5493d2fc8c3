"""Optimizers that people write (SAM over EfficientNet), Grad-CAM by hooks, and a loop over padded
sentences with a checkpoint in the middle.
"""

import io
import math
from collections import OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import Dict, List, NamedTuple, Optional

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


# -- optimizers ------------------------------------------------------------------------------------
class SAM(Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super(SAM, self).__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.norm(
            torch.stack(
                [
                    p.grad.norm(p=2)
                    for group in self.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


# -- EfficientNet ----------------------------------------------------------------------------------
class SwishImplementation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


class MemoryEfficientSwish(nn.Module):
    def forward(self, x):
        return SwishImplementation.apply(x)


class Conv2dStaticSamePadding(nn.Conv2d):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, image_size=None, **kwargs):
        super().__init__(in_channels, out_channels, kernel_size, stride, **kwargs)
        self.stride = self.stride if len(self.stride) == 2 else [self.stride[0]] * 2
        ih, iw = (image_size, image_size) if isinstance(image_size, int) else image_size
        kh, kw = self.weight.size()[-2:]
        sh, sw = self.stride
        oh, ow = math.ceil(ih / sh), math.ceil(iw / sw)
        pad_h = max((oh - 1) * self.stride[0] + (kh - 1) * self.dilation[0] + 1 - ih, 0)
        pad_w = max((ow - 1) * self.stride[1] + (kw - 1) * self.dilation[1] + 1 - iw, 0)
        if pad_h > 0 or pad_w > 0:
            self.static_padding = nn.ZeroPad2d(
                (pad_w // 2, pad_w - pad_w // 2, pad_h // 2, pad_h - pad_h // 2)
            )
        else:
            self.static_padding = nn.Identity()

    def forward(self, x):
        return F.conv2d(
            self.static_padding(x),
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


class BlockArgs(NamedTuple):
    kernel_size: int
    stride: int
    expand_ratio: int
    filters: int
    se_ratio: Optional[float] = 0.25


class MBConvBlock(nn.Module):
    def __init__(self, inp: int, args: BlockArgs, image_size):
        super().__init__()
        bn = partial(nn.BatchNorm2d, momentum=0.01, eps=1e-3)
        oup = inp * args.expand_ratio
        self.expand = nn.Sequential(nn.Conv2d(inp, oup, 1, bias=False), bn(oup))
        self._depthwise_conv = Conv2dStaticSamePadding(
            oup,
            oup,
            groups=oup,
            kernel_size=args.kernel_size,
            stride=args.stride,
            bias=False,
            image_size=image_size,
        )
        self._bn1 = bn(oup)
        squeezed = max(1, int(inp * args.se_ratio))
        self._se_reduce, self._se_expand = nn.Conv2d(oup, squeezed, 1), nn.Conv2d(squeezed, oup, 1)
        self._project_conv, self._bn2 = (
            nn.Conv2d(oup, args.filters, 1, bias=False),
            bn(args.filters),
        )
        self._swish = MemoryEfficientSwish()
        self.skip = args.stride == 1 and inp == args.filters

    def forward(self, inputs):
        x = self._swish(self.expand(inputs))
        x = self._swish(self._bn1(self._depthwise_conv(x)))
        x_squeezed = F.adaptive_avg_pool2d(x, 1)
        x_squeezed = self._se_expand(self._swish(self._se_reduce(x_squeezed)))
        x = torch.sigmoid(x_squeezed) * x
        x = self._bn2(self._project_conv(x))
        return x + inputs if self.skip else x


class EfficientNet(nn.Module):
    def __init__(self, blocks: List[BlockArgs], image_size=8):
        super().__init__()
        self._conv_stem = Conv2dStaticSamePadding(3, 4, 3, 2, image_size=image_size, bias=False)
        self._bn0 = nn.BatchNorm2d(4)
        self._blocks = nn.ModuleList([])
        size, channels = image_size // 2, 4
        for b in blocks:
            self._blocks.append(MBConvBlock(channels, b, size))
            channels, size = b.filters, math.ceil(size / b.stride)
        self._fc = nn.Linear(channels, 3)
        for m in self.modules():
            if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d)):
                nn.init.normal_(m.bias, std=0.1)

    def forward(self, x):
        x = F.silu(self._bn0(self._conv_stem(x)))
        for idx, block in enumerate(self._blocks):
            x = (
                checkpoint(block, x, use_reentrant=False)
                if idx == 1 and self.training
                else block(x)
            )
        x = F.adaptive_avg_pool2d(x, 1).flatten(start_dim=1)
        return self._fc(x)


# -- data ------------------------------------------------------------------------------------------
class Sentences(Dataset):
    def __init__(self, rng):
        self.data = [(torch.from_numpy(rng.integers(1, 9, n)), int(n % 2)) for n in (3, 5, 2, 4)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i) -> Dict[str, Tensor]:
        return {"input_ids": self.data[i][0], "label": self.data[i][1]}


def collate(batch):
    ids = nn.utils.rnn.pad_sequence(
        [b["input_ids"] for b in batch], batch_first=True, padding_value=0
    )
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([b["label"] for b in batch]),
    }


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4, padding_idx=0)
        self.layers = nn.Sequential(
            OrderedDict([("fc1", nn.Linear(4, 6)), ("act", nn.GELU()), ("fc2", nn.Linear(6, 2))])
        )

    def forward(self, input_ids, attention_mask=None, labels=None):
        h = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        logits = self.layers(h.sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1e-9))
        return (F.cross_entropy(logits, labels), logits) if labels is not None else logits


class GradCAM:
    def __init__(self, model, layer):
        self.activations, self.gradients = [], []
        self.handles = [
            layer.register_forward_hook(lambda m, i, o: self.activations.append(o.detach())),
            layer.register_full_backward_hook(
                lambda m, gi, go: self.gradients.append(go[0].detach())
            ),
        ]
        self.model = model

    def __call__(self, x):
        out = self.model(x)
        self.model.zero_grad()
        out[range(len(out)), out.argmax(-1)].sum().backward()
        weights = self.gradients[-1].mean(dim=(2, 3), keepdim=True)
        cam = F.relu((weights * self.activations[-1]).sum(1, keepdim=True))
        return F.interpolate(cam, x.shape[2:], mode="bilinear", align_corners=False).squeeze(1)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for handle in self.handles:
            handle.remove()


@contextmanager
def evaluating(net):
    istrain = net.training
    try:
        net.eval()
        yield net
    finally:
        if istrain:
            net.train()


def build():
    torch.manual_seed(7)
    return {
        "efficient": EfficientNet([BlockArgs(3, 1, 2, 4), BlockArgs(5, 2, 2, 6)]),
        "classifier": Classifier(),
    }


COMPILED = "silent"


def run(models, compile):
    rng = np.random.default_rng(8)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # EfficientNet with SAM
    net = models["efficient"]
    found["repr"] = repr(net._blocks[0])
    sam = SAM(net.parameters(), torch.optim.SGD, rho=0.5, lr=0.05, momentum=0.9)
    x, y = draw(4, 3, 8, 8), torch.tensor([0, 1, 2, 1])

    def sam_step(x, y):
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        sam.first_step(zero_grad=True)
        F.cross_entropy(net(x), y, label_smoothing=0.1).backward()
        sam.second_step(zero_grad=True)
        return loss.detach()

    step = compile(sam_step)
    found["sam"] = [step(x, y).item() for _ in range(3)]
    with evaluating(net), GradCAM(net, net._blocks[0]) as cam:
        found["cam"] = cam(x)
    net.zero_grad()
    # a loop with a checkpoint in the middle
    model = models["classifier"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3)
    loader = DataLoader(Sentences(rng), batch_size=2, shuffle=False, collate_fn=collate)
    log = []
    for epoch in range(2):
        for batch in loader:
            batch = {k: v.to("cpu", non_blocking=True) for k, v in batch.items()}
            loss, logits = model(**batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
            optimizer.step()
            scheduler.step()
            log.append([round(loss.item(), 4), round(float(norm), 4), scheduler.get_last_lr()[0]])
        buffer = io.BytesIO()
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
            },
            buffer,
        )
        buffer.seek(0)
        state = torch.load(buffer, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    found["log"] = log
    found["text"] = (
        str(model),
        f"{loss.item():.3f}",
        sum(p.numel() for p in model.parameters() if p.requires_grad),
    )
    return found
