"""Rows: python benchmarks/rows.py [--threads 1 2] [--seed 0] [name ...]

Softmax, norms, losses, sums along both axes and attention, forward and with gradients, of 4096 x
1024 and of shapes drawn at random, beside each rival: the lines of table.py that are about rows.
Before them, what the compiler made of each form: kernels, and bytes moved over those of its
operand.
"""

from __future__ import annotations

import argparse

import table

import jitgrad as torch
from jitgrad import jit
from jitgrad.nn import functional as F


def forms(m: int, n: int) -> None:
    """Kernels and bytes of each form, forward and with gradients."""
    x, y = torch.randn(m, n, requires_grad=True), torch.randn(m, n)
    w, b = torch.randn(n, requires_grad=True), torch.randn(n, requires_grad=True)
    target = torch.randint(0, n, (m,))
    functions = {
        "softmax": (lambda x: F.softmax(x, -1), (x,)),
        "log_softmax": (lambda x: F.log_softmax(x, -1), (x,)),
        "layer norm": (lambda x, w, b: F.layer_norm(x, (n,), w, b), (x, w, b)),
        "rms norm": (lambda x, w: F.rms_norm(x, (n,), w), (x, w)),
        "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (x, w, b)),
        "cross-entropy": (lambda x: F.cross_entropy(x, target), (x,)),
    }
    print(f"{'form':16}{'forward':>24}{'with gradients':>24}   (kernels, bytes / operand's)")
    for name, (f, args) in functions.items():

        def both(*args: torch.Tensor, f: object = f) -> object:
            out = f(*args)  # type: ignore[operator]
            return torch.autograd.grad(out, args, y if out.ndim else None)

        cells = []
        for g, given in ((f, tuple(a.detach() for a in args)), (both, args)):
            fast = jit(g, fallback="error")
            fast(*given)
            report = fast.specialisations[0].compiled.report
            cells.append(f"{report.kernels}, {report.bytes_after / (4 * m * n):.2f}")
        print(f"{name:16}{cells[0]:>24}{cells[1]:>24}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one round")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes drawn")
    parser.add_argument("--skip", nargs="*", default=["torch.compile", "tinygrad"])
    args = parser.parse_args()
    forms(4096, 1024)
    args.names = args.names or ["softmax", "norm", "cross", "sum", "attention"]
    print("\n".join(table.table(table.measure(args))))


if __name__ == "__main__":
    main()
