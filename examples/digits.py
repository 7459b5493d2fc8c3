"""The whole path, once: train a digit classifier eagerly and compiled, look inside, ship it.

    python examples/digits.py            # about a minute or two
    python examples/digits.py --short    # seconds: fewer epochs

1. Trains a small convolutional network on the 1,797 scanned digits that scikit-learn ships, twice
   from the same seed: once eagerly, once with the whole training step under one `@jit`.
2. Compares the two: losses, accuracy on a held-out quarter, seconds per epoch.
3. Says what the compiler did, and draws it: examples/out/graph.svg, kernels.svg, memory.svg.
4. Exports the classifier as a shared library with a C header, and runs that in a fresh Python
   process without a compiler in it (classify.py) and from a C program (classify.c).

Every claim is checked; the exit status is 1 when one does not hold.
"""

from __future__ import annotations

import argparse
import math
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.compiler.picture import readable_bytes
from jitgrad.jit import JitFunction
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob
from jitgrad.runtime.threads import get_num_threads
from jitgrad.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

try:
    from sklearn.datasets import load_digits
    from tqdm import tqdm
except ModuleNotFoundError as missing:
    sys.exit(
        f"examples/digits.py needs {missing.name}, which is not installed: "
        "pip install 'jitgrad[examples]', or run `make demo`, which installs what it needs"
    )

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
SEED, BATCH, RATE = 0, 64, 4e-3


# -- data and model --------------------------------------------------------------------------------
@dataclass
class Digits:
    """Images float32 (n, 1, 8, 8) in [0, 1], labels int64 (n,); a quarter is held out."""

    images: jg.Tensor
    labels: jg.Tensor
    test_images: jg.Tensor
    test_labels: jg.Tensor


def load(seed: int) -> Digits:
    raw = load_digits()
    images = (raw.images / 16).astype(np.float32)[:, None]
    labels = raw.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[: len(order) // 4], order[len(order) // 4 :]
    parts = (images[train], labels[train], images[test], labels[test])
    return Digits(*map(jg.from_numpy, parts))


class Classifier(nn.Module):
    """(n, 1, 8, 8) -> (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        # No biases before a BatchNorm: it would subtract them again.
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(0.4)
        self.linear = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: jg.Tensor) -> jg.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.pool(F.relu(self.norm2(self.conv2(x))))
        return self.linear(self.dropout(self.flatten(x)))


# -- training --------------------------------------------------------------------------------------
Step = Callable[[jg.Tensor, jg.Tensor], jg.Tensor]


@dataclass
class Run:
    """What a training run left behind."""

    model: Classifier
    optimizer: optim.Adam
    step: Step
    losses: list[list[float]] = field(default_factory=list)  # by epoch, by step
    rates: list[float] = field(default_factory=list)  # learning rate at the end of each epoch
    seconds: list[float] = field(default_factory=list)  # by epoch, evaluation not counted
    accuracy: float = 0.0
    differences: list[float] = field(default_factory=list)  # see `same_state_difference`

    @property
    def epoch_losses(self) -> list[float]:
        return [statistics.fmean(epoch) for epoch in self.losses]


def train(
    name: str, wrap: Callable[[Step], Step], data: Digits, epochs: int, compare: bool = False
) -> Run:
    """Trains from SEED. `wrap` makes of the training step what is called: jit, or nothing.

    compare: after each epoch, compares one compiled step with one eager step.
    """
    jg.manual_seed(SEED)
    model = Classifier()
    optimizer = optim.Adam(model.parameters(), lr=RATE)

    def step(images: jg.Tensor, labels: jg.Tensor) -> jg.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    run = Run(model, optimizer, wrap(step))
    dataset = TensorDataset(data.images, data.labels)
    # Whole batches of indices go to the dataset at once (batch_size=None): one gather a batch.
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    total, done = epochs * len(loader), 0
    with tqdm(total=total, desc=f"{name:<9}", disable=None, unit="step", leave=False) as bar:
        for _ in range(epochs):
            model.train()
            start = time.perf_counter()
            losses = []
            for images, labels in loader:
                rate = RATE * 0.5 * (1 + math.cos(math.pi * done / total))
                for group in optimizer.param_groups:  # a new rate at every step: no new compile
                    group["lr"] = rate
                losses.append(run.step(images, labels).item())
                done += 1
                bar.update()
            run.seconds.append(time.perf_counter() - start)
            run.losses.append(losses)
            if compare:
                run.differences.append(same_state_difference(run, images, labels))
            run.rates.append(rate)
            bar.set_postfix(loss=f"{statistics.fmean(losses):.4f}")
    run.accuracy = accuracy(model, data)
    return run


def same_state_difference(run: Run, images: jg.Tensor, labels: jg.Tensor) -> float:
    """Takes one step eagerly and one compiled from the same state, random numbers included, and
    returns the relative difference of the losses. The state is left as it was found."""
    state = [*run.model.parameters(), *run.model.buffers()]
    state += [x for s in run.optimizer.state.values() for x in s.values()]
    before, generator = [x.detach().clone() for x in state], jg.get_rng_state()

    def restore() -> None:
        jg.set_rng_state(generator)
        with jg.no_grad():
            for x, saved in zip(state, before):
                x.copy_(saved)

    compiled = run.step(images, labels).item()
    restore()
    with jg.disable_jit():
        eager = run.step(images, labels).item()
    restore()
    return relative(compiled, eager)


def logits(model: nn.Module, images: jg.Tensor) -> jg.Tensor:
    """In evaluation mode: no dropout, BatchNorm by its running statistics."""
    model.eval()
    with jg.no_grad():
        return model(images)


def accuracy(model: nn.Module, data: Digits) -> float:
    right = logits(model, data.test_images).argmax(1) == data.test_labels
    return right.float().mean().item()


# -- what is printed -------------------------------------------------------------------------------
class Claims:
    """Prints what was checked, and remembers what did not hold."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check(self, holds: bool, text: str) -> None:
        print(f"  {'ok    ' if holds else 'FAILED'}  {text}")
        if not holds:
            self.failed.append(text)


def relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-30)


