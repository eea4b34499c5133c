"""What is put on record of a round's restores, from what the nodes report."""

from dataclasses import replace

from spotelastic_checkpoints.types import Resume
from support.clusters.job_history import Story, memory

from spotelastic.controller.accounting import restores
from spotelastic.controller.model.observation import Records
from spotelastic.model.progress import Event, Progress


def records(*told: Progress, resume: Resume) -> Records:
    story = Story().propose("start", "abc").train(30, after=1.0)
    story.end().propose("loss", "ac", about="b", resume=resume).train(60, after=1.0)
    return Records(round=story.current, progress={each.node: each for each in told})


def entry(*told: Progress, resume: Resume | None = None) -> list[Event]:
    return list(restores.entry(records(*told, resume=resume or memory(30)), 100.0))


A = Progress("a", 2, 31, 99.0, restore_time=0.25, restored_from="memory")
C = Progress("c", 2, 31, 99.0, restore_time=2.5, restored_from="memory")


def test_the_slowest_node_of_each_source_counts_once_all_have_made_a_step() -> None:
    (event,) = entry(A, C)
    assert event.message == "round 2: 2 nodes restored in 2.50 s from memory"
    assert event.data["seconds"] == {"memory": 2.5}
    assert restores.by_round([event, replace(event, kind="round")]) == {2: {"memory": 2.5}}
    (event,) = entry(A, replace(C, restored_from="store"))
    assert event.data["seconds"] == {"memory": 0.25, "store": 2.5}
    assert entry(A) == []
    assert entry(A, replace(C, step=30)) == [], "it may still restore"
    assert entry(A, replace(C, round=1)) == [], "of the round before"


def test_nothing_is_told_of_a_round_in_which_nobody_restored() -> None:
    assert entry(replace(A, restore_time=0.0), replace(C, restore_time=0.0)) == []
    assert entry(A, C, resume=Resume()) == []
    (event,) = entry(replace(A, restore_time=0.0), C)
    assert event.message == "round 2: 1 node restored in 2.50 s from memory"
