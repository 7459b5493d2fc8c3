"""torch.utils.benchmark: Timer, for statements given as text."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from typing import Any

from jitgrad.missing import missing

_UNITS = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"))


class Measurement:
    """Times of a statement. Attributes: number_per_run, raw_times (seconds a run), title."""

    def __init__(self, number_per_run: int, raw_times: list[float], title: str) -> None:
        self.number_per_run, self.raw_times, self.title = number_per_run, raw_times, title

    @property
    def times(self) -> list[float]:
        """Seconds an execution, of each run."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.times)

    @property
    def median(self) -> float:
        """Their median."""
        return statistics.median(self.times)

    @property
    def iqr(self) -> float:
        """The span of the middle half of them."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    def __repr__(self) -> str:
        unit, name = next((u for u in reversed(_UNITS) if self.median >= u[0]), _UNITS[0])
        return (
            f"{self.title}\n  Median: {self.median / unit:.2f} {name}\n"
            f"  {len(self.times)} measurements, {self.number_per_run} runs per measurement"
        )


class Timer:
    """Timer(stmt, setup, globals=...): how long a statement takes, as timeit's, on one call stack.

    num_threads has no effect: set_num_threads says how many threads compiled code runs on.
    """

    def __init__(
        self, stmt: str = "pass", setup: str = "pass", global_setup: str = "",
        timer: Callable[[], float] = timeit.default_timer, globals: dict[str, Any] | None = None,
        label: str | None = None, sub_label: str | None = None, description: str | None = None,
        env: str | None = None, num_threads: int = 1, language: Any = "python",
    ) -> None:  # fmt: skip
        if not isinstance(stmt, str):
            raise ValueError(f"Currently only a `str` stmt is supported; got {type(stmt).__name__}")
        self.title = ": ".join(s for s in (label or stmt, sub_label, description) if s)
        self._timer = timeit.Timer(stmt, setup, timer, dict(globals or {}))

    def timeit(self, number: int = 1000000) -> Measurement:
        """One run of `number` executions, after a short one that is not counted."""
        self._timer.timeit(max(number // 100, 2))
        return Measurement(number, [self._timer.timeit(number)], self.title)

    def blocked_autorange(
        self, callback: Callable[[int, float], Any] | None = None, min_run_time: float = 0.2
    ) -> Measurement:
        """Runs of at least a hundredth of min_run_time seconds, until that has gone by."""
        number, spent = 1, 0.0
        while (first := self._timer.timeit(number)) < min_run_time / 100:
            number *= 10
        times = [first]
        while spent < min_run_time:
            taken = self._timer.timeit(number)
            times.append(taken)
            spent += taken
            if callback is not None:
                callback(number, taken)
        return Measurement(number, times, self.title)


__getattr__ = missing(__name__)
