"""Pruning: parameters with a mask of zeros and ones, as torch.nn.utils.prune.

A pruned parameter <name> is kept as <name>_orig, beside the buffer <name>_mask; a hook in front of
forward sets <name> to their product. Pruning again prunes among what is left.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import jitgrad.functions as ops
from jitgrad.creation import ones_like, rand, rand_like, zeros
from jitgrad.nn.module import Module
from jitgrad.nn.utils.convert_parameters import parameters_to_vector
from jitgrad.tensor import Tensor


class BasePruningMethod(ABC):
    """A way to choose what is pruned: subclasses define PRUNING_TYPE ("unstructured", "structured"
    with an attribute `dim`, or "global") and compute_mask."""

    PRUNING_TYPE: str
    _tensor_name: str

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask for scores t (the parameter, or importance scores): default_mask, with more
        zeros."""

    def apply_mask(self, module: Module) -> Tensor:
        """The product of the original parameter and its mask."""
        mask, original = (getattr(module, f"{self._tensor_name}_{p}") for p in ("mask", "orig"))
        return mask.to(original.dtype) * original

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:  # fmt: skip
        """Prunes module's parameter <name>; further arguments are the method's own."""
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        before = _hook_of(module, name)
        weight = getattr(module, name)
        scores = weight if importance_scores is None else importance_scores
        _expect_scores(scores, weight)
        if before is None:
            mask = method.compute_mask(scores, default_mask=ones_like(weight))
            delattr(module, name)
            module.register_parameter(f"{name}_orig", weight)
        else:
            key, old = before
            container = old if isinstance(old, PruningContainer) else PruningContainer(old)
            container.add_pruning_method(method)
            method = container
            kept = getattr(module, f"{name}_mask").detach().clone()
            mask = method.compute_mask(scores, default_mask=kept)
            del module._forward_pre_hooks[key]
        module.register_buffer(f"{name}_mask", mask.detach())
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None,
        importance_scores: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """t with zeros where it is pruned; no module is needed."""
        scores = t if importance_scores is None else importance_scores
        _expect_scores(scores, t)
        start = ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=start)

    def remove(self, module: Module) -> None:
        """Makes the pruned values the parameter again."""
        name = self._tensor_name
        weight = self.apply_mask(module)
        original: Any = module._parameters[f"{name}_orig"]
        original.data = weight.detach()
        for key in (name, f"{name}_orig", f"{name}_mask"):
            if hasattr(module, key):
                delattr(module, key)
        setattr(module, name, original)


def _hook_of(module: Module, name: str) -> tuple[int, BasePruningMethod] | None:
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            return key, hook
    return None


def _expect_scores(scores: Tensor, weight: Tensor) -> None:
    if tuple(scores.shape) != tuple(weight.shape):
        raise AssertionError(
            f"[prune] expected importance_scores of shape {tuple(weight.shape)}; got "
            f"{tuple(scores.shape)}"
        )


class PruningContainer(BasePruningMethod):
    """Several pruning methods of one parameter, one after another."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"[prune] expected a BasePruningMethod; got {type(method).__name__}")
        if method._tensor_name != self._tensor_name:
            raise ValueError(
                f"[prune] expected methods of parameter {self._tensor_name!r}; got one of "
                f"{method._tensor_name!r}"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The last method's mask of what default_mask keeps."""
        method = self._pruning_methods[-1]
        where = self._kept(method, t, default_mask)
        mask = default_mask.to(t.dtype)
        mask[where] = method.compute_mask(t[where], default_mask=mask[where]).to(t.dtype)
        return mask

    @staticmethod
    def _kept(method: BasePruningMethod, t: Tensor, mask: Tensor) -> Any:
        """The index of what the method chooses from: kept elements, kept channels, or all."""
        if method.PRUNING_TYPE == "global":
            return ...
        if method.PRUNING_TYPE == "unstructured":
            return mask == 1
        if method.PRUNING_TYPE != "structured":
            raise ValueError(
                "[prune] expected PRUNING_TYPE 'unstructured', 'structured' or 'global'; got "
                f"{method.PRUNING_TYPE!r}"
            )
        dim = _dim(t, method.dim)  # type: ignore[attr-defined]
        others = [d for d in range(t.dim()) if d != dim]
        return (slice(None),) * dim + (mask.sum(dim=others) != 0,)


# -- how much --------------------------------------------------------------------------------------
def _expect_amount(amount: Any) -> None:
    if not isinstance(amount, numbers.Real):
        raise TypeError(f"[prune] expected amount, an int or a float; got {amount!r}")
    most = float("inf") if isinstance(amount, numbers.Integral) else 1.0
    if not 0 <= float(amount) <= most:
        raise ValueError(
            f"[prune] expected amount, a float from 0 to 1 or a number of elements; got {amount}"
        )


def _count(amount: Any, size: int) -> int:
    """How many of `size` are pruned."""
    if not isinstance(amount, numbers.Integral):
        return round(amount * size)
    count = int(amount)
    if count > size:
        raise ValueError(f"[prune] expected amount of at most {size}, what there is; got {amount}")
    return count


def _dim(t: Tensor, dim: int) -> int:
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"[prune] expected dim of a tensor {tuple(t.shape)}; got {dim}")
    return dim % t.dim()


def _expect_channels(t: Tensor) -> None:
    if t.dim() <= 1:
        raise ValueError(
            f"[prune] expected a tensor of at least 2 dims for structured pruning; got "
            f"{tuple(t.shape)}"
        )


