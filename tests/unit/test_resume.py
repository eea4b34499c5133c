"""The source a round restores from: complete, on the lineage, the newest."""

from dataclasses import replace

from spotelastic.model.round import Branch, Commit, Resume, Round, Snapshot
from spotelastic.rendezvous.resume import LINEAGE_KEPT, Held, choose, extend


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
