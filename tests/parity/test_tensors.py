"""The Tensor layer: promotion, indexing, views and in-place writes, the tape's errors."""

import itertools
import random

import numpy as np
import pytest
from parity.compare import LIBS, THEIRS, check, dtype_name, raises_alike, same

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
          "float64"]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "maximum",
          "minimum", "eq", "lt", "atan2", "bitwise_and", "logical_or", "true_divide"]  # fmt: skip
UNARY = ["exp", "sqrt", "abs", "neg", "sign", "floor", "round", "sigmoid", "relu", "tanh", "square",
         "reciprocal", "rsqrt", "isnan", "logical_not", "bitwise_not", "sin", "log1p", "trunc",
         "sum", "prod", "mean", "var", "amax", "argmax", "any", "all", "cumsum0", "norm", "std",
         "max", "softmax0", "logsumexp0"]  # fmt: skip
NUMBERS = [True, 2, 1.5]


def outcome(code):
    """The dtype of what code gives, or that it raises. (Where PyTorch raises, jitgrad may not:
    sub takes a bool operand, abs and floor take bools, ...)"""
    try:
        return dtype_name(code())
    except (RuntimeError, TypeError, NotImplementedError):
        return "error"


def unary(lib, name, x):
    if name.endswith("0"):
        return getattr(x, name[:-1])(0)
    return getattr(x, name)()


@pytest.mark.parametrize("name", UNARY)
def test_promotion_of_one_operand(name):
    different = []
    for dtype in DTYPES:

        def code(lib, dtype=dtype):
            return unary(lib, name, lib.t.ones(3, dtype=getattr(lib.t, dtype)))

        got = [outcome(lambda lib=lib, code=code: code(lib)) for lib in LIBS]
        if got[1] not in ("error", got[0]):
            different.append((dtype, *got))
    assert not different


@pytest.mark.parametrize("name", BINARY)
def test_promotion_of_two_operands(name):
    different = []
    for a, b in itertools.product(DTYPES, DTYPES):
        for rank_a, rank_b in itertools.product((0, 1), (0, 1)):

            def code(lib, a=a, b=b, i=rank_a, j=rank_b):
                x = lib.t.ones((2,) * i, dtype=getattr(lib.t, a))
                y = lib.t.ones((2,) * j, dtype=getattr(lib.t, b))
                return getattr(lib.t, name)(x, y)

            got = [outcome(lambda lib=lib, code=code: code(lib)) for lib in LIBS]
            if got[1] not in ("error", got[0]):
                different.append((a, rank_a, b, rank_b, *got))
    assert not different


@pytest.mark.parametrize("name", BINARY)
def test_promotion_with_numbers(name):
    different = []
    for a, number in itertools.product(DTYPES, NUMBERS):
        for rank in (0, 1):

            def code(lib, a=a, n=number, rank=rank):
                return getattr(lib.t.ones((2,) * rank, dtype=getattr(lib.t, a)), name)(n)

            if name in ("maximum", "minimum", "atan2", "logical_or"):
                continue
            got = [outcome(lambda lib=lib, code=code: code(lib)) for lib in LIBS]
            if got[1] not in ("error", got[0]):
                different.append((a, rank, number, *got))
    assert not different


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "pow_", "copy_"])
def test_promotion_in_place(name):
    different = []
    for a, b in itertools.product(DTYPES, DTYPES):

        def code(lib, a=a, b=b):
            x = lib.t.ones(2, dtype=getattr(lib.t, a))
            return getattr(x, name)(lib.t.ones(2, dtype=getattr(lib.t, b)))

        got = [outcome(lambda lib=lib, code=code: code(lib)) for lib in LIBS]
        if got[1] not in ("error", got[0]):
            different.append((a, b, *got))
    assert not different


SPECIAL = [0, 1, -1, 2, -2, 3, 7, -7, 100, -128, 127]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floor_divide", "remainder", "fmod", "div"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float32", "float64"])
def test_arithmetic_values(name, dtype):
    values = [v for v in SPECIAL if v >= 0 or dtype != "uint8"]
    if dtype.startswith("float"):
        values += [0.5, -2.5, -0.0, np.inf, -np.inf, np.nan]
    pairs = [
        (a, b) for a, b in itertools.product(values, values)
        if b or dtype.startswith("float") or name in ("add", "sub", "mul", "div")
    ]  # fmt: skip
    a, b = (np.array(v).astype(dtype) for v in zip(*pairs, strict=True))
    check(lambda lib, a, b: getattr(lib.t, name)(a, b), a, b, grad=False)


