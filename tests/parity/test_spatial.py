"""Transposed convolution, padding layers, adaptive, p-norm and fractional pooling, unpooling,
resampling, shuffles, unfold and fold, grid sampling: values, gradients, errors; and compiled."""

import random

import numpy as np
import pytest
from parity.compare import LIBS, check, raises_alike, same, tensors, torch

import jitgrad

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def compiled(code, *arrays):
    """Value and gradients of ours under @jit, equal to eager's."""
    ours = LIBS[0]

    def step(*inputs):
        results = code(ours, *inputs)
        first = results[0] if isinstance(results, tuple) else results
        total = (first * first.detach().cos()).sum()
        floats = [x for x in inputs if x.requires_grad]
        return first, *jitgrad.autograd.grad(total, floats)

    fast = jitgrad.jit(step, fallback="error")
    for _ in range(2):
        inputs = tensors(ours, arrays, True)
        for got, want in zip(fast(*inputs), step(*inputs), strict=True):
            scale = max(1e-30, float(want.detach().abs().max())) if want.numel() else 1.0
            np.testing.assert_allclose(
                got.detach().numpy(), want.detach().numpy(), rtol=1e-12, atol=1e-13 * scale
            )


def both(code, *arrays, scale=4, **more):
    check(code, *arrays, scale=scale, **more)
    compiled(code, *arrays)


