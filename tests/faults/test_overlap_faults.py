"""Saves beside training: whenever their process dies, a slot that is sealed is one step's."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.json import encode
from spotelastic_checkpoints.types import Branch, Resume, Schedule, Snapshot
from support.processes.kill_points import OVERLAP_STAGES, WORKER_STAGES
from support.processes.patience import PATIENT
from support.repo.soak import seeds
from support.saving.daemons_and_workers import Node, cluster, round_info

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]
TESTS = Path(__file__).parent.parent
KILLED, ENDED = -9, 1


class Job:
    """Rounds of one process on one node, each resuming from the newest that is sealed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lineage: list[Branch] = []
        self.newest: Snapshot | None = None

    def begin(self, steps: int, die_at: str = "") -> "subprocess.Popen[str]":
        resume = Resume()
        if self.newest is not None:
            found = self.newest
            resume = Resume("memory", found.step, found.incarnation, found.layout)
            self._lineage.append(Branch(found.incarnation, found.step))
        name = f"r{len(self._lineage)}"
        self._node.begin(
            round_info(
                name, 0, ["n0"], 1, self._node.agent.claim("test", timeout=PATIENT).epoch,
                schedule=Schedule(1, 2), lineage=self._lineage,
            )
        )  # fmt: skip
        environment = {
            "SPOTELASTIC_DAEMON": str(self._node.socket),
            "SPOTELASTIC_ROUND": name,
            "SPOTELASTIC_RESUME": encode(resume).decode(),
            "SPOTELASTIC_NODE": "n0",
            "SPOTELASTIC_DIE_AT": die_at,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "support.scripts.train_overlapped", str(steps)],
            cwd=TESTS,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: "subprocess.Popen[str]") -> int:
        with process:
            code = process.wait(PATIENT)
        self._node.agent.end()
        self.newest = self._node.agent.status().snapshots[-1]
        return code

    def run(self, steps: int, die_at: str = "") -> int:
        return self.ended(self.begin(steps, die_at))


@pytest.mark.soak
def test_a_process_that_dies_while_it_saves_beside_training_goes_on_from_a_whole_step(
    tmp_path: Path,
) -> None:
    """Each one ends with another code where what it resumes from is not exactly its step."""
    with cluster(tmp_path) as [node]:
        job, newest = Job(node), 2
        assert job.run(newest) == ENDED
        for stage in (*WORKER_STAGES, *OVERLAP_STAGES):
            assert job.run(newest + 3, die_at=stage) == KILLED, stage
            assert job.newest is not None
            if stage in OVERLAP_STAGES:  # the other thread may be done by then
                assert job.newest.step - newest in (0, 1), stage
                newest = job.newest.step
            newest += stage in ("slot-sealed", "slot-reported")
            assert job.newest.step == newest, stage
        assert job.run(newest + 2) == ENDED
        assert job.newest is not None and job.newest.step == newest + 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(int(os.environ.get("SOAK_TURN", "0")))[:1])
def test_a_process_that_is_killed_at_any_moment_goes_on_from_a_whole_step(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with cluster(tmp_path) as [node]:
        job = Job(node)
        assert job.run(2) == ENDED
        for _ in range(3):
            assert job.newest is not None
            process = job.begin(1_000_000)
            assert process.stdout is not None
            assert process.stdout.readline() == f"{job.newest.step}\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.5))
            process.kill()
            assert job.ended(process) == KILLED
        assert job.newest is not None
        assert job.run(job.newest.step + 1) == ENDED
