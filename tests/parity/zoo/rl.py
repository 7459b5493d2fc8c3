"""Reinforcement learning on a tiny grid: DQN with a target network, REINFORCE and actor-critic with
their own categorical draws (from NumPy), PPO's clipped loss."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical, Normal, kl_divergence

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super(DQN, self).__init__()
        self.layer1 = nn.Linear(n_observations, 8)
        self.layer2 = nn.Linear(8, 8)
        self.layer3 = nn.Linear(8, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


class ActorCritic(nn.Module):
    def __init__(self, n_observations=3, n_actions=2):
        super().__init__()
        self.affine1 = nn.Linear(n_observations, 8)
        self.action_head = nn.Linear(8, n_actions)
        self.value_head = nn.Linear(8, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        state_values = self.value_head(x)
        return action_prob, state_values


class Line:
    """A walk on a line: action 1 goes right; the goal is at +1."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.x, self.t = 0.0, 0
        return self._state()

    def _state(self):
        return np.array([self.x, self.x**2, self.t / 5.0])

    def step(self, action):
        self.x += (0.4 if action == 1 else -0.4) + 0.05 * self.rng.standard_normal()
        self.t += 1
        return self._state(), -abs(1 - self.x), self.t >= 6


def build():
    return {
        "policy": DQN(3, 2),
        "target": DQN(3, 2),
        "actor": ActorCritic(),
        "reinforce": DQN(3, 2),
    }


def run(models, compile):
    random.seed(1)
    dtype = torch.get_default_dtype()
    rng = np.random.default_rng(13)
    env = Line(rng)
    policy_net, target_net = models["policy"], models["target"]
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
    memory, BATCH_SIZE, GAMMA, TAU = ReplayMemory(100), 4, 0.9, 0.1

    @compile
    def optimize(state_batch, action_batch, reward_batch, non_final_mask, next_batch):
        state_action_values = policy_net(state_batch).gather(1, action_batch)
        with torch.no_grad():
            next_state_values = target_net(next_batch).max(1).values * non_final_mask
        expected = (next_state_values * GAMMA) + reward_batch
        criterion = nn.SmoothL1Loss()
        loss = criterion(state_action_values, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        return loss.detach()

    def optimize_model():
        if len(memory) < BATCH_SIZE:
            return None
        transitions = memory.sample(BATCH_SIZE)
        batch = Transition(*zip(*transitions))
        non_final_mask = torch.tensor(
            tuple(map(lambda s: s is not None, batch.next_state)), dtype=torch.bool
        )
        non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
        next_batch = torch.zeros(BATCH_SIZE, 3, dtype=dtype)
        next_batch[non_final_mask] = non_final_next_states
        loss = optimize(
            torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward),
            non_final_mask, next_batch,
        )  # fmt: skip
        return loss.item()

    dqn, actions = [], []
    for _episode in range(2):
        state = torch.tensor(env.reset(), dtype=dtype).unsqueeze(0)
        done = False
        while not done:
            if random.random() > 0.3:
                with torch.no_grad():
                    action = policy_net(state).max(1).indices.view(1, 1)
            else:
                action = torch.tensor([[random.randrange(2)]], dtype=torch.long)
            observation, reward, done = env.step(action.item())
            actions.append(action.item())
            next_state = None if done else torch.tensor(observation, dtype=dtype).unsqueeze(0)
            memory.push(state, action, next_state, torch.tensor([reward], dtype=dtype))
            state = next_state
            loss = optimize_model()
            if loss is not None:
                dqn.append(loss)
            target_sd, policy_sd = target_net.state_dict(), policy_net.state_dict()
            for key in policy_sd:
                target_sd[key] = policy_sd[key] * TAU + target_sd[key] * (1 - TAU)
            target_net.load_state_dict(target_sd)

    model = models["actor"]
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    eps = np.finfo(np.float32).eps.item()
    episodes = []
    for _episode in range(2):
        state, done = env.reset(), False
        while not done:
            probs, state_value = model(torch.from_numpy(state).to(dtype))
            m = Categorical(probs)
            assert m.sample().item() in (0, 1)
            action = torch.tensor(int(rng.random() > probs[0].item()))
            model.saved_actions.append((m.log_prob(action), state_value))
            state, reward, done = env.step(action.item())
            model.rewards.append(reward)
        R, policy_losses, value_losses, returns = 0, [], [], []
        for r in model.rewards[::-1]:
            R = r + 0.99 * R
            returns.insert(0, R)
        returns = torch.tensor(returns, dtype=dtype)
        returns = (returns - returns.mean()) / (returns.std() + eps)
        for (log_prob, value), R in zip(model.saved_actions, returns):
            advantage = R - value.item()
            policy_losses.append(-log_prob * advantage)
            value_losses.append(F.smooth_l1_loss(value, torch.tensor([R], dtype=dtype)))
        optimizer.zero_grad()
        loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        del model.rewards[:]
        del model.saved_actions[:]
        episodes.append(loss.item())

    policy = models["reinforce"]
    old_logits = policy(torch.tensor(rng.standard_normal((6, 3)), dtype=dtype)).detach()
    states = torch.tensor(rng.standard_normal((6, 3)), dtype=dtype)
    acts = torch.tensor(rng.integers(0, 2, 6))
    advantages = torch.tensor(rng.standard_normal(6), dtype=dtype)
    optimizer = optim.Adam(policy.parameters(), lr=1e-2, eps=1e-5)

    @compile
    def ppo(states, acts, advantages):
        dist = Categorical(logits=policy(states))
        entropy = dist.entropy().mean()
        new = dist.log_prob(acts)
        old = F.log_softmax(old_logits, -1).gather(-1, acts[:, None])[:, 0]
        ratio = (new - old).exp()
        surr1 = ratio * advantages
        surr2 = torch.clamp(ratio, 1.0 - 0.2, 1.0 + 0.2) * advantages
        loss = -torch.min(surr1, surr2).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        return loss.detach(), entropy.detach()

    clipped = [[x.item() for x in ppo(states, acts, advantages)] for _ in range(3)]
    prior = Normal(torch.zeros(2), torch.ones(2))
    logits = policy(states)
    posterior = Normal(logits, F.softplus(logits))
    kl = kl_divergence(posterior, prior).sum(-1)
    return {
        "kl": kl,
        "log_prob": prior.log_prob(logits),
        "dqn": dqn,
        "actions": actions,
        "episodes": episodes,
        "ppo": clipped,
    }
