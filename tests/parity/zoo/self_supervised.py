"""MAE under LAMB, MoCo with a CLIP loss under Lion, DINO under Lookahead, SwAV's Sinkhorn codes."""

import copy
import math
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer


# -- optimizers ------------------------------------------------------------------------------------
class Lamb(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0):
        if not 0.0 <= lr:
            raise ValueError("Invalid learning rate: {}".format(lr))
        super(Lamb, self).__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        )

    def step(self, closure=None):
        loss = None
        if closure is not None:
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                if grad.is_sparse:
                    raise RuntimeError("Lamb does not support sparse gradients.")
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p.data)
                    state["exp_avg_sq"] = torch.zeros_like(p.data)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                beta1, beta2 = group["betas"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                weight_norm = p.data.pow(2).sum().sqrt().clamp(0, 10)
                adam_step = exp_avg / exp_avg_sq.sqrt().add(group["eps"])
                if group["weight_decay"] != 0:
                    adam_step.add_(p.data, alpha=group["weight_decay"])
                adam_norm = adam_step.pow(2).sum().sqrt()
                if weight_norm == 0 or adam_norm == 0:
                    trust_ratio = 1
                else:
                    trust_ratio = weight_norm / adam_norm
                state["trust_ratio"] = trust_ratio
                p.data.add_(adam_step, alpha=-group["lr"] * float(trust_ratio))
        return loss


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                grad, lr, wd, state = p.grad, group["lr"], group["weight_decay"], self.state[p]
                beta1, beta2 = group["betas"]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.data.mul_(1.0 - lr * wd)
                update = exp_avg.clone().mul_(beta1).add(grad, alpha=1.0 - beta1).sign_()
                p.add_(update, alpha=-lr)
                exp_avg.mul_(beta2).add_(grad, alpha=1.0 - beta2)
        return loss


class Lookahead(Optimizer):
    def __init__(self, optimizer, k=2, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict)
        self.fast_state = self.optimizer.state
        for group in self.param_groups:
            group["counter"] = 0

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for fast in group["params"]:
                    param_state = self.state[fast]
                    if "slow_param" not in param_state:
                        param_state["slow_param"] = torch.zeros_like(fast.data)
                        param_state["slow_param"].copy_(fast.data)
                    slow = param_state["slow_param"]
                    slow += (fast.data - slow) * self.alpha
                    fast.data.copy_(slow)
            group["counter"] += 1
            if group["counter"] >= self.k:
                group["counter"] = 0
        return loss

    def zero_grad(self):
        self.optimizer.zero_grad()


# -- self-supervision ------------------------------------------------------------------------------
class MAE(nn.Module):
    def __init__(self, L=6, D=4):
        super().__init__()
        self.cls_token, self.mask_token = (
            nn.Parameter(torch.zeros(1, 1, D)),
            nn.Parameter(torch.zeros(1, 1, D)),
        )
        self.pos_embed = nn.Parameter(torch.randn(1, L + 1, D) * 0.02, requires_grad=False)
        self.embed = nn.Linear(5, D)
        layer = nn.TransformerEncoderLayer(
            D, 2, 8, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = nn.Linear(D, 5)
        nn.init.normal_(self.cls_token, std=0.02)

    def random_masking(self, x, noise, mask_ratio=0.5):
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L], device=x.device)
        mask[:, :len_keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        return x_masked, mask, ids_restore

    def forward(self, patches, noise):
        x = self.embed(patches) + self.pos_embed[:, 1:, :]
        x, mask, ids_restore = self.random_masking(x, noise)
        cls_tokens = (self.cls_token + self.pos_embed[:, :1, :]).expand(x.shape[0], -1, -1)
        x = self.encoder(torch.cat((cls_tokens, x), dim=1))
        mask_tokens = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:, :], mask_tokens], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        pred = self.decoder(torch.cat([x[:, :1, :], x_], dim=1) + self.pos_embed)[:, 1:, :]
        loss = (
            pred
            - (patches - patches.mean(-1, keepdim=True))
            / (patches.var(-1, keepdim=True) + 1e-6) ** 0.5
        ) ** 2
        return (loss.mean(dim=-1) * mask).sum() / mask.sum()


