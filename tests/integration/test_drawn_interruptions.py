"""Losses and planned changes at drawn moments, many of them in a rehearsal, change no parameter."""

from pathlib import Path

import pytest
from support.in_place.resting_drawn import KILLED, KINDS, RANKS, kind_of
from support.in_place.told_cases import Told, told_in
from support.processes.patience import DRAWN_WITHIN

pytestmark = [pytest.mark.soak, pytest.mark.timeout(DRAWN_WITHIN + 20)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each kind comes to in one process."""
    [found] = told_in(tmp_path_factory.mktemp("alone"), ["drawn-alone"]).values()
    return dict(found["told"]["0"])


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_losses_and_planned_changes_at_any_moment_change_no_parameter(
    alone: Told, tmp_path: Path, seed: int
) -> None:
    case = f"drawn-{seed}"
    found = told_in(tmp_path, [case], DRAWN_WITHIN)[case]
    last = [told[-1] for told in found["told"].values() if told]
    ended = [each["parameters"] for each in last if isinstance(each, dict)]
    assert len(ended) >= RANKS - KILLED
    for parameters in ended:
        assert parameters == pytest.approx(alone[kind_of(case)], rel=1e-9, abs=1e-12)
    assert not [each for each in found["heard"] if "made twice" in each]
