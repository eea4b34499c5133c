"""A replica of what one node alone holds: whole, of one save and one history, or not used."""

import shutil
from pathlib import Path

import pytest
from spotelastic_checkpoints import addresses
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, SlotState
from spotelastic_checkpoints.types import Branch
from support.draws import every_other
from support.processes.kill_points import REPLICA_STAGES, Stage
from support.processes.patience import eventually
from support.saving.daemons_and_workers import (
    Worker,
    cluster,
    fetched,
    plan_of,
    round_info,
    sharded_plan_of,
)
from support.saving.replica_daemons import (
    all_have,
    has_replica,
    is_sharded_content,
    replicas,
    replicating,
    resume_from,
    saved,
    states,
    with_wards,
    workers_of,
)

pytestmark = pytest.mark.faults

OF_OWNER = (Stage.REPLICA_OFFERED, Stage.REPLICA_SENT)
OF_KEEPER = tuple(stage for stage in REPLICA_STAGES if stage not in OF_OWNER)


def test_what_only_a_lost_node_held_is_restored_from_its_partners_memory(tmp_path: Path) -> None:
    with replicating(tmp_path, 3) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        saved(workers, 2)
        all_have(nodes, 2)
        lost, *left = nodes
        lost.kill()
        shutil.rmtree(lost.arena)
        for worker in workers:
            worker.client.close()
        for slot, node in enumerate(left):
            node.agent.end()
            info = round_info("r2", slot, ["n1", "n2"], 1, 0, lineage=[Branch("r1", 2)])
            node.begin(info)
        resume = resume_from(left, 2)
        for slot, node in enumerate(left):
            worker = Worker(str(node.socket), "r2", slot, 0, sharded_plan_of(2, 1), prepare=False)
            assert is_sharded_content(fetched(worker.client, resume), 2, 3)
            worker.client.leave(clean=True)
        assert not (tmp_path / "never").exists()


def test_a_replica_is_no_save_of_the_node_that_keeps_it(tmp_path: Path) -> None:
    """It is not uploaded, and counts as what it is."""
    with replicating(tmp_path) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        [found] = replicas(nodes[0])
        assert (found.ranks, found.whole, found.covers) == ((1,), False, ())
        own = [each for each in nodes[0].agent.status().snapshots if not each.replica]
        assert [each.ranks for each in own] == [(0,)]
        assert nodes[0].agent.status().upload is None
        for worker in workers:
            worker.client.leave(clean=True)


def test_of_a_replicated_state_nothing_is_copied(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, storage=str(tmp_path / "never")) as nodes:
        for node, info in zip(nodes, with_wards(nodes, "r1").values(), strict=True):
            node.begin(info)
        plan = plan_of(2, 1)
        workers = [Worker(str(node.socket), "r1", rank, 0, plan) for rank, node in enumerate(nodes)]
        for step in (1, 2, 3):
            saved(workers, step)
        for worker in workers:
            assert worker.client.ready.wait(60)
            worker.client.leave(clean=True)
        # Each is asked and answered at least once before a daemon ends.
        assert all(states(node) == {} for node in nodes)


@pytest.mark.parametrize("stage", every_other(OF_KEEPER))
def test_a_keeper_that_dies_leaves_no_torn_replica(tmp_path: Path, stage: Stage) -> None:
    with replicating(tmp_path, workers=2) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        keeper, info = nodes[0], with_wards(nodes, "r1")["n0"]
        keeper.kill()
        keeper.start(die_at=stage)
        keeper.begin(info)
        for worker in workers:
            worker.save(2)
        eventually(keeper.died)
        torn = [name for name, state in states(keeper).items() if state != SlotState.SEALED]
        assert torn, "it died in the middle of a set of two files"

        left = slots.replicas(Arena(keeper.arena, 2))
        assert [found.step for found in left] == [1], "the one before is whole"

        keeper.agent.close()
        keeper.start()
        keeper.begin(info)
        eventually(lambda: has_replica(keeper, 2))
        for worker in workers:
            worker.client.close()
        nodes[1].kill()
        resume = resume_from(nodes[:1], 2)
        keeper.agent.end()
        keeper.begin(round_info("r2", 0, ["n0"], 2, 0, lineage=[Branch("r1", 2)]))
        worker = Worker(str(keeper.socket), "r2", 0, 0, sharded_plan_of(2, 2), prepare=False)
        assert is_sharded_content(fetched(worker.client, resume), 2, 4)
        worker.client.leave(clean=True)


