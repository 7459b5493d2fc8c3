"""Bad inputs of losses."""

import math

import pytest

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad import nn

X = t.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]])
Y = t.tensor([0, 2])
ROWS = [
    # shapes
    (lambda: F.cross_entropy(X, t.tensor([0])), ValueError, ["[cross_entropy]", "(2,)", "(1,)"]),
    (lambda: F.cross_entropy(X, Y[:, None]), RuntimeError, ["(2, 1)", "reshape it to (2,)"]),
    (lambda: F.cross_entropy(t.tensor(1.0), t.tensor(0)), ValueError, ["[cross_entropy]", "0-d"]),
    (lambda: F.cross_entropy(X, X[:, :2]), RuntimeError, ["[cross_entropy]", "(2, 3)", "[2, 2]"]),
    (lambda: F.cross_entropy(X, Y, t.ones(4)), RuntimeError, ["weight", "(3,)", "(4,)"]),
    (lambda: F.nll_loss(X, Y, t.ones(2)), RuntimeError, ["[nll_loss]", "weight", "(2,)"]),
    (lambda: F.nll_loss(X, t.tensor(0)), ValueError, ["[nll_loss]", "(2,)", "()"]),
    (lambda: F.binary_cross_entropy(X.sigmoid(), X[0]), ValueError, ["(2, 3)", "(3,)"]),
    (lambda: F.binary_cross_entropy_with_logits(X, X[0]), ValueError, ["(2, 3)", "(3,)"]),
    (lambda: F.mse_loss(X, t.ones(2, 2)), RuntimeError, ["2, 3", "2, 2"]),
    # dtypes
    (lambda: F.cross_entropy(X, Y.int()), RuntimeError, ["[cross_entropy]", "int32", ".long()"]),
    (lambda: F.cross_entropy(X, Y > 0), RuntimeError, ["[cross_entropy]", "bool"]),
    (lambda: F.cross_entropy(X.long(), Y), RuntimeError, ["[cross_entropy]", "int64", ".float()"]),
    (lambda: F.cross_entropy(X, Y, t.ones(3).double()), RuntimeError, ["weight", "float64"]),
    (lambda: F.nll_loss(X, Y.float()), RuntimeError, ["[nll_loss]", "float32"]),
    (lambda: F.binary_cross_entropy(Y, Y), RuntimeError, ["[binary_cross_entropy]", "int64"]),
    (lambda: F.mse_loss(Y, Y), NotImplementedError, ["mse_loss", "int64"]),
    # classes
    (
        lambda: F.cross_entropy(X, t.tensor([0, 3])),
        IndexError,
        ["[cross_entropy]", "Target 3", "2"],
    ),
    (lambda: F.cross_entropy(X, t.tensor([0, -1])), IndexError, ["Target -1", "ignore_index -100"]),
    (lambda: F.nll_loss(X, t.tensor([5, 0])), IndexError, ["[nll_loss]", "Target 5"]),
    # probabilities
    (lambda: F.binary_cross_entropy(X, X), RuntimeError, ["0 to 1", "with_logits"]),
    (lambda: F.binary_cross_entropy(X * math.nan, X), RuntimeError, ["0 to 1", "NaN"]),
    (lambda: F.cross_entropy(X, X, ignore_index=1), RuntimeError, ["ignore_index", "floating"]),
    # options
    (lambda: F.mse_loss(X, X, reduction="avg"), ValueError, ["[mse_loss]", "'avg'"]),
    (lambda: nn.CrossEntropyLoss(reduction="avg")(X, Y), ValueError, ["[cross_entropy]", "'avg'"]),
    (lambda: nn.KLDivLoss(reduction="x")(X, X), ValueError, ["[kl_div]", "'x'"]),
    (lambda: F.cross_entropy(X, Y, label_smoothing=1.5), RuntimeError, ["label_smoothing", "1.5"]),
    (lambda: F.smooth_l1_loss(X, X, beta=-1), RuntimeError, ["[smooth_l1_loss]", "-1"]),
    (lambda: F.huber_loss(X, X, delta=0), RuntimeError, ["[huber_loss]", "0"]),
    # no tensors
    (lambda: F.cross_entropy(X, [0, 2]), TypeError, ["[cross_entropy]", "target", "list"]),
    (lambda: F.mse_loss(X, 1.0), TypeError, ["[mse_loss]", "target", "float"]),
    (lambda: F.binary_cross_entropy([0.5], X), TypeError, ["[binary_cross_entropy]", "list"]),
    (lambda: F.kl_div(X, None), TypeError, ["[kl_div]", "target", "NoneType"]),
]


@pytest.mark.parametrize("code,error,words", ROWS, ids=range(len(ROWS)))
def test_error(code, error, words):
    with pytest.raises(error) as caught:
        code()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_shapes_that_broadcast_warn():
    with pytest.warns(UserWarning, match=r"\(2, 3\).*\(3,\)"):
        F.mse_loss(X, X[0])


def test_nan_targets_and_inputs_show():
    """NaN is no error: the loss is NaN, never a number that hides it."""
    bad = X.clone()
    bad[0, 0] = math.nan
    p = X.softmax(1)
    for loss in (
        F.mse_loss(X, bad), F.l1_loss(X, bad), F.smooth_l1_loss(X, bad), F.huber_loss(X, bad),
        F.binary_cross_entropy(p, bad), F.binary_cross_entropy_with_logits(X, bad),
        F.binary_cross_entropy_with_logits(bad, X), F.kl_div(X, bad), F.kl_div(bad, p),
        F.cross_entropy(bad, Y), F.cross_entropy(X, bad), F.nll_loss(bad, Y),
    ):  # fmt: skip
        assert math.isnan(loss.item())
    assert not math.isnan(F.cross_entropy(bad, t.tensor([-100, 2])).item())  # an ignored row


def test_all_ignored_is_nan_and_sum_is_zero():
    ignored = t.tensor([-100, -100])
    assert math.isnan(F.cross_entropy(X, ignored).item())
    assert F.cross_entropy(X, ignored, reduction="sum").item() == 0
