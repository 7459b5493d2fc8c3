"""Control and translation: REINFORCE with Categorical, actor-critic, DQN's tutorial, a sequence
translator with attention, a vision pipeline with transforms, several losses and dynamic nets."""

import argparse
import itertools
import math
import random
import warnings
from collections import defaultdict, deque, namedtuple
from copy import deepcopy
from itertools import count
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical, Normal
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

SOS_token, EOS_token, MAX_LENGTH = 0, 1, 6
PAIRS = [("je suis ici", "i am here"), ("il est la", "he is there"), ("je suis la", "i am there")]
SavedAction = namedtuple("SavedAction", ["log_prob", "value"])
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class CartLine:
    """A toy with gym's interface: keep x near 0; pushes come from a fixed table."""

    class Space:
        n = 2

        def sample(self):
            return random.randrange(2)

    action_space = Space()
    spec = argparse.Namespace(reward_threshold=475)

    def reset(self, seed=None):
        self.x, self.v, self.t = 0.1, 0.0, 0
        return np.array([self.x, self.v, 0, 1], dtype=np.float32), {}

    def step(self, action):
        self.v += (0.1 if action == 1 else -0.1) + 0.03 * math.sin(self.t)
        self.x += self.v
        self.t += 1
        terminated = bool(abs(self.x) > 0.6)
        obs = np.array([self.x, self.v, self.t / 10, 1], dtype=np.float32)
        return obs, 1.0, terminated, self.t >= 8, {}


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(4, 8)
        self.dropout = nn.Dropout(p=0.0)
        self.action_head = nn.Linear(8, 2)
        self.value_head = nn.Linear(8, 1)
        self.saved_log_probs = []
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Lang:
    def __init__(self, name):
        self.name = name
        self.word2index, self.word2count = {}, {}
        self.index2word = {0: "SOS", 1: "EOS"}
        self.n_words = 2

    def addSentence(self, sentence):
        for word in sentence.split(" "):
            self.addWord(word)

    def addWord(self, word):
        if word not in self.word2index:
            self.word2index[word] = self.n_words
            self.word2count[word] = 1
            self.index2word[self.n_words] = word
            self.n_words += 1
        else:
            self.word2count[word] += 1


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.0):
        super(EncoderRNN, self).__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super(BahdanauAttention, self).__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.0):
        super(AttnDecoderRNN, self).__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        device = encoder_outputs.device
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long, device=device)
        decoder_input = decoder_input.fill_(SOS_token)
        decoder_hidden = encoder_hidden
        decoder_outputs, attentions = [], []
        for i in range(MAX_LENGTH):
            decoder_output, decoder_hidden, attn_weights = self.forward_step(
                decoder_input, decoder_hidden, encoder_outputs
            )
            decoder_outputs.append(decoder_output)
            attentions.append(attn_weights)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = decoder_output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        decoder_outputs = torch.cat(decoder_outputs, dim=1)
        decoder_outputs = F.log_softmax(decoder_outputs, dim=-1)
        return decoder_outputs, decoder_hidden, torch.cat(attentions, dim=1)

    def forward_step(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attention(query, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn_weights


class TextClassifier(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super(TextClassifier, self).__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


class Tagger(nn.Module):
    def __init__(self, vocab_size, tagset_size):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 3, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(6, tagset_size)

    def forward(self, sentence, lengths):
        embeds = self.word_embeddings(sentence)
        packed = pack_padded_sequence(embeds, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h_n, _) = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.hidden2tag(out), torch.cat([h_n[-2], h_n[-1]], dim=1)


def build():
    return {
        "reinforce": Policy(), "critic": Policy(),
        "q": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        "encoder": EncoderRNN(6, 5), "decoder": AttnDecoderRNN(5, 8),
        "text": TextClassifier(10, 4, 3), "tagger": Tagger(8, 3),
    }  # fmt: skip


def observe(state):
    return torch.from_numpy(state).to(torch.get_default_dtype())


def reinforce(policy):
    env, rng = CartLine(), np.random.default_rng(0)
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    eps, running_reward, history = np.finfo(np.float32).eps.item(), 10, []
    for _i_episode in range(2):
        state, _ = env.reset()
        ep_reward = 0
        for _t in range(1, 20):
            probs, _ = policy(observe(state).unsqueeze(0))
            m = Categorical(probs)
            assert m.sample().shape == (1,)
            action = torch.tensor([int(rng.random() > probs[0, 0].item())])
            policy.saved_log_probs.append(m.log_prob(action))
            state, reward, done, truncated, _ = env.step(action.item())
            policy.rewards.append(reward)
            ep_reward += reward
            if done or truncated:
                break
        running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
        R, policy_loss, returns = 0, [], deque()
        for r in policy.rewards[::-1]:
            R = r + 0.99 * R
            returns.appendleft(R)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + eps)
        for log_prob, R in zip(policy.saved_log_probs, returns):
            policy_loss.append(-log_prob * R)
        optimizer.zero_grad()
        policy_loss = torch.cat(policy_loss).sum()
        policy_loss.backward()
        optimizer.step()
        del policy.rewards[:]
        del policy.saved_log_probs[:]
        history += [policy_loss.item(), running_reward, m.entropy().mean().item()]
    return history, running_reward > env.spec.reward_threshold


def actor_critic(model):
    env, rng = CartLine(), np.random.default_rng(1)
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    history = []
    for i_episode in count(1):
        state, _ = env.reset(seed=i_episode)
        for _t in range(1, 20):
            probs, state_value = model(observe(state))
            m = Categorical(logits=probs.log())
            action = torch.tensor(int(rng.random() > probs[0].item()))
            model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
            state, reward, done, _, _ = env.step(action.item())
            model.rewards.append(reward)
            if done:
                break
        R, returns, policy_losses, value_losses = 0, [], [], []
        for r in model.rewards[::-1]:
            R = r + 0.99 * R
            returns.insert(0, R)
        returns = torch.tensor(returns)
        for (log_prob, value), R in zip(model.saved_actions, returns):
            advantage = R - value.item()
            policy_losses.append(-log_prob * advantage)
            value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
        optimizer.zero_grad()
        loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        del model.rewards[:]
        del model.saved_actions[:]
        history.append(loss.item())
        if i_episode >= 2:
            break
    gaussian = Normal(torch.zeros(2), torch.tensor([1.0, 2.0]))
    squashed = torch.tanh(torch.tensor([0.3, -0.2]))
    log_prob = gaussian.log_prob(torch.atanh(squashed)) - torch.log(1 - squashed.pow(2) + 1e-6)
    return history, log_prob.sum(-1, keepdim=True), gaussian.entropy()


def dqn(policy_net, compile):
    random.seed(7)
    env, memory = CartLine(), ReplayMemory(100)
    target_net = deepcopy(policy_net)
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = optim.RMSprop(policy_net.parameters(), lr=1e-3)
    steps_done, history = 0, []

    def select_action(state):
        nonlocal steps_done
        threshold = 0.05 + (0.9 - 0.05) * math.exp(-1.0 * steps_done / 10)
        steps_done += 1
        if random.random() > threshold:
            with torch.no_grad():
                return policy_net(state).max(1)[1].view(1, 1)
        return torch.tensor([[env.action_space.sample()]], dtype=torch.long)

    @compile
    def update(state_batch, action_batch, reward_batch, next_state_values):
        state_action_values = policy_net(state_batch).gather(1, action_batch)
        expected_state_action_values = (next_state_values * 0.9) + reward_batch
        loss = F.huber_loss(state_action_values, expected_state_action_values.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        for param in policy_net.parameters():
            param.grad.data.clamp_(-1, 1)
        optimizer.step()
        return loss.detach()

    def optimize_model():
        if len(memory) < 4:
            return
        transitions = memory.sample(4)
        batch = Transition(*zip(*transitions))
        mask = torch.tensor([s is not None for s in batch.next_state], dtype=torch.bool)
        next_state_values = torch.zeros(4)
        with torch.no_grad():
            if mask.any():
                non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
                next_state_values[mask] = target_net(non_final_next_states).max(1)[0].detach()
        history.append(update(torch.cat(batch.state), torch.cat(batch.action),
                              torch.cat(batch.reward), next_state_values).item())  # fmt: skip

    durations = []
    for i_episode in range(3):
        state, _info = env.reset()
        state = torch.tensor(state, dtype=torch.get_default_dtype()).unsqueeze(0)
        for t in count():
            action = select_action(state)
            observation, reward, terminated, truncated, _ = env.step(action.item())
            reward = torch.tensor([reward])
            next_state = None if terminated else observe(observation).unsqueeze(0)
            memory.push(state, action, next_state, reward)
            state = next_state
            optimize_model()
            if terminated or truncated:
                durations.append(t + 1)
                break
        if i_episode % 2 == 0:
            target_net.load_state_dict(policy_net.state_dict())
    durations_t = torch.tensor(durations, dtype=torch.float)
    means = durations_t.unfold(0, 2, 1).mean(1).view(-1)
    return history, durations, torch.cat((torch.zeros(1, dtype=torch.float), means))


def translate(encoder, decoder):
    source, target = Lang("fra"), Lang("eng")
    for a, b in PAIRS:
        source.addSentence(a)
        target.addSentence(b)
    assert source.n_words <= 8 and target.n_words <= 8, (source.n_words, target.n_words)
    n = len(PAIRS)
    input_ids, target_ids = np.zeros((2, n, MAX_LENGTH), dtype=np.int32)
    for idx, (a, b) in enumerate(PAIRS):
        for row, lang, text in ((input_ids, source, a), (target_ids, target, b)):
            ids = [lang.word2index[w] % 6 for w in text.split(" ")] + [EOS_token]
            row[idx, : len(ids)] = ids
    data = torch.utils.data.TensorDataset(torch.LongTensor(input_ids), torch.LongTensor(target_ids))
    assert len(RandomSampler(data)) == n
    loader = DataLoader(data, sampler=SequentialSampler(data), batch_size=n)
    encoder_optimizer = optim.Adam(encoder.parameters(), lr=0.01)
    decoder_optimizer = optim.Adam(decoder.parameters(), lr=0.01)
    criterion = nn.NLLLoss()
    losses = []

    def step(input_tensor, target_tensor):
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        outputs, _, _ = decoder(encoder_outputs, encoder_hidden, target_tensor)
        loss = criterion(outputs.view(-1, outputs.size(-1)), target_tensor.view(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        return loss.detach()

    for _ in range(4):
        total_loss = 0
        for batch in loader:
            total_loss += step(*batch).item()
        losses.append(total_loss / len(loader))
    with torch.no_grad():
        outputs, _, attentions = decoder(*encoder(torch.LongTensor(input_ids[:1])))
        _, topi = outputs.topk(1)
        decoded = []
        for idx in topi.squeeze():
            if idx.item() == EOS_token:
                decoded.append("<EOS>")
                break
            decoded.append(target.index2word.get(idx.item(), "?"))
    return losses, decoded, attentions[0, : len(decoded), :]


def text_classification(model):
    texts, labels = [[1, 2, 3], [4], [5, 6, 7, 8]], [0, 2, 1]

    def generate_batch(batch):
        label_list, text_list, offsets = [], [], [0]
        for _label, _text in batch:
            label_list.append(_label)
            processed = torch.tensor(_text, dtype=torch.int64)
            text_list.append(processed)
            offsets.append(processed.size(0))
        offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
        return torch.tensor(label_list, dtype=torch.int64), torch.cat(text_list), offsets

    loader = DataLoader(
        list(zip(labels, texts)), batch_size=2, shuffle=False, collate_fn=generate_batch
    )
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    history = []
    for _ in range(2):
        total_acc, total_count = 0, 0
        for label, text, offsets in loader:
            optimizer.zero_grad()
            predicted_label = model(text, offsets)
            loss = criterion(predicted_label, label)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            total_acc += (predicted_label.argmax(1) == label).sum().item()
            total_count += label.size(0)
            history.append(loss.item())
        scheduler.step()
        history.append(total_acc / total_count)
    return history


class Stream(IterableDataset):
    def __init__(self, sentences):
        self.sentences = sentences

    def __iter__(self):
        yield from map(torch.as_tensor, self.sentences)


class Metrics(NamedTuple):
    loss: float
    accuracy: Optional[float] = None


def tagging(model):
    sentences: Sequence[Sequence[int]] = [[1, 2, 3], [4, 5], [6, 7, 1, 2]]
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    meters: Dict[str, list] = defaultdict(list)

    def collate(batch) -> Tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.as_tensor(list(map(len, batch)))
        return pad_sequence(batch, batch_first=True), lengths

    for _ in range(2):
        for padded, lengths in DataLoader(Stream(sentences), batch_size=3, collate_fn=collate):
            mask = torch.arange(padded.size(1))[None, :] < lengths[:, None]
            tags = (padded % 3).masked_fill(~mask, -100)
            scores, last = model(padded, lengths)
            loss = F.cross_entropy(scores.transpose(1, 2), tags, ignore_index=-100)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            hits = scores.argmax(-1)[mask] == tags[mask]
            result = Metrics(loss.item(), hits.float().mean().item())
            for key, value in result._asdict().items():
                meters[key].append(value)
    chained = list(itertools.chain.from_iterable(meters.values()))
    return chained, last.detach(), dict(meters)


def run(models, compile):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "reinforce": reinforce(models["reinforce"]),
            "critic": actor_critic(models["critic"]),
            "dqn": dqn(models["q"], compile),
            "translate": translate(models["encoder"], models["decoder"]),
            "text": text_classification(models["text"]),
            "tagging": tagging(models["tagger"]),
        }
