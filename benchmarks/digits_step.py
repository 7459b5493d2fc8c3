"""The digits training step: compiled, our own eager, PyTorch eager.

Goals: compiled at least 3 x faster than our eager, and no slower than PyTorch eager. Prints the
memory plan too: planned peak within 1.2 x of the lower bound.
"""

from __future__ import annotations

from _harness import Contender, compare

MODEL = """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.drop = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 16, 64)
        self.fc2 = nn.Linear(64, 10)
    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = self.drop(x.flatten(1))
        return self.fc2(F.relu(self.fc1(x)))
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
x = torch.from_numpy(rng.random((64, 1, 8, 8), dtype=np.float32))
t = torch.from_numpy(rng.integers(0, 10, 64))
def train(x, t):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), t)
    loss.backward()
    optimizer.step()
    return loss
"""

OURS = "import jitgrad as torch, jitgrad.nn as nn, jitgrad.nn.functional as F\n" + MODEL
EAGER = OURS + "\ndef step():\n    train(x, t)\n"
COMPILED = (
    OURS
    + """
train = torch.jit(train, fallback="error")
for _ in range(4):
    train(x, t)
def step():
    train(x, t)
"""
)
TORCH = (
    "import torch, torch.nn as nn, torch.nn.functional as F\n"
    "torch.set_num_threads(THREADS)\n" + MODEL + "\ndef step():\n    train(x, t)\n"
)


def main() -> None:
    for threads in (1, 2):
        results = compare(
            "digits training step, batch 64, Adam",
            [
                Contender("jitgrad compiled", COMPILED),
                Contender("jitgrad eager", EAGER),
                Contender("PyTorch eager", TORCH.replace("THREADS", str(threads))),
            ],
            seconds=0.3,
            threads=threads,
        )
        compiled = results["jitgrad compiled"].median
        print(f"  eager / compiled {results['jitgrad eager'].median / compiled:.1f} (goal 3)")
        if "PyTorch eager" in results:
            print(f"  PyTorch / compiled {results['PyTorch eager'].median / compiled:.2f} (goal 1)")


if __name__ == "__main__":
    main()
