"""Models in the style that people publish, for the tests of ONNX export. `MODELS`: name -> (how to
make it, the shape of its example input after the batch, its dtype)."""

from __future__ import annotations

from typing import Any

import jitgrad as torch
import jitgrad.nn.functional as F
from jitgrad import nn


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(),
        nn.Dropout(0.1), nn.Linear(16, 5), nn.LogSoftmax(dim=-1),
    )  # fmt: skip


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2, bias=False), nn.GroupNorm(2, 8),
            nn.Hardswish(), nn.AvgPool2d(2), nn.Dropout2d(0.2),
        )  # fmt: skip
        self.head = nn.Linear(8 * 2 * 2, 4)

    def forward(self, x: Any) -> Any:
        return self.head(torch.flatten(self.features(x), 1))


class Block(nn.Module):
    """ResNet's basic block (He et al., 2016)."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Any) -> Any:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        planes, layers = width, []
        for i in range(4):
            for k in range(2):
                layers.append(Block(planes, width << i, 2 if i and not k else 1))
                planes = width << i
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 32, context: int = 16, width: int = 24) -> None:
        super().__init__()
        self.context = context
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.ln_1, self.ln_2, self.ln_f = (nn.LayerNorm(width) for _ in range(3))
        self.attn = CausalSelfAttention(width, 3)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Any) -> Any:
        b, t = idx.size()
        assert t <= self.context, "the sequence is too long"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return self.lm_head(self.ln_f(x))


class Tagger(nn.Module):
    """A bidirectional LSTM over embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        y, (h, _) = self.lstm(self.embed(x))
        return {"tags": self.out(y), "last": h}


class ViT(nn.Module):
    def __init__(self, image: int = 16, patch: int = 4, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 7)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.encoder(x))[:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
            )  # fmt: skip

        self.down1, self.down2, self.bottom = double(1, 4), double(4, 8), double(8, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Upsample(
            scale_factor=2, mode="bilinear", align_corners=True)  # fmt: skip
        self.conv2, self.conv1 = double(16, 8), double(12, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up2(self.bottom(F.max_pool2d(b, 2)))
        d = self.conv2(torch.cat([b, c], dim=1))
        e = self.conv1(torch.cat([F.pad(a, [0, 0, 0, 0]), self.up1(d)], dim=1))
        return torch.sigmoid(self.out(e))


MODELS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "mlp": (mlp, (12,), torch.float32),
    "cnn": (CNN, (3, 16, 16), torch.float32),
    "resnet18": (ResNet18, (3, 32, 32), torch.float32),
    "gpt": (GPT, (9,), torch.int64),
    "lstm": (Tagger, (6,), torch.int64),
    "vit": (ViT, (3, 16, 16), torch.float32),
    "unet": (UNet, (1, 16, 16), torch.float32),
}
