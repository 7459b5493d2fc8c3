"""Spatial layers against plain loops in NumPy, against what they are the transpose of, and their
derivatives against finite differences. (Parity with PyTorch: tests/parity/test_spatial.py.)"""

import numpy as np
import pytest

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad.autograd import gradcheck, gradgradcheck
from jitgrad.nn.functional.tables import picked, resampled, table


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tensor(*shape, seed=0, grad=False):
    x = t.from_numpy(values(*shape, seed=seed))
    return x.requires_grad_() if grad else x


# -- tables ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("n,m,k", [(5, 7, 3), (1, 4, 2), (6, 1, 4), (4, 3, 1)])
def test_tables_and_their_inverse(n, m, k):
    """What a table reads, and that its derivative, of any order, is the transposed matrix."""
    places = np.random.default_rng(n).integers(-1, n, (m, k))
    weights = values(m, k, seed=2)
    matrix = np.zeros((m, n))
    for i, j in np.ndindex(m, k):
        if places[i, j] >= 0:
            matrix[i, places[i, j]] += weights[i, j]
    made = table(n, places, weights)
    read = picked(t.arange(n).double() + 1, 0, made).numpy()
    np.testing.assert_array_equal(read, np.where(places < 0, 0, places + 1).T)
    x = tensor(2, n, 3, grad=True)
    y = resampled(x, 1, made)
    np.testing.assert_allclose(y.detach().numpy(), np.einsum("mn,bnc->bmc", matrix, x.tolist()))
    g = tensor(2, m, 3, seed=1, grad=True)
    (gx,) = t.autograd.grad(y, x, g, create_graph=True)
    back = np.einsum("mn,bmc->bnc", matrix, g.tolist())
    np.testing.assert_allclose(gx.detach().numpy(), back, atol=1e-14)
    (gg,) = t.autograd.grad(gx, g, x.detach())
    np.testing.assert_allclose(gg.numpy(), y.detach().numpy(), atol=1e-14)


# -- values ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("n,m", [(5, 9), (7, 3), (4, 4), (3, 1), (1, 5)])
def test_linear_interpolation_is_numpys(n, m):
    x = values(2, 1, n)
    for align in (False, True):
        at = np.linspace(0, n - 1, m) if align else (np.arange(m) + 0.5) * n / m - 0.5
        if align and m == 1:
            at = np.zeros(1)
        wanted = np.stack([np.interp(at, np.arange(n), row[0]) for row in x])[:, None]
        got = F.interpolate(t.from_numpy(x), m, mode="linear", align_corners=align)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)


def test_cubic_interpolation_keeps_straight_lines():
    x = t.arange(12.0, dtype=t.float64).reshape(1, 1, 3, 4)
    up = F.interpolate(x, scale_factor=4, mode="bicubic", align_corners=True).numpy()[0, 0]
    rows, columns = np.linspace(0, 2, 12), np.linspace(0, 3, 16)
    inner = np.ix_((rows >= 1) & (rows <= 1), (columns >= 1) & (columns <= 2))
    np.testing.assert_allclose(up[inner], (rows[:, None] * 4 + columns)[inner])
    constant = F.interpolate(t.full((1, 1, 5, 6), 3.5), (9, 2), mode="bicubic").numpy()
    np.testing.assert_allclose(constant, 3.5, rtol=1e-6)


