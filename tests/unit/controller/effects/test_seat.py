"""How an etcd member of a control node comes up: what its disk, the bucket and the others say."""

import itertools
from pathlib import Path

import pytest
from support.clusters.memory_bucket import MemoryBucket

from spotelastic.aws.node.etcd_identity import VolumeHolder, step
from spotelastic.controller.etcd import member_lifecycle
from spotelastic.controller.etcd.generations import (
    GENERATIONS,
    Generation,
    GenerationClaim,
    Generations,
)
from spotelastic.controller.etcd.member_lifecycle import (
    KeepWaiting,
    OpenGeneration,
    Sight,
    Start,
    decide,
)
from spotelastic.store.etcd_server.process import MemberConfig
from spotelastic.store.etcd_server.roster import ListedMember, Roster

MEMBERS = ("a", "b", "c")
FRESH = GenerationClaim()
WHOLE = GenerationClaim(joined=2, holds=2)
LOST = GenerationClaim(joined=2, holds=0)
BEHIND = GenerationClaim(joined=1, holds=1)
SEVENTH = "etcd/snapshots/7.db"
SECOND = Generation(2, "etcd/snapshots/1.db")


def sight(
    *claims: GenerationClaim, generation: Generation | None = SECOND, roster: Roster | None = None
) -> Sight:
    """As `a` sees it; the claims are of a, b and c."""
    known = dict(zip(MEMBERS, claims, strict=False))
    return Sight("a", MEMBERS, generation, known, "a:2380", roster, SEVENTH)


def listed(*, led: bool = True, served: bool = True, mine: bool = True) -> Roster:
    others = [ListedMember(2, "b", "b:2380", True), ListedMember(3, "c", "c:2380", True)]
    me = [ListedMember(1, "a", "a:2380", served)] if mine else []
    return Roster("b:2379", led, (*me, *others))


@pytest.mark.parametrize(
    ("seen", "todo"),
    [
        (sight(FRESH, generation=None), OpenGeneration(Generation(1))),
        (sight(FRESH, generation=Generation(1)), Start("begin")),
        (sight(WHOLE), Start("resume")),
        (sight(BEHIND), Start("begin")),
        (sight(LOST, WHOLE, WHOLE, roster=listed()), Start("replace")),
        (sight(LOST, WHOLE, WHOLE, roster=listed(served=False)), Start("join")),
        (sight(LOST, WHOLE, WHOLE, roster=listed(mine=False)), Start("add")),
        (sight(LOST, LOST, LOST), OpenGeneration(Generation(3, SEVENTH))),
        (sight(LOST, LOST, WHOLE), OpenGeneration(Generation(3, SEVENTH))),
        (
            sight(LOST, LOST, WHOLE, roster=listed(led=False)),
            OpenGeneration(Generation(3, SEVENTH)),
        ),
        # The others' disks are there as far as anybody knows: their data must not be forgotten.
        (sight(LOST, WHOLE, WHOLE), KeepWaiting),
        (sight(LOST, WHOLE, WHOLE, roster=listed(led=False)), KeepWaiting),
        (sight(LOST, WHOLE, BEHIND), KeepWaiting),
        (sight(LOST, WHOLE), KeepWaiting),
    ],
)
def test_how_a_member_comes_up(seen: Sight, todo: object) -> None:
    found = decide(seen)
    assert todo is KeepWaiting if isinstance(found, KeepWaiting) else found == todo


def test_nobody_begins_a_generation_twice_nor_ends_one_that_has_a_quorum() -> None:
    rosters = (None, listed(), listed(led=False), listed(served=False), listed(mine=False))
    kinds = (FRESH, BEHIND, WHOLE, LOST)
    for *claims, roster in itertools.product(kinds, kinds, kinds, rosters):
        todo = decide(sight(*claims, roster=roster))
        if todo == Start("begin"):
            assert claims[0].joined < SECOND.number
        if isinstance(todo, OpenGeneration):
            assert claims.count(LOST) >= 2
            assert roster is None or not roster.led


@pytest.mark.parametrize(("serves", "looks"), [(True, 2), (False, 8)])
def test_a_member_that_serves_looks_rarely_for_a_newer_generation_and_lists_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serves: bool, looks: int
) -> None:
    class Over(Exception):
        """Of the two minutes."""

    now, listed = 0.0, list[str]()

    def wait(seconds: float) -> None:
        nonlocal now
        if now >= 120.0:
            raise Over
        now += seconds

    monkeypatch.setattr(member_lifecycle, "steady", lambda: now)
    monkeypatch.setattr(member_lifecycle, "serves", lambda *_: serves)
    monkeypatch.setattr(member_lifecycle, "find_binary", lambda: "etcd")

    class Listed(MemoryBucket):
        def names(self, prefix: str) -> tuple[str, ...]:
            listed.append(prefix)
            return super().names(prefix)

    member = MemberConfig("a", tmp_path, "a:2379", "a:2380")
    follows = member_lifecycle.MemberLifecycle(
        member_lifecycle.MemberLifecycleConfig(member, tmp_path, {}, tmp_path / "log"),
        Listed("demo"),
        pause=wait,
    )
    with pytest.raises(Over):
        follows.follow()
    assert listed == [GENERATIONS] * looks


def test_the_newest_generation_is_told_by_its_name_alone() -> None:
    names = (f"{GENERATIONS}000001.json", f"{GENERATIONS}000012.json")
    objects = MemoryBucket("demo", dict.fromkeys(names, b"not read"))
    assert Generations(objects).number() == 12
    assert Generations(MemoryBucket("demo")).number() == 0


def test_what_lingers_is_detached_only_from_a_terminated_instance() -> None:
    alive = ("pending", "running", "stopping", "stopped", "shutting-down")
    ways = ("attaching", "attached", "detaching", "busy")
    for state, how in itertools.product(alive, ways):
        assert step(VolumeHolder("i-other", how, state), "i-me") == "wait"
    assert step(VolumeHolder("i-other", "attached", "terminated"), "i-me") == "detach"
    assert step(VolumeHolder("i-other", "detaching", "terminated"), "i-me") == "wait"
    assert step(VolumeHolder("i-me", "attaching", "running"), "i-me") == "wait"
    assert step(VolumeHolder("i-me", "attached", "running"), "i-me") == "done"
    assert step(None, "i-me") == "attach"
