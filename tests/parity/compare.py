"""Runs one piece of code in jitgrad and in PyTorch and compares what comes out.

`check(code, *arrays)` calls `code(lib, *tensors)` once with each library, compares all results
(value, shape, dtype), then sends the same random cotangents back and compares the gradient of
every floating array. Importing this without PyTorch skips the test module.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import jitgrad
import jitgrad.nn
import jitgrad.nn.functional
import jitgrad.optim
import jitgrad.utils.data

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
torch.set_num_threads(1)

OURS = SimpleNamespace(
    name="jitgrad", t=jitgrad, nn=jitgrad.nn, F=jitgrad.nn.functional, optim=jitgrad.optim
)
THEIRS = SimpleNamespace(
    name="torch", t=torch, nn=torch.nn, F=torch.nn.functional, optim=torch.optim
)
LIBS = (OURS, THEIRS)

# Relative to the largest magnitude of a result: a few roundings of sums of products.
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 3e-6, "float64": 1e-13,
             "complex64": 3e-6, "complex128": 1e-13}  # fmt: skip


def numpy(x):
    """A tensor's values; bfloat16 as float32."""
    x = x.detach()
    return (x.float() if str(x.dtype).endswith("bfloat16") else x).numpy()


def dtype_name(x):
    return str(x.dtype).rsplit(".", 1)[-1]


def same(ours, theirs, what="result", scale=1.0):
    """Asserts that two tensors agree in shape, dtype and values (NaN equal to NaN)."""
    assert tuple(ours.shape) == tuple(theirs.shape), f"{what}: {ours.shape} {theirs.shape}"
    name = dtype_name(theirs)
    assert dtype_name(ours) == name, f"{what}: {ours.dtype} {theirs.dtype}"
    a, b = numpy(ours), numpy(theirs)
    if name not in TOLERANCE:
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    finite = np.abs(b[np.isfinite(b)])
    atol = TOLERANCE[name] * scale * max(1e-30, finite.max(initial=0))
    np.testing.assert_allclose(a, b, rtol=TOLERANCE[name] * scale, atol=atol, err_msg=what)


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def tensors(lib, arrays, grad):
    made = []
    for a in arrays:
        if isinstance(a, np.ndarray):
            x = lib.t.from_numpy(np.array(a))
            made.append(x.requires_grad_() if grad and a.dtype.kind == "f" else x)
        else:
            made.append(a)
    return made


def check(code, *arrays, grad=True, scale=1.0, seed=0):
    """Compares code(lib, *tensors) and its gradients (see the module)."""
    found = []
    for lib in LIBS:
        rng = np.random.default_rng(seed)
        inputs = tensors(lib, arrays, grad)
        results = flat(code(lib, *inputs))
        grads = []
        if grad:
            tops = [r for r in results if r.requires_grad]
            assert tops, "nothing to differentiate"
            total = 0
            for r in tops:
                seed_values = rng.standard_normal(tuple(r.shape))
                total = total + (r * lib.t.from_numpy(np.asarray(seed_values)).to(r.dtype)).sum()
            total.backward()
            grads = [getattr(x, "grad", None) for x in inputs]
        found.append((results, grads))
    (ours, our_grads), (theirs, their_grads) = found
    assert len(ours) == len(theirs)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        same(a, b, f"result {i}", scale)
    for i, (a, b) in enumerate(zip(our_grads, their_grads, strict=True)):
        assert (a is None) == (b is None), f"gradient of argument {i}: {a} {b}"
        if b is not None:
            same(a, b, f"gradient of argument {i}", scale)


def raises_alike(code, *arrays):
    """Asserts that both libraries raise for the same code, errors of the same type (one may be a
    subclass of the other). Returns the two messages."""
    errors = []
    for lib in LIBS:
        with pytest.raises(Exception) as caught:
            code(lib, *tensors(lib, arrays, False))
        errors.append(caught.value)
    ours, theirs = errors
    assert isinstance(ours, type(theirs)) or isinstance(theirs, type(ours)), (ours, theirs)
    return str(ours), str(theirs)


def copy_parameters(source, target):
    """Loads the state of a PyTorch module into ours."""
    state = {k: jitgrad.from_numpy(numpy(v).copy()) for k, v in source.state_dict().items()}
    return target.load_state_dict(state)
