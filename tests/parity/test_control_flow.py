"""cond, while_loop and scan beside PyTorch's (which runs them through its own compiler)."""

import numpy as np
import pytest
from parity.compare import LIBS, THEIRS, same

rng = np.random.default_rng(2)
X = rng.standard_normal((5, 2, 3)).astype(np.float32)


def functions(lib):
    if lib is THEIRS:
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop

        return lib.t.cond, while_loop, scan
    return lib.t.cond, lib.t.while_loop, lib.t.scan


def results(code):
    out = []
    for lib in LIBS:
        try:
            out.append(code(lib, *functions(lib), lib.t.from_numpy(X.copy())))
        except Exception as error:
            if lib is THEIRS and "dynamo" in f"{type(error)}{error}".lower():
                pytest.skip(f"PyTorch cannot run it here: {type(error).__name__}")
            raise
    return out


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(dim, reverse):
    def code(lib, cond, while_loop, scan, x):
        def step(carry, x):
            new = lib.t.tanh(carry["h"] + x)
            return {"h": new}, new * 2

        start = {"h": lib.t.zeros([d for k, d in enumerate(x.shape) if k != dim])}
        last, ys = scan(step, start, x, dim=dim, reverse=reverse)
        return last["h"], ys

    for ours, theirs in zip(*results(code), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    def code(lib, cond, while_loop, scan, x):
        (x,) = (sign * x.abs(),)
        return cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x - 1,), (x,))

    ours, theirs = results(code)
    same(ours[0], theirs[0])


def test_while_loop():
    def code(lib, cond, while_loop, scan, x):
        start = (lib.t.zeros((), dtype=lib.t.int64), x)
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), start)

    for ours, theirs in zip(*results(code), strict=True):
        same(ours, theirs)
