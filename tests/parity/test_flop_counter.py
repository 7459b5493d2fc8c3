"""FlopCounterMode: PyTorch's totals, by module too; and swap_tensors."""

from __future__ import annotations

import numpy as np
import pytest
from parity.compare import LIBS, OURS

import jitgrad


def counter(lib, **options):
    if lib is OURS:
        from jitgrad.utils.flop_counter import FlopCounterMode
    else:
        from torch.utils.flop_counter import FlopCounterMode
    return FlopCounterMode(display=False, **options)


def convolution(lib, **options):
    x = lib.t.ones(2, 4, 9, 9, requires_grad=True)
    w = lib.t.ones(8, 4 // options.get("groups", 1), 3, 3, requires_grad=True)
    return lib.F.conv2d(x, w, **options)


PROGRAMS = {
    "mm": lambda lib: lib.t.ones(3, 4) @ lib.t.ones(4, 5),
    "bmm": lambda lib: lib.t.bmm(lib.t.ones(2, 3, 4), lib.t.ones(2, 4, 5)),
    "addmm": lambda lib: lib.t.addmm(lib.t.ones(3, 5), lib.t.ones(3, 4), lib.t.ones(4, 5)),
    "transposed": lambda lib: lib.t.ones(4, 3).T @ lib.t.ones(5, 4).T,
    "einsum": lambda lib: lib.t.einsum("bij,bjk->bik", lib.t.ones(2, 3, 4), lib.t.ones(2, 4, 5)),
    "conv": lambda lib: convolution(lib, stride=2, padding=1),
    "conv in groups": lambda lib: convolution(lib, groups=2),
    "conv backward": lambda lib: convolution(lib, stride=2).sum().backward(),
    "conv_transpose": lambda lib: lib.F.conv_transpose2d(
        lib.t.ones(1, 2, 5, 5), lib.t.ones(2, 3, 3, 3), stride=2
    ),
    "linear backward": lambda lib: lib.F.linear(
        lib.t.ones(6, 4, requires_grad=True), lib.t.ones(5, 4, requires_grad=True), lib.t.ones(5)
    ).sum().backward(),
    "nothing": lambda lib: (lib.t.ones(3) + 1).exp().sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_totals(name) -> None:
    totals = []
    for lib in LIBS:
        with counter(lib) as found:
            PROGRAMS[name](lib)
        totals.append(found.get_total_flops())
    assert totals[0] == totals[1] and (totals[0] > 0) == (name != "nothing")


def test_modules() -> None:
    """By module, forward and backward; a second pass counts as much again."""
    found, tables = [], []
    for lib in LIBS:
        nn = lib.nn
        inner = nn.Sequential(nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 3))
        net = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), inner)
        x = lib.t.ones(2, 3, 4, 4, requires_grad=True)
        with counter(lib) as counts:
            for _ in range(2):
                net(x).sum().backward()
        by_module = {k: sum(v.values()) for k, v in counts.get_flop_counts().items()}
        found.append((by_module, counts.get_total_flops()))
        tables += [counts.get_table(2)] if lib is OURS else []  # PyTorch's needs a package
    assert found[0] == found[1]
    assert "Sequential.3.0" in found[0][0]
    assert "Sequential.0" in tables[0] and "Sequential.3.0" not in tables[0]


def test_jitted_functions_are_counted() -> None:
    f = jitgrad.jit(lambda a, b: (a @ b).sum())
    a, b = jitgrad.ones(3, 4), jitgrad.ones(4, 5)
    for _ in range(2):
        f(a, b)
    with counter(OURS) as found:
        f(a, b)
        with pytest.raises(RuntimeError, match="no profile or count"):
            counter(OURS).__enter__()
    assert found.get_flop_counts() == {"Global": {"matmul": 120}}
    with counter(OURS, custom_mapping={"exp": lambda shape, out_shape: out_shape[0]}) as found:
        a[:, 0].exp()
    assert found.get_total_flops() == 3 and "exp" in found.get_table()
    assert (a @ b).tolist() == [[4.0] * 5] * 3  # plans are the usual ones again


def test_swap_tensors() -> None:
    for lib in LIBS:
        p, x = lib.nn.Parameter(lib.t.ones(2)), lib.t.zeros(3)
        p.note = "first"
        net = lib.nn.Linear(2, 2)
        lib.t.utils.swap_tensors(p, x)
        assert isinstance(x, lib.nn.Parameter) and not isinstance(p, lib.nn.Parameter)
        assert x.requires_grad and not p.requires_grad and x.note == "first"
        assert not hasattr(p, "note") and p.shape == (3,) and x.tolist() == [1, 1]
        new = lib.nn.Parameter(lib.t.full((2, 2), 3.0))
        lib.t.utils.swap_tensors(net.weight, new)
        assert net(lib.t.ones(2)).tolist() == (6 + net.bias).tolist()
        net(lib.t.ones(2)).sum().backward()
        assert net.weight.grad.tolist() == [[1, 1], [1, 1]]
        with pytest.raises((TypeError, AttributeError)):
            lib.t.utils.swap_tensors(p, 3)


def test_swapped_parameters_of_a_compiled_function() -> None:
    net = jitgrad.nn.Linear(2, 2, bias=False)
    f = jitgrad.jit(lambda x: net(x), fallback="error")
    x = jitgrad.ones(2)
    for _ in range(2):
        f(x)
    jitgrad.utils.swap_tensors(net.weight, jitgrad.nn.Parameter(jitgrad.full((2, 2), 3.0)))
    np.testing.assert_array_equal(f(x).detach().numpy(), [6, 6])
