"""Bad inputs of tensor functions: statistics, scatters, views, in-place methods, random fills."""

import pytest

import jitgrad as t

X = t.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]])
V = t.tensor([1.0, 2.0, 3.0])
I = t.tensor([0, 1, 2])  # noqa: E741
ROWS = [
    # shapes
    (lambda: X.as_strided((2, 2), (3, 4)), RuntimeError, ["[as_strided]", "(2, 2)", "(3, 4)", "6"]),
    (lambda: X.as_strided((2,), (3, 4)), RuntimeError, ["strides", "(2,)", "(3, 4)"]),
    (lambda: X.as_strided((2,), (-1,)), RuntimeError, ["Negative strides", "-1"]),
    (lambda: X.t().clone().t()[:, ::2].view(t.int64), RuntimeError, ["last dim", ".contiguous()"]),
    (lambda: X.view(t.float64), RuntimeError, ["divisible by 2", "float64", "3"]),
    (lambda: t.tensor(1.0).view(t.uint8), RuntimeError, ["dim() cannot be 0", "uint8"]),
    (lambda: X.select_scatter(V[:2], 0, 1), RuntimeError, ["[select_scatter]", "[2]", "[3]"]),
    (lambda: X.slice_scatter(V, 1, 0, 2), RuntimeError, ["[slice_scatter]", "[3]", "[2, 2]"]),
    (lambda: t.cartesian_prod(V, X), RuntimeError, ["1D", "[2, 3]"]),
    (lambda: t.combinations(X), RuntimeError, ["1D", "[2, 3]"]),
    (lambda: t.vander(X), RuntimeError, ["one-dimensional", "[2, 3]"]),
    (lambda: t.block_diag(t.ones(1, 1, 1)), RuntimeError, ["2 or fewer", "Input 0", "3"]),
    (lambda: t.ones(1, 1, 1).cov(), RuntimeError, ["two or fewer", "3"]),
    (lambda: X.hsplit(2), RuntimeError, ["hsplit", "3", "2"]),
    (lambda: X.sum_to_size(4), RuntimeError, ["[4]", "[2, 3]"]),
    (lambda: t.trapezoid(X, t.ones(4)), RuntimeError, ["trapezoid", "4", "3"]),
    (lambda: t.gradient(V[:1]), RuntimeError, ["at least edge_order+1", "1"]),
    (lambda: V.renorm(2, 0, 1.0), RuntimeError, ["renorm", "2 dimensions", "1"]),
    (lambda: X.put(I, V[:2]), IndexError, ["same number of elements", "[2]", "[3]"]),
    (lambda: t.searchsorted(X, t.ones(3, 3)), RuntimeError, ["first N-1", "[2, 3]", "[3, 3]"]),
    (lambda: X.repeat_interleave(I, 0), RuntimeError, ["same size", "3", "2"]),
    (lambda: X.resize_(-1), RuntimeError, ["[resize_]", "-1"]),
    (lambda: V.clone().fill_diagonal_(1), RuntimeError, ["larger than 1", "[3]"]),
    # dtypes
    (lambda: I.quantile(0.5), RuntimeError, ["quantile()", "float or double", "int64"]),
    (lambda: X.quantile(t.tensor(0.5).double()), RuntimeError, ["same dtype", "float64"]),
    (lambda: I.histc(), RuntimeError, ["[histc]", "int64", ".float()"]),
    (lambda: V.bincount(), RuntimeError, ["bincount", "float32"]),
    (lambda: t.frexp(I), RuntimeError, ["frexp", "floating", "int64"]),
    (lambda: t.gcd(V, V), NotImplementedError, ["[gcd]", "float32"]),
    (lambda: t.nextafter(I, I), NotImplementedError, ["[nextafter]", "int64", ".float()"]),
    (lambda: I.logcumsumexp(0), NotImplementedError, ["logcumsumexp", "int64", ".float()"]),
    (lambda: V.scatter_reduce(0, I, I, "sum"), RuntimeError, ["dtype", "float32", "int64"]),
    (lambda: V.index_reduce(0, I, I, "prod"), RuntimeError, ["index_reduce", "float32", "int64"]),
    (lambda: V.scatter_reduce(0, V, V, "sum"), RuntimeError, ["index", "float32", ".long()"]),
    (lambda: V.masked_scatter(I, V), RuntimeError, ["boolean masks", "int64"]),
    (lambda: I.normal_(), NotImplementedError, ["[normal_]", "floating", "int64"]),
    (lambda: t.FloatTensor(I), TypeError, ["FloatTensor", "LongTensor", ".to(dtype)"]),
    (lambda: V.type("torch.NoTensor"), ValueError, ["NoTensor", "LongTensor"]),
    (lambda: t.zeros(2).set_(I), RuntimeError, ["[set_]", "float32", "int64"]),
    (lambda: t.add(V, V, out=t.zeros(3, dtype=t.int64)), RuntimeError, ["add", "int64", "float32"]),
    (lambda: X.clamp("a"), TypeError, ["a Tensor or a number", "str 'a'"]),
    (lambda: t.searchsorted(V, "a"), TypeError, ["a Tensor or a number", "str 'a'"]),
    (lambda: X.masked_select(X), RuntimeError, ["masked_select", "BoolTensor", "float32"]),
    (lambda: I.softmax(0), NotImplementedError, ["softmax", "int64", ".float()"]),
    (lambda: t.cat(X), TypeError, ["cat()", "tuple of Tensors", "not Tensor"]),
    (lambda: t.stack(X), TypeError, ["stack()", "tuple of Tensors", "not Tensor"]),
    (lambda: t.triu_indices(-1, 2), RuntimeError, ["[triu_indices]", "non-negative", "-1"]),
    (lambda: t.tril_indices(2, -1), RuntimeError, ["[tril_indices]", "non-negative", "-1"]),
    # values
    (lambda: X.quantile(1.5), RuntimeError, ["[0, 1]", "1.5"]),
    (lambda: X.quantile(t.tensor([0.5, 2.0])), RuntimeError, ["[0, 1]", "2.0"]),
    (lambda: X.quantile(0.5, interpolation="cubic"), RuntimeError, ["interpolation", "cubic"]),
    (lambda: V[:0].quantile(0.5), RuntimeError, ["non-empty", "[0]"]),
    (lambda: t.histc(V, 0), RuntimeError, ["bins", "0"]),
    (lambda: t.histc(V, 4, 3, 1), RuntimeError, ["min=3", "max=1"]),
    (lambda: V.index_reduce(0, I, V, "sum"), RuntimeError, ["prod, mean, amax or amin", "sum"]),
    (lambda: V.scatter_reduce(0, I, V, "max"), RuntimeError, ["sum, prod, mean", "max"]),
    (lambda: V.put(I + 1, V), IndexError, ["3", "size 3"]),
    (lambda: V.masked_scatter(V > 0, V[:2]), RuntimeError, ["masked_scatter", "at least 3", "[2]"]),
    (lambda: t.unravel_index(I + 5, (2, 3)), ValueError, ["unravel_index", "6", "(2, 3)"]),
    (lambda: (I - 1).bincount(), RuntimeError, ["non-negative"]),
    (lambda: V.repeat_interleave(I - 1), RuntimeError, ["can not be negative"]),
    (lambda: V.polygamma(-1), RuntimeError, ["polygamma", "-1"]),
    (lambda: V.mvlgamma(0), RuntimeError, ["mvlgamma", "0"]),
    (lambda: t.empty(3).normal_(0, -1), RuntimeError, ["std >= 0", "-1"]),
    (lambda: t.empty(3).uniform_(2, 1), RuntimeError, ["from=2", "to=1"]),
    (lambda: t.empty(3).exponential_(0), RuntimeError, ["lambda > 0", "0"]),
    (lambda: t.empty(3).geometric_(1), RuntimeError, ["(0, 1)", "p=1"]),
    (lambda: t.poisson(-V), RuntimeError, ["Poisson rate", "non-negative"]),
    (lambda: t.hann_window(-1), RuntimeError, ["hann_window", "-1"]),
    (lambda: V.cov(fweights=-I), RuntimeError, ["fweights", "negative", "-1"]),
    # no tensors, and the tape
    (lambda: t.exp(V, out=[0.0]), TypeError, ["exp", "'out'", "float"]),
    (lambda: t.Tensor(2.5), TypeError, ["sequence", "float"]),
    (lambda: t.isin(1, 2), TypeError, ["isin", "Tensor"]),
    (lambda: X.clone().requires_grad_().resize_(2), RuntimeError, ["require grad"]),
    (lambda: X.clone().requires_grad_().apply_(abs), TypeError, ["requires grad", "detach"]),
    (lambda: X.clone().requires_grad_().t_(), RuntimeError, ["leaf Variable"]),
]


