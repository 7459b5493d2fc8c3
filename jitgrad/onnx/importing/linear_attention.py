"""Handlers of what linear-attention models are made of: LinearAttention, CausalConvWithState.

A state carries what came before, so a call may take a whole prompt or one token. The recurrence
runs as jitgrad.scan: one node, however long the sequence is.
"""

from __future__ import annotations

import math
from typing import Any

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import Call, handler
from jitgrad.tensor import Tensor


@handler("CausalConvWithState")
def causal_conv_with_state(c: Call) -> Any:
    """Each channel by a kernel of its own over what is at and before a place; the state is the last
    places of the padded input."""
    x, weight = c.tensor(0), c.tensor(1)
    if x.ndim != 3 or weight.ndim != 3:
        raise ValueError(f"expected an input and a weight of 3 dims; got {x._type}, {weight._type}")
    before = weight.shape[2] - 1
    past = c.optional(3)
    if past is None:
        past = jg.zeros((x.shape[0], x.shape[1], before), dtype=x.dtype)
    padded = jg.cat([past, x], 2)
    y = F.conv1d(padded, weight, c.optional(2), groups=x.shape[1])
    activation = c.attr("activation", "none")
    if activation in ("silu", "swish"):
        y = F.silu(y.float()).to(y.dtype)
    elif activation != "none":
        c.unsupported(f"activation {activation!r}")
    return y, padded[:, :, padded.shape[2] - before :]


@handler("LinearAttention")
def linear_attention(c: Call) -> Any:
    """S = exp(g) S + k (b (v - k S))', o = scale q S, for each token; without g or b by the rule
    (Yang et al., 2025, "Gated delta networks"). Computed in float32."""
    rule = c.attr("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        c.unsupported(f"update_rule {rule!r}")
    gated, delta = "gated" in rule, "delta" in rule
    if c.has(4) != gated or c.has(5) != delta:
        raise ValueError(f"expected decay and beta as update_rule {rule!r} takes them")
    c.ignore("chunk_size")  # how it may be computed, not what
    heads, shared = c.attr("q_num_heads"), c.attr("kv_num_heads")
    query, key, value = (c.tensor(i) for i in range(3))
    size = query.shape[2] // heads

    def by_time(x: Tensor, count: int) -> Tensor:
        """(time, batch, heads, size) of (batch, time, heads * size), in float32."""
        return x.float().unflatten(2, (count, -1)).transpose(0, 1)

    parts = {"q": by_time(query, heads), "k": by_time(key, shared), "v": by_time(value, shared)}
    if gated:
        parts["g"] = by_time(c.tensor(4), shared).exp()
    if delta:
        beta = c.tensor(5)
        parts["b"] = by_time(beta, beta.shape[2])
    past = c.optional(3)
    state = past
    if state is None:
        state = jg.zeros((query.shape[0], shared, size, value.shape[2] // shared))
    scale = c.attr("scale", 0.0) or 1 / math.sqrt(size)

    def step(state: Tensor, now: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        key, value = now["k"][..., None], now["v"][..., None, :]
        if gated:
            state = state * now["g"][..., None]
        if delta:
            value = now["b"][..., None] * (value - (state * key).sum(-2, keepdim=True))
        state = state + key * value
        read = state.repeat_interleave(heads // shared, 1) if heads != shared else state
        return state, (now["q"][..., None] * read).sum(-2) * scale

    last, outputs = jg.scan(step, state.float(), parts)
    kind = query.dtype if past is None else past.dtype
    return outputs.transpose(0, 1).flatten(2).to(query.dtype), last.to(kind)
