"""Linear algebra against NumPy, finite differences and its own identities; eager and compiled.

The records of factorizations are checked on their samples by test_ops.py and
test_op_derivatives.py; here are the ones whose derivative is of symmetric matrices, and what is
composed of them.
"""

import numpy as np
import pytest

import jitgrad as t
from jitgrad.autograd import gradcheck, gradgradcheck

RNG = np.random.default_rng(0)


def real(*shape):
    return t.from_numpy(RNG.standard_normal(shape)).requires_grad_()


def symmetric(x):
    return x + x.mT


def positive(x):
    return x @ x.mT + t.eye(x.shape[-1], dtype=x.dtype)


SYMMETRIC = {
    "cholesky": lambda x: t.linalg.cholesky(positive(x)),
    "cholesky upper": lambda x: t.linalg.cholesky(positive(x), upper=True),
    "cholesky_ex": lambda x: t.linalg.cholesky_ex(positive(x)).L,
    "eigh values": lambda x: t.linalg.eigh(symmetric(x)).eigenvalues,
    "eigh vectors": lambda x: t.linalg.eigh(symmetric(x)).eigenvectors.abs(),
    "eigh upper": lambda x: t.linalg.eigh(symmetric(x), "U").eigenvalues,
    "eigvalsh": lambda x: t.linalg.eigvalsh(symmetric(x)),
    "pinv": lambda x: t.linalg.pinv(symmetric(x), hermitian=True),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_derivatives_of_symmetric_matrices(name):
    x = real(2, 3, 3)
    assert gradcheck(SYMMETRIC[name], (x,))
    assert gradgradcheck(SYMMETRIC[name], (x,))


COMPOSED = {
    "logdet": lambda x: t.logdet(positive(x)),
    "solve": lambda x: t.linalg.solve(positive(x), x),
    "solve right": lambda x: t.linalg.solve(positive(x), x, left=False),
    "inv_ex": lambda x: t.linalg.inv_ex(positive(x)).inverse,
    "lu": lambda x: t.linalg.lu(positive(x))[1:],
    "lu_solve": lambda x: t.linalg.lu_solve(*t.linalg.lu_factor(positive(x)), x, adjoint=True),
    "pinv": lambda x: t.linalg.pinv(x[..., :2]),
    "pinv of rank 1": lambda x: t.linalg.pinv(x[..., :1] @ x[..., :1, :]),
    "lstsq": lambda x: t.linalg.lstsq(x, x[..., :2]).solution,
    "lstsq gels": lambda x: t.linalg.lstsq(x[..., :2], x * x, driver="gels")[:2],
    "householder": lambda x: t.linalg.householder_product(x, x[..., 0, :2]),
    "cond": lambda x: t.linalg.cond(x),
    "cond 1": lambda x: t.linalg.cond(positive(x), 1),
    "norm 2": lambda x: t.linalg.matrix_norm(x, 2),
    "norm nuc": lambda x: t.linalg.matrix_norm(x, "nuc", (0, 2), True),
    "cholesky_inverse": lambda x: t.cholesky_inverse(t.linalg.cholesky(positive(x))),
    "matrix_exp": lambda x: t.matrix_exp(x),
    "det at rank 2": lambda x: t.linalg.det(x[..., :2] @ x[..., :2, :]),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_derivatives_and_compiled(name):
    """First and (where the matrices are regular) second derivatives; compiled equals eager."""
    f, x = COMPOSED[name], real(2, 3, 3)
    assert gradcheck(f, (x,))
    if "rank" not in name:
        assert gradgradcheck(f, (x,))

    def step(x):
        parts = f(x)
        parts = parts if isinstance(parts, tuple) else (parts,)
        loss = sum((p * p).sum() for p in parts)
        return (loss, *t.autograd.grad(loss, [x]))

    compiled = t.jit(step, fallback="error")
    for _ in range(2):
        for a, b in zip(compiled(x), step(x), strict=True):
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12
            )


def test_lu_of_more_than_a_block():
    for shape in ((3, 70, 70), (75, 40), (40, 75), (0, 3, 3), (2, 0, 4)):
        a = t.from_numpy(RNG.standard_normal(shape))
        p, low, up = t.linalg.lu(a)
        np.testing.assert_allclose((p @ low @ up).numpy(), a.numpy(), atol=1e-12)
        assert (low.abs() <= 1).all()
        packed, pivots = t.linalg.lu_factor(a)
        assert pivots.dtype is t.int32
        parts = t.lu_unpack(packed, pivots)
        np.testing.assert_array_equal(parts.P.numpy(), p.numpy())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: t.linalg.inv(a), r"linalg.inv.*singular"),
        (lambda a: t.linalg.solve(a, a), r"linalg.solve.*singular"),
        (lambda a: t.linalg.cholesky(a - t.eye(2)), r"cholesky.*not positive-definite"),
        (lambda a: t.inverse(a), r"singular"),
    ],
)
def test_singular(call, text):
    """Eager and compiled; a good matrix after it still works."""
    compiled = t.jit(call, fallback="error")
    good, bad = 3 * t.eye(2), t.ones(2, 2)
    for f in (call, compiled, compiled):
        f(good)
        with pytest.raises(t.linalg.LinAlgError, match=text):
            f(bad)
    assert issubclass(t.linalg.LinAlgError, Exception)


