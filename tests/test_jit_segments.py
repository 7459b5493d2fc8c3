"""Segments: a jitted function whose Python runs at each call, its tensor code natively.

Each program runs eagerly and under @jit(fallback="error"), several times from one seed: what it
returns, prints and leaves behind must be equal, and the number of native segments is as stated.
"""

import contextlib
import copy
import gc
import io
import itertools
import logging
import random
import threading
import time
import warnings

import numpy as np
import pytest

import jitgrad
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.jit import JitFunction
from jitgrad.outside import is_shared
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob

CALLS = 5
"""The first call is recorded eagerly, the second runs references, later ones machine code."""


def plain(x):
    if isinstance(x, jitgrad.Tensor):
        return x.detach().clone().numpy()
    if isinstance(x, (tuple, list)):
        return [plain(y) for y in x]
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return x


def same(a, b):
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        same(list(a.values()), list(b.values()))
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=2e-5, abs=2e-6)
    else:
        assert type(a) is type(b) and a == b


def play(make, calls, wrap):
    """What a program returns, prints, raises and leaves behind; and the function."""
    jitgrad.manual_seed(0)
    random.seed(0)
    function, left = make()
    function = wrap(function)
    printed, out = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        for i in range(calls):
            try:
                out.append(plain(function(i)))
            except (ValueError, IndexError, ZeroDivisionError) as error:
                out.append([type(error).__name__, str(error).split(" (at")[0]])
            out.append(plain(left()))
    draws = plain(jitgrad.rand(2))
    return [out, printed.getvalue(), draws, random.random()], function


def check(make, per_call=None, calls=CALLS):
    """Compares eager with jit. per_call: native segments of each call once all are compiled."""
    expected, _ = play(make, calls, lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found, f = play(make, calls, jitgrad.jit(fallback="error"))
    same(expected, found)
    assert f.stats.fallbacks == 0
    assert (f.segmented is None) is (per_call == 0)
    if per_call is not None:
        before = f.stats.segments
        with contextlib.redirect_stdout(io.StringIO()):
            f(calls)
        assert f.stats.segments - before == per_call, str(f.explain())
    return f


X = jitgrad.arange(12.0).reshape(3, 4) / 7


# -- each kind of effect ---------------------------------------------------------------------------
def counter():
    n = [0]

    def f(i):
        n[0] += 1
        return (X * n[0]).exp().sum(0)

    return f, lambda: n


def appends():
    log = []

    def f(i):
        y = (X + 1).log()
        log.append(y)
        return y * 2

    return f, lambda: log


def prints():
    def f(i):
        y = X.sin()
        print("before", i)
        print(y)
        print(y.sum(), f"{y.sum():.3f}", [y[0, 0]])
        return y.cos()

    return f, lambda: None


def next_of_iterator():
    it = iter([X, X * 2, X * 3, X + 1, X, X, X])

    def f(i):
        return next(it) @ X.t()

    return f, lambda: None


def python_random():
    def f(i):
        return X * random.random() + random.choice([1.0, 2.0])

    return f, lambda: None


def clock():
    seen = []

    def f(i):
        seen.append(time.time() > 0)
        return X.abs().sqrt()

    return f, lambda: seen


def logs():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("jitgrad.test.segments")
    logger.propagate = False
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)

    def f(i):
        loss = (X * X).mean()
        logger.info("loss %.4f", loss)
        return loss * 2

    return f, lambda: lines


WORLD = 0


def global_write():
    global WORLD
    WORLD = 0

    def f(i):
        global WORLD
        WORLD += 1
        return X + WORLD

    return f, lambda: WORLD


class Meter:
    """A user's running mean."""

    def __init__(self):
        self.total, self.count, self.last = 0.0, 0, None

    def update(self, x):
        self.total += x.item()
        self.count += 1
        self.last = x


def custom_object():
    meter = Meter()

    def f(i):
        y = (X - i).tanh()
        meter.update(y.mean())
        return y / meter.count

    return f, lambda: [meter.total, meter.count, meter.last]


