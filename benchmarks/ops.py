"""Single ops beside PyTorch's: python benchmarks/ops.py [--cpu] [--seed N] [--threads 1] [name ...]

Ops that table.py has no line for: sorting and selecting, scans, pooling, padding, sampling,
folding, softmax of short rows, small products. Each is compiled alone. A number is PyTorch's time
over ours: above 1 we are faster. With --seed shapes are drawn at random, so that nothing is tuned
to the ones here.
"""

from __future__ import annotations

import argparse
import random

from _harness import asked_clock, compare
from workloads.common import OURS, PYTORCH, function

_DATA = """
rng = np.random.default_rng(0)
arrays = [rng.standard_normal(s).astype(np.float32) for s in SHAPES]
"""


def ops(rng: random.Random | None) -> dict[str, tuple[list[tuple[int, ...]], str]]:
    """{name: (shapes of the operands, text that defines f)}."""

    def size(n: int) -> int:
        return n if rng is None else rng.randint(n // 2, n + n // 2)

    image = (size(8), size(32), size(56), size(56))
    columns = (size(8), 9 * size(32), size(32) ** 2)
    side = round(columns[2] ** 0.5)
    return {
        "randperm": ([(1,)], f"f = lambda x: torch.randperm({size(100000)})"),
        "topk": ([(size(64), size(4096))], f"f = lambda x: torch.topk(x, {size(10)})[0]"),
        "topk wide": ([(size(8), size(50000))], f"f = lambda x: torch.topk(x, {size(50)})[0]"),
        "sort": ([(size(64), size(4096))], "f = lambda x: torch.sort(x)[0]"),
        "sort long": ([(size(1000000),)], "f = lambda x: torch.sort(x)[0]"),
        "cummax": ([(size(512), size(1024))], "f = lambda x: torch.cummax(x, 1)[0]"),
        "cummax of columns": ([(size(512), size(1024))], "f = lambda x: torch.cummax(x, 0)[0]"),
        "cumsum": ([(size(512), size(1024))], "f = lambda x: torch.cumsum(x, 1)"),
        "cumsum of columns": ([(size(512), size(1024))], "f = lambda x: torch.cumsum(x, 0)"),
        "adaptive_avg_pool2d": ([image], f"f = lambda x: F.adaptive_avg_pool2d(x, {size(7)})"),
        "adaptive_avg_pool2d to 1": ([image], "f = lambda x: F.adaptive_avg_pool2d(x, 1)"),
        "avg_pool2d": ([image], "f = lambda x: F.avg_pool2d(x, 3, 2, 1)"),
        "max_pool2d": ([image], "f = lambda x: F.max_pool2d(x, 3, 2, 1)"),
        "fold": ([columns], f"f = lambda x: F.fold(x, {side}, 3, padding=1)"),
        "unfold": ([image], "f = lambda x: F.unfold(x, 3, padding=1)"),
        "grid_sample": (
            [image, (image[0], size(56), size(56), 2)],
            "f = lambda x, g: F.grid_sample(x, g, align_corners=False)",
        ),
        "softmax of rows of 16": ([(size(65536), size(16))], "f = lambda x: F.softmax(x, -1)"),
        "log_softmax of rows of 10": (
            [(size(65536), size(10))],
            "f = lambda x: F.log_softmax(x, -1)",
        ),
        "softmax of rows of 64": ([(size(16384), size(64))], "f = lambda x: F.softmax(x, -1)"),
        "layer norm of rows of 32": (
            [(size(32768), width := size(32))],
            f"f = lambda x: F.layer_norm(x, ({width},))",
        ),
        "sum of rows of 16": ([(size(65536), size(16))], "f = lambda x: x.sum(-1)"),
        "pad with zeros": ([image], "f = lambda x: F.pad(x, (1, 1, 1, 1))"),
        "pad by reflection": ([image], "f = lambda x: F.pad(x, (3, 3, 3, 3), mode='reflect')"),
        "pad by replication": ([image], "f = lambda x: F.pad(x, (2, 2, 2, 2), mode='replicate')"),
        "pad in a circle": ([image], "f = lambda x: F.pad(x, (1, 1, 1, 1), mode='circular')"),
        "pad of rows": ([(size(4096), size(250))], "f = lambda x: F.pad(x, (3, 4))"),
        "matmul": ([(a := size(64), b := size(64)), (b, c := size(64))], "f = lambda x, y: x @ y"),
        "linear, gelu": (
            [(a, b), (c, b), (c,)],
            "f = lambda x, w, v: F.gelu(F.linear(x, w, v))",
        ),
        "matmul of 225 x 386 x 218": (
            [(a := size(225), b := size(386)), (b, size(218))],
            "f = lambda x, y: x @ y",
        ),
        "skinny matmul": ([(size(8), b := size(1024)), (b, size(1024))], "f = lambda x, y: x @ y"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one round")
    parser.add_argument("--seed", type=int, help="of shapes drawn at random")
    parser.add_argument("--cpu", action="store_true", help="the processor's time")
    args = parser.parse_args()
    rng = None if args.seed is None else random.Random(args.seed)
    ratios = {}
    for name, (shapes, text) in ops(rng).items():
        if args.names and not any(n in name for n in args.names):
            continue
        made = function(_DATA.replace("SHAPES", repr(shapes)), text, onnx=False)
        chosen = [c for c in made if c.name in (OURS, PYTORCH)]
        if name == "randperm":  # its numbers are another generator's
            for c in chosen:
                c.source = c.source.replace("step().detach()", "step().sort()[0]")
        title = f"{name} {shapes}"
        found = compare(title, chosen, args.rounds, args.seconds, args.threads, 1e-3, asked_clock())
        if len(found) == 2 and all(r.seconds for r in found.values()):
            ratios[title] = found[PYTORCH].median / found[OURS].median
    print("\nPyTorch's time over ours")
    for title, ratio in ratios.items():
        print(f"  {title:70} {ratio:6.2f}")


if __name__ == "__main__":
    main()
