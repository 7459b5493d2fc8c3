"""PyTorch's files are read without PyTorch: every dtype, shared memory, refused pickles."""

import collections
import io
import os
import pickle
import random
import zipfile

import numpy as np
import pytest
from parity.compare import numpy, same, torch

import jitgrad


def written(obj, zipped):
    stream = io.BytesIO()
    torch.save(obj, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def read(obj, zipped, **options):
    return jitgrad.load(io.BytesIO(written(obj, zipped)), **options)


FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
          "float64", "complex64", "complex128"]  # fmt: skip


@FORMS
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(zipped, dtype):
    made = [torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)) for _ in range(2)]
    tensors = [made[0], made[0].t(), made[0][1:, ::2], made[1][0, 0], made[1][:0], made[0]]
    back = read(tensors, zipped)
    for a, b in zip(back, tensors, strict=True):
        same(a, b)
        assert a.stride() == b.stride() or not b.numel()
    assert back[5]._storage is back[1]._storage is back[0]._storage
    if not dtype.startswith("complex"):
        back[0].fill_(1)
        assert back[1].float().sum() == 12


@FORMS
def test_tensors_with_attributes(zipped):
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    tensor.tag, tensor._hidden, parameter.tag = [3], 1, {"rows": np.arange(2)}
    buffer = torch.nn.Buffer(torch.arange(3.0))
    back = read([tensor, parameter, buffer], zipped)
    for a, b in zip(back, [tensor, parameter, buffer], strict=True):
        same(a, b)
    assert back[0].tag == [3] and not hasattr(back[0], "_hidden")
    assert isinstance(back[1], jitgrad.nn.Parameter) and back[1].tag["rows"].tolist() == [0, 1]


class Named:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@FORMS
def test_attributes_never_replace_a_tensors_own(zipped):
    rebuild, kind = torch._tensor._rebuild_from_type_v2, torch.Tensor
    make, args = torch.ones(2).__reduce_ex__(2)
    back = read(Named(rebuild, (make, kind, args, {"backward": 1, "shape": 2, "x": 3})), zipped)
    assert callable(back.backward) and back.shape == (2,) and back.x == 3
    with pytest.raises(pickle.UnpicklingError, match="what makes a tensor"):
        read(Named(rebuild, (list, kind, ([1],), {"x": 3})), zipped)


@FORMS
def test_checkpoint(zipped):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, bias=False),
        torch.nn.BatchNorm2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(4, 1, 4, 4)
    model(x).square().sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
        "best": np.float64(0.5), "history": np.arange(3.0), "args": {"lr": 0.1, "name": None},
        "order": collections.OrderedDict(a=1), "shape": x.shape, "dtype": torch.float16,
        "device": torch.device("cpu"), "weight": model[0].weight, "set": {1, 2},
    }  # fmt: skip
    back = read(saved, zipped)
    ours = jitgrad.nn.Sequential(
        jitgrad.nn.Conv2d(1, 2, 3, bias=False), jitgrad.nn.BatchNorm2d(2), jitgrad.nn.Flatten(),
        jitgrad.nn.Linear(8, 3),
    )  # fmt: skip
    our_optimizer = jitgrad.optim.AdamW(ours.parameters(), lr=0.5)
    ours.load_state_dict(back["model"])
    our_optimizer.load_state_dict(back["optimizer"])
    for _ in range(2):
        for m, o, data in (
            (model, optimizer, x),
            (ours, our_optimizer, jitgrad.from_numpy(x.numpy())),
        ):
            o.zero_grad()
            m(data).square().sum().backward()
            o.step()
    for (name, a), b in zip(ours.state_dict().items(), model.state_dict().values(), strict=True):
        same(a, b, name, scale=10)
    assert back["epoch"] == 3 and back["best"] == 0.5 and back["history"].tolist() == [0, 1, 2]
    assert back["dtype"] is jitgrad.float16 and back["shape"] == (4, 1, 4, 4)
    assert isinstance(back["weight"], jitgrad.nn.Parameter) and back["set"] == {1, 2}


def test_mmap(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000.0), "b": torch.ones(3).bfloat16()}, path)
    back = jitgrad.load(path, mmap=True)
    back["a"].add_(1)
    assert back["a"][-1] == 1000 and back["b"].tolist() == [1, 1, 1]
    assert torch.load(path)["a"][-1] == 999