@pytest.mark.parametrize("n,m", [(7, 3), (3, 7), (6, 2), (5, 1), (5, 5)])
def test_adaptive_pools_are_windows(n, m):
    x = values(2, 3, n)
    windows = [x[..., i * n // m : -(-(i + 1) * n // m)] for i in range(m)]
    mean = F.adaptive_avg_pool1d(t.from_numpy(x), m).numpy()
    np.testing.assert_allclose(mean, np.stack([w.mean(-1) for w in windows], -1), rtol=1e-12)
    top, where = F.adaptive_max_pool1d(t.from_numpy(x), m, return_indices=True)
    np.testing.assert_array_equal(top.numpy(), np.stack([w.max(-1) for w in windows], -1))
    np.testing.assert_array_equal(np.take_along_axis(x, where.numpy(), -1), top.numpy())


def test_unfold_is_windows_and_fold_its_transpose():
    x, kernel, options = tensor(2, 3, 6, 7), (2, 3), {"dilation": (2, 1), "padding": 1, "stride": 2}
    columns = F.unfold(x, kernel, **options)
    xp = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.stack([
        xp[:, :, i : i + 3 : 2, j : j + 3].reshape(2, -1)
        for i in range(0, 8 - 2, 2) for j in range(0, 9 - 2, 2)
    ], -1)  # fmt: skip
    np.testing.assert_array_equal(columns.numpy(), wanted)
    y = tensor(*columns.shape, seed=1)
    inner = float((columns * y).sum())
    assert inner == pytest.approx(float((x * F.fold(y, (6, 7), kernel, **options)).sum()))


@pytest.mark.parametrize("options", [
    {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 3, "output_padding": 2},
    {"groups": 2, "stride": (1, 3), "padding": (0, 2)},
], ids=str)  # fmt: skip
def test_transposed_convolution_is_the_transpose(options):
    y = tensor(2, 4, 3, 4)
    w = tensor(4, 3, 2, 3, seed=1)
    up = F.conv_transpose2d(y, w, **options)
    x = tensor(*up.shape, seed=2)
    rest = {k: v for k, v in options.items() if k != "output_padding"}
    down = F.conv2d(x, w, **rest)
    down = down[:, :, : y.shape[2], : y.shape[3]]  # output padding may make room for more windows
    assert float((up * x).sum()) == pytest.approx(float((y * down).sum()))


@pytest.mark.parametrize("align", [True, False])
def test_the_identity_grid_gives_the_input(align):
    for shape in ((2, 3, 4, 5), (1, 2, 3, 4, 2)):
        x = tensor(*shape)
        n = len(shape) - 2
        theta = t.eye(n, n + 1, dtype=t.float64).expand(shape[0], n, n + 1)
        grid = F.affine_grid(theta, shape, align_corners=align)
        for mode in ("bilinear", "nearest"):
            y = F.grid_sample(x, grid, mode, "border", align_corners=align)
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-12)


def test_shuffles_undo_each_other():
    x = tensor(2, 3, 8, 4, 6)
    np.testing.assert_array_equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2).numpy(), x.numpy())
    y = tensor(2, 6, 5)
    np.testing.assert_array_equal(F.channel_shuffle(F.channel_shuffle(y, 2), 3).numpy(), y.numpy())


def test_unpooling_undoes_pooling():
    x = tensor(2, 3, 7, 8)
    pooled, places = F.max_pool2d(x, 3, 3, return_indices=True)
    back = F.max_unpool2d(pooled, places, 3, output_size=x.shape)
    again, where = F.max_pool2d(back.abs(), 3, 3, return_indices=True)
    np.testing.assert_array_equal(where.numpy(), places.numpy())
    np.testing.assert_array_equal(again.numpy(), pooled.abs().numpy())
    with pytest.raises(RuntimeError, match="out of bounds"):
        F.max_unpool2d(pooled, places - 100, 3)
    with pytest.raises(RuntimeError, match="out of bounds"):
        F.max_unpool2d(pooled, places + 100, 3)


@pytest.mark.parametrize("compiled", [False, True])
def test_windows_of_padding_alone_have_no_gradient(compiled):
    def f(x):
        y = F.max_pool1d(x, 2, 4, padding=1, dilation=2)
        (g,) = t.autograd.grad(y.sum(), x)
        return y, g

    x = t.ones(2, 3, 1).requires_grad_()
    run = t.jit(f, fallback="error") if compiled else f
    for _ in range(3):
        y, g = run(x)
        assert (y == -np.inf).all() and (g == 0).all()


