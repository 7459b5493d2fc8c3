"""Image networks of several schools: AlexNet, VGG, GoogLeNet's inception, DenseNet, MobileNetV2,
EfficientNet's MBConv with squeeze-and-excitation, ShuffleNet, ConvNeXt; forwards, one step each."""

import math
from collections import OrderedDict
from functools import partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class AlexNet(nn.Module):
    def __init__(self, num_classes=4):
        super(AlexNet, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, kernel_size=5, stride=2, padding=2), nn.ReLU(inplace=True),
            nn.LocalResponseNorm(3, alpha=1e-2, beta=0.75, k=2.0),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(6, 8, kernel_size=3, padding=1), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(8 * 2 * 2, 10), nn.ReLU(inplace=True),
            nn.Linear(10, num_classes),
        )  # fmt: skip

    def forward(self, x):
        x = self.avgpool(self.features(x))
        x = x.view(x.size(0), 8 * 2 * 2)
        return self.classifier(x)


class VGG(nn.Module):
    cfg = [4, "M", 6, 6, "M"]

    def __init__(self, num_classes=4):
        super().__init__()
        layers, in_channels = [], 3
        for v in self.cfg:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(in_channels, v, kernel_size=3, padding=1, bias=False),
                           nn.BatchNorm2d(v), nn.ReLU(inplace=True)]  # fmt: skip
                in_channels = v
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(6 * 4 * 4, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                m.weight.data.normal_(0, 0.1)
                m.bias.data.zero_()

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), start_dim=1))


class Inception(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.b1 = nn.Conv2d(3, 2, 1)
        self.b2 = nn.Sequential(nn.Conv2d(3, 2, (1, 3), padding=(0, 1)), nn.ReLU())
        self.b3 = nn.Sequential(nn.Conv2d(3, 2, 5, padding="same"), nn.Hardswish())
        self.b4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), nn.Conv2d(3, 2, 1)
        )
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        outputs = [self.b1(x), self.b2(x), self.b3(x), self.b4(x)]
        x = torch.cat(outputs, 1)
        x = F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (1, 1))
        return self.fc(x.squeeze(3).squeeze(2))


class _DenseLayer(nn.Module):
    def __init__(self, num_input_features, growth_rate, bn_size):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_input_features)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_input_features, bn_size * growth_rate, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bn_size * growth_rate)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bn_size * growth_rate, growth_rate, 3, padding=1, bias=False)

    def forward(self, input):
        prev_features = [input] if isinstance(input, torch.Tensor) else input
        concated = torch.cat(prev_features, 1)
        bottleneck = self.conv1(self.relu1(self.norm1(concated)))
        return self.conv2(self.relu2(self.norm2(bottleneck)))


class _DenseBlock(nn.ModuleDict):
    def __init__(self, num_layers, num_input_features, bn_size, growth_rate):
        super().__init__()
        for i in range(num_layers):
            layer = _DenseLayer(num_input_features + i * growth_rate, growth_rate, bn_size)
            self.add_module("denselayer%d" % (i + 1), layer)

    def forward(self, init_features):
        features = [init_features]
        for name, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict([("conv0", nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False))])
        )
        self.features.add_module("denseblock1", _DenseBlock(2, 4, 2, 2))
        self.features.add_module("norm5", nn.BatchNorm2d(8))
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, x):
        out = F.relu(self.features(x), inplace=True)
        out = torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1)
        return self.classifier(out)


def _make_divisible(v, divisor, min_value=None):
    if min_value is None:
        min_value = divisor
    new_v = max(min_value, int(v + divisor / 2) // divisor * divisor)
    if new_v < 0.9 * v:
        new_v += divisor
    return new_v


class ConvBNReLU(nn.Sequential):
    def __init__(self, in_planes, out_planes, kernel_size=3, stride=1, groups=1, act=nn.ReLU6):
        padding = (kernel_size - 1) // 2
        super(ConvBNReLU, self).__init__(
            nn.Conv2d(
                in_planes, out_planes, kernel_size, stride, padding, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_planes, momentum=0.01, eps=1e-3),
            act(inplace=True),
        )


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand_ratio):
        super().__init__()
        assert stride in [1, 2]
        hidden_dim = int(round(inp * expand_ratio))
        self.use_res_connect = stride == 1 and inp == oup
        layers = []
        if expand_ratio != 1:
            layers.append(ConvBNReLU(inp, hidden_dim, kernel_size=1))
        layers.extend([
            ConvBNReLU(hidden_dim, hidden_dim, stride=stride, groups=hidden_dim),
            nn.Conv2d(hidden_dim, oup, 1, 1, 0, bias=False), nn.BatchNorm2d(oup),
        ])  # fmt: skip
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class SqueezeExcitation(nn.Module):
    def __init__(self, in_planes, reduced_dim):
        super().__init__()
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(in_planes, reduced_dim, 1), nn.SiLU(),
            nn.Conv2d(reduced_dim, in_planes, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        return x * self.se(x)


class Mobile(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        width = _make_divisible(5 * 0.75, 4)
        self.features = nn.Sequential(
            ConvBNReLU(3, width, stride=2), InvertedResidual(width, width, 1, 2),
            ConvBNReLU(width, 6, act=partial(nn.SiLU)), SqueezeExcitation(6, 2),
        )  # fmt: skip
        self.classifier = nn.Linear(6, num_classes)

    def forward(self, x):
        x = self.features(x)
        x = x.mean([2, 3])
        return self.classifier(x)


def channel_shuffle(x, groups):
    batchsize, num_channels, height, width = x.data.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, -1, height, width)


class Shuffle(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.branch = nn.Sequential(
            nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        )
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        x1, x2 = self.stem(x).chunk(2, dim=1)
        out = channel_shuffle(torch.cat((x1, self.branch(x2)), dim=1), 2)
        return self.fc(out.mean([2, 3]))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dim=4, num_classes=4, layer_scale_init_value=1e-1):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, kernel_size=4, stride=4)
        self.stem_norm = LayerNorm2d(dim, eps=1e-6)
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.act = nn.Linear(dim, 4 * dim), nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(layer_scale_init_value * torch.ones((dim)), requires_grad=True)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.stem_norm(self.stem(x))
        input = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        if self.gamma is not None:
            x = self.gamma * x
        x = input + x.permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


NETS = [AlexNet, VGG, Inception, DenseNet, Mobile, Shuffle, ConvNeXt]


def build():
    return {net.__name__: net() for net in NETS}


def run(models, compile):
    rng = np.random.default_rng(20)
    found = {}
    for name, model in models.items():
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, momentum=0.9, eps=1)

        @compile
        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = []
        for _ in range(3):
            x = torch.tensor(rng.standard_normal((3, 3, 16, 16)), dtype=torch.get_default_dtype())
            losses.append(step(x, torch.tensor([0, 3, 1])).item())
        total = sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
        found[name] = {"losses": losses, "parameters": total, "logits": model.eval()(x)}
    return found
