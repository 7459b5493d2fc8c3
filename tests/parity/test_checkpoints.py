"""Public checkpoints' layouts: GPT-2 and BERT with Hugging Face's names, ResNet with torchvision's.

Small PyTorch models with those names are saved as the real ones are distributed; jitgrad models,
written as people write them, load the files by key and give the same outputs, eager and compiled.
"""

import math

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, same, torch

import jitgrad

FORMS = ["zip", "legacy", "safetensors"]


def saved(model, path, form):
    """The model's state on disk, read back by jitgrad."""
    state = model.state_dict()
    if form != "safetensors":
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
        return jitgrad.load(path, map_location="cpu", weights_only=True)
    files = pytest.importorskip("safetensors.torch")
    files.save_file({k: v.clone().contiguous() for k, v in state.items()}, path)
    return jitgrad.load_safetensors(path)


def randomised(model, seed=0):
    """Every parameter and statistic of a PyTorch model drawn anew, so that each key counts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            if x.is_floating_point():
                noise = torch.randn(x.shape, generator=generator) * 0.2
                x.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise)
    return model.eval()


def outputs_agree(ours, theirs, *arrays, scale=4):
    """Equal outputs, eager and compiled."""
    ours.eval()
    compiled = jitgrad.jit(fallback="error")(lambda *x: ours(*x))
    with torch.no_grad(), jitgrad.no_grad():
        want = theirs(*(torch.from_numpy(a) for a in arrays))
        inputs = [jitgrad.from_numpy(a) for a in arrays]
        for run in (ours, compiled, compiled):
            same(run(*inputs), want, scale=scale)


def ids(*shape, below, seed=0):
    return np.random.default_rng(seed).integers(0, below, shape)


# -- GPT-2 ---------------------------------------------------------------------------------------
VOCABULARY, CONTEXT, WIDTH, HEADS, DEPTH = 37, 16, 12, 3, 2


def hugging_gpt2():
    """GPT2LMHeadModel: transposed weights (Conv1D), mask buffers, a tied head."""
    nn = torch.nn

    class Conv1D(nn.Module):
        def __init__(self, n_out, n_in):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(n_in, n_out))
            self.bias = nn.Parameter(torch.zeros(n_out))

        def forward(self, x):
            return x @ self.weight + self.bias

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            mask = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
            self.register_buffer("bias", mask.view(1, 1, CONTEXT, CONTEXT))
            self.register_buffer("masked_bias", torch.tensor(-1e4))
            self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)

        def forward(self, x):
            n, length, _ = x.shape
            q, k, v = (
                y.view(n, length, HEADS, -1).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, 2)
            )
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
            mask = self.bias[:, :, :length, :length]
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
            y = scores.softmax(-1) @ v
            return self.c_proj(y.transpose(1, 2).reshape(n, length, WIDTH))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = Conv1D(4 * WIDTH, WIDTH), Conv1D(WIDTH, 4 * WIDTH)

        def forward(self, x):
            return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
            self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(VOCABULARY, WIDTH),
                    "wpe": nn.Embedding(CONTEXT, WIDTH),
                    "h": nn.ModuleList(Block() for _ in range(DEPTH)),
                    "ln_f": nn.LayerNorm(WIDTH),
                }
            )
            self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.lm_head.weight = self.transformer["wte"].weight

        def forward(self, x):
            t = self.transformer
            y = t["wte"](x) + t["wpe"](torch.arange(x.shape[1]))
            for block in t["h"]:
                y = block(y)
            return self.lm_head(t["ln_f"](y))

    return randomised(GPT2())


def our_gpt2():
    """The GPT that people load GPT-2's weights into: Linear layers, attention of one call."""
    nn, F = OURS.nn, OURS.F

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            n, length, _ = x.size()
            q, k, v = (
                y.view(n, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                for y in self.c_attn(x).split(WIDTH, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(n, length, WIDTH))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
            self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(VOCABULARY, WIDTH),
                    "wpe": nn.Embedding(CONTEXT, WIDTH),
                    "h": nn.ModuleList([Block() for _ in range(DEPTH)]),
                    "ln_f": nn.LayerNorm(WIDTH),
                }
            )
            self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.transformer.wte.weight = self.lm_head.weight

        def forward(self, x):
            t = self.transformer
            y = t.wte(x) + t.wpe(jitgrad.arange(0, x.size(1), dtype=jitgrad.long))
            for block in t.h:
                y = block(y)
            return self.lm_head(t.ln_f(y))

    return GPT()


