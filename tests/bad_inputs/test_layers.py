"""Bad inputs of layers and activations."""

import pytest

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad import nn

X = t.ones(2, 3, 4, 5)
ROWS = [
    # shapes
    (lambda: F.linear(X, t.ones(2, 4)), RuntimeError, ["[linear]", "(2, 3, 4, 5)", "(2, 4)"]),
    (lambda: nn.Linear(4, 2)(X), RuntimeError, ["[linear]", "(2, 4)"]),
    (
        lambda: F.linear(X, t.ones(2, 5), t.ones(3)),
        RuntimeError,
        ["[linear]", "bias", "(2,)", "(3,)"],
    ),
    (lambda: F.conv2d(X, t.ones(2, 4, 3, 3)), RuntimeError, ["conv", "2, 3, 4, 5", "2, 4, 3, 3"]),
    (lambda: F.conv2d(X, t.ones(2, 3, 3)), RuntimeError, ["[conv2d]", "weight of 4"]),
    (lambda: F.conv1d(X, t.ones(2, 3, 3)), RuntimeError, ["[conv1d]", "2 (unbatched) or 3 dims"]),
    (lambda: F.conv2d(X, t.ones(2, 3, 9, 9)), RuntimeError, ["conv", "9"]),
    (
        lambda: F.conv2d(X, t.ones(2, 3, 1, 1), t.ones(5)),
        RuntimeError,
        ["[conv2d]", "bias", "(5,)"],
    ),
    (lambda: F.conv2d(X, t.ones(2, 1, 1, 1), groups=2), RuntimeError, ["conv", "groups"]),
    (
        lambda: F.conv_transpose2d(X, t.ones(4, 2, 2, 2)),
        RuntimeError,
        ["conv_transpose2d", "4 channels"],
    ),
    (
        lambda: F.conv_transpose2d(X, t.ones(3, 2, 2, 2), output_padding=1),
        RuntimeError,
        ["output_padding (1, 1)", "stride (1, 1)"],
    ),
    (lambda: F.adaptive_avg_pool2d(X[0, 0], 2), RuntimeError, ["adaptive_avg_pool2d", "(4, 5)"]),
    (
        lambda: F.interpolate(X, 2, mode="linear"),
        NotImplementedError,
        ["[interpolate]", "'linear'", "(2, 3, 4, 5)"],
    ),
    (
        lambda: F.grid_sample(X, t.ones(2, 2, 2, 3), align_corners=True),
        RuntimeError,
        ["(N, OH, OW, 2)", "(2, 2, 2, 3)"],
    ),
    (lambda: F.fold(X[0], 4, 2), RuntimeError, ["[fold]", "3 x 3 columns", "(3, 4, 5)"]),
    (lambda: F.pixel_shuffle(X, 2), RuntimeError, ["[pixel_shuffle]", "2^2", "(2, 3, 4, 5)"]),
    (
        lambda: F.max_unpool2d(X, X.int(), 2),
        RuntimeError,
        ["[max_unpool2d]", "int64", "int32", "max_pool2d"],
    ),
    (lambda: F.max_pool2d(X, 9), RuntimeError, ["max_pool", "9"]),
    (lambda: F.max_pool2d(X, 2, padding=2), RuntimeError, ["max_pool", "padding"]),
    (lambda: F.avg_pool1d(X, 2), RuntimeError, ["[avg_pool1d]", "(2, 3, 4, 5)"]),
    (lambda: F.avg_pool2d(X, 2, divisor_override=0), RuntimeError, ["[avg_pool2d]", "divisor"]),
    (lambda: nn.BatchNorm2d(4)(X), RuntimeError, ["[BatchNorm2d]", "4 channels", "(2, 3, 4, 5)"]),
    (lambda: nn.BatchNorm1d(3)(X), ValueError, ["[BatchNorm1d]", "2 or 3 dims"]),
    (lambda: nn.BatchNorm1d(3)(t.ones(1, 3)), ValueError, ["more than 1 value per channel"]),
    (lambda: F.batch_norm(X, t.ones(4), t.ones(4)), RuntimeError, ["running_mean", "(3,)", "(4,)"]),
    (lambda: F.batch_norm(X, None, None), RuntimeError, ["[batch_norm]", "running_mean"]),
    (lambda: F.batch_norm(t.ones(3), None, None), ValueError, ["at least 2 dims", "(3,)"]),
    (lambda: F.layer_norm(X, (4,)), RuntimeError, ["[layer_norm]", "(4,)", "(2, 3, 4, 5)"]),
    (lambda: F.layer_norm(X, (5,), t.ones(4)), RuntimeError, ["[layer_norm]", "weight", "(4,)"]),
    (
        lambda: F.embedding(t.tensor([0]), t.ones(3)),
        RuntimeError,
        ["[embedding]", "(V, D)", "(3,)"],
    ),
    (lambda: F.pad(X, (1, 2, 3)), RuntimeError, ["[pad]", "(1, 2, 3)"]),
    (lambda: F.pad(X, (5, 0), "reflect"), RuntimeError, ["[pad]", "reflect", "5"]),
    (lambda: F.pad(t.ones(3), (1, 1), "circular"), NotImplementedError, ["[pad]", "circular"]),
    # dtypes
    (lambda: F.linear(X, t.ones(2, 5).double()), RuntimeError, ["[linear]", "float32", "float64"]),
    (lambda: F.conv2d(X, t.ones(2, 3, 1, 1).half()), RuntimeError, ["[conv2d]", "float16"]),
    (lambda: F.batch_norm(X.long(), None, None, training=True), RuntimeError, ["int64", "float()"]),
    (lambda: F.layer_norm(X.int(), (5,)), RuntimeError, ["[layer_norm]", "int32"]),
    (
        lambda: F.embedding(t.ones(2), t.ones(3, 2)),
        RuntimeError,
        ["[embedding]", "float32", ".long()"],
    ),
    (lambda: F.one_hot(t.ones(2)), RuntimeError, ["one_hot", "float32"]),
    (lambda: nn.Linear(2, 2).to(t.int32), TypeError, ["[Module.to]", "int32"]),
    (lambda: nn.Parameter(t.ones(2).long()), RuntimeError, ["[Parameter]", "int64"]),
    # indices
    (lambda: F.embedding(t.tensor([3]), t.ones(3, 2)), IndexError, ["index 3", "3"]),
    (lambda: F.embedding(t.tensor([-1]), t.ones(3, 2)), IndexError, ["-1"]),
    (lambda: F.embedding(t.tensor([0]), t.ones(3, 2), 3), AssertionError, ["padding_idx", "3"]),
    (lambda: F.one_hot(t.tensor([3]), 3), RuntimeError, ["smaller than num_classes"]),
    (lambda: F.softmax(X, 4), IndexError, ["softmax", "[-4, 3]", "4"]),
    # values of arguments
    (lambda: F.conv2d(X, t.ones(2, 3, 1, 1), stride=0), RuntimeError, ["conv", "stride"]),
    (
        lambda: F.conv2d(X, t.ones(2, 3, 1, 1), stride=(1, 2, 3)),
        RuntimeError,
        ["[conv2d]", "stride"],
    ),
    (
        lambda: F.conv2d(X, t.ones(2, 3, 1, 1), padding=0.5),
        TypeError,
        ["[conv2d]", "padding", "0.5"],
    ),
    (lambda: F.conv2d(X, t.ones(2, 3, 1, 1), padding="full"), RuntimeError, ["[conv2d]", "'full'"]),
    (lambda: F.conv2d(X, t.ones(2, 3, 2, 2), stride=2, padding="same"), RuntimeError, ["strided"]),
    (lambda: F.dropout(X, 1.5), ValueError, ["[dropout]", "1.5"]),
    (lambda: F.dropout(X, float("nan")), ValueError, ["[dropout]", "nan"]),
    (lambda: F.gelu(X, "fast"), RuntimeError, ["[gelu]", "'fast'"]),
    (lambda: F.hardtanh(X, 2, 1), ValueError, ["[hardtanh]", "min_val=2"]),
    (lambda: F.pad(X, (1, 1), "mirror"), NotImplementedError, ["[pad]", "'mirror'"]),
    (lambda: F.pad(X, (1, 1), "reflect", 2.0), RuntimeError, ["[pad]", "value=2.0"]),
    # constructors
    (lambda: nn.Conv2d(3, 4, 2, groups=2), ValueError, ["[Conv2d]", "groups=2"]),
    (lambda: nn.Conv2d(3, 3, 2, groups=0), ValueError, ["[Conv2d]", "groups=0"]),
    (lambda: nn.Conv2d(3, 4, 2, padding="full"), ValueError, ["[Conv2d]", "'full'"]),
    (lambda: nn.Conv2d(3, 4, 2, padding_mode="mirror"), ValueError, ["[Conv2d]", "'mirror'"]),
    (lambda: nn.Conv2d(3, 4, (2, 2, 2)), RuntimeError, ["[Conv2d]", "kernel_size"]),
    (lambda: nn.Dropout(-0.1), ValueError, ["[Dropout]", "-0.1"]),
    (lambda: nn.Embedding(3, 2, padding_idx=3), AssertionError, ["[Embedding]", "3"]),
    (lambda: nn.Embedding(3, 2, sparse=True), NotImplementedError, ["[Embedding]", "limits.md"]),
    (lambda: nn.Linear(2, 2, device="cuda"), RuntimeError, ["CUDA", "device='cpu'"]),
    (lambda: nn.Linear(2, 2).to("cuda"), RuntimeError, ["cuda"]),
    # no tensors
    (lambda: F.relu([1.0]), TypeError, ["[relu]", "list", "jitgrad.tensor"]),
    (lambda: F.relu(None), TypeError, ["[relu]", "NoneType"]),
    (lambda: F.gelu(1.0), TypeError, ["[gelu]", "float"]),
    (lambda: F.softmax([1.0], 0), TypeError, ["[softmax]", "list"]),
    (lambda: F.linear(X, [[1.0]]), TypeError, ["[linear]", "weight", "list"]),
    (lambda: F.conv2d(X.numpy(), t.ones(1, 3, 1, 1)), TypeError, ["[conv2d]", "input", "ndarray"]),
    (lambda: F.max_pool2d(3, 2), TypeError, ["[max_pool2d]", "int"]),
    (lambda: F.batch_norm([1], None, None), TypeError, ["[batch_norm]", "list"]),
    (lambda: F.layer_norm([1], (1,)), TypeError, ["[layer_norm]", "list"]),
    (lambda: F.dropout([1]), TypeError, ["[dropout]", "list"]),
    (lambda: F.embedding([0], t.ones(2, 2)), TypeError, ["[embedding]", "input", "list"]),
    (lambda: nn.Parameter([1.0]), TypeError, ["[Parameter]", "list", "jitgrad.tensor"]),
]


