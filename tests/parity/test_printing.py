"""repr, str and format of tensors: PyTorch's text, but for the library's name."""

import re

import numpy as np
import pytest
from parity.compare import LIBS

rng = np.random.default_rng(0)
ARRAYS = {
    "vector": rng.standard_normal(7), "matrix": rng.standard_normal((3, 4)),
    "3d": rng.standard_normal((2, 3, 4)), "4d": rng.standard_normal((2, 2, 2, 2)),
    "long": rng.standard_normal(1200), "large": rng.standard_normal((50, 60)),
    "large 3d": rng.standard_normal((12, 12, 12)), "wide": rng.standard_normal((2, 100)),
    "tall": rng.standard_normal((1001, 2)), "over two lines": rng.standard_normal(40),
    "far apart": np.array([1e-10, 1, 1e10]), "small": np.array([1e-5, 1.0]),
    "whole": np.array([1.0, 2, 3]), "whole and large": np.array([1.0, 1e9]),
    "thousand": np.array([1000.5, 1e-3]), "edge": np.array([1.5e8, 2.0]),
    "negative": np.array([-1.5, 22.25]), "count": np.arange(1001.0),
    "special": np.array([np.nan, 1.5, np.inf, -np.inf]), "nan": np.full(3, np.nan),
    "special and whole": np.array([np.nan, 1, np.inf]), "zeros": np.zeros((2, 3)),
    "negative zeros": np.array([-0.0, 0.0, 1]), "empty": np.zeros(0),
    "empty matrix": np.zeros((0, 3)), "empty 3d": np.zeros((2, 0, 3)), "0-d": np.array(3.5),
    "0-d whole": np.array(3.0), "0-d nan": np.array(np.nan), "ones": np.ones((1, 1, 1, 1)),
}  # fmt: skip
INTEGERS = {
    "matrix": rng.integers(-5, 1000, (3, 4)), "empty": np.zeros((0, 2), int), "0-d": np.array(3),
    "large": rng.integers(0, 5, (100, 20)), "count": np.arange(2000),
}  # fmt: skip
OPTIONS = [
    {"precision": 2}, {"precision": 8}, {"threshold": 5}, {"edgeitems": 1, "threshold": 5},
    {"linewidth": 40}, {"profile": "short"}, {"profile": "full"}, {"sci_mode": True},
    {"sci_mode": False}, {"profile": "default"},
]  # fmt: skip


def normal(text):
    """The library's name replaced; since it changes the width of suffixes, they do not break."""
    text = text.replace("torch.", "jitgrad.")
    return re.sub(r",\s+(dtype|grad_fn|requires_grad|size)=", r", \1=", text)


def assert_same(code):
    ours, theirs = (code(lib) for lib in LIBS)
    assert normal(ours) == normal(theirs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ARRAYS)
def test_floats(name, dtype):
    assert_same(lambda lib: repr(lib.t.from_numpy(ARRAYS[name].copy()).to(getattr(lib.t, dtype))))


@pytest.mark.parametrize("name", ARRAYS)
def test_on_the_tape(name):
    a = ARRAYS[name].astype(np.float32)
    assert_same(lambda lib: repr(lib.t.from_numpy(a.copy()).requires_grad_()))
    assert_same(lambda lib: repr(lib.t.from_numpy(a.copy()).requires_grad_() * 2))
    assert_same(lambda lib: repr(lib.t.from_numpy(a.copy()).double().requires_grad_().sum()))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name, dtype):
    assert_same(lambda lib: repr(lib.t.from_numpy(INTEGERS[name]).to(getattr(lib.t, dtype))))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options):
    names = ["matrix", "3d", "far apart", "whole", "empty", "special", "wide", "thousand"]
    if options.get("profile") != "full":
        names += ["large 3d", "long", "count"]
    try:
        for lib in LIBS:
            lib.t.set_printoptions(**options)
        for name in names:
            assert_same(lambda lib, a=ARRAYS[name]: repr(lib.t.from_numpy(a.copy())))
            assert_same(lambda lib, a=ARRAYS[name]: repr(lib.t.from_numpy(a.copy()).float()))
    finally:
        for lib in LIBS:
            lib.t.set_printoptions(profile="default")


def test_results_of_several_fields():
    for code in ("x.max(0)", "x.sort(1)", "x.topk(1)", "x.median(0)", "t.aminmax(x)", "x.cummax(0)",
                 "t.histogram(x, 2)", "x.mode(0)"):  # fmt: skip
        assert_same(lambda lib, code=code: repr(eval(code, {"t": lib.t, "x": lib.t.eye(3)})))


def test_str_and_format():
    assert_same(lambda lib: f"{lib.t.tensor(2.5):.3f} {lib.t.tensor(3)} {lib.t.ones(2)}")
    assert_same(lambda lib: f"{lib.t.tensor(True)} {lib.t.tensor(2.5)!r}")
    assert_same(lambda lib: repr(lib.nn.Parameter(lib.t.ones(2, 2))) + str(lib.t.Size([2, 3])))
