"""Layouts, memory formats and schemes of quantisation: objects of their types, as PyTorch's."""

import copy
import io
import pickle

import pytest
from parity.compare import torch

import jitgrad

LIBS = (jitgrad, torch)
LAYOUTS = [
    "strided",
    "sparse_coo",
    "sparse_csr",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "jagged",
]
MEMORY = ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]
SCHEMES = [
    "per_tensor_affine",
    "per_channel_affine",
    "per_tensor_symmetric",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
]
VALUES = [(n, "layout") for n in LAYOUTS] + [(n, "memory_format") for n in MEMORY]
VALUES += [(n, "qscheme") for n in SCHEMES]


@pytest.mark.parametrize(("name", "kind"), VALUES)
def test_value(name, kind):
    for t in LIBS:
        value = getattr(t, name)
        assert type(value) is getattr(t, kind) and type(value).__name__ == kind
        assert repr(value) == str(value) == f"torch.{name}"
        assert value == value and len({value, getattr(t, name)}) == 1 and value != name
    value = getattr(jitgrad, name)
    assert copy.deepcopy([value])[0] is copy.copy(value) is value
    assert pickle.loads(pickle.dumps({"x": value}))["x"] is value


def test_layout_of_tensors():
    for t in LIBS:
        x = t.ones(2, 3)
        assert x.layout is t.strided and isinstance(x.layout, t.layout)
        assert t.zeros(2, dtype=x.dtype, layout=x.layout, device=x.device).tolist() == [0.0, 0.0]
        assert x.layout != t.sparse_coo
    with pytest.raises(TypeError, match="must be torch.layout, not str"):
        jitgrad.zeros(2, layout="strided")
    for make in (jitgrad.zeros, jitgrad.ones, jitgrad.empty, jitgrad.rand, jitgrad.randn):
        with pytest.raises(NotImplementedError, match="torch.sparse_coo"):
            make(2, layout=jitgrad.sparse_coo)
    with pytest.raises(NotImplementedError, match="torch.sparse_csr"):
        jitgrad.zeros_like(jitgrad.ones(2), layout=jitgrad.sparse_csr)


def test_memory_format_as_an_argument():
    for t in LIBS:
        x = t.ones(1, 2, 3, 4)
        for f in (t.channels_last, t.contiguous_format, t.preserve_format):
            if f is not t.preserve_format:
                assert x.contiguous(memory_format=f).shape == x.shape
            assert x.clone(memory_format=f).tolist() == x.tolist()
            assert t.empty_like(x, memory_format=f).shape == x.shape
            assert x.to(t.float64, memory_format=f).dtype is t.float64
        t.nn.Conv2d(2, 2, 1).to(memory_format=t.channels_last)
        with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last"):
            t.ones(2, 3).contiguous(memory_format=t.channels_last)
        with pytest.raises(TypeError, match="must be torch.memory_format, not str"):
            x.contiguous(memory_format="channels_last")


def test_saved():
    entries = {"a": "strided", "b": "per_tensor_affine"}
    theirs, ours = io.BytesIO(), io.BytesIO()
    torch.save({k: getattr(torch, n) for k, n in entries.items()}, theirs)
    jitgrad.save({k: getattr(jitgrad, n) for k, n in entries.items()}, ours)
    for file in (theirs, ours):
        file.seek(0)
        loaded = jitgrad.load(file)
        assert all(loaded[k] is getattr(jitgrad, n) for k, n in entries.items())


def test_compiled():
    """A format is guarded by value, as an argument and as what a closure holds."""
    held = [jitgrad.channels_last]

    @jitgrad.jit(fallback="error")
    def f(x, memory_format):
        scale = 2.0 if held[0] is jitgrad.channels_last else 3.0
        return x.clone(memory_format=memory_format) * scale + (
            1.0 if memory_format is jitgrad.preserve_format else 0.0
        )

    x = jitgrad.ones(1, 1, 1, 1)
    for _ in range(2):
        assert f(x, jitgrad.preserve_format).item() == 3.0
        assert f(x, jitgrad.channels_last).item() == 2.0
    assert f.stats.traces == f.stats.hits == 2
    held[0] = jitgrad.contiguous_format
    assert f(x, jitgrad.channels_last).item() == 3.0
