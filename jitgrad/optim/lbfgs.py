"""L-BFGS (Liu and Nocedal 1989), with a line search for the strong Wolfe conditions.

Owns the two-loop recursion and the search (Nocedal and Wright, Numerical Optimization, algorithms
7.4, 3.5 and 3.6, with cubic interpolation). It looks at values, so it runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitgrad.autograd.modes import enable_grad, no_grad
from jitgrad.functions.shape import cat
from jitgrad.optim.optimizer import Optimizer, Params, State, check_lr
from jitgrad.tensor import Tensor


@dataclass
class Point:
    """A point of the line: step size, loss, gradient, and the slope along the direction."""

    t: Any
    loss: float
    grad: Tensor
    slope: Tensor


class LBFGS(Optimizer):
    """p += t * d, with d = -H g and H made of the last history_size changes of p and g.

    Without line_search_fn t is lr (in the very first iteration lr * min(1, 1 / sum|g|)); with
    "strong_wolfe" a search along d finds it. step(closure) takes up to max_iter iterations, and
    ends where max|g| <= tolerance_grad or neither p nor the loss changes by tolerance_change.

    One parameter group. State of the first parameter: `func_evals`, `n_iter`, `d`, `t`, `old_dirs`,
    `old_stps`, `ro`, `H_diag`, `prev_flat_grad`, `prev_loss`, `al`.
    """

    by_element = False

    SCALARS = ()

    def __init__(
        self, params: Params, lr: Any = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        check_lr("LBFGS", lr)
        defaults = {
            "lr": lr, "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The one group there may be. Raises ValueError for another."""
        super().add_param_group(param_group)
        if len(self.param_groups) != 1:
            raise ValueError(
                "[LBFGS] LBFGS doesn't support per-parameter options (parameter groups); got "
                f"{len(self.param_groups)} groups; pass all parameters in one list"
            )

    @property
    def _params(self) -> list[Tensor]:
        params: list[Tensor] = self.param_groups[0]["params"]
        return params

    def _gradient(self) -> Tensor:
        """All gradients as one vector; zeros where there is none."""
        return cat([
            (p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1))
            for p in self._params
        ])  # fmt: skip

    def _move(self, t: Any, direction: Tensor) -> None:
        """p += t * direction, for all parameters."""
        sizes = [p.numel() for p in self._params]
        for p, part in zip(self._params, direction.split(sizes), strict=True):
            p.add_(part.reshape(tuple(p.shape)) * t)

    @no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:
        """Up to max_iter iterations. closure clears the gradients, computes the loss, calls
        backward and returns the loss. Returns the loss at the start."""

        def evaluate() -> Any:
            with enable_grad():
                return closure()

        group = self.param_groups[0]
        search = group["line_search_fn"]
        if search not in (None, "strong_wolfe"):
            raise RuntimeError(f"[LBFGS] only 'strong_wolfe' is supported; got {search!r}")
        lr = group["lr"].squeeze() if isinstance(group["lr"], Tensor) else group["lr"]
        smallest, tolerance = group["tolerance_change"], group["tolerance_grad"]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = evaluate()
        loss, grad, evaluations = float(first), self._gradient(), 1
        state["func_evals"] += 1
        if bool(grad.abs().max() <= tolerance):
            return first
        direction, t = state.get("d"), state.get("t")
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
                direction = -grad
            else:
                assert direction is not None
                self._remember(state, grad - state["prev_flat_grad"], direction * t)
                direction = self._two_loops(state, grad)
            state["prev_flat_grad"], state["prev_loss"] = grad.clone(), loss
            t = lr
            if state["n_iter"] == 1:
                t = min(1.0, float(1.0 / grad.abs().sum())) * lr
            slope = grad.dot(direction)
            state["d"], state["t"] = direction, t
            if bool(slope > -smallest):
                break
            used = 0
            if search is not None:
                start = [p.clone() for p in self._params]
                along = direction

                def at(t: Any, start: list[Tensor] = start, along: Tensor = along) -> Point:
                    self._move(t, along)
                    value, g = float(evaluate()), self._gradient()
                    for p, x in zip(self._params, start, strict=True):
                        p.copy_(x)
                    return Point(t, value, g, g.dot(along))

                begin = Point(0, loss, grad.clone(), slope)
                limit = group["max_eval"] - evaluations
                found, used = strong_wolfe(at, t, begin, direction, max_search=limit)
                loss, grad, t = found.loss, found.grad, found.t
                state["t"] = t
                self._move(t, direction)
            else:
                self._move(t, direction)
                if iteration != group["max_iter"]:  # after the last one nobody looks
                    loss, grad, used = float(evaluate()), self._gradient(), 1
            evaluations += used
            state["func_evals"] += used
            if (
                iteration == group["max_iter"]
                or evaluations >= group["max_eval"]
                or bool(grad.abs().max() <= tolerance)
                or bool((direction * t).abs().max() <= smallest)
                or abs(loss - state["prev_loss"]) < smallest
            ):
                break
        return first

    def _remember(self, state: State, change: Tensor, step: Tensor) -> None:
        """Adds a change of the gradient and the step that made it, if curvature is positive."""
        curvature = change.dot(step)
        if not bool(curvature > 1e-10):
            return
        kept = (state["old_dirs"], state["old_stps"], state["ro"])
        if len(state["ro"]) == self.param_groups[0]["history_size"]:
            for values in kept:
                values.pop(0)
        for values, new in zip(kept, (change, step, 1.0 / curvature), strict=True):
            values.append(new)
        state["H_diag"] = curvature / change.dot(change)

    def _two_loops(self, state: State, grad: Tensor) -> Tensor:
        """-H grad."""
        history = list(zip(state["old_dirs"], state["old_stps"], state["ro"], strict=True))
        weights = state.setdefault("al", [None] * self.param_groups[0]["history_size"])
        q = -grad
        for i, (change, step, scale) in reversed(list(enumerate(history))):
            weights[i] = step.dot(q) * scale
            q = q - change * weights[i]
        r = q * state["H_diag"]
        for i, (change, step, scale) in enumerate(history):
            r = r + step * (weights[i] - change.dot(r) * scale)
        return r


