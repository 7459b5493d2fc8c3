"""Attention modules and torch.nn.attention's names: MultiheadAttention, sdpa_kernel, SDPBackend."""

from __future__ import annotations

import contextlib
import enum
import importlib
from collections.abc import Iterator
from typing import Any

from jitgrad.making import empty
from jitgrad.missing import no_such
from jitgrad.nn import functional as F
from jitgrad.nn import init
from jitgrad.nn.layers import Linear
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


class SDPBackend(enum.Enum):
    """PyTorch's implementations of attention. jitgrad has one: naming one chooses nothing."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(
    backends: list[SDPBackend] | SDPBackend, set_priority: bool = False
) -> Iterator[dict[str, Any]]:
    """Accepts PyTorch's choice of an attention kernel; changes nothing.

    Raises AssertionError for what is no SDPBackend or list of them.
    """
    if not isinstance(backends, (list, SDPBackend)):
        raise AssertionError(
            f"[sdpa_kernel] expected an SDPBackend or a list of them; got {type(backends).__name__}"
        )
    yield {}


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear; the class under which PyTorch prints the output projection of attention."""


class MultiheadAttention(Module):
    """Attention by num_heads heads side by side (Vaswani et al. 2017).

    Args:
        embed_dim, num_heads: features, and the number of heads that share them.
        dropout: probability with which attention weights are dropped when training.
        bias: whether projections have biases.
        add_bias_kv: adds a learned key and value to each sequence.
        add_zero_attn: adds a key and value of zeros.
        kdim, vdim: features of key and value; embed_dim by default.
        batch_first: whether input and output are (N, L, E) instead of (L, N, E).

    Parameters: in_proj_weight (3 E, E), or q_proj_weight, k_proj_weight and v_proj_weight where
    kdim or vdim differs, from xavier_uniform_; in_proj_bias (3 E), zeros; bias_k and bias_v
    (1, 1, E); out_proj, a Linear with a bias of zeros.

    Raises ValueError for sizes that are not positive, AssertionError where num_heads does not
    divide embed_dim.
    """

    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "[MultiheadAttention] expected embed_dim and num_heads greater than 0; got "
                f"embed_dim={embed_dim} and num_heads={num_heads}"
            )
        if embed_dim % num_heads:
            raise AssertionError(
                "[MultiheadAttention] embed_dim must be divisible by num_heads; got "
                f"embed_dim={embed_dim} and num_heads={num_heads}"
            )
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        self.num_heads, self.dropout, self.batch_first = num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads
        self.add_zero_attn = add_zero_attn
        kind = {"device": device, "dtype": dtype}
        separate = {"q_proj_weight": embed_dim, "k_proj_weight": self.kdim,
                    "v_proj_weight": self.vdim}  # fmt: skip
        if self._qkv_same_embed_dim:
            self.in_proj_weight = Parameter(empty(3 * embed_dim, embed_dim, **kind))
            for name in separate:
                self.register_parameter(name, None)
        else:
            for name, features in separate.items():
                setattr(self, name, Parameter(empty(embed_dim, features, **kind)))
            self.register_parameter("in_proj_weight", None)
        self.register_parameter(
            "in_proj_bias", Parameter(empty(3 * embed_dim, **kind)) if bias else None
        )
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **kind)
        for name in ("bias_k", "bias_v"):
            made = Parameter(empty(1, 1, embed_dim, **kind)) if add_bias_kv else None
            self.register_parameter(name, made)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)  # type: ignore[arg-type]
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(output, weights or None); see nn.functional.multi_head_attention_forward."""
        swap = self.batch_first and query.dim() == 3
        if swap:
            one = query is key and key is value
            query = query.transpose(0, 1)
            key, value = (query, query) if one else (key.transpose(0, 1), value.transpose(0, 1))
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, training=self.training,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight, k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight, average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )  # fmt: skip
        return (out.transpose(0, 1) if swap else out), weights


def __getattr__(name: str) -> Any:
    if name == "flex_attention":
        return importlib.import_module("jitgrad.nn.attention.flex_attention")
    raise no_such(__name__, name)
