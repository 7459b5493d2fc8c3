"""Views, in-place writes, and what the tape makes of them."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgrad as t
from jitgrad.autograd import gradcheck, gradgradcheck


def leaf(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return t.from_numpy(values).requires_grad_()


def test_views_share_memory_and_versions():
    x = t.zeros(3, 4)
    views = [x[0], x[:, 1], x.T, x.reshape(12), x.view(2, 6), x[None], x[1:, ::2], x.diagonal()]
    for v in views:
        before = x._version
        v.add_(1)
        assert x._version == before + 1 == v._version
        assert v._storage is x._storage
    assert x.numpy()[0, 0] == 6


@pytest.mark.parametrize(
    ("view", "ok"),
    [
        (lambda x: x.unfold(0, 2, 1), False),
        (lambda x: x.unfold(0, 2, 2), True),
        (lambda x: x.unfold(1, 2, 1)[::2], False),
        (lambda x: x.unfold(0, 2, 2)[:1], True),
        (lambda x: x.t(), True),
        (lambda x: x[1:, ::2], True),
        (lambda x: x.expand(1, 4, 5), True),
        (lambda x: x[:1].expand(1, 1, 5), True),
        (lambda x: x[:1].expand(2, 5), False),
        (lambda x: x.expand(3, 4, 5), False),
    ],
)
def test_a_view_that_shows_elements_twice_is_not_written(view, ok):
    """In eager code and when compiled: what the write would leave behind is not defined."""
    base = np.arange(20.0).reshape(4, 5)

    def f(x):
        view(x).mul_(2)
        return x + 1

    for run in (f, t.jit(f, fallback="error")):
        for _ in range(2):
            x = t.tensor(base)
            if ok:
                run(x)
                assert not np.array_equal(x.numpy(), base)
                assert set((x.numpy() / np.where(base == 0, 1, base)).ravel()) <= {0, 1, 2}
            else:
                with pytest.raises(RuntimeError, match="more than one element"):
                    run(x)
                assert np.array_equal(x.numpy(), base)


def test_part_of_windows_that_overlap_is_written():
    def f(x):
        x.unfold(0, 3, 1)[:1].mul_(2)
        return x + 1

    g = t.jit(f)
    x = t.ones(5)
    got = [g(x).tolist() for _ in range(2)]
    assert got == [[3, 3, 3, 2, 2], [5, 5, 5, 2, 2]]


def test_copies_do_not_share():
    x = t.zeros(3, 4)
    for c in (x.clone(), x + 0, x.T.reshape(12), x.flip(0), x[[0, 1]], x.float() * 1, t.cat([x])):
        assert c._storage is not x._storage
        c.add_(1)
    assert x.sum().item() == 0


def test_chain_rebuilds_the_view():
    x = t.arange(24).reshape(2, 3, 4).clone()
    v = x[1].T[1:, ::2]
    data = x.numpy()
    for op, attrs in v._chain:
        data = op.reference(data, **attrs)
    assert np.array_equal(data, v.numpy())


FUNCTIONS = {
    "add_": lambda x: (x * 1).add_(x),
    "mul_ by itself": lambda x: _chain(x, lambda y: y.mul_(y)),
    "mul_ by a leaf": lambda x: _chain(x, lambda y: y.mul_(x)),
    "exp_": lambda x: _chain(x, lambda y: y.exp_()),
    "div_": lambda x: _chain(x, lambda y: y.div_(x * x + 1)),
    "row": lambda x: _write(x, lambda y: y[0].mul_(y[1])),
    "row assign": lambda x: _write(x, lambda y: y.__setitem__(0, y[1] * x[2])),
    "column": lambda x: _write(x, lambda y: y[:, 1].copy_(x[:, 0] * 2)),
    "view of a view": lambda x: _write(x, lambda y: y[1:][:, 1:3].mul_(x[:2, :2])),
    "reshape": lambda x: _write(x, lambda y: y.view(-1)[3].fill_(7.0)),
    "transpose": lambda x: _write(x, lambda y: y.T[2].add_(y[0, 0])),
    "steps": lambda x: _write(x, lambda y: y[::2, ::2].mul_(3.0)),
    "diagonal": lambda x: _write(x, lambda y: y.diagonal().mul_(x.diagonal())),
    "mask": lambda x: _write(x, lambda y: y.__setitem__(x.detach() > 0, 0.0)),
    "index": lambda x: _write(x, lambda y: y.__setitem__([0, 2], x[1])),
    "overlap": lambda x: _write(x, lambda y: y.__setitem__(slice(1, None), y[:-1] * 1)),
    "zero_": lambda x: _write(x, lambda y: y[1].zero_()),
    "masked_fill_": lambda x: _write(x, lambda y: y.masked_fill_(x.detach() > 0, 2.0)),
    "scatter_add_": lambda x: _write(
        x, lambda y: y.scatter_add_(1, t.zeros(3, 4, dtype=t.int64), x * 2)
    ),
}


def _chain(x, change):
    y = x * 2
    change(y)
    return y * x


def _write(x, change):
    y = x * 2
    before = y[0] + y[1]
    view = y[1]
    change(y)
    return y * x.sum() + before + view


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_through_writes(name):
    x = leaf(3, 4)
    assert gradcheck(FUNCTIONS[name], x)
    assert gradgradcheck(FUNCTIONS[name], x)


def test_base_that_needs_no_grad_becomes_part_of_the_graph():
    base = t.zeros(3, dtype=t.float64)
    view, other = base[1:], base[:2]
    w = leaf(2)
    view.copy_(w * 3)
    assert base.requires_grad and view.requires_grad and other.requires_grad
    (other * t.tensor([1.0, 10.0], dtype=t.float64)).sum().backward()
    assert w.grad.tolist() == [30.0, 0.0]


def test_view_is_derived_again_after_a_write_to_its_base():
    x = leaf(3)
    y = x * 1
    v = y[0]
    y.mul_(5)
    assert v.grad_fn.name() == "ViewBackward0"
    v.backward()
    assert x.grad.tolist() == [5.0, 0.0, 0.0]


def test_value_leaf_gets_its_gradient():
    w = leaf(3)
    y = t.zeros(3, dtype=t.float64)
    y.copy_(w)
    (y * 2).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]


def test_overwritten_tensor_still_requires_grad():
    x = leaf(3)
    y = x * 2
    y.zero_()
    assert y.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_leaf_errors():
    x = leaf(3)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x[0].add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x[1:] = 0
    assert x._version == 0
    with t.no_grad():
        x.add_(1)
        x[0].add_(1)
    assert x._version == 2


def test_view_made_in_no_grad_mode():
    x = leaf(3)
    y = x * 1
    with t.no_grad():
        v = y[0]
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        v.add_(1)
    with t.no_grad():
        v.add_(1)


def test_expanded_tensor():
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        t.zeros(1).expand(3).add_(1)
    t.zeros(1).expand(1).add_(1)


def test_shape_of_result_must_fit():
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        t.zeros(3).add_(t.zeros(2, 3))


def test_saved_tensor_changed():
    x = leaf(3)
    y = x * 2
    z = y * y
    line = y.grad_fn.line
    y.add_(1)
    with pytest.raises(RuntimeError) as caught:
        z.sum().backward()
    text = str(caught.value)
    assert "modified by an inplace operation" in text and "[mul]" in text
    assert "is at version 1; expected version 0" in text
    assert "test_inplace_views.py" in text and line.rsplit(":", 1)[0] in text


def test_saved_result_changed():
    x = leaf(3)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="its result.*saved by exp"):
        y.sum().backward()


def test_type_only_operands_may_change():
    x = leaf(3)
    y = x * 1
    z = y + 1
    y.mul_(2)
    (z.sum() + y.sum()).backward()
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_detach_shares_the_version_counter():
    x = leaf(3)
    y = x * 2
    z = y * y
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_data_hides_writes():
    x = leaf(3)
    z = x * x
    x.data.mul_(2)
    x.data[0].mul_(2)
    assert x._version == 0 and x._storage.version == 2
    z.sum().backward()


def test_setting_data():
    x = leaf(3)
    z = x * x
    old = x.detach().clone()
    x.data = t.ones(3, dtype=t.float64)
    z.sum().backward()
    # The values that were saved count, not the new ones.
    assert np.allclose(x.grad.numpy(), 2 * old.numpy())
    assert x.tolist() == [1.0, 1.0, 1.0] and x.requires_grad


def test_in_place_op_keeps_the_old_value_for_its_own_derivative():
    w = leaf(3)
    y = t.full((3,), 2.0, dtype=t.float64)
    y.mul_(w)
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]


def test_graph_is_freed_by_reference_counting():
    gc.disable()
    try:
        x = leaf(3)
        y = x * 2
        y[0] = y[1] * 3
        y.exp_()
        z = (y.exp() * y.view(3)).sum()
        refs = [weakref.ref(n) for n in _nodes(z)]
        assert len(refs) > 5
        del y, z
        assert all(r() is None for r in refs)
    finally:
        gc.enable()


def _nodes(z):
    seen, stack = [], [z.grad_fn]
    while stack:
        n = stack.pop()
        if any(n is m for m in seen):
            continue
        seen.append(n)
        stack.extend(e for e in n.edges if hasattr(e, "edges"))
    return seen


# Random programs of views and writes, against the same program on NumPy.
STEPS = st.lists(
    st.tuples(st.sampled_from(["view", "write", "base"]), st.integers(0, 5), st.integers(0, 3)),
    min_size=1, max_size=8,
)  # fmt: skip


def _view(x, kind, np_like):
    if kind == 0 and x.ndim:
        return x[x.shape[0] // 2 :]
    if kind == 1 and x.ndim == 2:
        return x.T
    if kind == 2 and x.ndim:
        return x[::2]
    if kind == 3 and x.ndim == 2:
        return x[:, -1]
    if kind == 4:
        return x[None]
    if kind == 5 and x.ndim and x.shape[0]:
        return x[0, ...]  # of one dim, NumPy's x[0] would be a number and no view
    return x[...]


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_random_programs(steps):
    def run(make):
        base = make(np.arange(12.0).reshape(3, 4))
        views = [base]
        for what, kind, which in steps:
            v = views[which % len(views)]
            if what == "view" and v.ndim < 4:
                views.append(_view(v, kind, make))
            elif what == "write":
                v[...] = v * 0.5 + kind
            else:
                base[...] = base + views[-1].sum()
        return base, views

    want, want_views = run(lambda a: a.copy())
    got, got_views = run(lambda a: t.from_numpy(a.copy()))
    assert np.allclose(got.numpy(), want)
    for a, b in zip(got_views, want_views, strict=True):
        assert np.allclose(a.numpy(), b)

    def through(x):
        out, views = run(lambda a: x * 1)
        return out * views[-1].sum()

    assert gradcheck(through, leaf(3, 4), eps=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[0:0], lambda x: x.unfold(0, 1, 2), lambda x: x.t(), lambda x: x.reshape(0, 4)],
)
def test_a_view_of_no_elements_is_a_view(view):
    x = t.zeros(4, 0)
    v = view(x)
    assert v._base is x
    v.fill_(2.0)
    assert x._version == v._version == 1


def test_windows_of_no_elements():
    x = t.arange(6.0).reshape(3, 2)
    assert x.unfold(0, 0, 2).shape == (2, 2, 0)
    assert x.unfold(1, 0, 1).shape == (3, 3, 0)
