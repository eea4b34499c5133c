"""Simulates the processes of one node in virtual time: zygote, workers, round store, daemon.

In place of `agent/node_processes.py`. Each action tells what it did by the same events. The daemon
is in `virtual_daemon.py`.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spotelastic_checkpoints.messages import Closed
from spotelastic_checkpoints.types import DaemonStatus, Schedule, Snapshot, WorkerStep
from support.simulation.virtual_daemon import VirtualDaemon
from support.simulation.virtual_ranks import FORK, Group, Rank
from support.simulation.virtual_training import Training

from spotelastic.agent import actions
from spotelastic.agent.checkpoints import round_info
from spotelastic.agent.environment import MEASUREMENTS
from spotelastic.agent.in_place.duties import prepared
from spotelastic.agent.node_processes import FINALIZE_WITHIN
from spotelastic.agent.state import events
from spotelastic.agent.state.ports import Events
from spotelastic.agent.state.values import NodeState, RoundStore, WorkerExit, Workers
from spotelastic.agent.workers.trouble import WorkerTrouble, describe_exit
from spotelastic.model.node import Fingerprint
from spotelastic.model.round import Member, Round, RoundEnd
from spotelastic.rendezvous.view import RunState

if TYPE_CHECKING:
    from support.simulation.virtual_node import SimNode

WARM = 3.0
EXAMINED = 1.0
"""Seconds that nvidia-smi takes."""


class VirtualProcesses:
    """Implements `executor.Processes`."""

    def __init__(self, node: "SimNode") -> None:
        self._node, self._world = node, node.world
        self.daemon = VirtualDaemon(node)
        self._training: Training | Group | None = None
        """Of the workers that this node runs."""
        self.ranks: list[Rank] = []
        """The workers, if they can rest."""
        self._store = ""
        """Name of the round store that runs here."""
        self._spare = ""
        """Name of the store that waits for a round to come."""

    def close(self) -> None:
        self.daemon.end()

    @property
    def rank(self) -> Rank:
        """The first worker, one that can rest."""
        return self.ranks[0]

    def vanish(self) -> None:
        """Workers that can rest are gone."""
        for rank in self.ranks:
            rank.vanish()

    def seal(self, round_: Round, step: int, *, due: bool, urgent: bool) -> bool:
        """Seals this node's part of a save. False: there was no slot for it."""
        member = round_.member(self._node.name)
        assert member is not None
        snapshot = Snapshot(
            round_.incarnation, step, "layout", round_.ranks(member), round_.world_size,
            whole=not self._world.sharded,
        )  # fmt: skip
        return self.daemon.seal(snapshot, due=due, urgent=urgent)

    # -- what ends by itself ----------------------------------------------------------------------

    def daemon_dies(self) -> None:
        """Its slots stay in shared memory, where the next one finds them."""
        if self.daemon.serves:
            self.daemon.end()
            self._node.post(Closed())

    def store_dies(self) -> None:
        """So does the one that waits for a round."""
        for store in filter(None, (self._store, self._spare)):
            self._node.post(events.Exited(store, 1))
        self._store = self._spare = ""

    def zygote_dies(self) -> None:
        """All that it has started dies with it."""
        self.store_dies()
        self.vanish()
        for workers in self._those_that_live():
            if workers.round:
                self._world.trainings[workers.round].leave(self._node.name)
            for name in workers.alive:
                self._node.post(events.Exited(name, -9))
        if self._node.local.membership.zygote:
            self._node.post(events.ZygoteGone())

    def _those_that_live(self) -> list[Workers]:
        local = self._node.local
        resting = [local.resting.workers] if local.resting is not None else []
        return resting + ([local.workers] if local.workers is not None else [])

    # -- what the daemon answers ------------------------------------------------------------------

    def status(self) -> DaemonStatus:
        return DaemonStatus(
            f"{self._node.name}:1",
            self.daemon.snapshots,
            self.daemon.uploads.newest,
            self._steps(),
            commit_time=self._world.upload,
        )

    def set_target(
        self, round_: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> Sequence[WorkerStep]:
        self.daemon.asked()
        training = self._world.trainings[round_]
        if schedule is not None:
            training.schedules[self._node.name] = schedule
        if target:
            training.target[self._node.name] = target
        else:
            training.target.pop(self._node.name, None)
        for rank in self.ranks:
            rank.looks()
        return self._steps()

    def _steps(self) -> tuple[WorkerStep, ...]:
        training = self._training
        if training is None:
            return ()
        if isinstance(training, Group):
            return tuple(self._page(rank) for rank in self.ranks)
        step_time = self._world.step_time
        every = max(1, round(self._world.settings.slow_after / MEASUREMENTS / step_time))
        own = self._world.own.get(self._node.name, step_time / 2)
        page = WorkerStep(
            0,
            0,
            training.published,
            step_time,
            training.first_at,
            training.last_at,
            attached=not self._world.plain,
            waiting=training.step in training.target.values(),
            stall=self._world.stall,
            measured=training.published // every,
            own_time=own,
            waiting_time=step_time - own,
        )
        return (page,)

    def _page(self, rank: Rank) -> WorkerStep:
        step_time = self._world.step_time
        return WorkerStep(
            rank.local,
            rank.local,
            rank.state.step if rank.begun else 0,
            step_time,
            rank.first_at,
            rank.last_at,
            attached=not self._world.plain,
            waiting=rank.where == "waiting",
            stall=self._world.stall,
        )

    def round_end(self, workers: Workers) -> RoundEnd:
        self.daemon.asked()
        training = self._world.trainings[workers.round]
        return RoundEnd(workers.round, training.first_at, training.step, training.last_at)

    # -- what the workers leave behind ------------------------------------------------------------

    def failure(self, workers: Workers, exit_: WorkerExit) -> WorkerTrouble:
        told = describe_exit(exit_.code) if exit_.code < 0 else self._node.message
        return WorkerTrouble(told, "", "")

    def log(self, workers: Workers, local_rank: int) -> str:
        return ""

    def stall(self, workers: Workers, timeout: float) -> WorkerTrouble:
        return WorkerTrouble("stalled", "", "")

    def standing(self, workers: Workers) -> tuple[str, str]:
        return "somewhere", ""

    def refusing(self, addresses: Collection[str]) -> frozenset[str]:
        """A machine that is gone answers nothing, but its processes alone may be."""
        return frozenset(each for each in addresses if self._refuses(each.removesuffix(":1")))

    def _refuses(self, name: str) -> bool:
        node = self._world.nodes.get(name)
        if node is None:
            return self._world.refuses
        return not node.frozen and not node.processes.daemon.serves

    # -- actions ----------------------------------------------------------------------------------

    def do(self, action: actions.Action, local: NodeState, seen: RunState) -> Events:
        match action:
            case actions.StartZygote():
                warm = events.ZygoteWarm(
                    Fingerprint("3.11", "2.13", workers=self._world.settings.workers)
                )
                self._world.after(WARM, lambda: self._node.post(warm))
                return [events.ZygoteStarted()]
            case actions.StartDaemon():
                self.daemon.start()
                return [events.DaemonStarted(f"{self._node.name}:1")]
            case actions.CheckGpus():
                checked = events.GpusChecked(1, self._node.gpu_fault)
                self._world.after(WARM, lambda: self._node.post(checked))
                return [events.GpuCheckStarted()]
            case actions.ExamineGpus(round_):
                examined = lambda: events.GpusExamined(self._node.gpu_fault)  # noqa: E731
                self._world.after(EXAMINED, lambda: self._node.post(examined()))
                return [events.ExaminationStarted(round_)]
            case actions.UploadByDeadline(deadline):
                self._world.hurried[self._node.name] = deadline
                self.daemon.hurry()
                return [events.UploadHurried(deadline)]
            case actions.FlushUploads(round_):
                self.daemon.flush(round_)
                return [events.FlushStarted(round_)]
            case actions.ClaimStorage(round_):
                self.daemon.claim(round_)
                return [events.ClaimStarted(round_.incarnation)]
            case actions.OpenStore(round_):
                self._store = local.store.spare or f"store/{round_.incarnation}"
                self._spare = "" if local.store.spare else self._spare
                store = RoundStore(round_.incarnation, self._store, "s:1", number=round_.number)
                return [events.StoreOpened(store)]
            case actions.StartSpareStore():
                self._spare = f"store/spare-{self._world.new_id()}"
                return [events.SpareStoreStarted(self._spare)]
            case actions.ServeStore():
                return [events.StoreServes()]
            case actions.CloseStore():
                self._store = ""
                return [events.StoreClosed()]
        return self._in_place(action, local)

    def _in_place(self, action: actions.Action, local: NodeState) -> Events:
        workers, resting = local.workers, local.resting
        match action:
            case actions.RestWorkers():
                assert workers is not None
                for rank in self.ranks:
                    rank.is_asked()
                self._world.trainings[workers.round].target.pop(self._node.name, None)
                return [events.RestRequested()]
            case actions.EnterRound(round_, member):
                self.daemon.begin(round_info(round_, member))
                alone = resting is not None and not resting.workers.round
                return self._enter(round_, round_.first_rank(member.slot), alone=alone)
            case actions.AskWorkers():
                for rank in self.ranks:
                    rank.answers()
                return [events.WorkersAsked()]
            case actions.PrepareWorkers(round_):
                return self._prepare(round_)
            case actions.EndRest():
                assert resting is not None
                self._end(resting.workers.alive)
                return [events.RestOver()]
        return self._workers(action, local)

    def _workers(self, action: actions.Action, local: NodeState) -> Events:
        workers = local.workers
        match action:
            case actions.StartWorkers(round_, member):
                self.daemon.begin(round_info(round_, member))
                return self._start(round_, member)
            case actions.AdoptEpoch(round_, member):
                self.daemon.begin(round_info(round_, member))
                self._world.trainings[round_.incarnation].round = round_
                return [events.EpochAdopted(round_.epoch)]
            case actions.KillWorkers():
                assert workers is not None
                return self._kill(workers, action.but_failing)
            case actions.EndRound():
                assert workers is not None
                self._training = None
                if not workers.round:
                    return [events.RoundEnded(None, action.rests)]
                end = self.round_end(workers) if self.daemon.serves else None
                self.daemon.end_round()
                return [events.RoundEnded(end, action.rests)]
            case actions.LookAtSteps():
                return [events.StepsRead(self.status().workers)]
            case actions.Listen():
                return [events.StepsHeard(self.status().workers)]
            case actions.DumpStacks():
                return [events.StacksRequested()]
            case actions.AskWhere():
                return [events.StandingRequested()]
        raise AssertionError(action)

    def _start(self, round_: Round, member: Member) -> Events:
        world, incarnation = self._world, round_.incarnation
        training = self._training_of(round_)
        if isinstance(training, Group):
            self._are_gone()
            self.ranks = [Rank(self._node, local, training) for local in range(member.workers)]
        else:
            world.after(FORK, lambda: self._join(training))
        alive = frozenset(f"{incarnation}/{local}" for local in range(member.workers))
        first_rank = round_.first_rank(member.slot)
        started = events.WorkersStarted(
            incarnation, round_.number, first_rank, round_.epoch, alive, round_.resume.step
        )
        return [started]

    def _are_gone(self) -> None:
        assert not any(rank.alive for rank in self.ranks), "two workers of one rank"

    def _prepare(self, round_: Round) -> Events:
        self._training = None
        self._are_gone()
        locals_ = range(self._world.settings.workers)
        self.ranks = [Rank(self._node, local, beside=round_.incarnation) for local in locals_]
        return [
            events.WorkersStarted("", 0, 0, 0, frozenset(rank.name for rank in self.ranks), 0),
            events.Said(prepared(round_)),
        ]

    def _enter(self, round_: Round, first_rank: int, *, alone: bool) -> Events:
        training = self._training_of(round_)
        assert isinstance(training, Group)
        for rank in self.ranks:
            rank.is_told(training, restores=alone or round_.in_place == "restore")
        return [
            events.WorkersEntered(
                round_.incarnation, round_.number, first_rank, round_.epoch, round_.resume.step
            )
        ]

    def _training_of(self, round_: Round) -> Training | Group:
        world, incarnation = self._world, round_.incarnation
        if incarnation not in world.trainings:
            kind = Group if world.in_place else Training
            world.trainings[incarnation] = kind(world, round_)
        self._training = world.trainings[incarnation]
        return self._training

    def _join(self, training: Training) -> None:
        workers = self._node.local.workers
        if workers is None or workers.round != training.round.incarnation:
            return
        if self._node.alive and not workers.killed:
            training.join(self._node)

    def _kill(self, workers: Workers, but_failing: bool) -> Events:
        spared = workers.failing & workers.alive if but_failing else frozenset()
        if not self.ranks:
            self._world.trainings[workers.round].leave(self._node.name)
        self._end(workers.alive - spared)
        kill_at = self._node.now + FINALIZE_WITHIN if spared else None
        return [events.WorkersKilled(spared, kill_at)]

    def _end(self, names: Collection[str]) -> None:
        """Kills workers, of which it is told a moment later."""
        for rank in self.ranks:
            if rank.name in names:
                rank.vanish()
                rank.killed = True
        for name in names:
            self._world.after(0.01, partial(self._node.post, events.Exited(name, -9)))
