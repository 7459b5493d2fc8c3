"""jitgrad.export of functions whose inputs are trees: dicts, lists, named tuples, dataclasses."""

from __future__ import annotations

import json
import zipfile
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


def _in_other_forms(exported: Any, folder: Path) -> tuple[Any, Any, Any]:
    """The same saved and read, as a native library, and in ONNX Runtime."""
    exported.save(folder / "m.jgx")
    exported.native(folder / "libtree.so")
    exported.onnx(folder / "m.onnx")
    session = onnxruntime.InferenceSession(folder / "m.onnx")
    return torch.load_exported(folder / "m.jgx"), load(folder / "libtree.so"), session


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
    again, library, session = _in_other_forms(exported, tmp_path)
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


# -- inputs by keyword -----------------------------------------------------------------------------
class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: Any, *rest: Any, scale: Any = None, mask: Any, cache: Any, **more: Any
    ) -> Any:
        y = self.linear(x) * mask + cache["k"] - cache["v"]
        for other in (*rest, *more.values()):
            y = y + 2 * other
        return y if scale is None else y * scale


def _function(x: Any, *, mask: Any, scale: Any = None, cache: Any) -> Any:
    return x * mask + cache["k"] - cache["v"]


def _keyed(b: int) -> tuple[torch.Tensor, dict[str, Any]]:
    x, mask, k, v = (torch.randn(b, 4) for _ in range(4))
    return x, {"cache": {"v": v, "k": k}, "mask": mask}


@pytest.mark.parametrize("function", [_Attends().eval(), _function])
def test_inputs_by_keyword(function: Any, tmp_path: Path) -> None:
    """In the order of the parameters, called by their keywords, wherever inputs have names."""
    size = torch.Dim("b", max=8)
    x, kwargs = _keyed(4)
    trees = {"x": {0: size}, "mask": {0: size}, "cache": [{0: size}, {0: size}]}
    leaves = {n: {0: size} for n in ("x", "mask", "cache.k", "cache.v")}
    for shapes in (trees, leaves, [{0: size}, {0: size}, {"k": {0: size}, "v": {0: size}}]):
        exported = torch.export(function, x, kwargs=kwargs, dynamic_shapes=shapes)
    names = ("x", "mask", "cache.v", "cache.k")
    assert exported.input_names == names and "mask: float32[b, 4]" in repr(exported)
    again, library, session = _in_other_forms(exported, tmp_path)
    for b in (4, 1, 8):
        x, kwargs = _keyed(b)
        mask, cache = kwargs["mask"], kwargs["cache"]
        wanted = function(x, **kwargs).detach().numpy()
        flat = dict(zip(names, (x, mask, cache["v"], cache["k"]), strict=True))
        arrays = {n: t.numpy() for n, t in flat.items()}
        found = [library(**arrays), library(*arrays.values()), session.run(None, arrays)[0]]
        rest = {n: t for n, t in flat.items() if n not in ("x", "mask")}
        for f in (exported, again):
            found += [f(x, **kwargs), f(x, mask, cache), f(x, mask, cache=cache), f(**flat)]
            found += [f(*flat.values()), f(x, mask=mask, **rest), f(cache=cache, mask=mask, x=x)]
        for y in found:
            np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-5, atol=1e-6)


def test_files_without_names_of_parameters(tmp_path: Path) -> None:
    """As they were written at first: trees in order, tensors by their names too."""
    x, kwargs = _keyed(4)
    torch.export(_function, x, kwargs=kwargs).save(tmp_path / "m.jgx")
    with zipfile.ZipFile(tmp_path / "m.jgx") as file:
        members = {name: file.read(name) for name in file.namelist()}
    about = json.loads(members["metadata.json"])
    assert about.pop("parameters") == ["x", "mask", "cache"]
    with zipfile.ZipFile(tmp_path / "m.jgx", "w") as file:
        for name, data in (members | {"metadata.json": json.dumps(about)}).items():
            file.writestr(name, data)
    old = torch.load_exported(tmp_path / "m.jgx")
    mask, cache = kwargs["mask"], kwargs["cache"]
    leaves = {f"cache.{k}": t for k, t in cache.items()}
    wanted = _function(x, **kwargs)
    for y in (old(x, mask, cache), old(x, mask=mask, **leaves), old(x, mask, *cache.values())):
        assert y.allclose(wanted)
    with pytest.raises(TypeError, match=r"expected inputs tuple\(\*, \*, dict"):
        old(x, mask, {"k": x})