def test_fractional_pooling_takes_the_windows_it_drew():
    t.manual_seed(0)
    x = t.arange(50.0).reshape(1, 2, 25)[:, :, None].expand(1, 2, 4, 25)
    out, where = F.fractional_max_pool2d(x, 2, (3, 11), return_indices=True)
    ends = out.numpy()[0, :, 0] - np.array([[0], [25]])  # the last element of each window
    steps = np.diff(ends)
    assert (ends[:, 0] == 1).all() and (ends[:, -1] == 24).all()
    assert set(steps.reshape(-1)) == {2.0, 3.0}
    assert len(np.unique(steps, axis=0)) == 2  # each channel draws for itself
    np.testing.assert_array_equal(out.numpy().reshape(2, -1), np.take_along_axis(
        x.numpy().reshape(2, -1), where.numpy().reshape(2, -1), 1))  # fmt: skip


# -- derivatives -----------------------------------------------------------------------------------
def grid(n, seed=3):
    g = t.from_numpy(np.random.default_rng(seed).uniform(-1.4, 1.4, (1, *[2] * n, n)))
    return g.requires_grad_()


SMOOTH = {
    "transposed": lambda x: F.conv_transpose2d(x, x[0, :, None, :2, :2], stride=2, padding=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "lp": lambda x: F.lp_pool2d(x, 2, 2),
    "bilinear": lambda x: F.interpolate(x, (3, 7), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, 6),
    "antialias": lambda x: F.interpolate(x, 2, mode="bilinear", antialias=True),
    "unfold": lambda x: F.unfold(x, 2, padding=1, stride=2),
    "fold": lambda x: F.fold(x.flatten(2).transpose(1, 2)[:, :, :2].reshape(1, 4, 10), (3, 6), 2),
    "shuffle": lambda x: F.pixel_shuffle(F.channel_shuffle(x.transpose(1, 2), 2), 2),
    "reflect": lambda x: F.pad(x, (2, 1, 1, 3), "reflect"),
    "circular": lambda x: F.pad(x, (1, 2, 0, 1), "circular"),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name):
    x = tensor(1, 2, 4, 5, grad=True)
    assert gradcheck(SMOOTH[name], (x,))
    assert gradgradcheck(SMOOTH[name], (x,))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_derivatives_of_grid_sample(mode, padding_mode):
    x = tensor(1, 2, 3, 4, grad=True)
    code = lambda x, g: F.grid_sample(x, g, mode, padding_mode, align_corners=False)  # noqa: E731
    assert gradcheck(code, (x, grid(2)))
    assert gradgradcheck(code, (x, grid(2)))


def test_nearest_samples_give_the_grid_a_zero_gradient():
    g = grid(2)
    F.grid_sample(tensor(1, 2, 3, 4), g, "nearest", align_corners=False).sum().backward()
    assert g.grad.abs().max().item() == 0


# -- compiled --------------------------------------------------------------------------------------
def test_kernels_of_resampling():
    """One kernel for each dim: a table's gather, its weights and their sum are one."""
    x = tensor(1, 3, 8, 8)
    for mode, kernels in (("nearest", 1), ("bilinear", 2), ("bicubic", 2)):
        f = t.jit(
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), fallback="error"
        )
        f(x), f(x)
        assert f.specialisations[0].compiled.report.kernels == kernels, mode


def test_compiled_bad_places_raise():
    f = t.jit(lambda x, i: F.max_unpool1d(x, i, 2), fallback="error")
    x, good = tensor(1, 2, 3), t.tensor([[[0, 3, 5], [1, 2, 4]]])
    for _ in range(3):
        np.testing.assert_array_equal(f(x, good).numpy(), F.max_unpool1d(x, good, 2).numpy())
    for bad in (6, -1):
        with pytest.raises(RuntimeError, match="out of bounds"):
            f(x, good.clone().fill_(bad))


def test_modes_of_differentiation():
    """Forward mode and vmap reach the tables."""
    x, v = tensor(1, 2, 3, 4), tensor(1, 2, 3, 4, seed=1)
    code = lambda x: F.interpolate(x, (5, 6), mode="bilinear")  # noqa: E731
    out, tangent = t.func.jvp(code, (x,), (v,))
    np.testing.assert_allclose(tangent.numpy(), code(v).numpy(), atol=1e-14)
    mapped = t.vmap(code)(t.stack([x, v]))
    np.testing.assert_allclose(mapped.numpy(), np.stack([out.numpy(), code(v).numpy()]))
