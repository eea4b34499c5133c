"""The Checkpointer under an agent's daemon: rounds, agreed steps and notices."""

import threading
import time
from pathlib import Path

import pytest
import torch
from spotelastic_checkpoints.messages import DaemonEvent, Points, SaveFailed, Sealed
from spotelastic_checkpoints.types import Branch, Resume, Schedule, StepPoint
from support.processes.patience import PATIENT, eventually
from support.saving.daemons_and_workers import cluster, under_agent
from support.saving.stored_commits import commits_of
from support.training.open_checkpointer import client_of
from support.training.small_model import make, make_seeded, one_step, weights

import spotelastic as se


def test_a_new_round_goes_on_from_memory_with_the_same_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        state = make_seeded(3)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            pytest.raises(RuntimeError),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.restore()
            for step in (1, 2, 3):
                checkpoint.step(step, loss=one_step(state))
            raise RuntimeError
        [snapshot] = node.agent.status().snapshots
        assert (snapshot.step, snapshot.whole) == (2, True)

        again = make(seed=8)
        resume = Resume("memory", 2, "r1", snapshot.layout)
        with (
            under_agent(node, "r2", resume, monkeypatch, lineage=[Branch("r1", 2)]),
            se.Checkpointer(again) as checkpoint,
        ):
            assert checkpoint.restore() == 2
            one_step(again)
        assert torch.equal(weights(again), weights(state))

        def points() -> list[StepPoint]:  # which a connection of their own brings
            return [p for event in events if isinstance(event, Points) for p in event.points]

        eventually(lambda: [point.step for point in points()] == [1, 2, 3], "all points")
        assert all(point.loss is not None for point in points())


def test_a_last_step_that_is_in_memory_alone_is_committed_when_nothing_is_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died in what came after the last step."""
    with cluster(tmp_path) as [node]:
        state = make()
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            pytest.raises(RuntimeError),
            se.Checkpointer(state) as checkpoint,
        ):
            for step in (1, 2):
                checkpoint.step(step, loss=one_step(state))
            raise RuntimeError
        assert commits_of(node.storage) == []
        [snapshot] = node.agent.status().snapshots
        with (
            under_agent(
                node,
                "r2",
                Resume("memory", 2, "r1", snapshot.layout),
                monkeypatch,
                lineage=[Branch("r1", 2)],
            ),
            se.Checkpointer(make(seed=8)) as checkpoint,
        ):
            assert checkpoint.restore() == 2
        assert [commit.step for commit in commits_of(node.storage)] == [2]


def test_a_parameter_that_wakes_up_late_costs_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        events: list[DaemonEvent] = []
        node.agent.subscribe(events.append)
        state = make()
        state["model"][2].requires_grad_(False)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.restore()
            for step in range(1, 5):
                if step == 3:
                    state["model"][2].requires_grad_(True)
                one_step(state)
                checkpoint.step(step)
            assert [type(event) for event in events].count(SaveFailed) <= 1
            for step in (5, 6):
                one_step(state)
                checkpoint.step(step)
        steps = {snapshot.step for snapshot in node.agent.status().snapshots}
        assert 6 in steps
        newest = max(node.agent.status().snapshots, key=lambda s: s.step)
        again = make(seed=8)
        with (
            under_agent(
                node,
                "r2",
                Resume("memory", 6, "r1", newest.layout),
                monkeypatch,
                lineage=[Branch("r1", 6)],
            ),
            se.Checkpointer(again) as checkpoint,
        ):
            assert checkpoint.restore() == 6
        for parameter, other in zip(
            state["model"].parameters(), again["model"].parameters(), strict=True
        ):
            saved = state["optimizer"].state[parameter]["exp_avg"]
            assert torch.equal(again["optimizer"].state[other]["exp_avg"], saved)


def test_a_notice_and_a_save_ahead_are_seen_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        state = make()
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            checkpoint.step(1, loss=one_step(state))
            assert not checkpoint.interrupted
            node.agent.set_target("r1", "somebody comes", 5)
            assert checkpoint.interrupted
            node.agent.set_target("r1", "somebody comes", 0)
            assert not checkpoint.interrupted
            node.agent.hurry(time.time() + 60)
            assert checkpoint.interrupted


def test_other_intervals_hold_from_the_step_that_all_wait_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as [node]:
        state, sealed, last = make(), [], threading.Event()

        def release(event: DaemonEvent) -> None:
            if isinstance(event, Sealed):
                sealed.append((event.step, event.waiting))
                if event.waiting:
                    node.agent.set_target("r1", "tune", 0, Schedule(3, 6))
                if event.step == 12:
                    last.set()

        node.agent.subscribe(release)
        with (
            under_agent(node, "r1", Resume(), monkeypatch),
            se.Checkpointer(state) as checkpoint,
        ):
            for step in range(1, 13):
                checkpoint.step(step, loss=one_step(state))
                if step == 1:
                    assert client_of(checkpoint).ready.wait(PATIENT), (
                        "no save is left out for memory"
                    )
                if step == 3:
                    node.agent.set_target("r1", "tune", 5)
            assert last.wait(PATIENT)
            assert checkpoint.wait(PATIENT)
            status = node.agent.status()
            assert status.commit is not None and status.commit.step == 12
        by_two, agreed, by_three = [2, 4], [5], [6, 9, 12]
        assert [step for step, _ in sealed] == [*by_two, *agreed, *by_three]
        assert [step for step, waited in sealed if waited] == agreed
        assert status.commit_time > 0
        assert status.workers[0].stall > 0
