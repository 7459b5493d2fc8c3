"""Layers that look up rows of a table: Embedding, EmbeddingBag."""

from __future__ import annotations

from typing import Any

from jitgrad.making import empty
from jitgrad.nn import functional as F
from jitgrad.nn import init
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


class _Table(Module):
    """A table `weight` (num_embeddings, embedding_dim), from N(0, 1) but for the row of
    padding_idx, which starts as zeros; or a given one, `_weight`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None,
        max_norm: float | None, norm_type: float, scale_grad_by_freq: bool, sparse: bool,
        given: Tensor | None, frozen: bool, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if sparse:
            raise NotImplementedError(
                f"[{name}] sparse gradients are not supported (docs/limits.md); leave sparse=True "
                "out"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AssertionError(
                f"[{name}] expected padding_idx within num_embeddings={num_embeddings}; got "
                f"{padding_idx}"
            )
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        if given is None:
            table = empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
            self.weight = Parameter(table, requires_grad=not frozen)
            self.reset_parameters()
            return
        if tuple(given.shape) != (num_embeddings, embedding_dim):
            raise AssertionError(
                f"[{name}] expected _weight ({num_embeddings}, {embedding_dim}), as num_embeddings "
                f"and embedding_dim say; got {tuple(given.shape)}"
            )
        self.weight = Parameter(given, requires_grad=not frozen)

    def reset_parameters(self) -> None:
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx] = 0

    @classmethod
    def _on(cls, embeddings: Tensor, freeze: bool, **options: Any) -> Any:
        if embeddings.dim() != 2:
            raise AssertionError(
                f"[{cls.__name__}] Embeddings parameter is expected to be 2-dimensional; got "
                f"{tuple(embeddings.shape)}"
            )
        make: Any = cls
        layer = make(*embeddings.shape, _weight=embeddings, **options)
        layer.weight.requires_grad = not freeze
        return layer


class Embedding(_Table):
    """Rows of a table by index; see nn.functional.embedding."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, _freeze, device, dtype,
        )  # fmt: skip

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:  # fmt: skip
        """A layer on the table `embeddings` (V, D); it requires no gradient unless freeze=False."""
        made: Embedding = cls._on(
            embeddings, freeze, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
        )  # fmt: skip
        return made

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq, self.sparse,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text + _options(self)


class EmbeddingBag(_Table):
    """The sum, mean or max of rows by bags; see nn.functional.embedding_bag."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, _weight: Tensor | None = None, include_last_offset: bool = False,
        padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, False, device, dtype,
        )  # fmt: skip
        self.mode, self.include_last_offset = mode, include_last_offset

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> EmbeddingBag:  # fmt: skip
        """A layer on the table `embeddings` (V, D); it requires no gradient unless freeze=False."""
        made: EmbeddingBag = cls._on(
            embeddings, freeze, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, mode=mode, sparse=sparse,
            include_last_offset=include_last_offset, padding_idx=padding_idx,
        )  # fmt: skip
        return made

    def forward(
        self, input: Tensor, offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.mode, self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}{_options(self)}, mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"


def _options(table: _Table) -> str:
    text = "" if table.max_norm is None else f", max_norm={table.max_norm}"
    text += f", norm_type={table.norm_type}" if table.norm_type != 2 else ""
    return text + (", scale_grad_by_freq=True" if table.scale_grad_by_freq else "")
