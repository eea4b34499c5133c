"""Takes a run of many nodes through a join, a notice and a loss, as its holder sees it.

There is no etcd: what the nodes write is made here, and folded as a watch delivers it. The
decisions are the product's own.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from light.agent import light_node
from spotelastic_checkpoints.types import Snapshot

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Reference, Settings
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Progress
from spotelastic.model.round import Round
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import RoundDecision, WriteProposal, WriteRound
from spotelastic.rendezvous.duties import answers
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, StoredValue

KEYS = Keys("large")
STEP = 10
TIMES = 5


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, and the processor seconds that it took at best."""

    what: str
    seconds: float
    decision: RoundDecision


class LargeRun:
    """What the holder of a run of many nodes knows."""

    def __init__(self, size: int) -> None:
        self.seen = RunState()
        self.now = 1000.0
        self.nodes = tuple(self._registered(light_node(index)) for index in range(size))
        self._revision = itertools.count(1)
        self._ids = itertools.count()
        settings = Settings(size // 2, 2 * size, workers=8, lease=10.0, slow_after=60.0)
        self.put(KEYS.all, [(KEYS.settings, settings)])
        self.put(KEYS.all, [(KEYS.reference, Reference(self.nodes[0], settings))])

    @staticmethod
    def _registered(node: Node) -> Node:
        return Node(node.id, f"{node.id}-1", node.address, node.zone, node.fingerprint, node.daemon)

    @property
    def round(self) -> Round:
        assert self.seen.round is not None
        return self.seen.round

    @property
    def proposal(self) -> Proposal:
        assert self.seen.proposal is not None
        return self.seen.proposal

    def put(self, prefix: str, pairs: Iterable[tuple[str, object | None]]) -> None:
        """Fold values that were written, or deleted where they are None."""
        changes = []
        for key, told in pairs:
            revision = next(self._revision)
            data = StoredValue(key, encode(told), revision, revision, 0) if told else None
            changes.append(Change(key, data, revision))
        self.seen = fold(self.seen, changes, KEYS, self.now, prefix)

    def answered(self, of: Callable[[Node], tuple[str, object]], nodes: Iterable[Node]) -> None:
        self.put(KEYS.nodes, (of(node) for node in nodes))

    def decide(self, what: str) -> Decided:
        """Decide, and have written what was decided."""
        taken = []
        for _ in range(TIMES):
            started = time.process_time()
            decision = rounds.decide(self.seen, self.now, lambda: f"id-{next(self._ids)}")
            if not decision.actions:
                slow_nodes.decide(self.seen, self.now)
            taken.append(time.process_time() - started)
        for action in decision.actions:
            if isinstance(action, WriteRound):
                self.put(KEYS.all, [(KEYS.round, action.round)])
            elif isinstance(action, WriteProposal):
                self.put(KEYS.all, [(KEYS.proposal, action.proposal)])
        return Decided(what, min(taken), decision)

    # -- what nodes write -------------------------------------------------------------------------

    def _live(self, node: Node) -> tuple[str, Node]:
        return KEYS.live(node.id), node

    def _ready(self, node: Node) -> tuple[str, object]:
        round_ = self.round
        slots: tuple[Snapshot, ...] = ()
        if round_.parent:
            size = len(self.nodes)
            slots = (Snapshot(round_.parent, self.proposal.target, "layout", (0,), size, True),)
        store = "10.0.0.1:29500" if round_.members[0].node == node.id else ""
        seen = answers.seen(node, round_)
        told = replace(seen, phase="ready", daemon=node.daemon, snapshots=slots, store=store)
        return KEYS.ack(node.id), told

    def _progress(self, node: Node) -> tuple[str, Progress]:
        told = Progress(
            node.id, self.round.number, STEP, self.now, step_time=0.1, stall=0.01, commit_time=1.0
        )
        return KEYS.progress(node.id), told

    def _steps(self, node: Node) -> tuple[str, Vote]:
        return KEYS.vote(node.id), Vote(node.id, self.proposal.id, STEP, 0.1)

    def _sealed(self, node: Node) -> tuple[str, Vote]:
        target = self.proposal.target
        vote = Vote(node.id, self.proposal.id, target, 0.1, target, target, target)
        return KEYS.vote(node.id), vote

    # -- what happens -----------------------------------------------------------------------------

    def events(self) -> Iterator[Decided]:
        """Yield the decisions of a join, a notice, and the loss of two nodes."""
        first, last = self.nodes[:-1], self.nodes[-1:]
        self.answered(self._live, self.nodes)
        self.now += 1.0
        yield self.decide("all have come: a round is proposed")
        self.answered(self._ready, first)
        yield self.decide("all but one are ready")
        self.answered(self._ready, last)
        yield self.decide("all are ready: the round starts")
        self.answered(self._progress, self.nodes)
        self.now += 5.0
        yield self.decide("the round trains")
        leaver, lost, later = (self.nodes[len(self.nodes) // part] for part in (2, 3, 4))
        notice = Notice(
            InterruptionKind.LEAVE, leaver.id, "signal", self.now, self.now, self.now + 10.0
        )
        self.put(KEYS.nodes, [(KEYS.drain(leaver.id), Drain(leaver.id, notice))])
        yield self.decide("one leaves: steps are asked for")
        self.answered(self._steps, first)
        yield self.decide("all but one have told their steps")
        self.answered(self._steps, last)
        yield self.decide("all have: a target is set")
        self.answered(self._sealed, first)
        yield self.decide("all but one have saved it")
        self.answered(self._sealed, last)
        yield self.decide("all have: the next round is proposed")
        self.answered(self._ready, [node for node in self.nodes if node is not leaver])
        yield self.decide("it starts, from memory")
        self.put(KEYS.nodes, [(KEYS.live(lost.id), None)])
        yield self.decide("one is lost: the next round is proposed")
        self.put(KEYS.nodes, [(KEYS.live(later.id), None)])
        yield self.decide("another one is lost: it is proposed again")
