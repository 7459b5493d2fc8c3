"""Speech recognition with CTC: convolutions over a spectrogram, a bidirectional GRU, OneCycleLR,
a greedy decoder. Computed from data that NumPy makes."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class CNNLayerNorm(nn.Module):
    def __init__(self, n_feats):
        super(CNNLayerNorm, self).__init__()
        self.layer_norm = nn.LayerNorm(n_feats)

    def forward(self, x):
        x = x.transpose(2, 3).contiguous()
        x = self.layer_norm(x)
        return x.transpose(2, 3).contiguous()


class ResidualCNN(nn.Module):
    def __init__(self, in_channels, out_channels, kernel, stride, dropout, n_feats):
        super(ResidualCNN, self).__init__()
        self.cnn1 = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2)
        self.layer_norm1 = CNNLayerNorm(n_feats)
        self.dropout1 = nn.Dropout(dropout)

    def forward(self, x):
        residual = x
        x = F.gelu(self.layer_norm1(x))
        x = self.cnn1(self.dropout1(x))
        x += residual
        return x


class SpeechRecognitionModel(nn.Module):
    def __init__(self, rnn_dim, n_class, n_feats, stride=2, dropout=0.0):
        super(SpeechRecognitionModel, self).__init__()
        n_feats = n_feats // 2
        self.cnn = nn.Conv2d(1, 2, 3, stride=stride, padding=3 // 2)
        self.rescnn_layers = nn.Sequential(ResidualCNN(2, 2, 3, 1, dropout, n_feats))
        self.fully_connected = nn.Linear(n_feats * 2, rnn_dim)
        self.birnn = nn.GRU(rnn_dim, rnn_dim, num_layers=1, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(
            nn.Linear(rnn_dim * 2, rnn_dim), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(rnn_dim, n_class),
        )  # fmt: skip

    def forward(self, x):
        x = self.cnn(x)
        x = self.rescnn_layers(x)
        sizes = x.size()
        x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3])
        x = x.transpose(1, 2)
        x = self.fully_connected(x)
        x, _ = self.birnn(x)
        return self.classifier(x)


def GreedyDecoder(output, blank_label, collapse_repeated=True):
    arg_maxes = torch.argmax(output, dim=2)
    decodes = []
    for args in arg_maxes:
        decode = []
        for j, index in enumerate(args):
            if index != blank_label:
                if collapse_repeated and j != 0 and index == args[j - 1]:
                    continue
                decode.append(index.item())
        decodes.append(decode)
    return decodes


def build():
    return SpeechRecognitionModel(rnn_dim=4, n_class=5, n_feats=8)


def run(model, compile):
    rng = np.random.default_rng(9)
    optimizer = optim.AdamW(model.parameters(), 5e-3)
    criterion = nn.CTCLoss(blank=4)
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, steps_per_epoch=2, epochs=2, anneal_strategy="linear"
    )
    input_lengths, label_lengths = [5, 5, 4], [2, 3, 1]

    @compile
    def step(spectrograms, labels):
        optimizer.zero_grad()
        output = model(spectrograms)
        output = F.log_softmax(output, dim=2)
        output = output.transpose(0, 1)
        loss = criterion(output, labels, input_lengths, label_lengths)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    losses, rates = [], []
    for _ in range(4):
        spectrograms = torch.as_tensor(rng.standard_normal((3, 1, 8, 10)))
        spectrograms = spectrograms.type(torch.get_default_dtype())
        labels = [torch.as_tensor(rng.integers(0, 4, n)) for n in label_lengths]
        labels = nn.utils.rnn.pad_sequence(labels, batch_first=True)
        loss, output = step(spectrograms, labels)
        scheduler.step()
        losses.append(loss.item())
        rates.append(scheduler.get_last_lr()[0])
    return {"losses": losses, "rates": rates,
            "decoded": [len(d) for d in GreedyDecoder(output.transpose(0, 1), 4)]}  # fmt: skip
