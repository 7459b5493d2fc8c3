"""Trains one model in jitgrad, eager and compiled, and in PyTorch, from the same state dict.

`same_training(build, arrays, loss)` compares outputs, all gradients and the state after each step.
"""

import numpy as np
from parity.compare import LIBS, copy_parameters, numpy, same, tensors

import jitgrad


def batch(lib, arrays, dtype):
    """Tensors of the arrays, floating ones of the dtype; what is no array stays."""
    made = tensors(lib, arrays, False)
    return [
        x.to(getattr(lib.t, dtype)) if isinstance(x, lib.t.Tensor) and x.is_floating_point() else x
        for x in made
    ]


def pair(build, dtype="float64", state=None):
    """The models of build(lib), ours with the state of PyTorch's: {lib name: model}.

    `state`: PyTorch's state dict to begin with.
    """
    models = {lib.name: build(lib).to(getattr(lib.t, dtype)) for lib in LIBS}
    if state is not None:
        models["torch"].load_state_dict(state)
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


def same_training(
    build, arrays, loss, *, dtype="float64", steps=3, lr=0.1, optimizer=None, clip=None,
    scale=50.0,
):  # fmt: skip
    """Compares `steps` steps on loss(lib, model, *tensors), eager, then compiled without fallback.

    `arrays` may be a function of the step's number; `optimizer(lib, model)` is SGD otherwise;
    `clip` clips the norm of the gradients.
    """
    state = None
    for compiled in (False, True):
        models = pair(build, dtype, state)
        state = {k: v.clone() for k, v in models["torch"].state_dict().items()}
        steppers = {}
        for lib in LIBS:
            model = models[lib.name]
            made = optimizer(lib, model) if optimizer else lib.optim.SGD(model.parameters(), lr=lr)
            steppers[lib.name] = trainer(lib, model, loss, made, clip)
        if compiled:
            steppers["jitgrad"] = jitgrad.jit(steppers["jitgrad"], fallback="error")
        for step in range(steps):
            values = arrays(step) if callable(arrays) else arrays
            results = [steppers[lib.name](*batch(lib, values, dtype)) for lib in LIBS]
            same(*results, f"loss of step {step}", scale)
            same_gradients(models["jitgrad"], models["torch"], scale)
        same_state(models["jitgrad"], models["torch"], scale)
        if compiled:
            stats = steppers["jitgrad"].stats
            assert stats.hits >= 1 and stats.fallbacks == 0, stats


def trainer(lib, model, loss, optimizer, clip):
    def step(*values):
        optimizer.zero_grad()
        value = loss(lib, model, *values)
        value.backward()
        if clip is not None:
            lib.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return value.detach()

    return step
