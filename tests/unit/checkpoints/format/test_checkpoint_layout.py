"""Who holds and uploads what, what may be overwritten, what is collected, what is asked for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.commit.commit_protocol import StepFolder, step_folders
from spotelastic_checkpoints.commit.retention import Keep, decide
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.format import layout
from spotelastic_checkpoints.format.layout import Declaration, Declared
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, SlotHeader, SlotState, SlotView
from spotelastic_checkpoints.memory.free_memory import FreeMemory
from spotelastic_checkpoints.types import Branch, Commit, MemberRanks, RoundInfo


def tensor(name: str, rows: int) -> Declared:
    return Declared(name, (name,), "float32", (rows,), (0,), (rows,))


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 3),
)
def test_every_node_holds_the_whole_replicated_state_and_nothing_is_uploaded_twice(
    sizes: list[int], nodes: int, per_node: int
) -> None:
    items = tuple(tensor(f"t{number}", size) for number, size in enumerate(sizes))
    declarations = [
        Declaration(
            rank, f"n{rank // per_node}", (*items, Declared(f"r{rank}", ("r",), rank=rank, room=64))
        )
        for rank in range(nodes * per_node)
    ]
    plan = layout.plan(declarations)
    assert layout.plan(declarations[::-1]) == plan
    assert plan.whole == set(plan.nodes)
    names = {item.fqn for item in items}
    for ranks in plan.nodes.values():
        held = [i.fqn for r in ranks for i in plan.slots[r].items if i.fqn in names]
        assert sorted(held) == sorted(names)
    owned = [i.fqn for slot in plan.slots.values() for i in slot.items[: slot.owned]]
    assert sorted(owned) == sorted(names | {f"r{rank}" for rank in plan.slots})
    for slot in plan.slots.values():
        end = 0
        for number, item in enumerate(slot.items):
            assert item.offset >= end
            end = item.offset + item.length
            assert end <= (slot.owned_bytes if number < slot.owned else slot.nbytes)


def test_what_each_rank_has_of_its_own_is_a_part_of_the_whole() -> None:
    """A node's memory alone is no source for entries of another's ranks, or for its stages."""
    both = tensor("both", 4)
    apart = [
        Declaration(0, "a", (both, Declared("loader.0", ("l",), room=64))),
        Declaration(1, "b", (both, Declared("loader.1", ("l",), room=64))),
    ]
    plan = layout.plan(apart)
    assert not plan.whole
    assert plan.shared == 3
    random = [Declaration(rank, f"n{rank}", (both,)) for rank in range(2)]
    assert layout.plan(random).whole == {"n0", "n1"}


def test_the_lowest_rank_uploads_and_holds_what_others_may_have_otherwise() -> None:
    buffers = tuple(
        Declared(f"b{n}", ("b",), "float32", (n,), (0,), (n,), lowest=True) for n in range(9)
    )
    plan = layout.plan([Declaration(rank, f"n{rank // 2}", buffers) for rank in range(4)])
    assert {rank: slot.owned for rank, slot in plan.slots.items()} == {0: 9, 1: 0, 2: 0, 3: 0}
    assert [len(slot.items) for slot in plan.slots.values()] == [9, 0, 9, 0]


def test_uploads_are_shared_evenly() -> None:
    items = tuple(tensor(f"t{number}", 1000) for number in range(40))
    plan = layout.plan([Declaration(rank, f"n{rank // 2}", items) for rank in range(4)])
    assert {slot.owned for slot in plan.slots.values()} == {10}


def test_another_owner_or_shape_is_another_layout() -> None:
    one = layout.plan([Declaration(0, "a", (tensor("t", 5),))])
    assert one.hash != layout.plan([Declaration(0, "a", (tensor("t", 6),))]).hash
    both = [Declaration(rank, "a", (tensor("t", 5),)) for rank in (0, 1)]
    assert one.hash != layout.plan(both).hash


def test_a_value_has_room_for_the_longest_of_any_rank() -> None:
    """Each node's holder writes its own."""
    plan = layout.plan(
        [
            Declaration(rank, f"n{rank}", (Declared("v", ("v",), room=room), tensor("t", 5)))
            for rank, room in enumerate((64, 640, 128))
        ]
    )
    for slot in plan.slots.values():
        assert slot.rooms == (640,)
        offsets = {item.fqn: item.offset for item in slot.items}
        end = offsets["t"] if offsets["t"] > offsets["v"] else slot.nbytes
        assert end - offsets["v"] >= 640


def test_a_sharded_state_is_not_whole_on_one_node() -> None:
    halves = [
        Declaration(rank, f"n{rank}", (Declared("t", ("t",), "float32", (8,), (4 * rank,), (4,)),))
        for rank in (0, 1)
    ]
    plan = layout.plan(halves)
    assert plan.whole == set()
    assert plan.chunks == plan.shared == 2