@pytest.mark.parametrize("code,error,words", ROWS, ids=range(len(ROWS)))
def test_error(code, error, words):
    before = X.clone(), V.clone(), I.clone()
    with pytest.raises(error) as caught:
        code()
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert all(a.equal(b) for a, b in zip(before, (X, V, I), strict=True))


WRONG_TYPES = [
    (lambda: t.flip("a", (0,)), "[flip] expected a Tensor as input; got str"),
    (lambda: X.unsqueeze("a"), "[unsqueeze] expected an int as dim; got str"),
    (lambda: X.unsqueeze(1.5), "[unsqueeze] expected an int as dim; got float"),
    (lambda: t.dist(V, V, "a"), "[dist] expected a number as p; got str"),
    (lambda: t.stack([V, 1]), "[stack] expected a tuple of Tensors as tensors; got list with int"),
    (lambda: t.atleast_2d(V, "a"), "[atleast_2d] expected a Tensor as tensors; got str"),
    (lambda: t.fft.fft(V, norm=1), "[fft] expected a str as norm; got int"),
    (lambda: X.sum(dtype="a"), "[sum] expected a dtype as dtype; got str"),
    (lambda: t.linalg.multi_dot([X, 2]), "got list with int as element 1"),
    (lambda: V.clamp(V, [1.0]), "expected a Tensor or a number; got list [1.0]"),
]


@pytest.mark.parametrize(("act", "text"), WRONG_TYPES)
def test_argument_of_a_wrong_python_type(act, text):
    with pytest.raises(TypeError) as caught:
        act()
    assert text in str(caught.value)
    assert "test_tensor_functions.py:" in str(caught.value)


def test_attribute_errors_of_other_causes_stay():
    class Strange(t.nn.Module):
        def forward(self, x):
            return x.nothing_like_this

    with pytest.raises(AttributeError, match="nothing_like_this"):
        Strange()(X)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        t.func.vmap(lambda x: x.nothing_like_this)(X)
