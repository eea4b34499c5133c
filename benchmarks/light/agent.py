"""Simulates a node's agent cheaply: a real agent on a real store, with workers that only pretend.

Real: `agent.core` with its decisions and effects on etcd, `rendezvous.*`, `store.*`, an own lease
and watch in etcd, and every key that an agent writes. Simulated: the zygote, the checkpoint daemon,
and workers, which start at once and are always at step `STEP`.
"""

import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from light.crew import Crew
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.types import DaemonStatus, Schedule, WorkerStep

from spotelastic.agent import actions
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.core import AgentCore
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.state import events
from spotelastic.agent.state.events import LocalEvent
from spotelastic.agent.state.ports import Events
from spotelastic.agent.state.values import NodeState, RoundStore, WorkerExit, Workers
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.agent.workers.trouble import WorkerTrouble
from spotelastic.clock import unbroken
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import Round, RoundEnd
from spotelastic.rendezvous import view
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, Store, WatchItem

STEP = 10
STEP_TIME = 0.1


@dataclass(frozen=True, slots=True)
class Due:
    """The time at which the last decision wanted to look again."""


class LightSession:
    """Implements `executor.LeaseSession`: the crew refreshes its lease."""

    def __init__(self, store: Store, ttl: float, crew: Crew, lost: Callable[[str], None]) -> None:
        self._store, self._ttl, self._crew, self._lost = store, ttl, crew, lost
        self.lease = 0

    @property
    def alive(self) -> bool:
        return self.lease != 0

    def renew(self) -> int:
        self.lease = self._store.grant(self._ttl)
        self._crew.keep(self._store, self.lease, self._ttl, self._lost)
        return self.lease


class LightProcesses:
    """Implements `executor.Processes`: everything happens at once."""

    def __init__(self, node: Node, post: Callable[[LocalEvent], None]) -> None:
        self._node, self._post = node, post
        self._page = WorkerStep(0, 0, STEP, STEP_TIME, 0.0, 0.0, attached=True)

    def close(self) -> None:
        pass

    def status(self) -> DaemonStatus:
        return DaemonStatus(self._node.daemon, (), None, (self._page,))

    def set_target(
        self, round_: str, proposal: str, target: int, schedule: Schedule | None = None
    ) -> Sequence[WorkerStep]:
        if target:
            self._post(messages.Sealed(target, (), waiting=True))
        return (self._page,)

    def round_end(self, workers: Workers) -> RoundEnd:
        return RoundEnd(workers.round)

    def failure(self, workers: Workers, exit_: WorkerExit) -> WorkerTrouble:
        raise AssertionError("a light agent's workers do not fail")

    def log(self, workers: Workers, local_rank: int) -> str:
        return ""

    def stall(self, workers: Workers, timeout: float) -> WorkerTrouble:
        raise AssertionError("a light agent's workers do not stall")

    def standing(self, workers: Workers) -> tuple[str, str]:
        return "nowhere", ""

    def refusing(self, addresses: Collection[str]) -> frozenset[str]:
        raise AssertionError("collectives of light agents do not fail")

    def do(self, action: actions.Action, local: NodeState, seen: RunState) -> Events:
        match action:
            case actions.StartZygote():
                self._post(events.ZygoteWarm(self._node.fingerprint))
                return [events.ZygoteStarted()]
            case actions.CheckGpus():
                return [events.GpusChecked(0, None)]
            case actions.ExamineGpus(round_):
                return [events.ExaminationStarted(round_), events.GpusExamined(None)]
            case actions.StartDaemon():
                return [events.DaemonStarted(self._node.daemon)]
            case actions.UploadByDeadline(deadline):
                return [events.UploadHurried(deadline)]
            case actions.FlushUploads(round_):
                self._post(events.Flushed(round_))
                return [events.FlushStarted(round_)]
            case actions.OpenStore(round_):
                address = f"{self._node.address}:29500"
                return [events.StoreOpened(RoundStore(round_.incarnation, "store", address))]
            case actions.StartSpareStore():
                return [events.SpareStoreStarted("", never=True)]
            case actions.ServeStore():
                return [events.StoreServes()]
            case actions.CloseStore():
                return [events.StoreClosed()]
            case actions.ClaimStorage(round_):
                self._post(events.Claimed(round_.incarnation, round_.number, None))
                return [events.ClaimStarted(round_.incarnation)]
        return self._workers(action, local)

    def _workers(self, action: actions.Action, local: NodeState) -> Events:
        match action:
            case actions.StartWorkers(round_, member):
                self._post(messages.Attached(0))
                return [_started(round_, round_.first_rank(member.slot))]
            case actions.AdoptEpoch(round_):
                return [events.EpochAdopted(round_.epoch)]
            case actions.KillWorkers():
                for name in local.workers.alive if local.workers is not None else ():
                    self._post(events.Exited(name, -9))
                return [events.WorkersKilled()]
            case actions.EndRound(rests):
                return [events.RoundEnded(None, rests)]
            case actions.LookAtSteps():
                return [events.StepsRead((self._page,))]
            case actions.DumpStacks():
                return [events.StacksRequested()]
            case actions.Listen():
                return [events.StepsHeard((self._page,))]
            case actions.AskWhere():
                return [events.StandingRequested()]
        return self._in_place(action, local)

    def _in_place(self, action: actions.Action, local: NodeState) -> Events:
        """Its workers never say that they can rest, and so are not asked to."""
        match action:
            case actions.RestWorkers():
                return [events.RestRequested()]
            case actions.AskWorkers():
                return [events.WorkersAsked()]
            case actions.PrepareWorkers():
                return []
            case actions.EnterRound(round_, member):
                first = round_.first_rank(member.slot)
                entered = (round_.incarnation, round_.number, first, round_.epoch)
                return [events.WorkersEntered(*entered, round_.resume.step)]
            case actions.EndRest():
                for name in local.resting.workers.alive if local.resting is not None else ():
                    self._post(events.Exited(name, -9))
                return [events.RestOver()]
        raise AssertionError(f"a light agent cannot {action}")


