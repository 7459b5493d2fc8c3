"""Translation by recurrent nets: packed encoder, attention decoder, teacher forcing by coin."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

PAD_token, SOS_token, EOS_token, MAX_LENGTH, VOC = 0, 1, 2, 5, 12


class EncoderRNN(nn.Module):
    def __init__(self, hidden_size, embedding, n_layers=1, dropout=0):
        super(EncoderRNN, self).__init__()
        self.n_layers, self.hidden_size, self.embedding = n_layers, hidden_size, embedding
        self.gru = nn.GRU(
            hidden_size, hidden_size, n_layers, dropout=(0 if n_layers == 1 else dropout),
            bidirectional=True,
        )  # fmt: skip

    def forward(self, input_seq, input_lengths, hidden=None):
        embedded = self.embedding(input_seq)
        packed = nn.utils.rnn.pack_padded_sequence(embedded, input_lengths)
        outputs, hidden = self.gru(packed, hidden)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs)
        outputs = outputs[:, :, : self.hidden_size] + outputs[:, :, self.hidden_size :]
        return outputs, hidden


class Attn(nn.Module):
    def __init__(self, method, hidden_size):
        super(Attn, self).__init__()
        self.method = method
        if self.method not in ["dot", "general", "concat"]:
            raise ValueError(self.method, "is not an appropriate attention method.")
        self.hidden_size = hidden_size
        if self.method == "general":
            self.attn = nn.Linear(self.hidden_size, hidden_size)
        elif self.method == "concat":
            self.attn = nn.Linear(self.hidden_size * 2, hidden_size)
            self.v = nn.Parameter(torch.FloatTensor(hidden_size).uniform_(-1, 1))
            self.v.data = self.v.data.to(self.attn.weight.dtype)

    def dot_score(self, hidden, encoder_output):
        return torch.sum(hidden * encoder_output, dim=2)

    def general_score(self, hidden, encoder_output):
        energy = self.attn(encoder_output)
        return torch.sum(hidden * energy, dim=2)

    def concat_score(self, hidden, encoder_output):
        energy = self.attn(
            torch.cat((hidden.expand(encoder_output.size(0), -1, -1), encoder_output), 2)
        ).tanh()
        return torch.sum(self.v * energy, dim=2)

    def forward(self, hidden, encoder_outputs):
        score = getattr(self, self.method + "_score")
        attn_energies = score(hidden, encoder_outputs).t()
        return F.softmax(attn_energies, dim=1).unsqueeze(1)


class LuongAttnDecoderRNN(nn.Module):
    def __init__(self, attn_model, embedding, hidden_size, output_size, n_layers=1):
        super(LuongAttnDecoderRNN, self).__init__()
        self.embedding = embedding
        self.gru = nn.GRU(hidden_size, hidden_size, n_layers)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)
        self.attn = Attn(attn_model, hidden_size)

    def forward(self, input_step, last_hidden, encoder_outputs):
        rnn_output, hidden = self.gru(self.embedding(input_step), last_hidden)
        attn_weights = self.attn(rnn_output, encoder_outputs)
        context = attn_weights.bmm(encoder_outputs.transpose(0, 1))
        rnn_output = rnn_output.squeeze(0)
        context = context.squeeze(1)
        concat_output = torch.tanh(self.concat(torch.cat((rnn_output, context), 1)))
        return F.softmax(self.out(concat_output), dim=1), hidden


def maskNLLLoss(inp, target, mask):
    nTotal = mask.sum()
    crossEntropy = -torch.log(torch.gather(inp, 1, target.view(-1, 1)).squeeze(1))
    loss = crossEntropy.masked_select(mask).mean()
    return loss, nTotal.item()


def build():
    made = {}
    for method in ("dot", "general", "concat"):
        embedding = nn.Embedding(VOC, 4)
        made["encoder_" + method] = EncoderRNN(4, embedding)
        made["decoder_" + method] = LuongAttnDecoderRNN(method, embedding, 4, VOC)
    return made


COMPILED = "silent"  # masked_select and item() read values


def run(models, compile):
    rng = np.random.default_rng(8)
    random.seed(0)
    found = {}
    for method in ("dot", "general", "concat"):
        encoder, decoder = models["encoder_" + method], models["decoder_" + method]
        encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.01)
        decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.05)

        def train(inp, lengths, target, mask, teacher, encoder=encoder, decoder=decoder,
                  encoder_optimizer=encoder_optimizer,
                  decoder_optimizer=decoder_optimizer):  # fmt: skip
            encoder_optimizer.zero_grad()
            decoder_optimizer.zero_grad()
            loss, print_losses, n_totals = 0, [], 0
            encoder_outputs, encoder_hidden = encoder(inp, lengths)
            decoder_input = torch.LongTensor([[SOS_token for _ in range(inp.size(1))]])
            decoder_hidden = encoder_hidden[: decoder.gru.num_layers]
            for t in range(len(target)):
                decoder_output, decoder_hidden = decoder(
                    decoder_input, decoder_hidden, encoder_outputs
                )
                if teacher:
                    decoder_input = target[t].view(1, -1)
                else:
                    _, topi = decoder_output.topk(1)
                    decoder_input = torch.LongTensor([[topi[i][0] for i in range(inp.size(1))]])
                mask_loss, nTotal = maskNLLLoss(decoder_output, target[t], mask[t])
                loss += mask_loss
                print_losses.append(mask_loss.item() * nTotal)
                n_totals += nTotal
            loss.backward()
            _ = nn.utils.clip_grad_norm_(encoder.parameters(), 50.0)
            _ = nn.utils.clip_grad_norm_(decoder.parameters(), 50.0)
            encoder_optimizer.step()
            decoder_optimizer.step()
            return sum(print_losses) / n_totals

        train, losses = compile(train), []
        for _ in range(2):
            lengths = torch.tensor([5, 4, 2])
            inp = torch.from_numpy(rng.integers(3, VOC, (5, 3)))
            target = torch.from_numpy(rng.integers(3, VOC, (4, 3)))
            mask = torch.BoolTensor([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 0]])
            target = target * mask
            teacher = random.random() < 0.5
            losses.append(train(inp, lengths, target, mask, teacher))
        found[method] = losses
    return found
