"""How an etcd member of a control node comes up: what its disk, the bucket and the others say."""

import itertools

import pytest

from spotelastic.aws.member import Holder, step
from spotelastic.controller.generations import Claim, Generation
from spotelastic.controller.seat import Open, Sight, Start, Wait, decide
from spotelastic.store.roster import Listed, Roster

MEMBERS = ("a", "b", "c")
FRESH = Claim()
WHOLE = Claim(joined=2, holds=2)
LOST = Claim(joined=2, holds=0)
BEHIND = Claim(joined=1, holds=1)
SEVENTH = "etcd/snapshots/7.db"
SECOND = Generation(2, "etcd/snapshots/1.db")


def sight(
    *claims: Claim, generation: Generation | None = SECOND, roster: Roster | None = None
) -> Sight:
    """As `a` sees it; the claims are of a, b and c."""
    known = dict(zip(MEMBERS, claims, strict=False))
    return Sight("a", MEMBERS, generation, known, "a:2380", roster, SEVENTH)


def listed(*, led: bool = True, served: bool = True, mine: bool = True) -> Roster:
    others = [Listed(2, "b", "b:2380", True), Listed(3, "c", "c:2380", True)]
    me = [Listed(1, "a", "a:2380", served)] if mine else []
    return Roster("b:2379", led, (*me, *others))


@pytest.mark.parametrize(
    ("seen", "todo"),
    [
        (sight(FRESH, generation=None), Open(Generation(1))),
        (sight(FRESH, generation=Generation(1)), Start("begin")),
        (sight(WHOLE), Start("resume")),
        (sight(BEHIND), Start("begin")),
        (sight(LOST, WHOLE, WHOLE, roster=listed()), Start("replace")),
        (sight(LOST, WHOLE, WHOLE, roster=listed(served=False)), Start("join")),
        (sight(LOST, WHOLE, WHOLE, roster=listed(mine=False)), Start("add")),
        (sight(LOST, LOST, LOST), Open(Generation(3, SEVENTH))),
        (sight(LOST, LOST, WHOLE), Open(Generation(3, SEVENTH))),
        (sight(LOST, LOST, WHOLE, roster=listed(led=False)), Open(Generation(3, SEVENTH))),
        # The others' disks are there as far as anybody knows: their data must not be forgotten.
        (sight(LOST, WHOLE, WHOLE), Wait),
        (sight(LOST, WHOLE, WHOLE, roster=listed(led=False)), Wait),
        (sight(LOST, WHOLE, BEHIND), Wait),
        (sight(LOST, WHOLE), Wait),
    ],
)
def test_how_a_member_comes_up(seen: Sight, todo: object) -> None:
    found = decide(seen)
    assert todo is Wait if isinstance(found, Wait) else found == todo


def test_nobody_begins_a_generation_twice_nor_ends_one_that_has_a_quorum() -> None:
    rosters = (None, listed(), listed(led=False), listed(served=False), listed(mine=False))
    kinds = (FRESH, BEHIND, WHOLE, LOST)
    for *claims, roster in itertools.product(kinds, kinds, kinds, rosters):
        todo = decide(sight(*claims, roster=roster))
        if todo == Start("begin"):
            assert claims[0].joined < SECOND.number
        if isinstance(todo, Open):
            assert claims.count(LOST) >= 2
            assert roster is None or not roster.led


def test_what_lingers_is_detached_only_from_a_terminated_instance() -> None:
    alive = ("pending", "running", "stopping", "stopped", "shutting-down")
    ways = ("attaching", "attached", "detaching", "busy")
    for state, how in itertools.product(alive, ways):
        assert step(Holder("i-other", how, state), "i-me") == "wait"
    assert step(Holder("i-other", "attached", "terminated"), "i-me") == "detach"
    assert step(Holder("i-other", "detaching", "terminated"), "i-me") == "wait"
    assert step(Holder("i-me", "attaching", "running"), "i-me") == "wait"
    assert step(Holder("i-me", "attached", "running"), "i-me") == "done"
    assert step(None, "i-me") == "attach"
