"""The Tensor object: making, reading, converting, printing, copying; functions against NumPy."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import jitgrad as t


def test_tensor_dtypes():
    assert t.tensor(1).dtype is t.int64 and t.tensor(1.0).dtype is t.float32
    assert t.tensor(True).dtype is t.bool and t.tensor([]).dtype is t.float32
    assert t.tensor([1, 2.5]).dtype is t.float32 and t.tensor([True, 2]).dtype is t.int64
    assert t.tensor(np.array([1.0])).dtype is t.float64
    assert t.tensor(np.float32(1)).dtype is t.float32
    assert t.float32.is_signed and not t.uint8.is_signed
    assert t.tensor([[1, 2], [3, 4]], dtype=t.float16).dtype is t.float16
    assert t.tensor([1.7], dtype=t.int64).tolist() == [1]
    assert t.tensor([1.0], dtype=t.bfloat16).dtype is t.bfloat16
    assert t.tensor([t.tensor(1.0), t.tensor(2.0)]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "data,dtype",
    [
        (np.float64(1), "float64"),
        ([np.float64(1), 2.0], "float64"),
        ([np.float32(1), 1.5], "float32"),
        ([np.float16(1), 2], "float16"),
        ([np.float16(1), 2.0], "float32"),
        ([[1, 2], np.array([1.0, 2.0])], "float64"),
        ([np.complex64(1), 1.0], "complex64"),
        ([np.complex128(1)], "complex128"),
        ([1, 1j], "complex64"),
        ([t.tensor(1, dtype=t.int8)], "int8"),
        ([t.tensor(1.0, dtype=t.bfloat16), True], "bfloat16"),
        ([t.tensor(1.0, dtype=t.float64), t.tensor(2.0)], "float64"),
    ],
)
def test_dtype_of_what_a_sequence_holds(data, dtype):
    for make in (t.tensor, t.as_tensor):
        assert make(data).dtype.name == dtype


def test_tensors_of_one_element_in_a_sequence_are_numbers():
    assert t.tensor([t.ones(1), t.ones(1, 1), 2.0]).tolist() == [1.0, 1.0, 2.0]
    assert t.tensor([[t.ones(1)], [3]]).tolist() == [[1.0], [3.0]]
    with pytest.raises(ValueError, match="only one element tensors"):
        t.tensor([t.ones(2), t.ones(2)])


def test_tensor_copies():
    a = np.zeros(3)
    x = t.tensor(a)
    a[0] = 1
    assert x[0].item() == 0


def test_from_numpy_shares_memory_and_strides():
    a = np.arange(12.0).reshape(3, 4)
    for view in (a, a.T, a[:, ::2], a[1:2], np.broadcast_to(a[0], (2, 4))):
        x = t.from_numpy(view)
        assert x.stride() == tuple(s // 8 for s in view.strides)
        assert np.shares_memory(x.numpy(), a) and np.array_equal(x.numpy(), view)
        assert np.array_equal((x + 1).numpy(), view + 1)
    x = t.from_numpy(a)
    x[0, 0] = 99
    assert a[0, 0] == 99
    a[0, 1] = 77
    assert x[0, 1].item() == 77
    assert x.numpy() is not None and x.numpy().base is a.base or np.shares_memory(x.numpy(), a)


def test_from_numpy_refusals():
    with pytest.raises(TypeError, match="expected np.ndarray"):
        t.from_numpy([1, 2])
    with pytest.raises(TypeError, match="no jitgrad dtype"):
        t.from_numpy(np.array(["a"]))
    with pytest.raises(ValueError, match="byte order.*astype"):
        t.from_numpy(np.zeros(2, ">f4"))
    with pytest.raises(ValueError, match="negative.*copy"):
        t.from_numpy(np.zeros(2)[::-1])
    a = np.zeros(3)
    a.flags.writeable = False
    x = t.from_numpy(a)
    assert (x + 1).sum().item() == 3
    with pytest.raises(RuntimeError, match="read-only"):
        x.add_(1)


def test_numpy_of_a_tensor_that_requires_grad():
    x = t.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="detach"):
        x.numpy()
    assert np.shares_memory(x.detach().numpy(), x.numpy(force=True))
    assert np.asarray(t.ones(2)).tolist() == [1.0, 1.0]
    assert np.asarray(t.ones(2), dtype=np.float64).dtype == np.float64


def test_dlpack():
    x = t.arange(3)
    y = np.from_dlpack(x)
    assert np.shares_memory(y, x.numpy())
    assert t.from_dlpack(np.arange(3.0)).tolist() == [0.0, 1.0, 2.0]


def test_numbers():
    assert t.tensor([[2.5]]).item() == 2.5 and isinstance(t.tensor(1).item(), int)
    assert int(t.tensor(3.7)) == 3 and float(t.tensor(2)) == 2.0 and bool(t.tensor([0.0])) is False
    assert [10, 20, 30][t.tensor(1)] == 20
    assert f"{t.tensor(1.5):.2f}" == "1.50" and complex(t.tensor(2.0)) == 2 + 0j
    assert t.tensor([1.5, 2.5], dtype=t.bfloat16).tolist() == [1.5, 2.5]
    assert 2 in t.tensor([1, 2]) and 3 not in t.tensor([1, 2])
    for bad in (t.zeros(2), t.zeros(0)):
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(bad)
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        t.zeros(2).item()
    with pytest.raises(TypeError, match="index"):
        [1, 2][t.tensor(0.0)]


def test_len_and_iteration():
    x = t.arange(6).reshape(3, 2)
    assert len(x) == 3 and [r.tolist() for r in x] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError, match="0-d"):
        len(t.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(t.tensor(1))
    a, b = t.tensor([1, 2])
    assert a.item() == 1 and b.item() == 2


def test_shape_and_kin():
    x = t.zeros(2, 3, 4)
    assert x.shape == (2, 3, 4) and isinstance(x.shape, t.Size) and x.shape.numel() == 24
    assert repr(x.shape) == "jitgrad.Size([2, 3, 4])"
    assert x.size(-1) == 4 and x.dim() == 3 and x.numel() == 24 and x.nbytes == 96
    assert x.stride() == (12, 4, 1) and x.T.stride() == (1, 4, 12)
    assert x.is_contiguous() and not x.T.is_contiguous() and x.T.contiguous().is_contiguous()
    assert x[1, 1].storage_offset() == 16 and x[1].data_ptr() == x.data_ptr() + 48
    with pytest.raises(IndexError):
        x.size(3)
    assert x.device == t.device("cpu") and str(x.device) == "cpu" and x.device.type == "cpu"


def test_devices():
    assert t.device("cpu") == "cpu" and repr(t.device("cpu")) == "device(type='cpu')"
    assert t.zeros(1).to("cpu").to(t.device("cpu")).device.type == "cpu"
    for make in (lambda: t.zeros(1).to(t.device("cuda", 1)), lambda: t.zeros(1, device="cuda"),
                 lambda: t.zeros(1).cuda(), lambda: t.zeros(1).to("cuda:0"),
                 lambda: t.Generator("cuda"), lambda: t.device("cuda").__enter__()):  # fmt: skip
        with pytest.raises(RuntimeError, match="expected a CUDA device; there is none"):
            make()


def test_arrays_of_other_classes_are_the_cpu_s(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    x = t.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    assert x.numpy().sum() == x.sum().item() == copy.deepcopy(x).sum() == 6
    x.zero_()
    assert pickle.loads(pickle.dumps(x)).tolist() == [[0, 0, 0]] * 2


def test_views_of_memory():
    x = t.arange(12).reshape(3, 4)
    assert x.T.reshape(-1).tolist() == x.numpy().T.reshape(-1).tolist()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.T.view(-1)
    assert x.view(2, -1).shape == (2, 6) and x.reshape((4, -1)).shape == (4, 3)
    with pytest.raises(RuntimeError, match="invalid for input of size 12"):
        x.reshape(5, -1)
    with pytest.raises(RuntimeError, match="invalid for input of size 12"):
        x.view(7)
    with pytest.raises(RuntimeError, match="only one dimension can be inferred"):
        x.reshape(-1, -1)
    assert x.view(t.float64).dtype is t.float64


def test_conversions():
    x = t.tensor([1.5, -2.5])
    assert x.long().tolist() == [1, -2] and x.double().dtype is t.float64
    assert x.to(t.float32) is x and x.to(t.float16).dtype is t.float16
    assert x.to(t.zeros(1, dtype=t.int32)).dtype is t.int32 and x.bool().tolist() == [True, True]
    assert x.to("cpu", t.int64).dtype is t.int64 and x.to(x.dtype, copy=True) is not x
    assert x.type() == "torch.FloatTensor" and x.type(t.int64).dtype is t.int64
    assert x.type_as(t.zeros(1, dtype=t.float64)).dtype is t.float64
    assert x.new_zeros(2, dtype=t.int64).dtype is t.int64 and x.new_tensor([1]).dtype is t.float32
    assert x.new_full((2,), 3).tolist() == [3.0, 3.0]


def test_old_constructor():
    assert t.Tensor(2, 3).shape == (2, 3) and t.Tensor([1, 2]).dtype is t.float32
    assert t.Tensor().shape == (0,)
    assert isinstance(t.ones(1), t.Tensor)


def test_subclass():
    class P(t.Tensor):
        pass

    p = t.Tensor._make_subclass(P, t.ones(2), True)
    assert type(p) is P and p.requires_grad and type(p + 1) is t.Tensor
    p.note = "mine"
    q = copy.deepcopy(p)
    assert type(q) is P and q.note == "mine" and q.requires_grad
    r = pickle.loads(pickle.dumps(t.ones(2)))
    assert r.tolist() == [1.0, 1.0]


def test_deepcopy_keeps_sharing():
    x = t.arange(6).reshape(2, 3)
    y, row = copy.deepcopy([x, x[0]])
    row.zero_()
    assert y[0].tolist() == [0, 0, 0] and x[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [t.float32, t.bfloat16, t.int64, t.bool, t.float16])
def test_pickle(dtype):
    x = t.tensor([[0, 1], [1, 0]], dtype=dtype)
    for y in (pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps(x.T))):
        assert y.dtype is dtype and y.tolist() in (x.tolist(), x.T.tolist())
    assert pickle.loads(pickle.dumps(t.tensor(2.0))).shape == ()


def test_hash_is_identity():
    x, y = t.ones(2), t.ones(2)
    assert {x: 1, y: 2}[x] == 1 and (x == y).all()
    assert (x == "a") is False and (x != "a") is True


REPRS = [
    (lambda: t.tensor(1.5), "tensor(1.5000)"),
    (lambda: t.tensor(3), "tensor(3)"),
    (lambda: t.tensor([1.0, 2.0]), "tensor([1., 2.])"),
    (lambda: t.tensor([0.1, 20.25]), "tensor([ 0.1000, 20.2500])"),
    (lambda: t.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
    (lambda: t.tensor([float("nan"), float("inf"), 1.0]), "tensor([nan, inf, 1.])"),
    (lambda: t.tensor([[1, 2], [-3, 4]]), "tensor([[ 1,  2],\n        [-3,  4]])"),
    (lambda: t.tensor([True, False]), "tensor([ True, False])"),
    (lambda: t.zeros(2, dtype=t.float64), "tensor([0., 0.], dtype=jitgrad.float64)"),
    (lambda: t.tensor([]), "tensor([])"),
    (lambda: t.zeros(0, 3), "tensor([], size=(0, 3))"),
    (lambda: t.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
    (lambda: t.ones(1, requires_grad=True) * 2, "tensor([2.], grad_fn=<MulBackward0>)"),
    (lambda: t.tensor([1.5], dtype=t.bfloat16), "tensor([1.5000], dtype=jitgrad.bfloat16)"),
    (
        lambda: t.arange(8).reshape(2, 2, 2),
        "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]])",
    ),
    (lambda: t.arange(2000), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
]


@pytest.mark.parametrize("make,want", REPRS, ids=[r[1][:30] for r in REPRS])
def test_repr(make, want):
    assert repr(make()) == want


def test_repr_summary_of_a_matrix():
    text = repr(t.arange(2000).reshape(50, 40))
    assert text == (
        "tensor([[   0,    1,    2,  ...,   37,   38,   39],\n"
        "        [  40,   41,   42,  ...,   77,   78,   79],\n"
        "        [  80,   81,   82,  ...,  117,  118,  119],\n"
        "        ...,\n"
        "        [1880, 1881, 1882,  ..., 1917, 1918, 1919],\n"
        "        [1920, 1921, 1922,  ..., 1957, 1958, 1959],\n"
        "        [1960, 1961, 1962,  ..., 1997, 1998, 1999]])"
    )


def test_print_options():
    t.set_printoptions(precision=2)
    try:
        assert repr(t.tensor([1.234])) == "tensor([1.23])"
        t.set_printoptions(sci_mode=True)
        assert repr(t.tensor([1.0])) == "tensor([1.00e+00])"
    finally:
        t.set_printoptions(profile="default")


RANGES = [
    ((5,), np.arange(5)), ((2, 7, 2), np.arange(2, 7, 2)), ((5, 0, -2), np.arange(5, 0, -2)),
    ((0, 1, 0.25), np.arange(0, 1, 0.25, np.float32)), ((3, 3), np.arange(0)),
    ((1.0, 2.05, 0.1), np.arange(1.0, 2.05, 0.1).astype(np.float32)),
]  # fmt: skip


@pytest.mark.parametrize("args,want", RANGES)
def test_arange(args, want):
    got = t.arange(*args)
    assert got.numpy().dtype == want.dtype and np.allclose(got.numpy(), want)


def test_creation():
    assert np.allclose(t.linspace(-1, 1, 7).numpy(), np.linspace(-1, 1, 7, dtype=np.float32))
    assert t.linspace(0, 1, 3).tolist() == [0.0, 0.5, 1.0] and t.linspace(2, 3, 1).tolist() == [2.0]
    assert t.linspace(0, 1, 0).shape == (0,) and t.linspace(0.1, 0.7, 10)[-1] == t.tensor(0.7)
    assert np.allclose(t.logspace(0, 2, 3).numpy(), [1, 10, 100])
    assert np.array_equal(t.eye(2, 3).numpy(), np.eye(2, 3))
    assert t.full((2,), True).dtype is t.bool and t.full((2,), 3).dtype is t.int64
    assert t.full((2,), 1.5).tolist() == [1.5, 1.5] and t.full((), 2).item() == 2
    x = t.zeros(2, 3, dtype=t.int32)
    for like in (t.zeros_like, t.ones_like, t.empty_like):
        assert like(x).dtype is t.int32 and like(x).shape == (2, 3)
    assert t.rand_like(t.zeros(3)).shape == (3,) and t.full_like(x, 7).sum().item() == 42
    assert t.zeros((2, 3)).shape == t.zeros([2, 3]).shape == t.zeros(2, 3).shape
    assert t.as_tensor(x) is x and t.zeros(2, requires_grad=True).requires_grad
    a = np.zeros(2)
    assert np.shares_memory(t.as_tensor(a).numpy(), a)
    assert t.frombuffer(bytearray(8), dtype=t.float32).tolist() == [0.0, 0.0]


X = np.random.default_rng(0).standard_normal((3, 4, 5))

AGAINST_NUMPY = {
    "sum": (lambda x: x.sum((0, 2)), lambda a: a.sum((0, 2))),
    "mean": (lambda x: x.mean(-1, keepdim=True), lambda a: a.mean(-1, keepdims=True)),
    "var": (lambda x: x.var(1), lambda a: a.var(1, ddof=1)),
    "var 0": (lambda x: x.var(1, unbiased=False), lambda a: a.var(1)),
    "std all": (lambda x: x.std(), lambda a: a.std(ddof=1)),
    "prod": (lambda x: x.prod(1), lambda a: a.prod(1)),
    "max": (lambda x: x.max(1).values, lambda a: a.max(1)),
    "argmin": (lambda x: x.argmin(2), lambda a: a.argmin(2)),
    "argmax all": (lambda x: x.argmax(), lambda a: a.argmax()),
    "any": (lambda x: (x > 2).any(0), lambda a: (a > 2).any(0)),
    "all": (lambda x: (x > -3).all(), lambda a: (a > -3).all()),
    "cumsum": (lambda x: x.cumsum(1), lambda a: a.cumsum(1)),
    "cumprod": (lambda x: x.cumprod(-1), lambda a: a.cumprod(-1)),
    "sort": (lambda x: x.sort(1, descending=True)[0], lambda a: -np.sort(-a, 1)),
    "argsort": (lambda x: x.argsort(0), lambda a: a.argsort(0)),
    "topk": (lambda x: x.topk(2, 1)[0], lambda a: -np.sort(-a, 1)[:, :2]),
    "median": (lambda x: x.median(2).values, lambda a: np.median(a, 2)),
    "norm": (lambda x: x.norm(dim=(0, 1)), lambda a: np.sqrt((a * a).sum((0, 1)))),
    "norm 3": (lambda x: x.norm(3), lambda a: (np.abs(a) ** 3).sum() ** (1 / 3)),
    "logsumexp": (lambda x: x.logsumexp(1), lambda a: np.log(np.exp(a).sum(1))),
    "softmax": (lambda x: x.softmax(1), lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True)),
    "permute": (lambda x: x.permute(2, 0, -2), lambda a: a.transpose(2, 0, 1)),
    "movedim": (lambda x: x.movedim(0, -1), lambda a: np.moveaxis(a, 0, -1)),
    "flatten": (lambda x: x.flatten(1), lambda a: a.reshape(3, 20)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), lambda a: a.reshape(3, 2, 2, 5)),
    "flip": (lambda x: x.flip(0, 2), lambda a: np.flip(a, (0, 2))),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), lambda a: np.roll(a, (1, -2), (0, 1))),
    "roll flat": (lambda x: x.roll(3), lambda a: np.roll(a, 3)),
    "rot90": (lambda x: x.rot90(1, (0, 1)), lambda a: np.rot90(a, 1, (0, 1))),
    "rot270": (lambda x: x.rot90(3, (1, 2)), lambda a: np.rot90(a, 3, (1, 2))),
    "tril": (lambda x: x.tril(1), lambda a: np.tril(a, 1)),
    "triu": (lambda x: x.triu(-1), lambda a: np.triu(a, -1)),
    "repeat": (lambda x: x.repeat(2, 1, 2, 1), lambda a: np.tile(a, (2, 1, 2, 1))),
    "tile": (lambda x: x.tile(2), lambda a: np.tile(a, 2)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), lambda a: a.repeat(3, 1)),
    "repeat_interleave t": (
        lambda x: x.repeat_interleave(t.tensor([1, 0, 2]), 0),
        lambda a: a.repeat([1, 0, 2], 0),
    ),
    "stack": (lambda x: t.stack([x, x], 1), lambda a: np.stack([a, a], 1)),
    "cat": (lambda x: t.cat([x, x], -1), lambda a: np.concatenate([a, a], -1)),
    "hstack": (lambda x: t.hstack([x, x]), lambda a: np.hstack([a, a])),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), lambda a: a.diagonal(1, 0, 2)),
    "diag": (lambda x: x[0, 0].diag(1), lambda a: np.diag(a[0, 0], 1)),
    "diag -2": (lambda x: x[0, 0].diag(-2), lambda a: np.diag(a[0, 0], -2)),
    "matmul": (lambda x: x @ x.mT, lambda a: a @ a.transpose(0, 2, 1)),
    "mv": (lambda x: x @ x[0, 0], lambda a: a @ a[0, 0]),
    "vm": (lambda x: x[0, :, 0] @ x, lambda a: a[0, :, 0] @ a),
    "dot": (lambda x: x[0, 0] @ x[1, 1], lambda a: a[0, 0] @ a[1, 1]),
    "einsum": (
        lambda x: t.einsum("bij,bkj->bik", x, x),
        lambda a: np.einsum("bij,bkj->bik", a, a),
    ),
    "einsum of lists": (
        lambda x: t.einsum(x, [0, 1, 2], x, [..., 30, 2], [..., 0, 1, 30]),
        lambda a: np.einsum("ijk,ank->aijn", a, a),
    ),
    "einsum dots": (
        lambda x: t.einsum("...ij,jk", x, x[0, :, :].T.contiguous()),
        lambda a: np.einsum("...ij,jk->...ik", a, a[0].T),
    ),
    "einsum outer": (
        lambda x: t.einsum("i,j,k->kij", x[0, 0], x[1, 0], x[2, 0]),
        lambda a: np.einsum("i,j,k->kij", a[0, 0], a[1, 0], a[2, 0]),
    ),
    "einsum trace": (
        lambda x: t.einsum("ijj->i", x[:, :, :4]),
        lambda a: np.einsum("ijj->i", a[:, :, :4]),
    ),
    "tensordot": (
        lambda x: t.tensordot(x, x, ([0, 1], [0, 1])),
        lambda a: np.tensordot(a, a, ([0, 1], [0, 1])),
    ),
    "outer": (lambda x: t.outer(x[0, 0], x[0, :, 0]), lambda a: np.outer(a[0, 0], a[0, :, 0])),
    "kron": (lambda x: t.kron(x[0], x[1]), lambda a: np.kron(a[0], a[1])),
    "cross": (
        lambda x: t.cross(x[:, 0, :3], x[:, 1, :3], -1),
        lambda a: np.cross(a[:, 0, :3], a[:, 1, :3]),
    ),
    "trace": (lambda x: x[0].trace(), lambda a: np.trace(a[0])),
    "diff": (lambda x: x.diff(dim=1), lambda a: np.diff(a, axis=1)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), lambda a: a.clip(-0.5, 0.5)),
    "clamp tensors": (lambda x: x.clamp(x[0], x[0] + 1), lambda a: a.clip(a[0], a[0] + 1)),
    "where": (lambda x: t.where(x > 0, x, 0.0), lambda a: np.where(a > 0, a, 0.0)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 9), lambda a: np.where(a > 0, 9.0, a)),
    "hypot": (lambda x: x.hypot(x + 1), lambda a: np.hypot(a, a + 1)),
    "logaddexp": (lambda x: x.logaddexp(x * 2), lambda a: np.logaddexp(a, 2 * a)),
    "nan_to_num": (
        lambda x: (x / 0).nan_to_num(0, 1, -1),
        lambda a: np.nan_to_num(a / 0, True, 0, 1, -1),
    ),
    "sinc": (lambda x: x.sinc(), lambda a: np.sinc(a)),
    "remainder": (lambda x: x % 0.7, lambda a: a % 0.7),
    "floor_divide": (lambda x: x // 0.7, lambda a: a // 0.7),
    "pow": (lambda x: x.abs() ** 1.5, lambda a: np.abs(a) ** 1.5),
    "rpow": (lambda x: 2**x, lambda a: 2**a),
    "rsub": (lambda x: 1 - x, lambda a: 1 - a),
    "rdiv": (lambda x: 1 / x, lambda a: 1 / a),
    "round 2": (lambda x: x.round(decimals=2), lambda a: np.round(a, 2)),
    "unfold": (
        lambda x: x.unfold(2, 3, 2),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, 2)[:, :, ::2],
    ),
    "meshgrid": (
        lambda x: t.meshgrid(x[0, 0], x[0, :, 0], indexing="xy")[1],
        lambda a: np.meshgrid(a[0, 0], a[0, :, 0])[1],
    ),
    "addmm": (
        lambda x: t.addmm(x[0], x[1, :, :4], x[2], beta=0.5, alpha=2),
        lambda a: 0.5 * a[0] + 2 * (a[1, :, :4] @ a[2]),
    ),
    "lerp": (lambda x: x.lerp(x + 1, 0.25), lambda a: a + 0.25),
    "count_nonzero": (lambda x: (x > 0).count_nonzero(1), lambda a: (a > 0).sum(1)),
    "nansum": (
        lambda x: t.where(x > 0, x, float("nan")).nansum(0),
        lambda a: np.where(a > 0, a, 0).sum(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAINST_NUMPY)
def test_functions_against_numpy(name):
    ours, numpys = AGAINST_NUMPY[name]
    with np.errstate(all="ignore"):
        want = np.asarray(numpys(X))
    got = ours(t.from_numpy(X))
    assert got.shape == want.shape
    assert np.allclose(got.numpy(), want, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_splits():
    x = t.arange(10)
    assert [p.tolist() for p in x.split(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [p.shape[0] for p in x.split([3, 7])] == [3, 7]
    assert [p.shape[0] for p in x.chunk(4)] == [3, 3, 3, 1]
    assert [p.shape[0] for p in x.tensor_split(4)] == [3, 3, 2, 2]
    assert [p.tolist() for p in x.tensor_split((2, 5))] == [[0, 1], [2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises(RuntimeError, match="sum exactly"):
        x.split([3, 3])
    assert t.cat([t.zeros(0), t.ones(2, 2)]).shape == (2, 2)
    assert t.cat([t.ones(2), t.arange(2)]).dtype is t.float32


def test_squeeze_and_expand():
    x = t.zeros(1, 3, 1)
    assert x.squeeze().shape == (3,) and x.squeeze(0).shape == (3, 1)
    assert x.squeeze(1).shape == (1, 3, 1) and x.squeeze((0, 2)).shape == (3,)
    assert x.unsqueeze(-1).shape == (1, 3, 1, 1) and t.zeros(()).unsqueeze(0).shape == (1,)
    assert x.expand(2, 4, -1, 5).shape == (2, 4, 3, 5) and x.expand_as(t.zeros(2, 3, 2)).shape == (
        2,
        3,
        2,
    )
    assert t.broadcast_shapes((3, 1), (1, 4)) == (3, 4)
    a, b = t.broadcast_tensors(t.zeros(3, 1), t.zeros(4))
    assert a.shape == b.shape == (3, 4)
    with pytest.raises(RuntimeError):
        x.expand(3, 2)


def test_integer_arithmetic():
    a, b = t.tensor([7, -7, 7, -7]), t.tensor([2, 2, -2, -2])
    assert (a // b).tolist() == [3, -4, -4, 3] and (a % b).tolist() == [1, 1, -1, -1]
    assert a.div(b, rounding_mode="trunc").tolist() == [3, -3, -3, 3]
    assert a.div(b, rounding_mode="floor").tolist() == [3, -4, -4, 3]
    assert a.fmod(b).tolist() == [1, -1, 1, -1]
    with pytest.raises(RuntimeError, match="(?i)zerodivision"):
        a // 0
    assert (a**2).dtype is t.int64 and (a << 1).tolist() == [14, -14, 14, -14]
    assert (~t.tensor([True])).tolist() == [False] and (t.tensor([6]) & 3).tolist() == [2]
    assert (6 ^ t.tensor([3])).tolist() == [5]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        a**-1


def test_closeness():
    a = t.tensor([1.0, float("inf"), float("nan")])
    assert t.isclose(a, a).tolist() == [True, True, False]
    assert t.isclose(a, a, equal_nan=True).all()
    assert t.allclose(t.ones(2), t.ones(2) + 1e-9) and not t.allclose(t.ones(2), t.zeros(2))
    assert t.equal(t.ones(2), t.ones(2)) and not t.equal(t.ones(2), t.ones(3))


def test_alpha_and_numpy_operands():
    x = t.ones(3)
    assert (
        t.add(x, x, alpha=3).tolist() == [4.0] * 3 and t.sub(x, 1, alpha=2).tolist() == [-1.0] * 3
    )
    assert (x + np.ones(3)).dtype is t.float64 and isinstance(np.float32(2) * x, t.Tensor)
    assert isinstance(np.ones(3) + x, t.Tensor)
    with pytest.raises(TypeError):
        x + "a"


def test_no_numpy_warnings(recwarn):
    x = t.tensor([0.0, -1.0])
    x / 0, x.log(), x.sqrt(), (x * 1e30).exp(), t.tensor([1e30]).half(), x * float("inf")
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
    with pytest.warns(RuntimeWarning):  # the user's own setting stays
        np.log(np.array([-1.0]))


def test_finfo_iinfo():
    assert t.finfo(t.float32).eps == np.finfo(np.float32).eps
    assert t.finfo(t.float16).max == 65504 and t.finfo().dtype == "float32"
    assert t.iinfo(t.int8).min == -128 and t.iinfo(t.uint8).max == 255
    assert t.finfo(t.float64).tiny == np.finfo(np.float64).tiny


def test_every_generated_method_has_its_in_place_form_agree():
    from jitgrad import methods

    tried = 0
    for name in methods.in_place_names():
        x = t.rand(4, dtype=t.float64)
        try:
            want = getattr(x, name)()
        except (TypeError, RuntimeError):  # takes more arguments, or integers only
            continue
        if want.dtype is not x.dtype:
            continue
        got = getattr(x, name + "_")()
        assert got is x and np.array_equal(x.numpy(), want.numpy(), equal_nan=True), name
        tried += 1
    assert tried > 35


def test_import_is_light():
    code = (
        "import sys, jitgrad; "
        "print([m for m in ('llvmlite', 'numba', 'networkx', 'onnx', 'ml_dtypes') "
        "if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_devices_that_are_not_there_have_names():
    """As in PyTorch: tensors on them cannot be made, but programs name them."""
    there = t.device("cuda:1")
    assert (there.type, there.index, str(there), there) == (
        "cuda",
        1,
        "cuda:1",
        t.device("cuda", 1),
    )
    assert t.device("meta").type == "meta" and t.device("mps") != t.device("cpu")
    assert repr(t.device("xpu", 0)) == "device(type='xpu', index=0)"
    with t.device("cpu"):
        assert t.zeros(1).device == t.device("cpu")
    for bad in (("nothing",), ("cuda:x",), ("cuda:0", 1), ("cuda:",)):
        with pytest.raises(RuntimeError, match=r"\[device\] expected"):
            t.device(*bad)
    for where in ("meta", "mps"):
        with pytest.raises(RuntimeError, match="expected 'cpu' or 'cuda'"):
            t.zeros(1, device=where)
