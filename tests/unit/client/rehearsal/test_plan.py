"""What a rehearsal tries, and at which steps."""

from itertools import pairwise

import pytest

from spotelastic.client.rehearsal import rehearsal_plan

DEFAULT = 'parser.add_argument("--steps", type=int, default=100_000)'


@pytest.mark.parametrize("last", range(rehearsal_plan.FEWEST, 80))
def test_all_that_happens_has_a_step_of_its_own(last: int) -> None:
    made = rehearsal_plan.made(last, 0)
    kills = [step for step, _ in made.kills]
    changes = [1, made.loses, *made.comes, made.leaves, last]
    assert [stage for _, stage in made.kills] == [*rehearsal_plan.STAGES]
    assert all(before < after for steps in (kills, changes) for before, after in pairwise(steps))
    assert max(kills) < last
    assert 1 <= made.stop < last


@pytest.mark.parametrize(("epoch", "between"), [(0, 0), (8, 8), (24, 0), (32, 0)])
def test_a_run_is_stopped_between_epochs_where_it_reaches_the_end_of_one(
    epoch: int, between: int
) -> None:
    made = rehearsal_plan.made(24, epoch)
    assert made.epoch == between
    assert not epoch or made.stop % epoch


def test_steps_reach_past_the_first_epoch_where_that_costs_little() -> None:
    assert rehearsal_plan.reach(20, 100, 0.1) == 109
    assert rehearsal_plan.reach(20, 100, 3.0) == 20
    assert rehearsal_plan.reach(20, 6, 0.1) == rehearsal_plan.reach(20, 0, 0.1) == 20


def lengths(
    args: str, source: str = "", *, epoch: int = 0, more: str = ""
) -> rehearsal_plan.Lengths | None:
    return rehearsal_plan.lengths(args.split(), source, rehearsal_plan.made(20, epoch), more)


def test_a_run_is_made_longer_by_the_argument_that_says_how_long_it_is() -> None:
    given = lengths("data --steps 50 --lr 1")
    assert given is not None
    assert given.short == ("data", "--lr", "1", "--steps", "10")
    assert given.long == ("data", "--steps", "50", "--lr", "1")
    of_the_source = lengths("", DEFAULT)
    assert of_the_source is not None
    assert of_the_source.short == ("--steps", "10")
    by_epochs = lengths("--epochs=2", epoch=8)
    assert by_epochs is not None
    assert by_epochs.short == ("--epochs", "1")


def test_a_run_is_made_longer_as_the_user_says() -> None:
    found = lengths("--epochs 2", more="--epochs 4")
    assert found is not None
    assert (found.short, found.long) == (("--epochs", "2"), ("--epochs", "4"))


@pytest.mark.parametrize("args", ["", "--steps 8", "--lr 3", "--steps many", "--epochs 1"])
def test_a_run_is_not_made_longer_where_nothing_says_how(args: str) -> None:
    assert lengths(args, epoch=8) is None


def test_ranks_are_two_where_the_script_makes_a_group_and_the_machine_has_devices() -> None:
    assert rehearsal_plan.ranks("dist.init_process_group()", 0, 0) == 2
    assert rehearsal_plan.ranks("dist.init_process_group()", 1, 0) == 1
    assert rehearsal_plan.ranks("import torch", 0, 0) == 1
    assert rehearsal_plan.ranks("import torch", 0, 2) == 2
