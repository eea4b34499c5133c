"""When ranks rehearse, they do so together."""

from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.training.in_place.rehearsing import Rehearsing
from spotelastic.training.in_place.undo import Undo
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state.state import State


@pytest.fixture
def loop() -> Any:
    """A loop whose steps cannot be rehearsed: each is one after which ranks wait for others."""
    return SimpleNamespace(
        own=OwnValues(),
        state=State({}),
        ranks=lambda: Ranks(0, 1, 0, "n"),
        waits_after=lambda step: True,
    )


def test_who_could_not_rehearse_tries_again_in_the_next_round(loop: Any) -> None:
    """Those that come know of nothing that was not possible before."""
    stays, comes = Rehearsing(loop, "auto"), Rehearsing(loop, "auto")
    stays.enters(0)
    assert stays.is_due(2)
    stays.prepare(2, Undo(loop.state), hindered=False)
    assert not stays.is_due(3)
    for each in (stays, comes):
        each.enters(10)
    assert [stays.is_due(step) for step in range(10, 20)] == [
        comes.is_due(step) for step in range(10, 20)
    ]
    assert comes.is_due(12)


def test_who_comes_knows_that_a_step_has_to_be_restored(loop: Any) -> None:
    assert Rehearsing(loop, "auto").undoes
    loop.own.rehearsals = loop.own.rehearsals.rehearsed(
        2, 1, seconds=1.0, step_time=0.1, restores=True
    )
    assert not Rehearsing(loop, "auto").undoes
