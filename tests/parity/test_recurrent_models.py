"""A character model with an LSTM, and translation by recurrent nets with attention."""

import numpy as np
import pytest
from parity.compare import LIBS, same
from parity.training import batch, pair, same_training

VOCABULARY = 11


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, VOCABULARY, shape)


# -- character model -------------------------------------------------------------------------------
def char_lstm(lib, kind="LSTM"):
    nn = lib.nn

    class CharRNN(nn.Module):
        def __init__(self, vocab, width=6, hidden=7, layers=2, dropout=0.0):
            super().__init__()
            self.encoder = nn.Embedding(vocab, width)
            self.rnn = getattr(nn, kind)(width, hidden, layers, batch_first=True, dropout=dropout)
            self.decoder = nn.Linear(hidden, vocab)
            self.hidden, self.layers = hidden, layers
            self.init_weights()

        def init_weights(self):
            nn.init.uniform_(self.encoder.weight, -0.5, 0.5)
            nn.init.zeros_(self.decoder.bias)
            for name, p in self.rnn.named_parameters():
                if "weight_hh" in name:
                    nn.init.xavier_uniform_(p)
                if "bias_ih" in name:
                    p.data[self.hidden : 2 * self.hidden].fill_(1.0)

        def forward(self, x, state=None):
            out, state = self.rnn(self.encoder(x), state)
            return self.decoder(out), state

        def init_hidden(self, count):
            weight = next(self.parameters())
            shape = (self.layers, count, self.hidden)
            if kind == "LSTM":
                return weight.new_zeros(shape), weight.new_zeros(shape)
            return weight.new_zeros(shape)

    return CharRNN(VOCABULARY)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_character_model(kind):
    def loss(lib, model, x, y):
        logits, _ = model(x)
        return lib.F.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))

    same_training(
        lambda lib: char_lstm(lib, kind),
        lambda step: (tokens(3, 5, seed=step), tokens(3, 5, seed=step + 9)),
        loss, optimizer=lambda lib, model: lib.optim.Adam(model.parameters(), lr=0.01), clip=0.25,
        scale=1000,
    )  # fmt: skip


def test_state_carried_between_batches():
    """Truncated backpropagation: the state of one call, detached, begins the next."""

    def loss(lib, model, x, y):
        total, state = 0.0, model.init_hidden(x.shape[0])
        for k in (0, 1):
            state = tuple(s.detach() for s in state)
            logits, state = model(x[:, 3 * k : 3 * k + 3], state)
            total = total + lib.F.cross_entropy(logits.transpose(1, 2), y[:, 3 * k : 3 * k + 3])
        return total

    same_training(char_lstm, (tokens(3, 6), tokens(3, 6, seed=1)), loss, scale=200)


def test_sampling_greedily():
    models = pair(char_lstm)
    found = []
    for lib in LIBS:
        model = models[lib.name].eval()
        (x,) = batch(lib, [tokens(2, 1)], "float64")
        state, out = model.init_hidden(2), [x]
        with lib.t.no_grad():
            for _ in range(6):
                logits, state = model(out[-1], state)
                out.append(logits[:, -1].argmax(-1, keepdim=True))
        found.append(lib.t.cat(out, dim=1))
    same(*found)


# -- translation -----------------------------------------------------------------------------------
LENGTHS = [4, 6, 3]


def translator(lib):
    torch, nn, F = lib.t, lib.nn, lib.F

    class Encoder(nn.Module):
        def __init__(self, vocab, width, hidden):
            super().__init__()
            self.embedding = nn.Embedding(vocab, width, padding_idx=0)
            self.gru = nn.GRU(width, hidden, bidirectional=True, batch_first=True)
            self.bridge = nn.Linear(2 * hidden, hidden)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(x), lengths, batch_first=True, enforce_sorted=False
            )
            out, h = self.gru(packed)
            out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
            return out, torch.tanh(self.bridge(torch.cat([h[0], h[1]], dim=-1)))

    class Attention(nn.Module):
        """Bahdanau, Cho and Bengio 2015."""

        def __init__(self, hidden):
            super().__init__()
            self.Wa = nn.Linear(hidden, hidden)
            self.Ua = nn.Linear(2 * hidden, hidden)
            self.Va = nn.Linear(hidden, 1)

        def forward(self, query, keys, mask):
            scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys)))
            scores = scores.squeeze(2).masked_fill(mask, float("-inf"))
            weights = F.softmax(scores, dim=-1)
            return torch.bmm(weights.unsqueeze(1), keys).squeeze(1), weights

    class Translator(nn.Module):
        def __init__(self, vocab, width=5, hidden=4):
            super().__init__()
            self.encoder = Encoder(vocab, width, hidden)
            self.attention = Attention(hidden)
            self.embedding = nn.Embedding(vocab, width)
            self.cell = nn.GRUCell(width + 2 * hidden, hidden)
            self.out = nn.Linear(3 * hidden, vocab)

        def forward(self, x, lengths, targets):
            keys, h = self.encoder(x, lengths)
            mask = x[:, : keys.size(1)].eq(0)
            token, logits = torch.zeros_like(targets[:, 0]), []
            for t in range(targets.size(1)):
                context, _ = self.attention(h, keys, mask)
                h = self.cell(torch.cat([self.embedding(token), context], dim=-1), h)
                logits.append(self.out(torch.cat([h, context], dim=-1)))
                token = targets[:, t]
            return torch.stack(logits, dim=1)

    return Translator(VOCABULARY)


def test_translation():
    x = np.maximum(tokens(3, 7), 1)
    for row, length in zip(x, LENGTHS, strict=True):
        row[length:] = 0

    def loss(lib, model, x, y):
        logits = model(x, LENGTHS, y)
        return lib.F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)

    same_training(translator, (x, tokens(3, 5, seed=1)), loss, lr=0.3, clip=1.0, scale=200)
