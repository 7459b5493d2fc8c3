"""Runs the exported digit classifier from Python: NumPy and the library, no compiler.

    python examples/classify.py LIBRARY IMAGES.f32

IMAGES.f32 holds 8 x 8 images, float32 in [0, 1], one after another. Prints one digit a line.
examples/digits.py writes both files to examples/out/ and runs this in a fresh process.
"""

import sys

import numpy as np

from jitgrad.runtime import load


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/classify.py LIBRARY IMAGES.f32")
    model = load(sys.argv[1])
    images = np.fromfile(sys.argv[2], np.float32).reshape(-1, *model.inputs[0].shape)
    for image in images:
        print(model(image).argmax())
    present = {"llvmlite", "numba"} & set(sys.modules)
    if present:
        sys.exit(f"classify.py imported {', '.join(sorted(present))}: running needs no compiler")


if __name__ == "__main__":
    main()
