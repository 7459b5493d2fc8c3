"""What Python asks of tensors besides their values, under @jit: never the answer of another call.

Each property is asked of tensors that agree in all else that is guarded, as arguments, captured,
and through a view made inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jitgrad as jg
from jitgrad.jit import jit
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob


def plain() -> list[Any]:
    base = jg.arange(12.0).reshape(4, 3)
    return [jg.ones(2, 3), base[2:], base[1:3], base.detach()[1:3], jg.rand(20, 3)[:2],
            jg.ones(3, 2).T, jg.ones(2, 3)]  # fmt: skip


def on_the_tape() -> list[Any]:
    leaf = jg.ones(2, 3, requires_grad=True)
    kept = leaf * 3
    kept.retain_grad()
    parts = jg.ones(2, 2, 3, requires_grad=True).unbind(0)
    tall = jg.ones(4, 3, requires_grad=True) * 2
    return [leaf, leaf * 2, leaf + 2, tall[1:3], tall.detach().requires_grad_()[:2], kept,
            *parts, *jg.stack([leaf, leaf]).split(1), *jg.cummax(leaf, 0)[:1]]  # fmt: skip


def _named(node: Any) -> str | None:
    """What a node of the tape is, without its address."""
    return None if node is None else type(node).__name__


ASKED: dict[str, Callable[[Any], Any]] = {
    "storage_offset": lambda x: x.storage_offset(),
    "_base": lambda x: None if x._base is None else (x._base.shape, x._base.is_leaf),
    "_is_view": lambda x: x._is_view(),
    "retains_grad": lambda x: x.retains_grad,
    "grad_fn": lambda x: _named(x.grad_fn),
    "grad_fn.name": lambda x: None if x.grad_fn is None else x.grad_fn.name(),
    "next_functions": lambda x: x.grad_fn and [_named(n) for n, _ in x.grad_fn.next_functions],
    "next of an op": lambda x: [
        (_named(n), k) for n, k in (x * jg.ones(1, requires_grad=True)).grad_fn.next_functions
    ],
    "output_nr": lambda x: x.output_nr,
    "nbytes of the storage": lambda x: x.untyped_storage().nbytes(),
    "size of the storage": lambda x: (x.storage().size(), len(x.untyped_storage())),
    "text of the storage": lambda x: str(x.storage()),
    "data of the storage": lambda x: x.storage().tolist(),
    "address of the storage": lambda x: x.untyped_storage().data_ptr(),
    "stride": lambda x: x.stride(),
    "is_contiguous": lambda x: x.is_contiguous(),
    "dim_order": lambda x: x.dim_order(),
    "is_leaf": lambda x: x.is_leaf,
    "requires_grad": lambda x: x.requires_grad,
    "version": lambda x: x._version,
    "is_set_to": lambda x: x.is_set_to(x[:]),
    "as_strided": lambda x: x.detach().as_strided((2,), (1,), 0).tolist(),
}
FREE = ("stride", "is_contiguous", "dim_order", "is_leaf", "requires_grad")
GUARDED = ("storage_offset", "_base", "_is_view", "retains_grad", "output_nr",
           "nbytes of the storage", "size of the storage")  # fmt: skip
INSIDE = ("storage_offset", "_is_view", "nbytes of the storage", "retains_grad", "_base")


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("make", [plain, on_the_tape])
@pytest.mark.parametrize("captured", [False, True])
def test_answers_are_those_of_the_tensor_of_the_call(name: str, make: Any, captured: bool) -> None:
    ask = ASKED[name]
    cell: list[Any] = [None]

    def by_argument(x: Any) -> Any:
        return x.detach() * 2, ask(x)

    def by_cell() -> Any:
        return cell[0].detach() * 2, ask(cell[0])

    f = jit(by_cell if captured else by_argument, fallback="silent")
    tensors = make()
    wanted = [ask(x) for x in tensors]
    for _ in range(2):
        for x, want in zip(tensors, wanted, strict=True):
            cell[0] = x
            twice, got = f() if captured else f(x)
            assert got == want
            assert twice.equal(x.detach() * 2)
    if name in FREE or name in GUARDED:
        assert f.stats.fallbacks == 0 and f.stats.hits > 0


@pytest.mark.parametrize("name", INSIDE)
def test_views_made_inside(name: str) -> None:
    ask = ASKED[name]

    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x * 2, ask(x[1:]), ask(x * 2), ask((x * 2)[1:])

    for x in plain() * 2:
        assert f(x)[1:] == f.__wrapped__(x)[1:]
    assert f.stats.hits > 0


def test_a_strided_view_of_an_argument_lies_where_the_argument_does() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x.as_strided((2,), (1,), 0) * 1, x.as_strided((2,), (1,)) * 1

    for x in [jg.rand(2, 3), jg.rand(2, 3)] * 2:
        assert all(a.equal(b) for a, b in zip(f(x), f.__wrapped__(x), strict=True))
    assert f.stats.traces == 1


@pytest.mark.parametrize("name", ["grad_fn", "version", "address of the storage"])
@knob(segments=False)
def test_what_cannot_be_guarded_is_refused(name: str) -> None:
    with pytest.raises(CompileError, match="grad_fn|in Python"):
        jit(lambda x: (x * 2, ASKED[name](x)), fallback="error")(on_the_tape()[1])
