"""autocast: in which dtype each function computes, its values and gradients; settings, nesting,
decorators, custom_fwd and custom_bwd."""

import warnings

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, dtype_name, numpy, same

import jitgrad as jg

TINY = np.array([0, 1, 2])


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.uniform(0.1, 0.9, s).astype(np.float32) for s in shapes]


def pools(name, dims, *args):
    return name, (arrays((1, 2, *[4] * dims)), lambda lib, x: getattr(lib.F, name)(x, *args))


def pads(mode, dims):
    made = lambda lib, x: lib.F.pad(x, (1,) * (2 * dims), mode=mode)  # noqa: E731
    return f"pad {mode} {dims}d", (arrays((1, 2, *[4] * dims)), made)


def losses(name, *shapes):
    return name, (arrays(*shapes or ((3, 3), (3, 3))), lambda lib, *x: getattr(lib.F, name)(*x))


def classes(name):
    made = lambda lib, x: getattr(lib.F, name)(x, lib.t.from_numpy(TINY))  # noqa: E731
    return name, (arrays((3, 3)), made)


def top(name, *shapes):
    return name, (arrays(*shapes), lambda lib, *x: getattr(lib.t, name)(*x))


def layer(name, *shapes):
    return name, (arrays(*shapes), lambda lib, *x: getattr(lib.F, name)(*x))


