"""torch.nn.attention.flex_attention: attention whose scores and mask are functions of positions.

Owns BlockMask, the mask functions' combination and the function itself, composed of ops: functions
of positions are mapped by vmap, and all scores are computed. `BlockMask` keeps PyTorch's tables of
blocks, which say what is seen, not what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import jitgrad.functions as ops
from jitgrad.creation import arange, zeros
from jitgrad.func import vmap
from jitgrad.functions.linalg import times_transposed
from jitgrad.missing import missing
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.attention import repeat_heads, softmax_or_zeros
from jitgrad.nn.functional.padding import pad
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_MINUS_INFINITY = float("-inf")

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_mask_mod_signature, _score_mod_signature = MaskMod, ScoreMod


class FlexKernelOptions(TypedDict, total=False):
    """Settings of PyTorch's kernels: accepted, they choose nothing."""


class AuxRequest(NamedTuple):
    """What flex_attention shall give beside its result: lse, the logarithms of the sums of
    exponentials of scores, and max_scores, the largest scores."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What AuxRequest asked for, of shape (B, H, L); None for the others."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """The mask function that lets every query see every key."""
    return batch.new_ones((), dtype=dtypes.bool_)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask function that holds where all hold."""
    return _combined(mask_mods, True)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask function that holds where one holds."""
    return _combined(mask_mods, False)


def _combined(mask_mods: tuple[MaskMod, ...], every: bool) -> MaskMod:
    if not all(callable(m) for m in mask_mods):
        raise RuntimeError(f"All inputs should be callable mask_mods: {mask_mods}")

    def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        found = b.new_full((), every, dtype=dtypes.bool_)
        for m in mask_mods:
            found = found & m(b, h, q, kv) if every else found | m(b, h, q, kv)
        return found

    return mask


def _over_positions(function: Any, extra: bool) -> Any:
    """`function` of four positions as one of four vectors of them, (B, H, Q, KV); with `extra`,
    its first argument is a tensor of all positions."""
    lead: tuple[int | None, ...] = (0,) if extra else ()
    for here in (3, 2, 1, 0):
        function = vmap(function, lead + tuple(0 if d == here else None for d in range(4)))
    return function


def create_mask(
    mod_fn: Any, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """Which query sees which key, bool of shape (B, H, Q_LEN, KV_LEN).

    mod_fn: a mask function mask(b, h, q, kv), or a score function score(score, b, h, q, kv), which
    hides a key where it gives -inf.
    """
    axes = [arange(n, device=device) for n in (B or 1, H or 1, Q_LEN, KV_LEN)]
    if _count(mod_fn) == 5:
        scores = zeros(*(len(a) for a in axes), device=device)
        return _over_positions(mod_fn, True)(scores, *axes) != _MINUS_INFINITY
    return _over_positions(mod_fn, False)(*axes).to(dtypes.bool_)


def _count(function: Any) -> int:
    code = getattr(function, "__code__", None)
    return code.co_argcount - len(function.__defaults__ or ()) if code is not None else 4


class BlockMask:
    """A mask of attention by blocks. `create_block_mask` makes one.

    For each row of blocks of queries, kv_num_blocks (B, H, rows) says how many of the columns
    kv_indices (B, H, rows, columns) are seen where mask_mod holds, full_kv_num_blocks and
    full_kv_indices which are seen whole. The tables with q_ are those of columns.

    Attributes: seq_lengths, BLOCK_SIZE, mask_mod, shape (B, H, queries, keys).
    """

    def __init__(
        self, seq_lengths: tuple[int, int], kv_num_blocks: Tensor, kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None, full_kv_indices: Tensor | None,
        q_num_blocks: Tensor | None, q_indices: Tensor | None, full_q_num_blocks: Tensor | None,
        full_q_indices: Tensor | None, BLOCK_SIZE: tuple[int, int] = (128, 128),
        mask_mod: MaskMod = noop_mask,
    ) -> None:  # fmt: skip
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError(
                "full_kv_num_blocks and full_kv_indices must be both provided or omitted"
            )
        self.seq_lengths, self.BLOCK_SIZE, self.mask_mod = seq_lengths, BLOCK_SIZE, mask_mod
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self._whole = False  # whether mask_mod alone says all that the tables say

    @classmethod
    def from_kv_blocks(
        cls, kv_num_blocks: Tensor, kv_indices: Tensor, full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None, BLOCK_SIZE: int | tuple[int, int] = 128,
        mask_mod: MaskMod | None = None, seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:  # fmt: skip
        """The mask of these tables (see the class); seq_lengths: that of all blocks by default."""
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        rows, columns = kv_indices.shape[-2:]
        lengths = (rows * size[0], columns * size[1]) if seq_lengths is None else seq_lengths
        columns_of: list[Any] = [None] * 4
        if compute_q_blocks:
            columns_of[:2] = _listed(_dense(kv_num_blocks, kv_indices).mT)
            if full_kv_num_blocks is not None and full_kv_indices is not None:
                columns_of[2:] = _listed(_dense(full_kv_num_blocks, full_kv_indices).mT)
        made: Any = cls
        found: BlockMask = made(
            lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, *columns_of,
            BLOCK_SIZE=size, mask_mod=noop_mask if mask_mod is None else mask_mod,
        )  # fmt: skip
        return found

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """The lengths, tables, block sizes and mask_mod."""
        ends = (self.seq_lengths, self.BLOCK_SIZE)
        begin, size = ends if flatten else ((ends[0],), (ends[1],))
        return (*begin, *self._tables(), *size, self.mask_mod)

    def _tables(self) -> tuple[Tensor | None, ...]:
        return (
            self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices,
            self.q_num_blocks, self.q_indices, self.full_q_num_blocks, self.full_q_indices,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, queries, keys)."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """The number of pairs of query and key."""
        return math.prod(self.shape)

    def to_dense(self) -> Tensor:
        """Which blocks are seen, in part or whole: int32 of shape (B, H, rows, columns)."""
        seen = _dense(self.kv_num_blocks, self.kv_indices)
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            seen = seen | _dense(self.full_kv_num_blocks, self.full_kv_indices)
        return seen

    def sparsity(self) -> float:
        """How many percent of the pairs lie in blocks that are not seen."""
        blocks = int(self.to_dense().sum())
        seen = blocks * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100.0 * (1.0 - seen / self.numel())

    def to(self, device: Any) -> BlockMask:
        """The mask, its tables on a device."""
        tables = [None if t is None else t.to(device) for t in self._tables()]
        made: Any = BlockMask
        found: BlockMask = made(
            self.seq_lengths, *tables, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod
        )
        found._whole = self._whole
        return found

    def _pairs(self, batch: int, heads: int) -> Tensor:
        """Which query sees which key, bool of shape (batch or 1, heads or 1, queries, keys)."""
        device = self.kv_indices.device
        seen = create_mask(self.mask_mod, batch, heads, *self.seq_lengths, device=device)
        if self._whole:
            return seen
        partly = self._wide(_dense(self.kv_num_blocks, self.kv_indices))
        seen = seen & partly
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            seen = seen | self._wide(_dense(self.full_kv_num_blocks, self.full_kv_indices))
        return seen

    def _wide(self, blocks: Tensor) -> Tensor:
        """What holds for blocks, for their pairs."""
        (high, wide), (queries, keys) = self.BLOCK_SIZE, self.seq_lengths
        pairs = blocks.repeat_interleave(high, -2).repeat_interleave(wide, -1)
        return pairs[..., :queries, :keys] != 0

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"


def _dense(count: Tensor, indices: Tensor) -> Tensor:
    """A table of how many blocks, and which, as 0 and 1 for each block, int32."""
    columns = indices.shape[-1]
    listed = arange(columns, device=indices.device) < count.unsqueeze(-1)
    found = zeros(*indices.shape, dtype=dtypes.int32, device=indices.device)
    return found.scatter_add(-1, indices.to(dtypes.int64), listed.to(dtypes.int32))


def _listed(dense: Tensor) -> list[Tensor | None]:
    """0 and 1 for each block as a table of how many blocks, and which (these first)."""
    order = dense.argsort(dim=-1, descending=True, stable=True)
    return [dense.sum(-1).to(dtypes.int32), order.to(dtypes.int32)]


def create_block_mask(
    mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128, _compile: bool = False,
    separate_full_blocks: bool = True, compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:  # fmt: skip
    """The mask of a function mask_mod(b, h, q, kv) -> bool of positions, 0-d tensors.

    B, H: None where it does not depend on them. The last three arguments choose among PyTorch's
    kernels, and nothing here but whether blocks that are seen whole are listed apart.
    """
    high, wide = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    seen = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    rows, columns = -(-Q_LEN // high), -(-KV_LEN // wide)
    rest = (0, columns * wide - KV_LEN, 0, rows * high - Q_LEN)
    padded = pad(seen.to(dtypes.int32), rest)
    lead = seen.shape[:-2]
    held = padded.reshape(*lead, rows, high, columns, wide).sum((-3, -1))
    whole = held == (high * wide if separate_full_blocks else high * wide + 1)
    partly = _listed(((held > 0) & ~whole).to(dtypes.int32))
    full = _listed(whole.to(dtypes.int32)) if separate_full_blocks else [None, None]
    made: Any = BlockMask.from_kv_blocks
    found: BlockMask = made(
        *partly, *full, BLOCK_SIZE=(high, wide), mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN)
    )
    found._whole = True
    return found


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: Any = None, *,
    return_aux: AuxRequest | None = None,
) -> Any:  # fmt: skip
    """softmax(score_mod(query key^T scale)) value, over the keys that block_mask lets a query see
    (Dong et al. 2024, "Flex Attention").

    Shapes: query (B, H, L, E), key (B or 1, H, S, E), value (B or 1, H, S, V) -> (B, H, L, V). With
    enable_gqa, the heads of query are a multiple of those of key and value. Scores are computed in
    float32, or float64 for such a query. score_mod(score, b, h, q, kv) gives a score anew, from
    0-d tensors. scale: 1/sqrt(E) by default. A query that sees no key gives zeros.

    With return_aux, (result, AuxOutput); with return_lse, (result, lse).

    Raises ValueError for shapes that do not fit, NotImplementedError for tensors of another rank.
    """
    name = "flex_attention"
    expect_tensors(name, query=query, key=key, value=value)
    _expect_shapes(name, query, key, value, enable_gqa)
    if enable_gqa:
        key, value = (repeat_heads(name, x, query) for x in (key, value))
    batch, heads, length, width = query.shape
    keys = key.shape[-2]
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    factor = 1.0 / math.sqrt(width or 1) if scale is None else scale
    scores = times_transposed(query.to(wide), key.to(wide)) * factor
    if score_mod is not None:
        axes = [arange(n, device=query.device) for n in (batch, heads, length, keys)]
        scores = _over_positions(score_mod, True)(scores, *axes).to(wide)
    if block_mask is not None:
        if tuple(block_mask.seq_lengths) != (length, keys):
            raise ValueError(
                f"[{name}] expected a block_mask for {length} queries and {keys} keys; got one for "
                f"{tuple(block_mask.seq_lengths)}; make it by create_block_mask"
            )
        scores = ops.where(block_mask._pairs(batch, heads), scores, _MINUS_INFINITY)
    result = ops.matmul(softmax_or_zeros(scores), value.to(wide)).to(query.dtype)
    if return_lse:
        warn("flex_attention: return_lse is deprecated; use return_aux=AuxRequest(lse=True)")
        return result, scores.logsumexp(-1)
    if return_aux is None:
        return result
    return result, AuxOutput(
        lse=scores.logsumexp(-1) if return_aux.lse else None,
        max_scores=scores.amax(-1) if return_aux.max_scores else None,
    )


def _expect_shapes(name: str, query: Tensor, key: Tensor, value: Tensor, gqa: bool) -> None:
    shapes = f"query {query._type}, key {key._type}, value {value._type}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise NotImplementedError(
            f"[{name}] expected tensors (batch, heads, length, width); got {shapes}"
        )
    if not gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"[{name}] expected as many heads in query as in key; got {shapes}; enable_gqa=True "
            "shares them"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"[{name}] expected query and key of one width, key and value of one length; got "
            f"{shapes}"
        )
    if key.shape[0] not in (1, query.shape[0]):
        raise ValueError(f"[{name}] expected batches that are the same, or keys' 1; got {shapes}")


__getattr__ = missing(__name__)
__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "FlexKernelOptions", "and_masks", "create_block_mask",
    "create_mask", "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip
