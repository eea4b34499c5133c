"""Simulates in-place recovery, in virtual time: who survives keeps process and state.

Strikes at each word of a step and of a change of rounds. In each run
`support.simulation.virtual_ranks` checks that ranks which go on together are equal, and that no
step is made twice or left out.
"""

import itertools
from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import Commit
from support.draws import soaked
from support.simulation.virtual_cluster import World
from support.simulation.virtual_ranks import MEETING, Rank, State
from support.simulation.virtual_training import NETWORK

from spotelastic.agent.round_duties import ATTACH_PATIENCE
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.round import Round
from spotelastic.store.codec import encode

EVERY = 10
STEPS = 120
SETTINGS = Settings(2, 4, snapshot_every=Interval(EVERY), checkpoint_every=Interval(50))
STEP_WORDS = ("computing", "reducing", "voting", "stepping")


def cluster(count: int, settings: Settings = SETTINGS, seed: int = 0) -> World:
    """Nodes that have trained for a while. All know that their workers can rest."""
    world = World(settings, STEPS, seed, in_place=True)
    for index in range(count):
        world.add(f"n{index}", zone="abc"[index % 3])
    world.run(lambda: world.trains(*(f"n{i}" for i in range(count))), 20)
    world.run(lambda: world.step() > 24 and world.started[-1].rests, 60)
    return world


def until(world: World, word: str, name: str = "") -> Rank:
    """Lets time pass until a rank, of this node, comes to a word."""
    found: list[Rank] = []

    def note(rank: Rank) -> None:
        if rank.where == word and name in ("", rank.node.name):
            found.append(rank)

    world.at_word = note
    world.run(lambda: bool(found), 60)
    world.at_word = None
    return found[0]


def started(world: World, count: int) -> Round:
    """The newest of so many rounds, once its workers have made a step."""
    world.run(lambda: len(world.started) >= count and world.trains_now(), 60)
    return world.started[count - 1]


def finish(world: World) -> None:
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded"
    assert world.violations() == []
    assert world.commit is not None and world.commit.step == STEPS


def lost(world: World) -> int:
    """Steps that were made again, in all rounds."""
    pairs = itertools.pairwise(world.started)
    return sum(max(0, world.lost_steps(before, after)) for before, after in pairs)


# -- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", STEP_WORDS)
@pytest.mark.parametrize("holds", [True, False], ids=["holder", "member"])
def test_a_node_that_vanishes_costs_no_step(word: str, holds: bool) -> None:
    world = cluster(3, seed=len(word))
    victim = next(name for name in sorted(world.nodes) if (name == world.holder) == holds)
    until(world, word, victim).node.kill()
    second = started(world, 2)
    assert (second.in_place, second.resume.holders) == ("keep", ())
    assert lost(world) == 0 and second.charged == ()
    finish(world)


@pytest.mark.parametrize("word", STEP_WORDS)
def test_a_worker_that_fails_is_replaced_alone(word: str) -> None:
    world = cluster(3, seed=len(word))
    ranks = {name: node.processes.rank for name, node in world.nodes.items()}
    until(world, word, "n1").exits(1)
    second = started(world, 2)
    assert [member.node for member in second.members] == ["n0", "n2"]
    assert second.in_place == "keep" and len(second.charged) == 1
    third = started(world, 3)
    assert (third.cause, third.nodes, third.in_place) == ("arrival", ("n1",), "keep")
    assert third.resume.holders, "who comes restores"
    finish(world)
    assert lost(world) == 0
    kept = [name for name, node in world.nodes.items() if node.processes.rank is ranks[name]]
    assert kept == ["n0", "n2"], "the same processes from beginning to end"


def test_one_of_two_workers_of_a_node_fails_and_both_are_replaced() -> None:
    """The node's part of the state is not whole any more; the other nodes lose nothing."""
    world = cluster(3, replace(SETTINGS, workers=2))
    ranks = {name: [*node.processes.ranks] for name, node in world.nodes.items()}
    until(world, "voting", "n1").exits(1)
    second = started(world, 2)
    assert (second.in_place, second.world_size, len(second.charged)) == ("keep", 4, 1)
    finish(world)
    assert lost(world) == 0
    kept = [name for name, node in world.nodes.items() if node.processes.ranks == ranks[name]]
    assert kept == ["n0", "n2"]


