"""What `runtime.load` adds to a call of a library from C: python benchmarks/native_call.py

A 32-64-64-8 MLP at batch 1, on one thread. The same library is called by a C program in a loop, and
from Python with arrays that are there (`out=`) and with fresh results; goal: at most 2 microseconds
over the C call. In turn, and the least of the rounds: on a busy machine the median tells less.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import jitgrad as jg
from jitgrad import nn
from jitgrad.runtime import load

_CALLS = 20_000
_MAIN = r"""
#define _POSIX_C_SOURCE 199309L
#include "libmlp.h"
#include <stdio.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static float x[JG_MLP_INPUT0_SIZE], y[JG_MLP_OUTPUT0_SIZE];
int main(void) {
    jg_mlp *model = jg_mlp_create(1);
    if (!model) return 1;
    for (int k = 0; k < 1000; k++) jg_mlp_call(model, x, y);
    double began = now();
    for (int k = 0; k < CALLS; k++) jg_mlp_call(model, x, y);
    printf("%.9f\n", (now() - began) / CALLS * 1e6);
    return 0;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if shutil.which("cc") is None:
        sys.exit("native_call: no C compiler")
    jg.manual_seed(0)
    widths = (32, 64, 64, 8)
    layers = [
        m for a, b in zip(widths, widths[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU())
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libmlp.so"
        jg.export(nn.Sequential(*layers[:-1]).eval(), jg.ones(1, 32)).native(path)
        Path(folder, "main.c").write_text(_MAIN)
        command = ["cc", "-O2", f"-DCALLS={_CALLS}", "main.c", path.name, "-Wl,-rpath,$ORIGIN"]
        subprocess.run([*command, "-o", "main"], cwd=folder, check=True)
        model = load(path, threads=1)
        x = np.ones((1, 32), np.float32)
        y = model(x)
        found: dict[str, list[float]] = {"from C": [], "from Python, out=": [], "from Python": []}
        for _ in range(args.rounds):
            done = subprocess.run(["./main"], cwd=folder, check=True, capture_output=True)
            found["from C"].append(float(done.stdout))
            began = time.process_time()
            for _ in range(_CALLS):
                model(x, out=y)
            found["from Python, out="].append((time.process_time() - began) / _CALLS * 1e6)
            began = time.process_time()
            for _ in range(_CALLS):
                model(x)
            found["from Python"].append((time.process_time() - began) / _CALLS * 1e6)
    least = min(found["from C"])
    for name, times in found.items():
        print(f"{name:20} {min(times):6.2f} us a call; {min(times) - least:+5.2f} over C")


if __name__ == "__main__":
    main()
