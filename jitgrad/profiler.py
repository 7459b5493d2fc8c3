"""torch.profiler: how long ops take in eager mode, by op, as a table and as a Chrome trace.

While a profile is on, dispatch makes plans whose kernels are timed, so the times are those of the
kernels, without Python around them; ranges that users mark (record_function) are measured whole.
Without one, nothing is timed and nothing is asked. Compiled code shows as one event a call.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from jitgrad import dispatch
from jitgrad.missing import missing


class ProfilerActivity(Enum):
    """What is profiled. There is a CPU only."""

    CPU = 0
    XPU = 1
    CUDA = 2
    MTIA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(Enum):
    """What a schedule asks for in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:  # fmt: skip
    """A function from the number of a step to what is done in it: after skip_first steps, cycles of
    `wait` steps without profiling, `warmup` with results thrown away, and `active` that count; so
    many times, or for ever when repeat is 0. Raises AssertionError for numbers that are none."""
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise AssertionError("Invalid profiler schedule arguments")
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        if skip_first_wait and step < cycle - wait:
            place = step + wait
        else:
            step += wait if skip_first_wait else 0
            if repeat > 0 and step // cycle >= repeat:
                return ProfilerAction.NONE
            place = step % cycle
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


class FunctionEvent:
    """One kernel or range: name, start and cpu_time_total in microseconds, input_shapes."""

    count = 1

    def __init__(self, name: str, start: float, length: float, shapes: Any, mark: bool) -> None:
        self.name = self.key = name
        self.start, self.cpu_time_total, self.is_user_annotation = start, length, mark
        self.input_shapes = shapes
        self.self_cpu_time_total = 0.0 if mark else length

    def __repr__(self) -> str:
        return f"<FunctionEvent {self.name} {self.cpu_time_total:.3f}us>"


class _Average:
    """Events of one key: count, cpu_time_total, self_cpu_time_total, cpu_time (the mean), in
    microseconds."""

    def __init__(self, key: str, shapes: Any) -> None:
        self.key, self.input_shapes = key, shapes
        self.count = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0

    @property
    def cpu_time(self) -> float:
        """The mean time."""
        return self.cpu_time_total / self.count

    def __repr__(self) -> str:
        return f"<FunctionEventAvg {self.key} {self.count} x {self.cpu_time:.3f}us>"


_SORTS = {
    "cpu_time": "cpu_time", "cpu_time_total": "cpu_time_total", "count": "count",
    "self_cpu_time_total": "self_cpu_time_total",
}  # fmt: skip


