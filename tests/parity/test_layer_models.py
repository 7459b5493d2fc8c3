"""Models of public PyTorch style from the layers of nn: same state dict, training steps eager and
compiled, losses, gradients and state compared."""

import math

import numpy as np
import pytest
from parity.compare import torch
from parity.training import same_training


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_text_classifier_with_bags():
    """The EmbeddingBag tutorial's model: a batch is one vector of words with offsets."""

    def build(lib):
        nn = lib.nn

        class TextClassificationModel(nn.Module):
            def __init__(self, vocab_size, embed_dim, num_class):
                super().__init__()
                self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
                self.fc = nn.Linear(embed_dim, num_class)
                self.init_weights()

            def init_weights(self):
                initrange = 0.5
                self.embedding.weight.data.uniform_(-initrange, initrange)
                self.fc.weight.data.uniform_(-initrange, initrange)
                self.fc.bias.data.zero_()

            def forward(self, text, offsets):
                return self.fc(self.embedding(text, offsets))

        return TextClassificationModel(20, 8, 4)

    def arrays(step):
        rng = np.random.default_rng(step)
        return rng.integers(0, 20, 17), np.array([0, 3, 3 + step, 11]), rng.integers(0, 4, 4)

    same_training(
        build, arrays, lambda lib, m, x, o, y: lib.nn.CrossEntropyLoss()(m(x, o), y), clip=0.1
    )


def test_speech_recogniser():
    """Convolutions, GELU, layer norm over features, a bidirectional GRU, CTC."""

    def build(lib):
        nn, F = lib.nn, lib.F

        class CNNLayerNorm(nn.Module):
            def __init__(self, n_feats):
                super().__init__()
                self.layer_norm = nn.LayerNorm(n_feats)

            def forward(self, x):
                return self.layer_norm(x.transpose(2, 3).contiguous()).transpose(2, 3).contiguous()

        class ResidualCNN(nn.Module):
            def __init__(self, channels, kernel, n_feats):
                super().__init__()
                self.cnn1 = nn.Conv2d(channels, channels, kernel, 1, padding=kernel // 2)
                self.layer_norm1 = CNNLayerNorm(n_feats)
                self.dropout1 = nn.Dropout(0.0)

            def forward(self, x):
                residual = x
                x = self.dropout1(F.gelu(self.layer_norm1(x)))
                x = self.cnn1(x)
                x += residual
                return x

        class SpeechRecognitionModel(nn.Module):
            def __init__(self):
                super().__init__()
                self.cnn = nn.Conv2d(1, 3, 3, stride=2, padding=1)
                self.rescnn_layers = nn.Sequential(ResidualCNN(3, 3, 4))
                self.fully_connected = nn.Linear(12, 6)
                self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)
                self.classifier = nn.Sequential(nn.Linear(10, 6), nn.GELU(), nn.Linear(6, 5))

            def forward(self, x):
                x = self.rescnn_layers(self.cnn(x))
                sizes = x.size()
                x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3]).transpose(1, 2)
                x, _ = self.gru(self.fully_connected(x))
                return self.classifier(x)

        return SpeechRecognitionModel()

    def arrays(step):
        rng = np.random.default_rng(step)
        return values(2, 1, 8, 8, seed=step), rng.integers(0, 4, (2, 2)), np.array([4, 3])

    def loss(lib, model, x, labels, times):
        output = lib.F.log_softmax(model(x), dim=2).transpose(0, 1)
        return lib.nn.CTCLoss(blank=4)(output, labels, times, lib.t.tensor([2, 1]))

    same_training(build, arrays, loss, scale=1e3)


@pytest.mark.parametrize("kind", ["group", "instance", "batch"])
def test_residual_network_with_norms(kind):
    def build(lib):
        nn = lib.nn

        def norm(width):
            if kind == "group":
                return nn.GroupNorm(2, width)
            if kind == "instance":
                return nn.InstanceNorm2d(width, affine=True, track_running_stats=True)
            return nn.BatchNorm2d(width, momentum=None)

        class Block(nn.Module):
            def __init__(self, width, stride=1):
                super().__init__()
                self.conv1 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
                self.norm1, self.act = norm(width), nn.PReLU(width)
                self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
                self.norm2 = norm(width)
                self.downsample = None
                if stride != 1:
                    self.downsample = nn.Sequential(nn.Conv2d(width, width, 1, stride), norm(width))

            def forward(self, x):
                identity = x if self.downsample is None else self.downsample(x)
                out = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
                return self.act(out + identity)

        net = nn.Sequential(nn.Conv2d(2, 4, 3), Block(4), Block(4, 2), nn.AdaptiveAvgPool2d(1),
                            nn.Flatten(), nn.Linear(4, 3))  # fmt: skip
        for m in net.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.GroupNorm, nn.modules.batchnorm._BatchNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)
        return net

    same_training(
        build, lambda step: (values(4, 2, 9, 9, seed=step), np.array([0, 2, 1, 1])),
        lambda lib, m, x, y: lib.F.multi_margin_loss(m(x), y, p=2) + lib.F.cross_entropy(m(x), y),
        scale=1e4,
    )  # fmt: skip