@pytest.mark.parametrize("word", STEP_WORDS)
def test_a_worker_that_fails_where_the_others_are_too_few_costs_no_step(word: str) -> None:
    """They save the step that they have before they rest. Who replaces it restores that."""
    world = cluster(2)
    until(world, word, "n1").exits(-9)
    second = started(world, 2)
    assert second.in_place == "keep" and len(second.charged) == 1
    assert [holder.node for holder in second.resume.holders] == ["n0"]
    finish(world)
    assert lost(world) == 0


@pytest.mark.parametrize("word", STEP_WORDS)
@pytest.mark.parametrize("nodes", [3, *soaked([2, 4])])
@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "is silent"])
def test_a_run_of_fixed_size_loses_no_step_when_a_node_is_replaced(
    word: str, nodes: int, refuses: bool
) -> None:
    """The others rest until another one comes."""
    world = cluster(nodes, replace(SETTINGS, min_nodes=nodes, max_nodes=nodes), seed=len(word))
    world.refuses = refuses
    ranks = {name: node.processes.rank for name, node in world.nodes.items()}
    until(world, word, "n1").node.kill()
    world.run(lambda: world.round is not None and world.round.number == 2, 10)
    world.add("late")
    second = started(world, 2)
    assert {member.node for member in second.members} == {"late", *ranks} - {"n1"}
    assert second.in_place == "keep" and second.charged == ()
    finish(world)
    assert lost(world) == 0
    kept = {name for name, node in world.nodes.items() if node.processes.rank is ranks.get(name)}
    assert kept == {*ranks} - {"n1"}


@pytest.mark.parametrize("word", STEP_WORDS)
def test_a_node_that_is_frozen_costs_no_step_and_comes_back(word: str) -> None:
    world = cluster(3, seed=1)
    until(world, word, "n1").node.freeze(6.0)
    second = started(world, 2)
    assert (second.cause, second.in_place, second.nodes) == ("loss", "keep", ("n1",))
    finish(world)
    assert lost(world) == 0
    assert len(world.started[-1].members) == 3


@pytest.mark.parametrize("word", STEP_WORDS)
def test_a_frozen_worker_is_found_by_the_stall_and_ended_and_its_peers_keep_theirs(
    word: str,
) -> None:
    world = cluster(3, replace(SETTINGS, stall_timeout=4.0))
    until(world, word, "n1").freeze()
    second = started(world, 2)
    assert (second.cause, second.in_place, len(second.charged)) == ("stall", "keep", 1)
    assert [member.node for member in second.members] == ["n0", "n2"]
    finish(world)
    assert lost(world) == 0


@pytest.mark.parametrize("word", STEP_WORDS)
@pytest.mark.parametrize("holds", [True, False], ids=["holder", "member"])
def test_a_node_whose_machine_refuses_connections_is_left_out_before_its_lease_ends(
    word: str, holds: bool
) -> None:
    world = cluster(3, seed=len(word))
    world.refuses = True
    victim = next(name for name in sorted(world.nodes) if (name == world.holder) == holds)
    until(world, word, victim).node.kill()
    second = started(world, 2)
    assert world.store.get(world.keys.live(victim)) is not None, "its lease has not run out"
    assert (second.cause, second.nodes, second.in_place) == ("loss", (victim,), "keep")
    proposed = {round_.incarnation for round_ in world.rounds if round_.number == 2}
    assert len(proposed) == 1, "the first proposal is the round"
    assert second.charged == () and world.holder != victim
    finish(world)
    assert lost(world) == 0


@pytest.mark.parametrize("word", STEP_WORDS)
def test_a_holder_that_was_taken_for_gone_goes_on_as_a_member(word: str) -> None:
    """Its daemon has ended, and a worker of another node; the holder itself lives."""
    world = cluster(4, seed=len(word))
    holder = world.nodes[world.holder]
    victim = until(world, word, next(name for name in sorted(world.nodes) if name != world.holder))
    holder.lag = 1.0  # it takes part in nothing for a while
    holder.processes.daemon_dies()
    victim.exits(1)
    world.run(lambda: world.holder not in ("", holder.name), 10)
    holder.lag = NETWORK
    finish(world)
    assert holder.name in world.nodes and holder.local.membership.leadership is None
    assert lost(world) == 0


