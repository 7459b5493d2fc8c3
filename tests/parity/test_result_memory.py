"""Which results are views, and which memory they are on: as PyTorch's, by its op database."""

from typing import Any

import pytest
from parity.compare import torch
from parity.op_database import convert, entries, is_tensor, label, leaves, ours, samples_of

import jitgrad

# Sharing that is PyTorch's, and not here, or the other way round.
EXCEPTIONS = {
    "ravel": "samples whose elements are not in row-major order, which copies of them are",
    "float": "the same",
    "unsafe_chunk": "results are followed by the tape, as those of chunk",
    "unsafe_split": "the same",
    "nn.functional.dropout3d": "without a batch, p=0: the input itself, not a view of it",
}
FIRST = (torch.float32, torch.int64, torch.complex64)


def dtype_of(entry: Any) -> Any:
    supported = entry.supported_dtypes("cpu")
    return next((d for d in FIRST if d in supported), None)


def tensors(x: Any) -> list[Any]:
    return [y for y in leaves(x) if is_tensor(y)]


def differences(entry: Any, function: Any, dtype: Any) -> str | None:
    for sample in samples_of(entry, dtype, False, 6):
        given = (sample.input, sample.args, sample.kwargs)
        mine = convert(given)
        try:
            theirs = entry.op(given[0], *given[1], **given[2])
            made = function(mine[0], *mine[1], **mine[2])
        except (RuntimeError, AttributeError):  # test_op_database.py compares these
            continue
        addresses = {x.untyped_storage().data_ptr() for x in tensors(given)}
        storages = [x._storage for x in tensors(mine)]
        for x, y in zip(tensors(theirs), tensors(made), strict=True):
            shared = any(y._storage is s for s in storages)
            if x.numel() and shared != (x.untyped_storage().data_ptr() in addresses):
                return f"{given[1:]}: on memory of an operand: {shared}"
            # A view of what PyTorch's function computed itself is a tensor of its own here.
            if y._is_view() and not x._is_view() or shared and x._is_view() != y._is_view():
                return f"{given[1:]}: _is_view() is {y._is_view()}"
    return None


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_results_are_views_and_share_memory_as_pytorch_s():
    found = {}
    count = 0
    for entry in entries():
        function, dtype = ours(entry.op, entry.name), dtype_of(entry)
        if function is not None and dtype is not None and label(entry) not in EXCEPTIONS:
            count += 1
            text = differences(entry, function, dtype)
            if text is not None:
                found[label(entry)] = text
    assert not found
    assert count > 550


def made(framework: Any) -> dict[str, Any]:
    """Results of functions composed of ops, and tensors that became another in place."""
    nn, x = framework.nn, framework.ones(2, 4, 3, requires_grad=True)
    square = framework.ones(1, 1, 4, 4, requires_grad=True)
    results = {
        "interpolate": nn.functional.interpolate(square, scale_factor=2),
        "embedding": nn.Embedding(5, 3)(framework.tensor([[1, 2]])),
        "max": x.max(1).values,
        "gru": nn.GRU(3, 2, batch_first=True)(x)[0],
        "rnn": nn.RNN(3, 2, batch_first=True)(x)[0],
        "matrix by vector": x[0] @ framework.ones(3),
        "group_norm": nn.GroupNorm(2, 4)(x),
        "repeat": x.repeat(2, 1, 1),
        "pixel_shuffle": nn.PixelShuffle(2)(x.reshape(1, 4, 2, 3)),
        "unfold": nn.functional.unfold(square, 2),
        "kron": framework.kron(x[0], x[1]),
    }
    for name, arguments in {
        "unsqueeze_": (0,), "t_": (), "squeeze_": (), "transpose_": (0, 1), "swapdims_": (0, 1),
        "as_strided_": ((3,), (1,)), "resize_": ((3, 2),),
    }.items():  # fmt: skip
        y = x[0].detach()[:2].clone()
        results[name] = getattr(y, name)(*arguments)
        if name != "resize_":
            results[f"{name} on the tape"] = getattr(x[0] * 2, name)(*arguments)
    return results


def test_what_is_no_view_can_be_detached_in_place():
    for name, y in made(torch).items():
        assert not y._is_view(), name
        y.detach_()
    for name, y in made(jitgrad).items():
        assert not y._is_view() and y._base is None, name
        assert y.detach_() is y and not y.requires_grad and y.is_leaf, name
        y.add_(1)
        y.requires_grad_()
        (y * 2).sum().backward()
        assert y.grad.unique().tolist() == [2.0], name


def test_what_is_a_view_cannot():
    for framework in (torch, jitgrad):
        x = framework.ones(2, 3)
        y = x.view(3, 2)
        for view in (x.t(), (x * 1).sin().t(), x[0], x.expand(4, 2, 3), y.unsqueeze_(0)):
            assert view._is_view()
            with pytest.raises(RuntimeError):
                view.detach_()


def test_views_of_a_tensor_that_was_detached_in_place_follow_it():
    for framework in (torch, jitgrad):
        x = framework.ones(2, 3, requires_grad=True)
        y = (x * 2).unsqueeze_(0)
        y.detach_()
        view = y[0]
        view.mul_(x)
        y.sum().backward()
        assert x.grad.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("grad", [False, True])
def test_results_of_compiled_code_are_views_as_eager_ones(grad):
    @jitgrad.jit(fallback="error")
    def f(x):
        return jitgrad.kron(x, x), (x * 2).t()

    x = jitgrad.ones(2, 2, requires_grad=grad)
    for _ in range(3):
        product, turned = f(x)
        assert not product._is_view()
        assert product.detach_().tolist() == jitgrad.ones(4, 4).tolist()
        assert turned.tolist() == [[2.0, 2.0]] * 2


def test_writes_to_results_leave_operands_as_they_are():
    functional = jitgrad.nn.functional
    one = jitgrad.ones(1, 4, 1, 1)
    for made in (
        one.repeat_interleave(2, 2), functional.pixel_shuffle(one, 2),
        functional.channel_shuffle(one, 4), functional.interpolate(one, scale_factor=3),
        one.diff(n=0), jitgrad.chain_matmul(one[0, :, 0]), jitgrad.native_channel_shuffle(one, 2),
    ):  # fmt: skip
        made.mul_(3)
        assert made.unique().tolist() == [3.0] and one.sum().item() == 4


def test_native_channel_shuffle_computes_at_each_call():
    x = jitgrad.ones(1, 4, 1, 1)
    jitgrad.native_channel_shuffle(x, 2)
    x.mul_(2)
    assert jitgrad.native_channel_shuffle(x, 2).sum().item() == 8
