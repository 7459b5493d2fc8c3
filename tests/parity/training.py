"""Trains one model in jitgrad, eager and compiled, and in PyTorch, from the same state dict.

`same_training(build, arrays, loss)` compares outputs, all gradients and the state after each step.
"""

import numpy as np
from parity.compare import LIBS, OURS, copy_parameters, numpy, same, tensors

import jitgrad


def batch(lib, arrays, dtype):
    """Tensors of the arrays, floating ones of the dtype; what is no array stays."""
    made = tensors(lib, arrays, False)
    return [
        x.to(getattr(lib.t, dtype)) if isinstance(x, lib.t.Tensor) and x.is_floating_point() else x
        for x in made
    ]


def pair(build, dtype="float64"):
    """The models of build(lib), ours with the state of PyTorch's: {lib name: model}."""
    models = {lib.name: build(lib).to(getattr(lib.t, dtype)) for lib in LIBS}
    copy_parameters(models["torch"], models["jitgrad"])
    return models


def same_state(ours, theirs, scale):
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        same(ours.state_dict()[key], value, key, scale)


def same_gradients(ours, theirs, scale):
    largest = max(
        (np.abs(numpy(p.grad)).max(initial=0) for p in theirs.parameters() if p.grad is not None),
        default=0.0,
    )
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            bound = 1e-13 if b.grad.numpy().dtype == np.float64 else 3e-6
            error = np.abs(numpy(a.grad) - numpy(b.grad)).max(initial=0)
            assert error <= bound * scale * largest, f"{name}: {error} beside {largest}"


def same_training(build, arrays, loss, *, dtype="float64", steps=3, lr=0.1, scale=50.0, jit=True):
    """Compares `steps` steps of SGD on loss(lib, model, *tensors), eager and (with `jit`) compiled
    without fallback. `arrays` may be a function of the step's number."""
    theirs = None
    for compiled in (False, True) if jit else (False,):
        models = pair(build, dtype) if theirs is None else models_from(build, theirs, dtype)
        theirs = {k: v.clone() for k, v in models["torch"].state_dict().items()}
        functions = {}
        for lib in LIBS:
            model = models[lib.name]
            functions[lib.name] = trainer(lib, model, loss, lr)
        if compiled:
            functions["jitgrad"] = jitgrad.jit(functions["jitgrad"], fallback="error")
        for step in range(steps):
            values = arrays(step) if callable(arrays) else arrays
            ours = functions["jitgrad"](*batch(OURS, values, dtype))
            other = functions["torch"](*batch(LIBS[1], values, dtype))
            same(ours, other, f"loss of step {step}", scale)
            same_gradients(models["jitgrad"], models["torch"], scale)
        same_state(models["jitgrad"], models["torch"], scale)
        if compiled:
            stats = functions["jitgrad"].stats
            assert stats.hits >= 1 and stats.fallbacks == 0, stats


def models_from(build, state, dtype):
    """As pair, with PyTorch's model in the given state."""
    models = {lib.name: build(lib).to(getattr(lib.t, dtype)) for lib in LIBS}
    models["torch"].load_state_dict(state)
    copy_parameters(models["torch"], models["jitgrad"])
    return models


def trainer(lib, model, loss, lr):
    optimizer = lib.optim.SGD(model.parameters(), lr=lr)

    def step(*values):
        optimizer.zero_grad()
        value = loss(lib, model, *values)
        value.backward()
        optimizer.step()
        return value.detach()

    return step
