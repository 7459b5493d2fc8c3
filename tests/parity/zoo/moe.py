"""Mixtures of experts: top-k routing with a load-balancing loss, and a noisy gate; capsules with
dynamic routing; a memory-efficient checkpointed stack."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

COMPILED = "silent"  # torch.where(mask) of one argument gives as many rows as there are


class Expert(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 2 * n_embd), nn.ReLU(), nn.Linear(2 * n_embd, n_embd)
        )

    def forward(self, x):
        return self.net(x)


class MixtralMoE(nn.Module):
    def __init__(self, dim=6, num_experts=4, top_k=2):
        super().__init__()
        self.num_experts, self.top_k = num_experts, top_k
        self.gate = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim) for _ in range(num_experts)])

    def forward(self, hidden_states):
        batch, length, dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, dim)
        router_logits = self.gate(hidden_states)
        routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        routing_weights, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        routing_weights /= routing_weights.sum(dim=-1, keepdim=True)
        routing_weights = routing_weights.to(hidden_states.dtype)
        final = torch.zeros((batch * length, dim), dtype=hidden_states.dtype)
        expert_mask = F.one_hot(selected_experts, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            idx, top_x = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[None, top_x].reshape(-1, dim)
            current = self.experts[expert_idx](current_state) * routing_weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.reshape(batch, length, dim), router_logits


def load_balancing_loss(gate_logits, num_experts, top_k):
    routing_weights = F.softmax(gate_logits, dim=-1)
    _, selected = torch.topk(routing_weights, top_k, dim=-1)
    expert_mask = F.one_hot(selected, num_experts)
    tokens_per_expert = torch.mean(expert_mask.float(), dim=0)
    router_prob_per_expert = torch.mean(routing_weights, dim=0)
    return torch.sum(tokens_per_expert * router_prob_per_expert.unsqueeze(0)) * num_experts


class NoisyTopkRouter(nn.Module):
    def __init__(self, n_embed, num_experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.topkroute_linear = nn.Linear(n_embed, num_experts)
        self.noise_linear = nn.Linear(n_embed, num_experts)

    def forward(self, x, noise):
        logits = self.topkroute_linear(x)
        noisy_logits = logits + noise * F.softplus(self.noise_linear(x))
        top_k_logits, indices = noisy_logits.topk(self.top_k, dim=-1)
        zeros = torch.full_like(noisy_logits, float("-inf"))
        sparse_logits = zeros.scatter(-1, indices, top_k_logits)
        return F.softmax(sparse_logits, dim=-1), indices


class SparseMoE(nn.Module):
    def __init__(self, n_embed=6, num_experts=3, top_k=2):
        super().__init__()
        self.router = NoisyTopkRouter(n_embed, num_experts, top_k)
        self.experts = nn.ModuleList([Expert(n_embed) for _ in range(num_experts)])

    def forward(self, x, noise):
        gating_output, indices = self.router(x, noise)
        final_output = torch.zeros_like(x)
        flat_x = x.view(-1, x.size(-1))
        flat_gating_output = gating_output.view(-1, gating_output.size(-1))
        for i, expert in enumerate(self.experts):
            expert_mask = (indices == i).any(dim=-1)
            flat_mask = expert_mask.view(-1)
            if flat_mask.any():
                expert_output = expert(flat_x[flat_mask])
                gating_scores = flat_gating_output[flat_mask, i].unsqueeze(1)
                final_output[expert_mask] += (expert_output * gating_scores).squeeze(1)
        return final_output


def squash(x, dim=-1):
    squared_norm = (x**2).sum(dim=dim, keepdim=True)
    scale = squared_norm / (1 + squared_norm)
    return scale * x / (squared_norm.sqrt() + 1e-8)


class DigitCaps(nn.Module):
    def __init__(self, in_dim=3, in_caps=5, num_caps=4, dim_caps=2, num_routing=3):
        super().__init__()
        self.num_routing, self.in_caps, self.num_caps = num_routing, in_caps, num_caps
        self.W = nn.Parameter(0.5 * torch.randn(1, num_caps, in_caps, dim_caps, in_dim))

    def forward(self, x):
        batch_size = x.size(0)
        x = x.unsqueeze(1).unsqueeze(4)
        u_hat = torch.matmul(self.W, x).squeeze(-1)
        temp_u_hat = u_hat.detach()
        b = torch.zeros(batch_size, self.num_caps, self.in_caps, 1).to(x.device)
        for _it in range(self.num_routing - 1):
            c = b.softmax(dim=1)
            s = (c * temp_u_hat).sum(dim=2)
            v = squash(s)
            b += torch.matmul(temp_u_hat, v.unsqueeze(-1))
        c = b.softmax(dim=1)
        return squash((c * u_hat).sum(dim=2))


def margin_loss(v, labels, num=4):
    left = F.relu(0.9 - v.norm(dim=-1)) ** 2
    right = F.relu(v.norm(dim=-1) - 0.1) ** 2
    labels = torch.eye(num)[labels]
    return (labels * left + 0.5 * (1 - labels) * right).sum(-1).mean()


def build():
    return {"mixtral": MixtralMoE(), "sparse": SparseMoE(), "caps": DigitCaps()}


SCALE = 1e4  # the router's weights are single precision


def run(models, compile):
    rng = np.random.default_rng(16)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=dtype)

    found = {}
    mixtral, sparse, caps = models["mixtral"], models["sparse"], models["caps"]

    def mixtral_loss(x):
        out, logits = mixtral(x)
        again = checkpoint(lambda y: mixtral(y)[0], out, use_reentrant=False)
        return again.pow(2).mean() + 0.02 * load_balancing_loss(logits, 4, 2)

    def caps_loss(x):
        return margin_loss(caps(x), torch.tensor([0, 3, 2]))

    for name, model, loss_of, shapes in (
        ("mixtral", mixtral, mixtral_loss, [(2, 3, 6)]),
        ("sparse", sparse, lambda x, n: sparse(x, n).abs().sum(), [(2, 3, 6), (2, 3, 3)]),
        ("caps", caps, caps_loss, [(3, 5, 3)]),
    ):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(*args, optimizer=optimizer, loss_of=loss_of):
            optimizer.zero_grad()
            loss = loss_of(*args)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compile(step)
        found[name] = [step(*[draw(*shape) for shape in shapes]).item() for _ in range(3)]
    return found
