"""Tensors of the user's on different devices: every public function of several raises, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad
from jitgrad import nn
from jitgrad.compiler.ops import OPS
from jitgrad.gpu import kernels

pytest.importorskip("torch", reason="the arguments are of PyTorch's database")
from parity.op_database import DTYPES, convert, entries, label, ours, samples_of

TEXTS = ("same device", "on different devices", "must match", "to be on cpu")
# Functions that read the shape of one tensor only, or give each as it is, and the places of those
# that may be on the CPU, as in PyTorch.
ALLOWED = {
    "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "expand_as", "reshape_as",
    "view_as", "resize_as_",
}  # fmt: skip
ON_CPU = {
    "tensor_split": [(1, 0)],
    "index_put": [(1, 0, 0), (1, 0, 1)],
    "nn.functional.ctc_loss": [(1, 1), (1, 2)],
}


@pytest.fixture(autouse=True)
def kernels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What runs before operands meet is computed by references: here only the meeting counts."""

    def run(self: Any, *arrays: Any) -> Any:
        found = self.op.reference(*map(kernels.host_array, arrays), **self.attrs)
        many = found if isinstance(found, tuple) else (found,)
        types = self.op.infer(*self.types, **self.attrs)
        types = types if isinstance(types, tuple) else (types,)
        made = [
            kernels.moved(np.array(x, order="C"), t.device)
            for x, t in zip(many, types, strict=True)
        ]
        return made[0] if self.op.nout == 1 else tuple(made)

    monkeypatch.setattr(kernels._OnDevice, "__call__", run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def places(x: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tensors in arguments, with where they are."""
    if isinstance(x, jitgrad.Tensor):
        yield path, x
    elif isinstance(x, (tuple, list)) and not isinstance(x, jitgrad.Size):
        for i, y in enumerate(x):
            yield from places(y, (*path, i))
    elif isinstance(x, dict):
        for i, y in x.items():
            yield from places(y, (*path, i))


def with_each(x: Any, f: Callable[[Any, Any], Any], path: tuple[Any, ...] = ()) -> Any:
    """Arguments with f(path, tensor) in the place of each tensor."""
    if isinstance(x, jitgrad.Tensor):
        return f(path, x)
    if isinstance(x, dict):
        return {k: with_each(v, f, (*path, k)) for k, v in x.items()}
    if isinstance(x, (tuple, list)) and not isinstance(x, jitgrad.Size):
        items = [with_each(v, f, (*path, i)) for i, v in enumerate(x)]
        return type(x)(items) if type(x) in (tuple, list) else type(x)(*items)
    return x


def mixed_calls(entry: Any) -> Iterator[tuple[str, Any, Any]]:
    """(what, function, arguments): for each tensor with dims, a call with it alone on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = next((d for d in DTYPES if d in entry.dtypes), None)
        if dtype is None:
            return
        samples = samples_of(entry, dtype, False, 6)
    forms = [(entry.name, ours(entry.op, entry.name))]
    if entry.inplace_variant is not None:
        name = getattr(entry.inplace_variant, "__name__", "")
        forms.append((name, ours(entry.inplace_variant, name)))
    seen = set()
    for sample in samples:
        given = (convert(sample.input), convert(sample.args), convert(sample.kwargs))
        found = [path for path, x in places(given) if x.ndim and x.numel()]
        if len(found) < 2 or tuple(found) in seen:
            continue
        seen.add(tuple(found))
        for name, function in forms:
            if function is None or (name != entry.name and sample.broadcasts_input):
                continue
            for one in found:
                if one not in ON_CPU.get(entry.name, ()):
                    call = with_each(given, lambda path, x, one=one: x if path == one else x.cuda())
                    yield f"{name} {one}", function, call


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.name not in ALLOWED], ids=[
        label(e) for e in entries() if e.name not in ALLOWED
    ],
)  # fmt: skip
def test_functions(entry: Any) -> None:
    for what, function, (first, rest, options) in mixed_calls(entry):
        with pytest.raises(RuntimeError) as error:
            function(first, *rest, **options)
        text = str(error.value)
        assert any(t in text for t in TEXTS) and "cuda" in text, f"{what}: {text}"


@pytest.mark.parametrize("name", sorted(OPS))
def test_records(name: str) -> None:
    op = OPS[name]
    for sample in op.samples():
        arrays = [np.array(a) for a in sample.args]
        with_dims = [k for k, a in enumerate(arrays) if a.ndim]
        if len(with_dims) < 2 or op.bodies:
            continue
        for one in with_dims:
            tensors = [jitgrad.tensor(a) for a in arrays]
            tensors = [x if k == one else x.cuda() for k, x in enumerate(tensors)]
            with pytest.raises(RuntimeError, match="on the same device.*cpu and cuda:0"):
                op(*tensors, **sample.attrs)


