"""What eager mode costs: a + b on small tensors, and a small MLP's training step, beside PyTorch.

Goals: at most 1.5 times PyTorch's time for each, with gradients tracked, on one thread.
"""

from __future__ import annotations

from _harness import Contender, compare

ADD = """
import LIB as torch
a = torch.ones(4, requires_grad=True)
b = torch.ones(4)
def step():
    a + b
"""

TRAIN = """
import LIB as torch
import LIB.nn as nn
import LIB.nn.functional as F
import LIB.optim as optim
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = optim.OPTIMIZER
x, y = torch.ones(16, 32), torch.zeros(16, dtype=torch.int64)
def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def main() -> None:
    train = {"SGD": "SGD(model.parameters(), lr=0.1)", "Adam": "Adam(model.parameters())"}
    cases = {"a + b, 4 floats, one that requires a gradient": ADD}
    for name, optimizer in train.items():
        title = f"training step of an MLP 32-64-64-8, batch 16, {name}"
        cases[title] = TRAIN.replace("OPTIMIZER", optimizer)
    for title, source in cases.items():
        libraries = (("jitgrad", "jitgrad"), ("PyTorch eager", "torch"))
        contenders = [Contender(name, source.replace("LIB", lib)) for name, lib in libraries]
        results = compare(title, contenders)
        if "PyTorch eager" in results:
            ratio = results["jitgrad"].median / results["PyTorch eager"].median
            print(f"  jitgrad / PyTorch: {ratio:.2f} (goal at most 1.5)")


if __name__ == "__main__":
    main()
