"""Run by .ci/run with an installed wheel, from a folder that is not the repository."""

import sys
from pathlib import Path

import numpy as np

import jitgrad
import jitgrad.compiler
import jitgrad.runtime

HERE = Path(__file__).resolve().parent

for module in (jitgrad, jitgrad.compiler, jitgrad.runtime):
    file = Path(str(module.__file__)).resolve()
    if Path(sys.prefix).resolve() not in file.parents or HERE in file.parents:
        sys.exit(f"{module.__name__} is not the installed one: {file}")


@jitgrad.jit
def f(x: jitgrad.Tensor) -> jitgrad.Tensor:
    return (x * 2 + 1).sum()


values = np.arange(6, dtype=np.float32).reshape(2, 3)
for _ in range(2):
    result = f(jitgrad.tensor(values)).item()
    if result != 36.0:
        sys.exit(f"jit: expected 36.0, got {result}")
if f.stats.compiles < 1 or f.stats.hits < 1:
    sys.exit(f"jit: the second call did not run compiled code: {f.stats}")
print(f"jitgrad {jitgrad.__version__}: jit works from {HERE}")