def _started(round_: Round, first_rank: int) -> events.WorkersStarted:
    return events.WorkersStarted(
        round_.incarnation,
        round_.number,
        first_rank,
        round_.epoch,
        frozenset({f"{round_.incarnation}/0"}),
        round_.resume.step,
    )


class LightAgent:
    """One node of a run.

    `on_round` is called once for each started round of which it is a member, `on_lead` when it
    holds the election, both from one of the crew's threads.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        keys: Keys,
        settings: Settings,
        crew: Crew,
        on_round: Callable[[int], None],
        on_lead: Callable[[], None],
    ) -> None:
        self.events = 0
        """Changes that its watches delivered, and the keys that they began with."""
        self.nbytes = 0
        self._store, self._keys = store, keys
        self._crew, self._on_round, self._on_lead = crew, on_round, on_lead
        self._node = node
        self._session = LightSession(store, settings.lease, crew, self._lost)
        executor = AgentExecutor(
            _config(node, keys, settings), store, self._session, LightProcesses(node, self.post)
        )
        self._core = AgentCore(executor)
        self._watches: Watches | None = None
        self._lock = threading.Lock()
        self._inbox: list[LocalEvent | StoreChanged | Due] = []
        self._busy = False
        self._ended = False
        self._told = 0
        self._leads = False

    def start(self) -> None:
        """Return at once; the crew does the rest."""
        self._crew.soon(self._begin)

    def post(self, event: LocalEvent | StoreChanged | Due) -> None:
        with self._lock:
            self._inbox.append(event)
            if self._busy:
                return
            self._busy = True
        self._begin_turn()

    def vanish(self) -> None:
        """Disappear like a lost instance whose lease has run out."""
        self._ended = True
        self._store.revoke(self._session.lease)

    # -- turns, never two at once -----------------------------------------------------------------

    def _begin(self) -> None:
        self._session.renew()
        self._watches = Watches(self._store, self._keys, self.post)

    def _begin_turn(self) -> None:
        if gathers := self._core.gathers:
            self._crew.later(gathers, self._turn)
        else:
            self._crew.soon(self._turn)

    def _turn(self) -> None:
        with self._lock:
            inbox, self._inbox = self._inbox, []
        for event in inbox:
            self._take(event)
        # On separate nodes an agent would not hear later because others already act.
        self._crew.soon(self._act)

    def _act(self) -> None:
        wake_at = self._decide()
        self._tell()
        if wake_at < math.inf and not self._ended:
            self._crew.later(max(0.0, wake_at - unbroken()), lambda: self.post(Due()))
        with self._lock:
            self._busy = bool(self._inbox) and not self._ended
        if self._busy:
            self._begin_turn()

    def _decide(self) -> float:
        """Decide and act until there is nothing more to do. Returns when to look again."""
        assert self._watches is not None
        while not self._ended:
            decision, exit_ = self._core.turn(self._watches)
            if exit_ is not None:
                self._ended = True
                self._store.revoke(self._session.lease)
            elif not decision.actions:
                return decision.wake_at
        return math.inf

    def _take(self, event: LocalEvent | StoreChanged | Due) -> None:
        if isinstance(event, StoreChanged):
            self._count(event.items)
        if not isinstance(event, Due):
            self._core.fold(event)

    def _count(self, items: Sequence[WatchItem]) -> None:
        for item in items:
            match item:
                case Change(value=value):
                    self.events += 1
                    self.nbytes += len(value.data) if value is not None else 0
                case Reset(values=values):
                    self.events += len(values)
                    self.nbytes += sum(len(value.data) for value in values)

    def _tell(self) -> None:
        workers = self._core.local.workers
        if workers is not None and workers.number != self._told:
            self._told = workers.number
            self._on_round(workers.number)
        if self._core.local.membership.leadership is not None and not self._leads:
            self._leads = True
            self._on_lead()

    def _lost(self, reason: str) -> None:
        if not self._ended:
            raise RuntimeError(f"{self._node.id}: {reason}")


def _config(node: Node, keys: Keys, settings: Settings) -> AgentConfig:
    nowhere = Path("/nonexistent")
    return AgentConfig(
        run=keys.run,
        endpoints=(),
        node=node.id,
        address=node.address,
        zone=node.zone,
        settings=settings,
        command=(),
        workdir=nowhere,
        state=nowhere,
        shm=nowhere,
        storage="",
        spot=node.spot,
    )


def parse_once() -> None:
    """Parse what is delivered to all agents of this process only once.

    Separate nodes would each parse it, at the same time.
    """
    vars(view)["decode"] = lru_cache(64)(decode)


def light_node(index: int) -> Node:
    """Return a node as it registers on AWS."""
    return Node(
        id=f"i-{index:017x}",
        incarnation="",
        address=f"10.0.{index // 250}.{index % 250 + 1}",
        zone=f"eu-central-1{'abc'[index % 3]}",
        fingerprint=Fingerprint("3.11.9", "2.13.0", "13.0", "c" * 64, 8),
        daemon=f"10.0.{index // 250}.{index % 250 + 1}:29501",
    )
