"""Numbers meet dtypes that do not hold them: wrapped or refused as by PyTorch, eager and compiled.

One expression a line. u is uint8 [1, 200], s int8 [1, -100], i int32 [1, 7], l int64 [1, -7],
f float32 ones (2).
"""

import math

import numpy as np
import pytest
from parity.compare import LIBS, OURS, same

ARITHMETIC = """
u + 300
u - 256
300 - u
300 * u
u * 300
u // 300
u % 257
300 % u
u & 0x1ff
u | 0x1ff
0x1ff ^ u
u << 9
300 ** u
u ** 300
u == 300
u == 257
u != 257
u < 256
u < 300
u >= -200
u // 256
u % 256
u + (2**64 - 1)
u + 2**64
u == 2**70
s + 128
s - 200
s > 200
i * 2**40
i + 2**40
i == 2**32 + 1
l + 2**63
l + (-(2**63) - 1)
l == 2**63
u.add(300, alpha=2)
u.add(u, alpha=300)
u.clamp(-1, 300)
t.where(u > 100, u, 300)
t.div(u, 300, rounding_mode="trunc")
t.div(u, 300, rounding_mode="floor")
t.fmod(u, 300)
t.eq(u, 300)
t.rsub(u, 300)
u.clone().add_(300)
u.clone().mul_(300)
u.clone().fill_(300)
u.masked_fill(u > 1, 300)
f.masked_fill(f > 0, 1j)
f.masked_fill(f > 0, 2 + 0j)
f.clone().fill_(1j)
f.clone().fill_(2 + 0j)
f.clone().add_(1j)
f + 1j
l + 1j
""".strip().splitlines()

MADE = """
t.tensor([1j], dtype=t.float32)
t.tensor([1 + 2j], dtype=t.int64)
t.tensor(1j, dtype=t.float32)
t.tensor([1, 2j], dtype=t.float64)
t.tensor([True, 2j], dtype=t.bool)
t.as_tensor([1j], dtype=t.float32)
t.asarray(1j, dtype=t.float32)
f.new_tensor([1j])
t.FloatTensor([1j])
t.scalar_tensor(1j)
t.full((2,), 1j, dtype=t.float32)
t.full((2,), 1j, dtype=t.int64)
t.full((2,), 2 + 0j, dtype=t.float32)
t.full_like(f, 1j)
f.new_full((2,), 1j)
t.tensor([-1], dtype=t.uint8)
t.tensor([-256], dtype=t.uint8)
t.tensor([256], dtype=t.uint8)
t.tensor([-1], dtype=t.uint16)
t.tensor([300.5], dtype=t.uint8)
t.tensor([float("nan")], dtype=t.int64)
t.tensor(float("nan"), dtype=t.int64)
t.tensor([1e30], dtype=t.int64)
t.tensor(np.array([300]), dtype=t.uint8)
t.tensor(np.int64(300), dtype=t.uint8)
t.ByteTensor([300])
""".strip().splitlines()

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "complex64", "int8", "int64", "uint8", "bool",
)  # fmt: skip
VALUES = (
    1e60, -1e60, 3.5e38, 3.4028235677973366e38, 65520.0, 65519.0, math.inf, math.nan, 2**63, 2**64,
    -(2**63) - 1, 300, -1, -1.5, -0.5, 127.5, 255.9, True, 1j, 1e60j,
)  # fmt: skip
STORED = """
t.full((2,), v, dtype=d)
t.full_like(z, v)
z.new_full((2,), v)
t.scalar_tensor(v, dtype=d)
t.tensor(v, dtype=d)
z.fill_(v)
z.__setitem__(0, v) or z
z.__setitem__(m, v) or z
z.masked_fill(m, v)
z.index_fill(0, i, v)
z.scatter(0, i, v)
z.clamp(max=v)
z.clamp_min(v)
t.where(m, v, z)
t.add(z, z, alpha=v)
z.diag().fill_diagonal_(v)
F.pad(z, (1, 1), value=v)
t.nan_to_num(z, v)
""".strip().splitlines()
APART = {  # no kernels of PyTorch's, or another error of them
    ("z.clamp(max=v)", "bool"), ("z.clamp(max=v)", "complex64"), ("z.clamp_min(v)", "complex64"),
    ("z.clamp_min(v)", "bool"), ("t.add(z, z, alpha=v)", "bool"),
    ("t.where(m, v, z)", "float16"), ("F.pad(z, (1, 1), value=v)", "int64"),
}  # fmt: skip


def outcome(lib, call, jitted=False):
    t = lib.t
    values = [
        t.tensor([1, 200], dtype=t.uint8), t.tensor([1, -100], dtype=t.int8),
        t.tensor([1, 7], dtype=t.int32), t.tensor([1, -7]), t.ones(2),
    ]  # fmt: skip
    function = eval(f"lambda u, s, i, l, f: {call}", {"t": t, "np": np})
    if jitted:
        function = t.jit(function, fallback="error")
    try:
        for _ in range(1 + jitted):
            out = function(*values)
        return out
    except Exception as error:
        return error


def agree(ours, theirs):
    if isinstance(ours, Exception) or isinstance(theirs, Exception):
        assert type(ours) is type(theirs), (ours, theirs)
    else:
        same(ours, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("call", ARITHMETIC)
def test_arithmetic(call, jitted):
    agree(outcome(OURS, call, jitted), outcome(LIBS[1], call))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", MADE)
def test_made(call):
    agree(outcome(OURS, call), outcome(LIBS[1], call))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", STORED)
def test_stored(call, dtype):
    """A number that overflows in a dtype is refused where PyTorch refuses it, and inf elsewhere."""
    if (call, dtype) in APART:
        return
    for value in VALUES:
        if "clamp" in call and isinstance(value, complex):
            continue
        results = []
        for lib in LIBS:
            t = lib.t
            d = getattr(t, dtype)
            scope = {
                "t": t, "F": t.nn.functional, "d": d, "v": value, "z": t.ones(2).to(d),
                "m": t.tensor([True, False]), "i": t.tensor([0]),
            }  # fmt: skip
            try:
                results.append(eval(call, scope))
            except Exception as error:
                results.append(error)
        theirs, ours = results if LIBS[0].name == "torch" else results[::-1]
        try:
            agree(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"{call} with {value}") from error