def indices(count):
    """Random indexing expressions for a tensor of shape (4, 5, 6). No position occurs twice: the
    derivative of a write would not be defined."""
    pick = random.Random(0)
    for _ in range(count):
        parts = []
        for size in (4, 5, 6)[: pick.randint(1, 3)]:
            kind = pick.choice(["int", "slice", "slice", "list", "mask", "none", "array", "all"])
            if kind == "int":
                parts.append(pick.randint(-size, size - 1))
            elif kind == "slice":
                low, high = pick.randint(-size - 1, size + 1), pick.randint(-size - 1, size + 2)
                parts.append(slice(low, high, pick.choice([None, 1, 2, 3])))
            elif kind == "list":
                parts.append(pick.sample(range(-1, size - 1), 3))
            elif kind == "mask":
                keep = [True] * 3 + [False] * (size - 3)
                pick.shuffle(keep)
                parts.append(np.array(keep))
            elif kind == "none":
                parts += [None, slice(None)]
            elif kind == "array":
                parts.append(np.array(pick.sample(range(size), 4)).reshape(2, 2))
            else:
                parts.append(slice(None))
        if pick.random() < 0.2:
            parts[0] = Ellipsis
            parts = parts[:1] + [p for p in parts[1:] if p is not Ellipsis][-2:]
            parts = [p for p in parts if not isinstance(p, (list, np.ndarray))]
        yield tuple(parts)


def to_lib(lib, index):
    return tuple(lib.t.from_numpy(p) if isinstance(p, np.ndarray) else p for p in index)


@pytest.mark.parametrize("index", list(indices(150)), ids=str)
def test_indexing(index):
    """Reading with gradients; writing a number, a tensor, and what was read."""
    x = np.random.default_rng(0).standard_normal((4, 5, 6))

    def read(lib, x):
        return x[to_lib(lib, index)] * 1

    def write(lib, x):
        y, z = x * 1, x * 1
        where = to_lib(lib, index)
        y[where] = 2.5
        z[where] = z[where] * 3
        z[where] += 1
        return y, z

    try:
        np.zeros((4, 5, 6))[tuple(np.asarray(p) if isinstance(p, list) else p for p in index)]
    except IndexError:
        raises_alike(read, x)
        return
    check(read, x)
    check(write, x)


def test_reading_a_position_twice():
    x = np.random.default_rng(0).standard_normal((4, 5))
    check(lambda lib, x: x[[1, 1, -3]], x)
    check(lambda lib, x: x[[0, 0, 2], [1, 1, 4]], x)


def programs(count):
    pick = random.Random(5)
    views = ["t", "row", "step", "diagonal", "unsqueeze", "reshape", "narrow", "expand_write"]
    writes = ["mul", "add_view", "fill", "zero", "copy", "relu", "setitem", "square"]
    for _ in range(count):
        yield [(pick.choice(views), pick.choice(writes)) for _ in range(pick.randint(1, 4))]


def view_of(x, kind):
    return {
        "t": lambda: x.t(), "row": lambda: x[1], "step": lambda: x[:, ::2],
        "diagonal": lambda: x.diagonal(), "unsqueeze": lambda: x.unsqueeze(1),
        "reshape": lambda: x.view(-1), "narrow": lambda: x.narrow(0, 1, 2),
        "expand_write": lambda: x[1:3].permute(1, 0),
    }[kind]()  # fmt: skip


def write_to(lib, v, kind, other):
    if kind == "mul":
        v.mul_(other.sum())
    elif kind == "add_view":
        v += v.detach() * 0.5 + other.mean()
    elif kind == "fill":
        v.fill_(0.7)
    elif kind == "zero":
        v.zero_()
    elif kind == "copy":
        v.copy_(other.flatten()[:1].expand(v.shape))
    elif kind == "relu":
        v.copy_((v.clone() if lib is THEIRS else v).relu())
    elif kind == "setitem":
        v[0] = other[0, 0]
    else:
        w = v.clone() if lib is THEIRS else v  # PyTorch refuses to differentiate v.copy_(v * v)
        v.copy_(w * w)


