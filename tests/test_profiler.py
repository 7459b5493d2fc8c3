"""torch.profiler: real times of kernels, ranges, schedules, tables, traces."""

from __future__ import annotations

import json
import time

import pytest

import jitgrad as torch
from jitgrad import dispatch
from jitgrad.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)


def test_kernels_are_counted_and_timed() -> None:
    x = torch.randn(300, 300, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        with record_function("forward"):
            y = (x @ x).exp().sum()
        y.backward()
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["matmul"].count == 3 and rows["exp"].count == 1
    assert 0 < rows["exp"].cpu_time_total <= rows["forward"].cpu_time_total
    assert rows["forward"].self_cpu_time_total == 0.0
    shapes = prof.key_averages(group_by_input_shape=True)
    assert [r.input_shapes for r in shapes if r.key == "exp"] == [[[300, 300]]]
    text = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=2)
    lines = text.splitlines()
    assert lines[1].split()[:3] == ["Name", "Self", "CPU"] and len(lines) == 7
    assert "Self CPU time total" in lines[-1]
    with pytest.raises(ValueError, match="sort_by"):
        prof.key_averages().table(sort_by="beauty")


def test_nothing_is_timed_outside() -> None:
    x = torch.ones(3)
    with profile() as prof:
        x + 1
    count = len(prof.events())
    x + 1
    assert dispatch.timing is None and len(prof.events()) == count > 0
    with record_function("alone"):
        pass
    with profile(), pytest.raises(RuntimeError, match="another one is"):
        profile().start()
    assert dispatch.timing is None


def test_values_are_the_same() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    expected = (x.t().contiguous().flip(0).softmax(0), x[:, 1], x.max(1).values)
    with profile():
        found = (x.t().contiguous().flip(0).softmax(0), x[:, 1], x.max(1).values)
    for a, b in zip(found, expected, strict=True):
        assert a.equal(b)


def test_schedule() -> None:
    plan = schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=1)
    names = [plan(k).name for k in range(6)]
    assert names == ["NONE", "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE"]
    assert plan(2) is ProfilerAction.WARMUP
    with pytest.raises(AssertionError):
        schedule(wait=0, warmup=0, active=0)
    seen = []
    with profile(schedule=plan, on_trace_ready=lambda p: seen.append(p.key_averages())) as prof:
        for k in range(6):
            torch.ones(4).exp() if k in (3, 4) else torch.ones(4).sin()
            prof.step()
    (table,) = seen
    assert {r.key: r.count for r in table if r.key in ("exp", "sin")} == {"exp": 2}


def test_ranges_and_traces(tmp_path) -> None:
    @record_function("work")
    def work() -> None:
        time.sleep(0.002)

    with profile(on_trace_ready=tensorboard_trace_handler(str(tmp_path), "me")):
        work()
        torch.ones(2).exp()
    (file,) = tmp_path.iterdir()
    events = json.loads(file.read_text())["traceEvents"]
    found = {e["name"]: e for e in events}
    assert found["work"]["dur"] >= 2000 and found["exp"]["cat"] == "cpu_op"


def test_what_modules_do_inside() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters())
    with profile() as prof:
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    names = {row.key for row in prof.key_averages()}
    assert {"relu", "sqrt"} <= names


def test_the_older_path() -> None:
    from jitgrad.autograd import profiler

    with torch.autograd.profiler.profile() as prof, profiler.record_function("part"):
        torch.ones(3).exp()
    assert {e.name for e in prof.function_events} >= {"exp", "part"} and "exp" in prof.table()
    with profiler.profile(enabled=False) as off:
        torch.ones(3).exp()
    assert len(off.function_events) == 0
