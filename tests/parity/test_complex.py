"""Complex numbers: values and gradients (PyTorch's convention), eager and compiled."""

import numpy as np
import pytest
from parity.compare import LIBS, OURS, dtype_name, raises_alike, torch

import jitgrad

RNG = np.random.default_rng(0)


def number(*shape):
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


X, Y, Z, R = number(2, 3), number(2, 3), number(3, 2), RNG.standard_normal((2, 3))
M, B, T, W = number(3, 3), number(2, 3, 3), number(4, 2), number(2, 4)

UNARY = [
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "exp",
    "exp2", "expm1", "log", "log10", "log1p", "log2", "neg", "reciprocal", "rsqrt", "sgn",
    "sigmoid", "sin", "sinh", "sqrt", "square", "tan", "tanh",
]  # fmt: skip


def written(t, x):
    """Writes to the whole, to a part and through a view."""
    y = x.clone()
    y[0] = 3j
    y.real[1] = 2
    y.imag.mul_(2)
    t.view_as_real(y)[..., 1, 0] += 1
    return y


CASES = {
    **{name: (lambda t, x, name=name: getattr(t, name)(x), X) for name in UNARY},
    "add": (lambda t, x, y: x + y, X, Y),
    "sub": (lambda t, x, y: x - y * 2j, X, Y),
    "mul by real": (lambda t, x, y: x * y, X, R),
    "real mul": (lambda t, x, y: y * x, X, R),
    "div": (lambda t, x, y: x / y, X, Y),
    "real div": (lambda t, x, y: y / x, X, R),
    "pow": (lambda t, x, y: x**y, X, Y),
    "pow 3": (lambda t, x: x**3, X),
    "pow 2.5": (lambda t, x: x**2.5, X),
    "pow i": (lambda t, x: x**1j, X),
    "2 pow": (lambda t, x: 2**x, X),
    "matmul": (lambda t, x, z: x @ z, X, Z),
    "bmm": (lambda t, b, m: b @ m, B, M),
    "einsum": (lambda t, x, z: t.einsum("ij,jk->ik", x, z), X, Z),
    "addmm": (lambda t, m, x, z: t.addmm(m[:2, :2], x, z), M, X, Z),
    "vdot": (lambda t, x, y: t.vdot(x[0], y[0]), X, Y),
    "dot": (lambda t, x, y: t.dot(x[0], y[0]), X, Y),
    "outer": (lambda t, x, y: t.outer(x[0], y[1]), X, Y),
    "sum": (lambda t, x: x.sum(), X),
    "mean": (lambda t, x: x.mean(0), X),
    "prod": (lambda t, x: x.prod(1), X),
    "cumsum": (lambda t, x: x.cumsum(1), X),
    "cumprod": (lambda t, x: x.cumprod(1), X),
    "var": (lambda t, x: x.var(0), X),
    "std": (lambda t, x: x.std(), X),
    "norm": (lambda t, x: x.norm(), X),
    "norm 1": (lambda t, x: x.norm(1), X),
    "real": (lambda t, x: x.real * 2, X),
    "imag": (lambda t, x: x.imag * 2, X),
    "view_as_real": (lambda t, x: t.view_as_real(x), X),
    "view_as_complex": (lambda t, x: t.view_as_complex(x), RNG.standard_normal((3, 2))),
    "complex": (lambda t, x, y: t.complex(x, y), R, R + 1),
    "polar": (lambda t, x, y: t.polar(x, y), abs(R), R + 1),
    "mH": (lambda t, x: x.mH, B),
    "H": (lambda t, x: x.H, X),
    "index": (lambda t, x: x[:, 1], X),
    "strided": (lambda t, x: x.T.flip(0) * 2, X),
    "to complex64": (lambda t, x: x.to(t.complex64), X),
    "from real": (lambda t, x: x.to(t.complex128) * 1j, R),
    "cat": (lambda t, x, y: t.cat([x, y]), X, Y),
    "pad": (lambda t, x: t.nn.functional.pad(x, (1, 1)), X),
    "masked_fill": (lambda t, x: x.masked_fill(t.tensor([True, False, True]), 2j), X),
    "size squared": (lambda t, x: (x * x.conj()).real, X),
    "written": (written, X),
    "det": (lambda t, m: t.linalg.det(m), B),
    "slogdet": (lambda t, m: t.linalg.slogdet(m), B),
    "inv": (lambda t, m: t.linalg.inv(m), B),
    "solve": (lambda t, m, x: t.linalg.solve(m, x), M, Z),
    "cholesky": (lambda t, m: t.linalg.cholesky(m @ m.mH + t.eye(3)), B),
    "qr": (lambda t, m: t.linalg.qr(m), T),
    "qr wide": (lambda t, m: t.linalg.qr(m), W),
    "svdvals": (lambda t, m: t.linalg.svdvals(m), B),
    "svd U": (lambda t, m: t.linalg.svd(m, False)[0].abs(), T),
    "svd Vh": (lambda t, m: t.linalg.svd(m, False)[2].abs(), W),
    "eigvals": (lambda t, m: t.linalg.eigvals(m).sum(), B),
    "eig vectors": (lambda t, m: t.linalg.eig(m)[1].abs().square().sum((0, 2)), B),
    "eigvalsh": (lambda t, m: t.linalg.eigvalsh(m + m.mH), B),
    "eigh vectors": (lambda t, m: t.linalg.eigh(m + m.mH)[1].abs(), B),
    "pinv": (lambda t, m: t.linalg.pinv(m), T),
    "matrix_exp": (lambda t, m: t.matrix_exp(m), B),
    "lu": (lambda t, m: t.linalg.lu(m), B),
    "lu_solve": (
        lambda t, m, x: t.linalg.lu_solve(*t.linalg.lu_factor(m), x, adjoint=True), M, Z,
    ),
    "solve_triangular": (lambda t, m, x: t.linalg.solve_triangular(m, x, upper=True), M, Z),
    "householder": (lambda t, m: t.linalg.householder_product(m, m[0]), T),
}  # fmt: skip