def _optimizer_of_moved() -> Any:
    model = nn.Linear(2, 2)
    optimizer = jitgrad.optim.Adam(model.parameters())
    for device in ("cpu", "cuda"):
        model.to(device)
        optimizer.zero_grad()
        model(jitgrad.ones(1, 2, device=device)).sum().backward()
        optimizer.step()


C, H = (lambda *shape: jitgrad.ones(*shape).cuda()), (lambda *shape: jitgrad.ones(*shape))
F = nn.functional


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("grid_sample", lambda: F.grid_sample(C(1, 2, 4, 4), H(1, 3, 3, 2) * 0)),
        ("batch_norm", lambda: F.batch_norm(C(3, 2), H(2), H(2), training=True)),
        ("batch_norm", lambda: F.batch_norm(C(3, 2), H(2), H(2))),
        ("normal", lambda: jitgrad.normal(C(3), H(3))),
        ("normal", lambda: jitgrad.normal(H(3), C(3))),
        ("add", lambda: C(2) + H(2)), ("add", lambda: H(2) + C(2)),
        ("add_", lambda: C(2).add_(H(2))), ("add_", lambda: H(2).add_(C(2))),
        ("add", lambda: jitgrad.add(C(2), 1, out=H(2))),
        ("add", lambda: jitgrad.add(H(2), 1, out=C(2))), ("mul", lambda: H(2) * C(1)[0]),
        ("mse_loss", lambda: F.mse_loss(C(2), H(2))), ("MSELoss", lambda: nn.MSELoss()(C(2), H(2))),
        ("Linear", lambda: nn.Linear(2, 2)(C(1, 2))), ("LSTM", lambda: nn.LSTM(2, 2)(C(1, 2))),
        ("log_prob", lambda: jitgrad.distributions.Normal(H(2), H(2)).log_prob(C(2))),
        ("BatchNorm1d", lambda: nn.BatchNorm1d(2)(C(3, 2))), ("step", _optimizer_of_moved),
        ("MultiheadAttention", lambda: nn.MultiheadAttention(4, 2).cuda()(
            *[C(3, 4)] * 3, key_padding_mask=H(3) > 2)),
    ],
)  # fmt: skip
def test_the_error_names_what_was_called(name: str, call: Any) -> None:
    with pytest.raises(RuntimeError, match=rf"\[{name}\] Expected all tensors .*cpu and cuda:0"):
        call()


@pytest.mark.parametrize("module", [False, True])
def test_lengths_of_ctc_may_be_on_the_cpu(module: bool) -> None:
    probs = jitgrad.randn(5, 2, 4).log_softmax(2)
    labels, steps, sizes = jitgrad.tensor([[1, 2], [3, 1]]), jitgrad.tensor([5, 4]), [2, 1]
    loss = nn.CTCLoss() if module else F.ctc_loss
    want = loss(probs, labels, steps, jitgrad.tensor(sizes))
    for lengths in (jitgrad.tensor(sizes), jitgrad.tensor(sizes).cuda()):
        got = loss(probs.cuda(), labels.cuda(), steps, target_lengths=lengths)
        jitgrad.testing.assert_close(got.cpu(), want)
    with pytest.raises(RuntimeError, match="on the same device"):
        loss(probs.cuda(), labels, steps, jitgrad.tensor(sizes))


def test_gradients_that_are_checked() -> None:
    x = jitgrad.rand(3, dtype=jitgrad.float64, device="cuda", requires_grad=True)
    assert jitgrad.autograd.gradcheck(lambda x: (x * x).sum(), (x,), check_batched_grad=True)
    assert jitgrad.autograd.gradgradcheck(lambda x: (x * x).sum(), (x,))


def test_packed_sequences_have_their_sizes_on_the_cpu() -> None:
    lstm = nn.LSTM(2, 3, batch_first=True).cuda()
    lengths = jitgrad.tensor([2, 4])
    x = jitgrad.randn(2, 4, 2).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    assert packed.sorted_indices.is_cuda and not packed.batch_sizes.is_cuda
    padded, counts = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], True)
    assert padded.is_cuda and not counts.is_cuda and counts.tolist() == [2, 4]


def test_what_is_on_the_cpu_and_not_used() -> None:
    """A causal mask that a layer got and does not need is no mixture, though the layer makes masks
    of its own, drops out, and its caller's mask is on the CPU."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).to("cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    x = jitgrad.randn(2, 5, 8, device="cuda")
    assert layer(x, mask, is_causal=True).device.type == "cuda"
    with pytest.raises(RuntimeError, match="same device"):
        layer(x, mask)