# -- transposed convolution ------------------------------------------------------------------------
def transposed_cases(count):
    pick = random.Random(2)
    for _ in range(count):
        n = pick.choice([1, 1, 2, 2, 2, 3])
        groups = pick.choice([1, 1, 2, 3])
        kernel = [pick.randint(1, 3) for _ in range(n)]
        stride = [pick.randint(1, 3) for _ in range(n)]
        dilation = [pick.randint(1, 3) for _ in range(n)]
        extra = [pick.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
        size = [pick.randint(1, 4) for _ in range(n)]
        full = [
            (q - 1) * s + d * (k - 1) + e
            for q, s, d, k, e in zip(size, stride, dilation, kernel, extra, strict=True)
        ]
        padding = [pick.randint(0, min(3, f // 2)) for f in full]
        options = {
            "stride": stride, "padding": padding, "output_padding": extra, "groups": groups,
            "dilation": dilation,
        }  # fmt: skip
        batch = pick.choice([[], [1], [3]])
        channels = groups * pick.randint(1, 2)
        yield n, (*batch, channels, *size), (channels, pick.randint(1, 2), *kernel), options


@pytest.mark.parametrize("case", list(transposed_cases(50)), ids=str)
def test_transposed_convolution(case):
    n, shape, weight, options = case
    bias = values(weight[1] * options["groups"], seed=2)

    def code(lib, x, w, b):
        return getattr(lib.F, f"conv_transpose{n}d")(x, w, b, **options)

    check(code, values(*shape), values(*weight, seed=1), bias, scale=4)


@pytest.mark.parametrize("n,options", [
    (1, {"stride": 2}), (2, {"stride": 2, "padding": 1, "output_padding": 1}),
    (2, {"groups": 2, "dilation": 2, "output_padding": 1}), (3, {"stride": (1, 2, 2)}),
], ids=str)  # fmt: skip
def test_transposed_convolution_compiled(n, options):
    def code(lib, x, w, b):
        return getattr(lib.F, f"conv_transpose{n}d")(x, w, b, **options)

    groups = options.get("groups", 1)
    x, w = values(2, 4, *[3] * n), values(4, 3, *[3] * n, seed=1)
    compiled(code, x, w, values(3 * groups, seed=2))


@pytest.mark.parametrize("options", [
    {"stride": 2, "output_padding": 1}, {"dilation": 2, "bias": False},
    {"groups": 2, "padding": 1, "stride": (2, 3)},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [None, (0, 0), (1, 0)])
def test_transposed_convolution_layers(options, size):
    their = torch.nn.ConvTranspose2d(4, 6, 3, **options).double()
    our = LIBS[0].nn.ConvTranspose2d(4, 6, 3, **options).double()
    assert repr(our) == repr(their)
    state = {
        k: jitgrad.from_numpy(v.detach().numpy().copy()) for k, v in their.state_dict().items()
    }
    our.load_state_dict(state)
    x = values(2, 4, 3, 5)
    if size is not None:
        least = their(torch.from_numpy(x)).shape[2:]
        extra = options.get("output_padding", 0)
        size = [d + s - extra for d, s in zip(least, size, strict=True)]
        if options.get("stride") is None and size[0] != least[0]:
            raises_alike(lambda lib, x: (our if lib is LIBS[0] else their)(x, output_size=size), x)
            return
    result = our(jitgrad.from_numpy(x), output_size=size)
    same(result, their(torch.from_numpy(x), output_size=size), scale=4)


# -- padding ---------------------------------------------------------------------------------------
PADDED = [f"{kind}Pad{n}d" for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")
          for n in (1, 2, 3)]  # fmt: skip


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("batched", [True, False])
def test_padding_layers(name, batched):
    n = int(name[-2])
    more = (1.5,) if name.startswith("Constant") else ()
    shape = (2, 3, 4, 5, 6)[0 if batched else 1 : 2] + (4, 5, 6)[:n]
    for padding in (2, tuple(range(1, 2 * n + 1)) if n == 1 else (1, 2, 0, 1, 2, 1)[: 2 * n]):
        modules = [getattr(lib.nn, name)(padding, *more) for lib in LIBS]
        assert repr(modules[0]) == repr(modules[1])

        def code(lib, x, modules=modules):
            return modules[0 if lib is LIBS[0] else 1](x)

        both(code, values(*shape))


# -- adaptive pooling ------------------------------------------------------------------------------
@pytest.mark.parametrize("n,shape,size", [
    (1, (2, 3, 7), 3), (1, (3, 5), 8), (1, (2, 3, 6), (2,)), (1, (2, 1, 5), 1), (1, (0, 2, 5), 3),
    (2, (2, 3, 7, 6), (3, 4)), (2, (2, 3, 8, 6), (4, 2)), (2, (2, 3, 5, 5), (None, 2)),
    (2, (3, 5, 4), 7), (2, (1, 2, 6, 1), (4, 1)), (2, (2, 3, 4, 4), 1),
    (3, (2, 2, 5, 4, 7), (2, 3, 4)), (3, (2, 4, 4, 4), 2), (3, (2, 2, 3, 4, 5), (None, 1, None)),
], ids=str)  # fmt: skip
def test_adaptive_pooling(n, shape, size):
    x = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape) / 7.0

    def mean(lib, x):
        return getattr(lib.F, f"adaptive_avg_pool{n}d")(x, size)

    def top(lib, x):
        return getattr(lib.F, f"adaptive_max_pool{n}d")(x, size, return_indices=True)

    both(mean, x)
    both(top, x)
    for name in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        ours, theirs = (getattr(lib.nn, f"{name}{n}d")(size) for lib in LIBS)
        assert repr(ours) == repr(theirs)
        same(ours(jitgrad.from_numpy(x)), theirs(torch.from_numpy(x)), scale=4)


def test_adaptive_pooling_to_nothing():
    x = values(2, 2, 3, 3)
    for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
        check(lambda lib, x, name=name: getattr(lib.F, name)(x, (0, 2)), x, grad=False)


def test_adaptive_max_pool_ties_and_nan():
    ties = np.zeros((1, 2, 5, 7))
    check(lambda lib, x: lib.F.adaptive_max_pool2d(x, (2, 3), return_indices=True), ties)
    ties[0, 1, 2, 3] = np.nan
    ties[0, 0, 4, 6] = -np.inf
    check(lambda lib, x: lib.F.adaptive_max_pool2d(x, (2, 3), True), ties, grad=False)


# -- p-norm, fractional pooling, unpooling ---------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("p,options", [
    (2, {}), (3.0, {"stride": 1}), (1, {"ceil_mode": True}), (4, {"stride": 2, "ceil_mode": True}),
    (float("inf"), {}), (-float("inf"), {"ceil_mode": True}),
], ids=str)  # fmt: skip
def test_lp_pool(n, p, options):
    def code(lib, x):
        return getattr(lib.F, f"lp_pool{n}d")(x, p, 2, **options)

    both(code, np.abs(values(2, 3, *[5] * n)), scale=10)
    ours, theirs = (getattr(lib.nn, f"LPPool{n}d")(p, 2, **options) for lib in LIBS)
    assert repr(ours) == repr(theirs)


def test_lp_pool_of_zeros_and_negatives():
    x = values(1, 1, 4, 4)
    x[0, 0, :2, :2] = 0
    check(lambda lib, x: lib.F.lp_pool2d(x, 2, 2), x, scale=10)
    check(lambda lib, x: lib.F.lp_pool2d(x, 3, 2), x, grad=False, scale=10)


@pytest.mark.parametrize("n,shape,kernel,size", [
    (2, (2, 3, 7, 8), 2, (3, 4)), (2, (2, 6, 6), (3, 2), (4, 5)), (2, (1, 1, 5, 5), 2, 1),
    (3, (2, 2, 5, 6, 7), 2, (2, 3, 4)), (3, (2, 5, 5, 6), (1, 2, 3), (2, 3, 2)),
], ids=str)  # fmt: skip
def test_fractional_max_pool(n, shape, kernel, size):
    batch = shape[0] if len(shape) == n + 2 else 1
    u = np.random.default_rng(3).random((batch, shape[-n - 1], n))

    def code(lib, x):
        pool = getattr(lib.F, f"fractional_max_pool{n}d")
        samples = lib.t.from_numpy(u)
        return pool(x, kernel, size, return_indices=True, _random_samples=samples)

    both(code, values(*shape))
    x = values(*shape)
    for options in ({"output_size": size}, {"output_ratio": 0.5}):
        jitgrad.manual_seed(1)
        layer = getattr(jitgrad.nn, f"FractionalMaxPool{n}d")(kernel, **options)
        their = getattr(torch.nn, f"FractionalMaxPool{n}d")(kernel, **options)
        try:
            expected = their(torch.from_numpy(x)).shape
        except RuntimeError:
            continue
        assert repr(layer) == repr(their)
        out = layer(jitgrad.from_numpy(x))
        assert tuple(out.shape) == tuple(expected)
        assert np.isin(out.numpy(), x).all()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_max_unpool(n, batched):
    shape = ((2,) if batched else ()) + (3,) + (6, 7, 5)[:n]

    def code(lib, x):
        pooled, places = getattr(lib.F, f"max_pool{n}d")(x, 2, return_indices=True)
        unpool = getattr(lib.F, f"max_unpool{n}d")
        sizes = tuple(x.shape)[-n:]
        return (
            unpool(pooled * 2, places, 2),
            unpool(pooled, places, 2, output_size=sizes),
            getattr(lib.nn, f"MaxUnpool{n}d")(2)(pooled, places, output_size=sizes),
        )

    # places are those of the input's shape: only with its last sizes even is the first form right
    even = (*shape[: len(shape) - n], *[6] * n)
    both(code, values(*even))

    def odd(lib, x):
        pooled, places = getattr(lib.F, f"max_pool{n}d")(x, 2, return_indices=True)
        return getattr(lib.F, f"max_unpool{n}d")(pooled, places, 2, output_size=x.shape[-n:])

    both(odd, values(*shape))
    ours, theirs = (getattr(lib.nn, f"MaxUnpool{n}d")(3, 2, 1) for lib in LIBS)
    assert repr(ours) == repr(theirs)


# -- interpolation ---------------------------------------------------------------------------------
MODES = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,),
    "bilinear": (2,), "trilinear": (3,), "bicubic": (2,),
}  # fmt: skip


