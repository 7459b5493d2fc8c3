"""Errors about tensors that were changed in place before backward name saver and changer."""

from __future__ import annotations

from typing import Any

import pytest

import jitgrad as jg


@pytest.mark.parametrize(("change", "name"), [
    (lambda y: y.mul_(2), "mul_"),
    (lambda y: y.add_(1), "add_"),
    (lambda y: y.__setitem__(0, 1.0), "an assignment to a part of it"),
    (lambda y: y[1:].zero_(), "fill_"),
    (lambda y: y.relu_(), "relu_"),
    (lambda y: y.copy_(jg.ones(3)), "copy_"),
])  # fmt: skip
def test_the_error_about_a_change_in_place_names_both_lines(change: Any, name: str) -> None:
    def forward(x: Any) -> Any:
        return x.exp()

    for f in (forward, jg.jit(forward, fallback="error")):
        for _ in range(2):  # plain, recorded, compiled
            y = f(jg.ones(3, requires_grad=True))
            change(y)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                y.sum().backward()
            text = str(caught.value)
            saved = forward.__code__.co_firstlineno + 1
            changed = change.__code__.co_firstlineno
            assert f"saved by exp (ExpBackward0) at {__file__}:{saved}" in text
            assert f"It was changed by {name}" in text and f"at {__file__}:{changed}." in text
            assert "Hint: use the out-of-place form" in text


def test_a_change_by_code_that_is_not_seen_is_not_blamed_on_another() -> None:
    x = jg.ones(3, requires_grad=True)
    y = x.exp()
    y.mul_(1)
    y._storage.version += 1  # as compiled code does
    with pytest.raises(RuntimeError, match="modified by an inplace") as caught:
        (y * 1).sum().backward()
    assert "It was changed by" not in str(caught.value)
