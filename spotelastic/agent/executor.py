"""Performs what `decide.py` decided: one method per action, each returning what it did, as events.

Nothing here decides, and nothing changes the node's state: `observe.py` folds the events. Actions
on this machine alone are left to `Processes`; here are those that write to etcd. Further writes
wait while etcd does not answer (`NodeRetries.write_at`). A checkpoint daemon that does not answer
is started again; one that refuses is asked again (`NodeRetries.ask_at`).

Must never happen: an action that failed is told as done. Its events are returned when all of it has
been done; a failure is an event of its own, and the next decision tries again. What is written to
etcd comes before the event that says so, and is safe to be written twice.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import singledispatchmethod
from typing import Any

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.errors import CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.types import Commit, WorkerStep

from spotelastic.agent import actions, environment
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.decide import RESTARTED
from spotelastic.agent.health.illness import EFA, TOLD
from spotelastic.agent.in_place.duties import not_kept
from spotelastic.agent.peer_traffic import NOTHING, Sent
from spotelastic.agent.state import events
from spotelastic.agent.state.events import LocalEvent
from spotelastic.agent.state.node_progress import newest, progress
from spotelastic.agent.state.ports import Events, LeaseSession, Processes
from spotelastic.agent.state.values import NodeState, Workers
from spotelastic.agent.workers.trouble import WorkerTrouble, without_advice
from spotelastic.clock import Clock, unbroken
from spotelastic.errors import LeaseLost, Unavailable, UsageError
from spotelastic.model.agreement import Vote
from spotelastic.model.ids import new_id
from spotelastic.model.in_place import REHEARSED, TOLD_KINDS, Rehearsal
from spotelastic.model.job import Failure, Finished, beginning
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event, Progress
from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.round import Round, SlotOffer
from spotelastic.redaction import redactor
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.duties import answers, holding
from spotelastic.rendezvous.failures import blame
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import encode, readable
from spotelastic.store.election import campaign, depose
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store

logger = logging.getLogger(__name__)

WRITE_RETRY, ASK_RETRY, CAMPAIGN_RETRY = 0.2, 0.5, 0.05


class AgentExecutor:
    """Performs actions.

    It owns the agent's session and its node's processes. Used by one thread only.
    """

    def __init__(
        self,
        config: AgentConfig,
        store: Store,
        session: LeaseSession,
        processes: Processes,
        clock: Clock = unbroken,
        new_id: Callable[[], str] = new_id,
        sent: Callable[[Round | None], Sent] = lambda _: NOTHING,
    ) -> None:
        """`sent` returns what the node has sent to others, given the round."""
        self.config = config
        self.keys = Keys(config.run)
        self._store = store
        self._session = session
        self._processes = processes
        self._clock = clock
        self._new_id = new_id
        self._sent = sent
        self.published: Progress | None = None
        """The progress that was published last. Any thread may read it."""

    def perform(self, local: NodeState, seen: RunState, action: actions.Action) -> Events:
        """Return what the action did.

        What could not be done is tried again by the next decision.
        """
        try:
            return self._do(action, local, seen)
        except (Unavailable, LeaseLost):
            return [events.WriteFailed(self._clock() + WRITE_RETRY)]
        except DaemonUnavailable:
            return [messages.Closed()]
        except CheckpointsError as error:
            return self._refused(local, action, error)

    def _refused(self, local: NodeState, action: actions.Action, error: CheckpointsError) -> Events:
        """Handle the refusal of a daemon that lives, but lacks something: memory, for instance."""
        topic = f"refused {type(action).__name__}"
        if topic not in local.reports.said:
            logger.warning(f"checkpoints: {error}")
        return [events.DaemonRefused(topic, self._clock() + ASK_RETRY)]

    def close(self) -> None:
        self._processes.close()

    @singledispatchmethod
    def _do(self, action: actions.Action, local: NodeState, seen: RunState) -> Events:
        return self._processes.do(action, local, seen)

    # -- belonging to the run -----------------------------------------------------------------

    @_do.register
    def _(self, action: actions.Register, local: NodeState, seen: RunState) -> Events:
        if not self._session.alive:
            self._session.renew()
        lease = self._session.lease
        if local.node is not None and not action.anew:
            node = replace(local.node, daemon=local.store.daemon, prepares=action.prepares)
            membership.renew(self._store, self.keys, node, lease, local.agreement.vote)
            return [events.Registered(node, renewed=True)]
        if local.membership.fingerprint is None:
            return []
        node = Node(
            id=self.config.node,
            incarnation=self._new_id(),
            address=self.config.address,
            zone=self.config.zone,
            fingerprint=local.membership.fingerprint,
            daemon=local.store.daemon,
            spot=self.config.spot,
            node_rank=self.config.node_rank,
            type=self.config.type,
            efa=self.config.efa,
            prepares=action.prepares,
        )
        settings = self.config.settings
        refused = membership.join(self._store, self.keys, node, settings, lease, seen)
        if refused is None:
            return [events.Registered(node)]
        now = self._clock()
        since = local.retries.refused_at or now
        if not refused.passing or now >= since + 2 * settings.lease:
            raise UsageError(refused.reason)
        return [events.RegistrationRefused(now + WRITE_RETRY)]

    @_do.register
    def _(self, action: actions.Campaign, local: NodeState, seen: RunState) -> Events:
        leadership = campaign(
            self._store, self.keys.holder, self.config.node.encode(), self._session.lease
        )
        if leadership is None:
            return [events.WriteFailed(self._clock() + CAMPAIGN_RETRY)]
        return [events.BecameHolder(leadership.compare)]

    @_do.register
    def _(self, action: actions.ProbePeers, local: NodeState, seen: RunState) -> Events:
        found = {self._daemon_of(node, seen): node for node in action.nodes}
        refusing = self._processes.refusing([address for address in found if address])
        gone = frozenset(found[address] for address in refusing)
        return [events.PeersProbed(action.round.incarnation, frozenset(action.nodes), gone)]

    def _daemon_of(self, name: str, seen: RunState) -> str:
        """Return the address of a node's daemon; empty if it is not known."""
        if name in seen.nodes:
            return seen.nodes[name].node.daemon
        told = self._store.get(self.keys.live(name))
        node = readable(told.data, Node) if told is not None else None
        return node.daemon if node is not None else ""

    @_do.register
    def _(self, action: actions.Depose, local: NodeState, seen: RunState) -> Events:
        """Delete the key of a holder that is gone, and take its place."""
        if depose(self._store, self.keys.holder, action.node.encode()):
            logger.warning(f"{action.node}, which decided, is gone: this node takes its place")
        return self._do(actions.Campaign(), local, seen)

    @_do.register
    def _(self, action: actions.StepDown, local: NodeState, seen: RunState) -> Events:
        return [events.HolderDeposed()]

    @_do.register
    def _(self, action: actions.Lead, local: NodeState, seen: RunState) -> Events:
        leadership = local.membership.leadership
        if leadership is None:
            return []
        now = self._clock()
        outcome = membership.perform(self._store, self.keys, seen, action.actions, leadership, now)
        if outcome.succeeded:
            for line in slow_nodes.lines(action.actions):
                logger.warning(line)
        return [events.DecisionWritten(*holding.written(outcome, seen, now))]

    @_do.register
    def _(self, action: actions.WriteDrain, local: NodeState, seen: RunState) -> Events:
        notice = local.departure.notice
        if notice is None:
            return []
        notice = replace(notice, node=self.config.node)
        if notice.kind.traits.drains:
            membership.write_drain(self._store, self.keys, Drain(notice.node, notice))
        fault = local.health.fault
        ill = fault.event(notice.node, notice.seen_at, joined=True) if fault is not None else None
        self._record(ill or notice.event(notice.seen_at))
        return [events.DrainWritten()]

    @_do.register
    def _(self, action: actions.TellFault, local: NodeState, seen: RunState) -> Events:
        fault = local.health.fault
        if fault is not None:
            self._record(fault.event(self.config.node, self._clock(), joined=bool(local.node)))
        return [events.Said(TOLD)]

    @_do.register
    def _(self, action: actions.TellNotice, local: NodeState, seen: RunState) -> Events:
        self._record(action.notice.event(action.notice.seen_at))
        return [events.NoticeTold(action.notice)]

    @_do.register
    def _(self, action: actions.BeginDeparture, local: NodeState, seen: RunState) -> Events:
        return [events.Noticed(action.notice)]

    # -- rounds -------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.ClaimStorage, local: NodeState, seen: RunState) -> Events:
        """Claims the storage for the current round.

        A claim fences every other round, so a node that was cut off must not claim for a round that
        has been replaced.
        """
        current = self._store.get(self.keys.round)
        incarnation = action.round.incarnation
        found = readable(current.data, Round) if current is not None else None
        if found is None or found.incarnation != incarnation:
            return [events.ClaimStarted(incarnation, pending=False)]
        return self._processes.do(action, local, seen)

    @_do.register
    def _(self, action: actions.FailJob, local: NodeState, seen: RunState) -> Events:
        membership.fail(self._store, self.keys, action.reason, self._clock())
        return []

    @_do.register
    def _(self, action: actions.KeepStore, local: NodeState, seen: RunState) -> Events:
        kept = local.store.round_store
        if kept is None:
            return []
        return [events.StoreOpened(replace(kept, round=action.round.incarnation))]

    @_do.register
    def _(self, action: actions.Acknowledge, local: NodeState, seen: RunState) -> Events:
        round_, node, claim = action.round, local.node, local.store.claim
        if node is None:
            return []
        ack, resting = answers.seen(node, round_), local.resting
        rests = resting is not None and resting.belong_before(round_)
        if action.ready:
            status, opened = self._processes.status(), local.store.round_store
            claimed = claim if claim and claim.round == round_.incarnation else None
            epoch = claimed.epoch if claimed is not None else 0
            commit = newest(status.commit, local.store.commit)
            if not epoch and round_.members[0].node == node.id:
                commit = newest(commit, membership.told_commit(self._store, self.keys))
            known = status.ancestry
            ack = replace(
                ack,
                phase="ready",
                daemon=local.store.daemon,
                snapshots=status.snapshots,
                commit=commit,
                store=opened.address if opened is not None else "",
                epoch=epoch,
                run_id=claimed.run_id if claimed is not None else "",
                end=local.agreement.end,
                rested=round_.parent if rests else "",
                standings=resting.standings if resting is not None and rests else (),
                ancestry=known if known and known.incarnation != round_.parent else None,
            )
        self._store.put(self.keys.ack(node.id), encode(ack), self._session.lease)
        return [events.Acknowledged(ack.round, ack.phase, ack.epoch, bool(ack.rested))]

    @_do.register
    def _(self, action: actions.OfferSlots, local: NodeState, seen: RunState) -> Events:
        snapshots = self._processes.status().snapshots
        offer = SlotOffer(action.round, local.store.daemon, snapshots)
        key = self.keys.snapshots(self.config.node)
        self._store.put(key, encode(offer), self._session.lease)
        return [events.SlotsOffered(action.round)]

    @_do.register
    def _(self, action: actions.ReportFailure, local: NodeState, seen: RunState) -> Events:
        workers = local.workers
        if workers is None:
            return []
        more = {"rests": workers.can_rest, "attached": workers.attached}
        found = blame.first(
            self._failure(workers, rank, trouble, at=exit_.at, exit_code=exit_.code, **more)
            for exit_ in workers.exits
            if exit_.code or workers.ended_early
            for rank, trouble in [(exit_.local_rank, self._processes.failure(workers, exit_))]
        )
        if found is None and workers.broken is not None:
            local_rank, message, trace = workers.broken
            log = self._processes.log(workers, local_rank)
            trouble = WorkerTrouble(without_advice(message), trace, log)
            found = self._failure(workers, local_rank, trouble, exit_code=1, broken=True, **more)
        if found is None:
            return []
        has_peers = seen.round is not None and seen.round.world_size > 1
        lost_peer = has_peers and blame.is_symptom(found)
        lost = " lost a peer" if lost_peer else ""
        return self._report(found, f"rank {found.rank}{lost}: {found.message}", lost_peer=lost_peer)

    @_do.register
    def _(self, action: actions.ReportStall, local: NodeState, seen: RunState) -> Events:
        workers = local.workers
        if workers is None or seen.settings is None:
            return []
        pace, timeout = workers.pace, seen.settings.stall_timeout
        trouble = self._processes.stall(workers, timeout)
        found = self._failure(workers, pace.behind, trouble, at=pace.step_at, stalled=True)
        return self._report(found, f"rank {found.rank} {found.message}")

    @_do.register
    def _(self, action: actions.TellSilence, local: NodeState, seen: RunState) -> Events:
        """Report a silence. People are told here, whether etcd can be told or not."""
        workers = local.workers
        if workers is None:
            return []
        silence, now = workers.silence, self._clock()
        for_ = f"for {now - (silence.since or workers.started_at):.0f} s"
        what = f"no step {for_}" if workers.attached else f"no Checkpointer was entered {for_}"
        standing, more = self._processes.standing(workers)
        line = beginning(f"{what}: {standing}")
        logger.warning(f"{line}; whole stacks are in {more}")
        told: list[LocalEvent] = [events.SilenceReported(line)]
        with contextlib.suppress(Unavailable, LeaseLost):
            if not workers.first_rank:
                self._record(Event(now, "quiet", line, self.config.node))
            told += self._progress(local, seen.round, line)
        return told

    @_do.register
    def _(self, action: actions.ReportNotKept, local: NodeState, seen: RunState) -> Events:
        blank = self._blank(action.round.incarnation)
        failure = replace(blank, message=action.why)
        self._report(failure, failure.message)
        return [events.Said(not_kept(action.round))]

    @_do.register
    def _(self, action: actions.ReportStoreDeath, local: NodeState, seen: RunState) -> Events:
        failure = replace(self._blank(action.round.incarnation), message="the round's store ended")
        return self._report(failure, failure.message)

    def _blank(self, round_: str) -> Failure:
        """Return a failure of this node in a round, of no worker."""
        return Failure(self._new_id(), self.config.node, round_, -1, -1, self._clock(), 0)

    def _failure(
        self, workers: Workers, local_rank: int, trouble: WorkerTrouble, **more: Any
    ) -> Failure:
        """Return the failure of a worker, as it is reported to the holder."""
        told = {"message": trouble.message, "traceback": trouble.traceback, "log": trouble.log}
        named = {"rank": workers.first_rank + local_rank, "local_rank": local_rank}
        more |= told | named
        return replace(self._blank(workers.round), **more)

    def _report(self, failure: Failure, message: str, *, lost_peer: bool = False) -> Events:
        blot = redactor(self.config.secrets)  # before a cut, which might leave half a secret
        message = beginning(blot(message))
        # The user's own files are found by their paths in the script's folder, not in this node's.
        trace = failure.traceback.replace(f'File "{self.config.workdir.absolute()}/', 'File "')
        failure = replace(failure, message=blot(failure.message), traceback=blot(trace))
        failure = failure.storable()
        self._store.put(self.keys.failure(self.config.node), encode(failure))
        data = {
            "rank": failure.rank,
            "at": failure.at,
            "seen_at": self._clock(),
            "round": failure.round,
            "exit_code": failure.exit_code,
            "log": failure.log,
            "lost_peer": lost_peer,
        }
        self._record(Event(failure.at, "failure", message, self.config.node, data))
        logger.error(message)
        return [events.FailureReported(failure.broken)]

    @_do.register
    def _(self, action: actions.ReportFinished, local: NodeState, seen: RunState) -> Events:
        workers = local.workers
        if workers is None:
            return []
        end = self._processes.round_end(workers)
        finished = Finished(
            self.config.node,
            workers.round,
            self._clock(),
            end_step=end.last_step or action.round.resume.step,
            first_step_at=end.first_step_at,
            last_step_at=end.last_step_at,
        )
        self._store.put(self.keys.finished(workers.round, self.config.node), encode(finished))
        return [events.FinishReported(workers.round)]

    @_do.register
    def _(self, action: actions.Say, local: NodeState, seen: RunState) -> Events:
        logger.info(action.line)
        return [events.Said(action.topic)]

    @_do.register
    def _(self, action: actions.StartWorkers, local: NodeState, seen: RunState) -> Events:
        told = self._processes.do(action, local, seen)
        line = environment.sockets_instead(os.environ, self.config, action.round)
        if line and action.member.slot == 0:
            logger.warning(line)
            data = {"round": action.round.number, "zones": list(action.round.zones)}
            with contextlib.suppress(Unavailable, LeaseLost):
                self._record(Event(self._clock(), "network", line, data=data))
        return told

    @_do.register
    def _(self, action: actions.TellRestart, local: NodeState, seen: RunState) -> Events:
        incarnation = local.node.incarnation if local.node is not None else ""
        node, data = self.config.node, {"incarnation": incarnation}
        line = f"{node} starts again: the code has changed"
        self._record(Event(self._clock(), "restart", line, node, data))
        return [events.Said(RESTARTED)]

    @_do.register
    def _(self, action: actions.TellVersions, local: NodeState, seen: RunState) -> Events:
        data = {"topic": action.topic, "protocol": str(PROTOCOL)}
        line = f"{self.config.node} {action.line}"
        self._record(Event(self._clock(), "version", line, self.config.node, data))
        logger.warning(line)
        return [events.Said(action.topic)]

    @_do.register
    def _(self, action: actions.TellDevices, local: NodeState, seen: RunState) -> Events:
        now, node, data = self._clock(), self.config.node, dict(action.data)
        self._record(Event(now, EFA if action.topic == EFA else "gpu", action.line, node, data))
        logger.log(logging.WARNING if action.warns else logging.INFO, action.line)
        return [events.Said(action.topic)]

    # -- agreement on a save step -------------------------------------------------------------

    @_do.register
    def _(self, action: actions.AnswerSteps, local: NodeState, seen: RunState) -> Events:
        return self._answer(action, local, self._processes.status().workers)

    @_do.register
    def _(self, action: actions.SetSaveTarget, local: NodeState, seen: RunState) -> Events:
        """Write the target, then read the steps: what a vote confirms depends on that order."""
        proposal = action.proposal
        steps = self._processes.set_target(proposal.round, proposal.id, proposal.target)
        return self._answer(actions.AnswerSteps(proposal), local, steps)

    @_do.register
    def _(self, action: actions.Refuse, local: NodeState, seen: RunState) -> Events:
        vote = Vote(self.config.node, action.proposal.id, _resumed(local), refused=True)
        return self._vote(replace(vote, plain=action.plain))

    @_do.register
    def _(self, action: actions.ReleaseWorkers, local: NodeState, seen: RunState) -> Events:
        proposal = action.proposal
        schedule = proposal.schedule if proposal.applied else None
        self._processes.set_target(proposal.round, proposal.id, 0, schedule)
        if schedule is not None and local.workers is not None and not local.workers.first_rank:
            logger.info(proposal.reason)
        return [events.WorkersReleased()]

    def _answer(
        self, asked: actions.AnswerSteps, local: NodeState, steps: Sequence[WorkerStep]
    ) -> Events:
        node, resumed = self.config.node, _resumed(local)
        return self._vote(answers.vote(node, asked.proposal, steps, resumed, sealed=asked.sealed))

    def _vote(self, vote: Vote) -> Events:
        self._store.put(self.keys.vote(vote.node), encode(vote), self._session.lease)
        return [events.Voted(vote)]

    # -- telling ------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.TellProgress, local: NodeState, seen: RunState) -> Events:
        quiet = local.workers.silence.line if local.workers is not None else ""
        return self._progress(local, seen.round, quiet)

    def _progress(self, local: NodeState, round_: Round | None, quiet: str) -> Events:
        status, sent = self._processes.status(), self._sent(round_)
        told = progress(self.config.node, local, status, self._clock(), quiet, sent)
        key = self.keys.progress(self.config.node)
        self._store.put(key, encode(told), self._session.lease)
        self.published = told
        commit = newest(status.commit, local.store.commit)
        return [events.ProgressReported(told.step, told.step_time, commit)]

    def tell(self, event: messages.DaemonEvent) -> None:
        """Record what people should know of what this node's daemon says."""
        with contextlib.suppress(Unavailable, LeaseLost):
            match event:
                case messages.Committed(epoch, step, at):
                    commit = Commit(epoch, step)
                    membership.tell_commit(self._store, self.keys, self.config.node, commit, at)
                case messages.Rehearsed():
                    self._tell_rehearsal(event)
                case messages.FilesTold(line):
                    logger.warning(line)
                    self._record(Event(self._clock(), "files", line, self.config.node))

    def _tell_rehearsal(self, found: messages.Rehearsed) -> None:
        """Record what was found by making a step again, by reading one back, or at the end."""
        told = tuple(found.message.splitlines())
        its = Rehearsal(found.step, found.world_size, found.outcome, told)
        logger.log(logging.WARNING if its.differs else logging.INFO, its.text)
        event = Event(
            self._clock(),
            found.kind if found.kind in TOLD_KINDS else REHEARSED,
            its.line,
            self.config.node,
            asdict(its),
        )
        self._record(event)

    def _record(self, event: Event) -> None:
        membership.record(self._store, self.keys, event)


def _resumed(local: NodeState) -> int:
    return local.workers.resumed if local.workers is not None else 0
