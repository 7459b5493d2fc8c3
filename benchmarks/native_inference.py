"""Exported libraries beside ONNX Runtime: python benchmarks/native_inference.py [name ...]

Each model (mlp: 784-512-512-10, batches of 64; resnet18: one image of 224 x 224) is exported once,
as a native library and as an ONNX file. Both run in processes of their own, in turn, on one thread
and on two (`_harness.py`); their outputs must agree. A ratio above 1 means that ONNX Runtime takes
longer. Also printed: the library's size without weights, and the time from the start of a Python
process to the end of the first inference, by `jitgrad.runtime.load`, by the `libnet.py` beside the
library, and by ONNX Runtime, and how much of it processors worked: on a busy machine the latter
tells more. Beside it what Python alone takes, and Python with NumPy, which all of them need, and a
second call: what is left is the library's and its loader's.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _harness import Contender, compare

import jitgrad as jg
from jitgrad import nn
from jitgrad.exported import Exported

_OURS = """
import numpy as np
from jitgrad.runtime import load
model = load({library!r}, threads={threads})
x = np.load({data!r})
def step():
    return model(x)
def check():
    return [float(v) for v in model(x).reshape(-1)[:50]]
"""
_BARE = """
import importlib.util
import numpy as np
spec = importlib.util.spec_from_file_location("libnet", {loader!r})
libnet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(libnet)
model = libnet.load(threads={threads})
x = np.load({data!r})
def step():
    return model(x)
"""
_THEIRS = """
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = {threads}, 1
session = onnxruntime.InferenceSession({file!r}, options, providers=["CPUExecutionProvider"])
x = np.load({data!r})
def step():
    return session.run(None, {{"x": x}})
def check():
    return [float(v) for v in session.run(None, {{"x": x}})[0].reshape(-1)[:50]]
"""


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.around = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: jg.Tensor) -> jg.Tensor:
        y = jg.relu(self.bn1(self.conv1(x)))
        return jg.relu(self.bn2(self.conv2(y)) + self.around(x))


def mlp() -> tuple[nn.Module, jg.Tensor]:
    """The model and an example."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), jg.rand(64, 784)


def resnet18() -> tuple[nn.Module, jg.Tensor]:
    """The model and an example."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers), jg.rand(1, 3, 224, 224)


MODELS = {"mlp": mlp, "resnet18": resnet18}


def starts(sources: dict[str, str], rounds: int, peer: str) -> None:
    """Times new processes up to the end of their first call, in turn. Processors' time is told
    beside that of `peer`, as the median of the rounds' ratios."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", source + "\nstep()"], check=True)
            wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
            worked = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            found[name].append((wall, worked))
    for name, seconds in found.items():
        wall, worked = (statistics.median(s) * 1e3 for s in zip(*seconds, strict=True))
        best = min(s[1] for s in seconds) * 1e3
        ratio = statistics.median(p[1] / s[1] for s, p in zip(seconds, found[peer], strict=True))
        print(
            f"  {name:24} {wall:6.0f} ms; processors worked {worked:6.0f} ms (least {best:.0f}), "
            f"{peer} {ratio:.2f} times that"
        )


_START = {
    "Python alone": "def step(): pass",
    "Python and NumPy": "import numpy\ndef step(): pass",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="default: all")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--starts", action="store_true", help="only how processes start")
    args = parser.parse_args()
    for name in args.names or MODELS:
        jg.manual_seed(0)
        model, x = MODELS[name]()
        with tempfile.TemporaryDirectory() as folder:
            at = {k: str(Path(folder, f)) for k, f in
                  (("library", "libnet.so"), ("loader", "libnet.py"), ("file", "m.onnx"),
                   ("data", "x.npy"))}  # fmt: skip
            exported: Exported = jg.export(model.eval(), x, names=["x"])
            exported.native(at["library"])
            exported.onnx(at["file"])
            np.save(at["data"], x.numpy())
            weights = sum(a.nbytes for a in exported.state.values())
            size = os.path.getsize(at["library"]) - weights
            for threads in (2,) if args.starts else (1, 2):
                both = {
                    "jitgrad": _OURS.format(threads=threads, **at),
                    "ONNX Runtime": _THEIRS.format(threads=threads, **at),
                }
                if args.starts:
                    continue
                contenders = [Contender(k, source) for k, source in both.items()]
                compare(f"{name}: a call", contenders, args.rounds, threads=threads, rtol=1e-2)
            print(f"\n{name}: library without weights: {size / 1e3:,.0f} kB")
            print(f"{name}: process start to first result")
            bare = {"jitgrad, by libnet.py": _BARE.format(threads=threads, **at)}
            again = {"jitgrad, two calls": both["jitgrad"] + "\nstep()"}
            starts({**_START, **both, **again, **bare}, args.rounds, "ONNX Runtime")


if __name__ == "__main__":
    main()