def test_calls_by_keyword_that_do_not_fit() -> None:
    x, kwargs = _keyed(4)
    mask, cache = kwargs["mask"], kwargs["cache"]
    exported = torch.export(_function, x, kwargs=kwargs)
    for args, named, message in (
        ((x,), {"mask": mask}, "missing inputs: cache.v, cache.k"),
        ((x, mask), kwargs, "'mask' is given twice: in order, and by name"),
        ((x, mask, cache), {"cache": cache}, "'cache.v' is given twice: in order, and by name"),
        ((x, mask), {"cache": cache, "cache.k": x}, "'cache.k' is given twice: by name, and in"),
        ((x,), {**kwargs, "masks": mask}, "no input is called 'masks'; expected x, mask, cache.v"),
        ((x, mask), {"cache": {"k": x}}, r"expected .* got \(\*, \*, cache=dict\('k': \*\)\)"),
        ((x, mask), {"cache": x}, r"expected inputs .* got \(\*, \*, cache=\*\)"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=message):
            exported(*args, **named)


def test_keywords_that_the_function_does_not_take() -> None:
    x, kwargs = _keyed(4)
    for function in (_function, lambda x, *, mask, scale=None, cache: x):
        for args, given, message in (
            ((x,), {}, "missing a required.* argument: 'mask'; give example inputs in order, or"),
            ((x,), {**kwargs, "masks": x}, "unexpected keyword argument 'masks'"),
            ((x,), {**kwargs, "x": x}, "multiple values for argument 'x'"),
            ((x, x), kwargs, "too many positional arguments"),
            ((x,), [x], "kwargs to be a dict of inputs by name; got list"),
            ((x,), {1: x}, r"kwargs to be a dict of inputs by name; got keys \[1\]"),
            ((x,), {**kwargs, "mask": 3}, "input 'mask' is int; close over"),
            ((x,), {**kwargs, "cache": {"k": None}}, "input 'cache' is NoneType at 'cache.k'"),
        ):
            with pytest.raises(TypeError, match=message):
                torch.export(function, *args, kwargs=given)
    with pytest.raises(ValueError, match=r"dynamic_shapes of .*; got \['masks'\]"):
        torch.export(_function, x, kwargs=kwargs, dynamic_shapes={"masks": {0: "n"}})


def test_names_of_keywords() -> None:
    """`names` in the same order; what `*rest` and `**more` hold behind those with names."""
    x, kwargs = _keyed(4)
    model = _Attends().eval()
    exported = torch.export(model, x, x, kwargs={"more": x, "scale": x, **kwargs})
    order = ("x", "input1", "scale", "mask", "cache.v", "cache.k", "more")
    assert exported.input_names == order
    named = torch.export(model, x, kwargs=kwargs, names=["a", "b", "c", "d"])
    assert named.input_names == ("a", "b", "c", "d")
    by_name = named(a=x, b=kwargs["mask"], cache=kwargs["cache"])
    assert by_name.equal(named(x, kwargs["mask"], c=kwargs["cache"]["v"], d=kwargs["cache"]["k"]))


def test_a_training_step_by_keyword() -> None:
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)

    def step(*, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layer(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
    step(x=x, y=y)
    exported = torch.export(
        step, kwargs={"y": y, "x": x}, dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}}
    )
    assert exported.input_names == ("x", "y")
    for n in (8, 5, 8):
        found = exported(y=y[:n], x=x[:n]).item()
        np.testing.assert_allclose(found, step(x=x[:n], y=y[:n]).item(), rtol=1e-5)


def test_hooks_may_give_what_is_missing() -> None:
    model = _Attends().eval()
    x, kwargs = _keyed(4)
    with pytest.raises(TypeError, match="missing a required"):
        torch.export(model, x)
    model.register_forward_pre_hook(lambda m, args, given: (args, {**kwargs}), with_kwargs=True)
    assert torch.export(model, x)(x).allclose(model(x))
