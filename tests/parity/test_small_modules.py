"""torch._foreach_*, torch.utils._pytree, torch.signal.windows, torch.utils.hooks."""

import collections
import importlib
import inspect

import numpy as np
import pytest
from parity.compare import LIBS, raises_alike, same, torch

import jitgrad

FOREACH = [name for name in dir(torch) if name.startswith("_foreach_") and "powsum" not in name]
LISTS = {"add", "sub", "mul", "div", "pow", "clamp_max", "clamp_min", "maximum", "minimum"}
POSITIVE = {"log", "log10", "log1p", "log2", "sqrt", "rsqrt", "pow", "lgamma", "reciprocal"}


def lists(lib, count=1, positive=False):
    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        arrays = [rng.uniform(0.1 if positive else -0.9, 0.9, s) for s in ((2, 3), (), (4,))]
        out.append([lib.t.tensor(a, dtype=lib.t.float64) for a in arrays])
    return out


def calls(name):
    """Argument makers for one name: each gives what follows the list itself."""
    base = name.removeprefix("_foreach_").removesuffix("_")
    if base in LISTS:
        yield lambda lib, a, b: (2.0,)
        yield lambda lib, a, b: (a,)
        yield lambda lib, a, b: ([0.5, 2.0, 1.5],)
        if base in ("add", "mul", "div"):
            yield lambda lib, a, b: (lib.t.tensor(0.5, dtype=lib.t.float64),)
    elif base in ("addcmul", "addcdiv"):
        yield lambda lib, a, b: (a, b)
        yield lambda lib, a, b: (a, b, 0.5)
        yield lambda lib, a, b: (a, b, [0.5, 2.0, 1.0])
        yield lambda lib, a, b: (a, b, lib.t.tensor([0.5, 2.0, 1.0], dtype=lib.t.float64))
    elif base == "lerp":
        yield lambda lib, a, b: (a, 0.25)
        yield lambda lib, a, b: (a, b)
    elif base == "copy":
        yield lambda lib, a, b: (a,)
    elif base == "norm":
        yield lambda lib, a, b: ()
        yield lambda lib, a, b: (1,)
    else:
        yield lambda lib, a, b: ()


@pytest.mark.parametrize("name", [n for n in FOREACH if n != "_foreach_mm"])
def test_foreach(name):
    positive = name.removeprefix("_foreach_").removesuffix("_") in POSITIVE
    for arguments in calls(name):
        found = []
        for lib in LIBS:
            x, a, b = lists(lib, 3, positive)
            result = getattr(lib.t, name)(x, *arguments(lib, a, b))
            assert (result is x) == name.endswith("_")
            found.append(result)
        assert type(found[0]) is type(found[1])
        for ours, theirs in zip(*found, strict=True):
            same(ours, theirs, name)


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_refuses_what_does_not_fit(name):
    for lib in LIBS:
        x = lib.t.ones(2, 2)
        takes = 1 if name == "_foreach_mm" else len(next(calls(name))(lib, [x], [x]))
        function = getattr(lib.t, name)
        if not name.startswith(("_foreach_norm", "_foreach_pow")):
            with pytest.raises(TypeError):
                function([x], *[[x]] * (takes + 3))
        if takes:
            with pytest.raises(TypeError):
                function([x])
        with pytest.raises(RuntimeError):
            function([], *[[]] * takes)
        if "addc" in name:
            with pytest.raises(TypeError):
                function([x], [x], 0.5)


def test_foreach_under_jit():
    @jitgrad.jit(fallback="error")
    def step(params, grads, ema):
        norms = jitgrad._foreach_norm(grads)
        scale = jitgrad.stack(norms).norm().clamp(min=1.0)
        jitgrad._foreach_div_(grads, scale)
        jitgrad._foreach_add_(params, grads, alpha=-0.1)
        jitgrad._foreach_lerp_(ema, params, 0.5)
        return norms

    (params, grads, ema), (p2, g2, e2) = lists(LIBS[0], 3), lists(LIBS[0], 3)
    for _ in range(2):
        step(params, grads, ema)
        step.__wrapped__(p2, g2, e2)
    for ours, eager in zip((*params, *ema), (*p2, *e2), strict=True):
        np.testing.assert_allclose(ours.numpy(), eager.numpy(), rtol=1e-14)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib: lib.t._foreach_add(lib.t.ones(2), 1),
        lambda lib: lib.t._foreach_add([lib.t.ones(2)], [1.0, 2.0]),
        lambda lib: lib.t._foreach_mul_([lib.t.ones(2)], [lib.t.ones(2)] * 2),
        lambda lib: lib.t._foreach_nothing,
        lambda lib: lib.t._foreach_clone_,
    ],
)
def test_errors_of_foreach(call):
    raises_alike(call)