@pytest.mark.parametrize("stage", every_other(OF_OWNER))
def test_an_owner_that_dies_leaves_its_keeper_the_replica_before(
    tmp_path: Path, stage: Stage
) -> None:
    with replicating(tmp_path) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        owner, infos = nodes[1], with_wards(nodes, "r1")
        owner.kill()
        owner.start(die_at=stage)
        owner.begin(infos["n1"])
        saved(workers, 2)
        eventually(owner.died)
        assert 1 in [found.step for found in replicas(nodes[0])]
        owner.agent.close()
        owner.start()
        owner.begin(infos["n1"])
        eventually(lambda: has_replica(nodes[0], 2), "it is asked where it was before")
        for worker in workers:
            worker.client.leave(clean=True)


def test_only_saves_of_the_round_of_both_are_copied(tmp_path: Path) -> None:
    """The owner holds a later step of another history."""
    with replicating(tmp_path) as (nodes, workers):
        saved(workers, 9)
        all_have(nodes, 9)
        for worker in workers:
            worker.client.close()
        for name, info in with_wards(nodes, "r2", [Branch("r1", 3)]).items():
            next(each for each in nodes if each.name == name).begin(info)
        again = workers_of(nodes, "r2")
        saved(again, 4)
        all_have(nodes, 4)
        for node in nodes:
            kept = {(found.incarnation, found.step) for found in replicas(node)}
            assert ("r2", 4) in kept and kept <= {("r1", 9), ("r2", 4)}
        # The one off the history goes first, although its step is higher.
        saved(again, 5)
        all_have(nodes, 5)
        for node in nodes:
            kept = {(found.incarnation, found.step) for found in replicas(node)}
            assert kept == {("r2", 4), ("r2", 5)}
        for worker in again:
            worker.client.leave(clean=True)


def test_a_set_with_files_of_two_saves_is_no_replica(tmp_path: Path) -> None:
    with replicating(tmp_path, workers=2) as (nodes, workers):
        for step in (1, 2):
            saved(workers, step)
            all_have(nodes, step)
        keeper = nodes[0]
        keeper.kill()
        one, other = (sorted(keeper.arena.glob(f"replica-{number}-*")) for number in (0, 1))
        shutil.copy(one[0], other[0])
        assert len(slots.replicas(Arena(keeper.arena, 2))) == 1
        keeper.start()
        eventually(lambda: {found.step for found in replicas(keeper)} == {1, 2})
        for worker in workers:
            worker.client.close()


def test_a_flipped_byte_of_an_unchanged_range_is_not_taken_over(tmp_path: Path) -> None:
    """What has not changed comes from the replica before, if it still is what it was."""
    with replicating(tmp_path) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        keeper = nodes[0]
        [file] = Arena(keeper.arena, 1).replicas()
        file.data[1000] ^= 1
        saved(workers, 2)
        eventually(lambda: has_replica(keeper, 2))
        saved(workers, 3)
        all_have(nodes, 3)
        nodes[1].kill()
        resume = resume_from(nodes[:1], 3)
        for worker in workers:
            worker.client.close()
        keeper.agent.end()
        keeper.begin(round_info("r2", 0, ["n0"], 1, 0, lineage=[Branch("r1", 3)]))
        worker = Worker(str(keeper.socket), "r2", 0, 0, sharded_plan_of(1, 1), prepare=False)
        assert is_sharded_content(fetched(worker.client, resume), 3, 2)
        worker.client.leave(clean=True)


def test_with_both_of_a_pair_gone_nothing_is_made_up(tmp_path: Path) -> None:
    with replicating(tmp_path, 3) as (nodes, workers):
        saved(workers, 1)
        all_have(nodes, 1)
        resume = resume_from(nodes, 1)
        for worker in workers:
            worker.client.close()
        nodes[0].kill()
        nodes[2].kill()  # which kept what n0 held
        node = nodes[1]
        node.agent.end()
        node.begin(round_info("r2", 0, ["n1"], 1, 0, lineage=[Branch("r1", 1)]))
        worker = Worker(str(node.socket), "r2", 0, 0, sharded_plan_of(1, 1), prepare=False)
        with pytest.raises(RestoreFailed, match="no longer complete"):
            fetched(worker.client, resume)
        worker.client.leave(clean=True)


def test_a_daemon_whose_port_was_taken_meanwhile_listens_at_another(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        before = node.agent.status().listen
        node.kill()
        with addresses.listen(*addresses.split(before), 1):
            node.start()
            assert node.agent.status().listen != before
        after = node.agent.status().listen
        node.kill()
        node.start()
        assert node.agent.status().listen == after
