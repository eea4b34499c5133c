"""Where a Trainer of Lightning ends, from what it says of itself."""

import math
from types import SimpleNamespace

import pytest

from spotelastic.integrations.lightning_books import total_steps


class ChangesItsBatches:
    """As Lightning's Trainer where a callback schedules how many batches are accumulated."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps

    @property
    def estimated_stepping_batches(self) -> int:
        raise ValueError("different accumulate_grad_batches at different epochs")


@pytest.mark.parametrize(
    ("estimated", "total"), [(960, 960), (35.0, 35), (math.inf, 0), (-1, 0), (0, 0)]
)
def test_the_end_is_what_lightning_estimates_if_there_is_one(estimated: float, total: int) -> None:
    told = SimpleNamespace(estimated_stepping_batches=estimated, max_steps=7)
    assert total_steps(told) == total


@pytest.mark.parametrize(("most", "total"), [(500, 500), (-1, 0)])
def test_what_it_cannot_estimate_is_its_own_limit(most: int, total: int) -> None:
    assert total_steps(ChangesItsBatches(most)) == total