def interpolations(count):
    pick = random.Random(5)
    for mode, dims in MODES.items():
        for _ in range(count):
            n = pick.choice(dims)
            shape = (
                pick.choice([1, 2]),
                pick.choice([1, 3]),
                *(pick.randint(1, 7) for _ in range(n)),
            )
            options = {}
            if mode not in ("nearest", "nearest-exact", "area") and pick.random() < 0.7:
                options["align_corners"] = pick.random() < 0.5
            if pick.random() < 0.5:
                options["size"] = [pick.randint(1, 11) for _ in range(n)]
            else:
                factors = [pick.choice([1, 1.3, 1.5, 2, 2.7, 3, 0.6]) for _ in range(n)]
                options["scale_factor"] = [
                    f if d * f >= 1 else 2 for f, d in zip(factors, shape[2:], strict=True)
                ]
                if pick.random() < 0.3:
                    options["recompute_scale_factor"] = True
            yield mode, shape, options


@pytest.mark.parametrize("mode,shape,options", list(interpolations(10)), ids=str)
def test_interpolate(mode, shape, options):
    def code(lib, x):
        return lib.F.interpolate(x, mode=mode, **options)

    nearest = mode.startswith("nearest")  # whose ties PyTorch breaks by the dtype's rounding
    x = values(*shape).astype(np.float32) if nearest else values(*shape)
    check(code, x, scale=10)


