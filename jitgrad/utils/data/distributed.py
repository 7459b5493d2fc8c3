"""DistributedSampler: each process of a group its own part of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jitgrad.creation import randperm
from jitgrad.random import Generator
from jitgrad.utils.data.sampler import Sampler


class DistributedSampler(Sampler[int]):
    """Every num_replicas-th index of an order that all processes share, from the rank-th on.

    Args:
        dataset: its length counts.
        num_replicas, rank: how many processes there are, and which this is.
        shuffle: the order is a permutation of seed + epoch; call set_epoch(epoch) before each
            epoch, else all are alike.
        drop_last: samples that do not go round are left out; else the first ones come twice.

    Raises ValueError for a rank that is not in [0, num_replicas), RuntimeError where num_replicas
    or rank is left out (there is no process group yet: docs/limits.md).
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        if num_replicas is None or rank is None:
            raise RuntimeError(
                "[DistributedSampler] Requires distributed package to be available: expected "
                f"num_replicas and rank; got num_replicas={num_replicas}, rank={rank}"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"[DistributedSampler] Invalid rank {rank}, rank should be in the interval "
                f"[0, {num_replicas - 1}]"
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        n = len(dataset)
        self.num_samples = n // num_replicas if drop_last else -(-n // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = list(range(n))
        if self.shuffle:
            order = randperm(n, generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        if n:  # round and round, as far as it goes
            order = (order * -(-self.total_size // n))[: self.total_size]
        return iter(order[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order the next iteration has."""
        self.epoch = epoch