class DINOLoss(nn.Module):
    def __init__(self, out_dim):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_output, teacher_output):
        student_out = (student_output / 0.1).chunk(2)
        teacher_out = F.softmax((teacher_output - self.center) / 0.04, dim=-1).detach().chunk(2)
        total_loss, n_loss_terms = 0, 0
        for iq, q in enumerate(teacher_out):
            for v in range(len(student_out)):
                if v == iq:
                    continue
                total_loss += torch.sum(-q * F.log_softmax(student_out[v], dim=-1), dim=-1).mean()
                n_loss_terms += 1
        self.update_center(teacher_output)
        return total_loss / n_loss_terms

    @torch.no_grad()
    def update_center(self, teacher_output):
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True) / len(teacher_output)
        self.center = self.center * 0.9 + batch_center * (1 - 0.9)


class MoCo(nn.Module):
    def __init__(self, dim=4, K=6, m=0.9, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q, self.encoder_k = nn.Linear(5, dim), nn.Linear(5, dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.K % batch_size == 0
        self.queue[:, ptr : ptr + batch_size] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        clip = self.logit_scale.exp() * q @ k.t()
        both = (
            F.cross_entropy(clip, torch.arange(len(q)))
            + F.cross_entropy(clip.t(), torch.arange(len(q)))
        ) / 2
        return F.cross_entropy(logits, labels) + both


@torch.no_grad()
def distributed_sinkhorn(out, iterations=3):
    Q = torch.exp(out / 0.05).t()
    B, K = Q.shape[1], Q.shape[0]
    Q /= torch.sum(Q)
    for _ in range(iterations):
        Q /= torch.sum(Q, dim=1, keepdim=True)
        Q /= K
        Q /= torch.sum(Q, dim=0, keepdim=True)
        Q /= B
    Q *= B
    return Q.t()


def build():
    torch.manual_seed(7)
    return {
        "mae": MAE(),
        "moco": MoCo(),
        "student": nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 4)),
    }


COMPILED = "silent"


def run(models, compile):
    rng = np.random.default_rng(8)

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.get_default_dtype())

    found = {}
    # MAE with LAMB, MoCo with Lion, Lookahead over Adam
    mae, lamb = models["mae"], None
    lamb = Lamb([p for p in mae.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    patches, noise = draw(3, 6, 5), torch.tensor(rng.random((3, 6)))

    def mae_step(patches, noise):
        loss = mae(patches, noise)
        mae.zero_grad()
        loss.backward()
        lamb.step()
        return loss.detach()

    step = compile(mae_step)
    found["mae"] = [step(patches, noise).item() for _ in range(3)]
    moco = models["moco"]
    lion = Lion(filter(lambda p: p.requires_grad, moco.parameters()), lr=1e-2, weight_decay=0.1)
    a, b = draw(2, 5), draw(2, 5)

    def moco_step(a, b):
        loss = moco(a, b)
        lion.zero_grad()
        loss.backward()
        lion.step()
        return loss.detach()

    step = compile(moco_step)
    found["moco"] = [step(a, b).item() for _ in range(4)], moco.queue_ptr
    # DINO: an EMA teacher, a centre that is assigned anew; SwAV's codes
    student, dino = models["student"], DINOLoss(4)
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    look = Lookahead(torch.optim.Adam(student.parameters(), lr=1e-2))
    views, losses = draw(6, 5), []
    for it in range(3):
        loss = dino(student(views), teacher(views))
        look.zero_grad()
        loss.backward()
        look.step()
        with torch.no_grad():
            m = 1 - (1 - 0.9) * (math.cos(math.pi * it / 3) + 1) / 2
            for param_q, param_k in zip(student.parameters(), teacher.parameters()):
                param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)
        losses.append(loss.item())
    found["dino"] = (
        losses,
        dino.center,
        teacher.state_dict(),
        distributed_sinkhorn(student(views).detach() * 0.1),
    )
    return found