def print_losses(eager: Run, compiled: Run) -> None:
    print("\n  epoch   last rate   loss, eager   loss, compiled   relative difference")
    rows = zip(eager.rates, eager.epoch_losses, compiled.epoch_losses)
    for n, (rate, a, b) in enumerate(rows, 1):
        print(f"  {n:5}   {rate:9.6f}   {a:11.6f}   {b:14.6f}   {relative(b, a):19.1e}")


def print_speed(eager: Run, compiled: Run) -> None:
    medians = [statistics.median(r.seconds) for r in (eager, compiled)]
    firsts = [r.seconds[0] for r in (eager, compiled)]
    print(f"\n  {'':22} {'eager':>9} {'compiled':>9}")
    print(f"  {'test accuracy':22} {eager.accuracy:9.1%} {compiled.accuracy:9.1%}")
    print(
        f"  {'seconds, median epoch':22} {medians[0]:9.3f} {medians[1]:9.3f}   "
        f"{medians[0] / medians[1]:.1f} x faster"
    )
    print(f"  {'seconds, first epoch':22} {firsts[0]:9.3f} {firsts[1]:9.3f}   with compiling")


def check_runs(eager: Run, compiled: Run, claims: Claims) -> None:
    print("\nChecked")
    for name, run in (("eager", eager), ("compiled", compiled)):
        claims.check(run.accuracy >= 0.97, f"{name}: test accuracy {run.accuracy:.1%} >= 97 %")
    first = max(map(relative, compiled.losses[0], eager.losses[0]))
    claims.check(
        first <= 1e-5,
        f"losses of the first {len(eager.losses[0])} steps: largest relative difference "
        f"{first:.1e} <= 1e-05",
    )
    # From step to step training amplifies the rounding: a maximum or a ReLU may flip.
    whole = max(map(relative, compiled.epoch_losses, eager.epoch_losses))
    claims.check(
        whole <= 1e-1,
        f"losses of all epochs: largest relative difference {whole:.1e} <= 1e-01",
    )
    same = max(compiled.differences)
    claims.check(
        same <= 1e-5,
        f"one step from the same state, after each epoch: largest relative difference "
        f"{same:.1e} <= 1e-05",
    )


