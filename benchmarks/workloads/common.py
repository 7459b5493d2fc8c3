"""Workload, and the parts of programs that workloads share.

A contender's program is text (see _harness.py). Programs for jitgrad and PyTorch are one text with
another head, since the names are the same; JAX, tinygrad, ONNX Runtime and NumPy have their own.
`THREADS` in a program is the number of threads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from _harness import Contender

OURS = "jitgrad"
EAGER = "jitgrad eager"
PYTORCH = "PyTorch"
COMPILE = "torch.compile"
JAX = "JAX"
TINYGRAD = "tinygrad"
ONNX = "ONNX Runtime"
NUMPY = "NumPy"
RIVALS = (PYTORCH, COMPILE, JAX, TINYGRAD, ONNX, NUMPY)


@dataclass
class Workload:
    """One line of the table.

    group: which of the table's parts it is in. floats: operations with floats in one step, 0 where
    memory decides. nbytes: bytes that must be read and written in one step, 0 where they do not
    matter. rtol: how far the contenders' `check()` numbers may be apart.
    """

    name: str
    group: str
    contenders: list[Contender]
    floats: float = 0.0
    nbytes: float = 0.0
    rtol: float = 1e-3


_OURS = """
import numpy as np
import jitgrad as torch
import jitgrad.nn as nn
import jitgrad.nn.functional as F
"""
_TORCH = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
torch.set_num_threads(THREADS)
"""
_STEP = """
def step_of(loss_of, optimizer):
    def train():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss
    return compiled(train)
"""
_EAGERLY = "compiled = lambda f: f\n" + _STEP

HEADS = {
    OURS: _OURS + "compiled = torch.jit(fallback='error')\n" + _STEP,
    EAGER: _OURS + _EAGERLY,
    PYTORCH: _TORCH + _EAGERLY,
    COMPILE: _TORCH
    + """
compiled = torch.compile
def step_of(loss_of, optimizer):
    loss_of, update = torch.compile(loss_of), torch.compile(optimizer.step)
    def train():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        update()
        return loss
    return train
""",
    JAX: """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np
import jax
import jax.numpy as jnp
from jax import lax
""",
    TINYGRAD: """
import os, shutil, sys, tempfile
os.environ["DEV"] = "CPU"
import numpy as np
if shutil.which("clang") is None:  # which tinygrad calls
    import ziglang
    os.environ["CC"] = os.path.join(tempfile.mkdtemp(), "clang")
    with open(os.environ["CC"], "w") as f:
        print(f"#!{sys.executable}", "import os, sys", "a = [x for x in sys.argv[1:]"
              " if not x.startswith(('--target', '-march'))]", f"os.execv({sys.executable!r}, "
              f"[{sys.executable!r}, '-m', 'ziglang', 'cc', '--target=x86_64-linux-musl', "
              "'-mcpu=native', '-g0', '-fno-sanitize=all', *a])", sep=chr(10), file=f)
    os.chmod(f.name, 0o755)
from tinygrad import Context, Tensor, TinyJit, nn
""",
    NUMPY: """
import numpy as np
""",
}
"""The first lines of each contender's program."""

ONNX_TAIL = """
import os, tempfile
import onnxruntime
where = os.path.join(tempfile.mkdtemp(), "m.onnx")
torch.export(EXPORTED, *inputs).onnx(where)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
session = onnxruntime.InferenceSession(where, options, providers=["CPUExecutionProvider"])
feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs)}
def step():
    return session.run(None, feed)
def check():
    return [float(v) for v in session.run(None, feed)[0].reshape(-1)[:50]]
"""

TORCH_TAIL = """
f = compiled(f)
def step():
    with torch.no_grad():
        return f(*inputs)
for _ in range(3):
    step()
def check():
    return [float(v) for v in step().detach().reshape(-1)[:50].numpy()]
"""

JAX_TAIL = """
f = jax.jit(f)
def step():
    return jax.block_until_ready(f(*inputs))
def check():
    return [float(v) for v in np.asarray(step()).reshape(-1)[:50]]
"""

