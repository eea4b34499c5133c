"""The source a round restores from: complete, on the lineage, the newest."""

from dataclasses import replace

from spotelastic_checkpoints.types import Branch, Commit, Resume, Snapshot

from spotelastic.model.round import Round
from spotelastic.rendezvous.sources.resume import LINEAGE_KEPT, Held, choose, could_be_newer, extend


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
