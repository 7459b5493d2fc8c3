"""Changing a network from outside: LoRA by replacing modules and by parametrize, weight and
spectral norm, hooks that read activations, frozen layers, pruning, buffers, a custom
autograd.Function (straight-through binarizer, gradient reversal), module surgery."""

import copy
import math
import types
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
import torch.nn.utils.prune as prune
from torch.autograd import Function


class LoRALayer(nn.Module):
    def __init__(self, in_dim, out_dim, rank, alpha):
        super().__init__()
        std_dev = 1 / torch.sqrt(torch.tensor(rank).float())
        self.A = nn.Parameter(torch.randn(in_dim, rank) * std_dev)
        self.B = nn.Parameter(torch.zeros(rank, out_dim))
        self.alpha = alpha

    def forward(self, x):
        return self.alpha * (x @ self.A @ self.B)


class LinearWithLoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear
        self.lora = LoRALayer(linear.in_features, linear.out_features, rank, alpha)

    def forward(self, x):
        return self.linear(x) + self.lora(x)

    @torch.no_grad()
    def merge(self):
        self.linear.weight += (self.lora.alpha * self.lora.A @ self.lora.B).T
        return self.linear


class LoRAParametrization(nn.Module):
    def __init__(self, features_in, features_out, rank=1, alpha=1):
        super().__init__()
        self.lora_A = nn.Parameter(torch.zeros((rank, features_out)))
        self.lora_B = nn.Parameter(torch.zeros((features_in, rank)))
        nn.init.normal_(self.lora_A, mean=0, std=1)
        self.scale = alpha / rank
        self.enabled = True

    def forward(self, original_weights):
        if self.enabled:
            delta = torch.matmul(self.lora_B, self.lora_A).view(original_weights.shape)
            return original_weights + delta * self.scale
        return original_weights


class Binarize(Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.sign()

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.ge(1)] = 0
        grad_input[input.le(-1)] = 0
        return grad_input


class GradReverse(Function):
    @staticmethod
    def forward(ctx, x, constant):
        ctx.constant = constant
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.constant, None


class RunningNorm(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))
        self.register_parameter("bias", None)
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        if self.training:
            self.mean = (1 - self.momentum) * self.mean + self.momentum * x.detach().mean(0)
            self.count += 1
        return (x - self.mean) * self.weight

    def extra_repr(self):
        return "momentum={momentum}".format(**self.__dict__)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm(4)
        self.fc1 = nn.Linear(4, 6)
        self.fc2 = nn.utils.weight_norm(nn.Linear(6, 6), dim=None)
        self.fc3 = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.domain = nn.Linear(6, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.elu(self.fc1(self.norm(x)))
        x = torch.tanh(self.fc2(x))
        x = Binarize.apply(self.fc3(x))
        return self.head(x), self.domain(GradReverse.apply(x, 0.5))


def mlp():
    return nn.Sequential(OrderedDict(
        [("a", nn.Linear(4, 5)), ("act", nn.ReLU()), ("b", nn.Linear(5, 3))]
    ))  # fmt: skip


def build():
    return {"net": Net(), "lora": mlp(), "parametrized": mlp(), "pruned": mlp()}


def run(models, compile):
    rng = np.random.default_rng(22)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=dtype)

    y = torch.tensor([0, 2, 1, 1])
    found = {}
    net = models["net"]
    seen = {}

    def get_activation(name):
        def hook(model, input, output):
            seen[name] = output.detach().mean().item()

        return hook

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @compile
    def net_step(x):
        optimizer.zero_grad()
        logits, domain = net(x)
        loss = F.cross_entropy(logits, y) + F.cross_entropy(domain, (y > 0).long())
        loss.backward()
        optimizer.step()
        return loss.detach()

    found["net"] = [net_step(draw(4, 4)).item() for _ in range(3)]
    handles = [
        m.register_forward_hook(get_activation(n)) for n, m in net.named_modules() if n == "fc1"
    ]
    grads = []
    handles.append(
        net.fc1.register_full_backward_hook(lambda m, gi, go: grads.append(go[0].norm()))
    )
    handles.append(net.fc1.weight.register_hook(lambda g: g * 2))
    net.zero_grad()
    net(draw(4, 4))[0].sum().backward()
    for handle in handles:
        handle.remove()
    found["hooked"] = [seen, grads, net.fc1.weight.grad.clone()]

    model = copy.deepcopy(models["lora"])
    for param in model.parameters():
        param.requires_grad = False
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, LinearWithLoRA(child, rank=2, alpha=4))
            getattr(model, name).lora.A.data = draw(child.in_features, 2)
    trainable = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(trainable, lr=0.05)

    @compile
    def lora_step(x):
        loss = F.cross_entropy(model(x), y)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        return loss.detach()

    found["lora"] = [lora_step(draw(4, 4)).item() for _ in range(3)]
    x = draw(4, 4)
    before = model(x)
    merged = nn.Sequential(model.a.merge(), model.act, model.b.merge())
    found["merged"] = [before, merged(x), sorted(k for k in model.state_dict())]

    model = copy.deepcopy(models["parametrized"])
    originals = {name: p.clone().detach() for name, p in model.named_parameters()}
    for layer in (model.a, model.b):
        features_out, features_in = layer.weight.shape
        parametrize.register_parametrization(
            layer, "weight", LoRAParametrization(features_out, features_in, rank=1, alpha=2)
        )
        layer.parametrizations["weight"][0].lora_A.data = draw(1, features_in)
    for name, param in model.named_parameters():
        if "lora" not in name:
            param.requires_grad = False
    adam2 = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.05)

    @compile
    def parametrized_step(x):
        loss = F.cross_entropy(model(x), y)
        adam2.zero_grad()
        loss.backward()
        adam2.step()
        return loss.detach()

    found["parametrized"] = [parametrized_step(draw(4, 4)).item() for _ in range(3)]
    assert torch.all(model.a.parametrizations.weight.original == originals["a.weight"])
    found["on"] = model(x)
    model.a.parametrizations["weight"][0].enabled = False
    found["off"] = [model(x), [n for n, _ in model.named_parameters()]]

    model = models["pruned"]
    prune.l1_unstructured(model.a, name="weight", amount=0.4)
    prune.ln_structured(model.b, name="weight", amount=1, n=2, dim=0)
    out = model(x)
    out.pow(2).mean().backward()
    found["pruned"] = [out, model.a.weight_orig.grad.clone(), list(dict(model.named_buffers()))]
    prune.remove(model.a, "weight")
    prune.remove(model.b, "weight")

    def forward_twice(self, x):
        return self.b(self.act(self.a(x))) * 2

    model.forward = types.MethodType(forward_twice, model)
    found["patched"] = [model(x), math.prod(model.b.weight.shape), repr(net.norm)]
    return found
