"""Attention and transformers: values, gradients, masks, errors, compiled code."""

import warnings

import numpy as np
import pytest
from parity.compare import LIBS, check, raises_alike, same
from parity.training import pair, same_training

import jitgrad


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def mask(lib, *shape, seed=3, kind="bool", keep=True):
    """A random mask: a bool one says `keep`, a float one has -inf where not kept."""
    kept = np.random.default_rng(seed).random(shape) < 0.7
    if kind == "bool":
        return lib.t.from_numpy(kept if keep else ~kept)
    return lib.t.from_numpy(np.where(kept, values(*shape, seed=8), -np.inf))


# -- scaled_dot_product_attention ------------------------------------------------------------------
SDPA = {
    "plain": ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7), {}),
    "causal": ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), {"is_causal": True}),
    "causal wide": ((2, 4, 5), (2, 6, 5), (2, 6, 5), {"is_causal": True}),
    "causal tall": ((2, 6, 5), (2, 4, 5), (2, 4, 5), {"is_causal": True}),
    "scale": ((4, 5), (6, 5), (6, 5), {"scale": 0.3}),
    "heads": ((2, 6, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), {"enable_gqa": True}),
    "one head": ((2, 6, 4, 5), (2, 1, 4, 5), (2, 1, 4, 5), {"enable_gqa": True, "is_causal": True}),
    "one": ((1, 1, 1, 5), (1, 1, 1, 5), (1, 1, 1, 5), {}),
    "broadcast": ((2, 3, 4, 5), (1, 3, 6, 5), (1, 3, 6, 5), {}),
}


@pytest.mark.parametrize("case", SDPA)
def test_dot_product_attention(case):
    q, k, v, options = SDPA[case]
    check(
        lambda lib, *x: lib.F.scaled_dot_product_attention(*x, **options),
        values(*q), values(*k, seed=1), values(*v, seed=2), scale=20,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (2, 1, 4, 6), (2, 3, 4, 6)])
def test_masks(shape, kind):
    """Among them queries that see no key: zeros, and no gradient."""

    def code(lib, *x):
        seen = mask(lib, *shape, kind=kind)
        if shape[-2] > 1:
            seen[..., 1, :] = False if kind == "bool" else -np.inf
        return lib.F.scaled_dot_product_attention(*x, seen)

    q, k, v = values(2, 3, 4, 5), values(2, 3, 6, 5, seed=1), values(2, 3, 6, 5, seed=2)
    check(code, q, k, v, scale=20)


def test_mask_beside_is_causal():
    """As PyTorch's fused kernel: both hold."""

    def code(lib, x):
        return lib.F.scaled_dot_product_attention(x, x, x, mask(lib, 4, 4), is_causal=True)

    check(code, values(2, 3, 4, 5), grad=False, scale=20)


def test_values_of_other_keys():
    """PyTorch reads beside the values."""
    x = jitgrad.ones(2, 4, 5)
    with pytest.raises(RuntimeError, match=r"value \(\.\.\., S, V\); got .*float32\[2, 3, 5\]"):
        jitgrad.nn.functional.scaled_dot_product_attention(x, x, x[:, :3])


