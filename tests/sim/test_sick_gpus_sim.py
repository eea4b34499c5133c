"""Nodes with sick GPUs, in virtual time: they leave at once, and the script is not charged."""

import pytest
from support.simulation.virtual_cluster import World

from spotelastic.agent.shutdown import STUCK
from spotelastic.model.agreement import Proposal
from spotelastic.model.gpu import GpuFault
from spotelastic.model.job import Settings
from spotelastic.model.progress import Event
from spotelastic.store.codec import decode

LOST = GpuFault("Xid 79, the GPU has fallen off the bus", "kernel", "xid 79", "0000:1b:00", 79)
ERRORS = GpuFault("2 uncorrected memory errors", "nvidia-smi", "uncorrected errors", "3")


def training(nodes: int = 3, *, least: int = 2, max_restarts: int = 3) -> World:
    world = World(Settings(least, 8, max_restarts=max_restarts), 400, gpus=True)
    for index in range(nodes):
        world.add(f"n{index}")
    world.run(lambda: world.trains(*(f"n{index}" for index in range(nodes))), 30)
    return world


def events(world: World, kind: str) -> list[Event]:
    found, _ = world.store.range(world.keys.event(""))
    return [each for each in (decode(value.data, Event) for value in found) if each.kind == kind]


def test_a_sick_node_leaves_at_once_and_the_others_train_on() -> None:
    world = training()
    world.run(lambda: world.step() >= 20, 30)
    sick, began = world.nodes["n1"], world.now
    sick.fall_ill(LOST)
    world.run(lambda: world.trains("n0", "n2"), 5)
    assert world.now - began < 3, "nobody waits for a save with it"
    world.run(lambda: sick.exit_code is not None, 30)
    assert sick.exit_code == STUCK
    (told,) = events(world, "unhealthy")
    assert told.message == "n1 leaves: GPU 0000:1b:00: Xid 79, the GPU has fallen off the bus"
    assert (told.node, told.data["xid"], told.data["cause"]) == ("n1", 79, "xid 79")
    assert world.round is not None and world.round.charged == ()
    assert world.violations() == []


def test_the_holder_itself_may_be_the_sick_one() -> None:
    world = training()
    holder = world.holder
    others = sorted({"n0", "n1", "n2"} - {holder})
    world.nodes[holder].fall_ill(LOST)
    world.run(lambda: world.trains(*others), 15)
    assert world.round is not None and world.round.charged == ()
    assert world.violations() == []


def test_too_few_nodes_wait_for_another_one() -> None:
    world = training(2)
    world.nodes["n1"].fall_ill(LOST)
    world.run(lambda: "n1" not in world.nodes, 30)
    world.add("n9")
    world.run(lambda: world.trains("n0", "n9"), 30)
    assert world.violations() == []


def test_a_failure_that_a_sick_gpu_has_caused_is_not_charged() -> None:
    """Even if no failure at all is allowed: no round starts, and none gives up, before it is known
    whether a GPU is to blame.
    """
    world = training(max_restarts=0)
    sick, round_ = world.nodes["n1"], world.started[-1].incarnation
    sick.gpu_fault = ERRORS
    sick.worker_exits(round_, 1)
    world.run(lambda: world.trains("n0", "n2"), 15)
    assert not world.done
    assert world.round is not None and world.round.charged == ()
    assert events(world, "failure")[0].node == "n1", "those of its peers follow"
    assert [each.node for each in events(world, "unhealthy")] == ["n1"]
    assert world.violations() == []


def test_nor_are_those_of_workers_elsewhere_that_it_pulled_along() -> None:
    world = training(max_restarts=0)
    sick, round_ = world.nodes["n1"], world.started[-1].incarnation
    sick.gpu_fault = ERRORS
    world.nodes["n2"].worker_exits(round_, 1)
    sick.worker_exits(round_, 1)
    world.run(lambda: world.trains("n0", "n2"), 15)
    assert not world.done
    assert world.round is not None and world.round.charged == ()
    assert world.violations() == []


def test_a_failure_on_healthy_gpus_is_charged() -> None:
    world = training(max_restarts=0)
    world.nodes["n1"].worker_exits(world.started[-1].incarnation, 1)
    world.run(lambda: world.done, 15)
    assert world.job.reason == "the script failed once, --max-restarts 0"
    assert events(world, "unhealthy") == []


def test_a_node_that_is_sick_from_the_start_never_joins() -> None:
    world = training()
    world.run(lambda: world.step() >= 5, 30)
    sick = world.add("n7")
    sick.gpu_fault = LOST
    before = world.round
    world.run(lambda: sick.exit_code is not None, 30)
    assert sick.exit_code == STUCK
    assert world.round == before
    (told,) = events(world, "unhealthy")
    assert told.message.startswith("n7 does not join: GPU 0000:1b:00: Xid 79")


def test_a_sick_node_is_gone_whether_etcd_answers_or_not() -> None:
    world = training()
    sick = world.nodes["n1"]
    sick.client.cut()
    sick.fall_ill(LOST)
    world.run(lambda: sick.exit_code is not None, 40)
    assert sick.exit_code == STUCK


def target(world: World) -> int:
    """The step at which all are to save, once there is one."""
    value = world.store.get(world.keys.proposal)
    return decode(value.data, Proposal).target if value is not None else 0


@pytest.mark.parametrize("who", ["n1", "n2"])
def test_a_sick_node_while_a_save_for_a_notice_is_agreed_on(who: str) -> None:
    """Nobody can reach the agreed step any more, whichever of them is the sick one."""
    world = training()
    world.step_time = 1.0
    for node in world.nodes.values():
        node.hangs = True  # in a collective, as workers do whose peer is gone
    world.nodes["n1"].notice(120.0)
    world.run(lambda: target(world) > 0, 10)
    began = world.now
    world.nodes[who].fall_ill(LOST)
    others = sorted({"n0", "n1", "n2"} - {who})
    world.run(lambda: world.started[-1].number > 1, 30)
    assert world.now - began < 0.5, "sooner than workers notice that a peer is gone"
    assert {member.node for member in world.started[-1].members} <= set(others)
    assert world.violations() == []


def test_slots_that_only_the_sick_node_has_are_read_before_it_goes() -> None:
    """A sharded state needs every node's slots; those of a sick node lie in its main memory."""
    world = World(Settings(2, 8), 400, sharded=True, gpus=True)
    for index in range(3):
        world.add(f"n{index}")
    world.run(lambda: world.trains("n0", "n1", "n2") and world.step() >= 20, 40)
    before, holder = world.started[-1], world.nodes[world.holder]
    sick = min({"n0", "n1", "n2"} - {world.holder})
    holder.client.cut()  # it hears late of the sick node
    world.after(1.0, holder.client.heal)
    world.nodes[sick].fall_ill(LOST)
    world.run(lambda: world.trains(*sorted({"n0", "n1", "n2"} - {sick})), 15)
    after = world.started[-1]
    assert after.resume.kind == "memory"
    assert world.lost_steps(before, after) < 20
