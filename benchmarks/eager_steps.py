"""Eager training steps beside PyTorch's eager mode: a CNN, a GPT and a ResNet-18.

Goal: at most 1.5 times PyTorch's time for each. No function is compiled: ops that are much work run
as kernels of their own (JITGRAD_EAGER=auto). `--first` times the first step instead: with an empty
cache of kernels, in a new process with the cache, and by NumPy alone.

    python benchmarks/eager_steps.py [--first] [cnn|gpt|resnet] ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from _harness import Contender, compare

HEAD = """
import LIB as torch
import LIB.nn as nn
import LIB.nn.functional as F
import LIB.optim as optim
torch.manual_seed(0)
"""

STEP = """
def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""

CNN = """
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 14 * 14, 10))
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
"""

GPT = """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))
class GPT(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(h))).flatten(0, 1)
model = GPT(65, 128, 256, 4, 4)
optimizer = optim.AdamW(model.parameters(), lr=3e-4)
x, y = torch.randint(0, 65, (8, 128)), torch.randint(0, 65, (8 * 128,))
"""

RESNET = """
class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Identity() if stride == 1 and cin == cout else nn.Sequential(
            nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.down(x))
blocks, cin = [], 64
for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
    blocks += [Block(cin, cout, stride), Block(cout, cout, 1)]
    cin = cout
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
    nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
x, y = torch.randn(8, 3, 112, 112), torch.randint(0, 1000, (8,))
"""

CASES = {
    "cnn": ("CNN: conv 32, conv 64, pool, linear; batch 64 at 28 x 28", CNN),
    "gpt": ("GPT: 4 layers of 256, context 128, batch 8", GPT),
    "resnet": ("ResNet-18, batch 8 at 112 x 112", RESNET),
}


def source(case: str, library: str) -> str:
    return (HEAD + CASES[case][1] + STEP).replace("LIB", library)


def first(case: str) -> None:
    """Seconds of the first two steps of new processes."""
    text = source(case, "jitgrad") + (
        "\nimport time\nfor name in ('first', 'second'):\n    t = time.perf_counter()\n    step()\n"
        "    print(f'{name} {time.perf_counter() - t:.2f} s', end='  ')\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = os.environ | {"JITGRAD_CACHE_DIR": folder}
        for what, more in (
            ("no kernel cached", {}), ("kernels cached", {}), ("NumPy", {"JITGRAD_EAGER": "numpy"}),
        ):  # fmt: skip
            found = subprocess.run(
                [sys.executable, "-c", text], env=env | more, check=True, text=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            print(f"  {case}, {what}: {found.stdout}")


def main() -> None:
    chosen = [a for a in sys.argv[1:] if a in CASES] or list(CASES)
    threads = os.cpu_count() or 1
    for case in chosen:
        if "--first" in sys.argv:
            first(case)
            continue
        pair = (("jitgrad", "jitgrad"), ("PyTorch eager", "torch"))
        contenders = [Contender(name, source(case, library)) for name, library in pair]
        results = compare(CASES[case][0], contenders, threads=threads, rounds=7)
        if "PyTorch eager" in results:
            ratio = results["jitgrad"].median / results["PyTorch eager"].median
            print(f"  jitgrad / PyTorch: {ratio:.2f} (goal at most 1.5)")


if __name__ == "__main__":
    main()
