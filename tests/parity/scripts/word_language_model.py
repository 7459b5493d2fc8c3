"""Word language models: a corpus class, batchify, repackaged hidden states, clipping, annealing,
for recurrent nets and for a Transformer with positional encoding; names by character."""

import argparse
import math
import os
import string
import time
import unicodedata
from tempfile import TemporaryDirectory

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = ["the cat sat on the mat", "a dog sat on a log", "the dog saw the cat on the log", "mat"] * 3
all_letters = string.ascii_letters + " .,;'-"
n_letters = len(all_letters) + 1
NAMES = {"Irish": ["Ó Néill", "Adam"], "Polish": ["Ślusàrski", "Kos"], "Greek": ["Ares"]}


class Dictionary(object):
    def __init__(self):
        self.word2idx = {}
        self.idx2word = []

    def add_word(self, word):
        if word not in self.word2idx:
            self.idx2word.append(word)
            self.word2idx[word] = len(self.idx2word) - 1
        return self.word2idx[word]

    def __len__(self):
        return len(self.idx2word)


class Corpus(object):
    def __init__(self, path):
        self.dictionary = Dictionary()
        self.train = self.tokenize(os.path.join(path, "train.txt"))

    def tokenize(self, path):
        assert os.path.exists(path)
        with open(path, "r", encoding="utf8") as f:
            for line in f:
                for word in line.split() + ["<eos>"]:
                    self.dictionary.add_word(word)
        with open(path, "r", encoding="utf8") as f:
            idss = []
            for line in f:
                ids = []
                for word in line.split() + ["<eos>"]:
                    ids.append(self.dictionary.word2idx[word])
                idss.append(torch.tensor(ids).type(torch.int64))
            ids = torch.cat(idss)
        return ids


class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.5, tie_weights=False):
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
        decoded = self.decoder(self.drop(output))
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        if self.rnn_type == "LSTM":
            return (weight.new_zeros(self.nlayers, bsz, self.nhid),
                    weight.new_zeros(self.nlayers, bsz, self.nhid))  # fmt: skip
        return weight.new_zeros(self.nlayers, bsz, self.nhid)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=50):
        super(PositionalEncoding, self).__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.get_default_dtype()).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, d_model, 2).to(pe.dtype) * (-math.log(10000.0) / d_model)
        )
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        pe = pe.unsqueeze(0).transpose(0, 1)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0), :]
        return self.dropout(x)


class TransformerModel(nn.Transformer):
    def __init__(self, ntoken, ninp, nhead, nhid, nlayers, dropout=0.5):
        super(TransformerModel, self).__init__(
            d_model=ninp, nhead=nhead, dim_feedforward=nhid, num_encoder_layers=nlayers,
            num_decoder_layers=0, dropout=dropout,
        )  # fmt: skip
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(ninp, dropout)
        self.input_emb = nn.Embedding(ntoken, ninp)
        self.ninp = ninp
        self.out = nn.Linear(ninp, ntoken)

    def _generate_square_subsequent_mask(self, sz):
        return torch.log(torch.tril(torch.ones(sz, sz)))

    def forward(self, src, has_mask=True):
        if has_mask:
            device = src.device
            if self.src_mask is None or self.src_mask.size(0) != len(src):
                mask = self._generate_square_subsequent_mask(len(src)).to(device)
                self.src_mask = mask
        else:
            self.src_mask = None
        src = self.input_emb(src) * math.sqrt(self.ninp)
        src = self.pos_encoder(src)
        output = self.encoder(src, mask=self.src_mask)
        output = self.out(output)
        return F.log_softmax(output, dim=-1)


class CharRNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super(CharRNN, self).__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        hidden = F.tanh(self.i2h(combined))
        return self.softmax(self.h2o(hidden)), hidden

    def initHidden(self):
        return torch.zeros(1, self.hidden_size)


