"""Names with an underscore, and others that are written down nowhere, that packages ask for."""

import collections
import io

import pytest
from parity.compare import torch

import jitgrad
import jitgrad.autograd.profiler
import jitgrad.utils._pytree
import jitgrad.utils.data

LIBS = (jitgrad, torch)


@pytest.mark.parametrize("t", LIBS)
def test_file_reader(t, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(3.0), "b": 1}, path)
    for source in (str(path), io.BytesIO(path.read_bytes())):
        reader = t.PyTorchFileReader(source)
        assert {"data.pkl", "byteorder", "data/0"} <= set(reader.get_all_records())
        assert reader.has_record("data/0") and not reader.has_record("data/1")
        assert reader.get_record("byteorder") == b"little"
        assert reader.get_record_size("data/0") == 12 and reader.serialization_id().isdigit()
        x = reader.get_storage_from_record("data/0", 3, t.float32)
        assert x.shape == (0,) and x.dtype is t.float32
        assert t.tensor([]).set_(x.untyped_storage(), 0, (3,)).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(RuntimeError, match="failed locating file data/1"):
            reader.get_record("data/1")
    with pytest.raises(RuntimeError):
        t.PyTorchFileReader(str(tmp_path / "nothing"))


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize("t", LIBS)
def test_supported_nodes(t):
    """A walk of the caller's own over the nodes' definitions, which stops where it likes."""
    pytree = t.utils._pytree

    def flatten(tree):
        kind = pytree._get_node_type(tree)
        if kind not in pytree.SUPPORTED_NODES:
            return [tree], pytree.LeafSpec()
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
        if all(isinstance(c, int) for c in children):
            return [tree], pytree.LeafSpec()
        parts = [flatten(c) for c in children]
        spec = pytree.TreeSpec(kind, context, [s for _, s in parts])
        return [x for leaves, _ in parts for x in leaves], spec

    tree = {"a": [1, 2], "b": ("x", Point([3], "y")), "c": collections.OrderedDict(d="z")}
    leaves, spec = flatten(tree)
    assert leaves == [[1, 2], "x", [3], "y", "z"]
    back = pytree.tree_unflatten(leaves, spec)
    assert back == tree and type(back["b"][1]) is Point
    assert type(back["c"]) is collections.OrderedDict
    node = pytree.SUPPORTED_NODES[dict]
    assert node.unflatten_fn(*node.flatten_fn({"k": 1})) == {"k": 1}
    assert int not in pytree.SUPPORTED_NODES and list in set(pytree.SUPPORTED_NODES)


@pytest.mark.parametrize("t", LIBS)
def test_parse_to(t):
    parse = t._C._nn._parse_to
    assert parse("cpu") == (t.device("cpu"), None, False, None)
    assert parse(t.float16, True) == (None, t.float16, True, None)
    assert parse(t.ones(1, dtype=t.float64)) == (t.device("cpu"), t.float64, False, None)
    found = parse("cpu", dtype=t.float64, memory_format=t.channels_last)
    assert found == (t.device("cpu"), t.float64, False, t.channels_last)
    with pytest.raises(TypeError):
        parse(nothing=1)


def test_module_to_keeps_integers():
    for t in LIBS:
        m = t.nn.BatchNorm1d(2).to("cpu", t.float64)
        assert m.weight.dtype is t.float64 and m.num_batches_tracked.dtype is t.int64


def test_types():
    for t in LIBS:
        assert isinstance(t.Tensor, t._C._TensorMeta) and not isinstance(1, t.ScriptModule)
        assert isinstance(t._dynamo.OptimizedModule, type)
        with pytest.raises((RuntimeError, AssertionError)), t.autograd.profiler.emit_nvtx():
            pass
        with t.autograd.profiler.emit_nvtx(enabled=False):
            pass


def test_iterators_of_loaders():
    for t in LIBS:
        own = t.utils.data.dataloader
        loader = t.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)
        assert [int(x) for x in loader] == [0, 1, 2, 3]
        iterator = loader._iterator
        assert isinstance(iterator, own._MultiProcessingDataLoaderIter)
        assert isinstance(iterator, own._BaseDataLoaderIter)
        iterator._shutdown_workers()
        single = iter(t.utils.data.DataLoader(range(4)))
        assert isinstance(single, own._SingleProcessDataLoaderIter)
        assert not isinstance(single, own._MultiProcessingDataLoaderIter)


@pytest.mark.parametrize("t", LIBS)
def test_storage_from_file(t, tmp_path):
    """The bytes of a file as a storage: what safetensors reads tensors from."""
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(16)))
    storage = t.UntypedStorage.from_file(str(path), False, 16)
    assert len(storage) == 16 and storage[3] == 3 and storage[4:8].tolist() == [4, 5, 6, 7]
    x = t.asarray(storage[8:], dtype=t.uint8)
    assert x.tolist() == list(range(8, 16))
    assert x.view(t.int16).tolist() == [2312, 2826, 3340, 3854]
    whole = t.asarray(storage, dtype=t.uint8)
    whole[0] = 9
    assert path.read_bytes()[0] == 0
    shared = t.asarray(t.UntypedStorage.from_file(str(path), True, 16), dtype=t.uint8)
    shared[1] = 7
    assert path.read_bytes()[1] == 7
    with pytest.raises((OSError, RuntimeError)):
        t.UntypedStorage.from_file(str(tmp_path / "nothing"), False, 4)


def test_from_file_too_short(tmp_path):
    (tmp_path / "short").write_bytes(b"12")
    with pytest.raises(RuntimeError, match="expected 4 bytes"):
        jitgrad.UntypedStorage.from_file(str(tmp_path / "short"), nbytes=4)