def strong_wolfe(
    at: Callable[[Any], Point], t: Any, start: Point, direction: Tensor, c1: float = 1e-4,
    c2: float = 0.9, smallest: float = 1e-9, max_search: int = 25,
) -> tuple[Point, int]:  # fmt: skip
    """A point where the loss falls by at least c1 * t * slope and the slope by the factor c2.

    at: evaluates a step size. Returns the point, and how often `at` was called.
    """

    def too_high(p: Point) -> bool:
        return bool(p.loss > start.loss + c1 * p.t * start.slope)

    def flat(p: Point) -> bool:
        return bool(abs(p.slope) <= -c2 * start.slope)

    largest = direction.abs().max()
    previous, point, calls, rounds = start, at(t), 1, 0
    bracket: list[Point] = []
    done = False
    while rounds < max_search:
        if too_high(point) or (rounds > 1 and point.loss >= previous.loss):
            bracket = [previous, point]
        elif flat(point):
            bracket, done = [point], True
        elif bool(point.slope >= 0):
            bracket = [previous, point]
        if bracket:
            break
        low, high = point.t + 0.01 * (point.t - previous.t), point.t * 10
        t = interpolate(previous, point, (low, high))
        previous, point = point, at(t)
        calls, rounds = calls + 1, rounds + 1
    if not bracket:
        bracket = [start, point]
    # Zoom: bracket[low] is the better end.
    low, high = (0, 1) if bracket[0].loss <= bracket[-1].loss else (1, 0)
    stuck = False
    while not done and rounds < max_search:
        ends = [p.t for p in bracket]
        if bool(abs(ends[1] - ends[0]) * largest < smallest):
            break
        t = interpolate(bracket[0], bracket[1])
        left, right = min(ends), max(ends)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:  # near an end: the second time, away from it
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        point = at(t)
        calls, rounds = calls + 1, rounds + 1
        if too_high(point) or point.loss >= bracket[low].loss:
            bracket[high] = point
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
        else:
            if flat(point):
                done = True
            elif bool(point.slope * (bracket[high].t - bracket[low].t) >= 0):
                bracket[high] = bracket[low]
            bracket[low] = point
    return bracket[low], calls


def interpolate(a: Point, b: Point, bounds: tuple[Any, Any] | None = None) -> Any:
    """Where the cubic through two points with their slopes is least, within bounds (the points)."""
    if bounds is None:
        bounds = (a.t, b.t) if a.t <= b.t else (b.t, a.t)
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not bool(square >= 0):
        return (bounds[0] + bounds[1]) / 2.0
    d2 = square.sqrt()
    if a.t <= b.t:
        t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    else:
        t = a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2))
    return min(max(t, bounds[0]), bounds[1])
