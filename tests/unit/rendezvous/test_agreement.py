"""The holder's side of agreeing on a step: a target never goes down, and is never guessed."""

from dataclasses import replace
from types import MappingProxyType

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.agreement import AgreementStatus, advance
from spotelastic.rendezvous.view import RunState

MEMBERS = tuple(Member(n, f"{n}-1", slot, "10.0.0.1", "a", 1) for slot, n in enumerate("ab"))
ROUND = Round(3, "r3", "started", MEMBERS, "start", "x")
ASKED = Proposal("p", "r3", "c joined", deadline=100.0)


def standing(proposal: Proposal | None, *votes: Vote, now: float = 90.0) -> AgreementStatus:
    seen = RunState(proposal=proposal, votes=MappingProxyType({vote.node: vote for vote in votes}))
    return advance(seen, ROUND, "c joined", 100.0, now, lambda: "p")


def vote(node: str, step: int, *, confirmed: int = 0, sealed: int = 0) -> Vote:
    return Vote(node, "p", step, 0.1, confirmed, confirmed, sealed)


def test_steps_are_asked_for_before_a_target_is_set() -> None:
    assert standing(None).proposal == ASKED
    assert standing(replace(ASKED, cancelled=True)).proposal == ASKED
    assert standing(ASKED, vote("a", 20)).proposal is None, "b has not answered"
    told = standing(ASKED, vote("a", 20), vote("b", 21)).proposal
    assert told is not None and (told.target, told.raised) == (31, 0)


def test_a_target_that_a_worker_may_have_passed_is_raised_ever_further() -> None:
    current, margins = replace(ASKED, target=31), []
    for _ in range(4):
        step = current.target + 5
        raised = standing(current, vote("a", step), vote("b", step), now=80.0).proposal
        assert raised is not None and raised.target > current.target
        margins.append(raised.target - step)
        current = raised
    assert margins == [10, 20, 40, 80]
    late = standing(current, vote("a", 500), vote("b", 500), now=96.0).proposal
    assert late is not None and late.target == 520, "half of the time that is left"


def test_a_confirmed_target_stands_until_all_have_sealed_it() -> None:
    current = replace(ASKED, target=31)
    waits = standing(current, vote("a", 30, confirmed=31), vote("b", 31, confirmed=31, sealed=31))
    assert waits.proposal is None and not waits.over
    sealed = [vote(node, 31, confirmed=31, sealed=31) for node in "ab"]
    assert standing(current, *sealed).over


def test_nobody_waits_beyond_the_deadline_or_for_one_that_cannot() -> None:
    assert standing(ASKED, now=100.0).over
    assert standing(ASKED, replace(vote("a", 0), refused=True)).over