def test_workers_of_a_script_that_starts_slowly_keep_their_processes() -> None:
    """A node came meanwhile, and the script was taken for one without a Checkpointer."""
    world = World(SETTINGS, STEPS, in_place=True)
    world.starting = ATTACH_PATIENCE + 2
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: len(world.started) == 1, 20)
    world.add("n2")
    second = started(world, 2)
    assert second.plain and len(second.members) == 3
    ranks = [world.nodes[name].processes.rank for name in ("n0", "n1")]
    world.run(lambda: world.step() > 24, 60)
    world.nodes["n2"].kill()
    third = started(world, 3)
    assert third.in_place == "keep" and lost(world) == 0
    assert [world.nodes[name].processes.rank for name in ("n0", "n1")] == ranks
    finish(world)


# -- changes while a round changes ----------------------------------------------------------------

CHANGING = ("resting", "entering", "meeting", "computing")


@pytest.mark.parametrize("word", CHANGING)
@pytest.mark.parametrize("holds", [True, False], ids=["holder", "member"])
def test_a_second_node_vanishes_while_the_others_recover_from_the_first(
    word: str, holds: bool
) -> None:
    world = cluster(4, seed=len(word))
    world.nodes["n3" if world.holder != "n3" else "n2"].kill()
    until(world, word)
    victim = next(name for name in sorted(world.nodes) if (name == world.holder) == holds)
    world.nodes[victim].kill()
    finish(world)
    assert lost(world) == 0
    assert all(round_.in_place == "keep" for round_ in world.started[1:])


@pytest.mark.parametrize("word", CHANGING[:3])
def test_a_worker_fails_while_its_round_changes(word: str) -> None:
    """The rest of the nodes is enough: nobody loses a step, and it is charged no more than once."""
    world = cluster(4, seed=2)
    world.nodes["n3"].kill()
    until(world, word, "n1").exits(1)
    finish(world)
    assert lost(world) == 0
    assert len(world.started[-1].charged) <= 1


def test_a_worker_fails_after_its_node_has_said_that_it_rests() -> None:
    """The round counts on a state that is no more, and is given up before anybody trains."""
    world = cluster(4)
    world.nodes["n3"].kill()
    world.run(lambda: len(world.started) == 2, 10)
    rank = world.nodes["n1" if world.holder != "n1" else "n2"].processes.rank
    assert rank.where == "resting"
    rank.exits(1)
    finish(world)
    second, third = world.started[1:3]
    assert not world.trainings[second.incarnation].stepped
    assert (third.cause, third.charged) == ("store", ()), "it was not the script"
    assert lost(world) == 0


def test_a_worker_that_is_frozen_while_it_rests_is_left_behind_in_time() -> None:
    world = cluster(3)
    world.nodes["n2"].kill()
    until(world, "resting", "n1").freeze()
    world.add("n3")
    world.run(lambda: len(world.started) > 1 and world.trains_now(), MEETING + 30)
    world.run(lambda: world.done, 300)
    assert world.job.state == "succeeded"


# -- planned changes ------------------------------------------------------------------------------


def test_a_node_that_arrives_prepares_beside_the_round_and_restores_what_the_others_have() -> None:
    world = cluster(2)
    ranks = [node.processes.rank for node in world.nodes.values()]
    node = world.add("n2")
    prepared = until(world, "resting", "n2")
    assert len(world.started) == 1, "the others train meanwhile"
    second = started(world, 2)
    assert node.processes.rank is prepared
    assert (second.cause, second.in_place, second.resume.incarnation) == (
        "arrival",
        "keep",
        world.started[0].incarnation,
    )
    assert {holder.node for holder in second.resume.holders} == {"n0", "n1"}
    finish(world)
    assert lost(world) == 0
    assert [world.nodes[name].processes.rank for name in ("n0", "n1")] == ranks


@pytest.mark.parametrize("word", ["waiting", *CHANGING[:3], "restoring"])
@pytest.mark.parametrize("victim", ["n0", "n1", "n3"])
def test_a_node_vanishes_while_another_one_arrives(word: str, victim: str) -> None:
    world = cluster(3, seed=len(word))
    world.add("n3")
    until(world, "resting", "n3")
    until(world, word)
    world.nodes[victim].kill()
    finish(world)
    assert lost(world) == 0


def test_a_node_that_leaves_costs_no_step_and_no_process_of_the_others() -> None:
    world = cluster(3)
    ranks = [world.nodes[name].processes.rank for name in ("n0", "n1")]
    world.nodes["n2"].leave()
    second = started(world, 2)
    assert (second.cause, second.in_place) == ("drain", "keep")
    assert lost(world) == 0
    assert [world.nodes[name].processes.rank for name in ("n0", "n1")] == ranks
    finish(world)


