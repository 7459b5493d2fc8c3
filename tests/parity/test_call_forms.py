"""Forms of calls that public code uses: older orders of arguments, names of arguments, sizes and
dims one by one. Each gives what it gives in PyTorch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, check, flat, same

import jitgrad

X = "t.arange(6.0).reshape(2, 3) - 2"
M, V = "t.arange(9.0).reshape(3, 3)", "t.arange(3.0) + 1"
B = "t.arange(12.0).reshape(2, 2, 3)"

INDICES = """
[0.5]
[1.9, 0]
[[0.5], [1.0]]
[0, True]
[True, False, True]
[1j]
["a"]
[t.tensor(1.0)]
[[t.tensor(1), 0]]
np.array([0.7])
np.array([1], np.int8)
np.array([1], np.uint8)
np.array([1j])
np.float32(1)
([0.5], 1)
(slice(None), [0.5])
t.tensor([1.0])
t.tensor(1.0)
t.tensor(1, dtype=t.int8)
t.tensor(1, dtype=t.int16)
t.tensor(1 + 0j)
t.tensor([1], dtype=t.int8)
t.tensor([1], dtype=t.int16)
t.tensor([1], dtype=t.int32)
t.tensor([1], dtype=t.uint16)
t.tensor([1, 0, 1], dtype=t.uint8)
t.tensor([1], dtype=t.uint8)
(0, t.tensor([1], dtype=t.int8))
""".strip().split("\n")

NUMBERS = """
float(t.tensor(1 + 0j))
int(t.tensor(2 + 0j))
complex(t.tensor(1))
complex(t.tensor([1 + 1j]))
reversed(t.arange(6).reshape(2, 3))
reversed(t.arange(3))
reversed(t.tensor(3))
t.tensor([2**70], dtype=t.float32)
t.tensor(2**70, dtype=t.float32)
t.tensor(2**70, dtype=t.bool)
t.tensor([2**70, 1], dtype=t.float64)
t.nn.functional.l1_loss(t.tensor([1, 5]), t.tensor([3, 3]), reduction="sum")
t.nn.functional.l1_loss(t.tensor([1, 5]), t.tensor([3, 3]), reduction="none")
t.nn.functional.l1_loss(t.tensor([1, 5]), t.tensor([3, 3]))
t.nn.functional.margin_ranking_loss(t.tensor([1, 5]), t.tensor([3, 3]), t.tensor([1, -1]))
t.nn.functional.dropout(t.tensor([1, 5]), 1.0)
t.nn.functional.hardtanh(t.tensor([1, 5], dtype=t.uint8))
t.nn.functional.hardtanh(t.tensor([1, 5], dtype=t.uint8), 0, 3)
t.nn.init.orthogonal_(t.ones(2, 2, dtype=t.int64))
t.nn.functional.pad(t.ones(2, dtype=t.complex64), (1, 1), value=0.5)
""".strip().split("\n")

OLDER = f"""
t.add({X}, 2, {X})
t.add({X}, 2, 3)
({X}).add(2, {X})
({X}).add_(-0.5, {X})
({X}).sub_(2, {X})
t.sub({X}, 3, {X})
({V}).addcdiv_(-0.1, {V}, {V} + 2)
t.addcdiv({V}, 2, {V}, {V})
({V}).addcmul_(0.1, {V}, {V})
t.addcmul({V}, 2, {V}, {V})
t.addmm(2, {M}, 3, {M}, {M})
t.addmm(2, {M}, {M}, {M})
({M}).addmm_(2, 3, {M}, {M})
({M}).addmm(2, {M}, {M})
t.addmv(2, {V}, 3, {M}, {V})
({V}).addmv_(2, {M}, {V})
t.addr(2, {M}, 3, {V}, {V})
t.addbmm(2, t.ones(2, 2), 3, {B}, ({B}).mT)
t.baddbmm(2, t.ones(2, 2, 2), 3, {B}, ({B}).mT)
""".strip().split("\n")

FORMS = f"""
t.true_divide({X}, 2)
t.max({X}, other=-({X}))
({X}).min(other=t.zeros(3))
t.norm({X}, 2, 1, False, None, t.float64)
t.norm({X}, dim=1, out=t.ones(2))
t.tensordot({V}, {V}, 1, None)
t.tensordot({V}, {V}, dims=1, out=t.ones(()))
t.broadcast_to({V}, size=(2, 3))
({V}).broadcast_to(2, 3)
t.tensor_split({V}, sections=2)
t.tensor_split({V}, indices=(1, 2))
t.tensor_split({V}, tensor_indices_or_sections=t.tensor(2))
({V}).hsplit(1, 2)
({V}).hsplit(sections=3)
({M}).vsplit(1, 2)
({B}).dsplit(indices=(1, 2))
t.repeat_interleave(repeats=t.tensor([1, 2]))
({X}).count_nonzero(0, 1)
t.ones(2, 1, 1).squeeze(1, 2)
t.ones(2, 1, 1).squeeze_(1, 2)
t.promote_types(type1=t.int64, type2=t.float32)
t.can_cast(from_=t.int64, to=t.float32)
t.result_type(tensor={V}, other=2.5)
t.from_dlpack(ext_tensor={V})
t.from_dlpack({V}, device="cpu", copy=True)
t.tril_indices(2, 2, dtype=None, pin_memory=False, requires_grad=False)
t.triu_indices(2, 3, 1, dtype=t.int32)
t.randint_like({V}, high=1)
t.zeros(3).copy_(other={V})
t.zeros(3).map_(other={V}, callable=lambda a, b: a + b)
t.ones(6).resize_(size=(2, 3))
t.linalg.norm(input={X}, axis=1, keepdims=True)
t.linalg.vector_norm(x={X})
t.linalg.vector_norm(input={X}, axis=0)
t.linalg.matrix_norm(input={M})
t.linalg.cond(input=t.eye(2))
t.linalg.pinv({M}, 1e-3, False)
t.linalg.pinv(input={M}, rcond=1e-3, hermitian=False)
t.linalg.lstsq(input={M} + t.eye(3), b={M}).solution
t.linalg.eigh(input=t.eye(2))
t.linalg.eigvalsh(input=t.eye(2))
t.linalg.solve_triangular(input=t.eye(3), B={M}, upper=True)
t.linalg.matrix_rank(input={M})
t.linalg.matrix_power(input={M}, n=2)
t.linalg.tensorsolve(t.eye(3), other={V})
t.linalg.tensorinv(input=t.eye(4).reshape(2, 2, 2, 2))
t.linalg.vander({V}, N=3)
t.fft.fftfreq(3, pin_memory=False)
t.fft.fft(x={V}, axis=0)
t.special.airy_ai(x={V})
t.special.hermite_polynomial_h(x={V}, n=2)
t.special.spherical_bessel_j0(x={V})
t.special.scaled_modified_bessel_k1(x={V})
t.special.softmax({X}, axis=0)
t.isin(element=2, test_elements={V})
t.isin({V}, test_element=2)
t.histogram({V})
t.histogram({V}, 2, out=(t.ones(2), t.ones(3)))
t.histogramdd(({V})[:, None], [2], [0.0, 4.0], None, False)
t.vander({V}, 3, True)
t.rsub({V}, 2, 3)
t.roll({V}, 1, ())
t.meshgrid({V}, {V}, indexing=None)
t.nan_to_num(t.tensor([float("nan"), 1.0]), None)
t.nn.functional.linear({X}, {M}, out=t.ones(2, 3))
t.nn.functional.softplus({X}, out=t.ones(2, 3))
t.nn.functional.logsigmoid({X}, out=t.ones(2, 3))
t.nn.functional.hardshrink({X}, out=t.ones(2, 3))
t.nn.functional.gelu({X}, out=t.ones(2, 3))
t.nn.functional.avg_pool2d(t.ones(1, 2, 2), 2, out=t.ones(1, 1, 1))
t.sum(a={X}, axis=0)
t.cumsum(x1={X}, axis=1)
t.device(device="cpu").type
t.device(type="cpu", index=0).type
""".strip().split("\n")

REFUSED = f"""
t.add({X}, {X}, {X})
t.addmm({M}, {M}, {M}, {M})
t.addmm(1, 2, 3, {M}, {M}, {M})
t.true_divide({X}, 2, rounding_mode="floor")
t.zeros(3).copy_(src={V})
t.range(end=3)
t.linalg.vander({V}, 3)
t.linalg.norm(A={V})
t.special.airy_ai(input={V})
t.sum({X}, axis=0, dim=0)
t.tensor_split({V})
t.isnan({V}, out={V})
t.clone({V}, out={V})
t.flip({V}, (0,), out={V})
t.var_mean({V}, out=({V}, {V}))
t.randint_like({V})
t.device()
""".strip().split("\n")


def run(lib, form):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(form, {"t": lib.t})


@pytest.mark.parametrize("form", OLDER + FORMS)
def test_forms(form: str) -> None:
    for a, b in zip(*(flat(run(lib, form)) for lib in LIBS), strict=True):
        if isinstance(b, THEIRS.t.Tensor):
            same(a, b, form, scale=30)
        elif isinstance(b, tuple):
            same(a[0], b[0], form)
        else:
            assert str(a).rsplit(".", 1)[-1] == str(b).rsplit(".", 1)[-1]


@pytest.mark.parametrize("form", REFUSED)
def test_refused(form: str) -> None:
    for lib in LIBS:
        with pytest.raises((TypeError, RuntimeError) if lib is THEIRS else TypeError):
            run(lib, form)


@pytest.mark.parametrize("form", OLDER)
def test_older_orders_warn_and_compile(form: str) -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        expected = eval(form, {"t": jitgrad})
    compiled = jitgrad.jit(lambda: run(OURS, form), fallback="error")
    for _ in range(2):
        same(compiled(), expected, form)


def test_gradients_of_older_orders() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((3, 3)) for _ in range(3))

    def code(lib, x, y, z):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x.add(2, y), lib.t.addmm(2, x, 3, y, z), x.addcdiv(0.5, y, z.exp())

    check(code, a, b, c, scale=10)


def test_backward_takes_grad_variables() -> None:
    for lib in LIBS:
        x = lib.t.ones(2, requires_grad=True)
        with pytest.warns(FutureWarning):
            lib.t.autograd.backward([x * 3], grad_variables=[lib.t.ones(2)])
        assert x.grad.tolist() == [3.0, 3.0]


def _outcomes(run):
    found = []
    for lib in (OURS, THEIRS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.append(run(lib.t))
            except Exception as error:
                found.append(error)
    return found


def _agree(run):
    ours, theirs = _outcomes(run)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        assert type(ours) is type(theirs), (ours, theirs)
    elif isinstance(theirs, THEIRS.t.Tensor):
        same(ours, theirs)
    else:
        assert ours == theirs and type(ours) is type(theirs)


@pytest.mark.parametrize("call", NUMBERS)
def test_numbers(call):
    _agree(lambda t: eval(call, {"t": t}))


@pytest.mark.parametrize("index", INDICES)
def test_indices(index):
    """What may stand in an index, and what is refused: read, written, and in index_put."""

    def write(t, value):
        x = t.arange(6.0).reshape(3, 2)
        x[eval(index, {"t": t, "np": np})] = value
        return x

    _agree(lambda t: t.arange(6.0).reshape(3, 2)[eval(index, {"t": t, "np": np})])
    _agree(lambda t: write(t, 7))
    _agree(lambda t: write(t, t.tensor([7.0, 8.0])))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool", "float32"])
def test_index_put_takes(dtype):
    def put(t):
        index = t.tensor([1, 0, 1]).to(getattr(t, dtype))
        return t.arange(6.0).reshape(3, 2).index_put((index,), t.tensor(1.0))

    _agree(put)
