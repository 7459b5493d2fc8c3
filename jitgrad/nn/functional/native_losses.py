"""jitgrad.kl_div, ctc_loss, ...: losses that PyTorch has at the top, where `reduction` is a number:
0 none, 1 mean, 2 sum. Composed of those of nn.functional."""

from __future__ import annotations

from typing import Any

from jitgrad.nn.functional import ctc as _ctc
from jitgrad.nn.functional import losses as _losses
from jitgrad.nn.functional import margin_losses as _margins
from jitgrad.runtime.arguments import located
from jitgrad.tensor import Tensor

__all__ = [
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "ctc_loss",
    "hinge_embedding_loss", "kl_div", "margin_ranking_loss", "poisson_nll_loss",
    "triplet_margin_loss",
]  # fmt: skip


def _word(op: str, reduction: int) -> str:
    if reduction not in (0, 1, 2):
        raise ValueError(
            f"[{op}] expected reduction 0 (none), 1 (mean) or 2 (sum); got {reduction!r}"
        )
    return ("none", "mean", "sum")[reduction]


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None,
    reduction: int = 0,
) -> Tensor:  # fmt: skip
    """nn.functional.binary_cross_entropy_with_logits."""
    word = _word("binary_cross_entropy_with_logits", reduction)
    return _losses.binary_cross_entropy_with_logits(
        input, target, weight, reduction=word, pos_weight=pos_weight
    )


def kl_div(
    input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False
) -> Tensor:
    """nn.functional.kl_div."""
    word = _word("kl_div", reduction)
    return _losses.kl_div(input, target, reduction=word, log_target=log_target)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int
) -> Tensor:
    """nn.functional.poisson_nll_loss."""
    word = _word("poisson_nll_loss", reduction)
    return _losses.poisson_nll_loss(
        input, target, log_input=log_input, full=full, eps=eps, reduction=word
    )


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """nn.functional.cosine_embedding_loss."""
    word = _word("cosine_embedding_loss", reduction)
    return _margins.cosine_embedding_loss(input1, input2, target, margin, reduction=word)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0
) -> Tensor:
    """nn.functional.hinge_embedding_loss."""
    word = _word("hinge_embedding_loss", reduction)
    return _margins.hinge_embedding_loss(input, target, margin, reduction=word)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """nn.functional.margin_ranking_loss."""
    word = _word("margin_ranking_loss", reduction)
    return _margins.margin_ranking_loss(input1, input2, target, margin, reduction=word)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2,
    eps: float = 1e-6, swap: bool = False, reduction: int = 0,
) -> Tensor:  # fmt: skip
    """nn.functional.triplet_margin_loss."""
    word = _word("triplet_margin_loss", reduction)
    return _margins.triplet_margin_loss(
        anchor, positive, negative, margin, p, eps, swap, reduction=word
    )


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 0, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """nn.functional.ctc_loss."""
    word = _word("ctc_loss", reduction)
    return _ctc.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, word, zero_infinity
    )


globals().update({name: located(globals()[name]) for name in __all__})
