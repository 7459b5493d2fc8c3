"""Linear algebra on the samples of PyTorch's op database; vectors up to their signs.

`op_database` says what the modes are; the entries whose eigenvectors may have another sign are
compared by what does not depend on it.
"""

import numpy as np
import pytest
from parity.compare import LIBS, check, raises_alike
from parity.op_database import entries, examine, label

CHOSEN = (
    "linalg.cholesky", "linalg.cholesky_ex", "linalg.cond", "linalg.cross", "linalg.det",
    "linalg.eigvalsh", "linalg.householder_product", "linalg.inv", "linalg.inv_ex",
    "linalg.lstsq", "linalg.lstsq.grad_oriented", "linalg.lu", "linalg.lu_factor",
    "linalg.lu_solve", "linalg.matrix_norm", "linalg.matrix_power", "linalg.matrix_rank",
    "linalg.multi_dot", "linalg.norm", "linalg.norm.subgradients_at_zero", "linalg.pinv",
    "linalg.pinv.hermitian", "linalg.pinv.singular", "linalg.qr", "linalg.slogdet",
    "linalg.solve", "linalg.solve_ex", "linalg.solve_triangular", "linalg.svd", "linalg.svdvals",
    "linalg.tensorinv", "linalg.tensorsolve", "linalg.vander", "linalg.vecdot",
    "linalg.vector_norm", "cholesky_inverse", "cholesky_solve", "geqrf", "logdet", "lu",
    "lu_solve", "lu_unpack", "norm.nuc", "ormqr", "pinverse", "triangular_solve",
)  # fmt: skip

BY_LABEL = {label(e): e for e in entries()}


@pytest.mark.parametrize("name", CHOSEN)
def test_entry(name):
    found = examine(BY_LABEL[name], 2)
    # Factorizations and transforms have no ONNX form (docs/coverage.md).
    assert not found.missing and not set(found.failed()) - {"onnx"}


def _matrix(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def _symmetric(n):
    a = _matrix(2, n, n)
    return a + a.swapaxes(-1, -2)


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(uplo):
    def code(lib, a):
        values, v = lib.t.linalg.eigh(a, uplo)
        return values, (v * v), v.unsqueeze(-2) * v.unsqueeze(-3)

    check(code, _symmetric(4), scale=100)


def test_svd_up_to_signs():
    for shape in ((4, 3), (3, 4), (2, 3, 3)):

        def code(lib, a):
            u, s, vh = lib.t.linalg.svd(a, full_matrices=False)
            return u * u, s, vh * vh, u.mT.unsqueeze(-1) * vh.unsqueeze(-2)

        check(code, _matrix(*shape), scale=1000)


@pytest.mark.parametrize(
    "name", ["det", "inv", "slogdet", "cholesky", "eigh", "eigvals", "matrix_exp"]
)
def test_errors(name):
    for array in (np.ones((2, 3)), np.ones(3), np.ones((2, 2), np.int64)):
        raises_alike(lambda lib, a: getattr(lib.t.linalg, name)(a), array)


@pytest.mark.parametrize("name", ["inv", "cholesky"])
def test_singular_errors(name):
    for lib in LIBS:
        with pytest.raises(RuntimeError, match="could not be completed because the input"):
            getattr(lib.t.linalg, name)(-lib.t.ones(2, 2))


@pytest.mark.parametrize(
    "call",
    [
        "linalg.qr(x)", "linalg.svd(x)", "svd(x)", "linalg.eigh(x)", "linalg.eig(x)",
        "linalg.lu(x)", "linalg.lu_factor(x)", "linalg.lu_factor_ex(x)", "linalg.cholesky_ex(x)",
        "geqrf(x)", "linalg.slogdet(x)", "linalg.inv_ex(x)", "linalg.solve_ex(x, x)",
        "triangular_solve(x, x)", "linalg.lstsq(x, x)", "sort(x)",
    ],
)  # fmt: skip
def test_results_print_as_pytorchs(call):
    def shown(lib):
        text = repr(eval(f"lib.{call}", {"lib": lib, "x": lib.eye(2)}))
        text = text.replace("torch.", "jitgrad.").replace("-0.", "0.")
        return [line.split("=")[0] for line in text.splitlines() if not line.startswith(" ")]

    ours, theirs = (shown(lib.t) for lib in LIBS)
    assert ours == theirs
