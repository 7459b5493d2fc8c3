"""Programs with Python in them under @jit, beside the same programs run eagerly (and in PyTorch).

Three kinds: a loop that is left when a value is small enough and a beam search that keeps its plans
in Python lists, which run in segments; and a training step that logs its loss and counts, which is
one graph whose log is replayed. Goal: at least 2 x faster than
our eager mode, which compiles large single operations itself (JITGRAD_EAGER=numpy does not). Checks
that all compute the same. --cpu measures processor time.
"""

from __future__ import annotations

from _harness import Contender, asked_clock, compare

EARLY_EXIT = """
# Lambert's W by Halley's iteration, for a batch of numbers, until none of them moves.
torch.manual_seed(0)
y = torch.rand(400, 500) * 20
steps = []
def program():
    w = torch.log1p(y)
    for n in range(50):
        e = torch.exp(w)
        f = w * e - y
        new = w - f / (e * (w + 1) - (w + 2) * f / (2 * w + 2))
        change = (new - w).abs().max()
        w = new
        if float(change) < 1e-5:
            break
    steps.append(n)
    return float(w.sum())
"""

LOGGING = """
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
x, t = torch.rand(256, 1, 8, 8), torch.arange(256) % 10
history, seen = [], 0
def quiet():
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, t)
    loss.backward()
    optimizer.step()
    return loss.detach(), (out.argmax(1) == t).float().mean()
def program():
    global seen
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, t)
    loss.backward()
    optimizer.step()
    seen += 256
    value = loss.item()
    history.append((seen, value, (out.argmax(1) == t).float().mean().item()))
    return value
"""

BEAM = """
# Planning: 32 plans are kept, each tried with 64 actions, 16 steps ahead.
torch.manual_seed(0)
B, A, H = 32, 64, 64
actions, goal = torch.randn(A, H), torch.randn(H)
wg, bg, wc, bc = torch.randn(H), torch.randn(H), torch.randn(H), torch.randn(H)
calls = [0]
def tried(state):
    x = state[:, None] + actions
    gate, drive = torch.sigmoid(x * wg + bg), torch.tanh(x * wc + bc)
    new = gate * drive + (1 - gate) * x
    rugged = (new - goal).square() + 0.1 * torch.exp(-3 * new.square())
    return new.reshape(B * A, H), rugged.mean(-1)
def program():
    calls[0] += 1
    state = torch.full((B, H), calls[0] % 7 / 10)
    costs, plans = torch.arange(B) * 1.0, [[] for _ in range(B)]
    for _ in range(16):
        new, more = tried(state)
        best, places = (-(costs[:, None] + more)).reshape(-1).topk(B)
        costs, state = -best, new[places]
        plans = [plans[p // A] + [p % A] for p in places.tolist()]
    return sum(plans[0]) + float(costs[0])
"""

OURS = "import jitgrad as torch, jitgrad.nn as nn, jitgrad.nn.functional as F\n"
TORCH = "import torch, torch.nn as nn, torch.nn.functional as F\ntorch.set_num_threads(THREADS)\n"
STEP = "\ndef step():\n    program()\n"
CHECK = "\ndef check():\n    return [float(program()) for _ in range(20)]\n"
REFERENCES = {"JITGRAD_EAGER": "numpy"}
JIT = "\nprogram = torch.jit(program, fallback='error')\n"
# What the logging step would take without its log: one graph, no Python in it.
QUIET = "\nquiet = torch.jit(quiet, fallback='error')\ndef step():\n    quiet()\n"


def main() -> None:
    for name, text in (
        ("early exit", EARLY_EXIT), ("logging step", LOGGING), ("beam search", BEAM),
    ):  # fmt: skip
        for threads in (1, 2):
            theirs = TORCH.replace("THREADS", str(threads))
            contenders = [
                Contender("jitgrad @jit", OURS + text + JIT + STEP + CHECK),
                Contender("jitgrad eager", OURS + text + STEP + CHECK),
                Contender("eager by NumPy", OURS + text + STEP + CHECK, REFERENCES),
                Contender("PyTorch eager", theirs + text + STEP),
            ]
            if text is LOGGING:
                contenders.append(Contender("without the log", OURS + text + QUIET))
            results = compare(name, contenders, rounds=7, threads=threads, clock=asked_clock())
            ours = results["jitgrad @jit"].median
            print(f"  eager / @jit {results['jitgrad eager'].median / ours:.2f} (goal 2)")


if __name__ == "__main__":
    main()