# -- what takes new processes ---------------------------------------------------------------------


def test_new_code_takes_new_processes() -> None:
    world = cluster(2)
    ranks = [node.processes.rank for node in world.nodes.values()]
    world.store.put(world.keys.settings, encode(replace(world.settings, code="new")))
    second = started(world, 2)
    assert (second.cause, second.in_place) == ("settings", "")
    assert lost(world) == 0
    assert not any(rank.alive for rank in ranks)
    finish(world)


def test_rounds_without_a_new_step_end_in_new_processes() -> None:
    """Something in the old ones may be broken."""
    world = cluster(2, replace(SETTINGS, max_restarts=100))
    world.nodes["n1"].processes.rank.exits(1)
    ways = []
    for number in range(2, 7):
        world.begins(number, 60)
        ways.append(world.started[-1].in_place)
        until(world, "meeting", "n1").breaks()
    assert ways == ["keep", *["restore"] * 3, ""], "the first one came after new steps"
    finish(world)


def test_a_first_round_that_fails_before_a_save_begins_in_new_processes() -> None:
    world = World(SETTINGS, STEPS, in_place=True)
    for name in ("n0", "n1"):
        world.add(name)
    until(world, "computing", "n1").exits(1)
    second = started(world, 2)
    assert (second.resume.kind, second.in_place) == ("fresh", "")
    finish(world)


def test_a_gang_keeps_what_it_can_and_fails_with_a_node() -> None:
    world = cluster(3, replace(SETTINGS, gang=True))
    until(world, "voting", "n1").exits(1)
    second = started(world, 2)
    assert second.in_place == "restore" and len(second.members) == 3
    world.nodes["n2"].kill()
    world.run(lambda: world.done, 10)
    assert (world.job.state, world.job.reason) == ("failed", "lost n2 (--gang)")


def test_states_of_which_each_node_has_a_part_are_restored() -> None:
    world = World(SETTINGS, STEPS, sharded=True, in_place=True)
    for name in ("n0", "n1", "n2"):
        world.add(name)
    world.run(lambda: world.step() > 24, 60)
    world.nodes["n2"].leave()
    second = started(world, 2)
    assert (second.cause, second.in_place) == ("drain", "restore")
    assert lost(world) == 0
    finish(world)


@pytest.mark.parametrize("freezes", [False, True], ids=["fails", "freezes"])
def test_who_restores_waits_for_no_new_process_and_uses_what_its_node_has_saved(
    freezes: bool,
) -> None:
    """The node has a part of the state: the others go on from that at once."""
    settings = replace(SETTINGS, stall_timeout=4.0)
    world = World(settings, STEPS, sharded=True, in_place=True)
    for name in ("n0", "n1", "n2"):
        world.add(name)
    world.run(lambda: world.trains("n0", "n1", "n2"), 60)
    begun = len(world.started)
    world.run(lambda: world.step() > world.started[-1].resume.step + 2 * EVERY + 4, 60)
    ranks = {name: node.processes.rank for name, node in world.nodes.items()}
    victim = until(world, "reducing", "n1")
    if freezes:
        victim.freeze()
    else:
        victim.exits(-9)
    second = started(world, begun + 1)
    assert [member.node for member in second.members] == ["n0", "n2"]
    assert (second.in_place, second.resume.kind) == ("restore", "memory")
    assert {holder.node for holder in second.resume.holders} == {"n0", "n1", "n2"}
    assert 0 <= lost(world) <= EVERY
    third = started(world, begun + 2)
    assert (third.cause, third.nodes, third.in_place) == ("arrival", ("n1",), "restore")
    finish(world)
    kept = [name for name, node in world.nodes.items() if node.processes.rank is ranks[name]]
    assert kept == ["n0", "n2"], "the same processes from beginning to end"


def test_a_later_commit_that_is_found_counts_more_than_what_workers_have() -> None:
    """The object store was away, and the job began anew because of that."""
    world, kept = World(SETTINGS, STEPS, in_place=True), Commit(1, 60)
    world.bucket.hold(kept)
    world.bucket.answers = False
    world.saves.found[kept] = State(60, 1)
    for name in ("n0", "n1"):
        world.add(name)
    world.run(lambda: world.step() > 20, 40)
    world.bucket.answers = True
    second = started(world, 2)
    assert (second.cause, second.resume.kind, second.resume.step) == ("commit", "store", 60)
    assert second.in_place == "restore"
    world.run(lambda: world.done, 300)
