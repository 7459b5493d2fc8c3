"""Single ops beside PyTorch's: python benchmarks/ops.py [--eager] [--cpu] [--seed N] [name ...]

Ops that table.py has no line for (workloads/single_ops.py), alone and with their gradients. Each is
compiled alone; with --eager it runs in eager code. A number is PyTorch's time over ours: above 1 we
are faster. With --seed shapes are drawn at random, so that nothing is tuned to the ones here.
"""

from __future__ import annotations

import argparse
import random

from _harness import asked_clock, compare
from workloads.common import EAGER, HEADS, OURS, PYTORCH, function
from workloads.single_ops import programs

_DATA = """
rng = np.random.default_rng(0)
arrays = [rng.standard_normal(s).astype(np.float32) for s in SHAPES]
def compared(found):
    found = found if isinstance(found, tuple) else (found,)
    return torch.cat([t.detach().reshape(-1)[:50] for t in found])
"""
_DRAWN = {"randperm": "step().sort()[0]"}  # what is compared of numbers that generators draw
_DRAWN |= dict.fromkeys(("randn", "multinomial", "dropout"), "(step(), torch.zeros(1))[1]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one round")
    parser.add_argument("--seed", type=int, help="of shapes drawn at random")
    parser.add_argument("--eager", action="store_true", help="ours in eager code")
    parser.add_argument("--cpu", action="store_true", help="the processor's time")
    args = parser.parse_args()
    rng = None if args.seed is None else random.Random(args.seed)
    ratios = {}
    for name, (shapes, text) in programs(rng).items():
        if args.names and not any(n in name for n in args.names):
            continue
        made = function(_DATA.replace("SHAPES", repr(shapes)), text, onnx=False)
        chosen = [c for c in made if c.name in (OURS, PYTORCH)]
        result = _DRAWN.get(name.split(":")[0], "step()")
        for c in chosen:
            c.source = c.source.replace("step().detach()", f"compared({result})")
            if args.eager and c.name == OURS:
                c.source = c.source.replace(HEADS[OURS], HEADS[EAGER])
        title = f"{name} {shapes}"
        found = compare(title, chosen, args.rounds, args.seconds, args.threads, 1e-3, asked_clock())
        if len(found) == 2 and all(r.seconds for r in found.values()):
            ratios[title] = found[PYTORCH].median / found[OURS].median
    print("\nPyTorch's time over ours")
    for title, ratio in ratios.items():
        print(f"  {title:70} {ratio:6.2f}")


if __name__ == "__main__":
    main()