# -- methods ---------------------------------------------------------------------------------------
class Identity(BasePruningMethod):
    """Prunes nothing."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Unstructured(BasePruningMethod):
    """Prunes `amount` elements (a share, or a number): those of the least scores."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        _expect_amount(amount)
        self.amount = amount

    @abstractmethod
    def scores(self, t: Tensor) -> Tensor:
        """One for each element of t."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = _count(self.amount, t.numel())
        mask = default_mask.clone()
        if count:
            least = self.scores(t).reshape(-1).topk(count, largest=False).indices
            mask.view(-1)[least] = 0
        return mask


class RandomUnstructured(_Unstructured):
    """Prunes `amount` elements at random."""

    def scores(self, t: Tensor) -> Tensor:
        return rand_like(t)


class L1Unstructured(_Unstructured):
    """Prunes the `amount` elements of least magnitude."""

    def scores(self, t: Tensor) -> Tensor:
        return t.abs()


class _Structured(BasePruningMethod):
    """Prunes `amount` channels along dim: those of the least scores."""

    PRUNING_TYPE = "structured"
    amount: float
    dim: int

    @abstractmethod
    def scores(self, t: Tensor, dim: int) -> Tensor:
        """One for each channel of t along dim."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        _expect_channels(t)
        dim = _dim(t, self.dim)
        size = int(t.shape[dim])
        count = _count(self.amount, size)
        if not count:
            return default_mask
        kept = self.scores(t, dim).topk(size - count).indices
        channels = zeros(size, dtype=default_mask.dtype)
        channels[kept] = 1
        return default_mask * channels.reshape([-1 if d == dim else 1 for d in range(t.dim())])


class RandomStructured(_Structured):
    """Prunes `amount` channels along dim at random."""

    def __init__(self, amount: float, dim: int = -1) -> None:
        _expect_amount(amount)
        self.amount, self.dim = amount, dim

    def scores(self, t: Tensor, dim: int) -> Tensor:
        return rand(t.shape[dim])


class LnStructured(_Structured):
    """Prunes the `amount` channels along dim of least n-norm."""

    def __init__(self, amount: float, n: Any, dim: int = -1) -> None:
        _expect_amount(amount)
        self.amount, self.n, self.dim = amount, n, dim

    def scores(self, t: Tensor, dim: int) -> Tensor:
        others = tuple(d for d in range(t.dim()) if d != dim)
        return ops.norm(t, self.n, others)


class CustomFromMask(BasePruningMethod):
    """Prunes where a mask is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if tuple(default_mask.shape) != tuple(self.mask.shape):
            raise AssertionError(
                f"[prune] expected a mask of shape {tuple(default_mask.shape)}; got "
                f"{tuple(self.mask.shape)}"
            )
        return default_mask * self.mask.to(default_mask.dtype)


# -- functions -------------------------------------------------------------------------------------
def identity(module: Module, name: str) -> Module:
    """Adds a mask of ones."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prunes elements at random: `amount` of them, or that share if it is a float."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: float, importance_scores: Tensor | None = None
) -> Module:
    """Prunes the elements of least magnitude (of importance_scores, if given)."""
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prunes channels along dim at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: Any, dim: int,
    importance_scores: Tensor | None = None,
) -> Module:  # fmt: skip
    """Prunes the channels along dim of least n-norm."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prunes where the mask is 0."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: Any, importance_scores: Any = None,
    **kwargs: Any,
) -> None:  # fmt: skip
    """Prunes elements of several parameters, [(module, name), ...], as if they were one vector.

    importance_scores: {(module, name): scores}. Raises TypeError for a method that is not
    unstructured.
    """
    if not isinstance(parameters, Iterable):
        raise TypeError(
            f"[global_unstructured] expected (module, name) pairs; got {type(parameters).__name__}"
        )
    given = {} if importance_scores is None else importance_scores
    if not isinstance(given, dict):
        raise TypeError(
            f"[global_unstructured] expected importance_scores, a dict; got {type(given).__name__}"
        )
    places = list(parameters)
    weights = [getattr(module, name) for module, name in places]
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            "[global_unstructured] expected an unstructured method; got one of type "
            f"{method.PRUNING_TYPE!r}"
        )
    method._tensor_name = "all"
    scores = [given.get(place, w) for place, w in zip(places, weights, strict=True)]
    masks = [
        getattr(module, f"{name}_mask", ones_like(w))
        for (module, name), w in zip(places, weights, strict=True)
    ]
    whole = PruningContainer(method).compute_mask(
        parameters_to_vector(scores).detach(), parameters_to_vector(masks).detach()
    )
    parts = whole.split([w.numel() for w in weights])
    for (module, name), weight, part in zip(places, weights, parts, strict=True):
        custom_from_mask(module, name, part.reshape(weight.shape))


def remove(module: Module, name: str) -> Module:
    """Makes the pruned values the parameter. Raises ValueError where it is not pruned."""
    found = _hook_of(module, name)
    if found is None:
        raise ValueError(
            f"[remove] expected a pruned parameter of {type(module).__name__}; {name!r} is not"
        )
    key, hook = found
    hook.remove(module)
    del module._forward_pre_hooks[key]
    return module


def is_pruned(module: Module) -> bool:
    """Whether any parameter of the module, or of one below it, is pruned."""
    return any(
        isinstance(hook, BasePruningMethod)
        for m in module.modules()
        for hook in m._forward_pre_hooks.values()
    )