@pytest.mark.parametrize("program", list(programs(60)), ids=str)
def test_views_and_writes(program):
    """Random writes through views: the base, older views and all gradients agree."""
    rng = np.random.default_rng(2)

    def code(lib, x, other):
        base = x * 1
        kept = base[2]
        for view, write in program:
            write_to(lib, view_of(base, view), write, other)
        return base * 1, kept * 2

    check(code, rng.standard_normal((4, 4)), rng.standard_normal((3, 3)), scale=30)


def broken(lib, x):
    y = x.requires_grad_() * 2
    z = y * y
    y.add_(1)
    z.sum().backward()


def twice(lib, x):
    y = (x.requires_grad_() ** 2).sum()
    y.backward()
    y.backward()


def leaf_write(lib, x):
    x.requires_grad_().add_(1)


def leaf_view_write(lib, x):
    x.requires_grad_()[0].mul_(2)


def expanded_write(lib, x):
    x[:1].expand(3).add_(1)


BAD = {
    "modified": broken,
    "twice": twice,
    "leaf": leaf_write,
    "view of leaf": leaf_view_write,
    "expanded": expanded_write,
    "no scalar": lambda lib, x: (x.requires_grad_() * 2).backward(),
    "no grad": lambda lib, x: x.sum().backward(),
    "unused": lambda lib, x: lib.t.autograd.grad(
        (x.requires_grad_() * 2).sum(), lib.t.ones(2).requires_grad_()
    ),
    "numpy": lambda lib, x: x.requires_grad_().numpy(),
    "int grad": lambda lib, x: x.long().requires_grad_(),
    "item": lambda lib, x: x.item(),
    "bool": lambda lib, x: bool(x),
    "shapes": lambda lib, x: x + lib.t.ones(4),
    "matmul": lambda lib, x: lib.t.ones(2, 3) @ lib.t.ones(2, 3),
    "matmul dtypes": lambda lib, x: lib.t.ones(2, 2) @ lib.t.ones(2, 2).double(),
    "view": lambda lib, x: lib.t.ones(2, 3).t().view(6),
    "reshape": lambda lib, x: x.reshape(2, 2),
    "index": lambda lib, x: x[7],
    "too many": lambda lib, x: x[0, 0],
    "float index": lambda lib, x: x[1.5],
    "dim": lambda lib, x: x.sum(3),
    "cat": lambda lib, x: lib.t.cat([lib.t.ones(2, 3), lib.t.ones(2, 4)]),
    "stack": lambda lib, x: lib.t.stack([lib.t.ones(2), lib.t.ones(3)]),
    "squeeze": lambda lib, x: x.squeeze(4),
    "permute": lambda lib, x: lib.t.ones(2, 3).permute(0, 0),
    "expand": lambda lib, x: x.expand(2, 4),
    "gather dtype": lambda lib, x: x.gather(0, lib.t.tensor([0.5])),
    "mean of ints": lambda lib, x: lib.t.ones(3, dtype=lib.t.int64).mean(),
    "in-place dtype": lambda lib, x: lib.t.ones(3, dtype=lib.t.int64).add_(0.5),
    "in-place shape": lambda lib, x: x.add_(lib.t.ones(2, 3)),
    "ragged": lambda lib, x: lib.t.tensor([[1, 2], [3]]),
    "device": lambda lib, x: x.to("nowhere"),
    "no tensor": lambda lib, x: lib.t.relu(3),
    "einsum": lambda lib, x: lib.t.einsum("ij,jk->ik", lib.t.ones(2, 3), lib.t.ones(2, 3)),
    "split": lambda lib, x: x.split([1, 1]),
    "topk": lambda lib, x: x.topk(9),
    "negative shape": lambda lib, x: lib.t.zeros(-1),
    "max of nothing": lambda lib, x: lib.t.ones(0).amax(0),
    "bool subtraction": lambda lib, x: (x > 0) - (x > 0),
    "negative power": lambda lib, x: lib.t.tensor([2, 3]) ** -1,
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], np.array([1.0, 2.0, 3.0]))


