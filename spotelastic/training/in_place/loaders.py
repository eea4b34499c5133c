"""Knows the loaders that deal out samples to the ranks that there were when they were made."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.runtime.patches import put_around

loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
"""Those of this process."""
_BOUND = ("num_replicas", "process_index", "_distributed")
"""Attributes that samplers and data sets have which are dealt out to fixed ranks: those that are
like torch's, those of accelerate, and what datasets.distributed.split_dataset_by_node() makes.
"""


def watch() -> None:
    """Note the loaders that are made from now on."""
    put_around(DataLoader, "__init__", _noting)


def _noting(make: Callable[..., None], loader: DataLoader[Any], *args: Any, **more: Any) -> None:
    make(loader, *args, **more)
    loaders.add(loader)


def problem() -> str:
    """Return why loaders cannot go on with other ranks; empty if they can."""
    return next((found for loader in [*loaders] if (found := bound(loader))), "")


def bound(loader: Any) -> str:
    """Return what of a loader belongs to the ranks that there were, and what to use instead."""
    for part in _parts(loader):
        if isinstance(part, ElasticSampler):
            return ""
        if isinstance(part, DistributedSampler) or any(
            getattr(part, name, None) is not None for name in _BOUND
        ):
            return (
                f"a {type(part).__name__} deals out samples to the ranks that there are when it is "
                "made: use se.ElasticSampler"
            )
    return ""


def _parts(loader: Any) -> Iterator[Any]:
    for name in ("batch_sampler", "sampler"):
        part = getattr(loader, name, None)
        yield from (part, getattr(part, "sampler", None))
    yield getattr(loader, "dataset", None)