def test_info_instead_of_errors():
    a = t.stack([t.eye(3), t.ones(3, 3), -t.eye(3)])
    assert t.linalg.inv_ex(a).info.tolist() == [0, 2, 0]
    assert t.linalg.cholesky_ex(a).info.tolist() == [0, 2, 1]
    np.testing.assert_allclose(t.linalg.cholesky_ex(a).L[0].numpy(), np.eye(3))
    assert t.linalg.solve_ex(a, a).info.tolist() == [0, 2, 0]
    assert t.linalg.matrix_rank(a).tolist() == [3, 1, 3]
    assert t.linalg.cond(a, 1).tolist() == [1.0, float("inf"), 1.0]


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3), (2, 3, 2)])
def test_least_squares(shape):
    a, b = RNG.standard_normal(shape), RNG.standard_normal((*shape[:-1], 2))
    for driver in (None, "gels", "gelsd", "gelss", "gelsy"):
        found = t.linalg.lstsq(t.from_numpy(a), t.from_numpy(b), driver=driver)
        wanted = np.linalg.pinv(a) @ b
        np.testing.assert_allclose(found.solution.numpy(), wanted, rtol=1e-9, atol=1e-12)
        if shape[-2] > shape[-1] and driver not in (None, "gelsy"):
            squares = ((a @ wanted - b) ** 2).sum(-2)
            np.testing.assert_allclose(found.residuals.numpy(), squares, rtol=1e-9, atol=1e-12)
        else:
            assert found.residuals.numel() == 0


def test_matrix_exponential():
    for scale in (1e-3, 1.0, 30.0):
        a = scale * RNG.standard_normal((2, 3, 3))
        values, vectors = np.linalg.eig(a)
        wanted = (vectors * np.exp(values)[:, None]) @ np.linalg.inv(vectors)
        found = t.matrix_exp(t.from_numpy(a)).numpy()
        np.testing.assert_allclose(found, wanted.real, rtol=1e-8, atol=1e-8 * abs(wanted).max())


def test_multi_dot_takes_the_cheap_order():
    a, b, c = (t.from_numpy(RNG.standard_normal(s)) for s in ((50, 2), (2, 60), (60, 3)))
    found = t.linalg.multi_dot([a, b, c])
    np.testing.assert_allclose(found.numpy(), a.numpy() @ b.numpy() @ c.numpy(), rtol=1e-9)
    a.requires_grad_()  # the last product is the one of a: (50, 2) by (2, 3)
    last = t.linalg.multi_dot([a, b, c]).grad_fn
    assert [x.shape for _, x in last.saved] == [(2, 3)]
    vector = t.linalg.multi_dot([a[0], b, c, c[0]])
    assert vector.shape == ()


