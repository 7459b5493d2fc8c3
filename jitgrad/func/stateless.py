"""functional_call and stack_module_state: modules as functions of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.functions.shape import stack
from jitgrad.nn.batchnorm import _BatchNorm
from jitgrad.nn.module import Module
from jitgrad.state import bump_epoch
from jitgrad.tensor import Tensor


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args, **kwargs) with these tensors in the place of its parameters and buffers.

    parameter_and_buffer_dicts: {name: tensor}, names as named_parameters' and named_buffers', or a
    sequence of such dicts without a name in common. What is not named stays as it is. args: a
    tuple, or the one argument. In-place writes of the module to a buffer go to the tensor given.
    tie_weights: parameters that are one in the module are one here, too, if one is named. strict:
    the names must be all of the module's, and no others; else another name is an attribute for the
    time of the call.

    Raises ValueError for names given twice, or different tensors for tied names, AttributeError for
    names of no submodule; with strict RuntimeError for missing and unknown names.
    """
    given = _joined(parameter_and_buffer_dicts)
    own = (args,) if args is not None and not isinstance(args, tuple) else args or ()
    with _swapped(module, given, tie_weights, strict):
        return module(*own, **(kwargs or {}))


def _joined(dicts: Any) -> dict[str, Tensor]:
    if isinstance(dicts, dict):
        return dicts
    if not isinstance(dicts, Sequence) or isinstance(dicts, str):
        raise ValueError(
            "Expected parameter_and_buffer_dicts to be a dict, or a list/tuple of dicts, but got "
            f"{type(dicts)}"
        )
    if not all(isinstance(d, dict) for d in dicts):
        raise ValueError("Expected all elements of parameter_and_buffer_dicts to be dictionaries")
    out: dict[str, Tensor] = {}
    for d in dicts:
        repeated = [name for name in d if name in out]
        if repeated:
            raise ValueError(
                f"{repeated} appeared in multiple dictionaries; behavior of functional call is "
                "ambiguous"
            )
        out.update(d)
    return out


def _places(module: Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Where each parameter and buffer is held, by its full name (a shared module's by each)."""
    out: dict[str, tuple[dict[str, Any], str]] = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        for held in (child._parameters, child._buffers):
            for name, value in held.items():
                if value is not None:
                    out[f"{prefix}.{name}" if prefix else name] = (held, name)
    return out


def _tied(
    places: dict[str, tuple[dict[str, Any], str]], given: dict[str, Tensor]
) -> dict[str, Tensor]:
    """`given`, with the names that are tied to a name in it."""
    names: dict[int, list[str]] = {}
    for name, (held, key) in places.items():
        names.setdefault(id(held[key]), []).append(name)
    out = dict(given)
    for group in names.values():
        values = [given[name] for name in group if name in given]
        if len(group) == 1 or not values:
            continue
        if any(v is not values[0] for v in values):
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(group)}, which are tied. "
                "Consider using tie_weights=False"
            )
        out.update(dict.fromkeys(group, values[0]))
    return out


@contextmanager
def _swapped(
    module: Module, given: dict[str, Tensor], tie_weights: bool, strict: bool
) -> Iterator[None]:
    """The module's tensors replaced for a block."""
    places = _places(module)
    values = _tied(places, given) if tie_weights else given
    if strict:
        unexpected = [name for name in values if name not in places]
        missing = [name for name in places if name not in values]
        if unexpected or missing:
            raise RuntimeError(
                f"Error(s) in reparametrizing for {type(module).__name__}:"
                + (f"\n\tUnexpected key(s): {', '.join(unexpected)}." if unexpected else "")
                + (f"\n\tMissing key(s): {', '.join(missing)}." if missing else "")
            )
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"[functional_call] expected a Tensor for {name!r}; got {type(value).__name__}"
            )
    where = [places[name] if name in places else _attribute(module, name) for name in values]
    before = [(held, key, held.get(key, _MISSING)) for held, key in where]
    bump_epoch()
    try:
        for (held, key), value in zip(where, values.values(), strict=True):
            held[key] = value
        yield
    finally:
        for held, key, old in before:
            if old is _MISSING:
                held.pop(key, None)
            else:
                held[key] = old
        bump_epoch()


_MISSING = object()


def _attribute(module: Module, name: str) -> tuple[dict[str, Any], str]:
    """Where a tensor that is neither parameter nor buffer is held: among the attributes."""
    prefix, _, key = name.rpartition(".")
    child = module.get_submodule(prefix)
    have = getattr(child, key, None)
    if have is not None and not isinstance(have, Tensor):
        raise TypeError(f"attribute `{key}`: {have} is not an instance of jitgrad.Tensor")
    return child.__dict__, key


def stack_module_state(
    models: Sequence[Module],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, buffers) of models alike, each stacked along a new first dim: for vmap over
    functional_call. The parameters are new leaves.

    Raises RuntimeError for no models, or models of different classes, modes or requires_grad.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(m.training != models[0].training for m in models):
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    parameters = [dict(m.named_parameters()) for m in models]
    buffers = [dict(m.named_buffers()) for m in models]
    return (
        {name: _stacked(name, [p[name] for p in parameters]) for name in parameters[0]},
        {name: _stacked(name, [b[name] for b in buffers]) for name in buffers[0]},
    )


def _stacked(name: str, tensors: Sequence[Tensor]) -> Tensor:
    wanted = tensors[0].requires_grad
    if any(t.requires_grad != wanted for t in tensors):
        raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
    out: Tensor = stack([t.detach() for t in tensors])
    return out.requires_grad_() if wanted else out


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Takes the running statistics from every batch normalisation in root, in place, so that
    examples of vmap can pass it: it normalises by the batch, always. Gives root."""
    for module in root.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
