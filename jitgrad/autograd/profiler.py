"""torch.autograd.profiler: the older path of profile and record_function (jitgrad/profiler.py)."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing
from jitgrad.profiler import EventList, FunctionEvent, record_function
from jitgrad.profiler import profile as _profile


class profile(_profile):
    """`with profile(enabled=True) as prof:`, as jitgrad.profiler.profile; the events are
    prof.function_events."""

    def __init__(self, enabled: bool = True, **options: Any) -> None:
        options.pop("use_cpu", None)
        options.pop("use_device", None)
        options.pop("use_kineto", None)
        super().__init__(**options)
        self.enabled = enabled

    def start(self) -> None:
        if self.enabled:
            super().start()

    def stop(self) -> None:
        if self.enabled:
            super().stop()

    @property
    def function_events(self) -> EventList:
        """All events."""
        return self.events()

    def table(self, sort_by: str | None = None, row_limit: int = 100, **options: Any) -> str:
        """The events as text, each by itself."""
        return self.events().table(sort_by, row_limit, **options)


class emit_nvtx:
    """A context in which ops would mark ranges for NVIDIA's profilers. There are no such marks:
    entering it raises RuntimeError, unless enabled=False, which does nothing."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes

    def __enter__(self) -> emit_nvtx:
        if self.enabled:
            raise RuntimeError(
                "[emit_nvtx] NVTX functions not installed: ops do not mark ranges; use "
                "jitgrad.profiler.profile()"
            )
        return self

    def __exit__(self, *error: object) -> None: ...


__getattr__ = missing(__name__)

__all__ = ["EventList", "FunctionEvent", "emit_nvtx", "profile", "record_function"]
