"""AdaptiveLogSoftmaxWithLoss: softmax over very many classes, the rare ones in clusters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jitgrad.functions as ops
from jitgrad.functions.args import expect_range
from jitgrad.functions.shape import cat
from jitgrad.nn.containers import ModuleList, Sequential
from jitgrad.nn.layers import Linear
from jitgrad.nn.module import Module
from jitgrad.tensor import Tensor


class _ASMoutput(NamedTuple):
    """What AdaptiveLogSoftmaxWithLoss gives: log-probabilities of the targets, and their mean,
    negated."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of classes sorted by frequency (Grave et al. 2017): the first cutoffs[0]
    classes and one entry for each cluster are in the head; the classes of a cluster, up to the next
    cutoff, in its tail, whose input is projected to in_features / div_value^k features.

    Shapes: input (N, in_features) or (in_features), target (N) or () of int64. head is a Linear,
    tail a list of pairs of them without bias. Raises ValueError for cutoffs that are no increasing
    positive integers below n_classes - 1, RuntimeError for shapes that do not fit and for targets
    out of range.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        cutoffs = list(cutoffs)
        if len(cutoffs) == 0:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (
            cutoffs != sorted(cutoffs)
            or min(cutoffs) <= 0
            or max(cutoffs) > n_classes - 1
            or len(set(cutoffs)) != len(cutoffs)
            or any(int(c) != c for c in cutoffs)
        ):
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing "
                f"order, where each value is between 1 and n_classes-1; got {cutoffs}"
            )
        kind = {"device": device, "dtype": dtype}
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = self.cutoffs[0], len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, **kind)
        self.tail = ModuleList()
        for k, (low, high) in enumerate(itertools.pairwise(self.cutoffs)):
            hidden = int(in_features // (div_value ** (k + 1)))
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, bias=False, **kind),
                    Linear(hidden, high - low, bias=False, **kind),
                )
            )

    def reset_parameters(self) -> None:
        self.head.reset_parameters()
        for pair in self.tail:
            for layer in pair:
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        input, target = input_, target_
        batched = target.dim() > 0
        if batched and input.shape[0] != target.shape[0]:
            raise RuntimeError(
                "[AdaptiveLogSoftmaxWithLoss] Input and target should have the same size in the "
                f"batch dimension; got {tuple(input.shape)} and {tuple(target.shape)}"
            )
        if target.dim() > 1 or input.dim() != (2 if batched else 1):
            raise RuntimeError(
                "[AdaptiveLogSoftmaxWithLoss] 0D or 1D target tensor expected, multi-target not "
                f"supported, with input of one dim more; got {tuple(input.shape)} and "
                f"{tuple(target.shape)}"
            )
        x, y = (input, target) if batched else (input.unsqueeze(0), target.unsqueeze(0))
        text = (
            f"Target values should be in [0, {self.n_classes - 1}], but values in range "
            "[{value}] were found."
        )
        y = expect_range(y, 0, self.n_classes - 1, RuntimeError, text)
        head = self.head(x).log_softmax(1)
        place = y.clamp(max=self.shortlist_size - 1)
        output = ops.gather(head, 1, place.unsqueeze(1)).squeeze(1)
        for k, (low, high) in enumerate(itertools.pairwise(self.cutoffs)):
            inside = ops.logical_and(y >= low, y < high)
            place = (y - low).clamp(0, high - low - 1)
            tail = ops.gather(self.tail[k](x).log_softmax(1), 1, place.unsqueeze(1)).squeeze(1)
            output = ops.where(inside, head[:, self.shortlist_size + k] + tail, output)
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    def _full(self, input: Tensor, head: Tensor) -> Tensor:
        parts = [head[:, : self.shortlist_size]]
        for k, pair in enumerate(self.tail):
            cluster = head[:, self.shortlist_size + k].unsqueeze(1)
            parts.append(pair(input).log_softmax(1) + cluster)
        return cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities of all classes: (N, n_classes)."""
        return self._full(input, self.head(input).log_softmax(1))

    def predict(self, input: Tensor) -> Tensor:
        """The class of the highest probability: (N)."""
        return self.log_prob(input).argmax(1)
