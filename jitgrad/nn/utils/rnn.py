"""Batches of sequences of different lengths: padded and packed, as torch.nn.utils.rnn.

A packed batch holds the elements of step 0 of all sequences, then those of step 1, and so on,
without padding; `batch_sizes` counts the sequences at each step. Lengths that come as Python
numbers stay known to Python, so that code on packed sequences compiles; lengths in a tensor are
read, which under @jit makes the function run eagerly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jitgrad.functions as ops
from jitgrad import pytree
from jitgrad.creation import arange, empty_like, tensor
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """A packed batch of N sequences; made by pack_padded_sequence and pack_sequence.

    Attributes:
        data: (sum of lengths, *), any dtype.
        batch_sizes: (longest length,) int64.
        sorted_indices: (N,) int64, the order of the sequences by length; None if it is the order
            they came in.
        unsorted_indices: its inverse.
    """

    _sizes: tuple[int, ...] | None = None

    def __new__(
        cls, data: Any, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            if not isinstance(data, (list, tuple)) or len(data) != 2:
                raise AssertionError(
                    "[PackedSequence] expected data and batch_sizes, or a pair of them; got "
                    f"{type(data).__name__}"
                )
            data, batch_sizes = data
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def __reduce__(self) -> Any:
        return type(self), tuple(self)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With data.to(...); itself if nothing changes."""
        data = self.data.to(*args, **kwargs)
        return self if data is self.data else _like(self, data)

    def pin_memory(self) -> PackedSequence:
        return _like(self, self.data.pin_memory())

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        return self.to("cpu", *args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        return self.to(*args, **{"device": "cuda", **kwargs})

    def double(self) -> PackedSequence:
        return self.to(dtypes.float64)

    def float(self) -> PackedSequence:
        return self.to(dtypes.float32)

    def half(self) -> PackedSequence:
        return self.to(dtypes.float16)

    def long(self) -> PackedSequence:
        return self.to(dtypes.int64)

    def int(self) -> PackedSequence:
        return self.to(dtypes.int32)

    def short(self) -> PackedSequence:
        return self.to(dtypes.int16)

    def char(self) -> PackedSequence:
        return self.to(dtypes.int8)

    def byte(self) -> PackedSequence:
        return self.to(dtypes.uint8)

    @property
    def is_cuda(self) -> bool:
        return self.data.is_cuda

    def is_pinned(self) -> bool:
        return False


def _like(packed: PackedSequence, data: Tensor) -> PackedSequence:
    """The packed batch with other data."""
    out = type(packed)(data, *packed[1:])
    out._sizes = packed._sizes
    return out


def batch_sizes_of(packed: PackedSequence) -> tuple[int, ...]:
    """batch_sizes as Python numbers."""
    if packed._sizes is None:
        packed._sizes = tuple(packed.batch_sizes.tolist())
    return packed._sizes


def _rebuild(sizes: Any, fields: Sequence[Any]) -> PackedSequence:
    out = PackedSequence(*fields)
    out._sizes = sizes
    return out


pytree.register(PackedSequence, lambda x: (tuple(x), batch_sizes_of(x)), _rebuild)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The inverse of a permutation (N,) of int64; None of None."""
    if permutation is None:
        return None
    places = arange(permutation.numel(), dtype=permutation.dtype, device=permutation.device)
    return empty_like(permutation).scatter(0, permutation, places)


def _lengths(name: str, lengths: Any) -> list[int]:
    if not isinstance(lengths, Tensor):
        return [int(n) for n in lengths]
    if lengths.dim() != 1:
        raise RuntimeError(
            f"[{name}] expected lengths (N,); got {lengths.dtype} {tuple(lengths.shape)}"
        )
    return [int(n) for n in lengths.tolist()]


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:  # fmt: skip
    """Packs padded sequences: input (T, N, *), or (N, T, *) with batch_first.

    lengths: (N,) numbers, decreasing unless enforce_sorted is False (then the sequences are sorted;
    the order is kept in sorted_indices). Raises RuntimeError for lengths that are not sorted, not
    positive, too long or not N, and for an empty input.
    """
    name = "pack_padded_sequence"
    if input.dim() < 2:
        raise RuntimeError(f"[{name}] expected input (T, N, *); got {tuple(input.shape)}")
    if batch_first:
        input = input.transpose(0, 1)
    steps, count = int(input.shape[0]), int(input.shape[1])
    numbers = _lengths(name, lengths)
    if input.numel() == 0:
        raise RuntimeError(f"[{name}] expected elements to pack; got input {tuple(input.shape)}")
    if len(numbers) != count:
        raise RuntimeError(
            f"[{name}] expected a length for each of the {count} sequences of input "
            f"{tuple(input.shape)}; got {len(numbers)}"
        )
    order = sorted(range(count), key=lambda k: -numbers[k])
    if enforce_sorted and any(a < b for a, b in itertools.pairwise(numbers)):
        raise RuntimeError(
            f"[{name}] expected lengths in decreasing order, as enforce_sorted is True; got "
            f"{numbers}; sort them, or pass enforce_sorted=False"
        )
    if min(numbers) <= 0 or max(numbers) > steps:
        raise RuntimeError(
            f"[{name}] expected lengths from 1 to the {steps} steps of input "
            f"{tuple(input.shape)}; got {numbers}"
        )
    longest = numbers[order[0]]
    sizes = tuple([sum(n > t for n in numbers) for t in range(longest)])
    rows = [t * count + k for t, size in enumerate(sizes) for k in order[:size]]
    data = input.reshape(steps * count, *input.shape[2:]).index_select(
        0, tensor(rows, device=input.device)
    )
    sorted_indices = None if enforce_sorted else tensor(order, device=input.device)
    return _rebuild(sizes, (data, tensor(sizes), sorted_indices, None))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The padded batch (T, N, *) (or (N, T, *)) and the lengths (N,), in the order packed.

    T is the longest length, or total_length; raises ValueError when that is less.
    """
    sizes = batch_sizes_of(sequence)
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ValueError(
            f"[pad_packed_sequence] expected total_length of at least {len(sizes)}, the longest "
            f"sequence; got {total_length}"
        )
    count = sizes[0]
    lengths = [sum(size > k for size in sizes) for k in range(count)]
    starts = [0, *itertools.accumulate(sizes)]
    rows = [starts[t] + k if t < lengths[k] else 0 for t in range(steps) for k in range(count)]
    data = sequence.data
    rest = tuple(data.shape[1:])
    padded = data.index_select(0, tensor(rows, device=data.device)).reshape(steps, count, *rest)
    if steps * count != sum(sizes):
        held = [[t < n for n in lengths] for t in range(steps)]
        mask = tensor(held, device=data.device).reshape(steps, count, *[1] * len(rest))
        padded = ops.where(mask, padded, data.new_full((), padding_value))
    if batch_first:
        padded = padded.transpose(0, 1)
    counts = tensor(lengths)
    if sequence.unsorted_indices is not None:
        back = sequence.unsorted_indices
        padded = padded.index_select(0 if batch_first else 1, back)
        counts = counts.index_select(0, back.cpu())
    return padded, counts


def pad_sequence(
    sequences: Tensor | Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Sequences (L, *) stacked along a new dim, padded to the longest: (T, N, *) or (N, T, *).

    Raises RuntimeError for none, for trailing dims that differ, and unless padding_side is 'left'
    or 'right'.
    """
    name = "pad_sequence"
    if not isinstance(sequences, Iterable):
        raise RuntimeError(f"[{name}] expected tensors; got {type(sequences).__name__}")
    parts = tuple(sequences)
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"[{name}] expected padding_side 'left' or 'right'; got {padding_side}")
    if not parts:
        raise RuntimeError(f"[{name}] expected at least one sequence; got none")
    rest = tuple(parts[0].shape[1:])
    for x in parts:
        if x.dim() == 0 or tuple(x.shape[1:]) != rest:
            raise RuntimeError(
                f"[{name}] expected sequences (L, {', '.join(map(str, rest))}), as the first is; "
                f"got {tuple(x.shape)}"
            )
    longest = max(int(x.shape[0]) for x in parts)
    padded = []
    for x in parts:
        missing = longest - int(x.shape[0])
        around = (missing, 0) if padding_side == "left" else (0, missing)
        pads = [0] * (2 * len(rest)) + list(around)
        x = x.to(parts[0].dtype)
        padded.append(ops.pad_constant(x, pads, padding_value) if missing else x)
    return ops.stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences (L, *) of a padded batch (T, N, *), or (N, T, *) with batch_first."""
    batch = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    numbers = _lengths("unpad_sequence", lengths)
    return [x.narrow(0, 0, n) for x, n in zip(batch.unbind(0), numbers, strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences (L, *), longest first unless enforce_sorted is False."""
    lengths = [int(x.shape[0]) for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences (L, *) of a packed batch, in the order they were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    sizes = batch_sizes_of(packed_sequences)
    numbers = [sum(size > k for size in sizes) for k in range(sizes[0])]
    back = packed_sequences.unsorted_indices
    return unpad_sequence(padded, numbers if back is None else lengths, batch_first=True)
