"""Nodes with checkpoint daemons of their own, for workers that restore in place from memory."""

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
from spotelastic_checkpoints.types import Branch, MemberRanks, Resume, RoundInfo, Schedule
from support.in_place.resting_agent import Agent, Plan, Script, Worker, run
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import Node, cluster

from spotelastic.rendezvous.sources.resume import Held, choose


class Nodes:
    """Of one worker each. They go on serving slots when their worker has ended.

    All that the holder of a round would do with their daemons is done here.
    """

    def __init__(self, nodes: list[Node], schedule: Schedule, target: int = 0) -> None:
        """At the step `target`, if any, all ranks save, and rest when all have."""
        self._nodes, self._schedule, self._target = nodes, schedule, target
        self._epoch = nodes[0].agent.claim("test", timeout=PATIENT).epoch
        self._lineage: list[Branch] = []
        self._round = ""
        self.sources: list[Resume] = []

    def begins(self, round_: str, members: list[Worker], resume: Resume) -> None:
        if self._round:
            self._lineage.append(Branch(self._round, resume.step))
            self.sources.append(resume)
        names = [self._nodes[member.number].name for member in members]
        ranks = tuple(MemberRanks(slot, name, (slot,)) for slot, name in enumerate(names))
        info = RoundInfo(
            incarnation=round_,
            number=len(self._lineage) + 1,
            world_size=len(members),
            slot=0,
            members=ranks,
            epoch=self._epoch,
            lineage=tuple(self._lineage),
            schedule=self._schedule,
            resume=resume,
        )
        for slot, member in enumerate(members):
            node = self._nodes[member.number]
            if self._round:
                node.agent.end()
            node.begin(msgspec.structs.replace(info, slot=slot))
            if self._target:
                node.agent.set_target(round_, "arrival", self._target)
        self._round = round_

    def source(self) -> Resume:
        """What a round would choose: the newest save of which all parts are there."""
        statuses = [(node.name, node.agent.status()) for node in self._nodes]
        held = [Held(name, status.listen, status.snapshots) for name, status in statuses]
        commits = [status.commit for _, status in statuses if status.commit is not None]
        return choose(self._round, self._lineage, held, commits)

    def looks(self, agent: Agent) -> None:
        """Has workers rest once all wait at the target."""
        if not self._target:
            return
        nodes = [self._nodes[worker.number] for worker in agent.living]
        workers = [worker for node in nodes for worker in node.agent.status().workers]
        there = [worker.waiting and worker.step == self._target for worker in workers]
        if there == [True] * len(nodes):
            self._target = 0
            agent.rest()
            for node in nodes:
                node.agent.set_target(self._round, "", 0)


def on_nodes(
    name: str,
    count: int,
    script: Script,
    folder: Path,
    plan: Callable[[Nodes], Plan],
    schedule: Schedule,
    target: int = 0,
) -> Agent:
    """Run workers, each on a node of its own."""
    (folder / f"{name}-daemons").mkdir()
    with cluster(folder / f"{name}-daemons", count=count) as nodes:
        known = Nodes(nodes, schedule, target)
        planned = plan(known)
        planned.begins, planned.restores_from = known.begins, known.source
        planned.looks = planned.looks or functools.partial(Nodes.looks, known)
        planned.daemons = [str(node.socket) for node in nodes]
        return run(count, script, folder / name, planned, planned.daemons[0])
