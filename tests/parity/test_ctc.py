"""ctc_loss: values and gradients through log_softmax, lengths and targets in every form."""

import inspect

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, check, raises_alike, same, torch


def logits(*shape, seed=0, dtype=np.float64):
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(dtype)


CASES = {
    "padded": ((8, 3, 5), [[1, 2, 2], [3, 0, 0], [4, 1, 4]], [8, 5, 7], [3, 1, 3], 0),
    "vector": ((8, 3, 5), [1, 2, 2, 3, 4, 1, 4], [8, 5, 7], [3, 1, 3], 0),
    "other blank": ((6, 2, 4), [[0, 1], [2, 2]], [6, 6], [2, 2], 3),
    "empty target": ((4, 2, 3), [[1, 1], [0, 0]], [4, 3], [2, 0], 0),
    "all empty": ((4, 2, 3), np.zeros((2, 0), np.int64), [4, 3], [0, 0], 0),
    "one step": ((1, 2, 3), [[1], [2]], [1, 1], [1, 1], 0),
    "one sequence": ((6, 4), [1, 3], [6], [2], 0),
    "just fits": ((3, 1, 3), [[1, 1]], [3], [2], 0),
    "no time": ((3, 2, 3), [[1], [1]], [0, 2], [0, 1], 0),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_ctc(name, tensors, reduction):
    shape, targets, times, sizes, blank = CASES[name]

    def code(lib, x):
        lengths = [lib.t.tensor(n) if tensors else tuple(n) for n in (times, sizes)]
        labels = lib.t.from_numpy(np.array(targets, np.int64))
        return lib.F.ctc_loss(lib.F.log_softmax(x, -1), labels, *lengths, blank, reduction)

    check(code, logits(*shape), scale=100)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_impossible_targets(zero_infinity):
    """Values; gradients where PyTorch's are not NaN."""
    shape, targets = (3, 3, 4), [[1, 1, 1], [1, 2, 1], [2, 2, 0]]

    def code(lib, x, reduction="none"):
        labels = lib.t.tensor(targets)
        loss = lib.nn.CTCLoss(zero_infinity=zero_infinity, reduction=reduction)
        return loss(lib.F.log_softmax(x, -1), labels, (3, 3, 2), (3, 3, 2))

    check(lambda lib, x: code(lib, x), logits(*shape), grad=False, scale=10)
    if zero_infinity:
        check(lambda lib, x: code(lib, x)[1], logits(*shape), scale=10)
        check(lambda lib, x: code(lib, x, "mean"), logits(*shape), scale=10)


def test_long_sequences_and_float32():
    def code(lib, x):
        labels = lib.t.from_numpy(np.random.default_rng(1).integers(1, 9, (2, 12)))
        return lib.F.ctc_loss(lib.F.log_softmax(x, -1), labels, (60, 50), (12, 9))

    check(code, logits(60, 2, 9), scale=1e3)
    check(code, logits(60, 2, 9, dtype=np.float32), scale=40)


def test_impossible_classes():
    """Classes of probability 0 (log 0 = -inf)."""
    x = logits(5, 1, 4)
    x[:, :, 3] = -np.inf

    def code(lib, x):
        labels = lib.t.tensor([[1, 2]])
        return lib.F.ctc_loss(lib.F.log_softmax(x, -1), labels, (5,), (2,))

    check(code, x, grad=False, scale=10)
    ours = OURS.t.from_numpy(x).requires_grad_()
    code(OURS, ours).backward()
    assert OURS.t.isfinite(ours.grad).all()


@pytest.mark.parametrize("vector", [False, True])
def test_compiled_is_eager(vector):
    """Also with other lengths and labels in the same shapes."""
    F, t = OURS.F, OURS.t

    def step(x, labels, times, sizes):
        loss = F.ctc_loss(F.log_softmax(x, -1), labels, times, sizes)
        return loss, *t.autograd.grad(loss, x)

    compiled = t.jit(step, fallback="error")
    runs = [([8, 5, 7], [3, 1, 2]), ([7, 8, 3], [2, 3, 1]), ([8, 8, 8], [1, 2, 3])]
    for seed, (times, sizes) in enumerate(runs):
        rng = np.random.default_rng(seed)
        labels = rng.integers(1, 5, (6,) if vector else (3, 3))
        x = t.from_numpy(logits(8, 3, 5, seed=seed)).requires_grad_()
        args = (x, t.from_numpy(labels), t.tensor(times), t.tensor(sizes))
        theirs = torch.from_numpy(logits(8, 3, 5, seed=seed)).requires_grad_()
        want = THEIRS.F.ctc_loss(
            theirs.log_softmax(-1), torch.from_numpy(labels), torch.tensor(times),
            torch.tensor(sizes),
        )  # fmt: skip
        want.backward()
        for found in (compiled(*args), compiled(*args), step(*args)):
            same(found[0], want, scale=100)
            same(found[1], theirs.grad, scale=100)


def test_names():
    ours, theirs = (inspect.signature(lib.F.ctc_loss).parameters.values() for lib in LIBS)
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]
    assert repr(OURS.nn.CTCLoss(2)) == repr(THEIRS.nn.CTCLoss(2))


BAD = {
    "blank": lambda lib, x: lib.F.ctc_loss(x, lib.t.ones(2, 2).long(), (3, 3), (2, 2), 9),
    "times": lambda lib, x: lib.F.ctc_loss(x, lib.t.ones(2, 2).long(), (4, 3), (2, 2)),
    "count": lambda lib, x: lib.F.ctc_loss(x, lib.t.ones(2, 2).long(), (3,), (2, 2)),
    "targets": lambda lib, x: lib.F.ctc_loss(x, lib.t.ones(2, 2).long(), (3, 3), (3, 2)),
    "integer scores": lambda lib, x: lib.F.ctc_loss(
        x.long(), lib.t.ones(2, 2).long(), (3, 3), (2, 2)
    ),
    "reduction": lambda lib, x: lib.F.ctc_loss(
        x, lib.t.ones(2, 2).long(), (3, 3), (2, 2), reduction="avg"
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], logits(3, 2, 4))
