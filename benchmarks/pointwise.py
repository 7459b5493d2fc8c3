"""A chain of ten elementwise operations on 10^7 floats, beside a copy of the same bytes and NumPy.

Goals: at most 1.15 x the copy on one thread where memory-bound; at least 5 x faster than NumPy.
"""

from __future__ import annotations

from _harness import Contender, compare

COPY = """
import numpy as np
x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
y = np.empty_like(x)
def step():
    np.copyto(y, x)
"""

NUMPY = """
import numpy as np
x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
def f(x):
    y = x * np.float32(2) + np.float32(1)
    y = np.maximum(y, np.float32(-1)) - x
    y = y * y + x
    y = np.abs(y) * np.float32(0.5)
    return np.minimum(y, np.float32(4)) - np.float32(1)
def step():
    f(x)
def check():
    return [float(v) for v in f(x)[:5]]
"""

OURS = """
import numpy as np, jitgrad as torch
x = torch.from_numpy(np.random.default_rng(0).standard_normal(N).astype(np.float32))
@torch.jit
def f(x):
    y = x * 2 + 1
    y = torch.maximum(y, torch.full((), -1.0)) - x
    y = y * y + x
    y = torch.abs(y) * 0.5
    return torch.minimum(y, torch.full((), 4.0)) - 1
def step():
    f(x)
step(); step()
def check():
    return f(x)[:5].tolist()
"""

TORCH = """
import numpy as np, torch
x = torch.from_numpy(np.random.default_rng(0).standard_normal(N).astype(np.float32))
def f(x):
    y = x * 2 + 1
    y = torch.maximum(y, torch.tensor(-1.0)) - x
    y = y * y + x
    y = torch.abs(y) * 0.5
    return torch.minimum(y, torch.tensor(4.0)) - 1
def step():
    f(x)
def check():
    return f(x)[:5].tolist()
"""


def main() -> None:
    for n in (10**7, 10**5, 10**3):
        results = compare(
            f"ten elementwise operations on {n:,} floats",
            [
                Contender(name, source.replace("N)", f"{n})"))
                for name, source in (
                    ("copy of the same bytes", COPY),
                    ("jitgrad", OURS),
                    ("NumPy", NUMPY),
                    ("PyTorch eager", TORCH),
                )
            ],
        )
        ours = results["jitgrad"].median
        print(
            f"  jitgrad / copy {ours / results['copy of the same bytes'].median:.2f} (goal 1.15), "
            f"NumPy / jitgrad {results['NumPy'].median / ours:.1f} (goal 5)"
        )


if __name__ == "__main__":
    main()