@pytest.mark.parametrize("mode,shape,options", [
    ("nearest", (2, 3, 4, 5), {"scale_factor": 2}), ("nearest", (1, 2, 5), {"size": 7}),
    ("nearest-exact", (1, 2, 3, 4, 5), {"size": (2, 5, 7)}),
    ("bilinear", (2, 3, 4, 5), {"scale_factor": 2}),
    ("bilinear", (2, 3, 7, 5), {"size": (3, 9), "align_corners": True}),
    ("bicubic", (2, 1, 4, 5), {"scale_factor": 1.7}), ("area", (2, 3, 7, 6), {"size": (3, 4)}),
    ("trilinear", (1, 2, 3, 3, 3), {"scale_factor": 2}),
    ("bilinear", (2, 3, 9, 8), {"size": (4, 3), "antialias": True}),
], ids=str)  # fmt: skip
def test_interpolate_compiled(mode, shape, options):
    compiled(lambda lib, x: lib.F.interpolate(x, mode=mode, **options), values(*shape))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape,options", [
    ((2, 3, 11, 9), {"size": (4, 5)}), ((1, 2, 5, 6), {"size": (9, 3)}),
    ((1, 1, 8, 8), {"scale_factor": 0.4}), ((1, 2, 10, 12), {"scale_factor": (0.5, 1.5)}),
    ((1, 1, 6, 1), {"size": (1, 3)}),
], ids=str)  # fmt: skip
def test_antialiased(mode, shape, options):
    def code(lib, x):
        return lib.F.interpolate(x, mode=mode, antialias=True, **options)

    check(code, values(*shape), scale=20)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_interpolate_dtypes(dtype, mode):
    def code(lib, x):
        x = x.to(getattr(lib.t, dtype))
        return lib.F.interpolate(x.transpose(2, 3), size=(7, 4), mode=mode)

    check(code, values(2, 3, 5, 6).astype(np.float32), grad=dtype == "float32", scale=4)


