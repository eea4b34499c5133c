"""What a node answers in a round and does about the election, whatever starts its workers."""

from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import WorkerStep

from spotelastic.model.agreement import Proposal
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import LARGE, Member, Round
from spotelastic.rendezvous.duties import answers, holding
from spotelastic.rendezvous.duties.holding import gathers
from spotelastic.rendezvous.view import LiveNode, RunState
from spotelastic.store.port import TransactionResult

NOW = 1000.0
NODE = Node("a", "inc-a", "10.0.0.1", "", Fingerprint("3.11"), "10.0.0.1:1")
ROUND = Round(2, "r2", "proposed", (Member("a", "inc-a", 0, "10.0.0.1", "", 2),), "arrival", "")
TARGET = Proposal("p1", "r2", "a notice", target=20)


def page(step: int, step_time: float = 0.1) -> WorkerStep:
    return WorkerStep(0, 0, step, step_time, 0.0, 0.0, attached=True)


# -- its place ------------------------------------------------------------------------------------


def test_a_node_that_registered_anew_is_not_the_member_of_its_name() -> None:
    assert answers.place(NODE, ROUND) is ROUND.members[0]
    assert answers.place(replace(NODE, incarnation="inc-2"), ROUND) is None
    assert answers.place(replace(NODE, id="b"), ROUND) is None


def test_a_node_that_missed_a_proposal_registers_anew() -> None:
    assert answers.missed(NODE, replace(ROUND, missed=("inc-a",)))
    assert not answers.missed(replace(NODE, incarnation="new"), replace(ROUND, missed=("inc-a",)))
    assert not answers.missed(NODE, None)


# -- its answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "can_start", "due"),
    [
        (("", ""), False, "seen"),
        (("r1", "ready"), False, "seen"),
        (("r2", "seen"), False, None),
        (("r2", "seen"), True, "ready"),
        (("", ""), True, "ready"),
        (("r2", "ready"), True, None),
        (("r2", "ready"), False, None),
    ],
)
def test_a_member_says_that_it_has_seen_a_round_and_then_once_that_it_can_start(
    told: tuple[str, str], can_start: bool, due: str | None
) -> None:
    assert answers.phase_due(told, ROUND, can_start=can_start) == due


def test_what_was_seen_contributes_nothing_yet() -> None:
    told = answers.seen(NODE, ROUND)
    assert (told.round, told.incarnation, told.phase) == ("r2", "inc-a", "seen")
    assert (told.store, told.epoch, told.commit, told.snapshots) == ("", 0, None, ())


@pytest.mark.parametrize(("step", "confirmed"), [(17, 20), (18, 20), (19, 0), (20, 0), (25, 0)])
def test_a_target_is_confirmed_only_two_steps_ahead_of_every_worker(
    step: int, confirmed: int
) -> None:
    vote = answers.vote("a", TARGET, (page(3), page(step)), 0)
    assert (vote.aimed, vote.confirmed, vote.sealed, vote.step) == (20, confirmed, 0, step)


def test_workers_that_have_not_restored_stand_at_the_step_that_they_resume_from() -> None:
    assert answers.vote("a", TARGET, (page(0),), resumed=19).confirmed == 0
    assert answers.vote("a", TARGET, (page(0),), resumed=10).confirmed == 20
    assert answers.vote("a", TARGET, (), resumed=19).confirmed == 0


def test_workers_that_wait_at_the_target_have_not_passed_it() -> None:
    vote = answers.vote("a", TARGET, (page(20),), 0, sealed=True)
    assert (vote.aimed, vote.confirmed, vote.sealed) == (20, 20, 20)


def test_a_vote_on_a_proposal_without_a_target_confirms_nothing() -> None:
    asked = replace(TARGET, target=0)
    vote = answers.vote("a", asked, (page(0, 0.0), page(7, 0.25)), 0)
    assert (vote.step, vote.step_time) == (7, 0.25)
    assert (vote.aimed, vote.confirmed, vote.sealed) == (0, 0, 0)


# -- the election ---------------------------------------------------------------------------------


def run(**more: object) -> RunState:
    nodes = {"a": LiveNode(NODE, 1, NOW - 100)}
    return RunState(settings=Settings(1, 1), nodes=nodes, revision=5, **more)  # type: ignore[arg-type]


def test_a_decision_that_wrote_nothing_is_made_again_after_the_next_change() -> None:
    assert holding.written(TransactionResult(True, 9), run(), NOW) == (9, NOW + 0.5)
    assert holding.written(TransactionResult(False, 5), run(), NOW) == (6, NOW + 0.5)


# -- a large run ----------------------------------------------------------------------------------


def large(members: int, nodes: int) -> RunState:
    made = tuple(Member(f"n{slot}", "1", slot, "", "", 1) for slot in range(members))
    live = {f"n{slot}": LiveNode(replace(NODE, id=f"n{slot}"), slot, 0.0) for slot in range(nodes)}
    return replace(run(), round=replace(ROUND, members=made), nodes=live)


@pytest.mark.parametrize(("members", "nodes"), [(2, 2), (LARGE, LARGE), (0, 1)])
def test_the_holder_of_a_small_run_decides_at_once(members: int, nodes: int) -> None:
    assert gathers(large(members, nodes)) == 0.0


@pytest.mark.parametrize(("members", "nodes"), [(LARGE + 1, 1), (2, LARGE + 1), (1000, 1000)])
def test_the_holder_of_a_large_run_gathers_answers_for_less_than_it_gives_their_senders(
    members: int, nodes: int
) -> None:
    seen = large(members, nodes)
    assert seen.settings is not None
    assert 0.0 < gathers(seen) < seen.settings.seen_within / 10
