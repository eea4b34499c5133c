"""Jobs with data loaders and metrics of other packages."""

from typing import Any

import torch
import torch.distributed as dist
from programs.running import Running, plain, rows

import spotelastic as se


class Endless:
    """A loader, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.batches, self.seen = loader, iter(loader), []

    def train(self, step: int) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        self.seen = plain(batch)

    def state_dict(self) -> Any:
        return {"loader": self.loader.state_dict(), "seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state["loader"])
        self.batches, self.seen = iter(self.loader), state["seen"]


def loaded(loader: Any) -> Running:
    """What counts is which batches come next."""
    endless = Endless(loader)
    kept = se.PerRank(endless, lambda saved, rank, world: saved[rank % len(saved)])
    return Running(
        {"loader": kept},
        endless.train,
        lambda: endless.seen,
        lambda saved, rank, world: saved[rank % len(saved)],
    )


class Numbers(torch.utils.data.IterableDataset[int]):
    """Resumes where it was, as what reads files does."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 50:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def torchdata(*, workers: int, iterable: bool) -> Running:
    from torchdata.stateful_dataloader import StatefulDataLoader

    if iterable:
        return loaded(StatefulDataLoader(Numbers(), batch_size=3, num_workers=workers))
    torch.manual_seed(dist.get_rank())
    return loaded(
        StatefulDataLoader(range(20), batch_size=3, shuffle=True, num_workers=workers)  # type: ignore[arg-type]
    )


def datasets() -> Running:
    from datasets import Dataset

    return loaded(
        Dataset.from_dict({"x": [*range(40)]})
        .to_iterable_dataset(num_shards=4)
        .shuffle(seed=dist.get_rank(), buffer_size=4)
    )


def torchmetrics() -> Running:
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.aggregation import CatMetric
    from torchmetrics.classification import MulticlassAccuracy

    metrics = MetricCollection(
        {"mean": MeanMetric(), "all": CatMetric(), "accuracy": MulticlassAccuracy(4)},
        compute_groups=False,
    )
    metrics.persistent(True)

    def train(step: int) -> None:
        drawn = rows(step, 5)
        metrics["mean"].update(drawn)
        metrics["all"].update(drawn)
        metrics["accuracy"].update((drawn * 4).long(), (rows(step + 1, 5) * 4).long())

    return Running(
        {"metrics": se.PerRank(metrics, lambda saved, rank, world: saved[0])},
        train,
        elsewhere=lambda saved, rank, world: saved[0],
    )