CASES = dict([
    top("matmul", (2, 3), (3, 2)), top("mm", (2, 3), (3, 2)), top("bmm", (2, 2, 3), (2, 3, 2)),
    ("@", (arrays((2, 3), (3, 2)), lambda lib, a, b: a @ b)),
    ("matmul of vectors", (arrays((3,), (3,)), lambda lib, a, b: lib.t.matmul(a, b))),
    ("matrix @ vector", (arrays((2, 3), (3,)), lambda lib, a, b: a @ b)),
    top("mv", (2, 3), (3,)), top("dot", (3,), (3,)), top("vdot", (3,), (3,)),
    top("outer", (3,), (2,)), top("inner", (2, 3), (2, 3)),
    ("inner of vectors", (arrays((3,), (3,)), lambda lib, a, b: lib.t.inner(a, b))),
    top("addmm", (2, 2), (2, 3), (3, 2)), top("addmv", (2,), (2, 3), (3,)),
    top("addr", (3, 2), (3,), (2,)), top("baddbmm", (2, 2, 2), (2, 2, 3), (2, 3, 2)),
    top("addbmm", (2, 2), (2, 2, 3), (2, 3, 2)), top("chain_matmul", (2, 3), (3, 2), (2, 4)),
    top("kron", (2, 3), (2, 2)), top("trace", (3, 3)), top("prod", (3, 3)),
    top("cdist", (3, 2), (4, 2)),
    ("einsum", (arrays((2, 3), (3, 2)), lambda lib, a, b: lib.t.einsum("ij,jk->ik", a, b))),
    ("einsum, elementwise", (
        arrays((2, 3), (2, 3)), lambda lib, a, b: lib.t.einsum("ij,ij->ij", a, b))),
    ("einsum, a sum", (arrays((2, 3)), lambda lib, a: lib.t.einsum("ij->j", a))),
    ("tensordot", (arrays((2, 3), (3, 2)), lambda lib, a, b: lib.t.tensordot(a, b, 1))),
    layer("linear", (2, 3), (4, 3), (4,)), layer("bilinear", (2, 3), (2, 3), (4, 3, 3)),
    layer("conv1d", (1, 2, 5), (2, 2, 3), (2,)), layer("conv2d", (1, 2, 5, 5), (2, 2, 3, 3), (2,)),
    layer("conv3d", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2)),
    layer("conv_transpose1d", (1, 2, 4), (2, 2, 3)),
    layer("conv_transpose2d", (1, 2, 3, 3), (2, 2, 3, 3)),
    layer("conv_transpose3d", (1, 2, 2, 2, 2), (2, 2, 2, 2, 2)),
    layer("prelu", (2, 3), (1,)),
    layer("scaled_dot_product_attention", (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
    *[top(name, (3, 3)) for name in (
        "exp", "log", "sqrt", "tanh", "sigmoid", "sum", "mean", "var", "norm", "rsqrt", "erf")],
    ("softmax", (arrays((3, 3)), lambda lib, x: x.softmax(1))),
    ("cumsum", (arrays((3, 3)), lambda lib, x: x.cumsum(1))),
    ("logsumexp", (arrays((3, 3)), lambda lib, x: x.logsumexp(1))),
    ("layer_norm", (arrays((3, 4)), lambda lib, x: lib.F.layer_norm(x, (4,)))),
    ("batch_norm", (arrays((4, 3)), lambda lib, x: lib.F.batch_norm(x, None, None, training=True))),
    ("group_norm", (arrays((2, 4, 3)), lambda lib, x: lib.F.group_norm(x, 2))),
    ("quantile", (arrays((3, 3)), lambda lib, x: lib.t.quantile(x, 0.3))),
    ("nanquantile", (arrays((3, 3)), lambda lib, x: lib.t.nanquantile(x, 0.3, dim=0))),
    ("ctc_loss", (arrays((3, 1, 3)), lambda lib, x: lib.F.ctc_loss(
        x.log_softmax(-1), lib.t.tensor([[1]]), lib.t.tensor([3]), lib.t.tensor([1])))),
    top("cov", (3, 4)), top("corrcoef", (3, 4)), top("dist", (3,), (3,)),
    ("renorm", (arrays((3, 3)), lambda lib, x: lib.t.renorm(x, 2, 0, 1.0))),
    ("gelu", (arrays((3, 3)), lambda lib, x: lib.F.gelu(x))),
    ("normalize", (arrays((3, 3)), lambda lib, x: lib.F.normalize(x))),
    layer("cosine_similarity", (3, 3), (3, 3)),
    ("cat", (arrays((2, 2), (2, 2)), lambda lib, x, y: lib.t.cat([x, y.float()]))),
    ("stack", (arrays((2, 2), (2, 2)), lambda lib, x, y: lib.t.stack([x.float(), y]))),
    ("index_copy", (arrays((3,), (1,)), lambda lib, x, y: lib.t.index_copy(
        x, 0, lib.t.tensor([1]), y.float()))),
    ("embedding", (arrays((4, 3)), lambda lib, w: lib.F.embedding(lib.t.from_numpy(TINY), w))),
    *[pools(f"{kind}_pool{n}d", n, 2) for kind in ("avg", "max", "adaptive_avg", "adaptive_max")
      for n in (1, 2, 3)],
    *[pools(f"lp_pool{n}d", n, 2.0, 2) for n in (1, 2, 3)],
    *[pads(mode, n) for mode in ("constant", "reflect", "replicate", "circular")
      for n in (1, 2, 3)],
    *[(f"interpolate {mode}", (arrays((1, 2, 4, 4)), lambda lib, x, mode=mode: lib.F.interpolate(
        x, scale_factor=2, mode=mode))) for mode in ("nearest", "bilinear", "bicubic", "area")],
    ("grid_sample", (arrays((1, 2, 4, 4), (1, 3, 3, 2)), lambda lib, x, g: lib.F.grid_sample(
        x, g, align_corners=False))),
    ("unfold", (arrays((1, 2, 4, 4)), lambda lib, x: lib.F.unfold(x, 2))),
    ("max_unpool2d", (arrays((1, 2, 2, 2)), lambda lib, x: lib.F.max_unpool2d(
        x, lib.t.tensor([[[[0, 3], [8, 10]], [[1, 2], [9, 15]]]]), 2))),
    *[losses(name) for name in (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "hinge_embedding_loss",
        "multilabel_soft_margin_loss")],
    ("soft_margin_loss", (arrays((3, 3), (3, 3)), lambda lib, x, y: lib.F.soft_margin_loss(
        x, y.detach()))),
    *[losses(name, (3, 3), (3, 3), (3, 3)) for name in (
        "gaussian_nll_loss", "margin_ranking_loss", "triplet_margin_loss",
        "triplet_margin_with_distance_loss")],
    ("cosine_embedding_loss", (
        arrays((3, 3), (3, 3)),
        lambda lib, x, y: lib.F.cosine_embedding_loss(x, y, lib.t.ones(3)),
    )),
    ("multilabel_margin_loss", (arrays((3, 3)), lambda lib, x: lib.F.multilabel_margin_loss(
        x, lib.t.zeros(3, 3, dtype=lib.t.int64)))),
    *[classes(name) for name in ("cross_entropy", "nll_loss", "multi_margin_loss")],
])  # fmt: skip


def run(lib, name, given, lower, grad):
    """Results and gradients of a case, its operands in a dtype, under autocast."""
    values, code = CASES[name]
    operands = [lib.t.from_numpy(v).to(getattr(lib.t, given)) for v in values]
    operands = [x.requires_grad_(grad) for x in operands]
    with lib.t.autocast("cpu", dtype=getattr(lib.t, lower)):
        out = code(lib, *operands)
        out = out[0] if isinstance(out, (tuple, list)) else out
    if grad and out.requires_grad:
        weights = np.cos(np.arange(out.numel(), dtype=np.float32)).reshape(tuple(out.shape))
        (out.float() * lib.t.from_numpy(weights)).sum().backward()
    return out, [x.grad for x in operands]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_dtypes_and_values(name):
    for given in ("float32", "bfloat16", "float64"):
        if given == "float64" and name == "index_copy":
            continue  # dtypes that differ, in both
        (a, grads), (b, wanted) = (run(lib, name, given, "bfloat16", True) for lib in LIBS)
        assert dtype_name(a) == dtype_name(b), (name, given)
        low = "bfloat16" in (given, dtype_name(b)) or name == "bilinear"  # its product is
        tolerance = 0.05 if low else 1e-5
        np.testing.assert_allclose(numpy(a), numpy(b), rtol=tolerance, atol=tolerance)
        for i, (g, w) in enumerate(zip(grads, wanted, strict=True)):
            assert (g is None) == (w is None)
            if w is not None:
                assert dtype_name(g) == dtype_name(w)
                scale = max(1.0, float(np.abs(numpy(w)).max(initial=0.0)))
                np.testing.assert_allclose(
                    numpy(g), numpy(w), rtol=tolerance, atol=tolerance * scale, err_msg=f"{i}"
                )


@pytest.mark.parametrize("name", ["matmul", "conv2d", "linear", "mse_loss", "prod", "avg_pool3d"])
def test_float16(name):
    (a, _), (b, _) = (run(lib, name, "float32", "float16", False) for lib in LIBS)
    same(a, b, scale=10)


def test_integers_and_float64_stay():
    for lib in LIBS:
        with lib.t.autocast("cpu"):
            x = lib.t.arange(4).reshape(2, 2)
            assert dtype_name(x @ x) == "int64"
            assert dtype_name(x.double() @ x.double()) == "float64"
            assert dtype_name(lib.t.prod(x)) == "int64"


def test_in_place_forms_and_out_stay():
    def code(lib):
        t = lib.t
        x = t.full((2, 2), 1.001)
        made = [t.zeros(2, 2) for _ in range(3)]
        with t.autocast("cpu"):
            made[0].addmm_(x, x)
            t.mm(x, x, out=made[1])
            t.matmul(x, x, out=made[2])
            made.append(t.zeros(1, 2, 2).baddbmm_(x[None], x[None]))
            made.append(t.zeros(2).addmv_(x, x[0]))
        return made

    for a, b in zip(code(OURS), code(THEIRS), strict=True):
        same(a, b)


def model(lib):
    rng = np.random.default_rng(1)
    net = lib.nn.Sequential(
        lib.nn.Conv2d(2, 4, 3, padding=1), lib.nn.BatchNorm2d(4), lib.nn.ReLU(),
        lib.nn.Flatten(), lib.nn.Linear(64, 5), lib.nn.LayerNorm(5), lib.nn.Linear(5, 3),
    )  # fmt: skip
    for p in net.parameters():
        p.data = lib.t.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.3)
    x = lib.t.from_numpy(rng.standard_normal((6, 2, 4, 4)).astype(np.float32))
    return net, x, lib.t.from_numpy(np.arange(6) % 3)


