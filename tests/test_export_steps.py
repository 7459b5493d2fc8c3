"""Exported functions that change state: training steps, counters, random draws. Exported, read back
from a file, as a library from Python and from C: each gives what the function itself gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler import link
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError

needs_linker = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")


def classifier(optimizer, **options):
    """A step with batch statistics, dropout, an optimizer and a counter; and its data."""
    jg.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )
    opt = optimizer(model.parameters(), **options)
    seen = jg.zeros((), dtype=jg.int64)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        seen.add_(x.shape[0])
        return {"loss": loss, "seen": seen}

    x, y = jg.randn(32, 8), jg.randint(0, 3, (32,))
    return step, model, opt, x, y


OPTIMIZERS = [
    (jg.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (jg.optim.Adam, {"lr": 0.01}),
    (jg.optim.AdamW, {"lr": 0.01, "amsgrad": True}), (jg.optim.RMSprop, {"lr": 0.01}),
    (jg.optim.SGD, {"lr": 0.1}),
]  # fmt: skip


def results(values):
    return [float(values["loss"]), int(values["seen"])]


@needs_linker
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_all_forms_give_what_the_step_gives(optimizer, options, tmp_path):
    step, model, _, x, y = classifier(optimizer, **options)
    step(x, y)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    exported = jg.export(step, x, y)
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())  # nothing ran
    exported.save(tmp_path / "step.jgx")
    exported.native(tmp_path / "libstep.so")
    loaded = jg.load_exported(tmp_path / "step.jgx")
    library = load(tmp_path / "libstep.so")
    arrays = x.numpy(), y.numpy()
    for _ in range(5):
        want = results(step(x, y))
        np.testing.assert_allclose(results(exported(x, y)), want, rtol=1e-5)
        np.testing.assert_allclose(results(loaded(x, y)), want, rtol=1e-5)
        loss, seen = library(*arrays)
        np.testing.assert_allclose([loss, seen], want, rtol=1e-5)
    final = library.get_state()
    assert final.keys() == exported.state.keys()
    for name, array in final.items():
        np.testing.assert_array_equal(array, exported.state[name])


@needs_linker
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS[:2])
def test_batches_of_other_sizes(optimizer, options, tmp_path):
    step, model, _, x, y = classifier(optimizer, **options)
    step(x, y)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    n = jg.Dim("n", min=2, max=32)
    exported = jg.export(step, x, y, dynamic_shapes=[{0: n}, {0: n}])
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())  # nothing ran
    exported.save(tmp_path / "step.jgx")
    exported.native(tmp_path / "libstep.so", weights=tmp_path / "step.weights")
    loaded = jg.load_exported(tmp_path / "step.jgx")
    library = load(tmp_path / "libstep.so")
    assert library.sizes == {"n": (2, 32)}
    for size in (32, 5, 2, 17):
        want = results(step(x[:size], y[:size]))
        np.testing.assert_allclose(results(exported(x[:size], y[:size])), want, rtol=1e-5)
        np.testing.assert_allclose(results(loaded(x[:size], y[:size])), want, rtol=1e-5)
        loss, seen = library(x[:size].numpy(), y[:size].numpy())
        np.testing.assert_allclose([loss, seen], want, rtol=1e-5)
    with pytest.raises(ValueError, match="n to be 2 to 32"):
        library(x[:1].numpy(), y[:1].numpy())


def test_a_step_that_needs_the_size_itself_is_refused():
    total = jg.zeros(())

    def step(x):
        for i in range(x.shape[0]):
            total.add_(x[i].sum())
        return total * 1

    with pytest.raises(CompileError, match="holds only where n == 4"):
        jg.export(step, jg.ones(4, 2), dynamic_shapes=[{0: "n"}])
    assert total.item() == 0


@pytest.mark.parametrize("dynamic", [None, [{0: "n"}, {0: "n"}]])
@pytest.mark.parametrize("look", [lambda loss: loss.item(), lambda loss: print("step")])
def test_a_step_that_looks_at_values_is_refused(look, dynamic):
    step, model, _, x, y = classifier(jg.optim.SGD, lr=0.1)

    def looking(x, y):
        values = step(x, y)
        look(values["loss"])
        return values

    looking(x, y)
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    with pytest.raises(CompileError, match=r"cannot export looking, a step .*test_export_steps"):
        jg.export(looking, x, y, dynamic_shapes=dynamic)
    assert all(v.equal(before[k]) for k, v in model.named_parameters())


def test_the_first_call_of_an_optimizer_is_refused():
    step, model, opt, x, y = classifier(jg.optim.Adam)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(CompileError, match=r"makes state .*exp_avg.*call it once, then export it"):
        jg.export(step, x, y)
    assert not any(opt.state.values())
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    step(x, y)  # works as if nothing had been


def test_random_numbers_go_on_where_they_were():
    generator_before = jg.random.default_generator.draws

    def noise(x):
        return x + jg.rand(3), jg.randn(3)

    exported = jg.export(noise, jg.zeros(3))
    assert jg.random.default_generator.draws == generator_before
    for _ in range(3):
        for a, b in zip(exported(jg.zeros(3)), noise(jg.zeros(3)), strict=True):
            assert jg.allclose(a, b)
    exported.state["random.draws"][...] = 0
    first = exported(jg.zeros(3))[0]
    assert not first.equal(exported(jg.zeros(3))[0])


def test_gradients_that_are_accumulated_are_state():
    jg.manual_seed(0)
    model = nn.Linear(3, 1)

    def accumulate(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    x = jg.rand(4, 3)
    accumulate(x)
    exported = jg.export(accumulate, x)
    exported(x), accumulate(x)
    for name, p in model.named_parameters():
        found = exported.state[f"model.{name}.grad"]
        np.testing.assert_allclose(found, p.grad.numpy(), rtol=1e-6)


@needs_linker
def test_state_of_a_library(tmp_path):
    step, _, _, x, y = classifier(jg.optim.SGD, lr=0.5)
    step(x, y)
    exported = jg.export(step, x, y)
    exported.native(tmp_path / "libstep.so")
    library = load(tmp_path / "libstep.so")
    saved = library.get_state()
    first = float(library(x.numpy(), y.numpy())[0])
    second = float(library(x.numpy(), y.numpy())[0])
    assert first != second
    library.set_state(saved)
    assert float(library(x.numpy(), y.numpy())[0]) == first
    assert "opt.lr" in saved
    library.set_state({**saved, "opt.lr": np.array(0.0)})  # a schedule, from outside
    frozen = [n for n in saved if n.endswith((".weight", ".bias"))]
    assert "model.0.weight" in frozen
    library(x.numpy(), y.numpy())
    for name in frozen:
        np.testing.assert_array_equal(library.get_state()[name], saved[name])
    before = library.get_state()
    with pytest.raises(KeyError, match="no state is called .*x"):
        library.set_state({"opt.lr": np.array(1.0), "x": np.zeros(1)})
    with pytest.raises(TypeError, match="expected state 'opt.lr'"):
        library.set_state({"opt.lr": np.zeros((), np.float32)})
    with pytest.raises(TypeError, match="expected a dict of arrays by name; got list"):
        library.set_state([1])
    assert all((library.get_state()[k] == before[k]).all() for k in before)
    assert load(tmp_path / "libstep.so").get_state()["opt.lr"] == 0.5  # instances are apart


def test_state_is_called_after_what_it_belongs_to():
    model = nn.Sequential()
    model.fc = nn.Linear(4, 2)
    weight = nn.Parameter(jg.rand(4))
    first, rest = [model.fc.weight], [model.fc.bias, weight]
    optimizer = jg.optim.Adam([{"params": first, "lr": 0.5}, {"params": rest}], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x * weight).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    step(jg.rand(3, 4))
    state = jg.export(step, jg.rand(3, 4)).state
    kept = [f"{p}.{k}" for p in ("model.fc.weight", "model.fc.bias", "weight")
            for k in ("step", "exp_avg", "exp_avg_sq")]  # fmt: skip
    settings = [f"optimizer.{g}.{k}" for g in (0, 1) for k in ("lr", "eps")]
    assert {*kept, *settings, "model.fc.weight", "model.fc.bias", "weight"} <= set(state)
    assert (state["optimizer.0.lr"], state["optimizer.1.lr"]) == (0.5, 0.1)
    assert not [name for name in state if re.search(r"[\[<#]", name)]


@pytest.mark.parametrize("optimizer", [jg.optim.AdamW, jg.optim.NAdam, jg.optim.SGD])
def test_what_follows_from_a_setting_follows_when_it_is_set(optimizer):
    """1 - lr * weight_decay, say, is computed in the graph."""
    step, _, opt, x, y = classifier(optimizer, lr=0.01, weight_decay=0.5)
    step(x, y)
    exported = jg.export(step, x, y)
    for rate in (0.3, 0.02):
        opt.param_groups[0]["lr"] = rate
        exported.state["opt.lr"][...] = rate
        for _ in range(2):
            np.testing.assert_allclose(results(exported(x, y)), results(step(x, y)), rtol=2e-5)


@needs_linker
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_goes_on_from_the_state(tmp_path):
    count = jg.zeros(3)

    def bump(x):
        count.add_(x)
        return count * 1

    jg.export(bump, jg.ones(3)).native(tmp_path / "libbump.so")
    library = load(tmp_path / "libbump.so", threads=2)
    one = np.ones(3, np.float32)
    library(one), library(one)
    pid = os.fork()
    if pid == 0:
        os._exit(int(library(one)[0] != 3))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert library(one)[0] == 3


def test_a_function_of_plain_state(tmp_path):
    total = jg.zeros(3)

    def add_up(x):
        total.add_(x)
        return total

    exported = jg.export(add_up, jg.ones(3))
    assert list(exported.state) == ["total"]
    assert [exported(jg.ones(3)).tolist() for _ in range(2)] == [[1.0] * 3, [2.0] * 3]
    assert total.tolist() == [0.0] * 3


def test_onnx_has_no_state(tmp_path):
    pytest.importorskip("onnx.helper")
    total = jg.zeros(3)
    exported = jg.export(lambda x: total.add_(x) * 2, jg.ones(3))
    with pytest.raises(CompileError, match=r"changes its state \(total\)"):
        exported.onnx(tmp_path / "m.onnx")


C_PROGRAM = r"""
#include "libstep.h"
#include <stdio.h>
#include <string.h>
static float x[JG_STEP_INPUT0_SIZE];
static int64_t y[JG_STEP_INPUT1_SIZE], seen;
int main(void) {
    FILE *f = fopen("data.bin", "rb");
    if (!f || fread(x, 1, sizeof x, f) != sizeof x) return 2;
    if (fread(y, 1, sizeof y, f) != sizeof y) return 2;
    fclose(f);
    jg_step *model = jg_step_create(2);
    float loss;
    const void *in[] = {x, y};
    void *out[] = {&loss, &seen};
    if (!model) return 3;
    for (int i = 0; i < 20; i++) {
        if (i % 2 ? jg_step_step(model, x, y, &loss, &seen) : jg_step_run(model, in, out)) return 4;
        printf("%.9g\n", loss);
    }
    double lr = 0;
    int found = 0;
    for (int i = 0; i < jg_step_n_states(); i++)
        if (!strcmp(jg_step_state_name(i), "opt.lr")) {
            if (jg_step_get_state(model, i, &lr) != JG_OK) return 5;
            if (jg_step_state_rank(i) != 0 || jg_step_state_dtype(i) != JG_FLOAT64) return 6;
            found = 1;
        }
    if (jg_step_get_state(model, -1, &lr) != JG_BAD_ARGUMENT) return 7;
    if (!strstr(jg_step_last_error(model), "the number of a state, 0 to ")) return 9;
    if (jg_step_set_state(NULL, 0, &lr) != JG_BAD_ARGUMENT) return 8;
    printf("%g %d\n", lr, found);
    jg_step_destroy(model);
    return 0;
}
"""


@needs_linker
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_training_from_c(tmp_path):
    step, _, _, x, y = classifier(jg.optim.Adam, lr=0.01)
    step(x, y)
    jg.export(step, x, y).native(tmp_path / "libstep.so")
    (tmp_path / "data.bin").write_bytes(x.numpy().tobytes() + y.numpy().tobytes())
    (tmp_path / "main.c").write_text(C_PROGRAM)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-g"]
    subprocess.run(
        ["cc", *flags, "main.c", "libstep.so", "-Wl,-rpath,$ORIGIN", "-o", "main"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    *losses, last = done.stdout.split("\n")[:-1]
    assert last == "0.01 1"
    want = [float(step(x, y)["loss"]) for _ in losses]
    np.testing.assert_allclose(np.array(losses, float), want, rtol=1e-4)
    assert want[-1] < want[0]