def test_gradient_of_the_mask():
    q, k, v = values(2, 3, 4, 5), values(2, 3, 6, 5, seed=1), values(2, 3, 6, 5, seed=2)
    code = lambda lib, *x: lib.F.scaled_dot_product_attention(*x)  # noqa: E731
    check(code, q, k, v, values(3, 4, 6, seed=4), scale=20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(dtype):
    def code(lib, *x):
        x = [t.to(getattr(lib.t, dtype)) for t in x]
        return lib.F.scaled_dot_product_attention(*x, is_causal=True)

    parts = [values(2, 3, 4, 5, seed=s).astype(np.float32) for s in range(3)]
    check(code, *parts, grad=dtype == "float32", scale=10 if dtype == "float32" else 2)


def test_dropout_of_weights():
    for lib in LIBS:
        lib.t.manual_seed(0)
        eye = lib.t.eye(200)
        out = lib.F.scaled_dot_product_attention(eye * 1e4, eye, eye, dropout_p=0.25)
        kept = (out.diagonal() != 0).float().mean().item()
        assert 0.6 < kept < 0.9 and abs(out.max().item() - 1 / 0.75) < 1e-5


BAD_SDPA = {
    "dtype": lambda lib, x: lib.F.scaled_dot_product_attention(x, x.float(), x),
    "mask dtype": lambda lib, x: lib.F.scaled_dot_product_attention(
        x, x, x, lib.t.ones(4, 4, dtype=lib.t.int64)
    ),
    "rank": lambda lib, x: lib.F.scaled_dot_product_attention(x[0, 0, 0], x, x),
    "width": lambda lib, x: lib.F.scaled_dot_product_attention(x, x[..., :2], x),
    "heads": lambda lib, x: lib.F.scaled_dot_product_attention(
        x, x[:, :2], x[:, :2], enable_gqa=True
    ),
    "mask shape": lambda lib, x: lib.F.scaled_dot_product_attention(
        x, x, x, lib.t.ones(3, 3, dtype=lib.t.bool)
    ),
}


@pytest.mark.parametrize("name", BAD_SDPA)
def test_mistakes_in_attention(name):
    raises_alike(BAD_SDPA[name], values(2, 3, 4, 5))


# -- MultiheadAttention ----------------------------------------------------------------------------
MODULES = {
    "plain": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "bias kv": {"add_bias_kv": True, "add_zero_attn": True},
    "own dims": {"kdim": 4, "vdim": 6},
    "one dim": {"kdim": 4, "batch_first": True, "bias": False},
}
CALLS = {
    "weights": {},
    "weights of heads": {"average_attn_weights": False},
    "output": {"need_weights": False},
}


@pytest.mark.parametrize("masks", ["none", "attn", "padding", "both", "heads"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("options", MODULES)
def test_multihead_attention(options, call, masks):
    options, kind = MODULES[options], "bool" if len(masks) % 2 else "float"
    models = pair(lambda lib: lib.nn.MultiheadAttention(8, 2, **options))
    assert repr(models["jitgrad"]) == repr(models["torch"])
    for name, p in models["torch"].named_parameters():  # biases start as zeros
        with_values = values(*p.shape, seed=7) * 0.3
        for lib in LIBS:
            getattr_path(models[lib.name], name).data.copy_(lib.t.from_numpy(with_values))
    flip = options.get("batch_first", False)
    shapes = [(3, 2, 8), (5, 2, options.get("kdim", 8)), (5, 2, options.get("vdim", 8))]
    arrays = [values(*((s[1], s[0], s[2]) if flip else s), seed=i) for i, s in enumerate(shapes)]

    def code(lib, q, k, v):
        more = dict(CALLS[call])
        if masks in ("attn", "both"):
            more["attn_mask"] = mask(lib, 3, 5, kind=kind, keep=False)
        if masks == "heads":
            more["attn_mask"] = mask(lib, 4, 3, 5, kind=kind, keep=False)
        if masks in ("padding", "both"):
            more["key_padding_mask"] = mask(lib, 2, 5, seed=5, kind=kind, keep=False)
        models[lib.name].zero_grad()
        result = models[lib.name](q, k, v, **more)
        return [x for x in result if x is not None]

    check(code, *arrays, scale=40)
    for (name, a), b in zip(
        models["jitgrad"].named_parameters(), models["torch"].parameters(), strict=True
    ):
        assert np.abs(a.grad.numpy() - b.grad.numpy()).max() < 1e-12, name


def getattr_path(module, path):
    *above, name = path.split(".")
    for part in above:
        module = getattr(module, part)
    return getattr(module, name)


def test_self_attention_and_unbatched():
    models = pair(lambda lib: lib.nn.MultiheadAttention(8, 2))
    check(lambda lib, x: models[lib.name](x, x, x), values(3, 2, 8), scale=40)
    check(lambda lib, x: models[lib.name](x, x, x), values(3, 8), scale=40)
    check(lambda lib, x, y: models[lib.name](x, y, y), values(3, 8), values(4, 8, seed=1), scale=40)

    def masked(lib, x):
        more = {"attn_mask": mask(lib, 2, 3, 3), "key_padding_mask": mask(lib, 3, seed=9)}
        more["attn_mask"][:, 0] = more["key_padding_mask"][0] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return models[lib.name](x, x, x, need_weights=False, **more)[:1]

    check(masked, values(3, 8), scale=40)

    def causal(lib, x):
        m = lib.nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        return [
            models[lib.name](x, x, x, attn_mask=m, is_causal=True)[0],
            models[lib.name](x, x, x, attn_mask=m, is_causal=True, need_weights=False)[0],
        ]

    check(causal, values(3, 2, 8), scale=40)


def test_static_keys():
    def code(lib, x, w, o, k, v):
        return lib.F.multi_head_attention_forward(
            x, x, x, 8, 2, w, None, None, None, False, 0.0, o, None, static_k=k, static_v=v
        )

    check(
        code, values(3, 2, 8), values(24, 8, seed=1), values(8, 8, seed=2), values(4, 5, 4, seed=3),
        values(4, 5, 4, seed=4), scale=40,
    )  # fmt: skip


def test_masks_of_two_kinds_warn():
    for lib in LIBS:
        model, x = lib.nn.MultiheadAttention(8, 2), lib.t.ones(3, 2, 8)
        with pytest.warns(UserWarning, match="deprecated"):
            model(x, x, x, lib.t.zeros(2, 3) > 0, attn_mask=lib.t.zeros(3, 3))


def attend(lib, q=(3, 2, 8), k=(5, 2, 8), v=(5, 2, 8), options=None, **masks):
    model = lib.nn.MultiheadAttention(8, 2, **(options or {}))
    return model(*[lib.t.ones(*s) for s in (q, k, v)], **masks)


BAD = {
    "sizes": lambda lib: lib.nn.MultiheadAttention(0, 2),
    "heads": lambda lib: lib.nn.MultiheadAttention(8, 3),
    "rank": lambda lib: attend(lib, (8,)),
    "rank of keys": lambda lib: attend(lib, k=(5, 8)),
    "rank of unbatched": lambda lib: attend(lib, q=(3, 8)),
    "width": lambda lib: attend(lib, q=(3, 2, 7)),
    "values": lambda lib: attend(lib, v=(4, 2, 8)),
    "values of own dims": lambda lib: attend(lib, v=(4, 2, 6), options={"vdim": 6}),
    "mask": lambda lib: attend(lib, attn_mask=lib.t.zeros(3, 4)),
    "mask of heads": lambda lib: attend(lib, attn_mask=lib.t.zeros(3, 3, 5)),
    "mask rank": lambda lib: attend(lib, attn_mask=lib.t.zeros(5)),
    "mask of unbatched": lambda lib: attend(
        lib, (3, 8), (5, 8), (5, 8), attn_mask=lib.t.zeros(3, 3, 5)
    ),
    "mask dtype": lambda lib: attend(lib, attn_mask=lib.t.zeros(3, 5, dtype=lib.t.int64)),
    "padding": lambda lib: attend(lib, key_padding_mask=lib.t.zeros(2, 4)),
    "padding rank": lambda lib: attend(lib, key_padding_mask=lib.t.zeros(5)),
    "causal": lambda lib: attend(lib, is_causal=True),
    "activation": lambda lib: lib.nn.TransformerEncoderLayer(8, 2, activation="sin"),
    "batch": lambda lib: lib.nn.Transformer(8, 2, 1, 1, 8)(
        lib.t.ones(3, 2, 8), lib.t.ones(3, 1, 8)
    ),
    "features": lambda lib: lib.nn.Transformer(8, 2, 1, 1, 8)(
        lib.t.ones(3, 2, 8), lib.t.ones(3, 2, 7)
    ),
    "backend": lambda lib: enter(lib, "math"),
}


def attention_names(lib):
    return __import__(lib.t.__name__ + ".nn.attention", fromlist=["attention"])


def enter(lib, backends):
    with attention_names(lib).sdpa_kernel(backends):
        pass


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name])


def test_choice_of_a_kernel_is_accepted():
    x = values(1, 2, 3, 4)

    def code(lib, x):
        names = attention_names(lib)
        with names.sdpa_kernel([names.SDPBackend.MATH, names.SDPBackend.FLASH_ATTENTION]):
            y = lib.F.scaled_dot_product_attention(x, x, x)
        with names.sdpa_kernel(names.SDPBackend.MATH, set_priority=True):
            return y, lib.F.scaled_dot_product_attention(x, x, x)

    check(code, x, scale=20)


def test_initial_values():
    for options in ({}, {"kdim": 40}, {"add_bias_kv": True}):
        ours, theirs = (lib.nn.MultiheadAttention(80, 4, **options) for lib in LIBS)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert abs(float(a.detach().std()) - float(b.detach().std())) < 0.02, name
            assert tuple(a.shape) == tuple(b.shape)


# -- transformers ----------------------------------------------------------------------------------
LAYERS = {
    "post": {},
    "pre gelu": {"norm_first": True, "activation": "gelu"},
    "batch first": {"batch_first": True, "bias": False},
}


def quiet(build):
    def made(lib):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return build(lib)

    return made


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """Both layers with masks, in training (without dropout) and evaluation."""
    options = {"dim_feedforward": 12, "dropout": 0.0, **LAYERS[name]}
    encoder = pair(lambda lib: lib.nn.TransformerEncoderLayer(8, 2, **options))
    decoder = pair(lambda lib: lib.nn.TransformerDecoderLayer(8, 2, **options))
    for models in (encoder, decoder):
        assert repr(models["jitgrad"]) == repr(models["torch"])

    def code(lib, x, y):
        causal = lib.nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        padding = lib.t.tensor([[False, False, True], [False] * 3])
        more = {"src_mask": causal > 0, "src_key_padding_mask": padding}
        a = encoder[lib.name](x, **more)
        b = encoder[lib.name](x, src_mask=causal, is_causal=True)
        c = decoder[lib.name](
            x, y, tgt_mask=causal > 0, tgt_key_padding_mask=padding,
            memory_mask=mask(lib, 3, 4, keep=False),
        )  # fmt: skip
        return a, b, c, decoder[lib.name](x[0], y[0]) if "batch" in name else c

    x, y = values(3, 2, 8), values(4, 2, 8, seed=1)
    if options.get("batch_first"):
        x, y = x.transpose(1, 0, 2).copy(), y.transpose(1, 0, 2).copy()
    check(code, x, y, scale=100)


@pytest.mark.parametrize("name", LAYERS)
def test_transformer(name):
    options = {"dim_feedforward": 12, "dropout": 0.0, **LAYERS[name]}
    build = quiet(lambda lib: lib.nn.Transformer(8, 2, 2, 2, **options))
    models = pair(build)
    flip = options.get("batch_first", False)

    def code(lib, x, y):
        t = lib.nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        if flip:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        return models[lib.name](x, y, tgt_mask=t), models[lib.name](x, y, tgt_mask=t > 0)

    check(code, values(4, 2, 8), values(3, 2, 8, seed=1), scale=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for model in models.values():
            model.eval()
        check(code, values(4, 2, 8), values(3, 2, 8, seed=1), grad=False, scale=100)


def test_training_transformer():
    def loss(lib, model, x, y):
        m = lib.nn.Transformer.generate_square_subsequent_mask(3, dtype=x.dtype)
        return (model(x, y, tgt_mask=m) - y).square().mean()

    same_training(
        quiet(lambda lib: lib.nn.Transformer(8, 2, 1, 1, 12, dropout=0.0)),
        [values(4, 2, 8), values(3, 2, 8, seed=1)], loss, scale=500,
    )  # fmt: skip


def test_subclass_with_its_own_blocks():
    """Code that overrides _sa_block and _ff_block, as PyTorch's layers let it."""

    def build(lib):
        class Layer(lib.nn.TransformerEncoderLayer):
            def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
                return 2 * super()._sa_block(x, attn_mask, key_padding_mask, is_causal)

            def _ff_block(self, x):
                return x + super()._ff_block(x)

        return lib.nn.TransformerEncoder(
            Layer(8, 2, 12, 0.0), 2, lib.nn.LayerNorm(8), enable_nested_tensor=False
        )

    models = pair(build)
    check(lambda lib, x: models[lib.name](x), values(3, 2, 8), scale=100)


def test_masks_generated():
    for dtype in (None, "float64"):
        ours, theirs = (
            lib.nn.Transformer.generate_square_subsequent_mask(
                4, dtype=dtype and getattr(lib.t, dtype)
            )
            for lib in LIBS
        )
        same(ours, theirs)