def test_errors_name_what_came():
    with pytest.raises(RuntimeError, match=r"linalg.det: A must be batches of square.*2, 3"):
        t.linalg.det(t.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"linalg.inv.*Low precision.*float16"):
        t.linalg.inv(t.eye(2).half())
    with pytest.raises(RuntimeError, match=r"floating point or complex.*int64"):
        t.linalg.qr(t.ones(2, 2, dtype=t.int64))
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        t.linalg.svd(t.ones(3))
    with pytest.raises(RuntimeError, match="depends on Q"):
        t.linalg.qr(t.eye(2).requires_grad_(), "r").R.sum().backward()
    with pytest.raises(AttributeError, match="limits"):
        t.linalg.no_such()


@pytest.mark.parametrize("shape", [(20, 8), (8, 20), (2, 12, 9)])
@pytest.mark.parametrize("compiled", [False, True])
def test_low_rank(shape: tuple[int, ...], compiled: bool) -> None:
    """Of a matrix of rank 4, exact; its means are taken off by pca_lowrank."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((*shape[:-1], 4)), rng.standard_normal((4, shape[-1]))
    a = t.from_numpy(left @ right)

    def both(a):
        return t.svd_lowrank(a, q=5, niter=3), t.pca_lowrank(a)

    f = t.jit(both, fallback="error") if compiled else both
    for _ in range(2):
        (u, s, v), (pu, ps, pv) = f(a)
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ v.mT).numpy(), a.numpy(), atol=1e-10)
    np.testing.assert_allclose(s.numpy()[..., :4], t.linalg.svdvals(a).numpy()[..., :4])
    assert tuple(u.shape) == (*shape[:-1], 5) and tuple(v.shape) == (*shape[:-2], shape[-1], 5)
    centred = (a - a.mean(-2, keepdim=True)).numpy()
    np.testing.assert_allclose((pu * ps.unsqueeze(-2) @ pv.mT).numpy(), centred, atol=1e-10)
    with pytest.raises(ValueError, match="min"):
        t.svd_lowrank(a, q=30)
    with pytest.raises(ValueError, match="niter"):
        t.svd_lowrank(a, niter=-1)


@pytest.mark.parametrize("largest", [True, False])
def test_lobpcg(largest: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = (t.from_numpy((m := rng.standard_normal((9, 9))) @ m.T) for _ in range(2))
    b = b + t.eye(9, dtype=b.dtype)
    for other in (None, b):
        values, vectors = t.lobpcg(a, 3, other, largest=largest)
        right = vectors if other is None else other @ vectors
        np.testing.assert_allclose((a @ vectors).numpy(), (right * values).numpy(), atol=1e-9)
        order = values.numpy() if largest else -values.numpy()
        assert (np.diff(order) <= 0).all()
    with pytest.raises(ValueError, match="3 x"):
        t.lobpcg(a, 4)


def test_batched_products_beside_calls_compile():
    """Contractions that could run batch by batch, with factorizations (calls) at both ends."""

    def gradient(a, x):
        factor = t.linalg.cholesky(a @ a.mT + 3 * t.eye(3))
        solved = t.linalg.solve_triangular(factor, x.unsqueeze(-1), upper=False)
        return t.autograd.grad(solved.square().sum(), (a, x))

    t.manual_seed(0)
    a, x = (t.randn(8, 3, n, requires_grad=True).squeeze(-1) for n in (3, 1))
    compiled = t.jit(gradient, fallback="error")
    compiled(a, x)
    for ours, eager in zip(compiled(a, x), gradient(a, x), strict=True):
        np.testing.assert_allclose(ours.numpy(), eager.numpy(), rtol=1e-5, atol=1e-6)
