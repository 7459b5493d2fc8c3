"""What public packages use beside layers, beside PyTorch: flex_attention, operators of their own,
Python's number types as dtypes.
"""

import importlib

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, check, numpy, raises_alike, same

import jitgrad

RNG = np.random.default_rng(0)


def flex(lib):
    return importlib.import_module(f"{lib.t.__name__}.nn.attention.flex_attention")


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float64)


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return q - kv < 3


def soft_cap(score, b, h, q, kv):
    return (score / 2).tanh() * 2


def per_head(score, b, h, q, kv):
    return score + h * (q - kv) * 0.1 - b


# -- flex_attention --------------------------------------------------------------------------------
@pytest.mark.parametrize("score_mod", [None, soft_cap, per_head])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_flex_attention(score_mod, masked, groups):
    q, k, v = normal(2, 4, 5, 3), normal(2, 4 // groups, 5, 3), normal(2, 4 // groups, 5, 6)

    def code(lib, q, k, v):
        f = flex(lib)
        mask = f.create_block_mask(causal, None, None, 5, 5, device="cpu") if masked else None
        return f.flex_attention(q, k, v, score_mod, mask, enable_gqa=groups > 1)

    check(code, q, k, v, grad=False, scale=4.0)  # PyTorch has no backward of it on CPUs
    if masked and groups > 1:
        inputs = [jitgrad.from_numpy(x).requires_grad_() for x in (q[:1], k[:1], v[:1])]
        assert jitgrad.autograd.gradcheck(lambda *x: code(OURS, *x), inputs, fast_mode=True)


def test_flex_attention_of_captured_tensors():
    q, k, v, bias = normal(1, 2, 4, 3), normal(1, 2, 6, 3), normal(1, 2, 6, 3), normal(2)
    documents = np.array([0, 0, 1, 1, 1, 2])

    def code(lib, q, k, v, bias):
        f, names = flex(lib), lib.t.from_numpy(documents)

        def mask(b, h, i, j):
            return (names[i] == names[j]) | (j == 0)

        made = f.create_block_mask(f.and_masks(mask, window), 1, None, 4, 6, device="cpu")
        return f.flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h] * j, made, scale=0.3)

    check(code, q, k, v, bias, grad=False, scale=4.0)
    inputs = [jitgrad.from_numpy(x).requires_grad_() for x in (q, k, v, bias)]
    assert jitgrad.autograd.gradcheck(lambda *x: code(OURS, *x), inputs, fast_mode=True)


def test_flex_attention_gives_sums_and_largest_scores():
    q, k, v = normal(1, 2, 4, 3), normal(1, 2, 4, 3), normal(1, 2, 4, 3)

    def code(lib, q, k, v):
        f = flex(lib)
        out, aux = f.flex_attention(q, k, v, return_aux=f.AuxRequest(lse=True))
        assert type(aux).__name__ == "AuxOutput" and aux.max_scores is None
        return out, aux.lse.to(out.dtype)

    check(code, q, k, v, grad=False, scale=4.0)
    q, k, v = map(jitgrad.from_numpy, (q, k, v))
    f = flex(OURS)  # PyTorch gives no largest scores on CPUs
    _, aux = f.flex_attention(q, k, v, scale=1.0, return_aux=f.AuxRequest(max_scores=True))
    same(aux.max_scores, (q @ k.mT).amax(-1))


def test_queries_that_see_no_key():
    q, k, v = normal(1, 1, 3, 2), normal(1, 1, 3, 2), normal(1, 1, 3, 2)

    def code(lib, q, k, v):
        f = flex(lib)
        mask = f.create_block_mask(lambda b, h, i, j: j < i, None, None, 3, 3, device="cpu")
        return f.flex_attention(q, k, v, block_mask=mask)

    check(code, q, k, v, grad=False, scale=4.0)
    inputs = [jitgrad.from_numpy(x).requires_grad_() for x in (q, k, v)]
    assert jitgrad.autograd.gradcheck(lambda *x: code(OURS, *x), inputs, fast_mode=True)