@pytest.mark.parametrize("mode,options", [
    ("linear", {}), ("bilinear", {}), ("bilinear", {"align_corners": True}), ("trilinear", {}),
    ("bilinear", {"antialias": True}), ("bicubic", {}), ("bicubic", {"antialias": True}),
    ("nearest", {}), ("nearest-exact", {}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("factors", [(1.15, 1.1, 1.05), (1.15, 2, 1.3), (2, 1.15, 0.6)])
def test_a_scale_that_keeps_a_size(mode, options, factors):
    """PyTorch ignores such a scale in the linear modes and in the anti-aliased ones, forward. The
    derivatives of its bicubic, nearest and anti-aliased modes are those of another map."""
    grad = "linear" in mode and not options.get("antialias")
    for n in MODES[mode]:

        def code(lib, x, n=n):
            return lib.F.interpolate(x, scale_factor=factors[:n], mode=mode, **options)

        check(code, values(1, 5, *(5, 6, 4)[:n]).astype(np.float32), scale=10, grad=grad)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shape,size", [
    ((2, 3, 9, 7), (4, 12)), ((1, 5, 4, 11), (9, 3)), ((1, 1, 1, 6), (3, 4)), ((1, 8, 6, 6), 6),
])  # fmt: skip
def test_interpolated_bytes(mode, antialias, shape, size):
    """To the bit."""
    if antialias == (mode == "nearest") or (mode == "lanczos" and not antialias):
        pytest.skip("no such form")
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)

    def code(lib, x):
        return lib.F.interpolate(x, size, mode=mode, antialias=antialias)

    check(code, x, grad=False)
    fast = jitgrad.jit(lambda x: code(LIBS[0], x), fallback="error")
    for _ in range(2):
        got = fast(jitgrad.from_numpy(x))
    np.testing.assert_array_equal(got.numpy(), code(LIBS[0], jitgrad.from_numpy(x)).numpy())