def item_in_the_middle():
    def f(i):
        y = (X + i).exp()
        s = float(y.sum())
        return y / s, s

    return f, lambda: None


def array_in_the_middle():
    def f(i):
        y = X * 2 + i
        m = np.median(y.numpy())
        return y - float(m)

    return f, lambda: None


def user_class_result():
    class Box:
        def __init__(self, x):
            self.x = x

    kept = []

    def f(i):
        box = Box(X.exp())
        kept.append(box)
        return box.x + 1

    return f, lambda: [b.x for b in kept]


def global_rng():
    def f(i):
        print(i)
        y = F.dropout(X, 0.5) + jitgrad.randn(3, 4)
        state = jitgrad.get_rng_state()
        return y, jitgrad.randperm(5), state

    return f, lambda: None


def seeds():
    def f(i):
        jitgrad.manual_seed(i)
        return jitgrad.rand(3)

    return f, lambda: None


def generator_inside():
    def f(i):
        def rows():
            for r in X:
                print(r.sum().item() > 1)
                yield r * 2

        return jitgrad.stack(list(rows()))

    return f, lambda: None


def early_exit():
    def f(i):
        x = X + i * 0.1
        n = 0
        while True:
            x = x * 0.5 + 0.1
            n += 1
            if float(x.max()) < 0.3 or n > 10:
                break
        return x, n

    return f, lambda: None


def shapes_of_values():
    def f(i):
        print(i)
        rows = jitgrad.nonzero(X[:, 0] > 0.5)
        return X[X > 0.7], rows, jitgrad.unique(X > 0.5)

    return f, lambda: None