class Attack:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@FORMS
@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (Attack(os.system, "touch attacked"), "posix.system|nt.system"),
        (Attack(eval, "open('attacked', 'w')"), "builtins.eval"),
        (Attack(getattr, [], "append"), "builtins.getattr"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (np.array([{}], object), "objects"),
    ],
    ids=["system", "eval", "getattr", "module", "objects"],
)
def test_refused(zipped, attack, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for obj in (attack, {"state": [torch.ones(2), attack]}):
        with pytest.raises(pickle.UnpicklingError, match=name):
            read(obj, zipped, weights_only=False)
    assert os.listdir(tmp_path) == []


class Settings:
    """A class of the user's."""


@FORMS
def test_classes_that_the_user_allows(zipped):
    obj = Settings()
    obj.lr = 0.5
    with pytest.raises(pickle.UnpicklingError, match="add_safe_globals"):
        read(obj, zipped)
    with jitgrad.serialization.safe_globals([Settings]):
        assert read(obj, zipped).lr == 0.5
    assert jitgrad.serialization.get_safe_globals() == []


def test_tensors_of_a_gpu_need_map_location():
    data = written(torch.ones(3), True)
    crc = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(crc, "w") as new:
        for item in old.namelist():
            content = old.read(item)
            new.writestr(item, content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    with pytest.raises(RuntimeError, match=r"device.*cuda:0|cuda:0 device"):
        jitgrad.load(io.BytesIO(crc.getvalue()))
    for rule in ("cpu", {"cuda:0": "cpu"}, lambda storage, where: storage):
        assert jitgrad.load(io.BytesIO(crc.getvalue()), map_location=rule).tolist() == [1, 1, 1]


@FORMS
def test_damaged_files_raise_or_load(zipped):
    whole = written({"w": torch.arange(40.0), "v": [torch.ones(3), "text"]}, zipped)
    r = random.Random(0)
    for k in range(200):
        data = bytearray(whole)
        if k % 2:
            data = data[: r.randrange(1, len(data))]
        else:
            data[r.randrange(len(data))] = r.randrange(256)
        try:
            back = jitgrad.load(io.BytesIO(bytes(data)))
        except (RuntimeError, pickle.UnpicklingError):
            continue
        assert back is not None


def test_torchscript_is_named(tmp_path):
    path = tmp_path / "m.pt"
    torch.jit.script(torch.nn.Linear(1, 1)).save(path)
    with pytest.raises(RuntimeError, match="TorchScript"):
        jitgrad.load(path)


def test_values_survive_both_ways():
    x = torch.randn(3, 4)
    ours = read(x, True)
    assert np.array_equal(numpy(x), ours.numpy())


def _net(t):
    return t.nn.Sequential(t.nn.Linear(3, 4), t.nn.BatchNorm1d(4), t.nn.Linear(4, 2))


def test_state_of_compiled_modules_in_compiled_modules(tmp_path):
    theirs = _net(torch)
    theirs[2] = torch.compile(theirs[2])
    wrapped = torch.compile(theirs)
    torch.save(wrapped.state_dict(), tmp_path / "net.pt")
    state = jitgrad.load(tmp_path / "net.pt")
    assert "_orig_mod.0.weight" in state and "_orig_mod.2._orig_mod.bias" in state

    def ours():
        made = _net(jitgrad)
        made[2] = jitgrad.compile(made[2])
        return jitgrad.compile(made)

    net = ours()
    assert not any(net.load_state_dict(state))
    for name, value in net.state_dict().items():
        wanted = theirs.state_dict()[name.replace("2.", "2._orig_mod.")]
        np.testing.assert_array_equal(value.numpy(), wanted.numpy())
    assert not any(ours().load_state_dict(net.state_dict()))
    with pytest.raises(RuntimeError, match="_orig_mod.0.weight"):
        _net(jitgrad).load_state_dict(state)
    twice = {**net.state_dict(), "_orig_mod.0.weight": jitgrad.zeros(4, 3)}
    with pytest.raises(RuntimeError, match="Unexpected.*_orig_mod.0.weight"):
        net.load_state_dict(twice)
