"""Autocast: in which dtype a public function computes while it is on.

Owns the settings of a thread and the classes of functions; a function says its class by a decorator
(`lower`, `wide`, `widest`, `exempt`) where it is defined. Functions without one compute in the
dtypes they are given. The context manager is amp/autocast_mode.py. Which function is in which class
follows PyTorch's lists for the CPU.

On GPUs the classes are others, of more functions: a table of names (`_ON_GPU`), for what the user
calls; inside of a function of ours autocast is off. No function looks for it when it is called.
While autocast is on for GPUs, the first op that is applied asks for the public function that it is
a part of (`Casting.at`), and has that called anew, on operands of its dtype
(runtime/overriding.py, Recalled).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jitgrad.promotion import cast
from jitgrad.runtime import dtypes
from jitgrad.runtime.arguments import CAUGHT, apart, complete, expect_flags, locates
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.overriding import Call, Recalled, anew, outermost, recover
from jitgrad.state import CASTS, state
from jitgrad.tensor import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


class Casting(NamedTuple):
    """The settings of autocast.

    lower: the CPU's dtype where autocast is on, else None. cpu, cuda: the dtypes that it would
    have. cuda_on: whether it is on for tensors on GPUs. caching: casts of leaves that require grad
    are kept until the outermost context ends.
    """

    lower: DType | None = None
    cpu: DType = dtypes.bfloat16
    cuda: DType = dtypes.float16
    cuda_on: bool = False
    caching: bool = True

    def at(self, op: Any, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Called when an op (None: a random draw) is about to be applied, by what is no op: its
        operands, in the dtype of autocast for GPUs where the user's code applies it. Raises
        Recalled where a public function does."""
        if not self._asks() or not (op is None or any(x.is_cuda for x in operands)):
            return operands
        frame = outermost(3, _COMPOSED.__contains__)
        if frame is not None:
            raise Recalled(frame, _call)
        choose = None if op is None else _ON_GPU.get(op.name)
        if choose is None:
            return operands
        here = self._replace(lower=self.cuda)
        dtype = choose(here, [x for x in operands if _eligible(x)])
        return operands if dtype is None else tuple([_converted(x, dtype, here) for x in operands])

    def _asks(self) -> bool:
        """Whether autocast is on for GPUs here, and not outside of the derivatives that run."""
        return self.cuda_on and state.backward is state.casting_run


OFF = Casting()


def casting() -> Casting:
    """The settings of this thread."""
    found = state.casting
    return OFF if found is None else found


def set_casting(value: Casting | None) -> None:
    """Sets the settings of this thread; None: the defaults."""
    state.casting = None if value == OFF else value
    state.casting_run = state.backward
    if state.watcher is None or state.watcher is CASTS:
        state.watcher = CASTS if value is not None and value.cuda_on else None


def lower_dtype(x: Tensor) -> DType | None:
    """The dtype of autocast where x is; None where it is off."""
    return _lower_on(casting(), x.is_cuda)


def _lower_on(settings: Casting, on_gpu: bool) -> DType | None:
    if on_gpu:
        return settings.cuda if settings.cuda_on else None
    return settings.lower


def _lowest(settings: Casting, tensors: list[Tensor]) -> DType:
    assert settings.lower is not None
    return settings.lower


def _float32(settings: Casting, tensors: list[Tensor]) -> DType:
    return dtypes.float32


def _widest(settings: Casting, tensors: list[Tensor]) -> DType:
    wanted = settings.lower
    assert wanted is not None
    for x in tensors:
        wanted = dtypes.promote(wanted, x.dtype)
    return wanted


def _no_cast(settings: Casting, tensors: list[Tensor]) -> None:
    return None


def _decorator(choose: Callable[[Casting, list[Tensor]], DType | None]) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def autocasting(*args: Any, **kwargs: Any) -> Any:
            settings = state.casting
            try:
                if kwargs or len(args) > 2:
                    expect_flags(function, args, kwargs)
                if settings is None or (settings.lower is None and not settings.cuda_on):
                    made = function(*args, **kwargs)
                else:
                    made = _run(function, choose, settings, args, kwargs)
                return made if getattr(made, "_view", made) is None else apart(made, args, kwargs)
            except CAUGHT as error:
                if (found := recover(error, autocasting, args, kwargs)) is not None:
                    return found[0]
                complete(error, function, args, kwargs)
                raise

        autocasting.uncast = function  # type: ignore[attr-defined]
        return locates(autocasting)

    return decorate


def as_given(function: Any) -> Any:
    """A public function in the dtypes it is given: what its in-place form and out= do, which
    autocast leaves alone."""
    return exempt(function.uncast) if hasattr(function, "uncast") else function


lower = _decorator(_lowest)
"""The decorator of functions that compute in autocast's dtype: products and convolutions."""

wide = _decorator(_float32)
"""Of functions that compute in float32: losses, and what needs range or digits."""

widest = _decorator(_widest)
"""Of functions that want one dtype: the widest of their operands'."""

exempt = _decorator(_no_cast)
"""Of functions that compute in the dtypes they are given, and whose parts do, too."""


def wide_in_3d(function: Any) -> Any:
    """The decorator of pooling over n dims (the first argument): as `wide` where n is 3."""
    in_float32 = wide(function)

    @functools.wraps(function)
    def by_dims(n: int, *args: Any, **kwargs: Any) -> Any:
        return (in_float32 if n == 3 else function)(n, *args, **kwargs)

    return by_dims