class GenRNN(nn.Module):
    def __init__(self, n_categories, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(n_categories + n_letters + hidden_size, hidden_size)
        self.i2o = nn.Linear(n_categories + n_letters + hidden_size, n_letters)
        self.o2o = nn.Linear(hidden_size + n_letters, n_letters)
        self.dropout = nn.Dropout(0.0)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, category, input, hidden):
        input_combined = torch.cat((category, input, hidden), 1)
        hidden = self.i2h(input_combined)
        output = self.i2o(input_combined)
        output = self.o2o(torch.cat((hidden, output), 1))
        return self.softmax(self.dropout(output)), hidden


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz, device):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    data = data.view(bsz, -1).t().contiguous()
    return data.to(device)


def unicodeToAscii(s):
    return "".join(
        c for c in unicodedata.normalize("NFD", s)
        if unicodedata.category(c) != "Mn" and c in all_letters
    )  # fmt: skip


def lineToTensor(line):
    tensor = torch.zeros(len(line), 1, n_letters)
    for li, letter in enumerate(line):
        tensor[li][0][all_letters.find(letter)] = 1
    return tensor


def build():
    return {
        "lstm": RNNModel("LSTM", 10, 6, 6, 2, 0.0, tie_weights=True),
        "gru": RNNModel("GRU", 10, 4, 6, 1, 0.0),
        "relu": RNNModel("RNN_RELU", 10, 4, 6, 1, 0.0),
        "transformer": TransformerModel(10, 8, 2, 8, 1, 0.0),
        "names": CharRNN(n_letters, 8, len(NAMES)),
        "generator": GenRNN(len(NAMES), 8),
    }


def language_model(model, kind, compile):
    parser = argparse.ArgumentParser()
    parser.add_argument("--bptt", type=int, default=3)
    parser.add_argument("--clip", type=float, default=0.25)
    args, _ = parser.parse_known_args([])
    with TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train.txt"), "w") as f:
            f.write("\n".join(TEXT))
        corpus = Corpus(folder)
    assert len(corpus.dictionary) == 10
    device = torch.device("cpu")
    train_data = batchify(corpus.train, 4, device)
    criterion = nn.NLLLoss()

    def get_batch(source, i):
        seq_len = min(args.bptt, len(source) - 1 - i)
        return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)

    def evaluate(data_source):
        model.eval()
        total_loss = 0.0
        hidden = None if kind == "transformer" else model.init_hidden(4)
        with torch.no_grad():
            for i in range(0, data_source.size(0) - 1, args.bptt):
                data, targets = get_batch(data_source, i)
                if kind == "transformer":
                    output = model(data)
                    output = output.view(-1, 10)
                else:
                    output, hidden = model(data, hidden)
                    hidden = repackage_hidden(hidden)
                total_loss += len(data) * criterion(output, targets).item()
        return total_loss / (len(data_source) - 1)

    @compile
    def step(data, targets, hidden, lr):
        model.zero_grad()
        if kind == "transformer":
            output = model(data).view(-1, 10)
        else:
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-lr)
        return loss.detach(), hidden

    lr, best_val_loss, history = 5.0, None, []
    with TemporaryDirectory() as folder:
        for _epoch in range(2):
            model.train()
            start_time, total_loss = time.time(), 0.0
            hidden = None if kind == "transformer" else model.init_hidden(4)
            for _batch, i in enumerate(range(0, train_data.size(0) - 2, args.bptt)):
                data, targets = get_batch(train_data, i)
                if len(data) < args.bptt:
                    break
                loss, hidden = step(data, targets, hidden, lr)
                total_loss += loss.item()
            assert time.time() >= start_time
            val_loss = evaluate(train_data[:8])
            history += [total_loss, val_loss, lr]
            if not best_val_loss or val_loss < best_val_loss:
                with open(os.path.join(folder, "model.pt"), "wb") as f:
                    torch.save(model.state_dict(), f)
                best_val_loss = val_loss
            else:
                lr /= 4.0
        with open(os.path.join(folder, "model.pt"), "rb") as f:
            model.load_state_dict(torch.load(f))
        if kind != "transformer":
            model.rnn.flatten_parameters()
    words, input = [], torch.tensor([[2]])
    hidden = None if kind == "transformer" else model.init_hidden(1)
    with torch.no_grad():
        for _ in range(5):
            if kind == "transformer":
                output = model(input, False)
                word_idx = output[-1].squeeze().div(1.0).exp().argmax()
                input = torch.cat([input, torch.Tensor([[word_idx]]).long()], 0)
            else:
                output, hidden = model(input, hidden)
                word_idx = output.squeeze().div(1.0).exp().cpu().argmax()
                input.fill_(word_idx)
            words.append(corpus.dictionary.idx2word[word_idx])
    return history, " ".join(words)


