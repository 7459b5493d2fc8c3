"""Datasets, samplers and loaders, by torch.utils.data's names."""

from jitgrad.utils.data.dataloader import DataLoader, default_collate
from jitgrad.utils.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from jitgrad.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

__all__ = [
    "BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler",
    "Sampler", "SequentialSampler", "Subset", "TensorDataset", "default_collate", "random_split",
]  # fmt: skip
