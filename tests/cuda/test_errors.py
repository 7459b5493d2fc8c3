"""What goes wrong on a GPU is said: dtypes and ops without kernels, kernels that do not compile,
grids that are too large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_graphs import compiled, recorded

import jitgrad as torch
from jitgrad.compiler.codegen.cuda import load
from jitgrad.runtime.cuda import arrays, device
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knobs

only_simulated = pytest.mark.skipif(knobs.cuda != "sim", reason="changes the simulator's loader")


def test_complex_arithmetic_has_no_kernels() -> None:
    x = torch.ones(3, dtype=torch.complex64).cuda()
    assert torch.equal(x.cpu(), torch.ones(3, dtype=torch.complex64))  # it moves
    for run in (lambda f: f, lambda f: torch.jit(f, fallback="error")):
        with pytest.raises(CompileError, match=r"\[mul\] expected a dtype .*complex64.*\.cpu\(\)"):
            run(lambda x: x * x)(x)
        with pytest.raises(CompileError, match=r"\[abs\] expected a dtype .*complex64"):
            run(lambda x: x.abs())(x)


def test_an_op_without_a_kernel_is_an_error_that_names_it() -> None:
    x = torch.eye(3).cuda()
    with pytest.raises(CompileError, match=r"\[inv.*\].*runs on the CPU only"):
        torch.linalg.inv(x)
    f = torch.jit(lambda x: torch.linalg.inv(x), fallback="error")
    with pytest.raises(CompileError, match="runs on the CPU only"):
        f(x)


@only_simulated
def test_a_kernel_that_does_not_compile_names_its_ops_and_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = load.simulated_kernel

    def broken(text: str, symbol: str, shape: Any) -> Any:
        if "libdevice.atan2f(" in text and "libdevice.cosf(" in text:
            raise CompileError(f"[cuda] kernel {symbol} cannot be compiled for sm_90: no")
        return real(text, symbol, shape)

    monkeypatch.setattr(load, "simulated_kernel", broken)
    x = torch.randn(3, 5).cuda()

    def f(x: Any) -> Any:
        return torch.atan2(x.cos(), x)

    with pytest.raises(CompileError) as found:
        g = torch.jit(f, fallback="error")
        for _ in range(2):
            g(x)
    text = str(found.value)
    assert "cannot be compiled for sm_90: no" in text
    assert "cos" in text and "atan2" in text and "test_errors.py" in text
    with pytest.warns(UserWarning, match="cannot be compiled for sm_90"):
        h = torch.jit(f, fallback="warn")
        got = [h(x) for _ in range(2)][-1]
    assert got.device == "cuda:0"  # eager code on the GPU, not on the CPU
    torch.testing.assert_close(got.cpu(), f(x.cpu()))


def test_eager_code_instead_draws_what_eager_code_draws() -> None:
    """What cannot be compiled is found when it is first run, after numbers were drawn for it."""

    def f(x: Any) -> Any:
        y = x * 2 if int((x > 0.5).sum()) else x
        nothing = torch.linalg.inv(x[:0, :0])  # eager code gives it; there is no kernel
        return y + torch.rand(2, 2, device="cuda") + nothing.sum()

    found = []
    for run in (f, torch.jit(f, fallback="silent")):
        torch.manual_seed(3)
        found.append([run(torch.full((2, 2), k % 2.0, device="cuda")).tolist() for k in range(5)])
    assert found[0] == found[1] and torch.default_generator.draws == 5


def test_grids_are_never_larger_than_a_launch_may_be() -> None:
    driver: Any = device.driver()
    grids = []
    real = driver.launch

    def launch(index: int, function: Any, grid: int, block: int, *rest: Any) -> None:
        grids.append((grid, block))
        real(index, function, grid, block, *rest)

    x = np.arange(1000, dtype=np.float32)
    code = compiled(recorded(lambda x: x * 2, x), max_blocks=3, many=10**6)
    driver.launch = launch
    try:
        (got,) = code.run([arrays.to_device(x, device.device())])
    finally:
        del driver.launch
    host = arrays.host_copy(got) if isinstance(got, arrays.DeviceArray) else got
    np.testing.assert_array_equal(host, x * 2)
    assert [grid for grid, _ in grids] == [3] and grids[0][1] * 3 < 1000  # in turns
    assert code.target.max_blocks <= 2**31 - 1