@pytest.mark.parametrize("lower", ["bfloat16", "float16"])
def test_a_model_trains(lower):
    """Layers pass low precision on, the loss is float32, and so are all gradients."""
    runs = []
    for lib in LIBS:
        net, x, y = model(lib)
        optimizer = lib.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        seen = []
        for m in net:
            m.register_forward_hook(lambda m, args, out, seen=seen: seen.append(dtype_name(out)))
        for _ in range(3):
            optimizer.zero_grad()
            with lib.t.autocast("cpu", dtype=getattr(lib.t, lower)):
                loss = lib.F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        assert dtype_name(loss) == "float32"
        assert all(dtype_name(p.grad) == "float32" for p in net.parameters())
        runs.append((net, loss, seen))
    (ours, a, seen), (theirs, b, wanted) = runs
    assert seen == wanted
    np.testing.assert_allclose(a.item(), b.item(), rtol=0.02)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        scale = np.abs(numpy(q)).max()
        np.testing.assert_allclose(numpy(p), numpy(q), atol=0.05 * scale, err_msg=name)


@pytest.mark.parametrize(
    "name", ["LSTM", "RNN", "GRU", "MultiheadAttention", "LSTMCell", "GRUCell"]
)
@pytest.mark.filterwarnings("ignore")
def test_layers_of_several_functions(name):
    for lib in LIBS:
        x = lib.t.ones(3, 2, 4)
        options = (4, 2) if name == "MultiheadAttention" else (4, 5)
        net = getattr(lib.nn, name)(*options)
        args = (x, x, x) if name == "MultiheadAttention" else (x[0],) if "Cell" in name else (x,)
        with lib.t.autocast("cpu"):
            out = net(*args)
        first = out[0] if isinstance(out, tuple) else out
        if lib is OURS:
            found = dtype_name(first)
        first.float().sum().backward()
        assert all(dtype_name(p.grad) == "float32" for p in net.parameters())
    assert found == dtype_name(first)