def test_flex_attention_compiles():
    f = flex(OURS)
    q, k, v = (jitgrad.from_numpy(normal(2, 2, 5, 3)) for _ in range(3))

    @jitgrad.jit(fallback="error")
    def run(q, k, v):
        mask = f.create_block_mask(causal, None, None, 5, 5)
        return f.flex_attention(q, k, v, per_head, mask)

    for _ in range(3):
        got = run(q, k, v)
    assert run.stats.hits == 2
    mask = f.create_block_mask(causal, None, None, 5, 5)
    same(got, f.flex_attention(q, k, v, per_head, mask), scale=4.0)


@pytest.mark.parametrize("sizes", [(7, 9, 4), (8, 8, (4, 2)), (3, 200, 128)])
@pytest.mark.parametrize("apart", [True, False])
def test_block_masks(sizes, apart):
    rows, columns, block = sizes
    masks = [
        flex(lib).create_block_mask(
            causal, 2, None, rows, columns, device="cpu", BLOCK_SIZE=block,
            separate_full_blocks=apart,
        )
        for lib in LIBS
    ]  # fmt: skip
    ours, theirs = masks
    assert ours.shape == theirs.shape and ours.numel() == theirs.numel()
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE and ours.seq_lengths == theirs.seq_lengths
    assert ours.sparsity() == theirs.sparsity()
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
                 "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):  # fmt: skip
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a is None) == (b is None), name
        if a is not None:
            same(a, b, name)
    same(ours.to_dense(), theirs.to_dense())


def test_masks_of_functions():
    for lib in LIBS:
        f = flex(lib)
        either = f.or_masks(window, f.noop_mask)
        assert bool(f.create_mask(either, 1, 1, 3, 3, device="cpu").all())
    made = [
        flex(lib).create_mask(
            lambda s, b, h, q, kv: (s + q).masked_fill(kv > q, float("-inf")), 1, 2, 3, 4,
            device="cpu",
        )
        for lib in LIBS
    ]  # fmt: skip
    same(*made)


def test_bad_calls_of_flex_attention():
    x = normal(1, 2, 4, 3)
    raises_alike(lambda lib, x: flex(lib).flex_attention(x[0], x[0], x[0]), x)
    raises_alike(lambda lib, x: flex(lib).flex_attention(x, x[:, :1], x[:, :1]), x)

    def other_length(lib, x):
        mask = flex(lib).create_block_mask(causal, None, None, 8, 8, device="cpu")
        return flex(lib).flex_attention(x, x, x, block_mask=mask)

    raises_alike(other_length, x)
    raises_alike(lambda lib, x: flex(lib).and_masks(causal, 1), x)


# -- operators -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["one", "two"])
def test_operators_of_users(name):
    x, y = normal(3, 2), normal(3, 2)

    def code(lib, x, y):
        library, space = lib.t.library, f"jg_{lib.name}_{name}"

        def weighted(x, y, factor):
            return x * y * factor

        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * 10, g * x * ctx.factor, None  # 10: so that one sees who ran

        def setup(ctx, inputs, output):
            ctx.save_for_backward(*inputs[:2])
            ctx.factor = inputs[2]

        schema = "(Tensor x, Tensor y, float factor) -> Tensor"
        made = library.custom_op(f"{space}::mul", weighted, mutates_args=(), schema=schema)
        library.register_fake(f"{space}::mul", lambda x, y, factor: lib.t.empty_like(x))
        library.register_autograd(f"{space}::mul", backward, setup_context=setup)
        called = made if name == "one" else getattr(lib.t.ops, space).mul
        return called(x, y, 2.0)

    check(code, x, y)


def test_operators_are_found_and_asked_for():
    for lib in LIBS:
        with pytest.raises(AttributeError):
            lib.t.ops.jg_nothing.like_it  # noqa: B018
        with pytest.raises(OSError):
            lib.t.ops.load_library("/nothing/like_it.so")
        assert not hasattr(lib.t.ops.jg_nothing, "like_it")
        with pytest.raises(ValueError):
            lib.t.library.custom_op("plain", lambda x: x, mutates_args=())

        own = lib.t.library.Library(f"jg_lib_{lib.name}", "DEF")
        own.define("double(Tensor x) -> Tensor")
        own.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        found = getattr(lib.t.ops, f"jg_lib_{lib.name}").double
        assert found(lib.t.ones(2)).tolist() == [2.0, 2.0]
        assert found.default(lib.t.ones(2)).tolist() == [2.0, 2.0]


