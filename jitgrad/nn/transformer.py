"""Transformer, its encoder and decoder and their layers (Vaswani et al. 2017)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from jitgrad.making import full
from jitgrad.nn import functional as F
from jitgrad.nn import init
from jitgrad.nn.attention import MultiheadAttention
from jitgrad.nn.containers import ModuleList
from jitgrad.nn.dropout import Dropout
from jitgrad.nn.layers import Linear
from jitgrad.nn.module import Module
from jitgrad.nn.normalization import LayerNorm
from jitgrad.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(
            f"[Transformer] expected activation 'relu', 'gelu' or a function; got {activation!r}"
        )
    return F.relu if activation == "relu" else F.gelu


class _Layer(Module):
    """What encoder and decoder layers share: the feed-forward block, norms and dropouts."""

    self_attn: MultiheadAttention

    def _build(
        self, d_model: int, dim_feedforward: int, dropout: float, activation: Activation,
        layer_norm_eps: float, norm_first: bool, bias: bool, blocks: int, kind: dict[str, Any],
    ) -> None:  # fmt: skip
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **kind)
        self.norm_first = norm_first
        for i in range(blocks):
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **kind)
            setattr(self, f"norm{i + 1}", norm)
        for i in range(blocks):
            setattr(self, f"dropout{i + 1}", Dropout(dropout))
        self.activation = _activation(activation)

    def _residual(
        self, x: Tensor, norm: Callable[[Tensor], Tensor], block: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """x + block(x), normalised in front of the block or behind the sum."""
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))

    def _sa_block(
        self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Self-attention and its dropout."""
        out, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal,
            need_weights=False,
        )  # fmt: skip
        return self.dropout1(out)

    def _feed_forward(self, x: Tensor, drop: Callable[[Tensor], Tensor]) -> Tensor:
        return drop(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a feed-forward network, each with a residual and a layer norm.

    Args: d_model features, nhead heads, dim_feedforward hidden features, dropout, activation
    ("relu", "gelu" or a function), layer_norm_eps, batch_first (input (N, S, E) instead of
    (S, N, E)), norm_first (norms in front of the blocks), bias. Unbatched input is (S, E).
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **kind
        )
        self._build(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, 2, kind
        )

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """src of the input's shape; masks as in nn.functional.multi_head_attention_forward."""
        x = self._residual(
            src, self.norm1,
            lambda x: self._sa_block(x, src_mask, src_key_padding_mask, is_causal),
        )  # fmt: skip
        return self._residual(x, self.norm2, self._ff_block)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self._feed_forward(x, self.dropout2)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output, a feed-forward network; arguments as
    TransformerEncoderLayer's."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        options = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **kind}
        self.self_attn = MultiheadAttention(d_model, nhead, **options)
        self.multihead_attn = MultiheadAttention(d_model, nhead, **options)
        self._build(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, 3, kind
        )

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """tgt (T, N, E), memory (S, N, E) -> (T, N, E); masks (T, T), (T, S), (N, T), (N, S)."""
        x = self._residual(
            tgt, self.norm1,
            lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal),
        )  # fmt: skip
        x = self._residual(
            x, self.norm2,
            lambda x: self._mha_block(
                x, memory, memory_mask, memory_key_padding_mask, memory_is_causal
            ),
        )  # fmt: skip
        return self._residual(x, self.norm3, self._ff_block)

    def _mha_block(
        self, x: Tensor, mem: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Attention to the encoder's output and its dropout."""
        out, _ = self.multihead_attn(
            x, mem, mem, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
            is_causal=is_causal, need_weights=False,
        )  # fmt: skip
        return self.dropout2(out)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self._feed_forward(x, self.dropout3)


def _clones(module: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


class TransformerEncoder(Module):
    """A stack of copies of encoder_layer, then norm if there is one.

    enable_nested_tensor and mask_check are accepted; they choose PyTorch's fast path, which jitgrad
    does not need.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """As TransformerEncoderLayer's. is_causal None: the mask says what is seen."""
        for layer in self.layers:
            src = layer(
                src, src_mask=mask, src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal),
            )  # fmt: skip
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of copies of decoder_layer, then norm if there is one."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """As TransformerDecoderLayer's. tgt_is_causal None: the mask says what is seen."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal), memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder: src (S, N, E), tgt (T, N, E) -> (T, N, E); batch_first (N, S, E).

    Matrices start from xavier_uniform_. Raises RuntimeError for batches or features that do not
    fit.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, custom_encoder: Any = None, custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        layer: Any = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias,
        )  # fmt: skip
        if custom_encoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **kind)
            one = TransformerEncoderLayer(*layer, **kind)
            custom_encoder = TransformerEncoder(one, num_encoder_layers, norm)
        self.encoder = custom_encoder
        if custom_decoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **kind)
            other = TransformerDecoderLayer(*layer, **kind)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, norm)
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Masks (S, S), (T, T), (T, S), (N, S), (N, T), (N, S); see
        nn.functional.multi_head_attention_forward."""
        batch = 0 if self.batch_first else 1
        fit = src.dim() != 3 or src.shape[batch] == tgt.shape[batch]
        if not fit or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(
                f"[Transformer] expected src and tgt of one batch and {self.d_model} features; got "
                f"src {tuple(src.shape)}, tgt {tuple(tgt.shape)}, batch_first={self.batch_first}"
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        out: Tensor = self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """(sz, sz), -inf above the diagonal and 0 elsewhere."""
        mask: Tensor = full((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1)
        return mask