def _run(
    function: Callable[..., Any], choose: Callable[..., DType | None], settings: Casting,
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """The function on operands of its dtype; autocast is off inside."""
    found: list[Tensor] = []
    _collect((*args, *kwargs.values()), found)
    if settings.cuda_on and any(x.is_cuda for x in found):
        choose = _no_cast
        if settings._asks():
            frame = outermost(2, _COMPOSED.__contains__)
            if frame is not None and frame is not sys._getframe(1):
                raise Recalled(frame, _call)
            choose = _choice_on_gpu(function.__name__, args, kwargs)
    return _in_dtype(function, choose, settings, args, kwargs, found)


def _call(wrapper: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a public function gives under autocast for GPUs."""
    choose = _choice_on_gpu(wrapper.__name__, args, kwargs)
    found: list[Tensor] = []
    _collect((*args, *kwargs.values()), found)
    return _in_dtype(wrapper, choose, state.casting, args, kwargs, found)


def _after(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """Whether a function failed before any op asked: it looked at dtypes that are to be cast."""
    settings = state.casting
    if settings is None or not settings._asks():
        return None
    found: list[Tensor] = []
    _collect((*args, *kwargs.values()), found)
    own = outermost(3, _COMPOSED.__contains__) is sys._getframe(2)
    return _call if own and any(x.is_cuda for x in found) else None


anew.append(_after)


def _in_dtype(
    function: Callable[..., Any], choose: Callable[..., DType | None], settings: Casting,
    args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Tensor],
) -> Any:  # fmt: skip
    here = settings._replace(lower=_lower_on(settings, any(x.is_cuda for x in found)))
    dtype = None if here.lower is None else choose(here, found)
    state.casting = settings._replace(lower=None, cuda_on=False)
    try:
        if dtype is not None:
            args = tuple([_converted(x, dtype, here) for x in args])
            kwargs = {k: _converted(x, dtype, here) for k, x in kwargs.items()}
        return function(*args, **kwargs)
    finally:
        state.casting = settings


# -- classes on GPUs -----------------------------------------------------------------------------
def _banned(settings: Casting, tensors: list[Tensor]) -> None:
    raise RuntimeError(
        "[binary_cross_entropy] torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are "
        "unsafe to autocast; give the logits in front of the sigmoid to "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe"
    )


_ON_GPU: dict[str, Callable[[Casting, list[Tensor]], DType | None]] = {
    name: choose
    for choose, names in {
        _lowest: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc "
        "prelu addmm addmv addr matmul einsum mm mv vecdot linear addbmm baddbmm bmm chain_matmul "
        "multi_dot scaled_dot_product_attention _layers _cell",
        _float32: "acos arccos asin arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal "
        "rsqrt sinh tan pow __pow__ __rpow__ __rtruediv__ __rdiv__ softplus layer_norm rms_norm "
        "group_norm norm vector_norm matrix_norm nuclear_norm cosine_similarity poisson_nll_loss "
        "cosine_embedding_loss cross_entropy nll_loss hinge_embedding_loss kl_div l1_loss "
        "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
        "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
        "dist pdist cdist pairwise_distance normalize renorm logsumexp prod softmax log_softmax "
        "softmin gumbel_softmax cumprod cumsum sum upsample upsample_nearest upsample_bilinear "
        "interpolate",
        _widest: "addcdiv addcmul atan2 arctan2 bilinear cross dot vdot inner grid_sample "
        "index_put tensordot scatter_add",
        _banned: "binary_cross_entropy",
    }.items()
    for name in names.split()
}  # fmt: skip

_COMPOSED = frozenset({"multi_head_attention_forward", "triplet_margin_with_distance_loss"})
"""Functions whose parts have classes of their own: a call in them is as the user's."""


def _choice_on_gpu(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Casting, list[Tensor]], DType | None]:
    """How the dtype of a public function's operands is chosen on GPUs. Results that go to `out`,
    and means over areas, have the dtypes that they have without autocast."""
    texts = [x for x in (*args, *kwargs.values()) if isinstance(x, str)]
    if kwargs.get("out") is not None or (name == "interpolate" and "area" in texts):
        return _no_cast
    return _ON_GPU.get(name, _no_cast)


def _eligible(x: Any) -> bool:
    """Floating tensors; float64 keeps its digits."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not dtypes.float64


def _collect(values: Any, found: list[Tensor]) -> None:
    for x in values:
        if isinstance(x, (list, tuple)):
            _collect(x, found)
        elif _eligible(x):
            found.append(x)


def _converted(x: Any, dtype: DType, settings: Casting) -> Any:
    if isinstance(x, (list, tuple)):
        parts = [_converted(y, dtype, settings) for y in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if not _eligible(x) or x.dtype is dtype:
        return x
    kept = _kept()
    if kept is None or not _keeps(x, dtype, settings):
        return cast(x, dtype)
    # The version: a cast is not used after its source was written in place.
    key = (id(x), x._storage.version, dtype, state.grad_enabled)
    if key not in kept:
        kept[key] = (x, cast(x, dtype))
    return kept[key][1]


def _keeps(x: Tensor, dtype: DType, settings: Casting) -> bool:
    """Whether a cast is kept: of float32 parameters to the lower dtype."""
    return (
        settings.caching
        and dtype is settings.lower
        and x.dtype is dtypes.float32
        and x.requires_grad
        and x.is_leaf
        and x._view is None
    )


def _kept() -> dict[Any, Any] | None:
    """Casts that are kept: the recording's own, while one is made (replay makes them anew)."""
    found: dict[Any, Any] | None = state.casts
    if found is not None and state.recorder is not None:
        found = getattr(state.recorder, "casts", None)
    return found


def forget_casts() -> None:
    """Lets go of all casts that are kept."""
    kept = _kept()
    if kept is not None:
        kept.clear()