def header(incarnation: str, step: int, *, rank: int = 0, ranks: tuple[int, ...] = (0,)) -> (
    SlotHeader
):  # fmt: skip
    return SlotHeader(
        "me", incarnation, step, "layout", rank, 2, ranks, True, 1, 1, 1, 1, 1, 1, 0, False
    )


ROUND = RoundInfo("now", 2, 1, 0, (MemberRanks(0, "n0", (0,)),), lineage=(Branch("before", 20),))


def view(number: int, content: SlotHeader | None, state: SlotState = SlotState.SEALED) -> SlotView:
    return SlotView(Path(f"slot-{number}"), state, content)


def test_what_is_torn_or_empty_is_overwritten_first() -> None:
    views = [
        view(0, header("now", 30)),
        view(1, None, SlotState.WRITING),
        view(2, header("now", 20)),
    ]
    assert slots.choose(views, ROUND, ()) == Path("slot-1")


def test_a_save_off_the_lineage_goes_before_an_older_one_on_it() -> None:
    views = [
        view(0, header("before", 10)),
        view(1, header("before", 30)),
        view(2, header("before", 20)),
    ]
    assert slots.choose(views, ROUND, ()) == Path("slot-1")


def test_the_newest_save_and_uploads_are_never_overwritten() -> None:
    views = [view(0, header("now", 30)), view(1, header("now", 40))]
    assert slots.choose(views, ROUND, ()) == Path("slot-0")
    assert slots.choose(views, ROUND, {Path("slot-0")}) is None


def test_a_run_that_was_sent_back_keeps_what_it_has_sealed_since() -> None:
    """Its steps are lower than those of the round before, which are on its lineage."""
    views = [view(0, header("before", 20)), view(1, header("now", 5)), view(2, header("now", 8))]
    assert slots.choose(views, ROUND, ()) == Path("slot-0")
    assert slots.choose(views[1:], ROUND, ()) == Path("slot-1")


def test_a_snapshot_counts_when_all_ranks_of_the_node_have_sealed_it() -> None:
    both = (0, 1)
    headers = [header("now", 1, rank=0, ranks=both), header("now", 1, rank=1, ranks=both)]
    [snapshot] = slots.snapshots([*headers, header("now", 2, rank=0, ranks=both)])
    assert (snapshot.step, snapshot.ranks) == (1, both)


def listing(**steps: str) -> dict[Commit, StepFolder]:
    """`e1s10="cm"`: commit record, manifest, shard, as their first letters say."""
    names = {"c": ".metadata", "m": "manifests/0.json", "s": "__0_0.distcp"}
    keys = []
    for place, kinds in steps.items():
        epoch, _, step = place.removeprefix("e").partition("s")
        keys += [f"{epoch}/step-{int(step):08d}/{names[kind]}" for kind in kinds]
    return dict(step_folders(keys))


def test_the_last_commits_stay_and_tombstones_are_left_alone() -> None:
    folders = listing(e1s1="c", e1s2="cms", e1s3="cms", e2s1="cms", e2s4="cms")
    collection = decide(folders, {Commit(2, 1)}, set(), Commit(2, 4), 2, Keep(2))
    assert [found.commit for found in collection.retire] == [Commit(1, 2)]
    assert [found.commit for found in collection.finish] == [Commit(2, 1)]
    assert collection.sweep == ()


def test_the_newest_commit_stays_up_to_which_an_audit_has_found_all_right() -> None:
    folders = listing(e1s1="cms", e1s2="cms", e2s3="cms", e2s4="cms", e2s5="cms")
    stay = {
        good: {1, 2, 3, 4, 5}
        - {
            found.commit.step
            for found in decide(folders, set(), set(), Commit(2, 5), 2, Keep(1, good=good)).retire
        }
        for good in range(7)
    }
    assert stay == {0: {5}, 1: {1, 5}, 2: {2, 5}, 3: {3, 5}, 4: {4, 5}, 5: {5}, 6: {5}}


def test_uncommitted_steps_go_by_epoch_and_only_below_a_commit() -> None:
    folders = listing(e1s9="ms", e2s3="s", e2s4="cms", e1s10="cms", e2s5="s")
    collection = decide(folders, set(), set(), Commit(2, 4), 2, Keep())
    assert [found.commit for found in collection.sweep] == [Commit(1, 9)]
    # Before the new epoch has a commit, what the one before has in flight is left to finish.
    assert decide(folders, set(), set(), Commit(1, 8), 2, Keep()).sweep == ()


def test_slots_that_exist_need_no_further_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path, workers=2)
    size = 1 << 20
    for local in range(2):
        for number in range(2):
            arena.allocate(arena.slot_path(local, number), size)
    monkeypatch.setattr(arena, "room", lambda: FreeMemory(0, "here", "make more"))
    assert arena.slots_that_fit(size, most=3) == 2
    with pytest.raises(ArenaFull, match=r"two slots of 2 MiB for each of 2 workers need 8 MiB"):
        arena.slots_that_fit(2 * size, most=3)
    monkeypatch.setattr(arena, "room", lambda: FreeMemory(8 * size, "here", "make more"))
    assert arena.slots_that_fit(size, most=3) == 3