def test_text_of_the_commonest_tape_errors():
    for name, part in {
        "modified": "has been modified by an inplace operation",
        "twice": "backward through the graph a second time",
        "leaf": "a leaf Variable that requires grad is being used in an in-place operation",
        "no scalar": "grad can be implicitly created only for scalar outputs",
        "no grad": "does not require grad and does not have a grad_fn",
    }.items():
        for text in raises_alike(BAD[name], np.array([1.0, 2.0, 3.0])):
            assert part in text


def test_reductions_of_awkward_shapes():
    for shape in [(0,), (3, 0), (2, 3), (1, 1, 4), ()]:
        x = np.asarray(np.random.default_rng(0).standard_normal(shape))
        for name in ("sum", "prod", "mean", "logsumexp", "var", "std", "norm"):
            for dim in [None, *range(-len(shape), len(shape))]:
                if name == "logsumexp" and dim is None or name in ("std", "var") and x.size < 2:
                    continue

                def code(lib, x, name=name, dim=dim):
                    f = getattr(x, name)
                    return f() if dim is None else f(dim=dim)

                both = [code(lib, lib.t.from_numpy(x)) for lib in LIBS]
                same(*both, f"{name} {shape} {dim}", 4)


@pytest.mark.parametrize("count", [3, 60])
def test_the_last_of_several_writes(count):
    """Values as PyTorch's on the CPU. (Gradients of writes that were lost are 0 here.)"""
    rng = np.random.default_rng(0)
    base, src = rng.normal(size=(4, 3)), rng.normal(size=(count, 3))
    each, row = rng.integers(0, 4, (count, 3)), rng.integers(0, 4, count)
    for f in (
        lambda b, s, e, r: b.scatter(0, e, s),
        lambda b, s, e, r: b.index_copy(0, r, s),
        lambda b, s, e, r: b.clone().index_put_((r,), s),
        lambda b, s, e, r: b.clone().index_put_((r,), s, accumulate=True),
        lambda b, s, e, r: b.scatter_add(0, e, s),
        lambda b, s, e, r: b.index_add(0, r, s),
    ):
        found = [f(*(lib.t.tensor(x) for x in (base, src, each, row))).numpy() for lib in LIBS]
        np.testing.assert_allclose(*found, rtol=1e-12)


SIZES = {
    "slice": lambda size, Size: size[1:],
    "slice back": lambda size, Size: size[::-1],
    "empty slice": lambda size, Size: size[3:],
    "item": lambda size, Size: size[-1],
    "add": lambda size, Size: size[:1] + (5, -1),
    "add a Size": lambda size, Size: size + Size([7]),
    "added to": lambda size, Size: (5,) + size,
    "times": lambda size, Size: size * 2,
    "times from the left": lambda size, Size: 2 * size,
    "numel of a slice": lambda size, Size: size[1:].numel(),
    "numel of none": lambda size, Size: size[:0].numel(),
    "add a list": lambda size, Size: size + [1],
    "added to a list": lambda size, Size: [1] + size,
    "add a number": lambda size, Size: size + 1,
    "times text": lambda size, Size: size * "a",
    "no item": lambda size, Size: size[3],
    "of bools": lambda size, Size: Size((True, False)),
    "of NumPy's ints": lambda size, Size: Size(np.arange(3)),
    "of nothing": lambda size, Size: Size(),
    "of floats": lambda size, Size: Size((1.5,)),
    "of text": lambda size, Size: Size("ab"),
    "and floats": lambda size, Size: size + (1.5,),
    "floats and": lambda size, Size: (1.5,) + size,
}


@pytest.mark.parametrize("name", SIZES)
def test_parts_of_a_size(name):
    """A slice, a sum or a multiple of a Size is one, as in PyTorch."""
    found = []
    for lib in LIBS:
        try:
            value = SIZES[name](lib.t.ones(2, 3, 4).shape, lib.t.Size)
            found.append((type(value).__name__, value))
        except (TypeError, IndexError) as error:
            found.append((type(error).__name__, None))
    assert found[0] == found[1]