@pytest.mark.parametrize("name", ["LSTM", "RNN", "GRU", "LSTMCell", "RNNCell", "GRUCell"])
def test_layers_behind_a_lowered_one(name):
    """Their input is of autocast's dtype, their parameters are not."""
    found = []
    for lib in LIBS:
        first, second = lib.nn.Linear(3, 3), getattr(lib.nn, name)(3, 4)
        x = lib.t.ones(2, 3) if "Cell" in name else lib.t.ones(5, 2, 3)
        with lib.t.autocast("cpu"):
            out = second(first(x))
        found.append(dtype_name(out[0] if isinstance(out, tuple) else out))
    assert found == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_with_masks(need_weights):
    found = []
    for lib in LIBS:
        net, x = lib.nn.MultiheadAttention(4, 2), lib.t.ones(3, 2, 4)
        padding = lib.t.tensor([[False, False, True]] * 2)
        with lib.t.autocast("cpu"):
            out = net(x, x, x, key_padding_mask=padding, need_weights=need_weights)
        found.append([dtype_name(y) for y in out if y is not None])
    assert found[0] == found[1]


# -- settings ------------------------------------------------------------------------------------
def both(code):
    ours, theirs = (code(lib) for lib in LIBS)
    assert ours == theirs
    return ours


def ask(lib):
    t = lib.t
    return (
        t.is_autocast_enabled("cpu"), t.is_autocast_enabled("cuda"), t.is_autocast_enabled(),
        str(t.get_autocast_dtype("cpu"))[-8:], str(t.get_autocast_dtype("cuda"))[-7:],
        t.is_autocast_cache_enabled(),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_settings_nest_and_come_back():
    def code(lib):
        t, seen = lib.t, [ask(lib)]
        x = t.ones(2, 2)
        with t.autocast("cpu", dtype=t.float16, cache_enabled=False):
            seen += [ask(lib), dtype_name(x @ x)]
            with t.autocast("cpu", enabled=False):
                seen += [ask(lib), dtype_name(x @ x)]
                with t.amp.autocast("cpu"):
                    seen += [ask(lib), dtype_name(x @ x)]
            with t.autocast("cuda"):
                seen += [ask(lib), dtype_name(x @ x)]
            seen.append(ask(lib))
        seen.append(ask(lib))
        t.set_autocast_dtype("cpu", t.float16)
        t.set_autocast_enabled("cpu", True)
        seen += [ask(lib), dtype_name(x @ x)]
        t.set_autocast_enabled("cpu", False)
        t.set_autocast_dtype("cpu", t.bfloat16)
        t.set_autocast_cache_enabled(True)
        t.clear_autocast_cache()
        return [*seen, ask(lib)]

    both(code)


def test_an_error_inside_turns_it_off():
    for lib in LIBS:
        with pytest.raises(KeyError), lib.t.autocast("cpu"):
            raise KeyError("inside")
        assert not lib.t.is_autocast_enabled("cpu")
        with pytest.raises(RuntimeError), lib.t.autocast("cpu"):
            lib.t.ones(2, 3) @ lib.t.ones(2, 3)
        with lib.t.autocast("cpu"):
            assert dtype_name(lib.t.ones(2, 2) @ lib.t.ones(2, 2)) == "bfloat16"


def test_decorator():
    def code(lib):
        cast = lib.t.autocast("cpu")

        @cast
        def f(x):
            """Text."""
            return x @ x

        x = lib.t.ones(2, 2)
        return f.__name__, f.__doc__, dtype_name(f(x)), dtype_name(x @ x)

    assert both(code)[2] == "bfloat16"


def test_a_decorated_function_may_call_itself():
    """Ours remembers each outer setting (PyTorch would leave autocast on here)."""

    @jg.autocast("cpu")
    def f(x, depth):
        return x @ x if depth == 0 else f(x, depth - 1)

    x = jg.ones(2, 2)
    assert f(x, 2).dtype is jg.bfloat16 and (x @ x).dtype is jg.float32


def messages(code):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = code()
    return result, [(w.category, str(w.message)[:21]) for w in caught]


def test_what_is_not_supported():
    def code(lib):
        t, out = lib.t, []
        for make in (
            lambda: t.autocast("cuda"), lambda: t.autocast("cpu", dtype=t.float32),
            lambda: t.cuda.amp.autocast(), lambda: t.cpu.amp.autocast(),
            lambda: t.cuda.amp.GradScaler(), lambda: t.amp.GradScaler(),
            lambda: t.cuda.amp.custom_fwd(len), lambda: t.cuda.amp.custom_bwd(len),
        ):  # fmt: skip
            out.append(messages(make)[1])
        for bad in (3, "nothing"):
            for f in (t.autocast, t.amp.custom_fwd):
                try:
                    f(bad) if f is t.autocast else f(device_type=bad)
                except (ValueError, RuntimeError) as error:
                    out.append(type(error))
        try:
            t.autocast("cpu")(3)
        except TypeError as error:
            out.append(str(error)[:60])
        return out

    ours, theirs = code(OURS), code(THEIRS)
    # PyTorch's custom_fwd takes any text for a device; ours says what it knows.
    assert [o for o in ours if o is not RuntimeError] == [
        o for o in theirs if o is not RuntimeError
    ]


@pytest.mark.parametrize("cast_inputs", [None, "float32", "float16"])
@pytest.mark.parametrize("on", [True, False])
def test_custom_functions(on, cast_inputs):
    """forward and backward run under the same autocast, whatever is outside of backward."""

    def code(lib):
        t, seen = lib.t, []
        wanted = None if cast_inputs is None else getattr(t, cast_inputs)

        class Product(t.autograd.Function):
            @staticmethod
            @t.amp.custom_fwd(device_type="cpu", cast_inputs=wanted)
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                seen.append((dtype_name(a), t.is_autocast_enabled("cpu")))
                return a @ b

            @staticmethod
            @t.amp.custom_bwd(device_type="cpu")
            def backward(ctx, g):
                a, b = ctx.saved_tensors
                seen.append((dtype_name(g), dtype_name(a), t.is_autocast_enabled("cpu")))
                ga = g.to(a.dtype) @ b.t()
                gb = a.t() @ g.to(a.dtype)
                seen.append(dtype_name(ga))
                return ga.to(t.float32), gb.to(t.float32)

        a, b = t.ones(2, 3, requires_grad=True), t.full((3, 2), 0.5, requires_grad=True)
        with t.autocast("cpu", enabled=on):
            out = Product.apply(a, b)
        out.float().sum().backward()
        return seen, dtype_name(out), a.grad.tolist(), b.grad.tolist()

    both(code)


def test_weights_are_cast_once():
    """Under caching a weight used twice has one cast: its gradients meet in low precision."""

    def code(lib, caching):
        t = lib.t
        w = t.full((8, 8), 0.3, requires_grad=True)
        x = t.from_numpy(arrays((8, 8))[0])
        with t.autocast("cpu", cache_enabled=caching):
            a, b = x @ w, (x * 300) @ w
        (a.float().sum() + b.float().sum()).backward()
        return w.grad

    for caching in (True, False):
        a, b = (code(lib, caching) for lib in LIBS)
        same(a, b, scale=10)
    assert not (code(OURS, True) == code(OURS, False)).all()


def test_a_cast_is_not_used_after_a_write():
    """Ours looks at the version; PyTorch would go on with the old values."""
    t = jg
    w = t.ones(2, 2, requires_grad=True)
    x = t.ones(2, 2)
    with t.autocast("cpu"):
        first = x @ w
        with t.no_grad():
            w.mul_(3)
        second = x @ w
        with t.no_grad():
            third = x @ w
        fourth = x @ w
    assert first[0, 0] == 2 and second[0, 0] == third[0, 0] == 6
    assert fourth.requires_grad and not third.requires_grad
