"""Handlers of ONNX's attention ops: Attention, FlexAttention, RotaryEmbedding."""

from __future__ import annotations

import math
from typing import Any

import jitgrad as jg
from jitgrad.onnx.importing.calls import Call, as_tensor, dtype_of, handler
from jitgrad.tensor import Tensor


def _heads(x: Tensor, heads: int) -> Tensor:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


@handler("Attention")
def attention(c: Call) -> Any:
    """Vaswani et al. (2017), with grouped heads, a cache, a soft cap, and what the scores are at
    the stage that qk_matmul_output_mode names."""
    q, k, v = (c.tensor(i) for i in range(3))
    flat = q.ndim == 3
    c.ignore("q_num_heads", "kv_num_heads")
    if flat:
        q = _heads(q, c.attr("q_num_heads"))
        k, v = (_heads(x, c.attr("kv_num_heads")) for x in (k, v))
    if c.has(4):
        k = jg.cat([c.tensor(4), k], 2)
    if c.has(5):
        v = jg.cat([c.tensor(5), v], 2)
    present = k, v
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    dtype = q.dtype
    scale = c.attr("scale", None)
    root = math.sqrt(scale or 1 / math.sqrt(q.shape[-1]))
    scores = jg.matmul(q * root, (k * root).transpose(-1, -2))
    kept = [scores]  # by mode: the product, capped, with the mask, after softmax
    bias, cap = _bias(c, q, k), c.attr("softcap", 0.0)
    scores = cap * jg.tanh(scores / cap) if cap > 0 else scores
    kept.append(scores)
    scores = scores if bias is None else scores + bias
    kept.append(scores)
    precision = c.attr("softmax_precision", 0)
    exact = dtype_of(precision) if precision else dtype
    if exact in (jg.float16, jg.bfloat16):
        exact = jg.float32
    wide = scores.to(exact)
    weights = jg.softmax(wide, -1)
    empty = jg.isneginf(wide).all(-1, keepdim=True)
    weights = jg.where(empty, jg.zeros_like(weights), weights).to(dtype)
    kept.append(weights)
    y = jg.matmul(weights, v)
    if flat:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return y, *present, kept[c.attr("qk_matmul_output_mode", 0)]


def _bias(c: Call, q: Tensor, k: Tensor) -> Tensor | None:
    """What is added to the scores: the mask, what lies in the future, what is padding."""
    low = float("-inf")
    rows, columns = q.shape[2], k.shape[2]
    bias: Tensor | None = None
    if c.has(3):
        mask = c.tensor(3)
        if mask.dtype is jg.bool:
            mask = jg.where(mask, jg.zeros((), dtype=q.dtype), jg.full((), low, dtype=q.dtype))
        if mask.shape[-1] < columns:
            missing = (*mask.shape[:-1], columns - mask.shape[-1])
            mask = jg.cat([mask, jg.full(missing, low, dtype=mask.dtype)], -1)
        bias = mask
    before: Any = 0  # how many keys lie before the first query
    if c.has(4):
        before = columns - k_new(c)
    elif c.has(6):
        before = c.tensor(6).reshape(-1, 1, 1, 1) - rows
    queries = jg.arange(rows).reshape(-1, 1) + before
    keys = jg.arange(columns)
    left, right = c.attr("left_window_size", -1), c.attr("right_window_size", -1)
    if c.attr("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    hidden = []
    if right >= 0:
        hidden.append(keys > queries + right)
    if left >= 0:
        hidden.append(keys < queries - left)
    if c.has(6):
        hidden.append(keys >= c.tensor(6).reshape(-1, 1, 1, 1))
    for mask in hidden:
        part = jg.where(mask, jg.full((), low, dtype=q.dtype), jg.zeros((), dtype=q.dtype))
        bias = part if bias is None else bias + part
    return bias


def k_new(c: Call) -> int:
    """The number of keys besides the cached ones."""
    k = c.value(1)
    return int(k.shape[1] if k.ndim == 3 else k.shape[2])


@handler("FlexAttention", domain="ai.onnx.preview")
def flex_attention(c: Call) -> Tensor:
    """Dong et al. (2024): attention whose scores and probabilities graphs of the model change."""
    q, k, v = (c.tensor(i) for i in range(3))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    precision = c.attr("softmax_precision", 0)
    exact = dtype_of(precision) if precision else jg.float32
    if q.dtype is jg.float64:
        exact = jg.float64
    scale = c.attr("scale", None)
    scores = jg.matmul(q, k.transpose(-1, -2)) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = _modified(c, "score_mod", scores.to(exact))
    weights = _modified(c, "prob_mod", jg.softmax(scores, -1))
    return jg.matmul(weights.to(v.dtype), v)


def _modified(c: Call, name: str, x: Tensor) -> Tensor:
    """What a graph of one input and one output makes of a tensor; itself where there is none."""
    if c.attr(name, None) is None:
        return x
    (y,) = c.run.subgraph(c, c.graph(name), [x])
    return as_tensor(y)


@handler("RotaryEmbedding")
def rotary_embedding(c: Call) -> Tensor:
    """Su et al. (2021), "RoFormer": pairs of features rotated by their position."""
    x, cos, sin = c.tensor(0), c.tensor(1), c.tensor(2)
    flat = x.ndim == 3
    if flat:
        x = _heads(x, c.attr("num_heads"))
    c.ignore("num_heads")
    part = c.attr("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :part], x[..., part:]
    if c.has(3):
        places = c.tensor(3).to(jg.int64)
        cos, sin = cos[places], sin[places]
    cos, sin = (t[..., : part // 2].unsqueeze(1) for t in (cos, sin))
    if c.attr("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
        y = jg.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turned.shape)
    else:
        a, b = turned[..., : part // 2], turned[..., part // 2 :]
        y = jg.cat([a * cos - b * sin, b * cos + a * sin], -1)
    y = jg.cat([y, rest], -1) if rest.shape[-1] else y
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y