TINYGRAD_TAIL = """
f = TinyJit(lambda *a, f=f: f(*a).realize())
def step():
    f(*inputs).numpy()
for _ in range(3):
    step()
def check():
    return [float(v) for v in f(*inputs).numpy().reshape(-1)[:50]]
"""

NUMPY_TAIL = """
def step():
    return f(*inputs)
def check():
    return [float(v) for v in np.asarray(step()).reshape(-1)[:50]]
"""


def function(
    data: str, torch: str, jax: str = "", numpy: str = "", tinygrad: str = "", onnx: bool = True
) -> list[Contender]:
    """The contenders for a function without gradients.

    data: text that makes `arrays`, a list of NumPy arrays. The others: text that defines f of them.
    """
    as_torch = data + "\ninputs = [torch.from_numpy(a) for a in arrays]\n" + torch
    found = [Contender(OURS, HEADS[OURS] + as_torch + TORCH_TAIL)]
    found.append(Contender(PYTORCH, HEADS[PYTORCH] + as_torch + TORCH_TAIL))
    found.append(Contender(COMPILE, HEADS[COMPILE] + as_torch + TORCH_TAIL))
    if jax:
        text = data + "\ninputs = [jnp.asarray(a) for a in arrays]\n" + jax
        found.append(Contender(JAX, HEADS[JAX] + text + JAX_TAIL))
    if tinygrad:
        text = data + "\ninputs = [Tensor(a).realize() for a in arrays]\n" + tinygrad
        found.append(Contender(TINYGRAD, HEADS[TINYGRAD] + text + TINYGRAD_TAIL))
    if onnx:
        tail = ONNX_TAIL.replace("EXPORTED", "f")
        found.append(Contender(ONNX, HEADS[EAGER] + as_torch + tail))
    if numpy:
        text = data + "\ninputs = arrays\n" + numpy
        found.append(Contender(NUMPY, HEADS[NUMPY] + text + NUMPY_TAIL))
    return found


STEP_TAIL = """
train = step_of(loss_of, optimizer)
def check():
    return [float(train().detach()) for _ in range(4)]
def step():
    train()
"""


def training(
    model: str, jax: str = "", tinygrad: str = "", numpy: str = "", eager: bool = True
) -> list[Contender]:
    """The contenders for a training step.

    model: text that makes `loss_of` and `optimizer`, with PyTorch's names. The others: text that
    defines `train()`, one step, which gives its loss.
    """
    found = [Contender(OURS, HEADS[OURS] + model + STEP_TAIL)]
    if eager:
        found.append(Contender(EAGER, HEADS[EAGER] + model + STEP_TAIL))
    found.append(Contender(PYTORCH, HEADS[PYTORCH] + model + STEP_TAIL))
    found.append(Contender(COMPILE, HEADS[COMPILE] + model + STEP_TAIL))
    tail = """
def check():
    return [float(train()) for _ in range(4)]
def step():
    WAIT(train())
"""
    if jax:
        text = HEADS[JAX] + jax + tail.replace("WAIT", "jax.block_until_ready")
        found.append(Contender(JAX, text))
    if tinygrad:
        text = HEADS[TINYGRAD] + tinygrad + tail.replace("float(train())", "train().item()")
        found.append(Contender(TINYGRAD, text.replace("WAIT(train())", "train().item()")))
    if numpy:
        found.append(Contender(NUMPY, HEADS[NUMPY] + numpy + tail.replace("WAIT", "")))
    return found


WEIGHTS = """
rng = np.random.default_rng(0)
def weights(*shapes):
    return [(rng.standard_normal(s) / max(1, np.prod(s[1:])) ** 0.5).astype(np.float32)
            if len(s) > 1 else np.full(s, 0.5, np.float32) for s in shapes]
"""
"""Parameters by their shapes, the same for each contender: matrices are scaled by their fan-in."""

FILL = (
    WEIGHTS
    + """
def fill(model):
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights(*(tuple(p.shape) for p in model.parameters()))):
            p.copy_(torch.from_numpy(w))
    return model
"""
)


def odd(rng: random.Random, low: int, high: int) -> int:
    """A size drawn at random: between low and high, seldom a round number."""
    return rng.randint(low, high)