@pytest.mark.parametrize("n,options", [
    (1, {"kernel_size": 2}), (2, {"kernel_size": (3, 2), "stride": 2, "padding": 1}),
    (2, {"kernel_size": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
    (3, {"kernel_size": 2, "divisor_override": 3}), (2, {"kernel_size": 3, "ceil_mode": True}),
    (1, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
], ids=str)  # fmt: skip
def test_average_of_whole_numbers(n, options):
    """Toward zero, as C divides."""
    x = np.random.default_rng(0).integers(-50, 50, (2, 3, 7, 6, 8)[: n + 2])
    check(lambda lib, x: getattr(lib.F, f"avg_pool{n}d")(x, **options), x, grad=False)


def test_upsample_layers():
    x = values(2, 3, 4, 5)
    for make in (
        lambda nn: nn.Upsample(scale_factor=2), lambda nn: nn.Upsample((3, 7), mode="bilinear"),
        lambda nn: nn.Upsample(scale_factor=(2, 1.5), mode="bicubic", align_corners=True),
        lambda nn: nn.UpsamplingNearest2d(scale_factor=2), lambda nn: nn.UpsamplingBilinear2d(7),
    ):  # fmt: skip
        ours, theirs = (make(lib.nn) for lib in LIBS)
        assert repr(ours) == repr(theirs)
        same(ours(jitgrad.from_numpy(x)), theirs(torch.from_numpy(x)), scale=10)
    for name in ("upsample", "upsample_nearest", "upsample_bilinear"):
        with pytest.warns(UserWarning, match="deprecated"):
            check(lambda lib, x, name=name: getattr(lib.F, name)(x, size=(7, 6)), x, scale=10)


# -- shuffles, unfold and fold ---------------------------------------------------------------------
def test_shuffles():
    x = values(2, 12, 4, 6)

    def code(lib, x):
        return (
            lib.F.pixel_shuffle(x, 2), lib.F.pixel_unshuffle(x, 2), lib.F.channel_shuffle(x, 3),
            lib.nn.PixelShuffle(2)(x[0]), lib.nn.PixelUnshuffle(2)(x[None]),
            lib.nn.ChannelShuffle(4)(x[:, :, 0]), lib.F.pixel_shuffle(x.transpose(2, 3), 1),
        )  # fmt: skip

    both(code, x)
    for make in (
        lambda nn: nn.PixelShuffle(2), lambda nn: nn.PixelUnshuffle(3),
        lambda nn: nn.ChannelShuffle(2), lambda nn: nn.Fold((2, 3), 2, stride=(1, 2)),
        lambda nn: nn.Unfold(3, padding=1),
    ):  # fmt: skip
        assert repr(make(LIBS[0].nn)) == repr(make(torch.nn))


@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"dilation": (2, 1), "padding": (1, 2)},
    {"dilation": 2, "stride": (3, 2)}, {"padding": 2, "dilation": 3, "stride": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kernel", [(2, 3), 1])
def test_unfold_and_fold(options, kernel):
    x = values(2, 3, 7, 8)

    def code(lib, x):
        columns = lib.F.unfold(x, kernel, **options)
        return columns, lib.F.fold(columns * columns, (7, 8), kernel, **options)

    both(code, x)
    check(lambda lib, x: lib.nn.Unfold(kernel, **options)(x), x[0])
    columns = torch.nn.functional.unfold(torch.from_numpy(x[0]), kernel, **options).numpy()
    check(lambda lib, c: lib.nn.Fold((7, 8), kernel, **options)(c), columns)


# -- grids -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("n", [2, 3])
def test_grid_sample(mode, padding_mode, align, n):
    if n == 3 and mode == "bicubic":
        pytest.skip("bicubic is for 4 dims")
    x = values(2, 3, *(4, 5, 3)[:n])
    grid = values(2, *(5, 4, 2)[:n], n, seed=1) * 1.3  # some outside, far outside

    def code(lib, x, grid):
        return lib.F.grid_sample(x, grid, mode, padding_mode, align)

    check(code, x, grid, scale=20)
    if n == 2 and not align:
        compiled(code, x, grid)
    alone = values(1, 1, *[1] * n)  # one element: bicubic weights add up to 1, whatever the grid
    check(code, alone, grid[:1], scale=20, grad=mode != "bicubic")


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample_at_special_positions(padding_mode):
    """At the edges, at corners' centres, between elements, NaN and infinite."""
    x = values(1, 2, 2, 3)
    special = [-1.0, 1.0, -2 / 3, 2 / 3, 0.0, 1 / 3, np.nan, np.inf, -np.inf, -1.5, 3.0]
    grid = np.stack(np.meshgrid(special, special), -1)[None]
    for mode in ("bilinear", "nearest"):
        for align in (True, False):

            def code(lib, x, grid, mode=mode, align=align):
                return lib.F.grid_sample(x, grid, mode, padding_mode, align)

            check(code, x, grid, grad=False, scale=20)
    finite = grid[:, :6, :6]
    check(lambda lib, x, g: lib.F.grid_sample(x, g, "bilinear", padding_mode, True), x, finite)


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("align", [True, False])
def test_affine_grid(size, align):
    n = len(size) - 2
    both(lambda lib, theta: lib.F.affine_grid(theta, size, align), values(2, n, n + 1))


# -- the same functions in the main namespace ------------------------------------------------------
MAIN = {
    "conv1d": lambda t, x, w: t.conv1d(x[:, :, 0], w[:, :, 0]),
    "conv2d": lambda t, x, w: t.conv2d(x, w, padding=1),
    "conv_transpose2d": lambda t, x, w: t.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    "max_pool2d": lambda t, x, w: t.max_pool2d(x, 2),
    "max_pool1d_with_indices": lambda t, x, w: t.max_pool1d_with_indices(x[0], 2),
    "avg_pool1d": lambda t, x, w: t.avg_pool1d(x[0], 2),
    "adaptive_avg_pool1d": lambda t, x, w: t.adaptive_avg_pool1d(x[0], 2),
    "adaptive_max_pool1d": lambda t, x, w: t.adaptive_max_pool1d(x[0], 2),
    "pixel_shuffle": lambda t, x, w: t.pixel_shuffle(x, 2),
    "channel_shuffle": lambda t, x, w: t.channel_shuffle(x, 2),
    "grid_sampler": lambda t, x, w: t.grid_sampler(
        x, t.affine_grid_generator(w[:2, 0, :2, :3], (2, 4, 3, 2), False), 0, 2, False
    ),
    "max_pool2d_with_indices": lambda t, x, w: t.nn.functional.max_pool2d_with_indices(x, 2),
}


@pytest.mark.parametrize("name", MAIN)
def test_main_namespace(name):
    x, w = values(2, 4, 5, 6), values(3, 4, 3, 3, seed=1)
    check(lambda lib, x: MAIN[name](lib.t, x, lib.t.from_numpy(w)), x, scale=20)


# -- errors ----------------------------------------------------------------------------------------
def ones(lib, *shape):
    return lib.t.ones(*shape, dtype=lib.t.float64)


BAD = {
    "transposed channels": lambda lib, x: lib.F.conv_transpose2d(x, ones(lib, 5, 2, 2, 2)),
    "transposed groups": lambda lib, x: lib.F.conv_transpose2d(x, ones(lib, 4, 2, 2, 2), groups=3),
    "transposed bias": lambda lib, x: lib.F.conv_transpose2d(
        x, ones(lib, 4, 2, 2, 2), ones(lib, 4)
    ),
    "transposed dtype": lambda lib, x: lib.F.conv_transpose2d(x, lib.t.ones(4, 2, 2, 2)),
    "transposed rank": lambda lib, x: lib.F.conv_transpose1d(x, ones(lib, 4, 2, 2)),
    "transposed stride": lambda lib, x: lib.F.conv_transpose2d(x, ones(lib, 4, 2, 2, 2), stride=0),
    "negative padding": lambda lib, x: lib.F.conv_transpose2d(x, ones(lib, 4, 2, 2, 2), padding=-1),
    "output padding": lambda lib, x: lib.F.conv_transpose2d(
        x, ones(lib, 4, 2, 2, 2), output_padding=1
    ),
    "nothing left": lambda lib, x: lib.F.conv_transpose2d(x, ones(lib, 4, 2, 1, 1), padding=3),
    "empty spatial": lambda lib, x: lib.F.conv_transpose2d(x[:, :, :0], ones(lib, 4, 2, 2, 2)),
    "padding mode": lambda lib, x: lib.nn.ConvTranspose2d(4, 4, 2, padding_mode="reflect"),
    "output_size": lambda lib, x: lib.nn.ConvTranspose2d(4, 4, 2).double()(x, output_size=(9, 9)),
    "output_size rank": lambda lib, x: lib.nn.ConvTranspose2d(4, 4, 2).double()(x, output_size=[9]),
    "adaptive rank": lambda lib, x: lib.F.adaptive_avg_pool2d(x[0, 0], 2),
    "adaptive sizes": lambda lib, x: lib.F.adaptive_max_pool2d(x, (2, 2, 2)),
    "adaptive negative": lambda lib, x: lib.F.adaptive_avg_pool2d(x, (-1, 2)),
    "adaptive empty": lambda lib, x: lib.F.adaptive_avg_pool2d(x[:, :, :0], 2),
    "adaptive max channels": lambda lib, x: lib.F.adaptive_max_pool2d(x[:, :0], 2),
    "adaptive ints": lambda lib, x: lib.F.adaptive_avg_pool2d(x.long(), 2),
    "adaptive none": lambda lib, x: lib.F.adaptive_avg_pool1d(x[0], None),
    "lp zero": lambda lib, x: lib.F.lp_pool2d(x, 0, 2),
    "unpool dtype": lambda lib, x: lib.F.max_unpool2d(x, x.int(), 2),
    "unpool shape": lambda lib, x: lib.F.max_unpool2d(x, x[:1].long(), 2),
    "unpool rank": lambda lib, x: lib.F.max_unpool2d(x[0, 0], x[0, 0].long(), 2),
    "unpool size": lambda lib, x: lib.F.max_unpool2d(x, x.long(), 2, output_size=(3, 3)),
    "fractional none": lambda lib, x: lib.F.fractional_max_pool2d(x, 2),
    "fractional size": lambda lib, x: lib.F.fractional_max_pool2d(x, 2, 4),
    "fractional ratio": lambda lib, x: lib.nn.FractionalMaxPool2d(2, output_ratio=1.5),
    "fractional samples": lambda lib, x: lib.F.fractional_max_pool2d(
        x, 2, 2, _random_samples=ones(lib, 2, 4, 3)
    ),
    "pixel channels": lambda lib, x: lib.F.pixel_shuffle(x, 3),
    "pixel rank": lambda lib, x: lib.F.pixel_shuffle(x[0, 0], 2),
    "pixel factor": lambda lib, x: lib.F.pixel_unshuffle(x, 0),
    "pixel size": lambda lib, x: lib.F.pixel_unshuffle(x, 4),
    "channel groups": lambda lib, x: lib.F.channel_shuffle(x, 3),
    "channel rank": lambda lib, x: lib.F.channel_shuffle(x[0, 0], 2),
    "unfold size": lambda lib, x: lib.F.unfold(x, 9),
    "unfold stride": lambda lib, x: lib.F.unfold(x, 2, stride=0),
    "fold rows": lambda lib, x: lib.F.fold(x[0], 4, (3, 1)),
    "fold columns": lambda lib, x: lib.F.fold(x[0], 4, 2),
    "no size": lambda lib, x: lib.F.interpolate(x),
    "two sizes": lambda lib, x: lib.F.interpolate(x, 2, 2.0),
    "float size": lambda lib, x: lib.F.interpolate(x, (2, 2.5)),
    "size rank": lambda lib, x: lib.F.interpolate(x, (2,)),
    "scale rank": lambda lib, x: lib.F.interpolate(x, scale_factor=(2, 2, 2)),
    "mode": lambda lib, x: lib.F.interpolate(x, 2, mode="cubic"),
    "mode rank": lambda lib, x: lib.F.interpolate(x, 2, mode="linear"),
    "interpolate rank": lambda lib, x: lib.F.interpolate(x[0, 0], 2),
    "align": lambda lib, x: lib.F.interpolate(x, 2, align_corners=True),
    "recompute": lambda lib, x: lib.F.interpolate(x, 2, recompute_scale_factor=True),
    "size zero": lambda lib, x: lib.F.interpolate(x, scale_factor=0.1),
    "antialias": lambda lib, x: lib.F.interpolate(x, 2, mode="area", antialias=True),
    "bilinear ints": lambda lib, x: lib.F.interpolate(x.long(), 2, mode="bilinear"),
    "linear bytes": lambda lib, x: lib.F.interpolate(x[0].to(lib.t.uint8), 2, mode="linear"),
    "grid batch": lambda lib, x: lib.F.grid_sample(x, ones(lib, 1, 2, 2, 2)),
    "grid last": lambda lib, x: lib.F.grid_sample(x, ones(lib, 2, 2, 2, 3)),
    "grid dtype": lambda lib, x: lib.F.grid_sample(x, lib.t.ones(2, 2, 2, 2)),
    "grid mode": lambda lib, x: lib.F.grid_sample(x, ones(lib, 2, 2, 2, 2), "linear"),
    "grid padding": lambda lib, x: lib.F.grid_sample(
        x, ones(lib, 2, 2, 2, 2), padding_mode="mirror"
    ),
    "grid 5 dims": lambda lib, x: lib.F.grid_sample(
        x[None], ones(lib, 1, 2, 2, 2, 3), "bicubic"
    ),
    "theta": lambda lib, x: lib.F.affine_grid(ones(lib, 2, 3, 4), (2, 3, 4, 5)),
    "theta batch": lambda lib, x: lib.F.affine_grid(ones(lib, 1, 2, 3), (2, 3, 4, 5)),
    "theta ints": lambda lib, x: lib.F.affine_grid(lib.t.ones(2, 2, 3).long(), (2, 3, 4, 5)),
    "grid size": lambda lib, x: lib.F.affine_grid(ones(lib, 2, 2, 3), (2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors(name):
    ours, _ = raises_alike(BAD[name], values(2, 4, 4, 5))
    assert ours.startswith("[")