PROGRAMS = {
    counter: 0, appends: 0, prints: None, next_of_iterator: 1, python_random: 1, clock: 1, logs: 2,
    global_write: 0, custom_object: 0, item_in_the_middle: 2, array_in_the_middle: 2,
    user_class_result: 1, global_rng: None, seeds: 1, generator_inside: None, early_exit: None,
    shapes_of_values: None,
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_effects_happen_at_each_call(make):
    check(make, PROGRAMS[make])


def test_order_of_effects():
    def make():
        log = []

        def f(i):
            print("a", i)
            y = X + 1
            log.append(("first", y))
            print(y[0])
            y.add_(1)
            log.append(("second", y.sum()))
            print(log[-1][1].item())
            return y

        return f, lambda: log

    check(make, 2)


# -- one program ends where values are read --------------------------------------------------------
def test_values_that_nothing_holds_are_never_made():
    def make():
        def f(i):
            print(i)
            a = X.exp()
            b = a.sin()
            c = b.cos().sum()
            return c

        return f, lambda: None

    f = check(make, 1)
    (program,) = [p for p in f.segmented.segments.programs if p.native > 1]
    assert len(program.graph.outputs) == 1 and program.compiled.report.kernels == 1


def test_numbers_that_change_become_inputs():
    def make():
        n = [0]

        def f(i):
            n[0] += 1
            return X * (0.5 * n[0]) + n[0] - 2 ** n[0]

        return f, lambda: n

    f = check(make, 1, calls=8)
    assert f.stats.compiles <= 2


def test_a_repeated_call_makes_no_new_program():
    f = check(item_in_the_middle)
    programs = len(f.segmented.segments.programs)
    for i in range(4):
        f(i)
    assert len(f.segmented.segments.programs) == programs


def test_segments_that_are_ever_others_are_seldom_compiled():
    def make():
        def f(i):
            print(end="")
            return (jitgrad.arange(2.0 + i % 30) * 2).exp().sum().item()

        return f, lambda: None

    f = check(make, calls=120)
    assert 8 < f.segmented.segments.compiled < 30 and f.stats.segments > 0


def test_a_long_function_is_cut(monkeypatch):
    monkeypatch.setattr("jitgrad.lazy_recorder.MAX_SEGMENT", 20)

    def make():
        def f(i):
            print(i)
            x = X
            for k in range(50):
                x = (x * 1.01).sin() + k
            return x

        return f, lambda: None

    f = check(make)
    before = f.stats.segments
    f(0)
    assert 4 <= f.stats.segments - before <= 9


# -- mutation --------------------------------------------------------------------------------------
def test_writes_to_what_is_outside():
    def make():
        buf, n = jitgrad.zeros(4), [0]
        view = buf[1:3]

        def f(i):
            print(i)
            n[0] += 1
            buf.add_(1)
            view.mul_(2)
            buf[0] = X.sum()
            s = buf.sum().item()
            view[0] = s
            return buf[:2], view * 1, view.sum()

        return f, lambda: [buf, view, buf._version, n]

    check(make)


def test_writes_to_what_is_inside():
    def make():
        def f(i):
            print(i)
            x = X.clone()
            v = x.t()
            w = v[1]
            w.zero_()
            x[2] += v[3].sum()
            d = x.detach()
            d.mul_(2)
            print(w.tolist())
            w.fill_(3)
            y = x.reshape(2, 6)
            y[0, 0] = -1
            z = x.t().reshape(-1)
            z.zero_()
            return x, v, y, z, d, x._version

        return f, lambda: None

    check(make)


def test_a_write_through_a_numpy_array_is_seen():
    def make():
        def f(i):
            x = X * 2
            a = x.numpy()
            x.add_(1)
            first = float(a[0, 0])
            a[0, 0] = 7
            y = x * 3
            a[0, 0] = 8
            return first, y, x + 0

        return f, lambda: None

    check(make)


def test_memory_of_a_numpy_array():
    def make():
        a = np.arange(4.0, dtype=np.float32)
        x, again = jitgrad.from_numpy(a), jitgrad.from_numpy(a)

        def f(i):
            y = x + 1
            a[0] = i
            z = x + 1
            again.mul_(2)
            return y, z, x * 1, float(a[1])

        return f, lambda: a.copy()

    check(make)


def test_an_array_that_was_taken_before_sees_writes():
    x = jitgrad.ones(3)
    a = x.numpy()
    seen = []

    @jitgrad.jit(fallback="error")
    def f():
        x.add_(1)
        seen.append(a[0].item())
        return x * 2

    assert [f().tolist() for _ in range(4)] == [[4.0] * 3, [6.0] * 3, [8.0] * 3, [10.0] * 3]
    assert seen == [2, 3, 4, 5]


def shared(x):
    return is_shared(x._storage, x._data)


def test_memory_that_an_array_shared_once_is_not_shared_for_ever():
    x = jitgrad.ones(3, 2)
    assert not shared(x)
    a = x.numpy()
    assert shared(x)
    b = a[1:]
    del a
    assert shared(x)
    del b
    assert not shared(x)
    assert x.data_ptr() and shared(x)
    whole, part = jitgrad.from_numpy(np.ones(3)), jitgrad.from_numpy(np.ones(4)[1:])
    assert not shared(whole) and shared(part)


def test_layouts_are_eager_s():
    def make():
        def f(i):
            print(i)
            x = X * 1
            t = x.t()
            out = [t.is_contiguous(), t.stride(), x[1:].is_contiguous(), x[:, 1:3].stride()]
            out += [t.contiguous().is_contiguous(), x.unsqueeze(1).stride(), t.storage_offset()]
            y = x * 2
            out += [y[1:].storage_offset(), y.expand(2, 3, 4).stride(), y[1:].reshape(-1).stride()]
            part = y[:, 1:]
            try:
                part.view(-1)
            except RuntimeError as error:
                out.append("view size" in str(error))
            y[1:].view(-1)[0] = 9
            part.reshape(-1)[0] = 5  # of a copy
            return out, y, y.data_ptr() == y.detach().data_ptr()

        return f, lambda: None

    check(make)


def test_bad_writes_are_refused_as_in_eager_code():
    def make():
        w = jitgrad.ones(2, requires_grad=True)

        def f(i):
            print(i)
            out = []
            for bad in (
                lambda: (X * 1).sum(0).expand(3, 4).add_(1),
                lambda: w.add_(1),
                lambda: (X * 1).unfold(0, 2, 1).mul_(2),
                lambda: X + jitgrad.ones(5),
            ):
                try:
                    bad()
                except RuntimeError as error:
                    out.append(str(error).split(" (at")[0])
            return out

        return f, lambda: w

    check(make)


# -- errors ----------------------------------------------------------------------------------------
def test_an_exception_leaves_what_eager_code_leaves():
    def make():
        buf, log = jitgrad.zeros(3), []

        def f(i):
            print(i)
            buf.add_(1)
            log.append(buf.sum())
            if i % 2:
                raise ValueError("odd")
            buf.mul_(2)
            return buf * 1

        return f, lambda: [buf, log]

    check(make)


def test_a_bad_index_names_the_line_and_writes_nothing_of_its_segment():
    table, buf, done = jitgrad.arange(6.0).reshape(3, 2), jitgrad.zeros(2), []

    @jitgrad.jit(fallback="error")
    def f(index):
        buf.add_(1)
        print(end="")
        row = F.embedding(index, table)  # the line
        buf.add_(row.sum())
        done.append(len(done))
        return float(buf.sum())

    good, bad = jitgrad.tensor([1]), jitgrad.tensor([5])
    for _ in range(4):
        f(good)
    before = buf.clone()
    line = test_a_bad_index_names_the_line_and_writes_nothing_of_its_segment.__code__
    for _ in range(3):
        with pytest.raises(IndexError, match=r"5.*test_jit_segments\.py:(\d+)") as caught:
            f(bad)
        number = int(str(caught.value).rsplit(":", 1)[1].rstrip(")"))
        assert number - line.co_firstlineno == 7
        assert buf.equal(before)
    assert len(done) == 7  # Python went on to where the value was wanted
    f(good)
    assert not buf.equal(before)


def test_an_error_of_a_result_that_nothing_holds_is_raised():
    table = jitgrad.ones(3, 2)

    @jitgrad.jit(fallback="error")
    def f(index):
        print(end="")
        F.embedding(index, table)
        return 1

    for _ in range(4):
        assert f(jitgrad.tensor([0])) == 1
    with pytest.raises(IndexError):
        f(jitgrad.tensor([3]))


def test_a_try_block_sees_errors_of_values():
    def make():
        table, log = jitgrad.arange(6.0).reshape(3, 2), []

        def look(index):
            return F.embedding(index, table)

        def f(i):
            print(i)
            log.append(i)
            out = []
            for k in (1, 5, 2):
                try:
                    with jitgrad.no_grad():
                        out.append(look(jitgrad.tensor([k + i % 2])))
                except IndexError:
                    out.append("bad")
                else:
                    log.append(k)
            try:
                out.append(jitgrad.linalg.cholesky(X[:2, :2] - i))
            except RuntimeError:
                log.append("no")
            return out

        return f, lambda: log

    check(make)


def test_lines_of_errors_are_this_call_s():
    table = jitgrad.ones(3)

    @jitgrad.jit(fallback="error")
    def f(index, first):
        print(end="")
        if first:
            y = table[index]
        else:
            y = table[index]
        return y.sum().item()

    good, bad = jitgrad.tensor([1]), jitgrad.tensor([3])
    numbers = []
    for first in (True, False):
        for _ in range(4):
            f(good, first)
        with pytest.raises(IndexError) as caught:
            f(bad, first)
        numbers.append(int(str(caught.value).rsplit(":", 1)[1].rstrip(")")))
    assert numbers[1] - numbers[0] == 2


def test_keyboard_interrupt_leaves_things_usable():
    @jitgrad.jit(fallback="error")
    def f(x, stop):
        y = x.exp()
        print(end="")
        if stop:
            raise KeyboardInterrupt
        return y

    for _ in range(3):
        f(X, False)
    with pytest.raises(KeyboardInterrupt):
        f(X, True)
    assert jitgrad.state.state.recorder is None and not jitgrad.state.state.abstract
    assert f(X, False).equal(X.exp()) or jitgrad.allclose(f(X, False), X.exp())


# -- the tape --------------------------------------------------------------------------------------
def test_backward_outside_of_what_a_segment_made():
    def run(wrap):
        w = jitgrad.tensor([1.0, 2.0, 3.0], requires_grad=True)

        @wrap
        def f(x):
            y = (x * w).sin()
            print(end="")
            s = y.sum().item()
            return (y * s).sum() + y[1].exp(), y.t() if y.ndim > 1 else y

        out = []
        for i in range(4):
            w.grad = None
            loss, y = f(jitgrad.tensor([0.5, 1.0, float(i)]))
            (loss + y.sum()).backward(retain_graph=True)
            first = w.grad.clone()
            loss.backward()
            out += [loss.item(), first.tolist(), w.grad.tolist()]
        return out

    same(run(lambda f: f), run(jitgrad.jit(fallback="error")))


def test_double_backward_and_hooks():
    def make():
        w = jitgrad.tensor([1.0, 2.0], requires_grad=True)

        def f(i):
            y = (w * w).sum() * (i + 1)
            (g,) = jitgrad.autograd.grad(y, w, create_graph=True)
            handle = g.register_hook(lambda d: print("hook", d.tolist()))
            (g * g).sum().backward()
            handle.remove()
            out, w.grad = w.grad, None
            return out

        return f, lambda: w

    check(make)


class Clip(jitgrad.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        print("backward")
        return g * (x > ctx.low), None


def test_custom_function():
    def make():
        w = jitgrad.tensor([-1.0, 0.5, 2.0], requires_grad=True)

        def f(i):
            w.grad = None
            Clip.apply(w * 2, 0.3).sum().backward()
            return w.grad.clone()

        return f, lambda: None

    check(make)


def test_detect_anomaly_inside():
    @jitgrad.jit(fallback="error")
    def f(x):
        print(end="")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with jitgrad.autograd.detect_anomaly():
                x.sqrt().sum().mul(0.0).backward()

    x = jitgrad.zeros(2, requires_grad=True)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="nan"):
            f(x)


# -- training --------------------------------------------------------------------------------------
def model_of():
    return nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def training(optimizer_of, extra=None):
    def make():
        model = model_of()
        optimizer = optimizer_of(model)
        x, y, losses = jitgrad.randn(10, 6), jitgrad.arange(10) % 3, []
        more = extra(optimizer) if extra else None

        def f(i):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if more is not None:
                more(model)
            losses.append(loss.item())
            return loss

        return f, lambda: [model.state_dict(), losses, optimizer.param_groups[0]["lr"]]

    return make


def test_logging_step():
    f = check(training(lambda m: jitgrad.optim.AdamW(m.parameters(), lr=0.05)), 0)
    # i is 0, 1 and any other number; the list that grows is no part of them.
    assert f.stats.traces == f.stats.compiles == 3


def test_scheduler_inside():
    def extra(optimizer):
        schedule = jitgrad.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return lambda model: schedule.step()

    f = check(training(lambda m: jitgrad.optim.SGD(m.parameters(), lr=0.1), extra), 0, calls=9)
    assert f.stats.compiles <= 3


class Counting(jitgrad.optim.Optimizer):
    """A user's optimizer, as PyTorch code has them: its counts are Python numbers."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @jitgrad.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["avg"] = jitgrad.zeros_like(p)
                state["step"] += 1
                state["avg"].lerp_(p.grad, 0.1)
                correction = 1 - 0.9 ** state["step"]
                p.add_(state["avg"] / correction, alpha=-group["lr"])


def test_optimizer_with_python_counters():
    f = check(training(lambda m: Counting(m.parameters())), 1, calls=7)
    assert f.stats.compiles <= 3


def test_lbfgs_with_a_closure():
    def make():
        w = jitgrad.tensor([2.0, -1.0], requires_grad=True)
        optimizer = jitgrad.optim.LBFGS([w], max_iter=4)
        calls = [0]

        def f(i):
            def closure():
                calls[0] += 1
                optimizer.zero_grad()
                loss = ((w - 0.5) ** 2).sum() + (w[0] * w[1]) ** 2
                loss.backward()
                return loss

            return optimizer.step(closure)

        return f, lambda: [w, calls]

    check(make)


def test_grad_scaler_that_looks():
    def make():
        model = model_of()
        optimizer = jitgrad.optim.SGD(model.parameters(), lr=0.1)
        scaler = jitgrad.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        x, y = jitgrad.randn(10, 6), jitgrad.arange(10) % 3

        def f(i):
            optimizer.zero_grad()
            with jitgrad.autocast("cpu", dtype=jitgrad.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(i, scaler.get_scale())
            return loss.detach()

        return f, lambda: scaler.get_scale()

    check(make)


def test_averages_and_clipping():
    def make():
        model = model_of()
        average = copy.deepcopy(model)
        optimizer = jitgrad.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y, norms = jitgrad.randn(10, 6), jitgrad.arange(10) % 3, []

        def f(i):
            optimizer.zero_grad(set_to_none=bool(i % 2))
            for part in range(2):
                (F.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            with jitgrad.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.mul_(0.9).add_(p, alpha=0.1)
            norms.append(float(norm))
            model.train(i % 3 != 0)
            return model[1].num_batches_tracked + 0

        return f, lambda: [average.state_dict(), model.state_dict(), norms]

    check(make)


def test_data_loader_inside():
    def make():
        data = jitgrad.utils.data.TensorDataset(jitgrad.randn(12, 6), jitgrad.arange(12) % 3)
        loader = jitgrad.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        model = model_of()
        optimizer = jitgrad.optim.SGD(model.parameters(), lr=0.1)

        def epoch(i):
            total, right = 0.0, 0
            for x, y in loader:
                optimizer.zero_grad()
                out = model(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(x)
                right += (out.argmax(1) == y).sum().item()
            return total / 12, right

        return epoch, model.state_dict

    check(make)


def test_state_dict_and_copies_inside():
    def make():
        model = nn.Linear(2, 2)
        kept = []

        def f(i):
            with jitgrad.no_grad():
                model.weight.add_(1)
            kept.append(copy.deepcopy(model.weight))
            file = io.BytesIO()
            jitgrad.save(model.state_dict(), file)
            file.seek(0)
            with jitgrad.no_grad():
                model.weight.mul_(0.5)
            return jitgrad.load(file)["weight"], model.weight * 1

        return f, lambda: kept

    check(make)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_scans(kind):
    def make():
        model = kind(3, 4, num_layers=2, dropout=0.2)
        x, losses = jitgrad.randn(20, 2, 3), []
        optimizer = jitgrad.optim.SGD(model.parameters(), lr=0.1)

        def f(i):
            print(i)
            optimizer.zero_grad()
            loss = model(x)[0].square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            return loss

        return f, lambda: [model.state_dict(), losses]

    f = check(make, 1)
    assert all(len(p.steps) < 200 for p in f.segmented.segments.programs)


def test_control_flow_of_the_user_runs_as_python():
    def make():
        def f(i):
            print(i)

            def add(carry, x):
                print("step")
                return carry + x, carry * x

            total, parts = jitgrad.scan(add, X[0], X)
            low = jitgrad.cond(total.sum() > 100, lambda t: t * 2, lambda t: t * 3, (total,))
            return total, parts, low

        return f, lambda: None

    check(make)


# -- composition -----------------------------------------------------------------------------------
def test_jitted_functions_inside():
    inner = jitgrad.jit(lambda x: x.exp() + 1)

    def make():
        def f(i):
            print(i)
            return inner(X) * 2

        return f, lambda: None

    check(make, 1)


def test_vmap_and_grad_inside():
    def make():
        def f(i):
            print(i)
            y = jitgrad.func.vmap(lambda r: (r * r).sum() * i)(X)
            g = jitgrad.func.grad(lambda x: (x**3).sum())(X)
            t = jitgrad.func.jvp(lambda x: x.sin(), (X,), (jitgrad.ones_like(X),))
            return y, g, t

        return f, lambda: None

    check(make)


def test_compiler_disable_runs_eagerly_inside():
    seen = []

    @jitgrad.compiler.disable
    def outside(x):
        seen.append(jitgrad.state.state.lazy)
        return x * 2

    def make():
        def f(i):
            return outside(X + i) + 1

        return f, lambda: None

    check(make)
    assert set(map(type, seen)) == {type(None)}


def test_checkpoint_inside():
    def make():
        w = jitgrad.randn(4, 4, requires_grad=True)

        def f(i):
            print(i)
            w.grad = None

            def block(x):
                return F.dropout((x @ w).tanh(), 0.3)

            y = jitgrad.utils.checkpoint.checkpoint(block, X, use_reentrant=False)
            y.sum().backward()
            return y.detach(), w.grad.clone()

        return f, lambda: None

    check(make)


def test_methods_and_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.calls = 0
            self.last = None

        def forward(self, x):
            self.calls += 1
            y = self.linear(x).relu()
            self.last = y.detach()
            print(y.sum().item() > 0)
            return y

    def make():
        net = Net()
        return (lambda i: net(X + i)), lambda: [net.calls, net.last]

    expected, _ = play(make, CALLS, lambda f: f)
    jitgrad.manual_seed(0)
    random.seed(0)
    net = Net()
    fast, out, printed = jitgrad.jit(net, fallback="error"), [], io.StringIO()
    with contextlib.redirect_stdout(printed):
        for i in range(CALLS):
            out += [plain(fast(X + i)), plain([net.calls, net.last])]
    same(expected[:2], [out, printed.getvalue()])
    assert fast.stats.segments > 0


# -- threads ---------------------------------------------------------------------------------------
def test_another_thread_reads_what_waits():
    found = []

    @jitgrad.jit(fallback="error")
    def f(x, box):
        y = x * 2
        z = y.t()
        box.append((y, z))
        if len(box) > 1:  # not in the recorded call: there it would be seen
            READ.set()
            assert DONE.wait(20)
        return y + 1

    def reader():
        assert READ.wait(20)
        y, z = box[-1]
        found.extend([y.sum().item(), (z + 1).sum().item(), z.stride()])
        DONE.set()

    READ, DONE, box = threading.Event(), threading.Event(), []
    f(X, box)
    thread = threading.Thread(target=reader)
    thread.start()
    out = f(X, box)
    thread.join()
    assert jitgrad.allclose(out, X * 2 + 1)
    assert found[2] == (1, 4) and found[0] == pytest.approx((X * 2).sum().item())
    assert found[1] == pytest.approx((X * 2 + 1).sum().item())


def test_many_threads_call_one_function():
    @jitgrad.jit(fallback="error")
    def f(x, log):
        y = (x * 2).exp()
        log.append(y.sum().item())
        return y / log[-1]

    f(X, [])
    errors = []

    def work(k):
        try:
            log = []
            for _ in range(20):
                x = X + k
                y = (x * 2).exp()
                assert jitgrad.allclose(f(x, log), y / y.sum())
            assert len(log) == 20
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


# -- options and reports ---------------------------------------------------------------------------
def test_segments_can_be_refused():
    def f(x):
        print(end="")
        return x + 1

    with pytest.raises(CompileError, match="print"):
        jitgrad.jit(f, fallback="error", segments=False)(X)
    with pytest.raises(CompileError, match="print"):
        jitgrad.compile(f, fullgraph=True)(X)
    with knob(segments=False), pytest.raises(CompileError, match="print"):
        jitgrad.jit(f, fallback="error")(X)
    g = jitgrad.jit(f, segments=False)
    with pytest.warns(FallbackWarning, match="print"):
        g(X)
    g(X)
    assert g.stats.fallbacks == 2 and g.stats.segments == 0


def test_explain_says_why_and_where():
    def f(x):
        y = x.exp()
        s = float(y.sum())  # here
        print(end="")
        return y * s

    g = jitgrad.jit(f, fallback="error")
    for _ in range(5):
        g(X)
    text = str(g.explain())
    assert "in segments: it reads a tensor's value in Python (float" in text
    here = f.__code__.co_firstlineno + 2
    assert f"test_jit_segments.py:{here}" in text
    assert "ends as it reads a tensor's value in Python (float)" in text
    assert g.memory_plan().startswith("segment 0: peak ")
    assert "ends as the call ends" in text and "kernels" in text and "exp" in text


def test_what_the_compiler_cannot_do_runs_op_by_op(monkeypatch):
    def broken(self, graph, options):
        raise ValueError("no")

    def f(x):
        print(end="")
        return x.exp() + 1

    monkeypatch.setattr(JitFunction, "_compiled", broken)
    g = jitgrad.jit(f)
    g(X), g(X)
    with pytest.warns(FallbackWarning, match="a segment of .* runs op by op.*no"):
        third = g(X)
    assert jitgrad.allclose(third, X.exp() + 1) and jitgrad.allclose(g(X), third)
    assert g.stats.segments == 0 and g.stats.fallbacks == 1
    strict = jitgrad.jit(f, fallback="error")
    strict(X), strict(X)
    with pytest.raises(CompileError, match="a segment of"):
        strict(X)


def test_check_compares_segments_with_references(monkeypatch):
    def f(x):
        print(end="")
        return x.exp() + 1

    g = jitgrad.jit(f, fallback="error", check=True)
    g(X), g(X), g(X)
    assert g.stats.segments == 1
    program = g.segmented.segments.programs[-1]
    run = program.compiled.run
    monkeypatch.setattr(program.compiled, "run", lambda *x: [r + 1 for r in run(*x)])
    with pytest.raises(RuntimeError, match="differs"):
        g(X)


def test_clear_forgets_segments():
    f = check(python_random, 1)
    f.clear()
    assert f.segmented is None
    assert f.stats.segments == 0


def test_a_call_that_changes_what_its_argument_shows_is_recorded_once():
    @jitgrad.jit(fallback="error")
    def f(x):
        x.unsqueeze_(0)
        return x * 2

    for _ in range(4):
        x = jitgrad.ones(3)
        assert f(x).shape == (1, 3) and x.shape == (1, 3)
    assert f.stats.traces == 1


READS = [
    lambda x: x + 1,
    lambda x: x[:1] + 1,
    lambda x: x.t() + 1,
    lambda x: x[1:2].sum() + x,
]
WRITES = [
    lambda x, s: x.fill_(s),
    lambda x, s: x[:2].fill_(s),
    lambda x, s: x.mul_(s),
    lambda x, s: x.t().add_(s),
]
AFTER = [lambda x: x[:1], lambda x: x * 1, lambda x: x[:2] * 1, lambda x: x.t() * 1]


def test_memory_of_an_array_that_is_gone_is_read_before_it_is_written():
    """What a segment has read refers to the memory, as a NumPy array on it would."""
    cases = []
    for read, write, after in itertools.product(READS, WRITES, AFTER):
        happened: list = []

        def body(x, s, read=read, write=write, after=after, happened=happened):
            happened.append(None)
            y = read(x)
            write(x, s)
            return [y, after(x)]

        cases.append((body, jitgrad.jit(body), jitgrad.from_numpy(np.diag([1.0, 2.0, 3.0]))))
    for s in (0.5, 2.0, 0.5, -1.0, 3.0):
        for n, (body, fast, x) in enumerate(cases):
            twin = x.clone()
            got, want = fast(x, s), body(twin, s)
            assert all(a.equal(b) for a, b in zip(got, want, strict=True)), (n, s, got, want)
            assert x.equal(twin), (n, s)
        if s == 0.5:
            gc.collect()  # the recording has referred to the memory until here
    assert all(fast.stats.segments for _, fast, _ in cases)
