"""A word-level LSTM language model: hidden state carried over and detached, gradients clipped,
the rate annealed, perplexities."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ntoken, bptt, clip = 9, 3, 0.25


class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.0, tie_weights=False):
        super(RNNModel, self).__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        if rnn_type in ["LSTM", "GRU"]:
            self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=dropout)
        else:
            try:
                nonlinearity = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}[rnn_type]
            except KeyError as e:
                raise ValueError("An invalid option for `--model` was supplied") from e
            self.rnn = nn.RNN(ninp, nhid, nlayers, nonlinearity=nonlinearity, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie_weights:
            if nhid != ninp:
                raise ValueError("When using the tied flag, nhid must be equal to emsize")
            self.decoder.weight = self.encoder.weight
        self.init_weights()
        self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        if self.rnn_type == "LSTM":
            return (
                weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid),
            )
        else:
            return weight.new_zeros(self.nlayers, bsz, self.nhid)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous()


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def build():
    return {
        "lstm": RNNModel("LSTM", ntoken, 5, 5, 2, tie_weights=True),
        "rnn": RNNModel("RNN_TANH", ntoken, 4, 3, 1),
    }


def run(models, compile):
    rng = np.random.default_rng(7)
    corpus = torch.LongTensor(rng.integers(0, ntoken, 40).tolist())
    train_data, criterion, found = batchify(corpus[:32], 4), nn.NLLLoss(), {}

    def evaluate(model, data_source):
        model.eval()
        total_loss, hidden = 0.0, model.init_hidden(4)
        with torch.no_grad():
            for i in range(0, data_source.size(0) - 1, bptt):
                data, targets = get_batch(data_source, i)
                output, hidden = model(data, hidden)
                hidden = repackage_hidden(hidden)
                total_loss += len(data) * criterion(output, targets).item()
        return total_loss / (len(data_source) - 1)

    for name, model in models.items():
        lr, best_val_loss, history = 2.0, None, []

        def step(data, targets, hidden, lr, model=model):
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            return loss.detach(), hidden

        step = compile(step)
        for _epoch in range(2):
            model.train()
            hidden = model.init_hidden(4)
            for i in range(0, train_data.size(0) - 1, bptt):
                data, targets = get_batch(train_data, i)
                loss, hidden = step(data, targets, hidden, lr)
                history.append(math.exp(loss.item()))
            val_loss = evaluate(model, train_data)
            if not best_val_loss or val_loss < best_val_loss:
                best_val_loss = val_loss
            else:
                lr /= 4.0
        found[name] = {"perplexities": history, "best": best_val_loss, "lr": lr}
    return found