# -- pytrees ---------------------------------------------------------------------------------------
Point = collections.namedtuple("Point", "x y")
TREES = [
    1, None, (), [], {}, (1, [2, 3]),
    {"b": 1, "a": (2, {"c": 3})}, Point(1, [2]), [None, {"k": None}],
    collections.OrderedDict(z=1, y=2), collections.defaultdict(list, a=[1, 2]),
]  # fmt: skip


def trees(lib):
    return importlib.import_module(f"{lib.name}.utils._pytree")


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_pytree(tree):
    found = []
    for lib in LIBS:
        p = trees(lib)
        leaves, spec = p.tree_flatten(tree)
        back = p.tree_unflatten(leaves, spec)
        assert back == tree and type(back) is type(tree)
        found.append(
            [
                leaves, spec.num_leaves, p.tree_leaves(tree), p.tree_map(lambda x: [x], tree),
                p.tree_map_only(int, lambda x: x + 1, tree),
                p.tree_leaves(tree, is_leaf=lambda x: isinstance(x, list)),
                p.tree_all(lambda x: x == 1, tree), p.tree_any(lambda x: x == 1, tree),
                p.tree_map(lambda x, y: (x, y), tree, tree),
                p.tree_structure(tree) == spec,
            ]
        )  # fmt: skip
    assert found[0] == found[1]


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


def test_a_registered_class_and_trees_that_differ():
    for lib in LIBS:
        p = trees(lib)
        kind = type("Pair", (Pair,), {})
        p.register_pytree_node(
            kind, lambda x: ([x.a, x.b], None), lambda children, context, k=kind: k(*children)
        )
        doubled = p.tree_map(lambda x: x * 2, {"p": kind(1, [2])})["p"]
        assert (doubled.a, doubled.b) == (2, [4])
        assert p.tree_map(lambda x, y: y, [1, 2], [(3, 4), 5]) == [(3, 4), 5]
        with pytest.raises(ValueError):
            p.tree_map(lambda x, y: x, [1, 2], [1, 2, 3])
        with pytest.raises(ValueError):
            p.tree_unflatten([1], p.tree_structure((1, 2)))


def test_tensors_of_a_tree():
    for lib in LIBS:
        p = trees(lib)
        batch = {"x": lib.t.ones(2, requires_grad=True), "n": 3}
        got = p.tree_map_only(lib.t.Tensor, lambda x: x.detach(), batch)
        assert got["n"] == 3 and not got["x"].requires_grad


# -- windows ---------------------------------------------------------------------------------------
OPTIONS = {
    "exponential": [{"tau": 2.0}, {"center": 1.0, "sym": False}], "gaussian": [{"std": 0.7}],
    "kaiser": [{"beta": 5.0}], "general_hamming": [{"alpha": 0.6}],
    "general_cosine": [{"a": [0.5, 0.3, 0.2]}],
}  # fmt: skip


@pytest.mark.parametrize("name", torch.signal.windows.__all__)
def test_window(name):
    windows = [importlib.import_module(f"{lib.name}.signal.windows") for lib in LIBS]
    ours, theirs = (getattr(w, name) for w in windows)
    signatures = [list(inspect.signature(f).parameters) for f in (ours, theirs)]
    assert signatures[0] == signatures[1]
    for options in OPTIONS.get(name, [{}]):
        for size in (0, 1, 2, 7):
            for sym in (True, False):
                given = {"sym": sym, **options}
                if given.get("center") is not None and given["sym"]:
                    continue
                for dtype, bound in (("float32", 2e-7), ("float64", 1e-15)):
                    dtypes = [getattr(lib.t, dtype) for lib in LIBS]
                    made = ours(size, dtype=dtypes[0], requires_grad=True, **given)
                    wanted = theirs(size, dtype=dtypes[1], **given)
                    assert made.dtype is dtypes[0] and made.requires_grad
                    np.testing.assert_allclose(made.detach().numpy(), wanted.numpy(), 0, bound)


@pytest.mark.parametrize(
    "call",
    [
        lambda w, t: w.hann(-1),
        lambda w, t: w.hann(3, dtype=t.int64),
        lambda w, t: w.gaussian(3, std=0),
        lambda w, t: w.exponential(3, tau=0),
        lambda w, t: w.general_cosine(3, a=[]),
        lambda w, t: w.general_cosine(3, a=1.0),
        lambda w, t: w.hann(3, beta=1),
    ],
)
def test_errors_of_windows(call):
    raises_alike(lambda lib: call(importlib.import_module(f"{lib.name}.signal.windows"), lib.t))


def test_the_handle_of_a_hook():
    for lib in LIBS:
        hooks = importlib.import_module(f"{lib.name}.utils.hooks")
        handle = lib.nn.Linear(1, 1).register_forward_hook(lambda *a: None)
        assert isinstance(handle, hooks.RemovableHandle)
