"""Fetchers: from what a sampler yields to a batch, in this process or in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class MapFetcher:
    """Batches of a map-style dataset; one with `__getitems__(indices)` gives a batch at once.

    Args:
        batched: what `fetch` gets is a list of indices, not one.
    """

    def __init__(
        self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.dataset, self.batched, self.collate_fn = dataset, batched, collate_fn

    def fetch(self, index: Any) -> Any:
        if not self.batched:
            return self.collate_fn(self.dataset[index])
        whole = getattr(self.dataset, "__getitems__", None)
        samples = whole(index) if whole else [self.dataset[i] for i in index]
        return self.collate_fn(samples)


class IterableFetcher:
    """Batches of an IterableDataset: as many samples as `fetch` gets places. Raises StopIteration
    at its end."""

    def __init__(
        self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.stream = iter(dataset)
        self.batched, self.collate_fn, self.drop_last = batched, collate_fn, drop_last
        self.ended = False

    def fetch(self, index: Any) -> Any:
        if self.ended:
            raise StopIteration
        if not self.batched:
            return self.collate_fn(next(self.stream))
        samples = []
        for _ in index:
            try:
                samples.append(next(self.stream))
            except StopIteration:
                self.ended = True
                break
        if not samples or (self.drop_last and len(samples) < len(index)):
            raise StopIteration
        return self.collate_fn(samples)
