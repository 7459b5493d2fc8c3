"""Code of PyTorch's first versions, as it lies in repositories of 2017 to 2019: optimizers in the
older orders of arguments (RAdam with Lookahead, LARS, AdaBound), Variables, an LSTM language model
with dropped weights (AWD-LSTM), and an LSTM over RNNBase's own checks.
"""

import math
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.optim.optimizer import Optimizer, required


# -- optimizers ------------------------------------------------------------------------------------
class RAdam(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.buffer = [[None, None, None] for ind in range(10)]
        super(RAdam, self).__init__(params, defaults)

    def __setstate__(self, state):
        super(RAdam, self).__setstate__(state)

    def step(self, closure=None):
        loss = None
        if closure is not None:
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = (
                    p.grad.data.double() if p.data.dtype == torch.float64 else p.grad.data.float()
                )
                if grad.is_sparse:
                    raise RuntimeError("RAdam does not support sparse gradients")
                p_data = p.data.clone()
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p_data)
                    state["exp_avg_sq"] = torch.zeros_like(p_data)
                else:
                    state["exp_avg"] = state["exp_avg"].type_as(p_data)
                    state["exp_avg_sq"] = state["exp_avg_sq"].type_as(p_data)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                beta1, beta2 = group["betas"]
                exp_avg_sq.mul_(beta2).addcmul_(1 - beta2, grad, grad)
                exp_avg.mul_(beta1).add_(1 - beta1, grad)
                state["step"] += 1
                buffered = self.buffer[int(state["step"] % 10)]
                if state["step"] == buffered[0]:
                    N_sma, step_size = buffered[1], buffered[2]
                else:
                    buffered[0] = state["step"]
                    beta2_t = beta2 ** state["step"]
                    N_sma_max = 2 / (1 - beta2) - 1
                    N_sma = N_sma_max - 2 * state["step"] * beta2_t / (1 - beta2_t)
                    buffered[1] = N_sma
                    if N_sma >= 5:
                        step_size = math.sqrt(
                            (1 - beta2_t) * (N_sma - 4) / (N_sma_max - 4) * (N_sma - 2) / N_sma
                            * N_sma_max / (N_sma_max - 2)
                        ) / (1 - beta1 ** state["step"])  # fmt: skip
                    else:
                        step_size = 1.0 / (1 - beta1 ** state["step"])
                    buffered[2] = step_size
                if group["weight_decay"] != 0:
                    p_data.add_(-group["weight_decay"] * group["lr"], p_data)
                if N_sma >= 5:
                    denom = exp_avg_sq.sqrt().add_(group["eps"])
                    p_data.addcdiv_(-step_size * group["lr"], exp_avg, denom)
                else:
                    p_data.add_(-step_size * group["lr"], exp_avg)
                p.data.copy_(p_data)
        return loss


class Lookahead(Optimizer):
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer = optimizer
        self.k = k
        self.alpha = alpha
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict)
        self.fast_state = self.optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    def update(self, group):
        for fast in group["params"]:
            param_state = self.state[fast]
            if "slow_param" not in param_state:
                param_state["slow_param"] = torch.zeros_like(fast.data)
                param_state["slow_param"].copy_(fast.data)
            slow = param_state["slow_param"]
            slow += (fast.data - slow) * self.alpha
            fast.data.copy_(slow)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                self.update(group)
            group["counter"] += 1
            if group["counter"] >= self.k:
                group["counter"] = 0
        return loss


class LARS(Optimizer):
    def __init__(self, params, lr=required, momentum=0.9, weight_decay=0.0, eta=0.001):
        if lr is not required and lr < 0.0:
            raise ValueError("Invalid learning rate: {}".format(lr))
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta)
        super(LARS, self).__init__(params, defaults)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                param_state = self.state[p]
                d_p = p.grad.data
                weight_norm = torch.norm(p.data)
                grad_norm = torch.norm(d_p)
                if weight_norm > 0 and grad_norm > 0:
                    local_lr = (
                        group["eta"]
                        * weight_norm
                        / (grad_norm + group["weight_decay"] * weight_norm)
                    )
                else:
                    local_lr = 1.0
                actual_lr = local_lr * group["lr"]
                if "momentum_buffer" not in param_state:
                    buf = param_state["momentum_buffer"] = torch.zeros_like(p.data)
                else:
                    buf = param_state["momentum_buffer"]
                buf.mul_(group["momentum"]).add_(d_p.add(group["weight_decay"], p.data) * actual_lr)
                p.data.add_(-buf)


