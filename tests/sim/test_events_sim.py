"""How much the store has to deliver: in proportion to the nodes, not to their square."""

from support.simulation.virtual_cluster import World

from spotelastic.model.job import Settings


def delivered(nodes: int) -> tuple[int, int]:
    """Events until all train in round 1, and from one's end until the others train in round 2."""
    world = World(Settings(nodes - 1, nodes, lease=2.0), steps=10_000)
    names = [f"n{index:02}" for index in range(nodes)]
    for name in names:
        world.add(name)
    world.run(lambda: world.trains(*names), 60)
    joined = world.delivered
    world.nodes[names[-1]].kill()
    world.run(lambda: world.trains(*names[:-1]), 60)
    return joined, world.delivered - joined


def test_twice_the_nodes_get_twice_the_events_when_they_join_and_when_one_leaves() -> None:
    few, many = delivered(12), delivered(48)
    assert few[0] > 12 and few[1] > 12
    assert many[0] <= 4.5 * few[0]
    assert many[1] <= 4.5 * few[1]
