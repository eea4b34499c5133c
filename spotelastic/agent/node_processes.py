"""Starts and ends a node's processes: zygote, workers, round store, checkpoint daemon.

`executor.py` leaves actions that need no etcd to `NodeProcesses`. Each returns what it did, as
events.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from spotelastic_checkpoints.errors import CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.types import DaemonStatus, Schedule, WorkerStep

from spotelastic import linux
from spotelastic.agent import actions, environment
from spotelastic.agent.checkpoints import Checkpoints
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.health.examiner import GpuExaminer
from spotelastic.agent.in_place import probing
from spotelastic.agent.in_place.control import WorkerControl
from spotelastic.agent.in_place.duties import prepared
from spotelastic.agent.round_stores import RoundStores
from spotelastic.agent.state import events
from spotelastic.agent.state.events import Exited, LocalEvent
from spotelastic.agent.state.ports import Events
from spotelastic.agent.state.values import (
    NodeState,
    RestingWorkers,
    WorkerExit,
    Workers,
    local_rank_of,
)
from spotelastic.agent.workers import memory
from spotelastic.agent.workers.logs import Logs, stacks
from spotelastic.agent.workers.pool import (
    StartOrder,
    Warm,
    Zygote,
    read_stack,
    read_trouble,
)
from spotelastic.agent.workers.standing import place, places
from spotelastic.agent.workers.trouble import WorkerTrouble, has_last_words
from spotelastic.agent.workers.zygote import ZygotePlan
from spotelastic.clock import unbroken
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.counting import counted
from spotelastic.model.in_place import Ask, Enter, Rest, ToWorker
from spotelastic.model.job import Settings
from spotelastic.model.node import Node
from spotelastic.model.notice import Notice
from spotelastic.model.round import Member, Round, RoundEnd
from spotelastic.rendezvous.view import RunState

logger = logging.getLogger(__name__)

PRELOAD = (
    "torch",
    "torch._dynamo",  # the first optimizer imports it: 1.0 to 1.3 s in each fork otherwise
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel",
    "spotelastic.training.checkpointer",
)
NEEDED = ("torch.distributed",)
"""Modules that a round's store needs. Nothing else is imported for workers that have no use for it:
those that are not forked, and those that become another program.
"""
FINALIZE_WITHIN = 20.0
"""Longest time, in seconds, for the end of a worker that has failed, whatever its grace is. The
other nodes wait for it, and leave its node out after half a minute.
"""
STACKS_WITHIN = 1.0
"""Seconds that a worker has after that to write the stacks of its threads."""
FALSE_STARTS = 3
"""Zygotes that may end before they are ready. The last one is tried without the user's modules."""
FLUSH_TIMEOUT = 120.0

Post = Callable[[LocalEvent | Warm], None]


