"""ONNX files that PyTorch's own exporter writes: read, run eager and compiled, trained."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

import jitgrad

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn = torch.nn
F = nn.functional


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.encoder(self.embed(tokens), mask=mask).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Hardswish(), nn.MaxPool2d(2)
        )
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Any) -> Any:
        y = F.interpolate(self.up(self.down(x)), scale_factor=2, mode="bilinear")
        y = F.pad(self.norm(y), (1, 2, 0, 1), mode="reflect")
        z = F.adaptive_avg_pool2d(F.elu(y), 1).flatten(1)
        return z, y[:, ::2, 1:-1], F.pixel_shuffle(y, 2).argmax(1), z.topk(3)[0]


class Arithmetic(nn.Module):
    def forward(self, x: Any) -> Any:
        a = x.clamp(-1, 1).softmax(-1) * torch.arange(x.shape[-1])
        b = torch.where(x > 0, x.exp(), x.sin()).cumsum(1)
        c = torch.cat([x[:, :2], x.roll(1, 0)[:, 1:]], 1).std(1)
        d = x.gather(1, torch.zeros(x.shape[0], 2, dtype=torch.int64)) ** 2
        return a, b, c, d.masked_fill(d > 0.5, -1), x.tril().norm(dim=1), x.view(-1, 2).max(0)[0]


def tokens() -> Any:
    return torch.randint(0, 11, (2, 5))


CASES: dict[str, tuple[Any, Any]] = {
    "attention": (Attention, tokens),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(2, 6, 4)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(2, 6, 4)),
    "rnn": (lambda: Recurrent(nn.RNN), lambda: torch.randn(2, 6, 4)),
    "images": (Images, lambda: torch.randn(2, 3, 8, 8)),
    "arithmetic": (Arithmetic, lambda: torch.randn(4, 6)),
}


def written(model: Any, x: Any, **more: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"], **more)
    return file.getvalue()


def leaves(y: Any) -> list[Any]:
    return list(y) if isinstance(y, (tuple, list)) else [y]


@pytest.mark.parametrize("name", CASES)
def test_files_of_pytorch(name: str) -> None:
    make, example = CASES[name]
    torch.manual_seed(0)
    model, x = make().eval(), example()
    with torch.no_grad():
        wanted = [y.numpy() for y in leaves(model(x))]
    loaded = jitgrad.onnx.load(written(model, x, opset_version=17))
    compiled = jitgrad.jit(loaded, fallback="error")
    given = jitgrad.from_numpy(x.numpy())
    for _ in range(2):
        for made in (loaded(given), compiled(given)):
            for f, w in zip(leaves(made), wanted, strict=True):
                assert (f.detach().numpy().dtype, tuple(f.shape)) == (w.dtype, w.shape)
                np.testing.assert_allclose(f.detach().numpy(), w, rtol=1e-4, atol=1e-5)


def test_a_dynamic_batch_of_pytorch() -> None:
    model = Attention().eval()
    data = written(model, tokens(), opset_version=17, dynamic_axes={"x": {0: "n"}})
    loaded = jitgrad.onnx.load(data)
    for n in (1, 3):
        x = torch.randint(0, 11, (n, 5))
        np.testing.assert_allclose(
            loaded(jitgrad.from_numpy(x.numpy())).detach().numpy(),
            model(x).detach().numpy(), rtol=1e-4, atol=1e-5,
        )  # fmt: skip
