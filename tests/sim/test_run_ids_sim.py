"""The id of a run in the rounds of simulated clusters: one, and that of the storage."""

from support.simulation.virtual_cluster import World

from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings

SETTINGS = Settings(2, 4, snapshot_every=Interval(10), checkpoint_every=Interval(50))


def test_all_rounds_of_a_run_have_the_id_that_its_storage_gets() -> None:
    world = World(SETTINGS, 400)
    world.add("n0")
    world.add("n1")
    world.run(lambda: world.step() > 25, 60)
    world.add("n2")
    world.run(lambda: world.trains("n0", "n1", "n2"), 30)
    world.nodes["n0"].kill()
    world.run(lambda: world.done, 300)
    first = world.started[0].incarnation
    assert len(world.started) == 3
    assert {round_.run_id for round_ in world.started} == {first}
    assert world.bucket.claim("other") == first


def test_a_cluster_that_goes_on_from_a_storage_has_the_id_of_its_run() -> None:
    world = World(SETTINGS, 100)
    world.bucket.claim("earlier")
    world.add("n0")
    world.add("n1")
    world.run(lambda: world.done, 300)
    assert {round_.run_id for round_ in world.started} == {"earlier"}


def test_a_storage_that_answers_late_has_the_last_word() -> None:
    world = World(SETTINGS, 400)
    world.bucket.claim("earlier")
    world.bucket.answers = False
    world.add("n0")
    world.add("n1")
    world.run(lambda: world.step() > 25, 60)
    assert world.started[-1].run_id == world.started[0].incarnation
    world.bucket.answers = True
    world.run(lambda: world.done, 300)
    assert world.started[-1].run_id == "earlier"