def run(t, code, arrays):
    """Results and the gradients of a fixed real function of them."""
    inputs = [t.from_numpy(np.array(a)).requires_grad_() for a in arrays]
    results = code(t, *inputs)
    results = results if isinstance(results, tuple) else (results,)
    rng, total = np.random.default_rng(3), 0
    for r in results:
        if r.requires_grad:
            w = rng.standard_normal(tuple(r.shape)) + 1j * rng.standard_normal(tuple(r.shape))
            w = np.asarray(w if r.dtype.is_complex else w.real)
            total = total + t.real(r * t.from_numpy(w).to(r.dtype)).sum()
    grads = t.autograd.grad(total, inputs, allow_unused=True)
    return [*results, *grads]


def agree(found, wanted):
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a is None) == (b is None), i
        if a is not None:
            assert dtype_name(a) == dtype_name(b), i
            tolerance = 1e-5 if dtype_name(a) == "complex64" else 1e-9
            a, b = a.detach().numpy(), b.detach().resolve_conj().numpy()
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=1e-9, err_msg=str(i))


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name):
    code, *arrays = CASES[name]
    agree(run(jitgrad, code, arrays), run(torch, code, arrays))


@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    code, *arrays = CASES[name]

    def step(*inputs):
        results = code(jitgrad, *inputs)
        results = results if isinstance(results, tuple) else (results,)
        total = sum(jitgrad.view_as_real(r).square().sum() if r.is_complex() else r.square().sum()
                    for r in results if r.requires_grad)  # fmt: skip
        return *results, *jitgrad.autograd.grad(total, list(inputs), allow_unused=True)

    compiled = jitgrad.jit(step, fallback="error")
    inputs = [jitgrad.from_numpy(np.array(a)).requires_grad_() for a in arrays]
    for _ in range(2):
        agree(compiled(*inputs), step(*inputs))


def test_gradients_of_strided_arguments_compiled():
    compiled = jitgrad.jit(lambda x: (x * 2j).sum(0), fallback="error")
    wide = np.zeros((4, 12), np.complex128)
    wide[::2, 1::4] = X
    for array in (X.T, wide[::2, 1::4]):
        x = jitgrad.from_numpy(array)
        for _ in range(2):
            np.testing.assert_allclose(compiled(x).numpy(), (array * 2j).sum(0))
    # aligned as its parts are, not as itself
    raw = np.zeros(6 * 16, np.uint8)
    odd = np.frombuffer(raw.data, np.complex128, 5, (8 - raw.ctypes.data) % 16)
    assert odd.ctypes.data % 16 == 8
    moved = jitgrad.jit(lambda x: x.flip(0), fallback="error")
    for _ in range(2):
        np.testing.assert_array_equal(moved(jitgrad.from_numpy(odd)).numpy(), odd[::-1])


