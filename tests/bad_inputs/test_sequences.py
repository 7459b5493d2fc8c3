"""Bad inputs of recurrent layers, attention and nn.utils."""

import numpy as np
import pytest

import jitgrad as t
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.nn.utils import parametrizations, parametrize, rnn

X = t.ones(4, 2, 3)
GRU, LSTM = nn.GRU(3, 5), nn.LSTM(3, 5, 2)
HEADS = nn.MultiheadAttention(6, 2)
Q = t.ones(4, 2, 6)
SHARED = parametrize.register_parametrization(nn.Linear(2, 2), "weight", nn.ReLU())

ROWS = [
    # recurrent layers
    (lambda: GRU(t.ones(4, 2, 7)), RuntimeError, ["[GRU]", "input_size=3", "(4, 2, 7)"]),
    (lambda: GRU(t.ones(3)), ValueError, ["[GRU]", "2 (unbatched) or 3 dims", "(3,)"]),
    (lambda: GRU(X.double()), ValueError, ["[GRU]", "float32", "float64", ".to(dtype)"]),
    (lambda: GRU(X, t.ones(2, 2, 5)), RuntimeError, ["[GRU]", "(1, 2, 5)", "(2, 2, 5)"]),
    (lambda: GRU(X[:, 0], t.ones(1, 1, 5)), RuntimeError, ["[GRU]", "(1, 5)", "(1, 1, 5)"]),
    (
        lambda: LSTM(X, (t.ones(2, 2, 5), t.ones(2, 2, 4))),
        RuntimeError,
        ["[LSTM]", "(2, 2, 5)", "(2, 2, 4)"],
    ),
    (lambda: GRU(X[:0]), RuntimeError, ["[GRU]", "one step", "(0, 2, 3)"]),
    (lambda: nn.GRU(3, 0), ValueError, ["[GRU]", "hidden_size", "0"]),
    (lambda: nn.GRU("3", 4), TypeError, ["[GRU]", "input_size", "str"]),
    (lambda: nn.RNN(3, 4, nonlinearity="gelu"), ValueError, ["[RNN]", "'tanh' or 'relu'", "gelu"]),
    (lambda: nn.LSTM(3, 4, proj_size=5), ValueError, ["[LSTM]", "hidden_size=4", "5"]),
    (lambda: nn.GRU(3, 4, proj_size=2), ValueError, ["[GRU]", "LSTM only"]),
    (lambda: nn.GRU(3, 4, dropout=1.5), ValueError, ["[GRU]", "dropout", "1.5"]),
    (lambda: nn.GRUCell(3, 4)(X), ValueError, ["[GRUCell]", "input of 1 or 2 dims", "(4, 2, 3)"]),
    (lambda: nn.LSTMCell(3, 4)(t.ones(2, 7)), RuntimeError, ["[LSTMCell]", "(2, 7)"]),
    (
        lambda: nn.GRUCell(3, 4)(t.ones(2, 3), t.ones(2, 3)),
        RuntimeError,
        ["[GRUCell]", "(2, 4)", "(2, 3)"],
    ),
    # packing
    (
        lambda: rnn.pack_padded_sequence(X, [2, 4]),
        RuntimeError,
        ["[pack_padded_sequence]", "decreasing", "[2, 4]", "enforce_sorted=False"],
    ),
    (lambda: rnn.pack_padded_sequence(X, [5, 4]), RuntimeError, ["4 steps", "[5, 4]"]),
    (lambda: rnn.pack_padded_sequence(X, [4]), RuntimeError, ["2 sequences", "got 1"]),
    (lambda: rnn.pack_padded_sequence(X[0, 0], [3]), RuntimeError, ["(T, N, *)", "(3,)"]),
    (lambda: rnn.pad_sequence([]), RuntimeError, ["[pad_sequence]", "got none"]),
    (lambda: rnn.pad_sequence([X, X[0]]), RuntimeError, ["(L, 2, 3)", "(2, 3)"]),
    (
        lambda: rnn.pad_packed_sequence(rnn.pack_sequence([X]), total_length=2),
        ValueError,
        ["[pad_packed_sequence]", "total_length", "4", "2"],
    ),
    # attention
    (
        lambda: F.scaled_dot_product_attention(Q, Q[..., :5], Q),
        RuntimeError,
        ["[scaled_dot_product_attention]", "float32[4, 2, 6]", "float32[4, 2, 5]"],
    ),
    (lambda: F.scaled_dot_product_attention(Q, Q.double(), Q), RuntimeError, ["float64"]),
    (
        lambda: F.scaled_dot_product_attention(Q, Q, Q, t.ones(2, 2, dtype=t.int64)),
        RuntimeError,
        ["attn_mask", "int64[2, 2]", "bool"],
    ),
    (
        lambda: F.scaled_dot_product_attention(Q, Q[:3], Q[:3], enable_gqa=True),
        RuntimeError,
        ["heads", "(4, 2, 6)", "(3, 2, 6)"],
    ),
    (lambda: F.scaled_dot_product_attention(np.ones(3), Q, Q), TypeError, ["query", "ndarray"]),
    (lambda: nn.MultiheadAttention(6, 4), AssertionError, ["divisible", "6", "4"]),
    (lambda: HEADS(X, X, X), AssertionError, ["embedding dim 6", "got 3"]),
    (lambda: HEADS(Q, Q[:, 0], Q), AssertionError, ["key of 3 dims", "(4, 6)"]),
    (
        lambda: HEADS(Q, Q, Q, attn_mask=t.zeros(4, 5)),
        RuntimeError,
        ["attn_mask", "(4, 4)", "(4, 5)"],
    ),
    (
        lambda: HEADS(Q, Q, Q, attn_mask=t.zeros(4, 4).double()),
        RuntimeError,
        ["attn_mask", "float32", "float64[4, 4]"],
    ),
    (
        lambda: HEADS(Q, Q, Q, key_padding_mask=t.zeros(3, 4)),
        AssertionError,
        ["key_padding_mask", "(2, 4)", "(3, 4)"],
    ),
    (lambda: HEADS(Q, Q, Q, is_causal=True), RuntimeError, ["is_causal", "attn_mask"]),
    (
        lambda: nn.Transformer(6, 2, 1, 1, 6)(Q, Q[:, :1]),
        RuntimeError,
        ["[Transformer]", "(4, 2, 6)", "(4, 1, 6)"],
    ),
    # nn.utils
    (
        lambda: parametrizations.weight_norm(nn.Linear(2, 2), "wheight"),
        ValueError,
        ["[register_parametrization]", "Linear", "'wheight'"],
    ),
    (
        lambda: parametrize.register_parametrization(nn.Linear(2, 3), "weight", nn.Flatten(0)),
        ValueError,
        ["[parametrize]", "(3, 2)", "(6,)", "unsafe=True"],
    ),
    (lambda: setattr(SHARED, "weight", t.ones(2, 2)), RuntimeError, ["ReLU", "right_inverse"]),
    (
        lambda: parametrize.remove_parametrizations(nn.Linear(2, 2), "weight"),
        ValueError,
        ["[remove_parametrizations]", "'weight'"],
    ),
    (lambda: parametrizations.spectral_norm(nn.Linear(2, 2), dim=3), IndexError, ["(2, 2)", "3"]),
    (lambda: nn.utils.remove_weight_norm(nn.Linear(2, 2)), ValueError, ["'weight'", "has none"]),
    (lambda: nn.utils.vector_to_parameters([1], []), TypeError, ["[vector_to_parameters]", "list"]),
    (
        lambda: nn.utils.get_total_norm([t.tensor([t.inf])], error_if_nonfinite=True),
        RuntimeError,
        ["finite norm of order 2.0", "inf"],
    ),
    (
        lambda: nn.utils.fuse_conv_bn_eval(nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1)),
        AssertionError,
        ["[fuse_conv_bn_eval]", ".eval()"],
    ),
]


@pytest.mark.parametrize("call,kind,words", ROWS, ids=[", ".join(r[2]) for r in ROWS])
def test_message(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is kind
    for word in words:
        assert word in text, text