def test_a_slot_that_is_not_used_any_more_makes_no_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path, workers=1)
    size = 1 << 20
    for number in range(3):
        arena.allocate(arena.slot_path(0, number), size)
    # Two of twice the size need two MiB: the third slot's is not theirs.
    monkeypatch.setattr(arena, "room", lambda: FreeMemory(3 * size // 2, "here", "make more"))
    with pytest.raises(ArenaFull, match=r"need 4 MiB in .*, of which 2 MiB are there"):
        arena.slots_that_fit(2 * size, most=3)
    # Nor is what a slot has beyond the size.
    monkeypatch.setattr(arena, "room", lambda: FreeMemory(size, "here", "make more"))
    assert arena.slots_that_fit(size // 2, most=4) == 4
    assert arena.slots_that_fit(size // 2, most=5) == 4


# -- what one node alone holds ---------------------------------------------------------------------


def shard(fqn: str, number: int) -> Declared:
    return Declared(fqn, (fqn,), "float32", (32,), (8 * number,), (8,))


def plan_on(nodes: dict[str, list[list[Declared]]]) -> layout.JobLayout:
    """`nodes` has the chunks of each rank of each node."""
    ranks = [(node, chunks) for node, all_ranks in nodes.items() for chunks in all_ranks]
    return layout.plan(
        [
            Declaration(
                rank,
                node,
                (*chunks, Declared("step", ("step",), room=64),
                 Declared(f"rng-{rank}", (f"rng-{rank}",), rank=rank, room=64)),
            )
            for rank, (node, chunks) in enumerate(ranks)
        ]
    )  # fmt: skip


def alone(plan: layout.JobLayout) -> dict[int, set[tuple[str, tuple[int, ...]]]]:
    """For each rank, what its slot begins with that no other node holds."""
    return {
        rank: {item.key for item in slot.items[: slot.alone]} for rank, slot in plan.slots.items()
    }


def test_of_a_replicated_state_no_node_holds_anything_alone() -> None:
    weights = [shard("w", 0), shard("w", 1)]
    plan = plan_on({"a": [weights, weights], "b": [weights, weights]})
    assert all(not slot.alone and not slot.alone_bytes for slot in plan.slots.values())


def test_a_single_node_has_nobody_to_keep_its_shards() -> None:
    plan = plan_on({"a": [[shard("w", 0)], [shard("w", 1)]]})
    assert all(not slot.alone for slot in plan.slots.values())


def test_shards_over_all_ranks_are_held_by_their_nodes_alone_and_come_first() -> None:
    plan = plan_on({"a": [[shard("w", 0)], [shard("w", 1)]], "b": [[shard("w", 2)]]})
    assert alone(plan) == {
        rank: {("w", (8 * rank,)), (f"rng-{rank}", ())} for rank in range(3)
    }  # fmt: skip
    for slot in plan.slots.values():
        last = slot.items[slot.alone - 1]
        assert last.offset + max(last.length, 1) <= slot.alone_bytes <= slot.owned_bytes
        behind = slot.items[slot.alone :]
        assert all(item.offset >= slot.alone_bytes for item in behind)
    assert set(plan.covers.values()) == {()}


def test_two_shard_groups_hold_the_same_and_stand_in_for_each_other() -> None:
    first, second = [shard("w", 0)], [shard("w", 1)]
    plan = plan_on({"a": [first], "b": [second], "c": [first], "d": [second]})
    assert all(not slot.alone for slot in plan.slots.values())
    assert plan.covers == {"a": (2,), "b": (3,), "c": (0,), "d": (1,)}
    assert plan.whole == set()


def test_tensor_parallel_ranks_within_a_node_leave_nothing_alone() -> None:
    node = [[shard("w", 0)], [shard("w", 1)]]
    plan = plan_on({"a": node, "b": node})
    assert all(not slot.alone for slot in plan.slots.values())
    assert plan.whole == {"a", "b"} and plan.covers == {}


def test_tensor_parallel_ranks_over_two_nodes_hold_their_parts_alone() -> None:
    norm = Declared("norm", ("norm",), "float32", (8,), (0,), (8,))
    plan = plan_on({"a": [[shard("w", 0), norm]], "b": [[shard("w", 1), norm]]})
    assert alone(plan) == {0: {("w", (0,)), ("rng-0", ())}, 1: {("w", (8,)), ("rng-1", ())}}


def test_what_a_node_can_stand_in_for_fits_a_header() -> None:
    plan = plan_on({f"n{n:04}": [[shard("w", n % 2)]] for n in range(2000)})
    assert {len(ranks) for ranks in plan.covers.values()} == {layout.MOST_COVERED}
    assert plan.covers["n0000"][:2] == (2, 4) and plan.covers["n1998"][:2] == (0, 2)