def print_report(step: JitFunction) -> None:
    """What the compiler did with the training step, and its pictures."""
    compiled = step.specialisations[0].compiled  # the one that ran last
    r = compiled.report
    peak, total = readable_bytes(r.peak), readable_bytes(r.total)
    before, after = readable_bytes(r.bytes_before), readable_bytes(r.bytes_after)
    rows = [
        ("nodes recorded", f"{r.nodes}, {r.nodes_simplified} after simplification"),
        ("kernels after fusion", f"{r.kernels}, run by one native call"),
        ("bytes moved", f"{before} if each node ran by itself, {after} fused"),
        ("planned memory", f"{peak}, {r.peak / r.lower_bound:.2f} x the lower bound"),
        ("", f"{total} is the sum of all buffers"),
        ("compile time", f"{r.compile_ms / 1e3:.2f} s, into an empty cache"),
        (
            "calls of the step",
            f"{step.stats.hits} compiled, {step.stats.traces} recorded, "
            f"{step.stats.compiles} compilations",
        ),
    ]
    step.explain().draw(OUT)
    rows.append(("pictures", "examples/out/graph.svg, kernels.svg, memory.svg"))
    print("\nWhat the compiler made of the training step")
    for name, text in rows:
        print(f"  {name:22}{text}")


# -- leaving Python --------------------------------------------------------------------------------
def export(model: nn.Module, data: Digits, claims: Claims) -> None:
    """Exports the classifier for one image at a time, and runs it without jitgrad's compiler."""
    model.eval()
    library = OUT / "libdigits.so"
    try:
        jg.export(model, data.test_images[:1]).native(library)
    except CompileError as error:  # no linker on this machine; the message says what to do
        print(f"\nNot exported: {error}")
        return
    images = OUT / "images.f32"
    data.test_images.numpy().tofile(images)
    expected = logits(model, data.test_images).argmax(1).tolist()
    size = readable_bytes(library.stat().st_size)
    print(f"\nExported: examples/out/libdigits.so ({size}) and libdigits.h")
    python = [sys.executable, str(HERE / "classify.py"), str(library), str(images)]
    check_program(claims, "fresh Python process, no llvmlite or numba in it", python, expected)
    cc = shutil.which("cc")
    if cc is None:
        print("  (no C compiler here: classify.c not tried)")
        return
    program = OUT / "classify"
    build = [cc, "-O2", "-Wall", "-I", str(OUT), str(HERE / "classify.c"), str(library)]
    subprocess.run([*build, f"-Wl,-rpath,{OUT}", "-o", str(program)], check=True)
    check_program(claims, "C program", [str(program), str(images)], expected)


def check_program(claims: Claims, what: str, command: list[str], expected: list[int]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        claims.check(False, f"{what}: exit status {done.returncode}: {done.stderr.strip()}")
        return
    same = sum(int(a) == b for a, b in zip(done.stdout.split(), expected, strict=True))
    claims.check(
        same == len(expected), f"{what}: {same} of {len(expected)} predictions are Python's"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="fewer epochs: seconds, for CI")
    epochs = 8 if parser.parse_args().short else 15
    OUT.mkdir(exist_ok=True)
    data, claims = load(SEED), Claims()
    print(
        f"jitgrad {jg.version.jitgrad} on {platform.system()} {platform.machine()}, "
        f"{get_num_threads()} threads, Python {platform.python_version()}\n"
        f"{len(data.labels):,} digits to train on, {len(data.test_labels)} held out; "
        f"{epochs} epochs in batches of {BATCH}, twice from seed {SEED}"
    )
    eager = train("eager", lambda step: step, data, epochs)
    # An empty cache, so that the compile time below is that of a first run.
    with tempfile.TemporaryDirectory() as folder, knob(cache_dir=folder):
        compiled = train("compiled", jg.jit, data, epochs, compare=True)
    print_losses(eager, compiled)
    print_speed(eager, compiled)
    check_runs(eager, compiled, claims)
    print_report(compiled.step)
    export(compiled.model, data, claims)
    if claims.failed:
        print(f"\n{len(claims.failed)} of the claims did not hold", file=sys.stderr)
    return 1 if claims.failed else 0


if __name__ == "__main__":
    sys.exit(main())
