"""Steps that do not fit to the batches that were taken: a cursor would lose or repeat samples."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se
from spotelastic.errors import UsageError

DATA = TensorDataset(torch.arange(32))


def sampler(**options: bool) -> se.ElasticSampler:
    return se.ElasticSampler(DATA, global_batch=4, **options)


def loader(own: se.ElasticSampler, workers: int = 0, *, keep: bool = False) -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=own, num_workers=workers, persistent_workers=keep)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_for_four_batches_is_refused_at_the_first(workers: int) -> None:
    own = sampler()
    with pytest.raises(UsageError, match="4 batches were taken for one step"):
        for number, _ in enumerate(loader(own, workers), 1):
            if number % 4 == 0:
                own.advance()
    assert own.consumed == 0


def test_a_step_for_two_batches_is_refused_at_the_second() -> None:
    own = sampler()
    with pytest.raises(UsageError, match="3 batches were taken for one step"):
        for number, _ in enumerate(own, 1):
            if number % 2 == 0:
                own.advance()
    assert own.consumed == 4


def test_two_steps_for_a_batch_are_refused() -> None:
    own = sampler()
    with pytest.raises(UsageError, match="without taking a batch"):
        for _ in loader(own):
            own.advance()
            own.advance()


def test_accumulated_batches_that_are_counted_one_by_one_are_fine() -> None:
    own = sampler()
    for _ in loader(own):
        own.advance()
    assert (own.epoch, own.consumed) == (1, 0)


def ahead(batches: DataLoader[Any]) -> Iterator[object]:
    """As Lightning and accelerate do, to know which is the last."""
    under_way = iter(batches)
    current = next(under_way)
    for following in under_way:
        yield current
        current = following
    yield current


@pytest.mark.parametrize("workers", [0, 2])
def test_loops_that_look_one_ahead_leave_early_evaluate_and_probe_are_fine(workers: int) -> None:
    own = sampler()
    batches = loader(own, workers, keep=workers > 0)
    next(iter(batches))
    for number, _ in enumerate(batches, 1):
        own.advance()
        if number == 3:
            break
    assert own.consumed == 12
    for number, _ in enumerate(ahead(batches), 1):
        own.advance()
        if number == 2:
            for _ in loader(own):  # an evaluation over the rest
                pass
            assert sum(1 for _ in own) == 3
    assert (own.epoch, own.consumed) == (1, 0)
    for _ in range(2):
        for _ in batches:
            own.advance()
    assert own.epoch == 3


class Wrapped:
    """A batch sampler around another, as accelerate's are."""

    def __init__(self, own: se.ElasticSampler) -> None:
        self.own = own

    def __len__(self) -> int:
        return len(self.own)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.own


def test_a_wrapped_sampler_knows_its_loader_and_a_copy_begins_anew() -> None:
    own = sampler()
    batches = DataLoader(DATA, batch_sampler=Wrapped(own), num_workers=2)
    for _ in batches:
        own.advance()
        copy.deepcopy(own).advance()
    assert own.epoch == 1


def test_who_counts_otherwise_may() -> None:
    own = sampler(check=False)
    for number, _ in enumerate(loader(own), 1):
        if number % 4 == 0:
            own.advance()
    assert own.consumed == 8
