"""jitgrad.export of functions whose inputs are trees: dicts, lists, named tuples, dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.pytree import leaves_of
from jitgrad.runtime import load

onnxruntime = pytest.importorskip("onnxruntime")


class Cache(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor


class _Decoder(nn.Module):
    """Takes a dataclass, a list of named tuples and a number; gives such a list."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, batch: Any, caches: Any, scale: torch.Tensor) -> Any:
        ids, mask = (batch["ids"], batch["mask"]) if isinstance(batch, dict) else (
            batch.ids, batch.mask
        )  # fmt: skip
        h = self.embed(ids) * mask[..., None]
        made = []
        for k, v in caches:
            h = h + k * v
            made.append(Cache(k + 1, v * scale))
        return {"h": h, "made": made}


def _decoder_inputs(b: int) -> tuple[Any, ...]:
    caches = [Cache(torch.randn(b, 3, 4), torch.randn(b, 3, 4)) for _ in range(2)]
    return Batch(torch.randint(0, 10, (b, 3)), torch.ones(b, 3)), caches, torch.tensor(2.0)


NAMES = ("batch.ids", "batch.mask", "caches.0.k", "caches.0.v", "caches.1.k", "caches.1.v", "scale")


def test_inputs_may_be_trees(tmp_path: Path) -> None:
    """Called by what leads to them; taken as trees alike, or one by one, as C and ONNX do."""
    model = _Decoder().eval()
    size = torch.Dim("b", max=8)
    exported = torch.export(
        model, *_decoder_inputs(4), output_names=["h", "k0", "v0", "k1", "v1"],
        dynamic_shapes={
            "batch": {"ids": {0: size}, "mask": {0: size}}, "caches": [({0: size}, {0: size})] * 2
        },
    )  # fmt: skip
    assert exported.input_names == NAMES
    exported.save(tmp_path / "m.jgx")
    again = torch.load_exported(tmp_path / "m.jgx")
    exported.native(tmp_path / "libtree.so")
    library = load(tmp_path / "libtree.so")
    exported.onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for b in (4, 1, 7):
        given = _decoder_inputs(b)
        batch, caches, scale = given
        flat = leaves_of(given)
        arrays = [x.numpy() for x in flat]
        wanted = [x.detach().numpy() for x in leaves_of(model(*given))]
        other = {"mask": batch.mask, "ids": batch.ids}, tuple(map(tuple, caches)), scale
        found = [leaves_of(f(*x)) for f in (exported, again) for x in (given, other, flat)]
        found += [library(*arrays), session.run(None, dict(zip(NAMES, arrays, strict=True)))]
        for results in found:
            for x, y in zip(results, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=1e-6)
        assert type(exported(*given)["made"][0]) is Cache
        assert type(again(*given)["made"][0]) is tuple  # the file has no classes
    for bad in (
        given[:2],
        (batch, caches[:1], scale),
        ({"ids": batch.ids}, caches, scale),
        [batch],
    ):
        for f in (exported, again):
            with pytest.raises(TypeError, match=r"expected inputs .* or the 7 tensors in them"):
                f(*bad)


def test_dynamic_shapes_of_trees() -> None:
    model, given = _Decoder().eval(), _decoder_inputs(4)
    by_name = {n: {0: "b"} for n in NAMES[:-1]}
    by_place = [[{0: "b"}, {0: "b"}], [{"k": {0: "b"}, "v": {0: "b"}}] * 2, None]
    for shapes in (by_name, by_place):
        exported = torch.export(model, *given, dynamic_shapes=shapes)
        assert exported(*_decoder_inputs(6))["h"].shape == (6, 3, 4)
    for shapes, message in (
        ({"caches": [None]}, "'caches' to be a dict of 0, 1, or a sequence of 2"),
        ({"batch": {"words": None}}, "'batch' to be a dict of ids, mask.*got 'words'"),
        ({"words": None}, r"expected dynamic_shapes of .*'batch.ids'.*got \['words'\]"),
        ([None], "expected dynamic_shapes of 3 inputs; got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            torch.export(model, *given, dynamic_shapes=shapes)


def test_a_training_step_of_a_tree() -> None:
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)

    def step(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layer(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss

    batch = {"x": torch.randn(8, 4), "y": torch.randint(0, 2, (8,))}
    step(batch)
    exported = torch.export(step, batch)
    assert exported.input_names == ("batch.x", "batch.y") and "layer.weight" in exported.state
    for _ in range(3):
        np.testing.assert_allclose(exported(batch).item(), step(batch).item(), rtol=1e-5)