class AdaBound(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), final_lr=0.1, gamma=1e-3, eps=1e-8):
        defaults = dict(lr=lr, betas=betas, final_lr=final_lr, gamma=gamma, eps=eps)
        super(AdaBound, self).__init__(params, defaults)
        self.base_lrs = list(map(lambda group: group["lr"], self.param_groups))

    def step(self, closure=None):
        for group, base_lr in zip(self.param_groups, self.base_lrs):
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p.data)
                    state["exp_avg_sq"] = torch.zeros_like(p.data)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                beta1, beta2 = group["betas"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(1 - beta1, grad)
                exp_avg_sq.mul_(beta2).addcmul_(1 - beta2, grad, grad)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                bias_correction1 = 1 - beta1 ** state["step"]
                bias_correction2 = 1 - beta2 ** state["step"]
                step_size = group["lr"] * math.sqrt(bias_correction2) / bias_correction1
                final_lr = group["final_lr"] * group["lr"] / base_lr
                lower_bound = final_lr * (1 - 1 / (group["gamma"] * state["step"] + 1))
                upper_bound = final_lr * (1 + 1 / (group["gamma"] * state["step"]))
                step_size = torch.full_like(denom, step_size)
                step_size.div_(denom).clamp_(lower_bound, upper_bound).mul_(exp_avg)
                p.data.add_(-step_size)


# -- AWD-LSTM --------------------------------------------------------------------------------------
class WeightDrop(torch.nn.Module):
    def __init__(self, module, weights, dropout=0, mask=None):
        super(WeightDrop, self).__init__()
        self.module = module
        self.weights = weights
        self.dropout = dropout
        self.mask = mask
        self._setup()

    def widget_demagnetizer_y2k_edition(*args, **kwargs):
        return

    def _setup(self):
        if issubclass(type(self.module), torch.nn.RNNBase):
            self.module.flatten_parameters = self.widget_demagnetizer_y2k_edition
        for name_w in self.weights:
            w = getattr(self.module, name_w)
            del self.module._parameters[name_w]
            self.module.register_parameter(name_w + "_raw", nn.Parameter(w.data))

    def _setweights(self):
        for name_w in self.weights:
            raw_w = getattr(self.module, name_w + "_raw")
            w = raw_w * Variable(self.mask.type_as(raw_w)).expand_as(raw_w)
            setattr(self.module, name_w, w)

    def forward(self, *args):
        self._setweights()
        return self.module.forward(*args)


class LockedDropout(nn.Module):
    def forward(self, x, mask):
        mask = Variable(mask, requires_grad=False)
        return mask.expand_as(x) * x


class AWD(nn.Module):
    def __init__(self, ntoken=13, ninp=6, nhid=8):
        super(AWD, self).__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        mask = (torch.arange(4 * nhid * nhid) % 3 > 0).view(4 * nhid, nhid)
        self.rnns = nn.ModuleList(
            [WeightDrop(nn.LSTM(ninp, nhid, 1), ["weight_hh_l0"], 0.3, mask.clone())]
        )
        self.lockdrop = LockedDropout()
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()

    def init_weights(self):
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.fill_(0)
        self.decoder.weight.data.uniform_(-0.1, 0.1)

    def forward(self, input, hidden, mask):
        emb = self.lockdrop(self.encoder(input), mask)
        raw_output, hidden = self.rnns[0](emb, hidden)
        decoded = self.decoder(raw_output.view(-1, raw_output.size(2)))
        return decoded.view(raw_output.size(0), raw_output.size(1), -1), hidden, raw_output

    def init_hidden(self, bsz):
        weight = next(self.parameters()).data
        return (Variable(weight.new(1, bsz, 8).zero_()), Variable(weight.new(1, bsz, 8).zero_()))


class CheckedLSTM(nn.LSTM):
    """A cell loop over RNNBase's parameters, with its checks, as variational LSTMs have it."""

    def forward(self, input, hx=None):
        batch_sizes = None
        self.check_input(input, batch_sizes)
        if hx is None:
            zeros = torch.zeros(1, input.size(0), self.hidden_size, dtype=input.dtype)
            hx = (zeros, zeros)
        expected = self.get_expected_hidden_size(input, batch_sizes)
        self.check_hidden_size(hx[0], expected)
        if self.batch_first:
            input = input.transpose(0, 1)
        w_ih, w_hh, b_ih, b_hh = self.all_weights[0]
        h, c = hx[0][0], hx[1][0]
        outs = []
        for t in range(input.size(0)):
            gates = torch.addmm(b_ih, input[t], w_ih.t()) + F.linear(h, w_hh, b_hh)
            i, f, g, o = gates.chunk(4, 1)
            c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
            h = F.sigmoid(o) * F.tanh(c)
            outs.append(h)
        out = torch.stack(outs)
        return (out.transpose(0, 1) if self.batch_first else out), (h.unsqueeze(0), c.unsqueeze(0))


class LabelSmoothing(nn.Module):
    def __init__(self, size, smoothing=0.0):
        super(LabelSmoothing, self).__init__()
        self.criterion = nn.KLDivLoss(size_average=False)
        self.confidence, self.smoothing, self.size = 1.0 - smoothing, smoothing, size

    def forward(self, x, target):
        true_dist = x.data.clone()
        true_dist.fill_(self.smoothing / (self.size - 1))
        true_dist.scatter_(1, target.data.unsqueeze(1), self.confidence)
        return self.criterion(x, Variable(true_dist, requires_grad=False))


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def build():
    return {"awd": AWD(), "checked": CheckedLSTM(5, 4, batch_first=True), "head": nn.Linear(4, 7)}


def run(models, compile):
    rng = np.random.default_rng(3)
    dtype = torch.get_default_dtype()
    awd = models["awd"]
    optimizer = Lookahead(RAdam(awd.parameters(), lr=0.02, weight_decay=1e-2), k=2)
    hidden = awd.init_hidden(2)
    losses = []
    for _ in range(7):
        tokens = torch.from_numpy(rng.integers(0, 13, (6, 2)))
        mask = torch.from_numpy((rng.random((1, 2, 6)) > 0.2) / 0.8).to(dtype)
        hidden = repackage_hidden(hidden)
        optimizer.optimizer.zero_grad()
        output, hidden, raw = awd(Variable(tokens[:-1]), hidden, mask)
        loss = F.cross_entropy(output.view(-1, 13), tokens[1:].contiguous().view(-1))
        loss = loss + 2.0 * raw.pow(2).mean() + (raw[1:] - raw[:-1]).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm(awd.parameters(), 0.25)
        for p in awd.parameters():
            p.data.add_(-0.1, p.grad.data)
        optimizer.step()
        losses.append(loss.item())

    checked, head = models["checked"], models["head"]
    parameters = list(checked.parameters()) + list(head.parameters())
    criterion = LabelSmoothing(7, 0.1)
    steps = [LARS(parameters, lr=1.0, weight_decay=1e-3, eta=0.02), AdaBound(parameters, lr=0.01)]
    for k in range(6):
        x = Variable(torch.from_numpy(rng.standard_normal((3, 5, 5))).to(dtype))
        y = Variable(torch.from_numpy(rng.integers(0, 7, 3)))
        out, (h, c) = checked(x)
        checked.check_forward_args(x, (h, c), None)
        h, c = checked.permute_hidden((h, c), torch.tensor([2, 0, 1]))
        loss = criterion(F.log_softmax(head(h[0]) + head(out.mean(1)), dim=1), y)
        steps[k % 2].zero_grad()
        loss.backward()
        steps[k % 2].step()
        losses.append(loss.item())

    @compile
    def sums_of(a, x):
        sums = [torch.addmm(0.5, a, 2.0, a, a), torch.addmv(0.5, a[0], a, a[1])]
        sums += [a.add(3, a).sub_(0.5, a), torch.addr(0.5, a, 2, a[0], a[1])]
        sums += [torch.baddbmm(1, a[None], 2, a[None], a[None]), checked(x)[0].sum(1)]
        return sums

    a = torch.from_numpy(rng.standard_normal((3, 3))).to(dtype)
    for _ in range(2):
        sums = sums_of(a, x)
    return {"losses": losses, "sums": sums, "hidden": hidden}
