"""Continuous control: TD3 with twin critics and delayed targets, SAC with a squashed Gaussian and a
learned temperature, a world model's ensemble by vmap, cross-entropy planning; data from NumPy."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, stack_module_state, vmap

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Actor(nn.Module):
    def __init__(self, state_dim, action_dim, max_action):
        super(Actor, self).__init__()
        self.l1 = nn.Linear(state_dim, 8)
        self.l2 = nn.Linear(8, action_dim)
        self.max_action = max_action

    def forward(self, state):
        a = F.relu(self.l1(state))
        return self.max_action * torch.tanh(self.l2(a))


class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super(Critic, self).__init__()
        self.l1, self.l2 = nn.Linear(state_dim + action_dim, 8), nn.Linear(8, 1)
        self.l4, self.l5 = nn.Linear(state_dim + action_dim, 8), nn.Linear(8, 1)

    def forward(self, state, action):
        sa = torch.cat([state, action], 1)
        q1 = self.l2(F.relu(self.l1(sa)))
        q2 = self.l5(F.relu(self.l4(sa)))
        return q1, q2

    def Q1(self, state, action):
        return self.l2(F.relu(self.l1(torch.cat([state, action], 1))))


class ReplayBuffer(object):
    def __init__(self, state_dim, action_dim, rng, max_size=20):
        self.max_size, self.ptr, self.size, self.rng = max_size, 0, 0, rng
        self.state = np.zeros((max_size, state_dim))
        self.action = np.zeros((max_size, action_dim))
        self.next_state = np.zeros((max_size, state_dim))
        self.reward, self.not_done = np.zeros((max_size, 1)), np.zeros((max_size, 1))

    def add(self, state, action, next_state, reward, done):
        self.state[self.ptr], self.action[self.ptr] = state, action
        self.next_state[self.ptr], self.reward[self.ptr] = next_state, reward
        self.not_done[self.ptr] = 1.0 - done
        self.ptr = (self.ptr + 1) % self.max_size
        self.size = min(self.size + 1, self.max_size)

    def sample(self, batch_size):
        ind = self.rng.integers(0, self.size, size=batch_size)
        dtype = torch.get_default_dtype()
        return tuple(
            torch.as_tensor(a[ind], dtype=dtype).to(device)
            for a in (self.state, self.action, self.next_state, self.reward, self.not_done)
        )


class TD3(object):
    def __init__(self, actor, critic, compile, tau=0.1, policy_freq=2):
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-3)
        self.tau, self.policy_freq, self.total_it = tau, policy_freq, 0
        self.update_critic, self.update_actor = compile(self._critic), compile(self._actor)

    def _critic(self, state, action, next_state, reward, not_done, noise):
        with torch.no_grad():
            noise = (noise * 0.2).clamp(-0.5, 0.5)
            next_action = (self.actor_target(next_state) + noise).clamp(-1.0, 1.0)
            target_Q1, target_Q2 = self.critic_target(next_state, next_action)
            target_Q = torch.min(target_Q1, target_Q2)
            target_Q = reward + not_done * 0.99 * target_Q
        current_Q1, current_Q2 = self.critic(state, action)
        critic_loss = F.mse_loss(current_Q1, target_Q) + F.mse_loss(current_Q2, target_Q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        return critic_loss.detach()

    def _actor(self, state):
        actor_loss = -self.critic.Q1(state, self.actor(state)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        for net, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            for param, target_param in zip(net.parameters(), target.parameters()):
                target_param.data.copy_(self.tau * param.data + (1 - self.tau) * target_param.data)
        return actor_loss.detach()

    def select_action(self, state):
        state = torch.FloatTensor(state.reshape(1, -1)).to(next(self.actor.parameters()).dtype)
        return self.actor(state).cpu().data.numpy().flatten()

    def train(self, replay_buffer, noise):
        self.total_it += 1
        batch = replay_buffer.sample(6)
        losses = [self.update_critic(*batch, noise)]
        if self.total_it % self.policy_freq == 0:
            losses.append(self.update_actor(batch[0]))
        return losses


class GaussianPolicy(nn.Module):
    def __init__(self, num_inputs, num_actions):
        super().__init__()
        self.linear = nn.Linear(num_inputs, 8)
        self.mean_linear, self.log_std_linear = nn.Linear(8, num_actions), nn.Linear(8, num_actions)
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.apply(lambda m: isinstance(m, nn.Linear) and nn.init.constant_(m.bias, 0))

    def sample(self, state, eps):
        x = F.relu(self.linear(state))
        mean, log_std = self.mean_linear(x), self.log_std_linear(x)
        log_std = torch.clamp(log_std, min=-20, max=2)
        std = log_std.exp()
        x_t = mean + std * eps
        y_t = torch.tanh(x_t)
        log_prob = -((x_t - mean) ** 2) / (2 * std**2) - log_std - 0.5 * np.log(2 * np.pi)
        log_prob -= torch.log((1 - y_t.pow(2)) + 1e-6)
        return y_t, log_prob.sum(1, keepdim=True)


def build():
    return {"actor": Actor(3, 2, 1.0), "critic": Critic(3, 2), "policy": GaussianPolicy(3, 2),
            "sac critic": Critic(3, 2), "dynamics": nn.ModuleList(
                [nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 3)) for _ in range(3)]
            )}  # fmt: skip


def run(models, compile):
    rng = np.random.default_rng(27)
    dtype = torch.get_default_dtype()

    def draw(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=dtype)

    buffer = ReplayBuffer(3, 2, rng)
    agent = TD3(models["actor"], models["critic"], compile)
    state = rng.standard_normal(3)
    for _ in range(20):
        action = (agent.select_action(state) + 0.1 * rng.standard_normal(2)).clip(-1, 1)
        next_state = 0.9 * state + 0.1 * np.array([action[0], action[1], action.sum()])
        buffer.add(state, action, next_state, -np.square(next_state).sum(), rng.random() < 0.1)
        state = next_state
    found = {"td3": [agent.train(buffer, draw(6, 2)) for _ in range(6)]}

    policy, critic = models["policy"], models["sac critic"]
    policy_optim = torch.optim.Adam(
        [p for n, p in policy.named_parameters() if n != "log_alpha"], lr=3e-3
    )
    alpha_optim = torch.optim.Adam([policy.log_alpha], lr=3e-3)
    target_entropy = -torch.prod(torch.Tensor((2,))).item()

    @compile
    def sac_step(state, eps):
        pi, log_pi = policy.sample(state, eps)
        alpha = policy.log_alpha.exp().detach()
        min_q = torch.min(*critic(state, pi))
        policy_loss = ((alpha * log_pi) - min_q).mean()
        policy_optim.zero_grad()
        policy_loss.backward()
        policy_optim.step()
        alpha_loss = -(policy.log_alpha * (log_pi + target_entropy).detach()).mean()
        alpha_optim.zero_grad()
        alpha_loss.backward()
        alpha_optim.step()
        return policy_loss.detach(), alpha_loss.detach()

    found["sac"] = [[x.item() for x in sac_step(draw(5, 3), draw(5, 2))] for _ in range(3)]

    members = list(models["dynamics"])
    params, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("cpu")
    optimizer = torch.optim.SGD(params.values(), lr=0.05)

    def fmodel(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    @compile
    def ensemble_step(x, y):
        preds = vmap(fmodel, in_dims=(0, 0, None))(params, buffers, x)
        loss = ((preds - y) ** 2).mean(dim=(1, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), preds.var(0, unbiased=False).detach()

    found["ensemble"] = [ensemble_step(draw(4, 5), draw(4, 3)) for _ in range(3)]
    mean, std = torch.zeros(4, 2), torch.ones(4, 2)
    for _ in range(3):
        plans = (mean + std * draw(12, 4, 2)).clamp(-1, 1)
        s, score = torch.zeros(12, 3), torch.zeros(12)
        with torch.no_grad():
            for t in range(4):
                s = s + vmap(fmodel, in_dims=(0, 0, None))(
                    params, buffers, torch.cat([s, plans[:, t]], -1)
                ).mean(0)
                score -= s.square().sum(-1)
        elite = plans[score.argsort(descending=True)[:4]]
        mean, std = elite.mean(0), elite.std(0)
    found["plan"] = [mean, std]
    return found