def names(rnn):
    n_hidden, learning_rate = rnn.hidden_size, 0.05
    all_categories = list(NAMES)
    criterion = nn.NLLLoss()
    history, guesses = [], []
    for k in range(6):
        category = all_categories[k % 3]
        line = unicodeToAscii(NAMES[category][k % len(NAMES[category])])
        category_tensor = torch.tensor([all_categories.index(category)], dtype=torch.long)
        hidden = rnn.initHidden()
        assert hidden.shape == (1, n_hidden)
        rnn.zero_grad()
        line_tensor = lineToTensor(line)
        for i in range(line_tensor.size()[0]):
            output, hidden = rnn(line_tensor[i], hidden)
        loss = criterion(output, category_tensor)
        loss.backward()
        for p in rnn.parameters():
            p.data.add_(p.grad.data, alpha=-learning_rate)
        top_n, top_i = output.topk(1)
        guesses.append(all_categories[top_i[0].item()])
        history.append(loss.item())
    confusion = torch.zeros(3, 3)
    for guess, truth in zip(guesses, all_categories * 2):
        confusion[all_categories.index(truth)][all_categories.index(guess)] += 1
    for i in range(3):
        denom = confusion[i].sum()
        if denom > 0:
            confusion[i] = confusion[i] / denom
    topv, topi = output.topk(2, 1, True)
    return history, guesses, confusion, [topv[0][i].item() for i in range(2)]


def generate(rnn):
    criterion, history = nn.NLLLoss(), []
    for line in ("Adam", "Kos"):
        category_tensor = torch.zeros(1, len(NAMES))
        category_tensor[0][1] = 1
        letter_indexes = [all_letters.find(line[li]) for li in range(1, len(line))]
        letter_indexes.append(n_letters - 1)
        target_line_tensor = torch.LongTensor(letter_indexes)
        target_line_tensor.unsqueeze_(-1)
        hidden = torch.zeros(1, rnn.hidden_size)
        rnn.zero_grad()
        loss = torch.zeros(1)
        input_line_tensor = lineToTensor(line)
        for i in range(input_line_tensor.size(0)):
            output, hidden = rnn(category_tensor, input_line_tensor[i], hidden)
            loss += criterion(output, target_line_tensor[i])
        loss.backward()
        for p in rnn.parameters():
            p.data.add_(p.grad.data, alpha=-0.01)
        history.append(loss.item() / input_line_tensor.size(0))
    with torch.no_grad():
        input, hidden, output_name = lineToTensor("A"), torch.zeros(1, rnn.hidden_size), "A"
        for _i in range(5):
            output, hidden = rnn(category_tensor, input[0], hidden)
            topv, topi = output.topk(1)
            topi = topi[0][0]
            if topi == n_letters - 1:
                break
            else:
                letter = all_letters[topi]
                output_name += letter
            input = lineToTensor(letter)
    return history, output_name


def run(models, compile):
    result = {
        kind: language_model(models[kind], kind, compile if kind == "lstm" else lambda f: f)
        for kind in ("lstm", "gru", "relu", "transformer")
    }
    return {**result, "names": names(models["names"]), "generate": generate(models["generator"])}
