"""Attention: scaled_dot_product_attention and the multi-head form, composed of ops.

The compiler fuses what it can; there is no attention kernel, and so no choice of one.
"""

from __future__ import annotations

import math
from typing import Any

import jitgrad.functions as ops
from jitgrad.casting import lower
from jitgrad.creation import ones, zeros
from jitgrad.functions.linalg import times_transposed
from jitgrad.functions.shape import cat, laid_as
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.dropout import dropout
from jitgrad.nn.functional.linear import linear
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

_MINUS_INFINITY = float("-inf")


@lower
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale + mask) value (Vaswani et al. 2017).

    Shapes: query (..., L, E), key (..., S, E), value (..., S, V) -> (..., L, V). With enable_gqa
    the third dim from the back counts heads, and those of query are a multiple of key's and
    value's.
    attn_mask broadcasts to (..., L, S): bool, True where a query sees a key, or of query's dtype,
    added. is_causal: query i sees no key
    behind i (of those that attn_mask allows). scale: 1/sqrt(E) by default. dropout_p drops
    attention weights, in evaluation too. A query that sees no key gives zeros. The result lies in
    memory as query does.

    Raises RuntimeError for shapes or dtypes that do not fit.
    """
    name = "scaled_dot_product_attention"
    expect_tensors(name, query=query, key=key, value=value)
    if not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"[{name}] expected dropout_p from 0 to 1; got {dropout_p}")
    _expect_attention(name, query, key, value)
    if enable_gqa:
        key, value = (repeat_heads(name, x, query) for x in (key, value))
    length, keys = query.shape[-2], key.shape[-2]
    factor = 1.0 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    scores = times_transposed(query * factor, key)
    if is_causal:
        seen = ones(length, keys, dtype=dtypes.bool_, device=query.device).tril()
        scores = ops.where(seen, scores, _MINUS_INFINITY)
    if attn_mask is not None:
        scores = _masked(name, scores, attn_mask)
    weights = softmax_or_zeros(scores) if attn_mask is not None else ops.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    return laid_as(ops.matmul(weights, value), query)


def _expect_attention(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {query._type}, key {key._type}, value {value._type}"
    if not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            f"[{name}] expected query, key and value of one dtype; got {shapes}; convert with "
            ".to(dtype)"
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(f"[{name}] expected query, key and value (..., L, E); got {shapes}")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            f"[{name}] expected query (..., L, E), key (..., S, E) and value (..., S, V); got "
            f"{shapes}"
        )


def repeat_heads(name: str, x: Tensor, query: Tensor) -> Tensor:
    """Each head of x as often as query has more heads: (..., H, S, E) -> (..., heads, S, E)."""
    if x.dim() < 3 or query.dim() < 3 or query.shape[-3] % x.shape[-3]:
        raise RuntimeError(
            f"[{name}] expected the heads of query, its third dim from the back, to be a multiple "
            f"of those of key and value; got query {tuple(query.shape)} and {tuple(x.shape)}"
        )
    times = query.shape[-3] // x.shape[-3]
    if times == 1:
        return x
    *batch, heads, length, width = x.shape
    wide = x.unsqueeze(-3).expand(*batch, heads, times, length, width)
    return wide.reshape(*batch, heads * times, length, width)


@lower
def _scores(name: str, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    scores = times_transposed(query, key)
    return scores if mask is None else _masked(name, scores, mask)


def _masked(name: str, scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is dtypes.bool_:
        return ops.where(mask, scores, _MINUS_INFINITY)
    if mask.dtype is not scores.dtype:
        raise RuntimeError(
            f"[{name}] expected attn_mask of bool or query's dtype {scores.dtype}; got "
            f"{mask._type}; convert it with .to(query.dtype)"
        )
    return scores + mask


def softmax_or_zeros(scores: Tensor) -> Tensor:
    """Softmax along the last dim; zeros, and no gradient, where all scores are -inf."""
    if scores.shape[-1] == 0:
        return scores
    blind = scores.detach().amax(-1, keepdim=True) == _MINUS_INFINITY
    weights = ops.softmax(ops.where(blind, 0.0, scores), -1)
    return ops.where(blind, 0.0, weights)


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None,
    bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
    out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Multi-head attention (Vaswani et al. 2017): (output, attention weights or None).

    Shapes: query (L, N, E), key and value (S, N, E) (with separate weights, their own E), or
    without N; output (L, N, E); weights (N, L, S), or (N, num_heads, L, S) unless
    average_attn_weights. attn_mask (L, S) or (N * num_heads, L, S) and key_padding_mask (N, S) are
    bool, True where attention is not allowed, or floats that are added. is_causal is a promise
    that attn_mask is the causal mask. static_k and static_v (N * num_heads, S, E / num_heads)
    replace the projected keys and values.

    Raises AssertionError or RuntimeError, as PyTorch does, for shapes that do not fit.
    """
    name = "multi_head_attention_forward"
    batched = _expect_heads(name, query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    length, count, width = query.shape
    if is_causal and attn_mask is None:
        raise RuntimeError(
            f"[{name}] is_causal says that attn_mask is causal; expected attn_mask, got None; pass "
            "Transformer.generate_square_subsequent_mask(L)"
        )
    _check(width == embed_dim_to_check, "embedding dim {}; got {}", embed_dim_to_check, width)
    _check(width % num_heads == 0, "embed_dim {} to be divisible by num_heads {}", width, num_heads)
    same = (key.shape[:2], value.shape[:2]) if use_separate_proj_weight else (
        key.shape, value.shape
    )  # fmt: skip
    _check(same[0] == same[1], "key and value of one shape; got {} and {}", *same)
    mismatch = key_padding_mask is not None and attn_mask is not None
    if mismatch and key_padding_mask.dtype is not attn_mask.dtype:  # type: ignore[union-attr]
        warn(
            f"[{name}] masks of different dtypes are deprecated; use one for attn_mask and "
            "key_padding_mask"
        )
    padding = _additive(key_padding_mask, "key_padding_mask", query)
    hint = is_causal and padding is None and not need_weights
    mask = None if hint else _additive(attn_mask, "attn_mask", query)
    if use_separate_proj_weight:
        _check(
            None not in (q_proj_weight, k_proj_weight, v_proj_weight),
            "q_proj_weight, k_proj_weight and v_proj_weight, as use_separate_proj_weight is True",
        )
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        _check(in_proj_weight is not None, "in_proj_weight; got None")
        weights = in_proj_weight
    q, k, v = _projections((query, key, value), weights, in_proj_bias)
    mask = _expect_mask(name, mask, (length, key.shape[0]), count * num_heads)

    _check((bias_k is None) == (bias_v is None), "both bias_k and bias_v, or none")
    if bias_k is not None and bias_v is not None:
        _check(static_k is None and static_v is None, "no static_k or static_v beside biases")
        k = cat([k, bias_k.expand(1, count, width)])
        v = cat([v, bias_v.expand(1, count, width)])
        mask, padding = _grown(mask), _grown(padding)
    q = _heads(q, num_heads)
    k = _heads(k, num_heads) if static_k is None else _static(static_k, count, num_heads, width)
    v = _heads(v, num_heads) if static_v is None else _static(static_v, count, num_heads, width)
    if add_zero_attn:
        zero = zeros(count, num_heads, 1, width // num_heads, dtype=k.dtype, device=k.device)
        k, v = cat([k, zero], 2), cat([v, zero], 2)
        mask, padding = _grown(mask), _grown(padding)
    keys = k.shape[2]
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(count, num_heads, length, keys)
    if padding is not None:
        _check(
            tuple(padding.shape) == (count, keys),
            "key_padding_mask of shape {}; got {}",
            (count, keys),
            tuple(padding.shape),
        )
        padding = padding.reshape(count, 1, 1, keys)
        mask = padding if mask is None else mask + padding

    p = dropout_p if training else 0.0
    shown = None
    if need_weights:
        shown = ops.softmax(_scores(name, q * math.sqrt(num_heads / width), k, mask), -1)
        if p > 0.0:
            shown = dropout(shown, p)
        out = ops.matmul(shown, v)
        shown = shown.mean(1) if average_attn_weights else shown
    else:
        out = scaled_dot_product_attention(q, k, v, mask, p, is_causal=hint)
    out = out.permute(2, 0, 1, 3).reshape(length, count, width)
    out = linear(out, out_proj_weight, out_proj_bias)
    if not batched:
        return out.squeeze(1), None if shown is None else shown.squeeze(0)
    return out, shown


def _check(holds: bool, expected: str, *given: Any) -> None:
    """given: what goes into the text (which is made only if it is needed: the text of a size that
    is symbolic asks for its number)."""
    if not holds:
        text = expected.format(*given)
        raise AssertionError(f"[multi_head_attention_forward] expected {text}")


def _expect_heads(
    name: str, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None,
    mask: Tensor | None, num_heads: int,
) -> bool:  # fmt: skip
    """Whether the input is batched; see multi_head_attention_forward for the ranks."""
    expect_tensors(name, query=query, key=key, value=value)
    rank = query.dim()
    _check(rank in (2, 3), "query of 2 (unbatched) or 3 dims; got {}", tuple(query.shape))
    for what, x in (("key", key), ("value", value)):
        _check(
            x.dim() == rank,
            "{} of {} dims, as query {}; got {}",
            what,
            rank,
            tuple(query.shape),
            tuple(x.shape),
        )
    if padding is not None:
        _check(
            padding.dim() == rank - 1,
            "key_padding_mask of {} dims for query {}; got {}",
            rank - 1,
            tuple(query.shape),
            tuple(padding.shape),
        )
    if mask is not None:
        _check(mask.dim() in (2, 3), "attn_mask of 2 or 3 dims; got {}", tuple(mask.shape))
        if rank == 2 and mask.dim() == 3:
            wanted = (num_heads, query.shape[0], key.shape[0])
            _check(
                tuple(mask.shape) == wanted,
                "attn_mask of shape {}; got {}",
                wanted,
                tuple(mask.shape),
            )
    return rank == 3


def _additive(mask: Tensor | None, what: str, query: Tensor) -> Tensor | None:
    """A mask as what is added to the scores: -inf where a bool mask is True."""
    if mask is None or mask.is_floating_point():
        return mask
    _check(mask.dtype is dtypes.bool_, "{} of bool or a floating dtype; got {}", what, mask.dtype)
    zero = zeros((), dtype=query.dtype, device=query.device)
    return ops.where(mask, _MINUS_INFINITY, zero)


def _expect_mask(
    name: str, mask: Tensor | None, shape: tuple[int, int], heads: int
) -> Tensor | None:
    if mask is not None:
        wanted = shape if mask.dim() == 2 else (heads, *shape)
        if tuple(mask.shape) != wanted:
            raise RuntimeError(
                f"[{name}] expected attn_mask of shape {wanted}; got {tuple(mask.shape)}"
            )
    return mask


def _projections(inputs: tuple[Tensor, ...], weights: Any, bias: Tensor | None) -> Any:
    """Queries, keys and values (length, N, E). `weights`: one (3 E, E), or three."""
    query, key, value = inputs
    if isinstance(weights, Tensor):
        if query is key and key is value:
            return linear(query, weights, bias).chunk(3, -1)
        weights = weights.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """(length, N, E) -> (N, num_heads, length, E / num_heads)."""
    length, count, width = x.shape
    return x.reshape(length, count, num_heads, width // num_heads).permute(1, 2, 0, 3)


def _static(x: Tensor, count: int, num_heads: int, width: int) -> Tensor:
    """(N * num_heads, S, E / num_heads) -> (N, num_heads, S, E / num_heads)."""
    head = width // num_heads
    _check(
        x.dim() == 3 and x.shape[0] == count * num_heads and x.shape[2] == head,
        "static_k and static_v of shape ({}, S, {}); got {}",
        count * num_heads,
        head,
        tuple(x.shape),
    )
    return x.reshape(count, num_heads, x.shape[1], head)


def _grown(mask: Tensor | None) -> Tensor | None:
    """A mask with one more key, which all see."""
    return None if mask is None else ops.pad_constant(mask, (0, 1))
