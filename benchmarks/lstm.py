"""A training step of an LSTM: 32 sequences of 64 steps, 256 features in and out, SGD.

Compiled, our own eager, PyTorch eager. Goal: compiled no slower than PyTorch eager. The loop over
steps is one scan in each direction (compiler/ops/control.py), so compiling takes as long for 500
steps as for 64.
"""

from __future__ import annotations

from _harness import Contender, compare

MODEL = """
import numpy as np
torch.manual_seed(0)
STEPS = 64
model = nn.LSTM(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
rng = np.random.default_rng(0)
x = torch.from_numpy(rng.standard_normal((STEPS, 32, 256), dtype=np.float32))
t = torch.from_numpy(rng.standard_normal((STEPS, 32, 256), dtype=np.float32))
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(p.shape)).astype(np.float32) / 16))
def train(x, t):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x)[0], t)
    loss.backward()
    optimizer.step()
    return loss
def check():
    return [float(train(x, t).item()) for _ in range(3)]
"""

OURS = "import jitgrad as torch, jitgrad.nn as nn, jitgrad.nn.functional as F\n" + MODEL
EAGER = OURS + "\ndef step():\n    train(x, t)\n"
COMPILED = OURS.replace("def check", 'train = torch.jit(train, fallback="error")\ndef check') + (
    "\ndef step():\n    train(x, t)\n"
)
TORCH = (
    "import torch, torch.nn as nn, torch.nn.functional as F\n"
    "torch.set_num_threads(THREADS)\n" + MODEL + "\ndef step():\n    train(x, t)\n"
)


def main() -> None:
    for threads in (1, 2):
        results = compare(
            "LSTM 32x64x256, one training step",
            [
                Contender("jitgrad compiled", COMPILED),
                Contender("jitgrad eager", EAGER),
                Contender("PyTorch eager", TORCH.replace("THREADS", str(threads))),
            ],
            seconds=0.3,
            threads=threads,
        )
        compiled = results["jitgrad compiled"].median
        if "PyTorch eager" in results:
            print(f"  PyTorch / compiled {results['PyTorch eager'].median / compiled:.2f} (goal 1)")


if __name__ == "__main__":
    main()