class NodeProcesses:
    """The processes of one node.

    Used by the agent's main thread only: the zygote dies with the thread that started it.
    """

    def __init__(
        self,
        config: AgentConfig,
        post: Post,
        *,
        checkpoints: Checkpoints | None = None,
        start_zygote: Callable[..., Zygote] = Zygote,
    ) -> None:
        """Start nothing yet. `start_zygote` has the arguments of `Zygote`."""
        self.config = config
        self._start_zygote = start_zygote
        self._post = post
        interface = linux.interface_of(config.address)
        workers = config.settings.workers
        self._shared_env = environment.base({**os.environ, **config.env}, interface, workers)
        self._shared_env |= linux.mark(config.state)
        self._folder = environment.folder(config)
        # Left by an agent that was killed together with its zygote.
        linux.end_marked(linux.mark(config.state), linux.END_WITHIN)
        self._zygote: Zygote | None = None
        self._false_starts = 0
        self._kills = memory.kills()
        self._stores = RoundStores(config)
        self._checkpoints = checkpoints or Checkpoints(config, post)
        self._gpus = GpuExaminer(config, post, linux.mark(config.state))
        self._control = WorkerControl(config.state / "agent.sock", post)
        self._variables = partial(
            environment.worker,
            self._shared_env,
            config,
            daemon=self._checkpoints.socket,
            control=self._control.path,
        )
        line = config.line or (lambda _rank, _local_rank, _line: None)
        self._logs = Logs(line, config.error_line, config.output)

    @property
    def daemon(self) -> DaemonClient:
        return self._checkpoints.client

    def status(self) -> DaemonStatus:
        return self.daemon.status()

    def set_target(
        self, round_: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> Sequence[WorkerStep]:
        return self.daemon.set_target(round_, proposal, target, schedule)

    def standing(self, workers: Workers) -> tuple[str, str]:
        """Return where the workers stand, as they have written it, and the files with more."""
        folder, mine = self.config.round_logs(workers.names_after[0]), self._folder
        told = places(
            {
                workers.first_rank + local: place(
                    read_stack(stacks(*self._files(workers, local))), mine
                )
                for local in sorted(map(local_rank_of, workers.alive))
            }
        )
        return told, str(stacks(folder, "*"))

    def failure(self, workers: Workers, exit_: WorkerExit) -> WorkerTrouble:
        """Return what is known of a worker that failed: its error file, and the kernel's kills."""
        folder, rank = self._files(workers, exit_.local_rank)
        if has_last_words(exit_.code):
            self._logs.catch_up()
        log = self.log(workers, exit_.local_rank)
        message, trace = read_trouble(exit_.code, folder, rank, Path(log), self._folder)
        # Of a data loader that was killed its worker tells.
        killed = exit_.code == -signal.SIGKILL or "killed by signal" in message
        lack = memory.explanation(self._kills, killed=killed)
        return WorkerTrouble(f"{message} ({lack})" if lack else message, trace, log)

    def log(self, workers: Workers, local_rank: int) -> str:
        """Return the path of a worker's log."""
        folder, rank = self._files(workers, local_rank)
        return str(self._logs.path(folder, rank, local_rank))

    def _files(self, workers: Workers, local_rank: int) -> tuple[Path, int]:
        """Return the folder of a worker's files, and the rank by which they are named."""
        number, first = workers.names_after
        return self.config.round_logs(number), first + local_rank

    def stall(self, workers: Workers, timeout: float) -> WorkerTrouble:
        """Return what is known of the slowest of workers that have stalled."""
        pace = workers.pace
        folder, rank = self._files(workers, pace.behind)
        what = f"has executed no step after step {pace.step} for {timeout:g} s"
        message = f"{what}; the stacks of this node's ranks are in {stacks(folder, '*')}"
        stack = read_stack(stacks(folder, rank))
        return WorkerTrouble(message, stack, self.log(workers, pace.behind))

    @property
    def _finalize(self) -> float:
        return min(max(self.config.grace, 0.1), FINALIZE_WITHIN)

    @property
    def zygote(self) -> Zygote:
        if self._zygote is None:
            raise OSError("the zygote is being started")
        return self._zygote

    def round_end(self, workers: Workers) -> RoundEnd:
        """Return what the node's pages say of the round that these workers were in."""
        return self._checkpoints.round_end(workers)

    def refusing(self, addresses: Collection[str]) -> frozenset[str]:
        return probing.refusing(addresses)

    def close(self) -> None:
        """End everything that was started, and wait until nothing of it is left."""
        if self._zygote is not None:
            self._zygote.close()
        linux.await_cleaners(linux.mark(self.config.state), linux.CLEAN_WITHIN)
        self._checkpoints.close()
        self._gpus.close()
        self._control.close()
        self._stores.close()
        self._logs.close()

    def do(self, action: actions.Action, local: NodeState, seen: RunState) -> Events:
        """Perform an action that needs no etcd. Raises `DaemonUnavailable` and `OSError`.

        Nothing is done where what it is about is gone meanwhile.
        """
        match action:
            case actions.StartWorkers() | actions.PrepareWorkers():
                return self._begin(action, local, seen.settings)
            case actions.EnterRound() | actions.EndRest():
                return self._begin(action, local, seen.settings)
            case actions.OpenStore() | actions.StartSpareStore():
                return self._with_store(action, local)
            case actions.ServeStore() | actions.CloseStore():
                return self._with_store(action, local)
            case actions.StartZygote():
                return self._open_zygote()
            case actions.StartDaemon():
                return self._open_daemon(local, seen)
            case actions.CheckGpus():
                self._gpus.check()
                return [events.GpuCheckStarted()]
            case actions.ExamineGpus(round_):
                self._gpus.examine()
                return [events.ExaminationStarted(round_)]
            case actions.AdoptEpoch(round_, member):
                self._checkpoints.begin(round_, member)
                return [events.EpochAdopted(round_.epoch)]
            case actions.ClaimStorage(round_):
                self._checkpoints.claim(round_)
                return [events.ClaimStarted(round_.incarnation)]
            case actions.UploadByDeadline(deadline):
                self.daemon.hurry(deadline)
                return [events.UploadHurried(deadline)]
            case actions.FlushUploads(round_):
                return self._flush(round_, local.departure.notice)
        return self._with_workers(action, local.workers) if local.workers is not None else []

    def _with_store(self, action: actions.Action, local: NodeState) -> Events:
        opened = local.store.round_store
        match action:
            case actions.OpenStore(round_):
                spare, said = local.store.spare, local.reports.said
                return self._stores.open(self.zygote, round_, spare, said)
            case actions.StartSpareStore():
                return self._stores.start_spare(self._zygote)
            case actions.ServeStore() if opened is not None:
                self._stores.serve()
                return [events.StoreServes()]
            case actions.CloseStore():
                if opened is not None and not opened.dead:
                    self.zygote.end([opened.id])
                return [events.StoreClosed()]
        return []

    def _begin(self, action: actions.Action, local: NodeState, settings: Settings | None) -> Events:
        match action:
            case actions.StartWorkers(round_, member) if settings is not None:
                return self._start_workers(round_, member, settings)
            case actions.PrepareWorkers(round_) if settings is not None:
                return self._prepare_workers(round_, local.node, settings)
            case actions.EnterRound(round_, member) if local.resting and settings:
                return self._enter(round_, member, local.resting, settings)
            case actions.EndRest() if local.resting is not None:
                return self._end_rest(local.resting)
        return []

    def _with_workers(self, action: actions.Action, workers: Workers) -> Events:
        match action:
            case actions.KillWorkers(signal_, but_failing):
                return self._kill(workers, signal_, but_failing=but_failing)
            case actions.RestWorkers():
                self._tell(workers, Rest())
                # Those that wait at a target are let go, and come to the end of their step.
                with contextlib.suppress(CheckpointsError):
                    self.daemon.set_target(workers.round, "", 0)
                return [events.RestRequested()]
            case actions.AskWorkers():
                self._tell(workers, Ask())
                return [events.WorkersAsked()]
            case actions.DumpStacks():
                self._ask_for_stacks(workers)
                return [events.StacksRequested()]
            case actions.LookAtSteps():
                return [events.StepsRead(self.status().workers)]
            case actions.Listen():
                return [events.StepsHeard(self.status().workers)]
            case actions.AskWhere():
                for name in workers.alive:
                    stacks(*self._files(workers, local_rank_of(name))).write_bytes(b"")
                self._ask_for_stacks(workers)
                return [events.StandingRequested()]
            case actions.EndRound(rests):
                return [events.RoundEnded(self._end_round(workers), rests)]
        return []

    def _open_zygote(self) -> Events:
        if self._zygote is not None:
            self._zygote.close()
            self._false_starts = 0 if self._zygote.warm else self._false_starts + 1
        if self._false_starts >= FALSE_STARTS:
            raise EnvironmentFailure(
                "the process that imports torch ended each time before it was ready: "
                f"see whether `{self.config.python} -c 'import torch'` works here"
            )
        preload = self.config.preload
        if preload and self._false_starts == FALSE_STARTS - 1:
            logger.warning(f"importing --preload {','.join(preload)} failed: left to the workers")
            preload = ()
        plan = ZygotePlan(
            agent=os.getpid(),
            path=str(environment.folder(self.config)),
            warm=self.config.warm,
            base=PRELOAD if self.config.warm and self.config.entry != "program" else NEEDED,
            preload=preload,
            script=self.config.entry in ("script", "path", "module"),
        )
        marks, python = linux.mark(self.config.state), self.config.python
        self._zygote = self._start_zygote(plan, self._shared_env, marks, self._post, python=python)
        return [events.ZygoteStarted()]

    def _open_daemon(self, local: NodeState, seen: RunState) -> Events:
        started = events.DaemonStarted(self._checkpoints.open())
        workers, round_ = local.workers, seen.round
        if workers is not None and round_ is not None and round_.incarnation == workers.round:
            member = round_.member(self.config.node)
            if member is not None:
                self._checkpoints.begin(round_, member)
        return [started]

    def _flush(self, round_: str, notice: Notice | None) -> Events:
        within = FLUSH_TIMEOUT
        if notice is not None and notice.deadline is not None:
            within = min(within, max(notice.deadline - unbroken(), 1.0))
        self._checkpoints.flush(round_, within)
        return [events.FlushStarted(round_)]

    def _kill(self, workers: Workers, sig: int, *, but_failing: bool) -> Events:
        spared = workers.failing & workers.alive if but_failing else frozenset()
        ended, kill_at = self.zygote.end(sorted(workers.alive - spared), sig), None
        if sig == signal.SIGTERM:
            kill_at = unbroken() + self.config.grace
        elif spared:
            kill_at = unbroken() + self._finalize + STACKS_WITHIN
        return [events.WorkersKilled(spared, kill_at, ended)]

    def _tell(self, workers: Workers, message: ToWorker) -> None:
        for name in workers.alive:
            self._control.send(local_rank_of(name), message)

    def _ask_for_stacks(self, workers: Workers) -> None:
        """Asks workers for their stacks, unless they are programs that the signal would end."""
        if self.config.entry != "program":
            self.zygote.send_signal(sorted(workers.alive), linux.STACKS)

    def _end_round(self, workers: Workers) -> RoundEnd | None:
        """Tells the daemon, and returns what it knows of the round."""
        if workers.round:  # otherwise they have only prepared, and are in no round
            with contextlib.suppress(DaemonUnavailable):
                self.daemon.end()
                return self._checkpoints.round_end(workers)
        return None

    def _enter(
        self, round_: Round, member: Member, resting: RestingWorkers, settings: Settings
    ) -> Events:
        self._checkpoints.begin(round_, member)
        self._kills = memory.kills()
        first, step, all_told = round_.first_rank(member.slot), round_.resume.step, True
        for name in resting.workers.alive:
            local_rank = local_rank_of(name)
            folder, rank = self._files(resting.workers, local_rank)
            errors = folder / f"error-{rank}.json"
            variables = self._variables(settings, round_, member, local_rank, error_file=errors)
            restores = not resting.workers.round or round_.in_place == "restore"
            order = Enter(round_.incarnation, step, restores, variables)
            all_told = self._control.send(local_rank, order) and all_told
            self._logs.has_become(local_rank, first + local_rank)
        if not all_told:  # the others would wait for it
            return self._end_rest(resting)
        logger.info(describe_round(round_, member))
        told = (round_.incarnation, round_.number, first, round_.epoch, step)
        return [events.WorkersEntered(*told)]

    def _end_rest(self, resting: RestingWorkers) -> Events:
        self.zygote.end(sorted(resting.workers.alive), signal.SIGKILL)
        return [events.RestOver()]

    def _start_workers(self, round_: Round, member: Member, settings: Settings) -> Events:
        self._checkpoints.begin(round_, member)
        self._kills = memory.kills()
        alive = self._fork(round_.incarnation, round_, member, settings, member.slot)
        logger.info(describe_round(round_, member))
        first, step = round_.first_rank(member.slot), round_.resume.step
        told = (round_.incarnation, round_.number, first, round_.epoch, alive, step)
        return [events.WorkersStarted(*told)]

    def _prepare_workers(self, round_: Round, node: Node | None, settings: Settings) -> Events:
        if node is None:
            return []
        alone = Member(node.id, node.incarnation, 0, node.address, node.zone, settings.workers)
        beside = replace(round_, incarnation="", number=0, members=(alone,), in_place="prepare")
        # The rank that it will have, if no other node comes.
        rank = min(set(range(len(round_.members) + 1)) - {m.slot for m in round_.members})
        alive = self._fork(f"beside-{round_.incarnation}", beside, alone, settings, rank)
        logger.info(f"this node's workers prepare beside round {round_.number}")
        return [events.WorkersStarted("", 0, 0, 0, alive, 0), events.Said(prepared(round_))]

    def _fork(
        self, group: str, round_: Round, member: Member, settings: Settings, rank: int
    ) -> frozenset[str]:
        """Start the workers of this node. Returns their names, which begin with the group's.

        Files that the node of that group `rank` has kept are put back before their script begins.
        """
        outputs, folder = self.config.settings.outputs, self.config.round_logs(round_.number)
        for output in outputs:
            with contextlib.suppress(OSError):  # something else is there: the script may know why
                (self.config.workdir / output).mkdir(parents=True, exist_ok=True)
        first, alive = round_.first_rank(member.slot), []
        for local_rank in range(member.workers):
            name = f"{group}/{local_rank}"
            error_file = folder / f"error-{first + local_rank}.json"
            streams = self._logs.open(folder, first + local_rank, local_rank)
            error_file.unlink(missing_ok=True)
            order = StartOrder(
                name,
                "worker",
                environment.command(self.config, local_rank),
                self._variables(settings, round_, member, local_rank, error_file=error_file),
                str(self.config.workdir),
                entry=self.config.entry,
                numa=self.config.numa,
                finalize=self._finalize,
                stacks=str(stacks(folder, first + local_rank)),
                files_of=rank if outputs else -1,
            )
            try:
                self.zygote.start(order, *streams)
            except OSError:  # it is gone, and may have told of all that it knew of before
                self._post(Exited(name, -signal.SIGKILL))
            for stream in streams:
                os.close(stream)
            alive.append(name)
        return frozenset(alive)


def describe_round(round_: Round, member: Member) -> str:
    """Tell in one line which round a node's workers take up."""
    source = {
        "fresh": "no saved step to go on from",
        "memory": f"from step {round_.resume.step} in memory",
        "store": f"from step {round_.resume.step} in the object store",
    }[round_.resume.kind]
    if round_.in_place == "keep":
        source = f"on from step {round_.resume.step} in place"
    workers = counted(round_.world_size, "worker")
    if any(other.workers != member.workers for other in round_.members):
        workers = f"{workers} ({member.workers} of them here)"
    return (
        f"round {round_.number} ({round_.reason}): node {member.slot + 1} of "
        f"{len(round_.members)}, {workers}, {source}"
    )
