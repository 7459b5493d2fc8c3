"""Whole programs in C: a GPT that writes text from its cache, and a network that is trained.

Compiled with all warnings as errors; under valgrind, where there is one, without errors or leaks.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler import link
from jitgrad.compiler.codegen.target import host

pytestmark = [
    pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# Valgrind knows no AVX-512.
TARGET = "x86-64-v3" if host().arch == "x86_64" else "host"
# Valgrind 3.19 lacks an encoding of a move between AVX registers (c5 79 d6, vmovq).
IN_VALGRIND = "x86-64-v2" if host().arch == "x86_64" else "host"
VALGRIND = [
    "valgrind",
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=all",
]


def run(command, folder, valgrind=False):
    if valgrind and shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    wrapper = VALGRIND if valgrind else []
    done = subprocess.run([*wrapper, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- text ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", EXAMPLES / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["generate"]


@pytest.fixture(scope="module")
def writer(generate, tmp_path_factory):
    """A GPT after a few steps, and the folder with its library and its program."""
    folder = tmp_path_factory.mktemp("gpt")
    jg.manual_seed(0)
    model = generate.GPT(context=24, width=32)
    assert generate.train(model, generate.text_of_this(), 40) < 4.5
    generate.export(model).native(folder / "libgpt.so", target=TARGET)
    generate.build(folder)
    return model, folder


@pytest.mark.parametrize("valgrind", [False, True], ids=["alone", "valgrind"])
@pytest.mark.parametrize("prompt", ["Beautiful is ", "x"])
def test_a_gpt_writes_what_it_writes_without_a_cache(generate, writer, prompt, valgrind):
    model, folder = writer
    count = model.context - len(prompt)
    said = run(["./generate", prompt, str(count)], folder, valgrind)
    assert said == generate.continued(model, prompt, count) and len(set(said)) > 3


def test_a_full_cache_is_an_error(writer):
    command = ["./generate", "x", "60"]
    done = subprocess.run(command, cwd=writer[1], capture_output=True, text=True)
    assert done.returncode == 1 and "index" in done.stderr and len(done.stdout) == 25


# -- training ------------------------------------------------------------------------------------
TRAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include "libdigits.h"
static float x[JG_DIGITS_INPUT0_SIZE];
static int64_t y[JG_DIGITS_INPUT1_SIZE];
static size_t bytes_of(int i) {
    int dtype = jg_digits_state_dtype(i);
    size_t n = dtype == JG_INT64 || dtype == JG_FLOAT64 ? 8 : 4;
    for (int k = 0; k < jg_digits_state_rank(i); k++) n *= (size_t)jg_digits_state_dims(i)[k];
    return n;
}
int main(void) {
    FILE *data = fopen("batches.bin", "rb");
    jg_digits *model = jg_digits_create(2);
    if (!data || !model) return 2;
    float loss = 0;
    while (fread(x, sizeof x, 1, data) == 1 && fread(y, sizeof y, 1, data) == 1)
        if (jg_digits_call(model, x, y, &loss) != JG_OK) return 3;
    fclose(data);
    FILE *out = fopen("state.bin", "wb");
    if (!out) return 4;
    for (int i = 0; i < jg_digits_n_states(); i++) {
        void *place = malloc(bytes_of(i));
        if (!place || jg_digits_get_state(model, i, place) != JG_OK) return 5;
        printf("%s\n", jg_digits_state_name(i));
        if (fwrite(place, 1, bytes_of(i), out) != bytes_of(i)) return 6;
        free(place);
    }
    fclose(out);
    jg_digits_destroy(model);
    return 0;
}
"""


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc1, self.fc2 = nn.Linear(8 * 16, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        return self.fc2(F.dropout(self.fc1(x.flatten(1)).relu(), 0.1, self.training))


def training():
    jg.manual_seed(0)
    model = Classifier()
    optimizer = jg.optim.AdamW(model.parameters(), lr=0.005)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return model, step


@pytest.mark.parametrize("valgrind", [False, True], ids=["alone", "valgrind"])
def test_digits_are_learnt_in_c_as_in_python(valgrind, tmp_path):
    raw = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = (raw.images / 16).astype(np.float32)[:, None], raw.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, rest = order[:400], order[400:]
    epochs = 1 if valgrind else 6
    batches = [b for _ in range(epochs) for b in np.split(rest[: len(rest) // 64 * 64], 21)]
    batches = batches[:3] if valgrind else batches

    model, step = training()
    given = [(jg.from_numpy(images[b]), jg.from_numpy(labels[b])) for b in batches]
    step(*given[0])
    exported = jg.export(step, *given[0])
    exported.native(tmp_path / "libdigits.so", target=IN_VALGRIND if valgrind else TARGET)
    with open(tmp_path / "batches.bin", "wb") as file:
        for x, y in given[1:]:
            file.write(x.numpy().tobytes() + y.numpy().tobytes())
    (tmp_path / "main.c").write_text(TRAIN)
    command = ["cc", "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "main.c"]
    command += ["libdigits.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    names = run(["./main"], tmp_path, valgrind).split()
    found = read_state(tmp_path / "state.bin", names, exported.state)
    compiled = jg.jit(step, fallback="error")
    for x, y in given[1:]:
        compiled(x, y)
    trained = Classifier()
    trained.load_state_dict({k: jg.from_numpy(found[f"model.{k}"]) for k in model.state_dict()})
    if valgrind:
        np.testing.assert_allclose(
            found["model.fc2.weight"], model.fc2.weight.detach().numpy(), rtol=1e-3, atol=1e-5
        )
        return
    in_c, in_python = (accuracy(m, images[test], labels[test]) for m in (trained, model))
    assert in_python >= 0.93 and abs(in_c - in_python) <= 0.015
    assert {"optimizer.lr", "model.fc1.weight.exp_avg", "random.draws"} <= set(names)


def accuracy(model, images, labels):
    return float(
        (model.eval()(jg.from_numpy(images)).argmax(1) == jg.from_numpy(labels)).float().mean()
    )


def read_state(path, names, like):
    """The arrays of a file, in the order of names; dtypes and shapes as of those of the export."""
    data, found, at = path.read_bytes(), {}, 0
    for name in names:
        array = like[name]
        found[name] = np.frombuffer(data, array.dtype, array.size, at).reshape(array.shape).copy()
        at += array.nbytes
    assert at == len(data)
    return found