class EventList(list[Any]):
    """A list of events, or of averages, that prints as a table."""

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75,
        max_name_column_width: int = 55, max_shapes_column_width: int = 80,
        header: str | None = None, top_level_events_only: bool = False,
    ) -> str:  # fmt: skip
        """The rows as text, sorted by cpu_time, cpu_time_total, self_cpu_time_total or count."""
        rows = list(self)
        if sort_by is not None:
            if sort_by not in _SORTS:
                raise ValueError(
                    f"[table] expected sort_by to be one of {', '.join(_SORTS)}; got {sort_by!r}"
                )
            rows.sort(key=lambda row: getattr(row, _SORTS[sort_by]), reverse=True)
        whole = sum(row.self_cpu_time_total for row in rows) or 1.0
        head = ("Name", "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "# of Calls")
        lines = [head]
        for row in rows[: row_limit if row_limit >= 0 else None]:
            mean = row.cpu_time_total / row.count
            lines.append(
                (
                    _short(row.key, max_name_column_width),
                    f"{100 * row.self_cpu_time_total / whole:.2f}%",
                    _time(row.self_cpu_time_total),
                    _time(row.cpu_time_total),
                    _time(mean),
                    str(row.count),
                )  # fmt: skip
            )
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        rule = "  ".join("-" * w for w in widths)
        text = [
            "  ".join(x.rjust(w) if k else x.ljust(w) for k, (x, w) in
                      enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]  # fmt: skip
        total = f"Self CPU time total: {_time(whole)}"
        parts = [*([header] if header else []), rule, text[0], rule, *text[1:], rule, total]
        return "\n".join(parts) + "\n"

    def total_average(self) -> _Average:
        """All rows as one."""
        made = _Average("Total", None)
        for row in self:
            made.count += row.count
            made.cpu_time_total += row.cpu_time_total
            made.self_cpu_time_total += row.self_cpu_time_total
        return made

    def __str__(self) -> str:
        return self.table()


def _short(text: str, width: int) -> str:
    return text if width is None or len(text) <= width else text[: width - 3] + "..."


def _time(us: float) -> str:
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if us >= unit:
            return f"{us / unit:.3f}{name}"
    return f"{us:.3f}us"


class profile:
    """`with profile() as prof:` measures what runs inside; then prof.key_averages().table().

    schedule: which steps count (prof.step() ends one); on_trace_ready(prof) is called at the end of
    each cycle's last. record_shapes groups by shapes, too
    (key_averages(group_by_input_shape=True)). Other arguments are accepted. Profiles do not nest:
    RuntimeError.
    """

    def __init__(
        self, *, activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Any], Any] | None = None, record_shapes: bool = False,
        profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False,
        with_modules: bool = False, experimental_config: Any = None,
        execution_trace_observer: Any = None, acc_events: bool = False, use_cuda: Any = None,
        custom_trace_id_callback: Any = None,
    ) -> None:  # fmt: skip
        self.record_shapes, self.on_trace_ready = record_shapes, on_trace_ready
        self._schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self.step_num = 0
        self._events: list[FunctionEvent] = []
        self._on = False

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to measure."""
        if dispatch.timing is not None:
            raise RuntimeError("[profile] expected no profile to be on; another one is")
        self._on = True
        self._act()

    def stop(self) -> None:
        """Ends it; the last cycle's results are handed on, if it was recording."""
        was = self._schedule(self.step_num)
        self._on = False
        _time_kernels(None)
        if was in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE) and self.on_trace_ready:
            self.on_trace_ready(self)

    def step(self) -> None:
        """A step of the schedule is over."""
        before = self._schedule(self.step_num)
        self.step_num += 1
        if before is ProfilerAction.RECORD_AND_SAVE and self.on_trace_ready is not None:
            _time_kernels(None)
            self.on_trace_ready(self)
        self._act(before)

    def _act(self, before: ProfilerAction = ProfilerAction.NONE) -> None:
        action = self._schedule(self.step_num)
        recording = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if recording and before is not ProfilerAction.RECORD:
            self._events = []
        _time_kernels(self if recording and self._on else None)

    def _note(self, name: str, began: int, ended: int, shapes: Any, mark: bool = False) -> None:
        kept = shapes if self.record_shapes else []
        self._events.append(FunctionEvent(name, began / 1e3, (ended - began) / 1e3, kept, mark))

    def timed(
        self, op: Any, operands: Any, outs: Any, attrs: Any, kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """kernel, that notes how long it took."""
        name, clock, note = op.name, time.perf_counter_ns, self._note

        def run(*arrays: Any, **attrs: Any) -> Any:
            began = clock()
            result = kernel(*arrays, **attrs)
            note(name, began, clock(), [list(a.shape) for a in arrays])
            return result

        return run

    def events(self) -> EventList:
        """All events, in the order in which they ended."""
        return EventList(self._events)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:  # fmt: skip
        """Events of one name (and shapes) together."""
        found: dict[Any, _Average] = {}
        for event in self._events:
            shapes = event.input_shapes if group_by_input_shape else []
            key = (event.name, str(shapes))
            row = found.setdefault(key, _Average(event.name, shapes))
            row.count += 1
            row.cpu_time_total += event.cpu_time_total
            row.self_cpu_time_total += event.self_cpu_time_total
        return EventList(found.values())

    def export_chrome_trace(self, path: str) -> None:
        """Writes the events for chrome://tracing or Perfetto."""
        events = [
            {
                "name": e.name, "ph": "X", "ts": e.start, "dur": e.cpu_time_total,
                "pid": os.getpid(), "tid": 0, "args": {"shapes": e.input_shapes},
                "cat": "user_annotation" if e.is_user_annotation else "cpu_op",
            }
            for e in self._events
        ]  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)


def _time_kernels(profile: profile | None) -> None:
    if dispatch.timing is not profile:
        dispatch.timing = profile
        dispatch.forget_plans()


class record_function(contextlib.ContextDecorator):
    """A range of a profile: `with record_function("step"):`, or a decorator. Nothing without
    one."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name

    def __enter__(self) -> record_function:
        self._began = time.perf_counter_ns()
        return self

    def __exit__(self, *error: Any) -> None:
        if dispatch.timing is not None:
            ended = time.perf_counter_ns()
            dispatch.timing._note(self.name, self._began, ended, [], mark=True)

    def _recreate_cm(self) -> record_function:
        return record_function(self.name)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """An on_trace_ready that writes Chrome traces to a folder."""

    def handler(prof: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{os.uname().nodename}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handler


@functools.cache
def supported_activities() -> frozenset[ProfilerActivity]:
    """The CPU."""
    return frozenset([ProfilerActivity.CPU])


def kineto_available() -> bool:
    """False: PyTorch's tracer of devices is not there."""
    return False


__getattr__ = missing(__name__)
