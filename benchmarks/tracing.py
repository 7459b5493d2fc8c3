"""What recording and compiling cost: python benchmarks/tracing.py [--layers N] [--width N].

Chains of elementwise operations (goals: an operation costs at most 1.3 times what it costs in the
chain of 1,000, and a chain at most what JAX takes for it) and unrolled loops. Then a GPT-2 training
step (124 million parameters as it is: 12 layers, width 768): run eagerly, recorded, and compiled;
goal: recording at most 1.5 times eager.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.runtime.knobs import knob

TOKENS, VOCABULARY = 64, 50257
ROUNDS = 3


def seconds(call: Callable[[], Any]) -> float:
    """CPU time of a call, of all threads."""
    start = time.process_time()
    call()
    return time.process_time() - start


class Block(nn.Module):
    """A transformer block, as GPT-2 has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        parts = self.attend(self.before(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.narrow(F.gelu(self.wide(self.between(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2 with tied embeddings."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.tokens(ids) + self.places(jg.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.last(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def of_a_step(layers: int, width: int) -> None:
    model = GPT(layers, width)
    optimizer = jg.optim.AdamW(model.parameters(), lr=1e-4)
    ids = jg.randint(0, VOCABULARY, (1, TOKENS))

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    parameters = sum(p.numel() for p in model.parameters())
    fast = jg.jit(step, fallback="error")
    eager, recorded, compiled = [], [], 0.0
    for n in range(ROUNDS):  # in turn: the machine may be busy with other things
        start = time.perf_counter()
        step()
        middle = time.perf_counter()
        eager.append(middle - start)
        fast.clear()
        fast()
        recorded.append(fast.specialisations[0].trace.seconds)
        if not n:  # later its code is found
            compiled = time.perf_counter() - middle - recorded[0]
    start = time.perf_counter()
    fast()
    hit = time.perf_counter() - start
    ratio = statistics.median(recorded) / statistics.median(eager)
    print(f"GPT-2 step, {parameters / 1e6:.0f} million parameters, {TOKENS} tokens: seconds")
    print(
        f"  eager {statistics.median(eager):.2f}, recorded {statistics.median(recorded):.2f} "
        f"({ratio:.2f} x, goal 1.5), compiled in {compiled:.2f}, then {hit:.2f}"
    )


def of_chains() -> None:
    print("chains of n operations: CPU seconds to record and compile, milliseconds an operation")
    each = {}
    for n in (100, 1000, 5000, 10_000):

        def chain(x: Any, n: int = n) -> Any:
            for i in range(n):
                x = x * 1.01 if i % 2 else x + 0.1
            return x

        took = min(seconds(lambda: jg.jit(chain, fallback="error")(jg.ones(64))) for _ in range(2))
        each[n] = took / n * 1e3
        beside = f" ({each[n] / each[1000]:.2f} x, goal 1.3)" if n > 1000 else ""
        print(f"  {n:6}: {took:6.2f} s, {each[n]:.2f} ms{beside}")


def of_loops() -> None:
    print("unrolled recurrent steps, forward and backward: CPU seconds to record and compile")
    w = (jg.randn(8, 8) * 0.3).requires_grad_()
    for n in (125, 500):

        def loop(x: Any, n: int = n) -> Any:
            w.grad = None
            h = x
            for _ in range(n):
                h = (h @ w).tanh()
            h.sum().backward()

        took = min(seconds(lambda: jg.jit(loop, fallback="error")(jg.ones(8, 8))) for _ in range(2))
        print(f"  {n:6}: {took:6.2f} s, {took / n * 1e3:.2f} ms a step")


def main() -> None:
    parser = argparse.ArgumentParser(description="What recording and compiling cost.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".*step by step")
    jg.manual_seed(0)
    with knob(cache=False):
        of_chains()
        of_loops()
        of_a_step(options.layers, options.width)


if __name__ == "__main__":
    main()