def test_an_operator_of_users_compiles():
    made = jitgrad.library.custom_op("jg_compiled::cube", lambda x: x**3, mutates_args=())
    made.register_autograd(
        lambda ctx, g: g * 7 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )

    @jitgrad.jit(fallback="error")
    def f(x):
        return jitgrad.func.grad(lambda x: made(x).sum())(x)

    for _ in range(3):
        assert f(jitgrad.ones(2)).tolist() == [7.0, 7.0]
    assert f.stats.hits == 2


# -- dtypes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_types_of_numbers_are_dtypes(kind):
    def dtypes(lib):
        t, x = lib.t, lib.t.ones(2, 3)
        made = [
            t.ones(2, dtype=kind), t.full((2,), 1, dtype=kind), t.tensor([1], dtype=kind),
            t.as_tensor([1], dtype=kind), t.zeros_like(x, dtype=kind), x.new_ones(2, dtype=kind),
            x.new_tensor([1], dtype=kind), x.to(kind), x.to("cpu", kind), x.to(dtype=kind),
            t.eye(2, dtype=kind), x.sum(dtype=kind), x.sum(0, dtype=kind), t.empty(2, dtype=kind),
        ]  # fmt: skip
        if kind is not bool:
            made += [x.cumsum(0, dtype=kind), t.arange(3).to(kind), x.prod(dtype=kind)]
        if kind is float:
            made += [
                t.rand(2, dtype=kind), t.linspace(0, 1, 3, dtype=kind), x.softmax(0, dtype=kind),
                lib.nn.Linear(2, 2).to(kind).weight, lib.nn.Linear(2, 2, dtype=kind).weight,
                t.arange(3).view(kind), t.hann_window(3, dtype=kind), x.mean(dtype=kind),
                t.frombuffer(bytearray(8), dtype=kind),
            ]  # fmt: skip
        names = [str(m.dtype).rsplit(".", 1)[-1] for m in made]
        return names + [str(t.promote_types(kind, bool)).rsplit(".", 1)[-1], t.can_cast(kind, int)]

    assert dtypes(OURS) == dtypes(THEIRS)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_print_alike(name):
    ours, theirs = (repr(lib.t.finfo(getattr(lib.t, name))) for lib in LIBS)
    assert ours == theirs


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_limits_of_dtypes_that_no_tensor_has(name):
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        ours, theirs = (getattr(lib.t.finfo(getattr(lib.t, name)), field) for lib in LIBS)
        assert ours == theirs, field
    dtype = getattr(jitgrad, name)
    assert dtype.itemsize == 1 and dtype.is_floating_point and dtype != jitgrad.float16
    with pytest.raises(TypeError, match=f"no tensors of jitgrad.{name} yet"):
        jitgrad.ones(2).to(dtype)
    with pytest.raises(TypeError, match=f"no tensors of jitgrad.{name} yet"):
        jitgrad.zeros(2, dtype=dtype)


# -- one process -----------------------------------------------------------------------------------
def test_collectives_without_a_group():
    for name in ("get_rank", "get_world_size", "barrier"):
        raises_alike(lambda lib, name=name: getattr(lib.t.distributed, name)())
    raises_alike(lambda lib: lib.t.distributed.all_reduce(lib.t.ones(1)))
    for lib in LIBS:
        assert not lib.t.distributed.is_initialized()
        importlib.import_module(f"{lib.t.__name__}.distributed.nn.functional")
    states = [importlib.import_module(f"{lib.t.__name__}.utils.checkpoint") for lib in LIBS]
    assert [s.get_device_states(lib.t.ones(1)) for s, lib in zip(states, LIBS, strict=True)] == [
        ([], []),
        ([], []),
    ]
    assert numpy(jitgrad.ones(1)).tolist() == [1.0]
