"""Datasets, samplers and the loader that makes batches of them."""

from functools import cache as _cache

from ..._missing import install_getattr as _install_getattr
from ..._missing import unusable as _unusable
from ._utils.collate import default_collate, default_convert
from .dataloader import DataLoader, get_worker_info, register_batch_hook
from .dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from .distributed import DistributedSampler
from .sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
    "register_batch_hook",
]

_pipes = ("DataChunk", "IterDataPipe", "MapDataPipe", "functional_datapipe")
_advice = "data pipes are not here; use an IterableDataset, or chain generators"


@_cache
def _pipe(name: str) -> type:
    """A class that libraries import, derive from or test for, and that says at its use what to take."""
    return _unusable(f"torch.utils.data.{name}", _advice)


_install_getattr(__name__, **{name: lambda name=name: _pipe(name) for name in _pipes})
