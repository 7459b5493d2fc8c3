"""Thousands of bad calls, made from the samples of PyTorch's op database by changing one argument:
another dtype or shape, out of range, another Python type. Where PyTorch raises, we raise: its type
of error, or one of the kinds in KEPT, each of which docs/differences.md or limits.md states.

Long: about 15 minutes. `-k shard-0-` runs a sixteenth.
"""

import multiprocessing
import re
import warnings

import pytest
from parity.compare import torch
from parity.op_database import _first_dtype, convert, entries, label, ours, samples_of

import jitgrad

SHARDS = 16
REFUSED = ("RuntimeError", "IndexError", "ValueError", "NotImplementedError", "AssertionError")

# What we take though PyTorch refuses it: (entry, how it was changed, PyTorch's message): reason.
KEPT = {
    ("", "", "not implemented for|not supported on|Low precision"): "a dtype its kernel lacks",
    ("fft", "emp", "MKL FFT error"): "transforms of no lines: nothing to do",
    ("", "list|first|long|0d|True|tensor", ""): "one number for each dim, or one for all",
    ("", "99|inf|nan", "overflow|too large"): "sizes and numbers as far as they go",
    ("logsumexp", "", "broadcast shape"): "all dims, as other reductions",
    ("lstsq|lu_unpack", "", ""): "batches broadcast",
    ("native_", "", ""): "the functions behind modules",
    ("stft|addr|vander|index_put|unfold", "", ""): "single quirks",
    ("multi_head_attention", "row-|0d", "Sizes of tensors"): "biases of keys broadcast",
    ("pad", "emp", ""): "nothing is padded",
    ("randint_like|space|multinomial|pinv", "complex64|bool", ""): "numbers are converted",
    ("smooth_l1_loss", "bool", ""): "bools count as numbers where beta is 0, too",
    ("combinations", "99", ""): "as many as memory holds",
}  # fmt: skip


def changed_tensors(x):
    for name in ("int64", "bool", "float16", "float64", "complex64", "int8"):
        yield name, x.detach().to(getattr(torch, name))
    shapes = {"0d": (), "1d7": (7,), "3d": (2, 3, 4), "5d": (2, 1, 3, 2, 2), "emp0": (0,),
              "emp03": (0, 3), "emp30": (3, 0)}  # fmt: skip
    for name, shape in shapes.items():
        yield name, torch.ones(shape, dtype=x.dtype)
    if x.ndim:
        yield "row-", x.detach()[..., :-1]
    yield "unsqueezed", x.detach()[None]


def changes(x):
    """(how, another value) for one argument."""
    if isinstance(x, torch.Tensor):
        yield from changed_tensors(x)
        wrong = ["abc", None]
    elif isinstance(x, bool):
        wrong = ["abc", None, [True]]
    elif isinstance(x, int):
        wrong = [99, -99, -1, 0, "abc", [0, 0], torch.tensor(1), torch.ones(3)]
    elif isinstance(x, float):
        wrong = [-1.0, 0.0, float("nan"), float("inf"), "abc", 1j, torch.ones(3)]
    elif isinstance(x, str):
        wrong = ["abc", 1]
    elif isinstance(x, (tuple, list)) and all(isinstance(v, (int, float)) for v in x):
        wrong = [[], list(x) * 2, [99] * len(x), [-99] * len(x), "abc", ["a"] * len(x), list(x)[:1]]
        named = ["empty", "long", "99", "-99", "str", "strs", "first"]
        yield from zip(named, wrong, strict=True)
        return
    else:
        wrong = []
    for value in wrong:
        yield "tensor" if isinstance(value, torch.Tensor) else repr(value), value


def bad_calls(sample):
    """(the argument, how it was changed, args, kwargs)."""
    base = [sample.input, *sample.args]
    for i, x in enumerate(base):
        for how, value in changes(x):
            yield f"argument {i}", how, [*base[:i], value, *base[i + 1 :]], dict(sample.kwargs)
    for name, x in sample.kwargs.items():
        for how, value in changes(x):
            yield name, how, base, {**sample.kwargs, name: value}


def copied(x):
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    return [copied(v) for v in x] if type(x) is list else x


def kept(name, how, message):
    return any(
        re.search(a, name) and re.search(b, how) and re.search(c, message) for a, b, c in KEPT
    )


def swept(entry):
    """(how many bad calls of an entry were made, those that we alone take)."""
    function, dtype = ours(entry.op, entry.name), _first_dtype(entry)
    if function is None or dtype is None or entry.name.startswith("__r"):
        return 0, []
    found, count, wrong = samples_of(entry, dtype, False, 40), 0, []
    for sample in found if len(found) < 3 else (found[0], found[-1]):
        for argument, how, args, kwargs in bad_calls(sample):
            count += 1
            error = refused(entry.op, [copied(x) for x in args], kwargs)
            if error is None or type(error).__name__ not in REFUSED:
                continue
            mine = refused(function, convert(args), convert(kwargs))
            if mine is None and not kept(label(entry), how, str(error)):
                wrong.append(f"{label(entry)}, {argument}: {how}: {str(error)[:90]}")
    return count, wrong


def _send(entry, pipe):
    pipe.send(swept(entry))


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS), ids=lambda k: f"shard-{k}-")
def test_bad_calls(shard):
    """Each entry in a process of its own: some of PyTorch's kernels crash on bad calls."""
    context = multiprocessing.get_context("fork")
    total, wrong, crashed = 0, [], []
    for entry in sorted(entries(), key=label)[shard::SHARDS]:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(entry, sender))
        process.start()
        sender.close()
        try:
            count, found = receiver.recv()
        except EOFError:
            crashed.append(label(entry))
        else:
            total, wrong = total + count, wrong + found
        process.join()
    assert total > 500
    assert len(crashed) < 4, crashed
    assert not wrong, "\n".join(wrong)


def refused(function, args, kwargs):
    """What the call raises, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*args, **kwargs)
        except Exception as error:
            return error
        finally:
            jitgrad.set_default_dtype(jitgrad.float32)
    return None
