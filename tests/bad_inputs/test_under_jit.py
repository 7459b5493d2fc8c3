"""Every row of the tables in this folder once more, inside a function under @jit: the same error,
the same state afterwards, and the function as good as before."""

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

import jitgrad as t
from jitgrad.state import defaults, state


def _tables():
    """(id, code, error, module) of each row of each table, that of the tensor layer included."""
    here = Path(__file__).parent
    for path in [*sorted(here.glob("test_*.py")), here.parent / "test_errors_tensor.py"]:
        if path == Path(__file__):
            continue
        spec = importlib.util.spec_from_file_location(f"bad_inputs_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for n, row in enumerate(getattr(module, "ROWS", getattr(module, "CASES", ()))):
            yield f"{path.stem[5:]}-{n}", row[0], row[1], module


ROWS_OF_ALL = list(_tables())


def _seen(module):
    """What a failed call might have changed: tensors in reach of the rows, modes, the generator."""
    tensors = {
        name: x.detach().numpy().copy()
        for name, x in vars(module).items()
        if isinstance(x, t.Tensor)
    }
    modes = (state.grad_enabled, state.abstract, state.recorder, state.inference, defaults.dtype)
    return tensors, modes, t.get_rng_state().numpy().copy()


def _same(a, b):
    assert a[1] == b[1]
    np.testing.assert_array_equal(a[2], b[2])
    assert a[0].keys() == b[0].keys()
    for name, before in a[0].items():
        np.testing.assert_array_equal(before, b[0][name], err_msg=name)


def _failure(f, *args):
    """The type and text of what is raised."""
    t.manual_seed(0)
    with pytest.raises(Exception) as caught:
        f(*args)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("row", ROWS_OF_ALL, ids=[r[0] for r in ROWS_OF_ALL])
@pytest.mark.filterwarnings("ignore")
def test_the_same_error(row):
    _, code, error, module = row

    def f(x, bad):
        if bad:
            code()
        return x * 2

    fast = t.jit(f, fallback="error")
    x = t.ones(2)
    for _ in range(2):
        assert fast(x, False).tolist() == [2, 2]
    want = _failure(f, x, True)
    after = _seen(module)
    assert issubclass(want[0], error)
    for _ in range(2):  # it is recorded anew each time: nothing is kept of a call that failed
        assert _failure(fast, x, True) == want
        _same(after, _seen(module))
    assert state.recorder is None
    assert fast(x, False).tolist() == [2, 2]
    assert fast.stats.hits >= 2 and fast.stats.fallbacks == 0
    direct = t.jit(code, fallback="error") if inspect.isfunction(code) else None
    if direct is not None:
        assert _failure(direct) == _failure(code)
