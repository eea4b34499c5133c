"""Simulates a node's agent cheaply: real decisions on a real store, with workers that only pretend.

Real: `agent.decide`, `agent.observe`, `rendezvous.*`, `store.*`, an own lease and watch in etcd,
and every key that an agent writes while rounds change. Simulated: the zygote, the checkpoint
daemon, and workers, which start at once and are always at step `STEP`.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from light.crew import Crew

from spotelastic.agent import actions as do
from spotelastic.agent.decide import decide
from spotelastic.agent.observe import (
    Flushed,
    LocalEvent,
    NodeState,
    RoundStore,
    SaveSealed,
    StorageClaim,
    Workers,
    observe,
)
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.agent.workers.pool import Exited
from spotelastic.clock import unbroken
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.model.agreement import Vote
from spotelastic.model.ids import new_id
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Progress
from spotelastic.model.round import Acknowledgement, Round
from spotelastic.rendezvous import membership, view
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, Store, WatchItem

STEP = 10
STEP_TIME = 0.1


@dataclass(frozen=True, slots=True)
class Due:
    """The time at which the last decision wanted to look again."""


class LightAgent:
    """One node of a run.

    `on_round` is called once for each started round of which it is a member, from one of the crew's
    threads.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        keys: Keys,
        settings: Settings,
        crew: Crew,
        on_round: Callable[[int], None],
    ) -> None:
        self.events = 0
        """Changes that its watches delivered, and the keys that they began with."""
        self.nbytes = 0
        self._store, self._keys, self._settings = store, keys, settings
        self._crew, self._on_round = crew, on_round
        self._node = node
        self._local = NodeState(zygote=True, daemon=node.daemon, fingerprint=node.fingerprint)
        self._seen = RunState()
        self._lease = 0
        self._watches: Watches | None = None
        self._lock = threading.Lock()
        self._inbox: list[LocalEvent | StoreChanged | Due] = []
        self._busy = False
        self._ended = False
        self._told = 0

    def start(self) -> None:
        """Return at once; the crew does the rest."""
        self._crew.soon(self._begin)

    def post(self, event: LocalEvent | StoreChanged | Due) -> None:
        with self._lock:
            self._inbox.append(event)
            if self._busy:
                return
            self._busy = True
        self._crew.soon(self._turn)

    def vanish(self) -> None:
        """Disappear like a lost instance whose lease has run out."""
        self._ended = True
        self._store.revoke(self._lease)

    # -- turns, never two at once -----------------------------------------------------------------

    def _begin(self) -> None:
        lease = self._store.grant(self._settings.lease)
        self._lease = lease
        self._crew.keep(self._store, lease, self._settings.lease, self._lost)
        self._watches = Watches(self._store, self._keys, self.post)

    def _turn(self) -> None:
        with self._lock:
            inbox, self._inbox = self._inbox, []
        for event in inbox:
            self._take(event)
        # On separate nodes an agent would not hear later because others already act.
        self._crew.soon(self._act)

    def _act(self) -> None:
        decision = decide(self._local, self._seen, unbroken(), new_id)
        while decision.actions and not self._ended:
            for action in decision.actions:
                self._perform(action)
            if self._watches is not None:
                holds = self._local.leadership is not None
                self._seen = self._watches.follow(self._seen, holds=holds)
            decision = decide(self._local, self._seen, unbroken(), new_id)
        self._tell()
        if decision.wake_at < math.inf and not self._ended:
            self._crew.later(max(0.0, decision.wake_at - unbroken()), lambda: self.post(Due()))
        with self._lock:
            self._busy = bool(self._inbox) and not self._ended
        if self._busy:
            self._crew.soon(self._turn)

    def _take(self, event: LocalEvent | StoreChanged | Due) -> None:
        match event:
            case Due():
                pass
            case StoreChanged(prefix, items):
                self._count(items)
                self._seen = fold(self._seen, items, self._keys, unbroken(), prefix)
                if prefix == self._keys.nodes:
                    leads = self._local.leadership is not None
                    self._local = replace(self._local, nodes_seen=leads)
            case _:
                self._local = observe(self._local, event, unbroken())

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
        workers = self._local.workers
        if workers is not None and workers.number != self._told:
            self._told = workers.number
            self._on_round(workers.number)

    def _lost(self, reason: str) -> None:
        if not self._ended:
            raise RuntimeError(f"{self._node.id}: {reason}")

    # -- effects ----------------------------------------------------------------------------------

    def _perform(self, action: do.Action) -> None:
        try:
            self._local = self._belong(action, self._local)
        except (Unavailable, LeaseLost):
            self._local = replace(self._local, write_at=unbroken() + 0.2)

    def _belong(self, action: do.Action, local: NodeState) -> NodeState:
        store, keys, node = self._store, self._keys, self._node
        match action:
            case do.Register():
                node = replace(node, incarnation=new_id())
                refused = membership.join(
                    store, keys, node, self._settings, self._lease, self._seen
                )
                assert refused is None, refused
                return replace(local, node=node, registered=True, offered="")
            case do.Campaign():
                led = campaign(store, keys.holder, node.id.encode(), self._lease)
                if led is None:
                    return replace(local, write_at=unbroken() + 0.05)
                return replace(local, leadership=led, nodes_seen=False, lead_after=0)
            case do.Lead(actions):
                assert local.leadership is not None
                now = unbroken()
                outcome = membership.perform(
                    store, keys, self._seen, actions, local.leadership.compare, now
                )
                after = outcome.revision if outcome.succeeded else self._seen.revision + 1
                return replace(local, lead_after=after, lead_at=now + 0.5)
            case do.WriteDrain():
                assert local.notice is not None
                membership.write_drain(store, keys, Drain(node.id, local.notice))
                return replace(local, drained=True)
            case do.TellProgress():
                number = self._seen.round.number if self._seen.round is not None else 0
                progress = Progress(node.id, number, local.step, unbroken())
                store.put(keys.progress(node.id), encode(progress), self._lease)
                return replace(local, points=(), told_at=unbroken(), told_step=local.step)
            case do.OfferSlots(round_):
                store.put(keys.snapshots(node.id), encode(()), self._lease)
                return replace(local, offered=round_)
            case do.UploadByDeadline(deadline):
                return replace(local, hurried=deadline)
            case do.FlushUploads(round_):
                self.post(Flushed(round_))
                return replace(local, flushing=round_)
            case do.Exit():
                self._ended = True
                store.revoke(self._lease)
                return local
        return self._take_part(action, local)

    def _take_part(self, action: do.Action, local: NodeState) -> NodeState:
        match action:
            case do.Acknowledge(round_, ready):
                return self._acknowledge(local, round_, ready)
            case do.OpenStore(round_):
                opened = RoundStore(round_.incarnation, "store", f"{self._node.address}:29500")
                return replace(local, store=opened)
            case do.CloseStore():
                return replace(local, store=None)
            case do.ClaimStorage(round_):
                claim = StorageClaim(
                    round_.incarnation, unbroken(), pending=False, epoch=round_.number
                )
                return replace(local, claim=claim)
            case do.StartWorkers(round_):
                alive = frozenset({f"{round_.incarnation}/0"})
                workers = Workers(
                    round_.incarnation,
                    round_.number,
                    0,
                    round_.epoch,
                    unbroken(),
                    alive,
                    attached=True,
                )
                return replace(local, workers=workers, vote=None, step=round_.resume.step)
            case do.KillWorkers():
                assert local.workers is not None
                for name in local.workers.alive:
                    self.post(Exited(name, -9))
                return replace(local, workers=replace(local.workers, killed=True))
            case do.EndRound():
                return replace(local, workers=None, vote=None)
            case do.AnswerSteps(proposal):
                return self._vote(local, Vote(self._node.id, proposal.id, STEP))
            case do.SetSaveTarget(proposal):
                aim = proposal.target
                self.post(SaveSealed(aim, waiting=True))
                vote = Vote(self._node.id, proposal.id, STEP, aimed=aim, confirmed=aim)
                return self._vote(local, vote)
            case do.VoteSealed(proposal):
                aim = proposal.target
                vote = Vote(self._node.id, proposal.id, aim, aimed=aim, confirmed=aim, sealed=aim)
                return self._vote(local, vote)
        raise AssertionError(f"a light agent cannot {action}")

    def _acknowledge(self, local: NodeState, round_: Round, ready: bool) -> NodeState:
        assert local.node is not None
        ack = Acknowledgement(self._node.id, local.node.incarnation, round_.incarnation, "seen")
        epoch = 0
        if ready:
            epoch = local.claim.epoch if local.claim is not None else 0
            address = local.store.address if local.store is not None else ""
            ack = replace(ack, phase="ready", daemon=self._node.daemon, store=address, epoch=epoch)
        self._store.put(self._keys.ack(ack.node), encode(ack), self._lease)
        return replace(local, acknowledged=(round_.incarnation, ack.phase, epoch))

    def _vote(self, local: NodeState, vote: Vote) -> NodeState:
        vote = replace(vote, step_time=STEP_TIME)
        self._store.put(self._keys.vote(vote.node), encode(vote), self._lease)
        return replace(local, vote=vote)


def parse_once() -> None:
    """Parse what is delivered to all agents of this process only once.

    Separate nodes would each parse it, at the same time.
    """
    view.decode = lru_cache(64)(decode)  # type: ignore[assignment]


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
