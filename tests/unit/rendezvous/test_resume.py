"""The source a round restores from: complete, on the lineage, the newest."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.types import Ancestry, Branch, Commit, Holder, Resume, Snapshot

from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.partners import partners
from spotelastic.rendezvous.sources.resume import (
    LINEAGE_KEPT,
    Held,
    choose,
    could_be_newer,
    extend,
    with_ancestors,
)


def snapshot(
    round_: str, step: int, *ranks: int, world: int = 4, whole: bool = False, layout: str = "L"
) -> Snapshot:
    return Snapshot(round_, step, layout, ranks, world, whole)


def held(node: str, *snapshots: Snapshot) -> Held:
    return Held(node, f"{node}:1", snapshots)


def test_nothing_anywhere_is_a_fresh_start() -> None:
    assert choose("", (), [], []) == Resume()


def test_the_newest_whole_slot_wins_over_an_older_commit() -> None:
    nodes = [held("a", snapshot("p", 90, 0, whole=True)), held("b", snapshot("p", 80, 1))]
    resume = choose("p", (), nodes, [Commit(3, 50)])
    assert (resume.kind, resume.step, [h.node for h in resume.holders]) == ("memory", 90, ["a"])


def test_a_newer_commit_wins_over_slots() -> None:
    resume = choose("p", (), [held("a", snapshot("p", 40, 0, whole=True))], [Commit(2, 50)])
    assert resume == Resume("store", 50, epoch=2)


def test_what_a_round_that_was_sent_back_has_sealed_is_newer_than_what_it_came_from() -> None:
    """Its script asked for an earlier step: neither the steps that it left nor their commit count,
    for the next rounds either, until it commits itself."""
    left, back = Commit(2, 200), snapshot("sent", 60, 0, whole=True)
    before = (Branch("old", 200),)
    nodes = [held("a", snapshot("old", 200, 0, whole=True), back)]
    resume = choose("sent", before, nodes, [left], left)
    assert (resume.kind, resume.incarnation, resume.step) == ("memory", "sent", 60)
    assert not could_be_newer(resume, "sent", before, nodes)

    started = Round(4, "next", "proposed", (), "loss", "", parent="sent", known=left)
    after = extend(replace(started, lineage=before), resume)
    assert choose("next", after, nodes, [left], left) == resume
    assert choose("next", after, nodes, [left, Commit(3, 70)], left) == Resume("store", 70, epoch=3)


def test_a_commit_that_was_found_later_wins_over_a_round_that_did_not_know_of_it() -> None:
    nodes = [held("a", snapshot("p", 20, 0, whole=True))]
    assert choose("p", (), nodes, [Commit(1, 198)], None) == Resume("store", 198, epoch=1)


def test_parts_of_a_later_round_are_worth_waiting_for() -> None:
    whole, part = snapshot("old", 200, 0, whole=True), snapshot("sent", 60, 0)
    nodes, before = [held("a", whole, part)], (Branch("old", 200),)
    resume = choose("sent", before, nodes, [])
    assert resume.incarnation == "old"
    assert could_be_newer(resume, "sent", before, nodes)


def test_sharded_slots_count_only_when_every_rank_is_there() -> None:
    nodes = [held("a", snapshot("p", 90, 0, 1)), held("b", snapshot("p", 90, 3))]
    assert choose("p", (), nodes, []).kind == "fresh"
    nodes.append(held("c", snapshot("p", 90, 2)))
    assert [h.node for h in choose("p", (), nodes, []).holders] == ["a", "c", "b"]


def test_slots_of_two_layouts_are_never_mixed() -> None:
    nodes = [
        held("a", snapshot("p", 90, 0, 1, layout="L1")),
        held("b", snapshot("p", 90, 2, 3, layout="L2")),
    ]
    assert choose("p", (), nodes, []).kind == "fresh"


def test_slots_off_the_lineage_do_not_count() -> None:
    """The other half of a split, and steps of an ancestor beyond the point we branched off at."""
    lineage = (Branch("grandparent", 60),)
    nodes = [
        held("a", snapshot("stranger", 900, 0, whole=True)),
        held("b", snapshot("grandparent", 70, 0, whole=True)),
        held("c", snapshot("grandparent", 60, 0, whole=True)),
    ]
    resume = choose("parent", lineage, nodes, [])
    assert (resume.incarnation, resume.step) == ("grandparent", 60)


def test_a_branch_point_cuts_all_ancestors() -> None:
    round_ = Round(
        3, "me", "proposed", (), "loss", "", parent="parent", lineage=(Branch("old", 60),)
    )
    assert extend(round_, Resume("store", 50)) == (Branch("old", 50), Branch("parent", 50))
    assert extend(replace(round_, parent=""), Resume()) == ()


def test_the_lineage_is_bounded() -> None:
    long = tuple(Branch(f"r{i}", i) for i in range(100))
    round_ = Round(101, "me", "proposed", (), "loss", "", parent="parent", lineage=long)
    extended = extend(round_, Resume("memory", 100))
    assert len(extended) == LINEAGE_KEPT and extended[-1] == Branch("parent", 100)


# -- replicas --------------------------------------------------------------------------------------


def replica(round_: str, step: int, *ranks: int, world: int = 4) -> Snapshot:
    return Snapshot(round_, step, "L", ranks, world, False, replica=True)


def test_a_replica_has_the_part_of_a_lost_node() -> None:
    nodes = [
        held("b", snapshot("p", 90, 1, world=3), replica("p", 90, 0, world=3)),
        held("c", snapshot("p", 90, 2, world=3)),
    ]
    resume = choose("p", (), nodes, [Commit(1, 50)])
    assert (resume.kind, resume.step) == ("memory", 90)
    assert {(h.node, h.ranks) for h in resume.holders} == {("b", (0,)), ("b", (1,)), ("c", (2,))}


def test_a_replica_of_another_step_or_history_makes_nothing_complete() -> None:
    own = snapshot("p", 90, 1, world=2)
    for other in (replica("p", 80, 0, world=2), replica("q", 90, 0, world=2)):
        assert choose("p", (), [held("b", own, other)], [Commit(1, 50)]).kind == "store"


def test_a_node_that_holds_the_same_stands_in_for_a_lost_one() -> None:
    c = held("c", Snapshot("p", 90, "L", (2,), 4, False, covers=(0,)))
    d = held("d", Snapshot("p", 90, "L", (3,), 4, False, covers=(1,)))
    assert choose("p", (), [c, d], []).step == 90
    assert choose("p", (), [c, held("b", snapshot("p", 90, 1))], []).kind == "fresh"


@given(st.integers(2, 9), st.sets(st.integers(0, 8)))
def test_any_losses_without_a_whole_pair_restore_from_memory(count: int, lost: set[int]) -> None:
    """Of a ring of three any two are a whole one: the third keeps one of them alone."""
    members = [
        Member(f"n{number}", f"n{number}-1", number, f"10.0.0.{number}", "a", 1)
        for number in range(count)
    ]
    keeper = partners(members, {})
    gone = {f"n{number}" for number in lost if number < count}
    left = [member for member in members if member.node not in gone]
    nodes = [
        held(
            member.node,
            snapshot("p", 90, member.slot, world=count),
            *(
                replica("p", 90, of.slot, world=count)
                for of in members
                if keeper[of.node] == member.node
            ),
        )
        for member in left
    ]
    resume = choose("p", (), nodes, [Commit(1, 50)])
    without_keeper = any(keeper[name] in gone for name in gone)
    assert resume.kind == ("store" if without_keeper or not left else "memory")


@st.composite
def histories(draw: st.DrawFn) -> list[Ancestry]:
    """Rounds, each after one of those before it, with a later epoch; some stores have lost some."""
    rounds: list[Ancestry] = []
    for number in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from(rounds)) if rounds else None
        lineage: tuple[Branch, ...] = ()
        if before is not None:
            lineage = (*before.lineage, Branch(before.incarnation, 10 * number, before.known))
        known = draw(st.none() | st.just(Commit(number, 5)))
        rounds.append(Ancestry(f"r{number}", lineage, known, number + 1, "run"))
    return rounds


@given(histories(), st.data())
def test_a_history_that_the_store_has_lost_counts_only_where_nothing_has_replaced_it(
    rounds: list[Ancestry], data: st.DataObject
) -> None:
    told = data.draw(st.lists(st.sampled_from(rounds)))
    parent = data.draw(st.sampled_from(["", *(each.incarnation for each in rounds)]))
    commits = data.draw(st.lists(st.builds(Commit, st.integers(1, 8), st.integers(1, 99))))
    run_id = data.draw(st.sampled_from(["", "run", "another"]))
    number = data.draw(st.integers(1, 2))
    round_ = Round(number, "new", "proposed", (), "start", "", parent=parent)
    found = with_ancestors(round_, told, commits, run_id)

    descends = {each.incarnation: {b.incarnation for b in each.lineage} for each in rounds}
    candidates = {
        each.incarnation: each
        for each in told
        if parent in ("", each.incarnation, *descends[each.incarnation])
    }
    last = [
        each
        for name, each in candidates.items()
        if all(other == name or other in descends[name] for other in candidates)
    ]
    forgotten = bool(parent) or number == 1
    is_used = bool(last) and forgotten and run_id != "another"
    is_used = is_used and not any(commit.epoch > last[0].epoch for commit in commits)
    if not is_used:
        assert found is round_
        return
    assert (found.parent, found.lineage) == (last[0].incarnation, last[0].lineage)
    assert found.known == last[0].known
    slot = Snapshot(found.parent, 7, "L", (0,), 1, whole=True)
    resume = choose(found.parent, found.lineage, [held("a", slot)], [])
    branches = [branch.incarnation for branch in extend(found, resume)]
    assert branches[-1] == found.parent  # so that the next rounds know of it, too


@given(st.data())
def test_a_source_outlives_a_loss_if_each_part_is_elsewhere_too(data: st.DataObject) -> None:
    nodes = ["a", "b", "c"]
    holders = data.draw(
        st.lists(
            st.builds(
                Holder,
                st.sampled_from([*nodes, "gone"]),
                st.just("d:1"),
                st.sets(st.integers(0, 2), min_size=1).map(tuple),
                st.booleans(),
            ),
            min_size=1,
        )
    )
    resume = Resume("memory", 1, "r", "L", tuple(holders))
    every = {rank for each in holders for rank in each.ranks}

    def is_left(lost: str) -> bool:
        left = [each for each in holders if each.node not in (lost, "gone")]
        return any(each.whole for each in left) or all(
            any(rank in each.ranks for each in left) for rank in every
        )

    assert resume.outlives_any_of(nodes) == (is_left("a") and is_left("b") and is_left("c"))