@pytest.mark.parametrize(
    "code",
    [
        lambda t, x: x < x, lambda t, x: x.sort(), lambda t, x: x.max(), lambda t, x: x.floor(),
        lambda t, x: x.clamp(0), lambda t, x: t.imag(x.real), lambda t, x: t.view_as_real(x.real),
        lambda t, x: t.view_as_complex(x.real), lambda t, x: t.complex(x, x), lambda t, x: x % 2,
        lambda t, x: x.requires_grad_().sum().backward(),
    ],
)  # fmt: skip
def test_errors(code):
    raises_alike(lambda lib, x: code(lib.t, x), X)


def test_printing_promotion_and_creation():
    for code in (
        lambda t: t.tensor([1 + 2j, -3.5 - 1j]),
        lambda t: t.tensor([[1 + 2j], [1e-7 - 1e6j]]),
        lambda t: t.tensor(2 - 1j, dtype=t.complex128),
        lambda t: t.tensor([1.0, 2.0]) * 1j,
        lambda t: t.tensor([1.0, 2.0], dtype=t.float64) * 1j,
        lambda t: t.tensor([1, 2]) + 1j,
        lambda t: t.full((2,), 1j),
        lambda t: t.eye(2, dtype=t.cfloat),
        lambda t: t.tensor([1.5 + 2j]).to(t.complex128),
        lambda t: t.tensor([1j]).bool(),
        lambda t: t.isreal(t.tensor([1j, 1.0])),
        lambda t: t.tensor([float("nan") + 0j, 1j]).isnan(),
        lambda t: t.angle(t.tensor([-1.0, 0.0, 2.0])),
    ):
        ours, theirs = (code(lib.t) for lib in LIBS)
        assert repr(ours) == repr(theirs).replace("torch.", "jitgrad.")
    x = OURS.t.randn(2000, dtype=OURS.t.complex64)
    assert abs(x.abs().square().mean().item() - 1) < 0.1


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1}, "RMSprop": {"lr": 0.1, "centered": True}, "Rprop": {"lr": 0.1},
    "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.1}, "Adamax": {"lr": 0.1},
    "NAdam": {"lr": 0.1}, "RAdam": {"lr": 0.1}, "Adadelta": {"lr": 1.0}, "ASGD": {"lr": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_complex_parameters(name):
    found = []
    for lib in LIBS:
        z = lib.nn.Parameter(lib.t.from_numpy(X.copy()))
        optimizer = getattr(lib.optim, name)([z], **OPTIMIZERS[name])

        def step(z=z, lib=lib, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (z * z - (1 + 2j)).abs().square().sum()
            loss.backward()
            optimizer.step()
            return loss

        step = jitgrad.jit(step, fallback="error") if lib is OURS else step
        losses = [step().item() for _ in range(3)]
        if lib is OURS:  # saved and loaded in mid-run
            optimizer.load_state_dict(optimizer.state_dict())
        losses += [step().item() for _ in range(3)]
        found.append((losses, z.detach().numpy()))
    (ours, z), (theirs, wanted) = found
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)
    np.testing.assert_allclose(z, wanted, rtol=1e-8)


def test_state_of_pytorch():
    z = torch.nn.Parameter(torch.from_numpy(X.copy()))
    theirs = torch.optim.Adam([z])
    z.grad = torch.from_numpy(Y)
    theirs.step()
    saved = theirs.state_dict()
    saved["state"][0] = {
        k: jitgrad.from_numpy(v.detach().numpy()) for k, v in saved["state"][0].items()
    }
    w = jitgrad.nn.Parameter(jitgrad.from_numpy(z.detach().numpy().copy()))
    ours = jitgrad.optim.Adam([w])
    ours.load_state_dict(saved)
    w.grad = jitgrad.from_numpy(Y)
    theirs.step(), ours.step()
    np.testing.assert_allclose(w.detach().numpy(), z.detach().numpy(), rtol=1e-9)


def test_what_refuses_complex_parameters():
    z = jitgrad.nn.Parameter(jitgrad.zeros(2, 2, dtype=jitgrad.complex64))
    for name in ("LBFGS", "Adafactor", "Muon"):
        with pytest.raises(RuntimeError, match="does not support complex parameters"):
            getattr(jitgrad.optim, name)([z])


def test_layers_of_complex_numbers():
    layer = torch.nn.Linear(3, 2, dtype=torch.complex128)
    ours = jitgrad.nn.Linear(3, 2, dtype=jitgrad.complex128)
    assert (ours.weight.abs() > 0).all() and (ours.weight.imag != 0).all()
    for name in ("weight", "bias"):
        getattr(ours, name).data = jitgrad.from_numpy(getattr(layer, name).detach().numpy().copy())
    out = ours(jitgrad.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(out, layer(torch.from_numpy(X)).detach().numpy(), rtol=1e-12)
