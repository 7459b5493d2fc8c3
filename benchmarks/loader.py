"""DataLoader: one epoch with ours and with PyTorch's, in turn; ratios of medians.

Cases: images made by NumPy (large batches, through shared memory), rows of a TensorDataset (small
batches: overhead), and an epoch whose workers are started for it. Each is run without workers and
with two.
"""

from __future__ import annotations

from _harness import Contender, compare

COMMON = """
import numpy as np, {library} as torch
from {library}.utils.data import DataLoader, Dataset, TensorDataset
import warnings
warnings.filterwarnings("ignore")
torch.manual_seed(0)

class Images(Dataset):
    def __init__(self, n, size):
        self.raw = np.random.default_rng(0).integers(0, 256, (16, size, size, 3), dtype=np.uint8)
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        image = self.raw[i % 16].astype(np.float32).transpose(2, 0, 1) / 255 - 0.5
        return torch.from_numpy(np.ascontiguousarray(image)), i

def rows(n):
    x = torch.from_numpy(np.random.default_rng(0).random((n, 64), np.float32))
    return TensorDataset(x, torch.arange(n))

loader = {loader}
def step():
    count = 0
    for x, y in loader:
        count += y.shape[0]
    return count
def check():
    return [step(), sum(float(x.sum()) for x, _ in loader)]
"""

CASES = {
    "128 images of 3 x 224 x 224, batches of 16": "Images(128, 224), 16",
    "2048 rows of 64 floats, batches of 64": "rows(2048), 64",
}


def contenders(call: str) -> list[Contender]:
    """Ours and PyTorch's for one loader."""
    libraries = {"jitgrad": "jitgrad", "torch": "PyTorch"}
    return [Contender(name, COMMON.format(library=library, loader=call))
            for library, name in libraries.items()]  # fmt: skip


def main() -> None:
    for title, arguments in CASES.items():
        compare(title, contenders(f"DataLoader({arguments})"), rounds=7)
        options = "num_workers=2, persistent_workers=True"
        compare(
            f"{title}, two workers", contenders(f"DataLoader({arguments}, {options})"), rounds=7
        )
    starting = "DataLoader(rows(64), 16, num_workers=2)"
    compare("an epoch of four small batches, two workers started for it", contenders(starting),
            rounds=7)  # fmt: skip


if __name__ == "__main__":
    main()