@pytest.mark.parametrize("code,error,words", ROWS, ids=range(len(ROWS)))
def test_error(code, error, words):
    with pytest.raises(error) as caught:
        code()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_failed_training_call_leaves_statistics_alone():
    m = nn.BatchNorm2d(3)
    with pytest.raises(RuntimeError):
        m(t.ones(2, 4, 2, 2))
    assert m.num_batches_tracked.item() == 0 and m.running_mean.tolist() == [0, 0, 0]
    one = nn.BatchNorm1d(3)
    with pytest.raises(ValueError):
        one(t.ones(1, 3))
    assert one.running_mean.tolist() == [0, 0, 0]


def test_nan_goes_through():
    """NaN in the data is no error: it shows in the result, everywhere it should."""
    x = t.tensor([[float("nan"), 1.0], [2.0, 3.0]])
    for f in (F.relu, F.relu6, F.elu, F.gelu, F.silu, F.softplus, F.logsigmoid, F.mish, F.hardtanh,
              F.hardsigmoid, F.hardswish, F.leaky_relu, F.selu):  # fmt: skip
        assert t.isnan(f(x)).tolist() == [[True, False], [False, False]], f.__name__
    assert t.isnan(F.softmax(x, 1)).tolist() == [[True, True], [False, False]]
    assert t.isnan(F.layer_norm(x, (2,))).tolist() == [[True, True], [False, False]]
    assert t.isnan(F.batch_norm(x, None, None, training=True)).tolist() == [[True, False]] * 2
    assert t.isnan(F.max_pool1d(x, 2)).tolist() == [[True], [False]]