def test_metric_learning():
    """Embeddings on the sphere: triplet and cosine losses, an ArcFace head, cdist."""

    def build(lib):
        nn, F = lib.nn, lib.F

        class ArcMarginProduct(nn.Module):
            def __init__(self, in_features, out_features, s=8.0, m=0.3):
                super().__init__()
                self.s, self.m = s, m
                self.weight = nn.Parameter(lib.t.FloatTensor(out_features, in_features))
                nn.init.xavier_uniform_(self.weight)
                self.cos_m, self.sin_m = math.cos(m), math.sin(m)
                self.th, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

            def forward(self, input, label):
                cosine = F.linear(F.normalize(input), F.normalize(self.weight))
                sine = lib.t.sqrt((1.0 - lib.t.pow(cosine, 2)).clamp(0, 1))
                phi = cosine * self.cos_m - sine * self.sin_m
                phi = lib.t.where(cosine > self.th, phi, cosine - self.mm)
                one_hot = lib.t.zeros(cosine.size(), dtype=cosine.dtype)
                one_hot.scatter_(1, label.view(-1, 1).long(), 1)
                return self.s * ((one_hot * phi) + ((1.0 - one_hot) * cosine))

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(
                    nn.Linear(5, 8), nn.CELU(), nn.RMSNorm(8), nn.Linear(8, 6)
                )
                self.head = ArcMarginProduct(6, 4)

            def forward(self, x, y):
                e = self.body(x)
                return e, self.head(e, y)

        return Net()

    def loss(lib, model, x, y):
        e, logits = model(x, y)
        a, p, n = e[:3], e[3:6], e[6:]
        target = lib.t.tensor([1, -1, 1])
        return (
            lib.F.cross_entropy(logits, y)
            + lib.nn.TripletMarginLoss(margin=0.5, swap=True)(a, p, n)
            + lib.nn.CosineEmbeddingLoss(margin=0.1)(a, p, target)
            + lib.t.cdist(a, n).mean()
            - lib.nn.CosineSimilarity()(a, n).mean()
        )

    def arrays(step):
        return values(9, 5, seed=step), np.random.default_rng(step).integers(0, 4, 9)

    same_training(build, arrays, loss, scale=1e3)


def test_gated_mixture():
    """GLU, Softmax2d, Bilinear, Unflatten, ParameterDict, a likelihood as loss."""

    def build(lib):
        nn = lib.nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Sequential(nn.Linear(4, 12), nn.GLU(), nn.Unflatten(1, (3, 2)))
                self.mix = nn.Bilinear(2, 2, 3)
                self.scales = nn.ParameterDict({"a": lib.t.ones(3), "b": lib.t.ones(1)})
                self.more = nn.ParameterList([lib.t.ones(3) * 0.1 for _ in range(2)])
                self.soft = nn.Softmax2d()
                self.acts = nn.ModuleDict({"shrink": nn.Softshrink(0.1), "sign": nn.Softsign()})

            def forward(self, x):
                g = self.gate(x)
                h = self.mix(g, self.acts["sign"](g)) * self.scales["a"] + self.scales["b"]
                for p in self.more:
                    h = h + self.acts["shrink"](h) * p
                h = self.soft(h.unsqueeze(0)).squeeze(0)
                return h.mean(1), lib.F.softplus(h.sum(1))

        return Net()

    def loss(lib, model, x, y):
        mean, var = model(x)
        return lib.nn.GaussianNLLLoss(full=True)(mean, y, var)

    same_training(
        build, lambda s: (values(5, 4, seed=s), values(5, 3, seed=s + 9)), loss, scale=1e3
    )