@pytest.mark.parametrize("form", FORMS)
def test_gpt2(form, tmp_path):
    theirs, ours = hugging_gpt2(), our_gpt2()
    state = saved(theirs, tmp_path / "pytorch_model.bin", form)
    target = ours.state_dict()
    keys = [k for k in state if not k.endswith((".attn.masked_bias", ".attn.bias"))]
    assert set(keys) == set(target)
    with jitgrad.no_grad():
        for key in keys:
            transposed = key.endswith(
                ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
            )
            value = state[key].t() if transposed else state[key]
            assert value.shape == target[key].shape
            target[key].copy_(value)
    assert ours.transformer.wte.weight is ours.lm_head.weight
    outputs_agree(ours, theirs, ids(2, 11, below=VOCABULARY))


# -- BERT ----------------------------------------------------------------------------------------
def bert(lib):
    """BertForSequenceClassification, post-norm, with its names."""
    nn, t = lib.nn, lib.t

    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
            self.position_embeddings = nn.Embedding(CONTEXT, WIDTH)
            self.token_type_embeddings = nn.Embedding(2, WIDTH)
            self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)
            self.register_buffer("position_ids", t.arange(CONTEXT).expand((1, -1)))

        def forward(self, x, kinds):
            place = self.position_embeddings(self.position_ids[:, : x.size(1)])
            y = self.word_embeddings(x) + self.token_type_embeddings(kinds) + place
            return self.LayerNorm(y)

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x, mask):
            q, k, v = (
                f(x).view(*x.shape[:2], HEADS, -1).permute(0, 2, 1, 3)
                for f in (self.query, self.key, self.value)
            )
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + mask
            y = nn.functional.softmax(scores, dim=-1) @ v
            return y.permute(0, 2, 1, 3).contiguous().view(*x.shape)

    class Output(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.dense = nn.Linear(inner, WIDTH)
            self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x, before):
            return self.LayerNorm(self.dropout(self.dense(x)) + before)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.self, self.output = SelfAttention(), Output(WIDTH)

        def forward(self, x, mask):
            return self.output(self.self(x, mask), x)

    class Intermediate(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(WIDTH, 4 * WIDTH)

        def forward(self, x):
            return nn.functional.gelu(self.dense(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.intermediate = Attention(), Intermediate()
            self.output = Output(4 * WIDTH)

        def forward(self, x, mask):
            x = self.attention(x, mask)
            return self.output(self.intermediate(x), x)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ModuleList([Layer() for _ in range(DEPTH)])

    class Pooler(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return t.tanh(self.dense(x[:, 0]))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings, self.encoder, self.pooler = Embeddings(), Encoder(), Pooler()

        def forward(self, x, kinds, mask):
            mask = (1.0 - mask[:, None, None, :].to(t.float32)) * t.finfo(t.float32).min
            y = self.embeddings(x, kinds)
            for layer in self.encoder.layer:
                y = layer(y, mask)
            return self.pooler(y)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert, self.classifier = Bert(), nn.Linear(WIDTH, 3)

        def forward(self, x, kinds, mask):
            return self.classifier(self.bert(x, kinds, mask))

    return Classifier()


def text():
    mask = np.ones((3, 9), np.int64)
    mask[1, 6:] = mask[2, 1:] = 0
    return ids(3, 9, below=VOCABULARY), ids(3, 9, below=2, seed=1), mask


@pytest.mark.parametrize("form", FORMS)
def test_bert(form, tmp_path):
    theirs, ours = randomised(bert(THEIRS)), bert(OURS)
    state = saved(theirs, tmp_path / "pytorch_model.bin", form)
    assert "bert.encoder.layer.1.attention.self.query.weight" in state
    result = ours.load_state_dict(state)
    assert not result.missing_keys and not result.unexpected_keys
    outputs_agree(ours, theirs, *text())


def test_bert_with_its_first_names(tmp_path):
    """The first files called a LayerNorm's parameters gamma and beta; the head may be another."""
    theirs = randomised(bert(THEIRS))
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in theirs.state_dict().items()
        if not k.startswith("classifier")
    }
    torch.save(old, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    state = jitgrad.load(tmp_path / "pytorch_model.bin")
    ours = bert(OURS)
    with pytest.raises(RuntimeError, match="Missing key[\\s\\S]*LayerNorm.weight[\\s\\S]*gamma"):
        ours.load_state_dict(state)
    new = {k.replace("gamma", "weight").replace("beta", "bias"): v for k, v in state.items()}
    result = ours.load_state_dict(new, strict=False)
    assert result.missing_keys == ["classifier.weight", "classifier.bias"]
    with torch.no_grad():
        theirs.classifier.weight.copy_(torch.from_numpy(ours.classifier.weight.detach().numpy()))
        theirs.classifier.bias.copy_(torch.from_numpy(ours.classifier.bias.detach().numpy()))
    outputs_agree(ours, theirs, *text())


# -- ResNet --------------------------------------------------------------------------------------
def resnet(lib, block, layers=(2, 1, 1, 1), classes=5, width=4):
    """torchvision's ResNet, narrow, with BasicBlock or Bottleneck."""
    nn, t = lib.nn, lib.t

    def conv3x3(a, b, stride=1):
        return nn.Conv2d(a, b, kernel_size=3, stride=stride, padding=1, bias=False)

    def conv1x1(a, b, stride=1):
        return nn.Conv2d(a, b, kernel_size=1, stride=stride, bias=False)

    class BasicBlock(nn.Module):
        expansion = 1

        def __init__(self, inplanes, planes, stride=1, downsample=None):
            super().__init__()
            self.conv1, self.bn1 = conv3x3(inplanes, planes, stride), nn.BatchNorm2d(planes)
            self.relu = nn.ReLU(inplace=True)
            self.conv2, self.bn2 = conv3x3(planes, planes), nn.BatchNorm2d(planes)
            self.downsample = downsample

        def forward(self, x):
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            out += x if self.downsample is None else self.downsample(x)
            return self.relu(out)

    class Bottleneck(nn.Module):
        expansion = 4

        def __init__(self, inplanes, planes, stride=1, downsample=None):
            super().__init__()
            self.conv1, self.bn1 = conv1x1(inplanes, planes), nn.BatchNorm2d(planes)
            self.conv2, self.bn2 = conv3x3(planes, planes, stride), nn.BatchNorm2d(planes)
            self.conv3, self.bn3 = conv1x1(planes, planes * 4), nn.BatchNorm2d(planes * 4)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = downsample

        def forward(self, x):
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
            out += x if self.downsample is None else self.downsample(x)
            return self.relu(out)

    kind = {"basic": BasicBlock, "bottleneck": Bottleneck}[block]

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.inplanes = width
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            for k, count in enumerate(layers):
                setattr(self, f"layer{k + 1}", self._make_layer(width << k, count, 1 + (k > 0)))
            self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
            self.fc = nn.Linear((width << 3) * kind.expansion, classes)

        def _make_layer(self, planes, count, stride):
            downsample, out = None, planes * kind.expansion
            if stride != 1 or self.inplanes != out:
                downsample = nn.Sequential(conv1x1(self.inplanes, out, stride), nn.BatchNorm2d(out))
            blocks = [kind(self.inplanes, planes, stride, downsample)]
            self.inplanes = out
            return nn.Sequential(*blocks, *(kind(out, planes) for _ in range(1, count)))

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(t.flatten(self.avgpool(x), 1))

    return ResNet()


def images():
    return np.random.default_rng(0).standard_normal((2, 3, 33, 40)).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_resnet(block, form, tmp_path):
    theirs, ours = randomised(resnet(THEIRS, block)), resnet(OURS, block)
    state = saved(theirs, tmp_path / "resnet.pth", form)
    assert {"layer2.0.downsample.1.num_batches_tracked", "layer1.1.bn2.running_var"} <= set(state)
    ours.load_state_dict(state)
    outputs_agree(ours, theirs, images(), scale=10)


def test_resnet_with_another_head(tmp_path):
    """Fine-tuning: a file of other classes, or one that DataParallel wrote."""
    theirs = randomised(resnet(THEIRS, "basic"))
    torch.save(
        {"state_dict": torch.nn.DataParallel(theirs).state_dict()}, tmp_path / "best.pth.tar"
    )
    state = jitgrad.load(tmp_path / "best.pth.tar")["state_dict"]
    assert all(k.startswith("module.") for k in state)
    state = {k.removeprefix("module."): v for k, v in state.items()}
    ours = resnet(OURS, "basic", classes=7)
    with pytest.raises(RuntimeError, match="size mismatch for fc.weight"):
        ours.load_state_dict(state)
    body = {k: v for k, v in state.items() if not k.startswith("fc.")}
    result = ours.load_state_dict(body, strict=False)
    assert result.missing_keys == ["fc.weight", "fc.bias"] and not result.unexpected_keys
    ours.fc = OURS.nn.Linear(32, 5)
    ours.fc.load_state_dict({k[3:]: v for k, v in state.items() if k.startswith("fc.")})
    outputs_agree(ours, theirs, images(), scale=10)


def test_state_dicts_have_the_same_keys_in_order():
    for build in (bert, lambda lib: resnet(lib, "basic"), lambda lib: resnet(lib, "bottleneck")):
        ours, theirs = (build(lib).state_dict() for lib in LIBS)
        assert list(ours) == list(theirs)
        assert [tuple(v.shape) for v in ours.values()] == [tuple(v.shape) for v in theirs.values()]
