"""Rounds of many nodes in virtual time: none is left out, and each answers once."""

from collections import Counter

from support.simulation.virtual_cluster import World

from spotelastic.model.job import Settings
from spotelastic.model.round import LARGE, Acknowledgement, Round
from spotelastic.store.codec import decode

NAMES = tuple(f"n{index}" for index in range(LARGE + 16))


def answers(world: World, round_: Round) -> Counter[str]:
    """How often each node has answered to a round."""
    found: Counter[str] = Counter()
    for entry in world.history.entries:
        if entry.key.startswith(world.keys.ack()) and entry.data is not None:
            ack = decode(entry.data, Acknowledgement)
            found[ack.node] += ack.round == round_.incarnation
    return found


def test_a_large_round_answers_once_and_leaves_nobody_out() -> None:
    world = World(Settings(2, len(NAMES), seen_within=2.0), 10_000)
    for name in NAMES:
        world.add(name)
    world.run(lambda: world.trains(*NAMES), 30)
    world.nodes["n7"].kill()
    left = [name for name in NAMES if name != "n7"]
    world.run(lambda: world.trains(*left), 30)
    world.nodes["n9"].leave()
    left.remove("n9")
    world.run(lambda: world.trains(*left), 30)
    first, second, third = world.started
    assert (first.cause, second.cause, third.cause) == ("start", "loss", "drain")
    assert [round_.missed for round_ in world.started] == [(), (), ()]
    assert world.lost_steps(second, third) == 0
    assert world.violations() == []
    for round_ in (second, third):
        told = answers(world, round_)
        lead = round_.members[0].node
        assert told[lead] >= 1
        assert {told[member.node] for member in round_.members if member.node != lead} == {1}
