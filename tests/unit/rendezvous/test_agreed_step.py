"""Which step workers go on from that keep their state, for any place at which they can be."""

from dataclasses import replace
from itertools import chain, combinations
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.types import Holder, Resume

from spotelastic.model.in_place import Change, Standing
from spotelastic.model.job import Failure
from spotelastic.model.round import Acknowledgement, Member, Round
from spotelastic.rendezvous.sources.in_place import FRUITLESS, agreed_step, fallen, keepers, source

CHANGES = get_args(Change)
STANDINGS = st.lists(
    st.builds(Standing, st.integers(0, 4), st.sampled_from(CHANGES)), min_size=1, max_size=5
)


def can_reach(standing: Standing, step: int) -> bool:
    """With the state and the gradients that it has, and nothing else."""
    if standing.change == "dirty":
        return False
    makes = standing.change == "pending" and standing.step == step - 1
    return standing.step == step or makes


@st.composite
def left_by_a_vote(draw: st.DrawFn) -> list[Standing]:
    """Where ranks can stand that vote before each step, wherever each of them was stopped.

    A vote succeeds only after all have entered it, with all gradients. Then each rank may have
    noticed that or not, may be within its optimizer, at the next step, or in the next vote.
    """
    step, size = draw(st.integers(0, 100)), draw(st.integers(1, 6))
    before = [Standing(step), Standing(step, "pending")]
    after = [Standing(step, "pending"), Standing(step + 1), Standing(step + 1, "pending")]
    places = after if draw(st.booleans()) else before
    return draw(st.lists(st.sampled_from(places), min_size=size, max_size=size))


@given(left_by_a_vote())
def test_wherever_ranks_that_vote_are_stopped_all_can_go_on_and_no_step_is_lost(
    standings: list[Standing],
) -> None:
    """Of all ranks as of any that are left."""
    some = chain.from_iterable(combinations(standings, n) for n in range(1, len(standings) + 1))
    for left in some:
        step = agreed_step(left)
        assert step is not None and all(can_reach(standing, step) for standing in left)
        assert step >= max(standing.step for standing in left)


@given(STANDINGS)
def test_the_step_is_the_newest_that_all_can_reach_if_there_is_one(
    standings: list[Standing],
) -> None:
    """Also where no vote can have left them so."""
    newest = max(standing.step for standing in standings)
    steps = [newest + 1, newest]
    found = [step for step in steps if all(can_reach(each, step) for each in standings)]
    assert agreed_step(standings) == (found[0] if found else None)


@given(left_by_a_vote(), st.data())
def test_one_state_that_changed_in_part_is_kept_by_nobody(
    standings: list[Standing], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(standings) - 1))
    standings[at] = Standing(standings[at].step, "dirty")
    assert agreed_step(standings) is None


def test_nobody_agrees_on_nothing() -> None:
    assert agreed_step([]) is None


# -- who keeps, and what the others restore -------------------------------------------------------

MEMBERS = tuple(Member(name, f"{name}-1", slot, "h", "z", 2) for slot, name in enumerate("ab"))
ROUND = Round(2, "r2", "proposed", MEMBERS, "loss", "", parent="r1")
RESTS = (Standing(7), Standing(7))


def ack(node: str, rested: str = "r1", standings: tuple[Standing, ...] = RESTS) -> Acknowledgement:
    return Acknowledgement(node, f"{node}-1", "r2", "ready", rested=rested, standings=standings)


def test_who_keeps_is_who_rests_whole_from_the_round_before() -> None:
    assert keepers(ROUND, [ack("a"), ack("b")]) == {"a": RESTS, "b": RESTS}
    assert keepers(ROUND, [ack("a"), ack("b", rested="r0")]) == {"a": RESTS}
    assert keepers(ROUND, [ack("a"), ack("b", standings=RESTS[:1])]) == {"a": RESTS}
    assert keepers(ROUND, [ack("a", rested="", standings=())]) == {}


def test_who_rests_keeps_although_the_script_was_taken_for_one_without_a_checkpointer() -> None:
    """It took long to come to it, and the round before changed meanwhile."""
    assert keepers(replace(ROUND, plain=1), [ack("a"), ack("b")]) == {"a": RESTS, "b": RESTS}


@pytest.mark.parametrize(
    "round_",
    [
        replace(ROUND, parent=""),
        replace(ROUND, fruitless=FRUITLESS),
    ],
    ids=["no round before", "no new step"],
)
def test_nobody_keeps_where_processes_are_to_be_new(round_: Round) -> None:
    told = [ack("a", rested=round_.parent), ack("b", rested=round_.parent)]
    assert keepers(round_, told) == {}


def test_a_source_is_what_all_have_or_a_save_at_the_very_step() -> None:
    saved = Resume("memory", 7, "r1", "layout", (Holder("a", "a:1", (0, 1), whole=True),))
    assert source(ROUND, 7, Resume(), all_keep=True) == Resume("memory", 7, "r1")
    assert source(ROUND, 7, saved, all_keep=False) == saved
    assert source(ROUND, 8, saved, all_keep=False) is None
    other = Resume("memory", 7, "r0", "layout", saved.holders)
    assert source(ROUND, 7, other, all_keep=False) is None
    assert source(ROUND, 7, Resume("store", 7, epoch=1), all_keep=False) is None


def test_fallen_is_who_lost_a_worker_whose_peers_can_rest() -> None:
    def failure(node: str, **more: Any) -> Failure:
        return Failure(node, node, "r2", 0, 0, 0.0, 1, **more)

    told = [
        failure("a", rests=True),
        failure("b", rests=True, broken=True),
        failure("c"),
        Failure("d", "d", "r1", 0, 0, 0.0, 1, rests=True),
    ]
    assert fallen(ROUND, told) == {"a"}
