"""Handlers of ONNX's ops for features (ai.onnx.ml): Binarizer, ArrayFeatureExtractor."""

from __future__ import annotations

from typing import Any

from jitgrad.onnx.importing.calls import Call, handler

_DOMAIN = "ai.onnx.ml"


@handler("Binarizer", domain=_DOMAIN)
def binarizer(c: Call) -> Any:
    """1 where the input is greater than the threshold, else 0."""
    x = c.tensor(0)
    return (x > c.attr("threshold", 0.0)).to(x.dtype)


@handler("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(c: Call) -> Any:
    """Elements of the last axis, by number; of a vector a row."""
    found = c.tensor(0).index_select(-1, c.tensor(1).flatten())
    return found[None] if found.ndim == 1 else found
