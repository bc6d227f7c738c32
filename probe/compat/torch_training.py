"""What torch has beside the model for a training: a GradScaler's scale, clipping, iterators over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..guard import let_pass

_SAMPLERS: Final = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def scale_of(scaler: Any) -> Tensor | None:
    """Return the tensor in which a GradScaler keeps its scale; None before its first use."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, Tensor) else None


def clip_functions() -> Sequence[tuple[Any, str]]:
    """(owner, name) of every place where torch's gradient clipping functions are looked up by name."""
    owners = (nn.utils, nn.utils.clip_grad)
    # The underscored one is what a `clip_grad_norm_` imported before the probe came still looks up.
    names = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "_clip_grads_with_norm_")
    return [(owner, name) for owner in owners for name in names if hasattr(owner, name)]


def loader_iterators() -> type | None:
    """Class of all iterators over DataLoaders, whose `__next__` they share; None where torch has none."""
    found = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    return found if isinstance(found, type) and "__next__" in vars(found) else None


def batches_of(iterator: object) -> int | None:
    """Return how many batches a pass over a DataLoader has; None where only code of the script's knows it.

    Asked are torch's own samplers, which ask the dataset for its length at each pass themselves. Another
    sampler's `__len__` may draw random numbers or use up what it counts; an IterableDataset's is a guess.
    """
    sampler: Any = getattr(iterator, "_index_sampler", None)
    innermost = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(innermost) not in _SAMPLERS:
        return None
    try:
        return len(sampler)
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ArithmeticError,
        OSError,
        RuntimeError,
    ) as error:
        let_pass(error)
        return None


def batches_given(iterator: object) -> int | None:
    """Return how many batches a pass over a DataLoader has given so far; None where torch does not say."""
    found = getattr(iterator, "_num_yielded", None)
    return found if isinstance(found, int) else None


def samples_given(iterator: object) -> int | None:
    """Return about how many samples a pass has given so far; None where torch does not say."""
    sampler: Any = getattr(iterator, "_index_sampler", None)
    batches, size = batches_given(iterator), sampler.batch_size if type(sampler) is BatchSampler else None
    return batches * size if batches is not None and isinstance(size, int) else None


def kept_iterator(value: object) -> object | None:
    """Return the iterator that a DataLoader with persistent workers keeps; None of anything else."""
    return getattr(value, "_iterator", None) if isinstance(value, DataLoader) else None


class LoaderWorkers(NamedTuple):
    """The worker processes of a pass over a DataLoader."""

    pids: tuple[int, ...]
    are_persistent: bool
    """Whether they go on to the next pass."""
    dataset: Any


def workers_of(iterator: object) -> LoaderWorkers | None:
    """Return the worker processes of a pass over a DataLoader; None where it has none that torch tells of."""
    workers = getattr(iterator, "_workers", None)
    if not isinstance(workers, list) or not workers:
        return None
    pids = [pid for worker in workers if isinstance(pid := getattr(worker, "pid", None), int)]
    dataset = getattr(iterator, "_dataset", None)
    return LoaderWorkers(tuple(pids), bool(getattr(iterator, "_persistent_workers", False)), dataset)
