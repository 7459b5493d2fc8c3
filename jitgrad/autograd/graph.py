"""torch.autograd.graph: nodes, hooks on what nodes save, hooks on several gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.autograd.hooks import register_hook
from jitgrad.state import state
from jitgrad.tape.node import GradientEdge, Handles, Node, RemovableHandle, edge_of, face
from jitgrad.tensor import Tensor


class saved_tensors_hooks:
    """What nodes made in the block save goes through a pair of hooks.

    pack_hook(tensor) -> anything is what the node keeps; unpack_hook(that) -> tensor gives it back
    in backward, of the same shape and dtype. Both run off the tape. The innermost pair counts. A
    jitted function that is called inside runs as written.

        with saved_tensors_hooks(lambda x: x.half(), lambda h: h.float()):
            loss = model(x).sum()
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if state.hooks_forbidden:
            raise RuntimeError(state.hooks_forbidden)
        state.saved_hooks = (*state.saved_hooks, (self.pack_hook, self.unpack_hook))

    def __exit__(self, *exc: object) -> None:
        state.saved_hooks = state.saved_hooks[:-1]


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """In the block, saved_tensors_hooks raises RuntimeError with this message."""
    if state.saved_hooks:
        raise RuntimeError(error_message)
    before, state.hooks_forbidden = state.hooks_forbidden, error_message
    try:
        yield
    finally:
        state.hooks_forbidden = before


class save_on_cpu(saved_tensors_hooks):
    """What is saved in the block lies on the CPU until backward needs it."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(x: Tensor) -> tuple[Any, Tensor]:
            kept = x.detach().cpu()
            return x.device, kept.pin_memory() if pin_memory else kept

        def unpack(packed: tuple[Any, Tensor]) -> Tensor:
            device, x = packed
            return x.to(device)

        super().__init__(pack, unpack)


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[None]:
    """Tensors that were saved in the block may be changed in place before backward: nodes keep
    copies."""
    with saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x):
        yield


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where a gradient of the tensor goes. Raises RuntimeError unless it requires grad."""
    edge, slot = edge_of(tensor)
    if edge is None:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients"
        )
    return GradientEdge(face(edge), slot)


def increment_version(tensor: Tensor | Sequence[Tensor]) -> None:
    """Counts an in-place write that the tape has not seen, so that saved tensors are checked."""
    for x in [tensor] if isinstance(tensor, Tensor) else list(tensor):
        if state.recorder is not None:
            state.recorder.raw_read(x, "increment_version")
        x._storage.version += 1


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """A hook on the gradients of several tensors in one backward.

    mode "all": fn(gradients) runs once, when all of them that take part in this backward are there,
    with None for those that do not. "any": fn(gradient) runs for the first. Returns a handle with
    `remove()`. Raises ValueError for another mode, RuntimeError for a tensor that does not require
    grad.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    xs = list(tensors)
    targets = [id(edge_of(x)[0]) for x in xs]
    seen: dict[int, list[Tensor | None]] = {}  # by the run of backward
    current: list[Any] = [None]

    def gradients_of(run: Any) -> list[Tensor | None]:
        if current[0] is not run:
            current[0] = run
            seen.clear()
        return seen.setdefault(id(run), [None] * len(xs))

    def hook_of(i: int) -> Callable[[Tensor], None]:
        def hook(g: Tensor) -> None:
            run = state.backward
            gradients = gradients_of(run)
            first = all(other is None for other in gradients)
            gradients[i] = g
            if mode == "any":
                if first:
                    fn(g)
                return
            missing = [
                k for k, t in enumerate(targets) if t in run.targets and gradients[k] is None
            ]
            if not missing:
                current[0] = None
                fn(seen.pop(id(run)))

        return hook

    chosen = [i for i, x in enumerate(xs) if mode == "all" or x.requires_grad]
    return Handles([register_hook(xs[i], hook_of(i)) for i in chosen])


__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]
