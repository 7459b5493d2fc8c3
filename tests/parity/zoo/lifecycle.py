"""What happens to modules besides training: initialisers by apply, buffers that are not saved,
hooks on state dicts, old checkpoints read by _load_from_state_dict, copies and pickles in
mid-training, swapped heads, frozen trunks, hooks that watch activations and gradients, sharing of
weights.
"""

import copy
import io
import math
import pickle
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalPositions(nn.Module):
    def __init__(self, width, longest=32):
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, width)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return x + self.table[: x.size(1)]


class FrozenBatchNorm(nn.Module):
    """As in detection code: statistics are buffers, old checkpoints carry a count."""

    def __init__(self, n):
        super().__init__()
        for name, value in (
            ("weight", 1.0),
            ("bias", 0.0),
            ("running_mean", 0.1),
            ("running_var", 1.5),
        ):
            self.register_buffer(name, torch.full((n,), value))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.pop(prefix + "num_batches_tracked", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale + (self.bias - self.running_mean * scale)

    def extra_repr(self):
        return f"{self.weight.numel()}"


class Tagger(nn.Module):
    def __init__(self, vocabulary=20, width=12, classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = SinusoidalPositions(width)
        self.norm = FrozenBatchNorm(width)
        self.mix = nn.Conv1d(width, width, 3, padding=1, groups=3)
        self.body = nn.Sequential(
            OrderedDict([("fc1", nn.Linear(width, width)), ("act", nn.GELU())])
        )
        self.head = nn.Linear(width, classes)
        self.decode = nn.Linear(width, vocabulary, bias=False)
        self.decode.weight = self.embed.weight
        self.apply(self._init)
        self._register_state_dict_hook(self._tag)
        self.register_load_state_dict_post_hook(self._loaded)
        self._register_load_state_dict_pre_hook(self._rename)
        self.loaded = 0

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=0.2)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv1d):
            nn.init.dirac_(module.weight, groups=3)
            nn.init.constant_(module.bias, 0.01)

    @staticmethod
    def _tag(module, state, prefix, metadata):
        state[prefix + "version"] = torch.tensor(3)

    def _rename(self, state, prefix, metadata, strict, missing, unexpected, errors):
        state.pop(prefix + "version", None)
        for key in list(state):
            if key.startswith(prefix + "classifier."):
                state[key.replace("classifier.", "head.")] = state.pop(key)

    @staticmethod
    def _loaded(module, incompatible):
        module.loaded += 1

    def forward(self, tokens):
        x = self.norm(self.positions(self.embed(tokens)))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        x = self.body(x)
        return self.head(x), self.decode(x)


def build():
    torch.manual_seed(5)
    return Tagger()


def batches(steps):
    rng = np.random.default_rng(2)
    for _ in range(steps):
        tokens = torch.from_numpy(rng.integers(1, 20, (4, 7)))
        tokens[:, 5:] = 0
        yield tokens, torch.from_numpy(rng.integers(0, 5, (4, 7)))


def step_of(model, optimizer, compile):
    def step(tokens, labels):
        optimizer.zero_grad(set_to_none=True)
        scores, words = model(tokens)
        loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss = loss + F.cross_entropy(words.transpose(1, 2), tokens, ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return compile(step)


def run(model, compile):
    found = {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = step_of(model, optimizer, compile)
    found["losses"] = [step(*batch) for batch in batches(3)]
    found["keys"] = " ".join(model.state_dict())
    found["named"] = " ".join(n for n, _ in model.named_parameters())
    found["twice"] = " ".join(n for n, _ in model.named_parameters(remove_duplicate=False))
    found["text"] = repr(model)

    # a copy that goes on by itself, and an average of both
    twin = copy.deepcopy(model)
    assert twin.decode.weight is twin.embed.weight and twin.embed.weight is not model.embed.weight
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    twin_step = step_of(twin, other, compile)
    found["twin"] = [twin_step(*batch) for batch in batches(3)]
    with torch.no_grad():
        for p, q in zip(twin.parameters(), model.parameters()):
            p.lerp_(q, 0.25)
    found["average"] = twin.state_dict()

    # an old checkpoint: other names, a count, no buffer
    old = {k.replace("head.", "classifier."): v for k, v in model.state_dict().items()}
    old["norm.num_batches_tracked"] = torch.tensor(7)
    del old["positions.calls"]
    before = twin.loaded
    result = twin.load_state_dict(old, strict=False)
    found["missing"] = str(list(result.missing_keys)) + str(list(result.unexpected_keys))
    found["loaded"] = twin.loaded - before

    # through a file, and pickled without its hooks
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, file)
    file.seek(0)
    back = torch.load(file)
    optimizer.load_state_dict(back["optimizer"])
    found["step"] = back["step"]
    body = pickle.loads(pickle.dumps(model.body))
    found["pickled"] = body(torch.ones(2, 12))

    # hooks that watch, a frozen trunk, a new head
    seen = {}
    handles = [
        model.body.fc1.register_forward_hook(lambda m, i, o: seen.__setitem__("mean", o.mean())),
        model.body.register_full_backward_hook(lambda m, i, o: seen.__setitem__("up", o[0].norm())),
        model.head.register_forward_pre_hook(lambda m, args: (args[0] * 0.5,)),
        model.embed.weight.register_hook(lambda g: seen.__setitem__("embed", g.norm())),
    ]
    model.requires_grad_(False)
    model.embed.weight.requires_grad_(True)
    model.head = nn.Linear(12, 5)
    nn.init.xavier_uniform_(model.head.weight, gain=0.0)
    nn.init.zeros_(model.head.bias)
    tokens, labels = next(iter(batches(1)))
    scores, words = model(tokens)
    (scores.square().mean() + words.logsumexp(-1).mean()).backward()
    found["seen"] = dict(sorted(seen.items()))
    for handle in handles:
        handle.remove()
    found["calls"] = model.positions.calls
    model.requires_grad_(True)
    return found
