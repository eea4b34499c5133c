"""What AWS may do to a cluster, in virtual time, under the real decisions of controller and rounds.

After each, AWS holds what the decision says: as many instances as the job should have, no more than
that ever staying, and nothing left in the queue.
"""

import random
from dataclasses import dataclass

import pytest
from test_controller_sim import BOOT, LEASE, POLICY, WARNING, World
from test_rounds_sim import SETTINGS, cluster, finish

from spotelastic.cloud.events import CloudEvent
from spotelastic.controller.decisions.decide import decide, settled
from spotelastic.controller.model.observation import EndJobAtOnce, Message


@dataclass
class Bus(World):
    """Delivers AWS's events as badly as it may be."""

    copies: int = 1
    delay: float = 0.0
    shuffled: bool = False
    dry_until: float = 0.0
    """No capacity before."""

    def tell(self, event: CloudEvent) -> None:
        for copy in range(self.copies):
            late = self.random.uniform(0.0, 30.0) if self.shuffled else 0.0
            arrival = self.now + self.delay + late
            receipt = f"{len(self.queue)}-{copy}-{self.random.random()}"
            self.queue.append((arrival, Message(receipt, event, arrival)))

    def launch_missing(self) -> None:
        if self.now >= self.dry_until:
            super().launch_missing()


def whole(world: World) -> None:
    world.run(400.0)
    assert settled(world.seen(), world.now, POLICY)
    assert len(world.nodes) == world.desired
    assert world.queue == []
    assert world.most <= world.desired
    living = [name for name, machine in world.machines.items() if machine.state == "running"]
    assert sorted(living) == sorted(world.nodes), "nothing else is paid for"


def start(size: int, **options: object) -> Bus:
    world = Bus(size, random.Random(1), **options)  # type: ignore[arg-type]
    world.run(60.0)
    assert len(world.nodes) == size
    return world


@pytest.mark.parametrize(
    "queue",
    [
        {"copies": 3},
        {"shuffled": True, "copies": 2},
        {"delay": 300.0},
        {"copies": 0},
    ],
    ids=["duplicate", "reordered", "delayed", "lost"],
)
@pytest.mark.parametrize("seen_by_agent", [True, False])
def test_messages_that_come_twice_late_in_any_order_or_never(
    queue: dict[str, object], seen_by_agent: bool
) -> None:
    world = start(3, **queue)
    world.warn("i-1", seen_by_agent)
    world.run(1.0)
    world.gone("i-2")
    world.run(WARNING + 300.0)
    whole(world)
    assert world.launched == 5
    told = [(e.kind, e.node, e.data.get("source")) for e in world.events if e.node == "i-1"]
    assert len(told) == len(set(told)), "each account once"


def test_four_notices_at_once() -> None:
    world = start(5)
    for name in ("i-1", "i-2", "i-3", "i-4"):
        world.warn(name, seen_by_agent=True)
    world.run(BOOT + 10.0)
    assert len(world.nodes) == 5, "before their two minutes are over"
    whole(world)
    assert world.launched == 9


def test_a_notice_with_five_seconds_left() -> None:
    world = start(3)
    world.warn("i-1", seen_by_agent=True)
    world.at(5.0, "die", "i-1")
    world.run(6.0)
    assert world.machines["i-1"].state == "terminated"
    whole(world)
    assert [event.kind for event in world.events] == ["notice"], "and no loss besides"


def test_a_notice_that_is_withdrawn_has_replaced_the_node_all_the_same() -> None:
    world = start(3)
    world.warn("i-1", seen_by_agent=True)
    world.due = [each for each in world.due if each[1] != "die"]
    whole(world)
    assert world.launched == 4


def test_all_spot_capacity_is_gone_for_a_while() -> None:
    world = start(4)
    world.dry_until = world.now + 900.0
    for name in list(world.members):
        world.gone(name)
    world.run(800.0)
    assert (world.nodes, world.job.state) == ({}, "running")
    world.run(100.0)
    whole(world)


def test_a_zone_is_lost_with_its_control_node_and_its_workers() -> None:
    world = start(4)
    for name in ("i-1", "i-2"):
        world.gone(name)
    world.successor()
    world.queue.clear()  # what the old leader had received
    whole(world)
    losses = sorted(event.node for event in world.events if event.kind == "loss")
    assert losses == ["i-1", "i-2"], "each once"


def test_a_controller_that_decided_a_minute_ago_changes_nothing_that_does_not_mend() -> None:
    """Its writes to etcd are refused, and it asks before it calls AWS; but what it had asked AWS
    for may arrive late."""
    world = start(3)
    world.warn("i-1", seen_by_agent=True)
    stale = decide(world.seen(), world.now, POLICY).actions
    world.run(60.0)
    for action in stale:
        if getattr(action, "instance", "") in world.members:
            world.act(action)
    whole(world)


def test_two_controllers_that_both_decide_ask_for_no_instance_twice() -> None:
    world = start(3)
    world.warn("i-1", seen_by_agent=False)
    world.run(6.0)
    for _ in range(2):
        for action in decide(world.seen(), world.now, POLICY).actions:
            if (
                not isinstance(action, EndJobAtOnce)
                and getattr(action, "instance", "") in world.members
            ):
                world.act(action)
    whole(world)
    assert world.launched == 4


# -- and how training fares ----------------------------------------------------------------------


def test_the_node_of_rank_0_is_noticed_while_another_one_joins() -> None:
    world = cluster(2)
    world.run(lambda: world.step() > 25, 60)
    first = world.started[-1].members[0].node
    other = ({"n0", "n1"} - {first}).pop()
    world.add("n2")
    world.run(lambda: world.store.get(world.keys.proposal) is not None, 20)
    world.nodes[first].notice(15)
    world.run(lambda: world.trains(other, "n2"), 30)
    for before, after in zip(world.started, world.started[1:], strict=False):
        assert world.lost_steps(before, after) == 0
    finish(world)


def test_training_has_five_seconds_left() -> None:
    world = cluster(3)
    world.run(lambda: world.step() > 25, 60)
    world.nodes["n1"].notice(5)
    world.run(lambda: world.trains("n0", "n2"), 5)
    before, after = world.started
    assert world.lost_steps(before, after) == 0
    finish(world)


def test_four_of_four_are_noticed_and_four_others_take_over() -> None:
    world = cluster(4)
    world.run(lambda: world.step() > 25, 60)
    for index in range(4):
        world.nodes[f"n{index}"].notice(60)
        world.add(f"m{index}")
    world.run(lambda: world.trains("m0", "m1", "m2", "m3"), 60)
    assert max(len(round_.members) for round_ in world.started) <= SETTINGS.max_nodes
    for before, after in zip(world.started, world.started[1:], strict=False):
        assert world.lost_steps(before, after) == 0
    finish(world)


def test_leases_outlive_a_short_silence() -> None:
    """A lease that runs out and a machine that lives: the node is given its time."""
    world = start(2)
    world.happen("unregister", "i-1")
    world.run(LEASE + 1.0)
    assert world.launched == 2
    world.happen("register", "i-1")
    whole(world)
    assert world.launched == 2
